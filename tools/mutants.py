"""Faults that nobody chose: mutants of what matters most, drawn by a seed, and whether their room's tests see them.

    python -m tools.mutants 6 --seed 7 --room engine     # 6 of this room; without it, of each

A mutant is a copy of the course in which one comparison, sum, condition, number, return or call is another. If it
survives, a test is missing, or the program is the same, or nobody needs the line.
"""

import argparse
import ast
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

QUICK = ["-m", "not server and not browser and not slow"]
CORE = [
    f"tests/engine/test_{name}.py"
    for name in ("kv_cache", "scheduler", "sequences", "sampling", "simulate", "executor", "drafts", "moving")
]
BENCH = [
    f"tests/bench/test_{name}.py" for name in ("turns", "report", "open_loop", "workload", "quality", "compare", "load")
]
NO_RUNNER = ["-k", "not openvino and not torch"]  # a model without weights finds what the core does wrong
ROOMS = {  # room -> its modules in inflight/, and pytest's arguments; {topic} is a module's folder
    "engine": (["engine/scheduler", "engine/kv_cache", "engine/sequences", "engine/executor", "engine/sampling",
                "engine/limits", "engine/statistics"], [*CORE, *QUICK, *NO_RUNNER]),
    "drafts": (["engine/drafts"], ["tests/engine/test_drafts.py", *NO_RUNNER]),
    "grammar": (["engine/grammar"], ["tests/engine/test_grammar.py", *QUICK]),
    "request": (["triton/repository/request"], ["tests/triton/test_request.py", "tests/triton/test_contracts.py"]),
    "telemetry": (["triton/telemetry"], ["tests/triton/test_telemetry.py"]),
    "bench": (["bench/compare", "bench/load", "bench/quality", "bench/report", "bench/turns", "bench/workload"],
              [*BENCH, "-m", "not browser and not slow"]),
    "record": (["notebook/checks/record"],
               ["tests/notebook/checks/test_record.py", "tests/notebook/pages/test_progress.py"]),
    "workspace": (["notebook/pages/workspace"], ["tests/notebook/pages/test_workspace.py"]),
    "graders": (["lessons/*/grading"], ["tests/lessons/{topic}/test_lab.py", *QUICK]),
}  # fmt: skip
MOST_CPU_S = 300  # of each process of a run: one that never ends has them soon, and one on a busy machine has not
MOST_S = 1800  # of a run in all, for one that waits for ever
KILLED, SURVIVES, NEVER_ENDS = "killed", "survives", "never ends"
OTHER = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.Break: ast.Continue, ast.Continue: ast.Break,
}  # fmt: skip


def modules(room: str) -> list[Path]:
    return [path for module in ROOMS[room][0] for path in sorted(Path("inflight").glob(f"{module}.py"))]


def mutants(text: str) -> Iterator[tuple[ast.AST, str]]:
    """Yield each node of a module that can be another, and what stands there then."""
    tree = ast.parse(text)
    left_out = {part for node in ast.walk(tree) for whole in _decides_nothing(node) for part in ast.walk(whole)}
    for node in ast.walk(tree):
        if node not in left_out and (other := _other(node)):
            yield node, other


def _decides_nothing(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what is said of types, and to people: annotations, errors, the log, texts with values in them."""
    yield from filter(None, (getattr(node, name, None) for name in ("annotation", "returns")))
    is_text = isinstance(node, ast.Expr) and ast.unparse(node).startswith(("log.", "'", '"'))
    if is_text or isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr):
        yield node


def _other(node: ast.AST) -> str | None:
    match node:
        case ast.Compare(left, [first, *more], others):
            return f"({ast.unparse(ast.Compare(left, [OTHER[type(first)](), *more], others))})"
        case ast.BoolOp(op, values):
            return f"({ast.unparse(ast.BoolOp(OTHER[type(op)](), values))})"
        case ast.BinOp(left, op, right) if type(op) in OTHER:
            return f"({ast.unparse(ast.BinOp(left, OTHER[type(op)](), right))})"
        case ast.AugAssign(target, op, value) if type(op) in OTHER:
            return ast.unparse(ast.AugAssign(target, OTHER[type(op)](), value))
        case ast.UnaryOp(ast.Not(), operand):
            return f"({ast.unparse(operand)})"
        case ast.Constant(bool() as value):
            return str(not value)
        case ast.Constant(int() | float() as value):
            return str(value + 1)
        case ast.Return(ast.AST() as value) if ast.unparse(value) != "None":
            return "return None"
        case ast.Break() | ast.Continue():
            return OTHER[type(node)].__name__.lower()
        case ast.Expr(ast.Call()):
            return "pass"
    return None


def mutated(text: str, node: ast.AST, other: str) -> str:
    """Return the module's text with `other` in place of a node."""
    lines = [line.encode() for line in text.splitlines(keepends=True)]
    begin = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    end = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
    whole = b"".join(lines)
    return (whole[:begin] + other.encode() + whole[end:]).decode()


def arguments(room: str, path: Path) -> list[str]:
    """Return pytest's arguments for a mutant of a module: the tests of that module come first."""
    given = [argument.format(topic=path.parent.name) for argument in ROOMS[room][1]]
    return sorted(given, key=lambda argument: not argument.endswith(f"/test_{path.stem}.py"))


def outcome(course: Path, arguments: list[str]) -> str:
    """Run tests in a copy of the course; say whether one failed, or the run did not end, or the mutant survives."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(course)}
    limit = partial(resource.setrlimit, resource.RLIMIT_CPU, (MOST_CPU_S, MOST_CPU_S))
    try:
        ran = subprocess.run(
            command, cwd=course, env=environment, capture_output=True, timeout=MOST_S, preexec_fn=limit
        )
    except subprocess.TimeoutExpired:
        return NEVER_ENDS
    assert ran.returncode != pytest.ExitCode.NO_TESTS_COLLECTED, arguments
    if ran.returncode in (-signal.SIGKILL, -signal.SIGXCPU):
        return NEVER_ENDS
    return SURVIVES if ran.returncode == pytest.ExitCode.OK else KILLED


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("number", type=int)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--room", choices=ROOMS)
    asked = parser.parse_args()
    draw, drawn = random.Random(asked.seed), []
    for room in [asked.room] if asked.room else ROOMS:
        found = [(room, path, *each) for path in modules(room) for each in mutants(path.read_text(encoding="utf-8"))]
        drawn += draw.sample(found, min(asked.number, len(found)))
    counts: Counter = Counter()
    with tempfile.TemporaryDirectory() as folder:
        course = Path(folder) / "course"
        for name in subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout.splitlines():
            if Path(name).exists():
                (course / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(name, course / name)
        for (room, of), path in {(room, path.parent): path for room, path, *_ in drawn}.items():
            how = outcome(course, arguments(room, path))
            assert how == SURVIVES, f"{room}, {of}: its tests fail without a mutant"
        for room, path, node, other in drawn:
            text = path.read_text(encoding="utf-8")
            (course / path).write_text(mutated(text, node, other), encoding="utf-8")
            how = outcome(course, arguments(room, path))
            counts[room, "drawn"] += 1
            counts[room, "killed"] += how != SURVIVES
            if how != KILLED:
                print(f"{path}:{node.lineno}: {ast.get_source_segment(text, node)}  ->  {other}: {how}", flush=True)
            (course / path).write_text(text, encoding="utf-8")
    for room in dict.fromkeys(room for room, *_ in drawn):
        print(f"{room:10} {counts[room, 'drawn']:4} drawn, {counts[room, 'killed']:4} killed")


if __name__ == "__main__":
    main()
