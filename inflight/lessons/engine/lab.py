# %% [markdown]
# # {heading}
#
# Five exercises, about {minutes} minutes (an estimate), of which {core} are *Core*. You work out the memory of models
# that you do not have, build an engine for a service, and quantize weights yourself: an engine is built from what your
# code made, and compared with one that is coarse on purpose. Then you read the format of today's GPUs, and find out
# whether an answer depends on who is served with it.
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
from dataclasses import replace
from pathlib import Path

import numpy as np

from inflight import engine
from inflight.bench import quality
from inflight.checkpoint import GgufFile, fetch, load_tokenizer, q4_1, quantized
from inflight.engine import BuildConfig, Chunk, Executor, Request, Sizing
from inflight.notebook import check, parts, progress, told_apart

workdir = tempfile.TemporaryDirectory()
checkpoint = fetch()

# %% [markdown]
# ## Exercise 1.1: the KV cache of a model from its config
#
# *Core · importance 5/5 · difficulty 3/5 · 15 minutes*
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
# Ask `"kv_lora_rank" in config` first. `config.get("head_dim", …)` returns its second argument where there is no
# `head_dim`. Whole blocks: `-(-tokens // 32)`.
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
# *Core · importance 5/5 · difficulty 3/5 · 15 minutes*
#
# A service has 300 MB (300e6 bytes) for weights and a full KV cache. `day` is a log of yesterday: for each of 2,000
# requests the tokens of its prompt and of its answer. How many slots can the engine have?
#
# Write `limits_for`: from any such day, memory and model it chooses the `BuildConfig` with the most slots, so that at
# most 1 % of the requests do not fit. A request does not fit if its prompt is longer than `max_input_len`, or prompt and
# answer together are longer than `max_seq_len`. Options with the right default you can leave out. A `Sizing` does the
# lecture's arithmetic:
#
# | `sizing.` | returns |
# |---|---|
# | `weight_bytes(config)` | the bytes of the weights |
# | `kv_bytes_per_user(config, tokens)` | the bytes of a user's cache, in whole blocks |
# | `users(config, tokens, memory_bytes)` | how many users fit beside the weights |

# %%
draw = np.random.default_rng(1)
day = draw.lognormal(np.log([90, 60]), 0.6, (2000, 2)).clip(4, 900).astype(int)
day = [tuple(row) for row in day.tolist()]
info = engine.read(engine.cached(checkpoint))
sizing = Sizing(GgufFile(checkpoint.path), info.pretrained_config)
for name, lengths in zip(("prompt", "answer"), zip(*day)):
    print(
        f"{name}: median {np.median(lengths):.0f}, P99 {np.percentile(lengths, 99):.0f}"
    )


# %%
def limits_for(day: list, memory_bytes: float, sizing: Sizing) -> BuildConfig | None:
    """The limits with the most slots that at least 99 % of a day's requests fit into."""
    # BEGIN SOLUTION
    # LAB: return None
    lengths = sorted(prompt + answer for prompt, answer in day)
    longest = lengths[-(len(day) // 100) - 1]
    config = BuildConfig(
        max_input_len=longest - 1,  # costs no memory
        max_seq_len=longest,
        kv_cache_quant_algo="INT8",
    )
    slots = sizing.users(config, longest, memory_bytes)
    return replace(config, max_batch_size=slots)
    # END SOLUTION


# %%
check("1.2", limits_for)

# %% [markdown]
# <details><summary>Where to look</summary>
#
# *Turn the knob* in the lecture shows what slots, tokens and INT8 do to the memory. `BuildConfig?` lists all options.
#
# </details>
# <details><summary>How to begin</summary>
#
# Which of the limits takes memory, and which takes none? Which length is it that 1 % of the requests exceed?
# `dataclasses.replace(config, max_batch_size=…)` changes one option of a config.
#
# </details>
# <details><summary>The error you see</summary>
#
# *leaves no room for an answer*: `max_seq_len` must exceed `max_input_len`. *those that do not fit: 30*: some requests
# are refused by one limit, others by the other, and both count. *slots: 210, where at least 330*: the sum of two P99s
# is far longer than the P99 of the sum.
#
# </details>
#
# The engine for your service, with every slot in use:

# %%
if limits := limits_for(day, 300e6, sizing):
    service = engine.build(checkpoint, limits, Path(workdir.name) / "service")
    with Executor.load(service) as executor:
        executor.generate_all([Request([1] * 30, 30)] * limits.max_batch_size)
        most = max(row.scheduled for row in executor.iteration_stats)
        cache = executor.blocks.num_blocks * executor.model.block_bytes
    print(f"{most} users at once with up to {limits.max_seq_len} tokens each:", end=" ")
    print(f"{(engine.read(service).weight_bytes + cache) / 1e6:.0f} MB")

# %% [markdown]
# ## Exercise 1.3: write blocks
#
# *Core · importance 4/5 · difficulty 3/5 · 20 minutes*
#
# The lecture read a block of `Q4_1`. Now write them. `quantize` takes float32 weights, a row of 32 for each block, and
# returns 20 bytes for each block:
#
# | bytes | hold |
# |---|---|
# | 0, 1 | d, the distance between two levels: float16, low byte first |
# | 2, 3 | m, the lowest level: float16 |
# | 4 to 19 | 32 numbers q of 4 bits: byte 4 + i has that of weight i in its low half, and that of weight i + 16 in its high half |
#
# A weight is read as d · q + m. You choose d, m and every q. The check decodes what you made, and compares the squared
# error with a budget, on blocks of three kinds. In one kind all 32 weights are alike.
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
check("1.3", Path(workdir.name) / "quantizer.py")

# %% [markdown]
# <details><summary>Where to look</summary>
#
# [What a token has to read](../notebooks/01_engine.ipynb#What-a-token-has-to-read) in the lecture, backwards. NumPy has
# `min(axis=1)`, `rint`, `clip`, `astype`, `view` and `concatenate`.
#
# </details>
# <details><summary>How to begin</summary>
#
# With one block, on paper: weights from −1 to 2, and 16 levels. Where does the lowest lie, where the highest, and how far
# apart are two? Which q has the weight 0.47? Then write the same for all rows at once.
#
# </details>
# <details><summary>The error you see</summary>
#
# *give uint8 … yours is int64*: turn q into `np.uint8` before you join the bytes. *divide by zero*, or *all alike not right
# yet*: where d is 0, divide by 1; any q will do there. An error somewhat above the budget: 16 levels make 15 steps. An
# error of several times the budget: you cut (`astype(int)`) where you should round.
#
# </details>

# %% [markdown]
# ### Compare builds
#
# If your quantizer has passed, the course uses it from here on; otherwise it uses its own. Three engines: from the file
# as it is; from weights that your function quantized again; and, as a *control*, one that must be worse: the lowest bit
# of each q is dropped, which leaves 3 bits.


# %%
def coarse(blocks):
    """Your blocks with 8 levels: even q alone, and m in the middle of two levels."""
    made = np.array(parts.load("quantizer").quantize(blocks))
    made[:, 4:] &= 0b1110_1110  # two q in a byte
    scales = made[:, :4].copy().view(np.float16)
    scales[:, 1] += scales[:, 0] / 2
    made[:, :4] = scales.view(np.uint8)
    return made


functions = {"yours": parts.load("quantizer").quantize, "3 bits": coarse}
folders = {"the file's": engine.cached(checkpoint)}
for name in progress.over(functions, "Build"):
    own = quantized(checkpoint, functions[name], Path(workdir.name) / f"{name}.gguf")
    folders[name] = engine.build(own, BuildConfig(), Path(workdir.name) / name)

# %% [markdown]
# Each engine reads 8 windows of 128 tokens. Which probability p does it give to each token that comes next?
# [Perplexity](../notebooks/glossary.md#Perplexity) is e to the mean of −log p: 20 is as unsure as a choice among 20. A
# small model that reads technical prose is unsure, so only ratios on the same windows mean anything.


# %%
def perplexities(model, windows):
    """Of each window, read in one iteration with logits for every token."""
    found = []
    for window in windows:
        chunk = Chunk(window.tolist(), 0, list(range(4)), num_logits=128)
        logits = np.array(model.forward([chunk]))[:-1]
        log_p = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
        found.append(np.exp(-log_p[range(127), window[1:]].mean()))
    return found


tokenizer = load_tokenizer(folders["the file's"])
tokens = tokenizer.encode(quality.prose())[: 8 * 128]
prompt, judged = tokenizer.encode(tokenizer.chat("What is a quantized weight?")), {}
for name, folder in folders.items():
    with Executor.load(folder) as executor:
        judged[name] = perplexities(executor.model, np.reshape(tokens, (8, 128)))
        answer = executor.generate(Request(prompt, 24))
    words = tokenizer.decode(answer.token_ids)
    print(f"{name}: perplexity {np.mean(judged[name]):.0f}, {words!r}")

# %%
for name in functions:
    told = told_apart(judged[name], judged["the file's"], more="worse", less="better")
    print(f"{name} against the file's: {told}")

# %% [markdown]
# The control is worse, so the method can see a loss of one bit. Yours loses nothing, and that says little: the file's
# weights lie on 16 levels already, and a right quantizer finds the same levels again. The *Bonus* shows what it loses
# on weights that lie anywhere.

# %% [markdown]
# ## Exercise 1.4: read NVFP4
#
# *Further · importance 4/5 · difficulty 4/5 · 20 minutes*
#
# NVFP4 is the 4-bit format of NVIDIA's Blackwell GPUs. Its levels are floating-point numbers, so they are closer
# together near zero. Sixteen weights share a scale of one byte. Eight more bytes hold two weights each: the first in the
# low half, its neighbour in the high half. From the highest bit to the lowest:
#
# | | sign | exponent e | fraction f | value |
# |---|---|---|---|---|
# | the scale (E4M3) | 1 bit, here always 0 | 4 bits | 3 bits | (1 + f/8) · 2^(e − 7); where e = 0, f/8 · 2^−6 |
# | a number (E2M1) | 1 bit | 2 bits | 1 bit | ± (1 + f/2) · 2^(e − 1); where e = 0, ± f/2 |
#
# A weight is its number times the scale. (A second scale, one for the whole tensor, is left out.) Write `decode`. The
# weights of `example` begin with 0.5, −3.0, 0.0.


# %%
def decode(scale: int, packed: bytes) -> list[float] | None:
    """The 16 weights of a block: from the byte of its scale, and 8 bytes of two each."""
    # BEGIN SOLUTION
    # LAB: return None
    exponent, fraction = scale >> 3, scale & 7
    if exponent:
        width = (1 + fraction / 8) * 2.0 ** (exponent - 7)
    else:
        width = fraction / 8 * 2.0**-6
    levels = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    numbers = [half for byte in packed for half in (byte & 15, byte >> 4)]
    return [width * levels[n & 7] * (-1 if n & 8 else 1) for n in numbers]
    # END SOLUTION


example = 0x38, bytes.fromhex("d1705ea24f936b28")
print(decode(*example))

# %%
check("1.4", decode)

# %% [markdown]
# <details><summary>Where to look</summary>
#
# `>>` and `&` take bits apart, as in the lecture: `scale >> 3` leaves out the fraction, `scale & 7` is the fraction.
#
# </details>
# <details><summary>How to begin</summary>
#
# A number has only 16 values: write the table of all of them on paper, by the last row. The largest is 6.
#
# </details>
# <details><summary>The error you see</summary>
#
# *IndexError*: the sign is part of your index. Weights that should be below 0 are not: the sign is the bit of 8. *blocks of
# small scales not right yet*: with e = 0 there is no 1 before the fraction.
#
# </details>

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
# Rounding in float32 moves the logarithm of a token's probability by some 0.00002, and the words of short answers stay:
# that is invariance *within rounding*, on this engine and at these sizes. Other roundings move it by some 0.1: enough
# for another token to win.
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
# <details><summary>Where to look</summary>
#
# In the lecture's *What breaks* one request is sent, then seventy at once. And which build rounds less than the default?
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
# How far does company move a token's log-probability? Eight answers of 32 tokens, alone and together, on the default
# engine and on yours; compared as long as the words are the same.

# %% tags=["nbval-ignore-output"]
topics = ("rivers", "chess", "bread", "bees", "maps", "salt", "tides", "owls")
texts = [f"Tell me about {topic}." for topic in topics]
for name, folder in {"the default": engine.cached(checkpoint), "yours": steady}.items():
    if folder is None:
        continue
    tokenizer, moved, changed = load_tokenizer(folder), [], 0
    prompts = [tokenizer.encode(tokenizer.chat(text)) for text in texts]
    asked = [Request(prompt, 32, return_log_probs=True) for prompt in prompts]
    with Executor.load(folder) as executor:
        alone = [executor.generate(request) for request in asked]
        together = executor.generate_all(asked)
    for one, other in zip(alone, together):
        same = np.cumprod(np.equal(one.token_ids, other.token_ids)).astype(bool)
        moved.append(np.abs(np.subtract(one.log_probs, other.log_probs))[same].max())
        changed += not same.all()
    print(f"{name}: moved by up to {max(moved):.6f}; other words in {changed} of 8")

# %% [markdown]
# ## Bonus
#
# Do better than the budget of 1.3. Few weights lie far out. Try ranges a little narrower than from the smallest to the
# largest weight, clip what lies outside, and keep for each block the range with the least squared error. The cell shows
# the squared error as a share of the weights' variance: of your quantizer, and of the one that the package builds with.

# %%
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
# No. 8 billion weights take 16 GB in 16 bits, and 5 GB in `Q4_1`. With 32 layers and 8 KV heads of 128 numbers a token
# takes 131,072 bytes, and a user with 2,048 tokens 0.27 GB. Sixty such users take as much as the 16-bit weights. The
# formula holds; which part is the larger one depends on the model.
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
# **3.** You raise `max_batch_size` there. Does the program on disk stay the same, as here?
#
# <details><summary>Answer</summary>
#
# With an engine of TensorRT-LLM (until July 2026): no. The limit is in the program, so more slots need another build;
# the runtime can be told to use fewer. Activations take as much as before, because `max_num_tokens` bounds them. In
# TensorRT-LLM today, and in vLLM (`--max-num-seqs`), there is no engine: you restart the server with another number.
#
# </details>

# %% [markdown]
# ## Done
#
# You can now say how much memory a model needs before you have it, and build the engine that a service needs, from
# weights that you made. Compare with {counterpart}, then go on to {next}.
