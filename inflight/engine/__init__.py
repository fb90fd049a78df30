"""The engine: built from a checkpoint; requests in, tokens out, and a line of statistics an iteration.

Reading order: `config` (types), `scheduler` (who runs next), `kv_cache`, `sequences`, `executor` (the loop),
`model`, `openvino/runner`, `sampling`, `drafts`, `grammar`. Builds: `sizing`, `builder`, `folder`, `openvino`, `torch`.
Learners' own parts: `own_part`, `own_scheduler`, `plan_rules`. Without weights: `play`, `fake_model`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "config": ["BuildConfig", "Chunk", "ExecutorConfig", "Request"],
        "scheduler": ["Now", "Plan", "RequestView", "built_in", "tokens_to_compute"],
        "kv_cache": ["BlockManager"],
        "sequences": ["Sequence", "Sequences"],
        "model": ["load"],
        "folder": ["engine_version", "read"],
        "builder": ["build", "cached"],
        "executor": ["Executor"],
        "sizing": ["Sizing"],
    },
)
