"""Pictures of arithmetic: a slider redraws them at once, without a server or a run; measured points join them later.

    on_paper = explorables.delay(workload.poisson(40, rate=1, seed=0), fixed_ms=40, item_ms=4)
    on_paper                                                # sliders, picture, a sentence with its figures
    on_paper.measured(sweep, rate=30, max_batch_size=8)     # after the run

One module a lesson, as with `charts`; `explorable` is what all have in common.
"""

from inflight.notebook.explorables.batchers import delay
from inflight.notebook.explorables.batching import slots_on_paper
from inflight.notebook.explorables.engine import memory
from inflight.notebook.explorables.explorable import Explorable
from inflight.notebook.explorables.kv_cache import policies_on_paper, replay

__all__ = ["Explorable", "delay", "memory", "policies_on_paper", "replay", "slots_on_paper"]
