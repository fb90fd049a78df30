"""Checks of a lab: what an answer is, a grader's findings, the verdict, and what is kept of it.

Reading order: `grading` (how to write a grader), `findings`, `answers`, `isolated`, `verdict`; `record`, `parts`. What
graders share: `simulate_scheduler`, `simulate_triton`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
