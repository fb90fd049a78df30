"""The engine: built from a checkpoint; requests in, tokens out, and a line of statistics an iteration.

Reading order: `scheduler` (who runs next), `kv_cache`, `sequences`, `executor` (the loop), `openvino/runner`,
`sampling`, `drafts`; their vocabulary is `config`. `play` runs them without a model, `own_scheduler` brings in a
learner's. How one is made and run on a CPU: `builder`, `openvino/`; on a GPU: `torch/`. The tests have a `fake_model`.
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
