"""Arrival rate against latency and goodput: at which load a deployment breaks, and where arithmetic says it does.

    kept = sweep_file.open_file(Path("sweep.json"), settings, resume=False)
    measure(kept, make, send, aim, log_path)
    result = summary(kept, aim, device)

From rate to rate, each in several rounds, until the deployment is over its limit: until fewer requests are answered
than come, and the objective is no longer kept. Where it is not kept at the first rate, lower ones come first. The last
rate is well over the limit (`FAR_OVER`): what is answered there is the capacity. Every round is kept as soon as it is
measured, and what is kept is not measured again.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
import pandas as pd

from inflight import files, machine
from inflight.bench import compare, load_generator, report, settled
from inflight.bench.load_generator import Run, Sends
from inflight.bench.objective import LIMITS, Objective, check_reachable
from inflight.bench.sweep_file import Cost, Round, SweepFile
from inflight.bench.workload import TimedRequest
from inflight.engine.prediction import iteration_cost
from inflight.errors import CourseError
from inflight.triton import telemetry
from inflight.triton.client import Client

# Shares of what the deployment is taken to serve at most, and on from there by half as much each time.
SHARES = (0.4, 0.6, 0.75, 0.85, 0.95, 1.05, 1.2, 1.5)
LOWER_SHARES = (0.2, 0.1)  # one after the other, while the objective is not kept at the lowest rate
OVER = 0.9  # answered over arrived, below which a deployment that misses the objective is over its limit
# The same of one that keeps it. Answers that are still under way when the last request comes are a good part of all
# where answers take long and requests are few; no queue that keeps a length leaves half of them.
OVER_THOUGH_KEPT = 0.5
# The last rate over the first one at which a deployment is over its limit. Barely over it, slots are empty at times, as
# requests do not come evenly, and less is answered than could be.
FAR_OVER = 1.5
LEAST_REQUESTS = 40  # of a round: percentiles of fewer say little
WARM_BLOCK, WARM_LIKE, MOST_WARM_BLOCKS = 16, 0.1, 8
ALONE = 8  # requests, one at a time, that tell whether an objective can be met at all
LIKE = 0.15  # a capacity within this share of the predicted one is as predicted
LESS = (
    "It answers less than its iterations alone would let it: time goes to what is around them (text, messages, a "
    "client on the same cores), or to slots that stay empty because the KV cache is full."
)
MORE = (
    "It answers more than its iterations were measured to let it: prompts were found in the KV cache unseen, or the "
    "machine was busier while the iterations were measured."
)
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


@dataclass(frozen=True)
class Aim:
    """How a sweep goes about it.

    Attributes
    ----------
    objective : Objective
    share : float
        Of the requests at a rate, how many must meet the objective for it to be kept.
    rates : tuple of float or None
        Requests a second, in rising order; None: found, as shares of what the deployment is taken to serve at most.
    seconds : float
        How long requests arrive in a round, or longer where so few would come.
    rounds : int
        At each rate.
    """

    objective: Objective
    share: float = 0.95
    rates: tuple[float, ...] | None = None
    seconds: float = 20.0
    rounds: int = 3

    def __post_init__(self):
        if not 0 < self.share <= 1:
            raise CourseError(f"--share is {self.share:g}; it must be above 0 and at most 1.")
        if not self.seconds > 0:
            raise CourseError(f"--seconds is {self.seconds:g}; it must be above 0.")
        if self.rounds < 1:
            raise CourseError(f"There are {self.rounds} rounds; ask for at least 1.")
        rises = self.rates is None or all(before < after < math.inf for before, after in pairwise((0.0, *self.rates)))
        if not rises:
            raise CourseError("The rates must be above 0 and rise, as --rates 1,2,4.")

    def number(self, rate: float) -> int:
        """Requests of a round at a rate."""
        return max(LEAST_REQUESTS, round(rate * self.seconds))


def parse_rates(text: str | None) -> tuple[float, ...] | None:
    """Rates as the command line has them, "1,2,4"; None stays None."""
    try:
        return None if text is None else tuple(float(part) for part in text.split(","))
    except ValueError:
        raise CourseError(f"--rates {text}: write requests a second with commas between, as 1,2,4.") from None


# Before ---------------------------------------------------------------------------------------------------------------


def warm_up(send: Sends, requests: list[TimedRequest], users: int, tell: Callable[[str], None]) -> tuple[int, float]:
    """Send blocks of requests, `users` under way, until two blocks in a row take about as long; nothing is kept.

    Returns
    -------
    int, float
        Requests that were sent; requests a second of the last block.

    Raises
    ------
    CourseError
        One of them failed, with its reason.
    """
    block = [request for request in requests if request.after is None][: max(WARM_BLOCK, 2 * users)]
    before = 0.0
    for number in range(1, MOST_WARM_BLOCKS + 1):
        tell(f"warming up: block {number}, until two take about as long")
        run = load_generator.load(send, block, users, closed=True)
        if run.stopped or len(run.answered) < len(block):
            reason = run.requests.loc[run.requests["error"] != "", "error"].iloc[0]
            raise CourseError(run.stopped if "interrupted" in run.stopped else f"A warm-up request failed: {reason}")
        now = report.summary(run)["requests_per_s"]
        if abs(now - before) <= WARM_LIKE * now:
            break
        before = now
    return number * len(block), now


def check_alone(
    send: Sends, requests: list[TimedRequest], objective: Objective, tell: Callable[[str], None] = lambda step: None
) -> None:
    """Send some requests one at a time: an objective that none of them meets is met at no rate; nothing is kept.

    They are short and long ones: every so many of all, in the order of their lengths.

    Raises
    ------
    CourseError
        None of them met the objective, with the limit and the best there was; or one failed, with its reason.
    """
    tell("seeing whether requests meet the objective when they are alone")
    openings = [request for request in requests if request.after is None]
    by_length = sorted(openings, key=lambda request: request.input_len + request.max_tokens)
    some = by_length[:: math.ceil(len(by_length) / ALONE)]
    run = load_generator.load(send, some, 1, closed=True)
    if run.stopped:
        raise CourseError(run.stopped)
    _check_answered(run, "one at a time")
    check_reachable(run, objective, "even one at a time with nothing else to do")


def calibrate(
    client: Client, requests: list[TimedRequest], slots: int, log_path: Path, stream: bool, tell: Callable[[str], None]
) -> Cost:
    """What iterations cost, measured with 1, 2, … `slots` requests whose prompts are as long as the middle one's."""
    middle = sorted(requests, key=lambda request: request.input_len)[len(requests) // 2]
    lengths = [middle, *requests]
    cost = iteration_cost(pd.concat(compare.calibrate(client, lengths, slots, log_path, tell, stream)))
    return Cost(answers_ms=[float(value) for value in cost.answers_ms], prompt_token_ms=cost.prompt_token_ms)


def predicted_per_s(cost: Cost, computed_len: float, output_len: float) -> float:
    """Requests a second that an engine whose slots are never empty can serve, from what its iterations cost.

    A request sits for as many iterations as its answer has tokens; the first computes its prompt. So of S slots, S over
    the answer's length take a new prompt in an iteration, the others give a token each, and as many requests leave.

    Parameters
    ----------
    cost : Cost
        Its answers go up to the number of slots.
    computed_len, output_len : float
        Mean tokens of a prompt that are computed, and not found in the KV cache; and of an answer.
    """
    slots = len(cost.answers_ms) - 1
    prompts = slots / max(1.0, output_len)
    answers_ms = float(np.interp(slots - prompts, range(slots + 1), cost.answers_ms))
    return 1000 * prompts / (answers_ms + prompts * computed_len * cost.prompt_token_ms)


# Rounds ---------------------------------------------------------------------------------------------------------------


def measure(
    kept: SweepFile,
    make: Callable[[float, int, int], list[TimedRequest]],
    send: Sends,
    aim: Aim,
    log_path: Path | None = None,
    tell: Callable[[str], None] = lambda step: None,
    keep_rows: Callable[[Run, float, int], None] = lambda run, rate, number: None,
) -> None:
    """Measure what `kept` lacks, and add it there round by round.

    Parameters
    ----------
    make : function
        Rate, number of requests, round -> requests with their times.
    log_path : path, optional
        The engine's iteration log, which tells how many tokens of the prompts were computed.
    tell : function
        Called with what is measured now.
    keep_rows : function
        Called with the run, rate and number of each round, whole or not.

    Raises
    ------
    CourseError
        It was interrupted, the server went away, or no request was answered at a rate. All that was measured until then
        is in `kept`.
    """
    for rate in _rates(kept, aim):
        done = {each.round for each in kept.whole(rate)}
        for number in range(1, aim.rounds + 1):
            if number in done:
                continue
            tell(f"{rate:g} requests a second, round {number} of {aim.rounds}")
            start = 0 if log_path is None else files.size(log_path)
            run = load_generator.load(send, make(rate, aim.number(rate), number))
            keep_rows(run, rate, number)
            log = None if log_path is None or run.stopped else telemetry.iterations(log_path, start)
            kept.add(
                Round(
                    rate=rate,
                    round=number,
                    stopped=run.stopped,
                    figures=figures(run, aim.objective, log),
                    answered=_records(run.answered) if run.stopped else (),
                )
            )
            if run.stopped:
                raise CourseError(f"{run.stopped[:-1]} at {rate:g} requests a second, round {number}.")
            _check_answered(run, f"at {rate:g} requests a second")


def _records(rows: pd.DataFrame) -> tuple[dict, ...]:
    """Rows as JSON has them: what is not known is None."""
    return tuple(json.loads(rows.to_json(orient="records")))


def _check_answered(run: Run, at: str) -> None:
    """Where nothing is answered, no more can be measured."""
    if run.answered.empty:
        raise CourseError(f"No request was answered {at}, the first with: {run.requests['error'].iloc[0]}")


def _rates(kept: SweepFile, aim: Aim) -> Iterator[float]:
    """One rate after another, until the deployment was over its limit.

    Where none is named, lower ones if the first is too high, and in the end one well over the limit.
    """
    for number, rate in enumerate(aim.rates or found_rates(kept.base_per_s)):
        yield rate
        if number == 0 and aim.rates is None:
            yield from _lower_rates(kept, rate, aim)
        if is_over(kept.whole(rate), aim):
            if aim.rates is None:
                yield _rate(FAR_OVER, rate)
            return


def _lower_rates(kept: SweepFile, rate: float, aim: Aim) -> Iterator[float]:
    """One below the other, until the objective is kept."""
    for share in LOWER_SHARES:
        if _meets(kept.whole(rate), aim):
            return
        rate = _rate(share, kept.base_per_s)
        yield rate


def found_rates(base_per_s: float) -> Iterator[float]:
    """Rising rates to three digits, by `SHARES` of a base and on."""
    shares = itertools.chain(SHARES, (SHARES[-1] * 1.5**step for step in itertools.count(1)))
    return (_rate(share, base_per_s) for share in shares)


def _rate(share: float, base_per_s: float) -> float:
    return float(f"{share * base_per_s:.3g}")


def figures(run: Run, objective: Objective, log: pd.DataFrame | None = None) -> dict[str, float | None]:
    """What one round comes to, of the part of it that counts (`settled.steady`).

    Parameters
    ----------
    log : DataFrame, optional
        The iterations of the round (`telemetry.iterations`).

    Returns
    -------
    dict
        `arrived_per_s`, `served_per_s`; `goodput_per_s` and `met_share`, requests that meet the objective, a second and
        of all; `errors`; `skipped`, requests of the beginning; `seconds`; `late_ms_p99`; of TTFT, ITL and latency
        `_p50`, `_p90`, `_p99` in milliseconds; `input_len_mean`, `output_len_mean`; `computed_len_mean`, tokens of a
        prompt that were not found in the KV cache. None where there is nothing to count.
    """
    window = settled.steady(run)
    rows = window.requests.iloc[1:] if len(window.requests) > 1 else window.requests
    met, answered = objective.met(rows), rows[rows["error"] == ""]
    found: dict[str, float | None] = {
        "arrived_per_s": window.arrived_per_s,
        "served_per_s": window.served_per_s,
        "goodput_per_s": window.arrived_per_s * float(met.mean()) if len(met) else 0.0,
        "met_share": float(met.mean()) if len(met) else 0.0,
        "errors": float(len(rows) - len(answered)),
        "skipped": float(window.skipped),
        "seconds": float(window.seconds),
        "late_ms_p99": report.summary(run)["late_ms_p99"] if len(run.answered) else None,
        "input_len_mean": _number(answered["input_len"].astype(float).mean()),
        "output_len_mean": _number(answered["output_len"].astype(float).mean()),
        "computed_len_mean": None if log is None else _computed_len(log, window.skipped),
    }
    for column, _ in LIMITS.values():
        values = answered[column].astype(float)
        found |= {f"{column}_{label}": _number(values.quantile(part)) for label, part in PERCENTILES.items()}
    return found


def _computed_len(log: pd.DataFrame, skipped: int) -> float | None:
    """Mean tokens of a prompt that were computed, of all requests but the first; None where the log does not tell.

    A prompt that was computed again, after a pause, counts again: it cost as much.
    """
    if not telemetry.names_requests(log):
        return None
    computed = telemetry.shares(log).groupby("request", sort=False)["context"].sum()
    return _number(computed.iloc[skipped:].mean())


def _number(value: float) -> float | None:
    return None if value != value else float(value)


def is_over(rounds: list[Round], aim: Aim) -> bool:
    """Whether a deployment was over its limit: in the middle round it answered clearly fewer requests than came.

    Requests that are still under way when the last one comes are not answered either. So a deployment that keeps the
    objective must fall further behind to be over its limit.
    """
    shares = [
        each.figures["served_per_s"] / each.figures["arrived_per_s"] for each in rounds if each.figures["arrived_per_s"]
    ]
    return bool(shares) and median(shares) < (OVER_THOUGH_KEPT if _meets(rounds, aim) else OVER)


def _meets(rounds: list[Round], aim: Aim) -> bool:
    return median(each.figures["met_share"] or 0.0 for each in rounds) >= aim.share


# What came of it ------------------------------------------------------------------------------------------------------


def summary(kept: SweepFile, aim: Aim, device: str) -> dict:
    """A sweep's result: one row a rate, with the spread over its rounds; the knee, and the capacity.

    Returns
    -------
    dict
        `machine`, `devices`, `settings`; `rows`; `knee`, the highest rate up to which the objective was kept, or None;
        `goodput_at_objective`, requests a second there (median, min, max), or None; `capacity`, requests a second:
        `measured`, answered at the highest rate that was over the limit (median, min, max), and `predicted`, each None
        where it is not known; `ratios` with `capacity_measured_over_predicted`.
    """
    rows = [_row(rate, kept.whole(rate), aim) for rate in kept.rates]
    knee = None
    for row in rows:
        if not row["kept"]:
            break
        knee = row
    over = [kept.whole(rate) for rate in kept.rates if is_over(kept.whole(rate), aim)]
    served = [each.figures["served_per_s"] for each in over[-1]] if over else []
    predicted = _predicted(kept)
    ratios = {}
    if served and predicted:
        ratios["capacity_measured_over_predicted"] = load_generator.ratio(served, [predicted] * len(served))
    return {
        "machine": machine.describe(),
        "devices": {"bench sweep": device},
        "settings": {**kept.settings, "warm_up_requests": kept.warm_up_requests},
        "rows": rows,
        "knee": None if knee is None else knee["rate"],
        "goodput_at_objective": None
        if knee is None
        else {name: knee[f"goodput_per_s_{name}"] for name in ("median", "min", "max")},
        "capacity": {"measured": _spread(served), "predicted": predicted},
        "ratios": ratios,
    }


def _predicted(kept: SweepFile) -> float | None:
    """From each calibration, with the lengths that were computed and answered; the middle of them."""
    whole = [each.figures for each in kept.rounds if not each.stopped and each.figures["output_len_mean"]]
    if not kept.costs or not whole:
        return None
    computed_len = sum(map(_prompt_len, whole)) / len(whole)
    output_len = sum(figures["output_len_mean"] for figures in whole) / len(whole)
    return median(predicted_per_s(cost, computed_len, output_len) for cost in kept.costs)


def _prompt_len(figures: dict[str, float | None]) -> float:
    """Mean tokens of a prompt that were computed; all of them where that is not known, as in older files."""
    computed = figures.get("computed_len_mean")
    return figures["input_len_mean"] if computed is None else computed


def _row(rate: float, rounds: list[Round], aim: Aim) -> dict:
    row: dict = {"rate": rate, "rounds": len(rounds)}
    for name in ("arrived_per_s", "served_per_s", "goodput_per_s", "met_share"):
        row |= {f"{name}_{label}": value for label, value in _spread([each.figures[name] for each in rounds]).items()}
    for column, _ in LIMITS.values():
        for label in PERCENTILES:
            values = [each.figures[f"{column}_{label}"] for each in rounds]
            row |= {f"{column}_{label}_{key}": value for key, value in (_spread(values) or NONE).items()}
    row["errors"] = sum(int(each.figures["errors"] or 0) for each in rounds)
    row["skipped"] = median(each.figures["skipped"] or 0 for each in rounds)
    row["late_ms_p99"] = max((each.figures["late_ms_p99"] or 0.0 for each in rounds), default=0.0)
    row["client_late"] = row["late_ms_p99"] > report.late_limit_ms(row["latency_ms_p50_median"])
    row["over_limit"] = is_over(rounds, aim)
    row["kept"] = not row["over_limit"] and _meets(rounds, aim)
    return row


NONE = dict.fromkeys(("median", "min", "max"))


def _spread(values: list[float | None]) -> dict[str, float] | None:
    """Median, least and most; None where there is none, or not of each."""
    if not values or None in values:
        return None
    return {"median": median(values), "min": min(values), "max": max(values)}


def in_words(result: dict) -> str:
    """Knee and capacity of a `summary`, in a paragraph."""
    parts = []
    if result["knee"] is None:
        parts.append("No rate kept the objective.")
    else:
        good = result["goodput_at_objective"]
        parts.append(
            f"The objective was kept up to {result['knee']:.3g} requests a second (goodput {good['median']:.2f}, "
            f"{good['min']:.2f} to {good['max']:.2f})."
        )
    measured, predicted = result["capacity"]["measured"], result["capacity"]["predicted"]
    if measured is None:
        parts.append("The server was not over its limit at any rate, so its capacity is not known.")
    else:
        parts.append(
            f"Over its limit the server answers {measured['median']:.2f} requests a second ({measured['min']:.2f} to "
            f"{measured['max']:.2f})."
        )
    if predicted is not None:
        parts.append(f"From the cost of an iteration follow {predicted:.2f}.")
    for name, ratio in result["ratios"].items():
        parts.append(f"{name}: {ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f}).")
        if abs(ratio["median"] - 1) > LIKE:
            parts.append(LESS if ratio["median"] < 1 else MORE)
    if late := [f"{row['rate']:.3g}" for row in result["rows"] if row["client_late"]]:
        parts.append(
            f"The client could not keep up at {', '.join(late)} requests a second: it sent some late, and their wait "
            "is in the figures."
        )
    return " ".join(parts)
