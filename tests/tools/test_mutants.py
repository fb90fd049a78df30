"""Mutants: where they are drawn from, what becomes of a line, and that a test sees one."""

import pytest

from inflight.paths import COURSE
from tools import mutants

TEXT = """def first(items: list[int] = None, at=0) -> int:
    '''Words.'''
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
        compile(text, "mutant", "exec")
    changed = {line.strip() for text in texts for line in text.splitlines()} - {
        line.strip() for line in TEXT.splitlines()
    }
    assert changed == {
        "def first(items: list[int] = None, at=1) -> int:",
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


def test_a_test_sees_one(tmp_path):
    (tmp_path / "test_it.py").write_text("def test_it():\n    assert 1 + 1 == 2\n")
    assert not mutants.killed(tmp_path, ["test_it.py"])
    (tmp_path / "test_it.py").write_text("def test_it():\n    assert 1 + 1 == 3\n")
    assert mutants.killed(tmp_path, ["test_it.py"])
