"""Lab 03: what a reader feels, a client that ends what nobody reads, readers who share a server, what it counts."""

from __future__ import annotations

import math
import random
import runpy
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pandas as pd

from inflight.engine import folder as engine_folder
from inflight.errors import CourseError
from inflight.notebook import mine
from inflight.notebook.checks import NOT_YET, Finding, Measured, grades, near
from inflight.triton import Client, Server, repository, telemetry
from inflight.triton.client import Answer

ENGINE = "tensorrt_llm"
ALL_FIRST = "Send all requests before you wait for the first answer: a thread for each reader."
MODELS = ("preprocessing", ENGINE, "postprocessing")
PATIENCE_S = 30  # how long a part of a client may take: hundreds of tokens, on a machine that does other things too
ASKED = 120  # tokens of an answer that is to end early
MANY_MORE = 40  # tokens computed after a word, for a request that was ended: an order of magnitude more than it takes
SUBJECTS = ("river", "lighthouse", "garden", "mountain", "library", "railway", "village", "ship", "forest", "desert")


# 3.1 ------------------------------------------------------------------------------------------------------------------


@grades("3.1", "TTFT and ITL are two promises: a service may keep one and break the other, and one mean shows neither.")
def _felt(felt: Callable, choose: random.Random) -> dict[str, Finding] | Finding:
    findings: dict[str, Finding] = {}
    for times_s in [_times_s(choose, count) for count in (choose.randint(4, 9), 2, 1)]:
        answer, got = Answer(["word"] * len(times_s), times_s), felt(list(times_s))
        if got is None:
            return NOT_YET
        gaps = answer.inter_token_s
        right = {"ttft_ms": answer.time_to_first_s * 1000, "itl_ms": sum(gaps) / len(gaps) * 1000 if gaps else None,
                 "end_to_end_ms": answer.latency_s * 1000, "tokens_per_s": len(times_s) / answer.latency_s}  # fmt: skip
        for name, value in right.items():
            findings[name] = findings.get(name) or _felt_so(times_s, name, got, value)
    return findings


def _times_s(choose: random.Random, count: int) -> list[float]:
    """Arrivals of an answer: the first takes longest, and no two gaps are alike."""
    times_s = [round(choose.uniform(0.2, 0.9), 3)]
    for number in range(1, count):
        times_s.append(round(times_s[-1] + 0.01 * number + choose.uniform(0.001, 0.009), 3))
    return times_s


def _felt_so(times_s: list[float], name: str, got: dict, value: float | None) -> Finding:
    if name not in got:
        return f"The key {name!r} is missing."
    number = got[name]
    if number is None if value is None else near(number, value):
        return None
    if value is None:
        return f"An answer of one piece has no gaps, so {name} is None; yours is {number}."
    first, last, count = times_s[0], times_s[-1], len(times_s)
    told = {
        "It is in seconds: milliseconds are wanted.": value / 1000,
        f"{count} pieces have {count - 1} gaps between them, from the first piece to the last.": last / count * 1000,
        "There is one gap less than there are pieces.": (last - first) / count * 1000,
        "It begins when the request is sent, and not with the first piece.": (last - first) * 1000,
        "That is the number of pieces: divide by the seconds that all of it took.": count,
        "The time is that of the whole answer, from sending to the last piece.": count / max(last - first, 1e-9),
        "That is one piece less than there are.": (count - 1) / last,
    }
    why = next((words for words, other in told.items() if near(number, other)), "From where to where is it counted?")
    return f"For times_s = {times_s}, {name} is {number}. {why}"


# 3.2 ------------------------------------------------------------------------------------------------------------------


@grades(
    "3.2",
    "A client that stops reading has to say so: otherwise its request keeps its slot, and is computed to the end.",
    keeps="client",
    within_s=PATIENCE_S,
    endless="How does your loop learn that the last response, or an error, has come?",
)
def _client(answer: tuple[str, dict], choose: random.Random) -> dict[str, Callable[[], Finding]]:
    path, url, repo = answer[0], answer[1]["grpc_url"], Path(answer[1]["repo"])
    own, log = SimpleNamespace(**runpy.run_path(path)), _Log(url, repo)
    cases = [(f"Tell me about a {subject}.", choose.randint(12, 24)) for subject in choose.sample(SUBJECTS, 2)]
    story, place = f"Tell me a long story about a {choose.choice(SUBJECTS)}.", choose.randint(6, 14)
    drawn = {"end_id": -1, "temperature": 0.9, "top_k": 20, "random_seed": choose.randrange(10**6)}
    return {
        "the text": lambda: _answers_as(own, url, cases),
        "the times": lambda: _tells_times(own, url, log, cases[0][0]),
        "a refusal": lambda: _tells_a_refusal(own, url),
        "cancel": lambda: _cancels(own, url, log, story),
        "the end of the request": lambda: _ends(own, url, log, story, place),
        "options": lambda: _takes_options(own, url, story, drawn),
    }


def _answers_as(own: SimpleNamespace, url: str, cases: list[tuple[str, int]]) -> Finding:
    for prompt, max_tokens in cases:
        got = own.ask(url, prompt, max_tokens)
        if got is None or not got.pieces:
            return NOT_YET
        with Client(url) as reference:
            right = reference.stream(prompt, max_tokens).read()
        if got.text != right.text:
            return (
                f"For {prompt!r} and max_tokens {max_tokens} the server's text is {right.text!r}, and ask gives "
                f"{got.text!r}."
            )
        if list(got.pieces) != right.pieces:
            return (
                f"The text is right, but in {len(got.pieces)} pieces; the server sends {len(right.pieces)}. Ask for a "
                "stream, and keep each piece as it comes."
            )
    return None


def _tells_times(own: SimpleNamespace, url: str, log: _Log, prompt: str) -> Finding:
    """No piece came before the engine had made it, none after all was computed, and not all at one moment."""
    start, began = log.size(), time.perf_counter()
    stream = own.Stream(url, prompt, 16, end_id=-1)
    if not list(islice(stream, 1)):
        return NOT_YET
    log.tokens_until_idle(start)  # a reader who is slow: the rest has come long ago when they read on
    idle_s = time.perf_counter() - began
    time.sleep(0.1)
    for _ in stream:
        pass
    took_s, got = time.perf_counter() - began, stream.answer
    stream.cancel()
    times_s = list(got.times_s)
    if len(times_s) != len(got.pieces):
        return f"times_s has {len(times_s)} numbers for {len(got.pieces)} pieces."
    if times_s != sorted(times_s) or times_s[-1] > took_s:
        return (
            f"The last time is {times_s[-1]:.3f}, and it took {took_s:.3f} s to read all. They are seconds since the "
            "request was sent, and rise."
        )
    made = log.since(start)
    made_s = made["timestamp"] + made["iteration_ms"] / 1000 - made["timestamp"].iloc[0]
    too_early = [number for number, (at, was) in enumerate(zip(times_s, made_s), 1) if at < was - 0.001]
    if too_early:
        return (
            f"Piece {too_early[0]} has the time {times_s[too_early[0] - 1]:.3f} s, but the engine took longer to make "
            "it. Read the clock when the request is sent, and when each response arrives."
        )
    if times_s[-1] > idle_s + 0.05:
        return (
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
        got = own.ask(url, " ", 4)
    except Exception:
        return None
    if got is None or (not got.pieces and not own.ask(url, "Hello.", 2).pieces):  # it sends nothing yet
        return NOT_YET
    return "The server refuses a blank prompt, but your client says nothing: raise the error that arrives."


def _cancels(own: SimpleNamespace, url: str, log: _Log, prompt: str) -> Finding:
    """Three pieces are read, and then the answer is cancelled, twice."""

    def computed(client: SimpleNamespace) -> int | None:
        start, stream = log.size(), client.Stream(url, prompt, ASKED, end_id=-1)
        if not list(islice(stream, 3)):
            return None
        stream.cancel()
        num_tokens = log.tokens_until_idle(start)
        stream.cancel()
        return num_tokens

    try:
        got = computed(own)
    except Exception as error:
        return f"Three pieces were read, and the answer cancelled twice: {type(error).__name__}: {error}."
    if got is None:
        return NOT_YET
    return Measured(
        f"tokens computed, of {ASKED} asked for, for 3 pieces and a cancel", got, at_most=3 + MANY_MORE,
        course=computed(_courses()), nothing=ASKED,
        advice="Stream.cancel has to reach the server: if you only close the connection or stop reading, it goes on.",
    )  # fmt: skip


def _ends(own: SimpleNamespace, url: str, log: _Log, prompt: str, place: int) -> Finding:
    """Read to words that end within a piece, and count in the log how many tokens were computed in all."""
    never, _ = _computed(own, url, log, prompt, "no such words", 12)
    if never is None:
        return NOT_YET
    with Client(url) as reference:
        whole = reference.stream(prompt, 12).read().text
        words, text, num_pieces = _words_within(reference.stream(prompt, 40).read().pieces, place)
    if never != whole:
        return f"The words never come, so read_until returns the whole text, {whole!r}; yours is {never!r}."
    got, computed = _computed(own, url, log, prompt, words)
    if got != text:
        return f"Up to the piece that completes {words!r} the text is {text!r}; yours is {got!r}."
    return Measured(
        f"tokens computed, of {ASKED} asked for, for {num_pieces} pieces", computed, at_most=num_pieces + MANY_MORE,
        course=_computed(_courses(), url, log, prompt, words)[1], nothing=ASKED,
        advice="The engine went on after you had what you need. Cancel the request: closing the connection waits.",
    )  # fmt: skip


def _courses() -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(mine.COURSES_OWN / mine.PARTS["client"])))


def _words_within(pieces: list[str], place: int) -> tuple[str, str, int]:
    """Words that the text has for the first time within a piece, not at its end; the text to there; its pieces."""
    for number in [*range(place, len(pieces)), *range(1, place)]:
        before, piece = "".join(pieces[:number]), pieces[number]
        words = before[-6:] + piece[:-1]
        if len(piece.strip()) > 2 and words not in before:
            return words, before + piece, number + 1
    raise CourseError("The model's text has no word to look for. Check again: the next prompt is a different one.")


def _computed(
    own: SimpleNamespace, url: str, log: _Log, prompt: str, words: str, max_tokens: int = ASKED
) -> tuple[str | None, int]:
    """What `read_until` gives, and how many tokens the engine computed from its call until it was idle again."""
    start = log.size()
    text = own.read_until(url, prompt, words, max_tokens)
    return text, log.tokens_until_idle(start)


def _takes_options(own: SimpleNamespace, url: str, prompt: str, drawn: dict) -> Finding:
    """As later labs ask: to a fixed length, and sampled."""
    for options in ({"end_id": -1}, drawn):
        got = own.ask(url, prompt, 9, **options)
        if got is None or not got.pieces:
            return NOT_YET
        with Client(url) as reference:
            right = reference.stream(prompt, 9, **options).read()
        if got.text != right.text:
            given = ", ".join(f"{name}={value}" for name, value in options.items())
            return (
                f"ask with {given} gives {got.text!r}, but the server's answer is {right.text!r}: pass the options on."
            )
    return None


def _is_idle(rows: pd.DataFrame) -> bool:
    """Whether our request of one token was alone in the last iteration; rows are written a while after it."""
    last = rows.iloc[-1]
    return last["active"] == 1 and (last["finished"] == 1 or not telemetry.names_requests(rows))


class _Log:
    """The iteration log of a running server, which nobody else asks anything meanwhile."""

    def __init__(self, url: str, repo: Path):
        config = repository.read_config(repo / ENGINE / repository.CONFIG)
        self.path = Path(repository.get_value(config, "iteration_log_path"))
        self.slots = engine_folder.read(repository.get_value(config, "gpt_model_path")).build_config.max_batch_size
        self._url = url
        if not self.path.is_file():
            raise CourseError("The server writes no iteration log: assemble its repository with iteration_log_path.")

    def size(self) -> int:
        return self.path.stat().st_size

    def since(self, start: int) -> pd.DataFrame:
        """The iterations since the log had `start` bytes."""
        return telemetry.iterations(self.path, start)

    def tokens_until_idle(self, start: int) -> int:
        """Tokens computed since the log had `start` bytes, once the engine has nothing left to do."""
        num_own = 0  # requests of ours, each one token: alone in its iteration when all others have ended
        with Client(self._url) as client:

            def look() -> pd.DataFrame:
                nonlocal num_own
                num_own += 1
                client.ask("Hello.", 1)
                return self.since(start)

            what = f"after {PATIENCE_S} s the engine still computed what your client had asked for"
            log = telemetry.wait_for(look, _is_idle, what, PATIENCE_S)
        return int(log["scheduled"].sum()) - num_own


# 3.3 ------------------------------------------------------------------------------------------------------------------


@grades("3.3", "With more readers than slots, some wait for a slot, and that wait is part of their TTFT.")
def _readers(
    answer: tuple[Callable, Callable, Callable, Server], choose: random.Random
) -> dict[str, Finding | Callable[[], Finding]]:
    at_once, who_waited, readers_that_fit, server = answer
    log = _Log(server.grpc_url, server.repo)
    few, many = choose.randint(3, log.slots - 1), choose.randint(log.slots + 2, 2 * log.slots - 2)
    return {
        "at_once": lambda: _ask_at_once(at_once, log, few, many),
        "who_waited": lambda: _waited(who_waited, choose),
        "readers_that_fit": lambda: _fits(readers_that_fit, choose),
    }


def _ask_at_once(at_once: Callable, log: _Log, few: int, many: int) -> Finding:
    figures: list[Measured] = []
    for number in (few, many):
        start = log.size()
        answers = at_once(number, 16)
        if answers is None:
            return NOT_YET
        computed, rows = log.tokens_until_idle(start), log.since(start)
        if len(answers) != number:
            return f"at_once({number}, 16) gave {len(answers)} answers; there should be one for each reader."
        figures += [
            Measured(
                f"most readers in one iteration, of {number}", rows["scheduled"].max(),
                exactly=min(number, log.slots), course=min(number, log.slots), nothing=1,
                advice=ALL_FIRST,
            ),
            Measured(
                f"tokens computed for {number} readers", computed, exactly=16 * number,
                advice="Each reader asks for 16 tokens, with end_id=-1, and each answer is asked for once.",
            ),
            Measured(
                f"answers of {number} that came in pieces", sum(len(one.pieces) > 1 for one in answers), exactly=number,
                advice="A reader sees each token as it comes: ask for a stream.",
            ),
            Measured(
                f"different answers of {number} readers", len({"".join(one.pieces) for one in answers}),
                at_least=max(2, number // 2), nothing=1, advice="Give each reader a different prompt.",
            ),
        ]  # fmt: skip
    return figures


def _waited(who_waited: Callable, choose: random.Random) -> Finding:
    for _ in range(20):
        slots, number = choose.randint(2, 8), choose.randint(1, 12)
        answers: list[Answer] = []
        ends: list[float] = []
        for reader in range(number):
            begins = 0.0 if reader < slots else sorted(ends)[reader - slots]
            first = begins + choose.uniform(0.05, 0.3)
            times_s = [first + gap * 0.02 for gap in range(choose.randint(1, 30))]
            ends.append(times_s[-1])
            answers.append(Answer(["word"] * len(times_s), times_s))
        earliest = min(ends)
        right = sum(answer.times_s[0] > earliest for answer in answers)
        choose.shuffle(answers)
        got = who_waited(list(answers))
        if got is None:
            return NOT_YET
        if got != right:
            spans = [(round(one.times_s[0], 2), round(one.times_s[-1], 2)) for one in answers]
            return (
                f"Of these readers (first and last piece, in s) {right} had no token before somebody else had all of "
                f"theirs, and you say {got}: {spans}."
            )
    return None


def _fits(readers_that_fit: Callable, choose: random.Random) -> Finding:
    for _ in range(20):
        rows = [(number, choose.uniform(50, 400), choose.uniform(5, 40)) for number in (1, 2, 4, 8, 16)]
        max_ttft_ms, max_itl_ms, right = choose.uniform(200, 400), choose.uniform(20, 40), 0
        for number, ttft_ms, itl_ms in rows:
            if ttft_ms > max_ttft_ms or itl_ms > max_itl_ms:
                break
            right = number
        choose.shuffle(rows)
        table = pd.DataFrame(rows, columns=["readers", "ttft_ms", "itl_ms"])
        got = readers_that_fit(table, max_ttft_ms, max_itl_ms)
        if got is None:
            return NOT_YET
        if got != right:
            return (f"With limits of {max_ttft_ms:.0f} and {max_itl_ms:.0f} ms, this table allows {right} readers, "
                    f"and you say {got}: {table.round().astype(int).to_dict('records')}.")  # fmt: skip
    return None


# 3.4 ------------------------------------------------------------------------------------------------------------------


@grades("3.4", "Counters show what a request cost without a clock: a stream calls postprocessing once per token.")
def _calls(answer: tuple[Callable, Server], choose: random.Random) -> dict[str, Callable[[], Finding]]:
    calls_of, server = answer
    few, many = sorted(choose.sample(range(5, 30), 2))

    def whole() -> None:
        with Client(server.grpc_url) as client:
            client.ask("Explain how rain forms.", many, end_id=-1)

    def streamed(*numbers: int) -> None:
        with Client(server.grpc_url) as client:
            for number in numbers:
                client.stream("Explain how rain forms.", number, end_id=-1).read()

    return {
        "a whole answer": lambda: _counts(calls_of, whole, streamed, 1, 1),
        "a stream": lambda: _counts(calls_of, lambda: streamed(few), streamed, 1, few),
        "two streams": lambda: _counts(calls_of, lambda: streamed(few, many), streamed, 2, few + many),
        "nothing": lambda: _counts(calls_of, lambda: None, streamed, 0, 0),
    }


def _counts(
    calls_of: Callable, send: Callable[[], None], streamed: Callable[[int], None], requests: int, pieces: int
) -> Finding:
    streamed(3)  # just before, and so counted a moment later
    num_sent = 0

    def counting() -> None:
        nonlocal num_sent
        num_sent += 1
        send()

    got = calls_of(counting)
    if got is None:
        return NOT_YET
    if num_sent != 1:
        return f"Your function called send {num_sent} times: call it once, between two readings."
    right = dict.fromkeys(MODELS, requests) | {"postprocessing": pieces}
    wrong = [name for name in MODELS if name not in got or got[name] != right[name]]
    if wrong:
        return Measured(
            f"calls of {wrong[0]}", got.get(wrong[0], math.nan), exactly=right[wrong[0]],
            advice="Subtract what the counters were before, and read them once they no longer change.",
        )  # fmt: skip
    return None
