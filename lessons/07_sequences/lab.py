# %% [markdown]
# # {heading}
#
# Four exercises, about {minutes} minutes (an estimate), of which {core} are *Core*. You write a client that forgets
# neither START nor END, say on paper which requests are served, and write a model that asks to be called again: many
# streams, each with its own state, some of them cancelled. The model is kept: lab 08 continues from it. A check never
# stops the notebook.
#
# Run the first code cell before any other: it brings `check`, and what the exercises use. A `NameError` says that it has
# not been run.
#
# {navigation}

# %% tags=["nbval-ignore-output"]
import tempfile
from pathlib import Path

from inflight.lessons.sequences import Step, sequences, streams
from inflight.notebook import check, parts
from inflight.triton import Server, repository

workdir = tempfile.TemporaryDirectory()
repo = repository.assemble(
    Path(workdir.name) / "repo",
    models=("running-sum",),
    running_sum_max_batch_size=2,
    execution_log_path=Path(workdir.name) / "executions.jsonl",
)
server = Server(repo).start()

# %% [markdown]
# ## Exercise 7.1: never forget an END
#
# *importance 4/5 · difficulty 2/5 · 10 minutes*
#
# A chat gateway hands you messages in the order in which they came: pairs of (sequence, value). Write `steps`: one
# `Step` per message, with `start` true on the first message of each sequence and `end` true on the last. The list is
# complete: nothing comes after it.


# %%
def steps(messages: list[tuple[int, int]]) -> list[Step] | None:
    """The messages as steps of their sequences."""
    # BEGIN SOLUTION
    # LAB: return None
    first, last = {}, {}
    for place, (sequence, _) in enumerate(messages):
        first.setdefault(sequence, place)
        last[sequence] = place
    return [
        Step(
            sequence,
            value=value,
            start=first[sequence] == place,
            end=last[sequence] == place,
        )
        for place, (sequence, value) in enumerate(messages)
    ]
    # END SOLUTION


# %%
check("7.1", steps)

# %% [markdown]
# Three sequences for a model with two places: the third one waits until one of the others ends. Is every step answered?

# %%
made = steps([(1, 10), (2, 100), (1, 20), (3, 1000), (2, 200), (1, 30), (3, 2000)])
if made is None:
    print("steps is not written yet")
else:
    answers = sequences.send(server, made)
    columns = ["sequence", "value", "sum", "outcome"]
    print(answers[columns].to_string(index=False))

# %% [markdown]
# <details><summary>Where to look</summary><code>talk</code> in the lecture: there the number of the round says what is first
# and last. Here it is the message's place in the list.</details>
#
# <details><summary>How to begin</summary>Two dictionaries. Go through the messages once, and note for each sequence where it
# was seen first and where last. Then go through them again.</details>
#
# <details><summary>The error you see</summary>It names a message, and which mark is wrong. The only message of a sequence has
# both marks. "Not these messages": their order must stay.</details>

# %% [markdown]
# ## Exercise 7.2: who is served?
#
# *importance 4/5 · difficulty 3/5 · 15 minutes*
#
# There is one instance with the strategy `direct`, and it has `places` places. No sequence is given up for silence. Steps
# come one after the other. What becomes of each?
#
# - `"at once"`: its sequence has a place, or begins with this step and finds a free one;
# - `"refused"`: its sequence has no place and does not wait for one, and the step has no START;
# - `"later"`: its sequence waits for a place, and gets one when another sequence ends. The sequence that has waited longest
#   is first. Then all the steps that it has sent so far are served; if END is among them, the place is free again;
# - `"never"`: it still waits when the last step has come.
#
# No sequence begins twice.


# %%
def fates(steps: list[Step], places: int) -> list[str] | None:
    """What becomes of each step, in the order of the steps."""
    # BEGIN SOLUTION
    # LAB: return None
    told, seated, waiting = ["never"] * len(steps), set(), {}
    for number, step in enumerate(steps):
        if step.sequence in waiting:
            waiting[step.sequence].append(number)
        elif step.sequence in seated or (step.start and len(seated) < places):
            told[number] = "at once"
            seated.add(step.sequence)
            if step.end:
                seated.remove(step.sequence)
        elif step.start:
            waiting[step.sequence] = [number]
        else:
            told[number] = "refused"
        while waiting and len(seated) < places:
            sequence, numbers = next(iter(waiting.items()))
            del waiting[sequence]
            for late in numbers:
                told[late] = "later"
            if not any(steps[late].end for late in numbers):
                seated.add(sequence)
    return told
    # END SOLUTION


# %%
check("7.2", fates)

# %% [markdown]
# <details><summary>Where to look</summary>"A client that forgets", in the lecture: two places and three sequences.</details>
#
# <details><summary>How to begin</summary>Keep two things: the set of sequences that have a place, and a dict of those that
# wait, with the numbers of their steps. A dict remembers the order in which it was filled.</details>
#
# <details><summary>The error you see</summary>It shows the steps, such as <code>1S 2S 1E</code>: sequence 1 begins, 2
# begins, 1 ends. "Later" at the wrong step: after an END look at the sequences that wait, again and again, until no place
# is free.</details>

# %% [markdown]
# ## Exercise 7.3: asked again
#
# *Core · importance 5/5 · difficulty 4/5 · 30 minutes*
#
# Write `execute` of a model that gives texts back word by word. A request has the input `text` and three controls: `ID`,
# `START` and `READY`. The model is decoupled: a word is a response with the output `word`, sent by the request's response
# sender. In each call every request that is ready gets **one** word. Then it is rescheduled, or ended with `FINAL`. A text
# may have no words at all; end it at once.
#
# Keep what you know of a stream in `self.states`, a dict by correlation id, and forget a stream that is over. The check plays
# Triton for your model, with seven texts at once and four places. It counts your calls, compares what each client has heard,
# and counts what your model keeps of streams that are over, wherever it keeps it.

# %% tags=["part:model.py"]
# %%writefile {workdir.name}/model.py
"""Gives texts back word by word: one word of each stream in each call of `execute`."""

from dataclasses import dataclass

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
# LAB:         raise NotImplementedError  # your code
@dataclass
class State:
    """What is known of a stream from one call to the next."""

    words: list[str]
    sender: object  # of its responses, as Triton gave it in the latest call


class TritonPythonModel:
    def initialize(self, args):
        self.states = {}  # by correlation id

    def execute(self, requests):
        ready = [request for request in requests if value(request, "READY")]
        for request in ready:
            if value(request, "START"):
                words = value(request, "text").decode().split()
                self.states[int(value(request, "ID"))] = State(words, None)
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
            # Triton frees the place when it is about to schedule the request again.
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
written = Path(workdir.name) / "model.py"
check("7.3", written)

# %% [markdown]
# <details><summary>Where to look</summary>The model of forty lines in the lecture. Here there is no log, and a text without
# words has nothing to <code>pop</code>.</details>
#
# <details><summary>How to begin</summary><code>execute</code> goes through the requests, leaves out those whose
# <code>READY</code> is 0, makes a state where <code>START</code> is 1, sends a word, and returns <code>None</code>. The
# response: <code>pb_utils.InferenceResponse([pb_utils.Tensor("word", np.array([[word.encode()]], object))])</code>.</details>
#
# <details><summary>The error you see</summary>"Somebody waits in vain": a request was released without <code>FINAL</code>.
# <code>KeyError</code>: a state is not there. Is it made at START, and deleted only at the end? "Ready requests that got no
# word": you serve one request per call.</details>

# %% [markdown]
# ## Exercise 7.4: cancelled and lost
#
# *Core · importance 5/5 · difficulty 5/5 · 25 minutes*
#
# Twelve readers share the four places, and half of them close the page. That can happen at two moments. If the request is in
# a call of `execute`, `request.is_cancelled()` is true. If it waits in the queue, Triton drops it, and the model is not told.
# But the request's response sender knows: `sender.is_cancelled()`.
#
# Mend `model.py` above so that no state stays of a reader who has gone, no word is computed for them, and the others hear
# all of their words. Three facts about this Triton:
#
# - If you release a cancelled request, its place stays taken. Reschedule it: then Triton frees the place.
# - Triton gives a new sender in each call. Ask the **latest**, so keep it in the state.
# - Never ask a sender after its `FINAL`.

# %%
check("7.4", written)

# %% [markdown]
# <details><summary>Where to look</summary>"What breaks" in the lecture: nothing deletes the states of the three who
# left.</details>
#
# <details><summary>How to begin</summary>A state becomes two things: the words that are left, and the sender. At the end of
# each call go through all states and delete those whose sender is cancelled. At the beginning of a step, look at the
# request.</details>
#
# <details><summary>The error you see</summary>"Things that are kept": states of requests that were dropped in the queue.
# <code>KeyError</code>: you deleted a state, and its request was still in the batch. <code>RuntimeError</code>,
# <em>dictionary changed size</em>: you delete from a dict while you go through it; go through <code>list(…)</code> of
# it.</details>

# %% [markdown]
# Once it has passed, your model is kept. Here it runs on the server of this notebook. The second of three readers leaves after
# three words:

# %% tags=["nbval-ignore-output"]
part = parts.part("iterative_model")
print(repr(part))
(repo / "words" / "1").mkdir(parents=True, exist_ok=True)
(repo / "words" / "1" / "model.py").write_text(part.path.read_text())
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
texts = ["to be or not", "all the world is a stage", "I wandered lonely as a cloud"]
heard = streams.ask(server, "words", texts, leave_after={2: 3})
print(heard.groupby("stream")["word"].agg(" ".join).to_string(header=False))

# %% [markdown]
# ## Bonus
#
# If you are early: let a client ask for at most *n* words, by a request parameter (`request.parameters()` is JSON).

# %% [markdown]
# ## Elsewhere
#
# Three questions of transfer, without running anything.
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
# <details><summary>Answer</summary>Yes, even more so: all streams that are ready share the pass, which reads the weights
# once. An empty place, or a reader who has gone, then takes part of an expensive pass.</details>
#
# 3. A reader's network fails for ten seconds, and the client sends the text once more. What does your model do?
#
# <details><summary>Answer</summary>It begins anew, under another correlation id, and deletes the old state when it sees that
# the sender is cancelled. To continue where the first stream stopped, the client would have to say how far it had
# come.</details>

# %% [markdown]
# ## Done?
#
# When every check says so, compare with {counterpart}, then go on to {next}.
#
# The server ends with this notebook's kernel.
