# %% [markdown]
# # {heading}
#
# Three exercises, all *Core*, about {minutes} minutes (an estimate). You compute new tokens behind known ones, let
# many readers share few slots of a cache, and put blocks in the place of the slots. You need the lecture, and lab 07.
#
# A check counts and does not time. It makes new prompts each time, and never stops the notebook.
#
# Run the first code cell before any other: it brings `check`, and what the exercises use.
#
# {navigation}

# %% tags=["nbval-ignore-output"]
import shutil
import tempfile
from pathlib import Path

import numpy as np

from inflight.lessons import iterative_gpt2 as lesson
from inflight.lessons.iterative_gpt2 import gpt2_client
from inflight.models import gpt2_checkpoint
from inflight.notebook import check, parts
from inflight.triton import Server, repository

workdir = tempfile.TemporaryDirectory()
repo = Path(workdir.name) / "repo"
checkpoint_dir = gpt2_checkpoint.find("course-gpt2")
model = {"gpt2_checkpoint_dir": checkpoint_dir, "gpt2_dtype": "float32"}
repository.assemble(repo, models=("iterative-gpt2",), **model)
server = Server(repo).start()

# %% [markdown]
# ## Exercise 8.1: new tokens behind known ones
#
# *Core · importance 5/5 · difficulty 3/5 · 15 minutes*
#
# The lecture's cache knows two cases: a whole prompt, and a single new token. An engine meets a third one: several new
# tokens behind others that are in the cache already. This is the attention of one token, in one head of one layer:


# %%
def attend(query: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Attention of a token: query [size], keys, values [tokens, size]; gives [size]."""
    scores = keys @ query / np.sqrt(len(query))
    weights = np.exp(scores - scores.max())
    return weights / weights.sum() @ values


# %% [markdown]
# Write the step for any number of new tokens. `x` has only the newest tokens of a text, one or more. `query`, `key` and
# `value` are functions that turn tokens [tokens, width] into vectors [tokens, size]; call each of them once, with all new
# tokens together. `cache` is a dict, empty at first, that is yours to fill. Every text has its own, and it is handed in
# again with the text's next tokens. Each token attends to itself and to all before it, and to none after it.


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
check("8.1", next_part)

# %% [markdown]
# <details><summary>Where to look</summary>
#
# At the lecture's cached <code>attend</code>: it writes keys and values behind those that are known, and reads all of them.
# What is different for the second of three new tokens?
# </details>
#
# <details><summary>How to begin</summary>
#
# Put the new keys and values behind those in the cache first. Then count: of how many tokens are there keys now, and how
# many of them may the first new token see?
# </details>
#
# <details><summary>The error you see</summary>
#
# <em>tokens projected</em>: you keep the tokens and compute their keys again. Keep the keys. <em>calls</em>: the new tokens
# go in one after the other, not together. <em>not that of the whole
# text</em>: in the part that the message names, may the first new token see the last one? Does the last one see all that is
# in the cache? Is everything that you keep in <code>cache</code>?
# </details>
#
# ## Exercise 8.2: few slots, many readers
#
# *Core · importance 5/5 · difficulty 2/5 · 10 minutes*
#
# `Gpt2Model` (`inflight/lessons/iterative_gpt2/lab_model.py`) is the lecture's model with its KV cache, less the memory:
# `execute`, `step` and `attend` are there, and the state of each sequence is a `Text` in `self.texts`, with `ids`, `sender`, and `slot`, which is `None` at first. `attend`
# writes and reads at the positions that `where` names (`own` has query, key and value of the new tokens):
#
# ```python
# cache[:, :, where[text.cached :]] = own[1:]
# keys, values = cache[:, :, where]
# ```
#
# The batch has eight slots, but the cache only **four**. Write
# the two methods that decide who has one, and when:
#
# - `with_room`: a text without a slot takes a free one. If there is none, it waits: it gets no token in this call, and
#   comes again in the next. All others are computed together. Which of those who wait comes first is up to you: `numbers`
#   has the order of the batch, `self.texts` that of arrival, in which nobody waits for ever.
# - `forget`: nothing of a sequence stays, and its slot is free again. `Gpt2Model` calls `forget` also for clients that left
#   (lab 07). A client may leave while it still waits for a slot.

# %% tags=["part:gpt2_model.py"]
# %%writefile {workdir.name}/gpt2_model.py
"""GPT-2 as an iterative model: few slots in its KV cache, and many readers."""

from inflight.lessons.iterative_gpt2 import Gpt2Model

SLOTS = 4  # texts that the cache has room for


class TritonPythonModel(Gpt2Model):
    def initialize(self, args):
        super().initialize(args)
        self.room = self.network.num_positions  # of a slot
        self.cache = self.empty_cache(SLOTS * self.room)
        self.free = list(range(SLOTS))  # slots that nobody has

    def where(self, text):
        """The position in the cache of each token of a text."""
        start = text.slot * self.room
        return range(start, start + len(text.ids))

    def with_room(self, numbers):
        """Of these sequences, those that are computed now: a list of numbers."""
        # BEGIN SOLUTION
        # LAB: raise NotImplementedError
        for text in [self.texts[n] for n in self.texts if n in numbers]:
            if text.slot is None and self.free:
                text.slot = self.free.pop()
        return [number for number in numbers if self.texts[number].slot is not None]
        # END SOLUTION

    def forget(self, number):
        """Keep nothing more of a sequence."""
        # BEGIN SOLUTION
        # LAB: self.texts.pop(number)
        text = self.texts.pop(number)
        if text.slot is not None:
            self.free.append(text.slot)
        # END SOLUTION


# %%
check("8.2", Path(workdir.name) / "gpt2_model.py")

# %% [markdown]
# <details><summary>Where to look</summary>
#
# At <code>step</code> and <code>forget</code> of <code>cached-gpt2</code> in the lecture, which never wait for a slot.
# </details>
#
# <details><summary>How to begin</summary>
#
# With <code>with_room</code>, for five texts and four slots. What tells a text that has a slot from one that waits? Which
# numbers does it return in this call, and which in the call after one of the four is forgotten?
# </details>
#
# <details><summary>The error you see</summary>
#
# <em>IndexError: pop from empty list</em>: a text that finds no slot waits. <em>none gets a token any more</em>: a slot is
# not given back. <em>waited while a slot was free</em>: a call takes one slot where it could take several,
# or <code>forget</code> has put the <code>None</code> of a text without a slot into <code>free</code>.
# </details>
#
# ## Exercise 8.3: blocks in place of slots
#
# *Core · importance 5/5 · difficulty 3/5 · 25 minutes*
#
# A slot has 1,024 positions, and a reader uses thirty. Cut **a quarter of a slot** into 16 blocks of 16 tokens, and serve
# eight readers from it. `text.blocks`, `[]` at first, is its *block table* (lesson 05): entry 0 says which block has its tokens 0 to 15, entry 1 which has 16 to 31.
#
# - `with_room`: a text that has no blocks gets all that it may need, for `text.length` tokens (prompt and answer), or it waits.
#   All that arrived after it (the order of `self.texts`) wait, too: else short texts overtake a long one for ever. No text
#   is paused: this is `guaranteed_no_evict`. No text here needs more than 16 blocks; an engine refuses one that
#   does when it arrives.
# - `where`: the position in the cache of each token of the text so far. Block 5 has positions 80 to 95. `attend` stays
#   as it is.
# - `forget`: its blocks are free again.

# %% tags=["part:paged_model.py"]
# %%writefile {workdir.name}/paged_model.py
"""GPT-2 as an iterative model: its KV cache in blocks, and a block table for each reader."""

from inflight.lessons.iterative_gpt2 import Gpt2Model

BLOCKS, BLOCK = 16, 16  # so many blocks, each for so many tokens


class TritonPythonModel(Gpt2Model):
    def initialize(self, args):
        super().initialize(args)
        self.cache = self.empty_cache(BLOCKS * BLOCK)
        self.free = list(range(BLOCKS))  # blocks that nobody has

    def with_room(self, numbers):
        """Of these sequences, those that are computed now: a list of numbers."""
        # BEGIN SOLUTION
        # LAB: raise NotImplementedError
        for text in [self.texts[number] for number in self.texts if number in numbers]:
            needed = -(-text.length // BLOCK)
            if text.blocks:
                continue
            if needed > len(self.free):
                break  # a shorter one that came later would overtake it for ever
            text.blocks = [self.free.pop() for _ in range(needed)]
        return [number for number in numbers if self.texts[number].blocks]
        # END SOLUTION

    def where(self, text):
        """The position in the cache of each token of a text."""
        # BEGIN SOLUTION
        # LAB: raise NotImplementedError
        return [
            text.blocks[token // BLOCK] * BLOCK + token % BLOCK
            for token in range(len(text.ids))
        ]
        # END SOLUTION

    def forget(self, number):
        """Keep nothing more of a sequence."""
        # BEGIN SOLUTION
        # LAB: self.texts.pop(number)
        self.free += self.texts.pop(number).blocks
        # END SOLUTION


# %%
check("8.3", Path(workdir.name) / "paged_model.py")

# %% [markdown]
# <details><summary>Where to look</summary>
#
# At the block table of lesson 05, and at <code>where</code> of 8.2: there a text's positions lie side by side, here sixteen
# by sixteen.
# </details>
#
# <details><summary>How to begin</summary>
#
# With <code>where</code>, on paper: the table is 5, 2, and the text has 20 tokens. Where is token 17?
# </details>
#
# <details><summary>The error you see</summary>
#
# <em>answers that differ</em>: two texts share a block, or <code>where</code> ignores the table. <em>list index out of
# range</em>: the table is too short; count the tokens of the answer as well. <em>texts in the fullest pass</em>: a text
# holds more blocks than it needs. <em>none gets a token any more</em>: blocks are not given back. <em>overtaken</em>: a
# text found no room, and a later one was looked at all the same. <em>items and bytes kept</em>: the cache is larger than 16
# blocks of 16.
# </details>
#
# Now in the real server. Twelve clients leave after their first token; then eight readers ask. How many wait, in each
# of your models? After each pass `Gpt2Model` notes in a log how many waited for room.

# %% tags=["nbval-ignore-output"]
for name in ("gpt2_model", "paged_model"):
    part = parts.part("iterative_gpt2" if name == "gpt2_model" else "paged_gpt2")
    print(repr(part))
    folder = repo / name
    (folder / "1").mkdir(parents=True, exist_ok=True)
    shutil.copy(part, folder / "1" / "model.py")
    log = folder / "1" / "waited.log"
    config = lesson.config(name, checkpoint_dir=checkpoint_dir, log=log)
    (folder / "config.pbtxt").write_text(config)
    server.load(name)

# %% tags=["nbval-ignore-output"]
readers = list(gpt2_client.PROMPTS)


def answers(name):
    tokens = gpt2_client.run(server.grpc_url, name, readers, max_tokens=20)
    return gpt2_client.standings(tokens)["text"].tolist()


for name, positions in {"gpt2_model": 4 * 1024, "paged_model": 16 * 16}.items():
    for _ in range(12):
        reading = gpt2_client.race(server.grpc_url, name, readers[:1], 200)
        next(filter(None, reading))  # the first token
        reading.close()
    # One more needs all blocks: when it is over, those who left are forgotten.
    gpt2_client.run(server.grpc_url, name, readers[:1], 250)
    log = repo / name / "1" / "waited.log"
    log.write_text("")
    own, most = answers(name), max(map(int, log.read_text().split()))
    print(f"{name}, {positions:,} positions: at most {most} waited")
    print("The same answers as iterative-gpt2:", own == answers("iterative-gpt2"))

# %% [markdown]
# Slots let four of eight wait in 4,096 positions. Blocks let nobody wait in 256: eight readers of at most 32 tokens need two
# blocks each.
#
# ## Bonus
#
# Two readers send the same prompt of more than 16 tokens. Let them share its full blocks. What must
# `forget` count then? Or give a text its blocks one by one. What if there is none left in mid-answer?

# %% [markdown]
# ## Elsewhere
#
# **1. The answers get ten times as long.** What do they cost in tokens?
#
# <details><summary>Answer</summary>
#
# After a prompt of 6, an answer of 960 costs 466,080 tokens without a cache, 91 times what one of 96 costs, and 965 with
# one. These are counts, not seconds.
# </details>
#
# **2. The model changes to one with sliding attention: a token looks at the last 256 only.** What of your block table
# stays?
#
# <details><summary>Answer</summary>
#
# The table, and that each token goes in once. But blocks whose tokens are all older than 256 may be given back while the
# text goes on.
# </details>
#
# **3. Users come back with a follow-up question, and their text so far is the beginning of the new prompt.** May the blocks
# be kept for them?
#
# <details><summary>Answer</summary>
#
# Yes: the keys and values of the beginning are the same. But blocks that are kept for one user are missing for the others.
# You need a way to find blocks by their tokens, and a rule for which to give up
# first: an engine's KV cache reuse (lesson 05).
# </details>
#
# ## Done?
#
# When every check says so, compare with {counterpart}, then go on to {next}.
