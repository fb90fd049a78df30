# %% [markdown]
# # {heading}
#
# Four exercises, about {minutes} minutes (an estimate), of which {core} are *Core*. You predict batches from arrivals, find a
# delay for a budget, form batches by what they cost, and correct the histogram of a load tester that waits for its answers. If
# you like C, you then teach Triton itself.
#
# You need the lecture. Run the first code cell before any other: it brings `check`, and what the exercises use. A
# `NameError` says that it has not been run.
#
# {navigation}

# %% tags=["nbval-ignore-output"]
import random
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import tritonclient.grpc as triton

from inflight import CourseError
from inflight.bench import workload
from inflight.checkpoint import fetch
from inflight.lessons.batchers import batch_run, custom_batching
from inflight.models import huggingface
from inflight.notebook import charts, check, parts, progress
from inflight.triton import Server, repository

workdir = tempfile.TemporaryDirectory()
folder, log_path = Path(workdir.name), Path(workdir.name) / "executions.jsonl"
repo = repository.assemble(
    folder / "repo",
    models=("batch-cost", "text-embedding"),
    batch_cost_fixed_ms=40,
    batch_cost_item_ms=4,
    execution_log_path=log_path,
    checkpoint_dir=huggingface.folder(fetch()),
    embedding_max_batch_size=32,
)
config_path = repo / "batch-cost" / "config.pbtxt"
as_it_was = config_path.read_text()
with progress.wait("The server starts"):
    server = Server(repo).start()


def trial(fragment, arrivals, callers=None, **values):
    """Edit a fresh config, load the model, warm it up, and send requests."""
    config_path.write_text(as_it_was)
    repository.edit(repo, "batch-cost", fragment, **values)
    server.load("batch-cost")
    batch_run.run(server, "batch-cost", batch_run.at([0.0]), log_path)
    return batch_run.run(server, "batch-cost", arrivals, log_path, callers)


# %% [markdown]
# ## Exercise 6.1: predict the batches
#
# *Core · importance 5/5 · difficulty 4/5 · 25 minutes*
#
# One instance, and this rule. Requests arrive at `arrivals_ms` (sorted). A batch leaves when the
# model is free **and** either the batch is full (`max_batch_size`) or its oldest request has waited for `delay_ms`. It takes all
# that wait at that moment, at most `max_batch_size`, and keeps the model busy for `fixed_ms + item_ms · size`. A request
# that arrives at the very moment at which a batch leaves may be in it or not: the check has no such case.
#
# Write the function that gives the sizes of the batches, in order. Here a batch stays open until it leaves. Triton may
# close it when its delay is over, although the model is still busy: then its batches are smaller than yours. The last load
# below counts how often.


# %%
def batch_sizes(
    arrivals_ms: list[float],
    delay_ms: float,
    max_batch_size: int,
    fixed_ms: float,
    item_ms: float,
) -> list[int] | None:
    """Sizes of the batches, in the order in which they leave."""
    # BEGIN SOLUTION
    # LAB: return None
    waiting, free_ms, sizes = list(arrivals_ms), 0.0, []
    while waiting:
        leaves_ms = waiting[0] + delay_ms
        if len(waiting) >= max_batch_size:
            leaves_ms = min(leaves_ms, waiting[max_batch_size - 1])
        leaves_ms = max(leaves_ms, free_ms)
        size = min(max_batch_size, sum(arrival <= leaves_ms for arrival in waiting))
        sizes.append(size)
        waiting = waiting[size:]
        free_ms = leaves_ms + fixed_ms + item_ms * size
    return sizes
    # END SOLUTION


# %%
check("6.1", batch_sizes)

# %% [markdown]
# <details><summary>Where to look</summary>The lecture's <code>by_hand</code>: there a batch leaves as soon as the model is free
# and somebody is there. Here it may have to wait, although the model is free.</details>
#
# <details><summary>How to begin</summary>Ask three things of each batch: when has its oldest request waited long enough,
# when is it full, when is the model free? Which must it wait for?</details>
#
# <details><summary>The error you see</summary>It names arrivals, delay and limit of a case, and what your function said:
# play that case with pencil and paper. <code>IndexError</code>: fewer wait than a full batch needs.</details>
#
# Does Triton agree? In the second load delays end while the model is busy. The last load comes eight
# times: its first request takes 200 ms, the delay of the second is over at 170 ms, the third comes at 230 ms, and the model
# is free at 260 ms.

# %% tags=["nbval-ignore-output"]
for number, apart_ms, delay_ms in (12, 17, 0), (24, 10, 45), (12, 17, 60):
    arrivals_ms = [apart_ms * nth for nth in range(number)]
    arrivals = batch_run.at([arrival / 1000 for arrival in arrivals_ms])
    delay = f"max_queue_delay_microseconds: {1000 * delay_ms}"
    seen = trial(f"dynamic_batching {{ {delay} }}", arrivals).executions["size"]
    yours = batch_sizes(arrivals_ms, delay_ms, 8, 40, 4)
    print(f"delay {delay_ms:2} ms: yours {yours}, Triton's {seen.tolist()}")

three = batch_run.at([0, 0.110, 0.230])
three[0] = replace(three[0], work=40)
runs = [batch_run.run(server, "batch-cost", three, log_path) for _ in range(8)]
alone = sum(len(run.executions) == 3 for run in runs)
print(f"three requests: yours {batch_sizes([0, 110, 230], 60, 8, 196, 4)},", end=" ")
print("all that wait when the model becomes free.")
print(f"In {alone} of 8 runs Triton closed the batch when its delay was over,", end=" ")
print("and the third went alone.")

# %% [markdown]
# ## Exercise 6.2: a delay for a budget
#
# *Core · importance 4/5 · difficulty 2/5 · 10 minutes*
#
# Another model shares the machine with `batch-cost`, so yours has to leave it time. Thirty requests a second come at random,
# in an open loop: without a delay it is busy more than 80 % of the time. Choose `max_queue_delay_microseconds` so that
#
# - the model is busy at most 54 % of the time,
# - and 95 of 100 answers come within 150 ms (P95).
#
# The check plays it by the rule of 6.1 (`max_batch_size` 8, 40 ms a batch, 4 ms a request) on random arrivals.

# %%
# BEGIN SOLUTION
# LAB: delay_us = None
delay_us = 75_000
# END SOLUTION

# %%
check("6.2", delay_us)

# %% [markdown]
# <details><summary>Where to look</summary>The open loop in the lecture's table of delays: what became larger, and what
# slower?</details>
#
# <details><summary>How to begin</summary>With <em>n</em> requests a batch it is busy 30 · (40 / <em>n</em> + 4) ms of each
# second. In a delay of <em>d</em> seconds 30 <em>d</em> requests join the one that waits, on
# average. That one waits <em>d</em>, then 40 ms, and 4 ms for each request of the batch. So both ends can be estimated; since
# some batches are larger, stay well between them.</details>
#
# <details><summary>The error you see</summary>Busy too long: wait longer. P95 over its budget: wait less. Far off:
# the field is in microseconds, of which 1,000 are a millisecond.</details>
#
# Two hundred such requests, by your `batch_sizes` and on the server, where a millisecond on the way moves some to another
# batch:

# %% tags=["nbval-ignore-output"]
arrivals_s = workload.poisson(200, rate=30, seed=2)
field = "dynamic_batching.max_queue_delay_microseconds"
chosen_us = int(float(delay_us or 0))
run = trial("", batch_run.at(arrivals_s), **{field: chosen_us})
arrivals_ms = [1000 * arrival for arrival in arrivals_s]
yours = batch_sizes(arrivals_ms, chosen_us / 1000, 8, 40, 4) or []
print(f"Batches of 200 requests: yours {len(yours)}, Triton's {len(run.executions)};")
print(f"P95 on the server {run.requests['latency_ms'].quantile(0.95):.0f} ms.")

# %% [markdown]
# ## Exercise 6.3: who leaves with the oldest?
#
# *Core · importance 5/5 · difficulty 3/5 · 35 minutes*
#
# A tensor of several texts is as wide as its longest text: the others are padded. So a batch of one long text and seven short
# ones costs as much as eight long ones. What has to stay within a limit is its **padded volume**, the number of texts times the
# longest of them.
#
# `waiting` has the lengths in tokens of the texts that wait, at most 32, in the order in which they came. Write `take`,
# which gives the places of those that leave together (0 is the first), in any order:
#
# - their padded volume is at most `limit`; a single text may always leave, however long it is;
# - place 0 is always among them, or nobody may ever serve it.
#
# Text Embeddings Inference takes them in the order of arrival, until one does not fit. You may choose. The check sends 5,000
# texts of 8 to 512 tokens, most of them short, and one of 1,536, with a limit of 1,024. A batch costs 200 tokens and its padded
# volume. Yours may cost at most 0.68 of what batches in the order of arrival cost.

# %% tags=["part:batching.py"]
# %%writefile {workdir.name}/batching.py
"""Which of the waiting texts are computed together, as their padded volume allows."""


def take(waiting: list[int], limit: int) -> list[int] | None:
    """Places in `waiting` of the texts that leave together."""
    # BEGIN SOLUTION
    # LAB: return None
    # The nearest in length first: they are padded least, and pad the others least.
    by_likeness = sorted(
        range(1, len(waiting)), key=lambda place: abs(waiting[place] - waiting[0])
    )
    taken, longest = [0], waiting[0]
    for place in by_likeness:
        with_it = max(longest, waiting[place])
        if with_it * (len(taken) + 1) <= limit:
            taken.append(place)
            longest = with_it
    return taken
    # END SOLUTION


# %%
check("6.3", folder / "batching.py")

# %% [markdown]
# <details><summary>Where to look</summary><code>by_hand</code> takes from the front of the queue. Begin there: take the next
# one while <code>max(longest, length) * (number + 1) <= limit</code>. That is a valid answer, and costs too much.</details>
#
# <details><summary>How to begin</summary>Place 0 has to go. Write down the padding that two candidates would
# cause.</details>
#
# <details><summary>The error you see</summary>It names a queue, and what your function gave for it. <em>tokens, and … is the
# limit</em>: the newcomer may be the longest. <em>cost in tokens: …</em>: compare candidates by the volume that they
# waste: the padded volume less the sum of the lengths. A name that is not defined: the file stands alone, so import in it what it needs.</details>

# %% [markdown]
# Once it has passed, your file is kept. A gateway in front of the embedding uses it: each batch is one request. Sixty
# texts wait; eight go in the order of arrival, or as many as 256 tokens hold, or those that your file takes:


# %%
def embed(texts):
    array = np.array([[text] for text in texts], object)
    text_input = triton.InferInput("text_input", array.shape, "BYTES")
    text_input.set_data_from_numpy(array)
    connection.infer("text-embedding", [text_input])


def in_order(waiting, limit=256):
    """As many as fit, in the order of arrival."""
    fits = [n * max(waiting[:n]) <= limit for n in range(2, len(waiting) + 1)]
    return range([*fits, False].index(False) + 1)


def gateway(lengths, take):
    """Send all texts in batches; how many, their padded volume, and the seconds."""
    began, waiting, volumes = time.perf_counter(), list(lengths), []
    while waiting:
        places = set(take(waiting[:32]))
        batch = [waiting[place] for place in places]
        waiting = [each for place, each in enumerate(waiting) if place not in places]
        embed(["word " * length for length in batch])
        volumes.append(len(batch) * max(batch))
    return len(volumes), sum(volumes), time.perf_counter() - began


# %% tags=["nbval-ignore-output"]
connection = triton.InferenceServerClient(server.grpc_url)
part = parts.part("batching")
print(repr(part))
own, draw = parts.load("batching").take, random.Random(6)
lengths = [min(256, max(4, int(draw.lognormvariate(3, 1)))) for _ in range(60)]
ways = {
    "eight, in order": lambda waiting: range(min(8, len(waiting))),
    "256 tokens, in order": in_order,
    f"256 tokens, {'yours' if part.is_own else 'by the course'}": lambda waiting: own(
        waiting, 256
    ),
}
embed(["word"])  # the first prepares
rows = [(way, *gateway(lengths, take)) for way, take in ways.items()]
print("The texts have", sum(lengths), "tokens.")
charts.table(
    pd.DataFrame(rows, columns=["way", "batches", "padded volume", "seconds"]),
    decimals=1,
)

# %% [markdown]
# Eight in order are the fewest batches, far over the limit, and the slowest: time follows the padded volume.
#
# ## Exercise 6.4: what the tester left out
#
# *Further · importance 4/5 · difficulty 2/5 · 15 minutes*
#
# A load tester has one caller, and is to send a request every `every_ms`. If an answer takes longer, the next requests
# are late, and the tester does not count how late: coordinated omission. You have its histogram, how many requests had
# which latency. HdrHistogram corrects it
# ([`recordValueWithExpectedInterval`](https://hdrhistogram.github.io/HdrHistogram/JavaDoc/org/HdrHistogram/ValueRecorder.html)):
# it adds each request that was due meanwhile, as if all were answered together with the slow one; those that the tester
# sent late stay in. The last that it adds
# takes at least `every_ms`.
#
# Write the function that gives a percentile of the corrected histogram: the smallest latency that at least `percent` %
# of its requests do not exceed.


# %%
def corrected(counts: dict[int, int], every_ms: int, percent: int) -> int | None:
    """A percentile in ms, with what was left out; `counts` has requests by latency."""
    # BEGIN SOLUTION
    # LAB: return None
    everybody = Counter(counts)
    for latency_ms, number in counts.items():
        for left_out_ms in range(latency_ms - every_ms, every_ms - 1, -every_ms):
            everybody[left_out_ms] += number
    so_far = 0
    for latency_ms, number in sorted(everybody.items()):
        so_far += number
        if 100 * so_far >= percent * everybody.total():
            return latency_ms
    # END SOLUTION


# %%
check("6.4", corrected)

# %% [markdown]
# <details><summary>Where to look</summary>The lecture's picture of one slow request: how does the latency of the open loop
# fall, from one dot to the next?</details>
#
# <details><summary>How to begin</summary>Add to a copy of the histogram first. With 1,000 ms, one every 100, all that were
# due meanwhile would have been answered at the same moment. Then count requests, the shortest
# latency first.</details>
#
# <details><summary>The error you see</summary>It names the call, and what you gave. Each request in a count
# left out its own. The last one that you add takes at least <code>every_ms</code>.</details>
#
# A hundred requests, one every 100 ms, and the tenth takes a second. The tester with one caller sends them, and then the same
# schedule comes as an open loop:

# %% tags=["nbval-ignore-output"]
schedule = batch_run.at([0.1 * number for number in range(100)])
schedule[9] = replace(schedule[9], work=240)
told = trial("dynamic_batching { }", schedule, callers=1).requests
came = trial("dynamic_batching { }", schedule).requests
counts = Counter(told["latency_ms"].round().astype(int).tolist())
since_due = 1000 * (told["answered_s"] - told["at_s"])
tester_ms, users_ms = (load["latency_ms"].quantile(0.95) for load in (told, came))
print(f"P95: the tester says {tester_ms:.0f} ms, users see {users_ms:.0f} ms.")
if (said_ms := corrected(counts, 100, 95)) is not None:
    print(f"The correction says {said_ms:.0f} ms: it takes those who waited", end=" ")
    print("to be answered with the slow one. Eight were the next batch.")
print(f"Since due says {since_due.quantile(0.95):.0f} ms:", end=" ")
print("one caller sends them singly, so they are never batched.")

# %% [markdown]
# ## Bonus
#
# No check, but something to see. Triton asks a **batching library** of yours, in C, about each request that could join a
# batch. It needs a C compiler (`cc --version`). The rule below bounds the sum of the lengths, which is right for models
# without padding; the input `work` stands for the length. Make it your padded volume, with a limit of 24.
#
# <details><summary>What to see</summary>On paper 12 1, 3 2 2, 8 4 1, 6 6, 12 12. The batch remembers its longest instead of a
# sum.</details>

# %%
# %%writefile {workdir.name}/joins.h
# // BEGIN SOLUTION
# // LAB: #define LIMIT 12
# // LAB:
# // LAB: typedef struct {  // a batch that is being formed; it begins with zeros
# // LAB:   int64_t volume;
# // LAB:   int64_t num_requests;
# // LAB: } Batch;
# // LAB:
# // LAB: static bool joins(Batch* batch, int64_t length)
# // LAB: {
# // LAB:   if (batch->num_requests > 0 && batch->volume + length > LIMIT) return false;
# // LAB:   batch->volume += length;
# // LAB:   batch->num_requests++;
# // LAB:   return true;
# // LAB: }
# #define LIMIT 24
#
# typedef struct {  // a batch that is being formed; it begins with zeros
#   int64_t longest;
#   int64_t num_requests;
# } Batch;
#
# static bool joins(Batch* batch, int64_t length)
# {
#   int64_t longest = length > batch->longest ? length : batch->longest;
#   if (batch->num_requests > 0 && (batch->num_requests + 1) * longest > LIMIT) return false;
#   batch->longest = longest;
#   batch->num_requests++;
#   return true;
# }
# // END SOLUTION

# %% tags=["nbval-ignore-output"]
source = folder / "volume.c"
source.write_text((custom_batching.SOURCES / "volume.c").read_text())
lengths = [12, 1, 3, 2, 2, 8, 4, 1, 6, 6, 12, 12]
mixed = [batch_run.Arrival(0.001 * n, work=work) for n, work in enumerate(lengths)]
delay = "dynamic_batching { max_queue_delay_microseconds: 100000 }"
try:
    built = custom_batching.build(source, folder / f"volume-{time.time_ns()}.so")
    run = trial(delay, mixed, TRITON_BATCH_STRATEGY_PATH=built)
    of_request = run.requests.set_index("request")["work"]
    print([of_request[batch].tolist() for batch in run.executions["requests"]])
except CourseError as error:  # no C compiler, or what it says
    print(error)

# %% [markdown]
# ## Elsewhere
#
# Three questions of transfer, without running anything.
#
# **1.** `batch-cost` is replaced by a model on a GPU: a batch of one takes 4 ms, of eight 5 ms. Does your delay
# of 6.2 still hold?
#
# <details><summary>Answer</summary>The number does not, the reasoning does. At thirty a second the model is idle for nearly
# nine tenths of the time even without batches: there is hardly any load to save, so a delay only costs latency.</details>
#
# **2.** In front of the engine of lesson 04 stands a gateway that sends it prompts in batches by your `take`. What does it
# gain?
#
# <details><summary>Answer</summary>Nothing. The engine packs the tokens of all prompts into one row, without padding, and
# starts each prompt when there is room. Your gateway only holds prompts back.</details>
#
# **3.** A server bounds a batch's tokens and takes the texts in the order of arrival, but has no rule for a text that is
# longer than the bound. What do its clients see?
#
# <details><summary>Answer</summary>Nothing, ever: the text is put back, and all others wait behind it. That happened in <a
# href="https://github.com/huggingface/text-embeddings-inference/issues/723">Text Embeddings Inference</a>. Your rule that a
# single text may always leave is one way out. Text Embeddings Inference <a
# href="https://github.com/huggingface/text-embeddings-inference/pull/725">chose another</a>: such a setting is an error,
# unless texts may be truncated.</details>

# %% [markdown]
# ## Done?
#
# When every check says so, compare with {counterpart}, then go on to {next}. The server ends with this notebook's kernel.
