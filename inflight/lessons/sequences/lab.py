# %% [markdown]
# # {heading}
#
# Three exercises, about {minutes} minutes (an estimate), of which {core} are *Core*. You write a gateway that never forgets a
# START or an END; the lecture's model, made to keep nothing of readers who leave; and the core of one that hears many
# microphones. A check never stops the notebook.
#
# Run the first code cell before any other: it brings `check`, and what the exercises use. A `NameError` says that it has
# not been run.
#
# {navigation}

# %% tags=["nbval-ignore-output"]
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import tritonclient.grpc as triton

from inflight.lessons.sequences import Voice, streams, two_lines
from inflight.notebook import check, parts
from inflight.triton import Server

workdir = tempfile.TemporaryDirectory()
repo = Path(workdir.name) / "repo"
for name in "adder", "words", "microphones":
    (repo / name / "1").mkdir(parents=True)

# %% [markdown]
# The model of the first exercise adds up what a sequence sends, as in the lecture. It asks for all four controls, so it can
# forget a sum at END. There are two slots, and Triton drops a sequence after five seconds of silence.

# %%
# %%writefile {repo}/adder/config.pbtxt
# name: "adder"  backend: "python"  max_batch_size: 2
# input [ { name: "value"  data_type: TYPE_INT32  dims: [ 1 ] } ]
# output [ { name: "sum"  data_type: TYPE_INT32  dims: [ 1 ] } ]
# instance_group [ { kind: KIND_CPU } ]
# sequence_batching {
#   max_sequence_idle_microseconds: 5000000
#   control_input [
#     { name: "ID"
#       control [ { kind: CONTROL_SEQUENCE_CORRID  data_type: TYPE_UINT64 } ] },
#     { name: "START"
#       control [ { kind: CONTROL_SEQUENCE_START  int32_false_true: [ 0, 1 ] } ] },
#     { name: "END"
#       control [ { kind: CONTROL_SEQUENCE_END  int32_false_true: [ 0, 1 ] } ] },
#     { name: "READY"
#       control [ { kind: CONTROL_SEQUENCE_READY  int32_false_true: [ 0, 1 ] } ] }
#   ]
# }

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
#         self.sums = {}
#
#     def execute(self, requests):
#         return [self.add(request) for request in requests]
#
#     def add(self, request):
#         if not number(request, "READY"):
#             return None
#         who = number(request, "ID")
#         so_far = 0 if number(request, "START") else self.sums[who]
#         self.sums[who] = so_far + number(request, "value")
#         total = pb_utils.Tensor("sum", np.array([[self.sums[who]]], np.int32))
#         if number(request, "END"):
#             del self.sums[who]
#         return pb_utils.InferenceResponse([total])

# %%
server = Server(repo).start()

# %% [markdown]
# ## Exercise 7.1: never forget an END
#
# *Core · importance 4/5 · difficulty 3/5 · 15 minutes*
#
# Users of a chat gateway send numbers, close the page at some time, and may come back later. The gateway calls `marks` for
# each event, in the order in which they happen: at `now_s` seconds user `who` has sent `value`, or has closed the page;
# then `value` is `None`. Nobody knows what comes next. Give the three arguments that `infer` needs, as a dict:
#
# - `sequence_id` is `who`;
# - the first number of a user who is not in a conversation begins one;
# - a user who closes the page ends it: the gateway sends one more request for that;
# - a user who has been silent for four seconds is no longer in a conversation (Triton waits five: the gateway must give up
#   first): the next number begins one, and closing the page sends nothing;
# - `None` where nothing is to be sent.
#
# `talking` is a dict, empty at first, that is yours to keep. You are handed the same one each time.


# %%
def marks(who: int, value: int | None, now_s: float, talking: dict) -> dict | None:
    """`sequence_id`, `sequence_start` and `sequence_end` of this event's request."""
    # BEGIN SOLUTION
    # LAB: return ...
    # By user: when the latest number came.
    since_s, end = talking.pop(who, None), value is None
    start = since_s is None or now_s - since_s >= 4
    if not end:
        talking[who] = now_s
    elif start:
        return None
    return {"sequence_id": who, "sequence_start": start, "sequence_end": end}
    # END SOLUTION


# %%
check("7.1", marks)

# %% [markdown]
# <details><summary>Where to look</summary><code>converse</code> in the lecture: there the values are known, so the
# first and the last one are, too. And "A client forgets END": what does Triton do with a sequence that is silent for too
# long?</details>
#
# <details><summary>How to begin</summary>Two questions for each event: is <code>who</code> in a conversation, and is
# <code>value</code> <code>None</code>? Of the four pairs of answers one sends nothing. What must <code>talking</code> know
# to answer the first?</details>
#
# <details><summary>The error you see</summary>It names the events up to the one where your answer differs.
# <em>start</em> after a page was closed: a user who comes back begins anew, so closing takes them out of
# <code>talking</code>. <em>must specify the START flag</em>, in the real run: user 4 was silent for more than five
# seconds.</details>

# %% [markdown]
# Now on the real server: three users, and two slots. The last one gets a slot after about one second, when another closes
# the page; without END, after more than five. The fourth user thinks for six seconds after each number, so each begins a
# conversation: 1 2, not 1 3.


# %% tags=["nbval-ignore-output"]
def converse(who, values, thinks_s):
    """The answer to each request of a user, and how long it took, in seconds."""
    talking, heard = {}, []
    with triton.InferenceServerClient(server.grpc_url) as connection:
        for value in [*values, None]:
            sent_s = time.monotonic()
            arguments = marks(who, value, sent_s, talking)
            if arguments in (None, ...):
                continue
            tensor = triton.InferInput("value", [1, 1], "INT32")
            tensor.set_data_from_numpy(np.array([[value or 0]], np.int32))
            result = connection.infer("adder", [tensor], **arguments)
            heard.append((result.as_numpy("sum").item(), time.monotonic() - sent_s))
            time.sleep(thinks_s)
    return heard


# %% tags=["nbval-ignore-output"]
numbers = [10, 20], [100, 200], [1000, 2000]
with ThreadPoolExecutor(3) as pool:
    users = list(pool.map(converse, (1, 2, 3), numbers, [0.5] * 3))
for who, heard in enumerate([*users, converse(4, [1, 2], 6)], 1):
    print(f"user {who}: sums", *(total for total, _ in heard))
if all(users):
    waited_s = max(heard[0][1] for heard in users)
    print(f"The last user waited {waited_s:.1f} s for a slot.")

# %% [markdown]
# ## Exercise 7.2: asked again, and some have gone
#
# *Core · importance 5/5 · difficulty 3/5 · 25 minutes*
#
# This model does what the lecture's does. Make it keep nothing of a reader who has gone.
#
# A client can leave at two moments. If the request is in a call of `execute`, `request.is_cancelled()` is true. If it
# waits in the queue, Triton drops it, and the model is not told. But the request's response sender knows: `sender.is_cancelled()`.
# Three facts about Triton 2.51:
#
# - If you release a cancelled request, its slot stays taken. Reschedule it: then Triton frees the slot.
# - Triton gives a new sender in each call; only the **latest** knows.
# - Never ask a sender after its `FINAL`.
#
# The check plays Triton for your model, with four slots: first seven texts at once, then twelve readers, half of whom
# leave. It compares what each client has heard, and counts what your model keeps of streams that are over, wherever it
# keeps it.

# %% tags=["part:model.py"]
# %%writefile {workdir.name}/words.py
"""Gives texts back word by word: one word of each stream in each call of `execute`."""

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
RESCHEDULE = pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE


def value(request, name):
    """The one value of an input of a request."""
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy().reshape(-1)[0]


# BEGIN SOLUTION
# LAB: class TritonPythonModel:
# LAB:     def initialize(self, args):
# LAB:         self.states = {}  # by correlation id
# LAB:
# LAB:     def execute(self, requests):
# LAB:         ready = [request for request in requests if value(request, "READY")]
# LAB:         for request in ready:
# LAB:             if value(request, "START"):
# LAB:                 words = value(request, "text").decode().split()
# LAB:                 self.states[int(value(request, "ID"))] = words
# LAB:         for request in ready:
# LAB:             self.step(request, int(value(request, "ID")))
# LAB:         raise NotImplementedError  # your code, here and where else it is needed
# LAB:
# LAB:     def step(self, request, who):
# LAB:         words, sender = self.states[who], request.get_response_sender()
# LAB:         word = words.pop(0) if words else ""
# LAB:         output = pb_utils.Tensor("word", np.array([[word.encode()]], object))
# LAB:         if words:
# LAB:             sender.send(pb_utils.InferenceResponse([output]))
# LAB:             request.set_release_flags(RESCHEDULE)
# LAB:         else:
# LAB:             del self.states[who]
# LAB:             sender.send(pb_utils.InferenceResponse([output]), flags=FINAL)
class State:
    """What is known of a stream from one call to the next."""

    def __init__(self, words):
        self.words = words
        self.sender = None  # of its responses, as Triton gave it in the latest call


class TritonPythonModel:
    def initialize(self, args):
        self.states = {}  # by correlation id

    def execute(self, requests):
        ready = [request for request in requests if value(request, "READY")]
        for request in ready:
            if value(request, "START"):
                words = value(request, "text").decode().split()
                self.states[int(value(request, "ID"))] = State(words)
        for request in ready:
            self.step(request, int(value(request, "ID")))
        # Triton drops a queued request silently when its client leaves.
        for who, state in list(self.states.items()):
            if state.sender.is_cancelled():
                del self.states[who]
        return None

    def step(self, request, who):
        if request.is_cancelled():
            self.states.pop(who, None)
            # Triton frees the slot when it is about to schedule the request again.
            request.set_release_flags(RESCHEDULE)
            return
        state, sender = self.states[who], request.get_response_sender()
        state.sender = sender
        word = state.words.pop(0) if state.words else ""
        output = pb_utils.Tensor("word", np.array([[word.encode()]], object))
        if state.words:
            sender.send(pb_utils.InferenceResponse([output]))
            request.set_release_flags(RESCHEDULE)
        else:
            del self.states[who]
            sender.send(pb_utils.InferenceResponse([output]), flags=FINAL)


# END SOLUTION

# %%
check("7.2", Path(workdir.name) / "words.py")

# %% [markdown]
# <details><summary>Where to look</summary>"A client leaves" in the lecture: nothing deletes the states of the three who
# left.</details>
#
# <details><summary>How to begin</summary>Which calls does a state see after its client has left? Who still knows of the
# client?</details>
#
# <details><summary>The error you see</summary><code>KeyError</code>: you deleted a state, and its request was still in the
# batch. "Items more in the model": states of requests that were dropped in the queue. <code>RuntimeError</code>,
# <em>dictionary changed size</em>: go through <code>list(…)</code> of the dict.</details>

# %% [markdown]
# In your workspace your model runs here once it has passed; elsewhere the course's does. The second of three readers leaves after three
# words of 200. Then two ask for one word, one after the other:

# %% tags=["nbval-ignore-output"]
part = parts.part("iterative_model")
(repo / "words" / "1" / "own.py").write_text(part.path.read_text())
(repo / "words" / "1" / "model.py").write_text("""
import time
from pathlib import Path

import own


class TritonPythonModel(own.TritonPythonModel):
    def execute(self, requests):
        kept = [len(own) for own in vars(self).values() if isinstance(own, dict)]
        Path(__file__).with_name("kept.txt").write_text(str(sum(kept)))
        super().execute(requests)
        time.sleep(0.05)  # a pass of a real model takes time
""")
(repo / "words" / "config.pbtxt").write_text("""
name: "words"  backend: "python"  max_batch_size: 4
model_transaction_policy { decoupled: true }
input [ { name: "text"  data_type: TYPE_STRING  dims: [ 1 ] } ]
output [ { name: "word"  data_type: TYPE_STRING  dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU } ]
sequence_batching {
  iterative_sequence: true
  control_input [
    { name: "ID"
      control [ { kind: CONTROL_SEQUENCE_CORRID  data_type: TYPE_UINT64 } ] },
    { name: "START"
      control [ { kind: CONTROL_SEQUENCE_START  int32_false_true: [ 0, 1 ] } ] },
    { name: "READY"
      control [ { kind: CONTROL_SEQUENCE_READY  int32_false_true: [ 0, 1 ] } ] }
  ]
}
""")
server.load("words")
texts = ["to be or not", "word " * 200, "I wandered lonely as a cloud"]
heard = streams.ask(server, "words", texts, leave_after={2: 3})
print(heard.groupby("stream")["word"].agg(" ".join).to_string(header=False))
for _ in range(2):
    streams.ask(server, "words", ["hello"])
kept = (repo / "words" / "1" / "kept.txt").read_text()
whose = "your model" if part.is_own else "the course's model"
print(f"States kept by {whose}: {kept} (none is right; the lecture's would keep 1)")

# %% [markdown]
# ## Exercise 7.3: many microphones, one network
#
# *Further · importance 4/5 · difficulty 4/5 · 35 minutes*
#
# A recognizer's network takes *frames* of exactly 512 samples, and gives a score and a new state for each. Microphones send
# pieces of any length. So a slot of the batch (`direct`) keeps two things from call to call: the network's state, and the
# samples that have not filled a frame. Write what `execute` does with a call:
#
# - `requests` has a place for each slot: `None` where `READY` is 0, else a `Piece` with `start`, `end` and `sound`, an array
#   that may be empty.
# - `network(frames, states)` takes [n, 512] and [n, `network.size`], and gives n scores and the new states, [n,
#   `network.size`]. A stream begins with a state of zeros.
# - Return a list for each slot: a score for each frame that its piece has completed, in order. At `end`, fill up what
#   is left with zeros, if anything is.
# - Slots that have another frame share a pass, and only they are in it: no more passes than the slot with the most frames
#   needs.
# - `kept` is a dict, empty at first, that is yours. A client may have gone without an END: then its slot comes with a new
#   `start`.


# %%
# %%writefile {repo}/microphones/1/hear.py
import numpy as np

from inflight.lessons.sequences import FRAME, Piece


def hear(requests: list[Piece | None], kept: dict, network) -> list[list[float]] | None:
    """Scores of the frames that are complete now, a list for each slot."""
    # BEGIN SOLUTION
    # LAB: return None
    frames, scores = {}, [[] for _ in requests]
    for slot, piece in enumerate(requests):
        if piece is None:
            continue
        if piece.start:
            kept[slot] = [np.zeros(0), np.zeros(network.size)]
        sound = np.concatenate([kept[slot][0], piece.sound])
        if piece.end:
            sound = np.pad(sound, (0, -len(sound) % FRAME))
        whole = len(sound) // FRAME * FRAME
        frames[slot], kept[slot][0] = sound[:whole].reshape(-1, FRAME), sound[whole:]
    for nth in range(max(map(len, frames.values()), default=0)):
        slots = [slot for slot, own in frames.items() if nth < len(own)]
        states = np.stack([kept[slot][1] for slot in slots])
        found, states = network(np.stack([frames[slot][nth] for slot in slots]), states)
        for slot, score, state in zip(slots, found, states):
            scores[slot].append(float(score))
            kept[slot][1] = state
    return scores
    # END SOLUTION


# %%
check("7.3", f"{repo}/microphones/1/hear.py")

# %% [markdown]
# <details><summary>Where to look</summary>The last row of the lecture's table of <code>direct</code> and <code>oldest</code>: by slot.
# And the pass for many texts of lab 06: who may share it?</details>
#
# <details><summary>How to begin</summary>With one slot: put the new samples behind those left over, cut off whole frames,
# keep the remainder.</details>
#
# <details><summary>The error you see</summary><em>scores, where … are wanted</em>: a piece need not begin where a frame does.
# <em>not those of this stream alone</em>: the state of another slot went in, or that of the client before. <em>passes</em>:
# make the loop over frames the outer one.</details>

# %% [markdown]
# Now Triton has the slots: its model gives the requests of a call to `hear`, with the lecture's network, and notes how many
# frames each pass has. A call waits up to 20 ms until two of the four slots have a request.

# %%
# %%writefile {repo}/microphones/1/model.py
# from pathlib import Path
#
# import numpy as np
# import triton_python_backend_utils as pb_utils
# from hear import hear
#
# from inflight.lessons.sequences import Piece, Voice
#
#
# class TritonPythonModel:
#     def initialize(self, args):
#         self.kept, self.network = {}, Counted()
#
#     def execute(self, requests):
#         pieces = [piece(request) for request in requests]
#         scores = hear(pieces, self.kept, self.network) or [[]] * len(pieces)
#         return [each and response(own) for each, own in zip(pieces, scores)]

# %%
# %%writefile -a {repo}/microphones/1/model.py
#
#
# def piece(request):
#     names = ("READY", "START", "END", "sound")
#     tensors = [pb_utils.get_input_tensor_by_name(request, name) for name in names]
#     ready, start, end, sound = (tensor.as_numpy().ravel() for tensor in tensors)
#     return Piece(bool(start), bool(end), sound) if ready else None
#
#
# class Counted(Voice):
#     def __call__(self, frames, states):
#         with Path(__file__).with_name("passes.txt").open("a") as log:
#             print(len(frames), file=log)
#         return super().__call__(frames, states)
#
#
# def response(scores):
#     heard = "".join("#" if score > 0.5 else "." for score in scores)
#     tensor = pb_utils.Tensor("heard", np.array([[heard.encode()]], object))
#     return pb_utils.InferenceResponse([tensor])

# %%
# %%writefile {repo}/microphones/config.pbtxt
# name: "microphones"  backend: "python"  max_batch_size: 4
# input [ { name: "sound"  data_type: TYPE_FP32  dims: [ -1 ] } ]
# output [ { name: "heard"  data_type: TYPE_STRING  dims: [ 1 ] } ]
# instance_group [ { kind: KIND_CPU } ]
# sequence_batching {
#   direct { minimum_slot_utilization: 0.5  max_queue_delay_microseconds: 20000 }
#   control_input [
#     { name: "START"
#       control [ { kind: CONTROL_SEQUENCE_START  int32_false_true: [ 0, 1 ] } ] },
#     { name: "END"
#       control [ { kind: CONTROL_SEQUENCE_END  int32_false_true: [ 0, 1 ] } ] },
#     { name: "READY"
#       control [ { kind: CONTROL_SEQUENCE_READY  int32_false_true: [ 0, 1 ] } ] }
#   ]
# }

# %% [markdown]
# The lecture's two lines call in at once, in pieces of 20 ms. The marks should be those of the lecture's rows *one*.


# %%
def call_in(line):
    """Where somebody speaks, a mark for each frame."""
    heard, sound = "", two_lines()[line].reshape(1, -1)
    with triton.InferenceServerClient(server.grpc_url) as connection:
        for first in range(0, sound.shape[1], 320):
            begins, ends = first == 0, first + 320 >= sound.shape[1]
            tensor = triton.InferInput("sound", [1, 320], "FP32")
            tensor.set_data_from_numpy(sound[:, first : first + 320])
            marks = {"sequence_id": line + 1, "sequence_start": begins}
            result = connection.infer(
                "microphones", [tensor], **marks, sequence_end=ends
            )
            heard += result.as_numpy("heard").item().decode()
    return heard


# %% tags=["nbval-ignore-output"]
server.load("microphones")
with ThreadPoolExecutor(2) as pool:
    heard = list(pool.map(call_in, range(2)))
print(*heard, sep="\n")

network, states, marked = Voice(), np.zeros((2, Voice.size)), []
for frames in two_lines().swapaxes(0, 1):
    scores, states = network(frames, states)
    marked.append(["#" if score > 0.5 else "." for score in scores])
is_same = heard == ["".join(line) for line in zip(*marked)]
passes = repo / "microphones" / "1" / "passes.txt"
counts = [int(line) for line in passes.read_text().split()] if passes.exists() else []
print(f"{sum(counts)} frames in {len(counts)} passes; as in the lecture: {is_same}")
print(f"{counts.count(2)} of {len(counts)} passes had a frame of both lines.")

# %% [markdown]
# ## Bonus
#
# Let a client ask for at most *n* words, by a request parameter (`request.parameters()` is JSON).

# %% [markdown]
# ## Elsewhere
#
# Four questions of transfer, without running anything.
#
# 1. The service moves to three servers behind a load balancer that gives each request to the least busy one. Which of your
#    sequences still works?
#
# <details><summary>Answer</summary>Iterative ones: each is one request, and all its calls happen in the server that has it.
# Sequences of several requests break: the second request may reach a server that never saw START, which refuses it. They
# need a balancer that sends one correlation id to one server.</details>
#
# 2. The model moves to a GPU and computes all streams of a call in one pass. Do you still want one word a call?
#
# <details><summary>Answer</summary>Yes, mostly: all streams that are ready share the pass, which reads the weights once,
# and after each word one that ends makes room for one that waits. Several words a call save calls, and keep the newcomer
# waiting.</details>
#
# 3. Which sum does the adder of 7.1 still keep?
#
# <details><summary>Answer</summary>User 4's. Triton dropped the sequence, and told the model nothing.</details>
#
# 4. A user's first number waits six seconds for a slot. What does `marks` say of the second, and what is the sum?
#
# <details><summary>Answer</summary>START, and the sum begins anew: the gateway counts from when the first number came.</details>

# %% [markdown]
# ## Done?
#
# When every check says so, compare with {counterpart}, then go on to {next}.
#
# The server ends with this notebook's kernel.
