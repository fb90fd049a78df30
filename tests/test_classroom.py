"""Whether a machine carries a class: on machines that are made up, with what one learner takes made up too."""

import getpass
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


def test_disks_and_shared_memory_that_are_too_small_are_named(here):
    assert row("disk for homes").ok and row("disk for homes").need == "1,500 MiB in /home"
    here.free = 200 * MIB
    assert not row("disk for homes").ok and not row("disk for the cache").ok
    assert not row("free /dev/shm").ok and "size=301m" in row("free /dev/shm").fix
    assert row("free /dev/shm", 20).ok


def test_ports_that_something_listens_on_do_not_count(here):
    assert row("ports").have == "399 free of 40000 to 40399"
    assert row("ports", 39).ok and not row("ports", 40).ok


def test_threads_are_within_what_the_kernel_allows(here):
    assert row("threads", 50).ok
    assert not row("threads", 51).ok and row("threads", 51).fix.endswith("threads-max=10200")


@pytest.fixture
def shared(monkeypatch):
    """A folder that INFLIGHT_HOME names; pytest's own folders are closed to others, so it is not in one of them."""
    folder = Path(tempfile.mkdtemp(prefix="inflight-test-class-"))
    monkeypatch.setenv("INFLIGHT_HOME", str(folder))
    yield folder
    shutil.rmtree(folder)


def test_the_shared_cache_is_followed_until_it_serves_all(here, monkeypatch, shared):
    monkeypatch.delenv("INFLIGHT_HOME")
    assert "not set" in row("shared cache").have and "inflight run" in row("shared cache").fix
    monkeypatch.setenv("INFLIGHT_HOME", str(shared))
    shared.chmod(0o777)
    assert row("shared cache").fix == f"chmod -R go-w {shared}"
    shared.chmod(0o700)
    assert "has no model yet" in row("shared cache").have and row("disk for the cache").have.endswith("free")
    model = shared / "checkpoints" / classroom.DEFAULT / "model.gguf"
    model.parent.mkdir(parents=True)
    model.touch()
    assert row("disk for the cache").have == "filled"
    assert row("shared cache").fix == f"chmod a+rx {shared}"
    shared.chmod(0o755)
    assert row("shared cache").ok
    assert row("shared cache").have.startswith(f"{shared}, of {getpass.getuser()}")


def written(folder, cpu: str, own_mib: float) -> None:
    use = {"own_mib": own_mib, "shm_mib": 1.0, "files_mib": 300.0, "processes": 9, "threads": 90, "ports": 11}
    rows = [
        {"lesson": "03", "kind": "lecture", "minutes": 40, **use, "cpu_s": 60.0, "busy_cores": 1.5},
        {"lesson": "03", "kind": "lab", "minutes": 40, **use, "cpu_s": 60.0, "busy_cores": 1.2},
    ]
    result = {
        "machine": {"cpu": cpu},
        "rows": rows,
        "disk": {"home_mib": 9.0, "engine_mib": 90.0, "shared_cache_mib": 700.0},
    }
    (folder / f"learner_{cpu}.json").write_text(json.dumps(result))


def test_what_one_takes_is_read_from_the_machine_like_this(tmp_path, monkeypatch):
    written(tmp_path, "a", 400.0)
    written(tmp_path, "b", 500.0)
    monkeypatch.setattr(machine, "device_name", lambda tier: "b")
    needs = classroom.measured(tmp_path)
    assert (needs.own_mib, needs.cores_running, needs.ports, needs.threads) == (501.0, 1.5, 11, 90)
    assert needs.cores_of_a_lesson == pytest.approx(120 / 2400) and needs.home_mib == 99.0
    monkeypatch.setattr(machine, "device_name", lambda tier: "another")
    assert classroom.measured(tmp_path).own_mib == 401.0


def test_of_several_lessons_the_one_that_takes_the_most_decides(tmp_path):
    """Each figure by itself: the most memory is taken in one lesson, the most ports in another."""
    written(tmp_path, "a", 400.0)
    file = tmp_path / "learner_a.json"
    result = json.loads(file.read_text())
    lecture = result["rows"][0]
    result["rows"] += [
        lecture | {"lesson": "01", "minutes": 50, "own_mib": 2000.0, "ports": 2, "cpu_s": 300.0, "busy_cores": 2.0},
        lecture | {"lesson": "04", "minutes": 45, "own_mib": 900.0, "ports": 14, "threads": 120},
    ]
    file.write_text(json.dumps(result))
    needs = classroom.measured(tmp_path)
    assert (needs.own_mib, needs.ports, needs.threads, needs.cores_running) == (2001.0, 14, 120, 2.0)
    assert needs.cores_of_a_lesson == pytest.approx(300 / 3000)


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
