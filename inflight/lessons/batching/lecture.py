# %% [markdown]
# # {heading}
#
# {minutes} minutes. Afterwards you can
#
# - **count**, from the lengths of the answers, the iterations that static and in-flight batching need;
# - **predict** what that gains in time, and account for the difference;
# - **decide** when the switch gains nothing, and say who pays for it.
#
# You need lessons 00, 01 and 03. vLLM, SGLang and TensorRT-LLM all batch in flight (*continuous batching*), so all of
# this is true there. Only the names are history: TensorRT-LLM's engine backend had `V1` until 0.20 (2025), and
# `inflight_fused_batching` until July 2026.
#
# {navigation}

# %% [markdown]
# ## {question}
#
# Your engine has eight slots. Forty-eight requests wait. Most ask for 8 tokens, every sixth for 128. One
# [iteration](glossary.md#Iteration) gives one token to each request in a slot. When may the next request
# start?
#
# - **Static batching** (`V1`): eight start together. The next eight start when the last of them has finished.
# - **In-flight batching** (`inflight_fused_batching`): a slot that becomes free is filled in the next iteration.
#
# In flight works because a model's weights see tokens, no matter whose they are; only attention is computed for each
# request on its own cache. [Orca](https://www.usenix.org/conference/osdi22/presentation/yu) called it *iteration-level
# scheduling* with *selective batching*.

# %%
import inspect
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.express as px

from inflight import engine, machine
from inflight.bench import workload
from inflight.checkpoint import fetch, load_tokenizer
from inflight.lessons import batching as lesson
from inflight.notebook import charts, progress, session, widgets
from inflight.triton import Client, Server, repository

engine_dir = engine.cached(fetch())
limits = engine.read(engine_dir).build_config
slots = limits.max_batch_size
session.others()
print("An engine with", slots, "slots.")

# %% [markdown]
# ## On paper
#
# These are the answers that the forty-eight ask for, in tokens, in the order in which they wait.

# %%
lengths = ([128] + [8] * 5) * 8
print(len(lengths), "requests,", sum(lengths), "tokens:", lengths[:8], "…")

# %% [markdown]
# This is a whole scheduler. One line distinguishes the two rules, and it is yours. `rule` is "static" or "in-flight".


# %%
def simulate(lengths, slots, rule):
    """How many requests are computed in each iteration.

    >>> simulate([3, 1, 1], slots=2, rule="static")
    [2, 1, 1, 1]
    >>> simulate([3, 1, 1], slots=2, rule="in-flight")
    [2, 2, 1]
    """
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
    print(f"{rule:9} {len(computed):4} iterations, {used:.0%} of the slots used")
fewer = len(on_paper["static"]) / len(on_paper["in-flight"])
print(f"Static batching needs {fewer:.1f} times as many.")

# %% [markdown]
# A static batch lasts as long as its longest answer, and each of the six batches has a long one: 6 × 128 = 768. In flight
# the slots stay full until nobody waits; then the last answers run on beside empty slots, the *tail*.
#
# Move the sliders. Shorten the longest answers until static batching loses almost nothing.

# %% tags=["nbval-ignore-output"]
picture = lesson.simulated_slots(lengths, slots)
picture

# %% [markdown]
# ## Predict
#
# Now the same requests go to a real engine, once under each rule. In flight, an iteration has 5.6 answers on average
# rather than 1.75. How much longer is it? Lesson 01 has the price.

# %% tags=["nbval-ignore-output"]
guess = widgets.predict(
    "How many times as many tokens a second does in-flight batching give?",
    {
        "1.0 times: fewer iterations, each of them longer by the same factor": 1,
        "2.0 times: fewer iterations, each of them half as long again": 2,
        f"{fewer:.1f} times: fewer iterations, each of them hardly longer": fewer,
    },
)
guess

# %% [markdown]
# ## Run it
#
# This is the real engine's iteration. `_plan` asks the scheduler, of which there is one for each rule. Your `simulate`
# is this loop without the model.

# %%
print(inspect.getsource(engine.Executor.step))

# %% [markdown]
# The server starts with `V1`. The engine writes one line for each iteration into a log: who was in it, and how long it
# took.

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
# Both rules must begin with the same full queue. So one request first takes the whole KV cache; when all forty-eight
# wait behind it, it is cancelled, and the counting begins. `run_from_full_queue` does that. It returns a row per
# request, as clients saw it, and one per iteration, from the log.


# %%
texts = workload.trace("skewed", load_tokenizer(engine_dir), num_requests=len(lengths))
requests = [replace(text, max_tokens=n) for text, n in zip(texts, lengths, strict=True)]


def run_all(what, requests=requests):
    """The requests from a full queue, with the rule that the engine has now."""
    with progress.wait(f"Requests: {len(requests)}, {what}"):
        return lesson.run_from_full_queue(
            server, requests, log_path, limits.max_seq_len
        )


# %% [markdown]
# What does an iteration cost? Equal requests side by side tell, before and after each run. With 96 tokens each, their
# caches are on average about as long as those of the run.


# %%
def timed(log):
    """The log with `ms`, from the start of an iteration to the start of the next."""
    return log.assign(ms=1000 * log["timestamp"].diff().shift(-1))[:-1]


def side_by_side():
    """The iterations of 1, of 2, of 4 and of 8 requests that start together."""
    alike = replace(requests[1], max_tokens=96)
    return pd.concat([timed(run_all("alike", [alike] * n).log) for n in (1, 2, 4, 8)])


# %% tags=["nbval-ignore-output"]
before = side_by_side()
static = run_all("static")
print(f"static: {len(static.log)} iterations,", end=" ")
print(f"{static.tokens_per_s:.0f} tokens/s on {machine.cores()} cores")

# %% [markdown]
# The rule is one parameter in `config.pbtxt`, and `server.load` makes the running server read it again.

# %% tags=["nbval-ignore-output"]
repository.edit(repo, "tensorrt_llm", gpt_model_type="inflight_fused_batching")
server.load("tensorrt_llm")
between = side_by_side()
in_flight = run_all("in flight")
after = side_by_side()
print(f"in flight: {len(in_flight.log)} iterations,", end=" ")
print(f"{in_flight.tokens_per_s:.0f} tokens/s")

# %% [markdown]
# ## See
#
# Each row is a slot, each bar a request; an empty slot is grey. Both panels are drawn from the log, on one scale.

# %% tags=["nbval-ignore-output"]
stays = {"static (V1)": static.stays, "in-flight": in_flight.stays}
charts.show(lesson.slot_map(stays, slots), lesson.slot_map_summary(stays, slots))

# %% tags=["nbval-ignore-output"]
runs = {"static": static, "in-flight": in_flight}
counted = {rule: len(run.log) for rule, run in runs.items()}
for rule in rules:
    print(f"{rule:9} on paper {len(on_paper[rule])}, counted {counted[rule]}")
faster = in_flight.tokens_per_s / static.tokens_per_s
print(f"In flight gave {faster:.2f} times as many tokens a second.")
print(guess.score(faster, "the ratio of the two runs"))

# %% tags=["remove-cell"]
for rule, run in runs.items():  # a busy machine may change the order of arrival
    arrived = run.stays.sort_values("request")
    in_order = (arrived["last"] - arrived["first"] + 1).tolist()
    assert len(simulate(in_order, slots, rule)) == counted[rule]

# %% [markdown]
# The paper is right about the iterations. The gain in time is smaller: fuller iterations take longer.
#
# ## What an iteration costs
#
# The equal requests give the price of an iteration with 1, 2, 4 and 8 answers, and of a prompt's token: what iterations
# with prompts took beyond those with as many answers.

# %% tags=["nbval-ignore-output"]
equal = pd.concat([before, between, after])
answers_ms = equal[equal["context_tokens"] == 0].groupby("scheduled")["ms"].mean()
price_ms = np.interp(range(slots + 1), [0, *answers_ms.index], [0, *answers_ms])
prompts = equal[equal["context_tokens"] > 0]
beyond_ms = prompts["ms"].sum() - price_ms[prompts["scheduled"]].sum()
prompt_token_ms = beyond_ms / prompts["context_tokens"].sum()
figure = px.line(x=answers_ms.index, y=answers_ms, markers=True)
figure.update_layout(
    xaxis_title="answers in the iteration", yaxis_title="ms an iteration"
)
figure.update_yaxes(rangemode="tozero")
summary = f"Eight answers cost {price_ms[8] / price_ms[1]:.2f} times what one costs."
charts.show(figure, summary)
print(summary, f"A token of a prompt costs {prompt_token_ms:.2f} ms.")

# %% [markdown]
# An iteration reads the weights once for all answers in it; attention and arithmetic come on top for each. So do
# choosing and sending a token, which lesson 01's price leaves out. On an H100 eight answers cost hardly more than one
# (lesson 01's ridge is far away). A prompt has one price under both rules.
#
# Put the parts together: the iterations from the paper, each at its price, and the prompts, which both rules compute.


# %%
def predicted(computed, price_ms, prompts_s):
    """Seconds of a run: `computed` answers in each iteration, and the prompts."""
    # your line: price_ms[n] is the price of an iteration with n answers
    return sum(price_ms[n] for n in computed) / 1000 + prompts_s


# %% tags=["nbval-ignore-output"]
prompts_s = sum(one.input_len for one in requests) * prompt_token_ms / 1000
told = {rule: predicted(on_paper[rule], price_ms, prompts_s) for rule in rules}
for rule, run in runs.items():
    took_s = run.requests["last_s"].max()
    print(f"{rule:9} predicted {told[rule]:.1f} s, measured {took_s:.1f} s")
expected = told["static"] / told["in-flight"]
print(f"Gain: predicted {expected:.2f} times, measured {faster:.2f} times.")

# %% [markdown]
# Only in flight do prompts join running answers. Does that cost extra? The log says what each iteration took beyond its
# price.

# %% tags=["nbval-ignore-output"]
log = timed(in_flight.log)
beyond_ms = log["ms"] - price_ms[log["scheduled"]]
beyond_ms -= log["context_tokens"] * prompt_token_ms
joined = log["context_tokens"] > 0
share = beyond_ms.groupby(joined).sum() / log["ms"].sum()
print(f"Beyond the price: {share[True]:+.1%} of the run in the", end=" ")
print(f"{joined.sum()} iterations with a prompt, {share[False]:+.1%} in the others.")
print("Joining costs", "extra." if share[True] > 0.02 else "nothing extra.")

# %% [markdown]
# ## Who pays?
#
# Tokens a second are the operator's figure. Under `V1` a user sees nothing before the whole batch has finished, so
# compare what both users see: when the answer is complete.

# %% tags=["nbval-ignore-output"]
latency = {name: run.requests for name, run in runs.items()}
charts.show(lesson.who_pays(latency), lesson.who_pays_summary(latency))

# %% [markdown]
# Each mark is a request. The few above the line, complete later in flight, are long answers that started first. With
# static batching their short neighbours finish early and leave them the engine; in flight they share it to the end.
#
# ## When requests arrive
#
# A full queue shows the most throughput to be won. Usually requests arrive at a rate. How many can each rule serve?


# %%
def interval(computed, lengths):
    """Iterations in which a rule serves one request, on average."""
    # your line: from the iterations on paper
    return len(computed) / len(lengths)


# %% [markdown]
# Let 960 come at random, at a rate, whoever still waits (an *open loop*). The engine's scheduler plays them without a
# model, and counts the iterations until each answer:

# %%
many = lengths * 20  # so that the tail hardly counts
types = {"static": "V1", "in-flight": "inflight_fused_batching"}
rates = {"static": [1, 2, 3, 4, 5, 5.5, 6], "in-flight": [1, 4, 12, 20, 24, 26, 27]}
rows = []
for rule in rules:
    for rate in rates[rule]:
        times = workload.poisson(len(many), rate, seed=0)
        arrivals = [int(100 * time) for time in times]  # in iterations
        latency = lesson.latencies(many, slots, types[rule], arrivals)
        rows.append((rule, rate, np.mean(latency)))
load = pd.DataFrame(rows, columns=["rule", "rate", "latency"])

# %%
names = {"rate": "requests in 100 iterations", "latency": "mean latency, iterations"}
figure = px.line(
    load, x="rate", y="latency", color="rule", symbol="rule", log_y=True, labels=names
)
figure.update_layout(meta={"device": ""})
figure.update_yaxes(tickvals=[30, 50, 100, 200, 400])
for rule in rules:
    every = interval(simulate(many, slots, rule), many)
    print(f"{rule:9} one request in {every:.1f} iterations")
    figure.add_vline(100 / every, line_dash="dot", annotation_text=f" {rule}: full")
static_at_4, in_flight_at_4 = load.loc[load["rate"] == 4, "latency"]
summary = f"At 4 in 100 an answer takes {static_at_4:.0f} iterations static,"
summary += f" {in_flight_at_4:.0f} in flight."
charts.show(figure, f"Mean latency over the rate, up to each capacity. {summary}")
print(summary)

# %% [markdown]
# Every server has such a bend, and a wall at its capacity: beyond it no latency can be drawn, because the queue grows as
# long as requests come. In flight, latency is flat up to 70 % of it. Static, it rises from the start: a request waits for
# a batch that it is not in. Between the walls the gain is not a factor: it is whether the queue ends.
#
# ## When is there no gain?

# %%
articles = workload.from_dataset(workload.read_dataset(), load_tokenizer(engine_dir))
summaries = [article.max_tokens for article in articles]
cases = {
    "the requests above": (lengths, slots),
    "summaries of articles": (summaries, slots),
    "summaries, 64 slots": (summaries, 64),
    "equal lengths": ([64] * 48, slots),
    "fewer than slots": ([64, 16, 128, 8], slots),
    "sorted by length": (sorted(lengths), slots),
}
rows = {}
for name, (case, room) in cases.items():
    rows[name] = [len(simulate(case, room, rule)) for rule in rules]
table = pd.DataFrame(rows, index=rules).T
table["static / in-flight"] = (table["static"] / table["in-flight"]).round(2)
table

# %% [markdown]
# Equal lengths, free slots or a sorted queue leave nothing to gain, if all requests wait from the start. But an answer
# may end long before its `max_tokens`, and nobody knows where: a real queue cannot be sorted.
#
# The workshop that this course follows [measured 1.3 times](https://github.com/scaleway/ai-pulse-nvidia-trt-llm/blob/ff7e8649f2733cc810d924764ebf1ec6263b2d13/aiPULSE_workshop/05_Scheduling.md)
# on an H100 with 98 articles: 334 tokens/s static, 436 in flight. Its requests had 800 tokens of prompt for 41 of answer,
# and neither rule makes prompts cheaper.
#
# ## Turn the knob
#
# The dashboard edits the config, loads the model again, and draws the slots while the requests run. They come 10 ms apart.
#
# 1. `equal`: as many tokens as `skewed`, all answers alike, and still some grey. Which requests cause it?
# 2. `mild`: 32 answers of 8 to 128 tokens. Guess the ratio of the iterations first.
#
# <details><summary>What to see</summary>
#
# 1. The first static batch is a single request, the last has seven: (7 + 1) × 28 of 112 × 8 slots, 25 %.
# 2. From a full queue `simulate` counts 416 against 248, 1.7 times.
#
# </details>

# %% tags=["nbval-ignore-output"]
arriving = [replace(one, at_s=0.01 * number) for number, one in enumerate(requests)]
mean = sum(lengths) // len(lengths)
traces = {
    "skewed": arriving[:24],
    "equal": [replace(request, max_tokens=mean) for request in arriving[:24]],
    "mild": workload.trace("mild", load_tokenizer(engine_dir)),
}
board = lesson.board(server, traces, slots, log_path)
board.controls["trace"].value = "equal"
board.run()
board

# %% tags=["remove-cell"]
mild = [request.max_tokens for request in traces["mild"]]
assert [len(simulate(mild, slots, rule)) for rule in rules] == [416, 248]
assert (7 + 1) * mean == 0.25 * 4 * mean * slots and mean == 28  # as the text says

# %% [markdown]
# ## Elsewhere
#
# | | vLLM | TensorRT-LLM today | here, as in TensorRT-LLM with engines |
# |---|---|---|---|
# | Slots | `max_num_seqs` | `max_batch_size` | `max_batch_size` of the engine |
# | Tokens in an iteration | `max_num_batched_tokens` | `max_num_tokens` | `max_num_tokens` of the engine |
# | Static | no | `STATIC_BATCH` of `capacity_scheduler_policy` (legacy) | `gpt_model_type` `V1` |
# | In flight | always | the default | `inflight_fused_batching` |
# | How full | `vllm:num_requests_running`, `_waiting` | iteration statistics | `scheduled`, `waiting` of the log and /metrics |
#
# vLLM's *V1* is its engine, which batches in flight. TensorRT-LLM's own `V1` and Hugging Face's `generate` go on
# computing finished answers until their batch ends, so each iteration keeps its full price, and the gain over them is
# larger than here.
#
# ## What breaks
#
# **Streaming from a static batch.** A stream then has one piece, the whole answer.

# %% tags=["nbval-ignore-output"]
for gpt_model_type in types.values():
    server.load("tensorrt_llm", gpt_model_type=gpt_model_type)
    answer = client.stream("Tell me a story.", 16, end_id=-1).read()  # nothing ends it
    pieces = answer.pieces
    print(f"{gpt_model_type}: {len(pieces)} piece{'s' * (len(pieces) > 1)}")

# %% [markdown]
# ## Recap
#
# The next request may start in the iteration after a slot becomes free; waiting for the whole batch costs 768 iterations
# where 240 would do.
#
# - Static, iterations are the sum of each batch's longest answer; in flight, about all tokens over the slots, and a tail.
# - Eight answers in an iteration cost more than one, but not eight times as much: the gain in time is smaller than the
#   gain in iterations.
# - Short answers are complete earlier; a few long ones that started first are complete later.
# - Latency bends up before a rule's capacity. Between the two, static batching has a queue without end.
#
# <details><summary>1. Four slots; answers of 10, 10, 10 and 100 tokens, again and again, all waiting from the start.
# How many iterations do a hundred such groups take, static and in flight, about?</summary>
#
# Static: 100 × 100 = 10,000. In flight: 100 × 130 / 4 = 3,250, and a tail of at most 100.
# </details>
#
# <details><summary>2. Your in-flight server has eight slots, and never more than 3 requests run. What would static
# batching cost you?</summary>
#
# Latency: a new request waits for the running batch. With the lengths above capacity, too: three at a time are 11
# requests in 100 iterations, and static batching serves 6.
# </details>
#
# <details><summary>3. A colleague reports "in-flight batching gives 1.3 times". What do you ask first?</summary>
#
# The lengths of prompts and answers, the number of slots, and how many requests waited.
# </details>
#
# Now [do the lab]({lab}): you write both rules, and the running engine obeys them. Or go on with {next}: what if there is
# a slot, but no memory?
