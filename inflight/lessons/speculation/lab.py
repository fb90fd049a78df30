# %% [markdown]
# # {heading}
#
# Three exercises, about {minutes} minutes (an estimate), of which {core} are *Core*. You write the rule for a drafter that
# is a model, and a drafter that the running engine asks. Then you share drafts out among users, as an engine does whose
# batch is full.
#
# A check counts and never times. It never stops you: it says *done*, *not done yet*, or what to look at.
#
# Run the first code cell before any other: it brings `check`, and what the exercises use. A `NameError` says that it has
# not been run.
#
# {navigation}

# %%
import random
import tempfile
from dataclasses import replace
from pathlib import Path

from inflight import engine
from inflight.bench import trace_run, workload
from inflight.checkpoint import fetch, load_tokenizer
from inflight.notebook import check, parts, progress
from inflight.triton import Client, Server, repository

workdir = tempfile.TemporaryDirectory()

# %% [markdown]
# ## Exercise 11.1: a drafter that is a model
#
# *Core · importance 5/5 · difficulty 4/5 · 35 minutes*
#
# A small model has drafted: `draft[i]` was drawn from `q[i]`, its probabilities at that place. The large model has computed
# `p`: `p[i]` are its probabilities at the place of `draft[i]`, and `p` has one row more than the draft. Return the tokens
# that the iteration brings, so that
#
# - they come with the large model's probabilities, as without drafts;
# - as many guesses are kept as that allows;
# - nothing comes behind the token `end`.
#
# `chance` is a `random.Random`: `chance.random()` is a number from 0 to 1, and `chance.choices(range(len(row)), row)[0]` draws a
# token with chances in proportion to `row`, which need not have the sum 1.
#
# The check plays your rule thousands of times, with some tokens that only one of the models ever says, and with a drafter
# that is sure of its guess, as a lookup is.


# %%
def accept(p: list, q: list, draft: list[int], chance, end: int) -> list[int] | None:
    """The tokens that an iteration brings."""
    # BEGIN SOLUTION
    # LAB: return None
    brought = []
    for large, small, guess in zip(p, q, draft):
        if chance.random() < large[guess] / small[guess]:
            brought.append(guess)
            if guess == end:
                return brought
        else:
            left = [max(0, one - other) for one, other in zip(large, small)]
            return [*brought, chance.choices(range(len(left)), left)[0]]
    return [*brought, chance.choices(range(len(p[-1])), p[-1])[0]]
    # END SOLUTION


# %%
check("11.1", accept)

# %% [markdown]
# <details><summary>Where to look</summary>
#
# The lecture's <em>With chance</em> has the arithmetic for one place. Here there are several, one after the other.
# </details>
#
# <details><summary>How to begin</summary>
#
# With the first guess alone. Keep it with the chance p/q, which may be above 1. If it is thrown away, one more token comes,
# and the iteration is over. What if it is kept, and what if all are?
# </details>
#
# <details><summary>The error you see</summary>
#
# <em>… came; … are wanted</em> about a guess: the chance to keep it is wrong, or its replacement may be the guess itself.
# <em>Look at what replaces</em>: a replacement drawn from p itself brings the likely words too often.
# <em>The token after the last is forgotten</em>: p has one row more.
# </details>
#
# Your rule at work, with three drafters for one place: a good one, one that knows nothing, and a lookup. The share kept is
# the sum of the smaller of p and q.

# %%
chance, large = random.Random(7), [0.1, 0.6, 0.3]
drafters = {"good": [0.2, 0.5, 0.3], "flat": [1 / 3] * 3, "lookup": [0, 1, 0]}
for name, small in drafters.items():
    played = []
    for _ in range(5000):
        guess = chance.choices(range(3), small)[0]
        played.append(accept([large, large], [small], [guess], chance, end=9) or [])
    kept = sum(len(brought) == 2 for brought in played) / len(played)
    least = sum(map(min, large, small))
    print(f"{name}: {kept:.2f} of the guesses kept, {least:.2f} on paper")

# %% [markdown]
# ## Exercise 11.2: a drafter of your own, in the running engine
#
# *Core · importance 4/5 · difficulty 3/5 · 25 minutes*
#
# A support desk sends the same sentences every day, in another order each time. They are not in the prompt, so a lookup
# in one text finds little. But an earlier answer had them. Write a class with one method. The engine makes an object of
# it for each request, and calls `propose` before each iteration. The file below proposes nothing.
#
# The check plays twelve letters, each of six of the same twelve sentences, the first said again at the end. Without
# drafts they take as many iterations as tokens; with yours they may take at most 70 % of that.


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
check("11.2", Path(workdir.name) / "drafter.py")

# %% [markdown]
# <details><summary>Where to look</summary>
#
# Which token followed the last two or three, in any request so far? What do you keep, to know it at once?
# </details>
#
# <details><summary>How to begin</summary>
#
# With one guess: for each place of <code>token_ids</code> that you have not seen yet, note what followed the tokens before
# it. If that works, what do you look up to find the second guess?
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
records = workload.read_dataset(workload.DATASETS["chat"])[:4]
questions = workload.from_dataset(records, tokenizer)
questions = [replace(question, max_tokens=48) for question in questions]
for time in ("first", "second"):
    with progress.wait(f"Four questions, the {time} time"):
        log = trace_run.run(client, questions, log_path, concurrency=1).log
    print(f"the {time} time: {len(log)} iterations,", end=" ")
    print(f"{log['accepted'].sum()} of {log['drafted'].sum()} drafts accepted")

# %% [markdown]
# The second time the answers are known, and most guesses come true. A wrong entry costs time: the rule drops its guesses.
# The dict never forgets, so a server that runs for weeks needs a bound on it.
#
# ## Exercise 11.3: who gets the drafts?
#
# *Further · importance 4/5 · difficulty 4/5 · 25 minutes*
#
# Several users share an iteration. `chances[u]` is user u's α: a guess for them is right with that chance if all before it
# were, and counts for nothing otherwise. `price_ms[n]` is what the iteration takes with n drafted tokens in all, from 0 on,
# whoever they belong to. Nobody may have more than `most`. Return how many each gets, so that the iteration brings the most
# tokens per millisecond. Every user gets one token in any case.
#
# The prices are measured, so they need not rise evenly. The check plays sixty cases and compares the tokens per
# millisecond, so of equally good answers any will do.


# %%
def share_out(
    chances: list[float], price_ms: list[float], most: int
) -> list[int] | None:
    """How many tokens are drafted for each user."""
    # BEGIN SOLUTION
    # LAB: return None
    lengths, tokens = [0] * len(chances), float(len(chances))
    best, best_rate = list(lengths), tokens / price_ms[0]
    for ms in price_ms[1:]:
        gains = [
            chance ** (length + 1) if length < most else -1
            for chance, length in zip(chances, lengths)
        ]
        user = gains.index(max(gains))
        lengths[user] += 1
        tokens += gains[user]
        if tokens / ms > best_rate:
            best, best_rate = list(lengths), tokens / ms
    return best
    # END SOLUTION


# %%
check("11.3", share_out)

# %% [markdown]
# <details><summary>Where to look</summary>
#
# How many tokens does one more draft bring, if a user has two already? It counts if all three are right.
# </details>
#
# <details><summary>How to begin</summary>
#
# For a number of drafts that is given: who gets the next one? Give them out one by one, and note the tokens per millisecond
# after each. Which of these moments was the best?
# </details>
#
# <details><summary>The error you see</summary>
#
# <em>As many drafts in all, at other users</em>: a user's third guess may count less often than somebody else's first.
# <em>Try every number</em>: a price may jump and then stay, so do not stop at the first draft that does not pay.
# </details>
#
# Two editors and six who chat, at prices that two cores had. Without drafts they get 0.52 tokens a millisecond together,
# with four for each 0.42, with the best lengths 0.68:

# %%
price_ms = [15.3 + 0.7 * drafted for drafted in range(33)]
print(share_out([0.9, 0.9] + [0.2] * 6, price_ms, 4))

# %% [markdown]
# ## Bonus
#
# Extend your drafter: propose one token where one of the last tokens was found, and `k` where three were. Does it draft less,
# and are more of its drafts accepted?
#
# ## Elsewhere
#
# **1.** A service of 200 users at a time has speculation switched on, four drafts each. Of these 70 % are accepted,
# and a colleague wants to raise it to 90 % with a better drafter. What do you ask first?
#
# <details><summary>Answer</summary>
#
# What an iteration costs with 200 tokens and with 1,000. If the machine's arithmetic is full at 200, each draft is paid
# in full: at 70 % accepted over drafted, four drafts bring 1 + 4 × 0.7 = 3.8 tokens for up to five times the price, and at
# 90 % 4.6: no drafter can repair that.
# </details>
#
# **2.** The drafter is a model, and its makers sharpen it: it draws with temperature 0, the large model with 1. Is the rule
# still right? Are more guesses kept?
#
# <details><summary>Answer</summary>
#
# It is right if q is what the guess was drawn from: 1 for the likeliest token, 0 for the others. Kept is then p of that
# token, in place of the sum of min(p, q). That is more where the large model is nearly sure of the same token and the
# drafter was not, and less where the large model is undecided.
# </details>
#
# **3.** Your drafter of 11.2 shares what it learnt among all users. One of them measures how fast answers come. What
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
