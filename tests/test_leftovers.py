"""What killed processes have left behind is removed, and nothing else."""

import json
import os
import signal
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from inflight import files, leftovers
from inflight.files import written_aside
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


def test_an_owner_that_ends_well_leaves_nothing_to_sweep(places):
    owner, folders = start_owner(places)
    owner.communicate("")
    assert not any(folder.exists() for folder in folders)
    assert [path.name for path in (places / "cache" / "engines").iterdir()] == ["small"]
    assert [path.name for path in (places / "cache" / "engines" / "small").iterdir()] == ["half"]


def test_a_half_made_folder_goes_when_the_same_is_made_again(places):
    owner, (_, half) = start_owner(places)
    owner.kill()
    owner.communicate()
    with written_aside(places / "cache" / "engines" / "small", "engine"):
        assert not half.exists()


def test_a_link_is_neither_followed_nor_removed(places):
    victim, mark = files.held_folder(places, "victim-")
    os.close(mark)
    (places / "tmp" / "inflight-server-link").symlink_to(victim)
    folder = dead_folder(places)
    (folder / "link").symlink_to(victim)
    assert leftovers.sweep() == [folder]
    assert (victim / files.ALIVE).exists()
    linked = dead_folder(places)
    (linked / files.ALIVE).unlink()
    (linked / files.ALIVE).symlink_to(victim / files.ALIVE)
    assert leftovers.sweep() == [] and linked.exists()


def test_an_unmarked_folder_goes_when_it_is_empty_and_old(places):
    young, old, full = (places / "tmp" / f"inflight-serve-{name}" for name in ("young", "old", "full"))
    for folder in (young, old, full):
        folder.mkdir()
    (full / "mine").write_text("kept")
    for folder in (old, full):
        os.utime(folder, (time.time() - 2 * leftovers.UNMARKED_S,) * 2)
    assert leftovers.sweep() == [old] and young.exists() and full.exists()


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


def test_a_note_that_is_not_ours_to_read_ends_nothing(places):
    folder = dead_folder(places)
    (folder / files.ALIVE).write_text(json.dumps(["inflight_"]))
    assert leftovers.sweep() == [folder]


def test_two_sweeps_at_once_share_the_work(places):
    folders = [dead_folder(places) for _ in range(20)]
    with ThreadPoolExecutor(2) as pool:
        swept = [each.result() for each in [pool.submit(leftovers.sweep) for _ in range(2)]]
    assert sorted(swept[0] + swept[1]) == sorted(folders)


def test_empty_folders_of_triton_go_when_they_are_older_than_every_server(places):
    old, full, young = (places / "triton" / f"python_env_{name}" for name in ("old", "full", "young"))
    for folder in (old, full, young):
        folder.mkdir()
    (full / "environment").mkdir()
    for folder in (old, full):
        os.utime(folder, (0, 0))
    os.utime(young, (time.time() + 60,) * 2)
    assert leftovers.sweep() == [old] and full.exists() and young.exists()
