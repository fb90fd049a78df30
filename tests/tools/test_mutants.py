"""Mutants: where they are drawn from, what becomes of a line, and that a test sees one."""

import pytest

from inflight.paths import COURSE
from tools import mutants

TEXT = """def first(items: list[int] = None, at=0) -> int:
    '''Words.'''
    if at < 0: return None
    if not items or at > len(items) - 1:
        raise ValueError(f"{at + 1} of {2}")
    log.warning("none at %d", 3)
    at += 1
    items.sort()
    return items[at]
"""


@pytest.mark.parametrize("room", mutants.ROOMS)
def test_a_room_has_its_modules_and_its_tests(room, monkeypatch):
    monkeypatch.chdir(COURSE)
    names, arguments = mutants.ROOMS[room]
    found = mutants.modules(room)
    assert len(found) >= len(names)
    for path in found:
        for argument in arguments:
            if argument.startswith("tests/"):
                assert (COURSE / argument.format(topic=path.parent.name)).exists(), argument


def test_what_decides_is_changed_and_words_are_not():
    texts = [mutants.mutated(TEXT, node, other) for node, other in mutants.mutants(TEXT)]
    for text in texts:
        assert text != TEXT and compile(text, "mutant", "exec")
    changed = {line.strip() for text in texts for line in text.splitlines()} - {
        line.strip() for line in TEXT.splitlines()
    }
    assert changed == {
        "def first(items: list[int] = None, at=1) -> int:",
        "if (at <= 0): return None",
        "if at < 1: return None",
        "if (not items and at > len(items) - 1):",
        "if (items) or at > len(items) - 1:",
        "if not items or (at >= len(items) - 1):",
        "if not items or at > (len(items) + 1):",
        "if not items or at > len(items) - 2:",
        "at -= 1",
        "at += 2",
        "pass",
        "return None",
    }


@pytest.mark.parametrize(
    ("text", "how"), [("assert 1 + 1 == 2", mutants.SURVIVES), ("assert 1 + 1 == 3", mutants.KILLED)]
)
def test_a_test_sees_one(tmp_path, text, how):
    (tmp_path / "test_it.py").write_text(f"def test_it():\n    {text}\n")
    assert mutants.outcome(tmp_path, ["test_it.py"]) == how


@pytest.mark.parametrize(
    ("limit", "text"), [("MOST_CPU_S", "while True: pass"), ("MOST_S", "import threading; threading.Event().wait()")]
)
def test_one_that_never_ends_is_told_by_its_own_time_or_where_it_waits_by_all(tmp_path, monkeypatch, limit, text):
    monkeypatch.setattr(mutants, limit, 5)
    (tmp_path / "test_it.py").write_text(f"def test_it():\n    {text}\n")
    assert mutants.outcome(tmp_path, ["test_it.py"]) == mutants.NEVER_ENDS


def test_the_tests_of_a_mutants_own_module_come_first(monkeypatch):
    monkeypatch.chdir(COURSE)
    for room, first in (("engine", "tests/engine/test_sampling.py"), ("bench", "tests/bench/test_turns.py")):
        [path] = [each for each in mutants.modules(room) if first.endswith(f"_{each.name}")]
        given = mutants.arguments(room, path)
        assert given[0] == first and sorted(given) == sorted(mutants.ROOMS[room][1])
