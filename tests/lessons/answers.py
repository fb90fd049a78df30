"""How a lab's table of answers is written: what a learner hands in, the verdict, and the words that they get.

A table is `tests/lessons/<topic>/test_lab.py`; `table.py` checks every row of it on the hidden cases of one seed:

    ANSWERS = [
        *of_the_lab("kv_cache", {"5.1": "cap", "5.2": "in_parts.py"}),         # the solution: done; the blank: not yet
        Answer("5.1", "in NumPy", in_numpy),                                   # another right way: done
        Answer("5.1", "rounded apart", rounded_apart, "wrong", "then round"),  # a wrong idea, and what it is told
        Answer("5.2", "129", File(bounded(129)), "wrong", "where at most 128"),
        Answer("3.4", "counted", Made(lambda request, folder: (calls, server_of(request))), marks=[SERVER]),
    ]

Each exercise has its solution, a right answer of another form, and wrong ones. Each figure with a budget, at most or at
least, has an answer just inside and one just outside; where nobody can land there, `FAR_FROM_BUDGET` says why.
"""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from inflight import syllabus
from tools import lessons

SERVER, SLOW = pytest.mark.server, pytest.mark.slow


@dataclass(frozen=True)
class File:
    """The text of a file that the answer is the path of."""

    text: str
    name: str = "answer.py"


@dataclass(frozen=True)
class Made:
    """What makes the answer, from pytest's request and an empty folder: `request.getfixturevalue("lab_server")`."""

    make: Callable[[pytest.FixtureRequest, Path], object]


@dataclass(frozen=True, eq=False)
class Answer:
    """A row of a table.

    Attributes
    ----------
    exercise, name : str
    answer : object
        As `check` takes it; or a `File`, or `Made`.
    status : str
        "done", "partly", "wrong" or "not done yet".
    says : str
        Words of the verdict, as it prints itself.
    marks : list
    """

    exercise: str
    name: str
    answer: object
    status: str = "done"
    says: str = ""
    marks: list = field(default_factory=list)


def of_the_lab(topic: str, answers: dict[str, str]) -> Iterator[Answer]:
    """For each exercise the solution, which is done, and what the lab hands out, which is not done yet.

    Parameters
    ----------
    topic : str
        The lesson's folder.
    answers : dict of str to str
        By exercise, the name of a file that a cell writes, or an expression over what the cells define.
    """
    for exercise, what in answers.items():
        for kind, name, status in (("solutions", "the solution", "done"), ("labs", "as handed out", "not done yet")):
            is_file = what.endswith((".py", ".c"))
            answer = File(written(topic, kind, what), what) if is_file else defined(topic, kind, what)
            yield Answer(exercise, name, answer, status)


def written(topic: str, kind: str, name: str) -> str:
    """What a cell of the lab ("labs") or its solution ("solutions") writes into the file `name`."""
    [text] = [source for first, source in map(_split, _cells(topic, kind)) if first.endswith(f"/{name}")]
    return text


def defined(topic: str, kind: str, expression: str) -> object:
    """The value of an expression over functions and variables that cells define."""
    wanted = {node.id for node in ast.walk(ast.parse(expression)) if isinstance(node, ast.Name)}
    space: dict[str, object] = {}
    for source in _cells(topic, kind):
        if not source.startswith("%"):
            nodes = [node for node in ast.parse(source).body if _defines(node, wanted)]
            exec(compile(ast.Module(nodes, []), f"<{topic}>", "exec"), space)
    return eval(expression, space)


def text_of(topic: str, kind: str, function: str) -> str:
    """The text of a function that a cell defines."""
    for source in _cells(topic, kind):
        for node in ast.parse(source).body if not source.startswith("%") else ():
            if isinstance(node, ast.FunctionDef) and node.name == function:
                return ast.get_source_segment(source, node) or ""
    raise LookupError(function)


def _defines(node: ast.stmt, wanted: set[str]) -> bool:
    if isinstance(node, ast.Assign):
        return bool(
            wanted & {one.id for target in node.targets for one in ast.walk(target) if isinstance(one, ast.Name)}
        )
    return isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef)


@cache
def _cells(topic: str, kind: str) -> list[str]:
    [lesson] = [lesson for lesson in syllabus.read() if lesson.topic == topic]
    return [cell.source for cell in lessons.source(lesson, kind).cells if cell.cell_type == "code"]


def _split(source: str) -> tuple[str, str]:
    first, _, text = source.partition("\n")
    return (first, f"{text}\n") if first.startswith("%%writefile") else ("", "")


def replaced(text: str, *pairs: tuple[str, str]) -> str:
    """A text with each first of a pair, which stands in it, replaced by the second."""
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new)
    return text


def handed_in(answer: Answer, request: pytest.FixtureRequest, folder: Path) -> object:
    """What `check` is given for this row."""
    if isinstance(answer.answer, File):
        path = folder / answer.answer.name
        path.write_text(answer.answer.text, encoding="utf-8")
        return path
    return answer.answer.make(request, folder) if isinstance(answer.answer, Made) else answer.answer
