# %% [markdown]
# # {heading}
#
# {minutes} minutes. Afterwards you will be able to
#
# - **say** which requests share a batch, from when they come and what a batch costs;
# - **decide** whether a queue delay pays, from whether your callers wait for their answers;
# - **find** a model that idles while requests wait, and say who should refuse requests instead.
#
# **What you will use elsewhere:** open and closed loop, coordinated omission, queue time and admission control are the
# same for every server, vLLM and TensorRT-LLM among them.
#
# You need lesson 02: what a `config.pbtxt` is. Everything is made here.
#
# {navigation}

# %% [markdown]
# ## {question}
#
# A classifier, an embedding, a tokenizer: a request comes, the model computes one forward pass, and nothing is
# remembered. Such a model is [**stateless**](glossary.md#Stateless). Say that a pass costs 40 ms, and 4 ms more
# for each request in it. One request at a time makes 23 answers a second; eight at a time make 111. A hundred
# callers send you one request a second each, and know nothing of each other. Who puts their requests together?
#
# - **The client** can, if it has several texts at hand: it sends them in one request, a
#   [batch](glossary.md#Batch) from the start. These callers cannot.
# - **The model** can gather requests itself, as the engine of lessons 04 and 05 does.
# - **Triton** sits between them. Its [dynamic batcher](glossary.md#Dynamic-batching) works in front of any
#   stateless model whose `config.pbtxt` says so.

# %%
import json
import tempfile
import threading
import time
import timeit
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pandas as pd
import plotly.express as px
import tritonclient.grpc as triton

from inflight import CourseError
from inflight.bench import workload
from inflight.checkpoint import fetch
from inflight.lessons import batchers as lesson
from inflight.lessons.batchers import batch_run
from inflight.models import huggingface
from inflight.notebook import charts, progress, session, told_apart, widgets
from inflight.triton import Server, repository, telemetry

session.others()

# %% [markdown]
# ## A model whose cost is known
#
# `batch-cost` sleeps instead of computing. Each request says how much `work` it is, normally 1: a batch takes 40 ms, and
# 4 ms for each unit. Whatever else you see is the batcher. The server's arguments ask for a trace, which you need later.
# `--disable-auto-complete-config`: otherwise Triton may add `dynamic_batching` itself for some backends.

# %%
workdir = tempfile.TemporaryDirectory()
folder, log_path = Path(workdir.name), Path(workdir.name) / "executions.jsonl"
repo = repository.assemble(
    folder / "repo",
    models=("batch-cost",),
    batch_cost_fixed_ms=40,
    batch_cost_item_ms=4,
    execution_log_path=log_path,
)
config_path = repo / "batch-cost" / "config.pbtxt"
as_it_was = config_path.read_text()

# %%
arguments = f"""--model-repository={repo} --model-control-mode=explicit
    --load-model=batch-cost --disable-auto-complete-config
    --trace-config=level=TIMESTAMPS --trace-config=rate=1
    --trace-config=triton,file={folder}/trace --trace-config=triton,log-frequency=1"""
with progress.wait("The server starts"):
    server = Server(repo, arguments=arguments.split()).start()

# %% [markdown]
# `trial` is one experiment: it puts a fragment into the config, loads the model, and sends each request at its time.


# %%
def trial(fragment, arrivals, callers=None):
    """Edit a fresh config, load the model, warm it up, and send requests."""
    config_path.write_text(as_it_was)
    repository.edit(repo, "batch-cost", fragment)
    server.load("batch-cost")
    batch_run.run(server, "batch-cost", batch_run.at([0.0]), log_path)
    return batch_run.run(server, "batch-cost", arrivals, log_path, callers)


def show(runs):
    """The picture of these runs, and the same in words."""
    charts.show(lesson.batches(runs), lesson.batches_summary(runs))
    print(lesson.batches_summary(runs))


# %% [markdown]
# ## Predict
#
# One line goes into the config: `dynamic_batching { }`. Then requests that wait together are computed together, at most
# eight of them (`max_batch_size`). Twenty-four requests come, one every 10 ms. Commit yourself:

# %% tags=["nbval-ignore-output"]
guess = widgets.predict(
    "In how many batches will the 24 requests be computed?",
    {
        "24: each is computed when it comes": 24,
        "3, of eight each": 3,
        "5 or so, of different sizes": 5,
        "1, of all of them": 1,
    },
)
guess

# %% [markdown]
# ## See
#
# A dot is a request that arrives, grey is waiting, a box is a batch. The lane below is the model, with the size of each
# batch.

# %% tags=["nbval-ignore-output"]
every_10_ms = batch_run.at([0.010 * number for number in range(24)])
fragments = {
    "no batcher": "",
    "dynamic_batching { }": "dynamic_batching { }",
    "and max_batch_size: 4": "max_batch_size: 4 dynamic_batching { }",
}
runs = {name: trial(fragment, every_10_ms) for name, fragment in fragments.items()}
show(runs)
dynamic = runs["dynamic_batching { }"]
counted = dynamic.statistics.batches.to_dict()
print("Triton counts, batches by their size:", counted)
print(guess.score(len(dynamic.executions), "the batches of one run"))

# %% [markdown]
# The first request finds the model idle and leaves alone: nobody waits for a batch to fill. **What comes while it is
# computed is the second batch, what comes during that one is the third.**
#
# Triton's own count is in the model's statistics, at `/v2/models/batch-cost/stats`. `/metrics` has the mean size alone:
# `nv_inference_count`, items, over `nv_inference_exec_count`, batches.

# %% tags=["remove-cell"]
assert counted == dynamic.executions["size"].value_counts().to_dict()
assert len(runs["no batcher"].executions) == 24 > 2 * len(dynamic.executions)

# %% [markdown]
# ## By hand
#
# The rule is a few lines: take one request, and all others that are there already; compute; come back. The condition is
# yours.


# %%
def one_more(in_batch, waiting, most):
    """May another request join a batch that has `in_batch`, while `waiting` wait?"""
    # your line: there is room in the batch, and somebody is waiting
    return in_batch < most and waiting > 0


# %% tags=["nbval-ignore-output"]
def model(most):
    while sum(sizes) < 24:
        batch = [waiting.get()]  # waits for one
        while one_more(len(batch), waiting.qsize(), most):
            batch.append(waiting.get())
        time.sleep(0.040 + 0.004 * len(batch))
        sizes.append(len(batch))


waiting, sizes = SimpleQueue(), []
computing = threading.Thread(target=model, args=[8])
computing.start()
for number in range(24):
    waiting.put(number)
    time.sleep(0.010)
computing.join()
print("by hand:", *sizes)

# %% tags=["remove-cell"]
assert sum(sizes) == 24 and 1 < max(sizes) <= 8

# %% [markdown]
# Triton's batches may be a little larger: it needs some milliseconds to hand over a batch, and requests come meanwhile.
#
# So batches grow until they fit the traffic. A batch of *n* takes 40 + 4 *n* ms, and one request comes every 10 ms. So
# (40 + 4 *n*) / 10 come during a batch of *n*. Where that is *n* again, the size no longer changes:

# %%
rate, fixed_s, item_s = 100, 0.040, 0.004
# your line: the n for which n = rate * (fixed_s + item_s * n)
steady = rate * fixed_s / (1 - rate * item_s)

# %% tags=["nbval-ignore-output"]
longer = batch_run.at([0.010 * number for number in range(100)])
sizes = trial("dynamic_batching { }", longer).executions["size"].iloc[4:-1]
print(f"predicted {steady:.1f} in a batch, measured {sizes.mean():.1f}:", end=" ")
print(f"{sizes.mean() / steady:.2f} times, the mean of {len(sizes)} batches.")
most_of_4 = 4 / (fixed_s + 4 * item_s)
print(f"With at most 4 in a batch, {most_of_4:.0f} a second are served, and 100 come.")

# %% tags=["remove-cell"]
assert 6 < sizes.mean() <= 8

# %% [markdown]
# With at most four, the queue grows for as long as requests come: `max_batch_size` limits throughput as well as memory.
#
# ## Wait for more: who pays for a delay?
#
# With `max_queue_delay_microseconds` a batch leaves when it is full, or when its oldest request has waited for the
# [delay](glossary.md#Queue-delay). Does that pay? It depends on who calls:
#
# - **[Closed loop](glossary.md#Closed-loop)**: four callers, each of whom sends the next request when the last is
#   answered. So do the workers of a batch job, and load testers with a `--concurrency`.
# - **[Open loop](glossary.md#Open-loop)**: requests come by themselves, at random times, however slow the answers
#   are. So do the users of a web site, and load testers with a `--request-rate` and no cap on what is under way.
#
# In the loop that sends, in `batch_run.run`, that is one condition:
#
# ```python
# for number, arrival in enumerate(arrivals, 1):
#     while callers is not None and number - len(answers) > callers:  # closed loop
#         answers.append(next_answer())
#     sleep_until(arrival.at_s)
#     send(arrival)
# ```
#
# Server and mean rate are the same for both: 32 requests come to the open loop at the rate that the closed loop reached
# without a delay.


# %%
def figures(run):
    """Requests a batch, answers a second after the first batch, busy %, latency."""
    batches = run.executions
    first_end, last_end = batches["end_s"].iloc[[0, -1]]
    per_s = batches["size"].iloc[1:].sum() / (last_end - first_end)
    busy = (batches["end_s"] - batches["start_s"]).sum() / last_end
    latency_ms = run.requests["latency_ms"].median()
    return batches["size"].mean(), per_s, 100 * busy, latency_ms


def at_random(number, per_s, seed):
    """Arrivals at random moments, the last of them at number / per_s."""
    moments = np.array(workload.poisson(number, rate=1, seed=seed))
    return batch_run.at(moments / moments[-1] * number / per_s)


# %% tags=["nbval-ignore-output"]
at_once, callers, delays, rows = batch_run.at([0.0] * 32), 4, (0, 20, 100), []
for number in progress.over(range(3), "Round"):
    for delay_ms in delays:
        delay = f"max_queue_delay_microseconds: {1000 * delay_ms}"
        batcher = f"dynamic_batching {{ {delay} }}"
        closed = figures(trial(batcher, at_once, callers))
        if delay_ms == 0:
            alike = at_random(len(at_once), closed[1], seed=number)
        opened = figures(trial(batcher, alike))
        rows += [("closed", delay_ms, *closed), ("open", delay_ms, *opened)]
columns = ["loop", "delay (ms)", "requests a batch", "answers/s", "busy (%)"]
loops = pd.DataFrame(rows, columns=[*columns, "median latency (ms)"])
charts.table(loops.groupby(columns[:2]).median().reset_index())

# %% tags=["nbval-ignore-output"]
rounds = loops.groupby(["loop", "delay (ms)"]).agg(list)
shown = [("closed", "answers/s"), ("open", "busy (%)")]
for loop, what in [*shown, ("open", "median latency (ms)")]:
    without, *with_delay = (rounds.loc[(loop, ms), what] for ms in delays)
    for delay_ms, values in zip(delays[1:], with_delay):
        verdict = told_apart(values, without, "higher", "lower")
        print(f"{loop}, {delay_ms} ms, {what} {verdict}")

# %% tags=["remove-cell"]
none, short, long = (
    np.median(rounds.loc[("closed", ms), "answers/s"]) for ms in delays
)
assert long < none < short

# %% [markdown]
# The table has medians of three rounds; each verdict compares a delay with none.
#
# **In the open loop** all 32 are answered whatever the delay: it cannot buy answers there. A long one buys larger
# batches, so that the model computes for less of the time (`busy`), and pays with latency. That is worth it if other
# models share the machine. Here, without a delay, the model is busy for most of the time, so a short delay can hide
# behind the batch that runs, or be waited out: compare the two medians with the delay. If the verdict is *not told
# apart*, three rounds do not say which. In light traffic each request would simply wait for it: try "one every 60 ms"
# below. (Busy is not full: this model could answer far more, because batches grow with the load. A utilisation near 100
# % does not say that you need another replica; queue time and the size of batches do.)
#
# **In the closed loop** answers a second are callers over latency
# ([Little's law](https://en.wikipedia.org/wiki/Little%27s_law)). Without a delay the four callers are split into two groups
# that take turns: a cycle is two batches. With a delay all four share a batch, but wait for the delay first:

# %%
apart = callers / (2 * fixed_s + callers * item_s)


def together(callers, delay_ms):
    """Answers a second of callers who wait for the delay, then share a batch."""
    # your line: callers over the seconds of a cycle, which are the delay and a batch
    return callers / (delay_ms / 1000 + fixed_s + callers * item_s)


# %% tags=["nbval-ignore-output"]
expected = {0: apart, 20: together(callers, 20), 100: together(callers, 100)}
for delay_ms, per_s in expected.items():
    measured = np.median(rounds.loc[("closed", delay_ms), "answers/s"])
    print(f"{delay_ms:3} ms: predicted {per_s:.1f}, measured {measured:.1f}", end=" ")
    print(f"answers/s, {measured / per_s:.2f} times")

# %% [markdown]
# So for callers who wait, and are fewer than `max_batch_size`, a delay pays only while it is shorter than the fixed cost of
# the batch that it saves, here 40 ms. (Eight callers fill a batch, which leaves before the delay is over.)
#
# *How could this mislead?* These callers do nothing between two requests, so they stay in step; callers who think in
# between are nearer to the open loop. And a load test with a fixed concurrency can recommend a delay that users only feel
# as latency.
#
# ## Queue time
#
# Latency is time in the queue and time in the model. From the moments in Triton's trace, here is the time from entering
# the queue to the start of the batch, in the open loop, without a delay and with the longest.


# %%
def queue_ms(delay_ms):
    """Milliseconds in the queue of each request of a new trial, from the trace."""
    for path in folder.glob("trace.*"):
        path.unlink()
    trial(f"dynamic_batching {{ max_queue_delay_microseconds: {delay_ms}000 }}", alike)
    waited = {}
    for path in sorted(folder.glob("trace.*"), key=lambda path: int(path.suffix[1:])):
        request, *moments = json.loads(path.read_text())
        at = {one["name"]: one["ns"] for part in moments for one in part["timestamps"]}
        in_queue_ns = at["COMPUTE_START"] - at["QUEUE_START"]
        waited[request["request_id"]] = in_queue_ns / 1e6  # the last of this number
    return list(waited.values())


# %% tags=["nbval-ignore-output"]
x = "time in the queue (ms)"
queued = {f"delay {delay_ms} ms": queue_ms(delay_ms) for delay_ms in (0, 100)}
rows = [(config, ms) for config, waited in queued.items() for ms in waited]
figure = px.histogram(
    pd.DataFrame(rows, columns=["config", x]), x=x, facet_row="config", nbins=24
)
figure.for_each_annotation(lambda note: note.update(text=note.text[7:]))
figure.for_each_yaxis(lambda axis: axis.update(title="requests"))
spread = {name: np.quantile(waited, [0.5, 0.95]) for name, waited in queued.items()}
summary = "Time in the queue, median and P95: " + "; ".join(
    f"{name}, {half:.0f} and {most:.0f} ms" for name, (half, most) in spread.items()
)
charts.show(figure, f"{summary}.")
print(f"{summary}.")

# %% tags=["remove-cell"]
assert spread["delay 0 ms"][1] < spread["delay 100 ms"][1]

# %% [markdown]
# Without a delay a request waits for what is computed before it. With one, the request that opens a batch waits for all
# of the delay unless the batch fills.
#
# In production Triton's `/metrics` has the sum, `nv_inference_queue_duration_us`, and with
# `--metrics-config=summary_latencies=true` quantiles. Quantiles of two servers cannot be added up; the buckets of a
# histogram can: vLLM (`vllm:request_queue_time_seconds`) and TensorRT-LLM (`trtllm_request_queue_time_seconds`) export
# those.
#
# ## One slow request
#
# 100 requests come at 30 a second, and one of them, with `work=240`, takes a second. All that come behind it wait, however
# little they need: [**head-of-line blocking**](glossary.md#Head-of-line-blocking). The same schedule goes to the
# server twice: in an open loop, and from a load tester with four callers, which sends late while all four wait.

# %% tags=["nbval-ignore-output"]
schedule = at_random(100, 30, seed=3)
schedule[30] = replace(schedule[30], work=240)
views = {}
for number in progress.over((None, 4), "Callers"):
    sent = trial("dynamic_batching { }", schedule, callers=number).requests
    due_s = sent["at_s"]
    if number is None:
        views["open loop"] = sent["latency_ms"]
    else:
        views["four callers, since it was sent"] = sent["latency_ms"]
        views["four callers, since it was due"] = 1000 * (sent["answered_s"] - due_s)
columns = ["when the request was due (s)", "view", "latency (ms)"]
latencies = pd.DataFrame(views).set_index(due_s).stack().reset_index()
latencies.columns = columns

# %% tags=["nbval-ignore-output"]
x, view, y = columns
figure = px.scatter(latencies, x=x, y=y, color=view, symbol=view)
figure.update_layout(legend_title="")
by_view = latencies.groupby(view, sort=False)[y]
p95, late = by_view.quantile(0.95), by_view.apply(lambda ms: (ms > 300).sum())
summary = "P95, and requests slower than 300 ms: " + "; ".join(
    f"{name}, {p95[name]:.0f} ms and {late[name]}" for name in p95.index
)
charts.show(figure, f"{summary}.")
print(f"{summary}.")

# %% tags=["remove-cell"]
opened, since_sent, since_due = late
assert since_sent < opened and since_sent < since_due

# %% [markdown]
# The tester's own figure is the lowest. During that second only four of its requests were under way; those that were due
# were not sent, and so nobody saw them wait. That is [**coordinated omission**](glossary.md#Coordinated-omission).
# Counted from the moment at which each request was due, as [wrk2](https://github.com/giltene/wrk2) counts, they are there
# again. (They may be even more than in the open loop: four callers make small batches, and take longer to catch up.)
#
# A second [instance](glossary.md#Instance), a limit on the size of a request, or cutting the long one into parts, as
# lesson 05 does with a prompt, helps against head-of-line blocking. A priority does not: it does not stop what runs.
#
# ## The model that sleeps
#
# Now an overload: two hundred requests a second, where full batches answer 111. Without a limit the queue grows until every
# answer comes too late. Refusing requests that could not be served in time is
# [**admission control**](glossary.md#Admission-control). How many may wait, if answers are to come within 300 ms?
# Whoever enters last waits for the batch that runs, for all full batches in front, and for their own:

# %%
budget_ms, full_ms = 300, 1000 * (fixed_s + 8 * item_s)
# your line: the most that may wait, in full batches of 8; one batch runs already
may_wait = 8 * int(budget_ms / full_ms - 1)

# %% [markdown]
# Your number leaves 12 ms for all hand-overs, so Triton's queue gets two full batches (`max_queue_size: 16`). The same
# is tried with a **bell**, a request without any work every 40 ms. It tests a suspicion: that the batcher looks at its
# queue only when a request enters. (It is a probe and no remedy: it takes a place in a batch.) So that the bell can
# ring beside a full queue, there are two queues (`priority_levels: 2`): ordinary requests wait in the second, which
# holds 16; the bell uses the first, which has no limit and is served first.

# %% tags=["nbval-ignore-output"]
flood = batch_run.at([number / 200 for number in range(400)])
bells = batch_run.at([0.040 * number for number in range(65)], work=0, priority=1)
levels = "priority_levels: 2 default_priority_level: 2"
second = "priority_queue_policy { key: 2 value { max_queue_size: 16 } }"
ways = {
    "no limit": ("", flood),
    "a queue of 16 and a bell": (f"{levels} {second}", [*flood, *bells]),
    "a queue of 16": (f"{levels} {second}", flood),
}
outcomes = {}
for name, (batcher, arrivals) in progress.over(ways.items(), "Way", lambda way: way[0]):
    outcomes[name] = trial(f"dynamic_batching {{ {batcher} }}", arrivals)
print(f"You found that {may_wait} may wait. With 16:")
show({"a queue of 16": outcomes["a queue of 16"]})

# %% [markdown]
# Look at the lane of the model. Where there is a gap between its boxes it is free, while requests wait (grey) and others are
# refused (crosses). How long are the gaps, while requests come?

# %% tags=["nbval-ignore-output"]
rows = []
for name, run in outcomes.items():
    of_flood = run.requests[run.requests["priority"] != 1]
    batches = run.executions[run.executions["start_s"] < 2]
    gaps_ms = 1000 * (batches["start_s"] - batches["end_s"].shift()).iloc[1:]
    answered = of_flood[of_flood["outcome"] == "answered"]
    print(f"{name}, gaps (ms):", *gaps_ms.round().astype(int).tolist())
    print("   above 100 ms:", (gaps_ms > 100).sum(), "of", len(gaps_ms))
    rows.append((name, len(answered), gaps_ms.max(), answered["latency_ms"].max()))
metrics = telemetry.metrics(telemetry.page(server.metrics_url)).set_index("label")
failed = metrics.loc[metrics["name"] == "nv_inference_request_failure", "value"]
print("nv_inference_request_failure of the last, a queue of 16:", failed.to_dict())
columns = ["queue", "answered of 400", "longest gap (ms)", "slowest answer (ms)"]
charts.table(pd.DataFrame(rows, columns=columns), decimals=0)

# %% tags=["remove-cell"]
answered = [row[1] for row in rows]
assert answered[2] < answered[0] == 400 and not failed.any()

# %% [markdown]
# Did a queue of 16 keep the 300 ms? Look at its slowest answer. The sum above holds only for a model that starts its
# next batch at once, and when the model becomes free, the Triton of this course (2.51) tells nobody. With a queue
# policy or priority levels the batcher [prepares nothing
# ahead](https://github.com/triton-inference-server/core/blob/05295b706ae45796a7c9e3b2a58c19afd23f0054/src/scheduler_utils.cc):
# it [looks
# again](https://github.com/triton-inference-server/core/blob/05295b706ae45796a7c9e3b2a58c19afd23f0054/src/dynamic_batch_scheduler.cc)
# when a request *enters* the queue, or when its wait of half a second is over. While the queue is full, none enters. So
# it *can* sleep until that wait ends. It does not always: where a gap is short, a full queue was served at once, and we
# do not know what woke the batcher. Count the gaps above 100 ms, not the batches: how many there are differs from run
# to run. A later core [wakes the batcher when the model becomes
# free](https://github.com/triton-inference-server/core/blob/a8aa915b60308ad086489075579d96acc0fab9d8/src/dynamic_batch_scheduler.cc):
# run this cell on yours. The bell does enter, but the model waits for it, up to 40 ms a batch.
#
# A gateway is the better place in any case: it refuses before anything is queued, and it counts what it refuses
# (Triton's `REJECTED` counts time-outs only). It counts requests under way, so its limit is what may wait and one
# batch: 16 and 8, so 24 here. (With 32, four batches take 288 ms, and the hand-overs that you see above use up the
# rest.)
#
# ## Everything else
#
# Only requests whose inputs have the same shape share a batch, unless the input has [`allow_ragged_batch:
# true`](https://github.com/triton-inference-server/server/blob/main/docs/user_guide/ragged_batching.md) or the client
# pads them. All fields but the last are in the dashboard below.
#
# | Field | What it is for |
# |---|---|
# | [`preferred_batch_size`](https://github.com/triton-inference-server/server/blob/main/docs/user_guide/batcher.md#preferred-batch-sizes) | Engines with profiles for certain sizes: a batch of this size does not wait for the end of the delay. |
# | [`instance_group`](https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_configuration.md#instance-groups) | A model that does not fill the device: so many copies work side by side, in most backends each with its own weights (TensorRT shares them on one GPU). |
# | [`preserve_ordering`](https://github.com/triton-inference-server/server/blob/main/docs/user_guide/batcher.md#preserve-ordering) | Clients that cannot tell answers apart: each is held back until all before it have left. [Broken in the containers 25.09 to 26.07](https://github.com/triton-inference-server/core/pull/520). |
# | [`priority_levels`](https://github.com/triton-inference-server/server/blob/main/docs/user_guide/batcher.md#priority-levels) | Few urgent requests among many: level 1 is served first. If they keep coming, the others starve. |
# | [queue policy](https://github.com/triton-inference-server/server/blob/main/docs/user_guide/batcher.md#queue-policy) | Answers that are worthless when late: `max_queue_size`, or `default_timeout_microseconds`, with which [throughput decays](https://github.com/triton-inference-server/server/issues/8870) before 26.08. |
# | [batching library](https://github.com/triton-inference-server/server/blob/main/docs/user_guide/batcher.md#custom-batching) | Batches that are limited by tokens, not by requests: five C functions of yours decide. |
#
# ## Turn the knob
#
# *Run* writes the file, loads the model, and sends; the run before stays above. Try:
#
# 1. "one every 10 ms" with a delay of 50000 µs, then without. Does the delay do anything?
# 2. "one every 60 ms" with the same delay, then without. And now?
# 3. "uneven work", every fourth request long, with one instance and with two. Who waits behind the long ones?

# %% tags=["nbval-ignore-output"]
config_path.write_text(as_it_was)
board = lesson.board(server, log_path)
board.controls["dynamic_batching"].value = "true"
board.controls["dynamic_batching.max_queue_delay_microseconds"].value = "50000"
board.run()
board

# %% [markdown]
# At one every 10 ms only the first batch waits for company; the others wait for the model anyway, but all start later
# for it: compare the medians. At one every 60 ms the delay ends before company comes, and all wait in vain. With one
# instance everybody waits behind a long one; with two, the other instance goes on with the queue, until both have a
# long one.
#
# ## A real model
#
# `text-embedding` is the course's checkpoint as an embedding model: one forward pass turns every text of a batch into a
# vector. What can batching gain here?

# %% tags=["nbval-ignore-output"]
embedding = repository.assemble(
    folder / "embedding",
    models=("text-embedding",),
    checkpoint_dir=huggingface.folder(fetch()),
)
with progress.wait("A second server starts, with the embedding"):
    second_server = Server(embedding).start()
connection = triton.InferenceServerClient(second_server.grpc_url)


# %%
def embed(texts):
    """Vectors of these texts, sent as one request."""
    array = np.array([[text] for text in texts], object)
    text_input = triton.InferInput("text_input", array.shape, "BYTES")
    text_input.set_data_from_numpy(array)
    return connection.infer("text-embedding", [text_input]).as_numpy("embedding")


# %% [markdown]
# One caller alone tells what is fixed and what is per text, and so about what full batches can make:

# %% tags=["nbval-ignore-output"]
text = ["how tall is the eiffel tower"]
one_s, eight_s = (
    np.median(timeit.repeat(partial(embed, texts), number=1, repeat=5))
    for texts in (text, text * 8)
)
per_text_s = (eight_s - one_s) / 7
print(f"a text alone {1000 * one_s:.1f} ms, eight {1000 * eight_s:.1f} ms:", end=" ")
print(f"{1000 * (one_s - per_text_s):.1f} ms fixed, {1000 * per_text_s:.1f} ms a text")
print(f"predicted: {1 / one_s:.0f} texts/s alone, {8 / eight_s:.0f} in full batches")

# %% [markdown]
# Then sixteen callers each wait for their answers: without a batcher, with it, and with eight texts in each request, so that
# every batch is full. The three ways take turns:

# %% tags=["nbval-ignore-output"]
ways = {"none": (text, 24), "full": (text * 8, 16), "dynamic": (text, 64)}
texts_per_s = {way: [] for way in ways}
for _ in progress.over(range(3), "Round"):
    for way, (texts, number) in ways.items():
        if way != "full":  # which needs no batcher either
            second_server.load("text-embedding", dynamic_batching=way == "dynamic")
        with ThreadPoolExecutor(16) as sixteen:
            list(sixteen.map(embed, [texts] * 2))  # a warm-up
            started = time.perf_counter()
            list(sixteen.map(embed, [texts] * number))
            took_s = time.perf_counter() - started
        texts_per_s[way].append(number * len(texts) / took_s)

# %% tags=["nbval-ignore-output"]
per_s = pd.DataFrame(texts_per_s)
print("texts/s, the medians of 3 rounds:", per_s.median().round().to_dict())
print("dynamic against none", told_apart(per_s["dynamic"], per_s["none"]))
print("dynamic against full", told_apart(per_s["dynamic"], per_s["full"]))
for way, predicted in {"none": 1 / one_s, "full": 8 / eight_s}.items():
    ratio = per_s[way].median() / predicted
    print(f"{way}: measured over predicted {ratio:.2f}")

# %% tags=["remove-cell", "nbval-ignore-output"]
gain = (per_s["dynamic"] / per_s["none"]).agg(["median", "min", "max"]).round(2)
print(gain.to_frame("dynamic_over_none").to_json())

# %% [markdown]
# Where a way without the batcher beats its prediction, callers overlap: the time of a lone one includes the way there
# and back. What batching gains is the fixed part of the cost, shared. A model whose cost is all per item gains nothing.
# Nor does a `model.py` that loops over its requests: the Python backend hands `execute` the batch as a list and [joins
# nothing](https://github.com/triton-inference-server/server/issues/5926), while Triton's statistics show batches all
# the same. `text-embedding` puts the texts of all requests into one forward pass.
#
# To tune a model, measure it with the kind of load that your callers make. Add `dynamic_batching { }`, then perhaps
# instances, then a delay; keep what stays within the latency budget. Triton's Performance Analyzer measures
# (`--concurrency-range` is a closed loop, `--request-rate-range` an open one): you run it in the lab.
#
# ## Who decides?
#
# The word *batch* is in many places of a repository:
#
# | Knob | In which file | Who decides | When | On what |
# |---|---|---|---|---|
# | several items in one request | your client's code | the client | before it sends | what it has at hand |
# | `dynamic_batching` | `config.pbtxt` of a stateless model | Triton | when the model becomes free, or a delay is over | number, age and priority of what waits |
# | a batching library | a parameter in the same file, and your C file | your library | whenever Triton could add a request | anything in the request |
# | `sequence_batching`: `direct`, `oldest` | `config.pbtxt` of a model with a memory | Triton | from START to END | the correlation id: lesson 07 |
# | `sequence_batching`: <code>iterative_<wbr>sequence</code> | `config.pbtxt`, and `model.py` says "again" | the model | after each step, such as a token | whether the answer is complete: lessons 07 and 08 |
# | `gpt_model_type` | <code>tensorrt_llm/<wbr>config.pbtxt</code>, a parameter | the engine | each iteration; with `V1` when a batch has ended | free slots |
# | <code>batch_<wbr>scheduler_policy</code> | the same | the engine | each iteration: which request starts, which is paused | free KV cache blocks |
#
# The upper four hand the model a batch and get all of it back. With `iterative_sequence`, and in an engine that batches
# in flight, a batch changes while it runs. So `dynamic_batching` in front of an LLM engine forms no batch that lasts.
# TensorRT-LLM's template has the block all the same: its delay can let requests of one moment start in the same
# iteration, and every lone request pays for it. Leave it at 0 unless you have measured a gain.
#
# ## Elsewhere
#
# | Triton | Ray Serve | TensorFlow Serving | vLLM |
# |---|---|---|---|
# | `max_batch_size` | <code>@serve.batch(<wbr>max_batch_size=…)</code> | `max_batch_size` | the engine batches in flight: `--max-num-seqs` |
# | <code>max_queue_delay_<wbr>microseconds</code> | <code>batch_wait_<wbr>timeout_s</code> | <code>batch_timeout_<wbr>micros</code> | none |
# | `max_queue_size` | <code>max_queued_<wbr>requests</code> | <code>max_enqueued_<wbr>batches</code> | <code>--max-num-<wbr>queued-reqs</code>: off by default |
#
# vLLM's [`--max-num-queued-reqs`](https://github.com/vllm-project/vllm/pull/49445) counts requests that wait and those that
# run, and refuses the others with status 503.
#
# **In production** look at `rate(nv_inference_queue_duration_us[1m]) / rate(nv_inference_request_success[1m])`, at the
# requests that wait (`nv_inference_pending_request_count`, `vllm:num_requests_waiting`), and at the refusals that your
# gateway counts. [The page for a lab GPU](../assets/lab-gpu/README.md) says how to get there; files and fields are the
# same.
#
# ## What breaks
#
# Triton refuses two of these; the third is no config:

# %%
config_path.write_text(as_it_was)  # whatever the dashboard has left there
for fragment in (
    "dynamic_batching { preferred_batch_size: [ 16 ] }",
    "dynamic_batching { priority_levels: 2 default_priority_level: 3 }",
    "dynamic_batching { } sequence_batching { }",
):
    try:
        repository.edit(repo, "batch-cost", fragment)
        server.load("batch-cost")
    except CourseError as error:
        print(error.sentence)
    config_path.write_text(as_it_was)

# %% [markdown]
# ## Recap
#
# - With `dynamic_batching { }` a batch is what came during the one before it. Say so in the config: auto-complete adds
#   it for some backends only, such as ONNX Runtime and TensorRT.
# - In an open loop a delay buys idle time of the model with latency. In a closed loop of fewer callers than fit a
#   batch it pays only while it is shorter than the fixed cost of the batch that it saves.
# - A load tester that waits for answers can leave out most of the requests that would have waited: count from when each was
#   due.
# - A full queue can let Triton's model idle for up to half a second at a time, in the version used here: refuse in front of
#   it.
# - In front of an engine that batches in flight, the dynamic batcher only hands requests over: what is computed together,
#   the engine decides.
#
# Three questions to answer without running anything:
#
# <details><summary>1. A batch costs 10 ms, and 10 ms an item; one instance, batches of at most eight. What is the most
# that <code>dynamic_batching</code> can gain?</summary>
#
# Alone a request takes 20 ms: 50 a second. Eight take 90 ms: 89 a second, not even twice as many. Little is fixed, so
# there is little to share.
# </details>
#
# <details><summary>2. A colleague's load test, 32 callers and 10,000 requests, shows a P99 of 80 ms. Your users say that
# nothing moved for three seconds. How can both be right?</summary>
#
# The callers wait for each answer. While the server stands still, 32 of their requests are under way, fewer than one in a
# hundred. Let the test send on a schedule, and count from when each request was due.
# </details>
#
# <details><summary>3. Half of all requests are refused, and the model is busy for a fifth of the time. What do you look
# at first?</summary>
#
# At <code>max_queue_size</code>, and at the gaps between batches: with a queue policy the batcher may sleep up to half a
# second beside a full queue.
# </details>
#
# Now [do the lab]({lab}), or go on with {next}: requests that belong together.
#
# Both servers end with this notebook's kernel (*Kernel → Shut Down Kernel*).
