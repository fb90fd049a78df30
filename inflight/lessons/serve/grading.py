"""Lab 03: a stream that is cut anywhere, a client that ends what nobody reads, readers who share a server."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
from tritonclient.utils import InferenceServerException

from inflight import files
from inflight.engine import folder as engine_folder
from inflight.errors import CourseError
from inflight.notebook import parts
from inflight.notebook.checks import grades
from inflight.notebook.checks.answers import load
from inflight.notebook.checks.findings import NOT_YET, RIGHT, Case, Finding, Measured, Wrong, asked
from inflight.triton import Client, Server, repository, telemetry
from inflight.triton.client.client import Answer
from inflight.triton.repository.layout import ENGINE

PATIENCE_S = 30  # how long a part of a client may take: hundreds of tokens, on a machine that does other things too
TOGETHER = 128  # tokens of the answer of each reader: on a busy machine the last begins a while after the first
ASKED = 120  # tokens of an answer that is to end early
MANY_MORE = 40  # tokens computed after a word, for a request that was ended: an order of magnitude more than it takes
COURSES = parts.COURSES_OWN["client"]
SUBJECTS = ("river", "lighthouse", "garden", "mountain", "library", "railway", "village", "ship", "forest", "desert")


# 3.1 ------------------------------------------------------------------------------------------------------------------


PIECES = ("Paris", " schön", " 🙂", " 日本", "\n\n", " a\u2028b", ' "so"', " data: x", ": no", "\\")  # of texts
CASES = 30  # of each part


@grades("3.1", "A line is whole when its end has come, an answer when its finish_reason has.", within_s=10)
def _stream(path: str, choose: random.Random) -> dict[str, Callable[[], Finding]]:
    answer_of = load(path, "answer_of").answer_of

    def part(hint: str, **how: Any) -> Callable[[], Finding]:
        return partial(asked, answer_of, [_streamed(choose, hint, **how) for _ in range(CASES)])

    return {
        "a line a chunk": part("One event a line, each line after data:.", cut=False),
        "cut anywhere": part("A chunk may end anywhere: keep what is not yet a whole line."),
        "other servers' lines": part(
            "Lines may end with \\r\\n, have no blank after data:, or begin with a colon.",
            newline="\r\n",
            prefix="data:",
            comments=True,
        ),
        "reasoning": part(
            "A delta may have reasoning_content or reasoning, and content that is null or left out.",
            reasoning=("reasoning", "reasoning_content"),
        ),
        "usage": part("The event with usage has no choices.", usage=True),
        "an error": part("An event may have error in place of choices; no finish_reason came.", error=True),
        "broken off": part(
            "The connection broke within an event, which does not count; no finish_reason came.", broken=True
        ),
    }


def _streamed(
    choose: random.Random,
    hint: str,
    *,
    cut: bool = True,
    newline: str = "\n",
    prefix: str = "data: ",
    comments: bool = False,
    reasoning: tuple[str, ...] = (),
    usage: bool = False,
    error: bool = False,
    broken: bool = False,
) -> Case:
    """A stream in chunks, as one kind of server sends it, and what its events say."""
    thoughts = [choose.choice(PIECES) for _ in range(choose.randint(1, 4) if reasoning else 0)]
    pieces = [choose.choice(PIECES) for _ in range(choose.randint(0, 6))]
    end = choose.choice(("stop", "length", "tool_calls"))
    name = choose.choice(reasoning or ("reasoning",))
    nothing = {"content": None} if choose.random() < 0.5 else {}
    deltas = [{"role": "assistant", "content": ""}, *({name: one, **nothing} for one in thoughts)]
    deltas += [{"content": piece, **({name: None} if reasoning else {})} for piece in pieces]
    events: list[dict[str, Any]] = [{"choices": [{"delta": delta, "finish_reason": None}]} for delta in deltas]
    right: dict[str, Any] = {
        "text": "".join(pieces),
        "reasoning": "".join(thoughts),
        "end": end,
        "tokens": None,
        "error": None,
    }
    if error:
        right |= {"end": None, "error": f"The engine ended, {choose.randint(1, 999)}."}
        events.append({"error": {"message": right["error"], "code": 500}})
    else:
        events.append({"choices": [{"delta": {}, "finish_reason": end}]})
    if usage:
        right["tokens"] = choose.randint(1, 999)
        events = [{**event, "usage": None, "error": None} for event in events]
        events.append({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": right["tokens"]}})
    is_ascii = choose.random() < 0.3
    lines = [f"{prefix}{json.dumps(event, ensure_ascii=is_ascii)}{newline}{newline}" for event in events]
    if comments:
        lines = [part for line in lines for part in (line, *[f": ping{newline}{newline}"] * choose.randint(0, 1))]
    chunks = [line.encode() for line in [*lines, f"{prefix}[DONE]{newline}{newline}"]]
    if broken:
        last = lines[-1].encode()
        chunks = [*(line.encode() for line in lines[:-1]), last[: choose.randint(1, len(last) - 2 * len(newline) - 1)]]
        right["end"] = None
    if cut:
        whole = b"".join(chunks)
        places = sorted(choose.sample(range(1, len(whole)), min(len(whole) - 1, choose.randint(2, 40))))
        chunks = [whole[start:stop] for start, stop in zip([0, *places], [*places, len(whole)])]
    about = f"answer_of of {len(chunks)} chunks, of which the last have {b''.join(chunks)[-160:]!r}"
    return Case((chunks,), right, hint, about)


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
    except InferenceServerException:
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
    rows = [(number, choose.randint(50, 400), choose.randint(5, 40)) for number in (1, 2, 4, 8, 16)]
    _, ttfts_ms, itls_ms = zip(*rows)
    # A limit is a figure of the table: "at most" allows it.
    max_ttft_ms, max_itl_ms, right = choose.choice(sorted(ttfts_ms)[2:]), choose.choice(sorted(itls_ms)[2:]), 0
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
        f"readers that this table allows, with limits of {max_ttft_ms} and {max_itl_ms} ms, {table.to_dict('records')}",
    )
