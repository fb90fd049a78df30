# %% [markdown]
# # {heading}
#
# {minutes} minutes. Afterwards you will be able to
#
# - **write** the forward pass of a GPT-2 for many texts at once, and serve it so that its users stream side by side;
# - **count** what it costs to compute a text again for every token, and **build** the KV cache that ends it;
# - **say** where Triton's iterative scheduling stops and an LLM engine goes on.
#
# **What you will use elsewhere:** tokens of many texts in one flat batch, attention for each text by itself, a KV cache with
# an owner for each part: vLLM and TensorRT-LLM are built of the same three. And to count passes and tokens before you blame
# the machine.
#
# You need lesson 07 (the model that asks to be called again), and some PyTorch: the shape of a tensor, a slice of it. The
# GPT-2 comes with the course.
#
# {navigation}

# %% [markdown]
# ## {question}
#
# The research group next door has a model of its own. No LLM engine knows its architecture: there is a class in PyTorch,
# and a checkpoint. Four users send prompts, each a moment after the one before. Do they have to wait for each other?
#
# A GPT-2 of 7.6 million parameters stands for the group's model. It was trained for this course; do not expect wit.

# %%
import os
import queue
import shutil
import tempfile
import textwrap
import time
from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.express as px
import tritonclient.grpc as triton

from inflight.checkpoint import load_tokenizer
from inflight.lessons import iterative_gpt2 as lesson
from inflight.models import gpt2_checkpoint
from inflight.notebook import charts, progress, session, told_apart, widgets
from inflight.triton import GPT2, Server, repository, telemetry

session.others()

# %% [markdown]
# ## Predict
#
# A forward pass of the model can compute a token for each of up to eight texts. The first user sends a prompt. The second
# sends when the first has 4 tokens, the third at 8, the fourth at 12. Each wants 48 tokens.

# %%
prompts = [
    "Programming in C++ is like",
    "Once upon a time there was",
    "In the middle of the night",
    "The weather in the mountains",
]
wanted, apart = 48, 4

# %%
guess = widgets.predict(
    "How many forward passes until all 192 tokens are there, "
    "in the better of the two ways that you will see?",
    {
        "48, as many as one answer has": 48,
        "about 60": 60,
        "96, as many as two answers have": 96,
        "192, one for each token": 192,
    },
)
guess

# %% [markdown]
# ## The stream, raw
#
# The course brings two GPT-2 models. `iterative-gpt2` comes at the end; the better way you write yourself first.
# `simple-gpt2` is what one writes at the beginning: the dynamic batcher of lesson 06 gives it a batch, and its
# `execute` computes that to the end of its answers. In short:
#
# ```python
# while running:
#     step(running)  # one forward pass for all, and a line in the log
#     for sequence in running:
#         send(sequence.token)
#     running = [sequence for sequence in running if not sequence.is_finished]
# ```

# %%
folder = tempfile.TemporaryDirectory()  # it goes when the notebook's kernel ends
repo, log_path = Path(folder.name) / "repo", Path(folder.name) / "passes.jsonl"
checkpoint_dir = gpt2_checkpoint.find("course-gpt2")
repository.assemble(
    repo,
    models=GPT2,
    iteration_log_path=log_path,
    gpt2_checkpoint_dir=checkpoint_dir,
    gpt2_dtype="float32",  # as the models that you write
)
os.environ["OMP_NUM_THREADS"] = "1"  # of each model: steadier where others are at work
with progress.wait("The server starts and loads two models"):
    server = Server(repo).start()

# %% [markdown]
# The client is NVIDIA's own. One connection carries one stream, and whatever comes goes into a queue:


# %%
def send(model, prompt, max_tokens, number, arrived):
    """Send a prompt; its responses go into the queue. The connection, to be closed."""
    connection = triton.InferenceServerClient(server.grpc_url)
    connection.start_stream(
        lambda result, error: arrived.put((number, time.perf_counter(), result, error))
    )
    text = triton.InferInput("text_input", [1, 1], "BYTES")
    text.set_data_from_numpy(np.array([[prompt.encode()]], object))
    connection.async_stream_infer(
        model,
        [text],
        enable_empty_final_response=True,
        parameters={"max_tokens": max_tokens, "ignore_eos": True},
    )
    return connection


# %%
def read(arrived):
    """A response: its stream, when it came, its text (or None), if it is the last."""
    number, at_s, result, error = arrived.get(timeout=60)
    if error is not None:
        raise error
    is_last = result.get_response().parameters["triton_final_response"].bool_param
    piece = result.as_numpy("text_output")
    return number, at_s, None if piece is None else piece.item().decode(), is_last


# %% tags=["nbval-ignore-output"]
arrived = queue.SimpleQueue()
began = time.perf_counter()
connection, is_last = send("simple-gpt2", prompts[0], 4, 1, arrived), False
while not is_last:
    _, at_s, piece, is_last = read(arrived)
    print(f"{1000 * (at_s - began):5.0f} ms  {piece!r:12}  final: {is_last}")
connection.close()

# %% [markdown]
# A response is a token. The last response may be empty: it says that the answer is over. Now all four users:


# %%
def relay(model, prompts, max_tokens=wanted):
    """Send each prompt when the first stream has `apart` more tokens; a row a token."""
    arrived, connections, rows, sent_s = queue.SimpleQueue(), {}, [], []
    users, tokens, began = list(enumerate(prompts, 1)), Counter(), time.perf_counter()
    while connections or not sent_s:
        for number, prompt in users[len(sent_s) : 1 + tokens[1] // apart]:
            sent_s.append(time.perf_counter() - began)
            connections[number] = send(model, prompt, max_tokens, number, arrived)
        number, at_s, piece, is_last = read(arrived)
        if piece is not None:
            tokens[number] += 1
            rows.append((number, tokens[number], at_s - began, piece))
        if is_last:
            connections.pop(number).close()
    return pd.DataFrame(rows, columns=["stream", "token", "time_s", "text"]), sent_s


# %% [markdown]
# Triton itself counts how often it calls a model, by the size of the batch:


# %%
def executions(model, what):
    """What `what()` gives, and Triton's executions of the model meanwhile, by size."""

    def read_batches():
        return telemetry.statistics(server.http_url, model).batches.to_dict()

    before = telemetry.settled(read_batches)
    outcome = what()
    return outcome, dict(Counter(telemetry.settled(read_batches)) - Counter(before))


# %%
races, sent_s, sizes = {}, {}, {}


def race(model):
    with progress.wait(f"Four users of {model}"):
        outcome, sizes[model] = executions(model, lambda: relay(model, prompts))
    races[model], sent_s[model] = outcome


start = log_path.stat().st_size
race("simple-gpt2")
passes = {"simple-gpt2": len(lesson.executions(log_path, start))}
print("simple-gpt2, executions by batch size:", sizes["simple-gpt2"])

# %% [markdown]
# The first prompt was a batch alone: 48 passes in one execution, where nobody can join. The others came meanwhile, and were
# the next batch.
#
# ## One pass, for whoever is there
#
# Now the other way. First the network. GPT-2 is a list of blocks: each adds to a token's vector what attention finds, and
# then what a small network, the MLP, makes of it. Norms, matrices and MLP treat each token by itself, so the tokens of all
# texts may stand one after the other: `ids` are the tokens, `positions` their places in their own texts, `last` says which
# of them are the last ones of their texts. Only attention has to know whose a token is, so that part is handed in:

# %%
by_hand = repo / "hand-gpt2"
(by_hand / "1").mkdir(parents=True)
(by_hand / "1" / "checkpoint").symlink_to(checkpoint_dir)

# %%
# %%writefile {by_hand}/1/network.py
# import torch
# import transformers
#
#
# class Network:
#     def __init__(self, folder):
#         self.gpt2 = transformers.GPT2LMHeadModel.from_pretrained(
#             folder, dtype=torch.float32
#         )
#
#     @torch.inference_mode()
#     def next_tokens(self, ids, positions, last, attend):
#         body, heads = self.gpt2.transformer, self.gpt2.config.n_head
#         x = body.wte.weight[ids] + body.wpe.weight[positions]  # [tokens, width]
#         for layer, block in enumerate(body.h):
#             projected = block.attn.c_attn(block.ln_1(x)).view(len(ids), 3, heads, -1)
#             x = x + block.attn.c_proj(attend(layer, projected).flatten(1))
#             x = x + block.mlp(block.ln_2(x))
#         return self.gpt2.lm_head(body.ln_f(x[last])).argmax(-1).tolist()

# %% [markdown]
# `projected` has a query, a key and a value of each token: [tokens, 3, heads, size]. The first version of `step` computes
# all texts whole. Its `attend` goes through the texts:
#
# - it takes the text's rows; `permute(1, 2, 0, 3)` puts the axes into another order, [3, heads, tokens, size];
# - `scaled_dot_product_attention` compares each query with all keys of its head, makes weights of the scores, and gives the
#   weighted sum of the values. With `is_causal`, no token looks at a later one.

# %%
# %%writefile {by_hand}/1/step.py
# from functools import partial
#
# import torch
# from network import Network
# from torch.nn.functional import scaled_dot_product_attention
#
#
# class Gpt2(Network):
#     def step(self, texts):
#         """The next token of each text; `texts` has the token ids by number."""
#         ids, positions, last = [], [], []
#         for text in texts.values():
#             ids += text
#             positions += range(len(text))
#             # your line: note where this text's last token stands in ids
#             last.append(len(ids) - 1)
#         return self.next_tokens(ids, positions, last, partial(self.attend, texts))

# %%
# %%writefile -a {by_hand}/1/step.py
#
#     def attend(self, texts, layer, projected):
#         found, start = [], 0
#         for text in texts.values():
#             own = projected[start : start + len(text)].permute(1, 2, 0, 3)
#             heads = scaled_dot_product_attention(*own, is_causal=True)
#             found.append(heads.transpose(0, 1))  # [tokens, heads, size] again
#             start += len(text)
#         return torch.cat(found)
#
#     def forget(self, number):
#         pass  # nothing is kept here

# %% [markdown]
# Around it, the frame from lesson 07. What was a list of words is a list of tokens, and the next word is computed:

# %%
# %%writefile {by_hand}/1/model.py
# import json
# from pathlib import Path
#
# import numpy as np
# import step  # the file beside this one
# import transformers
# import triton_python_backend_utils as pb_utils
#
# FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
# AGAIN = pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
# FOLDER = Path(__file__).parent / "checkpoint"
#
#
# def value(request, name):
#     return pb_utils.get_input_tensor_by_name(request, name).as_numpy().item()

# %%
# %%writefile -a {by_hand}/1/model.py
#
#
# class TritonPythonModel:
#     def initialize(self, args):
#         self.gpt2 = step.Gpt2(FOLDER)
#         self.tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER)
#         self.texts, self.left = {}, {}  # by number: token ids, tokens still wanted
#
#     def execute(self, requests):
#         ready = [request for request in requests if value(request, "ready")]
#         batch = {value(request, "number"): request for request in ready}
#         for number, request in batch.items():
#             if value(request, "start"):
#                 prompt = value(request, "text_input").decode()
#                 self.texts[number] = self.tokenizer.encode(prompt)
#                 self.left[number] = json.loads(request.parameters())["max_tokens"]
#         tokens = self.gpt2.step({number: self.texts[number] for number in batch})
#         for (number, request), token in zip(batch.items(), tokens):
#             self.answer(number, request, token)

# %%
# %%writefile -a {by_hand}/1/model.py
#
#     def answer(self, number, request, token):
#         self.texts[number].append(token)
#         self.left[number] -= 1
#         piece = self.tokenizer.decode([token]).encode()
#         tensor = pb_utils.Tensor("text_output", np.array([[piece]], object))
#         response, flags = pb_utils.InferenceResponse([tensor]), 0
#         if self.left[number]:
#             request.set_release_flags(AGAIN)
#         else:
#             flags = FINAL
#             del self.texts[number], self.left[number]
#             self.gpt2.forget(number)
#         request.get_response_sender().send(response, flags=flags)

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
# ## Run
#
# The same four users, each four tokens of stream 1 after the one before:

# %% tags=["nbval-ignore-output"]
with progress.wait("hand-gpt2 is loaded"):
    server.load("hand-gpt2")
    relay("hand-gpt2", prompts[:1], 4)  # a warm-up
race("hand-gpt2")
charts.show(lesson.race(races, sent_s), lesson.race_summary(races))
print(textwrap.fill(lesson.race_summary(races), 88))

# %% [markdown]
# A tick is where a prompt was sent. The steeper a line, the faster its stream, whose number stands at the end. In the upper
# panel, three users wait for the first to end. In the lower one, each has the first token soon after the prompt was sent.
# That is in-flight batching, and no engine did it. How many passes should it take?

# %%
# your line: passes until all four are done, if each begins as soon as it is sent
on_paper = (len(prompts) - 1) * apart + wanted

# %% [markdown]
# Triton's statistics say how many it took. A batch of `simple-gpt2` makes all its passes in one execution, so the model's
# log counts them; a batch of `hand-gpt2` makes one.

# %% tags=["nbval-ignore-output"]
for model, by_size in sizes.items():
    print(f"{model}: {sum(by_size.values())} executions, by batch size {by_size}")
passes["hand-gpt2"] = sum(sizes["hand-gpt2"].values())
places = sum(size * count for size, count in sizes["hand-gpt2"].items())
print(f"hand-gpt2: {places} places, {places - len(prompts) * wanted} of them empty")
simple, hand = passes.values()
print(f"{simple} passes against {hand}: {simple / hand:.2f} times as many.", end=" ")
print(f"On paper hand-gpt2 makes {on_paper}.")
print(guess.score(hand, "Triton's executions of hand-gpt2 in this one run"))

# %% tags=["remove-cell"]
assert sum(sizes["simple-gpt2"].values()) == 2 and simple == 2 * wanted
assert 56 <= hand < 80
assert races["hand-gpt2"].groupby("stream").size().tolist() == [wanted] * 4

# %% [markdown]
# Triton's strategy is `direct`, so the places of streams that are over stay empty, as in lesson 07's table. A prompt
# that comes while a pass is under way joins the next one. Only the last stream's delay counts in the total, because all
# are sent by the tokens of stream 1.
#
# How could the picture mislead? Its passes do not cost the same: `simple-gpt2` computes as Triton's
# [tutorial](https://github.com/triton-inference-server/tutorials/tree/main/Conceptual_Guide/Part_7-iterative_scheduling)
# does, with padding and Hugging Face's `generate`. So compare passes, not seconds. And it is one run of four users.
#
# ## Who pays?
#
# Stream 1 does, if anybody: soon after its fourth token it shares its passes. Three rounds, alone and with company in turns:


# %% tags=["nbval-ignore-output"]
def who_pays(model):
    first_s = {"alone": [], "with company": []}
    for _ in progress.over(range(3), f"Stream 1 of {model}, alone and with company"):
        for way, users in (("alone", 1), ("with company", 4)):
            tokens, _ = relay(model, prompts[:users])
            first_s[way].append(tokens.loc[tokens["stream"] == 1, "time_s"].max())
    for way, seconds in first_s.items():
        print(f"{way}: stream 1 takes {np.median(seconds):.2f} s, the median of 3")
    print(told_apart(*reversed(first_s.values()), more="longer", less="shorter"))


who_pays("hand-gpt2")

# %% [markdown]
# A pass for four texts computes the tokens of four texts, so it takes longer than a pass for one where the computation
# dominates. What does `hand-gpt2` compute in all these passes?
#
# ## The waste
#
# It computes every text whole, in every pass. Count what that means for one answer of 96 tokens:

# %%
tokenizer = load_tokenizer(checkpoint_dir)
prompt_length, length = len(tokenizer.encode(prompts[0])), 96
# your line: a list of 96 numbers, the tokens that go into each pass
per_pass = [prompt_length + before for before in range(length)]

# %%
needed = prompt_length + length - 1
print(f"The first token of the prompt goes through the model {len(per_pass)} times.")
print(f"In all passes {sum(per_pass):,} tokens go in, of which {needed} are different:")
print(f"{sum(per_pass) / needed:.0f} times as many as needed.")

# %% [markdown]
# In each layer, attention makes a query, a key and a value of each token. The query is used once. Key and value are
# used again by every token that follows, and do not depend on those. So keep them: that is the [KV
# cache](glossary.md#KV-cache). Here it is one tensor with a *row* for each text, long enough for the longest.
# `model.py` and `network.py` stay as they are. Only `step.py` is new:

# %%
cached = repo / "cached-gpt2"
ignore = shutil.ignore_patterns("__pycache__")
shutil.copytree(by_hand, cached, symlinks=True, ignore=ignore)
config = (by_hand / "config.pbtxt").read_text()
_ = (cached / "config.pbtxt").write_text(config.replace("hand-gpt2", "cached-gpt2"))

# %%
# %%writefile {cached}/1/step.py
# from functools import partial
#
# import torch
# from network import Network
# from torch.nn.functional import scaled_dot_product_attention
#
# ROWS = 8  # as many as places in the batch
#
#
# class Gpt2(Network):
#     def __init__(self, folder):
#         super().__init__(folder)
#         at = self.gpt2.config
#         room = (ROWS, at.n_head, at.n_positions, at.n_embd // at.n_head)
#         self.cache = torch.zeros(at.n_layer, 2, *room)  # 2: keys, values
#         self.free, self.rows, self.known = list(range(ROWS)), {}, {}

# %%
# %%writefile -a {cached}/1/step.py
#
#     def step(self, texts):
#         ids, positions, last = [], [], []
#         for number, text in texts.items():
#             if number not in self.rows:
#                 self.rows[number], self.known[number] = self.free.pop(), 0
#             known = self.known[number]  # so many tokens are in the cache
#             # your line: add the tokens that have to be computed to ids
#             ids += text[known:]
#             positions += range(known, len(text))
#             last.append(len(ids) - 1)
#         tokens = self.next_tokens(ids, positions, last, partial(self.attend, texts))
#         self.known.update({number: len(text) for number, text in texts.items()})
#         return tokens
#
#     def forget(self, number):
#         self.free.append(self.rows.pop(number))
#         del self.known[number]

# %% [markdown]
# `attend` writes the new keys and values into the text's row, behind those of earlier passes, and attends to all of them. A
# prompt needs `is_causal`; a single new token may look at everything that is there.

# %%
# %%writefile -a {cached}/1/step.py
#
#     def attend(self, texts, layer, projected):
#         found, start = [], 0
#         for number, text in texts.items():
#             known = self.known[number]
#             end = start + len(text) - known
#             query, key, value = projected[start:end].permute(1, 2, 0, 3)
#             keys, values = self.cache[layer, :, self.rows[number], :, : len(text)]
#             keys[:, known:], values[:, known:] = key, value
#             heads = scaled_dot_product_attention(
#                 query, keys, values, is_causal=known == 0
#             )
#             found.append(heads.transpose(0, 1))
#             start = end
#         return torch.cat(found)

# %%
with progress.wait("The model with a cache is loaded"):
    server.load("cached-gpt2")
race("cached-gpt2")
without, with_cache = (
    races[model].groupby("stream")["text"].agg("".join)
    for model in ("hand-gpt2", "cached-gpt2")
)
same = sum(without == with_cache)
print(f"{same} of {len(prompts)} texts of {wanted} tokens are equal. The first one:")
print(textwrap.fill(prompts[0] + with_cache[1], 88))

# %% tags=["remove-cell"]
assert same >= 3

# %% [markdown]
# A cache changes how much is computed, not the answer. (Sums that are made in another order may round to another token once
# in a while.)
#
# ## What a token costs
#
# Both models give an answer of 96 tokens, three times, in turns. The time from token to token is what the later one cost:

# %% tags=["nbval-ignore-output"]
ways = {"without a cache": "hand-gpt2", "with a KV cache": "cached-gpt2"}
tables = []
for turn, way in progress.over(list(product(range(3), ways)), "96 tokens"):
    tokens, _ = relay(ways[way], prompts[:1], length)
    ms = 1000 * tokens["time_s"].diff()
    so_far = prompt_length + tokens["token"] - 1  # tokens of text before this one
    table = pd.DataFrame({"way": way, "turn": turn, "so far": so_far, "ms": ms})
    tables.append(table.dropna())
costs = pd.concat(tables)

# %% tags=["nbval-ignore-output"]
costs["window"] = (costs["so far"] - prompt_length - 1) // 16  # of 16 tokens each
means = costs.groupby(["way", "turn", "window"], sort=False).mean()
windows = means.groupby(["way", "window"], sort=False).median().reset_index()
ends = windows.groupby("way", sort=False)["ms"].agg(["first", "last"]).round(1)
parts = [
    f"{way}, {own['first']} ms at the start and {own['last']} ms at the end"
    for way, own in ends.iterrows()
]
summary = f"A token takes (means of 16, the median of 3 rounds): {'; '.join(parts)}."

# %% tags=["nbval-ignore-output"]
is_end = windows["window"] == windows["window"].max()
windows["label"] = windows["way"].where(is_end, "")
figure = px.line(
    windows, x="so far", y="ms", text="label", color="way", line_dash="way",
    symbol="way",
)  # fmt: skip
figure.update_traces(textposition="top left")
figure.update_layout(xaxis_title="tokens of text so far", yaxis_title="a token (ms)")
figure.update_layout(showlegend=False)
figure.update_yaxes(rangemode="tozero")
charts.show(figure, summary)
print(textwrap.fill(summary, 88))

# %% [markdown]
# How much should the cache save? The line without one tells what a pass costs: something for the pass itself, and something
# for each token in it. Fit both, and predict the model with a cache, which computes one token a pass, without looking at it:

# %% tags=["nbval-ignore-output"]
whole = windows[windows["way"] == "without a cache"]
per_token_ms, per_pass_ms = np.polyfit(whole["so far"], whole["ms"], 1)
print(f"A pass costs {per_pass_ms:.2f} ms, and {per_token_ms:.3f} ms a token.")
seconds = costs.groupby(["way", "turn"], sort=False)["ms"].sum() / 1000
without, with_cache = (seconds[way].to_numpy() for way in ways)
expected_s = (length - 1) * (per_pass_ms + per_token_ms) / 1000
print(f"With a cache: predicted {expected_s:.2f} s,", end=" ")
print(f"measured {np.median(with_cache):.2f} s, the median of 3,", end=" ")
print(f"which is {np.median(with_cache) / expected_s:.2f} times the prediction.")
gain = told_apart(without, with_cache, more="longer", less="shorter")
print(f"Tokens that go in without a cache: {sum(per_pass) / needed:.0f} times as many.")
print("Time without a cache:", gain)

# %% tags=["remove-cell", "nbval-ignore-output"]
ratio = pd.Series(without / with_cache).agg(["median", "min", "max"]).round(2)
print(ratio.to_frame("kv_cache_over_recompute").to_json())  # for programs

# %% [markdown]
# The time does not follow the tokens: a pass has a price of its own, for its Python, its small operators and its way
# through Triton's queue. What grows with the text is the share of its tokens. Over an answer of *n* tokens these shares
# add up to something with *n*², so the gain depends on the length of the answer. A straight line is a simplification,
# too: it was fitted to passes of many tokens and is read at one, outside of them. Where a pass of one token is cheaper
# than the line says, the prediction is too high.
#
# With a cache, a pass for four users gets four tokens instead of about a hundred. This is what company costs then:

# %% tags=["nbval-ignore-output"]
who_pays("cached-gpt2")

# %% [markdown]
# The matrices take four tokens in one go. Attention goes from text to text, in every layer, and each text has its own way
# through Triton's queue and its own response. An engine has one kernel over all texts, and its requests stay inside: there,
# company of this size usually costs a decoding user less. So do not carry the factor over.
#
# ## What breaks
#
# **A client leaves.** Somebody closes a tab. Eight clients, one after the other, read a token of `cached-gpt2` and
# leave. Then one more asks:


# %%
def leave(model, clients):
    """So many clients, one after the other, read a token and close the connection."""
    for _ in range(clients):
        arrived = queue.SimpleQueue()
        connection = send(model, prompts[0], 900, 1, arrived)
        arrived.get(timeout=60)
        connection.stop_stream(cancel_requests=True)
        connection.close()


# %% tags=["nbval-ignore-output"]
leave("cached-gpt2", 8)
try:
    print("answered:", "".join(relay("cached-gpt2", prompts[:1], 4)[0]["text"]))
except triton.InferenceServerException as error:
    print(textwrap.fill(error.message().strip().splitlines()[0], 88))

# %% [markdown]
# Triton drops the request of a client that has gone, and tells the model nothing. So `forget` is never called, and
# every one of the eight still holds its row.
#
# `iterative-gpt2` is your model grown up. What yours lacks is **housekeeping**. It is in a module of its own,
# `inflight/triton/model/iterative.py`:
#
# | What happens | Your model | `Housekeeping` |
# |---|---|---|
# | A client leaves, and Triton drops its request | keeps the text and the row for ever | asks the response sender of each sequence that is not in the batch: `is_cancelled()` |
# | A client leaves between its last token and the release of its request | Triton keeps its place in the batch | sends the end only after the release |
# | A sequence idles, and Triton gives it up | the client waits for ever | watches the time, and tells the client |
# | A pass fails | its clients get the error, and their texts and rows stay | its clients get the error, and nothing of them stays |
# | There are fewer rows than sequences | `pop from empty list` | `with_room`: the sequence waits, or is refused |

# %%
leave("iterative-gpt2", 9)
print(*relay("iterative-gpt2", prompts[:1], 12)[0]["text"], sep="")

# %% [markdown]
# It has eight rows, nine clients have left, and it answers. In the lab you write this for your own model.
#
# **A prompt that is too long**, or an answer that would be. A row has 1,024 positions. Your model would fail in the
# pass that finds no position left, and so would everybody who shares that pass. `iterative-gpt2` refuses at the start
# what cannot fit:

# %%
try:
    relay("iterative-gpt2", prompts[:1], 5000)
except triton.InferenceServerException as error:
    print(textwrap.fill(error.message(), 88))

# %% [markdown]
# The last token takes no position, so one more would fit: `iterative-gpt2` keeps one short.
#
# ## Turn the knob
#
# Apply a change in the editor, then race. `kv_cache_slots` is the number of rows.
#
# 1. 8 streams with offset 0; then `max_batch_size` 4. Who waits, and for whom?
# 2. `kv_cache` `off`, and 2 streams of 192 tokens; then `on`. Which line bends?
# 3. `kv_cache_slots` 2 and `when_full` `refuse`. What do the others hear, and when?

# %% tags=["nbval-ignore-output"]
candidates = "sequence_batching.oldest.max_candidate_sequences"
fields = ["max_batch_size", candidates, "kv_cache", "kv_cache_slots", "when_full"]
widgets.ConfigEditor(server, "iterative-gpt2", fields)

# %% tags=["nbval-ignore-output"]
board = lesson.board(server, ("iterative-gpt2", "simple-gpt2"))
board.run()
board

# %% [markdown]
# ## Elsewhere
#
# What does an LLM engine do beyond that?
#
# | | `iterative-gpt2` | an engine: TensorRT-LLM, vLLM |
# |---|---|---|
# | Who forms the batch | Triton's sequence batcher, before each pass | the engine's own scheduler (`max_batch_size`; vLLM: `max_num_seqs`) |
# | A token's route | through Triton's queue and back, for every sequence | out only: the request stays inside to its end |
# | Memory of a sequence | a row for the longest possible text | blocks, as many as the text needs: of 32 tokens in the course's engine and in TensorRT-LLM 1.x, of 16 in vLLM |
# | When memory is short | wait, or refuse | a policy: promise the blocks, or pause a request |
# | Prompts | whole, in one pass with the others' single tokens: a long prompt makes all streams wait | whole or in chunks (vLLM: `max_num_batched_tokens`) |
# | The same beginning twice | computed twice | kept and shared |
# | Attention of a batch | text by text, or padded | one kernel over all texts, which reads blocks |
# | Models | whatever you can write in PyTorch | those that it knows, those that keep to `transformers`' conventions (vLLM), and those that you teach it |
#
# For a model that no engine knows, this is one way. There are others. If the class keeps to the conventions of
# `transformers`, so that its attention can be exchanged, vLLM runs it as it is: `--model-impl transformers` ([what the
# class must have](https://docs.vllm.ai/en/latest/models/supported_models/#writing-custom-models)). Such a class
# `transformers` also batches continuously by itself: `generate_batch` and `ContinuousBatchingManager` ([its
# page](https://huggingface.co/docs/transformers/main/continuous_batching)). If it does not, a
# [plugin](https://docs.vllm.ai/en/latest/design/plugin_system/) calls `ModelRegistry.register_model`: you write the
# network with vLLM's own attention layer, and have its scheduler and blocks.
#
# `iterative-gpt2` runs on a GPU, too: set `KIND_GPU`, and take Triton 24.12 or newer, but not 25.09, which never schedules
# a third pass ([core #456](https://github.com/triton-inference-server/core/pull/456)).
#
# **Where to see it in production.** Triton's `nv_inference_exec_count` of the model counts the passes, and
# `nv_inference_count` divided by it is the mean batch, empty places included. `iterative-gpt2` adds
# `inflight_gpt2_kv_cache_slots`: rows in use, rows in all, sequences under way. In vLLM `vllm:iteration_tokens_total`
# is a histogram of the *tokens* of a pass, those of prompts included; `vllm:kv_cache_usage_perc` is a share from 0 to
# 1, and `vllm:num_requests_running` is the batch ([its metrics](https://docs.vllm.ai/en/latest/usage/metrics/)); in
# TensorRT-LLM's backend `nv_trt_llm_kv_cache_block_metrics` and `nv_trt_llm_request_metrics`.
#
# ## Recap
#
# - A dynamic batcher forms a batch once. An iterative sequence goes back into the queue after every pass, and Triton forms
#   the batch anew: newcomers wait for a pass, not for an answer, as long as a place is free.
# - Norms, matrices and MLP take the tokens of all texts in one flat batch. Attention alone has to know whose a token is.
# - Without a cache, an answer of *n* tokens has a cost with *n*². With one, a token costs nearly the same anywhere in
#   the text.
# - The frame takes forty lines, and the network with its attention forty more; the cache adds about twenty. Clients
#   that leave, faults and full caches take the rest.
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
# <details><summary>2. The same four users, but each is sent 12 tokens of the first stream after the one before. How many
# passes does each of the two ways need?</summary>
#
# Iterative: 3 × 12 + 48 = 84, if nobody loses a pass in joining. <code>simple-gpt2</code>: still two batches of 48, 96. The
# further apart the users come, the less a pass is shared.
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
