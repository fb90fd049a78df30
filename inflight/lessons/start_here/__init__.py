"""What happens between Enter and the first word: what this lesson alone uses."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submodules=["request_path"],
    submod_attrs={
        "charts": ["request_map", "request_map_summary"],
    },
)
