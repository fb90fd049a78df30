# %% [markdown]
# # {heading}
#
# {minutes} minutes. Afterwards you will be able to
#
# - **price** a draft: what it costs to check k tokens in one iteration, for one user and for eight;
# - **write** both halves of speculation: a drafter, and the rule that keeps the answer what it would have been;
# - **decide** for which requests, and for how many users, drafts should be off.
#
# **What you will use elsewhere:** vLLM, TensorRT-LLM, SGLang and llama.cpp all speculate, with drafters of many kinds.
# The price, the rule and the two numbers to watch (drafted and accepted tokens) are the same for each of them.
#
# You need lesson 04 (iterations) and from lesson 01 the [roofline](glossary.md#Roofline). Engine, repository and
# server are made here.
#
# {navigation}

# %% [markdown]
# ## {question}
#
# An editor pastes an article and asks for it again with the spelling corrected. You could write most of the answer
# yourself: it is the article. The model, though, produces it one token at a time, and for each of them the engine
# reads all weights once.
#
# So guess. Put the next few tokens of the article behind the answer as a *draft*, let one iteration compute all of
# them, and keep those that the model would have written itself. That is *speculative decoding*. It raises two
# questions: what does an iteration with a draft cost, and how many of the guesses are right?

# %%
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.express as px

from inflight import CourseError, engine
from inflight.bench import trace_run, workload
from inflight.checkpoint import fetch, load_tokenizer
from inflight.engine import BuildConfig, Chunk, Executor, Request
from inflight.lessons import speculation as lesson
from inflight.notebook import charts, progress, session, told_apart, widgets
from inflight.triton import Client, Server, repository

with progress.wait("The engine, built the first time"):
    engine_dir = engine.cached(fetch())
executor = Executor.load(engine_dir)
model = executor.model
info = model.info
session.others()
print(f"{info.weight_bytes / 1e6:.0f} MB of weights, computed as {info.precision}")

# %% [markdown]
# ## Predict
#
# Eight users share the engine, and each of them has a draft of four tokens. An iteration then computes five tokens for
# each user in place of one.

# %%
guess = widgets.predict(
    "Such an iteration takes how many times as long as one without drafts?",
    {
        "about as long: weights are read once either way": 1,
        "about twice as long": 2.1,
        "about five times as long: five times the tokens": 5,
    },
)
guess

# %% [markdown]
# ## On paper
#
# Lesson 01's roofline has a flat part and a rising one. Left of the ridge an iteration takes as long as reading takes,
# however many tokens share it; right of it every token costs its multiplications. Two measurements without any draft
# give both bounds: one token for each user, and 256 tokens at once. `iteration_s` runs the model on made-up tokens. A
# `Chunk` is what one user computes, here behind a past of 100 tokens; `num_logits` says after how many of its tokens
# you want to know what comes next. Without drafts that is the last, with drafts it is each. It runs twice: this runtime
# takes longer for another number of tokens than the iteration before had, and in an engine most have the same.

# %%
past = 100
block = info.build_config.tokens_per_block


def iteration_s(users, tokens, past=past):
    """Seconds of an iteration with so many tokens of each user: at first, and again."""
    blocks = -(-(past + tokens) // block)
    chunks = [
        Chunk([1] * tokens, past, list(range(first, first + blocks)), num_logits=tokens)
        for first in range(0, users * blocks, blocks)
    ]
    took_s = []
    for _ in range(2):
        started = time.perf_counter()
        model.forward(chunks)
        took_s.append(time.perf_counter() - started)
    return took_s


# %% tags=["nbval-ignore-output"]
few = [(1, 1), (8, 1), (1, 256)]
measured = [[iteration_s(*case)[1] for case in few] for _ in range(6)]
one_s, eight_s, many_s = np.median(measured[1:], axis=0)  # the first warms up
plain_s = {1: one_s, 8: eight_s}
token_s = (many_s - one_s) / 255
print(f"One token each: {1e3 * one_s:.1f} ms, with 8 users {1e3 * eight_s:.1f} ms.")
print(f"A token more among many: {1e3 * token_s:.2f} ms.")


# %%
def on_paper(users, tokens):
    """Seconds: if drafts fit beside reading, and if they come on top."""
    roof_s = max(plain_s[users], users * tokens * token_s)
    # your line: the same, if each token beyond the first of a user is paid in full
    sum_s = plain_s[users] + users * (tokens - 1) * token_s

    return roof_s, sum_s


# %% [markdown]
# ## Measure
#
# 1, 4 and 8 users, with 1 to 17 tokens each; all cases take turns, and the median of the rounds counts.

# %% tags=["nbval-ignore-output"]
lengths = (1, 2, 3, 5, 9, 13, 17)
cases = [(users, tokens) for users in (1, 4, 8) for tokens in lengths]
both = []
for _ in progress.over(range(6), "Round"):
    both.append([iteration_s(*case) for case in cases])
first_ms, rounds = 1000 * np.array(both[1:]).transpose(2, 0, 1)  # round 1 warms up
change_ms = np.median(first_ms - rounds)
rounds = pd.DataFrame(rounds)
rounds.columns = pd.MultiIndex.from_tuples(cases, names=["users", "tokens"])
prices = rounds.median().unstack()  # ms: a row for so many users, a column for tokens
print(f"Straight after another number of tokens: {change_ms:.1f} ms more.")
prices.round(1)

# %% tags=["nbval-ignore-output"]
rows = []
for users, tokens in [(1, 2), (1, 5), (1, 17), (8, 2), (8, 5), (8, 17)]:
    fits, on_top = np.array(on_paper(users, tokens)) / plain_s[users]
    found = prices[tokens][users] / prices[1][users]
    rows.append((users, tokens, fits, on_top, found, found / fits, found / on_top))
columns = ["users", "tokens each", "if they fit", "if on top", "measured"]
columns += ["measured / fit", "measured / on top"]
charts.table(pd.DataFrame(rows, columns=columns), decimals=2)

# %% [markdown]
# From the third column on, the table has ratios to an iteration with one token for each user.

# %% tags=["nbval-ignore-output"]
for users in (1, 8):
    dearer = told_apart(rounds[users, 5], rounds[users, 1], "longer", "shorter")
    print(f"{users} user{'s' * (users > 1)}, 5 tokens each against 1: {dearer}")
print(guess.score(dearer.ratio, "that ratio for eight users"))

# %% tags=["nbval-ignore-output"]
figure = px.line(
    prices.T.reset_index().melt("tokens", value_name="ms"),
    x="tokens",
    y="ms",
    color="users",
    markers=True,
)
figure.update_layout(xaxis_title="tokens of each user", yaxis_title="time (ms)")
figure.update_yaxes(rangemode="tozero")
four = [prices[5][users] / prices[1][users] for users in prices.index]
summary = "Time of an iteration against the tokens of each user. Five tokens for one: "
summary += ", ".join(f"{t:.2f} times (users: {u})" for t, u in zip(four, prices.index))
charts.show(figure, f"{summary}.")
print(f"{summary}.")

# %% [markdown]
# Which of the last two columns is nearer to 1? Where it is *on top*, also for one user, multiplying hardly hides behind
# reading, and each drafted token is paid about in full, or more. For one user a short draft is still cheap: four
# tokens' multiplications (the line above has the price of one) are little beside reading all weights. Eight users with
# four drafts each pay for thirty-two, and read no more. Where a ratio lies above both bounds, something costs that the
# paper leaves out, such as attention, or other kernels for more rows; `iteration_s(1, 5, past=0)` leaves out its part:
# try it.
#
# That drafts are dear for as few as eight users is this machine's doing: a CPU has little arithmetic beside its
# bandwidth. On a GPU the ridge lies at hundreds of tokens, and vLLM calls drafts at one user [close to
# free](https://docs.vllm.ai/en/v0.32.0/features/speculative_decoding/adaptive_verification/), but a much more delicate
# trade at 256. Hold users times (k + 1) against the ridge of your machine. That is for a dense model: in a mixture of
# experts a further token may need experts whose weights nobody else has read. And it is for short texts: over long ones
# an iteration of many users mostly reads KV cache, which the tokens of a draft share, so drafts can pay at large
# batches, too ([MagicDec](https://arxiv.org/abs/2408.11049)). If this notebook runs on a GPU, its table does not show
# it: for several tokens of a user `iteration_s` starts kernel by kernel what the engine replays as one recorded CUDA
# graph.
#
# ## The drafter
#
# Now the guesses. The simplest drafter is *prompt lookup*: take the last three tokens of the text, look for the place
# where they stood before, and propose what followed there. Not found? Then try the last two, then one. It needs no
# second model; TensorRT-LLM calls it `NGram`, vLLM `ngram`.


# %%
def propose(tokens, k, longest=3):
    """At most k tokens that may come next."""
    for size in range(longest, 0, -1):
        last = tokens[-size:]
        for start in range(len(tokens) - size - 1, -1, -1):
            if tokens[start : start + size] == last:
                # your line: at most k tokens, from behind the place that was found
                return tokens[start + size : start + size + k]
    return []


# %%
tokenizer = load_tokenizer(engine_dir)
text = "The ferry leaves at six. Its captain is Anna Weber. When? The ferry leaves"
tokens = tokenizer.encode(text)
print([tokenizer.decode([token]) for token in propose(tokens, 5)])

# %% [markdown]
# ## The rule
#
# A draft of k tokens gives k + 1 rows of logits: what the model says after the text, after the first guess, and so on.
# The first row is right in any case, for the text is there. The second holds only if the first guess is what the model
# chose, since it was computed as if that were in the text. So go from row to row, choose a token as always, and go on
# as long as it is the guess. The last token chosen comes in any case: it is either the model's correction or one more
# than was drafted.


# %%
def accept(rows, draft, choose, end):
    """The tokens that an iteration brings: those guessed right, and one more."""
    brought = []
    for row, guessed in zip(rows, [*draft, None]):
        brought.append(int(choose(row)))
        # your line: leave the loop where the text ends or is not the guessed one
        if brought[-1] == end or brought[-1] != guessed:
            break
    return brought


# %% [markdown]
# The loop around it is a whole engine for one user. Watch `computed`, how many tokens are in the KV cache: it counts only
# those that were kept, and the next iteration overwrites what lies behind. *Padding* keeps all iterations of one length,
# since changing it has a price (the line above the table). Engines on GPUs pad for a similar reason: TensorRT-LLM's
# [`enable_padding`](https://nvidia.github.io/TensorRT-LLM/1.3.0rc27/llm-api/reference/DecodeCudaGraphConfig.html) rounds
# a batch up to a size for which it has a CUDA graph.

# %%
BLOCKS = list(range(info.build_config.max_seq_len // block))  # of the only user


def answer(model, prompt, most, k, choose=np.argmax):
    """Of each iteration, the tokens that it brings and how many were drafted."""
    text, computed, room = list(prompt), 0, most
    while room:
        draft = propose(text, min(k, room - 1)) if k else []
        new = text[computed:] + draft + [0] * (k - len(draft))  # padding
        chunk = Chunk(new, computed, BLOCKS, num_logits=k + 1)
        brought = accept(model.forward([chunk]), draft, choose, tokenizer.end_id)
        computed = len(text) + len(brought) - 1
        text += brought
        room = 0 if brought[-1] == tokenizer.end_id else room - len(brought)
        yield brought, len(draft)


# %% [markdown]
# ## Run
#
# Four kinds of requests: an article to be rewritten with its spelling corrected, a function in which a variable gets
# another name, an article to be summarized, and questions. For a rewrite and a question, answers with drafts of four
# tokens take turns with answers without, three rounds. The clock starts after the prompt's iteration, which is the same
# for both.

# %%
kinds = ("rewrite", "edit", "summary", "chat")
asked = {kind: workload.read_dataset(workload.DATASETS[kind]) for kind in kinds}
prompts = {
    kind: [tokenizer.encode_chat(record.prompt) for record in records]
    for kind, records in asked.items()
}


def words_of(steps):
    return [token for brought, _ in steps for token in brought]


def right_and_wrong(steps):
    """Of each iteration, the drafts accepted and those thrown away."""
    return [
        (len(brought) - 1, drafted - len(brought) + 1) for brought, drafted in steps
    ]


# %% tags=["nbval-ignore-output"]
took = {(kind, k): [] for kind in ("rewrite", "chat") for k in (0, 4)}
said = {}
for _ in progress.over(range(3), "Round"):
    for kind, k in took:
        iterations = answer(model, prompts[kind][1], 64, k)
        first = next(iterations)
        started = time.perf_counter()
        said[kind, k] = [first, *iterations]
        took_s = time.perf_counter() - started
        took[kind, k].append(took_s / (len(words_of(said[kind, k])) - len(first[0])))
print(tokenizer.decode(words_of(said["rewrite", 4])))

# %% tags=["nbval-ignore-output"]
for kind in ("rewrite", "chat"):
    plain, words = words_of(said[kind, 0]), words_of(said[kind, 4])
    right, wrong = np.sum(right_and_wrong(said[kind, 4]), axis=0)
    print(f"{kind}: {len(words)} tokens (without drafts {len(plain)})", end=" ")
    print(f"in {len(said[kind, 4])} iterations;", end=" ")
    print(f"{right} drafts accepted, {wrong} thrown away;", end=" ")
    print("the same words as without:", words == plain)
    quicker = told_apart(took[kind, 0], took[kind, 4], "faster", "slower")
    print(f"    with drafts, beside the same loop without: {quicker}")

# %% [markdown]
# (Not the same words? A section below says why. Then the answers need not be equally long either.) The ratio is of the
# time for a token: without drafts over with them. This loop also looks for drafts in Python, from the end of the text
# to its beginning, and that time is in it.
#
# ## See
#
# A greedy answer is known once it has been written: but for rounding, which has a section below, drafts do not change it.
# So what other drafts would have brought can be counted without the model: `accept` compares with the known tokens in
# place of logits. The executor writes four answers of each kind:

# %% tags=["nbval-ignore-output"]
requests = [
    Request(prompt, 96, end_id=tokenizer.end_id)
    for kind in kinds
    for prompt in prompts[kind][:4]
]
with progress.wait("Sixteen answers"):
    responses = executor.generate_all(requests)
known = {kind: [] for kind in kinds}
for number, (request, response) in enumerate(zip(requests, responses)):
    ended = [tokenizer.end_id] * (response.finish_reason == "end_id")
    known[kinds[number // 4]].append((request.input_ids, response.token_ids + ended))


# %% tags=["nbval-ignore-output"]
def replay(prompt, words, k):
    """Of each iteration of a known answer, what `answer` yields."""
    at = 0
    while at < len(words):
        room = len(words) - at
        draft = propose(prompt + words[:at], min(k, room - 1)) if k else []
        brought = accept(words[at:], draft, int, tokenizer.end_id)
        yield brought, len(draft)
        at += len(brought)


steps = {kind: right_and_wrong(replay(*known[kind][1], 4)) for kind in kinds}
charts.show(lesson.steps(steps), lesson.steps_summary(steps))

# %% [markdown]
# One answer of each kind, drafts of at most four tokens. A column is an iteration, and its upper part is as high as the
# tokens that it brought: blue is the token that comes in any case, green are accepted drafts, and grey, below the line,
# are those thrown away. High columns: the answer needs fewer iterations. Grey costs time and brings nothing.

# %% tags=["nbval-ignore-output"]
rows = []
for kind in kinds:
    for k in (0, 1, 2, 4, 8, 12, 16):
        done = [step for one in known[kind] for step in replay(*one, k)]
        accepted, thrown = np.mean(right_and_wrong(done), axis=0)
        rows.append((kind, k, accepted + thrown, accepted, 1 + accepted))
columns = ["workload", "drafts", "drafted", "accepted", "brought"]
brought = pd.DataFrame(rows, columns=columns)  # of an average iteration
brought["share"] = brought["accepted"] / brought["drafted"]
charts.table(brought[brought["drafts"].isin([2, 4, 8])], decimals=2)

# %% [markdown]
# `share` is the *acceptance rate*, accepted over drafted. Longer drafts lower it: a guess counts only if all before it
# were right.
#
# ## Explain: when does it pay?
#
# An iteration with drafts brings more tokens and takes longer. The tokens are counted, the price was measured. Padding
# is paid like a draft, so the price is that of `k + 1` tokens, however many were drafted.


# %%
def speed_up(brought, k, users):
    """How many times as fast as without drafts."""
    without_ms, with_ms = prices[1][users], prices[k + 1][users]
    # your line: from the tokens that an iteration brings and the two prices
    return brought * without_ms / with_ms


# %% tags=["nbval-ignore-output"]
rows = [
    (users, row.workload, row.drafts, speed_up(row.brought, row.drafts, users))
    for users in (1, 8)
    for row in brought.itertuples()
]
gains = pd.DataFrame(rows, columns=["users", "workload", "drafts", "times"])
charts.show(lesson.gains(gains), lesson.gains_summary(gains))
for users, of in gains[gains["drafts"] == 16].groupby("users"):
    slower = (of["times"] < 1).sum()
    print(f"Drafts of 16, users: {users}. {slower} of {len(of)} kinds are slower.")

# %% [markdown]
# Above the dashed line drafts make an answer faster, below it slower. Both panels have the same counts; only the prices
# differ. With eight users each draft makes the iteration longer for the seven others, too; where a line turns down, the
# next guess costs more than it brings.

# %% tags=["nbval-ignore-output"]
for kind in ("rewrite", "chat"):
    right, _ = np.mean(right_and_wrong(said[kind, 4])[1:], axis=0)
    expected = speed_up(1 + right, 4, 1)
    found = told_apart(took[kind, 0], took[kind, 4]).ratio
    print(f"{kind}, the answer that was timed: predicted {expected:.2f} times", end=" ")
    print(f"as fast, {found:.2f} by the clock; ratio {found / expected:.2f}")

# %% [markdown]
# The prediction leaves out the search for drafts, which makes the clock's ratio smaller, and that these prompts are
# longer than 100 tokens, while attention grows with what lies before. A difference within the interval of the run above
# is noise.
#
# How could this mislead? One model of 135 million weights wrote all answers. A small model, greedy, may repeat itself
# (print the end of an answer in `known["rewrite"]`), and a lookup guesses repetitions well, so part of the rewrite's
# gain may be a loop's; a better model may repeat less and copy more faithfully. Four answers are a small sample. The
# eight users of the picture all send the same kind of request, and all draft in every iteration.
#
# ## The same words?
#
# Mathematically drafts change nothing: each row of logits belongs to the text that the answer has in the end. A computer
# rounds, though, and products of one row and of five are not always rounded alike. Where two tokens are almost equally
# likely, that decides. The default engine rounds activations to 8 bits where the processor has such products (A8 in its
# name); `W4A16` does not. A rewrite, a summary and a question, with both builds:

# %% tags=["nbval-ignore-output"]
with progress.wait("A build that does not round activations to 8 bits"):
    exact_dir = engine.cached(fetch(), BuildConfig(quant_algo="W4A16"))
exact = Executor.load(exact_dir)


def parted(model, prompt, plain, words):
    """Where two answers part, and how likely the model finds both tokens there."""
    at = next(n for n, (one, other) in enumerate(zip(plain, words)) if one != other)
    [logits] = np.asarray(model.forward([Chunk(prompt + plain[:at], 0, BLOCKS)]))
    chances = np.exp(logits - logits.max())
    one, other = chances[[plain[at], words[at]]] / chances.sum()
    return f"part at token {at}, at probabilities of {one:.3f} and {other:.3f}"


# %% tags=["nbval-ignore-output"]
for one in (model, exact.model):
    print(f"{one.info.quant_algo}:")
    for kind in progress.over(("rewrite", "summary", "chat"), one.info.quant_algo):
        prompt = prompts[kind][1]
        plain, words = (words_of(answer(one, prompt, 40, k)) for k in (0, 4))
        same = "the same" if plain == words else parted(one, prompt, plain, words)
        print(f"    {kind}, {len(plain)} tokens: {same}")

# %% [markdown]
# Where two answers part, the line has the probabilities of their two tokens. Where these are close, it was a near-tie.
# Three answers cannot prove that nothing changes; the rule does. What they show is whether the differences go when this
# rounding, of activations to 8 bits, goes. Only 40 tokens are compared here: an answer that was longer above may part
# behind them. Batching does the same to an answer as soon as somebody else joins. vLLM, too, calls its speculation
# lossless up to the precision of the hardware's numbers ([its
# documentation](https://docs.vllm.ai/en/v0.17.0/features/speculative_decoding/)).
#
# ## With chance
#
# Chats are rarely greedy. Then each token has a probability, and the rule needs no change. It draws
# from each row as always and asks only whether the token drawn is the guess. A language of three words shows it: a row
# of `after` says what follows "a", "b" and "c". The answer begins after an "a", and the draft is "b c".

# %%
after = np.array([[0.1, 0.6, 0.3], [0.3, 0.1, 0.6], [0.5, 0.4, 0.1]])
guesses = [1, 2]  # b, c
exact_share = after[0, 1] * after[1, 2]  # of answers that begin with b c
random = np.random.default_rng(0)


def drawn(row):
    """The word at which the sum of the chances passes the row's random number."""
    chances, number = row
    return np.searchsorted(np.cumsum(chances), number)


# %%
def accept_likely(rows, draft, choose, end):
    """A rule that looks sensible: a guess that is likely enough is accepted."""
    for row, (place, guessed) in zip(rows, enumerate(draft)):
        if row[0][guessed] < 0.5:
            return [*draft[:place], int(choose(row))]
    return [*draft, int(choose(rows[-1]))]


# %%
for rule in (accept, accept_likely):
    shares = []
    for _ in range(10):
        tries = [list(zip(after, random.random(3))) for _ in range(1000)]
        answers = [rule(rows, guesses, drawn, end=None) for rows in tries]
        shares.append(np.mean([brought[:2] == guesses for brought in answers]))
    found = told_apart(shares, [exact_share] * 10)
    print(f"{rule.__name__}: {np.mean(shares):.2f} begin with b c,", end=" ")
    print(f"where {exact_share:.2f} should. {found}")

# %% [markdown]
# The second rule accepts more and writes other answers: likely words become likelier still. (At 95 % about one in
# twenty comparisons of equal things is told apart by chance; with another seed it may be this one.) The names for the
# two kinds are *lossless* and *lossy*; Medusa's [typical acceptance](https://arxiv.org/abs/2401.10774) is of the
# second. A drafter that is a model gives each guess a probability q. The guess is then accepted with the smaller of 1
# and p/q, where p is the large model's probability, and otherwise a token is drawn from max(0, p − q), scaled to sum to
# 1 ([Leviathan et al. 2023](https://arxiv.org/abs/2211.17192)). A lookup is sure of its guess: q is 1, and that is your
# rule. The flatter the distribution, the less often the token drawn is the guess: a higher temperature lowers the
# acceptance rate.
#
# ## In the running engine
#
# The same in the server, with batching, and with prompts on the clock. `speculative_config` has the names of
# TensorRT-LLM's `NGramDecodingConfig`. (Its `is_use_oldest` and `is_public_pool` are on by default: it takes the oldest
# match, and shares what it found among requests.) The engine writes into its log how many tokens were drafted and
# accepted.

# %%
workdir = tempfile.TemporaryDirectory()
log_path = Path(workdir.name) / "iterations.jsonl"
repo = repository.assemble(
    Path(workdir.name) / "repo",
    engine_dir,
    decoupled_mode=True,
    iteration_log_path=log_path,
)
with progress.wait("The server starts"):
    server = Server(repo).start()
client = Client(server.grpc_url, timeout_s=600)
ngram = {"decoding_type": "NGram", "max_draft_len": 4, "max_matching_ngram_size": 3}

# %% tags=["nbval-ignore-output"]
jobs = {
    kind: [
        replace(one, max_tokens=48)
        for one in workload.from_dataset(asked[kind], tokenizer)
    ]
    for kind in ("rewrite", "chat")
}
runs = {(kind, users, k): [] for kind in jobs for users in (1, 8) for k in (0, 4)}
for _ in progress.over(range(3), "Round"):
    for k in (0, 4):
        server.load("tensorrt_llm", speculative_config=ngram if k else None)
        for kind, texts in jobs.items():
            trace_run.run(client, texts[:1], log_path)  # warms up
            for users in (1, 8):
                sent = texts[: max(users, 3)]
                run = trace_run.run(client, sent, log_path, concurrency=users)
                runs[kind, users, k].append(run)


# %%
def log_of(kind, users, k):
    return pd.concat([run.log for run in runs[kind, users, k]])


def priced_ms(log, users):
    """Time of iterations: those with prompts as measured, the others by price."""
    prompts = log["context_tokens"] > 0
    tokens = log["rows"][~prompts] / users
    decode_ms = np.interp(tokens, prices.columns, prices.loc[users]).sum()
    return log["iteration_ms"][prompts].sum() + decode_ms


# %% tags=["nbval-ignore-output"]
for kind, users in [(kind, users) for kind in jobs for users in (1, 8)]:
    off, on = ([run.tokens_per_s for run in runs[kind, users, k]] for k in (0, 4))
    print(f"{kind}, users: {users}. {told_apart(on, off, 'faster', 'slower')}")
    plain, log = (log_of(kind, users, k) for k in (0, 4))
    predicted = priced_ms(plain, users) / priced_ms(log, users)
    drafted, accepted = log["drafted"].sum(), log["accepted"].sum()
    print(f"    by your prices {predicted:.2f} times;", end=" ")
    print(f"{len(plain)} iterations without, {len(log)} with;", end=" ")
    print(f"{accepted} of {drafted} drafts accepted")

# %% [markdown]
# The verdict compares tokens a second, with drafts over without. The engine goes one step further than your loop: when
# it is loaded it measures prices as you did, and each iteration gets as many drafts as have lately brought the most
# tokens a millisecond. It also compares guesses that it did not draft with what came, so it knows when to begin again.
# For chat it may draft almost nothing, and *not told apart* then says only that this run shows no cost of choosing, not
# that drafts do no harm: your loop had to pay for them. *Slower* is possible: where your prices give less than 1, too,
# the drafted iterations themselves did not pay; where the clock alone does, trying, changing the number of drafts (the
# line above the price table) and looking guesses up may be why. With eight users the slowest answer ends a run; drafts
# shorten the others, and their places stay empty. That is one reason if the picture's speed-up for eight is not reached
# here; another is the share of guesses that were right, where it is below the table's. A server with a queue gives such
# a place to the next request: the picture is nearer to that case. Prompts are on this clock, and pull every ratio
# towards 1. Where the prediction lies outside the interval, what it leaves out counts: looking guesses up, the change
# of length when a request comes or goes, and eight users of whom some have finished.
#
# ## Turn the knob
#
# From your prices and counts, for drafts of a fixed length: move the slider from one user to eight. At how many users
# does each line fall below 1, if it does, and which length of draft is the last to pay? Nothing is run.

# %% tags=["nbval-ignore-output"]
lesson.turning_point(prices, brought)

# %% [markdown]
# ## Elsewhere
#
# | | Here | TensorRT-LLM (`llmapi`) | vLLM |
# |---|---|---|---|
# | prompt lookup | `decoding_type` `NGram` | `NGramDecodingConfig` | `"method": "ngram"` |
# | longest draft | `max_draft_len` | `max_draft_len` | `num_speculative_tokens` |
# | tokens that must match | `max_matching_ngram_size` | `max_matching_ngram_size` | `prompt_lookup_max`, `prompt_lookup_min` |
# | fewer drafts with more users | from measured prices | `draft_len_schedule`, `max_concurrency` | `num_speculative_tokens_per_batch_size` |
# | off where guesses are wrong | from acceptance so far, and on again | `acceptance_rate_threshold`: off for good, for all requests | `enable_adaptive_verification`: for drafters that are models, not for `ngram` |
# | a drafter of your own | `drafter_path` | `UserProvidedDecodingConfig` | custom proposer, experimental |
#
# Sources:
# [NGramDecodingConfig](https://nvidia.github.io/TensorRT-LLM/1.4.0rc4/llm-api/reference/NGramDecodingConfig.html),
# [draft_len_schedule](https://github.com/NVIDIA/TensorRT-LLM/pull/10860), [vLLM's
# n-gram](https://docs.vllm.ai/en/latest/features/speculative_decoding/n_gram/), [its schedule by batch
# size](https://docs.vllm.ai/en/v0.25.0/features/speculative_decoding/dynamic_speculative_decoding/) and [its adaptive
# verification](https://docs.vllm.ai/en/v0.32.0/features/speculative_decoding/adaptive_verification/), which weighs
# drafts of all requests by their chances and by prices that it measures when it starts, as the engine here does. In
# production, watch `vllm:spec_decode_num_draft_tokens_total` and `vllm:spec_decode_num_accepted_tokens_total`: the
# ratio of their rates is the acceptance rate. For `speed_up` you need the tokens that an iteration brings to a request,
# those without a draft included: the rate of `vllm:generation_tokens_total` over that rate less the rate of accepted
# tokens. (vLLM's "mean acceptance length" counts only steps that had a draft; for a lookup that often finds nothing it
# is too high.) The nearest to your lookup in vLLM (which takes the earliest match, where yours takes the latest):
#
# ```bash
# vllm serve MODEL --speculative-config '{"method": "ngram", "num_speculative_tokens": 4,
#   "prompt_lookup_max": 3, "prompt_lookup_min": 1}'
# ```
#
# With drafts a chunk of a stream may hold several tokens: divide by tokens, not by chunks, before you compare ITL with
# and without. Drafts also take room in `max_num_tokens` and blocks of the KV cache. With a guide (lesson 10) each drafted
# position needs a mask of its own, up to k + 1 an answer, and a draft that breaks the guide is cut.
#
# Three drafters that can guess what was never written before, and cost more than a lookup:
#
# - A **draft model** is a small model with the same tokenizer that writes the guesses; it takes time and memory of its
#   own ([Chen et al. 2023](https://arxiv.org/abs/2302.01318)).
# - **EAGLE-3** trains a small head on the inner states of the large model, and reports up to 6.5 times the speed of
#   one answer ([Li et al. 2025](https://arxiv.org/abs/2503.01840)).
# - **MTP** (multi-token prediction) trains the model with a head for the token after the next; DeepSeek-V3 reports 85 to
#   90 % of these accepted ([section 5.4.3](https://arxiv.org/abs/2412.19437)).
#
# The price of checking is the same for all of them, for as many drafted tokens. The price of guessing is not: add the
# drafter's time to the price with drafts.
#
# ## What breaks
#
# `drafter_path` names a file with a drafter of your own; the lab is about that. **A drafter that guesses more than it was
# asked for** breaks the engine's limits, so its requests fail, with file and line:


# %%
# %%writefile {workdir.name}/drafter.py
class Drafter:
    """Guesses that the prompt comes again."""

    def propose(self, token_ids, k):
        return token_ids[: k + 1]


# %%
own = Path(workdir.name) / "drafter.py"
few = jobs["chat"][:2]
try:
    server.load("tensorrt_llm", speculative_config=ngram, drafter_path=own)
    trace_run.run(client, few, log_path)
except CourseError as error:
    print(error)

# %% [markdown]
# **A drafter that is always wrong** is not refused. It costs time, and shows in two counters only. An engine that
# counts takes ever fewer of its guesses. Cut the list to `k` and see:

# %% tags=["nbval-ignore-output"]
own.write_text(own.read_text().replace("k + 1", "k"))
server.load("tensorrt_llm", speculative_config=ngram, drafter_path=own)
log = trace_run.run(client, few, log_path).log
print(f"{log['generation_tokens'].sum()} tokens computed for answers,", end=" ")
print(f"{log['drafted'].sum()} of them drafts, {log['accepted'].sum()} accepted")

# %% [markdown]
# ## Recap
#
# - An iteration with one user is spent on reading weights. A few tokens more in it cost far less than an iteration for
#   each, so guesses pay.
# - Eight users' drafts are eight times as many tokens beside the same reading. The more tokens an iteration has
#   already, the larger is a draft's share of its time, and long or bad drafts make everybody slower.
# - The rule that keeps the answer: choose from each row as always, and go on as long as what was chosen is the guess. The
#   last token comes in any case.
# - Accepted or not depends on the text: much in rewriting and editing, little in open questions. Speed-up is tokens an
#   iteration times the ratio of two prices.
# - The words stay the same within rounding, and with chance the distribution does. A rule that accepts what is merely
#   likely changes both.
#
# Three questions to answer without running anything:
#
# <details><summary>1. A draft of four, and each guess is right with a chance of 80 % if those before it were. How many
# tokens does an iteration bring?</summary>
#
# 1 + 0.8 + 0.64 + 0.51 + 0.41 = 3.4. With one user at 1.2 times the price that is 2.8 times as fast; with eight at 2.2
# times the price 1.5 times.
# </details>
#
# <details><summary>2. Your server's acceptance rate falls from 60 % to 10 % on the day on which a new customer arrives. Their
# answers are fine. What do you look at?</summary>
#
# At what they ask for: perhaps they chat where others edit. The answers are right whatever was guessed. Compare the
# time per token with drafts and without, at the number of users that you have now.
# </details>
#
# <details><summary>3. Why do the rejected tokens not have to be removed from the KV cache?</summary>
#
# Only the number of computed tokens counts. Attention looks no further than that, and the next iteration writes over what
# lies behind it.
# </details>
#
# Now [do the lab]({lab}): there you write the lookup, the rule and the price, and a drafter that the running engine asks.
#
# The server ends with this notebook's kernel (*Kernel → Shut Down Kernel*).
