"""Answers that a program can read: what this lesson alone uses."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, submod_attrs={"charts": ["guided_steps", "guided_steps_summary"]}
)
