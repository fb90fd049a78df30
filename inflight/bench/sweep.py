"""Latency and goodput at rising arrival rates: the rate above which a server falls behind, and its capacity.

    result = sweep(send, make, parse("ttft=500,itl=40"), slots=8)
    result["knee"], result["capacity"]["median"]

Rates rise, each in several rounds, until clearly fewer requests are answered than come: the deployment is over its
limit. The last rate is well over it, so that no slot waits for an arrival: what is answered there is the capacity.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import pandas as pd

from inflight.bench import report
from inflight.bench.load import Run, Sends, send_all
from inflight.bench.objective import LIMITS, Objective
from inflight.bench.turns import Progress, result, silent
from inflight.bench.workload import TimedRequest
from inflight.errors import CourseError

SHARES = (0.6, 0.9, 1.2, 1.6, 2.2, 3.0)  # of the requests a second that the warm-up saw: the rates
KEPT = 0.95  # share of the requests at a rate that must meet the objective for it to be kept
OVER = 0.85  # answered over arrived, below which a deployment is over its limit, if as many wait as have a slot
# The last rate over the first one at which it is. Barely over it, slots are empty at times, as requests do not come
# evenly, and less is answered than could be.
FAR_OVER = 1.5
FILLING = 0.25  # share of a round's requests, its first, in which batch and queue still fill: they do not count
PERCENTILES = {"p50": 0.5, "p99": 0.99}


Make = Callable[[float, int, int], list[TimedRequest]]  # rate, number of requests, seed -> requests at their times


def sweep(
    send: Sends,
    make: Make,
    objective: Objective,
    slots: int,
    rates: tuple[float, ...] | None = None,
    requests: int = 32,
    rounds: int = 2,
    progress: Progress = silent,
    keep: Callable[[Run, float, int], None] = lambda run, rate, number: None,
) -> dict:
    """Measure rate by rate, and put the results together.

    Parameters
    ----------
    send : Sends
    make : function
        Makes the requests of a round; no prompt should come twice.
    objective : Objective
    slots : int
        Requests that run at a time, as far as that is known.
    rates : tuple of float, optional
        Requests a second, in rising order; by default found, as shares of what the deployment serves in the warm-up.
    requests : int
        Of each round; they should come for several times as long as an answer takes.
    rounds : int
        At each rate.
    keep : function
        Called with the run, rate and number of each round, whole or not.

    Returns
    -------
    dict
        `machine`, `settings`; `rows`, one a rate, see `row`; `knee`, the highest rate up to which the objective was
        kept, or None; `goodput_at_objective`, requests a second there (median, min, max), or None; `capacity`, requests
        a second that were answered at the highest rate that was over the limit (median, min, max), or None; `ratios`,
        which is empty. An interrupt (Ctrl-C,
        SIGTERM) or a server that goes away ends the sweep with the rounds that were whole until then, and `stopped`
        says so.

    Raises
    ------
    CourseError
        As `validate`; no request is answered; it ended before a rate was measured.
    """
    validate(rates, requests, rounds)
    rows: list[dict] = []
    stopped = ""

    def measure(rate: float, number: int) -> dict:
        """Measure a rate with `number` requests a round; its row is kept also when not all rounds are whole."""
        whole: list[dict] = []
        try:
            for turn in range(1, rounds + 1):
                what = f"{rate:g} requests per second, round {turn} of {rounds}"
                tell = lambda done, total, what=what: progress(what, done, total)
                run = send_all(send, make(rate, number, turn), progress=tell)
                keep(run, rate, turn)
                if run.stopped:
                    run.whole()
                whole.append(figures(run, objective, slots))
        finally:
            if whole:
                rows.append(row(rate, whole, slots))
        return rows[-1]

    try:
        progress("warming up", 0, 1)
        base_per_s = _warm_up(send, make(1.0, max(16, 3 * slots), 0), slots)
        over = None
        for rate in rates or [_rate(share * base_per_s) for share in SHARES]:
            if measure(rate, requests)["over_limit"]:
                over = rate
                break
        if rates is None and over is not None:
            measure(_rate(FAR_OVER * over), 2 * requests)
    except (KeyboardInterrupt, SystemExit, CourseError) as error:
        if not rows:
            raise
        stopped = str(error) if isinstance(error, CourseError) else "The sweep was interrupted."
    knee = None
    for one in rows:
        if not one["kept"]:
            break
        knee = one
    last = rows[-1]
    return result(
        {"objective": str(objective), "share": KEPT, "requests": requests, "rounds": rounds},
        rows,
        {},
        knee=None if knee is None else knee["rate"],
        goodput_at_objective=None if knee is None else _part(knee, "goodput_per_s"),
        capacity=_part(last, "full_per_s") if last["over_limit"] and last["full_per_s_median"] else None,
        stopped=stopped,
    )


def validate(rates: tuple[float, ...] | None, requests: int, rounds: int) -> None:
    """Refuse what `sweep` cannot do, with a CourseError."""
    if requests < 8 or rounds < 1:
        raise CourseError(f"{requests} requests in {rounds} rounds are too few: ask for 8 in 1 at least.")
    if rates and not all(before < after < math.inf for before, after in pairwise((0.0, *rates))):
        raise CourseError("The rates must be above 0 and rise, as --rates 1,2,4.")


def _part(row: dict, name: str) -> dict[str, float]:
    return {label: row[f"{name}_{label}"] for label in ("median", "min", "max")}


def _rate(per_s: float) -> float:
    """A rate to three digits."""
    return float(f"{per_s:.3g}")


def _warm_up(send: Sends, requests: list[TimedRequest], users: int) -> float:
    """Send the requests twice, with `users` under way; return the requests a second of the second time."""
    send_all(send, requests, users).whole()
    return report.summary(send_all(send, requests, users).whole())["requests_per_s"]


# A rate ---------------------------------------------------------------------------------------------------------------


def figures(run: Run, objective: Objective, slots: int) -> dict[str, float]:
    """Compute a round's figures, from the end of its filling to its last arrival; `full_per_s` ends at another time.

    A request answered in this time counts as served, even if it came before; one that is answered later does not: where
    the queue keeps its length, the two are as many.

    Returns
    -------
    dict
        `arrived_per_s`, `served_per_s`; `goodput_per_s` and `met_share`, requests that meet the objective, a second and
        of all; `full_per_s`, answers a second while all slots are taken if more come than are answered: from the end of
        the filling until fewer answers than slots are left; `left`, requests without their answer at the last arrival;
        `errors`; of TTFT, ITL and latency `_p50`, `_p99` in milliseconds. NaN where there is nothing to count.

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
    found = {
        "arrived_per_s": len(counted) / seconds,
        "served_per_s": served / seconds,
        "full_per_s": _full_per_s(run, slots),
        "left": left,
        "goodput_per_s": met * len(counted) / seconds,
        "met_share": met,
    }
    for column, _ in LIMITS.values():
        values = answered[column].astype(float)
        found |= {f"{column}_{label}": values.quantile(part) for label, part in PERCENTILES.items()}
    return {**found, "errors": len(counted) - len(answered), "client_late": bool(report.lateness(run))}


def _full_per_s(run: Run, slots: int) -> float:
    ends = run.answered["last_s"].sort_values().tolist()
    first, last = int(FILLING * len(ends)), len(ends) - 1 - slots
    return (last - first) / (ends[last] - ends[first]) if last > first and ends[last] > ends[first] else math.nan


def row(rate: float, rounds: list[dict], slots: int) -> dict:
    """A rate's row: `_median`, `_min`, `_max` of its rounds' figures; `errors`; whether `over_limit`, and `kept`."""
    table = pd.DataFrame(rounds)
    found: dict = {"rate": rate, "rounds": len(rounds)}
    for name, values in (
        table.drop(columns=["errors", "client_late"]).agg(["median", "min", "max"], skipna=False).items()
    ):
        found |= {f"{name}_{label}": report.number(value) for label, value in values.items()}
    found["errors"] = int(table["errors"].sum())
    found["client_late"] = bool(table["client_late"].any())
    # In a short round the first alone may be chance: more requests have a slot at its end than at its beginning.
    falls_behind = (table["served_per_s"] / table["arrived_per_s"]).median() < OVER
    found["over_limit"] = bool(falls_behind) and found["left_median"] >= 2 * slots
    found["kept"] = not found["over_limit"] and found["met_share_median"] >= KEPT
    return found


def in_words(found: dict) -> str:
    """Knee and capacity of a sweep's result, in a paragraph."""
    parts = ["No rate kept the objective: name lower ones with --rates, or allow more."]
    if found["knee"] is not None:
        good = found["goodput_at_objective"]
        parts = [
            f"The objective was kept up to {found['knee']:.3g} requests per second (goodput {good['median']:.2f}, "
            f"{good['min']:.2f} to {good['max']:.2f})."
        ]
    capacity = found["capacity"]
    if capacity is None:
        parts.append("The server was not over its limit at any rate, so its capacity is not known.")
    else:
        parts.append(
            f"Above its limit the server answers {capacity['median']:.2f} requests per second ("
            f"{capacity['min']:.2f} to {capacity['max']:.2f})."
        )
    if any(one["client_late"] for one in found["rows"]):
        parts.append("The client could not keep up at times: it sent some late, and their wait is in the figures.")
    return " ".join([*parts, found["stopped"]]).strip()
