# %% [markdown]
# # {heading}
#
# Three exercises, about 35 minutes. You measure what a user feels, end a request as soon as you have what you need,
# and find out how many readers one server can please.
#
# Make a copy of this notebook before you edit it, so that an update of the course never touches your work. A check
# never stops you: it says done, not done yet, or gives a hint.
#
# {navigation}

# %% [markdown]
# ## Set up
#
# A server like the lesson's: decoupled, so that it can stream. It uses the engine from lesson 01.

# %% tags=["nbval-ignore-output"]
import tempfile
from pathlib import Path

from inflight import engine
from inflight.checkpoint import fetch
from inflight.notebook import check
from inflight.triton import Client, Server, repository

workdir = tempfile.TemporaryDirectory()
repo = repository.assemble(
    Path(workdir.name) / "repo", engine.cached(fetch()), decoupled_mode=True
)
server = Server(repo).start()
client = Client(server.grpc_url)
print("warm-up:", client.ask("Name the capital of France.").text)

# %% [markdown]
# ## Exercise 3.1 · What the user felt
#
# 8 minutes · easy
#
# A streamed answer has `times_s`: for each piece, the seconds from sending the request to its arrival. Write the
# function that turns them into what the user felt:
#
# - `ttft_ms`: until the first piece, in milliseconds;
# - `itl_ms`: from one piece to the next, the mean over the answer, in milliseconds; `None` if there is only one
#   piece;
# - `end_to_end_ms`: until the last piece, in milliseconds;
# - `tokens_per_s`: pieces a second, over the whole time.


# %%
def felt(times_s: list[float]) -> dict[str, float | None] | None:
    """TTFT, mean ITL, end-to-end latency (ms), tokens/s of a streamed answer."""
    # BEGIN SOLUTION
    # LAB: return None
    first, last, count = times_s[0], times_s[-1], len(times_s)
    return {
        "ttft_ms": first * 1000,
        "itl_ms": (last - first) / (count - 1) * 1000 if count > 1 else None,
        "end_to_end_ms": last * 1000,
        "tokens_per_s": count / last,
    }
    # END SOLUTION


# %%
check("3.1", felt)

# %% [markdown]
# Try it on a real answer:

# %% tags=["nbval-ignore-output"]
answer = client.stream("Name the planets.", max_tokens=32).read()
felt(answer.times_s)

# %% [markdown]
# <details><summary>Hint 1: the ITL</summary>
#
# Between <i>n</i> pieces there are <i>n</i> − 1 gaps, and all gaps together last from the first piece to the last.
# </details>
#
# <details><summary>Hint 2: "float division by zero"</summary>
#
# One piece has no gap. Decide that case before you divide.
# </details>

# %% [markdown]
# ## Exercise 3.2 · Read no more than you need
#
# 12 minutes · medium
#
# A program asks for a fact and needs only the word that it looks for. Write `read_until`: it takes a stream and a
# word, reads piece by piece until the text so far has the word in it, ends the request, and returns the text so far.
# If the word never comes, it returns the whole text.

# %%
from inflight.triton import Stream


def read_until(stream: Stream, word: str) -> str | None:
    """The text up to the piece that completes `word`; the request is ended there."""
    # BEGIN SOLUTION
    # LAB: return None
    text = ""
    for piece in stream:
        text += piece
        if word in text:
            break
    stream.cancel()
    return text
    # END SOLUTION


# %%
check("3.2", read_until)

# %% [markdown]
# And on the server: how many of the 200 tokens that were asked for were ever made?

# %% tags=["nbval-ignore-output"]
stream = client.stream(
    "Name the capital of France. Then tell me its history.", max_tokens=200, end_id=-1
)
print(read_until(stream, "Paris"))
print(f"{len(stream.answer.pieces)} of 200 pieces were read.")

# %% [markdown]
# <details><summary>Hint 1: the word is there, and the loop goes on</summary>
#
# A piece is a token, and a token may be half a word: "Par" and then "is". Look for the word in the text so far, not
# in the piece.
# </details>
#
# <details><summary>Hint 2: how a request is ended</summary>
#
# Leave the loop, and call the method of the stream that lesson 03 used when it left in the middle.
# </details>

# %% [markdown]
# ## Exercise 3.3 · How many readers fit?
#
# 15 minutes · harder
#
# Your service promises its readers: the first word within `max_ttft_ms`, and then at most `max_itl_ms` from word to
# word. First measure both for a growing number of readers who all ask at once. This part is done for you; the engine
# has eight slots.

# %% tags=["nbval-ignore-output"]
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd


def measure(num_readers):
    """TTFT and ITL (ms) below which 95 % lie, of readers who ask at the same moment."""
    with ThreadPoolExecutor(num_readers) as readers:
        streams = [
            client.stream(f"Tell me about the number {number}.", 32, end_id=-1)
            for number in range(num_readers)
        ]
        answers = list(readers.map(Stream.read, streams))
    gaps = np.concatenate([answer.inter_token_s for answer in answers])
    firsts = [answer.time_to_first_s for answer in answers]
    return num_readers, np.percentile(firsts, 95) * 1000, np.percentile(gaps, 95) * 1000


measure(8)  # a warm-up
table = pd.DataFrame(
    [measure(number) for number in (1, 2, 4, 8, 12, 16)],
    columns=["readers", "ttft_ms", "itl_ms"],
)
table.round(0)

# %% [markdown]
# Now write `readers_that_fit`: the largest number of readers in such a table for which both promises hold, for it and
# for every smaller number in the table; 0 if not even the smallest number fits. The rows may come in any order.
#
# And decide from the table: when there are more readers than slots, what gets much worse? Set
# `worse_beyond_the_slots` to `"TTFT"` or `"ITL"`.


# %%
def readers_that_fit(
    table: pd.DataFrame, max_ttft_ms: float, max_itl_ms: float
) -> int | None:
    """Largest number of readers up to which both promises hold; 0 if there is none."""
    # BEGIN SOLUTION
    # LAB: return None
    rows = table.sort_values("readers")
    holds = (rows["ttft_ms"] <= max_ttft_ms) & (rows["itl_ms"] <= max_itl_ms)
    return int(rows["readers"][holds.cummin()].max()) if holds.iloc[0] else 0
    # END SOLUTION


# BEGIN SOLUTION
# LAB: worse_beyond_the_slots = None
worse_beyond_the_slots = "TTFT"
# END SOLUTION

# %%
check("3.3", (readers_that_fit, worse_beyond_the_slots))

# %% tags=["nbval-ignore-output"]
fit = readers_that_fit(table, max_ttft_ms=500, max_itl_ms=100)
print(
    "With 500 ms to the first word and 100 ms from word to word, "
    f"this server pleases {fit} readers at once."
)

# %% [markdown]
# <details><summary>Hint 1: one row</summary>
#
# A row holds when its TTFT and its ITL are both at most what was promised. Go through the rows from few readers to
# many and stop at the first that does not hold.
# </details>
#
# <details><summary>Hint 2: beyond the slots</summary>
#
# Who has a slot gets a token in each iteration, and an iteration never has more than eight. What does the ninth
# reader do meanwhile?
# </details>

# %% [markdown]
# ## What runs

# %% tags=["nbval-ignore-output"]
from inflight.notebook import session

session.running()

# %% [markdown]
# ## Done?
#
# When every check says so, compare with {counterpart}, then go on to {next}.
