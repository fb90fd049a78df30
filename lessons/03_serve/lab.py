# %% [markdown]
# # {heading}
#
# Four exercises, about 60 minutes. You write the client that your own services would use, make it end what nobody
# reads, let a crowd ask with it, and count what a stream costs the server. What you write is measured on the real
# server: its iteration log and its counters are the judge.
#
# A check never stops you: it says done, not done yet, or what it measured and which way to go.
#
# {navigation}

# %% [markdown]
# ## Set up
#
# A server like the lesson's: decoupled, so that it can stream, and with an iteration log. Its repository is the one that
# you wrote in lab 02, with your `mask`; where that has not passed, the course's takes its place.

# %%
import tempfile
from pathlib import Path

from inflight import engine
from inflight.checkpoint import fetch
from inflight.notebook import check, mine, progress
from inflight.triton import Client, Server, repository

workdir = tempfile.TemporaryDirectory()
log_path = Path(workdir.name) / "iterations.jsonl"
own = mine.part("repository")
print(repr(own))
repo = repository.refit(
    own,
    Path(workdir.name) / "repo",
    engine.cached(fetch()),
    decoupled_mode=True,
    iteration_log_path=log_path,
)
with progress.wait("The server starts and loads its models"):
    server = Server(repo).start()
print("READY:", *sorted(model.name for model in server.models()))

# %% [markdown]
# ## Exercise 3.1: what the user felt
#
# *Core · importance 5/5 · difficulty 1/5 · 8 minutes*
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
# <details><summary>Where to look</summary>
#
# The lecture's section "Explain": end-to-end = TTFT + (<i>n</i> − 1) × ITL. Three of the four numbers are in it.
# </details>
#
# <details><summary>How to begin</summary>
#
# <code>times_s[0]</code> and <code>times_s[-1]</code> are all you need of the list, besides its length. Between
# <i>n</i> pieces there are <i>n</i> − 1 gaps, and all gaps together last from the first piece to the last.
# </details>
#
# <details><summary>The error you see</summary>
#
# <code>ZeroDivisionError</code>: one piece has no gap. Decide that case before you divide. A number that is a thousand
# times too small is in seconds.
# </details>

# %% [markdown]
# ## Exercise 3.2: a client that can stop
#
# *Core · importance 5/5 · difficulty 4/5 · 25 minutes*
#
# Write `client.py`, in plain `tritonclient`: no `inflight.triton.Client`. Request and answer are done for you. Four
# things are missing:
#
# 1. `Stream.__init__` connects to `url`, opens a stream, and sends the request on it. `self._now_s()` is there for times.
# 2. `Stream.__iter__` yields each piece of text as it arrives, and notes it in `self.answer`, with the seconds since the
#    request was sent. It ends after the last response, and raises the error where one arrives.
# 3. `Stream.cancel` ends the request **in the server**, at any moment, also twice.
# 4. `read_until` reads until the text so far has `word` in it, ends the request there, and returns the text so far; the
#    whole text, if the word never comes.
#
# The check asks through your client, and then opens the engine's log: how many tokens were computed after the word was
# there?
#
# When it passes, this file is kept as your part `client`. Later labs call `ask(url, prompt, max_tokens, …)`, whose answer
# has `text`, `pieces` and `times_s`; `Stream` and its `cancel`; and `read_until`.

# %%
# %%writefile {workdir.name}/client.py
"""A client for Triton in plain tritonclient: pieces, their times, and an early end.

    stream = Stream("127.0.0.1:8001", "Name the planets.", max_tokens=64)
    for piece in stream:
        print(piece, end="")

`ask` reads a whole answer that way; `read_until` ends it at a word. Errors are
tritonclient's own.
"""

import queue
import time
from dataclasses import dataclass, field

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import triton_to_np_dtype

from inflight.triton import keys

OPTIONS = {
    "end_id": "INT32",
    "random_seed": "UINT64",
    "temperature": "FP32",
    "top_k": "INT32",
}


@dataclass
class Answer:
    """Pieces as they arrived, and for each the seconds since the request was sent."""

    pieces: list[str] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)

    @property
    def text(self):
        return "".join(self.pieces)


def tensors(prompt, max_tokens, options):
    """What the ensemble is sent: each value as an input of shape [1, 1]."""
    values = {"text_input": ("BYTES", prompt), "max_tokens": ("INT32", max_tokens)}
    values["stream"] = ("BOOL", True)
    values |= {name: (OPTIONS[name], value) for name, value in options.items()}
    made = []
    for name, (datatype, value) in values.items():
        array = np.array([[value]], triton_to_np_dtype(datatype))
        made.append(triton.InferInput(name, array.shape, datatype))
        made[-1].set_data_from_numpy(array)
    return made


class Stream:
    """A streamed answer under way: iterate over its pieces, or `cancel` it."""

    def __init__(self, url, prompt, max_tokens=64, **options):
        self.answer = Answer()
        self._started = time.perf_counter()
        # BEGIN SOLUTION
        # LAB: # connect, open a stream (headers: keys.headers(url)), and send
        self._arrived = queue.Queue()
        self._connection = triton.InferenceServerClient(url)
        self._connection.start_stream(
            lambda result, error: self._arrived.put((self._now_s(), result, error)),
            headers=keys.headers(url),
        )
        self._connection.async_stream_infer(
            "ensemble",
            tensors(prompt, max_tokens, options),
            enable_empty_final_response=True,
        )
        # END SOLUTION

    def _now_s(self):
        """Seconds since the request was sent."""
        return time.perf_counter() - self._started

    def __iter__(self):
        # BEGIN SOLUTION
        # LAB: yield from ()
        is_final = False
        while not is_final:
            after_s, result, error = self._arrived.get()
            if error is not None:
                raise error
            parameters = result.get_response().parameters
            is_final = parameters["triton_final_response"].bool_param
            text = result.as_numpy("text_output")
            if text is not None:
                self.answer.pieces.append(text[0].decode())
                self.answer.times_s.append(after_s)
                yield self.answer.pieces[-1]
        # END SOLUTION

    def cancel(self):
        """End the request if it still runs, and the connection. May be called twice."""
        # BEGIN SOLUTION
        # LAB: # end it in the server
        self._connection.stop_stream(cancel_requests=True)
        self._connection.close()
        # END SOLUTION


def ask(url, prompt, max_tokens=64, **options):
    """The whole answer, and when each piece of it came."""
    stream = Stream(url, prompt, max_tokens, **options)
    try:
        for _ in stream:
            pass
    finally:
        stream.cancel()
    return stream.answer


def read_until(url, prompt, word, max_tokens=64, **options):
    """The text up to the piece that completes `word`; the request ends there."""
    # BEGIN SOLUTION
    # LAB: return None
    stream = Stream(url, prompt, max_tokens, **options)
    try:
        for _ in stream:
            if word in stream.answer.text:
                break
    finally:
        stream.cancel()
    return stream.answer.text
    # END SOLUTION


# %%
client_file = Path(workdir.name) / "client.py"
check("3.2", (client_file, server))

# %% [markdown]
# <details><summary>Where to look</summary>
#
# The lecture's section "A streamed answer, by hand" has the stream in twenty lines, and "Stop early" names the two ways to
# end a request. <code>help(triton.InferenceServerClient.stop_stream)</code> tells what of it waits and what cancels.
# </details>
#
# <details><summary>How to begin</summary>
#
# <code>__init__</code> first: a queue, a connection, <code>start_stream</code> with a callback that puts what arrives into the
# queue (and the time: it is the moment of arrival), <code>async_stream_infer</code>. Then <code>__iter__</code> takes from the
# queue. Check: two parts are right. Then <code>cancel</code>; then <code>read_until</code>, which is a loop over a stream, and
# <code>cancel</code> in a <code>finally</code>.
# </details>
#
# <details><summary>The error you see</summary>
#
# <code>got an unexpected keyword argument 'result'</code>: tritonclient calls back by name; the callback's parameters must be
# called <code>result</code> and <code>error</code>.<br>
# The check waits and waits: without <code>enable_empty_final_response=True</code> nothing tells that the end was there.<br>
# The word is there, and your loop goes on: a piece may be half a word, or a word and more. Look for it in the text so far, not
# in the piece, and not at its end only.<br>
# All tokens were computed: <code>close()</code>, and <code>stop_stream()</code> without an argument, wait for what is still to
# come.
# </details>

# %% [markdown]
# ## Exercise 3.3: how many readers fit?
#
# *importance 4/5 · difficulty 3/5 · 15 minutes*
#
# Your service promises its readers the first word within `max_ttft_ms`, and then at most `max_itl_ms` from word to word.
# The engine has eight slots. Three functions:
#
# - `at_once(number, max_tokens)`: `number` readers ask at the same moment, each with a prompt of their own and `end_id=-1`,
#   so that all answers are equally long. It returns their answers. Use a client: yours, or the course's.
# - `who_waited(answers)`: how many of these readers had no word yet when some other had all of theirs.
# - `readers_that_fit(table, max_ttft_ms, max_itl_ms)`: the table has the columns `readers`, `ttft_ms` and `itl_ms`, its rows
#   come in any order. The largest number of readers for which both promises hold, for it and for every smaller number in
#   the table; 0 if not even the smallest fits.

# %%
from concurrent.futures import ThreadPoolExecutor

client = Client(server.grpc_url)


def at_once(number: int, max_tokens: int) -> list | None:
    """The answers of readers who ask at the same moment."""
    # BEGIN SOLUTION
    # LAB: return None

    def ask(reader):
        prompt = f"Tell me about the number {reader}."
        return client.stream(prompt, max_tokens, end_id=-1).read()

    with ThreadPoolExecutor(number) as readers:
        return list(readers.map(ask, range(number)))
    # END SOLUTION


def who_waited(answers: list) -> int | None:
    """Readers whose first piece came after some other's last."""
    # BEGIN SOLUTION
    # LAB: return None
    earliest_end = min(answer.times_s[-1] for answer in answers)
    return sum(answer.times_s[0] > earliest_end for answer in answers)
    # END SOLUTION


def readers_that_fit(table, max_ttft_ms: float, max_itl_ms: float) -> int | None:
    """Largest number of readers up to which both promises hold; 0 if there is none."""
    # BEGIN SOLUTION
    # LAB: return None
    fit = 0
    for row in table.sort_values("readers").itertuples():
        if row.ttft_ms > max_ttft_ms or row.itl_ms > max_itl_ms:
            break
        fit = row.readers
    return int(fit)
    # END SOLUTION


# %%
check("3.3", (at_once, who_waited, readers_that_fit, server))

# %% [markdown]
# Now measure with them. Before you run the cell: what gets worse from 8 readers to 16, the first word or the pace?

# %% tags=["nbval-ignore-output"]
import pandas as pd


def row_of(number):
    """Readers, those who waited, and TTFT and ITL (ms) below which 95 % lie."""
    answers = at_once(number, 32)
    if answers is None:
        return number, None, None, None
    firsts_s = pd.Series([answer.times_s[0] for answer in answers])
    gaps_s = pd.concat(
        [pd.Series(answer.times_s).diff().dropna() for answer in answers]
    )
    ttft_ms, itl_ms = firsts_s.quantile(0.95) * 1000, gaps_s.quantile(0.95) * 1000
    return number, who_waited(answers), ttft_ms, itl_ms


table = pd.DataFrame(
    [row_of(number) for number in (1, 2, 4, 8, 12, 16)],
    columns=["readers", "waited", "ttft_ms", "itl_ms"],
).round(0)
table

# %% [markdown]
# <details><summary>Where to look</summary>
#
# The lecture's section "Measure" sends for several users at once; "One of eight is first" reads what became of it.
# </details>
#
# <details><summary>How to begin</summary>
#
# <code>ThreadPoolExecutor(number).map(…)</code> with a function that asks for one reader and reads to the end. For
# <code>who_waited</code>: when was the earliest of all last pieces? For <code>readers_that_fit</code>: go through the rows from
# few readers to many, and stop at the first that does not hold.
# </details>
#
# <details><summary>The error you see</summary>
#
# Never more than one reader in an iteration: you wait for an answer before you send the next request. With the course's client,
# <code>stream()</code> sends nothing before it is read. Fewer tokens than wanted: an answer ended by itself, for
# <code>end_id=-1</code> is missing.
# </details>

# %% [markdown]
# ## Exercise 3.4: what did that cost?
#
# *importance 3/5 · difficulty 3/5 · 12 minutes*
#
# An operator asks what a request costs, and has no clock that is quiet enough to tell. Count instead. Write
# `calls_of(send)`: it calls `send()` once, and returns how many calls of each of the three models of the pipeline that made, as
# `{"preprocessing": 1, "tensorrt_llm": 1, "postprocessing": 24}`. The server's counters were not zero before, and Triton
# counts a moment after an answer has left.

# %%
from inflight.triton import telemetry

MODELS = ("preprocessing", "tensorrt_llm", "postprocessing")


def counted() -> dict[str, int]:
    """Calls of each model since it was loaded."""
    return {
        model: telemetry.statistics(server.http_url, model).executions
        for model in MODELS
    }


def calls_of(send) -> dict[str, int] | None:
    """How many calls each model gets by `send()`."""
    # BEGIN SOLUTION
    # LAB: return None
    before = telemetry.settled(counted)
    send()
    after = telemetry.settled(counted)
    return {model: after[model] - before[model] for model in MODELS}
    # END SOLUTION


# %%
check("3.4", (calls_of, server))

# %%
question = "Name the planets."
print("whole:   ", calls_of(lambda: client.ask(question, 24, end_id=-1)))
print("streamed:", calls_of(lambda: client.stream(question, 24, end_id=-1).read()))

# %% [markdown]
# <details><summary>Where to look</summary>
#
# The lecture's section "What streaming costs" counts the calls of one model; <code>help(telemetry.settled)</code>.
# </details>
#
# <details><summary>How to begin</summary>
#
# Counters only grow, so read them twice and subtract. Both readings have to wait until the counters stand still: the first too,
# for an earlier request may still be on its way into them.
# </details>
#
# <details><summary>The error you see</summary>
#
# A call too few, now and then: you read before Triton had counted. "The server's figures keep changing": something else asks
# the server; stop what runs in other cells.
# </details>

# %% [markdown]
# ## Bonus: read with your own eyes
#
# Your client, as a typewriter that stops at the end of the first sentence. Change the prompt, and what it stops at; then
# look how many pieces you would have paid for.

# %% tags=["nbval-ignore-output"]
import runpy

own = runpy.run_path(str(client_file))
stream = own["Stream"](server.grpc_url, "Tell me a story about a fox.", max_tokens=200)
for piece in stream:
    print(piece, end="", flush=True)
    if piece.strip().endswith("."):
        break
stream.cancel()
print(f"\n{len(stream.answer.pieces)} of 200 tokens")

# %% [markdown]
# ## Elsewhere
#
# The service moves to a lab GPU, with TensorRT-LLM behind the same Triton.
#
# **1.** Does your `client.py` still work there, and does its `cancel` still save
# tokens?
#
# <details><summary>Answer</summary>
#
# It works: the tensors' names, the stream and the final response are the same. What it saves, count: Triton tells a
# cancellation only to those steps of an ensemble that begin afterwards. Here <code>postprocessing</code> tells the engine;
# another's may not. A <code>stop</code> request with the same id to <code>tensorrt_llm</code> reaches it in any case.
# </details>
#
# **2.** Each iteration is ten times as fast there. Is a stream's price, one call of
# `postprocessing` a token, smaller or larger then?
#
# <details><summary>Answer</summary>
#
# The count is the same, and a call takes as long as here, for it runs on the CPU. So its share grows: with enough readers it is
# what sets the pace. More instances of <code>postprocessing</code>, or pieces of several tokens, help then.
# </details>
#
# **3.** The readers come through a web gateway which collects an answer and passes it on whole. Which of your
# two promises is left?
#
# <details><summary>Answer</summary>
#
# Neither, as the reader feels it: the first word comes with the last, after the end-to-end latency. The server streams, pays for
# it, and nobody sees it. Measure where the reader is.
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
