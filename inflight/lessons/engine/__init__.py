"""What an engine has that a checkpoint has not: what this lesson alone uses."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "build_options": ["BuildOptions"],
        "charts": ["builds", "builds_summary", "engine_bytes", "engine_bytes_summary", "layer", "layer_summary"],
        "explorables": ["memory"],
        "flags": ["build_flags"],
    },
)
