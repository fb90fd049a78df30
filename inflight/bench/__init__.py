"""Benchmarks: requests sent on a time line, one row a request; ratios measured in one run.

Reading order: `dataset`, `workload`, `load`, `openai`, `targets`, `report`, `turns`, `compare`, `quality`, `trace_run`.
"""

from inflight.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
