# %% [markdown]
# # {heading}
#
# Five exercises, about {minutes} minutes (an estimate), of which {core} are *Core*. You write the lookup, the rule that
# keeps an answer what it would have been, and the price of a draft on paper. Then you find out how long a draft should
# be, and put a drafter of your own into the running engine.
#
# A check counts and never times. The rule is played on made-up distributions with thousands of seeds: a rule that
# changes the answers shows in what they come to. A check never stops you: it says *done*, *not done yet*, or what to
# look at.
#
# Run the first code cell before any other: it brings `check`, and what the exercises use. A `NameError` says that it has
# not been run.
#
# {navigation}

# %%
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from inflight import engine
from inflight.bench import trace_run, workload
from inflight.checkpoint import fetch, load_tokenizer
from inflight.notebook import check, parts, progress
from inflight.triton import Client, Server, repository

workdir = tempfile.TemporaryDirectory()

# %% [markdown]
# ## Exercise 11.1: the lookup
#
# *Core · importance 4/5 · difficulty 2/5 · 12 minutes*
#
# `tokens` are the ids of prompt and answer so far. Take the last `longest` of them, and find the **latest** place before
# the end where the same ids stood. Propose what followed there, at most `k` tokens. Where so many are not found, try one
# less, down to one. Where nothing is found, propose an empty list.


# %%
def propose(tokens: list[int], k: int, longest: int) -> list[int] | None:
    """What may come next: at most k tokens."""
    # BEGIN SOLUTION
    # LAB: return None
    for size in range(longest, 0, -1):
        for start in range(len(tokens) - size - 1, -1, -1):
            if tokens[start : start + size] == tokens[-size:]:
                return tokens[start + size : start + size + k]
    return []
    # END SOLUTION


# %%
check("11.1", propose)

# %% [markdown]
# <details><summary>Where to look</summary>
#
# At the lesson's <code>propose</code>: two loops, one over sizes and one over places.
# </details>
#
# <details><summary>How to begin</summary>
#
# With one size: from which place on would the search find the last tokens themselves? Begin one before it, and go down
# to 0.
# </details>
#
# <details><summary>The error you see</summary>
#
# <em>That place does not count</em>: the last tokens are equal to themselves. <em>Begin behind the place that was
# found</em>: what was matched is in the answer already, so add the size to the start.
# </details>
#
# ## Exercise 11.2: the rule
#
# *Core · importance 5/5 · difficulty 3/5 · 15 minutes*
#
# One iteration has computed a draft. `rows` are the model's probabilities: `rows[0]` for the token after the text,
# `rows[1]` for the token after the text and the first guess, and so on; there is one row more than guesses. `choose(row)`
# draws a token from a row, as the engine does without drafts. Return the tokens that the iteration brings. They must be
# distributed as without drafts, they must be as many as can be had, and nothing may come behind the token `end`.


# %%
def accept(rows: list, draft: list[int], choose, end: int) -> list[int] | None:
    """The tokens that an iteration brings."""
    # BEGIN SOLUTION
    # LAB: return None
    brought = []
    for row, guessed in zip(rows, [*draft, None]):
        brought.append(choose(row))
        if brought[-1] == end or brought[-1] != guessed:
            break
    return brought
    # END SOLUTION


# %%
check("11.2", accept)

# %% [markdown]
# <details><summary>Where to look</summary>
#
# Which row is right in any case? And which one if the first guess is what was drawn?
# </details>
#
# <details><summary>How to begin</summary>
#
# Draw from the first row. Is it the guess? Then the second row belongs to the text that you have: draw from it. Is it
# not? Then it is the answer's token all the same, and you are done.
# </details>
#
# <details><summary>The error you see</summary>
#
# <em>Do not accept a guess because it is likely</em>: an answer that always takes the likely word is another answer.
# <em>The token after the last is forgotten</em>: where all guesses are right, the last row gives a token more.
# <em>It goes on behind a token that is not the guess</em>: those rows were computed behind the wrong word.
# </details>
#
# Your rule at work: in a language of three words an answer begins with 1 and 2 in 36 of 100 cases, and a draft of these
# two does not change that.

# %%
random = np.random.default_rng(7)
rows = [[0.1, 0.6, 0.3], [0.3, 0.1, 0.6], [0.5, 0.4, 0.1]]
played = [
    accept(rows, [1, 2], lambda row: int(random.choice(3, p=row)), end=9) or []
    for _ in range(5000)
]
print(
    f"{np.mean([brought[:2] == [1, 2] for brought in played]):.2f} begin with 1 and 2;"
)
print(
    f"an iteration brings {np.mean([len(brought) for brought in played]):.2f} tokens."
)

# %% [markdown]
# ## Exercise 11.3: the price on paper
#
# *Core · importance 5/5 · difficulty 2/5 · 10 minutes*
#
# An iteration in which each of `users` computes one token takes `plain_ms`. Each token more, whoever it belongs to, takes
# `token_ms`. In an average iteration each user has `drafted` tokens of a draft, of which `accepted` are right. How many
# times as fast as without drafts does each of them get an answer?


# %%
def speed_up(accepted, drafted, users, plain_ms, token_ms) -> float | None:
    """How many times as fast as without drafts."""
    # BEGIN SOLUTION
    # LAB: return None
    with_ms = plain_ms + users * drafted * token_ms
    return (1 + accepted) * plain_ms / with_ms
    # END SOLUTION


# %%
check("11.3", speed_up)

# %% [markdown]
# <details><summary>Where to look</summary>
#
# At <code>on_paper</code> and <code>speed_up</code> in the lesson: this is one with the other.
# </details>
#
# <details><summary>How to begin</summary>
#
# Tokens over time, with drafts and without. Without: 1 over <code>plain_ms</code>.
# </details>
#
# <details><summary>The error you see</summary>
#
# <em>One token more than were accepted</em>: each iteration brings a token of the model's own. <em>Each of the users has a
# draft to pay for</em>: with eight users an iteration has eight drafts. <em>Thrown away</em>: a wrong guess costs as
# much as a right one.
# </details>
#
# A draft of four of which two are right, at 14 ms for one user and 19 ms for eight, and 0.6 ms a token:

# %%
for users, plain_ms in ((1, 14), (8, 19)):
    times = speed_up(2, 4, users, plain_ms, 0.6)
    if times is not None:
        print(f"{users} user{'s' * (users > 1)}: {times:.2f} times as fast")

# %% [markdown]
# ## Exercise 11.4: when to stop drafting
#
# *Further · importance 4/5 · difficulty 3/5 · 12 minutes*
#
# A guess is right with the chance `right` if those before it were right, and counts for nothing otherwise. `price_ms[n]`
# is what an iteration takes with n drafts for each user, from 0 on. Return the length of draft that gives the most tokens
# per millisecond. It may be 0.


# %%
def best_length(right: float, price_ms: list[float]) -> int | None:
    """How many tokens to draft: from 0 to the last length that has a price."""
    # BEGIN SOLUTION
    # LAB: return None
    rates, tokens = [], 0
    for length, ms in enumerate(price_ms):
        tokens += right**length
        rates.append(tokens / ms)
    return rates.index(max(rates))
    # END SOLUTION


# %%
check("11.4", best_length)

# %% [markdown]
# <details><summary>Where to look</summary>
#
# How many tokens does a draft of two bring on average? One comes anyway, a second with the chance
# <code>right</code>, a third with <code>right * right</code>.
# </details>
#
# <details><summary>How to begin</summary>
#
# A list with a rate for each length: the sum of these chances over the price. Then take the place of its largest.
# </details>
#
# <details><summary>The error you see</summary>
#
# <em>No draft at all is a length, too</em>: with many users and poor guesses every draft costs more than it brings.
# <em>The third guess counts only if the first two were right</em>: the chances are multiplied, not added up.
# </details>
#
# ## Exercise 11.5: a drafter of your own, in the running engine
#
# *Further · importance 4/5 · difficulty 3/5 · 20 minutes*
#
# A support desk sends the same sentences every day, in another order each time. They are not in the prompt, so a lookup
# in one text finds nothing. But an earlier answer had them. Write a class with one method. The engine makes an object of
# it for each request, and calls `propose` before each iteration; what all requests share stands outside the class. The
# file below proposes nothing.
#
# The check plays twelve letters, each of seven of the same twelve sentences. Without drafts they take as many iterations
# as tokens.


# %%
# %%writefile {workdir.name}/drafter.py
followed = {}  # all requests share it


class Drafter:
    """What may come next; the engine makes one for each request."""

    # BEGIN SOLUTION
    # LAB: def propose(self, token_ids, k):
    # LAB:     return []
    known = 3

    def propose(self, token_ids, k):
        for at in range(self.known, len(token_ids)):
            followed[tuple(token_ids[at - 3 : at])] = token_ids[at]
        self.known = max(self.known, len(token_ids))
        draft = []
        while len(draft) < k:
            last = tuple([*token_ids[-3:], *draft][-3:])
            if last not in followed:
                break
            draft.append(followed[last])
        return draft

    # END SOLUTION


# %%
check("11.5", Path(workdir.name) / "drafter.py")

# %% [markdown]
# <details><summary>Where to look</summary>
#
# Which tokens followed the last two or three, in any request so far? A dict from a tuple of tokens to the next token
# knows it at once.
# </details>
#
# <details><summary>How to begin</summary>
#
# First write down, for each place of <code>token_ids</code> that you have not seen yet, what followed the tokens before
# it. Then begin with the last ones and ask the dict for the next token, again and again, up to <code>k</code> times.
# </details>
#
# <details><summary>The error you see</summary>
#
# <em>Remember what earlier requests said</em>: what you assign to <code>self</code> ends with the request; a dict outside
# the class stays.
# <em>propose() gave 5 tokens; k was 4</em>: near the end of an answer <code>k</code> gets smaller.
# </details>
#
# `parts.part` returns your file once it has passed, and the course's until then. The engine asks it. The same four
# questions, asked twice:

# %% tags=["nbval-ignore-output"]
drafter = parts.part("drafter")
print(repr(drafter))
engine_dir = engine.cached(fetch())
tokenizer = load_tokenizer(engine_dir)
log_path = Path(workdir.name) / "iterations.jsonl"
repo = repository.assemble(
    Path(workdir.name) / "repo",
    engine_dir,
    decoupled_mode=True,
    iteration_log_path=log_path,
    speculative_config={"decoding_type": "NGram", "max_draft_len": 4},
    drafter_path=drafter.path,
)
server = Server(repo).start()
client = Client(server.grpc_url, timeout_s=600)
questions = workload.from_dataset(
    workload.read_dataset(workload.DATASETS["chat"]), tokenizer
)[:4]
questions = [replace(question, max_tokens=48) for question in questions]
for time in ("first", "second"):
    with progress.wait(f"Four questions, the {time} time"):
        log = trace_run.run(client, questions, log_path, concurrency=1).log
    print(f"the {time} time: {len(log)} iterations,", end=" ")
    print(f"{log['accepted'].sum()} of {log['drafted'].sum()} drafts accepted")

# %% [markdown]
# The second time the answers are known, so most guesses are right, as long as the engine finds them worth their price.
# A wrong entry costs time and never changes an answer.
#
# ## Bonus
#
# A lookup that finds one token has less reason to be right than one that finds three. Extend your drafter: propose one
# token where one was found, and `k` where three were. Does it draft less, and are more of its drafts accepted?
#
# ## Elsewhere
#
# **1.** A service of 200 users at a time has speculation switched on, four drafts each. Of these 70 % are accepted,
# and a colleague wants to raise it to 90 % with a better drafter. What do you ask first?
#
# <details><summary>Answer</summary>
#
# What an iteration costs with 200 tokens and with 1,000. If the machine's arithmetic is full at 200, each draft is paid
# in full: at 70 % four drafts bring 1 + 4 × 0.7 = 3.8 tokens for up to five times the price, and at 90 % 4.6: no
# drafter can repair that.
# </details>
#
# **2.** Temperature 1.0 in place of greedy: what happens to the acceptance rate of a lookup, and to the quality of the
# answers?
#
# <details><summary>Answer</summary>
#
# A guess is accepted when it is drawn, so with the probability that the model gives it; greedy accepts it whenever it is
# the likeliest. The rate falls. The answers are distributed as without drafts.
# </details>
#
# **3.** Your drafter of 11.5 shares what it learnt among all users. One of them measures how fast answers come. What
# may they learn?
#
# <details><summary>Answer</summary>
#
# That somebody else's answer had the same sentences: an answer that is drafted well comes faster. They cannot read
# the words, but can test a guess at them by its time. The same holds for a prefix cache that is shared between tenants.
# </details>
#
# ## What runs

# %% tags=["nbval-ignore-output"]
from inflight.notebook import session

session.running()

# %% [markdown]
# ## Done?
#
# When every check says so, compare with {counterpart}.
