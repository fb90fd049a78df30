# %% [markdown]
# # {heading}
#
# Three exercises, all *Core*, about {minutes} minutes (an estimate). You cap what clients ask for, and bound a prompt only
# while somebody reads. Then you write a scheduler that pauses better than the built-in one. Each is tried in the real
# server.
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
# The lesson's engine behind a server with a cache of 24 blocks, the lesson's sixteen captions, and its eight questions.

# %%
import tempfile
from dataclasses import replace
from pathlib import Path

import pandas as pd
from IPython.display import display

from inflight import CourseError, engine
from inflight.bench import trace_run, workload
from inflight.checkpoint import fetch, load_tokenizer
from inflight.engine import BuildConfig
from inflight.lessons import kv_cache as lesson
from inflight.notebook import check, parts, progress
from inflight.triton import Client, Server, repository

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
tokenizer = load_tokenizer(engine_dir)
prompts = workload.prompts_of([705, 500, *[90] * 16], tokenizer)
filling = workload.TimedRequest(prompts[0], 63, 0.0, 705)  # as in the lecture
captions = [
    workload.TimedRequest(text, 44, 0.02 * place, 90)
    for place, text in enumerate(prompts[2:])
]
countries = ["France", "Italy", "Japan", "Egypt", "Peru", "Norway", "Kenya", "Spain"]
asked = [f"Describe {country} in one short sentence." for country in countries]
questions = [
    workload.TimedRequest(text, 216, 0.02 * place, workload.input_len(text, tokenizer))
    for place, text in enumerate(asked)
]


def serve(requests, ends=None, **parameters):
    """Load the engine with these parameters, and send the requests."""
    cache = {"max_tokens_in_paged_kv_cache": 768, "enable_chunked_context": False}
    server.load("tensorrt_llm", **cache, **parameters)
    return lesson.run_behind(filling, client, requests, log_path, ends)


def counts(run):
    """What a run cost."""
    prompts = run.requests["input_len"].iloc[1:]  # the first is the one that fills
    return {
        "iterations": len(run.log),
        "computed again": run.log["context_tokens"].sum() - prompts.sum(),
    }


# %% [markdown]
# ## Exercise 5.1: the smallest cap
#
# *Core · importance 4/5 · difficulty 2/5 · 10 minutes*
#
# `guaranteed_no_evict` promises blocks for `max_tokens`, and clients ask for far more than they use. A gateway can cap what
# they ask for; who asks for less is left alone. A day in the log of your service has three numbers for each request: the
# tokens of its prompt, its `max_tokens`, and the tokens of its answer. Return two whole numbers,
#
# - the smallest cap with which at least 99 of 100 of the day's answers would have come whole;
# - how many blocks fewer the day's requests would have been promised with it, all together.


# %%
def cap(
    day: list[tuple[int, int, int]], tokens_per_block: int
) -> tuple[int, int] | None:
    """The smallest cap, and the blocks it frees; rows: prompt, max_tokens, answer."""
    # BEGIN SOLUTION
    # LAB: return None
    answers = sorted(answer for *_, answer in day)
    most = answers[-(-99 * len(day) // 100) - 1]
    freed = 0
    for prompt, max_tokens, _ in day:
        freed += -(-(prompt + max_tokens) // tokens_per_block)
        freed -= -(-(prompt + min(max_tokens, most)) // tokens_per_block)
    return most, freed
    # END SOLUTION


# %%
check("5.1", cap)

# %% [markdown]
# <details><summary>Where to look</summary>
#
# The lecture's <code>may_need</code>, under <em>On paper</em>: with a cap, what takes the place of
# <code>max_tokens</code>?
# </details>
#
# <details><summary>How to begin</summary>
#
# Sort the answers. How many of 200 have to be whole? And of 40?
# </details>
#
# <details><summary>The error you see</summary>
#
# <em>A smaller cap does, too</em>: count which of the sorted answers is yours; the first has place 0. <em>goes on asking
# for less</em>: <code>min</code>. <em>add the tokens, then round up</em>: 40 and 20 tokens fill two blocks of 32, not three.
# </details>
#
# In the real server the questions are the day. They come again with your cap, and without it under `max_utilization`:

# %% tags=["nbval-ignore-output"]
ways = {
    policy: {"scheduler_path": "", "batch_scheduler_policy": policy}
    for policy in ("guaranteed_no_evict", "max_utilization")
}
promised = {"ends": tokenizer, **ways["guaranteed_no_evict"]}
with progress.wait("Questions, three times"):
    before = serve(questions, **promised)
    day = before.requests[["input_len", "max_tokens", "output_len"]].iloc[1:]
    most, freed = cap(list(day.itertuples(index=False, name=None)), 32) or (216, 0)
    capped = [replace(one, max_tokens=min(216, most)) for one in questions]
    runs = {
        "guaranteed_no_evict, 216 tokens": before,
        f"guaranteed_no_evict, {most} tokens": serve(capped, **promised),
        "max_utilization, 216 tokens": serve(
            questions, ends=tokenizer, **ways["max_utilization"]
        ),
    }
print(f"A cap of {most} tokens promises {freed} blocks fewer.")
display(pd.DataFrame(map(counts, runs.values()), list(runs)))

# %% [markdown]
# With promises that are near the truth, the policy that never pauses runs as many at once as the other, and here needs an
# iteration less: the cap comes before the token that ends the longest answer. Of eight answers all have to be whole; of
# a thousand, ten may be cut.
#
# ## Exercise 5.2: in parts, while somebody reads
#
# *Core · importance 4/5 · difficulty 2/5 · 10 minutes*
#
# The lecture's five lines bound every iteration to 128 tokens, also while nobody reads: a prompt of 500 that comes to an
# idle server takes four iterations where one would do. Write a scheduler with which
#
# - an iteration has at most 128 tokens while somebody reads: while at least one answer is under way;
# - every answer under way gets its token in every iteration;
# - nothing else holds a prompt back, but the engine's own `max_num_tokens`.
#
# `now.running` has the requests that run, also those of which only a part of the prompt is computed. `one.answer_tokens`
# counts the tokens that a request has answered so far. The check plays hidden
# requests through your file in a process of its own.

# %%
# %%writefile {workdir.name}/in_parts.py
from dataclasses import replace

from inflight.engine import GuaranteedNoEvict


class Scheduler(GuaranteedNoEvict):
    def schedule(self, now):
        # BEGIN SOLUTION
        # LAB: # Yours. So far nobody may start:
        # LAB: return super().schedule(replace(now, waiting=[]))
        if any(one.answer_tokens for one in now.running):
            now = replace(now, max_num_tokens=128)
        return super().schedule(now)
        # END SOLUTION


# %%
check("5.2", Path(workdir.name) / "in_parts.py")

# %% [markdown]
# <details><summary>Where to look</summary>
#
# The lecture's <code>in_parts.py</code>, under <em>A long prompt arrives</em>, and what its bound counts.
# </details>
#
# <details><summary>How to begin</summary>
#
# Change <code>now</code> in one case only. In which iterations does nobody wait for a next token, although requests run?
# </details>
#
# <details><summary>The error you see</summary>
#
# <em>tokens in the longest iteration</em>: the answers' tokens count, too. <em>iterations until the first tokens</em>: a
# request that runs does not always read; its prompt may be half computed, with nobody else there.
# </details>
#
# In the real server, a prompt of 500 tokens comes alone, and then to seven readers:

# %% tags=["nbval-ignore-output"]
newcomer = workload.TimedRequest(prompts[1], 4, 0.3, 500)
story = "Tell me a story."
length = workload.input_len(story, tokenizer)
readers = [workload.TimedRequest(story, 64, 0.0, length)] * 7


def of_the_prompt(requests):
    """Iterations that compute the longest prompt, and the tokens of the largest."""
    its = lesson.of_longest_prompt(trace_run.run(client, requests, log_path).log)
    tokens = its[["context_tokens", "generation_tokens"]].sum(axis=1)
    return {"iterations": len(its), "most tokens": tokens.max()}


rows, schedulers = {}, {"built-in": "", "yours": f"{workdir.name}/in_parts.py"}
try:
    for way, path in progress.over(schedulers.items(), "Prompt", lambda way: way[0]):
        server.load(
            "tensorrt_llm",
            batch_scheduler_policy="guaranteed_no_evict",
            scheduler_path=path,
            enable_chunked_context=bool(path),
            max_tokens_in_paged_kv_cache=4096,
        )
        for company, others in {"alone": [], "beside readers": readers}.items():
            rows[way, company] = of_the_prompt([*others, newcomer])
except CourseError as error:
    print(error.sentence)
pd.DataFrame(rows).T

# %% [markdown]
# ## Exercise 5.3: pause seldom, and cheaply
#
# *Core · importance 5/5 · difficulty 4/5 · 40 minutes*
#
# Now let requests start early, and do it better than `max_utilization`. That policy always pauses the youngest request,
# and starts the next one as soon as its prompt fits. Two decisions are yours:
#
# - **Admission.** First come `now.paused`, then `now.waiting`, as long as at most `now.max_batch_size` run and the
#   `pending_tokens` of all that run fit into `now.max_num_tokens`. How much room in the cache do you leave for those that run?
# - **Eviction.** While the running requests need more blocks than are free (`now.blocks_needed(one)` of each), pause one;
#   it gives `one.own_blocks` back, and its `one.known_tokens`, prompt and answer so far, are computed again. Which loses least?
#
# Budgets, over hidden requests of three kinds:
#
# - no request starts while a paused one waits;
# - at most 1.15 times the iterations of the course's own scheduler;
# - at most 0.6 of the tokens that `max_utilization` computes twice;
# - a [P99](../notebooks/glossary.md#P99) of the latency, in iterations, no higher than under `guaranteed_no_evict`.
#   `max_utilization` usually has a slightly better one than the course's solution, the price of fewer pauses.

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
# <code>sum(now.blocks_needed(one) for one in running)</code> fits, then start the requests that fit.
# </details>
#
# <details><summary>The error you see</summary>
#
# <em>needs 3 KV cache blocks, of which 1 are free</em>: a running request may need a block in this very iteration; take
# those off <code>free</code> before any other starts. <em>Slots stay empty</em>: your reserve is too large. <em>admits
# request 4, which is neither waiting nor paused</em>: it is in <code>now.running</code> already. <em>request 1 is
# paused</em>: nobody lets it in again.
# </details>
#
# The captions in the real server, under both built-in policies and yours. Once your scheduler has passed, the later labs
# use it:

# %% tags=["nbval-ignore-output"]
scheduler = parts.part("scheduler")
print(repr(scheduler))
ways["scheduler"] = {"scheduler_path": str(scheduler)}
served = {}
for name, way in progress.over(ways.items(), "Captions", lambda way: way[0]):
    served[name] = counts(serve(captions, **way))
served = pd.DataFrame(served).T
assert served["computed again"]["guaranteed_no_evict"] == 0
saved = served["iterations"]["guaranteed_no_evict"] - served["iterations"]
served.assign(
    **{"for each iteration saved": (served["computed again"] / saved).round()}
)

# %% [markdown]
# The last column decides whether time is saved. At 17 tokens, the lecture's, the course's machine saved none. vLLM
# has such a reserve as `watermark`, off by default.

# %% [markdown]
# ## Bonus
#
# If you are early: no check, but something to see.
#
# 1. How much of your gain is the reserve's? Run `%env INFLIGHT_SEED=…` with the number under your last check, so that the
#    requests stay the same. Pause `running[-1]`, the youngest, and check again. The last file that passes is kept, so put
#    yours back; `%env INFLIGHT_SEED=` ends it.
# 2. An answer near its `max_tokens` gives its blocks back soon. Spare those, and check again: why does it gain so little?
#    Your journal has your tries: `from inflight.notebook import record; record.tries("5.3")`.
#
# <details><summary>Answer</summary>
#
# 1. Most of it. Of the tokens that <code>max_utilization</code> computes twice, the course's scheduler leaves about 0.27,
# 0.33 if it pauses the youngest, and 0.83 if it leaves no room.
#
# 2. With room to grow few pauses are left to choose for.
# </details>

# %% [markdown]
# ## Elsewhere
#
# The service moves. Which of these still holds?
#
# **1.** *To a GPU on which a token of a prompt costs a hundredth of an iteration.* "Pauses cost us too much."
#
# <details><summary>Answer</summary>
#
# No longer. <code>max_utilization</code> computes 756 tokens again, which is 7.6 iterations, and saves 44. The reader of a
# paused answer waits for room all the same.
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
