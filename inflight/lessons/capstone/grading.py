"""Lab 09: figures from logs, settings that keep a contract, twice the load, a scheduler for it, and a report.

Deployments are judged in rehearsals of hidden runs, at the prices of a machine with round ones and with its bias: the
result depends on the settings, the name and the seeds alone.
"""

import functools
import math
import random
import re
from collections.abc import Callable
from functools import partial

import pandas as pd

from inflight.engine.settings import POLICIES
from inflight.errors import CourseError
from inflight.lessons.capstone import service
from inflight.lessons.capstone.rehearsal import Prices
from inflight.lessons.capstone.service.contract import BIAS, LECTURE, ROUND, SHARE, Contract, contract_for, in_time
from inflight.lessons.capstone.service.deployment import Settings
from inflight.notebook import progress
from inflight.notebook.checks import grades
from inflight.notebook.checks.answers import is_untouched
from inflight.notebook.checks.findings import NOT_YET, Case, Finding, Measured, NotYet, Wrong, asked, told
from inflight.notebook.checks.parts import COURSES_OWN

RUNS = 20  # hidden runs of a check, of 100 requests each: so many that no lucky burst decides
QUEUED = 0.9  # of the course's requests in time at twice the load
REHEARSED_S = 90  # most that a check with a learner's scheduler takes; it takes ten seconds or two
BETTER = 0.03  # by so much a scheduler must beat the built-in ones, in shares of all requests

# The course's own answers, by what falls to a name. Others are as good: these are what a check compares with.
REUSE = {"enable_kv_cache_reuse": True}
COURSES: dict[str, dict] = {
    "stories": REUSE | {"kv_cache_quant_algo": "INT8", "max_batch_size": 16},
    "notices": REUSE
    | {"kv_cache_quant_algo": "INT8", "batch_scheduler_policy": "max_utilization", "max_batch_size": 12},
    "reports": REUSE | {"max_batch_size": 3},
}
QUEUES = {"stories": 4, "notices": 4, "reports": 10}


# 9.1: figures from logs -----------------------------------------------------------------------------------------------

LIMITS = {"ttft_ms": 500.0, "tpot_ms": 40.0}
_CONTRACT = Contract(LECTURE, ROUND, rate=1, **LIMITS)
LATE = "At 5 a second half of the requests are late: a machine completes as many when nobody asks how late."


@grades("9.1", "Over its limit a server still has much throughput, hardly any goodput, and the same bill.")
def _figures(functions: tuple, choose: random.Random) -> dict[str, Callable[[], Finding]]:
    cases = {"goodput": _goodputs, "cost": _costs, "machines": _machines, "bias": _biases}
    given = dict(zip(cases, functions if isinstance(functions, list | tuple) else (functions,)))
    return {
        part: partial(asked, function, [cases[part](choose) for _ in range(6)])
        for part, function in given.items()
        if not is_untouched(function)
    } | {part: NOT_YET for part in cases if is_untouched(given.get(part))}


def _run(choose: random.Random, number: int = 60, late: float = 0.3) -> pd.DataFrame:
    """A run that is made up: some requests late in one way or the other, some without an answer."""
    rows, due_s = [], choose.uniform(1, 5)
    for place in range(number):
        due_s += choose.uniform(0.1, 0.6)
        tokens = 1 if place == 7 else choose.randint(8, 60)
        ttft_ms = choose.uniform(100, 480) if choose.random() > late else choose.uniform(700, 2500)
        tpot_ms = choose.uniform(10, 38) if choose.random() > late / 3 else choose.uniform(50, 90)
        row = {"due_s": due_s, "ttft_ms": ttft_ms, "tpot_ms": math.nan if tokens == 1 else tpot_ms}
        last_s = due_s + (ttft_ms + tpot_ms * (tokens - 1)) / 1000
        rows.append(row | {"last_s": last_s, "output_len": tokens, "error": ""})
    for place in (number // 2, number - 1):
        lost = {"ttft_ms": math.nan, "tpot_ms": math.nan, "output_len": 0, "error": "Its time is over."}
        rows[place] |= lost | {"last_s": rows[place]["due_s"] + 9}
    return pd.DataFrame(rows)


def _good(run: pd.DataFrame) -> pd.Series:
    return in_time(run, _CONTRACT)


def _seconds(run: pd.DataFrame) -> float:
    return float(run["last_s"].max() - run["due_s"].min())


def _goodputs(choose: random.Random) -> Case:
    run = _run(choose)
    good, seconds, answered = _good(run), _seconds(run), run["error"] == ""
    has_tpot = good & run["tpot_ms"].notna()
    first = answered & (run["ttft_ms"] <= LIMITS["ttft_ms"])
    return Case(
        (run, *LIMITS.values()),
        float(good.sum() / seconds),
        told(
            "Requests in time, over the seconds from the first that was due to the last that ended.",
            (float(good.mean()), "That is a share of the requests; goodput is a rate: divide by the seconds."),
            (float(good.sum()), "That is a number of requests; goodput is a rate: divide by the seconds."),
            (float(answered.sum() / seconds), "Some came too late: a request counts when both limits are kept."),
            (float(first.sum() / seconds), "There are two limits: some of these have a TPOT above theirs."),
            (float(has_tpot.sum() / seconds), "An answer of a single token has no TPOT, and cannot break its limit."),
            (float(good.sum() / _seconds(run[answered])), "The run lasts until the last has ended, answered or not."),
        ),
        f"goodput of a run of {len(run)} requests",
    )  # fmt: skip


def _costs(choose: random.Random) -> Case:
    run, per_hour = _run(choose), choose.choice((0.1, 0.35, 2.5))
    good, seconds = _good(run), _seconds(run)
    tokens, spent = float(run.loc[good, "output_len"].sum()), per_hour * seconds / 3600
    return Case(
        (run, *LIMITS.values(), per_hour),
        float(spent / tokens * 1e6),
        told(
            "What the machine cost while the run lasted, over the tokens of answers in time, times a million.",
            (float(spent / run["output_len"].sum() * 1e6), "Leave out tokens of late answers: they earn nothing."),
            (float(spent / good.sum() * 1e6), "That is for a million requests: count tokens."),
            (float(spent / tokens), "That is for one token: a million of them cost a million times as much."),
            (float(spent * 3600 / tokens * 1e6), "A price per hour, and a run in seconds: 3,600 of them are an hour."),
        ),
        f"euros for a million tokens in time, at {per_hour} an hour",
    )  # fmt: skip


def _machines(choose: random.Random) -> Case:
    """At 3 a second it is kept; at 4 the mean is within the limit, and the P95 is not; at 5 few are in time."""
    runs = {float(rate): _of(choose, rate, late) for rate, late in ((2, 0.0), (3, 0.03), (4, 0.12), (5, 0.5))}
    wanted = float(choose.randint(41, 60))
    done = max((run["error"] == "").sum() / _seconds(run) for run in runs.values())
    return Case(
        (runs, *LIMITS.values(), wanted),
        math.ceil(wanted / 3),
        told(
            "Take the highest rate at which 95 % of all requests were in time; no machine may get more.",
            (wanted / 3, "Machines are whole: round up."),
            (math.floor(wanted / 3), "Round up: with one machine less, each gets more than it bears."),
            (math.ceil(wanted / 4), "At 4 a second the mean is within its limit, and 95 % of the requests are not."),
            (math.ceil(wanted / 5), LATE),
            (math.ceil(wanted / done), LATE),
        ),
        f"machines for {wanted:g} requests a second",
    )


def _of(choose: random.Random, rate: float, late: float) -> pd.DataFrame:
    """A run at this rate in which exactly this share is late, and all are answered."""
    rows = [
        {
            "due_s": place / rate,
            "ttft_ms": 900.0 if place < 100 * late else choose.uniform(100, 450),
            "tpot_ms": choose.uniform(10, 38),
            "output_len": 20,
            "error": "",
        }
        for place in range(100)
    ]
    run = pd.DataFrame(rows)
    return run.assign(last_s=run["due_s"] + 0.001 * (run["ttft_ms"] + 19 * run["tpot_ms"]))


def _biases(choose: random.Random) -> Case:
    prices, slower = Prices(15.0, 1.2, 0.9), choose.uniform(1.1, 1.6)
    rows = []
    for place in range(40):
        answers, tokens = (1, 0) if place < 12 else (choose.randint(2, 8), choose.choice((0, 0, 90, 240)))
        pace = 1.0 if answers == 1 else slower * choose.uniform(0.8, 1.2)  # alone it is as quick as its prices say
        priced = prices.iteration_ms + answers * prices.answer_ms + tokens * prices.prompt_token_ms
        rows.append({"ms": priced * pace, "generation_tokens": answers, "context_tokens": tokens})
    log = pd.DataFrame(rows)
    priced_ms = (
        prices.iteration_ms
        + log["generation_tokens"] * prices.answer_ms
        + log["context_tokens"] * prices.prompt_token_ms
    )
    alone = log["generation_tokens"] == 1
    return Case(
        (log, prices.iteration_ms, prices.answer_ms, prices.prompt_token_ms),
        float(log["ms"].sum() / priced_ms.sum()),
        told(
            "What all iterations took, over what the prices make of the same iterations.",
            (float((log["ms"] / priced_ms)[alone].mean()), "That is an empty machine; yours is busy."),
            (float(log["ms"][alone].sum() / priced_ms[alone].sum()), "That is an empty machine; yours is busy."),
            (float((log["ms"] / priced_ms).mean()), "A mean of quotients: add up first, then divide."),
            (float(priced_ms.sum() / log["ms"].sum()), "Upside down: slower than its prices is above 1."),
        ),
        f"bias of a log of {len(log)} iterations",
    )  # fmt: skip


# 9.2 and 9.3: settings ------------------------------------------------------------------------------------------------

# Limits that requests missed, and what that means.
FELL_SHORT = {
    "first token late": "first tokens came too late: what do those requests wait for, work, blocks or slots?",
    "TPOT too high": "TPOTs were too high: too much is computed in the iterations that those requests share.",
    "no answer": "requests had no answer, which is not in time either.",
}


@grades(
    "9.2",
    "Other settings keep it, too. What each costs elsewhere, in quality or in memory, decides between them.",
    within_s=REHEARSED_S,
    of_file=False,
)
def _kept(answer: tuple, choose: random.Random) -> Finding:
    if (found := _named(answer)) == NOT_YET:
        return NOT_YET
    name, settings = found
    contract, seeds = contract_for(name), _seeds(choose)
    yours = _in_rehearsal(settings, contract, seeds)
    course, nothing = (_known(tuple(each.items()), name, seeds) for each in (COURSES[service.drawn_for(name)], {}))
    advice = _fell_short(yours)
    if service.tally(service.rehearse(settings, contract, seeds), contract)["in time"] >= SHARE * yours["requests"]:
        advice += f" Without its bias of {BIAS} this rehearsal keeps the contract, and the machine does not."
    tokens_per_s = contract.rate * contract.traffic.means[2]
    costs = [
        contract.per_million(tokens_per_s * each["in time"] / each["requests"]) for each in (yours, course, nothing)
    ]
    what = "euros for a million tokens in time, at the contract's rate"
    return [
        *_beside(yours, course, nothing, SHARE * yours["requests"], advice),
        Measured(what, costs[0], course=costs[1], nothing=costs[2]),
    ]


@grades(
    "9.3",
    "Above the limit some requests must fail. One that is refused at once can go elsewhere.",
    within_s=REHEARSED_S,
    of_file=False,
)
def _monday(answer: tuple, choose: random.Random) -> Finding:
    if (found := _named(answer)) == NOT_YET:
        return NOT_YET
    name, settings = found
    drawn, seeds = service.drawn_for(name), _seeds(choose)
    yours = _in_rehearsal(settings, contract_for(name), seeds, load=2)
    courses = COURSES[drawn] | {"max_queue_size": QUEUES[drawn]}
    course, nothing = (_known(tuple(each.items()), name, seeds, load=2) for each in (courses, COURSES[drawn]))
    return _beside(yours, course, nothing, math.ceil(QUEUED * course["in time"]), _fell_short(yours))


def _named(answer: object) -> tuple[str, Settings] | NotYet:
    """A name and settings; NOT_YET where one of them is blank."""
    if not isinstance(answer, list | tuple) or len(answer) != 2:
        raise CourseError("Hand in your name and the settings: check(…, (name, settings)).")
    name, settings = answer
    return NOT_YET if not name or settings in ({}, None) else (str(name), settings)


def _seeds(choose: random.Random) -> tuple[int, ...]:
    return tuple(choose.randrange(10**6) for _ in range(RUNS))


def _in_rehearsal(settings: Settings, contract: Contract, seeds: tuple[int, ...], load: float = 1) -> dict[str, int]:
    progress.say(f"{len(seeds)} hidden runs are rehearsed")
    return service.tally(service.rehearse(settings, contract, seeds, load, BIAS), contract)


@functools.lru_cache(maxsize=32)
def _known(settings: tuple, name: str, seeds: tuple[int, ...], load: float = 1) -> dict[str, int]:
    return _in_rehearsal(dict(settings), contract_for(name), seeds, load)


def _beside(yours: dict, course: dict, nothing: dict, enough: float, advice: str) -> list[Measured]:
    what = f"in time, of {yours['requests']} in {RUNS} rehearsals"
    first = Measured(
        what, yours["in time"], at_least=enough, course=course["in time"], nothing=nothing["in time"], advice=advice
    )
    return [first, *(Measured(each, yours[each], course=course[each], nothing=nothing[each]) for each in FELL_SHORT)]


def _fell_short(counts: dict[str, int]) -> str:
    most = max(FELL_SHORT, key=counts.__getitem__)
    return f"{counts[most]} {FELL_SHORT[most]}"


# 9.4: a scheduler for this contract -----------------------------------------------------------------------------------

LOAD = 2.0  # so many times the contract's rate, where a better order shows


@grades(
    "9.4",
    "A scheduler that knows what the contract counts need not be fair; what becomes of those who wait is its price.",
    within_s=90,
)
def _scheduler(answer: tuple, choose: random.Random) -> Finding:
    path, name = answer
    if not name:
        return NOT_YET
    contract, settings = contract_for(name), COURSES[service.drawn_for(name)]
    seeds = _seeds(choose)[:8]

    def met(more: dict) -> float:
        progress.say(str(next(iter(more.values()))))
        return float(in_time(service.rehearse(settings | more, contract, seeds, LOAD, BIAS), contract).mean())

    built_in = max(met({"batch_scheduler_policy": policy}) for policy in POLICIES)
    mine = met({"scheduler_path": path})
    if mine == met({"scheduler_path": COURSES_OWN["scheduler"]}):  # in the order of arrival, as it is handed out
        return NOT_YET
    return [
        Measured(
            f"% in time, at {LOAD:g} times the contract's rate on one machine",
            100 * mine,
            at_least=100 * (built_in + BETTER),
            nothing=100 * built_in,
            advice="No policy knows what the contract counts. Of two that wait, which one delays fewer others?",
        )
    ]


# 9.5: a report --------------------------------------------------------------------------------------------------------

MOST_WORDS = 250
MISSING = {
    "rate": "In time at which load?",
    "share": "How many are in time?",
    "cost": "Somebody has to pay.",
    "machines": "How many do they have to buy?",
    "bias": "A rehearsed figure without its bias is believed too easily.",
}


@grades("9.5", "A figure that somebody else acts on carries its unit, its error, and whose parts it was measured with.")
def _report(report: Callable, choose: random.Random) -> dict[str, Callable[[], Finding]]:
    return {
        words: partial(_one_report, report, kept, choose)
        for words, kept in (("a contract that is kept", True), ("one that is not", False))
    }


def _one_report(report: Callable, kept: bool, choose: random.Random) -> Finding:
    figures = {
        "rate": round(choose.uniform(1, 6), 2),
        "share": round(choose.uniform(0.96, 0.99) if kept else choose.uniform(0.5, 0.93), 3),
        "cost": round(choose.uniform(0.2, 0.9), 2),
        "machines": choose.randint(3, 19),
        "bias": round(choose.uniform(1.1, 1.9), 2),
        "own_parts": ["client", "scheduler"] if kept else ["scheduler"],
    }
    text = report(dict(figures))
    if text is None:
        return NOT_YET
    if not isinstance(text, str):
        return Wrong(f"A report is a text; yours is {text!r}.")
    said = {float(number) for number in re.findall(r"\d+(?:\.\d+)?", text.replace(",", ""))}
    wanted = {
        "rate": [figures["rate"]],
        "share": [100 * figures["share"], math.floor(100 * figures["share"]), math.ceil(100 * figures["share"])],
        "cost": [figures["cost"]],
        "machines": [figures["machines"]],
        "bias": [figures["bias"], round(100 * figures["bias"]), round(100 * (figures["bias"] - 1))],
    }
    for name, values in wanted.items():
        if not any(math.isclose(value, number, abs_tol=0.051) for value in values for number in said):
            return Wrong(f"It does not say the {name}, {figures[name]}. {MISSING[name]}")
    if lost := [part for part in figures["own_parts"] if part not in text]:
        return Wrong(f"It does not say whose {lost[0]} it was: a colleague cannot repeat it.")
    says_no = bool(re.search(r"\b(not|no|fails?|misses|missed|breaks?)\b", text.splitlines()[0].casefold()))
    if says_no == kept:
        return Wrong(
            f"Its first line does not say whether the contract is kept: {100 * figures['share']:.1f} % are in time."
        )
    words = len(text.split())
    return Measured("words", words, at_most=MOST_WORDS, advice="One page, and the answer first.")
