# %% [markdown]
# # {heading}
#
# Four exercises, about {minutes} minutes (an estimate), of which {core} are *Core*. You count what a cache saves, compute a
# prompt in parts, make ten streams share four places, and let many readers share the few rows of a cache: your `model.py`
# then runs in the real server. You need the lecture, and some PyTorch.
#
# A check counts and does not time. It makes new prompts each time. It never stops the notebook: it says *done*, *not done
# yet*, or which way to go.
#
# Run the first code cell before any other: it brings `check`, and what the exercises use. A `NameError` says that it has
# not been run.
#
# {navigation}

# %% [markdown]
# ## Set up
#
# A server with `iterative-gpt2`, as in the lecture. It logs its forward passes.

# %% tags=["nbval-ignore-output"]
import shutil
import tempfile
from pathlib import Path

import numpy as np

from inflight.lessons.iterative_gpt2 import gpt2_client
from inflight.lessons import iterative_gpt2 as lesson
from inflight.models import gpt2_checkpoint
from inflight.notebook import check, parts
from inflight.triton import Server, repository

workdir = tempfile.TemporaryDirectory()
repo, log_path = Path(workdir.name) / "repo", Path(workdir.name) / "passes.jsonl"
checkpoint_dir = gpt2_checkpoint.find("course-gpt2")
repository.assemble(
    repo,
    models=("iterative-gpt2",),
    iteration_log_path=log_path,
    gpt2_checkpoint_dir=checkpoint_dir,
    gpt2_dtype="float32",  # as your model will compute
)
server = Server(repo).start()
gpt2_client.run(server.grpc_url, "iterative-gpt2", ["A warm-up"], max_tokens=4)[
    "text"
].tolist()

# %% [markdown]
# ## Exercise 8.1: count the waste
#
# *Further · importance 3/5 · difficulty 2/5 · 10 minutes*
#
# `prompts` has the number of tokens of each prompt. All are answered together, each with `answer` tokens. A pass computes
# the tokens that go into it, and gives every sequence one more. How many tokens go through the model, in all passes,
#
# - padded, as in the tutorial: each pass gets every text so far, each padded to the longest of them;
# - without a cache: each pass gets every text so far, and nothing else;
# - with a cache: the first pass gets the prompts, each later one the newest token of every sequence?


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
# At the cell of the lecture that counts the waste: its list has the tokens of each pass, for one prompt.
# </details>
#
# <details><summary>How to begin</summary>
#
# Take one prompt first. Its first pass gets the prompt, the second one token more, and so on. There are
# <code>answer</code> passes. Then add the others.
# </details>
#
# <details><summary>The error you see</summary>
#
# Too large by as many as there are prompts: the last token of an answer goes into no pass. Right for a single prompt only:
# in <code>padded</code> every text counts as long as the longest.
# </details>
#
# The server counts, too. Ask for 20 tokens in both ways, and compare:

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
# ## Exercise 8.2: a prompt in parts
#
# *Core · importance 5/5 · difficulty 4/5 · 20 minutes*
#
# The lecture's cache knows two cases: a whole prompt, and a single new token. An engine meets a third one: several new tokens
# behind others that are in the cache already. A long prompt comes so when it is computed in parts, a prompt whose beginning was
# kept, and a draft that has to be verified (lesson 11). `is_causal` is not the right mask then. This is attention as one head
# of one layer computes it for one token:


# %%
def attend(query: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Attention of a token: query [size], keys, values [tokens, size]; gives [size]."""
    scores = keys @ query / np.sqrt(len(query))
    weights = np.exp(scores - scores.max())
    return weights / weights.sum() @ values


# %% [markdown]
# Write the step for any number of new tokens. `x` has the newest tokens of a text alone, one or more. `query`, `key` and `value`
# are functions that turn tokens [tokens, width] into vectors [tokens, size]; each token may go through each of them once.
# `cache` is a dict, empty at first, that is yours to fill. Every text has its own, and it is handed in again with the text's
# next tokens. Each token attends to itself and to all before it, and to none after it.


# %%
def next_part(x: np.ndarray, query, key, value, cache: dict) -> np.ndarray | None:
    """Attention of the new tokens `x` [new, width]; gives [new, size]."""
    # BEGIN SOLUTION
    # LAB: return None
    new_keys, new_values = key(x), value(x)
    if cache:
        new_keys = np.concatenate([cache["keys"], new_keys])
        new_values = np.concatenate([cache["values"], new_values])
    cache.update(keys=new_keys, values=new_values)
    known = len(new_keys) - len(x)
    return np.stack(
        [
            attend(one, new_keys[: known + nth], new_values[: known + nth])
            for nth, one in enumerate(query(x), 1)
        ]
    )
    # END SOLUTION


# %%
check("8.2", next_part)

# %% [markdown]
# <details><summary>Where to look</summary>
#
# At the lecture's cached <code>attend</code>: it writes keys and values behind those that are known, and reads all of them. What
# is different for the second of three new tokens?
# </details>
#
# <details><summary>How to begin</summary>
#
# Put the new keys and values behind those in the cache first. Then count: of how many tokens are there keys now, and how many
# of them may the first new token see? The next one sees one more.
# </details>
#
# <details><summary>The error you see</summary>
#
# <em>tokens projected</em>: you keep the tokens and compute their keys again. Keep the keys. <em>none after it</em>: in a part
# of several tokens the first must not see the last, and the last must see all that is in the cache. <em>its own cache</em>: you
# filled a list of your own instead of <code>cache</code>.
# </details>
#
# ## Exercise 8.3: ten streams, four places
#
# *Further · importance 4/5 · difficulty 3/5 · 10 minutes*
#
# Ten impatient readers share a machine on which a pass with more than four texts is too slow. Find settings with which
#
# - all ten streams have begun before the first of them ends,
# - the fullest forward pass has four streams in it, and
# - no token is computed twice.
#
# `settings` names fields as the lecture's editor does: `"max_batch_size"`, `"kv_cache"`, and paths such as
# `"sequence_batching.oldest.max_candidate_sequences"`, which also chooses the strategy of that name. The check loads the
# model with them, sends ten prompts for 24 tokens each, and reads the log.

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
check("8.3", (settings, server))

# %% [markdown]
# <details><summary>Where to look</summary>
#
# At the fields of the editor in the lecture, and at <code>direct</code> and <code>oldest</code> in lesson 07.
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
# <em>streams in the fullest pass: 8</em>: nothing limits the batch yet. <em>begun after another had ended</em>: they waited
# in Triton, or for a row. <em>tokens computed twice</em>: without a cache nobody waits for a row, and everybody pays.
# </details>
#
# ## Exercise 8.4: few rows, many readers
#
# *Core · importance 5/5 · difficulty 4/5 · 25 minutes*
#
# In lab 07 you wrote an iterative model that keeps many streams apart, though some clients leave. Here is that part:

# %% tags=["nbval-ignore-output"]
yours = parts.part("iterative_model")
print(repr(yours))
if yours.is_own:
    print(yours.path.read_text())

# %% [markdown]
# The model below is the lecture's, with its KV cache; `gpt2_network.load` gives the course's form of the lecture's `Network`,
# with the same `next_tokens`. But there is room for **four** texts only (`ROWS`), and Triton's
# batch has up to eight places. Write the three methods that decide who has a row, and when:
#
# - `with_row`: a text without a row takes a free one. If there is none, it waits: it gets no token in this call and comes
#   again in the next. All others are computed together.
# - `forget_those_who_left`: Triton drops the request of a client that has gone. Its sequence is then in no later call, and
#   its sender says `is_cancelled()`.
# - `forget`: nothing of a sequence stays, and its row is free again. A client may leave while it still waits for one.
#
# Compared with the model of lab 07: what `states` was there is `texts` here.

# %% tags=["part:gpt2_model.py"]
# %%writefile {workdir.name}/model.py
"""GPT-2 as an iterative model: few rows in its KV cache, and many readers."""

import json
from functools import partial

import numpy as np
import torch
import triton_python_backend_utils as pb_utils
from torch.nn.functional import scaled_dot_product_attention

from inflight.checkpoint import load_tokenizer
from inflight.models import gpt2_network

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
RESCHEDULE = pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
ROWS = 4  # texts that the cache has room for


class Text:
    """A prompt and its answer so far."""

    def __init__(self, ids, max_tokens):
        self.ids = ids
        self.length = len(ids) + max_tokens  # when it is complete
        self.sender = None  # of its responses, as Triton gave it in the latest call
        self.row = None  # its row in the cache
        self.cached = 0  # tokens whose keys and values are there


def value(request, name):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy().item()


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        folder = parameters["checkpoint_dir"]["string_value"]
        self.tokenizer = load_tokenizer(folder)
        self.network = net = gpt2_network.load(folder)
        room = (ROWS, net.num_heads, net.num_positions, net.head_dim)
        self.cache = torch.zeros(net.num_layers, 2, *room)  # 2: keys, values
        self.texts = {}  # by the sequence's number
        self.free = list(range(ROWS))  # rows that nobody has

    def execute(self, requests):
        batch = {}
        for request in requests:
            if value(request, "ready"):
                number = value(request, "number")
                if value(request, "start"):
                    self.texts[number] = self.begin(request)
                self.texts[number].sender = request.get_response_sender()
                batch[number] = request
        self.forget_those_who_left(batch)
        computed = self.with_row(batch)
        if computed:
            tokens = self.step([self.texts[number] for number in computed])
            for number, token in zip(computed, tokens):
                self.answer(number, token)
        for number, request in batch.items():
            if number in self.texts:  # its answer is not complete
                request.set_release_flags(RESCHEDULE)

    def begin(self, request):
        """The state of a new sequence."""
        prompt = value(request, "text_input").decode()
        max_tokens = json.loads(request.parameters())["max_tokens"]
        return Text(self.tokenizer.encode(prompt), max_tokens)

    def answer(self, number, token):
        """Send a token; with the last one, the sequence is over."""
        text = self.texts[number]
        text.ids.append(token)
        is_last = len(text.ids) == text.length
        piece = self.tokenizer.decode([token], skip_special_tokens=False).encode()
        tensor = pb_utils.Tensor("text_output", np.array([[piece]], object))
        response = pb_utils.InferenceResponse([tensor])
        text.sender.send(response, flags=FINAL if is_last else 0)
        if is_last:
            self.forget(number)

    # These three are yours.

    def with_row(self, numbers):
        """Of these sequences, those that are computed now: a list of numbers."""
        # BEGIN SOLUTION
        # LAB: raise NotImplementedError
        for number in numbers:
            if self.texts[number].row is None and self.free:
                self.texts[number].row = self.free.pop()
        return [number for number in numbers if self.texts[number].row is not None]
        # END SOLUTION

    def forget_those_who_left(self, batch):
        """Forget the sequences that are not in this call because their clients left."""
        # BEGIN SOLUTION
        # LAB: pass
        for number in [number for number in self.texts if number not in batch]:
            if self.texts[number].sender.is_cancelled():
                self.forget(number)
        # END SOLUTION

    def forget(self, number):
        """Keep nothing more of a sequence."""
        # BEGIN SOLUTION
        # LAB: self.texts.pop(number)
        text = self.texts.pop(number)
        if text.row is not None:
            self.free.append(text.row)
        # END SOLUTION

    # Below, all is as in the lecture.

    def step(self, texts):
        """One forward pass: the next token of each text."""
        ids, positions, last = [], [], []
        for text in texts:
            ids += text.ids[text.cached :]
            positions += range(text.cached, len(text.ids))
            last.append(len(ids) - 1)
        attend = partial(self.attend, texts)
        tokens = self.network.next_tokens(ids, positions, last, attend)
        for text in texts:
            text.cached = len(text.ids)
        return tokens

    def attend(self, texts, layer, projected):
        """Attention: takes [tokens, 3, heads, size], gives [tokens, heads, size]."""
        found, start = [], 0
        for text in texts:
            end = start + len(text.ids) - text.cached
            query, key, value = projected[start:end].permute(1, 2, 0, 3)
            keys, values = self.cache[layer, :, text.row, :, : len(text.ids)]
            keys[:, text.cached :], values[:, text.cached :] = key, value
            is_prompt = text.cached == 0  # a single new token looks at everything
            heads = scaled_dot_product_attention(
                query, keys, values, is_causal=is_prompt
            )
            found.append(heads.transpose(0, 1))
            start = end
        return torch.cat(found)


# %%
check("8.4", Path(workdir.name) / "model.py")

# %% [markdown]
# <details><summary>Where to look</summary>
#
# At the last lines of <code>execute</code> in your model of lab 07, which drop the states of clients that have gone; and at
# <code>step</code> and <code>forget</code> of <code>cached-gpt2</code> in the lecture, which never run out of rows.
# </details>
#
# <details><summary>How to begin</summary>
#
# <code>self.free</code> is a list of rows. <code>with_row</code> pops one for each text whose <code>row</code> is
# <code>None</code>, as long as there are any, and returns the numbers of those texts that have one.
# </details>
#
# <details><summary>The error you see</summary>
#
# <em>IndexError: pop from empty list</em>: a text that finds no row waits. <em>none gets a token any more</em>: a row is
# not given back, perhaps that of a client who left. <em>KeyError</em>: you forgot a sequence whose request is in this call.
# <em>dictionary changed size</em>: go through a list of the numbers. <em>forward passes</em>: a free row is not taken at
# once.
# </details>
#
# Now in the real server, beside `iterative-gpt2`. Six clients leave after their first token, and then six streams are
# answered:

# %% tags=["nbval-ignore-output"]
model = parts.part("iterative_gpt2")
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
instance_group [ {{ kind: KIND_CPU }} ]
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

# %% tags=["nbval-ignore-output"]
for _ in range(6):
    reading = gpt2_client.race(server.grpc_url, "my-gpt2", ["A train is"], 900)
    while not next(reading):  # until the first token is there
        pass
    reading.close()
six = ["A cat is", "A river is", "A book is", "A train is", "A king is", "Once upon"]
answers = {}
for name in ("iterative-gpt2", "my-gpt2"):
    tokens = gpt2_client.run(server.grpc_url, name, six, max_tokens=32)
    answers[name] = gpt2_client.standings(tokens)["text"].tolist()
print("the same answers:", answers["my-gpt2"] == answers["iterative-gpt2"])

# %% [markdown]
# ## Bonus
#
# A row has room for the longest text. How much of the memory do your texts use? Here it is for the six streams above.
# If you are early: let `ROWS` follow from a budget of bytes. Or send the tokens of a long prompt in several passes, 32 at
# a time, so that nobody else waits for it (`is_causal` alone is no longer the right mask then), and check again.

# %%
from inflight import checkpoint
from inflight.models import gpt2_network as networks

network = networks.load(checkpoint_dir)
tokenizer = checkpoint.load_tokenizer(checkpoint_dir)
per_token = network.num_layers * 2 * network.num_heads * network.head_dim * 4
used = sum(len(tokenizer.encode(text)) + 32 for text in six)
print(f"a token takes {per_token:,} bytes in float32")
print(f"four rows take {4 * network.num_positions * per_token:,} bytes,")
print(f"six whole texts need {used * per_token:,}")

# %% [markdown]
# ## Elsewhere
#
# **1. The service moves to a GPU of 80 GB, and the answers get ten times as long.** Which of your counts still hold?
#
# <details><summary>Answer</summary>
#
# All counts of 8.1: they do not depend on the machine. Without a cache the waste grows with the square of the length, so
# answers of ten times the length waste about a hundred times as much. What a pass costs, and with it the gain in seconds,
# has to be measured anew.
# </details>
#
# **2. The model changes to one with sliding attention: a token looks at the last 256 only.** What of your cache stays?
#
# <details><summary>Answer</summary>
#
# The rows, and that each token goes in once. But a row needs only 256 positions: the newest key may take the place of the
# oldest. Then the position in the row is no longer the position in the text.
# </details>
#
# **3. Users come back with a follow-up question, and their text so far is the beginning of the new prompt.** May the row be
# kept for them?
#
# <details><summary>Answer</summary>
#
# Yes, keys and values of the beginning are the same. But a row that is kept for one user is missing for the others, and
# the new request has another number. You need a way to find the row by its tokens, and a rule which row is given up
# first. An engine's KV cache reuse does that, with blocks.
# </details>
#
# ## Done?
#
# When every check says so, compare with {counterpart}, then go on to {next}.
#
# The server ends with this notebook's kernel.
