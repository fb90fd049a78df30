# %% [markdown]
# # {heading}
#
# {minutes} minutes. Afterwards you can
#
# - **price** a draft: what four more tokens in an iteration cost one user, and what they cost eight;
# - **write** a drafter, and the rule that keeps the answer what it would have been, also for a drafter that is a model;
# - **decide** for which requests, and at how many users, drafts should be off.
#
# You need lesson 04. vLLM, TensorRT-LLM, SGLang and llama.cpp all speculate, and all report what share of drafted tokens
# was accepted. The lookup that drafts here is the simplest of their drafters.
#
# {navigation}

# %% [markdown]
# ## {question}
#
# An editor pastes an article and asks for its spelling to be corrected. The answer is mostly the article. Yet the model
# writes it one token at a time, and for each the engine reads all its weights.
#
# So guess. Put the next few tokens of the article after the answer as a [draft](glossary.md#Draft), let one iteration
# compute them all, and keep those that the model would have written itself. That is *speculative decoding*. Two things
# decide whether it pays: what an iteration with a draft costs, and how many of its tokens come true.

# %%
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from inflight import CourseError, engine
from inflight.bench import trace_run, workload
from inflight.checkpoint import fetch, load_tokenizer
from inflight.engine import Chunk, Executor
from inflight.lessons import speculation as lesson
from inflight.notebook import charts, progress, session, told_apart, widgets
from inflight.triton import Client, Server, repository

with progress.wait("The engine, built the first time"):
    engine_dir = engine.cached(fetch())
executor = Executor.load(engine_dir)
model, tokenizer = executor.model, load_tokenizer(engine_dir)
session.others()
print(f"An engine with {model.info.precision}.")

# %% [markdown]
# ## What a draft costs
#
# `iteration_ms` runs the model on made-up tokens, after a past of 200. A `Chunk` is what one user computes, and `num_logits`
# says after how many of its tokens you want to know what comes next: with a draft, after each.

# %%
past = 200
block = model.info.build_config.tokens_per_block


def iteration_ms(users, tokens):
    """Milliseconds of an iteration: the first with so many tokens a user, and again."""
    blocks = -(-(past + tokens) // block)
    chunks = [
        Chunk([1] * tokens, past, list(range(first, first + blocks)), num_logits=tokens)
        for first in range(0, users * blocks, blocks)
    ]
    took_ms = []
    for _ in range(2):
        started = time.perf_counter()
        model.forward(chunks)
        took_ms.append(1000 * (time.perf_counter() - started))
    return took_ms


# %% tags=["nbval-ignore-output"]
cases = [(users, tokens) for users in (1, 4, 8) for tokens in (1, 2, 3, 5, 9, 17)]
rounds = []
for _ in progress.over(range(7), "Round"):
    rounds.append([iteration_ms(*case) for case in cases])
first_ms, again_ms = np.transpose(rounds[1:], (2, 0, 1))  # the first round warms up
measured = pd.DataFrame(again_ms)
measured.columns = pd.MultiIndex.from_tuples(cases, names=["users", "tokens"])
prices = measured.median().unstack()  # ms: a row for so many users, a column for tokens
token_ms = (prices[17][1] - prices[1][1]) / 16
print(f"One user, one token: {prices[1][1]:.1f} ms; each further: {token_ms:.2f} ms.")
print(f"Five tokens take {prices[5][1] / prices[1][1]:.2f} times as long as one.")
print(f"Eight users, a token each: {prices[1][8]:.1f} ms.")
print(f"After another number of tokens: {np.median(first_ms - again_ms):.1f} ms more.")

# %% [markdown]
# ## Predict

# %% tags=["nbval-ignore-output"]
of_one = prices[5][1] / prices[1][1]
guess = widgets.predict(
    "Eight users with five tokens each: how many times as long as with one each?",
    {
        f"{of_one:.1f} times: as for one user, since the weights are read once": of_one,
        "2.4 times: each further token costs the same, whoever it belongs to": 2.4,
        "5.0 times: eight users fill the arithmetic, so time goes with tokens": 5,
    },
)
guess


# %%
def on_paper(users, drafts):
    """Milliseconds of an iteration in which each user has so many drafted tokens."""
    # your line: what it takes without drafts, and token_ms for each drafted token
    return prices[1][users] + users * drafts * token_ms


# %% tags=["nbval-ignore-output"]
rows = []
for users, drafts in [(1, 4), (4, 4), (8, 4), (8, 8), (8, 16)]:
    paper_ms, found_ms = on_paper(users, drafts), prices[drafts + 1][users]
    rows.append((users, drafts, paper_ms, found_ms, found_ms / prices[1][users]))
columns = ["users", "drafted each", "on paper (ms)", "measured (ms)"]
columns += ["measured, times no drafts"]
print(guess.score(prices[5][8] / prices[1][8], "the ratio of the medians"))
charts.table(pd.DataFrame(rows, columns=columns), decimals=2)

# %% [markdown]
# A further token costs its arithmetic, and a CPU hides little of that behind reading the weights. For one user, four of
# them are little compared with the iteration that runs anyway. Eight users share one iteration already, and their
# thirty-two drafted tokens cost more than all of it.
#
# ## The drafter
#
# The simplest [drafter](glossary.md#Drafter) is [prompt lookup](glossary.md#Prompt-lookup): find the latest earlier place
# of the text's last three tokens, and propose what followed there. If they are not found, try two, then one.


# %%
def propose(tokens, k, longest=3):
    """At most k tokens that may come next."""
    for size in range(longest, 0, -1):
        last = tokens[-size:]
        for start in range(len(tokens) - size - 1, -1, -1):
            if tokens[start : start + size] == last:
                # your line: at most k of the tokens that followed there
                return tokens[start + size : start + size + k]
    return []


# %%
text = "The ferry leaves at six. Its captain is Anna Weber. When? The ferry leaves"
print([tokenizer.decode([token]) for token in propose(tokenizer.encode(text), 5)])

# %% [markdown]
# ## The rule
#
# A draft of k tokens gives k + 1 rows of logits: what the model says after the text, after the first guess, and so on.
# The first row counts in any case. The second was computed as if the first guess were in the text, so it counts only if
# the model chose that guess. Go from row to row, choose a token as always, and go on while it is the guess. The
# last token chosen is the model's correction, or one more than was drafted.


# %%
def accept(rows, draft, choose, end):
    """The tokens that an iteration brings: those guessed right, and one more."""
    brought = []
    for row, guessed in zip(rows, [*draft, None]):
        brought.append(int(choose(row)))
        # your line: leave the loop where the next row does not count
        if brought[-1] == end or brought[-1] != guessed:
            break
    return brought


# %% [markdown]
# The loop around it is a whole engine for one user. `computed` counts the tokens in the KV cache that were kept; the next
# iteration overwrites what follows them. Short drafts are padded, so that the number of tokens never changes.

# %%
BLOCKS = list(range(model.info.build_config.max_seq_len // block))  # of the only user


def answer(prompt, k, most=250, choose=np.argmax):
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
# Three kinds of requests: articles to be corrected, articles to be summarized, and questions. Each answer is written
# without drafts and with drafts of four, in turns, until the model ends it.

# %%
kinds = {"rewrite": 8, "summary": 3, "chat": 3}  # and how many of each
texts = {}
for kind, number in kinds.items():
    records = workload.read_dataset(workload.DATASETS[kind])[:number]
    texts[kind] = [record.prompt for record in records]
    if kind == "rewrite":
        task = "Correct the spelling of this text. Answer with the corrected text only."
        texts[kind] = [f"{task}\n\n{record.input}" for record in records]
prompts = {kind: list(map(tokenizer.encode_chat, each)) for kind, each in texts.items()}


# %%
def timed(prompt, k):
    """Tokens of an answer; (accepted, thrown away) of each iteration; ms of each."""
    tokens, kept, took_ms, started = [], [], [], time.perf_counter()
    for some, drafts in answer(prompt, k):
        took_ms.append(1000 * (time.perf_counter() - started))
        tokens += some
        kept.append((len(some) - 1, drafts - len(some) + 1))
        started = time.perf_counter()
    return tokens, kept, took_ms


def ms_a_token(answers):
    """By the median iteration of many, without the first, which computes the prompt."""
    later_ms = sum((took_ms[1:] for *_, took_ms in answers), [])
    tokens = sum(1 + accepted for _, kept, _ in answers for accepted, _ in kept[1:])
    return np.median(later_ms) * len(later_ms) / tokens


# %% tags=["nbval-ignore-output"]
plain, drafted = ({kind: [] for kind in kinds} for _ in range(2))
for kind in progress.over(kinds, "Kind"):
    for number, prompt in enumerate(prompts[kind]):
        for k in (0, 4) if number % 2 else (4, 0):
            (drafted if k else plain)[kind].append(timed(prompt, k))

# %% tags=["nbval-ignore-output"]
print(tokenizer.decode(drafted["rewrite"][6][0]))
clock = {}
for kind in kinds:
    clock[kind] = ms_a_token(plain[kind]) / ms_a_token(drafted[kind])
    same = [one[0] == other[0] for one, other in zip(plain[kind], drafted[kind])]
    steps = [step for one in drafted[kind] for step in one[1]]
    accepted, thrown = np.sum(steps, axis=0)
    print(f"{kind}: {len(steps) + accepted} tokens, {len(steps)} iterations,", end=" ")
    print(f"{accepted} drafts accepted, {thrown} thrown away;", end=" ")
    print(f"{sum(same)} of {len(same)} answers as without drafts")
    print(f"    {clock[kind]:.2f} times as fast by the clock")

# %% tags=["remove-cell"]
for tokens, kept, _ in plain["rewrite"] + drafted["rewrite"]:
    assert sum(1 + accepted for accepted, _ in kept) == len(tokens)
sizes = [(len(kept), len(tokens)) for tokens, kept, _ in drafted["rewrite"]]
assert 2 * np.sum(sizes, axis=0)[0] < np.sum(sizes, axis=0)[1]

# %% [markdown]
# So small a model corrects few of the misspellings.
#
# ## See

# %% tags=["nbval-ignore-output"]
steps = {kind: drafted[kind][0][1] for kind in kinds}
charts.show(lesson.steps(steps), lesson.steps_summary(steps))

# %% [markdown]
# One answer of each kind, a column an iteration. Above the line is what it brought: blue the token that comes in any case,
# green the accepted drafts. Grey, below the line, was thrown away.
#
# ## When does it pay?
#
# The answers without drafts are known now, so what drafts of any length bring in them is counted without the model.

# %% tags=["nbval-ignore-output"]
rows = []
for kind in kinds:
    for k in (0, 1, 2, 4, 8, 16):
        steps = []
        for prompt, (tokens, _, _) in zip(prompts[kind], plain[kind]):
            steps += lesson.columns(tokens, propose, k, prompt)
        accepted, thrown = np.sum(steps, axis=0)
        tried = accepted + sum(away > 0 for _, away in steps)  # to the first wrong one
        brought, share = 1 + accepted / len(steps), accepted / (accepted + thrown or 1)
        rows.append((kind, k, brought, share, accepted / (tried or 1)))
names = ["workload", "drafts", "brought", "accepted / drafted", "α"]
counts = pd.DataFrame(rows, columns=names)
charts.table(counts[counts["drafts"].isin([1, 4, 16])], decimals=2)

# %% [markdown]
# `brought` is tokens an iteration. The last two columns are both called [acceptance
# rate](glossary.md#Acceptance-rate). Servers count **accepted over drafted**; it falls with the length of the draft, since
# a guess counts only if all before it were right. Papers mean the **conditional chance** α: right, if all before were. If
# α is the same at each place, a draft of k brings 1 + α + … + αᵏ tokens, all but one of them drafted. At α = 0.8 and
# k = 4 that is 3.4 tokens, and 59 % accepted.


# %%
def speed_up(brought, k, users):
    """How many times as fast as without drafts."""
    without_ms, with_ms = prices[1][users], prices[k + 1][users]
    # your line: from the tokens that an iteration brings and the two prices
    return brought * without_ms / with_ms


# %% tags=["nbval-ignore-output"]
times = [
    (users, row.workload, row.drafts, speed_up(row.brought, row.drafts, users))
    for users in (1, 8)
    for row in counts.itertuples()
]
gains = pd.DataFrame(times, columns=["users", "workload", "drafts", "times"])
charts.show(lesson.gains(gains), lesson.gains_summary(gains))
picture = gains.set_index(["workload", "users", "drafts"])["times"]
for kind in kinds:
    print(f"{kind}, one user, drafts of 4: picture {picture[kind, 1, 4]:.2f},", end=" ")
    print(f"your loop by the clock {clock[kind]:.2f}")
for users in (1, 8):
    least = prices[2][users] / prices[1][users] - 1
    print(f"Users: {users}. One guess pays if right more often than {least:.0%}.")

# %% [markdown]
# Both panels have the same counts, of the answers without drafts; some of your loop's answers are others, as you see
# below. With eight users a guess must be right so often that only rewrites gain. Along a draft, each guess counts less
# often and costs the same: where a line turns down, the next one costs more than it brings.
#
# ## The same words?
#
# By the rule, drafts change nothing: each row belongs to the text that the answer has in the end. But products of one row
# and of five are rounded differently, above all where activations have 8 bits (A8). Each answer that differed above, and
# how likely the two tokens were where it first did:

# %% tags=["nbval-ignore-output"]
for kind in kinds:
    for prompt, *both in zip(prompts[kind], plain[kind], drafted[kind]):
        one, other = (tokens for tokens, *_ in both)
        if one != other:
            at = next(n for n, (a, b) in enumerate(zip(one, other)) if a != b)
            [logits] = model.forward([Chunk(prompt + one[:at], 0, BLOCKS)])
            chances = np.exp(logits - np.max(logits))
            a, b = chances[[one[at], other[at]]] / chances.sum()
            print(f"{kind}, token {at}: {a:.3f} (without drafts), {b:.3f} (with)")

# %% [markdown]
# These are near-ties. Other answers in the batch tip them, too; lab 01 has an engine without that rounding.
#
# ## With chance
#
# Chats are rarely greedy: each token is drawn. For a lookup your rule needs no change. It draws from each row as always, so
# a guess comes true with the probability p that the model gives it.
#
# A drafter that is a model, smaller and with the same tokenizer, draws its guess from probabilities q of its own. Then more
# can be kept: **keep the guess with the chance min(1, p/q). Otherwise draw a replacement from what the guesses left, max(0, p −
# q), scaled to a sum of 1** ([Leviathan et al. 2023](https://arxiv.org/abs/2211.17192), [Chen et al.
# 2023](https://arxiv.org/abs/2302.01318)). How often does each word come?


# %%
def split(p, q):
    """Of each word: the chance to be guessed and kept, and to be the replacement."""
    # your line: how often each is guessed and kept, and what p still lacks then
    kept = np.minimum(p, q)
    left = np.maximum(p - q, 0)

    return kept, left / (left.sum() or 1)


# %%
p = np.array([0.1, 0.6, 0.3])  # the model: of the words a, b, c
drafters = {"a model": np.array([0.3, 0.3, 0.4]), "a lookup": np.array([0, 1, 0])}
rows = []
for name, q in drafters.items():
    kept, left = split(p, q)
    rows.append((name, "min(1, p/q)", kept.sum(), *(kept + (1 - kept.sum()) * left)))
    kept = q * (p >= 0.5)  # looks sensible: a guess that is likely is accepted
    rows.append((name, "p ≥ 0.5", kept.sum(), *(kept + (1 - kept.sum()) * p)))
columns = ["drafter", "kept if", "guesses kept", "a", "b", "c"]
charts.table(pd.DataFrame(rows, columns=columns), decimals=2)

# %% [markdown]
# With min(1, p/q) the words come with 0.10, 0.60 and 0.30, as from the model alone, whoever drafts: the rule is
# [lossless](glossary.md#Lossless). The sum of min(p, q) is α at this place. The other rule keeps more of the lookup's
# guesses, and then always says b: it is *lossy*, like Medusa's [typical acceptance](https://arxiv.org/abs/2401.10774). At
# a higher temperature p is flatter, so a likely guess comes true less often.
#
# ## In the running engine
#
# The same in the server, with batching. This engine measures prices when it is loaded, and gives each iteration as many
# drafts as have lately brought the most tokens a millisecond: at most four here.

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


def run(requests, users):
    """So many users, each with one request at a time; answers end by themselves."""
    how = {"tokenizer": tokenizer, "concurrency": users}
    return trace_run.run(client, requests, log_path, **how)


# %% tags=["nbval-ignore-output"]
articles = [
    workload.TimedRequest(text, 250, 0.0, len(prompt))
    for text, prompt in zip(texts["rewrite"], prompts["rewrite"])
]
ngram = {"decoding_type": "NGram", "max_draft_len": 4, "max_matching_ngram_size": 3}
runs = {(users, k): [] for users in (1, 8) for k in (0, 4)}
for number in progress.over(range(6), "Round"):
    for k in (0, 4) if number % 2 else (4, 0):
        server.load("tensorrt_llm", speculative_config=ngram if k else None)
        run([replace(articles[0], max_tokens=8)], 1)  # warms up
        for users, requests in {1: articles[2:4], 8: articles}.items():
            runs[users, k].append(run(requests, users))


# %% tags=["nbval-ignore-output"]
for users in (1, 8):
    off, on = runs[users, 0], runs[users, 4]
    before, log = (pd.concat([one.log for one in some]) for some in (off, on))
    before, log = (some[some["context_tokens"] == 0] for some in (before, log))
    each = (log["drafted"] / log["scheduled"]).mean()
    share = log["accepted"].sum() / max(log["drafted"].sum(), 1)
    many = len(log) / len(before)
    price = log["iteration_ms"].mean() / before["iteration_ms"].mean()
    print(f"{users} at a time: {each:.1f} drafts each, {share:.0%} accepted")
    print(f"    after prompts {many:.2f} times as many iterations as without", end=", ")
    print(f"{price:.2f} times as long, so {1 / many / price:.2f} times as fast", end="")
    print(f"; picture: {picture['rewrite', users, 4]:.2f}")
    rates = ([one.tokens_per_s for one in some] for some in (on, off))
    print(f"    tokens a second, prompts too: {told_apart(*rates, 'faster', 'slower')}")
    waits = ([one.requests["latency_ms"].mean() for one in some] for some in (on, off))
    print(f"    mean latency: {told_apart(*waits, 'longer', 'shorter')}")

# %% tags=["remove-cell"]
before, log = (pd.concat([one.log for one in runs[1, k]]) for k in (0, 4))
assert len(log) < len(before) and before["drafted"].sum() == 0 < log["accepted"].sum()

# %% [markdown]
# What differs from the picture: one user sends two of its articles, and the engine begins each answer carefully and
# changes the number of tokens now and then, which costs what you measured first. And no draft shortens a prompt. On the
# [course's H200](../assets/results/README.md), with eight answers of 104 tokens, twice:

# %%
rows = []
seen = "throughput", "mean_latency", "p99_latency"
for users in (1, 8):
    name = f"compare-inflight_fused_batching-ngram-rewrite-{users}_*h200.json"
    [path] = lesson.RESULTS.glob(name)
    found = json.loads(path.read_text())
    ratios = [found["ratios"][one]["median"] for one in seen]
    rows.append((users, 1000 * users / found["rows"][0]["tokens_per_s"], *ratios))
columns = ["users", "ms a token each, no drafts", "tokens a second, times no drafts"]
columns += ["mean latency, times no drafts", "slowest answer, times no drafts"]
charts.table(pd.DataFrame(rows, columns=columns), decimals=2)

# %% [markdown]
# **Everybody in an iteration pays for a draft, and one answer gains.** With eight users there, the mean latency is 0.85
# times that without drafts. The slowest answer takes 1.09 times as long and ends the run: tokens a second are 0.92
# times as many. Look at both figures before you switch drafts off.
#
# Why does a draft cost anything there? Forty tokens are far left of an H200's [ridge](glossary.md#Roofline), which lies at
# hundreds. But eight answers take 2.4 times as long as one, and reading the weights takes less than 0.1 ms of either.
# Neither roof is near: the iteration is [overhead-bound](../assets/elsewhere.md#01-Build-the-engine), and its overhead
# grows with its tokens. The ridge says when arithmetic is free, not when a token is.
#
# ## Turn the knob
#
# From your prices, for a drafter of your choice. Guess the best length first:
#
# 1. α = 0.8, with one user, then with eight.
# 2. One user, α = 0.8, and a guess costs 0.3 of an iteration, as of a draft model a third as large.
#
# <details><summary>What to see</summary>
#
# 1. Long drafts with one user; shorter ones, worth much less, with eight.
# 2. Two or three guesses, and most of the gain is gone: a draft model must be far smaller.
#
# </details>

# %% tags=["nbval-ignore-output"]
lesson.turning_point(prices)

# %% [markdown]
# ## Elsewhere
#
# | | vLLM | TensorRT-LLM (`llmapi`) | here |
# |---|---|---|---|
# | Prompt lookup | `"method": "ngram"`: the earliest match | `NGramDecodingConfig`, `SADecodingConfig` | `NGram`: the latest match |
# | Fewer with more users | `num_speculative_tokens_per_batch_size` | `draft_len_schedule` | from measured prices |
# | Fewer where guesses are wrong | `enable_adaptive_verification`, not for `ngram` | `acceptance_rate_threshold`: off for good | from what came true lately |
# | A drafter of your own | custom proposer, experimental | `UserProvidedDecodingConfig` | `drafter_path` |
# | Watch | <code>vllm:spec_decode_num_<wbr>draft_tokens_total</code>, <code>…accepted…</code> | `acceptance_rate` of an answer | `drafted`, `accepted` of the log |
#
# For drafters that are models, see [the linked page](../assets/elsewhere.md#11-Speculation). vLLM and TensorRT-LLM keep
# their guesses with the chance p unless told otherwise (`draft_sample_method`, `use_rejection_sampling`). A chunk of a
# stream may hold several tokens: divide by tokens before you compare ITL.
#
# ## What breaks
#
# **A drafter that guesses more than it was asked for.** `drafter_path` names a file of your own:

# %% tags=["nbval-ignore-output"]
own = Path(workdir.name) / "drafter.py"
some = [replace(one, max_tokens=48) for one in articles[:2]]
for number in ("k + 1", "k"):
    own.write_text(f"""
class Drafter:
    def propose(self, token_ids, k):
        return token_ids[:{number}]  # guesses that the prompt comes again
""")
    server.load("tensorrt_llm", speculative_config=ngram, drafter_path=own)
    try:
        log = run(some, 2).log
        print(f"{log['drafted'].sum()} drafted, {log['accepted'].sum()} accepted")
    except CourseError as error:
        print(error)

# %% [markdown]
# **A drafter that is always wrong** (the second line) is not an error. It costs time, and only two counters show it. This
# engine soon takes hardly any of its guesses; one with a fixed length pays for all of them.
#
# ## Recap
#
# One user's iteration has room for more tokens, and the article says which: do not compute it a token at a time.
#
# - Each further token costs about the same, whoever it belongs to: four add a fraction to one user's iteration,
#   thirty-two more than double that of eight.
# - The rule: choose from each row as always, and go on while the choice is the guess. For a drafter that is a model: keep
#   with min(1, p/q), replace from max(0, p − q).
# - Both rules are lossless, within rounding. A rule that accepts whatever is likely is not.
# - Speed-up is tokens an iteration times the ratio of two prices. The text decides the first, users and machine the second.
# - Everybody pays for a draft and one answer gains: look at latency and at tokens a second.
#
# <details><summary>1. A draft of four, α = 0.8. How many tokens does an iteration bring? How much faster is one user at 1.27
# times the price, and eight at 2.4 times?</summary>
#
# 1 + 0.8 + 0.64 + 0.51 + 0.41 = 3.36. One user: 2.6 times as fast. Eight: 1.4 times.
# </details>
#
# <details><summary>2. Accepted over drafted falls from 60 % to 10 % on the day on which a new customer arrives. Their
# answers are fine. What do you look at?</summary>
#
# At what they ask for: perhaps they chat where others edit. Then compare the time per token with drafts and without, at
# today's number of users.
# </details>
#
# <details><summary>3. A guess has p = 0.2 and q = 0.8. How often is it kept, and can it come as its own
# replacement?</summary>
#
# In a quarter of the cases, 0.2/0.8. It cannot: max(0, 0.2 − 0.8) is 0. So it comes with 0.8 × 1/4 = 0.2, as it should.
# </details>
#
# Now [do the lab]({lab}): the rule for a drafter that is a model, and a drafter that the running engine asks.
#
# The server ends with this notebook's kernel.
