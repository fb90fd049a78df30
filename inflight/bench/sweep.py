"""Arrival rate against latency and goodput: at which load a deployment breaks, and where arithmetic says it does.

    result = sweep(send, make, aim, slots=8, log_path=log)
    result["knee"], result["ratios"]["capacity_measured_over_predicted"]["median"]

Rates rise, each in several rounds, until clearly fewer requests are answered than come: the deployment is over its
limit. The last rate is well over it, so that no slot waits for an arrival: what is answered there is the capacity.
Where the objective is not kept at the first rate, lower ones follow. Beside the capacity stands what an iteration's
cost says that it must be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
import pandas as pd

from inflight.bench import report, trace_run
from inflight.bench.load import Run, Sender, Sends, load
from inflight.bench.objective import LIMITS, Objective, check_reachable
from inflight.bench.turns import Progress, ratio, result, silent, spread
from inflight.bench.workload import NUMBERS, TimedRequest, alike_until, opening
from inflight.engine.prediction import IterationCost, iteration_cost
from inflight.errors import CourseError

# Shares of the requests a second that the warm-up saw; and, one after the other, while the objective is not kept there.
SHARES, LOWER_SHARES = (0.5, 0.75, 0.95, 1.2, 1.5, 2.0, 3.0), (0.25, 0.1)
OVER = 0.85  # answered over arrived, below which a deployment is over its limit, if as many wait as have a slot
# The last rate over the first one at which it is. Barely over it, slots are empty at times, as requests do not come
# evenly, and less is answered than could be.
FAR_OVER = 1.5
FILLING = 0.25  # share of a round's requests, its first, in which batch and queue still fill: they do not count
ALONE = 5  # requests, one at a time, that tell whether an objective can be met at all
PERCENTILES = {"p50": 0.5, "p99": 0.99}
WARM_UP_TOKENS = 8


@dataclass(frozen=True)
class Aim:
    """How a sweep goes about it.

    Attributes
    ----------
    objective : Objective
    share : float
        Of the requests at a rate, how many must meet the objective for it to be kept.
    rates : tuple of float or None
        Requests a second, in rising order; None: found, as shares of what the deployment serves in the warm-up.
    requests : int
        Of each round; they should come for several times as long as an answer takes.
    rounds : int
        At each rate.
    """

    objective: Objective
    share: float = 0.95
    rates: tuple[float, ...] | None = None
    requests: int = 32
    rounds: int = 2

    def __post_init__(self):
        if not 0 < self.share <= 1:
            raise CourseError(f"--share is {self.share:g}; it must be above 0 and at most 1.")
        if self.requests < 8 or self.rounds < 1:
            raise CourseError(f"{self.requests} requests in {self.rounds} rounds are too few: ask for 8 in 1 at least.")
        if self.rates and not all(before < after < math.inf for before, after in pairwise((0.0, *self.rates))):
            raise CourseError("The rates must be above 0 and rise, as --rates 1,2,4.")


Make = Callable[[float, int, int], list[TimedRequest]]  # rate, number of requests, round -> requests at their times


def sweep(
    send: Sends,
    make: Make,
    aim: Aim,
    slots: int,
    log_path: Path | None = None,
    progress: Progress = silent,
    keep: Callable[[Run, float, int], None] = lambda run, rate, number: None,
) -> dict:
    """Measure rate by rate, and put together what came of it.

    Parameters
    ----------
    send : Sends
    make : function
        Makes the requests of a round; no prompt should come twice.
    slots : int
        Requests that run at a time, as far as that is known.
    log_path : path, optional
        The engine's iteration log; with it the capacity is predicted.
    keep : function
        Called with the run, rate and number of each round, whole or not.

    Returns
    -------
    dict
        `machine`, `settings`; `rows`, one a rate, see `_row`; `knee`, the highest rate up to which the objective was
        kept, or None; `goodput_at_objective`, requests a second there (median, min, max), or None; `capacity`, requests
        a second: `measured`, answered at the highest rate that was over the limit (median, min, max), and `predicted`,
        each None where it is not known; `ratios` with `capacity_measured_over_predicted`. An interrupt (Ctrl-C,
        SIGTERM) or a server that goes away ends the sweep with the rounds that were whole until then, and `stopped`
        says so.

    Raises
    ------
    CourseError
        The objective is met by no request alone; no request is answered; it ended before a rate was measured.
    """
    rows: list[dict] = []
    costs: list[IterationCost] = []
    stopped = ""

    def measure(rate: float, requests: int = aim.requests) -> dict:
        """Measure a rate, and put its row where it belongs, also when not all of its rounds are whole."""
        rounds: list[dict] = []
        try:
            for number in range(1, aim.rounds + 1):
                what = f"{rate:g} requests a second, round {number} of {aim.rounds}"
                tell = lambda done, total, what=what: progress(what, done, total)
                run = load(send, make(rate, requests, number), progress=tell)
                keep(run, rate, number)
                if run.stopped:
                    run.whole()
                rounds.append(figures(run, aim.objective, slots))
        finally:
            if rounds:
                rows.append(_row(rate, rounds, aim, slots))
                rows.sort(key=lambda row: row["rate"])
        return next(row for row in rows if row["rate"] == rate)

    try:
        progress("warming up", 0, 1)
        some = make(1.0, max(16, 3 * slots), 0)
        base_per_s = _warm_up(send, some, slots)
        check_alone(send, some, aim.objective)
        if log_path is not None and isinstance(send, Sender):
            costs.append(cost_of_an_iteration(send, some, slots, log_path, progress))
        for rate in aim.rates or [_rate(share * base_per_s) for share in SHARES]:
            row = measure(rate)
            if row["over_limit"]:
                break
        if aim.rates is None:
            for share in LOWER_SHARES:
                if rows[0]["kept"]:
                    break
                measure(_rate(share * base_per_s))
            if rows[-1]["over_limit"]:
                measure(_rate(FAR_OVER * rows[-1]["rate"]), 2 * aim.requests)
        if costs:  # again: a machine is never quite the same for long
            costs.append(cost_of_an_iteration(send, some, slots, log_path, progress))
    except (KeyboardInterrupt, SystemExit, CourseError) as error:
        if not rows:
            raise
        stopped = str(error) if isinstance(error, CourseError) else "The sweep was interrupted."
    return _result(rows, costs, slots, aim, stopped)


def _rate(per_s: float) -> float:
    """A rate to three digits."""
    return float(f"{per_s:.3g}")


# Before ---------------------------------------------------------------------------------------------------------------


def _warm_up(send: Sends, requests: list[TimedRequest], users: int) -> float:
    """Send the requests twice, `users` under way; requests a second of the second time."""
    load(send, requests, users, closed=True).whole()
    return report.summary(load(send, requests, users, closed=True).whole())["requests_per_s"]


def check_alone(send: Sends, requests: list[TimedRequest], objective: Objective) -> None:
    """Send some requests one at a time: an objective that none of them meets is met at no rate; nothing is kept.

    They are short and long ones: every so many of all, in the order of their lengths.

    Raises
    ------
    CourseError
        None of them met the objective, with the limit and the best there was; or one failed, with its reason.
    """
    by_length = sorted(requests, key=lambda request: request.input_len + request.max_tokens)
    run = load(send, by_length[:: math.ceil(len(by_length) / ALONE)], 1, closed=True).whole()
    check_reachable(run, objective, "even one at a time with nothing else to do")


def cost_of_an_iteration(
    send: Sender, requests: list[TimedRequest], slots: int, log_path: Path, progress: Progress = silent
) -> IterationCost:
    """What iterations cost, measured with 1, 2, … `slots` requests at once; the engine must batch in flight.

    An iteration costs more the longer the texts in it are: each answer's whole past is read. So these requests have a
    prompt of middle length, and answers so long that their middle is where a token of `requests` has its place on
    average: the sum of squared lengths over the sum of lengths. No two prompts are alike, but for what all begin with:
    an engine that finds prompts in its KV cache would compute next to nothing of them.
    """
    middle = sorted(requests, key=lambda request: request.input_len)[len(requests) // 2]
    lengths, shared = [request.max_tokens for request in requests], alike_until(request.text for request in requests)
    long = max(2, round(sum(n * n for n in lengths) / sum(lengths)))

    def burst(number: int, max_tokens: int) -> pd.DataFrame:
        texts = [opening(middle.text, next(NUMBERS), shared) for _ in range(number)]
        asked = [replace(middle, text=text, max_tokens=max_tokens, at_s=0.0) for text in texts]
        return trace_run.run(send.client, asked, log_path, stream=send.stream).log

    burst(1, WARM_UP_TOKENS)
    logs = []
    for number in range(1, slots + 1):
        progress(f"cost of an iteration with {number} of {slots} answers", number - 1, slots)
        logs.append(burst(number, long))
    return iteration_cost(pd.concat(logs))


def predicted_per_s(cost: IterationCost, slots: int, input_len: float, output_len: float) -> float:
    """Requests a second that an engine whose slots are never empty can serve, from what its iterations cost.

    A request sits for as many iterations as its answer has tokens; the first computes its prompt. So of S slots, S over
    the answer's length take a new prompt in an iteration, the others give a token each, and as many requests leave.

    Parameters
    ----------
    input_len, output_len : float
        Mean tokens of a prompt, none of which are found in the KV cache, and of an answer.
    """
    prompts = slots / max(1.0, output_len)
    answers_ms = float(np.interp(slots - prompts, cost.answers_ms.index, cost.answers_ms))
    return 1000 * prompts / (answers_ms + prompts * input_len * cost.prompt_token_ms)


# What comes of it -----------------------------------------------------------------------------------------------------


def figures(run: Run, objective: Objective, slots: int) -> dict[str, float | None]:
    """What one round comes to, from the end of its filling to its last arrival; what is `full_per_s` has its own end.

    Who came before it and is answered in it counts as served, who comes in it and is answered later does not: where the
    queue keeps its length, the two are as many.

    Returns
    -------
    dict
        `arrived_per_s`, `served_per_s`; `goodput_per_s` and `met_share`, requests that meet the objective, a second and
        of all; `full_per_s`, answers a second while all slots are taken if more come than are answered: from the end of
        the filling until fewer answers than slots are left; `left`, requests without their answer at the last arrival;
        `errors`; of TTFT, ITL and latency `_p50`, `_p99` in
        milliseconds; `input_len_mean`, `output_len_mean`. None where there is nothing to count.

    Raises
    ------
    CourseError
        No request was answered.
    """
    if run.answered.empty:
        raise CourseError(f"No request was answered, the first with: {run.requests['error'].iloc[0]}")
    rows = run.requests.sort_values("due_s", kind="stable")
    rows = rows.iloc[int(FILLING * len(rows)) :]
    begin_s, end_s = rows["due_s"].iloc[0], rows["due_s"].iloc[-1]
    counted, seconds = rows.iloc[1:], end_s - begin_s  # one arrival opens the window, and is no arrival within it
    met, answered = float(objective.met(counted).mean()), counted[counted["error"] == ""]
    served = run.answered["last_s"].between(begin_s, end_s, inclusive="right").sum()
    left = (run.requests["due_s"] <= end_s).sum() - (run.answered["last_s"] <= end_s).sum()
    found: dict[str, float | None] = {
        "arrived_per_s": float(len(counted) / seconds),
        "served_per_s": float(served / seconds),
        "full_per_s": _full_per_s(run, slots),
        "left": float(left),
        "goodput_per_s": float(met * len(counted) / seconds),
        "met_share": met,
        "errors": len(counted) - len(answered),
        "input_len_mean": _number(answered["input_len"].astype(float).mean()),
        "output_len_mean": _number(answered["output_len"].astype(float).mean()),
    }
    for column, _ in LIMITS.values():
        values = answered[column].astype(float)
        found |= {f"{column}_{label}": _number(values.quantile(part)) for label, part in PERCENTILES.items()}
    return {**found, "late": report.lateness(run)}


def _full_per_s(run: Run, slots: int) -> float | None:
    ends = run.answered["last_s"].sort_values().tolist()
    first, last = int(FILLING * len(ends)), len(ends) - 1 - slots
    return (last - first) / (ends[last] - ends[first]) if last > first and ends[last] > ends[first] else None


def _number(value: float) -> float | None:
    return None if value != value else float(value)


def _row(rate: float, rounds: list[dict], aim: Aim, slots: int) -> dict:
    """A rate: of its rounds' figures `_median`, `_min`, `_max`; `errors`; whether it is `over_limit`, and `kept`."""
    row: dict = {"rate": rate, "rounds": len(rounds)}
    for name in rounds[0]:
        if name not in ("errors", "late"):
            values = [one[name] for one in rounds]
            known = dict.fromkeys(("median", "min", "max")) if None in values else spread(values)
            row |= {f"{name}_{label}": value for label, value in known.items()}
    row["errors"] = sum(one["errors"] for one in rounds)
    row["client_late"] = any(one["late"] for one in rounds)
    # In a short round the first alone may be chance: more requests have a slot at its end than at its beginning.
    falls_behind = median(one["served_per_s"] / one["arrived_per_s"] for one in rounds) < OVER
    row["over_limit"] = falls_behind and row["left_median"] >= 2 * slots
    row["kept"] = not row["over_limit"] and row["met_share_median"] >= aim.share
    return row


def _result(rows: list[dict], costs: list[IterationCost], slots: int, aim: Aim, stopped: str) -> dict:
    knee = None
    for row in rows:
        if not row["kept"]:
            break
        knee = row
    over = [row for row in rows if row["over_limit"]]
    measured = _part(over[-1], "full_per_s") if over and over[-1]["full_per_s_median"] else None
    predicted, ratios = None, {}
    if costs:  # for requests as long as those that the capacity was measured with
        names, counted = ("input_len_mean", "output_len_mean"), over[-1:] or rows
        lengths = [_mean(row[f"{name}_median"] for row in counted) for name in names]
        predicted = median(predicted_per_s(cost, slots, *lengths) for cost in costs)
    if measured and predicted:
        ratios["capacity_measured_over_predicted"] = {
            name: ratio([value], [predicted])["median"] for name, value in measured.items()
        }
    settings = {"objective": str(aim.objective), "share": aim.share, "requests": aim.requests, "rounds": aim.rounds}
    return result(
        settings,
        rows,
        ratios,
        knee=None if knee is None else knee["rate"],
        goodput_at_objective=None if knee is None else _part(knee, "goodput_per_s"),
        capacity={"measured": measured, "predicted": predicted},
        stopped=stopped,
    )


def _part(row: dict, name: str) -> dict[str, float]:
    return {label: row[f"{name}_{label}"] for label in ("median", "min", "max")}


def _mean(values: Iterable[float | None]) -> float:
    return float(np.mean([value for value in values if value is not None]))


def in_words(found: dict) -> str:
    """Knee and capacity of a sweep's result, in a paragraph."""
    parts = ["No rate kept the objective."]
    if found["knee"] is not None:
        good = found["goodput_at_objective"]
        parts = [
            f"The objective was kept up to {found['knee']:.3g} requests a second (goodput {good['median']:.2f}, "
            f"{good['min']:.2f} to {good['max']:.2f})."
        ]
    measured, predicted = found["capacity"]["measured"], found["capacity"]["predicted"]
    if measured is None:
        parts.append("The server was not over its limit at any rate, so its capacity is not known.")
    else:
        parts.append(
            f"Over its limit the server answers {measured['median']:.2f} requests a second ({measured['min']:.2f} to "
            f"{measured['max']:.2f})."
        )
    if predicted is not None:
        parts.append(f"From the cost of an iteration follow {predicted:.2f}.")
    if late := [f"{row['rate']:.3g}" for row in found["rows"] if row["client_late"]]:
        parts.append(
            f"The client could not keep up at {', '.join(late)} requests a second: it sent some late, and their wait "
            "is in the figures."
        )
    return " ".join([*parts, found["stopped"]]).strip()
