"""The face of a package: its public names, each imported when it is first used.

    __getattr__, __dir__, __all__ = face(__name__, __file__)

The names stand in `__init__.pyi`, where mypy and editors read them too. Here is the standard library alone, so that the
engine's scheduler can be imported where nothing is installed.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def face(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package.

    Parameters
    ----------
    package, file : str
        Its `__name__` and `__file__`.
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    homes: dict[str, str] = {}  # name -> the module it is taken from; "" for a module of the package itself
    for line in stub.body:
        if isinstance(line, ast.ImportFrom):
            homes |= {each.asname or each.name: line.module or "" for each in line.names}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if not homes[name]:
            return import_module(f"{package}.{name}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    names = sorted(homes)
    return get, lambda: names, names
