"""The `inflight` command: calls to the rooms, and nothing else."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs={"commands": ["app", "main"]})
