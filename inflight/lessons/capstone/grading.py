"""Lab 09: goodput, memory in users, a deployment that keeps its contract, and one for twice the load.

Deployments are judged in rehearsals of hidden runs (`service.rehearse`): the same scheduler, cache and limits as in the
engine, at the prices of the brief's own machine. What comes out depends on the settings and the seeds alone.
"""

import functools
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pandas as pd

from inflight.bench.objective import Objective
from inflight.errors import CourseError
from inflight.lessons.capstone import service
from inflight.lessons.capstone.service import BRIEF, MIB, SHARE, Brief, Deployment, Served
from inflight.notebook import progress
from inflight.notebook.checks import grades
from inflight.notebook.findings import NOT_YET, Case, Finding, Measured, asked

# The course's own answers. Others are as good: these are what a check compares with.
TUNED = Deployment(enable_kv_cache_reuse=True, kv_cache_quant_algo="INT8")
SHEDDING = replace(TUNED, max_queue_size=4)
RUNS, NUMBER = 10, 100  # hidden runs, and requests of each: so many that no lucky burst decides


# Runs that are made up, each with one more thing to think of than the one before it: its further requests, a row each,
# and what to say when that was not thought of.
COLUMNS = ["sent_s", "ttft_ms", "itl_ms", "last_s", "error"]
TTFT_MS, ITL_MS, NONE = 500, 40, float("nan")
KINDS = (
    (
        [(0.5, 320, 30, 1.4, ""), (0.9, 480, 22, 1.8, ""), (1.6, 150, 38, 2.5, ""), (1.7, 410, 12, 2.3, "")],
        "All are in time: divide them by the seconds from the first one sent to the last answer.",
    ),
    (
        [(2.2, 700, 20, 3.3, ""), (2.5, 300, 55, 3.8, ""), (2.8, 900, 60, 4.8, "")],
        "Some of them are late: a request counts when its TTFT and its ITL are both within their limits.",
    ),
    (
        [(3.1, 250, NONE, 3.4, "")],
        "One has an answer of a single token: it has no ITL (NaN), so it cannot break that limit.",
    ),
    (
        [(1.1, NONE, NONE, 10.1, "Its time is over."), (3.3, NONE, NONE, 12.3, "Its time is over.")],
        "Some have no answer: they are not in time, but the run lasts until the last of them has ended, too.",
    ),
)


@grades("9.1", "Over its limit a server still has much throughput, and hardly any goodput.")
def _goodput(goodput: Callable) -> Finding:
    rows: list[tuple] = []
    cases = []
    for further, told in KINDS:
        rows += further
        table = pd.DataFrame(rows, columns=COLUMNS)
        right = float(Objective(TTFT_MS, ITL_MS).met(table).sum() / (table["last_s"].max() - table["sent_s"].min()))

        def hint(got: object, told: str = told) -> str:
            return "All limits are in milliseconds." if got == 0 else told

        cases.append(Case((table, TTFT_MS, ITL_MS), right, hint, f"goodput of {len(rows)} requests"))
    return asked(goodput, cases)


@grades("9.2", "Fewer bytes per token and shared blocks both make room for more users in the same memory.")
def _users(users_that_fit: Callable, choose: random.Random) -> dict[str, Callable[[], Finding]]:
    def case(is_shared: bool) -> Case:
        block, bytes_per_token = choose.choice((32, 64)), choose.choice((46080, 11520, 5760))
        memory, prompt, answer = choose.randint(24, 96) * MIB, choose.randint(200, 480), choose.randint(16, 64)
        shared = choose.randint(1, prompt - 8) if is_shared else 0
        once = shared // block
        right = max(0, (memory // bytes_per_token // block - once) // (-(-(prompt + answer) // block) - once))
        return Case(
            (memory, bytes_per_token, prompt, answer, shared, block),
            right,
            ROUNDING["shared" if is_shared else "apart"],
            f"users, with {memory // MIB} MiB, {bytes_per_token:,} bytes per token, blocks of {block}, a prompt of "
            f"{prompt} tokens, {shared} of them the same for all, and an answer of {answer}",
        )

    cases = {part: [case(part == "shared") for _ in range(12)] for part in ROUNDING}
    return {part: partial(asked, users_that_fit, cases[part]) for part in ROUNDING}


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
    most = max(FELL_SHORT, key=one.__getitem__)  # of the requests that were not in time
    return [
        Measured(
            f"in time, of {one['requests']} in {RUNS} rehearsals",
            yours.met,
            at_least=enough(course),
            course=course.met,
            nothing=nothing.met,
            advice=f"{one[most]} {FELL_SHORT[most]}",
        ),
        *(Measured(name, one[name], course=other[name], nothing=none[name]) for name in FELL_SHORT),
    ]


# What requests fell short of, and what that means.
FELL_SHORT = {
    "first token late": "first tokens came too late: what do those requests wait for, work or blocks?",
    "ITL too high": "ITLs were too high: too much is computed in the iterations that those requests share.",
    "no answer": "requests had no answer, which is not in time either.",
}


@functools.lru_cache(maxsize=32)
def _known(chosen: Deployment, brief: Brief, seeds: tuple[int, ...]) -> Served:
    return service.rehearse(chosen, brief, seeds, NUMBER)
