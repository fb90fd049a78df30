# %% [markdown]
# # {heading}
#
# Three exercises, about {minutes} minutes (an estimate), of which {core} are *Core*. You find out what a promise costs.
# Then you write a scheduler that never pauses a request, and one that pauses better than the
# built-in one. Both run in the real server.
#
# You need the lecture, and lesson 04's lab: what `now` and a `Plan` are. A check never stops you: it says *done*, *not
# done yet*, or what to look at.
#
# Run the first code cell before any other: it brings `check`, and what the exercises use. A `NameError` says that it has
# not been run.
#
# {navigation}

# %% [markdown]
# ## Set up
#
# The lesson's engine behind a server with a cache of 24 blocks, and the lesson's captions, with 44 tokens each.

# %%
import tempfile
from pathlib import Path

import pandas as pd
from IPython.display import display

from inflight import CourseError, engine
from inflight.bench import workload
from inflight.checkpoint import fetch, load_tokenizer
from inflight.engine import BuildConfig
from inflight.lessons import kv_cache as lesson
from inflight.notebook import check, parts, progress, record
from inflight.triton import Client, Server, repository, telemetry

workdir = tempfile.TemporaryDirectory()
log_path = Path(workdir.name) / "iterations.jsonl"
engine_dir = engine.cached(fetch(), BuildConfig(max_input_len=736, max_seq_len=768))
repo = repository.assemble(
    Path(workdir.name) / "repo",
    engine_dir,
    iteration_log_path=log_path,
    max_tokens_in_paged_kv_cache=768,
)
server = Server(repo).start()
client = Client(server.grpc_url, timeout_s=600)

# %%
prompts = workload.prompts_of([736, *range(88, 96)], load_tokenizer(engine_dir))
filling = workload.TimedRequest(prompts[0], 32, 0.0, 736)  # as in the lecture
captions = [
    workload.TimedRequest(text, 44, 0.02 * place, 88 + place)
    for place, text in enumerate(prompts[1:])
]


def serve(**parameters):
    """Load the engine with these parameters, and let it write the captions."""
    server.load("tensorrt_llm", **parameters)
    log = lesson.run_behind(filling, client, captions, log_path).log
    ends = telemetry.shares(log).groupby("request")["iteration"].max()
    return {
        "iterations": len(log),
        "computed twice": log["context_tokens"].sum() - sum(range(88, 96)),
        "ends on average": round(ends.mean()),
    }


# %% [markdown]
# ## Exercise 5.1: promised for nothing
#
# *Core · importance 3/5 · difficulty 2/5 · 5 minutes*
#
# A day in the log of your service: for each request the tokens of its prompt, its `max_tokens`, and the tokens of its
# answer. `guaranteed_no_evict` promised blocks for prompt and `max_tokens`. Which share of all blocks that were promised
# that day, between 0 and 1, was never used?
#
# A block holds tokens of one request. It counts as used if a token is in it: every token of the prompt and of the answer
# takes a place.


# %%
def unused(day: list[tuple[int, int, int]], tokens_per_block: int) -> float | None:
    """Share of the promised blocks without a token; rows: prompt, max_tokens, answer."""
    # BEGIN SOLUTION
    # LAB: return None
    promised = used = 0
    for prompt, max_tokens, answer in day:
        promised += -(-(prompt + max_tokens) // tokens_per_block)
        used += -(-(prompt + answer) // tokens_per_block)
    return 1 - used / promised
    # END SOLUTION


# %%
check("5.1", unused)

# %% [markdown]
# <details><summary>Where to look</summary>
#
# The lecture's <code>may_need</code> and <code>holds</code>, under <em>On paper</em>: what is promised, and what is held.
# </details>
#
# <details><summary>How to begin</summary>
#
# There is no half block: 33 tokens take two blocks of 32. <code>math.ceil</code> rounds up, and so does
# <code>-(-a // b)</code> with whole numbers. Count the blocks of all requests, then divide once.
# </details>
#
# <details><summary>The error you see</summary>
#
# The hint names a day and what is special about it. Count that day with pencil and paper: how many blocks were promised,
# and in how many of them is a token?
# </details>
#
# The lesson's captions and questions, and the same questions if the clients asked for 60 tokens. The captions' promises were
# all used in the end; in the lecture's picture some had not been used yet.

# %%
for name, row in {
    "captions": (92, 44, 44),
    "questions": (37, 216, 30),
    "questions that ask for 60": (37, 60, 30),
}.items():
    print(f"{name}: {unused([row] * 8, 32) or 0:.0%} of the promised blocks unused")

# %% [markdown]
# ## Exercise 5.2: no request is ever paused
#
# *Further · importance 4/5 · difficulty 3/5 · 15 minutes*
#
# Now the rule itself. Before each iteration the engine asks a scheduler: `schedule(now)` sees which requests wait and
# which run, and how many blocks there are, and returns a `Plan`.
#
# Write the admission of `guaranteed_no_evict`. In the order in which they came, append requests of `now.waiting` to
# `running`, and stop at the first that does not fit
#
# - into a slot (`now.max_batch_size`),
# - into this iteration: its prompt takes `pending_tokens` of the `room` that is left,
# - into the cache: within `now.num_blocks`, there are blocks for the `max_tokens` of all running requests and of this one.
#   A request's `max_tokens` counts its prompt and its longest answer together here; `now.blocks_for(tokens)` rounds up.
#
# The check plays hidden requests through your file in a process of its own, and counts iterations.

# %%
# %%writefile {workdir.name}/no_evict.py
from inflight.engine import Plan, tokens_to_compute


class Scheduler:
    def schedule(self, now):
        running = list(now.running)
        room = now.max_num_tokens - sum(one.pending_tokens for one in running)
        # BEGIN SOLUTION
        # LAB: # Your admission: append to `running` the requests that may start.
        promised = sum(now.blocks_for(one.max_tokens) for one in running)
        for one in now.waiting:
            promised += now.blocks_for(one.max_tokens)
            if len(running) == now.max_batch_size or promised > now.num_blocks:
                break
            if one.pending_tokens > room:
                break
            running.append(one)
            room -= one.pending_tokens
        # END SOLUTION
        admit = [one.id for one in running[len(now.running) :]]
        return Plan(admit=admit, compute=tokens_to_compute(now, running))


# %%
check("5.2", Path(workdir.name) / "no_evict.py")

# %% [markdown]
# <details><summary>Where to look</summary>
#
# The lecture's <em>On paper</em>. There the sum is made anew for each request; here one sum can grow as you append.
# </details>
#
# <details><summary>How to begin</summary>
#
# A loop over <code>now.waiting</code> that ends with <code>break</code> at the first request that does not fit. If you
# skip it instead, shorter requests overtake it for ever.
# </details>
#
# <details><summary>The error you see</summary>
#
# <em>needs 5 KV cache blocks, of which 3 are free</em>: you promised too much, and now the answers grow. Count
# <code>max_tokens</code>, not <code>known_tokens</code>, and also those of the requests that run already.
# <em>let in before there was room</em>: each newcomer's prompt takes its tokens off <code>room</code>.
# </details>
#
# And in the real server, beside the built-in policy: the same plans give the same counts. If your scheduler fails there,
# the engine refuses it with a sentence and keeps the one that it had.

# %% tags=["nbval-ignore-output"]
own = {"scheduler_path": f"{workdir.name}/no_evict.py"}
built_in = {"scheduler_path": "", "batch_scheduler_policy": "guaranteed_no_evict"}
try:
    with progress.wait("Captions, twice"):
        rows = [serve(**built_in), serve(**own)]
    display(pd.DataFrame(rows, ["built-in", "yours"]))
except CourseError as error:
    print(error.sentence)

# %% [markdown]
# ## Exercise 5.3: pause seldom, and cheaply
#
# *Core · importance 5/5 · difficulty 4/5 · 40 minutes*
#
# Now let requests start early, and do it better than `max_utilization`. That policy always pauses the youngest request,
# and starts the next one as soon as its prompt fits. Two decisions are yours:
#
# - **Admission.** Paused requests come first, then waiting ones. How much room do you leave for those that run?
# - **Eviction.** While the running requests need more blocks than are free (`now.blocks_needed(one)` of each), pause one;
#   it gives `one.own_blocks` back. Which loses least? With the right room it matters less.
#
# Budgets, over hidden requests of three kinds:
#
# - no request starts while a paused one waits;
# - at most 1.25 times the iterations of `max_utilization`;
# - at most 0.65 of the tokens that it computes twice;
# - a [P99](../notebooks/glossary.md#P99) of the latency, in iterations, no higher than under `guaranteed_no_evict`.
#   `max_utilization` usually has a slightly better one than the course's solution, the price of fewer pauses.
#
# You also get points: your iterations over those of `max_utilization`, plus the same ratio of the tokens computed twice.
# Fewer is better, and `max_utilization` has 2.

# %% tags=["part:scheduler.py"]
# %%writefile {workdir.name}/scheduler.py
"""Who runs next, in a cache that is too small for all."""

from itertools import chain

from inflight.engine import Plan, tokens_to_compute


class Scheduler:
    def schedule(self, now):
        running, free = list(now.running), now.free_blocks
        pause, joining = [], []

        # BEGIN SOLUTION
        # LAB: # 1. While there are too few blocks, take a request from `running` and append its id to `pause`.
        # LAB: # 2. Append to `joining` the requests that may start.
        # An answer that has filled its last block needs another one.
        while sum(now.blocks_needed(one) for one in running) > free:
            cheapest = min(running, key=lambda one: one.known_tokens)
            running.remove(cheapest)
            pause.append(cheapest.id)
            free += cheapest.own_blocks
        free -= sum(now.blocks_needed(one) for one in running)

        # One block stays free for each who runs, or the next pause would be near.
        room = now.max_num_tokens - sum(one.pending_tokens for one in running)
        for one in chain(now.paused, now.waiting) if not pause else ():
            reserve = len(running) + len(joining)
            if reserve == now.max_batch_size or one.pending_tokens > room:
                break
            if now.blocks_needed(one) + reserve > free:
                break
            joining.append(one)
            free -= now.blocks_needed(one)
            room -= one.pending_tokens
        # END SOLUTION

        admit = [one.id for one in joining]
        return Plan(admit, tokens_to_compute(now, running + joining), pause)


# %%
check("5.3", Path(workdir.name) / "scheduler.py")

# %% [markdown]
# <details><summary>Where to look</summary>
#
# The lecture's <code>simulate</code>, under <em>On paper</em>: its first inner loop pauses, its second admits. The
# lecture's picture shows when the pauses come.
# </details>
#
# <details><summary>How to begin</summary>
#
# First a scheduler that breaks no rule: move the youngest to <code>pause</code> until
# <code>sum(now.blocks_needed(one) for one in running)</code> fits, then start the requests that fit. Then keep a block
# free for those that run, then two, then more, and watch both ratios.
# </details>
#
# <details><summary>The error you see</summary>
#
# <em>needs 3 KV cache blocks, of which 1 are free</em>: a running request may need a block in this very iteration; take
# those off <code>free</code> before any other starts. <em>Slots stay empty</em>: your reserve is too large. <em>admits
# request 4, which is neither waiting nor paused</em>: it is in <code>now.running</code> already.
# </details>
#
# Now put `running[-1]`, the youngest, in place of your choice, and run the check again: what is left of your gain is
# the reserve's. Then put yours back, and run it once more: the last file that passes is kept.
#
# In the real server, beside both built-in policies. Once your scheduler has passed, the later labs use it:

# %% tags=["nbval-ignore-output"]
scheduler = parts.part("scheduler")
print(repr(scheduler))
ways = {
    policy: {"scheduler_path": "", "batch_scheduler_policy": policy}
    for policy in ("guaranteed_no_evict", "max_utilization")
}
ways["scheduler"] = {"scheduler_path": str(scheduler)}
rows = [serve(**way) for way in progress.over(ways.values(), "Captions")]
served = pd.DataFrame(rows, list(ways))
assert served["computed twice"]["guaranteed_no_evict"] == 0
served

# %% [markdown]
# These captions use all that they may, so the built-in policies differ by two iterations: compare *computed twice*. The
# check plays many other evenings. Your journal has what each of your tries came to.

# %% tags=["nbval-ignore-output"]
record.tries("5.3")

# %% [markdown]
# ## Bonus
#
# If you are early: no check, but something to see.
#
# 1. Beat your own best. Which request would you pause if you knew where answers end? Guess it: an answer that has
#    come near its `max_tokens` gives its blocks back soon anyway.
# 2. Let shorter prompts overtake longer ones. What happens to P99, and to the request that is overtaken? The column
#    `longest_wait` of the iteration log says which request waits longest, and for how many iterations:

# %% tags=["nbval-ignore-output"]
since = len(telemetry.iterations(log_path))
serve(scheduler_path=f"{workdir.name}/scheduler.py")
log = telemetry.iterations(log_path)[since:]
waits = pd.DataFrame(
    log["longest_wait"].dropna().tolist(), columns=["request", "iterations"]
)
waits.groupby("request")["iterations"].max()

# %% [markdown]
# ## Elsewhere
#
# The service moves. Which of these still holds?
#
# **1.** *To a GPU on which a token of a prompt costs a hundredth of an iteration.* "Pauses cost us too much."
#
# <details><summary>Answer</summary>
#
# Not by itself. Count: a pause of 100 tokens costs one iteration of everybody's. An early start that saves more iterations than that still
# pays. The reader of a paused answer waits for room all the same.
# </details>
#
# **2.** *To a model with twice as many layers.* "A prompt of 200 tokens with an answer of
# 150 needs 11 blocks."
#
# <details><summary>Answer</summary>
#
# Yes: a block holds 32 tokens, however many bytes a token has. But each block has twice the bytes, so the same memory has
# half as many of them.
# </details>
#
# **3.** *To clients that all set `max_tokens` to 4,096.* "My reserve keeps pauses rare."
#
# <details><summary>Answer</summary>
#
# Yes, as long as the answers stay as they are: your scheduler looks at the tokens that are there.
# <code>guaranteed_no_evict</code> looks at <code>max_tokens</code>, and would start hardly any request.
# </details>

# %% [markdown]
# ## Done?
#
# When every check says so, compare with {counterpart}, then go on to {next}. The server ends with this notebook's kernel.
