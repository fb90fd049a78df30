"""Counts what a scheduler's plans do on an engine without a model, next to the course's and to one request at a time.

trials = [Simulation(requests, num_blocks=32, limits=BuildConfig())]
compared = beside("scheduler.py", trials, GuaranteedNoEvict(), {"pauses": "Promise for the longest answer."})
compared.own.pauses, compared.course.pauses, compared.nothing.pauses
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from inflight.engine.own.part import PartError
from inflight.engine.own.plan_rules import COMPUTED_NOTHING
from inflight.engine.own.scheduler import OwnScheduler
from inflight.engine.scheduler import Now, Plan, Scheduler, tokens_to_compute
from inflight.engine.simulate import Simulation
from inflight.notebook.checks.findings import Compared


class OneAtATime:
    """The scheduler that does the least: it runs the oldest request alone."""

    def schedule(self, now: Now) -> Plan:
        first = [*now.running, *now.waiting][:1]
        admit = [] if now.running else [request.id for request in first]
        return Plan(admit=admit, compute=tokens_to_compute(now, first))


@dataclass
class Counts:
    """Counts of all trials together."""

    iterations: int = 0  # `iterations`, `twice` and `pauses` as in `simulate.SchedulerCounts`
    twice: int = 0
    pauses: int = 0
    p99: int = 0  # of the latencies of all requests, in iterations
    joined: int = 0  # requests that started while others ran
    overtaken: int = 0  # requests that waited while one that came later started
    passed_over: int = 0  # requests let in for the first time while somebody who was paused waited on
    empty_slots: int = 0  # slots that computed nothing while requests waited, over all iterations


class _Watched:
    """Wraps a scheduler, and notes whether it has let anybody in."""

    def __init__(self, scheduler: Scheduler):
        self._scheduler, self.has_admitted = scheduler, False

    def __getattr__(self, name: str):
        return getattr(self._scheduler, name)

    def schedule(self, now: Now) -> Plan:
        plan = self._scheduler.schedule(now)
        self.has_admitted = self.has_admitted or (isinstance(plan, Plan) and bool(plan.admit))
        return plan


def beside(path: str | Path, trials: Sequence[Simulation], course: Scheduler, advice: Mapping[str, str]) -> Compared:
    """Return the `Counts` of the scheduler in a file, with those of the course's and of one request at a time."""
    own, courses, nothing = (counted(each, trials) for each in (OwnScheduler(path), course, OneAtATime()))
    return Compared(own, courses, nothing, advice, "one at a time")


def counted(scheduler: Scheduler, trials: Sequence[Simulation]) -> Counts:
    """Play the trials one after the other, and count.

    Raises
    ------
    NotImplementedError
        It starts nobody at all.
    PartError
        It breaks a rule, fails, or does not come to an end.
    """
    counts, latencies = Counts(), []
    watched = _Watched(scheduler)
    for trial in trials:
        try:
            iterations = list(trial.run(watched))
        except PartError as error:
            if error.code == COMPUTED_NOTHING and not watched.has_admitted:
                raise NotImplementedError from error
            raise
        played = trial.counts(iterations)
        counts.iterations += played.iterations
        counts.twice += played.twice
        counts.pauses += played.pauses
        latencies += played.latencies
        for each in iterations:
            admitted, paused, waiting = set(each.plan.admit), set(each.paused), each.waiting
            places = [place for place, number in enumerate(waiting) if number in admitted]
            counts.joined += len(places) if each.running else 0
            counts.overtaken += places[-1] + 1 - len(places) if places else 0
            counts.passed_over += len(admitted - paused) if paused - admitted else 0
            if len(places) < len(waiting):
                counts.empty_slots += trial.limits.max_batch_size - len(each.plan.compute)
    counts.p99 = sorted(latencies)[math.ceil(0.99 * (len(latencies) - 1))]
    return counts
