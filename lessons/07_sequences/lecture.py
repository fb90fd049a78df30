# %% [markdown]
# # {heading}
#
# {minutes} min. Afterwards you will be able to
#
# - **send** requests that belong together, and say where the sequence batcher puts each;
# - **choose** between `direct` and `oldest`, and name what becomes of a sequence that was forgotten;
# - **write** a model that asks to be called again, and trace it call by call.
#
# You need nothing but this notebook: all models are made here.
#
# {navigation}

# %% [markdown]
# ## A conversation is not one request
#
# A speech recogniser gets a second of sound at a time, a dialogue its next sentence, a sensor its next value. What the
# model knows of the earlier ones stands in its memory. Lesson 06 could compute any request with any other, anywhere: its
# models were stateless. Now: **{question}**
#
# You run two copies of a model, for speed. Each adds up what a conversation sends, and keeps the sums in a dict.

# %% [markdown]
# ## Predict
#
# A client sends 1, 2, 3, 4 in one conversation, each as soon as the last is answered, and other clients do the same
# beside it. There is a dynamic batcher, as in lesson 06. Commit yourself:

# %% tags=["setup"]
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from inflight.lessons.sequences import Step, sequences, streams
from inflight.lessons import sequences as lesson
from inflight.notebook import charts, widgets
from inflight.triton import Connection, Server, repository

# %% tags=["parameters"]
prediction = None  # papermill may answer

# %% tags=["setup"]
guess = widgets.predict(
    "What is the sum in the fourth answer?",
    ["ten in every conversation", "less in some", "an error"],
    given=prediction,
)
guess

# %% [markdown]
# ## By hand: a memory
#
# The model is ten lines. Its dict has the sum of each conversation, whose number comes along as an input.

# %% tags=["setup"]
from inflight.notebook import catch_up

catch_up("07", "By hand: a memory")
workdir = tempfile.TemporaryDirectory()
repo, log_path = Path(workdir.name) / "repo", Path(workdir.name) / "log.jsonl"
(repo / "adder" / "1").mkdir(parents=True)
(repo / "adder" / "1" / "model.py").write_text("""
import numpy as np
import triton_python_backend_utils as pb_utils

def number(request, name):
    return int(pb_utils.get_input_tensor_by_name(request, name).as_numpy()[0, 0])

class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        return [self.add(request) for request in requests]

    def add(self, request):
        who = number(request, "who")
        self.sums[who] = self.sums.get(who, 0) + number(request, "value")
        total = np.array([[self.sums[who]]], np.int32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("sum", total)])
""")
adder = """
name: "adder"  backend: "python"  max_batch_size: 4
input [ { name: "who"  data_type: TYPE_INT32  dims: [ 1 ] },
        { name: "value"  data_type: TYPE_INT32  dims: [ 1 ] } ]
output [ { name: "sum"  data_type: TYPE_INT32  dims: [ 1 ] } ]
instance_group [ { count: 2  kind: KIND_CPU } ]
dynamic_batching { }
"""
config_path = repo / "adder" / "config.pbtxt"
config_path.write_text(adder)
server = Server(repo).start()

# %% tags=["setup"]


def converse(who, **marks):
    """The four sums that a conversation hears."""
    with Connection(server.grpc_url) as connection:
        sums = []
        for value in (1, 2, 3, 4):
            inputs = {"who": [[who]], "value": [[value]]}
            arrays = {name: np.array(rows, np.int32) for name, rows in inputs.items()}
            if marks:  # a sequence: its number, its first request and its last
                marks = {"sequence_id": who, "sequence_start": value == 1}
                marks["sequence_end"] = value == 4
            sums.append(
                int(
                    connection.infer("adder", arrays, 30, **marks).as_numpy("sum")[0, 0]
                )
            )
    return sums


# %%
from concurrent.futures import ThreadPoolExecutor

with ThreadPoolExecutor(8) as pool:
    heard = list(pool.map(converse, range(1, 9)))
wrong = [sums for sums in heard if sums[-1] != 10]
assert wrong  # some conversation met both copies
print(guess.score("less" if wrong else "ten"))

# %% [markdown]
# No error, no warning, and wrong sums: whoever is free takes the request, and a copy remembers only what it has heard.
# A database beside the model would help, and cost a question and an answer for each request. Or all requests of a
# conversation go to the same copy. That is one line:

# %%
config_path.write_text(adder.replace("dynamic_batching { }", "sequence_batching { }"))
server.load("adder")
with ThreadPoolExecutor(8) as pool:
    heard = list(pool.map(lambda who: converse(who, sequence=True), range(11, 19)))
assert heard == [[1, 3, 6, 10]] * 8
print("with sequence_batching:", heard[0], "in all eight conversations")

# %% [markdown]
# The client says with each request which sequence it belongs to, its **correlation id** (`sequence_id`), and marks the
# first and the last. Triton gives the sequence a place in one instance, from START to END.

# %% [markdown]
# ## Four controls
#
# Without END the dict would grow for ever, so the model must be told too. Triton adds inputs to each request, if
# `control_input` asks for them: START, END, READY (somebody has really come for this place) and CORRID (who).
# `running-sum` takes all four, and tells what it was told:

# %% tags=["setup"]
from inflight.notebook import catch_up

catch_up("07", "Four controls")
repository.assemble(
    Path(workdir.name) / "more", models=("running-sum",), execution_log_path=log_path
)
(Path(workdir.name) / "more" / "running-sum").rename(repo / "running-sum")
server.load("running-sum")
text = (repo / "running-sum" / "config.pbtxt").read_text()
print(text[text.index("sequence_batching") : text.index("parameters")].strip())

# %% [markdown]
# Three sequences speak in four rounds, not all in each; in the last all say goodbye. Does one that was silent come back to
# its place?

# %% tags=["setup"]
rounds = ((1, 2, 3), (2, 3), (3, 1), (1, 2, 3))


def talk(rounds, fields):
    """Load the model with these fields, send round after round; a row a request."""
    server.load("running-sum", **fields)  # its file stays as it is
    last, answers = len(rounds) - 1, []
    for n, speakers in enumerate(rounds):
        steps = [Step(who, 10**who, "", n == 0, n == last) for who in speakers]
        answers.append(sequences.send(server, steps))
    return pd.concat(answers)


fields = {
    "direct": {
        "sequence_batching.direct.max_queue_delay_microseconds": 200_000,
        "sequence_batching.direct.minimum_slot_utilization": 0.75,
    },
    "oldest": {
        "sequence_batching.oldest.max_candidate_sequences": 4,
        "sequence_batching.oldest.max_queue_delay_microseconds": 200_000,
    },
}

# %%
rows = talk(rounds, fields["direct"]).sort_values("sequence", kind="stable")
assert (rows.groupby("sequence")["place"].nunique() == 1).all()
charts.table(rows[["sequence", "controls", "place", "sum"]])

# %% [markdown]
# ## `direct` and `oldest`
#
# Two strategies decide who sits where, each with fields of its own:
#
# | | `direct` | `oldest` |
# |---|---|---|
# | a sequence has | a place in an instance's batch, to its end; when it is silent, the place is empty | a turn: who has come forms the next batch, oldest first |
# | at a time at most | `max_batch_size` × instances | `max_candidate_sequences` × instances |
# | a batch leaves | at once; with `minimum_slot_utilization` 0.75 when three of four places have a request, or after `max_queue_delay_microseconds` | at a `preferred_batch_size`, or after `max_queue_delay_microseconds` |
# | order of answers | as computed | as computed; `preserve_ordering`: as asked |
# | right for | a model that keeps a state by place, such as a tensor with a row a place | a model that keeps states by id |
#
# Above, `direct`. Who keeps one place with `oldest`?

# %%
from inflight.notebook import catch_up

catch_up("07", "`direct` and `oldest`")
talks = {name: talk(rounds, fields[name]) for name in ("direct", "oldest")}
for name, rows in talks.items():
    kept = (rows.groupby("sequence")["place"].nunique() == 1).sum()
    assert rows.groupby("sequence")["sum"].last().tolist() == [30, 300, 4000]
    print(f"{name}: right sums; {'all' if kept == 3 else 'not all'} keep one place")

# %% tags=["nbval-ignore-output"]
words = "Which sequence sat at which place of which batch, with direct and with oldest."
charts.show(lesson.sequence_places(talks), words)

# %% [markdown]
# ## Two instances: nobody changes lanes
#
# Two copies again, of two places each, and four sequences that speak in random order. This is the picture of the lesson:
# a colour never leaves its lane.

# %%
from inflight.notebook import catch_up

catch_up("07", "Two instances: nobody changes lanes")
order = np.random.default_rng(7)
turns = [tuple(order.permutation([1, 2, 3, 4]).tolist()[:3]) for _ in range(5)]
turns = [(1, 2, 3, 4), *turns, (1, 2, 3, 4)]
start = log_path.stat().st_size
talk(turns, {"max_batch_size": 2, "instance_group.count": 2})
lanes = sequences.executions(log_path, start).query("ready")
assert (lanes.groupby("sequence")["instance"].nunique() == 1).all()
assert lanes["instance"].nunique() == 2
print(
    "instances that each sequence met:",
    *lanes.groupby("sequence")["instance"].nunique(),
)

# %% tags=["nbval-ignore-output"]
words = "Each sequence stays at one place of one instance, from its first to its last."
charts.show(lesson.sequence_lanes(lanes), words)

# %% [markdown]
# What it costs: a sequence that speaks much cannot move to an idle copy, and when all places are taken the next sequence
# waits at the door until one ends. Behind a load balancer in front of several servers the same must hold there:
# Triton keeps a sequence together inside one server only.

# %% [markdown]
# ## A client that forgets
#
# Clients crash. What if one forgets START, or END? Two places, given up after one silent second:

# %%
import time

from inflight.notebook import catch_up

catch_up("07", "A client that forgets")
server.load(
    "running-sum",
    max_batch_size=2,
    **{"sequence_batching.max_sequence_idle_microseconds": 1_000_000},
)
print(sequences.send(server, [Step(7, value=1)])["message"].item())
sequences.send(server, [Step(1, start=True), Step(2, start=True)])  # and never an END
sent = time.monotonic()
third = sequences.send(server, [Step(3, start=True, end=True)])["outcome"].item()
waited_s = time.monotonic() - sent
assert third == "answered" and waited_s > 0.2
print("the third waits until a place is given up, and is", third)
print(sequences.send(server, [Step(1, value=1)])["message"].item())

# %% [markdown]
# A forgotten START is refused. A forgotten END holds its place until the sequence has been silent for
# `max_sequence_idle_microseconds`, while others wait; then it is gone, and Triton tells the model nothing. Its memory is
# left in the dict: a **leak**. In the lab you stop one.

# %% [markdown]
# ## May Triton keep the state?
#
# With **implicit state** the model hands its state out as an output, and gets it back as an input of the next request of
# the sequence. Then it needs no dict at all. Does this build do it? Three times five:

# %%
from inflight.notebook import catch_up

catch_up("07", "May Triton keep the state?")
(repo / "implicit" / "1").mkdir(parents=True, exist_ok=True)
(repo / "implicit" / "1" / "model.py").write_text("""
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self.add(request) for request in requests]

    def add(self, request):
        value = pb_utils.get_input_tensor_by_name(request, "value").as_numpy()
        so_far = pb_utils.get_input_tensor_by_name(request, "SUM_IN").as_numpy()
        total = value + so_far.reshape(value.shape)
        outputs = [pb_utils.Tensor(name, total) for name in ("sum", "SUM_OUT")]
        return pb_utils.InferenceResponse(outputs)
""")
(repo / "implicit" / "config.pbtxt").write_text("""
name: "implicit"  backend: "python"  max_batch_size: 4
input [ { name: "value"  data_type: TYPE_INT32  dims: [ 1 ] } ]
output [ { name: "sum"  data_type: TYPE_INT32  dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU } ]
sequence_batching { state [ {
  input_name: "SUM_IN"  output_name: "SUM_OUT"  data_type: TYPE_INT32  dims: [ 1 ]
  initial_state { data_type: TYPE_INT32  dims: [ 1 ]  zero_data: true  name: "zero" }
} ] }
""")
server.load("implicit")
with Connection(server.grpc_url) as connection:
    five, sums = {"value": np.array([[5]], np.int32)}, []
    for n in (1, 2, 3):
        marks = {"sequence_start": n == 1, "sequence_end": n == 3}
        result = connection.infer("implicit", five, 30, sequence_id=9, **marks)
        sums.append(int(result.as_numpy("sum")[0, 0]))
print("heard:", *sums)
assert sums == [5, 5, 5]

# %% [markdown]
# The config is taken, the first state is made, and each request gets that one again: the Python backend of this version
# does not hand the state back, and nobody says so. With the backends of ONNX and TensorRT the field does its work. So test
# it before you trust it; here, keep the state yourself.

# %% [markdown]
# ## A model that asks to be called again
#
# Now one step further. An LLM's answer takes many passes, and a pass is worth sharing. What if the *model* could say: done
# for now, put this request back into the queue? Then the batch is made anew for every pass: who comes joins the next one,
# who is done leaves. That is **continuous batching**, or **iteration-level scheduling**: what the engine of lessons 04
# and 05 does inside. Triton calls it *iterative sequences*. This model gives back a text word by word:

# %% tags=["setup"]
from inflight.notebook import catch_up

catch_up("07", "A model that asks to be called again")
words_model = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils

RESCHEDULE = pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

def value(request, name):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy().reshape(-1)[0]

class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.streams = config["model_transaction_policy"]["decoupled"]
        self.log = open(config["parameters"]["log"]["string_value"], "a", buffering=1)
        self.states, self.call = {}, 0

    def execute(self, requests):
        self.call += 1
        responses = [self.step(request) for request in requests]
        return None if self.streams else responses

    def step(self, request):
        who = int(value(request, "ID"))
        start, ready = bool(value(request, "START")), bool(value(request, "READY"))
        self.log.write(json.dumps([self.call, who, start, ready]) + "\\n")
        if not ready:
            return None  # nobody sits at this place now
        if start:
            self.states[who] = value(request, "text").decode().split()
        word = self.states[who].pop(0)
        is_last = not self.states[who]
        if is_last:
            del self.states[who]
        else:
            request.set_release_flags(RESCHEDULE)
        output = pb_utils.Tensor("word", np.array([[word.encode()]], object))
        response = pb_utils.InferenceResponse([output])
        if not self.streams:
            return response if is_last else None
        request.get_response_sender().send(response, flags=FINAL if is_last else 0)
"""

# %% [markdown]
# Four things make it iterative. `set_release_flags(RESCHEDULE)` keeps the request: it comes again, with the same inputs.
# `states` has what is known by then, under the id. `FINAL` ends the answer. And the config says so:

# %% tags=["setup"]
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
parameters {{ key: "log"  value {{ string_value: "{workdir.name}/words.jsonl" }} }}
'''
for name, config in (
    ("words", words_config),
    ("words-at-once", words_config.replace("decoupled: true", "decoupled: false")),
):
    (repo / name / "1").mkdir(parents=True, exist_ok=True)
    (repo / name / "1" / "model.py").write_text(words_model)
    (repo / name / "config.pbtxt").write_text(f'name: "{name}"\n{config}')
    server.load(name)

# %% [markdown]
# The client knows nothing of sequences: it sends **one** request, without id and marks. Triton makes a sequence of it. Three
# clients at once:

# %%
texts = ["to be or not", "all the world is a stage", "words"]
heard = streams.ask(server, "words", texts)
assert heard.groupby("stream")["word"].agg(" ".join).tolist() == texts
print(heard.groupby("stream")["word"].agg(list).to_string(header=False))

# %% [markdown]
# Here is what Triton passed, call by call. A row is a call of `execute`, a column a request: `START` the first time, `again`
# after that; `empty` is a place whose sequence has ended.

# %% tags=["nbval-ignore-output"]
trace = pd.read_json(Path(workdir.name) / "words.jsonl", lines=True)
trace.columns = ["call", "who", "start", "ready"]
trace["place"] = trace.groupby("call").cumcount()
trace["said"] = np.where(trace["start"], "START", "again")
trace["said"] = trace["said"].where(trace["ready"], "empty")
told = trace["said"].where(
    ~trace["ready"], trace["said"] + " " + trace["who"].astype(str)
)
calls = trace.assign(told=told).pivot(index="call", columns="place", values="told")
ready = trace[trace["ready"]]
assert len(ready) == sum(len(text.split()) for text in texts)
charts.table(calls.fillna("").reset_index())

# %% tags=["nbval-ignore-output"]
rows = ready.rename(columns={"who": "sequence", "call": "execution"})
rows["sequence"] = rows["sequence"].rank(method="dense").astype(int)
assert rows["execution"].nunique() < len(rows)  # calls are shared
words = "Who was in which call: the batch is made anew for each."
charts.show(lesson.sequence_places({"words": rows}), words)

# %% [markdown]
# Eleven words, far fewer calls than that: the batch changed while it ran. `direct` is the strategy when none is named, so a
# sequence keeps its place, and an ended one leaves a hole.
#
# **Not decoupled**, a request has one response. The same code gives `None` while it is rescheduled, and answers at the end:

# %%
at_once = streams.ask(server, "words-at-once", texts)
assert at_once["word"].tolist() != [] and (at_once.groupby("stream").size() == 1).all()
print("words-at-once:", *sorted(at_once["word"]))

# %% [markdown]
# One response each, the last word: for a model that computes in many passes and has one result, such as a diffusion model.
# Batching is the same; only the stream is gone.

# %% [markdown]
# ## What breaks
#
# A reader closes the page in the middle of a text. Triton does not schedule the request again, and the model never hears of
# it. Whose words are still in the dict?

# %%
from inflight.notebook import catch_up

catch_up("07", "What breaks")
heard = streams.ask(server, "words", ["word " * 200, "short text"], leave_after={1: 3})
left = heard[heard["stream"] == 1]
assert len(left) >= 3 and (heard["stream"] == 2).sum() == 2
print("stream 1 heard some of its words and left; stream 2 heard all of its own")

# %% [markdown]
# Nothing frees the state of stream 1: no END, no call. A server that runs for a month dies of it. In the lab you write
# `execute` so that whoever is cancelled or lost is noticed, and everybody else goes on.

# %% [markdown]
# ## On the lab GPU
#
# All of this is Triton, so files and fields are the same in the container.
#
# | Step | Here | With the container and a GPU |
# |---|---|---|
# | A stateful model | Python, states in a dict | the same, or ONNX and TensorRT with implicit `state` |
# | A model that is called again | the 40 lines above | the same; PyTorch's tensors on the GPU, as in lesson 08 |
# | An LLM's batches | `tensorrt_llm`, in the engine | the engine too: it needs no sequence batcher |
#
# ## Recap
#
# - All requests of a sequence go to one instance, from START to END; the correlation id says which belong together.
# - `direct` keeps a place, and leaves it empty in silence; `oldest` takes turns.
# - A forgotten START is refused; a forgotten END blocks a place for `max_sequence_idle_microseconds`, and leaks.
# - Implicit state is not handed back by this Python backend.
# - `RESCHEDULE` puts a request back, and Triton forms the batch anew for each pass: continuous batching.
#
# Three questions to answer without running anything:
#
# <details><summary>1. A chat client sends its whole history with each message. Which batcher?</summary>
#
# The dynamic one. The requests are stateless: any copy can answer any of them. It pays with tokens, which a KV cache that
# is reused may save.
# </details>
#
# <details><summary>2. <code>direct</code>, <code>max_batch_size</code> 4, two instances, ten sequences that never end. Who
# is served?</summary>
#
# Eight. Two wait at the door for ever, or until one of the eight is silent for longer than the idle time.
# </details>
#
# <details><summary>3. Your model forgets <code>set_release_flags</code> in one branch. What does the client see?</summary>
#
# The request is released: no further call. Decoupled and without FINAL, the client waits until its own time-out; the
# state stays in the dict.
# </details>
#
# Now [do the lab]({lab}), or go on with {next}: the same forty lines become GPT-2.
#
# ## What runs
#
# The server ends with the notebook's kernel.

# %% tags=["nbval-ignore-output"]
from inflight.notebook import session

session.running()
