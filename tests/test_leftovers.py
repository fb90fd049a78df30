"""What killed processes have left behind is removed, and nothing else."""

import os
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from inflight import leftovers
from tests.engines import start_python

HOLD_SCRIPT = """
import sys
from inflight import leftovers
from inflight.files import written_aside
from pathlib import Path
with leftovers.folder("inflight-serve-") as scratch, written_aside(Path(sys.argv[1]), "engine") as aside:
    (aside / "half").write_text("made")
    print(scratch, aside.parent, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Folders of its own for temporary files, the cache, and what Triton makes."""
    for name in ("tmp", "cache/engines", "triton"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("INFLIGHT_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(leftovers, "TRITON_FOLDERS", (tmp_path / "triton", "python_env_*"))
    return tmp_path


def start_owner(places):
    owner = start_python(HOLD_SCRIPT, places / "cache" / "engines" / "small", stdin=subprocess.PIPE)
    return owner, [Path(name) for name in owner.stdout.readline().split()]


def dead_folder(places, shm_prefix=""):
    """A folder whose owner is dead."""
    made, mark = leftovers.server_folder(shm_prefix)
    os.close(mark)
    return made


def test_what_belongs_to_the_living_stays_and_what_belonged_to_the_dead_goes(places):
    owner, folders = start_owner(places)
    assert leftovers.sweep() == [] and all(folder.is_dir() for folder in folders)
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    assert sorted(leftovers.sweep()) == sorted(folders)
    assert leftovers.sweep() == [] and not any(folder.exists() for folder in folders)


def test_shared_memory_goes_with_its_folder_alone(places, monkeypatch):
    monkeypatch.setattr(leftovers, "SHM", places / "triton")
    for name in ("inflight_1_a", "inflight_1_b", "inflight_2_a", "other"):
        (places / "triton" / name).write_text("")
    (places / "triton" / "inflight_1_link").symlink_to(places / "triton" / "other")
    dead_folder(places, shm_prefix="inflight_1_")
    dead_folder(places, shm_prefix="")
    dead_folder(places, shm_prefix="../triton/other")
    assert len(leftovers.sweep()) == 3
    assert sorted(path.name for path in (places / "triton").iterdir()) == ["inflight_1_link", "inflight_2_a", "other"]
