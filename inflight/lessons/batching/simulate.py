"""Works out on paper, before anything is measured, when requests of given lengths sit in which slot.

static = schedule([8, 8, 256, 16], slots=2, gpt_model_type="V1")
joining = schedule([8, 8, 256, 16], slots=2, gpt_model_type="inflight_fused_batching")
static["last"].max(), joining["last"].max()
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from inflight.engine.scheduler import built_in
from inflight.engine.settings import BuildConfig, ExecutorConfig
from inflight.engine.simulate import Iteration, SimulatedRequest, Simulation

if TYPE_CHECKING:
    import pandas as pd


def iterations(
    lengths: list[int], slots: int, gpt_model_type: str, arrivals: list[int] | None = None
) -> Iterator[Iteration]:
    """Play requests, numbered from 1: the engine's own scheduler decides, and the cache has room for all.

    Parameters
    ----------
    lengths : list of int
        Tokens of each answer. A request is computed in as many iterations: its prompt's gives the first token.
    slots : int
        The engine's `max_batch_size`.
    gpt_model_type : str
        "V1": a batch begins when every slot is free, and leaves together. Otherwise a slot is taken as it gets free.
    arrivals : list of int, optional
        Iterations before each request comes, in their order; by default all wait from the start.
    """
    requests = [SimulatedRequest(1, tokens, tokens, at) for tokens, at in zip(lengths, arrivals or [0] * len(lengths))]
    limits = BuildConfig(max_batch_size=slots)
    trial = Simulation(requests, num_blocks=slots * (1 + max(lengths) // limits.tokens_per_block), limits=limits)
    return trial.run(built_in(ExecutorConfig(gpt_model_type=gpt_model_type)))


def schedule(lengths: list[int], slots: int, gpt_model_type: str) -> pd.DataFrame:
    """Return the slots of requests that all wait from the start, as `telemetry.slots`; parameters as `iterations`."""
    played = iterations(lengths, slots, gpt_model_type)
    return slots_of([[sequence.id for sequence in iteration.chunks] for iteration in played])


def slots_of(computed: list[list[int]]) -> pd.DataFrame:
    """Return the slots, as `telemetry.slots`, from the requests that each iteration computes."""
    import pandas as pd

    from inflight.triton import telemetry

    log = pd.DataFrame({"requests": [[(request, 0, 1, 1) for request in row] for row in computed]})
    return telemetry.slots(log.assign(iteration=range(1, len(log) + 1), paused_ids=[[]] * len(log)))


def latencies(lengths: list[int], slots: int, gpt_model_type: str, arrivals: list[int]) -> list[int]:
    """Return for each request the iterations from its arrival until its answer leaves; parameters as `iterations`.

    An engine with nothing to do lets time pass.
    """
    took, held = [0] * len(lengths), []
    for iteration in iterations(lengths, slots, gpt_model_type, arrivals):
        held += iteration.finished
        running = len(iteration.running) + len(iteration.plan.admit) - len(iteration.finished)
        if gpt_model_type == "V1" and running:
            continue  # the answers of a batch leave together
        for number in held:
            took[number - 1] = iteration.number - arrivals[number - 1]
        held = []
    return took
