"""Who sits when: what batching does to given answer lengths, worked out on paper before anything is measured.

    static = schedule([8, 8, 256, 16], slots=2, gpt_model_type="V1")
    joining = schedule([8, 8, 256, 16], slots=2, gpt_model_type="inflight_fused_batching")
    len(static.iterations), len(joining.iterations)
    iteration_cost(log).seconds(static, prompt_tokens=40)

Lengths alone give the number of iterations. Time needs one thing more: what an iteration costs with so many answers and
so many prompt tokens in it, which `iteration_cost` reads from an iteration log.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass

import pandas as pd

from inflight.engine.config import BuildConfig, ExecutorConfig
from inflight.engine.play import Trial, TrialRequest
from inflight.engine.scheduler import built_in
from inflight.errors import CourseError


@dataclass(frozen=True)
class Schedule:
    """Every iteration of a trace.

    Attributes
    ----------
    iterations : DataFrame
        One row an iteration: `answers`, slots that get one more token of an answer; `prompts`, slots whose prompt is
        computed, which gives their first token.
    stays : DataFrame
        One row a request: `slot` (from 1), `first` and `last` iteration in which it is computed (from 1), and
        `answered`, the iteration after which its answer leaves.
    """

    iterations: pd.DataFrame
    stays: pd.DataFrame

    @property
    def occupancy(self) -> float:
        """Share of all slots in all iterations that computed something."""
        busy = (self.stays["last"] - self.stays["first"] + 1).sum()
        return busy / (len(self.iterations) * self.stays["slot"].max())


def schedule(lengths: list[int], slots: int, gpt_model_type: str) -> Schedule:
    """Give slots to requests that all wait from the start, in their order.

    Parameters
    ----------
    lengths : list of int
        Tokens of each answer. A request is computed in as many iterations: its prompt's gives the first token.
    slots : int
        The engine's `max_batch_size`.
    gpt_model_type : str
        "V1": a batch begins when every slot is free, and leaves together. Otherwise a slot is taken as it gets free.
    """
    limits = BuildConfig(max_batch_size=slots, max_num_tokens=max(slots, BuildConfig.max_num_tokens))
    asked = [TrialRequest(1, int(tokens), int(tokens), 0) for tokens in lengths]
    enough = sum(-(-one.answer_tokens // limits.tokens_per_block) + 1 for one in asked)  # blocks
    scheduler = built_in(ExecutorConfig(gpt_model_type=gpt_model_type))
    free, stays = list(range(1, slots + 1)), {}
    for iteration in Trial(asked, enough, limits).play(scheduler, leaps=True):
        for number in iteration.plan.admit:
            stays[number - 1] = [free.pop(0), iteration.number, 0]
        for number in iteration.finished:
            stays[number - 1][2] = iteration.number + iteration.repeats - 1
            insort(free, stays[number - 1][0])
    table = pd.DataFrame.from_dict(stays, orient="index", columns=["slot", "first", "last"]).rename_axis("request")
    is_static = getattr(scheduler, "answers_together", False)
    table["answered"] = table.groupby("first")["last"].transform("max") if is_static else table["last"]
    first, last = table["first"].to_numpy(), table["last"].to_numpy()
    number = pd.RangeIndex(1, last.max() + 1, name="iteration")
    at = number.to_numpy()[:, None]
    counted = {"answers": ((first < at) & (at <= last)).sum(axis=1), "prompts": (first == at).sum(axis=1)}
    return Schedule(pd.DataFrame(counted, index=number), table)


@dataclass(frozen=True)
class IterationCost:
    """Milliseconds of an iteration.

    Attributes
    ----------
    answers_ms : Series
        By the number of answers in it, from 0 on; prompts apart.
    prompt_token_ms : float
        For each token of a prompt that is computed in it.
    """

    answers_ms: pd.Series
    prompt_token_ms: float

    def milliseconds(self, plan: Schedule, prompt_tokens: float) -> pd.Series:
        """Each iteration of `plan`, with prompts of `prompt_tokens` tokens."""
        rows = plan.iterations
        return rows["answers"].map(self.answers_ms) + rows["prompts"] * prompt_tokens * self.prompt_token_ms

    def seconds(self, plan: Schedule, prompt_tokens: float) -> float:
        """The whole of `plan`."""
        return self.milliseconds(plan, prompt_tokens).sum() / 1000


def iteration_cost(log: pd.DataFrame) -> IterationCost:
    """What iterations cost, from an iteration log (`telemetry.iterations`).

    Every number of answers up to the largest must be there with no prompt beside it, as in a run of 1, 2, … requests
    at once. Medians, so that a single slow iteration does not count.

    Raises
    ------
    CourseError
        The log lacks a number of answers, or prompts.
    """
    answers = log["requests"].map(lambda rows: sum(row[2] > 0 for row in rows))
    # From one start to the next: what lies between two iterations is part of their cost.
    lasted = (log["timestamp"].shift(-1) - log["timestamp"]) * 1000
    lasted = lasted.where(log["finished"] == 0, log["iteration_ms"])  # after a request has left, the engine may be idle
    pure = log["context_tokens"] == 0
    cost = lasted[pure].groupby(answers[pure]).median()
    missing = sorted(set(range(1, int(answers.max() if len(log) else 0) + 1)) - set(cost.index))
    if missing or pure.all():
        lack = f"iterations with {missing[0]} answers and no prompt" if missing else "prompts"
        raise CourseError(
            f"The iteration log has no {lack}: run 1, 2, ... requests at once, each of 16 tokens or more."
        )
    cost[0] = 0.0
    beyond = (lasted - answers.map(cost))[~pure]
    return IterationCost(cost.sort_index(), float((beyond / log["context_tokens"][~pure]).median()))
