"""The script that measures everything on a machine, with a stand-in for the course's own command."""

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from inflight.cli.commands import app
from inflight.paths import ASSETS

SCRIPT = ASSETS / "lab-gpu" / "measure.sh"


@pytest.fixture
def measure(tmp_path):
    """Run the script on a machine of a tier; gives its process and the commands that it ran."""

    def run(
        tier: str, fails: str = "nothing", **environment: str
    ) -> tuple[subprocess.CompletedProcess, list[list[str]]]:
        asked = tmp_path / "asked"
        stand_in = tmp_path / "python"
        stand_in.write_text(
            f'#!/bin/sh\nif [ "$1" = -c ]; then echo {tier}; exit; fi\nshift 3\necho "$@" >> {asked}\n'
            f'case "$*" in *{fails}*) exit 1;; esac\n'
        )
        stand_in.chmod(0o755)
        given = {**os.environ, "PYTHON": str(stand_in), "INFLIGHT_RESULTS": str(tmp_path / "results"), **environment}
        ran = subprocess.run([SCRIPT], env=given, capture_output=True, text=True)
        return ran, [line.split() for line in asked.read_text().splitlines()]

    return run


def test_on_a_gpu_everything_is_measured_and_kept(measure):
    ran, commands = measure("cuda")
    assert ran.returncode == 0, ran.stderr
    assert all("--save" in command for command in commands)
    checkpoints = {tuple(command[:1]): [] for command in commands}
    for command in commands:
        model = command[command.index("--checkpoint") + 1] if "--checkpoint" in command else "default"
        checkpoints[command[0],].append(model)
    assert {name: models for (name,), models in checkpoints.items()} == {
        "floor": ["default", "random:llama-3.2-1b", "random:llama-3-8b"],
        "compare": ["default", "default", "default", "default", "random:llama-3.2-1b", "random:llama-3-8b"],
        "serving-tax": ["default"],
        "batchers": ["default"],
        "gpt2": ["gpt2-124m-random", "gpt2-1.5b-random"],
        "quality": ["default"],
    }


def test_without_a_gpu_the_large_models_are_left_out(measure):
    ran, commands = measure("cpu")
    assert ran.returncode == 0 and "are left out" in ran.stderr
    assert not [command for command in commands if "random:" in " ".join(command) or "gpt2-1.5b-random" in command]


def test_what_fails_is_named_at_the_end_and_the_rest_is_measured(measure):
    ran, commands = measure("cuda", fails="serving-tax")
    assert ran.returncode == 1 and len(commands) == 14
    assert ran.stderr.splitlines() == ["error: this failed: bench serving-tax --rounds 3"]


def test_every_command_is_one_that_there_is(measure):
    """With its options: they are read before anything runs, and an unknown one is an error of usage."""
    for small in ("", "1"):
        _, commands = measure("cuda", SMALL=small)
        for command in commands:
            ran = CliRunner().invoke(app, ["bench", *command, "--help"])
            assert ran.exit_code == 0, ran.output
            known = CliRunner().invoke(app, ["bench", command[0], "--help"], env={"COLUMNS": "200"}).output
            assert all(word in known for word in command if word.startswith("--"))


def test_a_short_run_leaves_the_recorded_results_alone(measure, tmp_path):
    ran, commands = measure("cpu", SMALL="1", INFLIGHT_RESULTS="")
    assert ran.returncode == 0
    assert next(command for command in commands if command[0] == "gpt2")[2] == "gpt2-tiny-random"
    script = "from inflight.bench import recorded; print(recorded.RESULTS)"
    given = {**os.environ, "INFLIGHT_RESULTS": str(tmp_path)}
    printed = subprocess.run([sys.executable, "-c", script], env=given, capture_output=True, text=True, check=True)
    assert printed.stdout.strip() == str(tmp_path)
