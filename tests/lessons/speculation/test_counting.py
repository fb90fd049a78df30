"""A rule of acceptance is played, and its columns are counted, where no package is installed, as in a browser."""

import subprocess
import sys
from pathlib import Path

import inflight

PLAYED = """
import random
from inflight.lessons.speculation.counting import Played, broken_by, columns

def as_a_lookup(p, q, draft, chance, end):
    brought = []
    for row, guess in zip(p, [*draft, None]):
        brought.append(chance.choices(range(3), row)[0])
        if brought[-1] != guess:
            return brought
    return brought

seen = Played(as_a_lookup, [[0.1, 0.6, 0.3], [0, 0, 1]], [[0.0, 1.0, 0.0]], end=9, choose=random.Random(7))
[[guess, made, came, wanted]] = seen.kept(0)
print(guess, made, round(came / made, 1), wanted, [round(many / total, 1) for _, total, many, _ in seen.shares(0)])
print(broken_by([1, 2], [1], end=9) or "whole", broken_by([1], [1], end=9)[:14])
print(columns([7, 8, 9, 7, 8, 9, 0], lambda tokens, k: tokens[:k], k=2))
"""


def test_a_rule_is_played_without_any_package():
    package = str(Path(inflight.__file__).parents[1])
    start = f"import sys; sys.path.insert(0, {package!r})\n"
    ran = subprocess.run([sys.executable, "-S", "-E", "-c", start + PLAYED], capture_output=True, text=True)
    assert ran.stderr == ""
    assert ran.stdout.splitlines() == [
        "1 4000 0.6 0.6 [0.1, 0.6, 0.3]",
        "whole The last guess",
        "[(0, 0), (0, 1), (0, 2), (2, 0), (0, 0)]",
    ]
