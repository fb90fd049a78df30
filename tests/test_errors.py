"""A CourseError has its facts in fields: its sentence is for people, and nothing in the package reads one out of it."""

import ast
from collections.abc import Collection, Iterator

import pytest

from inflight.errors import CourseError
from inflight.paths import PACKAGE

MODULES = [path for path in PACKAGE.rglob("*.py") if path.name not in ("lecture.py", "lab.py")]
OURS = {"CourseError", "ServerGone", "NoAnswer", "Refused", "PartError", "SchedulerError", "OpenAIError"}
TEXTS = {"what", "fix", "sentence", "message", "args"}
READS = {"partition", "rpartition", "split", "splitlines", "startswith", "endswith", "removeprefix", "find", "index"}


def names(node: ast.expr | None) -> set[str]:
    return set() if node is None else {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def holders(tree: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """What stands for one of our errors, and where: a handler catches it, a function is given it, or a reply has it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and node.name and names(node.type) & OURS:
            yield node.name, node
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for argument in node.args.args:
                if names(argument.annotation) & OURS:
                    yield argument.arg, node
            yield from {(ast.unparse(each), node) for each in ast.walk(node) if getattr(each, "attr", "") == "error"}


def is_text_of(error: str, node: ast.AST, copies: Collection[str] = ()) -> bool:
    for each in ast.walk(node):
        match each:
            case ast.Name(id=given) if given in copies:
                return True
            case ast.Call(func=ast.Name(id="str"), args=[given]) if error in map(ast.unparse, ast.walk(given)):
                return True
            case ast.Attribute(value=given, attr=attribute) if attribute in TEXTS and ast.unparse(given) == error:
                return True
    return False


def readings(source: str) -> list[str]:
    found = []
    for error, where in holders(ast.parse(source)):
        made = [node for node in ast.walk(where) if isinstance(node, ast.Assign) and is_text_of(error, node.value)]
        copies = {ast.unparse(target) for node in made for target in node.targets}
        for node in ast.walk(where):
            match node:
                case ast.Compare(left=left, comparators=texts) if any(
                    is_text_of(error, each, copies) for each in (left, *texts)
                ):
                    found.append(ast.unparse(node))
                case ast.Call(func=ast.Attribute(value=text, attr=attribute)) if attribute in READS:
                    found += [ast.unparse(node)] * is_text_of(error, text, copies)
                case ast.Call(func=ast.Attribute(value=ast.Name(id="re")), args=texts):
                    found += [ast.unparse(node)] * any(is_text_of(error, each, copies) for each in texts)
    return found


@pytest.mark.parametrize(
    "line",
    [
        '"no answer" in str(error)',
        'str(error).partition(". ")',
        're.search("line", error.what)',
        'error.what == "None."',
    ],
)
def test_a_reading_is_seen(line):
    handler = f"try:\n    ask()\nexcept (OSError, CourseError) as error:\n    told = {line}\n"
    given = f"def status(error: Refused):\n    return {line}\n"
    assert readings(handler) and readings(given)


def test_a_reading_is_seen_of_a_replys_error_and_by_another_name():
    source = "def asked(reply):\n    message = str(reply.error or '')\n    return {}\n"
    assert readings(source.format("message not in ('', 'None.')")) and not readings(source.format("message"))


def test_nothing_reads_a_sentence_of_ours():
    found = {str(path.relative_to(PACKAGE)): readings(path.read_text(encoding="utf-8")) for path in MODULES}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_an_error_is_its_place_what_happened_what_to_do_and_a_logs_last_lines():
    error = CourseError("It is not there.", "Make it.", where=["a.py", "line 3"], log="one\ntwo")
    assert error.sentence == "a.py: line 3: It is not there. Make it."
    assert str(error) == f"{error.sentence}\nLast lines of the log:\none\ntwo"
