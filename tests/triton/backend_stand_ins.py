"""Stand-ins for the modules that only the process of a Triton model has; what takes them is imported anew each time."""

import contextlib
import sys
from collections.abc import Iterator
from types import ModuleType
from unittest.mock import MagicMock

import inflight.triton.model

TAKE_THEM = ("engine_model", "iterative", "python_model")  # of `inflight.triton.model`
BACKEND, IN_C = "triton_python_backend_utils", "c_python_backend_utils"


@contextlib.contextmanager
def backend(module: ModuleType | None = None) -> Iterator[None]:
    """Have `module`, or one that answers anything, for what Triton gives a model, until the block ends.

    Before and after it nobody has imported what takes the stand-ins: a module keeps those that it was imported with,
    and is found by its package's attribute too.
    """
    _forget()
    sys.modules |= {BACKEND: module or MagicMock(), IN_C: MagicMock()}
    try:
        yield
    finally:
        _forget()
        for name in (BACKEND, IN_C):
            del sys.modules[name]


def _forget() -> None:
    for name in TAKE_THEM:
        sys.modules.pop(f"inflight.triton.model.{name}", None)
        vars(inflight.triton.model).pop(name, None)
