"""Whether a machine carries a class: on machines that are made up, with what one learner takes made up too."""

import json
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from typer.testing import CliRunner

from inflight import classroom, machine
from inflight.classroom import Needs
from inflight.cli.commands import app
from inflight.errors import CourseError
from inflight.machine import GIB, MIB

ONE = Needs(
    own_mib=1024.0,
    files_mib=512.0,
    shm_mib=10.0,
    cores_running=1.5,
    cores_of_a_lesson=0.1,
    home_mib=50.0,
    cache_mib=1000.0,
    ports=10,
    threads=100,
    device="made up",
)


@pytest.fixture
def here(monkeypatch, tmp_path):
    """A machine to set up: cores, memory, disk, ports and threads; no cache is shared."""
    facts = SimpleNamespace(cores=8, memory=32 * GIB, free=100 * GIB, listening=[22, 40_001])
    monkeypatch.delenv("INFLIGHT_HOME", raising=False)
    monkeypatch.delenv("INFLIGHT_TRUST", raising=False)
    monkeypatch.setattr(machine, "cores", lambda: facts.cores)
    monkeypatch.setattr(machine, "memory_bytes", lambda: facts.memory)
    monkeypatch.setattr(classroom.shutil, "disk_usage", lambda path: SimpleNamespace(free=facts.free))
    listens = lambda port: SimpleNamespace(status=psutil.CONN_LISTEN, laddr=SimpleNamespace(port=port))
    monkeypatch.setattr(classroom.psutil, "net_connections", lambda kind: [listens(port) for port in facts.listening])
    for name, text in (("PORT_RANGE", "40000\t40399\n"), ("MOST_PROCESSES", "5000\n")):
        (tmp_path / name).write_text(text)
        monkeypatch.setattr(classroom, name, tmp_path / name)
    return facts


def row(name: str, learners: int = 30) -> machine.Check:
    return next(check for check in classroom.checks(learners, ONE) if check.name == name)


def test_every_thing_has_one_row_and_a_fix_only_where_it_lacks(here):
    rows = classroom.checks(30, ONE)
    assert [check.name for check in rows] == [
        "cores",
        "memory",
        "disk for homes",
        "disk for the cache",
        "free /dev/shm",
        "ports",
        "threads",
        "shared cache",
    ]
    for check in rows:
        assert bool(check.fix) != check.ok and "\n" not in check.need + check.have + check.fix


def test_memory_is_each_ones_own_and_what_all_share_and_the_systems(here):
    wanted = 30 * 1.0 + 0.5 + classroom.SYSTEM_GIB
    here.memory = int(wanted * GIB) + 1
    assert row("memory").ok and row("memory").need == f"{wanted:.1f} GiB: 1.0 a learner"
    here.memory -= 10 * MIB
    assert not row("memory").ok and row("memory").fix.endswith("this one has the memory for 29 learners")
    assert row("memory", 29).ok


def test_cores_are_enough_when_all_at_once_are_not_too_slow(here):
    here.cores = 15
    assert row("cores").ok and row("cores").need.startswith("15, for a cell to take 3 times as long at most")
    assert row("cores").have == "15: 3.0 times as long"
    here.cores = 64
    assert row("cores").have == "64: 1.0 times as long"
    here.cores = 8
    assert not row("cores").ok and not row("cores").required and "the cores for 16;" in row("cores").fix
    here.cores = 2  # fewer than the lessons take on average
    assert not row("cores").ok and row("cores").required


@pytest.fixture
def shared(monkeypatch):
    """A folder that INFLIGHT_HOME names; pytest's own folders are closed to others, so it is not in one of them."""
    folder = Path(tempfile.mkdtemp(prefix="inflight-test-class-"))
    monkeypatch.setenv("INFLIGHT_HOME", str(folder))
    yield folder
    shutil.rmtree(folder)


def test_without_a_measurement_it_says_so(tmp_path):
    with pytest.raises(CourseError, match="was not measured.*tools.learner_needs"):
        classroom.measured(tmp_path)


def test_the_command_shows_it_as_a_table_and_as_json():
    """With what was measured and kept, on the machine that runs the tests."""
    printed = CliRunner().invoke(app, ["doctor", "--class", "1", "--json"])
    names = [check["name"] for check in json.loads(printed.stdout)["checks"]]
    assert names[:2] == ["cores", "memory"] and names[-1] == "shared cache"
    refused = CliRunner().invoke(app, ["doctor", "--class", "100000"])
    assert refused.exit_code == 1 and "a class of 100000" in refused.output and "fix:" in refused.output
    nobody = CliRunner().invoke(app, ["doctor", "--class", "0"])
    assert isinstance(nobody.exception, CourseError)
