# %% [markdown]
# # {heading}
#
# {minutes} min. Afterwards you will be able to
#
# - **write** an iterative model of a GPT-2, whose users stream side by side;
# - **count** what it costs to compute a text again for every token, and **build** the cache that ends it;
# - **tell** where Triton's iterative scheduling stops and an LLM engine goes on.
#
# You need lesson 07: sequences, their controls, and `RESCHEDULE`. The GPT-2 comes with the course.
#
# {navigation}

# %% [markdown]
# ## A model without an engine
#
# The research group next door has a model of its own. No LLM engine knows its architecture: there is a class in PyTorch,
# a checkpoint, and a Triton. Two users send a prompt, the second a moment later. Must that one sit and watch until the
# first has a whole answer?
#
# After lesson 04 you would say: batch them in flight. **{question}**
#
# Our stand-in is a GPT-2 of a few million parameters. It was trained for this course, so do not expect wit.

# %% [markdown]
# ## Predict
#
# Two models, one GPT-2. `simple-gpt2` has a **dynamic batcher**: what waits while the model is busy becomes its next
# batch, and the model computes it to the end. `hand-gpt2` has an **iterative sequence batcher**: after every token each
# request goes back into Triton's queue, and Triton forms the next batch from what is there.

# %% tags=["setup"]
import shutil
import tempfile
from pathlib import Path

import pandas as pd
from IPython.display import Markdown, display

from inflight import CourseError
from inflight.bench import gpt2_client, recorded
from inflight.checkpoint import load_tokenizer
from inflight.models import gpt2_checkpoint
from inflight.lessons import iterative_gpt2 as lesson
from inflight.notebook import charts, progress, widgets
from inflight.triton import GPT2, Server, repository, telemetry

# %% tags=["parameters"]
prediction = None  # papermill may answer

# %% tags=["setup"]
guess = widgets.predict(
    "A stream of 96 tokens runs, and a second prompt arrives. "
    "When does it get its first token?",
    [
        "at once in both ways",
        "at once in one, after the first stream's last in the other",
        "after the first stream's last in both",
    ],
    given=prediction,
)
guess

# %% [markdown]
# ## The model by hand
#
# A repository with the course's two GPT-2 models, and beside them a folder for yours:

# %% tags=["setup"]
from inflight.notebook import catch_up

catch_up("08", "The model by hand")

folder = tempfile.TemporaryDirectory()  # it goes with the notebook's kernel
repo, log_path = Path(folder.name) / "repo", Path(folder.name) / "passes.jsonl"
checkpoint_dir = gpt2_checkpoint.find("course-gpt2")
repository.assemble(
    repo,
    models=GPT2,
    iteration_log_path=log_path,
    gpt2_checkpoint_dir=checkpoint_dir,
)
by_hand = repo / "hand-gpt2"
(by_hand / "1").mkdir(parents=True)

# %% [markdown]
# You know its frame from lesson 07: Triton calls `execute` again and again with the same request, and adds controls.
# `START` is 1 the first time, so the model tokenizes the prompt and keeps the ids under the sequence's number. After
# each pass the request goes back with `RESCHEDULE`, and with its last token it is released.

# %% tags=["setup"]
# %%writefile {by_hand}/1/model.py
# import json
# import threading
#
# import numpy as np
# import step  # the file beside this one
# import triton_python_backend_utils as pb_utils
#
# FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
# RELEASE_ALL = pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL
# RESCHEDULE = pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
#
#
# def value(request, name):
#     return pb_utils.get_input_tensor_by_name(request, name).as_numpy().item()
#
#
# class TritonPythonModel:
#     def initialize(self, args):
#         parameters = json.loads(args["model_config"])["parameters"]
#         self.gpt2 = step.Gpt2(parameters["checkpoint_dir"]["string_value"])
#         self.texts, self.left = {}, {}  # by number: token ids, tokens still wanted
#
#     def execute(self, requests):
#         ready = [request for request in requests if value(request, "ready")]
#         batch = {value(request, "number"): request for request in ready}
#         for number, request in batch.items():
#             if value(request, "start"):
#                 prompt = value(request, "text_input").decode()
#                 self.texts[number] = self.gpt2.tokenizer.encode(prompt)
#                 self.left[number] = json.loads(request.parameters())["max_tokens"]
#         tokens = self.gpt2.step({number: self.texts[number] for number in batch})
#         for (number, request), token in zip(batch.items(), tokens):
#             self.answer(number, request, token)
#
#     def answer(self, number, request, token):
#         piece = self.gpt2.tokenizer.decode([token]).encode()
#         tensor = pb_utils.Tensor("text_output", np.array([[piece]], object))
#         sender = request.get_response_sender()
#         sender.send(pb_utils.InferenceResponse([tensor]))
#         self.texts[number].append(token)
#         self.left[number] -= 1
#         if self.left[number]:
#             request.set_release_flags(RESCHEDULE)
#             return
#         request.set_release_flags(RELEASE_ALL)
#         self.gpt2.forget(number)
#         # Not at once: the place of a client that leaves before the release is lost.
#         threading.Timer(0.2, sender.send, kwargs={"flags": FINAL}).start()

# %% [markdown]
# No word of a neural network yet: that is `step`, a token for each text. Here it works as in Triton's public tutorial on
# [iterative scheduling](https://github.com/triton-inference-server/tutorials/tree/main/Conceptual_Guide/Part_7-iterative_scheduling):
# every text whole, padded on the left to the longest, and `generate` for one token. `simple-gpt2` computes in the same
# way.

# %% tags=["setup"]
# %%writefile {by_hand}/1/step.py
# import torch
# import transformers
#
# END = 0
#
#
# class Gpt2:
#     def __init__(self, folder):
#         self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
#         self.model = transformers.GPT2LMHeadModel.from_pretrained(folder)
#
#     def step(self, texts):
#         longest = max(len(text) for text in texts.values())
#         ids, mask = [], []
#         for text in texts.values():
#             padding = longest - len(text)
#             ids.append([END] * padding + text)
#             mask.append([0] * padding + [1] * len(text))
#         answers = self.model.generate(
#             torch.tensor(ids),
#             attention_mask=torch.tensor(mask),
#             max_new_tokens=1,
#             do_sample=False,
#             pad_token_id=END,
#         )
#         return answers[:, -1].tolist()
#
#     def forget(self, number):
#         pass  # nothing is kept but the text

# %% [markdown]
# The config. `decoupled` lets a request have many responses; `direct` gives each sequence a place in the batch until it
# ends. `ready` is 0 where a place has no request now, and the model passes over it.

# %% tags=["setup"]
# %%writefile {by_hand}/config.pbtxt
# name: "hand-gpt2"
# backend: "python"
# max_batch_size: 8
# model_transaction_policy { decoupled: true }
# input [ { name: "text_input"  data_type: TYPE_STRING  dims: [ 1 ] } ]
# output [ { name: "text_output"  data_type: TYPE_STRING  dims: [ 1 ] } ]
# sequence_batching {
#   iterative_sequence: true
#   direct { }
#   max_sequence_idle_microseconds: 60000000
#   control_input [
#     { name: "number"
#       control [ { kind: CONTROL_SEQUENCE_CORRID  data_type: TYPE_UINT64 } ] },
#     { name: "start"
#       control [ { kind: CONTROL_SEQUENCE_START  fp32_false_true: [ 0, 1 ] } ] },
#     { name: "ready"
#       control [ { kind: CONTROL_SEQUENCE_READY  fp32_false_true: [ 0, 1 ] } ] }
#   ]
# }
# parameters { key: "checkpoint_dir"  value { string_value: "CHECKPOINT" } }

# %% tags=["setup", "nbval-ignore-output"]
config = by_hand / "config.pbtxt"
config.write_text(config.read_text().replace("CHECKPOINT", str(checkpoint_dir)))
with progress.wait("The server starts and loads three models"):
    server = Server(repo).start()
prompts = ["Programming in C++ is like", "Once upon a time there was"]


def answer(model, max_tokens):
    """The first prompt's answer, one token a response."""
    return gpt2_client.run(server.grpc_url, model, prompts[:1], max_tokens)


with progress.wait("Each model answers once"):
    pieces = {
        model: answer(model, 12)["text"].tolist() for model in (*GPT2, "hand-gpt2")
    }
print(pieces["hand-gpt2"])
assert pieces["hand-gpt2"] == pieces["simple-gpt2"], "the same GPT-2"

# %% [markdown]
# ## Two streams
#
# Now the race, on each model: two prompts, the second 0.1 s later, 96 tokens each. And stream 1 once more, alone on
# `hand-gpt2`.

# %% tags=["nbval-ignore-output"]
from inflight.notebook import catch_up

catch_up("08", "Two streams")

offsets_s, races, batches = [0.0, 0.1], {}, {}
for model in progress.over(("simple-gpt2", "hand-gpt2"), "Two streams"):
    before = telemetry.statistics(server.http_url, model)
    races[model] = gpt2_client.run(server.grpc_url, model, prompts, 96, offsets_s)
    least = before.executions + (2 if model == "simple-gpt2" else 96)
    after = telemetry.statistics_when(
        server.http_url, model, lambda now, least=least: now.executions >= least
    )  # Triton counts an execution a moment after its answers
    batches[model] = after - before
with progress.wait("Stream 1 alone"):
    alone_s = answer("hand-gpt2", 96)["time_s"].max()
summary = lesson.race_summary(races)
charts.show(lesson.race(races, offsets_s), summary)
display(Markdown(summary))

# %% [markdown]
# The steeper the line, the faster a stream. In one panel a stream has the model to itself while the other waits; in the
# other both lines rise side by side. **Who pays?** Compare the ends:

# %% tags=["nbval-ignore-output"]
ends, begins = (
    {
        model: tokens.groupby("stream")["time_s"].agg(which).tolist()
        for model, tokens in races.items()
    }
    for which in ("max", "min")
)
kept_waiting = sum(begins[model][1] > ends[model][0] for model in races)
assert begins["hand-gpt2"][1] < ends["hand-gpt2"][0], "the second has joined"
print(f"Stream 1 alone ends at {alone_s:.2f} s,")
print(f"in the race on hand-gpt2 at {ends['hand-gpt2'][0]:.2f} s.")
for model in races:
    first_s = begins[model][1] - offsets_s[1]
    print(f"{model}: stream 2 waits {first_s:.2f} s and ends at {ends[model][1]:.2f} s")
print(guess.score(("at once in both", "at once in one", "after")[kept_waiting]))

# %% [markdown]
# Stream 1 pays: a pass for two takes longer than a pass for one, and stream 1 ends later than alone. Stream 2 gains
# what it did not wait. That is in-flight batching, and no engine did it. Triton's own statistics say how:

# %%
for model, done in batches.items():
    sizes = sorted(done.batches.items())
    how_many = "one for each stream" if done.executions == 2 else "one for each pass"
    print(f"{model:12} executions: {how_many}, of sizes {[size for size, _ in sizes]}")
assert batches["simple-gpt2"].executions == 2
assert batches["hand-gpt2"].executions >= 96

# %% [markdown]
# `simple-gpt2` got a batch for each stream, and made its passes behind Triton's back. `hand-gpt2` got one for each pass.
# The size counts places and not streams: when stream 1 has ended, its place goes along empty.
#
# ## The waste
#
# `texts` has every text whole, at every pass. Count what that means for one answer of 64 tokens:

# %%
from inflight.notebook import catch_up

catch_up("08", "The waste")

tokenizer = load_tokenizer(checkpoint_dir)
prompt_length, length = len(tokenizer.encode(prompts[0])), 64
passes = [prompt_length + before for before in range(length)]  # tokens that go in
print(f"The first token of the prompt goes through the model {len(passes)} times.")
print(f"All tokens: {sum(passes):,}, where {prompt_length + length - 1} would do.")
assert sum(passes) > 10 * (prompt_length + length - 1)

# %% tags=["setup", "nbval-ignore-output"]
factor = widgets.predict(
    "If every token goes through the model only once, an answer of 160 tokens "
    "is there how many times as fast?",
    ["less than 2 times", "2 to 5 times", "more than 5 times"],
)
factor

# %% [markdown]
# ## Slots
#
# A layer makes a query, a key and a value of each token. The query is used once; key and value are looked at by all
# tokens that follow, and neither depends on them. So keep them: that is the **KV cache**. It is one tensor, with a
# **slot** for each sequence.
#
# `generate` does not let you in between a token and its attention. `gpt2_network` does: it computes the layers for
# tokens that stand one after the other, whoever's they are, since matrices and norms look at one token at a time. It
# asks you for the attention. The same `model.py`, a new `step.py`:

# %% tags=["setup"]
from inflight.notebook import catch_up

catch_up("08", "Slots")

slots = repo / "slots-gpt2"
shutil.copytree(by_hand, slots, ignore=shutil.ignore_patterns("__pycache__"))
config = (by_hand / "config.pbtxt").read_text()
(slots / "config.pbtxt").write_text(config.replace("hand-gpt2", "slots-gpt2"))
print(sorted(path.name for path in slots.iterdir()))

# %% tags=["setup"]
# %%writefile {slots}/1/step.py
# from functools import partial
#
# import torch
# from torch.nn.functional import scaled_dot_product_attention
#
# from inflight.checkpoint import load_tokenizer
# from inflight.models import gpt2_network
#
# SLOTS = 8  # as many as places in the batch
#
#
# class Gpt2:
#     def __init__(self, folder):
#         self.tokenizer = load_tokenizer(folder)
#         self.network = net = gpt2_network.load(folder)
#         room = (SLOTS, net.num_heads, net.num_positions, net.head_dim)
#         self.cache = torch.zeros(net.num_layers, 2, *room)  # keys, values
#         self.free, self.slots, self.cached = list(range(SLOTS)), {}, {}
#
#     def step(self, texts):
#         ids, positions, last = [], [], []
#         for number, text in texts.items():
#             if number not in self.slots:
#                 self.slots[number], self.cached[number] = self.free.pop(), 0
#             ids += text[self.cached[number] :]  # a newcomer's prompt, else one token
#             positions += range(self.cached[number], len(text))
#             last.append(len(ids) - 1)
#         attend = partial(self.attend, texts)
#         tokens = self.network.next_tokens(ids, positions, last, attend)
#         self.cached.update({number: len(text) for number, text in texts.items()})
#         return tokens
#
#     def forget(self, number):
#         self.free.append(self.slots.pop(number))

# %% [markdown]
# What `step` sends in is all that a pass computes: one token a text, but for newcomers. `attend` puts the new keys and
# values into the slot, and then looks at the slot as far as the text goes:

# %% tags=["setup"]
# %%writefile -a {slots}/1/step.py
#
#     def attend(self, texts, layer, projected):
#         found, start = [], 0
#         for number, text in texts.items():
#             known = self.cached[number]
#             end = start + len(text) - known
#             query, key, value = projected[start:end].permute(1, 2, 0, 3)
#             keys, values = self.cache[layer, :, self.slots[number], :, : len(text)]
#             keys[:, known:], values[:, known:] = key, value
#             is_prompt = known == 0  # its tokens do not look ahead
#             heads = scaled_dot_product_attention(
#                 query, keys, values, is_causal=is_prompt
#             )
#             found.append(heads.transpose(0, 1))
#             start = end
#         return torch.cat(found)

# %%
with progress.wait("The model with slots is loaded, and answers"):
    server.load("slots-gpt2")
    with_slots = answer("slots-gpt2", 12)["text"].tolist()
print(with_slots)
assert with_slots == answer("hand-gpt2", 12)["text"].tolist(), "the same text"

# %% [markdown]
# The same text: a cache changes what is computed, never what comes out.
#
# ## What a token costs
#
# One long answer on each of your models. The time between two tokens is the cost of one.

# %% tags=["nbval-ignore-output"]
from inflight.notebook import catch_up

catch_up("08", "What a token costs")

server.load("slots-gpt2")
ways = {}
both = (("without a cache", "hand-gpt2"), ("with a KV cache", "slots-gpt2"))
for way, model in progress.over(both, "An answer", lambda item: item[0]):
    answer(model, 8)  # the first passes are the slowest: not counted
    length = len(load_tokenizer(checkpoint_dir).encode(prompts[0]))
    ways[way] = gpt2_client.costs(answer(model, 160), length)
assert [len(tokens) for tokens in ways.values()] == [159, 159]
summary = lesson.cost_of_a_token_summary(ways)
charts.show(lesson.cost_of_a_token(ways), summary)
display(Markdown(summary))

# %% tags=["nbval-ignore-output"]
without, with_cache = (tokens["ms"].sum() / 1000 for tokens in ways.values())
gain = without / with_cache
print(f"160 tokens: {without:.1f} s without a cache, {with_cache:.1f} s with one,")
print(f"{gain:.1f} times as fast.")
print(factor.score("less" if gain < 2 else "2 to 5" if gain <= 5 else "more"))

# %% [markdown]
# Without a cache a token has a fixed cost and a part that grows with the text before it; over an answer of *n* tokens that
# part adds up to *n*². With the cache only the reading of keys and values grows, far more slowly. The fixed costs differ
# too: `generate` prepares much for its one token. The table below tells the two gains apart.
#
# ## The course's model
#
# `iterative-gpt2` is your model grown up. Here is its `execute`, and the method that finds room in the cache:

# %%
from inflight.notebook import catch_up

catch_up("08", "The course's model")

source = (repo / "iterative-gpt2" / "1" / "model.py").read_text()
_, start, rest = source.partition("    def execute")
print((start + rest).partition("    def step")[0].rstrip())

# %% [markdown]
# The idea is yours: step, send, then `end` or `again`. What your model lacks is **housekeeping**, and it lives in a module
# of its own, `inflight/triton/iterative.py`:
#
# | What happens | Your model | `Housekeeping` |
# |---|---|---|
# | A client leaves; Triton drops its request and says nothing | keeps its text and its slot for ever | asks each sender that was not in the batch, `is_cancelled()` |
# | Triton loses the place of a client that leaves before the release | waits 0.2 s | sends the last response in the next execution, or when none comes |
# | A sequence idles and Triton gives it up | its client waits for ever | watches the time, and says so |
# | A pass fails | everybody in it waits for ever | everybody hears the reason |
# | There are fewer slots than sequences | `pop from empty list` | `with_room`, above: wait, or refuse |
#
# Try the first row on both:


# %% tags=["nbval-ignore-output"]
def slots_in_use(expected):
    """Read the gauge of iterative-gpt2 when it says so."""
    page = telemetry.metrics_with(server.metrics_url, "used", expected)
    return int(page.loc[page["label"] == "used", "value"].item())


with progress.wait("Two streams begin, and their client leaves"):
    reading = gpt2_client.race(server.grpc_url, "iterative-gpt2", prompts, 900)
    while not next(reading):  # until the first token is there
        pass
    print("two streams:", slots_in_use(2), "slots in use")
    reading.close()
    print("their client has left:", slots_in_use(0))
assert slots_in_use(0) == 0

# %% [markdown]
# Do that to `slots-gpt2`, and two slots are lost each time; after four times nobody gets one. In the lab you mend that.
#
# ## Eight streams
#
# Eight at once, and four ways to compute. `kv_cache` `off` is the course's model without a cache, with everything else
# as with one. Before you run: which change brings the last user's first token earlier, and which brings more tokens a
# second?

# %% tags=["setup", "long", "nbval-ignore-output"]
from inflight.notebook import catch_up

catch_up("08", "Eight streams")

server.load("slots-gpt2")
eight, rows = gpt2_client.prompts(8), []
models = [("simple-gpt2", {}), ("hand-gpt2", {}), ("slots-gpt2", {})]
models += [("iterative-gpt2", {"kv_cache": kv_cache}) for kv_cache in ("off", "on")]
for model, values in progress.over(models, "Eight streams", lambda item: item[0]):
    if values:
        server.load(model, **values)
    gpt2_client.run(server.grpc_url, model, eight, 4)
    tokens = gpt2_client.run(server.grpc_url, model, eight, 32)
    assert len(tokens) == 8 * 32
    first_ms = 1000 * tokens.groupby("stream")["time_s"].min().max()
    rate = len(tokens) / tokens["time_s"].max()
    rows.append((model, values.get("kv_cache", ""), rate, first_ms))
columns = ["model", "kv_cache", "tokens a second", "last first token (ms)"]
charts.table(pd.DataFrame(rows, columns=columns))

# %% [markdown]
# The first two rows compute alike and differ in who shares a pass. What a pass costs is another matter: padding and
# `generate` first, then the cache, then bfloat16 where the processor computes with it.
#
# Our GPT-2 has 15 MB of weights, which may stay in the processor's caches. At GPT-2's own size, 124 million parameters,
# the picture is clearer. It takes minutes, so these figures are recorded; `inflight bench gpt2` makes them on your machine.

# %%
ratios = recorded.table("gpt2", "ratios")
charts.table(
    ratios[["device", "checkpoint", "ratio", "median", "min", "max"]], decimals=2
)

# %% [markdown]
# - `kv_cache_over_recompute`: tokens a second against the tutorial's way, which differs in precision and padding too.
# - `…_same_dtype`: against no cache, all else equal. This is what the cache gains.
# - `…_in_process_loop`: against a plain loop in one process. Below 1, it is what the way through Triton costs.
# - `kv_cache_over_bandwidth_floor`: the time of a pass against that of reading all weights from memory once. 1 would be
#   perfect.
#
# ## Turn the knobs
#
# **`max_batch_size`**: with `direct`, a sequence has a place from its first pass to its last. Four streams of 24 tokens,
# two places: how many passes, and at which one does the fourth stream begin? **`max_candidate_sequences`**: with the
# strategy `oldest`, Triton begins so many sequences, and fills each batch with those that have waited longest. When does
# the fourth begin now?

# %% tags=["nbval-ignore-output"]
from inflight.notebook import catch_up

catch_up("08", "Turn the knobs")

four = gpt2_client.prompts(4)
candidates = "sequence_batching.oldest.max_candidate_sequences"


def passes_of_four(max_tokens=24, **values):
    """Which of four streams got a token from which forward pass."""
    server.load("iterative-gpt2", **values)
    start = log_path.stat().st_size
    gpt2_client.run(server.grpc_url, "iterative-gpt2", four, max_tokens)
    passes = lesson.passes(lesson.executions(log_path, start))
    return passes.rename(columns={"sequence": "stream"})


settings = {
    "direct, 2 places": {"max_batch_size": 2},
    "oldest, 2 places, 4 candidates": {"max_batch_size": 2, candidates: 4},
    "oldest, 8 places, 3 candidates": {"max_batch_size": 8, candidates: 3},
}
knobs = {
    name: passes_of_four(**settings[name])
    for name in progress.over(settings, "Four streams")
}
assert all(len(passes) == 4 * 24 for passes in knobs.values())
summary = lesson.forward_passes_summary(knobs)
charts.show(lesson.forward_passes(knobs), summary)
display(Markdown(summary))

# %% [markdown]
# - Two places and `direct`: two streams run to their ends, and the others wait.
# - Two places and four candidates: all four begin at once and take turns, each at half the speed.
# - Eight places and three candidates: three run, and the fourth waits outside although the batch has room.
#
# Ours is `direct` by default: with `oldest`, this Triton loses the place of a client that leaves while its request is
# queued, and gives it back only after the idle time.
#
# **`max_sequence_idle_microseconds`**: so long may a sequence wait between two passes. Set it shorter than a pass, and
# it hits the living. Triton tells the model nothing; the sentence is from `Housekeeping`:

# %%
idle = "sequence_batching.max_sequence_idle_microseconds"
with progress.wait("The model is loaded with 1 µs, runs, and is loaded as it was"):
    server.load("iterative-gpt2", **{idle: 1})
    try:
        gpt2_client.run(server.grpc_url, "iterative-gpt2", four, 64)
    except CourseError as error:
        print("given up:", "was not computed for 1 µs" in str(error))
    server.load("iterative-gpt2")

# %% [markdown]
# Now you. Apply a change in the editor, and race:
#
# 1. 8 streams with offset 0; then `max_batch_size` 4: four run to their ends, four wait.
# 2. `kv_cache` `tutorial`, 2 streams of 192 tokens; then `on`.
# 3. `kv_cache_slots` 2 and `when_full` `refuse`: what do the others hear, and when?

# %% tags=["nbval-ignore-output"]
fields = ["max_batch_size", candidates, idle, "kv_cache", "kv_cache_slots", "when_full"]
display(widgets.ConfigEditor(server, "iterative-gpt2", fields))
board = lesson.board(server)
board.run()
board

# %% [markdown]
# ## Where Triton stops
#
# What does the engine of lessons 04 and 05 do beyond that?
#
# | | `iterative-gpt2` | `tensorrt_llm` |
# |---|---|---|
# | Who forms the batch | Triton's sequence batcher, before each pass | the engine itself, inside |
# | Way of a token | through Triton's queue and back, for every sequence and token | out only: the request stays in the engine to its end |
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
# The same `model.py` runs there: PyTorch computes, and names and request parameters are the public tutorial's, so its
# clients work unchanged.
#
# | Step | Here | With a GPU |
# |---|---|---|
# | Start | `Server(repo)` | the same; the config says `KIND_GPU` |
# | Precision | `gpt2_dtype` `auto`: `bfloat16`, or `float32` where the CPU has none | also `float16` |
# | Version | Triton 2.51 (24.10), provisional | 24.12 or newer, but not 25.09: a third pass is never scheduled ([core #456](https://github.com/triton-inference-server/core/pull/456)) |
# | Measure | `inflight bench gpt2` | the same, or `assets/lab-gpu/measure.sh` |
#
# Eight streams with the KV cache, here and as recorded on GPUs:

# %% tags=["nbval-ignore-output"]
from inflight.notebook import catch_up

catch_up("08", "On the lab GPU")

assert rows[-1][1] == "on"
here = pd.DataFrame({"way": ["iterative, KV cache"], "tokens_per_s": [rows[-1][2]]})
lab = recorded.table("gpt2", gpus_only=True)
shown = (here, lab, "way", "tokens_per_s")
summary = charts.lab_results_summary(*shown)
charts.show(charts.lab_results(*shown, "tokens a second, 8 streams"), summary)

# %% [markdown]
# ## What breaks
#
# **A prompt that is too long**, or an answer that would be. A slot has so many positions, and `iterative-gpt2` says so
# before it begins:

# %%
from inflight.notebook import catch_up

catch_up("08", "What breaks")

for text, max_tokens in (("word " * 2000, 8), (prompts[0], 5000)):
    try:
        gpt2_client.run(server.grpc_url, "iterative-gpt2", [text], max_tokens)
    except CourseError as error:
        print(error)

# %% [markdown]
# Yours fails in the pass that finds no position left, and everybody in it fails too. What a model refuses, it should
# refuse at `START`.
#
# ## Recap
#
# - A dynamic batcher forms a batch once; an iterative sequence goes back into the queue after every pass, and the batch is
#   formed anew. Who was there first pays for who joins.
# - Triton tells which sequence it is and whether it is new; the model keeps the state, and says after each pass whether
#   it wants the request back.
# - Without a cache an answer of *n* tokens costs *n*²; with one a token costs nearly the same anywhere. The text is the
#   same.
# - The idea takes forty lines. Clients that leave, faults and full caches take the rest, in one place.
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
# The server belongs to this notebook, and so the widgets above go on working. It ends with the notebook's kernel. After
# the kernel was restarted, a widget says so, or reads *model not found*: run its section again, whose first cell makes
# what it needs of the earlier ones.

# %% tags=["nbval-ignore-output"]
from inflight.notebook import session

session.running()
