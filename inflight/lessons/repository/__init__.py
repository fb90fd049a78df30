"""What Triton loads, and what flows where: what this lesson alone uses."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "by_hand": ["tritonserver"],
        "charts": ["nets", "nets_summary"],
        "grading": ["broken_repositories"],
    },
)
