"""A deployment within its limits: what this lesson alone uses."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submodules=["rehearsal", "service"],
    submod_attrs={
        "charts": ["cost_against_service", "front_in_words", "service_against_load"],
        "rehearsal": ["Prices"],
        "stack": ["OwnClient", "prices_of"],
    },
)
