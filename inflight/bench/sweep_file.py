"""The results of a sweep in a file that is whole after every round: what was interrupted is taken up there.

    kept = open_file(Path("sweep.json"), settings, resume=True)
    kept.add(figures)

Without a path the same, in memory alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from inflight import schemas
from inflight.bench import report
from inflight.errors import CourseError
from inflight.schemas import Schema

MOST_BYTES = 1 << 26
FIX = "Name the results file of a sweep, or a new one without --resume."


class Cost(Schema):
    """What iterations cost: milliseconds by the number of answers, from 0 on, and for each token of a prompt."""

    answers_ms: Annotated[list[float], Field(min_length=2)]
    prompt_token_ms: float


class Round(Schema):
    """One round at one rate: its figures by name; if it ended early, why, and the requests answered until then."""

    rate: Annotated[float, Field(gt=0)]
    round: Annotated[int, Field(ge=1)]
    stopped: str
    figures: dict[str, float | None]
    answered: tuple[dict[str, float | str | None], ...] = ()  # columns as `load_generator.Run.requests`


class Content(Schema):
    """What the file holds."""

    sweep: Annotated[int, Field(ge=1, le=1)]  # the layout
    settings: dict[str, Any]
    warm_up_requests: int | None
    base_per_s: float | None
    costs: list[Cost]
    rounds: list[Round]


@dataclass
class SweepFile:
    """What is known of a sweep so far.

    Attributes
    ----------
    settings : dict
        What the sweep was asked for.
    warm_up_requests : int or None
        How many requests went before it.
    base_per_s : float or None
        Requests a second that the rates are shares of.
    costs : list of Cost
        Of the calibrations before and after.
    rounds : list of Round
    """

    path: Path | None
    settings: dict
    warm_up_requests: int | None = None
    base_per_s: float | None = None
    costs: list[Cost] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)

    def whole(self, rate: float) -> list[Round]:
        """The rounds at a rate that did not end early."""
        return [each for each in self.rounds if each.rate == rate and not each.stopped]

    @property
    def rates(self) -> list[float]:
        """The rates that there is a whole round of, in their order."""
        return sorted({each.rate for each in self.rounds if not each.stopped})

    def add(self, one: Round) -> None:
        """Keep a round; one that ended early makes way for the same when it is measured again."""
        same = [each for each in self.rounds if (each.rate, each.round) == (one.rate, one.round)]
        self.rounds = [each for each in self.rounds if each not in same] + [one]
        self.save()

    def save(self) -> None:
        """Write the file, if there is one: beside it at first, then renamed."""
        if self.path is not None:
            content = Content(
                sweep=1,
                settings=self.settings,
                warm_up_requests=self.warm_up_requests,
                base_per_s=self.base_per_s,
                costs=self.costs,
                rounds=self.rounds,
            )
            report.write(self.path, content.model_dump_json(indent=1) + "\n")


def open_file(path: Path | None, settings: dict, resume: bool) -> SweepFile:
    """A new file for a sweep with `settings`, or the one that is there, to be gone on with.

    Raises
    ------
    CourseError
        There is one already and `resume` is false, there is none and it is true, it is no such file, it was asked for
        with other settings, or it cannot be written.
    """
    if path is None:
        if resume:
            raise CourseError("--resume goes on with a results file: name it with --results.")
        return SweepFile(None, settings)
    report.check_writable(path)
    if not resume:
        if path.exists():
            raise CourseError(f"{path} is there already: add --resume to go on with it, or name another file.")
        return SweepFile(path, settings)
    if not path.exists():
        raise CourseError(f"There is no results file {path} to go on with: leave out --resume, or check the name.")
    found = schemas.read(Content, path, "results file", FIX, MOST_BYTES)
    wanted = json.loads(json.dumps(settings))
    for name in dict.fromkeys([*wanted, *found.settings]):
        before, now = found.settings.get(name), wanted.get(name)
        if before != now:
            raise CourseError(
                f"{path} is of a sweep with {name} {before!r}, and this one has {now!r}: give the same options to go "
                "on with it, or name another file."
            )
    return SweepFile(path, settings, found.warm_up_requests, found.base_per_s, [*found.costs], [*found.rounds])
