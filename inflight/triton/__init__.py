"""Triton: a model repository from templates, a server of it, a client, and what the server tells of itself."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submodules=["repository", "telemetry"],
    submod_attrs={
        "serving.server": ["Server"],
        "client.client": ["Client"],
        "repository": ["GPT2", "batchers"],
    },
)
