# %% [markdown]
# # {heading}
#
# {minutes} minutes. Afterwards you can
#
# - **keep** requests that belong together on the instance that remembers them;
# - **say** what becomes of a conversation whose client forgot to begin it, forgot to end it, or left;
# - **write** a model that asks to be called again, and trace it call by call.
#
# You need lesson 06. Whose state is it, where does it live, and who deletes it? Every server that remembers something meets
# these three questions: streaming speech recognition, tracking in video, voice agents. LLM engines answer them inside, and
# a router in front of several servers meets the second one again (lesson 12). The configuration of the sequence batcher is Triton's.
#
# {navigation}

# %% [markdown]
# ## {question}
#
# A speech recognizer gets a second of sound at a time, and each second continues the sentence before. So the model keeps
# something for each conversation. Your recognizer works in every test on your laptop. In production its transcripts are
# sometimes nonsense, and the log has no error.
#
# The model of this lesson stands for it: its state is one number, the sum of what a conversation has sent so far. A real
# one follows.

# %%
import json
import tempfile
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.express as px
import tritonclient.grpc as triton

from inflight.lessons.sequences import Voice, streams, two_lines
from inflight.notebook import charts, session, widgets
from inflight.triton import Server

workdir = tempfile.TemporaryDirectory()  # it goes when the notebook's kernel ends
repo = Path(workdir.name) / "repo"
for name in "adder", "words":
    (repo / name / "1").mkdir(parents=True)
session.others()

# %% [markdown]
# ## A model that remembers

# %%
# %%writefile {repo}/adder/1/model.py
# import time
#
# import numpy as np
# import triton_python_backend_utils as pb_utils
#
#
# def number(request, name):
#     return pb_utils.get_input_tensor_by_name(request, name).as_numpy().item()
#
#
# class TritonPythonModel:
#     def initialize(self, args):
#         self.instance = int(args["model_instance_name"].rpartition("_")[2])
#         self.sums = {}  # by the conversation's number
#
#     def execute(self, requests):
#         time.sleep(0.01)  # a pass of a real model takes time
#         return [self.add(request) for request in requests]

# %%
# %%writefile -a {repo}/adder/1/model.py
#
#     def add(self, request):
#         who, value = number(request, "who"), number(request, "value")
#         self.sums[who] = self.sums.get(who, 0) + value
#         told = {"sum": self.sums[who], "instance": self.instance}
#         outputs = [
#             pb_utils.Tensor(name, np.array([[value]], np.int32))
#             for name, value in told.items()
#         ]
#         return pb_utils.InferenceResponse(outputs)

# %% [markdown]
# Two instances run, and a dynamic batcher as in lesson 06 gives them batches of at most two:

# %%
dynamic = """
name: "adder"  backend: "python"  max_batch_size: 2
input [ { name: "who"  data_type: TYPE_INT32  dims: [ 1 ] },
        { name: "value"  data_type: TYPE_INT32  dims: [ 1 ] } ]
output [ { name: "sum"  data_type: TYPE_INT32  dims: [ 1 ] },
         { name: "instance"  data_type: TYPE_INT32  dims: [ 1 ] } ]
instance_group [ { count: 2  kind: KIND_CPU } ]
dynamic_batching { }
"""
config_path = repo / "adder" / "config.pbtxt"
config_path.write_text(dynamic)
server = Server(repo).start()

# %% [markdown]
# NVIDIA's client says with each request to which [sequence](glossary.md#Sequence) it belongs, by a
# [correlation id](glossary.md#Correlation-id), and whether it is the first or the last one.


# %%
def send(connection, who, value, start=False, end=False):
    """Send one number of a conversation: the sum, and where it was computed."""
    inputs = [triton.InferInput(name, [1, 1], "INT32") for name in ("who", "value")]
    for tensor, number in zip(inputs, (who, value)):
        tensor.set_data_from_numpy(np.array([[number]], np.int32))
    marks = {"sequence_id": who, "sequence_start": start, "sequence_end": end}
    result = connection.infer("adder", inputs, **marks)
    return [result.as_numpy(name).item() for name in ("sum", "instance")]


# %%
def converse(who):
    """Send 1 to 6 in one conversation, each as soon as the last is answered."""
    with triton.InferenceServerClient(server.grpc_url) as connection:
        return [
            (who, value, *send(connection, who, value, value == 1, value == 6))
            for value in range(1, 7)
        ]


def converse_all(config, batcher):
    """Four conversations side by side, with this config: a row a request."""
    config_path.write_text(config)
    (config_path.parent / "1" / "model.py").touch()  # no instance keeps its sums
    server.load("adder")
    with ThreadPoolExecutor(4) as pool:
        rows = [row for rows in pool.map(converse, range(1, 5)) for row in rows]
    columns = ["conversation", "request", "sum", "instance"]
    return pd.DataFrame(rows, columns=columns).assign(batcher=batcher)


# %% [markdown]
# ## Predict
#
# Four conversations go on side by side, and each sends 1, 2, 3, 4, 5, 6. The right sums are 1, 3, 6, 10, 15, 21.

# %%
guess = widgets.predict(
    "How many of the four end with 21?",
    [
        "all four: the conversation's number comes with every request",
        "some: those that stay on one instance by chance",
        "none: each meets both instances",
    ],
)
guess

# %% [markdown]
# ## Run
#
# They converse: with one instance as on your laptop, then with two, then with another batcher, which gives each instance
# two conversations:

# %%
oldest = "sequence_batching { oldest { max_candidate_sequences: 2 } }"
laptop = converse_all(dynamic.replace("count: 2", "count: 1"), "dynamic_batching")
talks = [
    converse_all(dynamic, "dynamic_batching"),
    converse_all(dynamic.replace("dynamic_batching { }", oldest), "sequence_batching"),
]
alone, *right = [
    (talk.groupby("conversation")["sum"].max() == 21).sum() for talk in [laptop, *talks]
]
print(f"one instance: {alone} of 4 end with 21")

# %% tags=["nbval-ignore-output"]
for talk in talks:
    print(talk["batcher"].iloc[0])
    for who, own in talk.groupby("conversation"):
        met = own["instance"].nunique()
        print(f"  {who}: sums", *own["sum"], f"  instances met: {met}")
said = {0: "none", 4: "all"}.get(right[0], "some")
print(guess.score(said), f"With dynamic_batching, {right[0]} end with 21.")

# %% tags=["remove-cell"]
assert (
    talks[1].groupby("conversation")["sum"].agg(list).map(tuple)
    == (1, 3, 6, 10, 15, 21)
).all()
assert (talks[1].groupby("conversation")["instance"].nunique() == 1).all()

# %% [markdown]
# A dynamic batcher does not look at sequences: whichever instance is free takes the next requests, and each knows only what
# it has added up itself. With one instance all four were right. No error, no warning. The [sequence
# batcher](glossary.md#Sequence-batcher) sends all requests of a conversation to one instance.
#
# ## See
#
# The number before a line is its conversation, the number in a circle the sum after that request.

# %%
lanes = pd.concat(talks)
lanes["lane"] = lanes["instance"] - lanes["conversation"].sub(2.5) / 4.5
lanes["conversation"] = lanes["conversation"].astype(str)
lanes["is_right"] = lanes["sum"] == lanes["request"] * (lanes["request"] + 1) // 2
panels = {
    batcher: f"{batcher}: {number} of 4 end with 21"
    for batcher, number in zip(lanes["batcher"].unique(), right)
}
summary = (
    "The sum after each request of four conversations, and the instance that computed "
    f"it; an open circle is a wrong sum. {'; '.join(panels.values())}."
)

# %% tags=["nbval-ignore-output"]
figure = px.line(
    lanes, x="request", y="lane", color="conversation", text="sum", markers=True,
    facet_row="batcher", facet_row_spacing=0.14, custom_data="is_right",
)  # fmt: skip
figure.update_traces(marker_size=20, textfont_color="black")
figure.add_hline(0.5, line={"color": "gray", "width": 1})
figure.update_yaxes(title="", tickvals=[0, 1], ticktext=["instance 0", "instance 1"])
for note in figure.layout.annotations:  # a panel's name, to stand above it
    name = panels[note.text.partition("=")[2]]
    note.update(text=name, x=0, xshift=-80, textangle=0, yshift=140)
for lane in figure.data:
    place = {"x": 1, "y": lane.y[0], "xref": lane.xaxis, "yref": lane.yaxis}
    figure.add_annotation(place, text=lane.name, xshift=-20, showarrow=False)
    fill = [lane.line.color if is_right else "white" for (is_right,) in lane.customdata]
    lane.marker.update(color=fill, line={"color": lane.line.color, "width": 2})
figure.update_layout(height=640, margin_t=70, showlegend=False)
charts.show(figure, summary)
print(textwrap.fill(summary, 88))

# %% [markdown]
# Above, a line that changes instance has too small a sum from then on. Below, none changes.
#
# ## A real one
#
# Many voice agents run [Silero's network](https://github.com/snakers4/silero-vad) on every line. It scores each
# 32 ms of sound: does somebody speak? Its state is 320 numbers. Two lines are played without a server: first with
# one instance, then with two that take the frames of each line in turn.


# %%
network, lines = Voice(), two_lines()  # sound: [2, frames, 512]


def listen(instances):
    """Where somebody speaks on each line; its frames go to the instances in turn.

    >>> listen(2)
    """
    states = np.zeros((instances, 2, network.size))  # of each line in each instance
    heard = ["", ""]
    for nth, frames in enumerate(lines.swapaxes(0, 1)):
        at = nth % instances
        # your line: this frame's scores, and what its instance knows afterwards
        scores, states[at] = network(frames, states[at])

        marks = ("#" if score > 0.5 else "." for score in scores)
        heard = list(map("".join, zip(heard, marks)))
    return heard


# %% tags=["nbval-ignore-output"]
for line, (one, two) in enumerate(zip(listen(1), listen(2)), 1):
    wrong = sum(frame != other for frame, other in zip(one, two))
    late_ms = 32 * (two.rindex("#") - one.rindex("#"))
    print(f"line {line}: {wrong} of {len(one)} frames differ", end=", ")
    print(
        f"speech ends {late_ms} ms later"
        if late_ms
        else "speech goes on to the last frame"
    )
    print("one", one)
    print("two", two)

# %% tags=["remove-cell"]
(one, _), (two, _) = listen(1), listen(2)
assert "#..#" in one and "#..#" not in two
assert two.rindex("#") - one.rindex("#") == 2

# %% [markdown]
# Each instance has heard every other frame. On line 1, 76 of 80 frames are right; the wrong ones are the pause and the end
# of speech, which is what an agent waits for. No error.
#
# ## Who begins it, who ends it
#
# Each sequence holds a [slot](glossary.md#Batch-slot) from START to END. Only the client knows both. Now each of the two
# instances has one slot, and a sequence may be silent for one second (the default of `max_sequence_idle_microseconds`).
# **A client forgets START:**

# %%
candidates = "sequence_batching.oldest.max_candidate_sequences"
server.load("adder", max_batch_size=1, **{candidates: 1})
connection = triton.InferenceServerClient(server.grpc_url)


def try_to_send(*request, **marks):
    """The sum, or the reason why there is none."""
    try:
        return f"sum {send(connection, *request, **marks)[0]}"
    except triton.InferenceServerException as error:
        return textwrap.fill(error.message(), 80)


print(try_to_send(7, 1))

# %% [markdown]
# **A client forgets END.** Conversations 8 and 9 begin and never end. Then a third one comes:

# %% tags=["nbval-ignore-output"]
began = time.monotonic()
print("8:", try_to_send(8, 1, start=True), " 9:", try_to_send(9, 1, start=True))
print("9, a new caller without START:", try_to_send(9, 5))
print("10:", try_to_send(10, 1, start=True, end=True), end=", ")
print(f"{time.monotonic() - began:.1f} s after 8 began")
print("8 again:", try_to_send(8, 1))
again = [try_to_send(11, 1, start=True, end=True) for _ in range(3)]
print("11, begun and ended three times:", *again)

# %% tags=["remove-cell"]
assert time.monotonic() - began > 0.9
assert again != ["sum 1"] * 3

# %% [markdown]
# A forgotten START is refused, unless a sequence with this id is open: then the request continues it, and the sum is
# wrong. A forgotten END gives no error: its slot stays taken until the sequence has been idle for too long, while others wait.
# Then Triton drops the sequence, and refuses its next request, unless it says START. A START for an id that is still open
# is accepted; only the server's log says that the old sequence had not ended. In [an open
# report](https://github.com/triton-inference-server/server/issues/8449) of 2025 Triton looped over its idle sequences for
# ever, and that model answered nobody any more.
#
# The model can ask to be told: `control_input` names inputs that say which sequence it is (`CORRID`), whether it begins
# (`START`) or ends (`END`), and whether the slot has a request at all (`READY`). The adder asks for none. Conversation
# 11 began and ended properly three times, and met its own old sum. START tells a model to begin at zero, END to delete.
# With [implicit state](glossary.md#Implicit-state) Triton itself keeps
# the state, for ONNX Runtime, TensorRT and PyTorch models; in the Python backend you do.
#
# ## One request, many calls
#
# An answer of many words is a sequence, too, if the *model* may say after each word: call me again with this request.
# Triton calls that [iterative scheduling](glossary.md#Iterative-scheduling). This model gives a text back word by word:

# %%
# %%writefile {repo}/words/1/model.py
# import json, time
# from pathlib import Path
#
# import numpy as np
# import triton_python_backend_utils as pb_utils
#
# AGAIN = pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
# FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
# LOG = Path(__file__).with_name("calls.jsonl")
#
#
# def value(request, name):
#     return pb_utils.get_input_tensor_by_name(request, name).as_numpy().item()

# %%
# %%writefile -a {repo}/words/1/model.py
#
#
# class TritonPythonModel:
#     def initialize(self, args):
#         self.states = {}  # by correlation id: the words that are left
#
#     def execute(self, requests):
#         kept, told = len(self.states), [self.next_word(each) for each in requests]
#         with LOG.open("a") as log:
#             print(json.dumps({"kept": kept, "told": told}), file=log)
#         time.sleep(0.05)  # a pass of a real model takes time
#         for request, (who, _, word) in zip(requests, told):
#             if word:
#                 self.answer(request, who, word)

# %% [markdown]
# At `START` there is nothing yet. In every later call, `states` has what the call before left.
# `request.set_release_flags(AGAIN)` puts a request back.

# %%
# %%writefile -a {repo}/words/1/model.py
#
#     def next_word(self, request):
#         who = value(request, "ID")
#         if not value(request, "READY"):
#             return who, "empty", ""  # this slot has no request now
#         is_new = bool(value(request, "START"))
#         if is_new:
#             self.states[who] = value(request, "text").decode().split()
#         return who, "START" if is_new else "again", self.states[who].pop(0)

# %%
# %%writefile -a {repo}/words/1/model.py
#
#     def answer(self, request, who, word):
#         is_last = not self.states[who]
#         # your line: what becomes of this text, over or not
#         if is_last:
#             del self.states[who]
#         else:
#             request.set_release_flags(AGAIN)
#
#         output = pb_utils.Tensor("word", np.array([[word.encode()]], object))
#         response = pb_utils.InferenceResponse([output])
#         request.get_response_sender().send(response, flags=FINAL if is_last else 0)

# %% [markdown]
# `iterative_sequence` lets a model put requests back; Triton makes up the id and START, and the client marks nothing.
# `decoupled` lets a request have many responses:

# %%
# %%writefile {repo}/words/config.pbtxt
# name: "words"  backend: "python"  max_batch_size: 3
# model_transaction_policy { decoupled: true }
# input [ { name: "text"  data_type: TYPE_STRING  dims: [ 1 ] } ]
# output [ { name: "word"  data_type: TYPE_STRING  dims: [ 1 ] } ]
# instance_group [ { kind: KIND_CPU } ]
# sequence_batching {
#   iterative_sequence: true
#   control_input [
#     { name: "ID"
#       control [ { kind: CONTROL_SEQUENCE_CORRID  data_type: TYPE_UINT64 } ] },
#     { name: "START"
#       control [ { kind: CONTROL_SEQUENCE_START  int32_false_true: [ 0, 1 ] } ] },
#     { name: "READY"
#       control [ { kind: CONTROL_SEQUENCE_READY  int32_false_true: [ 0, 1 ] } ] }
#   ]
# }

# %% [markdown]
# Four clients send a text each, and there are three slots. `traced` also reads the model's log.

# %%
log_path = repo / "words" / "1" / "calls.jsonl"
NOTED = ["call", "slot", "kept", "id", "told", "word"]


def traced(texts):
    """What the clients heard, and what the model noted: a row per call and slot."""
    start = log_path.stat().st_size if log_path.exists() else 0
    heard = streams.ask(server, "words", texts)
    lines = log_path.read_text()[start:].splitlines()
    rows = [
        (call, slot, line["kept"], *told)
        for call, line in enumerate(map(json.loads, lines), 1)
        for slot, told in enumerate(line["told"])
    ]
    return heard, pd.DataFrame(rows, columns=NOTED)


# %%
server.load("words")
texts = [
    "to be or not",
    "all the world is a stage",
    "I wandered lonely as a cloud",
    "hello",
]
heard, calls = traced(texts)
print(heard.groupby("stream")["word"].agg(" ".join).to_string(header=False))

# %% [markdown]
# A row is a call, a column a slot; `kept` is the number of states when the call began.

# %% tags=["nbval-ignore-output"]
calls["said"] = calls["told"].replace("again", "") + " " + calls["word"]
table = calls.pivot(index="call", columns="slot", values="said").fillna("")
table["kept"] = calls.groupby("call")["kept"].first()
table

# %% tags=["remove-cell"]
lengths = [len(text.split()) for text in texts]
assert (calls["word"] != "").sum() == sum(lengths) and 6 <= len(table) <= 10
assert heard.groupby("stream")["word"].agg(" ".join).tolist() == texts

# %% [markdown]
# Each call takes whichever requests are ready. When a text is over, the one that waited takes its slot, and the model meets
# each text where its last call left it. A free slot before one in use comes along *empty*, with `READY` 0. That is the
# strategy `direct`, the default. With `oldest`, Triton forms each batch from the requests that wait, so none comes along
# empty:
#
# | | `direct` | `oldest` |
# |---|---|---|
# | Sequences at a time | `max_batch_size` × instances | `max_candidate_sequences` × instances |
# | More sequences than slots | wait until one ends | the candidates take turns; the others wait |
# | For a model that keeps its state | by slot, or by correlation id as ours | by correlation id |
#
# ## What breaks
#
# **A client leaves.** Three readers of `words` close the connection after three words of a long text. Then somebody else
# asks for one word.

# %% tags=["nbval-ignore-output"]
long_texts = ["word " * 200] * 3
streams.ask(server, "words", long_texts, leave_after={1: 3, 2: 3, 3: 3})
_, afterwards = traced(["hello"])
again = (afterwards["told"] == "again").sum()
kept = afterwards["kept"].iloc[-1]
print(f"Words for the three since: {again}. States kept: {kept}.")

# %% tags=["remove-cell"]
assert kept == 3 and again <= 3  # one call may have been under way

# %% [markdown]
# Triton sees that a client has gone, and does not schedule its request again. Words since, if any, are those of a call
# that was under way. Nobody tells the model: no further call comes, so nothing deletes these states, and the dict grows for
# as long as the server runs. In the lab you write one that notices.
#
# ## Turn the knob
#
# With `oldest`, at most two texts share a call, and three may be under way. Sixteen words, two a call: eight calls? Predict
# how many, then run it. Then set `max_candidate_sequences` to 2: which text waits, and for what?
#
# <details><summary>What to see</summary>
#
# More than eight: a call leaves with whoever waits at that moment, and where that is one text, it goes alone. With two
# candidates the text that came last, whichever it is, begins when another ends.
#
# </details>

# %% tags=["nbval-ignore-output"]
editor = widgets.ConfigEditor(server, "words", ["max_batch_size", candidates])
editor.apply(max_batch_size="2", **{candidates: "3"})
editor

# %% tags=["nbval-ignore-output"]
_, rows = traced(texts[:3])
rows["said"] = rows["told"].where(rows["told"] == "empty", "") + rows["word"]
alone = (rows["word"].ne("").groupby(rows["call"]).sum() == 1).sum()
print(f"{rows['call'].max()} calls, {alone} of them with one text")
rows.pivot(index="call", columns="slot", values="said").fillna("")

# %% [markdown]
# ## Elsewhere
#
# | | vLLM, TensorRT-LLM | Triton |
# |---|---|---|
# | A conversation of several requests | each brings all of it; prefix caching finds its beginning. [Speech in vLLM](https://docs.vllm.ai/en/latest/examples/speech_to_text/realtime/): one connection | the sequence batcher keeps it in one instance |
# | One answer, many passes | always, inside the engine | `iterative_sequence`, which [its page](https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/batcher.html) calls provisional |
# | A client leaves | the server in front of the engine notices, and aborts | the model must check |
# | Several servers | any works; one that has the beginning in its cache is faster | one correlation id must always reach one server, and if that dies, the state is gone |
# | Watch who waits | vLLM: <code>vllm:num_<wbr>requests_waiting</code> | <code>nv_inference_<wbr>pending_request_count</code>, which counts requests that no call has taken yet |
#
# ## Recap
#
# What the first request left is in one instance's memory. The second one finds it there if a sequence batcher sends it
# there.
#
# - With the wrong batcher, each instance has a part of a conversation's state, and there is no error.
# - A sequence holds a slot from START to END. A forgotten START is refused unless the id is still open; a forgotten END
#   keeps its slot for the idle time.
# - A model that puts its request back is called again, and finds under the correlation id what it left.
# - A model that asks is told when a sequence begins, never when its client has gone. What it keeps, it must delete itself.
#
# <details><summary>1. A chat client sends its whole history with each message. Which batcher does the model need?</summary>
#
# No sequence batcher: each request is complete, so any instance can answer it. The price is tokens computed again, unless a
# KV cache is reused.
# </details>
#
# <details><summary>2. <code>direct</code>, <code>max_batch_size</code> 4, two instances, ten conversations that never end.
# Which are served?</summary>
#
# The first eight. Each of the other two waits until one of these has been silent for longer than the idle time.
# </details>
#
# <details><summary>3. Your model forgets <code>set_release_flags</code> in one branch. What does the client see?</summary>
#
# The request is released, so there is no further call. It is decoupled and had no FINAL, so the client waits until its own
# time-out. The state stays in the dict.
# </details>
#
# Now [do the lab]({lab}), or go on with {next}: the words become GPT-2's.
