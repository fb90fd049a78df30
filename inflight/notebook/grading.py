"""Checks a learner's answers in a lab, and hints when they are not right yet.

    check("1.2", bytes_per_token)

A check never stops a lab. With COURSE_STRICT=1 in the environment (how the solutions are built and tested) it raises.
"""

import contextlib
import html
import math
import os
import random
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from inflight import checkpoint, engine
from inflight.bench.batch_run import QUEUE_FULL, TIMED_OUT, Outcome
from inflight.engine.config import BuildConfig
from inflight.engine.prediction import schedule
from inflight.engine.sizing import Sizing
from inflight.errors import CourseError
from inflight.triton import repository
from inflight.triton.client import Answer, Stream
from inflight.triton.telemetry import Statistics

NOT_YET = "not done yet"  # what a grader returns when it sees that the learner has not begun

_graders: dict[str, Callable] = {}

# Border colour and word: the word alone says it too, for those who do not see the colour.
_LOOK = {"done": ("#009E73", "Done"), NOT_YET: ("#999999", "Not done yet"), "wrong": ("#D55E00", "Not right yet")}


@dataclass(frozen=True)
class Result:
    """What `check` found: `status` is "done", "not done yet" or "wrong"; `hint` helps when it is wrong."""

    exercise: str
    status: str
    hint: str = ""

    def __repr__(self) -> str:
        return f"Exercise {self.exercise}: {_LOOK[self.status][1]}." + (f" {self.hint}" if self.hint else "")

    def _repr_html_(self) -> str:
        colour, word = _LOOK[self.status]
        style = f"border-left: 6px solid {colour}; padding: 4px 12px"
        hint = f"<br>{html.escape(self.hint)}" if self.hint else ""
        return f'<div style="{style}"><strong>Exercise {html.escape(self.exercise)}: {word}.</strong>{hint}</div>'


def grades(exercise: str) -> Callable[[Callable], Callable]:
    """Register the decorated `fn(answer) -> str | None` for `exercise`: a hint, NOT_YET, or None when it is right."""

    def register(grader: Callable) -> Callable:
        if exercise in _graders:
            raise ValueError(f"exercise {exercise} has two graders")
        _graders[exercise] = grader
        return grader

    return register


def check(exercise: str, answer: object) -> Result:
    """Grade `answer` and return what to show.

    An answer that is, or that holds, None or `...` counts as not begun.

    Raises
    ------
    CourseError
        Only with COURSE_STRICT=1: the answer is not right.
    """
    result = Result(exercise, NOT_YET) if untouched(answer) else _grade(exercise, answer)
    if result.status != "done" and os.environ.get("COURSE_STRICT") == "1":
        raise CourseError(f"{result!r} Correct the answer in the lesson's lab.py, or the exercise's grader.")
    return result


def untouched(answer: object) -> bool:
    """Whether `answer` is None or `...`, or a list, tuple or dict that holds one of these."""
    if isinstance(answer, dict):
        answer = list(answer.values())
    if isinstance(answer, list | tuple):
        return any(untouched(item) for item in answer)
    return answer is None or answer is ...


def _grade(exercise: str, answer: object) -> Result:
    if exercise not in _graders:
        known = ", ".join(sorted(_graders)) or "none"
        return Result(exercise, "wrong", f"There is no such exercise; there are {known}.")
    try:
        hint = _graders[exercise](answer)
    except Exception as error:  # an answer of any type may arrive, and a lab must go on
        hint = f"Your answer could not be checked: {type(error).__name__}: {error}."
    if hint is None:
        return Result(exercise, "done")
    return Result(exercise, NOT_YET) if hint == NOT_YET else Result(exercise, "wrong", hint)


# Lesson 03: serve and query -------------------------------------------------------------------------------------------


@grades("3.1")
def _felt(felt: Callable) -> str | None:
    for times_s in ([0.25, 0.3, 0.5, 0.8], [0.05, 0.06], [0.4]):
        answer, got = Answer(["word"] * len(times_s), times_s), felt(times_s)
        if got is None:
            return NOT_YET
        gaps = answer.inter_token_s
        right = {"ttft_ms": answer.time_to_first_s * 1000, "itl_ms": sum(gaps) / len(gaps) * 1000 if gaps else None,
                 "end_to_end_ms": answer.latency_s * 1000, "tokens_per_s": len(times_s) / answer.latency_s}  # fmt: skip
        for name, value in right.items():
            if name not in got:
                return f"The key {name!r} is missing."
            if value is None and got[name] is not None:
                return f"An answer of one piece has no gaps, so {name} is None; yours is {got[name]}."
            if value is not None and (got[name] is None or not math.isclose(got[name], value, rel_tol=1e-6)):
                return f"For times_s = {times_s}, {name} is {got[name]}. Look at its unit and where it is counted from."
    return None


@grades("3.2")
def _read_until(read_until: Callable) -> str | None:
    for pieces, word, wanted in ((["The", " city", " is", " Par", "is", ".", " It", " lies"], "Paris", 5),
                                 (["Rome", " and", " Paris"], "Rome", 1),
                                 (["No", " idea", "."], "Paris", 3)):  # fmt: skip
        given: list[str] = []
        source = _noting(pieces, given)
        text = read_until(Stream(source), word)
        if text is None:
            return NOT_YET
        if text != "".join(pieces[:wanted]):
            return f"From the pieces {pieces} and the word {word!r} your function returned {text!r}."
        if len(given) > wanted or next(source, None) is not None:
            return "The text is right, but the request was not ended: the server would go on to the last token."
    return None


def _noting(pieces: list[str], given: list[str]) -> Iterator[str]:
    """`pieces` one by one, each noted in `given` when it is taken."""
    for piece in pieces:
        given.append(piece)
        yield piece


@grades("3.3")
def _readers_that_fit(answer: tuple[Callable, str]) -> str | None:
    readers_that_fit, worse = answer
    choose = random.Random(3)
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
            return (f"With {max_ttft_ms:.0f} and {max_itl_ms:.0f} ms promised, {right} readers fit into this table, "
                    f"and you say {got}: {table.round().astype(int).to_dict('records')}.")  # fmt: skip
    if worse != "TTFT":
        return "readers_that_fit is right. Now compare the rows for 8 and 16 readers: which column grows more?"
    return None


# Lab 01: the engine ---------------------------------------------------------------------------------------------------


def _sizing() -> Sizing:
    """The arithmetic of the course's own model."""
    source = checkpoint.fetch()
    return Sizing(checkpoint.GgufFile(source.path), engine.read(engine.cached(source)).pretrained_config)


@grades("1.1")
def _users_that_fit(answer: object) -> str | None:
    sizing, config = _sizing(), BuildConfig()
    if answer == int(4e9 // sizing.kv_bytes_per_user(config, 1500)):
        return None
    if answer == int(4e9 // (1500 * sizing.kv_bytes_per_token(config))):
        return "Nearly: 1,500 tokens take whole blocks of 32. Round up to blocks before you divide."
    return "Divide the memory by the bytes of one user: blocks × 32 × 2 × layers × KV heads × head size × 4."


@grades("1.2")
def _engine_for_a_service(answer: object) -> str | None:
    if not isinstance(answer, dict):
        return "Give a dict of build options, as {'max_batch_size': 16}."
    unknown = set(answer) - set(BuildConfig.__dataclass_fields__)
    if unknown:
        return f"{unknown.pop()!r} is no build option; their names are the parameters of BuildConfig."
    try:
        config = BuildConfig(**answer)
    except CourseError as error:
        return str(error)
    for name, needed in {"max_batch_size": 16, "max_input_len": 200, "max_seq_len": 256}.items():
        if getattr(config, name) < needed:
            return f"{name} is {getattr(config, name)}: the service needs {needed}."
    taken = config.max_batch_size * _sizing().kv_bytes_per_user(config, config.max_seq_len)
    return f"The KV cache of all seats takes {taken / 1e6:.1f} MB; it must fit into 64." if taken > 64e6 else None


@grades("1.3")
def _company_changes_nothing(answer: object) -> str | None:
    alone, in_company = (list(ids) for ids in answer)
    if len(alone) != 32 or len(in_company) != 32:
        return f"Both answers must have 32 tokens; yours have {len(alone)} and {len(in_company)}."
    if alone != in_company:
        return "They differ, so the engine rounds its activations: build it with quant_algo W4A16."
    return None


# Lesson 02: the repository --------------------------------------------------------------------------------------------

# Faults of exercise 2.2: file, what stands there, what is put there instead.
_FAULTS = (
    ("postprocessing", 'name: "TOKENS_BATCH"\n  data_type: TYPE_INT32', 'name: "TOKENS_BATCH"\n  data_type: TYPE_FP32'),
    ("tensorrt_llm", '"guaranteed_no_evict"', '"guaranteed_no_eviction"'),
    ("ensemble", 'key: "input_ids"\n      value: "_INPUT_ID"', 'key: "input_ids"\n      value: "_INPUT_IDS"'),
    ("ensemble", 'key: "input_lengths"\n      value: "_REQUEST_INPUT_LEN"',
     'key: "input_lengths"\n      value: "_REQUEST_OUTPUT_LEN"'),
    ("ensemble", 'key: "request_output_len"\n      value: "_REQUEST_OUTPUT_LEN"',
     'key: "request_output_len"\n      value: "_REQUEST_INPUT_LEN"'),
)  # fmt: skip


def break_repository(repo: Path) -> Path:
    """Put the faults of exercise 2.2 into a repository in good order, and return its path.

    Raises
    ------
    CourseError
        The repository was changed before, so that a fault does not fit.
    """
    for model, intact, faulty in _FAULTS:
        path = repo / model / repository.CONFIG
        text = path.read_text(encoding="utf-8")
        if intact not in text:
            raise CourseError(f"{path} is not as it was assembled. Assemble the repository again, then break it.")
        path.write_text(text.replace(intact, faulty), encoding="utf-8")
    return repo


def _edges(repo: Path) -> set[repository.Edge]:
    return set(repository.ensemble_edges(repo))


def _first_problem(repo: Path) -> str | None:
    """What the check says first about a repository, with paths as they are in it."""
    problems = repository.check(repo)
    return f"The check says: {str(problems[0]).replace(f'{repo}/', '')}" if problems else None


@contextlib.contextmanager
def _assembled() -> Iterator[Path]:
    """A repository as it should be. Its engine is never opened, so it need not be there."""
    with tempfile.TemporaryDirectory() as folder:
        yield repository.assemble(Path(folder) / "repo", Path(folder) / "engine")


@grades("2.1")
def _takers(takers: Callable) -> str | None:
    with _assembled() as repo:
        edges = _edges(repo)
        for tensor in sorted({edge.tensor for edge in edges} | {"no_such_tensor"}):
            got = takers(repo, tensor)
            if got is None:
                return NOT_YET
            right = {(edge.target, edge.input) for edge in edges if edge.tensor == tensor and edge.target != "client"}
            if set(got) != right or len(got) != len(right):
                return f"For {tensor!r} the ensemble's steps say {sorted(right)}, and your function {got}."
    return None


@grades("2.2")
def _repaired(repo: Path) -> str | None:
    problem = _first_problem(repo)
    if problem:
        return problem
    with _assembled() as reference:
        crossed = _edges(repo) - _edges(reference)
        config = repository.read_config(repo / "tensorrt_llm" / repository.CONFIG)
    if crossed:
        return "The check is content, but not every input gets its own tensor: look at what is connected with what."
    if repository.get_parameter(config, "batch_scheduler_policy") != "guaranteed_no_evict":
        return "The repository would start, with another scheduling policy than before: it was guaranteed_no_evict."
    return None


@grades("2.3")
def _extended(repo: Path) -> str | None:
    problem = _first_problem(repo)
    if problem:
        return problem
    edges = {(edge.source, edge.output, edge.target, edge.input) for edge in _edges(repo)}
    if ("preprocessing", "REQUEST_INPUT_LEN", "tensorrt_llm", "input_lengths") not in edges:
        return "tensorrt_llm's input_lengths no longer gets preprocessing's REQUEST_INPUT_LEN."
    if ("preprocessing", "REQUEST_INPUT_LEN", "client", "prompt_tokens") not in edges:
        return "The ensemble has no output prompt_tokens that carries preprocessing's REQUEST_INPUT_LEN."
    return None


# Lesson 04: static against in-flight batching -------------------------------------------------------------------------


def _iterations_of(lengths: list[int], seats: int) -> tuple[int, int]:
    """Iterations of requests that all wait from the start: static, in flight."""
    static, in_flight = (
        len(schedule(lengths, seats, kind, at_the_start=seats).iterations) for kind in ("V1", "inflight_fused_batching")
    )
    return static, in_flight


@grades("4.1")
def _count_iterations(answer: tuple[Callable, Callable]) -> str | None:
    choose = random.Random(4)
    for _ in range(30):
        seats, number = choose.randint(1, 8), choose.randint(1, 30)
        lengths = [choose.randint(1, 50) for _ in range(number)]
        for name, function, right in zip(("static", "in-flight"), answer, _iterations_of(lengths, seats)):
            got = function(list(lengths), seats)
            if got is None:
                return NOT_YET
            if got != right:
                return f"Lengths {lengths} on {seats} seats: your {name} function says {got}. Draw the seats and count."
    return None


@grades("4.2")
def _wasted(wasted: Callable) -> str | None:
    choose = random.Random(4)
    for _ in range(10):
        seats = choose.randint(2, 8)
        scheduled = [choose.randint(1, seats) for _ in range(choose.randint(1, 40))]
        got = wasted(pd.DataFrame({"scheduled": scheduled}), seats)
        if got is None:
            return NOT_YET
        if not math.isclose(got, 1 - sum(scheduled) / (len(scheduled) * seats), abs_tol=1e-9):
            return (
                f"For scheduled = {scheduled} and {seats} seats you have {got:.3f}. How many seats were there in all "
                "iterations together, and how many of them computed something?"
            )
    return None


@grades("4.3")
def _two_traces(answer: tuple[list[int], list[int]]) -> str | None:
    for name, lengths in zip(("wins", "draws"), answer):
        if lengths is None:
            return NOT_YET
        if len(lengths) != 24 or not all(8 <= length <= 128 for length in lengths):
            return (
                f"{name} needs 24 lengths between 8 and 128; it has {len(lengths)}, "
                f"from {min(lengths)} to {max(lengths)}."
            )
        static, in_flight = _iterations_of(lengths, 8)
        if name == "wins" and static < 2.5 * in_flight:
            return (
                f"wins takes {static} iterations static and {in_flight} in flight: "
                f"{static / in_flight:.1f} times, not 2.5."
            )
        if name == "draws" and static > 1.1 * in_flight:
            return f"draws takes {static} iterations static and {in_flight} in flight: more than 1.1 times as many."
        if name == "draws" and max(lengths) < 4 * min(lengths):
            return "In draws, make at least one answer four times as long as another."
    return None


# Lesson 05: policies and the KV cache ---------------------------------------------------------------------------------


def _full_blocks(tokens: int, tokens_per_block: int) -> int:
    return -(-tokens // tokens_per_block)


@grades("5.1")
def _blocks(blocks: Callable) -> str | None:
    for prompt, answer, size in ((100, 220, 32), (33, 31, 32), (32, 32, 32), (1, 1, 32), (500, 12, 64), (130, 1, 128)):
        got = blocks(prompt, answer, size)
        if got is None:
            return NOT_YET
        right = _full_blocks(prompt, size), _full_blocks(prompt + answer, size)
        if tuple(got) != right:
            return (f"A prompt of {prompt} and an answer of {answer} tokens, in blocks of {size}: your function says "
                    f"{tuple(got)}. Round up, and round the sum only once.")  # fmt: skip
    return None


@grades("5.2")
def _price(price: Callable) -> str | None:
    choose = random.Random(5)
    for _ in range(20):
        columns = ("context_tokens", "waiting", "paused", "empty_seats")
        log = pd.DataFrame({column: choose.choices((0, 0, 1, 2, 40), k=12) for column in columns})
        prompt_tokens = int(log["context_tokens"].sum()) - choose.randrange(30)
        got = price(log.copy(), prompt_tokens)
        if got is None:
            return NOT_YET
        right = {
            "twice": int(log["context_tokens"].sum()) - prompt_tokens,
            "most_paused": int(log["paused"].max()),
            "held_back": int(((log["waiting"] > 0) & (log["empty_seats"] > 0)).sum()),
        }
        for name, value in right.items():
            if name not in got:
                return f"The key {name!r} is missing."
            if got[name] != value:
                return (
                    f"With this log, {name} is not {got[name]}: {log.to_dict('list')}, prompts {prompt_tokens} tokens."
                )
    return None


@grades("5.3")
def _smallest_cache(answer: tuple[Callable, dict]) -> str | None:
    smallest_cache, advice = answer
    choose = random.Random(6)
    for seats in (1, 2, 4, 8, 8, 8):
        lengths = [(choose.randrange(20, 400), choose.randrange(5, 300)) for _ in range(choose.randrange(1, 14))]
        got = smallest_cache(list(lengths), seats, 32, 1024)
        if got is None:
            return NOT_YET
        meals = sorted((_full_blocks(prompt + answer, 32) for prompt, answer in lengths), reverse=True)
        right = max(sum(meals[:seats]), _full_blocks(1024, 32)) * 32
        if got < right:
            return (
                f"{seats} seats, max_seq_len 1024 and {lengths}: in {got} tokens of cache a request may have to wait "
                "beside an empty seat, or the engine refuses to load."
            )
        if got > right:
            return f"{seats} seats, max_seq_len 1024 and {lengths}: less than {got} tokens of cache is enough."
    right_advice = {"captions": "guaranteed_no_evict", "labels": "max_utilization"}
    for service, policy in right_advice.items():
        if advice.get(service) != policy:
            return (
                f"smallest_cache is right. Think again about {service!r}: will a "
                "promise for the whole answer come true?"
            )
    return None


# Lesson 06: Triton's batchers -----------------------------------------------------------------------------------------

LEAST_MEAN_BATCH, MOST_P95_MS = 3.0, 300  # exercise 6.2


def _sizes_on_paper(arrivals_ms: list[float], delay_ms: float, most: int, fixed_ms: float, item_ms: float) -> list[int]:
    """Batches of one instance: it takes the next when free and the batch is full or its oldest has waited enough."""
    waiting, free_ms, sizes = sorted(arrivals_ms), 0.0, []
    while waiting:
        full_ms = waiting[most - 1] if len(waiting) >= most else math.inf
        leaves_ms = max(free_ms, min(waiting[0] + delay_ms, full_ms))
        sizes.append(sum(arrival <= leaves_ms for arrival in waiting[:most]))
        del waiting[: sizes[-1]]
        free_ms = leaves_ms + fixed_ms + item_ms * sizes[-1]
    return sizes


@grades("6.1")
def _batch_sizes(sizes: Callable) -> str | None:
    choose = random.Random(6)
    cases = [
        (
            ([0, 10, 21, 32, 43], 0, 8, 40, 4),
            "Without a delay the first leaves alone; the next batch is what came meanwhile.",
        ),
        ((list(range(12)), 0, 4, 40, 4), "No batch holds more than max_batch_size; the rest waits for the next."),
        (([0, 30, 70, 300], 100, 8, 40, 4), "A delay counts from the arrival of the oldest one that waits."),
        ((list(range(8)), 1000, 8, 40, 4), "A full batch does not wait for the delay."),
        (
            ([0, 5, 50], 20, 8, 100, 4),
            "Who has waited long enough still waits for the model: it computes one batch at a time.",
        ),
    ]
    for _ in range(20):
        arrivals_ms = [number + 0.5 for number in sorted(choose.sample(range(600), 24))]
        cases.append(
            ((arrivals_ms, choose.choice((0, 33, 77)), choose.choice((2, 4, 8)), 40, 4), "Play it event by event.")
        )
    for case, hint in cases:
        got, right = sizes(*case), _sizes_on_paper(*case)
        if got is None:
            return NOT_YET
        if list(got) != right:
            arrivals_ms, delay_ms, most, *_ = case
            shown = ", ".join(f"{value:g}" for value in arrivals_ms[:6]) + (", …" if len(arrivals_ms) > 6 else "")
            return (
                f"Arrivals at {shown} ms, delay {delay_ms} ms, at most {most}: your function says {list(got)}. {hint}"
            )
    return None


@grades("6.2")
def _within_budget(answer: tuple[dict, Outcome]) -> str | None:
    settings, outcome = answer
    if not settings:
        return NOT_YET
    rejected = (outcome.requests["outcome"] == "rejected").sum()
    if rejected:
        return f"{rejected} requests were rejected; everybody must be answered."
    p95_ms, mean_batch = outcome.requests["latency_ms"].quantile(0.95), outcome.statistics.mean_batch
    if mean_batch < LEAST_MEAN_BATCH:
        return (
            f"{mean_batch:.1f} requests a batch; at least {LEAST_MEAN_BATCH:g} are wanted. What lets a request wait "
            "for others, and how many may a batch hold?"
        )
    if p95_ms > MOST_P95_MS:
        return (
            f"The batches are large enough, but P95 is {p95_ms:.0f} ms, and the budget {MOST_P95_MS} ms. At thirty a "
            "second, how long do you wait for two or three more?"
        )
    return None


@grades("6.3")
def _steps(steps: Callable) -> str | None:
    choose = random.Random(63)
    cases = [[(1, 5)], [(1, 5), (1, 6)], [(1, 5), (2, 1), (1, 6), (2, 3), (1, 7)]]
    cases += [[(choose.randrange(1, 6), choose.randrange(9)) for _ in range(12)] for _ in range(10)]
    for messages in cases:
        got = steps(messages)
        if got is None:
            return NOT_YET
        if [(step.sequence, step.value) for step in got] != messages:
            return f"{messages}: the steps are not these messages in this order, one each."
        for place, (sequence, _) in enumerate(messages):
            others = [number for number, (other, _) in enumerate(messages) if other == sequence]
            for name, wanted in (("start", place == others[0]), ("end", place == others[-1])):
                if getattr(got[place], name) != wanted:
                    return (
                        f"{messages}: message {place + 1}, of sequence {sequence}, has {name}={not wanted}. START goes "
                        "to the first of its sequence alone, END to its last; one message may be both."
                    )
    return None


def _flood(messages: list[str]) -> Outcome:
    """A run whose requests came back with these messages, and what Triton counts of it: in batches of two."""
    answered, refused = messages.count(""), messages.count(QUEUE_FULL)
    requests = pd.DataFrame(
        {
            "request": range(1, len(messages) + 1),
            "latency_ms": 50.0,
            "message": messages,
            "outcome": ["rejected" if message else "answered" for message in messages],
        }
    )
    counted = Statistics(
        answered, -(-answered // 2), answered, len(messages) - answered - refused, 0.0, 0.0, pd.Series(dtype=int)
    )
    return Outcome(requests, pd.DataFrame({"size": [2] * counted.executions}), counted)


@grades("6.4")
def _account(account: Callable) -> str | None:
    hints = {
        "answered": "A rejected request comes back too, with a message.",
        "queue full": "Two messages mean that a request was rejected: batching_trial.QUEUE_FULL is this one.",
        "timed out": "Two messages mean that a request was rejected: batching_trial.TIMED_OUT is this one.",
        "not counted": "Triton counts a time-out as failed, and a request that found the queue full not at all.",
    }
    choose = random.Random(64)
    cases = [[""] * 6, ["", "", TIMED_OUT, "", TIMED_OUT, TIMED_OUT], ["", QUEUE_FULL, "", QUEUE_FULL]]
    cases += [choose.choices(("", QUEUE_FULL, TIMED_OUT), (3, 5, 2), k=40) for _ in range(5)]
    for messages in cases:
        got = account(_flood(messages))
        if got is None:
            return NOT_YET
        refused = messages.count(QUEUE_FULL)
        right = dict(zip(hints, (messages.count(""), refused, messages.count(TIMED_OUT), refused), strict=True))
        if got.keys() != right.keys():
            return f"The keys are to be {', '.join(right)}; yours are {', '.join(map(str, got)) or 'none'}."
        for name, number in right.items():
            if got[name] != number:
                return (
                    f"{len(messages)} requests, of which {right['answered']} were answered, {refused} found the queue "
                    f"full and {right['timed out']} timed out: {name!r} is {got[name]}. {hints[name]}"
                )
    return None


# Lesson 07: iterative GPT-2 -------------------------------------------------------------------------------------------


@grades("7.1")
def _tokens_computed(answer: tuple[Callable, Callable, Callable]) -> str | None:
    choose = random.Random(7)
    for _ in range(20):
        prompts, length = choose.choices(range(1, 60), k=choose.randrange(1, 5)), choose.randrange(1, 40)
        right = (
            sum(len(prompts) * (max(prompts) + before) for before in range(length)),
            sum(prompt + before for prompt in prompts for before in range(length)),
            sum(prompt + length - 1 for prompt in prompts),
        )
        for way, function, wanted in zip(("padded", "without a cache", "with a cache"), answer, right, strict=True):
            got = function(list(prompts), length)
            if got is None:
                return NOT_YET
            if got != wanted:
                return (
                    f"Prompts of {prompts} tokens and answers of {length}, {way}: your function says {got}. Write down "
                    "for each pass which tokens go in. The last token of an answer goes into none."
                )
    return None


@grades("7.2")
def _cached_attention(next_token: Callable) -> str | None:
    random_numbers, calls = np.random.default_rng(8), []
    matrices = random_numbers.normal(size=(3, 6, 4))
    query, key, value = (lambda x, matrix=matrix: calls.append(1) or x @ matrix for matrix in matrices)
    texts = [random_numbers.normal(size=(length, 6)) for length in (5, 3)]
    caches: list[dict] = [{}, {}]
    for place in range(5):
        for text, cache in zip(texts, caches):
            if place >= len(text):
                continue
            calls.clear()
            got = next_token(text[place], query, key, value, cache)
            if got is None:
                return NOT_YET
            if len(calls) > 3:
                return f"Token {place + 1} took {len(calls)} projections; one query, one key and one value are enough."
            past = text[: place + 1]
            weights = np.exp((past @ matrices[1]) @ (text[place] @ matrices[0]) / 2)  # 2: root of the key's 4 numbers
            right = weights / weights.sum() @ (past @ matrices[2])
            if np.shape(got) != right.shape or not np.allclose(got, right):
                return (
                    f"Token {place + 1} of a text of {len(text)}: the result is not that of the whole text. A token "
                    "attends to itself too, and each text to its own cache alone."
                )
    return None


@grades("7.3")
def _ten_streams_four_places(answer: tuple[dict, pd.DataFrame]) -> str | None:
    settings, passes = answer
    if not settings:
        return NOT_YET
    together = passes.groupby("iteration")["sequence"].nunique().max()
    if together != 4:
        return f"The fullest forward pass had {together} streams in it; the goal is 4. Which field limits a batch?"
    spans = passes.groupby("sequence")["iteration"].agg(["min", "max"])
    if len(spans) != 10:
        return f"The log has {len(spans)} streams, not 10."
    if spans["min"].max() > spans["max"].min():
        return (
            "A stream ended before another one had begun: that one waited in Triton, or for room in the KV cache. "
            "Which fields limit the streams that are begun?"
        )
    return None
