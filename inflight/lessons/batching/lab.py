# %% [markdown]
# # {heading}
#
# Five exercises, about {minutes} minutes (an estimate), of which {core} are *Core*. You draw an engine's slots from its
# log, and write the two rules of the lesson as schedulers: first static, then in flight. The running engine obeys your
# file. Then you make a trace on which in-flight batching wins and one on which it does not, and read the
# files that a benchmark leaves behind.
#
# A check counts and never times: it plays your scheduler on requests that it makes anew each time, and compares its
# counts with the built-in rule's. It never stops you: it says *done*, *not done yet*, or what to look at.
#
# Run the first code cell before any other: it brings `check`, and what the exercises use. A `NameError` says that it has
# not been run.
#
# {navigation}

# %% [markdown]
# ## Set up
#
# A server with static batching as in the lesson, with the engine from lesson 01. The trace is *mild*: 32 requests of 8
# to 128 tokens, for which the lecture counted 416 iterations static and 248 in flight.

# %%
import tempfile
from pathlib import Path

import pandas as pd

from inflight import engine
from inflight.bench import trace_run, workload
from inflight.checkpoint import fetch, load_tokenizer
from inflight.lessons import batching as lesson
from inflight.notebook import charts, check, parts, progress
from inflight.triton import Client, Server, repository

engine_dir = engine.cached(fetch())
limits = engine.read(engine_dir).build_config
slots = limits.max_batch_size
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
server = Server(repo).start()
client = Client(server.grpc_url, timeout_s=600)
mild = workload.trace("mild", load_tokenizer(engine_dir))
print(f"{len(mild)} requests, {sum(one.max_tokens for one in mild)} tokens")

# %% [markdown]
# ## Exercise 4.1: who had which slot
#
# *Further · importance 4/5 · difficulty 3/5 · 15 minutes*
#
# Run the mild trace with static batching, from a full queue as in the lecture:

# %% tags=["nbval-ignore-output"]
with progress.wait("The mild trace, static"):
    static = lesson.run_from_full_queue(server, mild, log_path, limits.max_seq_len)
computed = [[request[0] for request in row] for row in static.log["requests"]]
print(len(computed), "iterations; requests in each:", *map(len, computed[:20]), "…")

# %% [markdown]
# A row of `computed` is an iteration: the ids of the requests that computed something in it. A log knows no slots. Write
# the function behind the lecture's slot map. It returns `(request, slot, first, last)` for each request: in its first
# iteration it takes the lowest free slot, in the order of the row, and it keeps that slot until its last. Slots and
# iterations count from 1. A request that runs is in every row from its first to its last.


# %%
def stays(computed: list) -> list | None:
    """(request, slot, first, last) of each request."""
    # BEGIN SOLUTION
    # LAB: return None
    slot_of, found = {}, {}
    for iteration, row in enumerate(computed, 1):
        slot_of = {request: slot_of[request] for request in row if request in slot_of}
        for request in row:
            if request not in slot_of:
                slot = min(set(range(1, len(row) + 1)) - set(slot_of.values()))
                slot_of[request] = slot
                found[request] = [request, slot, iteration, iteration]
            found[request][3] = iteration
    return list(found.values())
    # END SOLUTION


# %%
check("4.1", stays)

# %% [markdown]
# <details><summary>Where to look</summary>
#
# At two rows that follow one another: who is only in the first, and who only in the second?
# </details>
#
# <details><summary>How to begin</summary>
#
# Keep a dictionary of who has which slot now. For each row take out those who left, then give slots to those who came.
# </details>
#
# <details><summary>The error you see</summary>
#
# It shows one request as you drew it, and as it is. A slot that is too high was not given back. *ValueError: min() …
# empty*: more requests hold slots than compute.
# </details>
#
# Your map of this run:

# %% tags=["nbval-ignore-output"]
if drawn := stays(computed):
    table = pd.DataFrame(drawn, columns=["request", "slot", "first", "last"])
    maps = {"static": table}
    charts.show(lesson.slot_map(maps, slots), lesson.slot_map_summary(maps, slots))

# %% [markdown]
# ## Exercise 4.2: static batching
#
# *Core · importance 5/5 · difficulty 3/5 · 15 minutes*
#
# Before each iteration the engine asks its scheduler which requests to compute. You write this scheduler: a class with
# one method, in a file of its own. `now` describes the engine at this moment:
#
# | `now.` | |
# |---|---|
# | `waiting` | requests that have not started, in the order in which they came |
# | `running` | requests that have a slot |
# | `max_batch_size` | the slots |
# | `max_num_tokens` | most tokens that one iteration computes |
#
# A request has an `id` and `pending_tokens`, the tokens that can be computed now: its whole prompt at first, then one in
# each iteration. The method returns a `Plan`. `admit` has the ids of the requests that start; `compute` says, by id, how
# many tokens each request computes.
#
# The file below runs one request at a time. Make it `V1`'s rule: when no request runs, as many
# start as wait and have a slot; until the last of them has finished, none joins. Prompts are short here: those of a
# batch fit into one iteration.

# %%
# %%writefile {workdir.name}/static.py
from inflight.engine import Plan


class Scheduler:
    """Who is computed in the next iteration."""

    def schedule(self, now):
        plan = Plan()
        # BEGIN SOLUTION
        # LAB: if now.running:
        # LAB:     request = now.running[0]
        # LAB: else:
        # LAB:     request = now.waiting[0]
        # LAB:     plan.admit.append(request.id)
        # LAB: plan.compute[request.id] = request.pending_tokens
        batch = list(now.running)
        if not batch:
            batch = list(now.waiting)[: now.max_batch_size]
            plan.admit = [request.id for request in batch]
        for request in batch:
            plan.compute[request.id] = request.pending_tokens
        # END SOLUTION
        return plan


# %%
check("4.2", Path(workdir.name) / "static.py")

# %% [markdown]
# <details><summary>Where to look</summary>
#
# At <code>may_start</code> in the lesson's <code>simulate</code>, with <code>now.running</code> for <code>running</code>.
# </details>
#
# <details><summary>How to begin</summary>
#
# Begin with the second branch: take a slice of <code>now.waiting</code> instead of one request. Then compute all that
# run, not the first alone.
# </details>
#
# <details><summary>The error you see</summary>
#
# It names file, line and the rule that the plan broke. <em>computes tokens of request 3, which would not run</em>: a
# request that starts must be in <code>admit</code>. <em>lets 9 requests run at once</em>: count those that run already.
# <em>IndexError: list index out of range</em>: it can be that none is waiting.
# </details>
#
# The engine loads your file, and tries it before the first request. Your rule and the built-in one, from a full queue:

# %% tags=["nbval-ignore-output"]
server.load(
    "tensorrt_llm",
    gpt_model_type="inflight_fused_batching",
    scheduler_path=Path(workdir.name) / "static.py",
)
with progress.wait("The mild trace, with your file"):
    own = lesson.run_from_full_queue(server, mild, log_path, limits.max_seq_len)
print(f"built-in V1: {len(static.log)} iterations; yours: {len(own.log)} iterations")

# %% [markdown]
# `V1` does one more thing: the engine holds all answers of a batch back until the last one is complete. The loop around
# the scheduler does that for a class with `answers_together = True`, as the built-in one has. Your client of lab 03 sees
# the difference (if it has not passed yet, the course's is used):

# %%
print(repr(parts.part("client")))
ask = parts.load("client").ask
story = ask(server.grpc_url, "Tell me a story.", 24, end_id=-1)
print("your scheduler:", len(story.pieces), "pieces")
server.load("tensorrt_llm", gpt_model_type="V1", scheduler_path="")
story = ask(server.grpc_url, "Tell me a story.", 24, end_id=-1)
print("built-in V1:   ", len(story.pieces), "piece")

# %% [markdown]
# ## Exercise 4.3: in flight
#
# *Core · importance 5/5 · difficulty 3/5 · 15 minutes*
#
# The same again, in flight: a waiting request starts as soon as a slot is free, even while others run. Requests start in
# the order in which they came. And now prompts are long: those of all slots together may have more tokens than
# `max_num_tokens`. Each running request computes one token in each iteration. A prompt that does not fit into the rest
# of the iteration waits for the next one, and so do all behind it.

# %%
# %%writefile {workdir.name}/scheduler.py
from inflight.engine import Plan


class Scheduler:
    """Who is computed in the next iteration."""

    def schedule(self, now):
        plan = Plan()
        # BEGIN SOLUTION
        # LAB: if now.running:
        # LAB:     request = now.running[0]
        # LAB: else:
        # LAB:     request = now.waiting[0]
        # LAB:     plan.admit.append(request.id)
        # LAB: plan.compute[request.id] = request.pending_tokens
        room = now.max_num_tokens
        for request in now.running:
            plan.compute[request.id] = request.pending_tokens
            room -= request.pending_tokens
        free_slots = now.max_batch_size - len(now.running)
        for request in list(now.waiting)[:free_slots]:
            if request.pending_tokens > room:
                break  # who came first is first: a shorter prompt does not overtake
            plan.admit.append(request.id)
            plan.compute[request.id] = request.pending_tokens
            room -= request.pending_tokens
        # END SOLUTION
        return plan


# %%
check("4.3", Path(workdir.name) / "scheduler.py")

# %% [markdown]
# <details><summary>Where to look</summary>
#
# At static batching, 4.2: which condition has to go?
# </details>
#
# <details><summary>How to begin</summary>
#
# Two loops, one after the other: all in <code>now.running</code> compute; then, from the first of
# <code>now.waiting</code> on, as many start as there are free slots. Keep count of the tokens that the iteration can
# still take.
# </details>
#
# <details><summary>The error you see</summary>
#
# <em>lets 9 requests run at once</em>: the free slots are <code>max_batch_size</code> less those that run.
# <em>computes 301 tokens in an iteration; max_num_tokens is 256</em>: stop before the prompt that does not fit.
# <em>requests overtaken</em>: you skipped one that did not fit, and let a later one start.
# </details>
#
# `parts.part` returns your file once it has passed, and the course's until then. Later labs build on it. Here it serves
# the mild trace, and so does the engine's own rule. The requests arrive within a fifth of a second, in
# each run at other iterations, so the counts differ:


# %%
def serve(scheduler_path=""):
    """The mild trace in flight, by this scheduler or by the engine's own."""
    with progress.wait("The mild trace"):
        in_flight = "inflight_fused_batching"
        server.load(
            "tensorrt_llm", gpt_model_type=in_flight, scheduler_path=scheduler_path
        )
        return trace_run.run(client, mild, log_path)


# %% tags=["nbval-ignore-output"]
scheduler = parts.part("scheduler")
print(repr(scheduler))
built_in, own = serve(), serve(scheduler.path)
maps = {"static": static.stays, "built-in": built_in.stays, "your file": own.stays}
charts.show(lesson.slot_map(maps, slots), lesson.slot_map_summary(maps, slots))

# %% [markdown]
# ## Exercise 4.4: a trace that wins, and one that does not
#
# *Further · importance 4/5 · difficulty 3/5 · 12 minutes*
#
# Make two lists of 24 answer lengths, each between 8 and 128 tokens, for an engine of eight slots. All wait from the
# start, in this order.
#
# - `wins`: static batching needs at least 2.5 times the iterations of in-flight batching;
# - `draws`: static batching needs at most 1.1 times as many, **and** the lengths differ: the eighth longest is at least
#   four times as long as the eighth shortest.

# %%
# BEGIN SOLUTION
# LAB: wins = None
# LAB: draws = None
wins = ([128] + [8] * 7) * 3
draws = [32] * 8 + [64] * 8 + [128] * 8
# END SOLUTION

# %%
check("4.4", (wins, draws))

# %% [markdown]
# <details><summary>Where to look</summary>
#
# Copy <code>simulate</code> from the lesson and count: <code>len(simulate(wins, slots, "static"))</code>.
# </details>
#
# <details><summary>How to begin</summary>
#
# Think in batches of eight. Which batch wastes most with static batching, and how many such batches fit into 24? Which
# batch wastes nothing, whatever the others are?
# </details>
#
# <details><summary>The error you see</summary>
#
# <em>needs 24 lengths between 8 and 128</em>: that holds for both lists. A single long answer among short ones is not
# enough for <code>draws</code>: eight of the answers have to be long.
# </details>
#
# The second trace has a moral: static batching of requests that are sorted by length loses little. It is rarely done,
# because an answer's length is not known before it ends.
#
# ## Exercise 4.5: what a file says
#
# *Further · importance 3/5 · difficulty 2/5 · 10 minutes*
#
# Both rules once more, each from a full queue, and the files of a benchmark that colleagues can open: a CSV with a row
# per request; one with a line per run, in the columns that TensorRT-LLM's own client writes with `--op-stats-csv`; and a
# time line for [ui.perfetto.dev](https://ui.perfetto.dev).

# %% tags=["nbval-ignore-output"]
import json

files = {
    name: Path(workdir.name) / name
    for name in ("requests.csv", "statistics.csv", "timeline.json")
}
server.load("tensorrt_llm", gpt_model_type="inflight_fused_batching")
with progress.wait("The mild trace, in flight"):
    full = lesson.run_from_full_queue(server, mild, log_path, limits.max_seq_len)
static.requests.to_csv(files["requests.csv"], index=False)
lines = [lesson.run_files.op_stats(run.run) for run in (static, full)]
pd.DataFrame(lines).to_csv(files["statistics.csv"], index=False)
timeline = lesson.run_files.timeline(static.run, static.log)
files["timeline.json"].write_text(json.dumps(timeline))
pd.DataFrame(lines, index=["static", "in flight"]).T.round(1)

# %% [markdown]
# Open `timeline.json` in Perfetto later. Above are the requests, each a bar from sending to answer; below are the
# engine's iterations, with the number of tokens in each. In this static run whole groups of bars end together.
#
# Now look at *Avg. InFlight requests* of the **static** run. There are eight slots, and nothing was batched in flight.
# What does the column count? Write the function that computes it from the rows of `static.requests`: `sent_s` and
# `last_s` are seconds since the run began, `latency_ms` are the milliseconds between them.


# %%
def in_flight_mean(requests: pd.DataFrame) -> float | None:
    """Requests that were sent and not answered yet, on average over the run."""
    # BEGIN SOLUTION
    # LAB: return None
    total_s = requests["last_s"].max() - requests["sent_s"].min()
    return requests["latency_ms"].sum() / 1000 / total_s
    # END SOLUTION


# %%
check("4.5", in_flight_mean)

# %% [markdown]
# <details><summary>Where to look</summary>
#
# At <em>Total latency (ms)</em> and <em>Avg. latency (ms)</em> beside it. Together with the number of requests they give
# the column.
# </details>
#
# <details><summary>How to begin</summary>
#
# Two requests of 3 seconds each, in a run of 6 seconds: how many are there at a time, on average?
# </details>
#
# <details><summary>The error you see</summary>
#
# A figure that is a thousand times too large divides milliseconds by seconds. One that is a little too small may count
# from zero: the run begins when the first request is sent, and ends with the last answer.
# </details>
#
# ## Bonus
#
# A scheduler that knows the lengths can do better than both: `request.max_answer_tokens` is what the client asked for.
# Write one that starts the longest waiting request first, serve it, and compare its iterations with the built-in rule's.
# The check of 4.3 would say that requests are overtaken: which ones, and how often?

# %%
# BEGIN SOLUTION
# LAB: longest_first = None
longest_first = Path(workdir.name) / "longest_first.py"
longest_first.write_text("""
from inflight.engine import Plan


class Scheduler:
    def schedule(self, now):
        plan = Plan(compute={request.id: 1 for request in now.running})
        free_slots = now.max_batch_size - len(now.running)
        longest = sorted(now.waiting, key=lambda request: -request.max_answer_tokens)
        for request in longest[:free_slots]:
            plan.admit.append(request.id)
            plan.compute[request.id] = request.pending_tokens
        return plan
""")
# END SOLUTION

# %% tags=["nbval-ignore-output"]
if longest_first is not None:
    bonus = serve(longest_first)
    print(f"built-in: {len(built_in.log)} iterations; yours: {len(bonus.log)}")

# %% [markdown]
# ## Elsewhere
#
# **1.** The service moves to a GPU on which an iteration with 64 answers takes hardly longer than one with 8, and the
# engine is built with 64 slots. What still holds: the iterations that you counted, or the gain in time?
#
# <details><summary>Answer</summary>
#
# Neither number, but both ways to get them. With 64 slots the same trace has fewer batches, so count again. And where a
# full iteration costs hardly more than a nearly empty one, the gain in time comes near to the gain in iterations.
# </details>
#
# **2.** Another service labels texts: each answer has one token. What does in-flight batching gain there?
#
# <details><summary>Answer</summary>
#
# Nothing: each answer takes one iteration, so a static batch ends for all at once. All the work is in the prompts.
# </details>
#
# **3.** A colleague's scheduler starts short prompts before long ones, and its mean latency is the best of all. Its P99 is
# the worst. Which figure of the check saw it coming?
#
# <details><summary>Answer</summary>
#
# The number of requests that are overtaken. While short ones keep coming, a long one can wait for ever.
# </details>
#
# ## What runs

# %% tags=["nbval-ignore-output"]
from inflight.notebook import session

session.running()

# %% [markdown]
# ## Done?
#
# When every check says so, compare with {counterpart}, then go on to {next}.
