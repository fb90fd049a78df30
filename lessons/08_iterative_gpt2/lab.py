# %% [markdown]
# # {heading}
#
# Three exercises, about 40 minutes. You count what a cache saves, build one, and make ten streams share four places.
#
# Make a copy of this notebook before you edit it, so that an update of the course never touches your work. A check
# never stops you: it says done, not done yet, or gives a hint.
#
# {navigation}

# %% [markdown]
# ## Set up
#
# A server with `iterative-gpt2`, as in the lesson, with a log of its forward passes.

# %% tags=["nbval-ignore-output"]
import tempfile
from pathlib import Path

from inflight.bench import gpt2_client
from inflight.models import gpt2_checkpoint
from inflight.notebook import check
from inflight.triton import Server, repository, telemetry

workdir = tempfile.TemporaryDirectory()
log_path = Path(workdir.name) / "passes.jsonl"
repo = repository.assemble(
    Path(workdir.name) / "repo",
    models=("iterative-gpt2",),
    iteration_log_path=log_path,
    gpt2_checkpoint_dir=gpt2_checkpoint.find("course-gpt2"),
)
server = Server(repo).start()
gpt2_client.run(server.grpc_url, "iterative-gpt2", ["A warm-up"], max_tokens=4)[
    "text"
].tolist()

# %% [markdown]
# ## Exercise 8.1 · Count the waste
#
# 10 minutes · easy
#
# Prompts of so many tokens are answered together, each with `answer` tokens. A pass computes the tokens that go into it, and
# gives every sequence one more. How many go through the model, in all passes together,
#
# - padded, the tutorial's way: in each pass every text so far, and padding up to the longest of them;
# - without a cache: in each pass every text so far, and nothing else;
# - with a cache: the prompts in the first pass, then each sequence's newest token alone?


# %%
def padded(prompts: list[int], answer: int) -> int | None:
    """Tokens computed when each pass gets all texts as long as the longest."""
    # BEGIN SOLUTION
    # LAB: return None
    return sum(len(prompts) * (max(prompts) + before) for before in range(answer))
    # END SOLUTION


def without_cache(prompts: list[int], answer: int) -> int | None:
    """Tokens computed when each pass gets the whole texts."""
    # BEGIN SOLUTION
    # LAB: return None
    return sum(sum(prompts) + len(prompts) * before for before in range(answer))
    # END SOLUTION


def with_cache(prompts: list[int], answer: int) -> int | None:
    """Tokens computed when each pass gets what it has not seen."""
    # BEGIN SOLUTION
    # LAB: return None
    return sum(prompts) + len(prompts) * (answer - 1)
    # END SOLUTION


# %%
check("8.1", (padded, without_cache, with_cache))

# %% [markdown]
# The server keeps count too. Ask for 20 tokens, once each way, and compare:

# %%
texts = ["One", "Programming in C++ is like", "The capital of France is the city of"]
for kv_cache, on_paper in (("off", without_cache), ("on", with_cache)):
    server.load("iterative-gpt2", kv_cache=kv_cache)
    start = log_path.stat().st_size
    gpt2_client.run(server.grpc_url, "iterative-gpt2", texts, max_tokens=20)
    passes = telemetry.passes(telemetry.executions(log_path, start))
    lengths = passes.groupby("sequence")["computed"].first().tolist()
    print(
        f"kv_cache {kv_cache:3}: {passes['computed'].sum():4} tokens computed, "
        f"on paper {on_paper(lengths, 20)}"
    )

# %% [markdown]
# <details><summary>Hint: without a cache</summary>
#
# Take one prompt first: its first pass gets the prompt, the second one token more, and so on. There are
# <code>answer</code> passes, and the last token of an answer goes into none.
# </details>
#
# ## Exercise 8.2 · Build a KV cache
#
# 15 minutes · medium
#
# This is attention as one head of one layer computes it: the newest token asks (`query`), every token so far answers
# with its `key` and gives its `value`. Nothing in a key or value depends on later tokens. So why compute them twice?

# %%
import numpy as np


def attend(query: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Attention of a token: query [size], keys, values [tokens, size]; gives [size]."""
    scores = keys @ query / np.sqrt(len(query))
    weights = np.exp(scores - scores.max())
    return weights / weights.sum() @ values


def without_a_cache(text: np.ndarray, query, key, value) -> np.ndarray:
    """Attention of the last token of `text` [tokens, width]; nothing is kept."""
    return attend(
        query(text[-1]),
        np.stack([key(x) for x in text]),
        np.stack([value(x) for x in text]),
    )


# %% [markdown]
# Write the step with a cache. `x` is the newest token alone; `query`, `key` and `value` are functions that turn a token
# into a vector, and each may be called once. `cache` is a dict, empty at first, that is yours to fill: every text has its own,
# and hands it in again with its next token.


# %%
def next_token(x: np.ndarray, query, key, value, cache: dict) -> np.ndarray | None:
    """Attention of `x` to itself and to all tokens of its text before it."""
    # BEGIN SOLUTION
    # LAB: return None
    cache.setdefault("keys", []).append(key(x))
    cache.setdefault("values", []).append(value(x))
    return attend(query(x), np.stack(cache["keys"]), np.stack(cache["values"]))
    # END SOLUTION


# %%
check("8.2", next_token)

# %% [markdown]
# <details><summary>Hint</summary>
#
# Two lists in the cache, one for keys and one for values. Append first, then attend: a token sees itself.
# </details>
#
# The course's own is in `inflight/models/gpt2.py`: the same idea, with one tensor of slots for all sequences instead of lists.
#
# ## Exercise 8.3 · Ten streams, four places
#
# 15 minutes · medium
#
# Ten impatient readers share a machine on which a pass with more than four texts is too slow. Find settings with which
#
# - all ten streams have begun before the first of them ends, and
# - the fullest forward pass has four streams in it.
#
# `settings` names fields as the lesson's editor does: `"max_batch_size"`, `"kv_cache"`, and paths such as
# `"sequence_batching.oldest.max_candidate_sequences"`, which chooses the strategy of that name too.

# %%
# BEGIN SOLUTION
# LAB: settings = {}
settings = {
    "max_batch_size": 4,
    "sequence_batching.oldest.max_candidate_sequences": 10,
    "kv_cache_slots": 10,
}
# END SOLUTION

# %%
server.load("iterative-gpt2", **settings)
prompts = ["A cat is", "A river is", "A book is", "A train is", "A king is"] * 2
start = log_path.stat().st_size
gpt2_client.run(server.grpc_url, "iterative-gpt2", prompts, max_tokens=24)
passes = telemetry.passes(telemetry.executions(log_path, start))
check("8.3", (settings, passes))

# %% [markdown]
# <details><summary>Hint</summary>
#
# Three different fields: one says how many share a pass, one how many sequences Triton begins, and one how many have room
# in the KV cache.
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
