# %% [markdown]
# # {heading}
#
# About {minutes} minutes (an estimate). Afterwards you will be able to
#
# - **decode** a block of 4-bit weights as it stands in a checkpoint;
# - **calculate** the KV cache of a token, and how many users fit into a machine;
# - **compare** builds by quality, size and speed, and claim no more than the measurement shows.
#
# You need some Python and NumPy; lesson 00 has the words. A line under `# your line:` is for you: delete it, write it
# yourself, and compare it with what is folded below.
#
# {navigation}

# %% [markdown]
# ## {question}
#
# Your team has picked a model. Its file is smaller than 100 MB. "The machine has gigabytes free, so it will serve
# hundreds of users, won't it?" Before you say yes, find out what a server keeps in memory besides this file, and what
# limits it.
#
# The file is a [checkpoint](00_start_here.ipynb#Checkpoint). A server runs an
# [engine](00_start_here.ipynb#Engine): the same weights, a program that computes with them, and limits.

# %%
import tempfile
import time
from pathlib import Path

import gguf
import numpy as np
import pandas as pd
import plotly.express as px
import psutil

from inflight import CourseError, engine
from inflight.bench import quality
from inflight.checkpoint import GgufFile, fetch, load_tokenizer
from inflight.engine import BuildConfig, Chunk, Executor, Request, Sizing
from inflight.lessons import engine as lesson
from inflight.notebook import charts, progress, widgets

folder = tempfile.TemporaryDirectory()  # it goes when the notebook's kernel ends
checkpoint = fetch()
source = GgufFile(checkpoint.path)
print(f"a file of {checkpoint.path.stat().st_size / 1e6:.1f} MB")

# %% [markdown]
# ## Predict
#
# A model is a stack of *layers*. Each layer turns every token into a *key*, by which later tokens find it, and a *value*,
# which they read. The engine keeps keys and values while a request runs, so that it does not compute them again for each
# new token. That is the [KV cache](00_start_here.ipynb#KV-cache). Keys and values belong to *KV heads*; several *query
# heads* may share one KV head.
#
# This model has 30 layers, 9 query heads and 3 KV heads. A key has 64 numbers, and so has a value. The default engine
# keeps each number in 4 bytes.

# %% tags=["parameters"]
prediction = None  # papermill may answer

# %%
guess = widgets.predict(
    "How many bytes of KV cache does one token take?", given=prediction
)
guess

# %% [markdown]
# ## What the file holds
#
# The model's shape, its vocabulary, and its weights as *tensors*, each in one of these formats:

# %%
tensors = pd.DataFrame(source.tensor_table())
formats = tensors.groupby("format")[["parameters", "bytes"]].sum()
formats["bits each"] = 8 * formats["bytes"] / formats["parameters"]
formats.round(1)

# %% [markdown]
# Most weights are in the format `Q4_1`, a [quantization](00_start_here.ipynb#Quantization). 32 neighbours form a block. 16
# levels, each d above the one before, reach from the smallest weight m to the largest. A weight is stored in 4 bits, as the
# number q of its nearest level, from 0 to 15. A block has 20 bytes: d and m in 16 bits each, then 16 bytes with two q each.
# Here is the first block of the file:

# %%
packed = source.tensors["blk.0.attn_q.weight"].data  # bytes, as they stand in the file
block = packed[0, :20]
d, m = block[:4].view(np.float16).astype(float)
q = np.concatenate([block[4:] & 15, block[4:] >> 4])  # low halves first, then high
# your line: the 32 weights, from d, m and q
weights = d * q + m
print(f"d = {d:.5f}, m = {m:.5f}, q =", *q)
print("weights:", *(f"{weight:.3f}" for weight in weights[:6]), "…")
assert np.allclose(weights, gguf.dequantize(block, gguf.GGMLQuantizationType.Q4_1))

# %% [markdown]
# <details><summary>The line</summary>
# <code>weights = d * q + m</code>
# </details>
#
# The gguf library reads the same. 20 bytes for 32 weights are 5 bits per weight. The file does *not* say which operation
# follows which, how many users may come, or how long a prompt may be. And it has no KV cache.
#
# ## Build
#
# `engine.build(checkpoint, BuildConfig(), folder)` makes an engine. `engine.cached` does the same in the course's own
# folder, unless the engine is there already.

# %% tags=["nbval-ignore-output"]
with progress.wait("The default engine, which is built the first time"):
    default = engine.cached(checkpoint, tier="cpu")
info = engine.read(default)
for file in sorted(default.iterdir()):
    print(f"{file.stat().st_size / 1e6:6.1f} MB  {file.name}")
for name in ("max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens"):
    print(f"{name:14} {getattr(info.build_config, name):6,}")

# %% [markdown]
# The `.xml` file is the model as a graph of operations, and the `.bin` file its weights, with the checkpoint's own d, m and
# q. [OpenVINO](https://docs.openvino.ai/) compiles the graph for the CPU when the engine is loaded; here it stands where
# TensorRT stood on a GPU. The limits have TensorRT-LLM's names. They are defaults of `BuildConfig`, kept in `config.json`.
# The [appendix](../assets/engine/README.md) goes from the file to the compiled program, step by step.
#
# The folder is the same on every processor. How its 4-bit weights (W4) meet the activations (A), the numbers that flow from
# layer to layer, is chosen at the load:
#
# - **W4A16**: weights become floating-point numbers again, and activations stay as they are, here in 32 bits.
# - **W4A8**: activations are rounded to 8 bits, where the processor multiplies 8-bit whole numbers quickly (VNNI, AMX).

# %% tags=["nbval-ignore-output"]
print(info.precision)
tokenizer = load_tokenizer(default)
prompt = tokenizer.encode(tokenizer.chat("Name the capital of France."))
executors = {"default": Executor.load(default)}
answer = executors["default"].generate(Request(prompt, 32, end_id=tokenizer.end_id))
print(f"{len(prompt)} tokens in, {len(answer.token_ids)} out:", end=" ")
print(tokenizer.decode(answer.token_ids))
assert "Paris" in tokenizer.decode(answer.token_ids)

# %% [markdown]
# An engine needs no server: this one runs in the notebook's own process.
#
# ## What a token costs
#
# The engine hands out its cache in blocks of 32 tokens, and says how many bytes a block has. Work it out first:

# %%
names = ("num_hidden_layers", "num_key_value_heads", "head_size")
layers, kv_heads, head_size = (info.pretrained_config[name] for name in names)
# your line: bytes of KV cache per token, with 4 bytes for each number
per_token = 2 * layers * kv_heads * head_size * 4
measured = executors["default"].model.block_bytes // 32
print(f"{per_token:,} bytes per token by the formula, {measured:,} in the engine")
assert per_token == measured
print(guess.score(measured))

# %% [markdown]
# <details><summary>The line</summary>
# <code>per_token = 2 * layers * kv_heads * head_size * 4</code>: the 2 is for a key and a value.
# </details>
#
# The query heads are *not* in the formula. Because 9 of them share 3 KV heads, the cache is a third of what it would
# otherwise be.
#
# ## Who fits
#
# Weights are in memory once. The cache grows with every user and with every token of a conversation:

# %% tags=["nbval-ignore-output"]
free = 0.9 * psutil.virtual_memory().available
slots, longest = info.build_config.max_batch_size, info.build_config.max_seq_len
# your line: users with `longest` tokens each until `free` bytes are full
users = (free - info.weight_bytes) // (longest * per_token)
print(f"{users:,.0f} users with {longest:,} tokens each fit into {free / 1e9:.1f} GB")
print("The first limit is", "memory" if users < slots else f"max_batch_size: {slots}")

# %% [markdown]
# <details><summary>The line</summary>
# <code>users = (free - info.weight_bytes) // (longest * per_token)</code>
# </details>

# %%
sizing = Sizing(source, info.pretrained_config)
by_kind = sizing.weights_by_kind(info.build_config)
bars = [("weights", row.kind, row.bytes / 1e6) for row in by_kind.itertuples()]
for number in (1, 4, slots):
    cache = number * longest * per_token / 1e6
    bars.append((f"cache of {number}", "KV cache", cache))
frame = pd.DataFrame(bars, columns=["of", "part", "MB"])
colours = ["#333333", "#5A5A5A", "#7A7A7A", "#949494", "#0072B2"]
figure = px.bar(frame, x="MB", y="of", color="part", color_discrete_sequence=colours)
figure.update_layout(yaxis={"title": "", "autorange": "reversed"}, meta={"device": ""})
summary = (
    f"The weights take {info.weight_bytes / 1e6:.0f} MB. With {longest:,} tokens each, "
    f"one user takes {longest * per_token / 1e6:.0f} MB, all {slots} slots {cache:.0f} MB."
)
charts.show(figure, summary)
print(summary)
assert sizing.users(info.build_config, longest, free) == users

# %% [markdown]
# One long conversation takes about as much memory as the model. `max_batch_size` is the number of *slots*: so many
# requests run at the same time, and the others wait.
#
# The arithmetic leaves out the compiled program and its activations. Activations grow with `max_num_tokens`, not with
# `max_batch_size`: all tokens of an iteration lie in one row, without padding.
#
# ## Turn the knob
#
# Raise the slots until memory is what stops you. Then give each user fewer tokens, or store the cache in 8 bits (INT8).
# Nothing is built. To the right of the bend users wait, and take no memory.

# %% tags=["nbval-ignore-output"]
picture = lesson.memory(sizing, info.build_config, free)
assert picture.controls["slots"].value == slots
picture

# %% [markdown]
# ## Eight bits for the cache
#
# With one byte for each number the formula gives a quarter. Build that engine, and ask it:

# %%
int8 = Path(folder.name) / "int8"
with progress.wait("An engine with an 8-bit cache is built"):
    engine.build(checkpoint, BuildConfig(kv_cache_quant_algo="INT8"), int8, "cpu")
executors["INT8 cache"] = Executor.load(int8)
allocated = executors["INT8 cache"].model.block_bytes // 32
print(f"{per_token // 4:,} bytes per token by the formula, {allocated:,} in the engine")
scales = layers * kv_heads * (head_size * 8 // 32 + 8)
assert allocated == per_token // 4 + scales

# %% [markdown]
# Where do the other bytes come from? An 8-bit number means nothing without a scale and a zero point, 4 bytes each. Keys
# have such a pair for each of their 64 numbers in a block of 32 tokens: 64 × 8 / 32 = 16 bytes per token. Values have a
# pair per token: 8 bytes. `scales` multiplies the sum by layers and KV heads.
#
# ## Compare builds
#
# Do fewer bits make an engine worse, or faster? A third engine has the same weights in 16 bits, and rounds neither
# activations nor cache.

# %%
wide = Path(folder.name) / "wide"
with progress.wait("An engine with weights of 16 bits is built"):
    engine.build(checkpoint, BuildConfig(quant_algo=None), wide, "cpu")
executors["16 bits"] = Executor.load(wide)

# %% [markdown]
# **Quality.** One answer says nothing about a build. Let each engine read the same text instead. After every token, which
# probability p does it give to the one that comes next? *Perplexity* is e to the mean of −log p: at 20 the engine is as
# unsure as in a choice among 20 equally likely tokens. Most of that is due to the text, so take the ratio of two builds on
# the same text.
#
# Here it is the beginning of lesson 00, in eight windows of 64 tokens, read side by side. `forward` is one iteration. A
# `Chunk` has the tokens of one request to compute, how many came before them, and the request's blocks of the cache.

# %%
text = tokenizer.encode(quality.prose())[: 8 * 64]
windows = np.array(text).reshape(8, 64).tolist()


def chunks(place, users=8):
    """The token at `place` of each window, as an iteration takes them."""
    return [
        Chunk([windows[user][place]], place, [2 * user, 2 * user + 1])
        for user in range(users)
    ]


def surprise(model):
    """-log p of each token that came next, [63, 8]."""
    found = []
    for place in range(63):
        logits = np.array(model.forward(chunks(place)), float)
        log_p = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
        comes = [window[place + 1] for window in windows]
        found.append(-log_p[range(8), comes])
    return np.array(found)


# %% tags=["nbval-ignore-output"]
with progress.wait("Each engine reads the text"):
    surprises = {name: surprise(one.model) for name, one in executors.items()}
rows = []
for name, found in surprises.items():
    # your line: the perplexity of the text, from `found`
    perplexity = np.exp(found.mean())
    more = found - surprises["16 bits"]
    reach = 2 * more.std() / np.sqrt(more.size)
    ratios = np.exp([more.mean(), more.mean() - reach, more.mean() + reach])
    rows.append(
        (name, executors[name].model.info.weight_bytes / 1e6, perplexity, *ratios)
    )
columns = ["build", "MB of weights", "perplexity", "over 16 bits", "from", "to"]
pd.DataFrame(rows, columns=columns).set_index("build").round(3)

# %% [markdown]
# <details><summary>The line</summary>
# <code>perplexity = np.exp(found.mean())</code>
# </details>
#
# "From" and "to" are two standard errors below and above the ratio, over 504 tokens. (This is a little too narrow:
# neighbouring tokens are not independent.) Where 1 lies between them, this text shows no difference:

# %% tags=["nbval-ignore-output"]
for name, _, _, ratio, low, high in rows[:2]:
    verdict = "no difference shown" if low <= 1 <= high else "a difference"
    print(f"{name} over 16 bits: {ratio:.4f} ({low:.4f} to {high:.4f}), {verdict}")
    assert abs(ratio - 1) < 0.1

# %% [markdown]
# 16 bits cannot bring back what the file never had. What can differ is the rounding of activations (W4A8) and of keys and
# values (INT8).
#
# **Speed.** Other programs use the machine too, so the builds take turns: five rounds, in each the median time of eight
# iterations, with one user and with eight.


# %% tags=["nbval-ignore-output"]
def tokens_per_s(model, users):
    """Tokens per second, from the median time of eight iterations."""
    took_s = []
    for place in range(40, 48):
        started = time.perf_counter()
        model.forward(chunks(place, users))
        took_s.append(time.perf_counter() - started)
    return users / np.median(took_s)


rows = [
    (number, name, users, tokens_per_s(one.model, users))
    for number in progress.over(range(1, 6), "Rounds")
    for users in (1, 8)
    for name, one in executors.items()
]
speed = pd.DataFrame(rows, columns=["round", "build", "users", "tokens/s"])

# %% tags=["nbval-ignore-output"]
said = []
for users, found in speed.groupby("users"):
    rounds = found.pivot(index="round", columns="build", values="tokens/s")
    for other in ("16 bits", "INT8 cache"):
        ratio = rounds["default"] / rounds[other]
        low, high = ratio.min(), ratio.max()
        verdict = "faster" if low > 1 else "slower" if high < 1 else "not told apart"
        of = f"default over {other}, {users} at a time"
        said.append(f"{of}: {ratio.median():.2f} ({low:.2f} to {high:.2f}), {verdict}")
figure = px.strip(speed.astype({"users": str}), x="tokens/s", y="build", color="users")
figure.update_xaxes(rangemode="tozero")
figure.update_yaxes(title="")
charts.show(figure, "Tokens per second, five rounds a build. " + "; ".join(said) + ".")
print(*said, sep="\n")

# %% [markdown]
# "Faster" stands only where all five rounds agree. The default reads 97 MB of weights in each iteration, the engine with 16
# bits 269 MB; but 4 bits have to be turned back into numbers first. Which of the two decides depends on the processor and
# its memory. Now look at one user against eight: an iteration reads the weights once for all. That is why servers batch.
#
# How could this mislead? The speed is that of this machine, in this minute, with short contexts. And 504 tokens of one text
# may hide a small loss; `inflight bench quality` reads ten times as many.
#
# ## What breaks
#
# The limits of a small engine are easy to hit. What happens to a prompt that is too long, to an answer that would be too
# long, and to a third user?

# %% tags=["nbval-ignore-output"]
limits = {"max_batch_size": 2, "max_input_len": 32, "max_seq_len": 64}
small = Path(folder.name) / "small"
with progress.wait("A small engine is built"):
    engine.build(checkpoint, BuildConfig(**limits, max_num_tokens=64), small, "cpu")
with Executor.load(small) as tiny:
    try:
        tiny.generate(Request([1] * 40, 8))
    except CourseError as error:
        print("Prompt too long →", str(error).replace(": ", ":\n    "))
    cut = tiny.generate(Request([1] * 30, 500))
    tiny.generate_all([Request([1] * 30, 8)] * 6)
    log = pd.DataFrame(tiny.iteration_stats)
print(f"Answer too long → {len(cut.token_ids)} tokens of 500")
print(f"Six users → {log['scheduled'].max()} at once, {log['waiting'].max()} waiting")
assert len(cut.token_ids) == 64 - 30 and log["scheduled"].max() == 2

# %% [markdown]
# The first is refused, the second is cut, the third waits.
#
# ## Elsewhere
#
# In July 2026 TensorRT-LLM removed its engines, with `convert_checkpoint.py` and `trtllm-build`; containers up to 26.07
# still have them. Since then its PyTorch backend loads a Hugging Face folder without a build, as vLLM does. The questions of
# this lesson stay: which precision, how much cache per token, which limits? The server answers them when it starts.
#
# | | Here, and TensorRT-LLM with engines | TensorRT-LLM today | vLLM |
# |---|---|---|---|
# | build | `engine.build`; `trtllm-build` | none: `LLM(model=…)` | none: `vllm serve` |
# | slots | `max_batch_size` | `max_batch_size` | `--max-num-seqs` |
# | tokens of a request | `max_seq_len` | `max_seq_len` | `--max-model-len` |
# | tokens of an iteration | `max_num_tokens` | `max_num_tokens` | `--max-num-batched-tokens` |
# | precision of weights | `quant_algo` | the checkpoint's | `--quantization` |
# | smaller cache | `kv_cache_quant_algo` | `kv_cache_config`: `dtype` | `--kv-cache-dtype` |
#
# On a GPU the cache is a share of the memory that weights and activations leave, so a larger `max_num_tokens` makes it
# smaller. [The page for a lab GPU](../assets/lab-gpu/README.md) has the commands.

# %% [markdown]
# ## Recap
#
# - A checkpoint holds weights, shape and vocabulary. An engine adds a graph, a KV cache and limits.
# - 4-bit weights are blocks: a width d, a smallest value m, and for each weight one of 16 levels.
# - KV cache per token = 2 × layers × KV heads × head size × bytes of a number; an 8-bit cache adds its scales.
# - Users that fit = (memory − weights) / (tokens × bytes per token), and never more than `max_batch_size` at once.
# - Judge a build by a ratio of perplexities with its interval, and by speed in turns.
#
# Three questions to answer without running anything:
#
# <details><summary>1. A model has 32 layers, 32 KV heads of 128 numbers, and a cache in float16. How many bytes per
# token?</summary>
#
# 2 × 32 × 32 × 128 × 2 = 524,288: half a megabyte. A user with 2,048 tokens takes 1.07 GB.
#
# </details>
# <details><summary>2. You double <code>max_batch_size</code>. What changes on disk, and what in memory?</summary>
#
# Here: one number in <code>config.json</code>; in memory, the KV cache may become twice as large. An engine of TensorRT-LLM
# has to be built again for more slots; fewer can be set when it is loaded. Its activations stay as they are, because
# <code>max_num_tokens</code> bounds them, and so does its KV cache: twice as many users share it.
#
# </details>
# <details><summary>3. Why does an engine for eight users not need eight times the weights?</summary>
#
# All users share them: an iteration reads the weights once and computes a token for each user.
#
# </details>
#
# Do the [lab]({lab}), then go on to {next}.
