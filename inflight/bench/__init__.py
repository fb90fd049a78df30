"""Benchmarks: requests sent on a time line, one row a request; ratios measured in one run."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submodules=[
        # In the order in which to read them.
        "dataset",
        "workload",
        "load",
        "openai",
        "targets",
        "report",
        "turns",
        "compare",
        "quality",
        "trace_run",
    ],
)
