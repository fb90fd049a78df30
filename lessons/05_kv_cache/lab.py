# %% [markdown]
# # {heading}
#
# Four exercises, about 65 minutes. You write a scheduler that never pauses anybody, and then one that pauses better than
# the built-in one; both run in the real server. On the way you count blocks and size a cache.
#
# A check never stops you: it says done, not done yet, or gives a hint.
#
# {navigation}

# %% [markdown]
# ## Set up
#
# The lesson's engine behind a server with a tight cache, and the lesson's captions, which feel it.

# %%
import tempfile
from pathlib import Path

import pandas as pd
from IPython.display import display

from inflight import CourseError, engine
from inflight.bench import trace_run, workload
from inflight.checkpoint import fetch, load_tokenizer
from inflight.engine import BuildConfig
from inflight.notebook import check, mine, progress
from inflight.triton import Client, Server, repository, telemetry

workdir = tempfile.TemporaryDirectory()
log_path = Path(workdir.name) / "iterations.jsonl"
engine_dir = engine.cached(fetch(), BuildConfig(max_input_len=512, max_seq_len=1024))
repo = repository.assemble(
    Path(workdir.name) / "repo",
    engine_dir,
    iteration_log_path=log_path,
    batch_scheduler_policy="max_utilization",
    max_tokens_in_paged_kv_cache=1024,
)
server = Server(repo).start()
client = Client(server.grpc_url)

# %%
input_lens, output_len = range(120, 128), 40
prompts = workload.prompts_of(input_lens, load_tokenizer(engine_dir))
captions = [
    workload.TimedRequest(text, output_len, place * workload.TRACE_GAP_S, input_len)
    for place, (text, input_len) in enumerate(zip(prompts, input_lens))
]


def serve(**parameters):
    """Load the engine with these parameters, and let it write the captions."""
    server.load("tensorrt_llm", **parameters)
    client.ask("Name the capital of France.", 8)
    run = trace_run.run(client, captions, log_path)
    ends = telemetry.shares(run.log).groupby("request")["iteration"].max()
    return {
        "iterations": len(run.log),
        "computed twice": run.log["context_tokens"].sum() - sum(input_lens),
        "P99 (iterations)": ends.quantile(0.99, interpolation="higher"),
        "tokens/s": run.tokens_per_s,
    }


# %% [markdown]
# ## Exercise 5.1: how many blocks
#
# *importance 3/5 · difficulty 1/5 · 8 minutes*
#
# Write `blocks`: how many KV cache blocks a request needs to begin (its prompt), and how many must be certain before
# `guaranteed_no_evict` lets it join (its prompt and its longest answer). A block belongs to one request alone.


# %%
def blocks(
    input_len: int, max_tokens: int, tokens_per_block: int
) -> tuple[int, int] | None:
    """Blocks of the prompt, and of prompt and answer together."""
    # BEGIN SOLUTION
    # LAB: return None
    return -(-input_len // tokens_per_block), -(
        -(input_len + max_tokens) // tokens_per_block
    )
    # END SOLUTION


# %%
check("5.1", blocks)

# %% [markdown]
# <details><summary>Where to look</summary>
#
# The lecture's class <code>OnPaper</code>, under <em>On paper first</em>: <code>holds</code> and <code>may_need</code>.
# </details>
#
# <details><summary>How to begin</summary>
#
# There is no half block: 33 tokens take two blocks of 32. <code>-(-a // b)</code> divides whole numbers and rounds up.
# </details>
#
# <details><summary>The error you see</summary>
#
# <em>Round the sum only once</em>: the answer goes on in the block in which the prompt ends. Add the tokens first.
# </details>

# %% [markdown]
# ## Exercise 5.2: the smallest cache
#
# *importance 3/5 · difficulty 3/5 · 12 minutes*
#
# How small may `max_tokens_in_paged_kv_cache` be so that under `guaranteed_no_evict` nobody ever waits beside an empty
# slot, **in whatever order the requests come**? Write `smallest_cache`. It takes a list of (tokens of the prompt, tokens
# of the longest answer), the slots, the tokens of a block, and the engine's `max_seq_len`. A cache in which one request
# of `max_seq_len` does not fit is refused.


# %%
def smallest_cache(
    lengths: list[tuple[int, int]], slots: int, tokens_per_block: int, max_seq_len: int
) -> int | None:
    """Tokens of cache with which a free slot is always free for the next request."""
    # BEGIN SOLUTION
    # LAB: return None
    whole = sorted(
        (-(-(prompt + answer) // tokens_per_block) for prompt, answer in lengths),
        reverse=True,
    )
    longest = -(-max_seq_len // tokens_per_block)
    return max(sum(whole[:slots]), longest) * tokens_per_block
    # END SOLUTION


# %%
check("5.2", smallest_cache)

# %% [markdown]
# <details><summary>Where to look</summary>
#
# Question 1 of the lecture's recap, and the first fault under <em>What breaks</em>.
# </details>
#
# <details><summary>How to begin</summary>
#
# The worst evening is the one on which the largest requests are in the slots together. How many can that be?
# </details>
#
# <details><summary>The error you see</summary>
#
# <em>The engine refuses to load</em>: with few or short requests, one longest request still has to fit.
# <em>Less is enough</em>: no more requests than slots can be in at once.
# </details>

# %% [markdown]
# ## Exercise 5.3: nobody is ever paused
#
# *Core · importance 5/5 · difficulty 3/5 · 20 minutes*
#
# Now the rule itself. The engine asks a scheduler before each iteration: `schedule(now)` sees who waits, who runs and
# how many blocks there are, and returns a `Plan`. What `now` and a request know stands in the package's
# `inflight/engine/scheduler.py`; its first hundred lines are enough.
#
# Write `guaranteed_no_evict`'s admission: append to `running`, first come first served, each waiting request that fits
#
# - into a slot (`now.max_batch_size`),
# - into this iteration: its prompt takes `pending_tokens` of the `room` that is left,
# - into the cache: blocks for the `max_tokens` of everybody who runs, and of the newcomer, within `now.num_blocks`. A
#   request's `max_tokens` counts its prompt and its longest answer together here.
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
        # LAB: # Your admission: append to `running` who may join.
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
check("5.3", Path(workdir.name) / "no_evict.py")

# %% [markdown]
# And in the real server, beside the built-in policy. A scheduler that fails there is refused with a sentence, and the
# one before serves on:

# %% tags=["nbval-ignore-output"]
own = {"scheduler_path": f"{workdir.name}/no_evict.py"}
built_in = {"scheduler_path": "", "batch_scheduler_policy": "guaranteed_no_evict"}
try:
    with progress.wait("Captions, twice"):
        rows = [serve(**built_in), serve(**own)]
    display(pd.DataFrame(rows, ["built-in", "yours"]).round(1))
except CourseError as error:
    print(error)

# %% [markdown]
# <details><summary>Where to look</summary>
#
# The lecture's <code>guaranteed_no_evict(running)</code> has the sum. <code>RequestView</code> in
# <code>scheduler.py</code> has <code>max_tokens</code>; <code>now.blocks_for(tokens)</code> rounds up for you.
# </details>
#
# <details><summary>How to begin</summary>
#
# A loop over <code>now.waiting</code> that ends with <code>break</code> at the first request that does not fit: who
# skips it lets shorter ones overtake it for ever.
# </details>
#
# <details><summary>The error you see</summary>
#
# <em>needs 5 KV cache blocks, of which 3 are free</em>: you promised too much, and now the answers grow. Count
# <code>max_tokens</code>, not <code>known_tokens</code>, and of those who run already, too.
# <em>let in before there was room</em>: each newcomer's prompt takes its tokens off <code>room</code>.
# </details>

# %% [markdown]
# ## Exercise 5.4: who is paused?
#
# *Core · importance 5/5 · difficulty 4/5 · 25 minutes*
#
# Now let requests in early, and do it better than `max_utilization`, which always pauses the youngest and lets the next
# one in as soon as its prompt fits. Two decisions are yours:
#
# 1. **Eviction.** While those who run need more blocks than are free (`now.blocks_needed(one)` of each), pause one: whose
#    loss costs least? It gives `one.own_blocks` back.
# 2. **Admission.** Paused requests come first, then waiting ones. How much room do you leave for those who run?
#
# Budgets, over hidden requests of three kinds: at most 1.25 times the iterations of `max_utilization`, at most 0.65 of
# the tokens that it computes twice, and nobody waits longer than under `guaranteed_no_evict`.

# %%
# %%writefile {workdir.name}/scheduler.py
"""Who runs next, in a cache that is too small for all."""

from itertools import chain

from inflight.engine import Plan, tokens_to_compute


class Scheduler:
    def schedule(self, now):
        running, free = list(now.running), now.free_blocks
        pause, joining = [], []

        # BEGIN SOLUTION
        # LAB: # 1. While there are too few blocks, move a request from `running` to `pause`.
        # LAB: # 2. Append to `joining` who may join.
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
check("5.4", Path(workdir.name) / "scheduler.py")

# %% [markdown]
# In the real server, beside both built-in policies. From here on the labs use your scheduler, if it has passed:

# %% tags=["nbval-ignore-output"]
scheduler = mine.part("scheduler")
print(repr(scheduler))
policies = {
    policy: {"scheduler_path": "", "batch_scheduler_policy": policy}
    for policy in ("guaranteed_no_evict", "max_utilization")
}
ways = {**policies, "scheduler": {"scheduler_path": str(scheduler)}}
rows = [serve(**way) for way in progress.over(ways.values(), "Captions")]
served = pd.DataFrame(rows, list(ways))
fastest = served["tokens/s"]["max_utilization"]
served["speed, of max_utilization's"] = served.pop("tokens/s") / fastest
assert served["computed twice"]["guaranteed_no_evict"] == 0
served.round(2)

# %% [markdown]
# Eight equal captions are one evening of many: here the counts decide, and the speed is shown. Your journal has what each
# of your tries came to. A point is the iterations of `max_utilization`, another the tokens that it computes twice: fewer is
# better, and 2 is what you get for copying it.

# %% tags=["nbval-ignore-output"]
from inflight.notebook import record

record.tries("5.4")

# %% [markdown]
# <details><summary>Where to look</summary>
#
# <code>MaxUtilization</code> in <code>inflight/engine/scheduler.py</code> does both, and well enough to begin
# with. The lecture's replay shows when its pauses come.
# </details>
#
# <details><summary>How to begin</summary>
#
# First a scheduler that breaks no rule: move the youngest to <code>pause</code> until
# <code>sum(now.blocks_needed(one) for one in running)</code> fits, then let join who fits. Then count: how many blocks
# should stay free beside those who run, if each of them needs another one soon?
# </details>
#
# <details><summary>The error you see</summary>
#
# <em>needs 3 KV cache blocks, of which 1 are free</em>: whoever runs on may need a block in this very iteration; take
# those off <code>free</code> before anybody joins. <em>Slots stay empty</em>: your reserve is too large.
# <em>admits request 4, which is neither waiting nor paused</em>: it is in <code>now.running</code> already.
# </details>

# %% [markdown]
# ## Bonus
#
# For those who are early: no check, but something to see.
#
# 1. Beat your own best. Whom would you pause if you knew where answers end? Guess it: an answer that has
#    come near its `max_tokens` gives its blocks back soon anyway.
# 2. Let shorter prompts overtake longer ones. What happens to P99, and to the request that is overtaken? The column
#    `longest_wait` of the iteration log tells who waits, and for how many iterations:

# %% tags=["nbval-ignore-output"]
log = telemetry.iterations(log_path)
waits = pd.DataFrame(log["longest_wait"].dropna().tolist(), columns=["request", "for"])
waits.groupby("request")["for"].max().tail(len(captions))

# %% [markdown]
# ## Elsewhere
#
# The service moves. Which of these still holds?
#
# **1.** *To a GPU on which a token of a prompt costs a hundredth of an iteration.* "With answers as long as `max_tokens`,
# `guaranteed_no_evict` is faster."
#
# <details><summary>Answer</summary>
#
# Hardly. Tokens computed twice are the price of <code>max_utilization</code>, and it has become small; what it gains,
# fuller iterations, is worth as much as before. Measure again.
# </details>
#
# **2.** *To a model with twice as many layers.* "The request needs 11 blocks."
#
# <details><summary>Answer</summary>
#
# Yes: a block holds 32 tokens, whatever a token takes. But each block has twice the bytes, so the same memory has half as
# many of them.
# </details>
#
# **3.** *To clients that all set `max_tokens` to 4,096.* "My reserve of one block for each who runs keeps pauses rare."
#
# <details><summary>Answer</summary>
#
# Yes, as long as the answers themselves stay as they are: your scheduler looks at the tokens that are there.
# <code>guaranteed_no_evict</code> looks at <code>max_tokens</code>, and would let hardly anybody in.
# </details>

# %% [markdown]
# ## What runs

# %% tags=["nbval-ignore-output"]
from inflight.notebook import session

session.running()

# %% [markdown]
# ## Done?
#
# When every check says so, compare with {counterpart}, then go on to {next}.
