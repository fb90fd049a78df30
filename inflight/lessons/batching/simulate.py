"""Works out on paper, before anything is measured, when requests of given lengths sit in which slot.

static = schedule([8, 8, 256, 16], slots=2, gpt_model_type="V1")
joining = schedule([8, 8, 256, 16], slots=2, gpt_model_type="inflight_fused_batching")
len(static.iterations), len(joining.iterations)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from inflight.engine.scheduler import built_in
from inflight.engine.settings import BuildConfig, ExecutorConfig
from inflight.engine.simulate import SimulatedRequest, Simulation

if TYPE_CHECKING:
    import pandas as pd


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
    import pandas as pd

    is_static = gpt_model_type == "V1"
    taken_until, stays = [0] * slots, []  # of each slot, the last iteration of whoever had it latest
    for number, tokens in enumerate(lengths):
        if is_static and number % slots == 0:
            taken_until = [max(taken_until)] * slots
        slot = taken_until.index(min(taken_until))
        first = taken_until[slot] + 1
        taken_until[slot] += int(tokens)
        stays.append((slot + 1, first, taken_until[slot]))
    table = pd.DataFrame(stays, columns=["slot", "first", "last"]).rename_axis("request")
    table["answered"] = table.groupby("first")["last"].transform("max") if is_static else table["last"]
    first, last = table["first"].to_numpy(), table["last"].to_numpy()
    number = pd.RangeIndex(1, last.max() + 1, name="iteration")
    at = number.to_numpy()[:, None]
    counted = {"answers": ((first < at) & (at <= last)).sum(axis=1), "prompts": (first == at).sum(axis=1)}
    return Schedule(pd.DataFrame(counted, index=number), table)


def latencies(lengths: list[int], slots: int, gpt_model_type: str, arrivals: list[int]) -> list[int]:
    """Return for each request the iterations from its arrival until its answer leaves.

    The engine's own scheduler decides, and the cache has room for all. An engine with nothing to do lets time pass.

    Parameters
    ----------
    lengths, slots, gpt_model_type
        As in `schedule`.
    arrivals : list of int
        Iterations before each request comes, in their order.
    """
    requests = [SimulatedRequest(1, tokens, tokens, at) for tokens, at in zip(lengths, arrivals, strict=True)]
    limits = BuildConfig(max_batch_size=slots)
    trial = Simulation(requests, num_blocks=slots * (1 + max(lengths) // limits.tokens_per_block), limits=limits)
    took, held = [0] * len(lengths), []
    for iteration in trial.run(built_in(ExecutorConfig(gpt_model_type=gpt_model_type))):
        held += iteration.finished
        running = len(iteration.running) + len(iteration.plan.admit) - len(iteration.finished)
        if gpt_model_type == "V1" and running:
            continue  # the answers of a batch leave together
        for number in held:
            took[number - 1] = iteration.number - requests[number - 1].arrives
        held = []
    return took
