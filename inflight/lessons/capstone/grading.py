"""Lab 09: goodput, memory in users, a deployment that keeps its objective, and one that survives twice the load.

Deployments are judged in rehearsals of hidden runs of the service (`capstone.service.rehearse`): the same scheduler,
cache and limits as in the engine, at fixed prices. What comes out depends on the settings and the seed alone, so a busy
machine neither fails a good answer nor passes a bad one.
"""

import functools
import math
import random
from collections.abc import Callable
from dataclasses import replace

import pandas as pd

from inflight.bench.load import COLUMNS
from inflight.checkpoint.tokenizer import ChatTokenizer, load_tokenizer
from inflight.errors import CourseError
from inflight.lessons.capstone import service
from inflight.lessons.capstone.service import BRIEF, Brief, Deployment, Served
from inflight.notebook import progress
from inflight.notebook.checks import NOT_YET, Finding, Measured, grades, near

# The course's own answers. Others are as good: these are what a check compares with.
TUNED = Deployment(enable_kv_cache_reuse=True, kv_cache_quant_algo="INT8", max_batch_size=16)
SHEDDING = replace(TUNED, max_batch_size=8, max_queue_size=4)
RUNS, NUMBER = 3, 150  # hidden runs, and requests of each: long ones, in which a lucky start does not carry
ENOUGH, MORE = 0.9, 1.5  # of the course's goodput, and of the defaults'
TWICE = 2.0


@grades("9.1", "Throughput counts answers, goodput counts promises: over its limit a server has much of the one alone.")
def _goodput(goodput: Callable, choose: random.Random) -> Finding:
    for kind in ("all in time", "late", "one token", "errors"):
        table, ttft, itl = _table(choose, kind)
        got = goodput(table.copy(), ttft, itl)
        if got is None:
            return NOT_YET
        wanted = _right_goodput(table, ttft, itl)
        if not isinstance(got, int | float) or isinstance(got, bool):
            return f"goodput returned a {type(got).__name__}; it is a number of requests a second."
        if near(got, wanted):
            continue
        return _why(kind, float(got), wanted, len(table))
    return None


def _why(kind: str, got: float, wanted: float, number: int) -> str:
    told = {
        "all in time": "all in time. Divide them by the seconds from the first one sent to the last answer",
        "late": "some of them late: a request counts when its TTFT and its ITL are both within their limits",
        "errors": "some without an answer: they meet nothing, but the run lasts until the last of them has ended too",
        "one token": "some with an answer of a single token: it has no ITL (NaN), and cannot break that limit",
    }[kind]
    much = "too much" if got > wanted else "too little"
    return f"{number} requests, {told}. Your goodput is {got:.4g}, which is {much}."


def _table(choose: random.Random, kind: str) -> tuple[pd.DataFrame, float, float]:
    """Requests of a made-up run, and limits for TTFT and ITL."""
    ttft, itl, rows = choose.uniform(300, 900), choose.uniform(20, 60), []
    for number in range(choose.randint(12, 20)):
        sent = choose.uniform(0, 1) + number * 0.4
        late_first, late_next = (kind != "all in time" and choose.random() < 0.4 for _ in range(2))
        row: dict = dict.fromkeys(COLUMNS, float("nan")) | {
            "request": number,
            "due_s": sent,
            "sent_s": sent,
            "output_len": 20,
            "ttft_ms": ttft * choose.uniform(1.05, 3) if late_first else ttft * choose.uniform(0.2, 0.95),
            "itl_ms": itl * choose.uniform(1.05, 2) if late_next else itl * choose.uniform(0.2, 0.95),
            "error": "",
        }
        row["last_s"] = sent + (row["ttft_ms"] + 19 * row["itl_ms"]) / 1000
        if kind == "errors" and number % 4 == 1:
            row |= {"error": "The queue is full.", "ttft_ms": float("nan"), "itl_ms": float("nan"), "output_len": 0}
        if kind == "one token" and number % 3 == 0:
            row |= {"itl_ms": float("nan"), "output_len": 1, "ttft_ms": ttft / 2}
        rows.append(row)
    if kind == "errors":  # the run lasts until the last one is given up
        rows[-1] |= {"error": "It was given up.", "ttft_ms": float("nan"), "itl_ms": float("nan"), "output_len": 0}
        rows[-1]["last_s"] = 1 + max(row["last_s"] for row in rows)
    return pd.DataFrame(rows, columns=COLUMNS), ttft, itl


def _right_goodput(table: pd.DataFrame, ttft: float, itl: float) -> float:
    met = (table["error"] == "") & (table["ttft_ms"] <= ttft) & ((table["itl_ms"] <= itl) | table["itl_ms"].isna())
    return float(met.sum() / (table["last_s"].max() - table["sent_s"].min()))


@grades("9.2", "Fewer bytes a token and one copy of what all prompts begin with: both are room in the same memory.")
def _users(users_that_fit: Callable, choose: random.Random) -> dict[str, Finding] | Finding:
    findings: dict[str, Finding] = {"apart": None, "shared": None}
    for _ in range(12):
        block = choose.choice((32, 64))
        bytes_per_token = choose.choice((46080, 11520, 5760))
        memory = choose.randint(24, 96) * service.MIB
        prompt, answer = choose.randint(200, 480), choose.randint(16, 64)
        shared = choose.randint(1, prompt - 8)
        for name, common in (("apart", 0), ("shared", shared)):
            got = users_that_fit(memory, bytes_per_token, prompt, answer, common, block)
            if got is None:
                return NOT_YET
            wanted = _right_users(memory, bytes_per_token, prompt, answer, common, block)
            if got != wanted and findings[name] is None:
                findings[name] = (
                    f"{memory / service.MIB:.0f} MiB, {bytes_per_token:,} bytes a token, blocks of {block}: a prompt "
                    f"of {prompt} tokens, {common} of them the same for all, an answer of {answer}. Your function "
                    f"says {got!r}; {wanted} fit. "
                    + (
                        "Whole blocks only: of the memory rounded down, of a request rounded up."
                        if name == "apart"
                        else "Only full blocks can be shared; they are there once, and each user needs the rest."
                    )
                )
    return findings


def _right_users(memory: int, bytes_per_token: int, prompt: int, answer: int, shared: int, block: int) -> int:
    blocks = memory // bytes_per_token // block
    common = shared // block
    return max(0, (blocks - common) // (-(-(prompt + answer) // block) - common))


@grades("9.3", "Several settings keep the promise; which one you take is decided by what it costs elsewhere.")
def _tuned(settings: object, choose: random.Random) -> Finding:
    return _compared(settings, TUNED, choose, BRIEF.rate)


@grades(
    "9.4", "Over the limit somebody is let down: who is told so at once can go elsewhere, and a queue lets all down."
)
def _overloaded(settings: object, choose: random.Random) -> Finding:
    return _compared(settings, SHEDDING, choose, TWICE * BRIEF.rate)


def _compared(settings: object, courses: Deployment, choose: random.Random, rate: float) -> Finding:
    """Hidden runs of the settings, of the course's and of the defaults; the goodput of all runs together."""
    if settings == {}:
        return NOT_YET
    try:
        chosen = service.deployment(settings)
    except CourseError as error:
        return str(error)
    brief = replace(BRIEF, rate=rate, number=NUMBER)
    seeds = [choose.randrange(10**6) for _ in range(RUNS)]
    try:
        yours, course, nothing = (
            [play(each, brief, seed) for seed in seeds]
            for each, play in ((chosen, _play), (courses, _play_once), (Deployment(), _play_once))
        )
    except CourseError as error:
        return f"With these settings nothing is served. {error}"
    of_yours, of_course, of_nothing = map(_together, (yours, course, nothing))
    return [
        Measured(
            f"goodput over the defaults', in {RUNS} rehearsals",
            of_yours / of_nothing if of_nothing else math.inf,
            at_least=MORE,
            course=of_course / of_nothing if of_nothing else math.inf,
            nothing=1.0,
            unit="times",
            advice=_advice(yours),
        ),
        Measured(
            f"goodput over the course's, in {RUNS} rehearsals",
            of_yours / of_course,
            at_least=ENOUGH,
            course=1.0,
            nothing=of_nothing / of_course,
            unit="times",
            advice=_advice(yours),
        ),
        Measured("goodput", of_yours, course=of_course, nothing=of_nothing, unit="requests/s"),
        Measured(f"in time, of {RUNS * NUMBER}", _met(yours), course=_met(course), nothing=_met(nothing)),
        Measured(
            "P99 of TTFT, answered ones", _worst(yours), course=_worst(course), nothing=_worst(nothing), unit="ms"
        ),
    ]


def _together(runs: list[Served]) -> float:
    return sum(run.goodput for run in runs) / len(runs)


def _met(runs: list[Served]) -> int:
    return sum(run.met for run in runs)


def _worst(runs: list[Served]) -> float:
    return max(run.ttft_p99_ms for run in runs)


def _advice(runs: list[Served]) -> str:
    """What most of the requests that were not in time fell short of."""
    limits = BRIEF.objective
    table = pd.concat([run.run.requests for run in runs])
    refused = int((table["error"] != "").sum())
    late = int((table["ttft_ms"] > limits.ttft_ms).sum())
    slow = int((table["itl_ms"] > limits.itl_ms).sum())
    if refused >= max(late, slow, 1):
        return f"{refused} requests were turned away or ended: that is a loss too."
    if late >= max(slow, 1):
        return f"{late} first tokens came too late: do requests wait for work or for blocks? Can either be saved?"
    return f"{slow} answers came too slowly: too much is computed in the iterations that they share."


def _play(chosen: Deployment, brief: Brief, seed: int) -> Served:
    progress.say(f"{brief.number} hidden requests are rehearsed")
    return service.rehearse(chosen, brief, _tokenizer(), seed)


_play_once = functools.lru_cache(maxsize=32)(_play)  # not of a learner's scheduler, which may have been changed


@functools.cache
def _tokenizer() -> ChatTokenizer:
    return load_tokenizer(service.engine_of(Deployment()))
