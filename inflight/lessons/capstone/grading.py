"""Lab 09: attainment by kind, settings that keep a contract, who is let in at twice the load, and a scheduler.

Deployments are judged in rehearsals of hidden runs, at the prices of a machine with round ones and with its bias: the
result depends on the answer, the name and the seeds alone.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from inflight.engine.scheduler import POLICIES, Now
from inflight.errors import CourseError
from inflight.lessons.capstone import contract as contracts
from inflight.lessons.capstone.contract import BIAS, SERVICES, SHARE, Contract, contract_for, in_time
from inflight.lessons.capstone.deployment import Settings, rehearse
from inflight.notebook import progress
from inflight.notebook.checks import grades
from inflight.notebook.checks.answers import is_untouched
from inflight.notebook.checks.findings import NOT_YET, Case, Finding, Measured, NotYet, asked, told
from inflight.notebook.checks.parts import COURSES_OWN

RUNS = 12  # hidden runs of 9.2, of 100 requests each: so many that no lucky burst decides
FEWER = 6  # of 9.3 and 9.4, where sides are compared on the same requests
LOAD = 2.0  # of 9.3 and 9.4, times the contract's rate
QUEUED = 0.95  # of the requests in time with the course's limit of the queue
BETTER = 0.05  # by so much a scheduler must beat the built-in ones, in shares of all requests
LONGER = 4  # limits of TTFT, by which the longest wait may exceed that in the order of arrival
REHEARSED_S = 90  # most that a check takes; it takes ten seconds or two

# The course's own answers, by what falls to a name. Others are as good: these are what a check compares with.
REUSE = {"enable_kv_cache_reuse": True}
COURSES: dict[str, dict] = {
    "stories": REUSE | {"kv_cache_quant_algo": "INT8", "max_batch_size": 16},
    "notices": REUSE
    | {"kv_cache_quant_algo": "INT8", "batch_scheduler_policy": "max_utilization", "max_batch_size": 12},
    "reports": REUSE | {"max_batch_size": 3},
}
QUEUES = {"stories": 4, "notices": 4, "reports": 10}


# 9.1: what counts -----------------------------------------------------------------------------------------------------

Slos = Mapping[str, tuple[float, float]]  # of kind to TTFT and TPOT in ms
KINDS = {"question": 0.8, "notice": 0.2}  # their shares of a run


@grades(
    "9.1", "A mean over kinds hides the kind that is small: a service-level objective is kept for each, or it is not."
)
def _figures(functions: tuple, choose: random.Random) -> dict[str, Callable[[], Finding]]:
    cases = {"attainment": _attainments, "goodput": _goodputs, "machines": _machines}
    given = dict(zip(cases, functions if isinstance(functions, list | tuple) else (functions,)))
    return {
        part: partial(asked, function, cases[part](choose))
        for part, function in given.items()
        if not is_untouched(function)
    } | {part: NOT_YET for part in cases if is_untouched(given.get(part))}


def _slos(choose: random.Random) -> Slos:
    return {
        "question": (choose.choice((400.0, 500.0, 600.0)), choose.choice((40.0, 50.0))),
        "notice": (choose.choice((1500.0, 2000.0)), choose.choice((60.0, 70.0))),
    }


def _run(
    choose: random.Random, slos: Slos, missed: Mapping[str, Mapping[str, int]], rate: float, number=100
) -> pd.DataFrame:
    """A run that is made up: of each kind so many requests miss their TTFT, their TPOT, or get no answer."""
    rows = []
    for kind, share in KINDS.items():
        ttft_ms, tpot_ms = slos[kind]
        of_kind = round(share * number)
        how = [what for what, many in missed.get(kind, {}).items() for _ in range(many)]
        for what in [*how, *[""] * (of_kind - len(how))]:
            row = {"kind": kind, "error": "", "output_len": choose.randint(2, 40)}
            row["ttft_ms"] = ttft_ms * (choose.uniform(1.1, 3) if what == "ttft" else min(1, choose.uniform(0.1, 1.1)))
            row["tpot_ms"] = tpot_ms * (choose.uniform(1.1, 2) if what == "tpot" else min(1, choose.uniform(0.2, 1.1)))
            if what == "lost":
                row |= {"error": "Its time is over.", "output_len": 0, "ttft_ms": math.nan, "tpot_ms": math.nan}
            elif not what and choose.random() < 0.1:  # an answer of one token
                row |= {"output_len": 1, "tpot_ms": math.nan}
            rows.append(row)
    choose.shuffle(rows)
    run = pd.DataFrame(rows)
    run["due_s"] = choose.uniform(1, 5) + np.cumsum([choose.expovariate(rate) for _ in rows])
    took_ms = run["ttft_ms"] + (run["tpot_ms"] * (run["output_len"] - 1)).fillna(0)
    run["last_s"] = run["due_s"] + took_ms.fillna(9000) / 1000
    if run["error"].any():  # the last to end has no answer
        last = int(run.index[run["error"] != ""][-1])
        run.loc[last, "last_s"] = run["last_s"].max() + choose.uniform(3, 9)
    return run


def _mixed(choose: random.Random) -> tuple[pd.DataFrame, Slos]:
    slos, draw = _slos(choose), lambda most: choose.randint(1, most)
    missed = {
        kind: {"ttft": draw(most), "tpot": draw(most), "lost": draw(most)}
        for kind, most in (("question", 9), ("notice", 4))
    }
    return _run(choose, slos, missed, choose.uniform(1, 4)), slos


def _good(run: pd.DataFrame, slos: Slos, ttft=True, tpot=True, single=True, by: str = "", below=0.0) -> pd.Series:
    """Which requests are in time; with less than all that this asks, or other limits: of one kind, or so much less."""
    limits = run["kind"].map(lambda kind: [limit - below for limit in slos[by or kind]])
    good = run["error"] == ""
    if ttft:
        good &= run["ttft_ms"] <= limits.map(lambda each: each[0])
    if tpot:
        steady = run["tpot_ms"] <= limits.map(lambda each: each[1])
        good &= steady | run["tpot_ms"].isna() if single else steady
    return good


# Wrong ideas of what is in time, and what each is told.
IDEAS: tuple[tuple[dict[str, Any], str], ...] = (
    (
        {"ttft": False, "tpot": False},
        "Some came too late: a request counts when it has an answer and keeps both limits.",
    ),
    ({"tpot": False}, "There are two limits: some of these have a TPOT above theirs."),
    ({"ttft": False}, "There are two limits: some of these have a TTFT above theirs."),
    ({"single": False}, "An answer of a single token has no TPOT, and cannot break its limit."),
    ({"below": 1e-6}, "Within a limit is also who just meets it."),
    ({"by": "question"}, "Each kind has limits of its own: these are a question's for all."),
    ({"by": "notice"}, "Each kind has limits of its own: these are a notice's for all."),
)


def _by_kind(good: pd.Series, run: pd.DataFrame) -> dict[str, float]:
    return {kind: float(share) for kind, share in good.groupby(run["kind"]).mean().items()}


def _attainments(choose: random.Random) -> list[Case]:
    cases, slos = [], _slos(choose)
    all_late = _run(choose, slos, {"notice": {"ttft": 20}}, 2), slos  # the small kind's share is 0
    for run, slos in [*(_mixed(choose) for _ in range(8)), all_late]:
        good, answered = _good(run, slos), run["error"] == ""
        hint = told(
            "Of each kind: how many of its requests are in time, over how many there were.",
            *((_by_kind(_good(run, slos, **idea), run), words) for idea, words in IDEAS),
            (_by_kind(good[answered], run[answered]), "A request without an answer is a request, and is not in time."),
            (dict.fromkeys(KINDS, float(good.mean())), "That is the share of all requests: take each kind by itself."),
            (
                {kind: float((good & (run["kind"] == kind)).mean()) for kind in KINDS},
                "Over the requests of that kind, not over all.",
            ),
            ({kind: int(good[run["kind"] == kind].sum()) for kind in KINDS}, "That is a count: divide it."),
        )
        cases.append(Case((run, slos), _by_kind(good, run), hint, "the attainment of a run of 100 requests"))
    return cases


def _seconds(run: pd.DataFrame) -> float:
    return float(run["last_s"].max() - run["due_s"].min())


def _goodputs(choose: random.Random) -> list[Case]:
    cases = []
    for run, slos in (_mixed(choose) for _ in range(8)):
        good, seconds, answered = int(_good(run, slos).sum()), _seconds(run), run["error"] == ""
        hint = told(
            "Requests in time, over the seconds from the first that was due to the last that ended.",
            (good / len(run), "That is a share of the requests; goodput is a rate: divide by the seconds."),
            (good, "That is a number of requests; goodput is a rate: divide by the seconds."),
            *((float(_good(run, slos, **idea).sum() / seconds), words) for idea, words in IDEAS),
            (float(good / _seconds(run[answered])), "The run lasts until the last has ended, answered or not."),
            (float(good / run["last_s"].max()), "The run begins when its first request is due, not at 0."),
        )
        cases.append(Case((run, slos), float(good / seconds), hint, "goodput of a run of 100 requests"))
    return cases


# Why the third of four rates is not kept; at the second just enough are in time, at the fourth hardly any.
BROKEN = {
    "TPOT": {"question": {"tpot": 20}, "notice": {"tpot": 2}},
    "lost": {"question": {"lost": 12}, "notice": {"lost": 2}},
    "nine of ten": {"question": {"ttft": 6}, "notice": {"ttft": 1}},
    "the small kind": {"notice": {"ttft": 2}},  # of both kinds the mean is 95 %
}


def _machines(choose: random.Random) -> list[Case]:
    cases = []
    for reason in [*BROKEN, *BROKEN]:
        slos, rate = _slos(choose), choose.uniform(0.8, 2)
        missed = [
            {},
            {"question": {"ttft": 4}, "notice": {"lost": 1}},
            BROKEN[reason],
            {kind: {"ttft": 12} for kind in KINDS},
        ]
        runs = {}
        for each in missed:
            runs[round(rate, 2)] = _run(choose, slos, each, rate)
            rate *= choose.uniform(1.2, 1.5)
        wanted = 32 * [*runs][1]  # exactly so many machines
        runs = dict(choose.sample([*runs.items()], len(runs)))
        # Otherwise no quotient that floating point rounds away.
        while reason != "TPOT" and not all(0.02 < wanted / each % 1 < 0.98 for each in runs):
            wanted = round(choose.uniform(30, 60), 1)
        right, hint = _needed(runs, wanted, _least(slos)), _machines_hint(runs, slos, wanted)
        about = f"machines for {wanted:g} requests a second, of runs at {', '.join(map(str, runs))}"
        cases.append(Case((runs, slos, wanted), right, hint, about))
    choose.shuffle(cases)
    return cases


def _least(slos: Slos, answered: bool = False, **idea) -> Callable[[pd.DataFrame], float]:
    """The least attainment of a kind in a run; with a wrong idea of it."""

    def of(run: pd.DataFrame) -> float:
        run = run[run["error"] == ""] if answered else run
        return min(_by_kind(_good(run, slos, **idea), run).values())

    return of


def _needed(runs: dict[float, pd.DataFrame], wanted: float, share: Callable, at_least: float = SHARE) -> int:
    kept = [rate for rate, run in runs.items() if share(run) >= at_least - 1e-9]
    return math.ceil(wanted / max(kept, default=min(runs)))


def _machines_hint(runs: dict[float, pd.DataFrame], slos: Slos, wanted: float) -> Callable[[Any], str]:
    right = _needed(runs, wanted, _least(slos))
    rate = max(each for each in runs if math.ceil(wanted / each) == right)
    return told(
        "Take the highest rate at which each kind had 95 % in time; no machine may get more. Machines are whole.",
        (wanted / rate, "Machines are whole: round up."),
        (right - 1, "Round up: with one machine less, each gets more than it sustains."),
        (right + 1, "Without a spare one."),
        (math.ceil(wanted / min(runs)), "A higher rate is kept, too; runs is in no order."),
        (
            _needed(runs, wanted, lambda run: _good(run, slos).mean()),
            "95 % of each kind: the small kind is broken first.",
        ),
        (_needed(runs, wanted, _least(slos, answered=True)), "A request without an answer is not in time."),
        (_needed(runs, wanted, _least(slos), 0.9), "The objective is 95 %."),
        *((_needed(runs, wanted, _least(slos, **idea)), words) for idea, words in IDEAS),
        (math.ceil(wanted / max(runs)), "At the highest rate hardly anything is in time."),
    )


# 9.2: settings --------------------------------------------------------------------------------------------------------

# Limits that requests missed, and what that means.
FELL_SHORT = {
    "first token late": "first tokens came too late: what do those requests wait for, compute, blocks or slots?",
    "TPOT too high": "TPOTs were too high: too much is computed in the iterations that those requests share.",
    "no answer": "requests had no answer, which is not in time either.",
}
DEAR = "The answers that are late are the long ones: their tokens are missing from the bill."


@grades(
    "9.2",
    "Other settings keep it, too. Where more is in time than must be, a machine can take more load.",
    within_s=REHEARSED_S,
    of_file=False,
)
def _kept(answer: tuple, choose: random.Random) -> Finding:
    if (found := _named(answer)) == NOT_YET:
        return NOT_YET
    name, settings = found
    contract, seeds = contract_for(name), tuple(choose.randrange(10**6) for _ in range(RUNS))
    yours = _rehearsed(settings, name, seeds)
    course, nothing = (_known(tuple(each.items()), name, seeds) for each in (COURSES[contracts.drawn_for(name)], {}))
    counts, courses, nothings = (contracts.tally(rows, contract) for rows in (yours, course, nothing))
    enough, advice = SHARE * counts["requests"], _fell_short(counts)
    is_late = counts["in time"] < enough
    if is_late and contracts.tally(rehearse(settings, contract, seeds), contract)["in time"] >= enough:
        advice += f" Without its bias of {BIAS} this rehearsal keeps the contract, and the machine does not."
    what = f"in time, of {counts['requests']} in {RUNS} rehearsals"
    euros = [_euros(rows, contract) for rows in (yours, course, nothing)]
    return [
        Measured(what, counts["in time"], at_least=enough, course=courses["in time"], nothing=nothings["in time"],
                 advice=advice),
        Measured("euros for a million tokens in time", euros[0], at_most=contract.cost, course=euros[1],
                 nothing=euros[2], advice=DEAR),
        *(Measured(each, counts[each], course=courses[each], nothing=nothings[each]) for each in FELL_SHORT),
    ]  # fmt: skip


def _named(answer: object) -> tuple[str, Settings] | NotYet:
    """A name and settings; NOT_YET where one of them is blank."""
    if not isinstance(answer, list | tuple) or len(answer) != 2:
        raise CourseError("Hand in your name and the settings: check(…, (name, settings)).")
    name, settings = answer
    return NOT_YET if not name or settings in ({}, None) else (str(name), settings)


def _rehearsed(settings: Settings, name: str, seeds: tuple[int, ...]) -> pd.DataFrame:
    progress.say(f"{len(seeds)} hidden runs are rehearsed")
    return rehearse(settings, contract_for(name), seeds, bias=BIAS)


@functools.lru_cache(maxsize=8)
def _known(settings: tuple, name: str, seeds: tuple[int, ...]) -> pd.DataFrame:
    return _rehearsed(dict(settings), name, seeds)


def _euros(rows: pd.DataFrame, contract: Contract) -> float:
    """For a million tokens in time, at the contract's rate: of the tokens that are asked for, those in time count."""
    share = rows.loc[in_time(rows, contract), "max_tokens"].sum() / rows["max_tokens"].sum()
    return contract.per_million(contract.rate * contract.traffic.means[2] * share)


def _fell_short(counts: dict[str, int]) -> str:
    most = max(FELL_SHORT, key=counts.__getitem__)
    return f"{counts[most]} {FELL_SHORT[most]}"


# 9.3: who is let in ---------------------------------------------------------------------------------------------------


@grades(
    "9.3",
    "A limit of work holds for every contract; a limit of requests has to be found anew for each.",
)
def _let_in(let_in: Callable, choose: random.Random) -> dict[str, Callable[[], Finding]]:
    seeds = tuple(choose.randrange(10**6) for _ in range(FEWER))
    return {service: partial(_crowded, let_in, service, seeds) for service in SERVICES}


def _crowded(let_in: Callable, service: str, seeds: tuple[int, ...]) -> Finding:
    contract, has_answered = contracts.contract_of(service), False

    def gate(now: Now) -> bool:
        nonlocal has_answered
        if (is_in := let_in(now, contract)) is None and not has_answered:
            raise NotImplementedError
        has_answered = True
        if is_in not in (True, False):
            raise CourseError(f"let_in returned {is_in!r} while {len(now.waiting)} waited; return True or False.")
        return is_in

    progress.say(f"{len(seeds)} hidden runs of {service}")
    rows = rehearse(COURSES[service], contract, seeds, LOAD, BIAS, let_in=gate)
    yours, course, nothing = (contracts.tally(each, contract) for each in (rows, *_without(service, seeds)))
    many = yours["no answer"] > course["no answer"]
    advice = (
        f"{yours['no answer']} were refused, and few of those let in were late: some of these could have been served."
        if many
        else f"{yours['first token late']} of those let in were late: what has to be computed before they begin?"
    )
    what = f"{service}: in time, of {yours['requests']} at twice the load"
    measured = partial(Measured, course_is="the best queue limit", nothing_is="no limit")
    return [
        measured(what, yours["in time"], at_least=math.ceil(QUEUED * course["in time"]), course=course["in time"],
                 nothing=nothing["in time"], advice=advice),
        measured(f"{service}: refused", yours["no answer"], course=course["no answer"], nothing=nothing["no answer"]),
    ]  # fmt: skip


@functools.lru_cache(maxsize=8)
def _without(service: str, seeds: tuple[int, ...]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """With the best limit of the queue for this contract, and with none."""
    contract, settings = contracts.contract_of(service), COURSES[service]
    queued = settings | {"max_queue_size": QUEUES[service]}
    return rehearse(queued, contract, seeds, LOAD, BIAS), rehearse(settings, contract, seeds, LOAD, BIAS)


# 9.4: a scheduler for this contract -----------------------------------------------------------------------------------


@grades(
    "9.4",
    "Whoever chooses the order chooses who waits: a bound on the longest wait is a clause, or nobody keeps it.",
    within_s=REHEARSED_S,
)
def _scheduler(answer: tuple, choose: random.Random) -> Finding:
    path, name = answer
    if not name:
        return NOT_YET
    contract, settings = contract_for(name), COURSES[contracts.drawn_for(name)]
    seeds = tuple(choose.randrange(10**6) for _ in range(FEWER))

    def met(more: dict) -> pd.DataFrame:
        progress.say(str(next(iter(more.values()))))
        return rehearse(settings | more, contract, seeds, LOAD, BIAS)

    share = lambda rows: 100 * float(in_time(rows, contract).mean())
    built_in = max((met({"batch_scheduler_policy": policy}) for policy in POLICIES), key=share)
    mine, as_they_came = (met({"scheduler_path": each}) for each in (path, COURSES_OWN["scheduler"]))
    if mine["ttft_ms"].equals(as_they_came["ttft_ms"]):  # in the order of arrival, as it is handed out
        return NOT_YET
    longest = [rows["ttft_ms"].max() / contract.ttft_ms for rows in (mine, as_they_came)]
    return [
        Measured(f"% in time, at {LOAD:g} times the contract's rate", share(mine), nothing=share(built_in),
                 nothing_is="the better policy", at_least=share(built_in) + 100 * BETTER,
                 advice="No policy knows what the contract counts. Of two that wait, which one delays fewer others?"),
        Measured("longest wait, in limits of TTFT", longest[0], nothing=longest[1], nothing_is="the order of arrival",
                 at_most=longest[1] + LONGER,
                 advice="Somebody is overtaken again and again: who has waited long has to go first."),
        *(Measured(f"% in time: {kind}", 100 * each, nothing=100 * _kinds(built_in, contract)[kind],
                   nothing_is="the better policy")
          for kind, each in _kinds(mine, contract).items()),
    ]  # fmt: skip


def _kinds(rows: pd.DataFrame, contract: Contract) -> dict[str, float]:
    return _by_kind(in_time(rows, contract), rows)
