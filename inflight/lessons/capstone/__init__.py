"""A deployment within its limits: what this lesson alone uses."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submodules=["rehearsal", "service", "tuning_board"],
    submod_attrs={
        "charts": ["in_words", "requests_in_time"],
    },
)
