"""Measure: a load of requests, one row a request; and different ways of serving in one run, as ratios.

    run = load(sender(client), requests)        # requests from inflight.workload
    run.requests["latency_ms"].mean()

Times are shown, never judged: they belong to the machine they were taken on. Ratios of two ways that took turns in one
run are what can be compared.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count, cycle, islice
from pathlib import Path
from typing import Protocol

import pandas as pd

from inflight import machine
from inflight.bench import devices, workload
from inflight.bench.names import MOST_UNDER_WAY
from inflight.bench.workload import TimedRequest, count_tokens
from inflight.checkpoint.tokenizer import ChatTokenizer, load_tokenizer
from inflight.engine.config import Request
from inflight.engine.executor import Executor
from inflight.errors import CourseError
from inflight.triton import repository
from inflight.triton.client import Client
from inflight.triton.server import Server

NEVER = -1  # an end id that no token has: answers are exactly as long as asked for

COLUMNS = [
    "request",
    "due_s",
    "sent_s",
    "first_s",
    "last_s",
    "input_len",
    "output_len",
    "max_tokens",
    "ttft_ms",
    "itl_ms",
    "latency_ms",
    "error",
]


# A load of requests ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Timing:
    """When one request was sent and answered, in nanoseconds of `time.perf_counter_ns`.

    `first_ns` is the arrival of the first piece of a streamed answer, None for a whole one; `output_len` counts tokens.
    """

    sent_ns: int
    first_ns: int | None
    last_ns: int
    output_len: int


@dataclass(frozen=True)
class Run:
    """What became of a load.

    Attributes
    ----------
    requests : DataFrame
        One row a request, in the order of the list that was sent: `request` (its number in that list, from 0);
        `due_s`, `sent_s`, `first_s`, `last_s` (seconds since the run's start: when it was to be sent, and when it was);
        `input_len`, `output_len`, `max_tokens` (tokens); `ttft_ms`, `itl_ms`, `latency_ms` (milliseconds, TTFT and
        latency since it was due); `error` (why there is no answer; blank if there is one). What is not known is NaN:
        TTFT and ITL of a whole answer, ITL of a single token, times of a request that was not sent.
    started_at : float
        The run's start in seconds since 1970, as the timestamps of the iteration log.
    stopped : str
        Why the run ended before its last request, as a sentence; blank if it did not.
    """

    requests: pd.DataFrame
    started_at: float
    stopped: str = ""

    @property
    def answered(self) -> pd.DataFrame:
        """The rows without an error."""
        return self.requests[self.requests["error"] == ""]


def exactly(request: TimedRequest, model: str) -> dict[str, int]:
    """The option by which `model` makes an answer of `max_tokens` tokens and no fewer."""
    return {"min_length": request.max_tokens} if model == repository.BASELINE else {"end_id": NEVER}


class Sends(Protocol):
    """What a load asks of whoever sends its requests, from several threads.

    Attributes
    ----------
    url : str
        The server's, for messages.
    """

    @property
    def url(self) -> str: ...

    def __call__(self, request: TimedRequest) -> Timing:
        """Send `request` now and wait for the end of its answer; CourseError when there is none."""
        ...

    def is_alive(self) -> bool:
        """Whether sending another request makes sense."""
        ...

    def abort(self) -> None:
        """End what is under way."""
        ...


@dataclass(frozen=True)
class Stop:
    """Ends every answer before it is whole.

    `after_s` seconds after it was asked for; `count` says how many tokens the text is that came until then.
    """

    after_s: float
    count: Callable[[str], int]


class Sender:
    """Sends requests to one text model and takes the times of each. May be called from several threads.

    Every answer is made exactly as long as asked for: no token ends it early. So the tokens received are the request's
    `max_tokens`, however many pieces a stream brings them in: a piece may hold two tokens, or back half a character.
    Keep prompt and answer within the engine's `max_seq_len`, where every answer ends. With a `tokenizer`, answers end
    by themselves instead, `max_tokens` is the most, and the tokens are those that their text is cut into.

    Parameters
    ----------
    client : Client
        Owned by the sender from now on.
    stream : bool
        Ask for the answer in pieces, which gives TTFT and ITL. The model must be decoupled. Over gRPC every stream is a
        connection of its own, and making it is part of TTFT; whole answers share the client's connection.
    stop : Stop, optional
        End every answer early.
    request_id : str, optional
        Name the requests "ID-1", "ID-2" and so on, in the order in which they are sent; by default each has a new name.
    tokenizer : ChatTokenizer, optional
        The model's; answers end by themselves then.

    Raises
    ------
    CourseError
        `stop` for whole answers of a model that cannot end them.
    """

    def __init__(
        self,
        client: Client,
        stream: bool = False,
        stop: Stop | None = None,
        request_id: str | None = None,
        tokenizer: ChatTokenizer | None = None,
    ):
        if stop is not None and not stream and client.model == repository.BASELINE:
            raise CourseError(f"{client.model} cannot end a whole answer early: ask for answers in pieces (--stream).")
        self.client = client
        self.stream = stream
        self._stop = stop
        self._request_id, self._numbers = request_id, count(1)
        self._tokenizer = tokenizer
        self._aborted = False

    @property
    def url(self) -> str:
        return self.client.url

    def __call__(self, request: TimedRequest) -> Timing:
        """Send `request` now and wait for the end of its answer; CourseError when there is none."""
        try:
            return self._timed(request, self._options(request))
        except CourseError as error:
            if self._aborted:
                raise CourseError("The request was ended before its answer was there.") from error
            raise

    def _options(self, request: TimedRequest) -> dict:
        options: dict = {} if self._tokenizer else exactly(request, self.client.model)
        if self._stop is not None:
            options["stop_after_s"] = self._stop.after_s
        if self._request_id is not None:
            options["request_id"] = f"{self._request_id}-{next(self._numbers)}"
        return options

    def _timed(self, request: TimedRequest, options: dict) -> Timing:
        sent = time.perf_counter_ns()
        if not self.stream:
            answer = self.client.ask(request.text, request.max_tokens, **options)
            return Timing(sent, None, time.perf_counter_ns(), self._tokens(request, answer.pieces))
        first = last = None
        pieces = []
        for piece in self.client.stream(request.text, request.max_tokens, **options):
            last = time.perf_counter_ns()
            first = first or last
            pieces.append(piece)
            if self._aborted:
                raise CourseError("The request was ended before its answer was there.")
        if last is None:
            if self._tokenizer is None:
                raise CourseError(f"{self.client.model} at {self.client.url} ended the stream without an answer.")
            first = last = time.perf_counter_ns()  # its first token was the one that ends it
        return Timing(sent, first, last, self._tokens(request, pieces))

    def _tokens(self, request: TimedRequest, pieces: list[str]) -> int:
        if self._stop is None and self._tokenizer is None:
            return request.max_tokens
        text = "".join(pieces).removeprefix(request.text)  # some servers repeat the prompt
        if self._stop is not None:
            return self._stop.count(text)
        return min(request.max_tokens, count_tokens(self._tokenizer, text))

    def is_alive(self) -> bool:
        """Whether the server still answers, and `abort` has not been called."""
        return not self._aborted and self.client.is_live()

    def abort(self) -> None:
        """End what is under way: whole answers over gRPC at once, streams at their next piece, HTTP with its answer."""
        self._aborted = True
        self.client.close()

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, *_) -> None:
        self.client.close()


def sender(
    client: Client, model: str = "ensemble", stream: bool = False, tokenizer: ChatTokenizer | None = None
) -> Sender:
    """A `Sender` to `model` on the server of `client`, which stays as it is."""
    return Sender(Client(client.url, model, client.timeout_s), stream, tokenizer=tokenizer)


def warm_up(send: Sends, requests: list[TimedRequest], number: int) -> None:
    """Send `number` of `requests` at once, and again from the first if there are fewer; nothing is kept of them.

    What an engine does once, at its first requests, is not part of a measurement then.

    Raises
    ------
    CourseError
        One of them failed, with its reason: so would the others.
    """
    run = load(send, list(islice(cycle(requests), number)), timed=False)
    if len(run.answered) < number:
        failed = run.requests[run.requests["error"] != ""].sort_values("last_s")  # the first is why the others did
        raise CourseError(f"A warm-up request failed: {failed['error'].iloc[0]}")


class Clock(Protocol):
    """What a load takes its times from."""

    def now_ns(self) -> int:
        """Nanoseconds since a moment that stays the same."""
        ...

    def wait_until(self, ns: int, ended: threading.Event) -> bool:
        """Wait until that moment, or until `ended` is set; return whether it is."""
        ...


class WallClock:
    """The machine's own clock, `time.perf_counter_ns`."""

    def now_ns(self) -> int:
        return time.perf_counter_ns()

    def wait_until(self, ns: int, ended: threading.Event) -> bool:
        return ended.wait(max(0.0, (ns - self.now_ns()) / 1e9))


WALL = WallClock()


def load(
    send: Sends,
    requests: list[TimedRequest],
    concurrency: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    timed: bool = True,
    closed: bool = False,
    clock: Clock = WALL,
) -> Run:
    """Send every request when it is due, and wait for all answers.

    Latency and TTFT count from the moment a request was due, not from when it could be sent at last: a server that
    stalls, or a client that cannot keep up, makes later requests wait, and their users with them. (To count from the
    sending leaves those waits out, just where they are longest: "coordinated omission".)

    In an open loop (`closed` false) a request is due at its time, whatever has become of others; one that finds
    `concurrency` others under way is sent late. In a closed loop there are `concurrency` users, and a request is due as
    soon as one of them has the answer to the one before. One that waits for another's answer (`TimedRequest.after`)
    is due its `at_s` after that answer in either loop, and keeps the place of that one until then.

    Parameters
    ----------
    send : Sends
        A `Sender`, or another.
    requests : list of TimedRequest
    concurrency : int, optional
        Most requests under way at any time; by default `MOST_UNDER_WAY`.
    progress : callable, optional
        Called with the number of requests that are done, and of all, whenever one is.
    timed : bool
        Whether a request waits for its `at_s`; if not, all are due at the start.
    closed : bool
        Whether the loop is closed; no request waits for its `at_s` then, but one that waits for another's answer.
    clock : Clock
        The machine's own, unless a test has another; that of the times that `send` gives.

    Returns
    -------
    Run
        Every request has its row: a failed one with its error and no tokens. When the server goes away, at Ctrl-C or
        SIGTERM, the run ends at once; it says so in `stopped`, and keeps what came until then. No thread is left.

    Raises
    ------
    CourseError
        There is no request, `concurrency` is below 1, or a request waits for one that does not come before it or that
        another waits for already; nothing is sent then.
    """
    if not requests:
        raise CourseError("There is no request to send: give at least one.")
    if concurrency is not None and concurrency < 1:
        raise CourseError(f"The concurrency is {concurrency}; it must be at least 1.")
    number = min(len(requests), concurrency or MOST_UNDER_WAY)
    run = _Load(send, requests, progress, timed, closed, clock)
    with ThreadPoolExecutor(number) as pool:
        try:
            for worker in [pool.submit(run.work) for _ in range(number)]:
                worker.result()
        except (KeyboardInterrupt, SystemExit):  # Ctrl-C, or SIGTERM to a command
            run.stop("The benchmark was interrupted")
        except BaseException:
            run.stop("The benchmark failed")
            raise
    return run.result()


class _Load:
    """What the threads of one run share. Each takes the next request, waits until it is due, and sends it."""

    def __init__(
        self,
        send: Sends,
        requests: list[TimedRequest],
        progress: Callable[[int, int], None],
        timed: bool,
        closed: bool,
        clock: Clock,
    ):
        self._send, self._requests, self._progress, self._clock = send, requests, progress, clock
        self._closed = closed
        self._follower = _followers(requests)
        self._due_s = {
            index: request.at_s if timed and not closed else 0.0
            for index, request in enumerate(requests)
            if request.after is None
        }
        self._next = iter(sorted(self._due_s, key=self._due_s.__getitem__))
        self._rows: dict[int, dict] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._reason = ""
        self._looking, self._alive_at = threading.Lock(), float("-inf")
        self._started_at, self._zero_ns = time.time(), clock.now_ns()

    def work(self) -> None:
        """Take requests, and after each the one that waits for its answer, until none is left."""
        while True:
            with self._lock:
                index = next(self._next, None)
            if index is None:
                return
            due_ns = self._clock.now_ns() if self._closed else self._zero_ns + round(self._due_s[index] * 1e9)
            while index is not None:
                if self._clock.wait_until(due_ns, self._stopping):
                    return
                row = self._row(index, due_ns)
                self._keep(row)
                if row["error"]:
                    self._give_up_after(index)
                    break
                index = self._follower.get(index)
                if index is not None:
                    due_ns = self._zero_ns + round((row["last_s"] + self._requests[index].at_s) * 1e9)

    def stop(self, reason: str) -> None:
        """Send nothing more, and end what is under way."""
        with self._lock:
            if self._stopping.is_set():
                return
            self._reason = reason
            self._stopping.set()
        self._send.abort()

    def result(self) -> Run:
        """Rows of all requests, also of those that were not sent."""
        not_sent = f"Not sent: {self._reason}."
        rows = [self._rows.get(index) or self._unsent(index, not_sent) for index in range(len(self._requests))]
        table = pd.DataFrame(rows, columns=COLUMNS)
        stopped = (
            f"{self._reason} after {(table['error'] == '').sum()} of {len(table)} answers." if self._reason else ""
        )
        return Run(table, self._started_at, stopped)

    def _keep(self, row: dict) -> None:
        with self._lock:
            self._rows[row["request"]] = row
            self._progress(len(self._rows), len(self._requests))

    def _give_up_after(self, index: int) -> None:
        """The rest of a conversation, where an answer has not come."""
        while not self._stopping.is_set() and (index := self._follower.get(index)) is not None:
            self._keep(self._unsent(index, "Not sent: there is no answer to the turn before it."))

    def _row(self, index: int, due_ns: int) -> dict:
        request, sent_ns = self._requests[index], self._clock.now_ns()
        try:
            timing = self._send(request)
        except CourseError as error:
            ended_ns = self._clock.now_ns()
            self._stop_if_gone()
            times = {"due_s": due_ns, "sent_s": sent_ns, "last_s": ended_ns}
            return {
                **self._unsent(index, str(error)),
                **{name: self._seconds(moment_ns) for name, moment_ns in times.items()},
            }
        return {
            "request": index,
            "input_len": request.input_len,
            "max_tokens": request.max_tokens,
            **self._times(timing, due_ns),
            "output_len": timing.output_len,
            "error": "",
        }

    def _stop_if_gone(self) -> None:
        """End the run if the server is gone: one looks for all whose requests failed before it began to look."""
        failed_at = time.monotonic()
        if self._stopping.is_set():
            return
        with self._looking:
            if self._stopping.is_set() or self._alive_at > failed_at:
                return
            looked_at = time.monotonic()
            if self._send.is_alive():
                self._alive_at = looked_at
            else:
                self.stop(f"The server at {self._send.url} went away")

    def _times(self, timing: Timing, due_ns: int) -> dict[str, float]:
        times = {
            "due_s": self._seconds(due_ns),
            "sent_s": self._seconds(timing.sent_ns),
            "last_s": self._seconds(timing.last_ns),
            "latency_ms": (timing.last_ns - due_ns) / 1e6,
        }
        if timing.first_ns is not None:
            times |= {"first_s": self._seconds(timing.first_ns), "ttft_ms": (timing.first_ns - due_ns) / 1e6}
            if timing.output_len > 1:
                times["itl_ms"] = (timing.last_ns - timing.first_ns) / 1e6 / (timing.output_len - 1)
        return times

    def _unsent(self, index: int, error: str) -> dict:
        """The row of a request without an answer, its times unknown but for the one at which it was due."""
        request = self._requests[index]
        return {
            "request": index,
            "due_s": float("nan") if self._closed else self._due_s.get(index, float("nan")),
            "sent_s": float("nan"),
            "last_s": float("nan"),
            "input_len": request.input_len,
            "output_len": 0,
            "max_tokens": request.max_tokens,
            "error": error,
        }

    def _seconds(self, ns: int) -> float:
        return (ns - self._zero_ns) / 1e9


def _followers(requests: list[TimedRequest]) -> dict[int, int]:
    """By place in the list: the place of the request that waits for its answer."""
    followers: dict[int, int] = {}
    for place, request in enumerate(requests):
        if request.after is None:
            continue
        if not 0 <= request.after < place or request.after in followers:
            raise CourseError(
                f"Request {place} waits for the answer to request {request.after}, which must come before it and have "
                "no other that waits for it."
            )
        followers[request.after] = place
    return followers


# Ways of serving, in turns --------------------------------------------------------------------------------------------


def tokens_per_s(executor: Executor, requests: list[Request]) -> float:
    """Output tokens a second of the engine in process, when it is given all `requests` at once."""
    started = time.perf_counter()
    responses = executor.generate_all(requests)
    return sum(len(response.token_ids) for response in responses) / (time.perf_counter() - started)


def serving_tax(
    engine_dir: str | Path,
    workdir: str | Path,
    num_requests: int = 32,
    in_flight: int = 8,
    rounds: int = 5,
    seed: int = 0,
    progress: Callable[[str], None] = lambda step: None,
) -> dict:
    """Tokens/s through Triton over tokens/s of the engine alone in process: what serving costs.

    Parameters
    ----------
    workdir : path
        Folder for the model repository.
    num_requests : int
        Requests a round, the same for every way.
    in_flight : int
        How many are under way at any time.
    rounds : int
        Each round runs every way once; their order turns around from round to round. A round before them warms up
        and is not counted.

    Returns
    -------
    dict
        `machine`, `devices`, `settings`, `rows` (way, tokens_per_s by round) and `ratios` (median, min, max over the
        rounds).
    """
    tokenizer = load_tokenizer(engine_dir)
    requests = workload.trace("mild", tokenizer, seed, num_requests)
    prompts, lengths = [request.text for request in requests], [request.max_tokens for request in requests]
    ids = [tokenizer.encode(tokenizer.chat(prompt)) for prompt in prompts]
    repo = repository.assemble(Path(workdir) / "repository", engine_dir)
    with Executor.load(engine_dir) as executor, Server(repo) as server, Client(server.grpc_url) as client:
        ways = {
            "engine in process": lambda i: executor.generate(Request(ids[i], lengths[i])),
            "Triton, tensorrt_llm": lambda i: client.ask_tokens(ids[i], lengths[i], exclude_input_in_output=True),
            "Triton, ensemble": lambda i: client.ask(prompts[i], lengths[i], end_id=NEVER),
        }
        speeds: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(rounds + 1):
            for name in list(ways)[:: 1 if number % 2 else -1]:
                progress(f"round {number} of {rounds}: {name}" if number else f"warm-up: {name}")
                elapsed = closed_loop(ways[name], num_requests, in_flight)
                if number:
                    speeds[name].append(sum(lengths) / elapsed)
    alone = speeds["engine in process"]
    return {
        "machine": machine.describe(),
        "devices": dict.fromkeys(ways, devices.of_engine(engine_dir)),
        "settings": {
            "num_requests": num_requests,
            "in_flight": in_flight,
            "rounds": rounds,
            "seed": seed,
            "output_tokens": sum(lengths),
            "warm_up_rounds": 1,
        },
        "rows": [{"way": name, **_spread("tokens_per_s", values)} for name, values in speeds.items()],
        "ratios": {
            "served_over_in_process": ratio(speeds["Triton, ensemble"], alone),
            "served_tokens_over_in_process": ratio(speeds["Triton, tensorrt_llm"], alone),
        },
    }


def closed_loop(send: Callable[[int], object], number: int, in_flight: int) -> float:
    """Seconds for requests 0 … number − 1, `in_flight` of them at any time; an answer makes room for the next."""
    with ThreadPoolExecutor(in_flight) as pool:
        started = time.perf_counter()
        list(pool.map(send, range(number)))
        return time.perf_counter() - started


def ratio(values: list[float], base: list[float]) -> dict[str, float]:
    """Median, least and most of the ratios of `values` to `base`, round by round."""
    ratios = [value / reference for value, reference in zip(values, base)]
    return {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}


def _spread(name: str, values: list[float]) -> dict[str, float]:
    return {f"{name}_median": statistics.median(values), f"{name}_min": min(values), f"{name}_max": max(values)}
