"""Make llm_trace_small.csv: a small made trace of arrivals and lengths, in the columns of Azure's public ones.

    python -m tools.trace_file

Nothing in it was measured anywhere. Half an hour of a news service: two kinds of requests, short questions and articles
to be summarized, that come in bursts on a curve with one peak. The seed is fixed: it is the same file every time.
"""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from pathlib import Path

from inflight import files
from inflight.bench import arrivals
from inflight.bench.names import TRACE_FILES
from inflight.paths import ASSETS

PATH = ASSETS / "datasets" / TRACE_FILES["small"]
SEED, START = 9, datetime(2025, 3, 3, 12, 0)
NUM_REQUESTS, RATE, DAY_S, SWING = 600, 1 / 3, 1800.0, 0.7
# Share of a kind; tokens of prompt and answer: the median and the standard deviation of the logarithm, and limits.
KINDS = (
    (0.35, (45, 0.4, (20, 160)), (60, 0.5, (8, 240))),
    (0.65, (260, 0.5, (90, 960)), (75, 0.45, (16, 260))),
)
BURST = 0.12  # share of requests that a few more follow within a second, as when a headline breaks


def lines(seed: int = SEED) -> list[str]:
    """The file's lines, the header among them."""
    draw = random.Random(seed)
    times = arrivals.day(NUM_REQUESTS, RATE, DAY_S, SWING, seed)
    times = sorted(time + (draw.random() if draw.random() < BURST else 0.0) for time in _bunched(times, draw))
    rows = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for time in times:
        _, prompt, answer = draw.choices(KINDS, [share for share, *_ in KINDS])[0]
        moment = START + timedelta(seconds=time)
        rows.append(f"{moment:%Y-%m-%d %H:%M:%S.%f}0,{_length(draw, *prompt)},{_length(draw, *answer)}")
    return rows


def _bunched(times: list[float], draw: random.Random) -> list[float]:
    """Some of the arrivals moved to one before them: a burst takes from what would have come apart."""
    leaders: list[float] = []
    for time in times:
        leaders.append(draw.choice(leaders[-3:]) if leaders and draw.random() < BURST else time)
    return leaders


def _length(draw: random.Random, median: float, spread: float, limits: tuple[int, int]) -> int:
    while not limits[0] <= (length := round(draw.lognormvariate(0, spread) * median)) <= limits[1]:
        continue
    return length


def main(path: Path = PATH) -> None:
    """Write the file."""
    files.replace_text(path, "\n".join(lines()) + "\n")
    print(path)


if __name__ == "__main__":
    main()
