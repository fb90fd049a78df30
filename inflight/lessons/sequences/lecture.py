# %% [markdown]
# # {heading}
#
# {minutes} minutes. Afterwards you will be able to
#
# - **write** a model that asks to be called again, and trace it call by call;
# - **keep** requests that belong together on the instance that remembers them, with `direct` or with `oldest`;
# - **say** what becomes of a sequence whose client forgot to begin it, forgot to end it, or left.
#
# **What you will use elsewhere:** every server that remembers something from one pass to the next meets the three
# questions of this lesson: whose state is it, where does it live, and who deletes it? vLLM and TensorRT-LLM answer them
# inside the engine, a router in front of several servers answers the second one, and here you answer all three.
#
# You need lesson 06: instances, batches and the dynamic batcher. All models are made here.
#
# {navigation}

# %% [markdown]
# ## {question}
#
# An LLM's answer takes hundreds of passes. Suppose that a model of yours makes such answers, and that no engine knows it.
# You write `execute` with a loop over the passes. Then Triton calls it once per batch, and whoever comes meanwhile waits
# until the loop has ended: static batching, as in lesson 04.
#
# What if the *model* could say after each pass: put this request back into the queue? Triton would form the batch anew for
# every pass. Newcomers would join, and complete answers would leave. That is
# [in-flight batching](glossary.md#In-flight-batching). Triton calls it
# [iterative scheduling](glossary.md#Iterative-scheduling).
#
# But then the second call must find what the first one left.

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

from inflight.lessons.sequences import streams
from inflight.notebook import charts, palette, session, widgets
from inflight.triton import Server, telemetry

workdir = tempfile.TemporaryDirectory()  # it goes when the notebook's kernel ends
repo = Path(workdir.name) / "repo"
(repo / "words" / "1").mkdir(parents=True)
session.others()

# %% [markdown]
# ## Predict
#
# Your model gives a text back word by word, one word per pass. Three clients send these texts, one right after the other.
# There is room for four in a batch.

# %%
texts = ["to be or not", "all the world is a stage", "I wandered lonely as a cloud"]
lengths = [len(text.split()) for text in texts]
print("words:", *lengths)
guess = widgets.predict(
    "How often is the model's execute called until all have their answers?",
    {
        "3 times, once for each request": 3,
        "about 6 times, once for each word of the longest text": 6,
        "16 times, once for each word": 16,
    },
)
guess

# %% [markdown]
# ## A model that asks to be called again
#
# The client sends one request. Triton makes a [sequence](glossary.md#Sequence) of it, gives the sequence a number,
# the [correlation id](glossary.md#Correlation-id), and calls the model with the same request again and again. With
# each call it adds *controls* as inputs. The model asks for three of them: `ID`, the correlation id; `START`, which is 1 in
# the first call of a sequence; `READY`, which is 0 where a place in the batch has no request now.

# %%
# %%writefile {repo}/words/1/model.py
# import json
# import time
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

# %% [markdown]
# Each call finds out the next word of everybody who is there, notes what it was told in a log, and answers:

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
# `states` has what the call before left. At `START` there is nothing yet; afterwards the words that are left are there:

# %%
# %%writefile -a {repo}/words/1/model.py
#
#     def next_word(self, request):
#         who = value(request, "ID")
#         if not value(request, "READY"):
#             return who, "empty", ""  # this place has no request now
#         is_new = bool(value(request, "START"))
#         if is_new:
#             self.states[who] = value(request, "text").decode().split()
#         return who, "START" if is_new else "again", self.states[who].pop(0)

# %% [markdown]
# The end of a call decides what becomes of a request. `AGAIN` puts it back into the queue. Without it, Triton releases
# the request after the call, and `FINAL` tells the client that no more words come. Two lines are yours:

# %%
# %%writefile -a {repo}/words/1/model.py
#
#     def answer(self, request, who, word):
#         is_last = not self.states[who]
#         if is_last:
#             # your line: keep nothing of a stream that is over
#             del self.states[who]
#         else:
#             # your line: ask for this request again, with request.set_release_flags
#             request.set_release_flags(AGAIN)
#         output = pb_utils.Tensor("word", np.array([[word.encode()]], object))
#         response = pb_utils.InferenceResponse([output])
#         request.get_response_sender().send(response, flags=FINAL if is_last else 0)

# %% [markdown]
# In the config, `iterative_sequence` lets the model put requests back, `decoupled` lets a request have many responses, and
# `control_input` says under which names the controls come.

# %%
# %%writefile {repo}/words/config.pbtxt
# name: "words"  backend: "python"  max_batch_size: 4
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
# ## The call table
#
# `streams.ask` sends each text on a connection of its own, one right after the other, and collects the words. `traced` also
# reads what the model has noted meanwhile:

# %%
log_path = repo / "words" / "1" / "calls.jsonl"
NOTED = ["call", "place", "kept", "id", "told", "word"]


def traced(texts):
    """What the clients heard, and what the model noted: a row per call and place."""
    start = log_path.stat().st_size
    heard = streams.ask(server, "words", texts)
    lines = log_path.read_text()[start:].splitlines()
    rows = [
        (call, place, line["kept"], *told)
        for call, line in enumerate(map(json.loads, lines), 1)
        for place, told in enumerate(line["told"])
    ]
    return heard, pd.DataFrame(rows, columns=NOTED)


# %%
server = Server(repo).start()
log_path.touch()
heard, direct = traced(texts)
print(heard.groupby("stream")["word"].agg(" ".join).to_string(header=False))

# %% [markdown]
# Everybody has their own words, in order. How many calls should it take? Lesson 04 counted iterations from lengths;
# do the same:

# %%
# your line: calls, if all three requests are there before the first call
on_paper = max(lengths)

# %% [markdown]
# This is how the model was called. A row is a call, a column a place in the batch; `kept` is the number of states that were
# there when the call began. Who arrives first gets place 0, and the three connections race:

# %% tags=["nbval-ignore-output"]
direct["said"] = direct["told"].replace("again", "") + " " + direct["word"]
table = direct.pivot(index="call", columns="place", values="said").fillna("")
by_call = direct.groupby("call")
table["kept"] = by_call["kept"].first()
table["words"] = by_call["word"].agg(lambda words: sum(words != ""))
table

# %% [markdown]
# A stream begins with `START` and keeps its place. Where a stream is over while a later place is still
# taken, Triton calls the model with an *empty* place: `READY` is 0 there, and the model passes over it. Now the sums:

# %% tags=["nbval-ignore-output"]
calls = len(table)
print(*table["words"], sep=" + ", end=f" = {table['words'].sum()} words")
print(f" in {calls} calls;", *lengths, "words were sent,", sum(lengths), "in all.")
print(guess.score(calls, "the calls of this one run"))

# %% tags=["remove-cell"]
assert table["words"].sum() == sum(lengths) and 6 <= calls <= 10
assert heard.groupby("stream")["word"].agg(" ".join).tolist() == texts

# %% tags=["nbval-ignore-output"]
print(
    f"On paper {on_paper} calls, counted {calls}: {calls / on_paper:.2f} times as many."
)
own = direct[direct["word"] != ""].groupby("id", sort=False)["call"]
begins = own.min()
last = (begins + own.size() - 1).max()
print("The streams begin in calls", *begins, end=". ")
print(f"With a word in every call since then, the last one ends in call {last}.")
counted = telemetry.settled(
    lambda: telemetry.statistics(server.http_url, "words").executions
)
print(f"Triton's own statistics count {counted} executions.")

# %% [markdown]
# The paper misses the beginning: the first call leaves with whoever is there, and the others join a later one. One
# request after the other would take as many calls as there are words. A batch that is fixed when it leaves, as in
# lesson 04, would need 10 calls here if it leaves with the first text alone: 4 for it, then 6 for the other two. What
# in-flight batching saves on top is the difference to that. Three names do the work: `AGAIN` keeps the request,
# `states` keeps what is known of it under its id, and `FINAL` ends the answer.
#
# How could this mislead? This is one run of three short texts, and a call takes 50 ms whoever is in it. With a real model a
# call for three takes longer than a call for one: lesson 08 measures that.
#
# ## `direct` and `oldest`
#
# The config names no strategy, so it is `direct`: a sequence has a [place](glossary.md#Place) in the batch
# until it ends. With the other strategy, `oldest`, it has none: the requests that are waiting form the next batch.
# `max_candidate_sequences` says how many sequences each instance may have in progress; another waits until one ends.
# The same texts, three runs of each:

# %% tags=["nbval-ignore-output"]
candidates = "sequence_batching.oldest.max_candidate_sequences"
delay = "sequence_batching.oldest.max_queue_delay_microseconds"
strategies = {
    "direct": {},
    "oldest": {candidates: 4},
    "oldest, with a delay of 20 ms": {candidates: 4, delay: 20_000},
}
traces, counts = [], []
for strategy, fields in strategies.items():
    server.load("words", **fields)  # the file stays as it is
    for _ in range(3):
        _, rows = traced(texts)
        counts.append((strategy, rows["call"].max(), sum(rows["word"] == "")))
    traces.append(rows.assign(strategy=strategy))  # the last of the three
server.load("words")

# %% tags=["nbval-ignore-output"]
counts = pd.DataFrame(counts, columns=["strategy", "calls", "empty places"])
counts.groupby("strategy", sort=False).agg(list)

# %%
number = {text.split()[0]: str(nth) for nth, text in enumerate(texts, 1)}
for rows in traces:
    first = rows[rows["told"] == "START"].set_index("id")["word"]  # of each stream
    stream = rows["id"].where(rows["word"] != "").map(first).map(number)
    rows["stream"] = stream.fillna("empty")
squares = pd.concat(traces[:2]).sort_values("stream")
squares["word"] = squares["word"].replace("", "empty")
summary = (
    "Which word was computed in which call, at which place, by strategy. Each text has "
    "a colour; a place that Triton names without a request is grey."
)

# %% tags=["nbval-ignore-output"]
figure = px.scatter(
    squares, x="call", y="place", text="word", color="stream", facet_row="strategy",
    color_discrete_map={"empty": palette.WASTE},
)  # fmt: skip
figure.update_traces(marker={"size": 60, "symbol": "square-open", "line": {"width": 3}})
figure.update_traces(textfont_size=11)
figure.update_yaxes(dtick=1, range=[2.6, -0.6])
figure.update_xaxes(dtick=1)
figure.for_each_annotation(lambda note: note.update(text=note.text.partition("=")[2]))
figure.update_layout(height=520, showlegend=False, meta={"device": ""})
charts.show(figure, summary)
print(textwrap.fill(summary, 88))

# %% [markdown]
# With `direct`, the place of a stream that is over stays empty until a newcomer takes it, or until no later place is in
# use. With `oldest` the others move up, so a stream's place may change. A batch leaves with whoever is back in the
# queue, so streams may also fall out of step and share fewer calls; a delay lets the batch wait for company. (`direct`
# can wait, too: `max_queue_delay_microseconds` together with `minimum_slot_utilization`, without which the delay has no
# effect. So fewer calls are the delay's doing, not the strategy's.) Runs of one strategy may differ, by who is there
# when the first call leaves.
#
# | | `direct` | `oldest` |
# |---|---|---|
# | Sequences at a time | `max_batch_size` × instances | `max_candidate_sequences` × instances |
# | More sequences than places | wait until one ends | take turns, as far as there are candidates |
# | It fits a model that | keeps its state by place: a tensor with a row for each | keeps its states by id, as ours does |
#
# ## The state lives in one instance
#
# A conversation may also consist of several requests: a speech recogniser gets a second of
# sound at a time. This model adds up what each conversation sends, and says where it computed:

# %%
(repo / "adder" / "1").mkdir(parents=True)

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
#         return [self.add(place, request) for place, request in enumerate(requests)]

# %%
# %%writefile -a {repo}/adder/1/model.py
#
#     def add(self, place, request):
#         who, value = number(request, "who"), number(request, "value")
#         # your line: the sum of this conversation so far, with the value
#         self.sums[who] = self.sums.get(who, 0) + value
#         told = {"sum": self.sums[who], "instance": self.instance, "place": place}
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
         { name: "instance"  data_type: TYPE_INT32  dims: [ 1 ] },
         { name: "place"  data_type: TYPE_INT32  dims: [ 1 ] } ]
instance_group [ { count: 2  kind: KIND_CPU } ]
dynamic_batching { }
"""
config_path = repo / "adder" / "config.pbtxt"
config_path.write_text(dynamic)
server.load("adder")

# %% [markdown]
# The client is NVIDIA's own. With each request it says to which sequence the request belongs, and whether it is the first
# or the last one. A dynamic batcher does not look at that.


# %%
def send(connection, who, value, start=False, end=False):
    """Send one number of a conversation: the sum, and where it was computed."""
    inputs = [triton.InferInput(name, [1, 1], "INT32") for name in ("who", "value")]
    for tensor, number in zip(inputs, (who, value)):
        tensor.set_data_from_numpy(np.array([[number]], np.int32))
    marks = {"sequence_id": who, "sequence_start": start, "sequence_end": end}
    result = connection.infer("adder", inputs, **marks)
    return [result.as_numpy(name).item() for name in ("sum", "instance", "place")]


# %%
def converse(who):
    """Send 1 to 6 in one conversation, each as soon as the last is answered."""
    with triton.InferenceServerClient(server.grpc_url) as connection:
        return [
            (who, *send(connection, who, value, value == 1, value == 6), time.time())
            for value in range(1, 7)
        ]


# %% [markdown]
# Four conversations go on side by side, each of which sends 1, 2, 3, 4, 5, 6. Then one line of the config changes:


# %%
def converse_all(batcher):
    with ThreadPoolExecutor(4) as pool:
        rows = [row for rows in pool.map(converse, range(1, 5)) for row in rows]
    columns = ["conversation", "sum", "instance", "place", "time_s"]
    return pd.DataFrame(rows, columns=columns).assign(batcher=batcher)


talks = [converse_all("dynamic_batching")]
config_path.write_text(dynamic.replace("dynamic_batching", "sequence_batching"))
server.load("adder")
talks.append(converse_all("sequence_batching"))

# %% tags=["nbval-ignore-output"]
for talk in talks:
    print(talk["batcher"].iloc[0])
    for who, own in talk.groupby("conversation"):
        met = own["instance"].nunique()
        print(f"  {who}: sums", *own["sum"], f"  instances met: {met}")

# %% tags=["remove-cell"]
assert (
    talks[1].groupby("conversation")["sum"].agg(list).map(tuple)
    == (1, 3, 6, 10, 15, 21)
).all()
assert (talks[1].groupby("conversation")["instance"].nunique() == 1).all()

# %% [markdown]
# Right sums are 1, 3, 6, 10, 15, 21. With the dynamic batcher, whichever instance is free takes the next requests, and
# each knows only what it has added up itself: from the moment a conversation meets its second instance, its sums are
# too small; until then they are right, so a short test may pass. There is no error and no warning. The [sequence
# batcher](glossary.md#Sequence-batcher) sends all requests of a conversation to one instance.
#
# ## See

# %%
lanes = pd.concat(talks)
begins = lanes.groupby("batcher")["time_s"].transform("min")
lanes["ms"] = 1000 * (lanes["time_s"] - begins)
at = lanes.astype(str)
lanes["lane"] = "instance " + at["instance"] + ", place " + at["place"]
lanes["conversation"] = at["conversation"]
met = [talk.groupby("conversation")["instance"].nunique().max() for talk in talks]
summary = (
    "Where each request of four conversations was computed. With dynamic_batching, a "
    f"conversation met at most {met[0]} instances; with sequence_batching {met[1]}."
)

# %% tags=["nbval-ignore-output"]
figure = px.line(
    lanes, x="ms", y="lane", color="conversation", text="conversation", markers=True,
    facet_row="batcher", category_orders={"lane": sorted(set(lanes["lane"]))},
)  # fmt: skip
figure.update_traces(marker={"symbol": "circle-open", "size": 20, "line": {"width": 3}})
figure.update_traces(textposition="middle center")
figure.update_yaxes(title="")
figure.update_xaxes(title="time since the first answer (ms)", row=1)
figure.for_each_annotation(lambda note: note.update(text=note.text.partition("=")[2]))
figure.update_layout(height=520, showlegend=False)
charts.show(figure, summary)
print(textwrap.fill(summary, 88))

# %% [markdown]
# In the lower panel, a colour never leaves its lane. That has a price: two conversations in one instance may fall out
# of step, and then each waits for the other's calls, and cannot move to an idle instance. When all places are taken,
# the next sequence waits until another one ends.
#
# ## Who sets the controls
#
# A model may ask for four controls. For the iterative model Triton sets three, and nobody sets `END`: the model ends its
# sequence itself. In a conversation of several requests the client sets three:
#
# | control | what it says | in a conversation | with `iterative_sequence` |
# |---|---|---|---|
# | `CORRID` | which sequence it is | the client: `sequence_id` | Triton makes one up |
# | `START` | whether this is its first request | the client: `sequence_start` | Triton, in the first call |
# | `END` | whether this is its last request | the client: `sequence_end` | nobody: the model ends it |
# | `READY` | whether the place has a request | Triton | Triton |
#
# The adder asks for none. So it cannot know which places are empty, and adds up whatever stands in them; nor when a
# conversation is over, and keeps its sums for ever. A real one asks for `READY`, `START` and `END`.
#
# **May Triton keep the state?** With [implicit state](glossary.md#Implicit-state) a model returns its state as
# an output, and Triton hands it back with the sequence's next request. The backend has to support that: Triton's
# [page](https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/implicit_state_management.html)
# names ONNX Runtime, TensorRT and PyTorch, so with the Python backend you keep the state yourself.
#
# ## What breaks
#
# **A client forgets START.** Now each of the two instances has one place, and a sequence may be silent for one second
# (`max_sequence_idle_microseconds`; one second is the default):

# %%
server.load("adder", max_batch_size=1)
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
print("10:", try_to_send(10, 1, start=True, end=True), end=", ")
print(f"{time.monotonic() - began:.1f} s after 8 began")
print("8 again:", try_to_send(8, 1))

# %% tags=["remove-cell"]
assert time.monotonic() - began > 0.9

# %% [markdown]
# A forgotten START is refused at once. A forgotten END is silent: it holds a place until its sequence has been idle for too
# long, while others wait. Then Triton gives the sequence up, refuses what still comes for it, and tells the model nothing.
#
# **A client leaves.** Three readers of `words` close the connection after three words of a long text. Then somebody else
# asks for one word. How many states does the model still keep when that call begins?

# %% tags=["nbval-ignore-output"]
long_texts = ["word " * 200] * 3
streams.ask(server, "words", long_texts, leave_after={1: 3, 2: 3, 3: 3})
_, afterwards = traced(["hello"])
kept = afterwards["kept"].iloc[-1]
print(f"Nobody else is served, and the model keeps {kept} states.")

# %% tags=["remove-cell"]
assert kept == 3

# %% [markdown]
# Triton sees that a client has gone, and does not schedule its request again. It does not tell the model: no END, no
# further call. So nothing deletes these states. That is a **leak**: a server that runs for a month runs out of memory.
# In the lab you write an `execute` that notices.
#
# ## Turn the knob
#
# Apply a change in the editor, then run the cell below it again. Predict the table first:
#
# 1. `max_batch_size` 2, no candidates: when does the third stream begin?
# 2. `max_batch_size` 2, candidates 3: when does it begin now, and how many calls does it take?
# 3. The same with a delay of 20,000 µs: which streams share a call?

# %% tags=["nbval-ignore-output"]
editor = widgets.ConfigEditor(server, "words", ["max_batch_size", candidates, delay])
editor

# %% tags=["nbval-ignore-output"]
_, rows = traced(texts)
rows.pivot(index="call", columns="place", values="word").fillna("")

# %% [markdown]
# ## Elsewhere
#
# | | Triton | an LLM engine: TensorRT-LLM, vLLM |
# |---|---|---|
# | A conversation of several requests | the sequence batcher keeps them in one instance | none: each request brings the whole conversation, and the KV cache of a beginning that was seen before is reused (`enable_kv_cache_reuse`; vLLM: prefix caching) |
# | The batch is formed anew for each pass | `iterative_sequence`, which Triton's [page](https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/batcher.html) still calls provisional | always; at most `max_batch_size` (vLLM: `max_num_seqs`) requests |
# | A client leaves | the model has to look | the server around the engine has to notice and cancel (`vllm serve` aborts; TensorRT-LLM's Triton model looks every `cancellation_check_period_ms`) |
# | Several servers | the balancer must send one correlation id to one server | any server works; one that has the beginning in its cache is faster |
#
# **Where to see it in production.** Triton's `/metrics` has `nv_inference_count` and `nv_inference_exec_count` for each
# model: the growth of the first divided by the growth of the second is the mean batch. A
# `nv_inference_pending_request_count` that stays above zero may be sequences without a place. In vLLM,
# `vllm:iteration_tokens_total` is the histogram of tokens per pass, and `vllm:num_requests_running` says how many
# requests share it ([its metrics](https://docs.vllm.ai/en/latest/usage/metrics/)); TensorRT-LLM's backend has them as
# `nv_trt_llm_request_metrics` with `request_type="scheduled"`; `"active"` also counts requests that are not in this
# pass.
#
# ## Recap
#
# - `AGAIN` (`…_RELEASE_RESCHEDULE`) puts a request back, and Triton forms the batch anew for each pass: in-flight
#   batching without an engine.
# - What one call leaves, the next one finds under the correlation id, in the instance that has the sequence.
# - `direct` keeps a place for each sequence and calls the model with it when it is empty; `oldest` forms each batch from
#   the requests that wait.
# - A forgotten START is refused. A forgotten END holds a place for `max_sequence_idle_microseconds`.
# - The model is told when a sequence begins, never when its client has gone: what it keeps, it must delete itself.
#
# Three questions to answer without running anything:
#
# <details><summary>1. A chat client sends its whole history with each message. Which batcher does the model need?</summary>
#
# No sequence batcher is needed <em>to keep the conversation together</em>: each request is complete, so any instance can
# answer it. For a one-pass model take the dynamic batcher; for a model that generates, each answer is still an iterative
# sequence, or runs in an engine. The price is tokens computed again, unless a KV cache is reused.
# </details>
#
# <details><summary>2. <code>direct</code>, <code>max_batch_size</code> 4, two instances, ten conversations that never end.
# Which are served?</summary>
#
# The first eight. Two wait until one of the eight has been silent for longer than the idle time.
# </details>
#
# <details><summary>3. Your model forgets <code>set_release_flags</code> in one branch. What does the client see?</summary>
#
# The request is released, so there is no further call. It is decoupled and had no FINAL, so the client waits until its own
# time-out. The state stays in the dict.
# </details>
#
# Now [do the lab]({lab}), or go on with {next}: the same model becomes GPT-2.
#
# The server ends with this notebook's kernel (*Kernel → Shut Down Kernel*).
