# %% [markdown]
# # {heading}
#
# Four exercises, about 55 minutes. You count what a cache saves, build one for a single head, make ten streams share four
# places, and give a whole model its cache: your `model.py` then runs in the real server.
#
# A check counts and never times, and makes new prompts each time. It never stops you: it says done, not done yet, or
# which way to go.
#
# {navigation}

# %% [markdown]
# ## Set up
#
# A server with `iterative-gpt2`, as in the lesson, with a log of its forward passes.

# %% tags=["nbval-ignore-output"]
import shutil
import tempfile
from pathlib import Path

import numpy as np

from inflight.bench import gpt2_client
from inflight.lessons import iterative_gpt2 as lesson
from inflight.models import gpt2_checkpoint
from inflight.notebook import check, mine
from inflight.triton import Server, repository

workdir = tempfile.TemporaryDirectory()
repo, log_path = Path(workdir.name) / "repo", Path(workdir.name) / "passes.jsonl"
checkpoint_dir = gpt2_checkpoint.find("course-gpt2")
repository.assemble(
    repo,
    models=("iterative-gpt2",),
    iteration_log_path=log_path,
    gpt2_checkpoint_dir=checkpoint_dir,
)
server = Server(repo).start()
gpt2_client.run(server.grpc_url, "iterative-gpt2", ["A warm-up"], max_tokens=4)[
    "text"
].tolist()

# %% [markdown]
# ## Exercise 8.1: count the waste
#
# *importance 3/5 · difficulty 2/5 · 8 minutes*
#
# `prompts` has the number of tokens of each prompt. All are answered together, each with `answer` tokens. A pass computes
# the tokens that go into it, and gives every sequence one more. How many tokens go through the model, in all passes,
#
# - padded, the tutorial's way: in each pass every text so far, and padding up to the longest of them;
# - without a cache: in each pass every text so far, and nothing else;
# - with a cache: the prompts in the first pass, then each sequence's newest token alone?


# %%
def padded(prompts: list[int], answer: int) -> int | None:
    """Tokens computed when each pass gets all texts as long as the longest."""
    # BEGIN SOLUTION
    # LAB: return None
    return sum(len(prompts) * (max(prompts) + before) for before in range(answer))
    # END SOLUTION


def without_cache(prompts: list[int], answer: int) -> int | None:
    """Tokens computed when each pass gets the whole texts."""
    # BEGIN SOLUTION
    # LAB: return None
    return sum(sum(prompts) + len(prompts) * before for before in range(answer))
    # END SOLUTION


def with_cache(prompts: list[int], answer: int) -> int | None:
    """Tokens computed when each pass gets what it has not seen."""
    # BEGIN SOLUTION
    # LAB: return None
    return sum(prompts) + len(prompts) * (answer - 1)
    # END SOLUTION


# %%
check("8.1", (padded, without_cache, with_cache))

# %% [markdown]
# <details><summary>Where to look</summary>
#
# At the cell of the lesson that counts the waste: its list has the tokens of each pass, for one prompt.
# </details>
#
# <details><summary>How to begin</summary>
#
# Take one prompt first: its first pass gets the prompt, the second one token more, and so on. There are
# <code>answer</code> passes. Then add the others.
# </details>
#
# <details><summary>The error you see</summary>
#
# A number that is too large by as many as there are prompts: the last token of an answer goes into no pass. One that is
# right for a single prompt alone: in <code>padded</code> the longest counts for all.
# </details>
#
# The server keeps count too. Ask for 20 tokens, once each way, and compare:

# %%
texts = ["One", "Programming in C++ is like", "The capital of France is the city of"]
for kv_cache, on_paper in (("off", without_cache), ("on", with_cache)):
    server.load("iterative-gpt2", kv_cache=kv_cache)
    start = log_path.stat().st_size
    gpt2_client.run(server.grpc_url, "iterative-gpt2", texts, max_tokens=20)
    passes = lesson.passes(lesson.executions(log_path, start))
    lengths = passes.groupby("sequence")["computed"].first().tolist()
    print(
        f"kv_cache {kv_cache:3}: {passes['computed'].sum():4} tokens computed, "
        f"on paper {on_paper(lengths, 20)}"
    )

# %% [markdown]
# ## Exercise 8.2: a cache for one head
#
# *Core · importance 5/5 · difficulty 3/5 · 12 minutes*
#
# This is attention as one head of one layer computes it: the newest token asks (`query`), every token so far answers
# with its `key` and gives its `value`. Nothing in a key or value depends on later tokens. So why compute them twice?


# %%
def attend(query: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Attention of a token: query [size], keys, values [tokens, size]; gives [size]."""
    scores = keys @ query / np.sqrt(len(query))
    weights = np.exp(scores - scores.max())
    return weights / weights.sum() @ values


def without_a_cache(text: np.ndarray, query, key, value) -> np.ndarray:
    """Attention of the last token of `text` [tokens, width]; nothing is kept."""
    return attend(
        query(text[-1]),
        np.stack([key(x) for x in text]),
        np.stack([value(x) for x in text]),
    )


# %% [markdown]
# Write the step with a cache. `x` is the newest token alone; `query`, `key` and `value` are functions that turn a token
# into a vector. Each token may go through each of them once. `cache` is a dict, empty at first, that is yours to fill:
# every text has its own, and hands it in again with its next token.


# %%
def next_token(x: np.ndarray, query, key, value, cache: dict) -> np.ndarray | None:
    """Attention of `x` to itself and to all tokens of its text before it."""
    # BEGIN SOLUTION
    # LAB: return None
    cache.setdefault("keys", []).append(key(x))
    cache.setdefault("values", []).append(value(x))
    return attend(query(x), np.stack(cache["keys"]), np.stack(cache["values"]))
    # END SOLUTION


# %%
check("8.2", next_token)

# %% [markdown]
# <details><summary>Where to look</summary>
#
# At <code>without_a_cache</code>: which of its vectors were the same at the token before?
# </details>
#
# <details><summary>How to begin</summary>
#
# Two lists in the cache, one for keys and one for values: <code>cache.setdefault("keys", [])</code>. Append first, then
# attend: a token sees itself.
# </details>
#
# <details><summary>The error you see</summary>
#
# <em>tokens projected</em>: you keep the tokens and compute their keys again, one by one or all in one call. Keep the keys.
# <em>to itself too</em>: you attended before you appended. <em>its own cache</em>: you filled a list of your own instead
# of <code>cache</code>.
# </details>
#
# ## Exercise 8.3: ten streams, four places
#
# *importance 4/5 · difficulty 3/5 · 10 minutes*
#
# Ten impatient readers share a machine on which a pass with more than four texts is too slow. Find settings with which
#
# - all ten streams have begun before the first of them ends,
# - the fullest forward pass has four streams in it, and
# - no token is computed twice.
#
# `settings` names fields as the lesson's editor does: `"max_batch_size"`, `"kv_cache"`, and paths such as
# `"sequence_batching.oldest.max_candidate_sequences"`, which chooses the strategy of that name too.

# %%
# BEGIN SOLUTION
# LAB: settings = {}
settings = {
    "max_batch_size": 4,
    "sequence_batching.oldest.max_candidate_sequences": 10,
    "kv_cache_slots": 10,
}
# END SOLUTION

# %%
server.load("iterative-gpt2", **settings)
prompts = ["A cat is", "A river is", "A book is", "A train is", "A king is"] * 2
start = log_path.stat().st_size
gpt2_client.run(server.grpc_url, "iterative-gpt2", prompts, max_tokens=24)
passes = lesson.passes(lesson.executions(log_path, start))

# %%
check("8.3", (settings, passes))

# %% [markdown]
# <details><summary>Where to look</summary>
#
# At the fields of the editor in the lesson, and at its three pictures of four streams.
# </details>
#
# <details><summary>How to begin</summary>
#
# Three different fields: one says how many share a pass, one how many sequences Triton begins, and one how many have room
# in the KV cache.
# </details>
#
# <details><summary>The error you see</summary>
#
# <em>The fullest forward pass had 8</em>: nothing limits the batch yet. <em>that one waited</em>: in Triton, or for a
# slot. Tokens computed twice: without a cache nobody waits for a slot, and everybody pays.
# </details>
#
# ## Exercise 8.4: a KV cache for your model
#
# *Core · importance 5/5 · difficulty 4/5 · 25 minutes*
#
# In lab 07 you wrote an iterative model that keeps many streams apart. Here is the part that you have now:

# %% tags=["nbval-ignore-output"]
yours = mine.part("iterative_model")
print(repr(yours))
if yours.is_mine:
    print(yours.path.read_text())

# %% [markdown]
# The model below has that frame, and computes the course's GPT-2, every text whole at every pass. It is right, and slow.
# Give it a cache with room for **four** texts (`SLOTS`), though Triton's batch has up to eight places:
#
# - every token goes through the network once;
# - a text without a slot waits: it gets no token now, and is rescheduled;
# - who ends, or has left, gives the slot back;
# - the answers stay what they are, token for token.
#
# Change `initialize`, `with_slot`, `step`, `attend` and `forget`; the rest can stay. A `Text` has fields for its slot and
# for the number of tokens in it.

# %%
# %%writefile {workdir.name}/model.py
"""GPT-2 as an iterative model, with a KV cache of a few slots."""

import json
import threading
from functools import partial

import numpy as np
import torch
import triton_python_backend_utils as pb_utils
from torch.nn.functional import scaled_dot_product_attention

from inflight.checkpoint import load_tokenizer
from inflight.models import gpt2_network

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
RELEASE_ALL = pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL
RESCHEDULE = pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
SLOTS = 4  # texts that the cache has room for


class Text:
    """A prompt and its answer so far."""

    def __init__(self, ids, max_tokens):
        self.ids = ids
        self.length = len(ids) + max_tokens  # when it is complete
        self.sender = None  # of its responses
        self.slot = None  # its row in the cache
        self.cached = 0  # tokens whose keys and values are there


def value(request, name):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy().item()


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        folder = parameters["checkpoint_dir"]["string_value"]
        self.tokenizer = load_tokenizer(folder)
        self.network = gpt2_network.load(folder)
        self.texts = {}  # by the sequence's number
        # BEGIN SOLUTION
        # LAB: # The cache belongs here.
        net = self.network
        room = (SLOTS, net.num_heads, net.num_positions, net.head_dim)
        self.cache = torch.zeros(net.num_layers, 2, *room)  # keys and values
        self.free = list(range(SLOTS))
        # END SOLUTION

    def execute(self, requests):
        batch = {}
        for request in requests:
            if value(request, "ready"):
                number = value(request, "number")
                if value(request, "start"):
                    self.texts[number] = self.begin(request)
                self.texts[number].sender = request.get_response_sender()
                batch[number] = request
        for number in [number for number in self.texts if number not in batch]:
            if self.texts[number].sender.is_cancelled():
                self.forget(number)
        computed = self.with_slot(batch)
        if computed:
            tokens = self.step([self.texts[number] for number in computed])
            for number, token in zip(computed, tokens):
                self.answer(self.texts[number], token)
        for number, request in batch.items():
            if len(self.texts[number].ids) < self.texts[number].length:
                request.set_release_flags(RESCHEDULE)
            else:
                self.end(number, request)

    def begin(self, request):
        """The state of a new sequence."""
        prompt = value(request, "text_input").decode()
        max_tokens = json.loads(request.parameters())["max_tokens"]
        return Text(self.tokenizer.encode(prompt), max_tokens)

    def with_slot(self, numbers):
        """Of these sequences, those that are computed now."""
        # BEGIN SOLUTION
        # LAB: return list(numbers)
        for number in numbers:
            if self.texts[number].slot is None and self.free:
                self.texts[number].slot = self.free.pop()
        return [number for number in numbers if self.texts[number].slot is not None]
        # END SOLUTION

    def step(self, texts):
        """One forward pass: the next token of each text."""
        ids, positions, last = [], [], []
        # BEGIN SOLUTION
        # LAB: for text in texts:
        # LAB:     ids += text.ids
        # LAB:     positions += range(len(text.ids))
        # LAB:     last.append(len(ids) - 1)
        for text in texts:
            ids += text.ids[text.cached :]
            positions += range(text.cached, len(text.ids))
            last.append(len(ids) - 1)
        # END SOLUTION
        attend = partial(self.attend, texts)
        tokens = self.network.next_tokens(ids, positions, last, attend)
        # BEGIN SOLUTION
        # LAB: # What went in is in the cache now: take note of it.
        for text in texts:
            text.cached = len(text.ids)
        # END SOLUTION
        return tokens

    def attend(self, texts, layer, projected):
        """Attention: takes [tokens, 3, heads, size], gives [tokens, heads, size]."""
        found, start = [], 0
        # BEGIN SOLUTION
        # LAB: for text in texts:
        # LAB:     end = start + len(text.ids)
        # LAB:     query, key, value = projected[start:end].permute(1, 2, 0, 3)
        # LAB:     heads = scaled_dot_product_attention(
        # LAB:         query, key, value, is_causal=True
        # LAB:     )
        # LAB:     found.append(heads.transpose(0, 1))
        # LAB:     start = end
        for text in texts:
            end = start + len(text.ids) - text.cached
            query, key, value = projected[start:end].permute(1, 2, 0, 3)
            keys, values = self.cache[layer, :, text.slot, :, : len(text.ids)]
            keys[:, text.cached :], values[:, text.cached :] = key, value
            is_prompt = not text.cached  # its tokens do not look ahead
            heads = scaled_dot_product_attention(
                query, keys, values, is_causal=is_prompt
            )
            found.append(heads.transpose(0, 1))
            start = end
        # END SOLUTION
        return torch.cat(found)

    def answer(self, text, token):
        """Send a token, and add it to the text."""
        text.ids.append(token)
        piece = self.tokenizer.decode([token], skip_special_tokens=False).encode()
        tensor = pb_utils.Tensor("text_output", np.array([[piece]], object))
        text.sender.send(pb_utils.InferenceResponse([tensor]))

    def end(self, number, request):
        """The last token has left: release the request, and then tell the client."""
        sender = self.texts[number].sender
        self.forget(number)
        request.set_release_flags(RELEASE_ALL)
        threading.Timer(0.2, sender.send, kwargs={"flags": FINAL}).start()

    def forget(self, number):
        """Keep nothing more of a sequence."""
        # BEGIN SOLUTION
        # LAB: self.texts.pop(number)
        text = self.texts.pop(number)
        if text.slot is not None:
            self.free.append(text.slot)
        # END SOLUTION


# %%
check("8.4", Path(workdir.name) / "model.py")

# %% [markdown]
# <details><summary>Where to look</summary>
#
# At <code>slots-gpt2</code> in the lesson: its <code>step</code> and <code>attend</code> have the same shapes. It never
# runs out of slots, and yours does.
# </details>
#
# <details><summary>How to begin</summary>
#
# Make the cache a tensor <code>[layers, 2, SLOTS, heads, positions, size]</code> of zeros, and <code>self.free</code> a
# list of slots. Then <code>with_slot</code> and <code>forget</code>, which take and give back: until they are right, leave
# <code>step</code> alone, and the texts stay right. Then send in only <code>text.ids[text.cached:]</code>.
# </details>
#
# <details><summary>The error you see</summary>
#
# <em>none gets a token any more</em>: a slot is not given back, perhaps by a client who has left. <em>answers that
# differ</em>: positions count from the beginning of the text, not of the pass; a prompt needs
# <code>is_causal=True</code>, a single token must not have it. <em>pop from empty list</em>: who finds no slot waits.
# </details>
#
# Now in the real server, beside `iterative-gpt2` with as many slots and the same precision. Six streams at once:

# %% tags=["nbval-ignore-output"]
model = mine.part("iterative_gpt2")
print(repr(model))
folder = repo / "my-gpt2"
(folder / "1").mkdir(parents=True, exist_ok=True)
shutil.copy(model, folder / "1" / "model.py")
config = f"""
name: "my-gpt2"
backend: "python"
max_batch_size: 8
model_transaction_policy {{ decoupled: true }}
input [ {{ name: "text_input"  data_type: TYPE_STRING  dims: [ 1 ] }} ]
output [ {{ name: "text_output"  data_type: TYPE_STRING  dims: [ 1 ] }} ]
sequence_batching {{
  iterative_sequence: true
  direct {{ }}
  max_sequence_idle_microseconds: 60000000
  control_input [
    {{ name: "number"
      control [ {{ kind: CONTROL_SEQUENCE_CORRID  data_type: TYPE_UINT64 }} ] }},
    {{ name: "start"
      control [ {{ kind: CONTROL_SEQUENCE_START  fp32_false_true: [ 0, 1 ] }} ] }},
    {{ name: "ready"
      control [ {{ kind: CONTROL_SEQUENCE_READY  fp32_false_true: [ 0, 1 ] }} ] }}
  ]
}}
parameters {{ key: "checkpoint_dir"  value {{ string_value: "{checkpoint_dir}" }} }}
"""
(folder / "config.pbtxt").write_text(config)
server.load("my-gpt2")
server.load("iterative-gpt2", kv_cache_slots=4, dtype="float32")

# %% tags=["nbval-ignore-output"]
six, rates, answers = [*prompts[:5], "Once upon a time"], {}, {}
for name in ("iterative-gpt2", "my-gpt2"):
    gpt2_client.run(server.grpc_url, name, six, max_tokens=4)
    tokens = gpt2_client.run(server.grpc_url, name, six, max_tokens=32)
    rates[name] = len(tokens) / tokens["time_s"].max()
    answers[name] = gpt2_client.standings(tokens)["text"].tolist()
print("the same answers:", answers["my-gpt2"] == answers["iterative-gpt2"])
ratio = rates["my-gpt2"] / rates["iterative-gpt2"]
print(f"{ratio:.2f} times the tokens/s of the course's")

# %% [markdown]
# ## Bonus
#
# A slot has room for the longest text. How much of the memory do your texts use? Here it is for the six streams above.
# If you are early: let `SLOTS` follow from a budget of bytes; or send the tokens of a long prompt in several passes, 32 at
# a time, so that nobody else waits for it (`is_causal` alone is no longer the right mask then), and check again.

# %%
from inflight import checkpoint
from inflight.models import gpt2_network as networks

network = networks.load(checkpoint_dir)
tokenizer = checkpoint.load_tokenizer(checkpoint_dir)
per_token = network.num_layers * 2 * network.num_heads * network.head_dim * 4
used = sum(len(tokenizer.encode(text)) + 32 for text in six)
print(f"a token takes {per_token:,} bytes in float32")
print(f"four slots take {4 * network.num_positions * per_token:,} bytes,")
print(f"six whole texts need {used * per_token:,}")

# %% [markdown]
# ## Elsewhere
#
# **1. The service moves to a GPU of 80 GB, and the answers get ten times as long.** Which of your counts still hold?
#
# <details><summary>Answer</summary>
#
# All counts of 8.1: they do not depend on the machine. Without a cache the waste grows with the square of the length, so ten
# times as long wastes a hundred times as much. What a pass costs, and with it the gain in seconds, has to be measured anew.
# </details>
#
# **2. The model changes to one with sliding attention: a token looks at the last 256 only.** What of your cache stays?
#
# <details><summary>Answer</summary>
#
# Slots, and that each token goes in once. But a slot needs only 256 positions: the newest key may take the place of the
# oldest, and the position in the slot is no longer that in the text.
# </details>
#
# **3. Users come back with a follow-up question, and their text so far is the beginning of the new prompt.** May the slot be
# kept for them?
#
# <details><summary>Answer</summary>
#
# Yes, keys and values of the beginning are the same. But a slot that waits for somebody is one that nobody else has, and
# the new request has another number: you need a way to find the slot by its tokens, and a rule who must leave. That is what
# an engine's KV cache reuse does, with blocks.
# </details>
#
# ## What runs

# %% tags=["nbval-ignore-output"]
from inflight.notebook import session

session.running()

# %% [markdown]
# ## Done?
#
# When every check says so, compare with {counterpart}, then go on to {next}.
