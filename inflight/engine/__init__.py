"""The engine: built from a checkpoint; requests in, tokens out, and a line of statistics an iteration.

Reading order: `config`, `scheduler`, `kv_cache`, `sampling`, `executor`, then the runners.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submodules=["trtllm_commands"],
    submod_attrs={
        "builder": ["BuildConfig", "EngineInfo", "build", "cached", "cpu_has_bfloat16", "engine_version", "read"],
        "executor": [
            "BATCHING_TYPES",
            "POLICIES",
            "Executor",
            "ExecutorConfig",
            "IterationStats",
            "Request",
            "Response",
        ],
        "sampling": ["SamplingConfig"],
        "sizing": ["Sizing"],
        "prediction": ["IterationCost", "iteration_cost", "schedule"],
    },
)
