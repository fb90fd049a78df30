"""The command line as such: what it costs to ask it for help, and that it tells of settings in their own words."""

import dataclasses
import os
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from inflight.cli.commands import app
from inflight.engine.settings import BuildConfig

ROWS = 40


def options(command: str) -> dict:
    """Name of a parameter of a command -> the parameter, as the command line's library sees it."""
    return {option.name: option for option in typer.main.get_command(app).commands[command].params}


def test_every_setting_of_an_engine_that_can_vary_is_an_option_of_build():
    settings = {setting.name for setting in dataclasses.fields(BuildConfig)}
    nothing_to_choose = {"remove_input_padding", "max_beam_width", "kv_cache_type"}
    assert settings - set(options("build")) == nothing_to_choose


def commands(group, path=()):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        elif not command.hidden:
            yield (*path, name)


@pytest.mark.parametrize("path", list(commands(typer.main.get_command(app))), ids=" ".join)
def test_the_help_of_a_command_fits_a_screen(path):
    shown = CliRunner().invoke(app, [*path, "--help"], terminal_width=80, env={"COLUMNS": "80"}).stdout.splitlines()
    assert len(shown) <= ROWS and max(map(len, shown)) <= 80


@pytest.mark.server
def test_a_terminal_that_speaks_ascii_gets_question_marks(streaming_server):
    ascii_only = os.environ | {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    asked = ("ask", "Say: café, naïve, déjà vu, élève.", "--url", streaming_server.grpc_url)
    for command in (asked, (*asked, "--stream"), ("progress",)):
        shown = subprocess.run([sys.executable, "-m", "inflight", *command], env=ascii_only, capture_output=True)
        assert shown.returncode == 0 and b"?" in shown.stdout and not shown.stderr


def test_an_address_is_of_the_openai_port_alone():
    refused = CliRunner().invoke(app, ["serve", "--host", "0.0.0.0"])
    assert "add --openai-port" in str(refused.exception)
