"""Several servers behind one address: what this lesson alone uses."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submodules=["load", "watching", "simulate"],
    submod_attrs={
        "service": ["Replicas"],
        "charts": ["lanes", "lanes_summary", "watched", "watched_summary"],
    },
)
