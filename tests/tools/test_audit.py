"""Known faults of packages: what pip-audit says becomes a line each, and silence is not taken for innocence."""

import datetime
import json
import os
import subprocess
import sys
import tomllib

import pytest

from inflight.paths import COURSE
from tools import audit

TODAY = datetime.date(2030, 5, 1)
FAULTY = {
    "name": "jinja2",
    "version": "3.1.0",
    "vulns": [{"id": "PYSEC-2030-7", "aliases": ["CVE-2030-1"], "fix_versions": ["3.1.9", "3.2.1"]}],
}
SOUND = {"name": "six", "version": "1.17.0", "vulns": []}
ACCEPTED = {"id": "CVE-2030-1", "reason": "Not reached.", "until": TODAY}
LINE = "jinja2 3.1.0: PYSEC-2030-7, CVE-2030-1; mended in 3.1.9, 3.2.1"


def test_a_finding_names_package_version_advisory_and_the_version_that_mends_it():
    assert audit.problems([SOUND, FAULTY], [], TODAY) == [LINE]


def test_what_is_accepted_is_no_finding_until_its_day_is_over():
    assert audit.problems([FAULTY], [ACCEPTED], TODAY) == []
    assert audit.problems([FAULTY], [{**ACCEPTED, "id": "CVE-2030-2"}], TODAY) == [LINE]
    [line] = audit.problems([FAULTY], [ACCEPTED], TODAY + datetime.timedelta(1))
    assert line == f"{LINE}; it was accepted until 2030-05-01: Not reached."


def test_a_package_that_was_not_looked_up_is_a_finding():
    packages = [SOUND, {"name": "lark", "skip_reason": "not found"}]
    assert audit.problems(packages, [], TODAY) == ["lark: not found"]


def test_all_that_set_up_installs_is_asked_for():
    pins = audit.pins((COURSE / "requirements.txt").read_text(), tomllib.loads((COURSE / "pyproject.toml").read_text()))
    assert len(pins) > 150 and len([pin for pin in pins if pin.startswith("torch==")]) == 1
    assert not any("--hash" in pin or "\\" in pin for pin in pins)


def test_what_is_accepted_has_a_reason_and_an_end():
    project = tomllib.loads((COURSE / "pyproject.toml").read_text())
    for entry in project["tool"].get("inflight", {}).get("accepted-advisories", []):
        assert entry["id"] and entry["reason"] and isinstance(entry["until"], datetime.date)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"dependencies": [{"name": "six", "skip_reason": "not found"}]}, "the index has none, as a mirror may"),
        (None, "Could not connect to PyPI's vulnerability feed"),
    ],
)
def test_where_nothing_is_known_of_any_package_the_step_is_skipped(monkeypatch, capsys, answer, says):
    """pip-audit itself ends with 0 where every package is unknown."""
    stdout, stderr = (
        (json.dumps(answer), "") if answer else ("", "ERROR: Could not connect to PyPI's vulnerability feed")
    )
    done = subprocess.CompletedProcess([], 0, stdout, stderr)
    monkeypatch.setattr(audit.subprocess, "run", lambda *arguments, **options: done)
    assert audit.main() == audit.SKIPPED
    assert capsys.readouterr().out.endswith(f"{says}.\n")


def test_the_real_one_without_a_network_is_skipped_in_one_line(tmp_path):
    environment = {**os.environ, "https_proxy": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9"}
    environment["XDG_CACHE_HOME"] = str(tmp_path)
    command = [sys.executable, "-m", "tools.audit"]
    ran = subprocess.run(command, cwd=COURSE, env=environment, capture_output=True, text=True)
    assert ran.returncode == audit.SKIPPED and ran.stdout.count("\n") == 1, ran.stdout + ran.stderr
