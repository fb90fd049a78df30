# %% [markdown]
# # Lab 07 · Iterative GPT-2
#
# Three exercises, about 40 minutes. You count what a cache saves, build one, and make four streams share two places.
#
# Make a copy of this notebook before you edit it, so that an update of the course never touches your work. A check
# never stops you: it says done, not done yet, or gives a hint.
#
# [← Lesson 07](../notebooks/07_iterative_gpt2.ipynb)

# %% [markdown]
# ## Set up
#
# A server with `iterative-gpt2`, as in the lesson, with a log of its forward passes.

# %% tags=["nbval-ignore-output"]
import tempfile
from pathlib import Path

from inflight import gpt2_checkpoint, gpt2_client, repository, telemetry
from inflight.grading import check
from inflight.server import Server

workdir = tempfile.TemporaryDirectory()
log_path = Path(workdir.name) / "passes.jsonl"
repo = repository.assemble(Path(workdir.name) / "repo", models=("iterative-gpt2",), iteration_log_path=log_path,
                           gpt2_checkpoint_dir=gpt2_checkpoint.find("course-gpt2"))
server = Server(repo).start()
gpt2_client.run(server.grpc_url, "iterative-gpt2", ["A warm-up"], max_tokens=4)["text"].tolist()

# %% [markdown]
# ## Exercise 7.1 · Count the waste
#
# 10 minutes · easy
#
# A forward pass computes the tokens that go into it, and gives one new token. How many tokens go through the model, in
# all passes together, for a prompt of `prompt` tokens and an answer of `answer` tokens
#
# - without a cache: each pass gets the whole text so far;
# - with a cache: the first pass gets the prompt, each later one the newest token alone?

# %%
def without_cache(prompt: int, answer: int) -> int | None:
    """Tokens computed when each pass gets the whole text."""
    # BEGIN SOLUTION
    # LAB: return None
    return sum(prompt + before for before in range(answer))
    # END SOLUTION


def with_cache(prompt: int, answer: int) -> int | None:
    """Tokens computed when each pass gets what it has not seen."""
    # BEGIN SOLUTION
    # LAB: return None
    return prompt + answer - 1
    # END SOLUTION

# %%
check("7.1", (without_cache, with_cache))

# %% [markdown]
# The server keeps count too. Ask for 20 tokens, once each way, and compare:

# %%
prompt_tokens = {}
for kv_cache in ("off", "on"):
    server.load("iterative-gpt2", kv_cache=kv_cache)
    start = log_path.stat().st_size
    gpt2_client.run(server.grpc_url, "iterative-gpt2", ["Programming in C++ is like"], max_tokens=20)
    passes = telemetry.passes(telemetry.executions(log_path, start))
    prompt_tokens[kv_cache] = int(passes["computed"].iloc[0])
    on_paper = (without_cache if kv_cache == "off" else with_cache)(prompt_tokens[kv_cache], 20)
    print(f"kv_cache {kv_cache:3}: {passes['computed'].sum():3} tokens computed, on paper {on_paper}")

# %% [markdown]
# <details><summary>Hint: without a cache</summary>
#
# The first pass gets <code>prompt</code> tokens, the second one more, and so on. There are <code>answer</code> passes.
# </details>
#
# ## Exercise 7.2 · Build a KV cache
#
# 15 minutes · medium
#
# This is attention as one head of one layer computes it: the newest token asks (`query`), every token so far answers
# with its `key` and gives its `value`. Nothing in a key or value depends on later tokens. So why compute them twice?

# %%
import numpy as np


def attend(query: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Attention of one token: query [size], keys and values [tokens, size]; gives [size]."""
    scores = keys @ query / np.sqrt(len(query))
    weights = np.exp(scores - scores.max())
    return weights / weights.sum() @ values


def without_a_cache(text: np.ndarray, query, key, value) -> np.ndarray:
    """Attention of the last token of `text` [tokens, width]: every key and value is computed again."""
    return attend(query(text[-1]), np.stack([key(x) for x in text]), np.stack([value(x) for x in text]))


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
check("7.2", next_token)

# %% [markdown]
# <details><summary>Hint</summary>
#
# Two lists in the cache, one for keys and one for values. Append first, then attend: a token sees itself.
# </details>
#
# The course's own is in `inflight/gpt2.py`: the same idea, with one tensor of slots for all sequences instead of lists.
#
# ## Exercise 7.3 · Four streams, two places
#
# 15 minutes · medium
#
# You run a service for four impatient readers on a machine that is fast with two. Find settings with which
#
# - all four streams have begun before the first of them ends, and
# - no forward pass has more than two streams in it.
#
# `settings` names fields of `config.pbtxt` by their path. The names are in `batchers.FIELDS`; those that start with
# `sequence_batching.oldest` choose the strategy of that name.

# %%
# BEGIN SOLUTION
# LAB: settings = {}
settings = {"max_batch_size": 2, "sequence_batching.oldest.max_candidate_sequences": 4}
# END SOLUTION

# %%
server.load("iterative-gpt2", **settings)
prompts = ["A cat is", "A river is", "A book is", "A train is"]
start = log_path.stat().st_size
gpt2_client.run(server.grpc_url, "iterative-gpt2", prompts, max_tokens=24)
passes = telemetry.passes(telemetry.executions(log_path, start))
check("7.3", (settings, passes))

# %% [markdown]
# <details><summary>Hint</summary>
#
# Two different fields: one says how many share a pass, one how many sequences are begun. With the strategy
# <code>direct</code> both are the same number.
# </details>
#
# ## Leave the machine as it was

# %%
server.stop()
workdir.cleanup()
print("server alive:", server.is_alive())
