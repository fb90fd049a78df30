"""Why the same answer feels fast or slow: what this lesson alone uses."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "charts": ["token_timeline", "token_timeline_summary"],
    },
)
