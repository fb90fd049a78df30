"""Lab 09: goodput, memory in users, a deployment that keeps its contract, and one for twice the load.

Deployments are judged in rehearsals of hidden runs (`service.rehearse`): the same scheduler, cache and limits as in the
engine, at the prices of the brief's own machine. What comes out depends on the settings and the seeds alone.
"""

import functools
import random
from collections.abc import Callable
from dataclasses import replace

import pandas as pd

from inflight.bench.load import COLUMNS
from inflight.errors import CourseError
from inflight.lessons.capstone import service
from inflight.lessons.capstone.service import BRIEF, MIB, SHARE, Brief, Deployment, Served
from inflight.notebook import progress
from inflight.notebook.checks import NOT_YET, Finding, Measured, grades, near

# The course's own answers. Others are as good: these are what a check compares with.
TUNED = Deployment(enable_kv_cache_reuse=True, kv_cache_quant_algo="INT8")
SHEDDING = replace(TUNED, max_queue_size=4)
RUNS, NUMBER = 10, 100  # hidden runs, and requests of each: so many that no lucky burst decides


@grades("9.1", "Over its limit a server still has much throughput, and hardly any goodput.")
def _goodput(goodput: Callable, choose: random.Random) -> Finding:
    for kind, told in KINDS.items():
        table, ttft, itl = _table(choose, kind)
        got = goodput(table.copy(), ttft, itl)
        if got is None:
            return NOT_YET
        if not isinstance(got, int | float) or isinstance(got, bool):
            return f"goodput returned a {type(got).__name__}; it is a number of requests per second."
        in_time = (table["error"] == "") & (table["ttft_ms"] <= ttft)
        in_time &= (table["itl_ms"] <= itl) | table["itl_ms"].isna()
        wanted = in_time.sum() / (table["last_s"].max() - table["sent_s"].min())
        if not near(got, wanted):
            much = "too much" if got > wanted else "too little"
            return f"{len(table)} requests, {told}. Your goodput is {got:.4g}, which is {much}."
    return None


# Runs that are made up, each with one more thing to think of, and what to say when it was not.
KINDS = {
    "all in time": "all in time: divide them by the seconds from the first one sent to the last answer",
    "late": "some of them late: a request counts when its TTFT and its ITL are both within their limits",
    "one token": "some with an answer of a single token: it has no ITL (NaN), so it cannot break that limit",
    "errors": "some without an answer: they are not in time, but the run lasts until the last of them has ended, too",
}


def _table(choose: random.Random, kind: str) -> tuple[pd.DataFrame, float, float]:
    """Requests of a made-up run, and limits for TTFT and ITL."""
    ttft, itl, rows = choose.uniform(300, 900), choose.uniform(20, 60), []
    number = choose.randint(12, 20)
    for place in range(number):
        sent = choose.uniform(0.2, 1) + place * 0.4
        first, others = (
            choose.uniform(1.05, 2) if kind != "all in time" and (place + turn) % 3 == 0 else choose.uniform(0.2, 0.95)
            for turn in (0, 1)
        )
        row = dict.fromkeys(COLUMNS, float("nan"))
        row |= {"request": place, "due_s": sent, "sent_s": sent, "output_len": 20, "error": ""}
        row |= {"ttft_ms": ttft * first, "itl_ms": itl * others}
        row["last_s"] = sent + (row["ttft_ms"] + 19 * row["itl_ms"]) / 1000
        if kind == "one token" and place % 4 == 2:
            row |= {"itl_ms": float("nan"), "output_len": 1, "ttft_ms": ttft / 2}
        if kind == "errors" and (place % 4 == 1 or place == number - 1):
            nothing = {"ttft_ms": float("nan"), "itl_ms": float("nan"), "output_len": 0}
            row |= nothing | {"error": "Its time is over.", "last_s": sent + 9}
        rows.append(row)
    return pd.DataFrame(rows, columns=COLUMNS), ttft, itl


@grades("9.2", "Fewer bytes per token and shared blocks both make room for more users in the same memory.")
def _users(users_that_fit: Callable, choose: random.Random) -> dict[str, Finding] | Finding:
    findings: dict[str, Finding] = {"apart": None, "shared": None}
    for _ in range(12):
        block = choose.choice((32, 64))
        bytes_per_token = choose.choice((46080, 11520, 5760))
        memory = choose.randint(24, 96) * MIB
        prompt, answer = choose.randint(200, 480), choose.randint(16, 64)
        for name, shared in (("apart", 0), ("shared", choose.randint(1, prompt - 8))):
            got = users_that_fit(memory, bytes_per_token, prompt, answer, shared, block)
            if got is None:
                return NOT_YET
            once = shared // block
            wanted = max(0, (memory // bytes_per_token // block - once) // (-(-(prompt + answer) // block) - once))
            if got != wanted and findings[name] is None:
                findings[name] = (
                    f"{memory // MIB} MiB, {bytes_per_token:,} bytes per token, blocks of {block}; a prompt of "
                    f"{prompt} tokens, {shared} of them the same for all, and an answer of {answer}: {wanted} users "
                    f"fit, your function says {got!r}. {ROUNDING[name]}"
                )
    return findings


ROUNDING = {
    "apart": "Blocks are whole: round the memory down and each user up.",
    "shared": "Only full blocks can be shared. They are there once, and each user needs the rest.",
}


@grades("9.3", "Other settings keep the contract, too. What each costs elsewhere decides between them.")
def _tuned(settings: object, choose: random.Random) -> Finding:
    return _played(settings, TUNED, BRIEF, choose, lambda course: SHARE * len(course.requests))


@grades("9.4", "Above the limit some requests must fail. One that is refused at once can go elsewhere.")
def _overloaded(settings: object, choose: random.Random) -> Finding:
    twice = replace(BRIEF, rate=2 * BRIEF.rate)
    return _played(settings, SHEDDING, twice, choose, lambda course: 0.9 * course.met)


def _played(
    settings: object, courses: Deployment, brief: Brief, choose: random.Random, enough: Callable[[Served], float]
) -> Finding:
    """Hidden runs of the settings, of the course's and of the defaults; how many requests of each were in time."""
    if settings == {}:
        return NOT_YET
    seeds = tuple(choose.randrange(10**6) for _ in range(RUNS))
    try:
        progress.say(f"{RUNS} hidden runs are rehearsed")
        yours = service.rehearse(settings, brief, seeds, NUMBER)
    except CourseError as error:
        return str(error)
    course, nothing = (_known(each, brief, seeds) for each in (courses, Deployment()))
    one, other, none = yours.row(), course.row(), nothing.row()
    return [
        Measured(
            f"{name}, of {one['requests']} in {RUNS} rehearsals" if name == "in time" else name,
            one[name],
            at_least=enough(course) if name == "in time" else None,
            course=other[name],
            nothing=none[name],
            advice=_advice(one),
        )
        for name in ("in time", "first token late", "ITL too high", "no answer")
    ]


def _advice(row: dict[str, int]) -> str:
    """What most of the requests that were not in time fell short of, and what that means."""
    reasons = {
        "first token late": "first tokens came too late: what do those requests wait for, work or blocks?",
        "ITL too high": "ITLs were too high: too much is computed in the iterations that those requests share.",
        "no answer": "requests had no answer, which is not in time either.",
    }
    most = max(reasons, key=row.__getitem__)
    return f"{row[most]} {reasons[most]}"


@functools.lru_cache(maxsize=32)
def _known(chosen: Deployment, brief: Brief, seeds: tuple[int, ...]) -> Served:
    return service.rehearse(chosen, brief, seeds, NUMBER)
