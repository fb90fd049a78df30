# %% [markdown]
# # {heading}
#
# 20 min. Afterwards you will be able to size, build and choose an engine without help. Copy this notebook before you
# change it, so that you can start over.
#
# Three exercises. After each, run the cell with `check`: it says what is right, and gives a hint when something is
# not.
#
# {navigation}

# %%
import tempfile
from pathlib import Path

from inflight import engine
from inflight.checkpoint import fetch, load_tokenizer
from inflight.engine import BuildConfig, Executor, Request
from inflight.notebook import check

workdir = tempfile.TemporaryDirectory()
checkpoint = fetch()
info = engine.read(engine.cached(checkpoint))
model = info.pretrained_config

# %% [markdown]
# ## Exercise 1.1: users in 4 GB
#
# *5 minutes, easy.* You get a machine that leaves 4 GB (4e9 bytes) for the KV cache, weights already subtracted. Each
# user holds 1,500 tokens. The cache is handed out in whole blocks of 32 tokens. How many users fit at once, with the
# default engine? Write the function, for any memory and length, from `model`; do not build anything.


# %%
def users_that_fit(memory_bytes: float, tokens: int) -> int | None:
    """Users whose float32 KV cache fits into `memory_bytes`.

    Each of them has `tokens` tokens, in blocks of 32.
    """
    # BEGIN SOLUTION
    # LAB: return None
    bytes_per_token = (
        2
        * model["num_hidden_layers"]
        * model["num_key_value_heads"]
        * model["head_size"]
        * 4
    )
    blocks = -(-tokens // 32)
    return int(memory_bytes // (blocks * 32 * bytes_per_token))
    # END SOLUTION


# %%
print(users_that_fit(4e9, 1500), "users")
check("1.1", users_that_fit)

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Bytes a token: 2 × layers × KV heads × head size × 4. The keys of `model` are printed by `list(model)`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# 1,500 tokens do not fill their last block, but it is theirs: round up to whole blocks first, `-(-tokens // 32)`.
#
# </details>
# <details><summary>My number is a few too high</summary>
#
# You divided by 1,500 tokens instead of by whole blocks.
#
# </details>

# %% [markdown]
# ## Exercise 1.2: an engine for a service
#
# *8 minutes, medium.* A service answers short questions: prompts up to 200 tokens, answers up to 56, at most 16 users
# at a time. The KV cache of all 16 must fit into 64 MB (64e6 bytes), scales included. Write the build options, then
# let the check do the arithmetic. Leave out what has the right value already.

# %%
# BEGIN SOLUTION
# LAB: options = None
options = {
    "max_batch_size": 16,
    "max_input_len": 200,
    "max_seq_len": 256,
    "kv_cache_quant_algo": "INT8",
}
# END SOLUTION

# %%
check("1.2", options)

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# `max_seq_len` counts prompt and answer together.
#
# </details>
# <details><summary>Hint 2</summary>
#
# 16 users with 256 tokens each take about three times too much. Which option makes a number of the cache smaller?
#
# </details>
# <details><summary>I get "leaves no room for an answer"</summary>
#
# `max_seq_len` must be larger than `max_input_len`, by the length of the longest answer.
#
# </details>

# %% [markdown]
# ## Exercise 1.3: does company change the words?
#
# *7 minutes, medium.* With 8-bit activations, the same prompt may give other words when others are in the batch. Is
# that so with activations left as they are? Build an engine with `quant_algo="W4A16"` in the folder `workdir.name`,
# run `prompt` alone, then in the company of `others`, 32 tokens each, and give both lists of token ids of `prompt`'s
# answer.

# %%
tokenizer = load_tokenizer(info.folder)
topics = ("rivers", "chess", "bread", "bees", "maps")
prompt, *others = [
    tokenizer.encode(tokenizer.chat(f"Tell me about {topic}.")) for topic in topics
]

# BEGIN SOLUTION
# LAB: alone, in_company = None, None
folder = engine.build(
    checkpoint, BuildConfig(quant_algo="W4A16"), Path(workdir.name) / "w4a16"
)
with Executor.load(folder) as executor:
    alone = executor.generate(Request(prompt, request_output_len=32)).token_ids
    batch = [Request(ids, request_output_len=32) for ids in [prompt, *others]]
    in_company = executor.generate_all(batch)[0].token_ids
# END SOLUTION

# %%
check("1.3", [alone, in_company])

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# `Executor.load(folder)` is a context manager; `generate` takes one `Request`, `generate_all` a list and keeps its order.
#
# </details>
# <details><summary>Hint 2</summary>
#
# An answer's tokens are `response.token_ids`. Put `prompt` first in the list, then its answer is the first as well.
#
# </details>
# <details><summary>My two lists differ</summary>
#
# Then the engine has 8-bit activations: build it with `BuildConfig(quant_algo="W4A16")`, and not the default.
#
# </details>

# %%
workdir.cleanup()

# %% [markdown]
# ## Done
#
# You can now say what a model costs in memory before you have it, and build the engine that a service needs.
# Compare with {counterpart}, then go on to {next}.
