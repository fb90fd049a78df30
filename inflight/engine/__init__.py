"""The engine: built from a checkpoint; requests in, tokens out, and a line of statistics an iteration.

Reading order: `settings` and `messages` (types), `scheduler` (who runs next), `kv_cache`, `sequences`, `executor` (the
loop), `model`, `openvino/runner`, `sampling`, `drafts`, `grammar`. Builds: `building`, `openvino`, `torch`. Learners'
own parts: `own`. Without weights: `simulate`, `fake_model`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "settings": ["BuildConfig", "ExecutorConfig"],
        "messages": ["Chunk", "Request"],
        "scheduler": ["Now", "Plan", "RequestView", "built_in", "tokens_to_compute"],
        "kv_cache": ["BlockManager"],
        "sequences": ["Sequence", "Sequences"],
        "model": ["load"],
        "building.folder": ["engine_version", "read"],
        "building.builder": ["build", "cached"],
        "executor": ["Executor"],
        "building.sizing": ["Sizing"],
    },
)
