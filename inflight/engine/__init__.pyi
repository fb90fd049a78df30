from .building.builder import build, cached
from .building.sizing import Sizing
from .executor import Executor
from .folder import engine_version, read
from .kv_cache import BlockManager
from .messages import Chunk, Request
from .model import load
from .scheduler import GuaranteedNoEvict, Now, Plan, RequestView, built_in, tokens_to_compute
from .sequences import Sequence, Sequences
from .settings import BuildConfig, ExecutorConfig

__all__ = [
    "BlockManager",
    "BuildConfig",
    "Chunk",
    "Executor",
    "ExecutorConfig",
    "GuaranteedNoEvict",
    "Now",
    "Plan",
    "Request",
    "RequestView",
    "Sequence",
    "Sequences",
    "Sizing",
    "build",
    "built_in",
    "cached",
    "engine_version",
    "load",
    "read",
    "tokens_to_compute",
]
