# %% [markdown]
# # {heading}
#
# {minutes} min. Afterwards you will be able to
#
# - **choose** who forms the batches of a model, and name the file, the field and the moment in which it is decided;
# - **tune** Triton's dynamic batcher to a latency budget, from a queue delay to a library of your own;
# - **account** for every request of an overload, and find a model that idles while requests wait.
#
# Everything is made here; the real model near the end needs the checkpoint of [lesson 00](00_start_here.ipynb).
#
# {navigation}

# %% [markdown]
# ## A hundred callers who know nothing of each other
#
# A classifier, an embedding, a tokenizer: a request comes, one forward pass, an answer, and nothing is remembered. Such a
# model is **stateless**. Say that a pass costs 40 ms, and 4 ms more for each request in it. One request at a time makes 23
# a second, eight at a time 111. Your callers send a hundred a second, one text each, and know nothing of each other.
#
# **{question}** All three can. A client may put several texts into one request, a
# [batch](00_start_here.ipynb#Batch) from the start. A model may gather requests itself, as the engine of lessons 04
# and 05 does. Between them sits Triton's **dynamic batcher**. It works where a model's `config.pbtxt` says so; without
# `--disable-auto-complete-config`, Triton may add it to an ONNX or TensorRT model by itself.

# %% [markdown]
# ## Predict
#
# One line is added to the config: `dynamic_batching { }`. Requests that wait together are then computed together, at most
# eight of them (`max_batch_size`). Twenty-four requests come, one every 10 ms. Commit yourself:

# %% tags=["setup"]
import tempfile
from pathlib import Path

import pandas as pd
from IPython.display import Markdown, display

from inflight.bench import workload
from inflight.lessons.batchers import batch_run
from inflight.lessons import batchers as lesson
from inflight.notebook import charts, progress, widgets
from inflight.triton import Server, repository

# %% tags=["parameters"]
prediction = None  # papermill may answer

# %% tags=["setup"]
guess = widgets.predict(
    "In how many batches will the 24 requests be computed?", given=prediction
)
guess

# %% [markdown]
# ## A model whose cost is known
#
# `batch-cost` sleeps instead of computing: its cost is exactly what its config says, and what remains to be seen is the
# batcher. A real model follows at the end.

# %% tags=["setup"]
from inflight.notebook import catch_up

catch_up("06", "A model whose cost is known")
workdir = tempfile.TemporaryDirectory()
log_path = Path(workdir.name) / "executions.jsonl"
repo = repository.assemble(
    Path(workdir.name) / "repo",
    models=("batch-cost",),
    batch_cost_fixed_ms=40,
    batch_cost_item_ms=4,
    execution_log_path=log_path,
)
config_path = repo / "batch-cost" / "config.pbtxt"
as_it_was = config_path.read_text()
server = Server(repo).start()
print("ready:", *repository.models(repo))

# %% [markdown]
# `trial` puts a fragment into the file **as it was at first**, so that no setting stays behind from one experiment to the
# next; has the server load the model; and sends requests on a time line.


# %% tags=["setup"]
def trial(fragment, arrivals, **parameters):
    """Edit a fresh config, have the server load the model, send, and wait."""
    config_path.write_text(as_it_was)
    repository.edit(repo, "batch-cost", fragment, **parameters)
    server.load("batch-cost")
    return batch_run.run(server, "batch-cost", arrivals, log_path)


def show(runs):
    """The picture of these runs, and the same in words."""
    charts.show(lesson.batches(runs), lesson.batches_summary(runs))
    display(Markdown(lesson.batches_summary(runs)))


# %% [markdown]
# ## See
#
# A dot is a request that arrives, grey is waiting, a box is a batch. The lane below is the model, with the batches' sizes.

# %% tags=["nbval-ignore-output"]
from inflight.notebook import catch_up

catch_up("06", "See")
every_10_ms = batch_run.at([0.010 * number for number in range(24)])
runs = {
    "no batcher": trial("", every_10_ms),
    "dynamic_batching { }": trial("dynamic_batching { }", every_10_ms),
    "and max_batch_size: 4": trial(
        "max_batch_size: 4 dynamic_batching { }", every_10_ms
    ),
}
batches = {name: len(run.executions) for name, run in runs.items()}
assert batches["no batcher"] == 24 > 2 * batches["dynamic_batching { }"]
show(runs)
print(guess.score(batches["dynamic_batching { }"]))

# %% [markdown]
# Of any server, `/metrics` tells the mean batch: `nv_inference_count`, items, over `nv_inference_exec_count`, batches. How
# many batches had which size stands in the model's statistics alone, `/v2/models/batch-cost/stats`.

# %%
from inflight.triton import telemetry


def counters():
    samples = telemetry.metrics(telemetry.page(server.metrics_url))
    ours = samples[samples["model"] == "batch-cost"].set_index("name")["value"]
    return ours["nv_inference_count"], ours["nv_inference_exec_count"]


before = telemetry.settled(counters)
run = trial("dynamic_batching { }", every_10_ms)
items, batches = (now - then for now, then in zip(telemetry.settled(counters), before))
sizes = run.statistics.batches  # executions by batch size
assert items == 24 and batches == sizes.sum() == len(run.executions)
print(
    f"{items:.0f} items; metrics, statistics and the model's log agree on the batches"
)

# %% [markdown]
# ## By hand
#
# The rule behind this picture fits into a few lines: take one request, and whoever else is there already; compute; come
# back. Nobody waits for a batch to fill.

# %% tags=["nbval-ignore-output"]
import threading
import time
from queue import SimpleQueue


def by_hand(requests, most):
    """Sizes of the batches when a request comes every 10 ms."""
    waiting, sizes = SimpleQueue(), []

    def model():
        while sum(sizes) < requests:
            batch = [waiting.get()]
            while len(batch) < most and not waiting.empty():
                batch.append(waiting.get())
            time.sleep(0.040 + 0.004 * len(batch))
            sizes.append(len(batch))

    computing = threading.Thread(target=model)
    computing.start()
    for number in range(requests):
        waiting.put(number)
        time.sleep(0.010)
    computing.join()
    return sizes


sizes = by_hand(24, most=8)
assert sum(sizes) == 24 and 1 < max(sizes) <= 8
print("by hand:", *sizes)

# %% [markdown]
# The first request finds the model idle and leaves alone. What comes meanwhile is the second batch, what comes during
# that one the third. So batches grow until they fit the traffic: at a rate *r*, a batch of *n* takes `fixed + item · n`,
# in which `r · (fixed + item · n)` come. Where both are equal, *n* stands still: at 100 · 0.040 / (1 − 100 · 0.004) = 6.7.
# With at most four, 4 / 56 ms = 71 a second can be served while a hundred come: the queue grows, as in the last panel.
# `max_batch_size` limits throughput as much as memory.

# %% [markdown]
# ## Wait for more? `max_queue_delay_microseconds`
#
# In light traffic a request mostly finds the model idle and leaves alone. You can have it wait a little for others. Does
# that make more answers a second, or later ones? The lines are worked out, the diamonds are Triton's, at thirty requests a
# second. Then move the rate: from where on does a delay change next to nothing?

# %% tags=["nbval-ignore-output"]
from inflight.lessons import batchers as lesson
from inflight.notebook import catch_up

catch_up("06", "Wait for more? `max_queue_delay_microseconds`")
light, rows = batch_run.at(workload.poisson(40, rate=30, seed=0)), []
for delay_ms in progress.over((0, 50, 100, 200), "Delay", "{} ms".format):
    delay = f"max_queue_delay_microseconds: {1000 * delay_ms}"
    run = trial(f"dynamic_batching {{ {delay} }}", light)
    computed_s = (run.executions["end_s"] - run.executions["start_s"]).sum()
    p50_ms, p95_ms = run.requests["latency_ms"].quantile([0.5, 0.95])
    busy = computed_s / run.requests["answered_s"].max()
    rows.append((delay_ms, p50_ms, p95_ms, run.statistics.mean_batch, busy))
sweep = pd.DataFrame(
    rows, columns=["delay_ms", "p50_ms", "p95_ms", "mean_batch", "busy"]
)
first, last = sweep.iloc[0], sweep.iloc[-1]
assert last.mean_batch > first.mean_batch
print(
    f"delay 0 → {last.delay_ms:.0f} ms: batches of {first.mean_batch:.1f} → "
    f"{last.mean_batch:.1f}, model busy {first.busy:.0%} → {last.busy:.0%}, "
    f"P50 {first.p50_ms:.0f} → {last.p50_ms:.0f} ms"
)
on_paper = lesson.delay(workload.poisson(40, rate=1, seed=0), 40, 4)
on_paper.measured(sweep, rate=30, max_batch_size=8)
on_paper

# %% [markdown]
# The answers a second stay the same. A delay buys idle time of the model, for more traffic or for other models beside it.
# It costs latency, so set it from the budget backwards. Under heavy traffic it does next to nothing: while the model is
# busy, the oldest request uses up its delay.

# %% [markdown]
# ## `preferred_batch_size`: when it helps, when it hurts
#
# A batch of a preferred size leaves at once, without waiting for the rest of the delay. Four requests trickle in; later,
# eight come in a bunch. Preferred: four. Which of the two groups gains?

# %% tags=["nbval-ignore-output"]
from inflight.notebook import catch_up

catch_up("06", "`preferred_batch_size`: when it helps, when it hurts")
groups = batch_run.at(
    [0.015 * number for number in range(4)]
    + [0.4 + 0.003 * number for number in range(8)]
)
delay = "max_queue_delay_microseconds: 150000"
delayed = trial(f"dynamic_batching {{ {delay} }}", groups)
preferred = trial(f"dynamic_batching {{ {delay} preferred_batch_size: [ 4 ] }}", groups)
assert len(preferred.executions) > len(delayed.executions)
show({"delay 150 ms": delayed, "and preferred size 4": preferred})

# %% [markdown]
# The trickle gains: its fourth request sets all four free. The end of the bunch pays: Triton cuts eight into preferred
# pieces, each with its own 40 ms. So leave it out. The exception: a TensorRT engine with several *optimization
# profiles*, each tuned for one batch size. Those sizes are the preferred ones.

# %% [markdown]
# ## More copies, and the order of answers
#
# `instance_group` says how many copies of the model work side by side; each holds its own weights. Then answers overtake
# each other: here every fourth request has thirty units of work, the others one. `preserve_ordering` holds an answer back
# until all before it have left. Who pays for that?

# %%
from inflight.notebook import catch_up

catch_up("06", "More copies, and the order of answers")
uneven = [
    batch_run.Arrival(0.010 * number, work=1 if number % 4 else 30)
    for number in range(12)
]
copies = "max_batch_size: 2 instance_group [ { count: 2 kind: KIND_CPU } ]"
one = trial("max_batch_size: 2 dynamic_batching { }", uneven)
two = trial(f"{copies} dynamic_batching {{ }}", uneven)
ordered = trial(f"{copies} dynamic_batching {{ preserve_ordering: true }}", uneven)
overtakes_s = {
    name: (run.requests["answered_s"].cummax() - run.requests["answered_s"]).max()
    for name, run in (("any order", two), ("in order", ordered))
}
assert overtakes_s["in order"] < overtakes_s["any order"]

# %% tags=["nbval-ignore-output"]
show({"one instance": one, "two instances": two, "and preserve_ordering": ordered})

# %% [markdown]
# Dotted is the time in which an answer is held back: those behind a slow one pay. A client that names its requests, as
# ours does, needs no order.

# %% [markdown]
# ## Who goes first? `priority_levels`
#
# Level 1 is served first; a request that names no level has the default one. Four urgent requests come when a crowd is
# already waiting:

# %%
from inflight.notebook import catch_up

catch_up("06", "Who goes first? `priority_levels`")
crowd = batch_run.at(
    [0.002 * number for number in range(18)]
    + [0.110 + 0.020 * number for number in range(12)]
)
everybody = [*crowd, *batch_run.at([0.060, 0.070, 0.080, 0.090], priority=1)]
two_levels = "priority_levels: 2 default_priority_level: 2"
runs = {
    "no levels": trial("max_batch_size: 4 dynamic_batching { }", everybody),
    "two levels": trial(
        f"max_batch_size: 4 dynamic_batching {{ {two_levels} }}", everybody
    ),
}
urgent = {name: run.requests.query("priority == 1") for name, run in runs.items()}
came_back = {name: rows["answer_order"].mean() for name, rows in urgent.items()}
assert came_back["two levels"] < came_back["no levels"]

# %% tags=["nbval-ignore-output"]
for name, run in runs.items():
    others_ms = run.requests.query("priority != 1")["latency_ms"].mean()
    urgent_ms = urgent[name]["latency_ms"].mean()
    print(f"{name}: urgent {urgent_ms:.0f} ms, others {others_ms:.0f} ms on average")
show(runs)

# %% [markdown]
# An urgent request waits for those under way, and then comes next. If urgent ones never stop coming, the others starve.

# %% [markdown]
# ## A queue that says no
#
# When more comes than can be served, a queue without a limit grows until every answer is too late. A **queue policy**
# says no early. `max_queue_size` refuses whom the queue has no place for. `default_timeout_microseconds` decides about
# those who waited too long: `REJECT`, or `DELAY` them behind all others. Twenty-four requests in 96 ms, then a few more.
# Which way loses the fewest?

# %%
from inflight.notebook import catch_up

catch_up("06", "A queue that says no")
rush = batch_run.at(
    [0.004 * number for number in range(24)]
    + [0.12 + 0.030 * number for number in range(4)]
)
after_60_ms = "default_timeout_microseconds: 60000 timeout_action:"
runs = {
    "max_queue_size: 6": "max_queue_size: 6",
    "60 ms, then REJECT": f"{after_60_ms} REJECT",
    "60 ms, then DELAY": f"{after_60_ms} DELAY",
}
for name, policy in runs.items():
    queue = f"default_queue_policy {{ {policy} }}"
    runs[name] = trial(f"dynamic_batching {{ {queue} }}", rush)
    messages = runs[name].requests["message"].unique()
    print(f"{name:20} {sorted(filter(None, messages)) or 'nobody is rejected'}")

# %% tags=["nbval-ignore-output"]
assert (runs["60 ms, then DELAY"].requests["outcome"] == "answered").all()
show(runs)

# %% [markdown]
# A full queue says no at once, a time-out when the batcher next looks at the queue. `DELAY` loses nobody, and the delayed
# ones wait longest. With `allow_timeout_override` a request may name a shorter time-out of its own;
# `priority_queue_policy` gives a level a policy of its own.

# %% [markdown]
# ## The model that idles while requests are refused
#
# Now an overload: two hundred a second for two seconds, where full batches answer 8 / 72 ms = 111. A queue of 16 is two
# full batches, so the model should never lack work. How many of the four hundred are answered?

# %%
from dataclasses import replace

from inflight.notebook import catch_up

catch_up("06", "The model that idles while requests are refused")
flood = batch_run.at([number / 200 for number in range(400)])
of_16 = "default_queue_policy { max_queue_size: 16 }"
timely = "default_queue_policy { default_timeout_microseconds: 150000 }"
overload = {
    "a queue of 16": trial(f"dynamic_batching {{ {of_16} }}", flood),
    "no limit": trial("dynamic_batching { }", flood),
    "150 ms at most": trial(f"dynamic_batching {{ {timely} }}", flood),
}
answered = {
    name: int((run.requests["outcome"] == "answered").sum())
    for name, run in overload.items()
}
assert answered["no limit"] == 400 and 2 * answered["a queue of 16"] < 400
print("With a queue of 16 fewer than half of all are answered.")

# %% tags=["nbval-ignore-output"]
run = overload["a queue of 16"]
began = run.executions["start_s"]
print(f"a queue of 16: {answered['a queue of 16']} of 400 answered")
print("from one batch's start to the next (ms):", *(1000 * began.diff()).round()[1:])
assert began.diff().max() > 0.4
first = replace(
    run,
    requests=run.requests.query("sent_s < 0.8"),
    executions=run.executions.query("start_s < 0.8"),
)
show({"a queue of 16, who came in the first 0.8 s": first})

# %% [markdown]
# Half a second from batch to batch, while sixteen wait and every newcomer is refused! Without a policy, Triton's batcher
# has the next batch ready while the model computes. With a policy or with levels it does not, as who is next may still
# change. So it sleeps, and two things wake it: a request that **enters the queue** while the model is free, or its alarm
# clock, after 500 ms. Into a full queue none enters: *a refused request wakes nobody*.
#
# If that is the cause, a few requests that do enter must cure it. Give them a level of their own, whose queue has room,
# and send one every 40 ms, without any work; count only the four hundred:

# %%
bells = batch_run.at([0.040 * number for number in range(50)], work=0, priority=1)
levels = "priority_levels: 2 default_priority_level: 2"
second = "priority_queue_policy { key: 2 value { max_queue_size: 16 } }"
silent = trial(f"dynamic_batching {{ {levels} {second} }}", flood)
belled = trial(f"dynamic_batching {{ {levels} {second} }}", [*flood, *bells])
for name, run in (("a queue of 16 at level 2", silent), ("and a bell", belled)):
    of_flood = run.requests[run.requests["priority"] != 1]
    answered[name] = int((of_flood["outcome"] == "answered").sum())
    overload[name] = run
assert answered["and a bell"] > answered["a queue of 16 at level 2"]
print("The same queue, the same four hundred; the bell wakes the batcher.")

# %% tags=["nbval-ignore-output"]
rows = {
    name: [
        (run.requests["message"][run.requests["priority"] != 1] == message).sum()
        for message in ("", batch_run.QUEUE_FULL, batch_run.TIMED_OUT)
    ]
    for name, run in overload.items()
}
counts = pd.DataFrame(rows, index=["answered", "queue full", "timed out"]).T
assert (counts.sum(axis=1) == 400).all()  # everybody is accounted for
words = "; ".join(
    f"{name}: {row['answered']} answered, {row['queue full']} found the queue full, "
    f"{row['timed out']} timed out"
    for name, row in counts.iterrows()
)
charts.show(lesson.queue_outcomes(counts), words)
display(Markdown(words))

# %% [markdown]
# Under overload a short queue does not only refuse the surplus: it turns the model off for most of the time. So refuse
# before Triton, in the gateway; or limit by time, since whoever is let in wakes the batcher; or have so many instances that
# the queue is never full. And refused requests are not in Triton's statistics: on a dashboard this server looks bored.

# %% [markdown]
# ## A batch by volume: a library of your own
#
# `max_batch_size` counts items. But one text has ten tokens and the next a thousand, and memory fills up with tokens. A
# **custom batching library** is a C file of five functions; Triton asks it of each request: may this one join? Ours adds
# up the units of work, up to `max_volume`. What does that do to the largest batch, and to the latency?

# %%
from inflight import CourseError
from inflight.notebook import catch_up
from inflight.triton import custom_batching

catch_up("06", "A batch by volume: a library of your own")
mixed = [
    batch_run.Arrival(0.010 * number, work=(1, 9, 2, 5, 1, 7)[number % 6])
    for number in range(18)
]
source, by_volume = custom_batching.SOURCES / "volume.c", {}
try:
    library = custom_batching.build(source, Path(workdir.name) / "volume.so")
    by_volume = {"TRITON_BATCH_STRATEGY_PATH": library, "max_volume": 12}
except CourseError as error:  # no C compiler here: both pictures will be the same
    print(error)
closed = f"dynamic_batching {{ preferred_batch_size: {list(range(1, 9))} }}"
counting = trial(closed, mixed)
adding_up = trial(closed, mixed, **by_volume)
assert adding_up.executions["work"].max() <= 12 or not by_volume

# %% tags=["nbval-ignore-output"]
show({"at most 8 requests": counting, "at most 12 units of work": adding_up})
for name, run in (("by number", counting), ("by volume", adding_up)):
    print(f"{name}: work of each batch", *run.executions["work"])

# %%
begin, end = "/* May this request join?", "/* The batch is on its way"
_, found, rest = source.read_text().partition(begin)
print(found + rest.partition(end)[0].rstrip())
assert "should_include = " in rest

# %% [markdown]
# This is the whole decision; the other four functions make and free what it keeps, and you write all five in the lab.
# Memory has a bound now, and that costs time: there are more batches.
#
# Why `closed`, which makes every size a preferred one? A batch that is ready while the model is busy may still grow, and
# the library then counts from zero again. A batch of a preferred size does not grow.

# %% [markdown]
# ## Turn the knob
#
# Run writes the file, has the server load the model, and sends; the run before stays above. Try:
#
# 1. "one every 10 ms", with a delay of 50000 µs, and without. Does the delay do anything?
# 2. "one every 60 ms", with the same delay, and without. And now?
# 3. Two instances with "uneven work", then `preserve_ordering`.

# %% tags=["nbval-ignore-output"]
from inflight.lessons import batchers as lesson
from inflight.notebook import catch_up

catch_up("06", "Turn the knob")
config_path.write_text(as_it_was)
board = lesson.board(server, log_path)
board.controls["dynamic_batching.max_queue_delay_microseconds"].value = "50000"
assert sum(board.run().sizes) == 24
board

# %% [markdown]
# At one every 10 ms only the first batch waits for company; the others wait for the model anyway. At 60 ms the delay ends
# before company comes: all wait in vain. Two instances work past a slow batch.

# %% [markdown]
# ## A real model
#
# `text-embedding` is the course's checkpoint as an embedding model: one forward pass turns every text of a batch into a
# vector. The benchmark measures what a batch costs, predicts the gain from that, and then measures it.

# %% tags=["nbval-ignore-output"]
from inflight.bench import dynamic_batching
from inflight.checkpoint import fetch
from inflight.models import huggingface
from inflight.notebook import catch_up, progress

catch_up("06", "A real model")
checkpoint_dir, folder = huggingface.folder(fetch()), Path(workdir.name) / "bench"
with progress.wait("A real model, with and without a batcher") as line:
    real = dynamic_batching.bench(checkpoint_dir, folder, 1, requests=48, progress=line)
cost, predicted = real["cost"], real["predicted"]["dynamic_over_none"]
gain = real["ratios"]["dynamic_over_none"]["median"]
words = (
    f"A batch costs {cost['fixed_ms']:.1f} ms, and {cost['item_ms']:.1f} ms more for "
    f"each text. Gain predicted from that: {predicted:.2f}; measured: {gain:.2f}."
)
assert [row["batcher"] for row in real["rows"]] == ["none", "dynamic"]
charts.show(lesson.batch_cost(**cost), words)
display(Markdown(words))

# %% [markdown]
# What batching gains is the fixed part, shared. A model whose cost is all per item gains nothing, whatever you set.

# %% [markdown]
# ## How to tune
#
# 1. Choose `max_batch_size`: the largest that fits into memory, and whose batch alone keeps to the latency budget.
# 2. Measure the model as it is, one request at a time and many.
# 3. Add `dynamic_batching { }` and measure again. Often you are done here.
# 4. Try more instances, then a delay, then preferred sizes: each only if it keeps to the budget.
# 5. Decide who says no to a flood, and measure with real traffic.
#
# For steps 2 and 3 Triton's **Performance Analyzer** keeps a given number of requests under way (on x86-64 only).

# %% tags=["nbval-ignore-output"]
from inflight import CourseError
from inflight.bench import dynamic_batching
from inflight.lessons.batchers import perf_analyzer
from inflight.checkpoint import fetch
from inflight.models import huggingface
from inflight.notebook import catch_up, progress

catch_up("06", "How to tune")
embedding = repository.assemble(
    Path(workdir.name) / "embedding",
    models=("text-embedding",),
    checkpoint_dir=huggingface.folder(fetch()),
)
texts, tables = perf_analyzer.text_data(list(dynamic_batching.TEXTS)), []
columns = ["batching", "concurrency", "throughput", "latency_ms_mean", "latency_ms_p99"]
try:
    perf_analyzer.find()
    with Server(embedding) as tuned:
        for fragment in progress.over(("", "dynamic_batching { }"), "perf_analyzer"):
            repository.edit(embedding, "text-embedding", fragment)
            tuned.load("text-embedding")
            table = perf_analyzer.sweep(
                tuned.grpc_url,
                "text-embedding",
                texts,
                concurrency=(1, 16),
                requests=48,
            )
            tables.append(table.assign(batching=fragment or "none"))
    measured = pd.concat(tables)[columns]
    under_way = measured["throughput"] * measured["latency_ms_mean"] / 1000
    assert (under_way / measured["concurrency"]).between(0.5, 1.5).all()
    measured = charts.table(measured)
except CourseError as error:  # it is not x86-64
    measured = Markdown(str(error))
measured

# %% [markdown]
# Step 4 is a search, and the **Model Analyzer** does it: it loads one configuration after the other, has the Performance
# Analyzer measure it, and ranks them. You run it in the lab; this is what it reported of this model, eight under way:

# %%
from inflight.bench import recorded

report = recorded.reported("model_analyzer_text-embedding")
columns = ["config", "batching", "instances", "throughput", "latency_ms_p99"]
charts.table(report[columns].fillna(""))

# %% [markdown]
# `default` is the model as its file says. A winner has to win twice: run it again.

# %% [markdown]
# ## Who decides? The table
#
# The word batch stands at many places of a repository. Which of them does what?
#
# | Knob | In which file | Who decides | When | On what |
# |---|---|---|---|---|
# | several items in one request | your client's code | the client | before it sends | what it has at hand |
# | `dynamic_batching` | `config.pbtxt` of a stateless model | Triton | when the model gets free, or a delay is over | number, age and priority of what waits |
# | a batching library | a parameter in the same file, and your C file | your library | whenever Triton could add a request | anything in the request |
# | `sequence_batching`: `direct`, `oldest` | `config.pbtxt` of a model with a memory | Triton | from START to END | the correlation id: lesson 07 |
# | `sequence_batching`: <code>iterative_<wbr>sequence</code> | `config.pbtxt`, and `model.py` says "again" | the model | after each step, such as a token | whether the answer is complete: lessons 07 and 08 |
# | `gpt_model_type` | <code>tensorrt_llm/<wbr>config.pbtxt</code>, a parameter | the engine | each iteration; with `V1` when a batch has ended | free slots |
# | <code>batch_<wbr>scheduler_policy</code> | <code>tensorrt_llm/<wbr>config.pbtxt</code>, a parameter | the engine | each iteration: who begins, who is paused | free KV cache blocks |
#
# The upper four hand the model a batch and get all of it back. With `iterative_sequence`, and in an engine, a batch changes
# while it runs: in-flight batching. So `dynamic_batching` in front of an LLM engine forms no batch that lasts; and a model
# whose answer is one forward pass has no flight to batch in.

# %% [markdown]
# ## On the lab GPU
#
# Files and fields are the same. The container's launcher cannot load a model again; a plain
# `tritonserver --model-control-mode=explicit --load-model=*` can. [Its page](../assets/lab-gpu/README.md) says how to get there.
#
# | Step | Here | With the container and a GPU |
# |---|---|---|
# | Instances | `instance_group [ { count: 2 kind: KIND_CPU } ]` | `kind: KIND_GPU`, and `gpus: [ 0 ]` |
# | Load one model again | `server.load("batch-cost")` | `curl -X POST localhost:8000/v2/repository/models/batch-cost/load` |
# | Batching library | <code>custom_batching.<wbr>build(…)</code> | `cc -shared -fPIC -o batchstrategy.so volume.c` |
# | Statistics | <code>telemetry.<wbr>statistics(…)</code> | `curl -s localhost:8000/v2/models/batch-cost/stats` |
# | Performance Analyzer | the one in the tritonclient wheel | `perf_analyzer` in `nvcr.io/nvidia/tritonserver:25.04-py3-sdk` |
# | Model Analyzer | <code>model_analyzer.<wbr>search(…)</code> | `model-analyzer profile` in the same container |

# %% [markdown]
# ## What breaks
#
# Triton refuses two of these; the third is no config:

# %%
from inflight import CourseError
from inflight.notebook import catch_up

catch_up("06", "What breaks")
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
        print(str(error).partition("\nLast lines of the log:")[0])
    config_path.write_text(as_it_was)

# %% [markdown]
# ## Recap
#
# - With `dynamic_batching { }` a batch is what came during the one before; the config has to say so.
# - `max_batch_size` bounds throughput; a delay buys idle time with latency; a preferred size may split a batch.
# - A full queue lets the model idle: a refused request does not wake the batcher.
# - A library of five functions batches by what you count.
# - The gain is the fixed cost of a batch, shared.
#
# Three questions to answer without running anything:
#
# <details><summary>1. A batch costs 10 ms, and 10 ms an item; one instance, batches of at most eight. What is the most
# that <code>dynamic_batching</code> can gain?</summary>
#
# Alone a request takes 20 ms: 50 a second. Eight take 90 ms: 89 a second, not even twice as many. The fixed part is
# small, so there is little to share.
# </details>
#
# <details><summary>2. Your P99 is 40 ms under heavy load, and 90 ms at night. Which field do you look at?</summary>
#
# <code>max_queue_delay_microseconds</code>. Under load the oldest request uses up its delay while the model is busy, or
# the batch is full; at night everybody waits for company that does not come.
# </details>
#
# <details><summary>3. Half of all requests are refused, and the model is busy for a fifth of the time. What do you look
# at first?</summary>
#
# At <code>max_queue_size</code>. A queue that stays full lets nobody in who would wake the batcher; it looks every half
# second.
# </details>
#
# Now [do the lab]({lab}), or go on with {next}: requests that belong together.
#
# ## What runs
#
# The server ends with the notebook's kernel.

# %% tags=["nbval-ignore-output"]
from inflight.notebook import session

session.running()
