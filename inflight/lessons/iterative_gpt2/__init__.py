"""In-flight batching with no LLM engine: what this lesson alone uses."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submodules=["gpt2_client"],
    submod_attrs={
        "dashboard": ["board"],
        "log": ["executions", "passes"],
        "charts": ["race", "race_summary"],
    },
)
