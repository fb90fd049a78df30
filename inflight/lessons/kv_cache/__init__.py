"""What becomes of requests when the cache is full: what this lesson alone uses."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submodules=["promised_blocks"],
    submod_attrs={
        "dashboard": ["board"],
        "charts": ["block_tables", "iterations_around", "kv_blocks", "kv_blocks_summary"],
    },
)
