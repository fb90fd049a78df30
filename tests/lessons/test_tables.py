"""Every lab has a table of answers."""

from pathlib import Path

from inflight.paths import PACKAGE


def test_every_lab_has_a_table():
    labs = {path.parent.name for path in (PACKAGE / "lessons").glob("*/lab.py")}
    assert labs == {path.parent.name for path in Path(__file__).parent.glob("*/test_lab.py")}
