# %% [markdown]
# # {heading}
#
# {minutes} min, an estimate. Afterwards you will be able to
#
# - **say** which requests share a batch, from when they come and what a batch costs;
# - **set** a queue delay from a latency budget;
# - **find** a model that idles while requests wait, and wake it.
#
# You need lesson 02: what a `config.pbtxt` is. Everything is made here. A line under `# your line:` is for you: delete
# it, write it yourself, and compare with what is folded below.
#
# {navigation}

# %% [markdown]
# ## {question}
#
# A classifier, an embedding, a tokenizer: a request comes, the model computes one forward pass, an answer goes out, and
# nothing is remembered. Such a model is **stateless**. Say that a pass costs 40 ms, and 4 ms more for each request in it.
# One request at a time makes 23 answers a second; eight at a time make 111. A hundred callers send you one request a
# second each, and know nothing of each other. Who puts their requests together?
#
# - **The client** can, if it has several texts at hand: it sends them in one request, a
#   [batch](00_start_here.ipynb#Batch) from the start. These callers cannot.
# - **The model** can gather requests itself, as the engine of lessons 04 and 05 does.
# - **Triton** sits between them. Its **dynamic batcher** works in front of any stateless model whose `config.pbtxt` says
#   so. (Without `--disable-auto-complete-config`, Triton may add it to an ONNX or TensorRT model by itself.)
#
# This lesson has three ideas: a batch is what came during the one before it; a delay trades latency for larger batches;
# and a full queue can put the model to sleep.

# %%
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
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
from inflight.notebook import charts, progress, widgets
from inflight.triton import Server, repository

# %% [markdown]
# ## Predict
#
# One line goes into the config: `dynamic_batching { }`. Then requests that wait together are computed together, at most
# eight of them (`max_batch_size`). Twenty-four requests come, one every 10 ms. Commit yourself:

# %% tags=["parameters"]
prediction = None  # papermill may answer

# %%
guess = widgets.predict(
    "In how many batches will the 24 requests be computed?",
    {
        "24: each is computed when it comes": 24,
        "3, of eight each": 3,
        "5 or so, of different sizes": 5,
        "1, of all of them": 1,
    },
    given=prediction,
)
guess

# %% [markdown]
# ## A model whose cost is known
#
# `batch-cost` sleeps instead of computing. A batch takes as long as its config says, give or take a few milliseconds, so
# whatever else you see is the batcher. A real model follows at the end.

# %%
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
with progress.wait("The server starts"):
    server = Server(repo).start()

# %% [markdown]
# `trial` is one experiment. It puts a fragment into the config **as it was at first**, so that nothing stays behind from
# the experiment before. The server loads the model. One request goes ahead, because the first execution after a load
# can take tens of milliseconds longer. Then the requests are sent, each at its time.


# %%
def trial(fragment, arrivals):
    """Edit a fresh config, load the model, warm it up, and send requests."""
    config_path.write_text(as_it_was)
    repository.edit(repo, "batch-cost", fragment)
    server.load("batch-cost")
    batch_run.run(server, "batch-cost", batch_run.at([0.0]), log_path)
    return batch_run.run(server, "batch-cost", arrivals, log_path)


def show(runs):
    """The picture of these runs, and the same in words."""
    charts.show(lesson.batches(runs), lesson.batches_summary(runs))
    print(lesson.batches_summary(runs))


# %% [markdown]
# ## See
#
# A dot is a request that arrives, grey is waiting, a box is a batch. The lane below is the model, with the size of each
# batch.

# %% tags=["nbval-ignore-output"]
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
# The first request finds the model idle and leaves alone: nobody waits for a batch to fill. **What comes while it is
# computed is the second batch, what comes during that one is the third.**
#
# On a server of your own there is no such picture. `/metrics` gives the mean batch size of any model:
# `nv_inference_count`, items, over `nv_inference_exec_count`, batches. How many batches had which size is in the model's
# statistics alone, at `/v2/models/batch-cost/stats`:

# %% tags=["nbval-ignore-output"]
by_triton = runs["dynamic_batching { }"].statistics.batches
print("Triton counts, batches by their size:", by_triton.to_dict())
sizes = runs["dynamic_batching { }"].executions["size"]
assert by_triton.to_dict() == sizes.value_counts().to_dict()

# %% [markdown]
# ## By hand
#
# The rule is a few lines: take one request, and all others that are there already; compute; come back. One line is
# yours.


# %% tags=["nbval-ignore-output"]
def by_hand(requests, most):
    """Sizes of the batches when a request comes every 10 ms."""
    waiting, sizes = SimpleQueue(), []

    def model():
        while sum(sizes) < requests:
            batch = [waiting.get()]  # waits for one
            # your line: while there is room in the batch, and somebody is waiting
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
# <details><summary>The line</summary>
#
# <code>while len(batch) < most and not waiting.empty():</code>
# </details>
#
# So batches grow until they fit the traffic. A batch of *n* takes 40 + 4 *n* ms, and at a hundred requests a second one
# comes every 10 ms. So (40 + 4 *n*) / 10 come during a batch of *n*. Where that is *n* again, the size no longer changes:

# %%
rate, fixed_s, item_s = 100, 0.040, 0.004
# your line: the n for which n = rate * (fixed_s + item_s * n)
steady = rate * fixed_s / (1 - rate * item_s)
most_of_4 = 4 / (fixed_s + 4 * item_s)
print(f"The batches come to {steady:.1f} requests.")
print(f"With at most 4 in a batch, {most_of_4:.0f} a second are served, and 100 come.")

# %% [markdown]
# <details><summary>The line</summary>
#
# <code>steady = rate * fixed_s / (1 - rate * item_s)</code>
# </details>
#
# With at most four the queue grows for as long as requests come, as in the last panel: `max_batch_size` limits throughput
# as much as memory.
#
# ## Wait for more: `max_queue_delay_microseconds`
#
# In light traffic a request mostly finds the model idle and leaves alone. You can have it wait a little for others: a batch
# leaves when it is full, or when its oldest request has waited for the delay. Thirty requests a second come at random
# times. What gets better with a delay, and what gets worse?

# %% tags=["nbval-ignore-output"]
light, rows = batch_run.at(workload.poisson(36, rate=30, seed=0)), []
for delay_ms in progress.over((0, 50, 100, 200), "Delay", "{} ms".format):
    delay = f"max_queue_delay_microseconds: {1000 * delay_ms}"
    run = trial(f"dynamic_batching {{ {delay} }}", light)
    computed_s = (run.executions["end_s"] - run.executions["start_s"]).sum()
    # your line: the share of the time until the last answer in which the model computed
    busy = computed_s / run.requests["answered_s"].max()
    latency_ms = run.requests["latency_ms"]
    size = run.executions["size"].mean()
    rows.append((delay_ms, size, 100 * busy, latency_ms.median(), latency_ms.max()))
columns = ["delay (ms)", "requests a batch", "busy (%)", "median (ms)", "slowest (ms)"]
sweep = pd.DataFrame(rows, columns=columns)
assert sweep["requests a batch"].iloc[-1] > sweep["requests a batch"].iloc[0]
charts.table(sweep)

# %% [markdown]
# <details><summary>The line</summary>
#
# <code>busy = computed_s / run.requests["answered_s"].max()</code>
# </details>
#
# The answers a second are as many as the requests, with or without a delay. **A delay does not buy answers: it buys idle
# time of the model, and pays with latency.** That is worth it if other models share the machine, or if more traffic is to come. Set it from
# your latency budget backwards.
#
# And in heavier traffic? `on_paper` plays the rule event by event, for four hundred random arrivals at each rate. From which
# rate on does a delay change next to nothing?

# %%
moments, rows = workload.poisson(400, rate=1, seed=0), []
for per_s in (10, 30, 100):
    for delay_ms in range(0, 201, 20):
        arrivals_ms = [1000 * moment / per_s for moment in moments]
        played = lesson.on_paper(
            arrivals_ms, delay_ms, max_batch_size=8, fixed_ms=40, item_ms=4
        )
        rows.append((per_s, delay_ms, "requests in a batch", played.mean_batch))
        rows.append((per_s, delay_ms, "P95 of latency (ms)", played.p95_ms))
columns = ["requests a second", "delay (ms)", "figure", "value"]
paper = pd.DataFrame(rows, columns=columns)

# %%
figure = px.line(
    paper,
    x="delay (ms)",
    y="value",
    facet_row="figure",
    color="requests a second",
    line_dash="requests a second",
)
figure.for_each_annotation(lambda note: note.update(text=note.text[7:]))
figure.update_yaxes(matches=None, rangemode="tozero", title="")
figure.update_layout(height=480, meta={"device": ""})
means = paper[paper["figure"] == "requests in a batch"]
means = means.set_index(["requests a second", "delay (ms)"])["value"]
summary = "Requests in a batch on paper, without a delay and with 200 ms: " + "; ".join(
    f"{means[rate, 0]:.1f} and {means[rate, 200]:.1f} at {rate} a second"
    for rate in (10, 30, 100)
)
charts.show(figure, f"{summary}.")
print(f"{summary}.")

# %% [markdown]
# In heavy traffic the delay does little: while the model is busy with one batch, the oldest request of the next one uses
# up its delay anyway.
#
# ## The model that sleeps
#
# Now an overload: two hundred requests a second, for two seconds, where full batches answer 111 a second. Without a
# limit the queue grows until every answer comes too late. So you let it hold at most 16 requests, and Triton refuses the
# rest at once. Sixteen are two full batches, so the model should never lack work. How many are answered?

# %%
answers = widgets.predict(
    "Of the 400 requests, how many are answered?",
    {
        "nearly all": 380,
        "about 240: full batches for two seconds, and the queue at the end": 240,
        "about 100": 100,
        "16, as many as the queue holds": 16,
    },
)
answers

# %% tags=["nbval-ignore-output"]
flood = batch_run.at([number / 200 for number in range(400)])
of_16 = "default_queue_policy { max_queue_size: 16 }"
full = trial(f"dynamic_batching {{ {of_16} }}", flood)
num_answered = (full.requests["outcome"] == "answered").sum()
assert num_answered < 200
print(answers.score(num_answered))
first = replace(
    full,
    requests=full.requests.query("sent_s < 1.2"),
    executions=full.executions.query("start_s < 1.2"),
)
show({"a queue of 16, the first 1.2 s": first})

# %% [markdown]
# Look at the lane of the model: there are gaps between its boxes, while requests wait (grey) and others are refused (crosses).
# How long is it from the start of one batch to the start of the next?

# %% tags=["nbval-ignore-output"]
began_ms = 1000 * full.executions["start_s"]
print("from start to start (ms):", *began_ms.diff()[1:].round().astype(int))
assert began_ms.diff().max() > 400

# %% [markdown]
# A batch of eight takes 72 ms, but often the next one begins half a second later. Without a queue policy, Triton's batcher
# has the next batch ready while the model computes. With one it does not, since requests may still leave the queue. When
# the model is free again, the batcher is asleep, and two things wake it: a request that **enters the queue**, or its alarm
# clock, after 500 ms. Nothing enters a full queue. *A refused request wakes nobody.*
#
# If that is the cause, a few requests that do enter must cure it. We give them a priority level of their own, whose queue
# has room, and send one every 40 ms without any work in it: a bell. Only the 400 are counted.

# %% tags=["nbval-ignore-output"]
levels = "priority_levels: 2 default_priority_level: 2"
second = "priority_queue_policy { key: 2 value { max_queue_size: 16 } }"
timely = "default_queue_policy { default_timeout_microseconds: 150000 }"
bells = batch_run.at([0.040 * number for number in range(60)], work=0, priority=1)
outcomes = {"a queue of 16": full}
ways = [
    ("the same, at level 2", f"{levels} {second}", flood),
    ("and a bell at level 1", f"{levels} {second}", [*flood, *bells]),
    ("150 ms at most", timely, flood),
    ("no limit", "", flood),
]
for name, batcher, arrivals in progress.over(
    ways, "Four more runs", lambda way: way[0]
):
    outcomes[name] = trial(f"dynamic_batching {{ {batcher} }}", arrivals)

# %% tags=["nbval-ignore-output"]
rows = []
for name, run in outcomes.items():
    of_flood = run.requests[run.requests["priority"] != 1]
    reasons = of_flood["message"].replace(
        {"": "answered", batch_run.QUEUE_FULL: "full", batch_run.TIMED_OUT: "timed out"}
    )
    rows += [(name, reason, count) for reason, count in reasons.value_counts().items()]
counts = pd.DataFrame(rows, columns=["queue", "outcome", "requests"])
assert (counts.groupby("queue")["requests"].sum() == 400).all()
answered = counts[counts["outcome"] == "answered"].set_index("queue")["requests"]
assert answered["and a bell at level 1"] > answered["the same, at level 2"]
figure = px.bar(
    counts,
    x="requests",
    y="queue",
    color="outcome",
    pattern_shape="outcome",
    category_orders={"outcome": ["answered", "full", "timed out"]},
)
figure.update_layout(yaxis_title="").update_yaxes(autorange="reversed")
summary = ", ".join(f"{name}: {number}" for name, number in answered.items())
charts.show(figure, f"Of 400 requests each, answered were with {summary}.")
print(f"Answered of 400, with {summary}.")

# %% [markdown]
# The bell proves it: the same queue, the same requests, and the model is awake. Under overload a short queue does not only
# refuse the surplus, it also turns the model off again and again. So refuse requests before Triton, in the gateway; or
# limit their waiting time, since each request that enters wakes the batcher; or have so many instances that the queue is
# never full. And do not look for it on a dashboard: refused requests are not in Triton's statistics, and the server looks
# bored.
#
# ## Everything else
#
# These knobs are for special cases. You can try all but the last in the dashboard below.
#
# | Field | What it does | When |
# |---|---|---|
# | [`preferred_batch_size`](https://github.com/triton-inference-server/server/blob/main/docs/user_guide/batcher.md#preferred-batch-sizes) | A batch of this size leaves at once, even if more requests would have come before the end of the delay. | TensorRT engines with profiles for certain sizes. |
# | [`instance_group`](https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_configuration.md#instance-groups) | So many copies of the model work side by side, each with its own weights. Answers may overtake each other. | The model does not fill the device. |
# | [`preserve_ordering`](https://github.com/triton-inference-server/server/blob/main/docs/user_guide/batcher.md#preserve-ordering) | Holds an answer back until all before it have left. Everybody behind a slow one waits. | Clients that cannot tell answers apart; better name your requests. |
# | [`priority_levels`](https://github.com/triton-inference-server/server/blob/main/docs/user_guide/batcher.md#priority-levels) | Level 1 is served first, though not before what is under way. If urgent requests keep coming, the others starve. | Few urgent requests among many. |
# | [queue policy](https://github.com/triton-inference-server/server/blob/main/docs/user_guide/batcher.md#queue-policy) | `max_queue_size` refuses at once. After `default_timeout_microseconds`, `REJECT` refuses and `DELAY` puts a request behind all others. | Late answers are worthless. |
# | [batching library](https://github.com/triton-inference-server/server/blob/main/docs/user_guide/batcher.md#custom-batching) | Five C functions of your own decide which requests share a batch. | A batch is limited by tokens, not by requests: the lab. |
#
# ## Turn the knob
#
# *Run* writes the file, has the server load the model, and sends; the run before stays above, on the same scale. Try:
#
# 1. "one every 10 ms" with a delay of 50000 µs, then without. Does the delay do anything?
# 2. "one every 60 ms" with the same delay, then without. And now?
# 3. Two instances with "uneven work", then `preserve_ordering`: dotted is the time for which an answer is held back.

# %% tags=["nbval-ignore-output"]
config_path.write_text(as_it_was)
board = lesson.board(server, log_path)
board.controls["dynamic_batching.max_queue_delay_microseconds"].value = "50000"
assert sum(board.run().sizes) == 24
board

# %% [markdown]
# At one every 10 ms only the first batch waits for company; the others wait for the model anyway. At one every 60 ms the
# delay ends before company comes, and all wait in vain.
#
# ## A real model
#
# `text-embedding` is the course's checkpoint as an embedding model: one forward pass turns every text of a batch into a
# vector. What does a batch of it cost?

# %%
embedding = repository.assemble(
    Path(workdir.name) / "embedding",
    models=("text-embedding",),
    checkpoint_dir=huggingface.folder(fetch()),
)
with progress.wait("A second server starts, with the embedding"):
    second_server = Server(embedding).start()
connection = triton.InferenceServerClient(second_server.grpc_url)


def embed(*texts):
    """Vectors of these texts, sent as one request."""
    array = np.array([[text] for text in texts], object)
    text_input = triton.InferInput("text_input", array.shape, "BYTES")
    text_input.set_data_from_numpy(array)
    return connection.infer("text-embedding", [text_input]).as_numpy("embedding")


text = "how tall is the eiffel tower"
print("Two texts give an array of shape", embed(text, text).shape)

# %% tags=["nbval-ignore-output"]
rows = []
embed(*[text] * 8)  # a warm-up
for _ in progress.over(range(5), "Batches of 1, 2, 4, 8 texts, in turns"):
    for size in (1, 2, 4, 8):
        started = time.perf_counter()
        embed(*[text] * size)
        rows.append((size, 1000 * (time.perf_counter() - started)))
cost = pd.DataFrame(rows, columns=["texts", "ms"]).groupby("texts")["ms"].median()
# your line: how many times as fast eight texts are in one batch as in eight of one
at_most = 8 * cost[1] / cost[8]
print("ms of a batch, by its texts:", cost.round().astype(int).to_dict())
print(f"Batching can make this model at most {at_most:.1f} times as fast.")

# %% [markdown]
# <details><summary>The line</summary>
#
# <code>at_most = 8 * cost[1] / cost[8]</code>
# </details>
#
# What batching gains is the fixed part of the cost, shared. Now 24 texts come from 16 callers, one in each request. Both ways
# take turns, three times:

# %% tags=["nbval-ignore-output"]
rows, ways = [], ["no batcher", "dynamic"]
turns = [*ways, *reversed(ways), *ways]
for turn, way in progress.over(list(enumerate(turns)), "24 texts"):
    second_server.load("text-embedding", dynamic_batching=way == "dynamic")
    with ThreadPoolExecutor(16) as callers:
        list(callers.map(embed, [text] * 4))  # a warm-up
        started = time.perf_counter()
        list(callers.map(embed, [text] * 24))
        rows.append((turn // 2, way, 24 / (time.perf_counter() - started)))

# %% tags=["nbval-ignore-output"]
table = pd.DataFrame(rows, columns=["round", "way", "texts"])
per_s = table.pivot(index="round", columns="way", values="texts")
gain = per_s["dynamic"] / per_s["no batcher"]
ratio = gain.agg(["median", "min", "max"]).round(2)
print(f"{per_s['no batcher'].mean():.0f} texts/s without a batcher,", end=" ")
print(f"{per_s['dynamic'].mean():.0f} with: {ratio['median']:.1f} times as many.")
print(ratio.to_frame("dynamic_over_none").to_json())  # for programs

# %% [markdown]
# Not every batch is full, so expect less than the most that is possible. A model whose cost is all per item gains nothing,
# whatever you set.
#
# ## How to tune
#
# 1. Choose `max_batch_size`: the largest that fits into memory, and whose batch alone keeps to the latency budget.
# 2. Measure the model as it is, with one request at a time and with many.
# 3. Add `dynamic_batching { }` and measure again. Often you are done here.
# 4. Try more instances, then a delay: keep each only if it keeps to the budget.
# 5. Decide who refuses requests in a flood, and measure with real traffic.
#
# Triton's **Performance Analyzer** measures (steps 2 and 3), its **Model Analyzer** searches (step 4). You run both in the
# lab.
#
# ## Who decides?
#
# The word *batch* is in many places of a repository:
#
# | Knob | In which file | Who decides | When | On what |
# |---|---|---|---|---|
# | several items in one request | your client's code | the client | before it sends | what it has at hand |
# | `dynamic_batching` | `config.pbtxt` of a stateless model | Triton | when the model gets free, or a delay is over | number, age and priority of what waits |
# | a batching library | a parameter in the same file, and your C file | your library | whenever Triton could add a request | anything in the request |
# | `sequence_batching`: `direct`, `oldest` | `config.pbtxt` of a model with a memory | Triton | from START to END | the correlation id: lesson 07 |
# | `sequence_batching`: <code>iterative_<wbr>sequence</code> | `config.pbtxt`, and `model.py` says "again" | the model | after each step, such as a token | whether the answer is complete: lessons 07 and 08 |
# | `gpt_model_type` | <code>tensorrt_llm/<wbr>config.pbtxt</code>, a parameter | the engine | each iteration; with `V1` when a batch has ended | free slots |
# | <code>batch_<wbr>scheduler_policy</code> | the same | the engine | each iteration: which request starts, which is paused | free KV cache blocks |
#
# The upper four hand the model a batch and get all of it back. With `iterative_sequence`, and in an engine that batches in
# flight, a batch changes while it runs. So `dynamic_batching` in front of an LLM engine forms no batch that lasts. And a model that answers
# in one pass has no second iteration that a request could join.
#
# ## Elsewhere
#
# | Triton | Ray Serve | TensorFlow Serving | vLLM |
# |---|---|---|---|
# | `max_batch_size` | <code>@serve.batch(<wbr>max_batch_size=…)</code> | `max_batch_size` | the engine batches in flight: `--max-num-seqs` |
# | <code>max_queue_delay_<wbr>microseconds</code> | <code>batch_wait_<wbr>timeout_s</code> | <code>batch_timeout_<wbr>micros</code> | none |
# | `max_queue_size` | <code>max_queued_<wbr>requests</code> | <code>max_enqueued_<wbr>batches</code> | none |
#
# With a container and a GPU, files and fields are the same; `instance_group` has `kind: KIND_GPU`.
# [The page for a lab GPU](../assets/lab-gpu/README.md) says how to get there.
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
        print(str(error).partition("\nLast lines of the log:")[0])
    config_path.write_text(as_it_was)

# %% [markdown]
# ## Recap
#
# - With `dynamic_batching { }` a batch is what came during the one before it. The config has to say so.
# - `max_batch_size` limits throughput. A delay buys idle time with latency, and does little in heavy traffic.
# - A full queue lets the model idle: a refused request does not wake the batcher.
# - The gain is the fixed cost of a batch, shared.
# - In front of an engine that batches in flight, the dynamic batcher has nothing to do.
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
# <details><summary>2. Your slowest answers take 40 ms under heavy load, and 90 ms at night. Which field do you look
# at?</summary>
#
# <code>max_queue_delay_microseconds</code>. Under load the oldest request uses up its delay while the model is busy, or
# the batch is full; at night everybody waits for company that does not come.
# </details>
#
# <details><summary>3. Half of all requests are refused, and the model is busy for a fifth of the time. What do you look
# at first?</summary>
#
# At <code>max_queue_size</code>. Nothing enters a queue that stays full, so nothing wakes the batcher; it looks every half
# second.
# </details>
#
# Now [do the lab]({lab}), or go on with {next}: requests that belong together.
#
# Both servers end with this notebook's kernel (*Kernel → Shut Down Kernel*). Until then the dashboard above goes on
# working.
