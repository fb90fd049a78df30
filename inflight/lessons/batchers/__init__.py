"""Who decides what goes into a batch: what this lesson alone uses."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submodules=["batch_run", "custom_batching"],
    submod_attrs={
        "dashboard": ["board"],
        "performance_analyzer": ["perf_analyzer"],
        "charts": ["batches", "batches_summary"],
    },
)
