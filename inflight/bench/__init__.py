"""Benchmarks: requests sent on a time line, one row a request; ratios measured in one run.

Reading order: `dataset`, `workload`, `senders`, `load`, `targets`, `report`, `trace_run`; for ratios `turns`,
`compare`, `quality`.
"""

from inflight.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
