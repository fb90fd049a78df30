"""Loads a learner's scheduler from the Python file that `scheduler_path` names.

    scheduler = accepted(ExecutorConfig(scheduler_path="my_scheduler.py"), BuildConfig())
    plan = scheduler.schedule(now)

It plays a trial before it serves. If it fails or breaks a rule, it is refused, in a sentence with file and line.
"""

from __future__ import annotations

import contextlib
import random
from dataclasses import replace
from operator import index
from pathlib import Path
from typing import cast

from inflight.engine.own.part import OwnPart
from inflight.engine.own.plan_rules import SchedulerError
from inflight.engine.scheduler import Now, Plan
from inflight.engine.settings import BuildConfig, ExecutorConfig
from inflight.engine.simulate import SimulatedRequest, Simulation


class OwnScheduler:
    """The scheduler that a file defines; see `inflight.engine.scheduler.Scheduler`.

    Parameters
    ----------
    path : path
        Defines a class `Scheduler` with a method `schedule(now)`.

    Attributes
    ----------
    place : str
        File and line of `def schedule`, as a message names them.
    answers_together : bool

    Raises
    ------
    PartError
        The file cannot be read or run, or has no such class; with file and line.
    """

    def __init__(self, path: str | Path):
        self._part = OwnPart(path, "Scheduler", "schedule", "self, now")
        self.place = self._part.place
        self._scheduler = self._part.call(self._part.made)
        self.answers_together = bool(getattr(self._scheduler, "answers_together", False))

    def schedule(self, now: Now) -> Plan:
        """Ask for a plan. Raises PartError when it raised, or gave something else."""
        # It gets copies of the lists, and may change them.
        now = replace(now, waiting=list(now.waiting), running=list(now.running), paused=list(now.paused))
        plan = self._part.call(self._scheduler.schedule, now)
        if isinstance(plan, Plan):
            with contextlib.suppress(TypeError, ValueError):
                compute = {index(request): index(tokens) for request, tokens in dict(plan.compute).items()}
                return Plan(list(map(index, plan.admit)), compute, list(map(index, plan.pause)))
            raise SchedulerError(
                f"{self.place}: schedule() gave a plan that is not made of request ids and numbers of tokens."
            )
        return cast(Plan, plan)  # no plan; `plan_rules` refuses it


# On trial -------------------------------------------------------------------------------------------------------------


def accepted(config: ExecutorConfig, limits: BuildConfig) -> OwnScheduler:
    """Return the scheduler that `config.scheduler_path` names, after its trial.

    Raises
    ------
    PartError
        It failed or broke a rule.
    """
    assert config.scheduler_path is not None
    for _ in _first_trial(config, limits).run(OwnScheduler(config.scheduler_path)):
        pass
    return OwnScheduler(config.scheduler_path)  # which has seen no request yet


def _first_trial(config: ExecutorConfig, limits: BuildConfig) -> Simulation:
    """Make twice as many requests as run at once, of many lengths; the second half comes while the first is served."""
    draw = random.Random(5)
    requests: list[SimulatedRequest] = []
    number = 2 * limits.max_batch_size + 3
    for place in range(number):
        prompt = draw.randint(1, min(limits.max_input_len, 4 * limits.tokens_per_block))
        answer = min(draw.randint(1, 40), limits.max_seq_len - prompt)
        requests.append(SimulatedRequest(prompt, answer, answer, max(0, 2 * (place - number // 2) + 1)))
    return Simulation(
        requests, config.num_blocks(limits), limits, config.enable_chunked_context, config.enable_kv_cache_reuse
    )
