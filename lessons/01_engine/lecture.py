# %% [markdown]
# # {heading}
#
# {minutes} min. Afterwards you will be able to
#
# - **build** an engine from a checkpoint, and read what is in its folder;
# - **calculate** the bytes of weights and KV cache before you build, and how many users fit into a machine;
# - **choose** between builds by size, speed and the text they give.
#
# You need lesson 00 to have run on this machine, or a minute more for the model.
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
# [engine](00_start_here.ipynb#Engine): the same weights, prepared for one kind of machine, with limits.

# %% [markdown]
# ## Predict
#
# For each token of a conversation, the engine keeps one *key* and one *value* vector for each layer and KV head, so
# that it need not compute them again: the [KV cache](00_start_here.ipynb#KV-cache). This model has 30 layers, 3 KV
# heads and vectors of 64 numbers. The default engine stores each number in 4 bytes.

# %% tags=["nbval-ignore-output"]
from inflight.notebook import progress, widgets

guess = widgets.predict("How many bytes of KV cache does one token take?")
guess

# %% [markdown]
# ## Open the checkpoint

# %%
from inflight.checkpoint import GgufFile, fetch

checkpoint = fetch()
source = GgufFile(checkpoint.path)
for key in (
    "block_count",
    "embedding_length",
    "attention.head_count",
    "attention.head_count_kv",
    "context_length",
):
    print(f"{key:25} {source.metadata['llama.' + key]}")

# %% [markdown]
# So a checkpoint knows the model's shape. And it has the weights, one tensor after the other:

# %%
import pandas as pd

from inflight.notebook import charts

tensors = pd.DataFrame(source.tensor_table())
charts.table(tensors.groupby("format")[["parameters", "bytes"]].sum().reset_index())

# %%
total, size = tensors["parameters"].sum(), checkpoint.path.stat().st_size
print(
    f"{total / 1e6:.1f} million parameters in {tensors['bytes'].sum() / 1e6:.1f} MB: "
    f"{tensors['bytes'].sum() * 8 / total:.2f} bits each, not 32. The other "
    f"{(size - tensors['bytes'].sum()) / 1e6:.1f} MB of the file are the vocabulary."
)

# %% [markdown]
# `Q4_1` means: 32 neighbouring weights share a scale and a smallest value, and each is one of 16 steps between them,
# 4 bits. That is [quantization](00_start_here.ipynb#Quantization). What the checkpoint does *not* have: how many
# users at once, how long a prompt may be, a KV cache.
#
# ## Build
#
# All of that is decided in a `BuildConfig`. Its names are TensorRT-LLM's.

# %%
import tempfile
from dataclasses import asdict
from pathlib import Path

from inflight import engine
from inflight.engine import BuildConfig

workdir = tempfile.TemporaryDirectory()
pd.Series(asdict(BuildConfig()), name="default").to_frame()

# %% tags=["nbval-ignore-output"]
import time


def build(name: str, **options) -> tuple[Path, float]:
    """An engine in the notebook's own folder, and the seconds that it took."""
    started = time.perf_counter()
    folder = engine.build(checkpoint, BuildConfig(**options), Path(workdir.name) / name)
    return folder, time.perf_counter() - started


with progress.wait("An engine is built"):
    folder, seconds = build("default")
print(f"Built in {seconds:.1f} s.")

# %%
files = pd.DataFrame(
    [(file.name, file.stat().st_size) for file in sorted(folder.iterdir())],
    columns=["file", "bytes"],
)
charts.table(files)

# %% [markdown]
# The compiled model (`.xml` is its graph, `.bin` its weights), the tokenizer, `config.json`, the SHA-256 of each of
# them (`checksums.json`), and the commands that build the same with TensorRT-LLM. `config.json` has three parts, as there: `version`, the model's shape, and the
# build options.

# %%
info = engine.read(folder)
print(info.version)
shape = {
    key: value
    for key, value in info.pretrained_config.items()
    if not isinstance(value, dict)
}
pd.Series(shape, name="pretrained_config").to_frame()

# %% [markdown]
# ## Measure: bytes of a token
#
# Load the engine and ask it how large one block of its KV cache is. A block has room for 32 tokens.

# %%
from inflight.engine import Executor, Request

executor = Executor.load(folder)
block_bytes, per_block = executor.model.block_bytes, info.build_config.tokens_per_block
measured = block_bytes // per_block
print(
    f"{block_bytes:,} bytes a block of {per_block} tokens: {measured:,} bytes a token."
)

# %% tags=["nbval-ignore-output"]
model = info.pretrained_config
formula = (
    2
    * model["num_hidden_layers"]
    * model["num_key_value_heads"]
    * model["head_size"]
    * 4
)
print(
    f"2 (key, value) × {model['num_hidden_layers']} layers "
    f"× {model['num_key_value_heads']} KV heads "
    f"× {model['head_size']} numbers × 4 bytes = {formula:,}."
)
print(guess.score(measured))

# %% [markdown]
# The formula is exact. Note what it does *not* contain: the 9 query heads. Sharing 3 KV heads among them makes the
# cache a third of what it would be.
#
# ## One prompt, no server
#
# The engine runs in this very process; a server is only around it.

# %%
from inflight.checkpoint import load_tokenizer

tokenizer = load_tokenizer(folder)
prompt = tokenizer.encode(tokenizer.chat("Name the capital of France."))
response = executor.generate(
    Request(prompt, request_output_len=32, end_id=tokenizer.end_id)
)
print(
    f"{len(prompt)} tokens in, {len(response.token_ids)} out, "
    f"ended by {response.finish_reason}:\n{tokenizer.decode(response.token_ids)}"
)
executor.shutdown()

# %% [markdown]
# ## See what fills the memory
#
# Weights are there once. The KV cache grows with every user and with every token of theirs, so memory is full at
#
# users = (free memory − weights) / (tokens a user × bytes a token).
#
# `Sizing` does this arithmetic for any `BuildConfig`, without building it.

# %% tags=["nbval-ignore-output"]
import psutil

from inflight.engine import Sizing

sizing, config = Sizing(source, info.pretrained_config), info.build_config
memory = psutil.virtual_memory().available * 0.9
weights = sizing.weights_by_kind(config)
kv = pd.DataFrame(
    [(n, sizing.kv_bytes_per_user(config, n)) for n in (2048, 1024, 512)],
    columns=["tokens", "bytes"],
)
on_disk = (folder / engine.WEIGHTS_FILE).stat().st_size
print(f"Weights: {weights['bytes'].sum():,} bytes predicted, {on_disk:,} on disk.")

# %% tags=["nbval-ignore-output"]
from IPython.display import Markdown

summary = charts.engine_bytes_summary(weights, kv, memory)
charts.show(charts.engine_bytes(weights, kv, memory), summary)
Markdown(summary)

# %% tags=["nbval-ignore-output"]
users, slots = sizing.users(config, 2048, memory), config.max_batch_size
print(
    f"{users} users of 2,048 tokens fit beside the weights into {memory / 1e9:.1f} GB. "
    f"The engine has {slots} slots, so its cache takes at most "
    f"{slots * sizing.kv_bytes_per_user(config, 2048) / 1e9:.2f} GB."
)

# %% [markdown]
# So the answer to your team is: the weights are not what fills the machine. And note the second limit, which no
# memory lifts: `max_batch_size` was fixed when the engine was built. (The arithmetic leaves out the program itself
# and its working memory, some hundred megabytes.)
#
# Move the limits yourself; it is arithmetic, nothing is built. Raise the slots until memory is what stops you, then
# give each user fewer tokens, or INT8. Right of the bend users wait, and take no memory. The diamond is your engine.

# %% tags=["nbval-ignore-output"]
from inflight.notebook import explorables

on_paper = explorables.memory(sizing, config, memory)
cache_bytes = slots * config.max_seq_len // per_block * block_bytes
on_paper.measured(
    [{"users": slots, "bytes": on_disk + cache_bytes}],
    tokens=config.max_seq_len,
    cache=None,
)
on_paper

# %% [markdown]
# ## Compare builds
#
# Five engines of the same checkpoint. All read the same text, the prose of these lessons.
#
# - **W4A8**, the default: 4-bit weights; activations are rounded to 8 bits before each product.
# - **W4A16**: the same weights; activations stay as they are.
# - **W8A16**: the checkpoint's 4-bit weights, stored in 8 bits.
# - **float**: weights in 16 bits on disk.
# - **INT8 KV**: as the default, keys and values in 8 bits.
#
# One printed answer says nothing about a build; *perplexity* does. It is e to the mean of −log p, where p is the
# probability that the model gave to each token that really came next: a perplexity of 20 is as unsure as a choice
# among 20 equally likely tokens. The text decides most of it, so judge a build by how many times the checkpoint's
# own perplexity it has, computed with the file's weights in 32 bits: 1 means nothing is lost.

# %% tags=["nbval-ignore-output"]
from inflight.bench import quality

options = {
    "W4A16": {"quant_algo": "W4A16"},
    "W8A16": {"quant_algo": "W8A16"},
    "float": {"quant_algo": None},
    "INT8 KV": {"kv_cache_quant_algo": "INT8"},
}
built = {"W4A8": folder}
for name in progress.over(options, "Build"):
    built[name], _ = build(name, **options[name])

# %% tags=["nbval-ignore-output"]
with progress.wait("Quality and speed of each build") as line:
    result = quality.bench(checkpoint, built, tokens=1024, progress=line)
compared = pd.DataFrame(quality.in_words(result["rows"]))
charts.table(compared.fillna("-"))

# %% tags=["nbval-ignore-output"]
summary = charts.builds_summary(result["rows"])
charts.show(charts.builds(result["rows"]), summary)
Markdown(summary)

# %% [markdown]
# What to read off (± is a 95 % interval; `inflight bench quality` reads five times as much and is surer):
#
# - **Perplexity**: all builds stay within about a hundredth of the checkpoint. 4 bits are what the file has, and the
#   engine multiplies with exactly them.
# - **W4A8 against W4A16**: the same file, the same bytes to read. The difference is arithmetic: a CPU multiplies
#   8-bit whole numbers several at a time; for A16 it must first turn each weight back into a floating-point number.
#   The price is `same_top`: the share of places with the checkpoint's most likely token.
# - **W8A16**: half as many bytes again, and slower. More bits cannot bring back what the file never had.
# - **float**: nothing to turn back, and the checkpoint's words; but several times the bytes have to come from memory.
# - **1 user against 8**: an iteration reads the weights once, for however many users. That is why servers batch.
#
# Where the most likely token is another, a greedy answer takes another turn, and everything after it differs.
#
# ## Where do the other bytes come from?
#
# With an INT8 cache the formula says one byte a number. Now ask the engine.

# %%
int8 = BuildConfig(kv_cache_quant_algo="INT8")
plain = formula // 4
with Executor.load(Path(workdir.name) / "INT8 KV") as executor:
    real = executor.model.block_bytes // per_block
print(
    f"{plain:,} bytes a token by the formula, {real:,} really: {real - plain:,} more."
)
on_paper.measured(
    [{"users": slots, "bytes": on_disk + slots * config.max_seq_len * real}],
    tokens=config.max_seq_len,
    cache="INT8",
)
keys = model["head_size"] * 8 // per_block
print(
    f"Scales: {model['num_hidden_layers']} layers "
    f"× {model['num_key_value_heads']} KV heads "
    f"× ({keys} bytes of keys + 8 of values) "
    f"= {sizing.kv_scale_bytes_per_token(int8):,}."
)

# %% [markdown]
# An 8-bit number means nothing without a scale and a zero point, 4 bytes each. Keys have a pair for each of the 64
# channels in a block of 32 tokens: 64 × 8 / 32 = 16 bytes a token. Values have a pair for each token: 8 bytes. The
# saving is still large, and the number of users grows with it.
#
# ## Turn the knob
#
# Change an option and see what follows, before any build. Try:
#
# 1. `kv_cache_quant_algo` INT8: by which factor do the users grow?
# 2. `max_batch_size` 2000: does memory still suffice?
# 3. `quant_algo` W8A8, `dtype` float16, `max_beam_width` 4, `max_input_len` 4096: read why each is refused.
#
# Open *The same with TensorRT-LLM* below the fields for the commands of the lab GPU: choose the GPU, and what it
# computes in. `dtype` above is this machine's.

# %% tags=["nbval-ignore-output"]
options = widgets.BuildOptions(sizing, memory)
options

# %% [markdown]
# ## On the lab GPU
#
# One container of NVIDIA's has both, what builds engines and what serves them: `{{name.image}}`, with TensorRT-LLM
# {{name.tensorrt_llm}}. Why no newer one, and what to do where only an older one is at hand, stands on the
# [page for instructors](../assets/lab-gpu/README.md).
#
# {{name.tried}}
#
# `assets/lab-gpu/lab.sh` goes the way step by step: `lab.sh fetch` gets a model that nobody has to ask for (TinyLlama),
# `lab.sh start` makes a container in which nothing runs yet, `lab.sh check` looks around in it.
#
# ```bash
# {{function.fetch}}
#
# {{function.start}}
#
# {{function.check}}
#
# {{function.inside}}
# ```
#
# - Ports are published on the machine's own loopback only: who may reach them is decided there.
# - `--shm-size`: Python models hand each other tensors in shared memory, and so do GPUs. The usual 64 MB are too few.
# - The container's first process only waits, for the launcher of lesson 03 returns at once.
#
# Then two steps where this course has one:
#
# ```bash
# {{function.convert}}
#
# {{function.build}}
# ```
#
# - **`convert`** decides the precision. A GPU multiplies 16 bits; `int8` and `int4` store the weights so and turn them
#   back, which is W8A16 and W4A16 here; `fp8` (Hopper and Ada) has weights, activations and KV cache in 8 bits, with
#   scales that sample texts give.
# - **`--tp_size`** splits each layer among GPUs: one engine file each. Heads and KV heads must divide by it.
# - **`build`** decides the limits. `--use_paged_context_fmha` is for lesson 05: reuse and chunked context need it, and
#   an INT8 KV cache cannot be built with it. No flag says V1, in-flight or policy: one engine serves them all.
# - **Memory** is divided otherwise than here. Activations are computed at build time, from the largest shapes that the
#   limits allow; the KV cache is a share (`kv_cache_free_gpu_mem_fraction`) of what is free once engine and activations
#   are there. So on a GPU larger limits leave a smaller cache.
#
# The first workshops, with TensorRT-LLM 0.5, built more by themselves:
#
# | | Then | Today |
# |---|---|---|
# | Server image | `{{line.server_image_0_5}}`, in a clone of the backend; or NVIDIA's 23.10 and TensorRT-LLM added by pip | `{{name.image}}`, as it is; to build it oneself, `{{line.server_image}}` |
# | Client image | Triton's image again, with `tritonclient[all]`, `transformers`, `pandas`, `tabulate` | `{{line.client_image}}`, or this course's `.venv` |
# | Engine | `build.py`, with `float16` and `--use_layernorm_plugin`, `--hidden_act` (GPT) or `--use_rmsnorm_plugin` (LLaMA) | the two steps above |
#
# The engine folder carries the commands for its own options, for a GPU that computes in float16. They exist in three
# generations, and you will meet all of them in tutorials.

# %%
from inflight.engine import trtllm_commands

given = trtllm_commands.commands(
    BuildConfig(quant_algo="W4A16"), family="llama", tp_size=2
)
for generation, commands in given.items():
    print(f"# {generation}\n{commands}\n")

# %%
charts.table(pd.DataFrame(trtllm_commands.flags()))

# %% [markdown]
# The row to remember is `--use_inflight_batching`: it never was a feature of its own. It switched on the attention
# plugin, packed input and the paged KV cache; all three are defaults today. What would differ on the GPU: a build
# takes minutes, and the engine runs only on the GPU model and with the TensorRT version that it was built for: build it
# in the container that serves it.
#
# And how fast would it be? These are the builds of above, with eight users, beside those of the course's engine for a
# GPU, as they were recorded.

# %% tags=["nbval-ignore-output"]
from inflight.bench import recorded

here, lab = pd.DataFrame(result["rows"]), recorded.table("quality", gpus_only=True)
summary = charts.lab_results_summary(here, lab, "build", "tokens_per_s_8")
charts.show(
    charts.lab_results(
        here, lab, "build", "tokens_per_s_8", "tokens a second, 8 users"
    ),
    summary,
)

# %% [markdown]
# ## What breaks
#
# A small engine, whose limits are easy to hit: 2 slots, prompts of at most 32 tokens, 64 tokens in all. A prompt that
# is too long is refused. An answer that would be too long is cut, and the engine notes it in its log (the line in
# red).

# %%
small, _ = build(
    "small",
    max_batch_size=2,
    max_input_len=32,
    max_seq_len=64,
    max_num_tokens=64,
    quant_algo="W4A16",
)
tiny = Executor.load(small)

# %%
from inflight import CourseError

try:
    tiny.generate(Request(prompt * 2, request_output_len=8))
except CourseError as error:
    print("Prompt too long →", error)

response = tiny.generate(Request(prompt[-30:], request_output_len=500))
print(
    f"Answer too long → 500 tokens asked for, {len(response.token_ids)} given "
    f"({response.finish_reason}): prompt and answer share 64."
)

# %%
tiny.generate_all([Request(prompt[-30:], request_output_len=8)] * 6)
log = pd.DataFrame(tiny.iteration_stats).tail(24)[["scheduled", "waiting"]]
print(
    f"Six users, two slots → at most {log['scheduled'].max()} scheduled in an "
    f"iteration, up to {log['waiting'].max()} waiting."
)
tiny.shutdown()

# %%
for wrong in ({"max_beam_width": 4}, {"quant_algo": "W8A8"}, {"max_input_len": 2048}):
    try:
        BuildConfig(**wrong)
    except CourseError as error:
        print(f"{wrong} → {error}")

# %% [markdown]
# An engine that was not finished, or was damaged, or belongs to another version, is not loaded either:

# %%
with open(small / engine.WEIGHTS_FILE, "r+b") as file:
    file.truncate(1_000_000)
try:
    Executor.load(small)
except CourseError as error:
    print(str(error).replace(workdir.name, "…"))

# %%
workdir.cleanup()

# %% [markdown]
# ## Recap
#
# - A checkpoint is weights, shape and tokenizer; an engine adds a compiled graph, a KV cache and limits.
# - KV bytes a token = 2 × layers × KV heads × head size × bytes of a number; an 8-bit cache adds its scales.
# - Users that fit = (memory − weights) / (tokens × bytes a token), and never more than `max_batch_size` at once.
# - Fewer bits are less to read for each token, and so faster; what they cost is measured on a text, not on an answer.
# - What a build has not is refused with the reason; what a request exceeds is refused or cut at run time.
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
