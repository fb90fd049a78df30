"""A service-level objective: the limits that an answer must keep to count, and the goodput under them.

    objective = parse("ttft=500,itl=40")
    objective.met(run.requests).mean()          # share of all requests
    goodput(run, objective)                     # requests a second

Goodput is the rate of requests that meet every limit (DistServe, Zhong et al. 2024, arXiv:2401.09670, section 2). A
request without an answer meets none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from inflight.bench.load import Run
from inflight.errors import CourseError

# Name on the command line -> column of `Run.requests`, and what it is called in a sentence.
LIMITS = {"ttft": ("ttft_ms", "TTFT"), "itl": ("itl_ms", "ITL"), "latency": ("latency_ms", "end-to-end latency")}


@dataclass(frozen=True)
class Objective:
    """The most that one answer may take, each in milliseconds; None is no limit.

    Attributes
    ----------
    ttft_ms, itl_ms, latency_ms : float or None
        Time to the first token, mean time between two tokens of an answer, time to the last; the first and the last
        since the request was due.
    """

    ttft_ms: float | None = None
    itl_ms: float | None = None
    latency_ms: float | None = None

    @property
    def limits(self) -> dict[str, float]:
        """Return the limits by column of `Run.requests`, without those that are None."""
        named = {column: getattr(self, column) for column, _ in LIMITS.values()}
        return {column: limit for column, limit in named.items() if limit is not None}

    def met(self, requests: pd.DataFrame) -> pd.Series:
        """Say which rows of `Run.requests` keep every limit; an answer of one token keeps any limit on ITL."""
        kept = requests["error"] == ""
        for column, limit in self.limits.items():
            values = requests[column].astype(float)
            kept &= (values <= limit) | (values.isna() if column == "itl_ms" else False)
        return kept

    def check_streaming(self, stream: bool) -> None:
        """Refuse limits on TTFT and ITL where answers are not streamed."""
        if not stream and {"ttft_ms", "itl_ms"} & set(self.limits):
            raise CourseError("An objective of ttft or itl needs answers in pieces: add --stream.")

    def __str__(self) -> str:
        names = dict(LIMITS.values())
        return " and ".join(f"{names[column]} at most {limit:g} ms" for column, limit in self.limits.items())


def parse(text: str) -> Objective:
    """Read an objective from its limits in milliseconds, such as "ttft=500,itl=40,latency=3000", one or more of them.

    Raises
    ------
    CourseError
        It is not written so, or a limit is no number above 0.
    """
    limits: dict[str, float] = {}
    try:
        for part in text.split(","):
            name, equals, value = part.strip().partition("=")
            column, limit = LIMITS[name][0], float(value)
            if not equals or column in limits or not (math.isfinite(limit) and limit > 0):
                raise ValueError(part)
            limits[column] = limit
    except (ValueError, KeyError):
        raise CourseError(
            f"The objective {text!r} cannot be read: write limits in milliseconds, as ttft=500,itl=40,latency=3000, "
            "each at most once and above 0."
        ) from None
    return Objective(**limits)


def goodput(run: Run, objective: Objective) -> float:
    """Return the requests a second that meet the objective, from the first request sent to the last answer."""
    seconds = run.requests["last_s"].max() - run.requests["sent_s"].min()
    return float(objective.met(run.requests).sum() / seconds) if seconds > 0 else 0.0
