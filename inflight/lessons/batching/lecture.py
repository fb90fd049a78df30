# %% [markdown]
# # {heading}
#
# About {minutes} minutes (an estimate). Afterwards you will be able to
#
# - **predict** from the lengths of the answers how many iterations static and in-flight batching need, and how long
#   those take;
# - **switch** a running server from one to the other, and show which request had which slot;
# - **decide** when the switch gains nothing, and say who pays for it.
#
# **What you will use elsewhere:** vLLM, SGLang and TensorRT-LLM all batch in flight. That a gain depends on the lengths,
# and how to work it out from lengths and prices, is the same for each of them.
#
# You need lessons 00 and 03: what an iteration, a prompt's prefill and TPOT are.
#
# {navigation}

# %% [markdown]
# ## {question}
#
# Your engine has eight slots (`max_batch_size`). Forty-eight requests wait for them, like guests at the door of a small
# restaurant. Most ask for 8 tokens, every sixth for 128. The engine works in rounds: one
# [iteration](00_start_here.ipynb#Iteration) gives one token to each request in a slot.
#
# When may the next request start? There are two answers:
#
# - **Static batching** (`V1`): eight requests start together. The next eight start when the last of them has finished.
# - **In-flight batching** (`inflight_fused_batching`): when a slot becomes free, the next iteration fills it. vLLM and
#   others call this *continuous batching*.
#
# The names in brackets are the values of `gpt_model_type` in TensorRT-LLM (`V1` has nothing to do with vLLM's engine of
# that name, which batches in flight; *fused*: prompts and decodes in one pass; the older `inflight_batching` does
# without that fusion; [its batch
# manager](https://github.com/NVIDIA/TensorRT-LLM/blob/2a115dae84f13daaa54727534daa837c534eceb4/docs/source/advanced/batch-manager.md)).
# In-flight batching is [Orca's](https://www.usenix.org/conference/osdi22/presentation/yu) *iteration-level scheduling*.
# It works because the weights see only tokens, whoever's they are; only attention is computed for each request by
# itself, on its own cache.

# %%
import inspect
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.express as px

from inflight import CourseError, engine, machine
from inflight.bench import trace_run, workload
from inflight.checkpoint import fetch, load_tokenizer
from inflight.lessons import batching as lesson
from inflight.models import huggingface
from inflight.notebook import charts, progress, session, told_apart, widgets
from inflight.triton import Client, Server, repository

engine_dir = engine.cached(fetch())
limits = engine.read(engine_dir).build_config
slots = limits.max_batch_size
session.others()
print("An engine with", slots, "slots.")

# %% [markdown]
# ## On paper
#
# These are the answers that the forty-eight ask for, in tokens, in the order in which they wait. Nobody will get fewer:
# the run below ignores the model's own end of an answer.

# %%
lengths = ([128] + [8] * 5) * 8
print(len(lengths), "requests,", sum(lengths), "tokens:", lengths[:8], "…")

# %% [markdown]
# The lengths are enough to count iterations. This is a whole scheduler; the one line that distinguishes the two rules
# is yours. `rule` is "static" or "in-flight".


# %%
def simulate(lengths, slots, rule):
    """How many requests are computed in each iteration."""
    waiting, running, computed = list(lengths), [], []
    while waiting or running:
        # your line: may requests start now?
        may_start = rule == "in-flight" or not running

        while may_start and waiting and len(running) < slots:
            running.append(waiting.pop(0))
        if not running:
            raise ValueError("Requests wait, none runs, and none may start.")
        computed.append(len(running))
        running = [left - 1 for left in running if left > 1]  # a token each
    return computed


# %%
rules = "static", "in-flight"
on_paper = {rule: simulate(lengths, slots, rule) for rule in rules}
for rule, computed in on_paper.items():
    used = sum(computed) / (len(computed) * slots)
    print(
        f"{rule:9} {len(computed):4} iterations, {100 * used:.0f} % of the slots used"
    )
fewer = len(on_paper["static"]) / len(on_paper["in-flight"])
print(f"Static batching needs {fewer:.1f} times as many.")

# %% [markdown]
# A static batch lasts as long as its longest answer, and each of the six batches here has at least one long one: 6 × 128. In
# flight the slots stay full until nobody waits. Then the last answers run on with empty slots beside them: the *tail*.
# Even the best rule needs as many iterations as the longest answer has tokens.
#
# Move the sliders. Which requests make the difference? Shorten the longest answers until static batching loses almost
# nothing.

# %% tags=["nbval-ignore-output"]
picture = lesson.slots_on_paper(lengths, slots)
picture

# %% [markdown]
# ## Predict
#
# Now the same requests go to a real engine, once with each rule. Commit yourself to the speed:

# %% tags=["nbval-ignore-output"]
less = fewer**0.5
guess = widgets.predict(
    "In-flight batching gives how many times the tokens a second of static batching?",
    {
        "the same: the same work is done": 1,
        f"more, but clearly less than {fewer:.1f} times: about {less:.1f}": less,
        f"about {fewer:.1f} times as many, as on paper": fewer,
        f"about {slots} times as many, one for each slot": slots,
    },
)
guess

# %% [markdown]
# ## The engine's loop
#
# This is the real engine's iteration. `_plan` asks the scheduler, of which there is one for each rule; `carry_out` turns
# its plan into chunks; `forward` runs the model once for all of them; `_give_tokens` hands each request its token.
# (`drafting`, speculative decoding, is off here.)

# %%
print(inspect.getsource(engine.Executor.step))

# %% [markdown]
# Your `simulate` is this loop without the model.
#
# ## Static: run it
#
# The repository is assembled with `V1`. The engine writes a line for each iteration into a log: which requests were in it,
# and how long it took.

# %%
workdir = tempfile.TemporaryDirectory()
log_path = Path(workdir.name) / "iterations.jsonl"
repo = repository.assemble(
    Path(workdir.name) / "repo",
    engine_dir,
    batching_strategy="V1",
    decoupled_mode=True,
    iteration_log_path=log_path,
    max_tokens_in_paged_kv_cache=limits.max_seq_len,
)
with progress.wait("The server starts"):
    server = Server(repo).start()
client = Client(server.grpc_url, timeout_s=600)

# %% [markdown]
# Both rules must begin with the same full queue. If requests came one by one, the first static batch would be whoever
# came first, alone. So a *gate* is closed first: a request for the longest possible answer, for which the engine sets
# its whole KV cache aside (here as many tokens as `max_seq_len`). Nobody can start beside it. When all forty-eight
# wait, the gate's request is cancelled; times and iterations count from then on. `run_from_full_queue` does that, and
# returns a row per request, as the clients saw it, and a row per iteration, as the engine logged it.
#
# A machine changes its pace. So a few requests side by side run before the trace, between its two runs, and after them;
# you will need the lengths of their iterations further down.

# %%
texts = workload.trace("skewed", load_tokenizer(engine_dir), num_requests=len(lengths))
requests = [
    replace(text, max_tokens=length)
    for text, length in zip(texts, lengths, strict=True)
]


def run_all(what, requests=requests):
    """The requests from a full queue, with the rule that the engine has now."""
    with progress.wait(f"Requests: {len(requests)}, {what}"):
        return lesson.run_from_full_queue(
            server, requests, log_path, limits.max_seq_len
        )


# %% tags=["nbval-ignore-output"]
def side_by_side():
    """The iterations of 1, of 2, of 4 and of 8 requests that start together."""
    alike = replace(requests[1], max_tokens=16)
    logs = [run_all("alike", [alike] * n).log for n in (1, 2, 4, 8)]
    till_next = [1000 * log["timestamp"].diff().shift(-1) for log in logs]
    return pd.concat([log.assign(ms=ms)[:-1] for log, ms in zip(logs, till_next)])


before = side_by_side()
static = run_all("static")
print(
    f"static: {len(static.log)} iterations, {static.tokens_per_s:.0f} tokens/s", end=" "
)
print(f"on {machine.cores()} cores")

# %% [markdown]
# ## Switch
#
# The rule is one parameter of one model. `repository.edit` changes it in `config.pbtxt` and shows the difference.
# `server.load` makes the running server read that file again; its other models are untouched.

# %%
print(repository.edit(repo, "tensorrt_llm", gpt_model_type="inflight_fused_batching"))
server.load("tensorrt_llm")

# %% tags=["nbval-ignore-output"]
between = side_by_side()
in_flight = run_all("in flight")
after = side_by_side()
print(f"in flight: {len(in_flight.log)} iterations,", end=" ")
print(f"{in_flight.tokens_per_s:.0f} tokens/s")

# %% [markdown]
# ## See
#
# Each row is a slot, each bar a request; an empty slot is grey. Both panels are drawn from the iteration log, on one
# scale.

# %% tags=["nbval-ignore-output"]
stays = {"static (V1)": static.stays, "in-flight": in_flight.stays}
charts.show(lesson.slot_map(stays, slots), lesson.slot_map_summary(stays, slots))

# %% [markdown]
# Above, each batch waits for a long answer, beside which its other slots are empty. Below, a slot is taken as soon as it
# is free, and the grey is in the tail.
#
# Does the engine count as the paper does? On a busy machine one request may overtake another on its way to the engine. The
# engine numbers them as they arrive, so the log knows the real order, and `simulate` can take that one, too:

# %% tags=["nbval-ignore-output"]
runs = {"static": static, "in-flight": in_flight}
replayed = {}
for rule, run in runs.items():
    arrived = run.stays.sort_values("request")
    in_order = (arrived["last"] - arrived["first"] + 1).tolist()
    replayed[rule] = len(simulate(in_order, slots, rule))
    print(f"{rule:9} on paper {len(on_paper[rule])}, in the order of arrival", end=" ")
    print(f"{replayed[rule]}, counted {len(run.log)}")

# %%
same = all(replayed[rule] == len(run.log) for rule, run in runs.items())
print("In the order of arrival, the engine counts as the paper does:", same)

# %% tags=["nbval-ignore-output"]
counted = {"V1": len(static.log), "inflight_fused_batching": len(in_flight.log)}
points = [{"type": name, "iterations": count} for name, count in counted.items()]
settings = {"requests": len(lengths), "slots": slots, "longest": max(lengths)}
picture.measured(points, **settings)  # diamonds in the picture with the sliders
faster = in_flight.tokens_per_s / static.tokens_per_s
print(
    f"Static takes {len(static.log) / len(in_flight.log):.1f} times as many iterations,"
)
print(f"in flight gives {faster:.2f} times as many tokens a second.")
print(guess.score(faster, "the ratio of the two runs"))

# %% [markdown]
# The paper is right about the iterations. Whether they are the gain depends on what each costs.
#
# ## What an iteration costs
#
# An iteration with eight answers may take longer than one with a single answer, and static batching has mostly iterations
# with few answers, because its slots are empty. (That is so here. Where finished answers are padded and computed on, as in
# TensorRT-LLM's own `V1` and in Hugging Face's `generate`, every iteration keeps the full price, and the gain is
# larger.) The side-by-side requests give the price: the time from the start of an iteration with 1, 2, 4 or 8 answers to
# the start of the next, since the engine hands tokens out in between. Take the mean, because iterations will be added up:


# %% tags=["nbval-ignore-output"]
def answers_ms(log):
    """The mean time of iterations without a prompt, by the answers in them."""
    without_prompt = log[log["context_tokens"] == 0]
    return without_prompt.groupby("scheduled")["ms"].mean()


rounds = {"before": before, "between": between, "after": after}
prices = pd.DataFrame({name: answers_ms(log) for name, log in rounds.items()})
charts.table(prices.rename_axis("answers, in ms").reset_index())

# %% tags=["nbval-ignore-output"]
middle = prices.median(axis=1)
figure = px.line(x=middle.index, y=middle, markers=True)
figure.update_layout(xaxis_title="answers in the iteration", yaxis_title="time (ms)")
figure.update_yaxes(rangemode="tozero")
times = middle[8] / middle[1]
summary = (
    f"An iteration with 8 answers takes {times:.1f} times as long as one with 1. "
    "If each answer paid in full, it would be 8 times."
)
charts.show(figure, summary)
print(summary)

# %% [markdown]
# An iteration goes through the weights once, for all answers in it. Attention and the arithmetic of each come on top.
# How much that is depends on the machine: on an H100, eight answers are far to the left of lesson 01's ridge, an
# iteration with eight costs hardly more than one with one, and the gain in time comes near the gain in iterations.
#
# Of the three measurements, the median counts. Prompts have a price of their own: what the iterations with prompts took
# beyond the same number of answers.


# %% tags=["nbval-ignore-output"]
price_ms = np.interp(
    range(slots + 1), [0, *middle.index], [0, *middle]
)  # 0 to 8 answers
log = pd.concat(rounds.values())
prompts = log[log["context_tokens"] > 0]  # tokens of prompts
beyond_ms = prompts["ms"].sum() - price_ms[prompts["scheduled"]].sum()
prompt_token_ms = beyond_ms / prompts["context_tokens"].sum()
prompt_tokens = sum(request.input_len for request in requests)
print(
    f"A token of a prompt takes {prompt_token_ms:.2f} ms, the prompts of all", end=" "
)
print(f"{len(requests)} requests {prompt_tokens * prompt_token_ms / 1000:.1f} s.")

# %% [markdown]
# Now put it together: the iterations from the paper, each at its price, and the prompts, which both rules have to compute.
# No run of the trace is in its prediction.


# %%
def predicted(computed, price_ms, prompts_s):
    """Seconds of a run: answers in each iteration, prices of so many, the prompts."""
    # your line: price_ms is a NumPy array, which takes a list of numbers as its index
    return sum(price_ms[computed]) / 1000 + prompts_s


# %% tags=["nbval-ignore-output"]
predicted_s = {}
for rule, run in runs.items():
    prompts_s = prompt_tokens * prompt_token_ms / 1000
    predicted_s[rule] = predicted(on_paper[rule], price_ms, prompts_s)
    measured_s = run.requests["last_s"].max()
    print(f"{rule:9} predicted {predicted_s[rule]:.1f} s, measured {measured_s:.1f} s")
expected = predicted_s["static"] / predicted_s["in-flight"]
print(f"Gain: predicted {expected:.2f} times, measured {faster:.2f} times,", end=" ")
print(f"which is {100 * (faster / expected - 1):+.0f} %.")

# %% [markdown]
# Look at both lines, not at the gain alone: what lengthens both runs by the same factor, such as a slower machine,
# cancels in it. What adds the same seconds to both does not: each answer reads its growing cache under both rules, and
# the price of that was measured with at most 60 tokens. The in-flight prediction also counts the paper's iterations,
# not those of the real order of arrival. What only the in-flight run has are prompts that join in ones and twos beside
# running answers; their price comes from up to eight computed together. A change of the machine's pace may hit either
# run: if the gain is off by more than 15 %, look at the table of prices first.
#
# How could this mislead? Each rule ran once. `inflight bench compare` takes turns and gives ratios with their spread.
# The prices of 3, 5, 6 and 7 answers are interpolated.
#
# ## Who pays?
#
# Tokens a second are the operator's figure. A user feels three others: when the first token comes, when the answer is
# complete, and the mean time from one of its tokens to the next, TPOT. The first is not drawn. With static batching it
# equals the latency, because a batch hands its answers over when the last has finished; in flight it is the wait for a
# slot and one prefill. `tpot_ms` is from the log: the time from the end of an answer's first iteration to the end of its
# last, divided by its tokens but the first. It is lesson 03's TPOT as the engine has it: with static batching it
# is the engine's pace, which no user sees.

# %% tags=["nbval-ignore-output"]
paid = {name: run.requests.assign(tpot_ms=run.tpot_ms) for name, run in runs.items()}
charts.show(lesson.who_pays(paid), lesson.who_pays_summary(paid))
both = pd.concat(paid, names=["rule"]).reset_index("rule")
both.groupby(["max_tokens", "rule"])[["latency_ms", "tpot_ms"]].quantile(
    [0.5, 0.99]
).unstack().round(0)

# %% [markdown]
# Each mark is a request; above the dashed line it is slower in flight. Look at the long answers in the lower panel;
# short ones may pay, too, where prompts join beside them. With static batching each of them has the engine to itself,
# or shares it with one other, once its short neighbours are done. In flight it shares nearly all its iterations, unless
# it is in the tail, and each prompt that joins makes one of them longer.
#
# Latency contains two more waits. Static, a request waits for a slot until a whole batch ends, and a short answer that
# is finished is held back until the longest of its batch is. In flight the second wait is gone, and the first is
# shorter. So short answers are complete earlier, and later long ones, too; the long ones that started first are
# complete later. The table gives the median and the 99th percentile, which of eight answers is nearly the slowest.
#
# ## When is there no gain?
#
# If all requests are there from the start, three cases gain nothing. Two are run here; the third, a queue sorted by
# length, is in the table below. With **equal lengths** a static batch ends for all at once. With **fewer requests than
# slots** all start at once. Both run from a full queue, in three rounds, and the rule that begins changes from round to
# round:

# %% tags=["nbval-ignore-output"]
no_gain = {
    "equal lengths": [replace(one, max_tokens=24) for one in requests[:16]],
    "fewer than slots": [replace(requests[0], max_tokens=32), *requests[1:4]],
}
names = {"static": "V1", "in-flight": "inflight_fused_batching"}
rates = {(case, rule): [] for case in no_gain for rule in rules}
iterations = {}
for order in rules, rules[::-1], rules:
    for rule in order:
        server.load("tensorrt_llm", gpt_model_type=names[rule])
        for case, some in no_gain.items():
            run = run_all(f"{case}, {rule}", some)
            rates[case, rule].append(run.tokens_per_s)
            iterations[case, rule] = len(run.log)

# %% tags=["nbval-ignore-output"]
for case in no_gain:
    static_rates, in_flight_rates = rates[case, "static"], rates[case, "in-flight"]
    print(f"{case}: {iterations[case, 'static']} iterations static,", end=" ")
    print(f"{iterations[case, 'in-flight']} in flight; tokens a second in flight:")
    print("   ", told_apart(in_flight_rates, static_rates, "more", "fewer"))

# %% [markdown]
# As many iterations, with as many answers. So batching has nothing to gain, and what is told apart all the same has
# another cause: three rounds are few, the pace of the machine changes, and static batching hands its answers over all
# at once. That nothing is gained the counts show; these rates may hide whatever lies inside their interval. And the
# summaries of news articles, which benchmarks like? (The articles are the course's own, made up.) Count them all:

# %%
articles = workload.from_dataset(workload.read_dataset(), load_tokenizer(engine_dir))
summaries = [article.max_tokens for article in articles]

# %%
cases = {
    "the trace above": (lengths, slots),
    "articles": (summaries, slots),
    "articles, 64 slots": (summaries, 64),
    "equal lengths": ([64] * 48, slots),
    "fewer than slots": ([64, 16, 128, 8], slots),
    "long ones last": (sorted(lengths), slots),
}
rows = []
for name, (case, room) in cases.items():
    counts = [len(simulate(case, room, rule)) for rule in rules]
    rows.append((name, min(case), max(case), *counts, counts[0] / counts[1]))
columns = ["trace", "shortest", "longest", "static", "in flight", "ratio"]
pd.DataFrame(rows, columns=columns).set_index("trace").round(2)

# %% [markdown]
# The lengths of the articles' summaries differ by a factor of seven, and yet their ratio, of iterations, is far smaller
# than the trace's: few are very long. In time the gain is smaller still, as above. More slots lower it, because the
# tail grows with them. Sorting by length helps static batching, too. But an answer may end long before its
# `max_tokens`, and nobody knows where. That, and requests that come at any time, is why LLM engines today batch in
# flight.
#
# ## Where we came from
#
# `llama-python` is what one writes first: the checkpoint in Hugging Face's transformers, as a model of Triton with the same
# inputs. It has no slots and serves one request after the other. Four of the prompts go to both, for 16 tokens each.
# The engine gets them twice, one after the other and all at once.

# %%
no_engine = repository.assemble(
    Path(workdir.name) / "no_engine",
    models=("llama-python",),
    checkpoint_dir=huggingface.folder(fetch()),
)

# %% tags=["nbval-ignore-output"]
four = [replace(request, max_tokens=16, at_s=0.0) for request in requests[:4]]


def tokens_per_s(to, model, users):
    trace_run.run(to, four[:1], log_path, model)  # an engine's first is its slowest
    return trace_run.run(to, four, log_path, model, concurrency=users).tokens_per_s


with (
    progress.wait("Four requests, with an engine and without"),
    Server(no_engine) as second,
    Client(second.grpc_url, timeout_s=600) as to_python,
):
    per_s = {
        "llama-python, in turn": tokens_per_s(to_python, "llama-python", 1),
        "engine, in turn": tokens_per_s(client, "ensemble", 1),
        "engine, all at once": tokens_per_s(client, "ensemble", 4),
    }
pd.Series(per_s, name="tokens/s").round(2)

# %% tags=["nbval-ignore-output"]
python, in_turn, at_once = per_s.values()
print(f"In turn, the engine is {in_turn / python:.1f} times as fast as llama-python;")
print(f"sharing iterations makes it another {at_once / in_turn:.1f} times as fast,")
print(f"both together {at_once / python:.1f} times.")

# %% [markdown]
# One round: read it as an order of magnitude. The second factor is batching as such; four equal answers that start together
# have it with static batching, too. The first is outside this lesson, and it has two parts that this run does not separate.
# One is the weights: 4 bits against 16 or 32. The other is the path. For each token, Hugging Face's `generate` starts
# hundreds of small PyTorch operators from Python, and copies the KV cache to make it longer. The engine runs one compiled
# graph on a KV cache that it allocated at loading.
#
# The workshop that this course follows [measured
# both](https://github.com/scaleway/ai-pulse-nvidia-trt-llm/blob/5847f352d45e73651c9558a0f91bcf3dfe91607e/aiPULSE_workshop/03_Triton.md)
# on one H100, with 16-bit weights. It sent four prompts at once to each: 1,998 ms from Python, which answers them in
# turn, 659 ms from the engine. So its 3.0 times has both factors in it, as the last line above. It then [sent 98
# articles](https://github.com/scaleway/ai-pulse-nvidia-trt-llm/blob/ff7e8649f2733cc810d924764ebf1ec6263b2d13/aiPULSE_workshop/05_Scheduling.md):
# 334 tokens/s static, 436 in flight, 1.3 times as many. A request there had 800 tokens of prompt for 41 of answer, and
# neither rule makes prompts cheaper.
#
# ## Turn the knob
#
# The dashboard edits the config, loads the model again, and draws the slots while the requests run. Try:
#
# 1. `V1`, then `inflight_fused_batching`, with `skewed`: this lesson's requests, which come one by one here. So the first
#    static batch is a single request.
# 2. The same with `equal`: as many requests and tokens, but all alike. Equal lengths, and yet grey: which requests does it
#    come from?
# 3. The same with `mild`, 32 requests of 8 to 128 tokens. Guess the ratio of the iterations first.
#
# <details><summary>Answers to 2 and 3</summary>
#
# 2. From the first batch, which is a single request, and from the last, which has seven: (7 + 1) × 28 of 112 × 8 slots,
#    25 %.
#
# 3. If all wait from the start, `simulate` counts 416 against 248, 1.7 times. Here they come one by one, which cuts the
#    batches differently.
#
# </details>

# %% tags=["nbval-ignore-output"]
arriving = [replace(one, at_s=0.02 * number) for number, one in enumerate(requests)]
equal = sum(lengths) // len(lengths)
traces = {
    "skewed": arriving[:24],
    "equal": [replace(request, max_tokens=equal) for request in arriving[:24]],
    "mild": workload.trace("mild", load_tokenizer(engine_dir)),
}
board = lesson.board(server, traces, slots, log_path)
board.controls["trace"].value = "equal"
board.run()
board

# %% tags=["remove-cell"]
mild = [request.max_tokens for request in traces["mild"]]
assert [len(simulate(mild, slots, rule)) for rule in rules] == [416, 248]
assert (7 + 1) * equal == 0.25 * 4 * equal * slots and equal == 28  # as the text says

# %% [markdown]
# ## Elsewhere
#
# | | Here, and TensorRT-LLM with engines | TensorRT-LLM today (`llmapi`) | vLLM |
# |---|---|---|---|
# | Slots | `max_batch_size` of the engine | `max_batch_size` | `max_num_seqs` |
# | Tokens in an iteration | `max_num_tokens` of the engine | `max_num_tokens` | `max_num_batched_tokens` |
# | Static | `gpt_model_type` `V1`; there up to 0.19 | `capacity_scheduler_policy` `STATIC_BATCH` (legacy) | no |
# | In flight | `inflight_fused_batching` | the default | always |
#
# [The page for a lab GPU](../assets/lab-gpu/README.md) says which container has what. With `V1` there,
# `max_queue_delay_microseconds` lets Triton gather requests, so that they reach the engine together. Without it the first
# static batch is a single request.
#
# ## What breaks
#
# **Streaming from a static batch.** The answers of a batch leave together, when the last has finished. A stream then has
# one piece, the whole answer, and the server's log says: *static batching (gpt_model_type V1) cannot stream: the request
# gets its whole answer at once*. To stream, load `inflight_fused_batching`:

# %% tags=["nbval-ignore-output"]
for gpt_model_type in ("V1", "inflight_fused_batching"):
    server.load("tensorrt_llm", gpt_model_type=gpt_model_type)
    answer = client.stream("Tell me a story.", 16, end_id=-1).read()  # nothing ends it
    pieces = answer.pieces
    print(f"{gpt_model_type}: {len(pieces)} piece{'s' * (len(pieces) > 1)}")

# %% [markdown]
# **A type that does not exist.** `repository.edit` refuses it before it writes anything:

# %%
try:
    repository.edit(repo, "tensorrt_llm", gpt_model_type="static")
except CourseError as error:
    print(error)

# %% [markdown]
# ## Recap
#
# - A static batch lasts as long as its longest answer. In-flight batching fills a slot in the iteration after it became
#   free.
# - The lengths give the iterations: static, the sum of each batch's longest; in flight, about all tokens over the slots,
#   and a tail.
# - A fuller iteration takes longer (on this CPU; hardly on a large GPU), so the gain in time is smaller than the gain
#   in iterations; it takes less than so many times as long, so there is a gain.
# - In flight, answers do not wait for a batch to end. They pay with their pace, the long ones most, and the first of
#   them with their latency.
# - The gain depends on the workload. Equal lengths, free slots or a queue sorted by length leave almost none if all requests
#   are there from the start; so a factor is worth nothing without the lengths and the arrivals.
#
# Three questions to answer without running anything:
#
# <details><summary>1. Four slots; answers of 10, 10, 10 and 100 tokens, again and again, all waiting from the start.
# How many iterations do a hundred such groups take, static and in flight, about?</summary>
#
# Static: 100 × 100 = 10,000. In flight: 100 × 130 / 4 = 3,250, and a tail of at most 100.
# </details>
#
# <details><summary>2. Your in-flight server has eight slots, and <code>scheduled</code> in <code>/metrics</code> is
# never above 3. What would static batching cost you?</summary>
#
# Little throughput, if requests come at their own pace, but latency. Five slots are always free, so a new request
# starts at once in flight. With static batching it waits for the running batch to end.
# </details>
#
# <details><summary>3. A colleague reports "in-flight batching gives 1.3 times". What do you ask first?</summary>
#
# The lengths of prompts and answers, the number of slots, and how many requests waited. The gain depends on the workload,
# not on the engine alone.
# </details>
#
# Now [do the lab]({lab}): there you write both rules, and the running engine obeys them. Or go on with {next}: what if
# there is a slot, but no memory?
#
# The server ends with this notebook's kernel (*Kernel → Shut Down Kernel*).
