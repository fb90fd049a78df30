"""Lab 03: what readers feel, a client that ends what nobody reads, readers who share a server, what it counts."""

from __future__ import annotations

import math
import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

from inflight import files
from inflight.engine.building import folder as engine_folder
from inflight.errors import CourseError
from inflight.notebook import parts
from inflight.notebook.checks import grades
from inflight.notebook.checks.answers import load
from inflight.notebook.checks.findings import NOT_YET, RIGHT, Case, Finding, Measured, Wrong, asked, told
from inflight.triton import Client, Server, repository, telemetry
from inflight.triton.client.client import Answer

ENGINE = "tensorrt_llm"
MODELS = ("preprocessing", ENGINE, "postprocessing")
PATIENCE_S = 30  # how long a part of a client may take: hundreds of tokens, on a machine that does other things too
TOGETHER = 128  # tokens of the answer of each reader: on a busy machine the last begins a while after the first
ASKED = 120  # tokens of an answer that is to end early
MANY_MORE = 40  # tokens computed after a word, for a request that was ended: an order of magnitude more than it takes
COURSES = parts.COURSES_OWN["client"]
SUBJECTS = ("river", "lighthouse", "garden", "mountain", "library", "railway", "village", "ship", "forest", "desert")


# 3.1 ------------------------------------------------------------------------------------------------------------------


FELT = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")


@grades("3.1", "TTFT and TPOT are two promises; one long gap is averaged away in TPOT, and shows in ITL.")
def _felt(felt: Callable, choose: random.Random) -> dict[str, Callable[[], Finding]]:
    cases = [([_times_s(choose) for _ in range(5)], percent) for percent in (50, 90)]

    def figure(name: str) -> Callable[[list[list[float]], float], float | None]:
        return lambda answers, percent: (felt(answers, percent) or {}).get(name)

    of_several = {name: partial(asked, figure(name), [_figure(name, *case) for case in cases]) for name in FELT}
    mixed = [*cases[0][0], [0.45]]
    right = {name: 1000 * float(np.percentile(_numbers(mixed)[name], 50)) for name in FELT}
    short = Case((mixed, 50), right, "It counts for TTFT and E2E. It has no gap, so TPOT and ITL leave it out.")
    return {
        **of_several,
        "an answer of one piece among them": lambda: asked(
            lambda answers, percent: felt(answers, percent) or None, [short]
        ),
    }


def _times_s(choose: random.Random) -> list[float]:
    """Arrivals of an answer: its gaps grow, so that their mean is none of them, nor the median."""
    times_s = [round(choose.uniform(0.2, 0.9), 3)]
    for number in range(1, choose.randint(3, 9)):
        times_s.append(round(times_s[-1] + 0.01 * number**2 + choose.uniform(0.001, 0.009), 3))
    return times_s


def _numbers(answers: list[list[float]]) -> dict[str, Any]:
    """Return, in seconds, the values whose percentile each figure of `FELT` is."""
    several = [times_s for times_s in answers if len(times_s) > 1]
    return {
        "ttft_ms": [times_s[0] for times_s in answers],
        "tpot_ms": [(times_s[-1] - times_s[0]) / (len(times_s) - 1) for times_s in several],
        "itl_ms": np.concatenate([np.diff(times_s) for times_s in several]),
        "e2e_ms": [times_s[-1] for times_s in answers],
    }


def _figure(name: str, answers: list[list[float]], percent: int) -> Case:
    """One of the figures of `FELT`, of several answers."""
    numbers = _numbers(answers)

    def of(values: Any) -> float:
        return 1000 * float(np.percentile(values, percent))

    gaps = "n pieces have n − 1 gaps between them, from the first piece to the last."
    from_first = [times_s[-1] - times_s[0] for times_s in answers]
    hint = told(
        "From where to where is it counted?",
        (of(numbers[name]) / 1000, "It is in seconds: milliseconds are wanted."),
        (1000 * float(np.mean(numbers[name])), f"That is the mean: percentile {percent} is asked for."),
        *({
            "tpot_ms": [
                (of(numbers["itl_ms"]), "TPOT is one number for each answer, and you took all gaps: that is the ITL."),
                (of([times_s[-1] / len(times_s) for times_s in answers]), gaps),
                (of([whole / len(times_s) for whole, times_s in zip(from_first, answers)]), gaps),
            ],
            "itl_ms": [(of(numbers["tpot_ms"]), "That is TPOT: an ITL is one gap, and all gaps count together.")],
            "e2e_ms": [(of(from_first), "It begins when the request is sent, and not with the first piece.")],
        }.get(name, [])),
    )  # fmt: skip
    about = f"{name}, percentile {percent}, of the answers {answers}"
    return Case((answers, percent), of(numbers[name]), hint, about)


# 3.2 ------------------------------------------------------------------------------------------------------------------


@grades(
    "3.2",
    "A client that stops reading has to say so: otherwise its request keeps its slot, and is computed to the end.",
    keeps="client",
    within_s=PATIENCE_S,
)
def _client(answer: tuple[str, dict], choose: random.Random) -> dict[str, Callable[[], Finding]] | Finding:
    path, url, repo = answer[0], answer[1]["grpc_url"], Path(answer[1]["repo"])
    own, courses = (load(file, "ask", "Stream", "read_until") for file in (path, COURSES))
    if not own.ask(url, "Hello.", 2).pieces:  # it sends nothing yet
        return NOT_YET
    log = _Log(url, repo)
    texts = [(f"Tell me about a {subject}.", choose.randint(12, 24), {}) for subject in choose.sample(SUBJECTS, 2)]
    story, place = f"Tell me a long story about a {choose.choice(SUBJECTS)}.", choose.randint(6, 14)
    drawn = {"end_id": -1, "temperature": 0.9, "top_k": 20, "random_seed": choose.randrange(10**6)}
    return {
        "the text": lambda: _answers_as(own, url, texts),
        "the times": lambda: _tells_times(own, url, log, story),
        "a refusal": lambda: _tells_a_refusal(own, url),
        "cancel": lambda: _cancels(own, courses, url, log, story),
        "the end of the request": lambda: _ends(own, courses, url, log, story, place),
        "options": lambda: _answers_as(own, url, [(story, 9, {"end_id": -1}), (story, 9, drawn)]),
    }


def _answers_as(own: SimpleNamespace, url: str, cases: list[tuple[str, int, dict]]) -> Finding:
    for prompt, max_tokens, options in cases:
        got = own.ask(url, prompt, max_tokens, **options)
        with Client(url) as reference:
            right = reference.stream(prompt, max_tokens, **options).read()
        asked = "".join([f"{prompt!r}, {max_tokens}", *(f", {name}={value}" for name, value in options.items())])
        if got.text != right.text:
            return Wrong(
                f"For {asked} the server's text is {right.text!r}, and ask gives {got.text!r}"
                f"{': pass the options on' if options else ''}."
            )
        if list(got.pieces) != right.pieces:
            return Wrong(
                f"The text is right, but in {len(got.pieces)} pieces; the server sends {len(right.pieces)}. Ask for a "
                "stream, and keep each piece as it comes."
            )
    return RIGHT


def _tells_times(own: SimpleNamespace, url: str, log: _Log, prompt: str) -> Finding:
    """The first piece took as long as its iteration at least, none came after all was computed, nor all at once."""

    def begin() -> tuple[Any, Iterator[str]]:
        stream = own.Stream(url, prompt, 16, end_id=-1)
        pieces = iter(stream)
        next(pieces)
        return stream, pieces

    began = time.perf_counter()
    (stream, pieces), iterations, _ = log.during(begin)  # a reader who is slow: all has come before they read on
    idle_s = time.perf_counter() - began
    time.sleep(0.1)
    for _ in pieces:
        pass
    stream.cancel()
    took_s, times_s = time.perf_counter() - began, list(stream.answer.times_s)
    if len(times_s) != len(stream.answer.pieces):
        return Wrong(f"times_s has {len(times_s)} numbers for {len(stream.answer.pieces)} pieces.")
    computed_s = iterations["iteration_ms"].iloc[0] / 1000
    if times_s != sorted(times_s) or times_s[0] < computed_s or times_s[-1] > took_s:
        return Wrong(
            f"Your times go from {times_s[0]:.3f} to {times_s[-1]:.3f}; the engine took {computed_s:.3f} s for the "
            f"first piece alone, and all were read after {took_s:.3f} s. They are seconds since the request was sent."
        )
    if times_s[-1] > idle_s + 0.05:
        return Wrong(
            f"A reader who paused read the last piece after {times_s[-1]:.2f} s, and that is your time for it; the "
            f"server had sent it before {idle_s:.2f} s. Read the clock where a response arrives, in the callback."
        )
    apart = sum(after - before > 0.0005 for before, after in zip(times_s, times_s[1:]))
    return Measured(
        "pieces with a time of their own", apart + 1, at_least=3, nothing=1,  # on a busy machine some come together
        advice="Note the time when a response arrives, not when the answer is complete.",
    )  # fmt: skip


def _tells_a_refusal(own: SimpleNamespace, url: str) -> Finding:
    try:
        own.ask(url, " ", 4)
    except Exception:
        return RIGHT
    return Wrong("The server refuses a blank prompt, but your client says nothing: raise the error that arrives.")


def _cancels(own: SimpleNamespace, courses: SimpleNamespace, url: str, log: _Log, prompt: str) -> Finding:
    """Three pieces are read, and then the answer is cancelled, twice."""

    def read(client: SimpleNamespace) -> Any:
        stream = client.Stream(url, prompt, ASKED, end_id=-1)
        pieces = iter(stream)
        for _ in islice(pieces, 3):
            pass
        stream.cancel()
        return stream

    stream, _, computed = log.during(lambda: read(own))
    try:
        stream.cancel()
    except Exception as error:
        error.add_note(" The answer was cancelled twice.")
        raise
    return Measured(
        f"tokens computed, of {ASKED} asked for, for 3 pieces and a cancel", computed, at_most=3 + MANY_MORE,
        course=log.during(lambda: read(courses))[2], nothing=ASKED,
        advice="Stream.cancel has to reach the server: if you only close the connection or stop reading, it goes on.",
    )  # fmt: skip


def _ends(own: SimpleNamespace, courses: SimpleNamespace, url: str, log: _Log, prompt: str, place: int) -> Finding:
    """Read to words that end within a piece, and count in the log how many tokens were computed in all."""
    never = own.read_until(url, prompt, "no such words", 12)
    if never is None:
        return NOT_YET
    with Client(url) as reference:
        whole = reference.stream(prompt, 12).read().text
        words, text, num_pieces = _words_within(reference.stream(prompt, 40).read().pieces, place)
    if never != whole:
        return Wrong(f"The words never come, so read_until returns the whole text, {whole!r}; yours is {never!r}.")
    got, _, computed = log.during(lambda: own.read_until(url, prompt, words, ASKED))
    if got != text:
        return Wrong(f"Up to the piece that completes {words!r} the text is {text!r}; yours is {got!r}.")
    return Measured(
        f"tokens computed, of {ASKED} asked for, for {num_pieces} pieces", computed, at_most=num_pieces + MANY_MORE,
        course=log.during(lambda: courses.read_until(url, prompt, words, ASKED))[2], nothing=ASKED,
        advice="The engine went on after you had what you need. Cancel the request: closing the connection waits.",
    )  # fmt: skip


def _words_within(pieces: list[str], place: int) -> tuple[str, str, int]:
    """Words that the text has for the first time within a piece, not at its end; the text to there; its pieces."""
    for number in [*range(place, len(pieces)), *range(1, place)]:
        before, piece = "".join(pieces[:number]), pieces[number]
        words = before[-6:] + piece[:-1]
        if len(piece.strip()) > 2 and words not in before:
            return words, before + piece, number + 1
    raise CourseError("The model's text has no word to look for. Check again: the next prompt is a different one.")


class _Log:
    """The iteration log of a running server, which nobody else asks anything meanwhile."""

    def __init__(self, url: str, repo: Path):
        config = repository.read_config(repo / ENGINE / repository.CONFIG)
        self.path = Path(repository.get_value(config, "iteration_log_path"))
        self.slots = engine_folder.read(repository.get_value(config, "gpt_model_path")).build_config.max_batch_size
        self._url = url

    def during(self, act: Callable[[], Any]) -> tuple[Any, pd.DataFrame, int]:
        """Call `act`; return its result, the iterations until the engine has nothing left to do, and their tokens."""
        start = files.size(self.path)
        num_own = 0  # requests of ours, each one token: alone in its iteration when all others have ended
        given = act()
        with Client(self._url) as client:

            def look() -> pd.DataFrame:
                nonlocal num_own
                num_own += 1
                client.ask("Hello.", 1)
                return telemetry.iterations(self.path, start)

            def is_idle(log: pd.DataFrame) -> bool:  # rows are written a while after their iteration
                last = log.iloc[-1]
                return last["active"] == 1 and last["finished"] == 1

            what = f"after {PATIENCE_S} s the engine still computed what your client had asked for"
            log = telemetry.wait_for(look, is_idle, what, PATIENCE_S)
        return given, log, int(log["scheduled"].sum()) - num_own


# 3.3 ------------------------------------------------------------------------------------------------------------------


@grades("3.3", "With more readers than slots, some wait for a slot, and that wait is part of their TTFT.")
def _readers(
    answer: tuple[Callable, Callable, Callable, Server], choose: random.Random
) -> dict[str, Callable[[], Finding]]:
    at_once, who_waited, readers_that_fit, server = answer
    log = _Log(server.grpc_url, server.repo)
    few, many = choose.randint(3, log.slots - 1), choose.randint(log.slots + 2, 2 * log.slots - 2)
    return {
        "at_once": lambda: _ask_at_once(at_once, log, few, many),
        "who_waited": partial(asked, who_waited, [_answers(choose) for _ in range(20)]),
        "readers_that_fit": partial(asked, readers_that_fit, [_promises(choose) for _ in range(20)]),
    }


def _ask_at_once(at_once: Callable, log: _Log, few: int, many: int) -> Finding:
    figures: list[Measured] = []
    for number in (few, many):
        answers, iterations, computed = log.during(lambda number=number: at_once(number, TOGETHER))
        if answers is None:
            return NOT_YET
        if len(answers) != number:
            return Wrong(
                f"at_once({number}, {TOGETHER}) gave {len(answers)} answers; there should be one for each reader."
            )
        figures += [
            Measured(
                f"most readers in one iteration, of {number}", iterations["scheduled"].max(),
                exactly=min(number, log.slots), course=min(number, log.slots), nothing=1,
                advice="Send all requests before you wait for the first answer: a thread for each reader.",
            ),
            Measured(
                f"tokens computed for {number} readers", computed, exactly=TOGETHER * number,
                advice=f"Each reader asks for {TOGETHER} tokens, with end_id=-1, and each answer is asked for once.",
            ),
            Measured(
                f"answers of {number} that came in pieces", sum(len(one.pieces) > 1 for one in answers), exactly=number,
                advice="A reader sees each token as it comes: ask for a stream.",
            ),
        ]  # fmt: skip
    return figures


def _answers(choose: random.Random) -> Case:
    """Make the answers of readers who share some slots, in any order; asked is how many of them waited for a slot."""
    slots, number = choose.randint(2, 8), choose.randint(1, 12)
    answers: list[Answer] = []
    ends: list[float] = []
    for reader in range(number):
        begins = 0.0 if reader < slots else sorted(ends)[reader - slots]
        first = begins + choose.uniform(0.05, 0.3)
        times_s = [first + gap * 0.02 for gap in range(choose.randint(1, 30))]
        ends.append(times_s[-1])
        answers.append(Answer(["word"] * len(times_s), times_s))
    choose.shuffle(answers)
    spans = [(round(one.times_s[0], 2), round(one.times_s[-1], 2)) for one in answers]
    return Case(
        (answers,),
        sum(answer.times_s[0] > min(ends) for answer in answers),
        "When did the earliest of all last pieces arrive?",
        f"readers who had no token before somebody else had all of theirs, of (first and last piece, in s) {spans}",
    )


def _promises(choose: random.Random) -> Case:
    """A table of readers, in any order; up to how many of them two promises hold."""
    rows = [(number, choose.uniform(50, 400), choose.uniform(5, 40)) for number in (1, 2, 4, 8, 16)]
    max_ttft_ms, max_itl_ms, right = choose.uniform(200, 400), choose.uniform(20, 40), 0
    for number, ttft_ms, itl_ms in rows:
        if ttft_ms > max_ttft_ms or itl_ms > max_itl_ms:
            break
        right = number
    choose.shuffle(rows)
    table = pd.DataFrame(rows, columns=["readers", "ttft_ms", "itl_ms"])
    return Case(
        (table, max_ttft_ms, max_itl_ms),
        right,
        "Go from few readers to many, and stop at the first row that breaks a promise.",
        f"readers that this table allows, with limits of {max_ttft_ms:.0f} and {max_itl_ms:.0f} ms, "
        f"{table.round().astype(int).to_dict('records')}",
    )


# 3.4 ------------------------------------------------------------------------------------------------------------------


@grades("3.4", "Counters show what a request cost without a clock: a stream calls postprocessing once per token.")
def _calls(answer: tuple[Callable, Server], choose: random.Random) -> dict[str, Callable[[], Finding]]:
    calls_of, server = answer
    few, many = choose.randint(5, 9), choose.randint(30, 40)

    def whole() -> None:
        with Client(server.grpc_url) as client:
            client.ask("Explain how rain forms.", many, end_id=-1)

    def streamed(number: int) -> None:
        with Client(server.grpc_url) as client:
            client.stream("Explain how rain forms.", number, end_id=-1).read()

    def left() -> None:
        """Come back after the first piece; the others are read when the calls are counted."""
        client = Client(server.grpc_url)
        pieces = iter(client.stream("Explain how rain forms.", many, end_id=-1))
        next(pieces)
        unread.append((client, pieces))

    unread: list[tuple[Client, Iterator[str]]] = []

    def counts(send: Callable[[], None], requests: int, pieces: int) -> Finding:
        streamed(3)  # just before, and so counted a moment later
        sent = []
        got = calls_of(lambda: sent.append(send()))
        for client, rest in unread:
            with client:
                deque(rest, maxlen=0)
        if got is None:
            return NOT_YET
        if len(sent) != 1:
            return Wrong(f"Your function called send {len(sent)} times: call it once, between two readings.")
        right = dict.fromkeys(MODELS, requests) | {"postprocessing": pieces}
        for name in MODELS:
            if got.get(name) != right[name]:
                return Measured(
                    f"calls of {name}", got.get(name, math.nan), exactly=right[name],
                    advice="Subtract what the counters were before, and read them once they no longer change.",
                )  # fmt: skip
        return RIGHT

    return {
        "a whole answer": partial(counts, whole, 1, 1),
        "a stream": partial(counts, partial(streamed, few), 1, few),
        "a stream that is still computed when send returns": partial(counts, left, 1, many),
    }
