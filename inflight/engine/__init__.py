"""The engine: built from a checkpoint; requests in, tokens out, and a line of statistics an iteration.

Reading order: `settings` and `messages` (types), `scheduler` (who runs next), `kv_cache`, `sequences`, `executor` (the
loop), `model`, `openvino/runner`, `sampling`, `drafts`, `grammar`. Builds: `building`, `openvino`, `torch`. Learners'
own parts: `own`. Without weights: `simulate`, `fake_model`.
"""

from inflight.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
