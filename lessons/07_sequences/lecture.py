# %% [markdown]
# # {heading}
#
# {minutes} min, an estimate. Afterwards you will be able to
#
# - **send** requests that belong together, and say where the sequence batcher puts each of them;
# - **choose** between `direct` and `oldest`, and say what becomes of a sequence that its client forgot;
# - **write** a model that asks to be called again, and trace it call by call.
#
# You need lesson 06: instances, batches and the dynamic batcher. All models are made here. A line under `# your line:` is
# for you: delete it, write it yourself, and compare with what is folded below.
#
# {navigation}

# %% [markdown]
# ## A conversation is not one request
#
# A speech recogniser gets one second of sound at a time, a controller its next measurement. The model must remember what
# came before. Lesson 06 could compute any request with any other, on any instance, because its models remembered nothing:
# they were *stateless*. Now: **{question}**
#
# You run two instances of a model, for speed. Each adds up what a conversation sends, and keeps the sums in a dict.

# %%
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.express as px
import tritonclient.grpc as triton

from inflight.lessons.sequences import Step, sequences, streams
from inflight.notebook import charts, widgets
from inflight.triton import Server, repository

# %% [markdown]
# ## Predict
#
# A client sends 1, 2, 3, 4 in one conversation, each as soon as the last is answered. Seven other clients do the same
# beside it. There is a dynamic batcher, as in lesson 06. Commit yourself:

# %% tags=["parameters"]
prediction = None  # papermill may answer

# %%
guess = widgets.predict(
    "What is the sum in the fourth answer?",
    ["ten in every conversation", "less in some", "an error"],
    given=prediction,
)
guess

# %% [markdown]
# ## By hand: a memory
#
# The repository begins with `running-sum`, a model of the course that you need later. Beside it comes your own, `adder`. A
# request brings the conversation's number, `who`, and the next `value`. One line is yours: the new sum of this
# conversation.

# %%
workdir = tempfile.TemporaryDirectory()  # it goes when the notebook's kernel ends
repo, log_path = Path(workdir.name) / "repo", Path(workdir.name) / "log.jsonl"
repository.assemble(repo, models=("running-sum",), execution_log_path=log_path)
(repo / "adder" / "1").mkdir(parents=True)

# %%
# %%writefile {repo}/adder/1/model.py
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
#         self.sums = {}  # by the conversation's number
#
#     def execute(self, requests):
#         return [self.add(request) for request in requests]
#
#     def add(self, request):
#         who, value = number(request, "who"), number(request, "value")
#         # your line:
#         self.sums[who] = self.sums.get(who, 0) + value
#         total = pb_utils.Tensor("sum", np.array([[self.sums[who]]], np.int32))
#         return pb_utils.InferenceResponse([total])

# %% [markdown]
# <details><summary>The line</summary>
#
# <code>self.sums[who] = self.sums.get(who, 0) + value</code>
# </details>

# %%
adder = """
name: "adder"  backend: "python"  max_batch_size: 4
input [ { name: "who"  data_type: TYPE_INT32  dims: [ 1 ] },
        { name: "value"  data_type: TYPE_INT32  dims: [ 1 ] } ]
output [ { name: "sum"  data_type: TYPE_INT32  dims: [ 1 ] } ]
instance_group [ { count: 2  kind: KIND_CPU } ]
dynamic_batching { }
"""
(repo / "adder" / "config.pbtxt").write_text(adder)
server = Server(repo).start()

# %% [markdown]
# The client is NVIDIA's own. With each request it says which sequence it belongs to, and which one is its first and its
# last. A dynamic batcher does not look at that.


# %%
def tensor(name, value):
    made = triton.InferInput(name, [1, 1], "INT32")
    return made.set_data_from_numpy(np.array([[value]], np.int32))


def converse(who):
    """Send 1, 2, 3, 4 in a conversation, one after the other: the four sums."""
    sums = []
    with triton.InferenceServerClient(server.grpc_url) as connection:
        for value in (1, 2, 3, 4):
            inputs = [tensor("who", who), tensor("value", value)]
            marks = {"sequence_start": value == 1, "sequence_end": value == 4}
            result = connection.infer("adder", inputs, sequence_id=who, **marks)
            sums.append(result.as_numpy("sum").item())
    return sums


# %%
with ThreadPoolExecutor(8) as pool:
    heard = list(pool.map(converse, range(1, 9)))
wrong = [sums for sums in heard if sums[-1] != 10]
assert wrong  # some conversation met both instances
print(guess.score("less" if wrong else "ten"))

# %% [markdown]
# There is no error and no warning, and the sums are wrong. Whichever instance is free takes the next request, and an
# instance remembers only what it has computed itself. A database beside the model would help, at one round trip per
# request. Or Triton sends all requests of a conversation to the same instance. That is one line of the config:

# %%
by_sequence = adder.replace("dynamic_batching { }", "sequence_batching { }")
(repo / "adder" / "config.pbtxt").write_text(by_sequence)
server.load("adder")
with ThreadPoolExecutor(8) as pool:
    heard = list(pool.map(converse, range(11, 19)))
assert heard == [[1, 3, 6, 10]] * 8
print("with sequence_batching:", heard[0], "in all eight conversations")

# %% [markdown]
# `sequence_id` is the **correlation id**. Triton gives a sequence a place in one instance, from START to END.
#
# ## Four controls
#
# The sums of eight conversations are still in that dict. To delete one, the model has to know that its conversation is
# over. Triton adds inputs to each request, if `control_input` asks for them: START and END, as the client marked them;
# READY, whether a request has really come for this place; CORRID, the correlation id. `running-sum` asks for all four:

# %%
template = (repository.TEMPLATES / "running-sum" / "config.pbtxt").read_text()
print(template[template.index("sequence_batching") : template.index("\nparameters")])

# %% [markdown]
# Its answer says what it was told, and at which place of the batch it was. Three sequences send in four rounds, not all of
# them in each. Does one that was silent come back to its place? `sequences.send` sends steps over one stream, so that they
# arrive in order, and returns a row per request.

# %%
rounds = ((1, 2, 3), (2, 3), (3, 1), (1, 2, 3))


def talk(rounds, fields):
    """Load running-sum with these fields, and send round after round."""
    server.load("running-sum", **fields)  # its file stays as it is
    last, answers = len(rounds) - 1, []
    for n, speakers in enumerate(rounds):
        steps = [Step(who, 10**who, "", n == 0, n == last) for who in speakers]
        answers.append(sequences.send(server, steps))
    return pd.concat(answers)


delay_us = 200_000  # a batch waits so long for company
fields = {
    "direct": {
        "sequence_batching.direct.max_queue_delay_microseconds": delay_us,
        "sequence_batching.direct.minimum_slot_utilization": 0.75,
    },
    "oldest": {
        "sequence_batching.oldest.max_queue_delay_microseconds": delay_us,
        "sequence_batching.oldest.max_candidate_sequences": 4,
    },
}

# %%
talks = {name: talk(rounds, fields[name]) for name in ("direct", "oldest")}
rows = talks["direct"].sort_values("sequence", kind="stable")
assert (rows.groupby("sequence")["place"].nunique() == 1).all()
rows[["sequence", "controls", "place", "sum"]].set_index("sequence")

# %% [markdown]
# ## `direct` and `oldest`
#
# The table above is of the strategy `direct`: each sequence came back to its place. There is a second strategy:
#
# | | `direct` | `oldest` |
# |---|---|---|
# | a sequence has | a place in the batch of one instance, until its END; the place stays empty while it is silent | its turn in one instance: the requests that have come form the next batch, the oldest first |
# | sequences at a time | `max_batch_size` × instances | `max_candidate_sequences` × instances |
# | a batch leaves | at once, or as `minimum_slot_utilization` and `max_queue_delay_microseconds` say | as with the dynamic batcher: `preferred_batch_size`, `max_queue_delay_microseconds` |
# | it fits a model that | keeps its state by place, such as a tensor with a row per place | keeps its states by correlation id |
#
# The same rounds, with each of them:

# %%
for name, rows in talks.items():
    sums = rows.groupby("sequence")["sum"].last().tolist()
    kept = (rows.groupby("sequence")["place"].nunique() == 1).sum()
    assert sums == [30, 300, 4000]
    print(f"{name}: right sums; {'all' if kept == 3 else 'not all'} keep one place")


# %% tags=["nbval-ignore-output"]
def places(rows, **panels):
    """A square for each request, with the number of its sequence."""
    rows = rows.astype({"sequence": str})
    figure = px.scatter(
        rows, x="execution", y="place", color="sequence", text="sequence", **panels
    )
    look = {"symbol": "square-open", "size": 26, "line": {"width": 3}}
    figure.update_traces(marker=look, textposition="middle center")
    figure.update_yaxes(autorange="reversed", dtick=1)
    figure.update_xaxes(dtick=1)
    return figure.update_layout(showlegend=False, meta={"device": ""})


both = pd.concat(rows.assign(strategy=name) for name, rows in talks.items())
figure = places(both, facet_col="strategy")
figure.for_each_annotation(lambda note: note.update(text=note.text.partition("=")[2]))
charts.show(figure, "Which sequence was at which place of which batch, by strategy.")

# %% [markdown]
# With `direct`, a silent sequence leaves a gap. With `oldest`, the others move up, and the model has to know each by its
# id.
#
# ## Two instances: nobody changes lanes
#
# Two instances again, of two places each, and four sequences that send in random order. `running-sum` logs each batch. This
# is the picture of the lesson: a colour never leaves its lane.

# %%
order = np.random.default_rng(7)
turns = [tuple(order.permutation([1, 2, 3, 4]).tolist()[:3]) for _ in range(5)]
turns = [(1, 2, 3, 4), *turns, (1, 2, 3, 4)]
start = log_path.stat().st_size
talk(turns, {"max_batch_size": 2, "instance_group.count": 2})
lanes = sequences.executions(log_path, start).query("ready").copy()
met = lanes.groupby("sequence")["instance"].nunique()
assert (met == 1).all() and lanes["instance"].nunique() == 2
print("instances that each sequence met:", *met)

# %% tags=["nbval-ignore-output"]
at = lanes.astype(str)
lanes["lane"] = "instance " + at["instance"] + ", place " + at["place"]
lanes["ms"] = 1000 * (lanes["start_s"] - lanes["start_s"].min())
figure = px.line(
    lanes.sort_values("lane").astype({"sequence": str}),
    x="ms", y="lane", color="sequence", text="sequence", markers=True,
)  # fmt: skip
figure.update_traces(marker={"symbol": "circle-open", "size": 22, "line": {"width": 3}})
figure.update_traces(textposition="middle center")
figure.update_layout(showlegend=False, xaxis_title="time (ms)", yaxis_title="")
charts.show(figure, "Each sequence stays at one place of one instance, all the time.")

# %% [markdown]
# That has a price. A sequence that sends much cannot move to an idle instance. When all places are taken, the next
# sequence waits until one ends. And Triton keeps a sequence together inside one server only: a load balancer in front of
# several servers has to do the same.
#
# ## A client that forgets
#
# Clients crash. What if one forgets START, or END? Here are two places, and Triton gives a place up after one silent
# second:

# %%
server.load(
    "running-sum",
    max_batch_size=2,
    **{"sequence_batching.max_sequence_idle_microseconds": 1_000_000},
)
print(sequences.send(server, [Step(7, value=1)])["message"].item())  # no START
sequences.send(server, [Step(1, start=True), Step(2, start=True)])  # and never an END
sent = time.monotonic()
third = sequences.send(server, [Step(3, start=True, end=True)])["outcome"].item()
waited_s = time.monotonic() - sent
assert third == "answered" and waited_s > 0.2
print("the third waits until a place is given up, and is", third)
print(sequences.send(server, [Step(1, value=1)])["message"].item())

# %% [markdown]
# A forgotten START is refused. A forgotten END holds its place until the sequence has been silent for
# `max_sequence_idle_microseconds`, while others wait. Then the sequence is over, and Triton tells the model nothing:
# sequences 1 and 2 are still in its dict.
#
# ## May Triton keep the state?
#
# With **implicit state**, a model hands its state out as an output, and gets it back as an input of the sequence's next
# request. Then it needs no dict.
# [Triton's page on it](https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/implicit_state_management.html)
# says that the backend has to support it, and names ONNX Runtime, TensorRT and PyTorch. Ours is the Python backend. What
# does it do when a config asks for implicit state? Send 5 three times:

# %%
(repo / "implicit" / "1").mkdir(parents=True)
_ = (repo / "implicit" / "config.pbtxt").write_text("""
name: "implicit"  backend: "python"  max_batch_size: 4
input [ { name: "value"  data_type: TYPE_INT32  dims: [ 1 ] } ]
output [ { name: "sum"  data_type: TYPE_INT32  dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU } ]
sequence_batching { state [ {
  input_name: "SUM_IN"  output_name: "SUM_OUT"  data_type: TYPE_INT32  dims: [ 1 ]
  initial_state { data_type: TYPE_INT32  dims: [ 1 ]  zero_data: true  name: "zero" }
} ] }
""")

# %%
# %%writefile {repo}/implicit/1/model.py
# import triton_python_backend_utils as pb_utils
#
#
# class TritonPythonModel:
#     def execute(self, requests):
#         return [self.add(request) for request in requests]
#
#     def add(self, request):
#         value = pb_utils.get_input_tensor_by_name(request, "value").as_numpy()
#         so_far = pb_utils.get_input_tensor_by_name(request, "SUM_IN").as_numpy()
#         total = value + so_far.reshape(value.shape)
#         outputs = [pb_utils.Tensor(name, total) for name in ("sum", "SUM_OUT")]
#         return pb_utils.InferenceResponse(outputs)

# %%
server.load("implicit")
sums = []
with triton.InferenceServerClient(server.grpc_url) as connection:
    for n in (1, 2, 3):
        marks = {"sequence_id": 9, "sequence_start": n == 1, "sequence_end": n == 3}
        result = connection.infer("implicit", [tensor("value", 5)], **marks)
        sums.append(result.as_numpy("sum").item())
print("sums:", *sums)
assert sums == [5, 5, 5]

# %% [markdown]
# Triton loads the model without a complaint and makes the first state. Then every request gets that one. The page says why,
# the server does not. With the Python backend, keep the state yourself.
#
# ## A model that asks to be called again
#
# One step further. An LLM's answer takes many passes. What if the *model* could say: this pass is done, put the request
# back into the queue? Then Triton would form the batch anew for every pass. New requests would join the next one, and
# those that are complete would leave. That is **continuous batching**, or **iteration-level scheduling**: what the engine
# of lessons 04 and 05 does inside. Triton calls it *iterative sequences*.
#
# Here is a model that gives a text back word by word. The client sends one request. Triton makes a sequence of it, with an
# id that it makes up itself: the config says `iterative_sequence`, and `decoupled`, because a request has many responses.

# %%
(repo / "words" / "1").mkdir(parents=True)
words_log = Path(workdir.name) / "words.jsonl"
words_config = f'''
backend: "python"  max_batch_size: 4
model_transaction_policy {{ decoupled: true }}
input [ {{ name: "text"  data_type: TYPE_STRING  dims: [ 1 ] }} ]
output [ {{ name: "word"  data_type: TYPE_STRING  dims: [ 1 ] }} ]
instance_group [ {{ kind: KIND_CPU }} ]
sequence_batching {{
  iterative_sequence: true
  control_input [
    {{ name: "ID"
      control [ {{ kind: CONTROL_SEQUENCE_CORRID  data_type: TYPE_UINT64 }} ] }},
    {{ name: "START"
      control [ {{ kind: CONTROL_SEQUENCE_START  int32_false_true: [ 0, 1 ] }} ] }},
    {{ name: "READY"
      control [ {{ kind: CONTROL_SEQUENCE_READY  int32_false_true: [ 0, 1 ] }} ] }}
  ]
}}
parameters {{ key: "log"  value {{ string_value: "{words_log}" }} }}
'''
_ = (repo / "words" / "config.pbtxt").write_text('name: "words"' + words_config)

# %% [markdown]
# For each call the model notes in a log which requests it has, and how many states it has kept from earlier calls. Two lines
# are yours.

# %%
# %%writefile {repo}/words/1/model.py
# import json
# import time
#
# import numpy as np
# import triton_python_backend_utils as pb_utils
#
# RESCHEDULE = pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
# FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
#
#
# def value(request, name):
#     return pb_utils.get_input_tensor_by_name(request, name).as_numpy().item()
#
#
# def note(request):
#     said = "START" if value(request, "START") else "again"
#     return value(request, "ID"), said if value(request, "READY") else "empty"
#
#
# class TritonPythonModel:
#     def initialize(self, args):
#         config = json.loads(args["model_config"])
#         self.streams = config["model_transaction_policy"]["decoupled"]
#         self.log = open(config["parameters"]["log"]["string_value"], "a", buffering=1)
#         self.states = {}  # by correlation id: the words that are left
#
#     def execute(self, requests):
#         line = {"told": list(map(note, requests)), "states": len(self.states)}
#         self.log.write(json.dumps(line) + "\n")
#         time.sleep(0.05)  # the pass of a real model takes time
#         responses = [self.step(request) for request in requests]
#         return None if self.streams else responses
#
#     def step(self, request):
#         if not value(request, "READY"):
#             return None  # this place has no request now
#         who = value(request, "ID")
#         if value(request, "START"):
#             self.states[who] = value(request, "text").decode().split()
#         word = self.states[who].pop(0)
#         is_last = not self.states[who]
#         if is_last:
#             # your line: the stream is over
#             del self.states[who]
#         else:
#             # your line: it is not
#             request.set_release_flags(RESCHEDULE)
#         output = pb_utils.Tensor("word", np.array([[word.encode()]], object))
#         response = pb_utils.InferenceResponse([output])
#         if not self.streams:
#             return response if is_last else None
#         request.get_response_sender().send(response, flags=FINAL if is_last else 0)

# %% [markdown]
# <details><summary>The lines</summary>
#
# <code>del self.states[who]</code>: forget what is over. <code>request.set_release_flags(RESCHEDULE)</code>: the request
# comes again, with the same inputs, in a later call.
# </details>
#
# Three things make it iterative: `RESCHEDULE` keeps the request, `states` has what is known by then, under the id, and
# `FINAL` ends the answer.
#
# Three clients ask, one right after the other. The first has the shortest text:

# %%
texts = ["to be or not", "all the world is a stage", "I wandered lonely as a cloud"]
server.load("words")
heard = streams.ask(server, "words", texts)
assert heard.groupby("stream")["word"].agg(" ".join).tolist() == texts
print(heard.groupby("stream")["word"].agg(list).to_string(header=False))


# %% tags=["nbval-ignore-output"]
def calls():
    """A row per call of the model and place: what it was told of it."""
    log = pd.read_json(words_log, lines=True)
    rows = log.assign(call=log.index + 1).explode("told", ignore_index=True)
    rows[["id", "said"]] = rows["told"].tolist()
    return rows.assign(place=rows.groupby("call").cumcount()).drop(columns="told")


trace = calls()
table = trace.pivot(index="call", columns="place", values="said").fillna("")
table.assign(states=trace.groupby("call")["states"].first())

# %% [markdown]
# A row is a call of `execute`, a column a place in the batch; `states` is what the model had kept when the call began. As
# a picture:

# %% tags=["nbval-ignore-output"]
seats = trace[trace["said"] != "empty"].rename(columns={"call": "execution"})
seats["sequence"] = pd.factorize(seats["id"])[0] + 1
num_calls, num_words = seats["execution"].nunique(), sum(len(t.split()) for t in texts)
assert len(seats) == num_words > num_calls
assert 0 in set(trace.loc[trace["said"] == "empty", "place"])
print(f"{num_words} words in {num_calls} calls")
charts.show(places(seats), "Which sequence was at which place in which call.")

# %% [markdown]
# The batch changed while it ran. The config names no strategy, so it is `direct`: every sequence keeps its place. When the
# first had its last word, its place stayed **empty**, and the model was still told of it, with READY 0. A new sequence
# would get that place.
#
# **Not decoupled**, a request has exactly one response. The same code then gives `None` while it reschedules, and a
# response at the end:

# %%
(repo / "words-at-once" / "1").mkdir(parents=True)
at_once = words_config.replace("decoupled: true", "decoupled: false")
(repo / "words-at-once" / "config.pbtxt").write_text('name: "words-at-once"' + at_once)
(repo / "words-at-once" / "1" / "model.py").symlink_to(repo / "words/1/model.py")
server.load("words-at-once")
answers = streams.ask(server, "words-at-once", texts)
assert answers.groupby("stream").size().tolist() == [1, 1, 1]
print("one response each, the last word:", *sorted(answers["word"]))

# %% [markdown]
# That is for a model which computes in many passes and has one result, such as a diffusion model.
#
# ## What breaks
#
# Three readers close the page in the middle of a long text. A fourth reads to the end. Then somebody else asks for one
# word. How many states has the model kept when that call begins?

# %%
long_texts = ["word " * 200] * 3
heard = streams.ask(
    server, "words", [*long_texts, "short text"], leave_after={1: 3, 2: 3, 3: 3}
)
assert (heard["stream"] == 4).sum() == 2  # it has heard all of its own
streams.ask(server, "words", ["hello"])
kept = calls()["states"].iloc[-1]
print("Nobody else is being served, and the model keeps", kept, "states.")
assert kept == 3

# %% [markdown]
# Triton saw that the clients had gone, and did not schedule their requests again. It told the model nothing: there was no
# END and no further call, so nothing deletes these states. This is a **leak**, and a server that runs for a month dies of
# it. In the lab you write an `execute` that notices.
#
# ## Elsewhere
#
# | | Triton | an LLM engine: TensorRT-LLM, vLLM |
# |---|---|---|
# | A conversation of several requests | the sequence batcher keeps them in one instance | none: each request brings the whole conversation, and the KV cache of a beginning that was seen before is reused (`enable_kv_cache_reuse`; vLLM: prefix caching) |
# | The batch is formed anew for each pass | iterative sequences | always; at most `max_batch_size` (vLLM: `max_num_seqs`) requests |
# | A client leaves | the model has to look | the engine ends the request |
#
# All of this lesson is Triton, so its files and fields are the same in NVIDIA's containers.
#
# ## Recap
#
# - All requests of a sequence go to one instance, from START to END. The correlation id says which belong together.
# - `direct` keeps a place for each sequence and leaves it empty while that is silent; `oldest` forms each batch from the
#   requests that have come.
# - A forgotten START is refused. A forgotten END blocks a place for `max_sequence_idle_microseconds`, and the model keeps
#   the state.
# - Implicit state needs a backend that supports it. The Python backend accepts the config and does not hand the state back.
# - `RESCHEDULE` puts a request back, and Triton forms the batch anew for each pass: continuous batching.
#
# Three questions to answer without running anything:
#
# <details><summary>1. A chat client sends its whole history with each message. Which batcher does the model need?</summary>
#
# The dynamic one. The requests are stateless, so any instance can answer any of them. The price is tokens that are
# computed again, unless a KV cache is reused.
# </details>
#
# <details><summary>2. <code>direct</code>, <code>max_batch_size</code> 4, two instances, ten sequences that never end. Which
# are served?</summary>
#
# The first eight. Two wait until one of the eight is silent for longer than the idle time.
# </details>
#
# <details><summary>3. Your model forgets <code>set_release_flags</code> in one branch. What does the client see?</summary>
#
# The request is released, so there is no further call. It is decoupled and had no FINAL, so the client waits until its own
# time-out. The state stays in the dict.
# </details>
#
# Now [do the lab]({lab}), or go on with {next}: the same forty lines become GPT-2.
#
# The server ends with this notebook's kernel (*Kernel → Shut Down Kernel*).
