# %% [markdown]
# # {heading}
#
# {minutes} min. Afterwards you will be able to
#
# - **choose** who forms the batches of a model, and name the file, the field and the moment in which it is decided;
# - **tune** Triton's dynamic batcher to a latency budget, from a queue delay to a library of your own;
# - **account** for every request at a queue that is too short, by its message.
#
# Models, repository and server are made here. The real model near the end needs the checkpoint of
# [lesson 00](00_start_here.ipynb), and the Model Analyzer is installed at its first use (340 MB).
#
# {navigation}

# %% [markdown]
# ## A hundred callers who know nothing of each other
#
# Not every model is an LLM with an engine that batches by itself. A classifier, an embedding, a tokenizer: a request
# comes, one forward pass, an answer. Say that a pass costs 40 ms, and 4 ms more for each request in it. One request at
# a time makes 23 a second, eight at a time 111. Your callers send a hundred a second, one text each, and none of them
# knows of the others.
#
# **{question}** All three can. A client may put several texts into one request, a
# [batch](00_start_here.ipynb#Batch) from the start. A model may gather requests itself, as the engine of lessons 04 and 05
# does. Between them sits Triton, which has two **batchers**, a dynamic one and one for sequences. Here it uses one only
# if a model's `config.pbtxt` says so, as with every Python model: the course starts it with
# `--disable-auto-complete-config`. Without that, Triton may complete the config of an ONNX or TensorRT model with
# `dynamic_batching` by itself; what it made of a config stands at `/v2/models/NAME/config`.

# %% [markdown]
# ## Predict
#
# One line is added to the config: `dynamic_batching { }`. It says that requests which wait together are computed
# together, at most eight of them (`max_batch_size`). Twenty-four requests come, one every 10 ms. Commit yourself:

# %% tags=["nbval-ignore-output"]
from inflight.notebook import progress, widgets

guess = widgets.predict("In how many batches will the 24 requests be computed?")
guess

# %% [markdown]
# ## A model whose cost is known
#
# `batch-cost` sleeps instead of computing. That sounds like cheating, and is a microscope: its cost is exactly what
# its config says, and what remains to be seen is the batcher. A real model follows at the end.

# %% tags=["nbval-ignore-output"]
import tempfile
from pathlib import Path

from inflight.bench import batch_run
from inflight.triton import Server, repository

workdir = tempfile.TemporaryDirectory()
log_path = Path(workdir.name) / "executions.jsonl"
repo = repository.assemble(
    Path(workdir.name) / "repo",
    models=("batch-cost", "running-sum"),
    batch_cost_fixed_ms=40,
    batch_cost_item_ms=4,
    execution_log_path=log_path,
)
server = Server(repo).start()
print("ready:", *repository.models(repo))

# %% [markdown]
# `repository.edit` takes a fragment of a `config.pbtxt`, puts it into the protobuf, and shows what changed.
# `batch_run.run` sends requests on a time line and tells what became of each. Both together are all that this
# lesson needs:


# %% tags=["nbval-ignore-output"]
def trial(fragment, arrivals):
    """Edit the config, have the server load the model again, send, and wait."""
    diff = repository.edit(repo, "batch-cost", fragment)
    server.load("batch-cost")
    return diff, batch_run.run(server, "batch-cost", arrivals, log_path)


every_10_ms = batch_run.at([0.010 * number for number in range(24)])
_, alone = trial("", every_10_ms)
diff, together = trial("dynamic_batching { }", every_10_ms)
_, four = trial("max_batch_size: 4", every_10_ms)
print(diff)

# %% [markdown]
# ## See
#
# A dot is a request that arrives, grey is waiting, a box is a batch. The lane below shows the model: what it does when,
# and how many are in it.

# %% tags=["nbval-ignore-output"]
from IPython.display import Markdown, display

from inflight.notebook import charts


def show(runs):
    summary = charts.batches_summary(runs)
    charts.show(charts.batches(runs), summary)
    display(Markdown(summary))


show(
    {
        "no batcher": alone,
        "dynamic_batching { }": together,
        "and max_batch_size: 4": four,
    }
)

# %% tags=["nbval-ignore-output"]
faster = alone.requests["answered_s"].max() / together.requests["answered_s"].max()
print(
    f"{len(together.executions)} batches. {guess.score(len(together.executions))} "
    f"The last answer came {faster:.1f} times sooner."
)

# %% [markdown]
# ## Explain: a batch is what came during the one before
#
# Triton does not wait for a batch to fill. The first request finds the model idle and leaves alone. What comes
# meanwhile is the second batch, what comes during that one is the third. So batches grow until they fit the traffic: at
# a rate *r*, a batch of *n* takes `fixed + item · n`, and in that time `r · (fixed + item · n)` requests come. Where
# both are equal, *n* stands still:

# %% tags=["nbval-ignore-output"]
fixed_s, item_s, rate = 0.040, 0.004, 100
sizes = [1.0]
while len(sizes) < 5:
    sizes.append(rate * (fixed_s + item_s * sizes[-1]))
print(
    "on paper:",
    *(f"{size:.1f}" for size in sizes),
    f"… {rate * fixed_s / (1 - rate * item_s):.1f}",
)
print("observed:", *together.executions["size"])
print(
    f"at most 4: {4 / (fixed_s + 4 * item_s):.0f} a second can be served, "
    f"{rate} come: the queue grows"
)

# %% [markdown]
# The last panel is that: `max_batch_size` is a limit on throughput as much as on memory. The batcher regulates itself,
# as long as the largest batch allowed keeps up.
#
# ## Wait for more? `max_queue_delay_microseconds`
#
# When traffic is light, a request mostly finds the model idle and leaves alone. You can have it wait a little for
# others. What do you expect: does a delay make more answers a second, or later ones? Play it on paper: move the delay,
# then the arrivals a second, and look for the rate from which a delay changes next to nothing.

# %% tags=["nbval-ignore-output"]
from inflight.bench import workload
from inflight.notebook import explorables

once_a_second = workload.poisson(40, rate=1, seed=0)
on_paper = explorables.delay(once_a_second, fixed_ms=40, item_ms=4)
on_paper

# %% [markdown]
# Now Triton: the same requests, thirty a second at random times. The diamonds in the picture above are these runs.

# %% tags=["nbval-ignore-output"]
import pandas as pd

light = batch_run.at(workload.poisson(40, rate=30, seed=0))
rows = []
for delay_ms in progress.over((0, 25, 50, 100, 200), "Delay", "{} ms".format):
    delay = f"max_queue_delay_microseconds: {1000 * delay_ms}"
    _, run = trial(f"max_batch_size: 8 dynamic_batching {{ {delay} }}", light)
    computed_s = (run.executions["end_s"] - run.executions["start_s"]).sum()
    rows.append(
        (
            delay_ms,
            *run.requests["latency_ms"].quantile([0.5, 0.95]),
            run.statistics.mean_batch,
            computed_s / run.requests["answered_s"].max(),
        )
    )
sweep = pd.DataFrame(
    rows, columns=["delay_ms", "p50_ms", "p95_ms", "mean_batch", "busy"]
)
on_paper.measured(sweep, rate=30, max_batch_size=8)

# %% tags=["nbval-ignore-output"]
budget_ms = 200
within = sweep[sweep["p95_ms"] <= budget_ms]["delay_ms"]
fits = f"{within.max()} ms" if len(within) else "none"
first, last = sweep.iloc[0], sweep.iloc[-1]
summary = (
    "Latency and the model's load against the queue delay. "
    f"From 0 to {last.delay_ms:.0f} ms of delay P50 goes "
    f"from {first.p50_ms:.0f} to {last.p50_ms:.0f} ms, and the model is busy "
    f"{100 * last.busy:.0f} instead of {100 * first.busy:.0f} % of the time, "
    f"in batches of {last.mean_batch:.1f} instead of {first.mean_batch:.1f}. "
    f"The longest delay here that keeps P95 within {budget_ms} ms: {fits}."
)
charts.show(charts.delay_sweep(sweep, budget_ms), summary)
display(Markdown(summary))

# %% [markdown]
# The same requests come in the same time, so the answers a second are the same. What a delay buys is idle time of the
# model: room for more traffic, or for other models beside it. What it costs is latency, so set it from the budget
# backwards. Under heavy traffic it does next to nothing: while the model is busy, the oldest request uses up its delay,
# or the batch fills.
#
# ## `preferred_batch_size`: when it helps, when it hurts
#
# Some models are quick at certain sizes only. A batch of a preferred size leaves at once, without waiting for the rest
# of the delay. Four requests trickle in; later, eight come in a bunch. Preferred: four. Which of the two groups gains?

# %% tags=["nbval-ignore-output"]
groups = batch_run.at(
    [0.015 * number for number in range(4)]
    + [0.4 + 0.003 * number for number in range(8)]
)
delay = "max_queue_delay_microseconds: 150000"
_, delayed = trial(f"dynamic_batching {{ {delay} }}", groups)
_, preferred = trial(
    f"dynamic_batching {{ {delay} preferred_batch_size: [ 4 ] }}", groups
)
show({"delay 150 ms": delayed, "and preferred size 4": preferred})

# %% tags=["nbval-ignore-output"]
wait_ms = {
    name: run.requests["queue_ms"].iloc[:4].mean()
    for name, run in (("without", delayed), ("with", preferred))
}
last_ms = {
    name: run.requests["latency_ms"].iloc[-1]
    for name, run in (("without", delayed), ("with", preferred))
}
print(
    f"The trickle waited {wait_ms['without']:.0f} ms on average, "
    f"and {wait_ms['with']:.0f} ms with a preferred size."
)
print(
    f"The last of the bunch had its answer after {last_ms['without']:.0f} ms, "
    f"and {last_ms['with']:.0f} ms with it."
)

# %% [markdown]
# The trickle gains: its fourth request sets all four free. The end of the bunch pays: eight would fit into one batch,
# but Triton cuts them into preferred pieces, each with its own 40 ms. Leave the field out unless you have measured that
# a size is worth it. The exception are models of TensorRT: an engine may have several *optimization profiles*, each
# tuned for one batch size, and then those sizes are the preferred ones.
#
# ## More copies, and the order of answers
#
# `instance_group` says how many copies of the model work side by side. Each holds its own weights, so count the memory.
# Then answers overtake each other: here every fourth request has thirty units of work, the others one.
# `preserve_ordering` holds an answer back until all before it have left. Who pays for that?

# %% tags=["nbval-ignore-output"]
uneven = [
    batch_run.Arrival(0.010 * number, work=1 if number % 4 else 30)
    for number in range(12)
]
_, one = trial("max_batch_size: 2 dynamic_batching { }", uneven)
_, two = trial("instance_group [ { count: 2 kind: KIND_CPU } ]", uneven)
_, ordered = trial("dynamic_batching { preserve_ordering: true }", uneven)
show({"one instance": one, "two instances": two, "and preserve_ordering": ordered})
for name, run in (("two instances", two), ("and preserve_ordering", ordered)):
    print(
        f"{name:22} answered in the order",
        *run.requests.sort_values("answer_order")["request"],
    )

# %% [markdown]
# Dotted is the time in which an answer is ready and held back: those behind a slow one pay. A client that
# names its requests, as ours does, needs no order.
#
# A fragment replaces only what it names: the two instances stay until we take one away.
#
# ## Who goes first? `priority_levels`
#
# Level 1 is served first. A request that names no level has the default one. Four urgent requests come when a crowd
# is already waiting:

# %% tags=["nbval-ignore-output"]
crowd = batch_run.at(
    [0.002 * number for number in range(18)]
    + [0.110 + 0.020 * number for number in range(6)]
)
urgent = batch_run.at([0.060, 0.070, 0.080, 0.090], priority=1)
_, equal = trial("max_batch_size: 4 dynamic_batching { }", [*crowd, *urgent])
_, levels = trial(
    "dynamic_batching { priority_levels: 2 default_priority_level: 2 }",
    [*crowd, *urgent],
)
show({"no levels": equal, "two levels": levels})

# %% tags=["nbval-ignore-output"]
for name, run in (("no levels", equal), ("two levels", levels)):
    latency_ms = run.requests.groupby(run.requests["priority"] == 1)[
        "latency_ms"
    ].mean()
    print(
        f"{name:10} urgent: {latency_ms[True]:.0f} ms on average, the others: "
        f"{latency_ms[False]:.0f} ms"
    )

# %% [markdown]
# Nobody is thrown out of a batch that has left, so an urgent request waits for the ones under way, and then comes next.
# The others pay, and if urgent ones never stop coming, the others starve.
#
# ## A queue that says no
#
# When more comes than can be served, a queue without a limit grows until every answer is too late. A **queue policy**
# says no early. `max_queue_size` refuses whom the queue has no place for; `default_timeout_microseconds` decides about
# those who waited too long: `REJECT`, or `DELAY` them behind all others. Twenty-four requests in 96 ms, then a few
# more. Which way loses the fewest?

# %% tags=["nbval-ignore-output"]
rush = batch_run.at(
    [0.004 * number for number in range(24)]
    + [0.12 + 0.030 * number for number in range(4)]
)
policies = {
    "max_queue_size: 6": "max_queue_size: 6",
    "60 ms, then REJECT": "default_timeout_microseconds: 60000 timeout_action: REJECT",
    "60 ms, then DELAY": "default_timeout_microseconds: 60000 timeout_action: DELAY",
}
runs = {
    name: trial(f"dynamic_batching {{ default_queue_policy {{ {policy} }} }}", rush)[1]
    for name, policy in policies.items()
}
show(runs)

# %% tags=["nbval-ignore-output"]
for name, run in runs.items():
    rejected = run.requests[run.requests["outcome"] == "rejected"][
        "message"
    ].value_counts()
    told = (
        "; ".join(f"{count} times {message!r}" for message, count in rejected.items())
        or "nobody rejected"
    )
    print(
        f"{name:20} {told}; P99 of the answered: "
        f"{run.requests['latency_ms'].quantile(0.99):.0f} ms"
    )

# %% [markdown]
# The full queue says no at once, which costs a client no time. A time-out says it when the batcher next looks at the
# queue. `DELAY` loses nobody, and the delayed ones wait longest.
#
# Two refinements. With `allow_timeout_override` a request may name a time-out of its own, but only a shorter one. And
# `priority_queue_policy` gives a level a policy of its own. Half of the requests allow 30 ms; then half have level 2,
# whose queue holds two. Who is rejected?

# %% tags=["nbval-ignore-output"]
impatient = [
    batch_run.Arrival(one.at_s, timeout_us=30_000 * (number % 2))
    for number, one in enumerate(rush)
]
_, override = trial(
    "dynamic_batching { default_queue_policy { default_timeout_microseconds: 400000 "
    "allow_timeout_override: true } }",
    impatient,
)
two_levels = [
    batch_run.Arrival(one.at_s, priority=1 + number % 2)
    for number, one in enumerate(rush)
]
_, short = trial(
    "dynamic_batching { priority_levels: 2 default_priority_level: 2 "
    "priority_queue_policy { key: 2 value { max_queue_size: 2 } } }",
    two_levels,
)
for run, by in ((override, "timeout_us"), (short, "priority")):
    print(pd.crosstab(run.requests[by], run.requests["outcome"]), "\n")

# %% [markdown]
# First, some of those who allow 30 ms, and nobody else; then, some of level 2, and nobody else. Without a
# `default_timeout_microseconds` to shorten, a request's own time-out is ignored.
#
# Is every request accounted for? Two instances with full batches answer 2 · 8 / 72 ms = 222 a second. A thousand come
# within one, at a queue of 32:

# %% tags=["nbval-ignore-output"]
flood = batch_run.at(workload.poisson(1000, rate=1000, seed=0))
rows = {}
for name, policy in {
    "a queue of 32": "max_queue_size: 32",
    "and 100 ms at most": "max_queue_size: 32 default_timeout_microseconds: 100000",
}.items():
    _, run = trial(
        f"max_batch_size: 8 dynamic_batching {{ default_queue_policy {{ {policy} }} }}",
        flood,
    )
    rows[name] = [
        (run.requests["message"] == message).sum()
        for message in ("", batch_run.QUEUE_FULL, batch_run.TIMED_OUT)
    ]
counts = pd.DataFrame.from_dict(
    rows, orient="index", columns=["answered", "queue full", "timed out"]
)
summary = (
    "; ".join(
        f"{name}: {row['answered']} answered + {row['queue full']} refused + "
        f"{row['timed out']} timed out = {row.sum()}"
        for name, row in counts.iterrows()
    )
    + f". Sent: {len(flood)}."
)
charts.show(charts.queue_outcomes(counts), summary)
display(Markdown(summary))

# %% [markdown]
# There is no other outcome, as long as the model does not fail and no client cancels. Triton's statistics count a
# time-out as failed, and do not count a request that found the queue full: only the client knows of it.
#
# ## A batch by volume: a library of your own
#
# `max_batch_size` and `preferred_batch_size` count items, the first dimension of the inputs (`max_queue_size` counts
# requests). But one text has ten tokens and the next a thousand, and memory fills up with tokens. A **custom batching
# library** is a C file of five functions; Triton asks it of each request: may this one join? Ours adds up the units of
# work, up to `max_volume`. One call compiles it, one puts its path into the config.
#
# Most batches will hold fewer requests. What does that do to the largest batch, and to the latency?

# %% tags=["nbval-ignore-output"]
from inflight import CourseError
from inflight.triton import custom_batching

mixed = [
    batch_run.Arrival(0.010 * number, work=(1, 9, 2, 5, 1, 7)[number % 6])
    for number in range(18)
]
closed = f"dynamic_batching {{ preferred_batch_size: {list(range(1, 9))} }}"
_, by_number = trial(
    f"instance_group [ {{ count: 1 kind: KIND_CPU }} ] {closed}", mixed
)
try:
    library = custom_batching.build(
        custom_batching.SOURCES / "volume.c", Path(workdir.name) / "volume.so"
    )
    custom_batching.install(library, server, "batch-cost", "parameter")
    limit = "at most 12 units of work"
except (
    CourseError
) as error:  # this machine has no C compiler: the next picture shows the same twice
    limit = "no library"
    print(error)
repository.edit(repo, "batch-cost", max_volume=12)
_, by_volume = trial("", mixed)

# %% tags=["nbval-ignore-output"]
show({"at most 8 requests": by_number, limit: by_volume})
for name, run in (("at most 8 requests", by_number), (limit, by_volume)):
    print(f"{name:24} work of each batch:", *run.executions["work"])

# %% tags=["nbval-ignore-output"]
source = (custom_batching.SOURCES / "volume.c").read_text()
print(
    source[
        source.index("/* May this request join?") : source.index(
            "/* The batch is on its way"
        )
    ].strip()
)

# %% [markdown]
# With the library no batch holds more than 12 units, so memory has a bound. There are more batches, each with its own
# 40 ms: the limit protects memory and costs time.
#
# The function above is the whole decision, in C. That `closed` makes every size a preferred one has a reason: else
# Triton goes on filling a batch that is ready while the model is busy, and asks the library about the newcomers with an
# empty count.
#
# The parameter `TRITON_BATCH_STRATEGY_PATH` names the library. Without it Triton looks for `batchstrategy.so` in the
# folders of the version, of the model and of the backend, in this order.
#
# ## Requests that belong together: the sequence batcher
#
# So far any request could be computed with any other, anywhere. A model with a memory is different: all requests of a
# conversation have to come to the instance that remembers it, in order. `sequence_batching` sees to that. A client
# gives its requests a **correlation id**, and marks the first and the last of them. `running-sum` adds up what each
# sequence sends and keeps its texts: a chat's memory, in small.
#
# Two strategies decide who sits where. With **direct**, a batch leaves when `minimum_slot_utilization` of its places
# have a request (here three of four), or after `max_queue_delay_microseconds`. Three sequences speak in four rounds,
# not all in each. Does one that was silent come back to its place?

# %% tags=["nbval-ignore-output"]
from inflight.bench import Step, sequences

rounds = (
    (1, 2, 3),
    (2, 3),
    (3, 1),
    (1, 2, 3),
)  # who speaks when; in the last round all say goodbye


def talk():
    """Send round after round; a row a request."""
    return pd.concat(
        sequences.send(
            server,
            [
                Step(who, 10**who, f"round {number}", number == 0, number == 3)
                for who in speakers
            ],
        )
        for number, speakers in enumerate(rounds)
    )


server.load(
    "running-sum",
    **{
        "sequence_batching.direct.max_queue_delay_microseconds": 50_000,
        "sequence_batching.direct.minimum_slot_utilization": 0.75,
    },
)
talks = {"direct": talk()}
rows = talks["direct"].sort_values("sequence", kind="stable")
charts.table(
    rows[["sequence", "controls", "place", "sum", "memory"]].replace(
        "\n", ", ", regex=True
    )
)

# %% [markdown]
# `controls` is what Triton adds to each request as inputs, if the config asks for them: START and END, READY (somebody
# has really come for this place), CORRID (who).
#
# The other strategy, **oldest**, makes batches of what has come. Who keeps a place now?

# %% tags=["nbval-ignore-output"]
server.load(
    "running-sum",
    **{
        "sequence_batching.oldest.max_candidate_sequences": 4,
        "sequence_batching.oldest.max_queue_delay_microseconds": 50_000,
    },
)
talks["oldest"] = talk()
kept = {
    name: (rows.groupby("sequence")["place"].nunique() == 1).sum()
    for name, rows in talks.items()
}
summary = (
    f"Which sequence sat at which place of which batch. With direct {kept['direct']} "
    f"of 3 sequences kept one place, with oldest {kept['oldest']}."
)
charts.show(charts.sequence_places(talks), summary)
display(Markdown(summary))

# %% [markdown]
# Direct: a sequence has its place until it ends, and the place stays empty when it is silent: right for a model that
# keeps a state by place. Oldest: a request takes the next place of the batch, and at most `max_candidate_sequences`
# sequences have begun at a time: right for a model that keeps its states by id. A chat that sends its whole history
# each time needs neither; a speech recogniser needs one.
#
# What if a client forgets START, or END? Two places, given up after one silent second:

# %% tags=["nbval-ignore-output"]
import time

server.load(
    "running-sum",
    max_batch_size=2,
    **{"sequence_batching.max_sequence_idle_microseconds": 1_000_000},
)
print(sequences.send(server, [Step(7, value=1)])["message"].item())
sequences.send(
    server, [Step(1, start=True), Step(2, start=True)]
)  # both will never say END
sent = time.monotonic()
third = sequences.send(server, [Step(3, start=True, end=True)])["outcome"].item()
print(f"the third is {third}, after {time.monotonic() - sent:.1f} s")
print(sequences.send(server, [Step(1, value=1)])["message"].item())

# %% [markdown]
# A forgotten START is refused. A forgotten END holds its place until it has been silent for
# `max_sequence_idle_microseconds`, while others wait at the door; then the sequence is gone. Here the model keeps its
# state itself. Triton can keep it too, as **implicit state**:
# `state [ { input_name: "SUM_IN" output_name: "SUM_OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]`. The backend has to hand
# it back, and the Python backend of this version does not: the model is given the first state each time, and nobody
# says so.
#
# ## Turn the knob
#
# Every field of the dynamic batcher but `priority_queue_policy`, and the picture of this lesson. Apply writes the file
# and has the server load the model; Run sends, and keeps the run before above. Try:
#
# 1. "one every 10 ms", with a delay of 50000 µs as below, and without. Does the delay do anything?
# 2. "one every 60 ms", with the same delay, and without. And now?
# 3. Two instances with "uneven work", then `preserve_ordering`.

# %% tags=["nbval-ignore-output"]
from inflight.triton import batchers

custom_batching.uninstall(server, "batch-cost", "parameter")
repository.edit(
    repo, "batch-cost", "dynamic_batching { max_queue_delay_microseconds: 50000 }"
)
names = [path for path in batchers.FIELDS if not path.startswith("sequence_batching")]
widgets.ConfigEditor(repo, "batch-cost", server, names)

# %% tags=["nbval-ignore-output"]
from inflight.notebook import boards

board = boards.batchers(server, log_path)
board.run()
board

# %% tags=["nbval-ignore-output"]
charts.show(
    *board.frame
)  # what the dashboard shows last, for those who read this page without a kernel

# %% [markdown]
# What came of the three:
#
# 1. Only the first batch waits for company; the later ones have waited for the model anyway.
# 2. Company comes 60 ms later, the delay ends after 50: everybody waits for nobody.
# 3. Two instances work past a slow batch; with `preserve_ordering` the answers behind it are held back.
#
# ## A real model
#
# Enough of the microscope. `text-embedding` is the course's own checkpoint as an embedding model: one forward pass
# turns every text of a batch into a vector. Reading the weights is the fixed part of its cost. The benchmark measures
# the cost of a batch first, size by size, predicts the gain from it, and then measures the gain.

# %% tags=["nbval-ignore-output"]
from inflight.bench import dynamic_batching
from inflight.checkpoint import fetch
from inflight.models import huggingface

checkpoint_dir = huggingface.folder(fetch())
with progress.wait("A real model, with and without a batcher") as line:
    real = dynamic_batching.bench(
        checkpoint_dir, Path(workdir.name) / "bench", 1, requests=48, progress=line
    )
cost, predicted = real["cost"], real["predicted"]["dynamic_over_none"]
gain = real["ratios"]["dynamic_over_none"]["median"]
summary = (
    f"A batch of texts costs {cost['fixed_ms']:.1f} ms, "
    f"and {cost['item_ms']:.1f} ms more for each text in it. "
    f"Gain predicted from that: {predicted:.2f} times the texts a second; "
    f"measured: {gain:.2f} times."
)
charts.show(charts.batch_cost(**cost), summary)
display(Markdown(summary))

# %% tags=["nbval-ignore-output"]
charts.table(pd.DataFrame(real["rows"]))

# %% [markdown]
# What batching gains is the fixed part, shared. A model whose cost is all per item gains nothing, whatever you set; one
# with large weights and short texts gains most. `inflight bench batchers` runs the same with more rounds.
#
# ## How to tune
#
# The order that wastes least of your time:
#
# 1. Decide on `max_batch_size`: the largest that fits into memory and whose batch alone keeps to the latency budget.
# 2. Measure the model as it is, one request at a time and many: the floor of the latency, the first throughput.
# 3. Add `dynamic_batching { }` and measure again. For many models you are done here.
# 4. Try more instances, then a queue delay, then preferred sizes: each only if it keeps to the latency budget.
# 5. Add a queue policy, so that a flood is refused and not merely slow, and measure with real traffic.
#
# For steps 2 and 3, Triton's own **Performance Analyzer** keeps a given number of requests under way. The wheel that
# brings it has it for x86-64 only; elsewhere you see a sentence in place of the table.

# %% tags=["nbval-ignore-output"]
from inflight.bench import perf_analyzer

server.stop()
repo = repository.assemble(
    Path(workdir.name) / "embedding",
    models=("text-embedding",),
    checkpoint_dir=checkpoint_dir,
)
server = Server(repo).start()
texts = perf_analyzer.text_data(list(dynamic_batching.TEXTS))
columns = [
    "batching",
    "concurrency",
    "throughput",
    "latency_ms_mean",
    "latency_ms_p99",
    "queue_ms",
    "compute_ms",
]
tables = []
try:
    perf_analyzer.find()
except CourseError as error:  # it is not x86-64
    measured = Markdown(str(error))
else:
    for fragment in progress.over(("", "dynamic_batching { }"), "perf_analyzer"):
        repository.edit(repo, "text-embedding", fragment)
        server.load("text-embedding")
        table = perf_analyzer.sweep(
            server.grpc_url, "text-embedding", texts, concurrency=(1, 16), requests=48
        )
        tables.append(table.assign(batching=fragment or "none"))
    measured = charts.table(pd.concat(tables)[columns])
measured

# %% tags=["nbval-ignore-output"]
for none, dynamic in zip(*(table.itertuples() for table in tables)):
    print(
        f"{none.concurrency:2} under way: {none.throughput:.0f} texts a second "
        f"without a batcher, {dynamic.throughput:.0f} with one"
    )

# %% [markdown]
# Check such a table by Little's law: under way = throughput × mean latency.
#
# One at a time, there is nothing to batch. With many under way more is done, so the queue is shorter, and the latency
# too: here batching costs nobody anything.
#
# Step 4 is a search, and there is a program for it: the **Model Analyzer** loads one configuration after the other into
# the running server, has the Performance Analyzer measure it, and ranks what it found. The next cell installs it at its
# first use (340 MB). Instructors do so beforehand, in the course's environment:
#
# ```bash
# python3 -c 'from inflight import model_analyzer; model_analyzer.prepare()'
# ```

# %% tags=["nbval-ignore-output"]
from inflight.bench import model_analyzer

try:
    with progress.wait("Model Analyzer searches") as line:
        found = model_analyzer.search(
            server,
            "text-embedding",
            texts,
            concurrency=(8,),
            instance_counts=(2,),
            max_queue_delays_us=(0, 5000),
            requests=30,
            progress=line,
        )
    report = charts.table(
        found.table[["config", "batching", "instances", "throughput", "latency_ms_p99"]]
    )
    print("best:", found.best)
except CourseError as error:  # it is installed at its first use, which needs a network
    report = Markdown(str(error))
report

# %% [markdown]
# `default` is the model as its file says. Read such a table with care: differences of a few percent are the machine's
# mood, and a winner has to win twice. Its own report, an HTML page, is in `found.summary`.
#
# ## Who decides? The table
#
# The word batch stands at many places of a repository. The question that people ask most is which of them does what:
#
# | Knob | In which file | Who decides | When | On what |
# |---|---|---|---|---|
# | several items in one request | your client's code | the client | before it sends | what it has at hand |
# | `dynamic_batching` | `config.pbtxt` of a model without memory | Triton | when the model gets free, or a delay is over | number, age and priority of what waits |
# | `TRITON_BATCH_STRATEGY_PATH` | a parameter in the same file, and your C file | your library | whenever Triton could add a request | anything in the request |
# | `sequence_batching`: `direct`, `oldest` | `config.pbtxt` of a model with a memory | Triton | from START to END | the correlation id |
# | `sequence_batching`: `iterative_sequence` | `config.pbtxt`, and `model.py` says "again" | the model | after each step, such as a token | whether the answer is complete |
# | `gpt_model_type` | `tensorrt_llm/config.pbtxt`, a parameter | the engine | each iteration; with `V1` when a batch has ended | free slots |
# | `batch_scheduler_policy` | `tensorrt_llm/config.pbtxt`, a parameter | the engine | each iteration: who sits down, and with `max_utilization` who is paused | free KV cache blocks: for the whole answer, or for the next iteration |
#
# The upper four hand the model a batch and get all of it back, and so does an engine with `V1`. With
# `iterative_sequence`, and in any other engine, a batch changes while it runs: that is in-flight batching. So
# `dynamic_batching` in front of an LLM engine forms no batch that lasts: the engine takes the requests one by one and
# admits them itself. What it is good for there is its queue: `max_queue_size` says no early, and a small delay can let
# requests that come together begin in the same iteration. And in-flight batching has nothing to offer a model whose
# answer is one forward pass: there is no flight.
#
# ## On the lab GPU
#
# All of this is Triton, so files and fields are the same in the container. Its launcher cannot load a model again; a plain
# `tritonserver` can, if it is told to, and that is `lab.sh serve`:
#
# ```bash
# {{function.serve}}
# ```
#
# {{name.tried}}
#
# | Step | Here | With the container and a GPU |
# |---|---|---|
# | Instances | `instance_group [ { count: 2 kind: KIND_CPU } ]` | `kind: KIND_GPU`, and `gpus: [ 0 ]` |
# | Load one model again | `server.load("batch-cost")` | `{{line.load_batch_cost}}`, on a server started by `lab.sh serve` |
# | Batching library | `custom_batching.build(…)` | `cc -shared -fPIC -o batchstrategy.so volume.c` |
# | Statistics | `telemetry.statistics(…)` | `{{line.statistics}}` |
# | Performance Analyzer | the one in the tritonclient wheel | `perf_analyzer` in `{{name.client_image}}` |
# | Model Analyzer | `model_analyzer.search(…)` | `model-analyzer profile` in the same container |
# | A batcher before the engine | none | `tensorrt_llm/config.pbtxt` has `dynamic_batching`, for `max_queue_delay_microseconds` and `max_queue_size`: it hands requests over, the engine slots them |
#
# ## What breaks
#
# **A config that Triton would refuse.** `repository.edit` and the editor find it before anything is written:

# %%
for fragment in (
    "dynamic_batching { preferred_batch_size: [ 16 ] }",
    "dynamic_batching { priority_levels: 2 default_priority_level: 3 }",
    "dynamic_batching { } sequence_batching { }",
):
    try:
        repository.edit(repo, "text-embedding", fragment)
    except CourseError as error:
        print(error)

# %% [markdown]
# **A model that idles while requests wait.** With a queue policy or priority levels Triton does not get the next batch
# ready while the model is busy. It looks at the queue when a request is let in, and otherwise every half second. After
# a burst nothing more comes:

# %% tags=["nbval-ignore-output"]
server.stop()
repo = repository.assemble(
    Path(workdir.name) / "burst",
    models=("batch-cost",),
    batch_cost_fixed_ms=40,
    batch_cost_item_ms=4,
    batch_cost_max_batch_size=4,
    execution_log_path=log_path,
)
server = Server(repo).start()
burst = batch_run.at([0.002 * number for number in range(20)])
_, plain = trial("dynamic_batching { }", burst)
_, levels = trial(
    "dynamic_batching { priority_levels: 2 default_priority_level: 2 }", burst
)
show({"dynamic_batching { }": plain, "with priority levels": levels})

# %% tags=["nbval-ignore-output"]
for name, run in (("plain", plain), ("with levels", levels)):
    gap_s = (run.executions["start_s"] - run.executions["end_s"].shift()).max()
    print(
        f"{name:12} last answer after {run.requests['answered_s'].max():.1f} s, "
        f"longest gap {1000 * gap_s:.0f} ms"
    )

# %% [markdown]
# Under steady traffic each new request wakes the batcher, and you will not notice; in a test with one burst you will.
#
# ## Recap
#
# - A Python model is batched only if its config says so; with `dynamic_batching { }` a batch is what came during the
#   one before.
# - `max_batch_size` bounds throughput; a queue delay buys idle time with latency; a preferred size may split what would
#   have been one batch.
# - A queue policy decides who is told no. Unless the model fails or a client cancels, every request has one of three
#   ends: answered, refused or timed out.
# - A library of five functions batches by what you count; the sequence batcher keeps together what belongs together.
# - The gain is the fixed cost of a batch, shared. Measure that cost, and you know the gain before you try.
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
# <details><summary>3. A colleague raises <code>max_queue_delay_microseconds</code> of <code>tensorrt_llm</code>, "for
# larger batches". What do you say?</summary>
#
# The engine forms its batch anew at every token, by free slots and blocks. A delay at most lets neighbours begin
# together, and every first token pays for it.
# </details>
#
# Now [do the lab]({lab}), or go on with {next}: the model says "again", and Triton batches in
# flight.
#
# ## What runs
#
# The server belongs to this notebook, and so the widgets above go on working. It ends with the notebook's kernel, or when
# you stop it here. After a restarted kernel, or where a widget reads *model not found*, run the notebook again.

# %% tags=["nbval-ignore-output"]
from inflight.notebook import session

session.running()
