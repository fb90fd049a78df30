"""The list of cached engines and their state."""

import json
import os
import shutil
import subprocess

import pytest
from typer.testing import CliRunner

from inflight import cache, manifest
from inflight.cli.commands import app
from inflight.engine import inventory
from inflight.engine.inventory import kept
from tests.engines import start_python

HOLD = """
import sys
from pathlib import Path
from inflight import cache
with cache.only_one(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def engines(small_engine, tmp_path, monkeypatch):
    """A cache folder with nothing but a folder for engines, and a way to put one there."""
    monkeypatch.delenv("INFLIGHT_TRUST", raising=False)
    monkeypatch.setenv("INFLIGHT_HOME", str(tmp_path))
    place = cache.folder("engines")
    return lambda name="small-1": shutil.copytree(small_engine, place / name)


def test_an_empty_cache_has_none(tmp_path, monkeypatch):
    monkeypatch.setenv("INFLIGHT_HOME", str(tmp_path / "none"))
    assert kept() == []


def test_whole_ones_say_how_they_were_compared(engines, monkeypatch):
    folder = engines()
    [one] = kept()
    assert (one.name, one.state, one.fix) == ("small-1", "whole (by SHA-256)", "")
    assert one.bytes == sum(path.stat().st_size for path in folder.iterdir())
    monkeypatch.setattr(inventory, "MOST_HASHED_BYTES", 0)
    assert [row.state for row in kept()] == ["whole (by size)"]


def change_byte(folder):
    with open(folder / "openvino_model.bin", "r+b") as file:
        byte = file.read(1)
        file.seek(0)
        file.write(bytes([byte[0] ^ 1]))


def of_another_version(folder):
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**content, "version": "openvino 2025.1.0"}))
    manifest.write(folder)


def a_pipe(folder):
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")


@pytest.mark.parametrize(
    "damage, state, fix",
    [
        (change_byte, "damaged: openvino_model.bin was changed", "nothing to do: it is built again"),
        (a_pipe, "damaged: config.json is not a plain file", "nothing to do: it is built again"),
        (
            lambda folder: (folder / "checksums.json").unlink(),
            "without checksums, as an earlier",
            "to free the space: rm",
        ),
        (of_another_version, "of another version (openvino 2025.1.0)", "to free the space: rm -r"),
        (lambda folder: folder.chmod(0o777), "not used: ", "move it away: mv"),
        (lambda folder: shutil.rmtree(folder) or folder.write_text(""), "damaged: not a folder", "nothing to do"),
    ],
    ids=["changed", "pipe", "no checksums", "version", "open", "file"],
)
def test_each_state_has_its_fix(engines, damage, state, fix):
    damage(engines())
    engines("small-2")
    first, second = kept()
    assert first.state.startswith(state) and fix in first.fix
    assert second.fix == ""


def test_one_that_is_being_made_names_its_maker(engines, tmp_path):
    engines()
    making = start_python(HOLD, tmp_path / "engines" / "small-0.lock", stdin=subprocess.PIPE)
    assert making.stdout.readline() == "held\n"
    new, _ = kept()
    making.communicate("")
    assert new.name == "small-0" and new.state.startswith(f"being made: Process {making.pid} on ")
    assert [row.name for row in kept()] == ["small-1"]


def test_the_doctor_shows_them(engines):
    engines()
    printed = CliRunner().invoke(app, ["doctor"]).output
    assert "engines in the cache" in printed and "small-1" in printed and "whole" in printed
