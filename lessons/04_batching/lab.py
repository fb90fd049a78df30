# %% [markdown]
# # {heading}
#
# Five exercises, about 60 minutes. You read the waste from an engine's log, and write the two rules of the lesson as
# schedulers: first static, then in flight. The running engine obeys your file. Then you make a trace that in-flight
# batching wins and one that it does not, and read what a benchmark leaves behind.
#
# A check counts and never times: it plays your scheduler on requests that it makes anew each time, and sets its figures
# beside the built-in rule's. It never stops you: it says done, not done yet, or which way to go.
#
# {navigation}

# %% [markdown]
# ## Set up
#
# A server with static batching, as in the lesson, and decoupled, so that answers can be streamed. It uses the engine from
# lesson 01.

# %%
import tempfile
from pathlib import Path

from inflight import engine
from inflight.bench import trace_run, workload
from inflight.checkpoint import fetch, load_tokenizer
from inflight.notebook import check, mine, progress
from inflight.triton import Client, Server, repository

engine_dir = engine.cached(fetch())
slots = engine.read(engine_dir).build_config.max_batch_size
workdir = tempfile.TemporaryDirectory()
log_path = Path(workdir.name) / "iterations.jsonl"
repo = repository.assemble(
    Path(workdir.name) / "repo",
    engine_dir,
    batching_strategy="V1",
    decoupled_mode=True,
    iteration_log_path=log_path,
)
server = Server(repo).start()
client = Client(server.grpc_url, timeout_s=600)
mild = workload.trace("mild", load_tokenizer(engine_dir), seed=0)
print(f"{len(mild)} requests, {sum(one.max_tokens for one in mild)} tokens")

# %% [markdown]
# ## Exercise 4.1: the waste in a log
#
# *importance 3/5 · difficulty 1/5 · 8 minutes*
#
# Run the mild trace with static batching:

# %% tags=["nbval-ignore-output"]
with progress.wait("The mild trace, static"):
    static = trace_run.run(client, mild, log_path)
static.log[
    ["iteration", "scheduled", "waiting", "generation_tokens", "empty_seats"]
].head()

# %% [markdown]
# `scheduled` is the number of slots that computed something in that iteration, `empty_seats` the number of those that
# did not. Write the function that gives the share of the slots' time that was wasted, between 0 and 1.


# %%
def wasted(log, slots: int) -> float | None:
    """Share of all slots in all iterations that computed nothing."""
    # BEGIN SOLUTION
    # LAB: return None
    return 1 - log["scheduled"].sum() / (len(log) * slots)
    # END SOLUTION


# %%
check("4.1", wasted)

# %% [markdown]
# <details><summary>Where to look</summary>
#
# At two columns of the log: one row is one iteration, and each iteration has <code>slots</code> slots.
# </details>
#
# <details><summary>How to begin</summary>
#
# How many slots were there in all iterations together? How many of them were empty?
# </details>
#
# <details><summary>The error you see</summary>
#
# A figure above 1 is a number of slots and no share. One that is too large may count tokens: an iteration that computes
# a prompt has a slot taken and no token of an answer.
# </details>
#
# ## Exercise 4.2: static batching
#
# *Core · importance 5/5 · difficulty 3/5 · 15 minutes*
#
# Before each iteration the engine asks its scheduler who is computed. You write this scheduler: a class with one
# method, in a file of its own. `now` tells how the engine stands:
#
# | `now.` | |
# |---|---|
# | `waiting` | requests that have not started, in the order in which they came |
# | `running` | requests that have a slot |
# | `max_batch_size` | the slots |
# | `max_num_tokens` | most tokens that one iteration computes |
#
# A request has an `id` and `pending_tokens`: the tokens that can be computed now, its whole prompt at first, then one in
# each iteration. The answer is a `Plan`: in `admit` the ids of those that start, in `compute` how many tokens each
# request computes, by its id.
#
# The file below runs one request at a time, as `llama-python` does. Make it `V1`'s rule: when nobody runs, as many
# start as wait and have a slot; until the last of them has finished, nobody joins. Prompts are short here: those of a
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
# At <code>play</code> in the lesson: its <code>if</code> is yours, with <code>now.running</code> for
# <code>running</code>.
# </details>
#
# <details><summary>How to begin</summary>
#
# Only the second branch changes at first: not one request of <code>now.waiting</code>, but a slice of it. Then compute
# everybody who runs, and not the first alone.
# </details>
#
# <details><summary>The error you see</summary>
#
# It names file, line and the rule that the plan broke. <em>computes tokens of request 3, which would not run</em>: who
# starts must be in <code>admit</code>. <em>lets 9 requests run at once</em>: count those that run already.
# <em>IndexError: list index out of range</em>: nobody may be waiting.
# </details>
#
# The engine takes your file at the next load, and tries it before the first request. Yours and the built-in rule, on
# the mild trace:


# %%
def serve(**parameters):
    """The mild trace, after the engine was loaded with these parameters."""
    with progress.wait("The mild trace"):
        server.load("tensorrt_llm", **parameters)
        trace_run.run(client, mild[:1], log_path)  # the first request is not counted
        return trace_run.run(client, mild, log_path)


# %% tags=["nbval-ignore-output"]
own = serve(
    gpt_model_type="inflight_fused_batching",
    scheduler_path=Path(workdir.name) / "static.py",
)
print(f"built-in V1: {len(static.log)} iterations; yours: {len(own.log)} iterations,")
print(f"{own.tokens_per_s / static.tokens_per_s:.2f} times the tokens a second")

# %% [markdown]
# The counts may differ by a batch: who is there already when the first one begins is chance.
#
# There is one more thing that `V1` does: the engine holds all answers back until the last of the batch is complete.
# The loop around the scheduler does that for a class that says `answers_together = True`, as the built-in one does. Your
# client of lab 03 sees the difference (the course's stands in where yours has not passed):

# %%
print(repr(mine.part("client")))
ask = mine.load("client").ask
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
# The same again, in flight: a request that waits starts as soon as a slot is free, whoever else runs. They start
# in the order in which they came. And now prompts are long: those of all slots together may have more than `max_num_tokens`. Whoever runs has one
# token in each iteration, and a prompt that does not fit into the rest of it waits for the next; so does everybody
# behind it.

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
# At your own file of 4.2: which condition has to go?
# </details>
#
# <details><summary>How to begin</summary>
#
# Two loops, one after the other: everybody in <code>now.running</code> computes; then, from the first of
# <code>now.waiting</code> on, as many start as there are free slots. Prompts come last: keep a number of the tokens that
# the iteration still takes.
# </details>
#
# <details><summary>The error you see</summary>
#
# <em>lets 9 requests run at once</em>: the free slots are <code>max_batch_size</code> without those that run.
# <em>computes 301 tokens in an iteration; max_num_tokens is 256</em>: stop before the prompt that does not fit.
# <em>requests overtaken</em>: you went on behind one that did not fit.
# </details>
#
# `mine.part` gives your file once it has passed, and the course's until then. Later labs go on from it. Here it serves
# the mild trace, beside the engine's own rule:

# %% tags=["nbval-ignore-output"]
scheduler = mine.part("scheduler")
print(repr(scheduler))
built_in = serve(gpt_model_type="inflight_fused_batching", scheduler_path="")
own = serve(gpt_model_type="inflight_fused_batching", scheduler_path=scheduler.path)
for name, run in (("static", static), ("built-in", built_in), ("your file", own)):
    print(
        f"{name:10} {len(run.log):4} iterations, wasted: {wasted(run.log, slots)}, "
        f"{run.tokens_per_s / built_in.tokens_per_s:.2f} times the built-in's tokens/s"
    )

# %% [markdown]
# ## Exercise 4.4: a trace that wins, and one that does not
#
# *importance 4/5 · difficulty 3/5 · 12 minutes*
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
# Copy <code>play</code> from the lesson; it tells at once how near you are. Take the line with <code>room</code> out of
# it, for here the first does not start alone.
# </details>
#
# <details><summary>How to begin</summary>
#
# Think in batches of eight. Which batch wastes most with static batching, and how many such batches are there room for?
# Which batch wastes nothing, whatever the other batches are?
# </details>
#
# <details><summary>The error you see</summary>
#
# <em>needs 24 lengths between 8 and 128</em>: both lists do. A single long answer among short ones is not what
# <code>draws</code> asks for: eight of the answers have to be long.
# </details>
#
# The second trace has a moral: whoever sorts requests by length before batching them needs no in-flight batching. Why
# does nobody do that? Because nobody knows the lengths in advance.
#
# ## Exercise 4.5: what a file says
#
# *importance 3/5 · difficulty 2/5 · 10 minutes*
#
# A benchmark that leaves no file was never run. Here is what colleagues can open: a row a request as CSV; one line a run
# in the columns of TensorRT-LLM's own client, which writes it with `--op-stats-csv`; and a time line for
# [ui.perfetto.dev](https://ui.perfetto.dev).

# %% tags=["nbval-ignore-output"]
import json

import pandas as pd

from inflight.lessons.batching import run_files

files = {
    name: Path(workdir.name) / name
    for name in ("requests.csv", "statistics.csv", "timeline.json")
}
static.requests.to_csv(files["requests.csv"], index=False)
lines = [run_files.op_stats(run.run) for run in (static, built_in)]
pd.DataFrame(lines).to_csv(files["statistics.csv"], index=False)
timeline = run_files.timeline(static.run, static.log)
files["timeline.json"].write_text(json.dumps(timeline))
pd.DataFrame(lines, index=["static", "in flight"]).T.round(1)

# %% [markdown]
# Open `timeline.json` in Perfetto later: above are the requests, a bar each from sending to answer, below the engine's
# iterations, with the number of tokens in each. In the static one you see whole groups of bars end together.
#
# Now look at *Avg. InFlight requests* of the **static** run. There are eight slots, and nothing was batched in flight.
# What does the column count? Write the function that gives it, from the rows of `static.requests`: `sent_s` and
# `last_s` are seconds since the run began, `latency_ms` is what lies between them.


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
# At <em>Total latency (ms)</em> and <em>Avg. latency (ms)</em> beside it: the column follows from these two and the
# number of requests.
# </details>
#
# <details><summary>How to begin</summary>
#
# Two requests of 3 seconds each, in a run of 6 seconds: how many are there at a time, on average?
# </details>
#
# <details><summary>The error you see</summary>
#
# A figure a thousand times too large has milliseconds over seconds. One a little too small may begin at zero: a run
# lasts from the first request sent to the last answer.
# </details>
#
# ## Bonus
#
# A scheduler that knows the lengths may do better than both: `request.max_answer_tokens` is what the client asked for.
# Write one that starts the longest of those that wait first, serve it, and compare its iterations with the built-in
# rule's. The check of 4.3 has a word for what it does to the others: who is overtaken, and how often?

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
    bonus = serve(
        gpt_model_type="inflight_fused_batching", scheduler_path=longest_first
    )
    print(f"built-in: {len(built_in.log)} iterations; yours: {len(bonus.log)}")
    for name, run in (("built-in", built_in), ("longest first", bonus)):
        median_s = run.requests["latency_ms"].median() / 1000
        print(f"{name}: half of all requests have their answer within {median_s:.1f} s")

# %% [markdown]
# ## Elsewhere
#
# **1.** The service moves to a GPU on which an iteration with 64 answers takes hardly longer than one with 8, and the
# engine is built with 64 slots. Which of these still holds: the iterations that you counted, or what they say of the
# gain in time?
#
# <details><summary>Answer</summary>
#
# Neither number, but both ways to get them. With 64 slots the same trace has fewer batches, so count again. And where a
# full iteration costs no more than an empty one, time follows the iterations: the gain in time comes near to the gain on
# paper.
# </details>
#
# **2.** Another service labels texts: each answer has one token. What does in-flight batching win there?
#
# <details><summary>Answer</summary>
#
# Nothing: all answers of a batch are of one length, and each lasts one iteration. All the work is in the prompts.
# </details>
#
# **3.** A colleague's scheduler starts short prompts before long ones, and its mean latency is the best of all. Its P99 is
# the worst. Which figure of the check saw it coming?
#
# <details><summary>Answer</summary>
#
# The requests that are overtaken. While short ones keep coming, a long one may wait for ever.
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
