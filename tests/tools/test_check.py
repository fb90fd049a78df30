"""`make check`: every step runs and is named, and what a step is there for makes it fail."""

import subprocess
import sys

import pytest
import yaml

from inflight.paths import COURSE
from tools import audit, check

UNPINNED = """name: x
on: push
permissions: {}
jobs:
  a:
    runs-on: ubuntu-24.04
    steps:
      - uses: actions/checkout@v5
        with:
          persist-credentials: false
"""


@pytest.fixture
def steps(monkeypatch):
    """Three steps, of which the middle one fails."""
    code = {"first": "print('quiet')", "second": "print('the reason'); raise SystemExit(3)", "third": ""}
    monkeypatch.setattr(check, "STEPS", {name: [sys.executable, "-c", text] for name, text in code.items()})


def test_every_step_runs_and_the_failed_one_says_why(steps, capfd):
    assert check.main([]) == 1
    out, err = capfd.readouterr()
    lines = out.splitlines()
    assert [line.split()[:2] for line in lines if line.endswith(" s")] == [
        ["first", "passed"], ["second", "FAILED"], ["third", "passed"]
    ]  # fmt: skip
    assert "the reason" in lines and "quiet" not in lines and "Failed: second." in err


def test_a_step_that_is_skipped_says_why_and_fails_nothing(monkeypatch, capfd):
    code = f"print('no network'); raise SystemExit({audit.SKIPPED})"
    monkeypatch.setattr(check, "STEPS", {"first": [sys.executable, "-c", code]})
    assert check.main([]) == 0
    out = capfd.readouterr().out
    assert out.startswith("first       skipped") and "no network" in out.splitlines()


def test_a_program_that_is_not_installed_is_named(monkeypatch, capfd):
    monkeypatch.setattr(check, "STEPS", {"first": ["/nowhere/shellcheck"]})
    assert check.main([]) == 1
    assert "/nowhere/shellcheck is not there: `make setup` installs it." in capfd.readouterr().out


def test_one_step_can_be_run_alone(steps, capfd):
    assert check.main(["third"]) == 0
    assert capfd.readouterr().out.startswith("third")


def test_a_step_that_is_not_there_is_refused(steps, capfd):
    assert check.main(["fourth"]) == 2
    assert capfd.readouterr().err == "There is no check 'fourth'; the checks are first, second, third.\n"


@pytest.mark.parametrize(
    ("workflow", "says"),
    [
        (UNPINNED.replace("runs-on", "run-on"), "validation schema"),
        (UNPINNED.replace("{}", "{"), "invalid YAML"),
        (UNPINNED, "unpinned-uses"),
    ],
)
def test_an_invalid_or_careless_workflow_fails(tmp_path, workflow, says):
    folder = tmp_path / ".github" / "workflows"
    folder.mkdir(parents=True)
    (folder / "ci.yml").write_text(workflow)
    result = subprocess.run(check.STEPS["workflows"], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode != 0 and says in result.stdout + result.stderr


def test_a_careless_script_fails(tmp_path):
    script = tmp_path / "careless.sh"
    script.write_text("#!/bin/bash\nrm -rf $1/*\n")
    result = subprocess.run([check.STEPS["scripts"][0], script], capture_output=True, text=True)
    assert result.returncode != 0 and "SC2086" in result.stdout


def test_every_script_of_the_course_is_checked():
    checked = {COURSE / path for path in check.STEPS["scripts"][1:]}
    places = [*COURSE.glob("*"), *COURSE.glob(".ci/*"), *COURSE.glob("assets/**/*"), *COURSE.glob("tools/**/*")]
    shells = (b"#!/bin/sh", b"#!/bin/bash", b"#!/usr/bin/env bash")
    assert {path for path in places if path.is_file() and path.read_bytes().startswith(shells)} == checked


def test_the_hooks_before_a_commit_are_the_steps():
    hooks = yaml.safe_load((COURSE / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert [hook["id"] for hook in hooks] == list(check.STEPS)
    assert all(hook["entry"] == f".venv/bin/python -m tools.check {hook['id']}" for hook in hooks)
