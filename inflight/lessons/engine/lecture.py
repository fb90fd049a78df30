# %% [markdown]
# # {heading}
#
# {minutes} minutes. Afterwards you can
#
# - **bound** the tokens a second of any model, from its bytes and two numbers of a machine;
# - **account** for the time of an iteration: reading, multiplying, and what lies between;
# - **calculate** the KV cache of a token, and how many users fit.
#
# You need some Python and NumPy; lesson 00 has the words. The roofline and the formula of the KV cache are the same for
# vLLM, TensorRT-LLM and every other server, on any processor. Neither vLLM nor TensorRT-LLM has a build step: they
# load a checkpoint directly.
#
# {navigation}

# %% [markdown]
# ## {question}
#
# One user reads an answer as it is written. A colleague looks at the machine: all cores are busy. "So it is full," she
# says. "If eight users come, each will get an eighth." Should you buy more machines?

# %%
import collections
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gguf
import numpy as np
import pandas as pd

from inflight import CourseError, engine, machine
from inflight.checkpoint import GgufFile, fetch
from inflight.engine import BuildConfig, Chunk, Executor, Request, Sizing
from inflight.lessons import engine as lesson
from inflight.notebook import charts, progress, session, widgets

folder = tempfile.TemporaryDirectory()  # it goes when the notebook's kernel ends
checkpoint = fetch()
source = GgufFile(checkpoint.path)
session.others()

# %% [markdown]
# ## What a token has to read
#
# A [checkpoint](glossary.md#Checkpoint) holds the model's weights as *tensors*. This one is a GGUF file, and most of its
# weights are in the format `Q4_1`, a [quantization](glossary.md#Quantization):

# %%
tensors = pd.DataFrame(source.tensor_table())
formats = tensors.groupby("format")[["parameters", "bytes"]].sum().reset_index()
formats["bits each"] = 8 * formats["bytes"] / formats["parameters"]
charts.table(formats)

# %% [markdown]
# A block of 20 bytes holds 32 weights: d and m in 16 bits each, then 32 numbers q of 4 bits. A weight is one of 16 levels.
# The lowest is m, the distance between two is d, and q counts from the lowest. This is the first block of layer 0's
# query weights:

# %%
packed = source.tensors["blk.0.attn_q.weight"].data  # bytes, as they stand in the file
block = packed[0, :20]
d, m = block[:4].view(np.float16).astype(float)
q = np.concatenate([block[4:] & 15, block[4:] >> 4])  # low halves first, then high
print(f"d = {d:.5f}, m = {m:.5f}, q =", *q)
# your line: the 32 weights, from d, m and q
weights = d * q + m

# %%
library = gguf.dequantize(block, gguf.GGMLQuantizationType.Q4_1)
print("weights:", *(f"{weight:.3f}" for weight in weights[:6]), "…")
print("as the gguf library reads them:", np.allclose(weights, library))

# %% [markdown]
# The file does not say which operation follows which, nor how many users may come. An
# [engine](glossary.md#Engine) does: it is the same weights, a program that computes with them, and limits. Build one for 64
# users with 256 tokens each. [OpenVINO](https://docs.openvino.ai/) compiles its program when it is loaded.

# %% tags=["nbval-ignore-output"]
limits = BuildConfig(max_batch_size=64, max_input_len=192, max_seq_len=256)
with progress.wait("The engine is built and loaded"):
    engine_dir = engine.build(checkpoint, limits, Path(folder.name) / "engine", "cpu")
    executor = Executor.load(engine_dir)
info = engine.read(engine_dir)
operations = lesson.operations(executor)
print(f"{info.weight_bytes / 1e6:.1f} MB of weights, computed as {info.precision}")
print(f"{operations.total():,} operations an iteration, among them", end=" ")
print(*(f"{operations[name]} {name}" for name in lesson.KERNELS), sep=", ")

# %% [markdown]
# The products (`FullyConnected`) hold nearly all weights. Between them stand RMSNorm, which rescales a token's numbers,
# RoPE, which rotates queries and keys by their position, and [attention](glossary.md#Attention). Starting one of these
# pieces of machine code is a [kernel launch](glossary.md#Kernel-launch).
#
# Every token needs every layer's weights. An iteration multiplies each matrix by all its tokens together, so **it reads
# the weights once**, however many tokens it computes. (In a *mixture of experts* a token needs only the experts chosen
# for it.) W4 says that most weights have 4 bits, A8 that the numbers they meet, the *activations*, are rounded to 8
# bits. W4A16 rounds no activations.
#
# A token also reads what earlier tokens left: each layer turns a token into a *key*, by which later tokens find it, and
# a *value*, which they read. Both are kept in the [KV cache](glossary.md#KV-cache). This model has 30 layers with 3 *KV
# heads* of 64 numbers each, and the engine keeps a number in 4 bytes.


# %%
def kv_bytes(layers, kv_heads, head_size, bytes_each):
    """Bytes of KV cache that one token takes in all layers."""
    # your line: one key and one value, for each KV head of each layer
    return 2 * layers * kv_heads * head_size * bytes_each


# %%
names = ("num_hidden_layers", "num_key_value_heads", "head_size")
per_token = kv_bytes(*(info.pretrained_config[name] for name in names), 4)
print(f"{per_token:,} bytes per token by the formula,", end=" ")
print(f"{executor.model.block_bytes // 32:,} in the engine")

# %% [markdown]
# The 9 *query heads* are not in the formula. Three of them share a KV head (*grouped-query attention*, GQA), so the
# cache is a third of what it would otherwise be.
#
# ## What this machine can do
#
# Two numbers bound every iteration. One is the [memory bandwidth](glossary.md#Memory-bandwidth): here all cores
# together sum 256 MB, more than most caches hold. The other is arithmetic: the [FLOPs](glossary.md#FLOP) that the
# machine computes a second. Each weight that a token meets costs two, a multiplication and an addition. Arithmetic is
# at its best with many tokens and nothing but matrix products, so `lesson.Matmuls` compiles the engine's products
# alone and gives them 256 tokens.

# %%
cores = machine.cores()
pool = ThreadPoolExecutor(cores)
numbers = np.array_split(np.ones(32_000_000, np.int64), 8 * cores)
multiply = lesson.Matmuls(engine_dir)


def bytes_per_s():
    """Bytes that all cores together read from memory in a second."""
    started = time.perf_counter()
    list(pool.map(np.sum, numbers))
    return 256e6 / (time.perf_counter() - started)


def flops(tokens, users):
    """A token meets the layers' weights, the last of each user the vocabulary's."""
    return 2 * (tokens * multiply.of_layers + users * multiply.of_vocabulary)


# %% tags=["nbval-ignore-output"]
bandwidth = max(bytes_per_s() for _ in range(10))
arithmetic = max(flops(256, 1) / multiply.seconds(256) for _ in range(10))
print(f"{cores} cores: {bandwidth / 1e9:.1f} GB/s,", end=" ")
print(f"{arithmetic / 1e9:.0f} billion FLOPs a second")
print(f"A token: {flops(1, 1) / 1e6:.0f} million FLOPs")

# %% [markdown]
# This lesson takes the fastest of several rounds: other programs can only add time.
#
# ## One user, by arithmetic
#
# How many tokens a second does each number allow? Each user already has a conversation of 100 tokens.

# %%
past = 100


def roofs(users, bandwidth, arithmetic):
    """Tokens a second of all users: what memory allows, and what arithmetic allows."""
    # your line: read, the bytes that an iteration of all users reads
    read = info.weight_bytes + users * past * per_token

    return users * bandwidth / read, arithmetic / flops(1, 1)


# %% tags=["nbval-ignore-output"]
memory, compute = roofs(1, bandwidth, arithmetic)
print(f"One user: at most {memory:,.0f} tokens a second by memory,", end=" ")
print(f"{compute:,.0f} by arithmetic.")
print("The lower roof is", "memory's." if memory < compute else "arithmetic's.")

# %% [markdown]
# The lower roof decides. Cores that wait for weights are busy, too, in `top`.
#
# ## Predict
#
# Eight users ask at the same time, and the same engine answers all of them.

# %% tags=["nbval-ignore-output"]
guess = widgets.predict(
    "How many times as many tokens a second do eight users get together as one alone?",
    {
        "1 time: all cores are busy, so nothing is left to share": 1,
        "2 times: weights are read once, but most work is each user's own": 2,
        "5 times: weights are read once, and some work is each user's own": 5,
        "8 times: weights are read once, and that is nearly all the work": 8,
    },
)
guess

# %% [markdown]
# ## Run it
#
# `forward` is one [iteration](glossary.md#Iteration). A `Chunk` has one user's tokens to compute, the number of tokens
# before them, and this user's blocks of the cache, with 32 tokens each. We only pretend that 100 tokens came before; the
# cache's contents do not affect the time.


# %%
def iteration_s(users, tokens=1, past=past):
    """Seconds of an iteration that computes `tokens` tokens for each of `users`."""
    blocks = -(-(past + tokens) // 32)
    chunks = [
        Chunk([1] * tokens, past, list(range(user * blocks, (user + 1) * blocks)))
        for user in range(users)
    ]
    started = time.perf_counter()
    executor.model.forward(chunks)
    return time.perf_counter() - started


# %% tags=["nbval-ignore-output"]
crowds = (1, 2, 4, 8, 16, 32, 64)
took, products = collections.defaultdict(list), collections.defaultdict(list)
for _ in progress.over(range(16), "Round"):
    bandwidth = max(bandwidth, bytes_per_s())
    for users in crowds:  # the fastest of three: the first also warms up
        took[users].append(min(iteration_s(users) for _ in range(3)))
        alone = min(multiply.seconds(users, users) for _ in range(3))
        products[users].append(alone)
    took["prefill"].append(iteration_s(1, 256, past=0))
    products["prefill"].append(multiply.seconds(256))
whole_s, products_s = (pd.DataFrame(found).min() for found in (took, products))
arithmetic = max(arithmetic, flops(256, 1) / products_s["prefill"])

# %% tags=["nbval-ignore-output"]
price = whole_s[8] / whole_s[1]
fours = pd.DataFrame(took).groupby(np.arange(16) // 4).min()
prices = fours[8] / fours[1]
print(f"An iteration takes {1e3 * whole_s[1]:.1f} ms for one user and", end=" ")
print(f"{1e3 * whole_s[8]:.1f} ms for eight: {price:.2f} times as long")
print("(the fastest of 16 rounds; in four groups of four,", end=" ")
print(f"{prices.min():.2f} to {prices.max():.2f} times)")
print(guess.score(round(8 / price, 1), "the fastest of 16 rounds"))
print(f"Each of the eight gets {1 / price:.0%} of what one gets alone.")
if np.median(took[1]) > 1.5 * whole_s[1]:
    print("Other programs slowed half of the rounds: run the last two cells again.")

# %% tags=["remove-cell"]
assert per_token == executor.model.block_bytes // 32 == 46_080
assert multiply.of_layers + multiply.of_vocabulary > 0.99 * tensors["parameters"].sum()

# %% [markdown]
# That factor is **the price of eight over one**. Later lessons use it: what an iteration costs decides what batching gains.
#
# ## See
#
# The same measurement for 1 to 64 users. The roofs are the two bounds.

# %% tags=["nbval-ignore-output"]
curve = pd.DataFrame({"users": crowds, "total": crowds / whole_s[[*crowds]].array})
curve["memory"], curve["arithmetic"] = roofs(curve["users"], bandwidth, arithmetic)
prompt = flops(256, 1) / flops(1, 1) / whole_s["prefill"]
flops_of_token = flops(1, 1)
summary = lesson.curve_summary(curve, prompt)
charts.show(lesson.curve(curve, prompt, flops_of_token), summary)
print(summary)

# %% [markdown]
# This is the [roofline](glossary.md#Roofline), with users in place of
# [arithmetic intensity](glossary.md#Arithmetic-intensity), the FLOPs for each byte read. The roofs meet at the *ridge*.
# To its left an iteration can at best be *memory bound*, to its right *compute bound*. One user is neither here, but
# *overhead bound*: no roof explains the grey stretch. More users cost little, because they share it, and what is read.
#
# The tokens of one prompt share the weights as users do. So a long prompt is far to the right, under the compute roof:
# it reaches more of it than 64 users do, and faster memory would not help.
#
# ## Explain
#
# The products were also timed alone, in the same rounds:

# %% tags=["nbval-ignore-output"]
rows = {}
for users, tokens, before in ((1, 1, past), (8, 1, past), (64, 1, past), (1, 256, 0)):
    name = users if before else "prefill"
    read = info.weight_bytes + users * max(before, tokens) * per_token
    least = max(read / bandwidth, flops(users * tokens, users) / arithmetic)
    alone, whole = products_s[name], whole_s[name]
    what = f"decode, users: {users}" if before else "prefill, 256 tokens"
    rows[what] = [1e3 * part for part in (least, alone - least, whole - alone, whole)]
columns = ["lower roof", "products beyond it", "between products", "iteration"]
table = pd.DataFrame(rows, index=columns).T
charts.table(table.round(1).reset_index(names="ms"))

# %% tags=["nbval-ignore-output"]
least, beyond, between, whole = table.iloc[0]
print(f"Of one user's {whole:.1f} ms, reading takes {least:.1f}, products {beyond:.1f}")
print(f"beyond it, and everything between the products {between:.1f}.")
each = 1e3 * (whole_s[8] - whole_s[1]) / 7
print(
    f"Seven more users add {each:.1f} ms each: {whole - each:.1f} of one user's",
    end=" ",
)
print(f"{whole:.1f} ms do not depend on how many there are.")

# %% [markdown]
# That common part is paid once an iteration, whoever asks: weights are read and made ready to multiply, and a thousand
# operations are started. **One user gets so little because one user pays for it alone.** That answers the colleague:
# busy is not full. Whether eight users need a second machine depends on the tokens a second that you promised each of
# them.
#
# The roofs leave out attention's FLOPs. The conversations are short, too: with 2,000 tokens each,
# the caches of 32 users have 30 times the bytes of the weights. Each user brings their own (lesson 05 shares equal
# beginnings), and memory limits again.
#
# ## Who fits
#
# Weights are in memory once. The cache grows with every user and every token. Your container may take 600 MB.


# %%
def users_that_fit(memory_bytes, weight_bytes, bytes_per_user):
    """Users whose cache fits into memory next to the weights."""
    # your line: what the weights leave, over one user's cache
    return int((memory_bytes - weight_bytes) // bytes_per_user)


# %%
for longest in (256, 2048):
    fit = users_that_fit(600e6, info.weight_bytes, longest * per_token)
    print(f"600 MB: {fit} users with {longest:,} tokens each")
llama = 2048 * kv_bytes(32, 8, 128, 2)  # Llama 3 8B in 16 bits; 72 of a GPU's 80 GB
print(f"Llama 3 8B, 2,048 tokens: {llama / 1e9:.2f} GB of cache a user,", end=" ")
print(f"{users_that_fit(72e9, 16e9, llama)} users on a GPU of 80 GB")

# %% [markdown]
# It is the worst case: every conversation is as long as it may be. vLLM logs this number at its start as *Maximum
# concurrency*.
#
# ## Turn the knob
#
# An engine with the default limits, 8 [slots](glossary.md#Slot) and 2,048 tokens, in the same 600 MB. Nothing is built.
#
# 1. Memory is full before the slots are. How few tokens must each user have, so that all eight fit?
# 2. Keep 2,048 tokens, and store the cache in 8 bits (INT8). How many users fit now?
#
# <details><summary>What to see</summary>
#
# 1. 1,344 tokens: 62 MB a user. At 1,376 the eighth no longer fits.
# 2. Seventeen. A number takes one byte in place of four, and the scales add a fifth.
#
# </details>

# %% tags=["nbval-ignore-output"]
sizing = Sizing(source, info.pretrained_config)
lesson.memory(sizing, BuildConfig(), 600e6)

# %% tags=["remove-cell"]
int8 = BuildConfig(kv_cache_quant_algo="INT8")
assert sizing.users(BuildConfig(), 2048, 600e6) == 5
assert sizing.users(BuildConfig(), 1344, 600e6) == 8
assert sizing.users(BuildConfig(), 1376, 600e6) == 7
assert sizing.users(int8, 2048, 600e6) == 17  # as the text says

# %% [markdown]
# ## Elsewhere
#
# | | vLLM | TensorRT-LLM today | here, as in TensorRT-LLM with engines |
# |---|---|---|---|
# | build | none: `vllm serve` | none: `LLM(model=…)` | `engine.build`; `trtllm-build` |
# | slots | `--max-num-seqs` | `max_batch_size` | `max_batch_size` |
# | tokens of a request | `--max-model-len` | `max_seq_len` | `max_seq_len` |
# | tokens of an iteration | `--max-num-batched-tokens` | `max_num_tokens` | `max_num_tokens` |
# | precision of weights | the checkpoint's, or `--quantization` | the checkpoint's | `quant_algo` |
# | smaller cache | `--kv-cache-dtype` | `kv_cache_config`: `dtype` | `kv_cache_quant_algo` |
# | how full it is | `vllm:kv_cache_usage_perc` | iteration statistics | the iteration log |
#
# An H100 SXM has 3.35 TB/s and 989 trillion dense FLOPs a second in BF16 ([data
# sheet](https://www.nvidia.com/en-us/data-center/h100/)): its ridge is at 295 FLOPs a byte. With 16-bit weights that is
# some 300 tokens in an iteration. Llama 3 8B in 16 bits: 16 GB over 3.35 TB/s is 4.8 ms, so one user gets at most 210
# tokens a second. FP8, NVFP4 and tensor parallelism [move these numbers](../assets/elsewhere.md).
#
# ## What breaks
#
# Limits are decided when an engine is built. What happens to a prompt that is too long, to an answer that would be too
# long, and to seventy users for 64 slots?

# %%
try:
    executor.generate(Request([1] * 200, 8))
except CourseError as error:
    print("Prompt too long →", str(error).replace(": ", ":\n    "))
cut = executor.generate(Request([1] * 180, 500))
executor.generate_all([Request([1, 2, 3], 8)] * 70)
most = max(row.scheduled for row in executor.iteration_stats)
print(f"Answer too long → {len(cut.token_ids)} tokens of 500")
print(f"Seventy users → at most {most} at once")

# %% [markdown]
# ## Recap
#
# One user gets so little because most of an iteration is paid once, whoever is in it, and one user pays for it alone.
#
# - Bytes over bandwidth, and FLOPs over the machine's FLOPs a second, bound every iteration. Overhead comes on top.
# - Eight users share one reading and its overhead: their iteration takes far less than eight times as long.
# - A prompt's tokens share them, too, so prefill is compute bound.
# - KV cache per token = 2 × layers × KV heads × head size × bytes of a number. Each user adds theirs.
# - Memory less weights, over a user's cache, is the number of users that fit.
#
# <details><summary>1. The same model, weights in 16 bits. What happens to memory's roof for one user, and where is the
# ridge?</summary>
#
# 2.8 times the bytes, so little more than a third of the tokens a second. At the same FLOPs a second the ridge moves to
# the right: 2.8 times as many users use up the arithmetic meanwhile.
#
# </details>
# <details><summary>2. A model has 32 layers, 32 KV heads of 128 numbers, and a cache in 16 bits. How many bytes per
# token?</summary>
#
# 2 × 32 × 32 × 128 × 2 = 524,288: half a megabyte. A user with 2,048 tokens takes 1.07 GB.
#
# </details>
# <details><summary>3. An iteration computes one token for each of 7 users, and 512 tokens of a new prompt. Which limit
# applies?</summary>
#
# Arithmetic: 519 tokens share one reading. The 7 users wait for the prompt's FLOPs; lesson 05 cuts such prompts.
#
# </details>
#
# Do the [lab]({lab}), in which you build an engine from weights that you quantized, then go on to {next}.
