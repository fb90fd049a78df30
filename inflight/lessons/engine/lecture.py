# %% [markdown]
# # {heading}
#
# {minutes} minutes. Afterwards you will be able to
#
# - **bound** the tokens per second of a model by its bytes and two numbers of a machine, and explain why the measured
#   rate is lower;
# - **calculate** the KV cache of a token, and how many users fit;
# - **compare** builds by bytes, speed and quality, and claim no more than the measurement shows.
#
# **What you will use elsewhere:** the roofline, the formula of the KV cache, and the comparison of builds are the same for
# vLLM, TensorRT-LLM and every other server, on any processor. Only the numbers differ.
#
# You need some Python and NumPy; lesson 00 has the words.
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
import psutil

from inflight import CourseError, engine, machine
from inflight.bench import quality
from inflight.checkpoint import GgufFile, fetch, load_tokenizer
from inflight.engine import BuildConfig, Chunk, Executor, Request, Sizing
from inflight.lessons import engine as lesson
from inflight.notebook import charts, progress, session, told_apart, widgets

folder = tempfile.TemporaryDirectory()  # it goes when the notebook's kernel ends
checkpoint = fetch()
source = GgufFile(checkpoint.path)
session.others()

# %% [markdown]
# ## Predict
#
# Eight users ask at the same time, and the same engine answers all of them.

# %% tags=["nbval-ignore-output"]
guess = widgets.predict(
    "How many tokens a second do the eight get in all, beside one user alone?",
    {
        "as many: the machine is busy already": 1,
        "about twice as many": 2,
        "about five times as many": 5,
        "more than eight times as many": 12,
    },
)
guess

# %% [markdown]
# ## What a token has to read
#
# A [checkpoint](glossary.md#Checkpoint) holds the model's shape, its vocabulary and its weights, as *tensors*, each
# in one of these formats:

# %%
tensors = pd.DataFrame(source.tensor_table())
formats = tensors.groupby("format")[["parameters", "bytes"]].sum().reset_index()
formats["bits each"] = 8 * formats["bytes"] / formats["parameters"]
charts.table(formats)

# %% [markdown]
# Most weights are in the format `Q4_1`, a [quantization](glossary.md#Quantization). 32 neighbours form a block of 20
# bytes: d and m in 16 bits each, then 16 bytes with two numbers q of 4 bits each. A weight is one of 16 levels, of which m
# is the lowest and d the distance; q says which. Here is the first block of the file:

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
# [engine](glossary.md#Engine) does: it is the same weights, a program that computes with them, and limits. Here
# [OpenVINO](https://docs.openvino.ai/) compiles the program when the engine is loaded, from a graph made of these:

# %% tags=["nbval-ignore-output"]
with progress.wait("The default engine, which is built the first time"):
    default = engine.cached(checkpoint, tier="cpu")
info = engine.read(default)
graph = lesson.read_graph(default)
kinds = collections.Counter(node.get_type_name() for node in graph.get_ordered_ops())
constants = kinds.pop("Constant")
print(f"{constants:,} constants and {kinds.total():,} operations, among them")
for name in ("MatMul", "ScaledDotProductAttention", "Convert", "Multiply", "Concat"):
    print(f"{kinds[name]:6}  {name}")
print(f"{info.weight_bytes / 1e6:.1f} MB of weights, computed as {info.precision}")

# %% [markdown]
# The conversions turn packed weights back into numbers, and nearly all weights belong to the matrix products
# (`MatMul`). Every token needs all of them. An iteration multiplies each matrix by all its tokens together, so **it
# reads all weights once**, however many tokens it computes. (That is a *dense* model. In a *mixture of experts* a token
# reads only the experts chosen for it, and more users read more experts.) W4 means that most weights have 4 bits. A8
# and A16 say how the *activations*, the numbers that flow from layer to layer, are multiplied: rounded to 8 bits where
# the processor has such products (VNNI, AMX), or as floating-point numbers. The course calls the latter W4A16, as
# TensorRT-LLM does, although the activations have 32 bits here.
#
# A token also reads something else. Each layer turns it into a *key*, by which later tokens find it, and a *value*,
# which they read. They are kept: that is the [KV cache](glossary.md#KV-cache). Keys and values belong to *KV
# heads*, of which this model has 3 in each layer (its 9 *query heads* share them), and each has 64 numbers. The engine
# keeps a number in 4 bytes.


# %%
def kv_bytes(layers, kv_heads, head_size, bytes_each):
    """Bytes of KV cache that one token takes in all layers."""
    # your line: one key and one value, for each KV head of each layer
    return 2 * layers * kv_heads * head_size * bytes_each


# %%
names = ("num_hidden_layers", "num_key_value_heads", "head_size")
layers, kv_heads, head_size = (info.pretrained_config[name] for name in names)
per_token = kv_bytes(layers, kv_heads, head_size, 4)
executor = Executor.load(default)
print(f"{per_token:,} bytes per token by the formula,", end=" ")
print(f"{executor.model.block_bytes // 32:,} in the engine")

# %% [markdown]
# The query heads are *not* in the formula: because they share KV heads (*grouped-query attention*, GQA), the cache is a
# third of what it would otherwise be.
#
# ## What this machine can do
#
# Two numbers say how fast a machine can be. The first is its [memory bandwidth](glossary.md#Memory-bandwidth), here
# measured with NumPy: all cores together sum an array of 256 MB, more than the caches of most processors hold. The second is
# how many products of a weight and an activation it computes in a second. Its best case is many tokens at once, here 256,
# and nothing but the engine's own matrix products. `lesson.OnlyProducts` takes every `MatMul` out of the graph, gives it
# random input, and compiles those alone, with the engine's settings.

# %%
cores = machine.cores()
pool = ThreadPoolExecutor(cores)
numbers = np.array_split(np.ones(32_000_000, np.int64), 8 * cores)
multiply = lesson.OnlyProducts(default)


def bytes_per_s():
    """Bytes that all cores together read from memory in a second."""
    started = time.perf_counter()
    list(pool.map(np.sum, numbers))
    return 256e6 / (time.perf_counter() - started)


# %%
def products(tokens, users):
    """Of weights: each token meets the layers', each user's last the vocabulary's."""
    return tokens * multiply.of_layers + users * multiply.of_vocabulary


# %% tags=["nbval-ignore-output"]
print(cores, "cores")
read, computed = [], []
for _ in range(5):
    read.append(bytes_per_s())
    computed.append(products(256, 1) / multiply.seconds(256))
for name, found in (("bytes", read), ("products", computed)):
    low, middle, high = np.percentile(found, [25, 50, 75]) / 1e9
    print(f"{middle:5.1f} billion {name} a second,", end=" ")
    print(f"the middle half of 5 rounds: {low:.1f} to {high:.1f}")

# %% [markdown]
# These are the numbers of the cores that this notebook may use, not of the whole processor; the first figure is the median.
# If the other two are close together, that shows only that nothing disturbed these rounds, so the measurements below take
# turns with these two.
#
# ## One user, by arithmetic
#
# If reading is all that one user's token costs, these bytes and the bandwidth give a rate. A conversation of 100 tokens has
# been computed already:

# %%
past = 100
bytes_of_token = info.weight_bytes + past * per_token
bandwidth = np.median(read)
# your line: tokens a second of one user
predicted = bandwidth / bytes_of_token

# %% tags=["nbval-ignore-output"]
print(f"{bytes_of_token / 1e6:.0f} MB a token: {predicted:.0f} tokens a second at most")

# %% [markdown]
# Now the engine. `forward` is one [iteration](glossary.md#Iteration). A `Chunk` has the tokens of one user to
# compute, how many came before, and this user's blocks of the cache, of 32 tokens each. Four kinds of iterations take
# turns with the machine's own two numbers: decode for 1, 8 and 32 users, and the prefill of a prompt with 256 tokens.
# `forward` knows nothing of slots, which the scheduler counts, so 32 users can be tried. The 100 tokens before are only
# claimed: what stands in the cache does not change the time.


# %%
def iteration_s(model, users, tokens=1, past=past):
    """Seconds of an iteration that computes `tokens` tokens for each of `users`."""
    blocks = -(-(past + tokens) // 32)
    chunks = [
        Chunk([1] * tokens, past, list(range(user * blocks, (user + 1) * blocks)))
        for user in range(users)
    ]
    started = time.perf_counter()
    model.forward(chunks)
    return time.perf_counter() - started


# %%
work = {  # users, tokens of each, tokens before them
    "decode, 1 user": (1, 1, past),
    "decode, 8 users": (8, 1, past),
    "decode, 32 users": (32, 1, past),
    "prefill, 256 tokens": (1, 256, 0),
}
rounds = []
for _ in range(6):
    rounds.append({"bytes/s": bytes_per_s()})
    for name, (users, tokens, before) in work.items():
        for _ in range(2):  # the second counts: the program is warm
            took = iteration_s(executor.model, users, tokens, before)
            alone = multiply.seconds(users * tokens, users)
        rounds[-1] |= {name: took, f"{name}, only products": alone}
rounds = pd.DataFrame(rounds[1:])  # the first warms up

# %% tags=["nbval-ignore-output"]
typical = rounds.median()
bandwidth = typical["bytes/s"]
arithmetic = products(256, 1) / typical["prefill, 256 tokens, only products"]
rows = []
for name, (users, tokens, before) in work.items():
    made = users * tokens
    to_read = info.weight_bytes + users * max(before, tokens) * per_token
    read_s, compute_s = to_read / bandwidth, products(made, users) / arithmetic
    nearer = "memory" if read_s > compute_s else "arithmetic"
    limit, rate = made / max(read_s, compute_s), made / typical[name]
    ratio = f"{rate / limit:.2f}"
    rows.append((name, to_read / 1e6, nearer, limit, rate, ratio, rate / users))
columns = ["", "MB read", "nearer roof", "at most", "measured", "ratio", "per user"]
table = pd.DataFrame(rows, columns=columns)
charts.table(table)

# %% [markdown]
# *At most* and *measured* are tokens a second over all users, from medians of five rounds; the ratio is the second over
# the first (the field's MBU, *model bandwidth utilization*, and MFU, for FLOPs, are built the same way, but divide by
# the maker's peak, so they come out lower). At most comes from the longer of two times: reading the bytes, or computing
# the products as quickly as those of 256 tokens were computed alone. Both are measured anew, so the bound differs from
# yours above. A ratio over 1 is noise, or a processor whose cache is larger than the weights: then they are not read
# from memory each time.

# %% tags=["nbval-ignore-output"]
gain = 8 * rounds["decode, 1 user"] / rounds["decode, 8 users"]
print(guess.score(gain.median(), f"the median of {len(gain)} rounds"))
one, eight, many = table["per user"][:3]
print(f"Each of 8 users gets {eight / one:.0%} of what one gets alone,", end=" ")
print(f"of 32 {many / one:.0%}.")
of_bound = table["measured"][0] / table["at most"][0]
print(f"One user's tokens come at {of_bound:.0%} of the bound.")

# %% tags=["remove-cell"]
assert kinds["MatMul"] > 100 and per_token == executor.model.block_bytes // 32 == 46_080
assert multiply.of_layers + multiply.of_vocabulary > 0.99 * tensors["parameters"].sum()
assert gain.median() > 1.3  # weights are read once for all

# %% [markdown]
# So the machine was not full. An iteration reads and unpacks the weights, and starts its operations, once for everybody in
# it: eight users share that, and each gets more than an eighth. Each further user adds less to the total: products grow
# with every token, and each user's KV cache is read for that user alone. Whether eight users need a second machine depends
# on the tokens a second that you promised each user: compare it with the table's last column.
#
# ## See
#
# The [roofline](glossary.md#Roofline) puts both limits into one picture. Across: how many products an iteration
# computes for each byte that it reads, its [arithmetic intensity](glossary.md#Arithmetic-intensity). Up: the
# products per second. Left of the ridge, memory is the limit; right of it, arithmetic.

# %% tags=["nbval-ignore-output"]
points = []
for name, (users, tokens, before) in work.items():
    to_read = info.weight_bytes + users * max(before, tokens) * per_token
    count = products(users * tokens, users)
    points.append((name, name.split(",")[0], count / to_read, count / typical[name]))
columns = ["what", "phase", "products_per_byte", "products_per_s"]
points = pd.DataFrame(points, columns=columns)
summary = lesson.roofline_summary(points, bandwidth, arithmetic)
charts.show(lesson.roofline(points, bandwidth, arithmetic), summary)
print(summary)

# %% [markdown]
# One user's decode is far to the left: about one product for each byte. A prompt's tokens share the reading as users
# do, so prefill is far to the right, where faster memory would not help. Being left of the ridge says which roof is
# nearer, not that the point touches it. Far below it, neither limit explains the time: products that use the machine
# badly do, and everything between them. (Where starting operations takes most of it, as in small batches on a GPU
# without CUDA graphs, the field says *overhead-bound*.) The next table separates the two. The larger the model, the
# smaller the part between the products.
#
# ## Explain
#
# What lies between a point and the roof? The products of all four were also timed alone, in the same rounds:

# %% tags=["nbval-ignore-output"]
rows = []
for name, (users, tokens, before) in work.items():
    to_read = info.weight_bytes + users * max(before, tokens) * per_token
    count = products(users * tokens, users)
    least = max(to_read / bandwidth, count / arithmetic)
    alone, whole = typical[f"{name}, only products"], typical[name]
    rows.append([name, *(1e3 * s for s in (least, alone, whole - alone, whole))])
columns = ["", "the roof's time", "products alone", "the rest", "an iteration"]
charts.table(pd.DataFrame(rows, columns=columns))

# %% [markdown]
# All columns are in milliseconds. Prefill's products alone are the roof by definition: it was made of them. Where those of
# few users take longer than the roof allows, two causes are likely: four bits have to be unpacked before they are
# multiplied, which costs time for each weight, not for each byte; and a product with few tokens is too small to keep all
# cores busy from its beginning to its end. The rest is what stands between the products: attention (which reads the cache),
# normalisations, the rotation that tells a key its position, and the start of many small operations one after the
# other. A rest below zero is noise.
#
# Data sheets count operations (FLOPs): two for each product.
#
# How could this mislead? Both roofs are what we reached with NumPy and OpenVINO, not what the maker promises. The products
# of attention are not counted. And the conversations are short: with 2,000 tokens each, the caches of 32 users are 30 times
# as many bytes as the weights. Such a batch is back on the left of the ridge.
#
# ## Who fits
#
# Weights are in memory once. The cache grows with every user and with every token of a conversation. This counts the
# worst case, every conversation as long as it may be, and leaves a tenth of the free memory for everything else. vLLM
# logs the same number as *Maximum concurrency*:

# %%
free = 0.9 * psutil.virtual_memory().available
slots, longest = info.build_config.max_batch_size, info.build_config.max_seq_len
# users with `longest` tokens each until `free` bytes are full
users = (free - info.weight_bytes) // (longest * per_token)

# %% tags=["nbval-ignore-output"]
print(f"{users:,.0f} users with {longest:,} tokens each fit into {free / 1e9:.1f} GB")
print("The first limit is", "memory" if users < slots else f"max_batch_size: {slots}")

# %%
sizing = Sizing(source, info.pretrained_config)
by_kind = sizing.weights_by_kind(info.build_config)
cache = {number: number * 512 * per_token for number in (1, 8, 32)}
summary = (
    f"The weights take {info.weight_bytes / 1e6:.0f} MB, for however many users. With "
    f"512 tokens each, the cache takes {cache[1] / 1e6:.0f} MB for one user, "
    f"{cache[8] / 1e6:.0f} MB for 8 and {cache[32] / 1e6:.0f} MB for 32."
)
charts.show(lesson.bytes_held(by_kind, cache), summary)
print(summary)

# %% [markdown]
# One conversation of 2,048 tokens weighs about as much as this model, because the cache has 32 bits here, the weights 5
# to 6, and the model is small. Llama 3 8B has 32 layers and 8 KV heads of 128 numbers:

# %%
of_llama = kv_bytes(32, 8, 128, 2)
print(f"{of_llama:,} bytes per token with 16 bits,", end=" ")
print(f"{2048 * of_llama / 1e9:.2f} GB for 2,048")
print(
    f"8 billion weights of 16 bits: 16 GB, as {16e9 / (2048 * of_llama):.0f} such users"
)

# %% [markdown]
# ## Turn the knob
#
# `max_batch_size` is the number of [slots](glossary.md#Slot): so many requests run at the same time, and the others
# wait. Raise the slots until memory is what stops you. Then give each user fewer tokens, or store the cache in 8 bits
# (INT8): a quarter, and a little more for its scales. Nothing is built.

# %% tags=["nbval-ignore-output"]
lesson.memory(sizing, info.build_config, free)

# %% [markdown]
# ## Compare builds
#
# Are fewer bits quicker? And does the measurement see a loss? Three of four engines differ in their weights (W4A16: all
# multiply as floating-point numbers): one with the 4 bits of the file; one whose weights are written out in 16 bits;
# and, as a **positive control**, one that must be worse (it also has narrower limits, which *What breaks* needs). In
# its file the lowest bit of each q is set to zero, which leaves 3 bits, and m goes up by half of d, so that the mean of
# the weights stays. The fourth is the default engine of this machine: the same 4 bits, and where the processor has
# 8-bit products, activations rounded to 8 bits, too (W4A8). (All come from the 4-bit file, so this cannot tell what 4
# bits lost against the published weights.)

# %%
file = np.fromfile(checkpoint.path, np.uint8)
for tensor in source.tensors.values():
    if tensor.tensor_type.name == "Q4_1":
        blocks = file[tensor.data_offset :][: tensor.n_bytes].reshape(-1, 20)
        blocks[:, 4:] &= 0b1110_1110  # two q in a byte
        scales = blocks[:, :4].copy().view(np.float16)
        scales[:, 1] += scales[:, 0] / 2  # m, by half of d
        blocks[:, :4] = scales.view(np.uint8)
coarse = Path(folder.name) / "coarse.gguf"
file.tofile(coarse)

# %%
narrow = {"max_input_len": 128, "max_seq_len": 160}  # for "What breaks"
builds = {
    "4 bits": (checkpoint, BuildConfig(quant_algo="W4A16")),
    "16 bits": (checkpoint, BuildConfig(quant_algo=None)),
    "3 bits": (fetch(coarse), BuildConfig(quant_algo="W4A16", **narrow)),
}
executors = {}
for name in progress.over(builds, "Build"):
    built = engine.build(*builds[name], Path(folder.name) / name, "cpu")
    executors[name] = Executor.load(built)
executors["default"] = executor

# %% [markdown]
# **Quality:** each engine reads the beginning of lesson 00, in 8 windows of 128 tokens. After every token, which
# probability p does it give to the one that comes next? [Perplexity](glossary.md#Perplexity) is e to the mean of
# −log p. Most of it is due to the text, so builds are compared window by window.


# %%
def perplexity(log_p):
    """Of one text, from the logarithms of the probabilities of its tokens."""
    # your line: e to the mean of −log p
    return np.exp(-np.mean(log_p))


# %%
def of_windows(model):
    """Perplexity of each window, read in one iteration with logits for every token."""
    found = []
    for window in windows:
        chunk = Chunk(window.tolist(), 0, list(range(4)), num_logits=128)
        logits = np.array(model.forward([chunk]))[:-1]
        log_p = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
        found.append(perplexity(log_p[range(127), window[1:]]))
    return found


# %%
tokenizer = load_tokenizer(default)
windows = np.array(tokenizer.encode(quality.prose())[: 8 * 128]).reshape(8, 128)
with progress.wait("Each engine reads the text"):
    judged = {name: of_windows(one.model) for name, one in executors.items()}

# %% [markdown]
# **Speed:** decode for one user and for eight, in five rounds; which build begins changes from round to round. `told_apart`
# gives the mean of the ratios of two builds in each round (for quality: in each window), with an interval. If it contains
# 1, the two are *not told apart*, which does not mean that they are equal.

# %% tags=["nbval-ignore-output"]
took = collections.defaultdict(list)
order = collections.deque(executors)
for _ in range(6):
    order.rotate()
    for name in order:
        for users in (1, 8):
            iteration_s(executors[name].model, users)
            took[name, users].append(iteration_s(executors[name].model, users))
speed = {key: [key[1] / s for s in found[1:]] for key, found in took.items()}

# %% tags=["nbval-ignore-output"]
rows = []
for name, one in executors.items():
    size = one.model.info.weight_bytes / 1e6
    rates = [np.median(speed[name, users]) for users in (1, 8)]
    quality_of = np.exp(np.mean(np.log(judged[name])))
    rows.append((name, size, quality_of, *rates, size * rates[0] / 1000))
columns = ["build", "MB of weights", "perplexity", "tokens/s, 1 user", "of 8 users"]
columns.append("GB/s, 1 user")
charts.table(pd.DataFrame(rows, columns=columns))

# %% tags=["nbval-ignore-output"]
for name in ("16 bits", "3 bits", "default"):
    worse = told_apart(judged[name], judged["4 bits"], more="worse", less="better")
    print(f"{name} against 4, perplexity of {len(windows)} windows: {worse}")
    for users in (1, 8):
        quicker = told_apart(
            speed[name, users], speed["4 bits", users], "faster", "slower"
        )
        print(f"    speed with {users}: {quicker}")

# %% tags=["remove-cell"]
assert told_apart(judged["3 bits"], judged["4 bits"], more="worse").word == "worse"
assert 0.9 < told_apart(judged["16 bits"], judged["4 bits"]).ratio < 1.1

# %% [markdown]
# The control is told apart, so the method sees what three bits lose. Sixteen bits cannot bring back what the file never
# had. (Writing a weight in 16 bits rounds it slightly.) The interval says how small a loss the comparison could see.
# Where one user's rate falls by less than the bytes alone would say, reading is only part of an iteration. The table's
# last column, beside the bandwidth above, does not say why a build stays below it. The 16-bit build unpacks no 4-bit
# blocks, but its weights, too, are widened to 32 bits before they are multiplied. To separate the causes takes a
# profiler. And the engine with 3 bits reads as many bytes as that with 4: its q still lie in 4 bits each. So in speed
# that build is a *negative* control: it should not be told apart from the one with 4 bits. If it is, two engines differ
# by that much for other reasons (where they lie in memory, their limits, what ran before), which more rounds of the
# same two loads would not average out. Then believe no difference in speed that is not clearly larger. What does the
# default engine's rounding cost, and what does it buy with eight users?
#
# ## What breaks
#
# Limits are decided when an engine is built, and the 3-bit build has narrow ones. What happens to a prompt that is too
# long, to an answer that would be too long, and to twelve users for eight slots?

# %%
limited = executors["3 bits"]
try:
    limited.generate(Request([1] * 140, 8))
except CourseError as error:
    print("Prompt too long →", str(error).replace(": ", ":\n    "))
cut = limited.generate(Request([1] * 120, 500))
limited.generate_all([Request([1] * 30, 8)] * 12)
most = max(row.scheduled for row in limited.iteration_stats)
print(f"Answer too long → {len(cut.token_ids)} tokens of 500")
print(f"Twelve users → at most {most} at once")

# %% [markdown]
# ## Elsewhere
#
# | | Here, and TensorRT-LLM with engines | TensorRT-LLM today | vLLM |
# |---|---|---|---|
# | build | `engine.build`; `trtllm-build` | none: `LLM(model=…)` | none: `vllm serve` |
# | slots | `max_batch_size` | `max_batch_size` | `--max-num-seqs` |
# | tokens of a request | `max_seq_len` | `max_seq_len` | `--max-model-len` |
# | tokens of an iteration | `max_num_tokens` | `max_num_tokens` | `--max-num-batched-tokens` |
# | precision of weights | `quant_algo` | the checkpoint's | the checkpoint's, or `--quantization` |
# | smaller cache | `kv_cache_quant_algo` | `kv_cache_config`: `dtype` | `--kv-cache-dtype` |
#
# TensorRT-LLM removed its engines, with `convert_checkpoint.py` and `trtllm-build`, from its main branch in July 2026;
# 1.3.0rc20 is the last release candidate with them. [The page for a lab GPU](../assets/lab-gpu/README.md) has today's
# commands.
#
# An H100 (SXM, by its [data sheet](https://www.nvidia.com/en-us/data-center/h100/) 989 dense TFLOPS in BF16 and 3.35 TB/s)
# has its ridge at about 148 products a byte: with 16-bit weights, some 300 tokens in an iteration. Llama 3 8B in 16 bits
# there: 16 GB over 3.35 TB/s is 4.8 ms a token, so at most about 210 tokens a second for one user. Three things change the
# picture on GPUs:
#
# - **[FP8](https://docs.nvidia.com/deeplearning/transformer-engine/user-guide/examples/fp8_primer.html)** (Hopper, Ada
#   and later) has floating-point numbers of 8 bits: half the bytes of 16 bits, which moves a point to the right, and
#   GPUs multiply FP8 numbers directly, which raises the arithmetic roof. The roof doubles as the bytes halve, so the
#   ridge stays at about 300 tokens. Weights of 4 bits multiplied in 16 (W4A16) bring it down to about 75: they help few
#   users, a large batch hardly.
# - **[NVFP4](https://developer.nvidia.com/blog/introducing-nvfp4-for-efficient-and-accurate-low-precision-inference/)**
#   (Blackwell) has floating-point numbers of 4 bits in blocks of 16, each with a scale in FP8: 4.5 bits
#   a weight, and multiplied directly, too.
# - **Tensor parallelism** cuts each matrix into parts, one for each GPU, which add up their results twice in each layer. One
#   user's tokens come faster, as long as adding up costs less than it saves.

# %% [markdown]
# ## Recap
#
# - An iteration of a dense model reads all weights once, for all tokens in it: bytes over bandwidth bounds one user's rate.
# - Few products a byte: memory sets the ceiling (decode of one user), though a small model may stay far below it. Many:
#   bound by arithmetic (prefill; many users with short conversations).
# - Eight users share one reading; the total grows, while each gets less. Each user's cache is read for that user alone.
# - KV cache per token = 2 × layers × KV heads × head size × bytes of a number.
# - Judge a build by ratios with intervals, beside a control that must be worse.
#
# Three questions to answer without running anything:
#
# <details><summary>1. The same model, weights in 16 bits. What happens to the rate of one user, and what to the ridge in
# tokens per iteration?</summary>
#
# If memory were all, the rate would fall to about a third: 16 bits instead of 5 to 6. Above, it was measured: by less
# than that, because part of an iteration does not depend on the bytes. At the same arithmetic roof, fewer products for
# each byte move the points to the left, so it takes more users until arithmetic is the limit.
#
# </details>
# <details><summary>2. A model has 32 layers, 32 KV heads of 128 numbers, and a cache in float16. How many bytes per
# token?</summary>
#
# 2 × 32 × 32 × 128 × 2 = 524,288: half a megabyte. A user with 2,048 tokens takes 1.07 GB.
#
# </details>
# <details><summary>3. An iteration computes one token for each of 7 users, and 512 tokens of a new prompt. Which limit
# holds?</summary>
#
# Arithmetic: 519 tokens share one reading. The 7 users wait for the prompt's products; lesson 05 cuts such prompts.
#
# </details>
#
# Do the [lab]({lab}), then go on to {next}.
