# %% [markdown]
# # 07 · Iterative GPT-2
#
# 35 min. Afterwards you will be able to
#
# - **serve** a model that no LLM engine knows so that its users stream side by side;
# - **measure** what it costs to compute a text again for every token, and build the cache that ends it;
# - **tell** where Triton's iterative scheduling stops and an LLM engine goes on.
#
# You need nothing but this notebook: the GPT-2 comes with the course.
#
# [← 06 · Triton's own batchers](06_batchers.ipynb) · [Lab 07](../labs/07_iterative_gpt2.ipynb) · next: 08 · Capstone
# (planned)

# %% [markdown]
# ## A model without an engine
#
# The research group next door has a model of its own. No LLM engine knows its architecture: there is a class in PyTorch,
# a checkpoint, and a Triton. Two users send a prompt, half a second apart. Must the second one sit and watch until the
# first has a whole answer?
#
# With what you know from lesson 04, you would say: no, batch them in flight. But who is to do that, with no engine
# there? Triton can, if the model helps a little.
#
# Our stand-in is a GPT-2 of a few million parameters. It was trained for this course, so do not expect wit.

# %% [markdown]
# ## Predict
#
# Commit yourself, before anything runs:

# %% tags=["nbval-ignore-output"]
from inflight import widgets

guess = widgets.predict("With a KV cache, an answer of 384 tokens is there how many times as fast as without one?",
                        ["about as fast", "about 2 times", "5 times or more"], "about 2 times")
guess

# %% [markdown]
# ## Two models, one GPT-2
#
# Both Triton models take a text and send a response a token. They differ in who forms the batch.

# %%
import tempfile
from pathlib import Path

from inflight import gpt2_checkpoint, repository
from inflight.repository import GPT2

workdir = tempfile.TemporaryDirectory()
log_path = Path(workdir.name) / "passes.jsonl"
repo = repository.assemble(Path(workdir.name) / "repo", models=GPT2, iteration_log_path=log_path,
                           gpt2_checkpoint_dir=gpt2_checkpoint.find("course-gpt2"))
for model in GPT2:
    config = repository.read_config(repo / model / "config.pbtxt")
    print(f"{model:15} {config.WhichOneof('scheduling_choice')}, at most {config.max_batch_size} in a batch")

# %% [markdown]
# - `simple-gpt2` has a **dynamic batcher**: what waits while the model is busy becomes its next batch. Whoever is in a
#   batch stays in it to the end, and nobody joins.
# - `iterative-gpt2` has a **sequence batcher** with `iterative_sequence: true`: after each token the model gives the
#   request back, and Triton forms the next batch anew.
#
# ## Race one: `simple-gpt2`
#
# Two streams, the second a little later than the first. Every token is noted with the time of its arrival. For a fair race
# `iterative-gpt2` first computes just as `simple-gpt2` does, the public tutorial's way; what it does by default comes
# later.

# %% tags=["nbval-ignore-output"]
from inflight import gpt2_client, telemetry
from inflight.server import Server

server = Server(repo).start()
server.load("iterative-gpt2", kv_cache="tutorial")
prompts = ["Programming in C++ is like", "Once upon a time there was"]
offsets_s = [0.0, 0.3]
for model in GPT2:
    gpt2_client.run(server.grpc_url, model, prompts, max_tokens=4)  # the first requests are the slowest: not counted
before = {model: telemetry.statistics(server.http_url, model) for model in GPT2}

# %% tags=["nbval-ignore-output"]
from inflight import charts

races, passes = {}, {}


def race(model):
    """Run it; keep every token's time, and what the model's log says of its forward passes."""
    start = log_path.stat().st_size
    races[model] = gpt2_client.run(server.grpc_url, model, prompts, 96, offsets_s)
    passes[model] = telemetry.passes(telemetry.executions(log_path, start))
    return charts.table(gpt2_client.standings(races[model]), decimals=2)


race("simple-gpt2")

# %% [markdown]
# The second stream got its first token when the first stream had its last one.
#
# ## Race two: `iterative-gpt2`
#
# The same prompts, the same times.

# %% tags=["nbval-ignore-output"]
race("iterative-gpt2")

# %% [markdown]
# ## See

# %% tags=["nbval-ignore-output"]
from IPython.display import Markdown, display

summary = charts.race_summary(races)
charts.show(charts.race(races, offsets_s), summary)
display(Markdown(summary))

# %% [markdown]
# The steeper the line, the faster a stream. Above, one stream has the model to itself while the other waits. Below, both
# lines rise side by side.
#
# ## Who was in which forward pass
#
# Triton counts the batches that it hands to a model. The model counts its forward passes. Put both together:

# %% tags=["nbval-ignore-output"]
for model in GPT2:
    done = telemetry.statistics(server.http_url, model) - before[model]
    sizes = ", ".join(f"{count} of {size}" for size, count in done.batches.items())
    num_passes = passes[model]["iteration"].nunique()
    print(f"{model:15} {done.executions:3} batches from Triton ({sizes}), {num_passes} forward passes")

# %% tags=["nbval-ignore-output"]
streams = {model: rows.rename(columns={"sequence": "stream"}) for model, rows in passes.items()}
summary = charts.forward_passes_summary(streams)
charts.show(charts.forward_passes(streams), summary)
display(Markdown(summary))

# %% [markdown]
# `simple-gpt2` got a batch for each stream, and made its forward passes behind Triton's back.
# `iterative-gpt2` got a batch for each pass: a column with two colours is one pass that served both.
#
# ## How a request comes back
#
# One request went in, so how can it be in a hundred batches? After each pass the model answers with a token, and
# releases the request with the flag `RESCHEDULE`: Triton puts it back into the queue, as it came. With its last token it
# is released for good.
#
# The same request again and again, with the same text: how does the model know where it was? Triton adds **control
# inputs** that no client sends. Here is what the model saw of the second stream, at its first pass and after:

# %% tags=["nbval-ignore-output"]
second = passes["iterative-gpt2"].query("sequence == 2")
charts.table(second[["iteration", "correlation_id", "start", "computed", "length"]].head(4))

# %% [markdown]
# - **`CORRID`** tells sequences apart. A client may name one; otherwise Triton makes one up, a number for each request.
# - **`START`** is 1 the first time: the model tokenizes the text, and keeps what it has to remember under that number.
# - **`READY`** is 0 where a place in the batch has no request now: a sequence left it, and others above it go on. Triton
#   sends such a place along, empty, and the model passes over it.
# - **`END`** says that the client ends the sequence. Here the model does that, so clients leave it out.
#
# `computed` and `length` are not from Triton. `length` is the text so far, and `computed` the number of tokens that went
# through the model for it: the whole text, at every pass. Remember this one; it is the other half of the lesson.
#
# ## Many responses to one request
#
# `model_transaction_policy { decoupled: true }` lets a model send as many responses as it likes. The last one carries a
# flag, so that a client knows that nothing more comes. HTTP shows it plainly:

# %% tags=["nbval-ignore-output"]
import httpx

body = {"text_input": prompts[0], "max_tokens": 4, "ignore_eos": True}
with httpx.stream("POST", f"{server.http_url}/v2/models/iterative-gpt2/generate_stream", json=body) as answer:
    for line in filter(None, answer.iter_lines()):
        print(line)

# %% [markdown]
# ## The waste
#
# The public tutorial from which these two models come keeps a list of tokens for each sequence, and computes all of it at
# each pass. Count what that means for one answer, on paper and in the log:

# %%
from inflight import tokenizer

words = tokenizer.load(gpt2_checkpoint.find("course-gpt2"))
prompt, answer = len(words.encode(prompts[0])), 64
print(f"The first token of the prompt goes through the model {answer} times, for {answer} tokens of answer.")
print(f"All tokens: {sum(prompt + n for n in range(answer)):,} without a cache, {prompt + answer - 1} would do.")

# %% tags=["nbval-ignore-output"]
computed = {}
for kv_cache in ("off", "on"):
    server.load("iterative-gpt2", kv_cache=kv_cache)
    start = log_path.stat().st_size
    gpt2_client.run(server.grpc_url, "iterative-gpt2", prompts[:1], answer)
    computed[kv_cache] = telemetry.passes(telemetry.executions(log_path, start))["computed"].sum()
    print(f"kv_cache {kv_cache:3}: {computed[kv_cache]:5,} tokens computed")

# %% [markdown]
# A layer makes a key and a value of each token, and neither depends on what comes later. So keep them: that is the KV
# cache. `iterative-gpt2` has one tensor with a **slot** for each sequence. A newcomer takes a free slot and fills it with
# its prompt in one pass; from then on a pass computes one token a sequence, and reads the rest from the slot. Who is done,
# or gone, leaves the slot to the next.
#
# ## What a token costs
#
# One long answer, first without and then with the cache. The time between two tokens is the cost of one.

# %% tags=["nbval-ignore-output"]
ways = {}
for way, kv_cache in (("without a cache", "off"), ("with a KV cache", "on")):
    server.load("iterative-gpt2", kv_cache=kv_cache)
    gpt2_client.run(server.grpc_url, "iterative-gpt2", prompts[:1], 8)
    tokens = gpt2_client.run(server.grpc_url, "iterative-gpt2", prompts[:1], 384)
    ways[way] = gpt2_client.costs(tokens, prompt)
summary = charts.cost_of_a_token_summary(ways)
charts.show(charts.cost_of_a_token(ways), summary)
display(Markdown(summary))

# %% [markdown]
# Without a cache a token costs as much as the text before it is long, so an answer of *n* tokens costs a part that grows
# with *n*². With the cache a token costs nearly the same anywhere in the text, and the answer grows with *n*.

# %% tags=["nbval-ignore-output"]
without, with_cache = (tokens["ms"].sum() / 1000 for tokens in ways.values())
print(f"384 tokens: {without:.1f} s without a cache, {with_cache:.1f} s with one, {without / with_cache:.1f} times as fast. "
      f"Your prediction: {guess.value}.")

# %% [markdown]
# ## Eight streams
#
# Now all of it at once: batching and the cache, each with and without. `tutorial` is the way of the public tutorial:
# 32-bit floating point, every text padded to the longest, and `generate` called for one token.

# %% tags=["nbval-ignore-output"]
import pandas as pd

from inflight import gpt2_race

eight, rows = gpt2_race.prompts(8), []
for model, kv_cache in (("simple-gpt2", ""), *(("iterative-gpt2", way) for way in ("tutorial", "off", "on"))):
    server.load(model, **({"kv_cache": kv_cache} if kv_cache else {}))
    gpt2_client.run(server.grpc_url, model, eight, 4)
    tokens = gpt2_client.run(server.grpc_url, model, eight, 48)
    streams = gpt2_client.standings(tokens)
    rows.append((model, kv_cache, len(tokens) / tokens["time_s"].max(), 1000 * streams["first_s"].max()))
charts.table(pd.DataFrame(rows, columns=["model", "kv_cache", "tokens a second", "last first token (ms)"]))

# %% [markdown]
# A model of this size is small enough for one core's caches, and the way through Triton is a good part of its time. With
# GPT-2's own 124 million parameters the picture is clearer. Those take minutes, so the figures below are recorded; their
# machine is named with them. `inflight bench gpt2` makes them on yours.

# %%
from inflight import gpt2_bench

recorded = gpt2_bench.results()
charts.table(recorded[["machine", "checkpoint", "way", "tokens_per_s", "ms_per_token", "first_ms_max", "last_ms_max"]])

# %%
charts.table(gpt2_bench.results("ratios")[["checkpoint", "ratio", "median", "min", "max"]], decimals=2)

# %% [markdown]
# The first two ratios say what the cache gains over the tutorial's way, and over computing everything again at the same
# precision. The third is the way through Triton against a plain loop in one process. The last says how far a pass is from
# the time in which memory can be read at all: every pass reads all weights, whoever is in it.
#
# And one token of one stream, alone in a process, after so many tokens of text (in ms):

# %%
by_length = gpt2_bench.results("rows_by_length").pivot(index=["checkpoint", "length"], columns="way", values="ms")
charts.table(by_length[["tutorial", "off", "on"]].reset_index())

# %% [markdown]
# ## Turn the knobs
#
# Three fields of `config.pbtxt` decide who is in. Each is tried here once; the editor below is for the rest.
#
# **`max_batch_size`**. With the strategy `direct`, a sequence has a place in the batch from its first pass to its last.
# Four streams, two places:

# %% tags=["nbval-ignore-output"]
from inflight.errors import CourseError

four = gpt2_race.prompts(4)


def passes_of_four(max_tokens=24, **values):
    server.load("iterative-gpt2", **values)
    start = log_path.stat().st_size
    gpt2_client.run(server.grpc_url, "iterative-gpt2", four, max_tokens)
    return telemetry.passes(telemetry.executions(log_path, start)).rename(columns={"sequence": "stream"})


knobs = {"direct, max_batch_size 2": passes_of_four(max_batch_size=2)}

# %% [markdown]
# **`max_candidate_sequences`**. With the strategy `oldest`, Triton begins so many sequences, and fills each batch with
# those that have waited longest. Four candidates for two places:

# %% tags=["nbval-ignore-output"]
candidates = "sequence_batching.oldest.max_candidate_sequences"
knobs["oldest, max_batch_size 2, 4 candidates"] = passes_of_four(max_batch_size=2, **{candidates: 4})
knobs["oldest, max_batch_size 8, 3 candidates"] = passes_of_four(max_batch_size=8, **{candidates: 3})
summary = charts.forward_passes_summary(knobs)
charts.show(charts.forward_passes(knobs), summary)
display(Markdown(summary))

# %% [markdown]
# Two places and `direct`: two streams run to their ends, and the others wait. Two places and four candidates: all four
# begin at once and take turns, each at half the speed. Three candidates in a wide batch: three run, and the fourth waits
# outside although the batch has room.
#
# **`max_sequence_idle_microseconds`**. Triton gives a sequence up when it has not been computed for so long: a safeguard
# against clients that vanish. Set it shorter than an execution, and it hits the living:

# %% tags=["nbval-ignore-output"]
idle = "sequence_batching.max_sequence_idle_microseconds"
server.load("iterative-gpt2", **{idle: 1})
try:
    gpt2_client.run(server.grpc_url, "iterative-gpt2", four, 64)
except CourseError as error:
    print(error)
server.load("iterative-gpt2")

# %%
fields = ["max_batch_size", candidates, idle, "kv_cache", "kv_cache_slots", "when_full"]
widgets.ConfigEditor(repo, "iterative-gpt2", server, fields)

# %% [markdown]
# And the race itself, live. Try:
#
# 1. `simple-gpt2` with 2 streams, then `iterative-gpt2`: the two pictures above, as they happen.
# 2. 8 streams with offset 0. Now set `max_batch_size` to 4 in the editor, apply, and run again.
# 3. `kv_cache_slots` 2 and `when_full` `refuse`: what do the others hear?

# %% tags=["nbval-ignore-output"]
from inflight import boards

board = boards.race(server)
board.run()
board

# %% [markdown]
# ## Where Triton stops
#
# Iterative sequences are in-flight batching: who comes joins the next pass, and who is done leaves. What does the engine
# of lessons 04 and 05 do beyond that?
#
# | | `iterative-gpt2` | `tensorrt_llm` |
# |---|---|---|
# | Who forms the batch | Triton's sequence batcher, before each pass | the engine itself, inside |
# | Way of a token | through Triton's queue and back to the Python process, for every sequence and token | none: the request stays in the engine to its end |
# | Memory of a sequence | a slot of the longest possible text | blocks of 32 tokens, as many as the text needs |
# | When memory is short | wait, or refuse | a policy: promise or pause |
# | Prompts | whole, beside the others' single tokens | whole or in chunks, within a budget of tokens |
# | The same beginning twice | computed twice | kept and shared |
# | Models | whatever you can write in PyTorch | those the engine knows |
#
# The last line is why you are here: for a model that no engine knows, this is the way. For a Llama, take the engine.
#
# ## On the lab GPU
#
# The models are the public tutorial's, and so are the names: `text_input`, `max_tokens`, `ignore_eos`, `text_output`. A
# client written for it runs on ours unchanged.
#
# | Step | Here | In NVIDIA's container |
# |---|---|---|
# | Start | `Server(repo)` | `tritonserver --model-repository=REPO`, in `nvcr.io/nvidia/tritonserver:24.10-trtllm-python-py3`, with `pip install transformers` |
# | Model | `assets/repository/iterative-gpt2` | the same folder, with the package `inflight` on the Python path; PyTorch's GPU build is used where it sees a GPU |
# | Precision | `gpt2_dtype` `bfloat16` or `float32` | also `float16` |
# | Version | Triton 2.51 (24.10) | avoid 25.09, in which a third pass is never scheduled; see [core #456](https://github.com/triton-inference-server/core/pull/456) |
# | Measure | `inflight bench gpt2` | the same; `assets/lab-gpu/bench_gpt2.sh` does all of it and keeps the results |
#
# ## What breaks
#
# **A prompt that is too long**, or an answer that would be. A slot has so many positions, and the model says so before
# it begins:

# %%
for text, max_tokens in (("word " * 2000, 8), (prompts[0], 5000)):
    try:
        gpt2_client.run(server.grpc_url, "iterative-gpt2", [text], max_tokens)
    except CourseError as error:
        print(error)

# %% [markdown]
# **A client that vanishes.** It sends nothing more, not even a goodbye; its connection is gone. The model asks
# `is_cancelled()` at each pass, and the slot is free again:

# %% tags=["nbval-ignore-output"]
def slots_in_use(expected):
    page = telemetry.metrics_with(server.metrics_url, "used", expected)  # waits until it is so
    return f"{page.loc[page['label'] == 'used', 'value'].item():.0f} slots in use"


reading = gpt2_client.race(server.grpc_url, "iterative-gpt2", prompts, 900)
while not next(reading):  # until the first token is there
    pass
print("two streams:", slots_in_use(2))
reading.close()
print("their client is gone:", slots_in_use(0))

# %% [markdown]
# ## Recap
#
# - A dynamic batcher forms a batch once; an iterative sequence goes back into the queue after every pass, and the batch is
#   formed anew.
# - Triton tells the model which sequence it is and whether it is new (`CORRID`, `START`, `READY`); the model keeps the
#   state, and says after each pass whether it wants the request back.
# - Without a cache the *n*th token costs *n* tokens' work, and an answer *n*²; with a KV cache a token costs nearly the same
#   anywhere.
# - `max_batch_size` limits who shares a pass, `max_candidate_sequences` who has begun, and
#   `max_sequence_idle_microseconds` how long somebody may be silent.
# - What is left to an LLM engine: paged memory, policies, chunks of prompts, reuse, and no way through Triton for every token.
#
# Three questions to answer without running anything:
#
# <details><summary>1. A prompt of 10 tokens, an answer of 100, no cache. How many times does the model compute the tenth
# token of the answer?</summary>
#
# It is in every pass after the one that made it: 90 times.
# </details>
#
# <details><summary>2. <code>direct</code>, <code>max_batch_size</code> 4, five streams. Who waits, and for how long?</summary>
#
# The fifth, until one of the four has its last token. With <code>oldest</code> and five candidates nobody waits that long, and
# all are a fifth slower.
# </details>
#
# <details><summary>3. Your model's pass takes 1.5 s, and <code>max_sequence_idle_microseconds</code> is the default of one
# second. What do your users see?</summary>
#
# Errors in the middle of their answers: Triton takes their sequences for idle while they are computed.
# </details>
#
# Now [do the lab](../labs/07_iterative_gpt2.ipynb).
#
# ## Leave the machine as it was
#
# The last cell stops the server and removes the files of this lesson. You may run it twice.

# %%
server.stop()
workdir.cleanup()
print("server alive:", server.is_alive(), "· files left:", Path(workdir.name).exists())
