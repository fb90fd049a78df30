# %% [markdown]
# # {heading}
#
# {minutes} min, an estimate. Afterwards you will be able to
#
# - **write** an iterative model around a GPT-2, so that its users stream side by side;
# - **count** what it costs to compute a text again for every token, and **build** the KV cache that ends it;
# - **say** where Triton's iterative scheduling stops and an LLM engine goes on.
#
# You need lesson 07 (sequences, their controls, `RESCHEDULE`), and some PyTorch: the shape of a tensor, a slice of it, a
# forward pass. The GPT-2 comes with the course. A line under `# your line:` is for you: delete it, write it yourself, and
# compare with what is folded below.
#
# {navigation}

# %% [markdown]
# ## A model without an engine
#
# The research group next door has a model of its own. No LLM engine knows its architecture: there is a class in PyTorch,
# and a checkpoint. Two users send a prompt, the second a moment after the first. Does the second have to wait until the
# first has a whole answer?
#
# In lesson 04 an engine batched them in flight. Here there is none. **{question}**
#
# A GPT-2 of 7.6 million parameters stands for the group's model. It was trained for this course; do not expect wit.

# %%
import shutil
import tempfile
import textwrap
from itertools import product
from pathlib import Path

import pandas as pd
import plotly.express as px

from inflight import CourseError
from inflight.bench import gpt2_client
from inflight.checkpoint import load_tokenizer
from inflight.lessons import iterative_gpt2 as lesson
from inflight.models import gpt2_checkpoint
from inflight.notebook import charts, progress, widgets
from inflight.triton import GPT2, Server, repository, telemetry

# %% [markdown]
# ## Predict
#
# The same GPT-2 is served in two ways. `simple-gpt2` has a **dynamic batcher**: the requests that wait while the model is
# busy become its next batch, and the model computes a batch to the end of its answers. `hand-gpt2` has an **iterative
# sequence batcher**: after every token each request goes back into Triton's queue, and Triton forms the next batch from
# what is there.

# %% tags=["parameters"]
prediction = None  # papermill may answer

# %%
guess = widgets.predict(
    "A stream of 48 tokens is running when a second prompt arrives. "
    "When does the second stream get its first token?",
    [
        "at once in both ways",
        "at once in one way only",
        "after the first stream's end in both",
    ],
    given=prediction,
)
guess

# %% [markdown]
# ## The model by hand
#
# Make a repository with the course's two GPT-2 models, `simple-gpt2` and `iterative-gpt2`, and beside them a folder for
# yours:

# %%
folder = tempfile.TemporaryDirectory()  # it goes when the notebook's kernel ends
repo, log_path = Path(folder.name) / "repo", Path(folder.name) / "passes.jsonl"
checkpoint_dir = gpt2_checkpoint.find("course-gpt2")
repository.assemble(
    repo,
    models=GPT2,
    iteration_log_path=log_path,
    gpt2_checkpoint_dir=checkpoint_dir,
    gpt2_dtype="float32",  # all models of this lesson compute in the same precision
)
by_hand = repo / "hand-gpt2"
(by_hand / "1").mkdir(parents=True)
(by_hand / "1" / "checkpoint").symlink_to(checkpoint_dir)

# %% [markdown]
# You know the frame from lesson 07. Triton calls `execute` again and again with the same request and adds the controls.
# `start` is 1 in a sequence's first call: then the model tokenizes the prompt, and keeps the token ids under the
# sequence's number. One line is yours: a place of the batch may have no request now, and the control `ready` says so.

# %%
# %%writefile {by_hand}/1/model.py
# import json
# from pathlib import Path
#
# import numpy as np
# import step  # the file beside this one
# import triton_python_backend_utils as pb_utils
#
# FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
# RESCHEDULE = pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
#
#
# def value(request, name):
#     return pb_utils.get_input_tensor_by_name(request, name).as_numpy().item()
#
#
# class TritonPythonModel:
#     def initialize(self, args):
#         self.gpt2 = step.Gpt2(Path(__file__).parent / "checkpoint")
#         self.texts, self.left = {}, {}  # by number: token ids, tokens still wanted
#
#     def execute(self, requests):
#         # your line: a list of the requests that have really come
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
#         self.texts[number].append(token)
#         self.left[number] -= 1
#         piece = self.gpt2.tokenizer.decode([token]).encode()
#         tensor = pb_utils.Tensor("text_output", np.array([[piece]], object))
#         response, flags = pb_utils.InferenceResponse([tensor]), 0
#         if self.left[number]:
#             request.set_release_flags(RESCHEDULE)
#         else:
#             flags = FINAL
#             del self.texts[number], self.left[number]
#             self.gpt2.forget(number)
#         request.get_response_sender().send(response, flags=flags)

# %% [markdown]
# <details><summary>The line</summary>
#
# <code>ready = [request for request in requests if value(request, "ready")]</code>
# </details>
#
# Nothing here is a neural network yet. That is `step`, which gives each text its next token. It works as in Triton's public
# tutorial on
# [iterative scheduling](https://github.com/triton-inference-server/tutorials/tree/main/Conceptual_Guide/Part_7-iterative_scheduling):
# it takes every text whole, pads it on the left to the length of the longest, and calls `generate` for one token.
# `simple-gpt2` computes in the same way.

# %%
# %%writefile {by_hand}/1/step.py
# import torch
# import transformers
#
# END = 0  # a token that ends texts; here it fills the shorter ones
#
#
# class Gpt2:
#     def __init__(self, folder):
#         self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
#         self.model = transformers.GPT2LMHeadModel.from_pretrained(
#             folder,
#             dtype=torch.float32,  # stored in bfloat16, which many CPUs compute slowly
#         )
#
#     def step(self, texts):
#         texts = texts.values()
#         longest = max(len(text) for text in texts)
#         ids = [[END] * (longest - len(text)) + text for text in texts]
#         mask = [[0] * (longest - len(text)) + [1] * len(text) for text in texts]
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
#         pass  # nothing is kept here

# %% [markdown]
# Now the config. `decoupled` lets a request have many responses. `direct` gives each sequence a place in the batch until
# it ends.

# %%
# %%writefile {by_hand}/config.pbtxt
# name: "hand-gpt2"
# backend: "python"
# max_batch_size: 8
# model_transaction_policy { decoupled: true }
# input [ { name: "text_input"  data_type: TYPE_STRING  dims: [ 1 ] } ]
# output [ { name: "text_output"  data_type: TYPE_STRING  dims: [ 1 ] } ]
# instance_group [ { kind: KIND_CPU } ]
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

# %% [markdown]
# `gpt2_client.run` sends each prompt on a stream of its own and waits for all answers. It returns a row per token: which
# stream, which token, and when it arrived.

# %%
with progress.wait("The server starts and loads three models"):
    server = Server(repo).start()
prompts = ["Programming in C++ is like", "Once upon a time there was"]


def run(model, prompts, max_tokens, offsets_s=None):
    return gpt2_client.run(server.grpc_url, model, prompts, max_tokens, offsets_s)


pieces = {
    model: run(model, prompts[:1], 8)["text"].tolist()
    for model in ("simple-gpt2", "hand-gpt2")
}
print("|".join(pieces["hand-gpt2"]))
assert pieces["hand-gpt2"] == pieces["simple-gpt2"]

# %% [markdown]
# ## Two streams
#
# Now the race, on each model: two prompts, the second 0.1 s after the first, 48 tokens each. After that `hand-gpt2` gets
# stream 1 alone and both streams together, three times in turns. Triton itself counts how often it calls a model:


# %% tags=["nbval-ignore-output"]
def executions(model):
    """How often Triton has called the model: it counts a moment after the answers."""
    return telemetry.settled(
        lambda: telemetry.statistics(server.http_url, model).executions
    )


before = {model: executions(model) for model in ("simple-gpt2", "hand-gpt2")}
races = {}
with progress.wait("Two streams, on each model"):
    for model in before:
        races[model] = run(model, prompts, 48, [0.0, 0.1])
calls = {model: executions(model) - before[model] for model in before}
alone_s, shared_s = [], []
for _ in progress.over(range(3), "Stream 1 alone, then with company"):
    alone_s.append(run("hand-gpt2", prompts[:1], 48)["time_s"].max())
    both = run("hand-gpt2", prompts, 48, [0.0, 0.1])
    shared_s.append(both.loc[both["stream"] == 1, "time_s"].max())
charts.show(lesson.race(races, [0.0, 0.1]), lesson.race_summary(races))

# %% [markdown]
# The steeper a line, the faster its stream. In one panel each stream has the model to itself while the other waits. In
# the other they share it.

# %% tags=["nbval-ignore-output"]
waited = 0
for model, tokens in races.items():
    first_s = tokens.groupby("stream")["time_s"].min()[2]
    last_s = tokens.groupby("stream")["time_s"].max()[1]
    waited += first_s > last_s
    print(f"{model}: stream 2 waits {first_s - 0.1:.2f} s,", end=" ")
    print(f"stream 1 ends at {last_s:.2f} s")
print(guess.score(("at once in both", "at once in one", "after")[waited]))
print(f"On hand-gpt2, stream 1 takes {min(alone_s):.2f} s alone and", end=" ")
print(f"{min(shared_s):.2f} s with company,\neach the quickest of three.")

# %% [markdown]
# Stream 2 joined the batch while stream 1 was in it. Stream 1 pays: each pass that it shares computes two texts. That is
# in-flight batching, and no engine did it. Triton's statistics say how:

# %% tags=["nbval-ignore-output"]
print(f"simple-gpt2: {calls['simple-gpt2']} calls for 2 x 48 tokens")
print(f"hand-gpt2:   {calls['hand-gpt2']} calls for 2 x 48 tokens,")
print(f"so {2 * 48 - calls['hand-gpt2']} calls gave a token to both streams.")
assert calls["simple-gpt2"] == 2
assert 48 <= calls["hand-gpt2"] < 2 * 48

# %% [markdown]
# Triton called `simple-gpt2` once per stream, and the model made its 48 passes in that one call, where nobody can join. It
# called `hand-gpt2` once per pass.
#
# ## The waste
#
# `hand-gpt2` computes every text whole, in every pass. Count what that means for one answer of 64 tokens:

# %%
tokenizer = load_tokenizer(checkpoint_dir)
prompt_length, length = len(tokenizer.encode(prompts[0])), 64
# your line: a list of 64 numbers, the tokens that go into each pass
passes = [prompt_length + before for before in range(length)]
needed = prompt_length + length - 1
print(f"The first token of the prompt goes through the model {len(passes)} times.")
print(f"In all passes, {sum(passes):,} tokens go in, of which {needed} are different.")

# %% [markdown]
# <details><summary>The line</summary>
#
# <code>passes = [prompt_length + before for before in range(length)]</code>: the first pass gets the prompt, and each
# later one the token that the pass before it made. The last token goes into none.
# </details>

# %%
factor = widgets.predict(
    "If every token goes through the model only once, an answer of 96 tokens "
    "is made how many times as fast?",
    ["less than 2 times", "2 to 5 times", "more than 5 times"],
)
factor

# %% [markdown]
# ## Slots
#
# In each layer, attention makes a query, a key and a value of each token. The query is used once. Key and value are
# used again by every token that follows, and do not depend on those. So keep them: that is the **KV cache**. Here it is
# one tensor, with a **slot** for each sequence.
#
# `generate` gives you no hold on attention. The course's `gpt2_network` does: its `next_tokens` computes all layers, and
# calls your `attend` for the attention of each. The tokens of all texts stand one after the other. The layers' matrices
# and norms treat each token by itself and need not know whose it is. `model.py` stays as it is; `step.py` is new, and one
# line of it is yours:

# %%
slots = repo / "slots-gpt2"
ignore = shutil.ignore_patterns("__pycache__")
shutil.copytree(by_hand, slots, symlinks=True, ignore=ignore)
config = (by_hand / "config.pbtxt").read_text()
(slots / "config.pbtxt").write_text(config.replace("hand-gpt2", "slots-gpt2"))
print(*sorted(path.name for path in (slots / "1").iterdir()))

# %%
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
#         self.network = net = gpt2_network.load(folder)  # in float32
#         room = (SLOTS, net.num_heads, net.num_positions, net.head_dim)
#         self.cache = torch.zeros(net.num_layers, 2, *room)  # 2: keys, values
#         self.free, self.slots, self.cached = list(range(SLOTS)), {}, {}
#
#     def step(self, texts):
#         ids, positions, last = [], [], []
#         for number, text in texts.items():
#             if number not in self.slots:
#                 self.slots[number], self.cached[number] = self.free.pop(), 0
#             known = self.cached[number]  # so many tokens are in the slot
#             # your line: add the tokens that have to be computed
#             ids += text[known:]
#             positions += range(known, len(text))
#             last.append(len(ids) - 1)  # where this text's last token stands
#         attend = partial(self.attend, texts)
#         tokens = self.network.next_tokens(ids, positions, last, attend)
#         self.cached.update({number: len(text) for number, text in texts.items()})
#         return tokens
#
#     def forget(self, number):
#         self.free.append(self.slots.pop(number))
#         del self.cached[number]

# %% [markdown]
# <details><summary>The line</summary>
#
# <code>ids += text[known:]</code>: the whole prompt of a newcomer, and of every other text its newest token.
# </details>
#
# `attend` gets `projected`, of each token its query, key and value: [tokens, 3, heads, size]. For each text it
#
# - takes the text's rows; `permute(1, 2, 0, 3)` puts the axes into another order, [3, heads, tokens, size], which unpacks
#   into query, key and value;
# - writes the new keys and values into the slot, behind those of earlier passes: your line;
# - calls `scaled_dot_product_attention` (SDPA). For each head, it compares each query with all keys, makes weights of the
#   scores by a softmax, and gives the weighted sum of the values. With `is_causal` no token looks at a later one.

# %%
# %%writefile -a {slots}/1/step.py
#
#     def attend(self, texts, layer, projected):
#         found, start = [], 0
#         for number, text in texts.items():
#             known = self.cached[number]
#             end = start + len(text) - known
#             query, key, value = projected[start:end].permute(1, 2, 0, 3)
#             keys, values = self.cache[layer, :, self.slots[number], :, : len(text)]
#             # your line:
#             keys[:, known:], values[:, known:] = key, value
#             is_prompt = known == 0  # a single new token looks at everything
#             heads = scaled_dot_product_attention(
#                 query, keys, values, is_causal=is_prompt
#             )
#             found.append(heads.transpose(0, 1))  # [tokens, heads, size] again
#             start = end
#         return torch.cat(found)

# %% [markdown]
# <details><summary>The line</summary>
#
# <code>keys[:, known:], values[:, known:] = key, value</code>: <code>keys</code> and <code>values</code> are views of the
# cache, [heads, tokens, size], so this writes into it.
# </details>

# %%
with progress.wait("The model with slots is loaded, and answers"):
    server.load("slots-gpt2")
    pieces["slots-gpt2"] = run("slots-gpt2", prompts[:1], 8)["text"].tolist()
print("|".join(pieces["slots-gpt2"]))
assert pieces["slots-gpt2"] == pieces["hand-gpt2"]

# %% [markdown]
# It is the same text. A cache changes what is computed, not what comes out.
#
# ## What a token costs
#
# Ask each of your models for an answer of 96 tokens, three times, in turns. The time between two tokens is what the second
# one cost.

# %% tags=["nbval-ignore-output"]
ways = {"without a cache": "hand-gpt2", "with a KV cache": "slots-gpt2"}
tables = []
for turn, way in progress.over(list(product(range(3), ways)), "96 tokens"):
    run(ways[way], prompts[:1], 4)  # not counted
    tokens = run(ways[way], prompts[:1], 96)
    ms = 1000 * tokens["time_s"].diff()
    so_far = prompt_length + tokens["token"] - 1  # tokens of text before this one
    table = pd.DataFrame({"way": way, "turn": turn, "so far": so_far, "ms": ms})
    tables.append(table.dropna())
costs = pd.concat(tables)
assert len(costs) == 2 * 3 * 95

# %% tags=["nbval-ignore-output"]
costs["window"] = (costs["so far"] - prompt_length - 1) // 16  # of 16 tokens each
means = costs.groupby(["way", "turn", "window"], sort=False).mean()
windows = means.groupby(["way", "window"], sort=False).median().reset_index()
figure = px.line(
    windows, x="so far", y="ms", color="way", line_dash="way", symbol="way"
)
figure.update_layout(xaxis_title="tokens of text so far", yaxis_title="a token (ms)")
figure.update_yaxes(rangemode="tozero")
rows = [
    f"{way}: a token takes {own['ms'].iloc[0]:.1f} ms at the start, "
    f"{own['ms'].iloc[-1]:.1f} ms at the end"
    for way, own in windows.groupby("way", sort=False)
]
charts.show(figure, f"Means of 16 tokens, the median of 3 turns. {'; '.join(rows)}.")
print(*rows, sep="\n")

# %% tags=["nbval-ignore-output"]
seconds = costs.groupby(["way", "turn"], sort=False)["ms"].sum() / 1000
without, with_cache = (seconds[way] for way in ways)
ratio = (without / with_cache).agg(["median", "min", "max"]).round(2)
gain = ratio["median"]
print(f"96 tokens: {without.median():.2f} s without a cache,", end=" ")
print(f"{with_cache.median():.2f} s with one,")
print(f"each the median of three: {gain:.1f} times as fast.")
print(factor.score("less" if gain < 2 else "2 to 5" if gain <= 5 else "more"))
print(ratio.to_frame("kv_cache_over_recompute").to_json())  # for programs

# %% [markdown]
# Two things differ between your models, and the picture separates them:
#
# - **The slope.** Without a cache a pass computes the whole text, so its time grows with the text. Over an answer of *n*
#   tokens the growing parts add up to something with *n*². With the cache a pass computes one token; only the keys and
#   values that it reads become more.
# - **The height at the left.** There the texts are short, and the cache saves little. `generate` prepares much for
#   its one token, which the loop in `gpt2_network` does not.
#
# So the factor belongs to this length: the longer the answer, the larger it is. The course's `iterative-gpt2` has a
# parameter `kv_cache`: between its `off` and `on` the cache alone makes the difference.
#
# ## Eight streams
#
# Eight prompts at once. Before you run it: which change brings the last user's first token earlier, and which one makes
# more tokens per second? Three rounds, in turns:

# %% tags=["nbval-ignore-output"]
models = ("simple-gpt2", "hand-gpt2", "slots-gpt2")
eight, rows = gpt2_client.prompts(8), []
run("slots-gpt2", eight, 2)  # a batch of this size for the first time: not counted
for turn, model in progress.over(list(product(range(3), models)), "Eight streams"):
    tokens = run(model, eight, 16)
    assert len(tokens) == 8 * 16
    first_ms = 1000 * tokens.groupby("stream")["time_s"].min().max()
    rows.append((model, len(tokens) / tokens["time_s"].max(), first_ms))
columns = ["model", "tokens per second", "the last first token (ms)"]
eight_at_once = pd.DataFrame(rows, columns=columns)
eight_at_once.groupby("model", sort=False).agg(["min", "max"]).round()

# %% [markdown]
# Compare neighbours. `simple-gpt2` and `hand-gpt2` compute alike and differ in who shares a pass: in `simple-gpt2` the
# prompts that came second wait for a whole answer. `hand-gpt2` and `slots-gpt2` share alike and differ in what a pass
# computes.
#
# ## A client leaves
#
# Streams end early all the time: somebody closes a tab. Let eight clients, one after the other, read a token of
# `slots-gpt2` and leave. Then ask again:


# %% tags=["nbval-ignore-output"]
def leave(model, clients):
    """So many clients, one after the other, read a token and close the connection."""
    for _ in range(clients):
        reading = gpt2_client.race(server.grpc_url, model, prompts[:1], 900)
        while not next(reading):  # until a token is there
            pass
        reading.close()


leave("slots-gpt2", 8)
said = "answered"
try:
    url = server.grpc_url
    list(gpt2_client.race(url, "slots-gpt2", prompts[:1], 4, timeout_s=3))
except CourseError as error:
    said = str(error).replace(url, "HOST:PORT").partition("\n")[0]
print(textwrap.fill(said, 66))
assert "pop from empty list" in said

# %% [markdown]
# Triton dropped each of the eight requests when its client had gone, and told the model nothing. So `forget` was never
# called, and each of them still holds a slot.
#
# ## The course's model
#
# `iterative-gpt2` is your model grown up. Its `execute` has the same idea:

# %%
source = (repo / "iterative-gpt2" / "1" / "model.py").read_text()
_, start, rest = source.partition("    def execute")
print((start + rest).partition("    def finalize")[0].rstrip())

# %% [markdown]
# What your model lacks is **housekeeping**. It is in a module of its own, `inflight/triton/iterative.py`:
#
# | What happens | Your model | `Housekeeping` |
# |---|---|---|
# | A client leaves, and Triton drops its request | keeps the text and the slot for ever | asks the response sender of each sequence that is not in the batch: `is_cancelled()` |
# | A client leaves between its last token and the release of its request | Triton keeps its place in the batch | sends the end only after the release |
# | A sequence idles, and Triton gives it up | the client waits for ever | watches the time, and tells the client |
# | A pass fails | its clients get the error, and their texts and slots stay | its clients get the error, and nothing of them stays |
# | There are fewer slots than sequences | `pop from empty list` | `with_room`: the sequence waits, or is refused |
#
# The first row, tried on it:

# %%
leave("iterative-gpt2", 9)
print(*run("iterative-gpt2", prompts[:1], 12)["text"], sep="")

# %% [markdown]
# It has eight slots, nine clients have left, and it answers. In the lab you write this for your own model.
#
# ## Turn the knobs
#
# `iterative-gpt2` logs who is in each forward pass. Four streams of 12 tokens:
#
# - **`max_batch_size`** is the number of places. With `direct`, a sequence keeps its place from its first pass to its last.
#   With two places, how many passes does it take, and in which one does the third stream begin?
# - **`max_candidate_sequences`** belongs to the other strategy, `oldest`: Triton begins so many sequences, and fills each
#   batch with those that have waited longest. When does the third stream begin now?

# %% tags=["nbval-ignore-output"]
four = gpt2_client.prompts(4)
candidates = "sequence_batching.oldest.max_candidate_sequences"
settings = {
    "direct, 2 places": {"max_batch_size": 2},
    "oldest, 2 places, 4 candidates": {"max_batch_size": 2, candidates: 4},
    "oldest, 8 places, 3 candidates": {"max_batch_size": 8, candidates: 3},
}
tables = []
for name in progress.over(settings, "Four streams"):
    server.load("iterative-gpt2", **settings[name])
    start = log_path.stat().st_size
    run("iterative-gpt2", four, 12)
    found = lesson.passes(lesson.executions(log_path, start))
    assert len(found) == 4 * 12
    begins = found.groupby("sequence")["iteration"].min().tolist()
    print(f"{name}: {found['iteration'].max()} passes, begin in", *begins)
    tables.append(found.assign(setting=name))
server.load("iterative-gpt2")  # as its file says

# %% tags=["nbval-ignore-output"]
who = pd.concat(tables).astype({"sequence": str})
figure = px.scatter(
    who, x="iteration", y="sequence", color="sequence", symbol="sequence",
    facet_col="setting", facet_col_wrap=1, height=520,
)  # fmt: skip
figure.for_each_annotation(lambda note: note.update(text=note.text.partition("=")[2]))
figure.update_xaxes(title="")
figure.update_xaxes(title="forward pass", row=1)
figure.update_yaxes(title="stream", autorange="reversed")
figure.update_layout(showlegend=False)
charts.show(figure, "Which stream got a token from which forward pass, by setting.")

# %% [markdown]
# - Two places and `direct`: two streams run to their ends, and the others wait.
# - Two places and four candidates: all four begin early and take turns, each in about every second pass.
# - Eight places and three candidates: three run, and the fourth waits although the batch has room.
#
# The course's model uses `direct`: with `oldest`, this Triton loses the place of a client that leaves while its request is
# queued, and gives it back only after `max_sequence_idle_microseconds`. That is how long a sequence may stay without a
# pass. If it is shorter than a pass, Triton drops sequences that are still being computed.
#
# Now you. Apply a change in the editor, then race:
#
# 1. 8 streams with offset 0; then `max_batch_size` 4. Who waits, and for whom?
# 2. `kv_cache` `tutorial`, which computes as `hand-gpt2` does, and 2 streams of 192 tokens; then `on`.
# 3. `kv_cache_slots` 2 and `when_full` `refuse`. What do the others hear, and when?

# %% tags=["nbval-ignore-output"]
fields = ["max_batch_size", candidates, "kv_cache", "kv_cache_slots", "when_full"]
editor = widgets.ConfigEditor(server, "iterative-gpt2", fields)
assert list(editor.fields) == fields
editor

# %% tags=["nbval-ignore-output"]
board = lesson.board(server, ("iterative-gpt2", "simple-gpt2"))
board.run()
board

# %% [markdown]
# ## Where Triton stops
#
# What does an LLM engine do beyond that?
#
# | | `iterative-gpt2` | an engine: TensorRT-LLM, vLLM |
# |---|---|---|
# | Who forms the batch | Triton's sequence batcher, before each pass | the engine's own scheduler (vLLM: `max_num_seqs`) |
# | Way of a token | through Triton's queue and back, for every sequence | out only: the request stays inside to its end |
# | Memory of a sequence | a slot for the longest possible text | blocks, as many as the text needs: of 32 tokens here and in TensorRT-LLM 1.x, of 16 in vLLM |
# | When memory is short | wait, or refuse | a policy: promise the blocks, or pause a request |
# | Prompts | whole, beside the others' single tokens | whole or in chunks (vLLM: `max_num_batched_tokens`) |
# | The same beginning twice | computed twice | kept and shared |
# | Models | whatever you can write in PyTorch | those that it knows; vLLM also takes many that are written for `transformers` |
#
# The last line is why you are here. For a model that no engine knows, this is the way. For a Llama, take the engine.
#
# `iterative-gpt2` runs on a GPU, too: set `KIND_GPU`, and take Triton 24.12 or newer, but not 25.09, which never schedules
# a third pass ([core #456](https://github.com/triton-inference-server/core/pull/456)).
#
# ## What breaks
#
# **A prompt that is too long**, or an answer that would be. A slot has 1,024 positions. `iterative-gpt2` refuses at the
# start what cannot fit:

# %%
for text, max_tokens in (("word " * 2000, 8), (prompts[0], 5000)):
    try:
        run("iterative-gpt2", [text], max_tokens)
    except CourseError as error:
        print(textwrap.fill(str(error), 66))

# %% [markdown]
# Your model would fail in the pass that finds no position left, and so would everybody who shares that pass. What a model
# has to refuse, it should refuse at `start`.
#
# ## Recap
#
# - A dynamic batcher forms a batch once. An iterative sequence goes back into the queue after every pass, and Triton forms
#   the batch anew. A stream that is already running pays for one that joins.
# - Triton tells the model which sequence it is and whether it is new. The model keeps the state, and says after each pass
#   whether it wants the request back.
# - Without a cache, an answer of *n* tokens has a cost with *n*². With one, a token costs nearly the same anywhere in
#   the text, and the text is the same.
# - The idea takes forty lines. Clients that leave, faults and full caches take the rest.
# - An LLM engine adds paged memory, policies, chunked prompts and reuse, and its tokens do not go through Triton's queue.
#
# Three questions to answer without running anything:
#
# <details><summary>1. A prompt of 10 tokens, an answer of 100, no cache. How many times does the model compute the tenth
# token of the answer?</summary>
#
# It is in every pass after the one that made it: 90 times.
# </details>
#
# <details><summary>2. <code>direct</code>, <code>max_batch_size</code> 4, five streams of equal length. Who waits, and for
# how long?</summary>
#
# The fifth, until one of the four has its last token. With <code>oldest</code> and five candidates all five begin early,
# and each is in four passes of five: every answer takes a quarter more passes.
# </details>
#
# <details><summary>3. A pass of your model takes 1.5 s, and <code>max_sequence_idle_microseconds</code> is the default,
# one second. What do your users see?</summary>
#
# Answers that stop in the middle. Triton takes their sequences for idle while they are computed, and drops them.
# <code>iterative-gpt2</code> then sends an error; with a model that does not watch the time, the stream hangs. Set it well
# above the slowest pass.
# </details>
#
# Now [do the lab]({lab}). Next comes {next}.
#
# The server ends with this notebook's kernel (*Kernel → Shut Down Kernel*). Until then the widgets above go on working.
