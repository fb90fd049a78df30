"""How much a model that a learner wrote keeps, wherever it keeps it: what is over must be forgotten."""

from __future__ import annotations

from collections import deque
from types import ModuleType
from typing import Any


def kept(model: Any, module: ModuleType | dict | None = None) -> int:
    """Count what hangs on `model`, its class and its module: items of containers, attributes, bytes of tensors.

    What belongs to other packages, such as a network or a sender of responses, counts as one.
    """
    own = {kind.__module__ for kind in type(model).__mro__} - {"builtins"}
    of_module = module if isinstance(module, dict) else vars(module) if module else {}
    seen: set[int] = set()

    def inside(value: Any) -> int:
        if id(value) in seen or isinstance(value, type | ModuleType):
            return 0
        seen.add(id(value))
        if isinstance(value, dict):
            parts = [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple | set | frozenset | deque):
            parts = list(value)
        elif hasattr(value, "untyped_storage"):  # a tensor, or a view of one, which keeps the whole
            return value.untyped_storage().size()
        elif hasattr(value, "nbytes"):
            return value.nbytes
        elif type(value).__module__ in own:
            slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
            parts = [*getattr(value, "__dict__", {}).values(), *(getattr(value, name, None) for name in slots)]
        else:
            return 0
        return len(parts) + sum(map(inside, parts))

    of_classes = {name: value for kind in type(model).__mro__ for name, value in vars(kind).items()}
    roots = {name: value for name, value in (of_module | of_classes).items() if not name.startswith("__")}
    return inside(model) + sum(inside(value) for value in roots.values())
