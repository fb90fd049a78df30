# %% [markdown]
# # {heading}
#
# Three exercises, about 40 minutes. You count iterations on paper, read the waste from an engine's log, and make two
# traces: one that in-flight batching wins by far, and one that it does not win at all.
#
# Make a copy of this notebook before you edit it, so that an update of the course never touches your work. A check
# never stops you: it says done, not done yet, or gives a hint.
#
# {navigation}

# %% [markdown]
# ## Set up
#
# A server with static batching, as in the lesson. It uses the engine from lesson 01.

# %% tags=["nbval-ignore-output"]
import tempfile
from pathlib import Path

from inflight import engine
from inflight.bench import trace_run, workload
from inflight.checkpoint import fetch, load_tokenizer
from inflight.notebook import check
from inflight.triton import Client, Server, repository

engine_dir = engine.cached(fetch())
slots = engine.read(engine_dir).build_config.max_batch_size
workdir = tempfile.TemporaryDirectory()
log_path = Path(workdir.name) / "iterations.jsonl"
repo = repository.assemble(
    Path(workdir.name) / "repo",
    engine_dir,
    batching_strategy="V1",
    iteration_log_path=log_path,
)
server = Server(repo).start()
client = Client(server.grpc_url)
print("warm-up:", client.ask("Name the capital of France.").text)

# %% [markdown]
# ## Exercise 4.1 · Count on paper
#
# 12 minutes · medium
#
# `lengths` are the tokens of each answer, in the order in which the requests wait; all of them wait from the start.
# An answer of *n* tokens takes *n* iterations. How many iterations does the whole list take
#
# - with static batching: `slots` requests sit down together, the next when the last of them has finished;
# - in flight: the next request sits down in the iteration after a seat got free?


# %%
def static_iterations(lengths: list[int], slots: int) -> int | None:
    """Iterations with static batching."""
    # BEGIN SOLUTION
    # LAB: return None
    return sum(
        max(lengths[start : start + slots]) for start in range(0, len(lengths), slots)
    )
    # END SOLUTION


def in_flight_iterations(lengths: list[int], slots: int) -> int | None:
    """Iterations with in-flight batching."""
    # BEGIN SOLUTION
    # LAB: return None
    busy_until = [0] * slots
    for length in lengths:
        first_free = busy_until.index(min(busy_until))
        busy_until[first_free] += length
    return max(busy_until)
    # END SOLUTION


# %%
check("4.1", (static_iterations, in_flight_iterations))

# %% [markdown]
# <details><summary>Hint: static</summary>
#
# Cut the list into pieces of <code>seats</code> requests. What does one piece take?
# </details>
#
# <details><summary>Hint: in flight</summary>
#
# Keep one number a seat: the iteration until which it is taken. Who comes next takes the seat with the least.
# </details>
#
# ## Exercise 4.2 · Read the waste from a log
#
# 8 minutes · easy
#
# The server is yours, its guests are real. Run the mild trace with static batching:

# %% tags=["nbval-ignore-output"]
mild = workload.trace("mild", load_tokenizer(engine_dir), seed=0)
static = trace_run.run(client, mild, log_path)
static.log[
    [
        "iteration",
        "scheduled",
        "waiting",
        "context_tokens",
        "generation_tokens",
        "finished",
    ]
].head()

# %% [markdown]
# `scheduled` is the number of seats that computed something in that iteration. Write the function that gives the
# share of the seats' time that was wasted, between 0 and 1.


# %%
def wasted(log, slots: int) -> float | None:
    """Share of all slots in all iterations that computed nothing."""
    # BEGIN SOLUTION
    # LAB: return None
    return 1 - log["scheduled"].sum() / (len(log) * slots)
    # END SOLUTION


# %%
check("4.2", wasted)

# %% [markdown]
# Compare with in-flight batching on the same trace:

# %% tags=["nbval-ignore-output"]
repository.edit(repo, "tensorrt_llm", gpt_model_type="inflight_fused_batching")
server.load("tensorrt_llm")
inflight = trace_run.run(client, mild, log_path)
for name, run in (("static", static), ("in flight", inflight)):
    print(
        f"{name:10} {len(run.log):4} iterations, {run.tokens_per_s:4.0f} tokens/s, "
        f"wasted: {wasted(run.log, slots)}"
    )

# %% [markdown]
# ## Exercise 4.3 · Make a trace that wins, and one that does not
#
# 15 minutes · medium
#
# Make two lists of 24 answer lengths, each between 8 and 128 tokens, for an engine of eight seats:
#
# - `wins`: static batching needs at least 2.5 times the iterations of in-flight batching;
# - `draws`: static batching needs at most 1.1 times as many, **and** the lengths are not all equal: at least one is
#   four times another.
#
# Your functions of 4.1 tell you at once how near you are.

# %%
# BEGIN SOLUTION
# LAB: wins = None
# LAB: draws = None
wins = ([128] + [8] * 7) * 3
draws = [32] * 8 + [64] * 8 + [128] * 8
# END SOLUTION

# %%
check("4.3", (wins, draws))

# %% [markdown]
# <details><summary>Hint: wins</summary>
#
# The worst batch for static batching has one long answer and seven short ones. How many such batches can you make?
# </details>
#
# <details><summary>Hint: draws</summary>
#
# A batch is not wasted when its answers are of one length. Nobody said that all batches must have the same.
# </details>
#
# The second trace has a moral: whoever sorts requests by length before batching them needs no in-flight batching.
# Why does nobody do that? Because nobody knows the lengths in advance.
#
# Serve your winner, both ways:

# %% tags=["nbval-ignore-output"]
guests = [
    workload.TimedRequest("Tell me a story about a bridge.", length, 0.0, 0)
    for length in wins or [8] * 8
]
speed = {}
for gpt_model_type in ("V1", "inflight_fused_batching"):
    server.load("tensorrt_llm", gpt_model_type=gpt_model_type)
    trace_run.run(client, guests[:1], log_path)
    speed[gpt_model_type] = trace_run.run(client, guests, log_path).tokens_per_s
print(
    f"{speed['inflight_fused_batching'] / speed['V1']:.2f} times "
    "as many tokens a second in flight"
)

# %% [markdown]
# Fewer times than the iterations say? Look at the lesson again: what does an iteration with eight answers cost?
#
# ## What runs

# %% tags=["nbval-ignore-output"]
from inflight.notebook import session

session.running()

# %% [markdown]
# ## Done?
#
# When every check says so, compare with {counterpart}, then go on to {next}.
