"""Why one user gets so little of the machine: what this lesson alone uses."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "charts": ["curve", "curve_summary"],
        "explorables": ["memory"],
        "products": ["KERNELS", "OnlyProducts", "operations"],
    },
)
