"""The rooms of the package: what their faces offer, and that lessons and Triton's models take from there only.

Which room may import which is import-linter's to hold (`make check`).
"""

import ast
import importlib
from types import ModuleType

import pytest

import inflight
from inflight.paths import PACKAGE
from tests.triton import backend_stand_ins

ROOMS = ("checkpoint", "engine", "models", "triton", "openai", "bench", "notebook")
LESSONS = sorted(path for name in ("lecture", "lab") for path in (PACKAGE / "lessons").glob(f"*/{name}.py"))
MODELS = sorted((PACKAGE / "triton" / "templates").glob("*/1/model.py"))


def tree(path):
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT  # a cell may await
    return compile(path.read_text(encoding="utf-8"), path, "exec", flags)


def imports(path):
    """Every (module, name, what the file calls it) that a file takes from the package; None for `import module`."""
    taken = []
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom):
            taken += [(node.module, alias.name, alias.asname or alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            taken += [(alias.name, None, None) for alias in node.names]
    return [each for each in taken if each[0].split(".")[0] == "inflight"]


def what_is_taken(module, name):
    """What `from module import name` gives: a module's own name, or a module in it."""
    found = importlib.import_module(module)
    return getattr(found, name) if hasattr(found, name) else importlib.import_module(f"{module}.{name}")


@pytest.mark.parametrize("room", ROOMS)
def test_a_face_lists_in_order_what_it_has(room):
    face = importlib.import_module(f"inflight.{room}")
    assert face.__all__ == sorted(face.__all__)
    missing = [name for name in face.__all__ if not hasattr(face, name)]
    assert not missing


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_lesson_takes_from_faces_only(path):
    offered = {f"inflight.{room}": importlib.import_module(f"inflight.{room}").__all__ for room in ROOMS}
    offered["inflight"] = [*inflight.__all__, "machine", *ROOMS]
    offered["inflight.lessons"] = [path.parent.name]
    faces = {f"inflight.lessons.{lesson.parent.name}" for lesson in LESSONS}
    offered |= {face: importlib.import_module(face).__all__ for face in faces}
    taken = imports(path)
    assert taken and [(module, name) for module, name, _ in taken if name not in offered.get(module, ())] == []


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_what_a_lesson_uses_of_a_module_is_there(path):
    """`engine.read` in a cell fails only when the cell runs, minutes later."""
    found = imports(path)
    taken = {called: what_is_taken(module, name) for module, name, called in found if name}
    nodes = list(ast.walk(tree(path)))
    assigned = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    modules = {name: value for name, value in taken.items() if isinstance(value, ModuleType) and name not in assigned}
    used = {
        (node.value.id, node.attr)
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules
    }
    assert [f"{name}.{attribute}" for name, attribute in used if not hasattr(modules[name], attribute)] == []


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.parent.parent.name)
def test_what_a_triton_model_takes_is_there(path):
    with backend_stand_ins.backend():
        for module, name, _ in imports(path):
            what_is_taken(module, name)
