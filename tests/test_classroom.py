"""Whether a machine carries a class: on machines that are made up."""

import json
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from inflight import classroom, machine
from inflight.cli.commands import app
from inflight.errors import CourseError
from inflight.machine import GIB


@pytest.mark.parametrize(
    ("cores", "memory_gib", "free_gib", "lacks"),
    [(32, 32, 100, []), (8, 32, 100, ["cores"]), (32, 16, 100, ["memory"]), (32, 32, 1, ["disk"])],
)
def test_each_thing_that_lacks_is_told_with_what_to_do(monkeypatch, cores, memory_gib, free_gib, lacks):
    monkeypatch.setattr(machine, "cores", lambda: cores)
    monkeypatch.setattr(machine, "memory_bytes", lambda: memory_gib * GIB)
    monkeypatch.setattr(classroom.shutil, "disk_usage", lambda path: SimpleNamespace(free=free_gib * GIB))
    rows = classroom.checks(30)
    assert [row.name for row in rows] == ["cores", "memory", "disk"]
    assert [row.name for row in rows if not row.ok] == lacks
    assert all(bool(row.fix) != row.ok for row in rows)


def test_the_command_shows_it_and_refuses_nobody():
    printed = CliRunner().invoke(app, ["doctor", "--class", "1", "--json"])
    assert [check["name"] for check in json.loads(printed.stdout)["checks"]] == ["cores", "memory", "disk"]
    refused = CliRunner().invoke(app, ["doctor", "--class", "100000"])
    assert refused.exit_code == 1 and "a class of 100000" in refused.output and "fix:" in refused.output
    assert isinstance(CliRunner().invoke(app, ["doctor", "--class", "0"]).exception, CourseError)
