"""What a draft costs and what it brings: what this lesson alone uses."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "charts": ["gains", "gains_summary", "steps", "steps_summary"],
        "explorables": ["turning_point"],
    },
)
