# %% [markdown]
# # {heading}
#
# Five exercises, about {minutes} minutes (an estimate), of which {core} are *Core*. You work out the memory of models
# that you do not have, and build an engine for a service. Then you decode and encode 4-bit weights, and an engine is
# built from what your code made. Last you find out whether an answer depends on who is served beside it.
#
# You need lecture 01. Each exercise ends with a `check`. It tries your answer on cases that differ every time, and says
# what to look at when something is not right.
#
# Run the first code cell before any other: it brings `check`, and what the exercises use. A `NameError` says that it has
# not been run.
#
# {navigation}

# %%
import tempfile
from pathlib import Path

import numpy as np

from inflight import engine
from inflight.checkpoint import fetch, load_tokenizer
from inflight.engine import BuildConfig, Executor, Request
from inflight.notebook import check, parts

workdir = tempfile.TemporaryDirectory()
checkpoint = fetch()

# %% [markdown]
# ## Exercise 1.1: the KV cache of a model from its config
#
# *Core · importance 5/5 · difficulty 3/5 · 10 minutes*
#
# How much memory would a model need that you do not have? All you get is its `config.json`. What a layer keeps of a token:
#
# | the config has | a layer keeps |
# |---|---|
# | `num_key_value_heads` | a key and a value for each of these heads. Each has `head_dim` numbers; without `head_dim`, `hidden_size` / `num_attention_heads` |
# | no `num_key_value_heads` | the same, for each of `num_attention_heads` |
# | `kv_lora_rank` (DeepSeek), whatever else | *one* vector of `kv_lora_rank` + `qk_rope_head_dim` numbers, from which all keys and values are made |
#
# Layers that see only a window, or keep a state instead of a cache, need less; they are left out here. A number takes 2
# bytes. Write both functions. For `users_that_fit`, the cache is handed out in whole blocks of 32 tokens,
# and no block belongs to two users.


# %%
def kv_bytes(config: dict) -> int | None:
    """Bytes of KV cache that one token takes in all layers."""
    # BEGIN SOLUTION
    # LAB: return None
    if "kv_lora_rank" in config:
        numbers = config["kv_lora_rank"] + config["qk_rope_head_dim"]
    else:
        heads = config["num_attention_heads"]
        size = config.get("head_dim", config["hidden_size"] // heads)
        numbers = 2 * config.get("num_key_value_heads", heads) * size
    return config["num_hidden_layers"] * numbers * 2
    # END SOLUTION


def users_that_fit(config: dict, memory_bytes: int, tokens: int) -> int | None:
    """Users with `tokens` tokens each whose cache fits into `memory_bytes`."""
    # BEGIN SOLUTION
    # LAB: return None
    blocks = -(-tokens // 32)
    return memory_bytes // (blocks * 32 * kv_bytes(config))
    # END SOLUTION


# %%
check("1.1", (kv_bytes, users_that_fit))

# %% [markdown]
# <details><summary>Where to look</summary>
#
# The formula in [What a token has to read](../notebooks/01_engine.ipynb#What-a-token-has-to-read). Which of its factors
# does each row of the table change?
#
# </details>
# <details><summary>How to begin</summary>
#
# Ask `"kv_lora_rank" in config` first. `config.get("head_dim", …)` returns its second argument where there is no `head_dim`.
# Whole blocks: `-(-tokens // 32)`.
#
# </details>
# <details><summary>The error you see</summary>
#
# *KeyError: 'num_key_value_heads'*: that config has none; use `get`. A few users too many: you divided by tokens instead of
# whole blocks. Twice as many bytes as wanted, for *latent*: it is one vector, not a key and a value.
#
# </details>

# %% [markdown]
# ## Exercise 1.2: an engine for a service
#
# *Core · importance 5/5 · difficulty 3/5 · 10 minutes*
#
# A service answers short questions: prompts of up to 200 tokens, answers of up to 56, 16 users at a time. Weights and a full
# KV cache must fit into 170 MB (170e6 bytes). Build the engine; options with the right default you can leave out. The
# check loads it, sends 16 requests at once, and measures.

# %%
# BEGIN SOLUTION
# LAB: service = None  # the folder that engine.build makes
service = engine.build(
    checkpoint,
    BuildConfig(
        max_batch_size=16,
        max_input_len=200,
        max_seq_len=256,
        kv_cache_quant_algo="INT8",
    ),
    Path(workdir.name) / "service",
)
# END SOLUTION

# %%
check("1.2", service)

# %% [markdown]
# <details><summary>Where to look</summary>
#
# *Turn the knob* in the lecture shows what slots, tokens and INT8 do to the memory. `BuildConfig?` lists all options.
#
# </details>
# <details><summary>How to begin</summary>
#
# `engine.build(checkpoint, BuildConfig(...), Path(workdir.name) / "service")`, with `max_batch_size`, `max_input_len`
# and `max_seq_len`, which counts prompt and answer together. The cache of 16 users with 256 tokens each then takes more than
# twice the room that there is. Which option stores its numbers in fewer bits?
#
# </details>
# <details><summary>The error you see</summary>
#
# *leaves no room for an answer*: `max_seq_len` must exceed `max_input_len`. *does not fit into an iteration of
# max_num_tokens*: a prompt is computed in one iteration, so `max_num_tokens` must have room for it, and for a token of
# each other user.
#
# </details>

# %% [markdown]
# ## Exercise 1.3: read a block
#
# *Further · importance 3/5 · difficulty 2/5 · 10 minutes*
#
# A block of `Q4_1` has 20 bytes and stands for 32 weights:
#
# | bytes | hold |
# |---|---|
# | 0, 1 | d, the width of a step: float16, low byte first |
# | 2, 3 | m, the smallest weight: float16 |
# | 4 to 19 | 32 numbers q of 4 bits: byte 4 + i has that of weight i in its low half, and that of weight i + 16 in its high half |
#
# A weight is d · q + m. Write `decode`. `example` is the first block of the course's model. Its first weights are −0.096,
# 0.157 and −0.096.

# %%
example = bytes.fromhex("0f30d8b9458765406f65164b677664502267655a")


def decode(block: bytes) -> list[float] | None:
    """The 32 weights of a block, 20 bytes."""
    # BEGIN SOLUTION
    # LAB: return None
    d, m = np.frombuffer(block[:4], np.float16).astype(float)
    halves = [byte & 15 for byte in block[4:]] + [byte >> 4 for byte in block[4:]]
    return [d * q + m for q in halves]
    # END SOLUTION


print(decode(example))

# %%
check("1.3", decode)

# %% [markdown]
# <details><summary>Where to look</summary>
#
# The lecture decodes one block in [What a token has to read](../notebooks/01_engine.ipynb#What-a-token-has-to-read).
#
# </details>
# <details><summary>How to begin</summary>
#
# `np.frombuffer(block[:4], np.float16)` gives d and m. The low half of a byte is `byte & 15`, the high half `byte >> 4`.
#
# </details>
# <details><summary>The error you see</summary>
#
# *buffer size must be a multiple of element size*: you took an odd number of bytes as float16. Weights of many
# thousands: you read d and m as whole numbers.
#
# </details>

# %% [markdown]
# ## Exercise 1.4: write blocks
#
# *Further · importance 3/5 · difficulty 3/5 · 15 minutes*
#
# Now the other way. `quantize` takes float32 weights, a row of 32 for each block, and returns 20 bytes for each block.
# Find d and m from the smallest and the largest weight, and for each weight the q of the nearest level. The check
# decodes what you made, and compares the squared error with a budget, on blocks of three kinds. In one kind all 32
# weights are alike.
#
# Compute with whole arrays: a model has millions of blocks. The check runs your file in a process of its own, so the file
# needs its own imports.

# %% tags=["part:quantizer.py"]
# %%writefile {workdir.name}/quantizer.py
# import numpy as np
#
#
# def quantize(blocks):
#     """Float32 [blocks, 32] as uint8 [blocks, 20]: d, m, 16 bytes of two q."""
#     # BEGIN SOLUTION
#     # LAB: return None
#     least, most = blocks.min(axis=1), blocks.max(axis=1)
#     d, m = ((most - least) / 15).astype(np.float16), least.astype(np.float16)
#     width = np.where(d > 0, d, 1).astype(np.float32)  # where all weights are alike, any
#     q = np.rint((blocks - m.astype(np.float32)[:, None]) / width[:, None])
#     q = np.clip(q, 0, 15).astype(np.uint8)
#     scales = np.stack([d, m], axis=1).view(np.uint8)
#     return np.concatenate([scales, q[:, :16] | q[:, 16:] << 4], axis=1)
#     # END SOLUTION

# %%
check("1.4", Path(workdir.name) / "quantizer.py")

# %% [markdown]
# <details><summary>Where to look</summary>
#
# Your `decode`, read backwards. NumPy: `min(axis=1)`, `np.rint`, `np.clip`, `astype`, `view`, `np.concatenate`.
#
# </details>
# <details><summary>How to begin</summary>
#
# `d = (most - least) / 15` and `m = least`, both `.astype(np.float16)`; `q` is the nearest whole number to
# `(blocks - m[:, None]) / d[:, None]`, from 0 to 15. `np.stack([d, m], axis=1).view(np.uint8)` makes four bytes of two
# float16, and `q[:, :16] | q[:, 16:] << 4` makes one byte of two q.
#
# </details>
# <details><summary>The error you see</summary>
#
# *give uint8 … yours is int64*: turn q into `np.uint8` before you join the bytes. *divide by zero*, or *all alike not right
# yet*: where d is 0, divide by 1; any q will do there. An error somewhat above the budget: you divided by 16, but 16
# levels are 15 steps apart. An error of several times the budget: you cut (`astype(int)`) where you should round.
#
# </details>

# %% [markdown]
# ### Your weights in an engine
#
# If your quantizer has passed, the course uses it from here on; otherwise it uses its own. The next cell turns the model's
# weights into floats, quantizes those of all layers again with that function, and builds an engine from the result.
# At the first token that differs, two answers diverge: how many of 32 tokens are the same?

# %% tags=["nbval-ignore-output"]
from inflight.checkpoint import quantized

quantizer = parts.part("quantizer")
print(repr(quantizer))
own = quantized(
    checkpoint, parts.load("quantizer").quantize, Path(workdir.name) / "own.gguf"
)
folders = {
    "yours": engine.build(own, BuildConfig(), Path(workdir.name) / "own"),
    "the checkpoint's": engine.cached(checkpoint),
}
tokens = {}
for name, folder in folders.items():
    tokenizer = load_tokenizer(folder)
    prompt = tokenizer.encode(tokenizer.chat("What is a quantized weight?"))
    with Executor.load(folder) as executor:
        tokens[name] = executor.generate(Request(prompt, 32)).token_ids
    print(f"{name}: {tokenizer.decode(tokens[name])}")
same = sum(one == other for one, other in zip(*tokens.values()))
print(f"{same} of 32 tokens are the same")

# %% [markdown]
# ## Exercise 1.5: batch invariance
#
# *Further · importance 4/5 · difficulty 3/5 · 15 minutes*
#
# Does an answer depend on who is in the batch? An engine whose answers do not is called
# [batch invariant](../notebooks/glossary.md#Batch-invariance), and most engines are not: the number of tokens in
# an iteration decides which kernel computes a product and in which order it sums up, and each order rounds differently.
# vLLM has kernels that keep the order (`VLLM_BATCH_INVARIANT=1`).
#
# Here it depends on the build. With W4A16, another order moves the logarithm of a token's probability by some 0.00001, and
# the words of short answers stay. That is invariance *within rounding*, on this engine and at these sizes; it is no promise
# for every prompt. With W4A8, which is the default where the processor multiplies 8-bit whole numbers, rounded activations
# move it by some 0.1, and now and then another token wins.
#
# - Write `compare`, which shows this for any engine. It returns the 32 tokens that `prompt` gets when it runs alone, and
#   those that it gets in one iteration with all `others`.
# - Build an engine whose answers do not depend on company, within rounding, on any processor. It must still be able to
#   serve several requests at once.
#
# The check runs your function on two models made for it: company changes the tokens of one, and not of the other. It asks
# your engine itself, and compares tokens, and logarithms of probabilities within 0.001.


# %%
def compare(executor: Executor, prompt: list, others: list) -> tuple | None:
    """Token ids of the answer to `prompt`: alone, and in company of `others`."""
    # BEGIN SOLUTION
    # LAB: return None
    alone = executor.generate(Request(prompt, 32)).token_ids
    batch = [Request(ids, 32) for ids in [prompt, *others]]
    return alone, executor.generate_all(batch)[0].token_ids
    # END SOLUTION


# BEGIN SOLUTION
# LAB: steady = None  # the folder of your engine
steady = engine.build(
    checkpoint, BuildConfig(quant_algo="W4A16"), Path(workdir.name) / "steady"
)
# END SOLUTION

# %%
check("1.5", (compare, steady))

# %% [markdown]
# How far does company move a token's log-probability? Four answers of 16 tokens, alone and together, on the default
# engine and on yours; compared as long as the words are the same.

# %% tags=["nbval-ignore-output"]
texts = [f"Tell me about {topic}." for topic in ("rivers", "chess", "bread", "bees")]
for name, folder in {"the default": engine.cached(checkpoint), "yours": steady}.items():
    if folder is None:
        continue
    tokenizer, moved, changed = load_tokenizer(folder), [], 0
    prompts = [tokenizer.encode(tokenizer.chat(text)) for text in texts]
    asked = [Request(prompt, 16, return_log_probs=True) for prompt in prompts]
    with Executor.load(folder) as executor:
        alone = [executor.generate(request) for request in asked]
        together = executor.generate_all(asked)
    for one, other in zip(alone, together):
        same = np.cumprod(np.equal(one.token_ids, other.token_ids)).astype(bool)
        moved.append(np.abs(np.subtract(one.log_probs, other.log_probs))[same].max())
        changed += not same.all()
    print(f"{name}: moved by up to {max(moved):.6f}; other words in {changed} of 4")

# %% [markdown]
# <details><summary>Where to look</summary>
#
# The lecture's section [What a token has to read](../notebooks/01_engine.ipynb#What-a-token-has-to-read) says what W4A8 and
# W4A16 mean. In *What breaks* one request is sent, then twelve at once.
#
# </details>
# <details><summary>How to begin</summary>
#
# `executor.generate(Request(prompt, 32))` runs one request alone. `executor.generate_all([...])` takes a list, runs all
# of them at once, and returns the answers in the same order. An answer's tokens are its `.token_ids`.
#
# </details>
# <details><summary>The error you see</summary>
#
# *requests in one iteration: 1*: you ran them one after the other. *your two answers are different*: put `prompt` first
# in the list; then its answer comes first, too. *rounds activations*: choose another `quant_algo`.
#
# </details>

# %% [markdown]
# ## Bonus
#
# Do better than the budget of 1.4. Few weights lie far out. Try ranges a little narrower than from the smallest to the
# largest weight, clip what lies outside, and keep for each block the range with the least squared error. The cell shows
# the squared error as a share of the weights' variance: of your quantizer, and of the one that the package builds with.

# %%
from inflight.checkpoint import q4_1

blocks = np.random.default_rng(1).normal(size=(4096, 32)).astype(np.float32)
own, packages = parts.load("quantizer").quantize, q4_1.quantize
for name, function in {"your quantizer": own, "the package's": packages}.items():
    print(f"{name} loses {q4_1.share_lost(blocks, function(blocks)):.3%}")

# %%
workdir.cleanup()

# %% [markdown]
# ## Elsewhere
#
# The service moves to a GPU with 16-bit arithmetic, and from a model of 135 million weights to one of 8 billion.
#
# **1.** Here one conversation of 2,048 tokens takes as much memory as the weights. Does that still hold?
#
# <details><summary>Answer</summary>
#
# No. 8 billion weights take 16 GB in 16 bits, and 5 GB in `Q4_1`. With 32 layers and 8 KV heads of 128 numbers a token takes
# 131,072 bytes, and a user with 2,048 tokens 0.27 GB. Only 60 such users take as much as the 16-bit weights. The formula
# holds; which part is the larger one depends on the model.
#
# </details>
#
# **2.** Would your quantizer do for that model?
#
# <details><summary>Answer</summary>
#
# It would run: each block is quantized by itself, whatever the matrix. But a block's error grows with its range, and larger
# models are known for a few weights and activations far out. That is why tools for GPUs search for better ranges, or
# scale columns by the activations that meet them (AWQ), before they round.
#
# </details>
#
# **3.** You raise `max_batch_size` there. Does the engine on disk stay the same, as here?
#
# <details><summary>Answer</summary>
#
# With an engine of TensorRT-LLM (until July 2026): no. The limit is in the program, so more slots need another build; the
# runtime can be told to use fewer. Activations take as much as before, because `max_num_tokens` bounds them. In TensorRT-LLM
# today, and in vLLM (`--max-num-seqs`), there is no engine: you restart the server with another number.
#
# </details>

# %% [markdown]
# ## Done
#
# You can now say how much memory a model needs before you have it, and build the engine that a service needs. Compare with
# {counterpart}, then go on to {next}.
