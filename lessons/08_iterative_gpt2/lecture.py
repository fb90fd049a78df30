# %% [markdown]
# # {heading}
#
# {minutes} min. Afterwards you will be able to
#
# - **serve** a model that no LLM engine knows so that its users stream side by side;
# - **measure** what it costs to compute a text again for every token, and build the cache that ends it;
# - **tell** where Triton's iterative scheduling stops and an LLM engine goes on.
#
# You need nothing but this notebook: the GPT-2 comes with the course.
#
# {navigation}

# %% [markdown]
# ## A model without an engine
#
# The research group next door has a model of its own. No LLM engine knows its architecture: there is a class in PyTorch,
# a checkpoint, and a Triton. Two users send a prompt, the second a moment later. Must that one sit and watch until the
# first has a whole answer?
#
# With what you know from lesson 04, you would say: no, batch them in flight. **{question}** It
# can, if the model helps a little.
#
# Our stand-in is a GPT-2 of a few million parameters. It was trained for this course, so do not expect wit.

# %% [markdown]
# ## Predict
#
# Commit yourself, before anything runs. Triton's batcher forms a batch from what waits, and whoever is in it stays to the
# end. In its other way of scheduling a request goes back into the queue after every token.

# %% tags=["nbval-ignore-output"]
from inflight.notebook import progress, widgets

guess = widgets.predict(
    "A stream of 96 tokens runs, and a second prompt arrives. "
    "When does it get its first token?",
    [
        "at once in both ways",
        "at once in one, after the first stream's last in the other",
        "after the first stream's last in both",
    ],
)
guess

# %% [markdown]
# ## Two models, one GPT-2
#
# Both Triton models take a text and send a response a token. They differ in who forms the batch.

# %%
import tempfile
from pathlib import Path

from inflight.models import gpt2_checkpoint
from inflight.triton import GPT2, repository

workdir = tempfile.TemporaryDirectory()
log_path = Path(workdir.name) / "passes.jsonl"
repo = repository.assemble(
    Path(workdir.name) / "repo",
    models=GPT2,
    iteration_log_path=log_path,
    gpt2_checkpoint_dir=gpt2_checkpoint.find("course-gpt2"),
)
for model in GPT2:
    config = repository.read_config(repo / model / "config.pbtxt")
    print(
        f"{model:15} {config.WhichOneof('scheduling_choice')}, "
        f"at most {config.max_batch_size} in a batch"
    )

# %% [markdown]
# - `simple-gpt2` has a **dynamic batcher**: what waits while the model is busy becomes its next batch. Whoever is in a
#   batch stays in it to the end, and nobody joins.
# - `iterative-gpt2` has a **sequence batcher** with `iterative_sequence: true`: after each token the model gives the
#   request back, and Triton forms the next batch anew.
#
# ## Race one: `simple-gpt2`
#
# Two streams, the second 0.1 s later than the first. Every token is noted with the time of its arrival, counted from the
# start of the race. Both models follow Triton's public tutorial on
# [iterative scheduling](https://github.com/triton-inference-server/tutorials/tree/main/Conceptual_Guide/Part_7-iterative_scheduling).
# For a fair race `iterative-gpt2` first computes just as it does there; what ours does by default comes later.

# %% tags=["nbval-ignore-output"]
from inflight.bench import gpt2_client
from inflight.triton import Server, telemetry

server = Server(repo).start()
server.load("iterative-gpt2", kv_cache="tutorial")
prompts = ["Programming in C++ is like", "Once upon a time there was"]
offsets_s = [0.0, 0.1]
for model in GPT2:
    gpt2_client.run(
        server.grpc_url, model, prompts, max_tokens=4
    )  # the first requests are the slowest: not counted
before = {model: telemetry.statistics(server.http_url, model) for model in GPT2}

# %% tags=["nbval-ignore-output"]
from inflight.notebook import charts

races, passes, empty = {}, {}, {}


def race(model):
    """Run it; keep every token's time, and the model's log of its forward passes."""
    start = log_path.stat().st_size
    races[model] = gpt2_client.run(server.grpc_url, model, prompts, 96, offsets_s)
    log = telemetry.executions(log_path, start)
    passes[model], empty[model] = telemetry.passes(log), log["empty_places"].sum()
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

# %% tags=["nbval-ignore-output"]
kept_waiting = 0
for model, tokens in races.items():
    times = tokens.groupby("stream")["time_s"]
    first, last_of_other = times.min()[2], times.max()[1]
    kept_waiting += first > last_of_other
    waited_s = first - offsets_s[1]
    print(f"{model:15} the second stream waited {waited_s:.2f} s for its first token")
print(guess.score(("at once in both", "at once in one", "after")[kept_waiting]))

# %% [markdown]
# ## Who was in which forward pass
#
# Triton counts the batches that it hands to a model. The model counts its forward passes. Put both together:

# %% tags=["nbval-ignore-output"]
for model in GPT2:
    done = telemetry.statistics(server.http_url, model) - before[model]
    sizes = ", ".join(f"{count} of {size}" for size, count in done.batches.items())
    num_passes = passes[model]["iteration"].nunique()
    print(
        f"{model:15} {done.executions:3} batches from Triton ({sizes}), "
        f"{num_passes} forward passes, {empty[model]} empty places"
    )

# %% tags=["nbval-ignore-output"]
streams = {
    model: rows.rename(columns={"sequence": "stream"}) for model, rows in passes.items()
}
summary = charts.forward_passes_summary(streams)
charts.show(charts.forward_passes(streams), summary)
display(Markdown(summary))

# %% [markdown]
# `simple-gpt2` got a batch for each stream, and made its forward passes behind Triton's back.
# `iterative-gpt2` got a batch for each pass: a column with two colours is one pass that served both. Triton's "of 2" counts
# places, not streams: when stream 1 has ended, its place goes along empty.
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
charts.table(
    second[["iteration", "correlation_id", "start", "computed", "length"]].head(4)
)

# %% [markdown]
# - **`CORRID`** tells sequences apart. A client may name one; otherwise Triton makes one up, a number for each request.
# - **`START`** is 1 the first time: the model tokenizes the text, and keeps what it has to remember under that number.
# - **`READY`** is 0 where a place in the batch has no request now: a sequence left it, and others above it go on. With the
#   strategy `direct`, as here, Triton sends such a place along, empty, and the model passes over it.
# - **`END`** says that the client ends the sequence. Here the model does that, so clients leave it out.
#
# `computed` and `length` are not from Triton. `length` is the text so far, and `computed` the number of tokens that went
# through the model for it: the whole text, at every pass. Remember this one; it is the other half of the lesson.
#
# ## Many responses to one request
#
# `model_transaction_policy { decoupled: true }` lets a model send as many responses as it likes. The last one carries a
# flag, which a gRPC client reads as `triton_final_response`; ours is empty. Over HTTP each response is a `data:` line, and
# after the last one the stream ends:

# %% tags=["nbval-ignore-output"]
import httpx

body = {"text_input": prompts[0], "max_tokens": 4, "ignore_eos": True}
url = f"{server.http_url}/v2/models/iterative-gpt2/generate_stream"
with httpx.stream("POST", url, json=body, headers=server.headers) as answer:
    for line in filter(None, answer.iter_lines()):
        print(line)

# %% [markdown]
# ## The waste
#
# The public tutorial from which these two models come keeps a list of tokens for each sequence, and computes all of it at
# each pass. Count what that means for one answer, on paper and in the log:

# %%
from inflight.checkpoint import load_tokenizer

tokenizer = load_tokenizer(gpt2_checkpoint.find("course-gpt2"))
prompt, answer = len(tokenizer.encode(prompts[0])), 64
print(
    f"The first token of the prompt goes through the model {answer} times, "
    f"for {answer} tokens of answer."
)
print(
    f"All tokens: {sum(prompt + n for n in range(answer)):,} without a cache, "
    f"{prompt + answer - 1} would do."
)

# %% tags=["nbval-ignore-output"]
computed = {}
for kv_cache in ("off", "on"):
    server.load("iterative-gpt2", kv_cache=kv_cache)
    start = log_path.stat().st_size
    gpt2_client.run(server.grpc_url, "iterative-gpt2", prompts[:1], answer)
    computed[kv_cache] = telemetry.passes(telemetry.executions(log_path, start))[
        "computed"
    ].sum()
    print(f"kv_cache {kv_cache:3}: {computed[kv_cache]:5,} tokens computed")

# %% [markdown]
# A layer makes a key and a value of each token, and neither depends on what comes later. So keep them: that is the KV
# cache. `iterative-gpt2` has one tensor with a **slot** for each sequence. A newcomer takes a free slot and fills it with
# its prompt in one pass; from then on a pass computes one token a sequence, and reads the rest from the slot. Who is done,
# or gone, leaves the slot to the next.
#
# ## What a token costs
#
# One long answer, without and with the cache. The time between two tokens is the cost of one. Each way runs twice, and the
# faster run counts: your machine may do other things too.

# %% tags=["nbval-ignore-output"]
factor = widgets.predict(
    "With a KV cache, an answer of 384 tokens is there "
    "how many times as fast as without one?",
    ["less than 2 times", "2 to 5 times", "more than 5 times"],
)
factor

# %% tags=["nbval-ignore-output"]
ways = {}
both = 2 * (("without a cache", "off"), ("with a KV cache", "on"))
for way, kv_cache in progress.over(both, "An answer", lambda item: item[0]):
    server.load("iterative-gpt2", kv_cache=kv_cache)
    gpt2_client.run(server.grpc_url, "iterative-gpt2", prompts[:1], 8)
    tokens = gpt2_client.costs(
        gpt2_client.run(server.grpc_url, "iterative-gpt2", prompts[:1], 384), prompt
    )
    ways[way] = min(ways.get(way, tokens), tokens, key=lambda run: run["ms"].sum())
summary = charts.cost_of_a_token_summary(ways)
charts.show(charts.cost_of_a_token(ways), summary)
display(Markdown(summary))

# %% [markdown]
# Without a cache a token has a fixed cost and a part that grows with the text before it; over an answer of *n* tokens that
# part adds up to *n*². With the cache only the reading of keys and values grows, far more slowly, and the answer costs
# nearly the same for each of its *n* tokens.

# %% tags=["nbval-ignore-output"]
without, with_cache = (tokens["ms"].sum() / 1000 for tokens in ways.values())
print(
    f"384 tokens: {without:.1f} s without a cache, {with_cache:.1f} s with one, "
    f"{without / with_cache:.1f} times as fast."
)
gain = without / with_cache
print(factor.score("less" if gain < 2 else "2 to 5" if gain <= 5 else "more"))

# %% [markdown]
# ## Eight streams
#
# Eight at once, four ways. `tutorial` is 32-bit floating point, every text padded to the longest, and `generate` called for
# one token; `simple-gpt2` computes like that too. Before you run: which change brings the last user's first token earlier,
# and which brings more tokens a second?

# %% tags=["nbval-ignore-output"]
import pandas as pd

from inflight.bench import gpt2_race

eight, rows = gpt2_race.prompts(8), []
four_ways = [("simple-gpt2", "")]
four_ways += [("iterative-gpt2", kv_cache) for kv_cache in ("tutorial", "off", "on")]
for model, kv_cache in progress.over(four_ways, "Eight streams", " ".join):
    server.load(model, **({"kv_cache": kv_cache} if kv_cache else {}))
    gpt2_client.run(server.grpc_url, model, eight, 4)
    tokens = gpt2_client.run(server.grpc_url, model, eight, 48)
    streams = gpt2_client.standings(tokens)
    rows.append(
        (
            model,
            kv_cache,
            len(tokens) / tokens["time_s"].max(),
            1000 * streams["first_s"].max(),
        )
    )
charts.table(
    pd.DataFrame(
        rows, columns=["model", "kv_cache", "tokens a second", "last first token (ms)"]
    )
)

# %% [markdown]
# The first two rows compute alike, and differ in who shares a pass. In `simple-gpt2` those who just missed a batch wait for
# the whole of it; `iterative-gpt2` takes them in at its next pass. What a pass costs is another matter: precision and
# padding first, then the cache.
#
# Our GPT-2 has 15 MB of weights, which may stay in the processor's caches, and the way through Triton is a good part of its
# time. At GPT-2's own size, 124 million parameters, the picture is clearer. (Its weights here are random: that changes the
# text, not the time.) It takes minutes, so the figures below are recorded, with their machine and its cores.
# `inflight bench gpt2` makes them on yours.

# %%
from inflight.bench import recorded

recorded_ways = recorded.table("gpt2")
charts.table(
    recorded_ways[
        [
            "device",
            "cores",
            "checkpoint",
            "way",
            "tokens_per_s",
            "ms_per_token",
            "first_ms_max",
        ]
    ]
)

# %%
charts.table(
    recorded.table("gpt2", "ratios")[
        ["device", "checkpoint", "ratio", "median", "min", "max"]
    ],
    decimals=2,
)

# %% [markdown]
# - `kv_cache_over_recompute`: tokens a second against the tutorial's way, which differs in precision and padding too.
# - `…_same_dtype`: against no cache, all else equal. This is what the cache gains.
# - `…_in_process_loop`: against a plain loop in one process. Below 1, it is what the way through Triton costs.
# - `kv_cache_over_bandwidth_floor`: the time of a pass against that of reading all weights from memory once, which every
#   pass does, whoever is in it. 1 would be perfect.
#
# And one token of one stream, alone in a process, after so many tokens of text (in ms):

# %%
by_length = recorded.table("gpt2", "rows_by_length")
by_length = by_length.pivot(
    index=["device", "checkpoint", "length"], columns="way", values="ms"
)
charts.table(by_length[["tutorial", "off", "on"]].reset_index())

# %% [markdown]
# ## Turn the knobs
#
# Three fields of `config.pbtxt` decide who is in. Each is tried here once; the editor below is for the rest.
#
# **`max_batch_size`**. With the strategy `direct`, a sequence has a place in the batch from its first pass to its last.
# Four streams of 24 tokens, two places. How many passes will that take, and at which one does the fourth stream begin?

# %% tags=["nbval-ignore-output"]
from inflight import CourseError

four = gpt2_race.prompts(4)


def passes_of_four(max_tokens=24, **values):
    server.load("iterative-gpt2", **values)
    start = log_path.stat().st_size
    gpt2_client.run(server.grpc_url, "iterative-gpt2", four, max_tokens)
    return telemetry.passes(telemetry.executions(log_path, start)).rename(
        columns={"sequence": "stream"}
    )


knobs = {"direct, max_batch_size 2": passes_of_four(max_batch_size=2)}

# %% [markdown]
# **`max_candidate_sequences`**. With the strategy `oldest`, Triton begins so many sequences, and fills each batch with
# those that have waited longest. Four candidates for two places: when does the fourth stream begin now?

# %% tags=["nbval-ignore-output"]
candidates = "sequence_batching.oldest.max_candidate_sequences"
knobs["oldest, max_batch_size 2, 4 candidates"] = passes_of_four(
    max_batch_size=2, **{candidates: 4}
)
knobs["oldest, max_batch_size 8, 3 candidates"] = passes_of_four(
    max_batch_size=8, **{candidates: 3}
)
summary = charts.forward_passes_summary(knobs)
charts.show(charts.forward_passes(knobs), summary)
display(Markdown(summary))

# %% [markdown]
# Two places and `direct`: two streams run to their ends, and the others wait. Two places and four candidates: all four
# begin at once and take turns, each at half the speed. Three candidates in a wide batch: three run, and the fourth waits
# outside although the batch has room. About 48 passes for two places either way; what differs is who waits for whom.
#
# Ours is `direct` by default: with `oldest`, this Triton keeps the place of a request that is cancelled in its queue until
# the time below is over, and a batch may leave without those who are just coming back.
#
# **`max_sequence_idle_microseconds`**. Triton gives a sequence up when it was not computed for so long since it was given
# back. Set it shorter than a pass, and it hits the living. The sentence below is our model's: Triton tells it nothing, so it
# watches the time itself.

# %% tags=["nbval-ignore-output"]
idle = "sequence_batching.max_sequence_idle_microseconds"
server.load("iterative-gpt2", **{idle: 1})
try:
    gpt2_client.run(server.grpc_url, "iterative-gpt2", four, 64)
except CourseError as error:
    print(error)
server.load("iterative-gpt2")

# %% tags=["nbval-ignore-output"]
fields = ["max_batch_size", candidates, idle, "kv_cache", "kv_cache_slots", "when_full"]
widgets.ConfigEditor(repo, "iterative-gpt2", server, fields)

# %% [markdown]
# And the race itself, live. Try:
#
# 1. `kv_cache` `tutorial` in the editor, Apply; 2 streams of 192 tokens: `simple-gpt2`, then `iterative-gpt2`. Then `kv_cache`
#    `on`: what changes?
# 2. 8 streams with offset 0. Now set `max_batch_size` to 4, apply, and run again: four run to their ends, four wait.
# 3. `kv_cache_slots` 2 and `when_full` `refuse`: what do the others hear, and when?

# %% tags=["nbval-ignore-output"]
from inflight.notebook import boards

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
# | Way of a token | through Triton's queue and back to the Python process, for every sequence and token | out only: the request stays in the engine to its end, its tokens leave as responses |
# | Memory of a sequence | a slot of the longest possible text | blocks of tokens (32 here, 64 by default in TensorRT-LLM), as many as the text needs |
# | When memory is short | wait, or refuse | a policy: promise or pause |
# | Prompts | whole, beside the others' single tokens | whole or in chunks, within a budget of tokens |
# | The same beginning twice | computed twice | kept and shared |
# | Models | whatever you can write in PyTorch | those the engine knows |
#
# The last line is why you are here: for a model that no engine knows, this is the way. For a Llama, take the engine.
#
# ## On the lab GPU
#
# Names, tensors and request parameters are the public tutorial's (`text_input`, `max_tokens`, `ignore_eos`,
# `text_output`): a client written for it runs on ours unchanged. No container is needed: PyTorch does the computing, and the
# same Triton starts on a machine with a GPU.
#
# | Step | Here | With a GPU |
# |---|---|---|
# | Start | `Server(repo)` | the same; the config says `KIND_GPU`, and a step of single tokens is a CUDA graph. An image of NVIDIA's needs Python 3.11 or later (24.12 and newer) and the course's packages in it |
# | Precision | `gpt2_dtype` `bfloat16` or `float32` | also `float16` |
# | Version | Triton 2.51 (24.10) | of the images avoid 25.09, in which a third pass is never scheduled; see [core #456](https://github.com/triton-inference-server/core/pull/456) |
# | Status | Triton calls `iterative_sequence` provisional | try it anew with every new version |
# | Measure | `inflight bench gpt2` | the same; `assets/lab-gpu/measure.sh` runs this and all other benchmarks, and keeps the results |
#
# Eight streams with the KV cache, as you measured them above, and as they were recorded on GPUs:

# %% tags=["nbval-ignore-output"]
here = pd.DataFrame({"way": ["iterative, KV cache"], "tokens_per_s": [rows[-1][2]]})
lab = recorded.table("gpt2", gpus_only=True)
summary = charts.lab_results_summary(here, lab, "way", "tokens_per_s")
charts.show(
    charts.lab_results(here, lab, "way", "tokens_per_s", "tokens a second, 8 streams"),
    summary,
)

# %% [markdown]
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
# **A client that leaves.** It cancels its requests, as a browser does when its tab is closed, and Triton marks them. The
# model asks `is_cancelled()` at each pass, and the slot is free again. (A machine that falls silent is noticed when its
# connection breaks, no earlier.)


# %% tags=["nbval-ignore-output"]
def slots_in_use(expected):
    page = telemetry.metrics_with(
        server.metrics_url, "used", expected
    )  # waits until it is so
    return f"{page.loc[page['label'] == 'used', 'value'].item():.0f} slots in use"


reading = gpt2_client.race(server.grpc_url, "iterative-gpt2", prompts, 900)
while not next(reading):  # until the first token is there
    pass
print("two streams:", slots_in_use(2))
reading.close()
print("their client has left:", slots_in_use(0))

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
#   `max_sequence_idle_microseconds` how long a sequence may go without its next pass.
# - What is left to an LLM engine: paged memory, policies, chunks of prompts, reuse, and no way back into Triton's queue for
#   every token.
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
# each is in four passes of five: every answer takes a quarter longer.
# </details>
#
# <details><summary>3. Your model's pass takes 1.5 s, and <code>max_sequence_idle_microseconds</code> is the default of one
# second. What do your users see?</summary>
#
# Answers that stop in the middle: Triton takes their sequences for idle while they are computed. With our model they end in
# an error, with one that does not watch the time in a stream that hangs. Set it well above the slowest pass.
# </details>
#
# Now [do the lab]({lab}).
#
# ## What runs
#
# The server belongs to this notebook, and so the widgets above go on working. It ends with the notebook's kernel, or when
# you stop it here. After a restarted kernel, or where a widget reads *model not found*, run the notebook again.

# %% tags=["nbval-ignore-output"]
from inflight.notebook import session

session.running()
