"""Who decides what goes into a batch: what this lesson alone uses."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submodules=["batch_run", "model_analyzer", "perf_analyzer"],
    submod_attrs={
        "dashboard": ["board"],
        "charts": ["batch_cost", "batches", "batches_summary", "queue_outcomes"],
        "explorables": ["delay"],
    },
)
