# %% [markdown]
# # {heading}
#
# {minutes} min. Afterwards you will be able to
#
# - **build** an engine from a checkpoint, step by step and in one line;
# - **calculate** the bytes of weights and KV cache before you build, and how many users fit into a machine;
# - **choose** between builds by quality, size and speed.
#
# {navigation}

# %% [markdown]
# ## {question}
#
# Your team has picked a model. Someone puts its file on the table: not even 100 MB. "The machine has gigabytes free,
# so it will serve hundreds of users, won't it?" Before you say yes, you want to know what a server does with this
# file, what else it keeps in memory for each user, and which limits are fixed on the way.
#
# The file is a [checkpoint](00_start_here.ipynb#Checkpoint). What a server runs is an
# [engine](00_start_here.ipynb#Engine): the same weights, prepared for one kind of machine, with limits. In this
# lesson you make one by hand.

# %% [markdown]
# ## Predict
#
# A model is a stack of *layers*. What flows through them is one vector a token, its *activation*. In every layer, the
# activation is turned into a *key*, by which later tokens find this one, and a *value*, which is what they read.
# Keys and values are kept for as long as the conversation lasts, so that nothing is computed twice: that is the
# [KV cache](00_start_here.ipynb#KV-cache). A layer keeps them for each of its *KV heads*, and several query heads may
# share one.
#
# This model has 30 layers, 9 query heads, 3 KV heads, and keys and values of 64 numbers each. The default engine
# keeps a number in 4 bytes.

# %% tags=["setup"]
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd

from inflight.lessons import engine as lesson
from inflight.notebook import charts, progress, widgets

workdir = tempfile.TemporaryDirectory()

# %% tags=["parameters"]
prediction = None  # papermill may answer

# %% tags=["setup"]
guess = widgets.predict(
    "How many bytes of KV cache does one token take?", given=prediction
)
guess

# %% [markdown]
# ## What the file holds

# %% tags=["setup"]
from inflight.notebook import catch_up

catch_up("01", "What the file holds")

from inflight import engine
from inflight.checkpoint import GgufFile, fetch

checkpoint = fetch()
source = GgufFile(checkpoint.path)
layers = source.metadata["llama.block_count"]
tensors = pd.DataFrame(source.tensor_table())
total, size = tensors["parameters"].sum(), checkpoint.path.stat().st_size
print(f"{total / 1e6:.1f} million parameters in a file of {size / 1e6:.1f} MB")
charts.table(tensors.groupby("format")[["parameters", "bytes"]].sum().reset_index())

# %% [markdown]
# The file holds the model's shape, its vocabulary, and then one tensor after another. Most of the weights are in the format `Q4_1`: 32
# neighbours form a block, and each is one of 16 steps between the smallest and the largest of them. That is
# [quantization](00_start_here.ipynb#Quantization). A block has 20 bytes: the width of a step, d, and the smallest
# weight, m, in 16 bits each; then 16 bytes with two steps each. Decode the first one by hand:

# %% tags=["setup"]
import gguf

packed = source.tensors["blk.0.attn_q.weight"].data  # bytes, as they stand in the file
block = packed[0, :20]
d, m = block[:4].view(np.float16).astype(float)
q = np.concatenate([block[4:] & 15, block[4:] >> 4])  # low halves first, then high
weights = d * q + m
print(f"d = {d:.5f}, m = {m:.5f}, and the steps are", *q)
print("so the weights are", *(f"{weight:.3f}" for weight in weights[:6]), "…")
assert np.allclose(weights, gguf.dequantize(block, gguf.GGMLQuantizationType.Q4_1))

# %% [markdown]
# The gguf library reads the same. 20 bytes for 32 weights are 5 bits a weight, where training had 16 or 32.
#
# What the file does *not* hold: what is to be computed in which order, how many users there are, how long a prompt
# may be, a KV cache.
#
# ## Step 1: a graph
#
# [OpenVINO](https://docs.openvino.ai/) compiles neural networks for CPUs. In this course it stands where TensorRT
# stands on a GPU. Its reader knows what a Llama computes, and writes that down as a *graph*: operations, and what
# flows between them.

# %% tags=["setup", "nbval-ignore-output"]
from inflight.notebook import catch_up

catch_up("01", "Step 1: a graph")

from inflight.engine import steps

by_hand = Path(workdir.name) / "by_hand"
by_hand.mkdir(exist_ok=True)
seconds, started = {}, time.perf_counter()
with progress.wait("The file becomes a graph"):
    graph = steps.to_graph(checkpoint.path, by_hand)
seconds["1 graph"] = time.perf_counter() - started
as_read = steps.operations(graph)
print(f"{as_read.total():,} operations of {len(as_read)} types. The most frequent:")
print(", ".join(f"{number} {kind}" for kind, number in as_read.most_common(6)))
assert as_read["ScaledDotProductAttention"] == layers

# %% tags=["nbval-ignore-output"]
from IPython.display import Markdown

layer = engine.read_layer(graph, 1)
summary = lesson.layer_summary(layer)
charts.show(lesson.layer(layer), summary)
Markdown(summary)

# %% [markdown]
# Seven matrix products carry nearly all weights of a layer: query, key, value and output in its attention, then gate, up
# and down. Each is fed by a few operations that turn 4 bits back
# into numbers (*Convert*, *Subtract*, *Multiply*); the rest reshapes and rotates. Blue is the KV cache, here still a
# part of the graph.
#
# ## Step 2: exactly the file's weights
#
# OpenVINO's product of 4-bit weights computes d · (q − z). The file says d · q + m. So z is −m / d, and the reader has
# rounded that to a whole number:

# %%
from inflight.notebook import catch_up

catch_up("01", "Step 2: exactly the file's weights")

z = np.round(-m / d)
off = weights - d * (q - z)
print(f"−m / d is {-m / d:.2f}, and z is {z:.0f}:")
print(f"all weights of this block are off by {abs(off[0]) / d:.0%} of a step")
assert np.allclose(off, off[0])

# %% [markdown]
# So the graph gets −m / d as it is: the file's own numbers, and one more operation (*Divide*). And products with the same
# input are joined: query, key and value become one product, gate and up another.

# %% tags=["setup"]
started = time.perf_counter()
changed = engine.four_bits.make_exact(graph, source)
steps.save(graph, by_hand)
seconds["2 exact weights"] = time.perf_counter() - started
exact = steps.operations(graph)
stored = (by_hand / engine.WEIGHTS_FILE).stat().st_size
print(f"{changed} products changed; {stored / 1e6:.0f} MB of weights on disk")
assert changed == 7 * layers

# %% [markdown]
# Without this step, the model's perplexity (explained below) was a quarter higher.
#
# ## Step 3: attention with pages
#
# In this graph every attention keeps its own cache, for one batch of prompts of the same length. A server wants many
# conversations of any length, whose keys and values lie in blocks wherever there is room. OpenVINO exchanges the
# attention:

# %% tags=["setup"]
from inflight.notebook import catch_up

catch_up("01", "Step 3: attention with pages")

inputs = {port.get_any_name() for port in graph.inputs}
started = time.perf_counter()
steps.with_pages(graph)
steps.keep_last_tokens(graph)  # logits only where a token is to be chosen
seconds["3 pages"] = time.perf_counter() - started
paged = steps.operations(graph)
paged_inputs = {port.get_any_name() for port in graph.inputs}
of_layer = {name for name in paged_inputs if "_cache." in name}
print("Inputs out:", *sorted(inputs - paged_inputs))
print(
    "Inputs in: ",
    *sorted(paged_inputs - inputs - of_layer),
    f"and {len(of_layer)} caches",
)

# %%
went = [f"{exact[kind]} {kind}" for kind in exact if not paged[kind]]
came = [f"{paged[kind]} {kind}" for kind in paged if not exact[kind]]
print("Operations out:", ", ".join(went))
print("Operations in: ", ", ".join(came))
assert paged["PagedAttentionExtension"] == layers and not paged["ReadValue"]

# %% [markdown]
# The caches are inputs now: whoever runs the graph owns them. All tokens of an iteration, prompts and answers of all
# users, lie in one row without padding (`remove_input_padding`); `subsequence_begins` says where each user's begin,
# `block_indices` where their past is. The longest row is `max_num_tokens`.
#
# ## Step 4: a program
#
# A graph says what, not how. The compiler joins operations, lays the weights out anew, and picks machine code for
# each step, by what this very processor can do. For 4-bit weights that decides the precision, too:
#
# - **W4A16**: as the graph stands. Each weight becomes a floating-point number again and meets an activation as it is.
# - **W4A8**: some processors multiply 8-bit whole numbers, several at a time (Intel calls it VNNI and AMX). There it is quickest
#   to round activations to 8 bits, and z to a whole number after all. What is missing then is one number a block, the
#   same for its 32 weights, and can be given back: the product gets one more column a block, and its input one more
#   entry, the sum of the 32 activations that meet the block.

# %% tags=["setup", "nbval-ignore-output"]
from inflight.notebook import catch_up

catch_up("01", "Step 4: a program")

from inflight import machine
from inflight.engine import BuildConfig

chosen = machine.precision()
print(f"{chosen['engine']}, for {chosen['why']}")
started = time.perf_counter()
with progress.wait("The graph is compiled"):
    program = steps.compiled(graph, BuildConfig().on("cpu"), chosen["engine"])
seconds["4 program"] = time.perf_counter() - started
fused = steps.fused(program)

# %% tags=["nbval-ignore-output"]
print(f"{paged.total():,} operations became {fused.total():,}. Among them:")
for kind in ("RMS", "RoPE", "FullyConnected", "PagedAttention"):
    print(f"{fused[kind]:5} {kind}")
assert fused["PagedAttention"] == layers and fused["RMS"] == 2 * layers + 1
made = {
    "1 graph": as_read,
    "2 exact weights": exact,
    "3 pages": paged,
    "4 program": fused,
}
rows = [(step, f"{seconds[step]:.1f} s", ops.total()) for step, ops in made.items()]
charts.table(pd.DataFrame(rows, columns=["step", "took", "operations"]))

# %% [markdown]
# A norm was seven operations (*Power*, *ReduceMean*, *Sqrt* …), and so was a rotation; each is one now, RMS and RoPE.
#
# The program also says how large its cache blocks are: 32 tokens each. So here is the answer to the question above.

# %% tags=["setup"]
shapes = steps.cache_shapes(program)
kind, shape = shapes["key_cache.0"]
print(f"keys of one layer: {shape} (KV heads, tokens, numbers) of {kind.size} bytes")
per_block = shape[1]
measured = steps.block_bytes(program) // per_block
formula = 2 * layers * shape[0] * shape[2] * kind.size
print(f"2 (key, value) × {layers} layers × {shape[0]} heads × {shape[2]} × {kind.size}")
print(f"= {formula:,} bytes a token; the program takes {measured:,}")
assert formula == measured
print(guess.score(measured))

# %% [markdown]
# Note what the formula does *not* contain: the query heads. Sharing 3 KV heads among 9 makes the cache a third of what
# it would be.
#
# ## In one line
#
# That was a build. `engine.build` does steps 1 and 2, and stores what came of them with the tokenizer and the limits;
# steps 3 and 4 are done at every load, for the program belongs to this very processor. What is stored is the same for all.

# %% tags=["setup"]
from inflight.notebook import catch_up

catch_up("01", "In one line")

import filecmp

folder = Path(workdir.name) / "default"
engine.build(checkpoint, BuildConfig(), folder, tier="cpu")
files = [{file.name for file in place.iterdir()} for place in (by_hand, folder)]
print("in both folders:", *sorted(files[0]))
print("built besides:  ", *sorted(files[1] - files[0]))
assert filecmp.cmp(by_hand / engine.WEIGHTS_FILE, folder / engine.WEIGHTS_FILE, False)
assert steps.operations(steps.read(folder)) == exact
config = engine.read(folder).build_config
limits = ("max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens")
print("limits:", *(f"{name} {getattr(config, name)}" for name in limits), sep="\n  ")

# %% [markdown]
# The same graph, operation for operation, and the same weights, byte for byte. The limits have TensorRT-LLM's names. They
# were not in the file: they are the defaults of a `BuildConfig`, the second argument. Next, the runtime's own report: which
# machine code ran when one token was computed after 100 others? (A `Chunk` is those tokens of a request that an iteration
# computes: their ids, how many came before them, and the blocks of its cache.)

# %% tags=["nbval-ignore-output"]
from inflight.engine import Chunk

[spent] = engine.profile(engine.read(folder), [[Chunk([1], 100, [0, 1, 2, 3])]])
rows = [(part, f"{ms:.2f} ms", spent.kernels[part][0]) for part, ms in spent.ms.items()]
charts.table(pd.DataFrame(rows, columns=["part", "took", "kernel"]))

# %% [markdown]
# Each step has a counterpart in [TensorRT-LLM](https://nvidia.github.io/TensorRT-LLM/):
#
# | Here | There |
# |---|---|
# | the file | a checkpoint of Hugging Face |
# | step 1, the graph is read from the file | `convert_checkpoint.py` sorts the weights; `trtllm-build` has the graph of each family as Python |
# | step 2, 4-bit products | a *plugin*: machine code from outside TensorRT, named in the graph |
# | step 3, paged attention | a plugin again, `--gpt_attention_plugin`, put there when the engine is built |
# | one row of tokens, up to `max_num_tokens` | an optimization *profile*: least, best and greatest size of each input |
# | step 4, precision and kernels are picked by rules, in seconds | *tactics*: candidates are timed on the GPU at hand, in minutes |
# | memory for activations is taken while it runs | activations are computed at build time, from the profile's greatest sizes |
# | stored: graph and weights | stored: the program (`rank0.engine`) |
# | compiled at every load, for this processor | loads at once, on that GPU model and TensorRT version only |
# | limits are numbers in `config.json` | limits are in the program: other limits, another build |
#
# An engine needs no server: it runs in this very process.

# %% tags=["nbval-ignore-output"]
from inflight.checkpoint import load_tokenizer
from inflight.engine import Executor, Request

tokenizer = load_tokenizer(folder)
prompt = tokenizer.encode(tokenizer.chat("Name the capital of France."))
with Executor.load(folder) as executor:
    answer = executor.generate(Request(prompt, 32, end_id=tokenizer.end_id))
print(f"{len(prompt)} tokens in, {len(answer.token_ids)} out:")
print(tokenizer.decode(answer.token_ids))

# %% [markdown]
# ## What fills the memory
#
# Weights are there once. The KV cache grows with every user and every token of theirs, so memory is full at
#
# users = (free memory − weights) / (tokens a user × bytes a token).
#
# `Sizing` does this arithmetic for any `BuildConfig`, without building it.

# %% tags=["setup"]
from inflight.notebook import catch_up

catch_up("01", "What fills the memory")

import psutil
from IPython.display import Markdown

from inflight.engine import Sizing

info = engine.read(folder)
sizing, config = Sizing(source, info.pretrained_config), info.build_config
memory, slots = psutil.virtual_memory().available * 0.9, config.max_batch_size
by_kind = sizing.weights_by_kind(config)
kv = [(n, sizing.kv_bytes_per_user(config, n)) for n in (2048, 1024, 512)]
of_user = pd.DataFrame(kv, columns=["tokens", "bytes"])
assert abs(by_kind["bytes"].sum() / stored - 1) < 0.01  # as predicted, so on disk

# %% tags=["nbval-ignore-output"]
summary = lesson.engine_bytes_summary(by_kind, of_user, memory, slots)
charts.show(lesson.engine_bytes(by_kind, of_user, memory, slots), summary)
Markdown(summary)

# %% [markdown]
# So the answer to your team is: one long conversation weighs as much as the model; and what stops you first is not
# memory but `max_batch_size`, which was fixed when the engine was built. (The arithmetic leaves out the program and
# its activations, some hundred megabytes.)
#
# Move the limits yourself; nothing is built. Raise the slots until memory is what stops you, then give each user fewer
# tokens, or INT8. Right of the bend users wait, and take no memory. The diamond is your engine.

# %% tags=["setup", "nbval-ignore-output"]
from inflight.lessons import engine as lesson

on_paper = lesson.memory(sizing, config, memory)
cache_bytes = slots * config.max_seq_len * measured
taken = [{"users": slots, "bytes": stored + cache_bytes}]
on_paper.measured(taken, tokens=config.max_seq_len, cache="as computed")
on_paper

# %% [markdown]
# ## Compare builds
#
# Five engines of the same checkpoint. W stands for weights, A for the activations that a product multiplies them with.
#
# - **W4A8** and **W4A16**: the same 4-bit weights, computed as in step 4. The first row is the default of this processor.
# - **W8A16**: the checkpoint's 4-bit weights, stored in 8 bits.
# - **float**: weights in 16 bits on disk.
# - **INT8 KV**: as the default, keys and values in 8 bits.
#
# One printed answer says nothing about a build; *perplexity* does. It is e to the mean of −log p, where p is the
# probability that the model gave to each token that really came next: a perplexity of 20 is as unsure as a choice
# among 20 equally likely tokens. The text, here the prose of these lessons, decides most of it. So judge a build by how
# many times the checkpoint's own perplexity it has: 1 means nothing is lost.

# %% tags=["setup", "long", "nbval-ignore-output"]
from inflight.notebook import catch_up

catch_up("01", "Compare builds")

from inflight.bench import quality

built = {engine.read(folder).quant_algo: folder}
options = {
    "W4A8": {"quant_algo": "W4A8"},
    "W4A16": {"quant_algo": "W4A16"},
    "W8A16": {"quant_algo": "W8A16"},
    "float": {"quant_algo": None},
    "INT8 KV": {"kv_cache_quant_algo": "INT8"},
}
others = [name for name in options if name not in built]
for name in progress.over(others, "Build"):
    place = Path(workdir.name) / name
    built[name] = engine.build(checkpoint, BuildConfig(**options[name]), place)

# %% tags=["setup", "long", "nbval-ignore-output"]
with progress.wait("Quality and speed of each build") as line:
    result = quality.bench(checkpoint, built, tokens=1024, progress=line)
compared = pd.DataFrame(quality.in_words(result["rows"]))
ratios = [row["over_checkpoint"] for row in result["rows"] if row["over_checkpoint"]]
assert all(abs(ratio["value"] - 1) < 0.1 for ratio in ratios)
charts.table(compared.fillna("-"))

# %% tags=["nbval-ignore-output"]
summary = lesson.builds_summary(result["rows"])
charts.show(lesson.builds(result["rows"]), summary)
Markdown(summary)

# %% [markdown]
# What to read off (± is a 95 % interval; `inflight bench quality` reads five times as much and is surer):
#
# - **Quality**: all builds stay close to the checkpoint. 4 bits are what the file has, and step 2 keeps them exact.
# - **W4A8 against W4A16**: the same file. On a processor that multiplies 8-bit whole numbers, W4A8 is quicker; the price
#   is `same_top`: the share of places with the checkpoint's most likely token. Where that is another, an answer takes
#   another turn, and all after it differs. On other processors nothing is rounded, and W4A8 only has the columns more.
# - **W8A16**: half as many bytes again, and slower. More bits cannot bring back what the file never had.
# - **float**: nothing to turn back; but several times the bytes have to come from memory.
# - **1 user against 8**: an iteration reads the weights once, for however many users. That is why servers batch.
#
# How could the picture mislead? The text is short, and the speed is this machine's: with more cores or another
# memory, builds change places.
#
# ## Eight bits for the cache
#
# With an INT8 cache the formula says one byte a number. Now ask the engine.

# %%
from inflight.notebook import catch_up

catch_up("01", "Eight bits for the cache")

from inflight.engine import Executor

int8 = BuildConfig(kv_cache_quant_algo="INT8")
with Executor.load(built["INT8 KV"]) as executor:
    real = executor.model.block_bytes // per_block
more = sizing.kv_scale_bytes_per_token(int8)
print(f"{formula // 4:,} bytes a token by the formula, {real:,} really")
assert real - formula // 4 == more
taken = [{"users": slots, "bytes": stored + slots * config.max_seq_len * real}]
on_paper.measured(taken, tokens=config.max_seq_len, cache="INT8")
print(f"Scales: {more:,} bytes a token; the diamond above has moved")

# %% [markdown]
# An 8-bit number means nothing without a scale and a zero point, 4 bytes each. Keys have a pair for each of the 64
# channels in a block of 32 tokens: 64 × 8 / 32 = 16 bytes a token. Values have a pair for each token: 8 bytes. Times
# layers and KV heads, that is what is missing.
#
# ## Turn the knob
#
# Change an option and see what follows, before any build. Try:
#
# 1. `kv_cache_quant_algo` INT8: by which factor do the users grow?
# 2. `max_batch_size` 2000: does memory still suffice?
# 3. `quant_algo` W8A8, `dtype` float16, `max_beam_width` 4, `max_input_len` 4096: read why each is refused.

# %% tags=["nbval-ignore-output"]
from inflight.notebook import catch_up

catch_up("01", "Turn the knob")

knobs = lesson.BuildOptions(sizing, memory)
assert sizing.users(config, 2048, memory) > 0
knobs

# %% [markdown]
# ## On the lab GPU
#
# TensorRT-LLM had engines until July 2026. Up to the containers of that month two programs made one:
# `convert_checkpoint.py` decided the precision (`--use_weight_only --weight_only_precision int4` is W4A16), and
# `trtllm-build` the limits (`--max_batch_size`, `--max_seq_len`, `--max_num_tokens`). Since then its PyTorch backend
# loads a Hugging Face folder, and the limits are keys of a `model.yaml`; in vLLM they are `--max-num-seqs`,
# `--max-model-len` and `--max-num-batched-tokens`. [The page for a lab GPU](../assets/lab-gpu/README.md) has both ways, command by command.
#
# Memory is divided otherwise than here. Activations are part of the engine, and the KV cache is a share
# (`kv_cache_free_gpu_mem_fraction`) of what is free beside them: on a GPU, larger limits leave a smaller cache.
#
# The flags come in three generations, and tutorials have them all. The row to remember is `--use_inflight_batching`:
# it never was a feature of its own.

# %%
from inflight.notebook import catch_up

catch_up("01", "On the lab GPU")

flags = lesson.build_flags()
forced = flags[flags["0.5: build.py"] == "--use_inflight_batching"]
assert list(forced["0.18: convert_checkpoint.py, trtllm-build"]) == ["no flag"]
charts.table(flags)

# %% [markdown]
# And how fast would it be? Here are the builds from above with eight users, next to recorded figures of the course's
# engine for a GPU.

# %% tags=["nbval-ignore-output"]
from inflight.bench import recorded

here, lab = pd.DataFrame(result["rows"]), recorded.table("quality", gpus_only=True)
what = ("build", "tokens_per_s_8")
summary = charts.lab_results_summary(here, lab, *what)
charts.show(charts.lab_results(here, lab, *what, "tokens a second, 8 users"), summary)

# %% [markdown]
# ## What breaks
#
# A small engine, whose limits are easy to hit: 2 slots, prompts of at most 32 tokens, 64 tokens in all. A prompt that
# is too long is refused. An answer that would be too long is cut. A request that finds no slot waits.

# %%
from inflight.notebook import catch_up

catch_up("01", "What breaks")

from inflight import CourseError
from inflight.engine import Executor, Request

limits = dict.fromkeys(("max_seq_len", "max_num_tokens"), 64)
limits |= {"max_batch_size": 2, "max_input_len": 32}
small = Path(workdir.name) / "small"
engine.build(checkpoint, BuildConfig(**limits), small, tier="cpu")
with Executor.load(small) as tiny:
    try:
        tiny.generate(Request([1] * 40, request_output_len=8))
    except CourseError as error:
        print("Prompt too long →", error)
    cut = tiny.generate(Request([1] * 30, request_output_len=500))
    tiny.generate_all([Request([1] * 30, request_output_len=8)] * 6)
    log = pd.DataFrame(tiny.iteration_stats)
print(f"Answer too long → 500 tokens asked for, {len(cut.token_ids)} given")
print(f"Six users → {log['scheduled'].max()} at once, {log['waiting'].max()} waiting")
assert len(cut.token_ids) == 64 - 30 and log["scheduled"].max() == 2

# %% [markdown]
# What cannot work is refused before anything is built, or when it is loaded:

# %%
for wrong in ({"max_beam_width": 4}, {"quant_algo": "W8A8"}, {"max_input_len": 2048}):
    try:
        BuildConfig(**wrong)
    except CourseError as error:
        print(f"{wrong} → {error}")
with open(small / engine.WEIGHTS_FILE, "r+b") as file:
    file.truncate(1_000_000)
try:
    Executor.load(small)
except CourseError as error:
    print("Weights cut short →", str(error).replace(workdir.name, "…"))
workdir.cleanup()

# %% [markdown]
# ## Recap
#
# - A checkpoint is weights, shape and tokenizer. An engine adds a graph whose attention reads a paged KV cache, and
#   limits; here the machine code is made at every load, with TensorRT once, at the build.
# - 4-bit weights are blocks: a scale, a smallest value, and a step of 16 for each weight.
# - KV bytes a token = 2 × layers × KV heads × head size × bytes of a number; an 8-bit cache adds its scales.
# - Users that fit = (memory − weights) / (tokens × bytes a token), and never more than `max_batch_size` at once.
# - Fewer bits are less to read for each token, and so faster; what they cost is measured on a text, not on an answer.
#
# ## Questions
#
# <details><summary>1. A model has 32 layers, 32 KV heads of 128, a cache in float16. How many bytes a token?</summary>
#
# 2 × 32 × 32 × 128 × 2 = 524,288: half a megabyte. A user with 2,048 tokens takes 1.07 GB.
#
# </details>
# <details><summary>2. You double max_batch_size. What changes on disk, what in memory?</summary>
#
# Here: on disk nothing but a number in `config.json`; in memory, the KV cache may become twice as large. With
# TensorRT-LLM: another engine, whose activations take more memory, for they are computed when it is built, from the
# largest shapes. The KV cache gets its share of what is then free, so it becomes smaller, with twice as many to share it.
#
# </details>
# <details><summary>3. Why does an engine for eight users not need eight times the weights?</summary>
#
# All users share them: an iteration reads the weights once and computes a token for each user.
#
# </details>
#
# Do the [lab]({lab}), then go on to {next}.

# %% tags=["nbval-ignore-output"]
from inflight.notebook import session

session.running()
