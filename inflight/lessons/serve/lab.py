# %% [markdown]
# # {heading}
#
# Three exercises, about {minutes} minutes (an estimate), of which {core} are *Core*. You read a stream from the bytes
# as a network cuts them, write a client in plain `tritonclient` that ends requests which nobody reads any more, and
# find out how many readers a server can promise to serve. The checks of 3.2 and 3.3 count in the iteration log of a real
# server.
#
# You need lecture 03. A check never stops you: it says that you are done, or what is missing, or what it measured and
# where to look.
#
# Run the first code cell before any other: it brings `check`, and what the exercises use. A `NameError` says that it has
# not been run.
#
# {navigation}

# %% [markdown]
# ## Set up
#
# This cell starts a server like the lecture's: decoupled, so that it can stream, and with an iteration log. The
# repository is the one that you wrote in lab 02, or the course's if yours has not passed its check yet. That is why the
# model `mask`, which hides e-mail addresses, is in it.

# %%
import tempfile
from pathlib import Path

from inflight import engine
from inflight.checkpoint import fetch
from inflight.notebook import check, parts, progress
from inflight.triton import Client, Server, repository

workdir = tempfile.TemporaryDirectory()
log_path = Path(workdir.name) / "iterations.jsonl"
own = parts.part("repository")
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
# ## Exercise 3.1: a stream, cut anywhere
#
# *Core · importance 5/5 · difficulty 3/5 · 20 minutes*
#
# In the lecture `httpx` cut the stream into lines, and the server was one that you know. A network cuts anywhere, also
# within a character of several bytes, and servers differ. Write `answer_of(chunks)` from `bytes` and `json` alone.
# `chunks` are the bytes as they arrived. It returns a dict:
#
# - `text` and `reasoning`: what the deltas have of `content`, and of `reasoning_content` or `reasoning`, joined;
# - `end`: the `finish_reason`, or None where none came, so that the answer is not whole;
# - `tokens`: `completion_tokens` of `usage`, or None;
# - `error`: the `message` of an event with `error`, or None.
#
# What servers may send: a line ends with `\n` or `\r\n`; after `data:` there may be a blank, or none; a line that
# begins with `:` keeps the connection alive; fields are null or left out; the event with `usage` has an empty list of
# `choices`; and a connection may break in the middle of an event, which then does not count.

# %%
# %%writefile {workdir.name}/events.py
"""Reads an answer from the bytes of a stream of server-sent events."""

import json


def answer_of(chunks):
    """What the events say: text, reasoning, end, tokens and error."""
    # BEGIN SOLUTION
    # LAB: return None
    told = {"text": "", "reasoning": "", "end": None, "tokens": None, "error": None}
    held = b""
    for chunk in chunks:
        *lines, held = (held + chunk).split(b"\n")
        for line in lines:
            field, _, data = line.partition(b":")
            if field == b"data" and data.strip() != b"[DONE]":
                take(json.loads(data), told)
    return told


def take(event, told):
    """Add one event to what was told before."""
    if event.get("error"):
        told["error"] = event["error"]["message"]
    if event.get("usage"):
        told["tokens"] = event["usage"]["completion_tokens"]
    for choice in event.get("choices") or []:
        delta = choice.get("delta") or {}
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        told["text"] += delta.get("content") or ""
        told["reasoning"] += thought or ""
        told["end"] = choice.get("finish_reason") or told["end"]
    # END SOLUTION


# %%
events_file = Path(workdir.name) / "events.py"
check("3.1", events_file)

# %% [markdown]
# <details><summary>Where to look</summary>
#
# The lecture's "Server-sent events, by hand" has the form of an event, "Elsewhere" the two kinds of delta without
# <code>content</code>, and "What breaks" the one event without <code>choices</code>.
# </details>
#
# <details><summary>How to begin</summary>
#
# Keep what has come and is not yet a whole line: add each chunk to it, split at <code>b"\n"</code>, and keep the last part
# for the next chunk. Decode a line only when it is whole. Then take one event at a time.
# </details>
#
# <details><summary>The error you see</summary>
#
# <code>UnicodeDecodeError</code>: a chunk ended within a character. Split bytes, and decode lines.<br>
# <code>JSONDecodeError</code>: a chunk is no line, <code>[DONE]</code> is no JSON, and <code>splitlines</code> also
# splits at characters that a text may have, such as U+2028.<br>
# <code>TypeError</code> with <code>NoneType</code>: a field may be null; <code>get("content", "")</code> gives None then.
# </details>

# %% [markdown]
# ## Exercise 3.2: a client that can stop
#
# *Core · importance 5/5 · difficulty 4/5 · 25 minutes*
#
# Write `client.py`, in plain `tritonclient`: without `inflight.triton.Client`. The tensors and the answer are there.
# Four things are missing:
#
# 1. `Stream.__init__` connects to `url`, opens a stream, and sends the request on it. `self._now_s()` gives the time.
# 2. `Stream.__iter__` yields each piece of text, and appends it to `self.answer.pieces`, and to `self.answer.times_s` the
#    seconds from sending the request to its **arrival**. It ends after the last response. If an error arrives, it raises
#    that error.
# 3. `Stream.cancel` ends the request **in the server**, at any moment. A second call does no harm.
# 4. `read_until` reads until `word` is in the text so far, ends the request, and returns the text so far. If the word
#    never comes, it returns the whole text.
#
# The check asks through your client, and then reads the engine's log: how many tokens were computed after the word had
# arrived?
#
# When it passes, this file is kept as your part `client`. Later labs call `ask(url, prompt, max_tokens, …)`, whose answer
# has `text`, `pieces` and `times_s`; `Stream` and its `cancel`; and `read_until`. All three take the options in
# `OPTIONS` as keyword arguments, and send them.

# %% tags=["part:client.py"]
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
        # BEGIN SOLUTION
        # LAB: # connect, and open a stream
        self._arrived = queue.Queue()
        self._connection = triton.InferenceServerClient(url)
        self._connection.start_stream(
            lambda result, error: self._arrived.put((self._now_s(), result, error)),
        )
        # END SOLUTION
        self._started = time.perf_counter()
        # BEGIN SOLUTION
        # LAB: # send
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
# The lecture's "Stop early" asks over gRPC, and names the ways to end a request.
# <code>help(triton.InferenceServerClient.stop_stream)</code> says when it waits and when it cancels.
# </details>
#
# <details><summary>How to begin</summary>
#
# <code>__init__</code> first: a queue, a connection, <code>start_stream</code> with a callback that puts response and
# time into the queue (the callback runs at the moment of arrival), <code>async_stream_infer</code>. Then <code>__iter__</code>,
# which takes from the queue. Run the check: the first parts are right. Then <code>cancel</code>. Last
# <code>read_until</code>: a loop over a stream, with <code>cancel</code> in a <code>finally</code>.
# </details>
#
# <details><summary>The error you see</summary>
#
# <code>got an unexpected keyword argument 'result'</code>: tritonclient passes arguments by name; the callback's
# parameters must be called <code>result</code> and <code>error</code>.<br>
# "a wait for what never comes?": your loop does not see the end. Triton marks the last response:
# <code>result.get_response().parameters["triton_final_response"].bool_param</code>. A model may end without a last text;
# <code>enable_empty_final_response=True</code> makes Triton send the mark then, too, and here the last token has it.<br>
# The word has arrived, and your loop goes on: a piece may be half a word, or a word and more. Look for it anywhere
# in the text so far, not in the last piece.<br>
# All tokens were computed:
# <code>close()</code>, and <code>stop_stream()</code> without an argument, wait for the rest of the answer.
# </details>

# %% [markdown]
# ## Exercise 3.3: how many readers fit?
#
# *Further · importance 4/5 · difficulty 3/5 · 20 minutes*
#
# Your service promises its readers the first token within `max_ttft_ms`, and then, for 99 % of the gaps, at most
# `max_itl_ms` from token to token. The engine has eight slots. Write three functions:
#
# - `at_once(number, max_tokens)`: `number` readers ask at the same moment, each with a prompt of their own, for a streamed
#   answer with `end_id=-1`, so that all answers are equally long. It returns the answers. Use your client or the course's.
# - `who_waited(answers)`: how many readers had no token yet when some other reader had all of theirs.
# - `readers_that_fit(table, max_ttft_ms, max_itl_ms)`: the table has the columns `readers`, `ttft_ms` (the slowest first
#   token) and `itl_ms` (99 % of the gaps are no longer), in rows of any order. Return the largest number of readers for
#   which both promises hold, if they also hold for every smaller number in the table; 0 if they do not hold for the
#   smallest.

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


# %%
def who_waited(answers: list) -> int | None:
    """Readers whose first piece came after some other's last."""
    # BEGIN SOLUTION
    # LAB: return None
    earliest_end = min(answer.times_s[-1] for answer in answers)
    return sum(answer.times_s[0] > earliest_end for answer in answers)
    # END SOLUTION


# %%
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
# <details><summary>Where to look</summary>
#
# The lecture's "See: one user and eight" sends for several users at once, and says why some begin later.
# </details>
#
# <details><summary>How to begin</summary>
#
# <code>ThreadPoolExecutor(number).map(…)</code> with a function that asks for one reader and reads to the end. For
# <code>who_waited</code>: when did the earliest of all last pieces arrive? For <code>readers_that_fit</code>: go
# through the rows
# from few readers to many, and stop at the first one that breaks a promise.
# </details>
#
# <details><summary>The error you see</summary>
#
# There is never more than one reader in an iteration: you wait for an answer before you send the next request. The course's
# <code>stream()</code> sends its request when you begin to read.<br>
# There are fewer tokens than asked for: an answer ended by itself, because <code>end_id=-1</code> is missing.
# </details>

# %% [markdown]
# Now measure with them. Before you run the cell: what gets worse from 8 readers to 16, TTFT or ITL?
#
# <details><summary>Answer</summary>
#
# TTFT, by far: eight readers wait for a slot, which is free when a whole answer has ended. No more than eight are in an
# iteration, so most gaps stay as they are.
# </details>

# %% tags=["nbval-ignore-output"]
import pandas as pd


def row_of(number):
    """Number of readers, how many waited, the slowest TTFT and P99 of ITL (ms)."""
    answers = at_once(number, 128)  # so that one reader has over a hundred gaps
    if answers is None:
        return number, None, None, None
    firsts_s = pd.Series([answer.times_s[0] for answer in answers])
    gaps_s = pd.concat([pd.Series(answer.times_s).diff() for answer in answers])
    in_ms = 1000 * firsts_s.max(), 1000 * gaps_s.quantile(0.99)
    return number, who_waited(answers), *in_ms


table = pd.DataFrame(
    [row_of(number) for number in (1, 4, 8, 16)],
    columns=["readers", "waited", "ttft_ms", "itl_ms"],
)
print("Promises of 500 and 40 ms hold for:", readers_that_fit(table.dropna(), 500, 40))
table.round(1)

# %% [markdown]
# ## Bonus: what the operator sees
#
# An operator has no notebook, but `/metrics`: *counters*, which only grow, so you subtract, and *gauges*, which show the
# moment. What does a stream cost in calls of each model, compared with a whole answer?

# %% tags=["nbval-ignore-output"]
from inflight.triton import telemetry


def successes():
    """Requests that each model has answered since it was loaded."""
    page = telemetry.metrics(telemetry.page(server.metrics_url))
    rows = page[page["name"] == "nv_inference_request_success"]
    return dict(zip(rows["model"], rows["value"].astype(int), strict=True))


def calls(send):
    before = telemetry.settled(successes)  # Triton counts a moment later
    send()
    after = telemetry.settled(successes)
    return {model: after[model] - before[model] for model in after}


planets = "Name the planets."
print("whole:   ", calls(lambda: client.ask(planets, 24, end_id=-1)))
print("streamed:", calls(lambda: client.stream(planets, 24, end_id=-1).read()))

# %% [markdown]
# ## Bonus: read with your own eyes
#
# Your client as a typewriter that stops at the end of the first sentence. Change the prompt, and what it stops at, and see
# how many of the 200 tokens were needed.

# %% tags=["nbval-ignore-output"]
import runpy

written = runpy.run_path(str(client_file))
stream = written["Stream"](
    server.grpc_url, "Tell me a story about a fox.", max_tokens=200
)
for piece in stream:
    print(piece, end="", flush=True)
    if piece.strip().endswith("."):
        break
stream.cancel()
print(f"\n{len(stream.answer.pieces)} of 200 tokens")

# %% [markdown]
# ## Elsewhere
#
# The service moves to a server with a GPU, with TensorRT-LLM behind the same Triton.
#
# **1.** Does your `client.py` still work there, and does its `cancel` still save tokens?
#
# <details><summary>Answer</summary>
#
# It works in the containers that have TensorRT-LLM's engine backend (removed from its main branch in July 2026), whose
# ensemble has these tensors. What
# <code>cancel</code> saves there, you have to count: Triton tells a cancellation only to the steps of an ensemble that
# begin
# afterwards. Here <code>postprocessing</code> passes it on to the engine; another one may not. A <code>stop</code>
# request to
# <code>tensorrt_llm</code> with the same id reaches the engine in any case. Today's <code>llmapi</code> is one model
# with other
# names (<code>sampling_param_max_tokens</code>), and hears a cancellation itself. With vLLM you close the HTTP connection.
# </details>
#
# **2.** Each iteration is ten times as fast there. Is the price of a stream, one call of `postprocessing` per token,
# smaller
# or larger then?
#
# <details><summary>Answer</summary>
#
# The number of calls is the same, and each takes as long as before, since it runs on the CPU. Its share of the time
# grows: with enough readers, <code>postprocessing</code> sets the pace. More instances of it help, or pieces of several
# tokens.
# </details>
#
# **3.** The readers come through a web gateway that collects each answer and passes it on whole. Which of the two
# promises of 3.3 still holds for them?
#
# <details><summary>Answer</summary>
#
# On paper the second: tokens that arrive together have no gaps. The first fails, unless the whole answer is ready in
# time. A promise about ITL alone is worth nothing. The server streams, with
# all that costs, and nobody sees it. Measure where the reader is.
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
