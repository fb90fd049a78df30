"""Checks of a lab: what an answer is, a grader's findings, the verdict, and what is kept of it.

Reading order: `graders` (how to write one), `findings`, `answers`, `checking`, `isolated`, `verdict`; `record`,
`parts`. What graders share: `simulate_scheduler`, `simulate_triton`.
"""

from inflight.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
