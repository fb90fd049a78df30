"""Folders that are whole or not there, and what killed processes leave behind."""

import os
import subprocess

import psutil
import pytest

from inflight import files
from inflight.errors import CourseError
from tests.engines import start_python, wait_until

HOLD = """
import os, sys
from inflight import files
folder, mark = files.held_folder(sys.argv[1], "work-")
(folder / "half").write_text("made")
print(folder, flush=True)
if len(sys.argv) > 2:  # a process that goes on with the folder
    import subprocess
    print(subprocess.Popen(["sleep", "600"], pass_fds=[mark], stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL).pid, flush=True)
sys.stdin.read()
"""


def start_holder(parent, *arguments):
    holder = start_python(HOLD, parent, *arguments, stdin=subprocess.PIPE)
    return holder, holder.stdout.readline().strip()


def test_what_a_killed_process_left_is_swept_and_a_living_one_spared(tmp_path):
    living, its_folder = start_holder(tmp_path)
    dead, left = start_holder(tmp_path)
    assert files.sweep(tmp_path, "work-") == []
    dead.kill()
    dead.communicate()
    assert [str(folder) for folder in files.sweep(tmp_path, "work-")] == [left]
    assert [str(path) for path in tmp_path.iterdir()] == [its_folder]
    living.communicate("")
    assert [str(folder) for folder in files.sweep(tmp_path, "work-")] == [its_folder]
    assert list(tmp_path.iterdir()) == []


def test_a_folder_lives_as_long_as_a_process_that_got_its_lock(tmp_path):
    first, folder = start_holder(tmp_path, "hand it on")
    heir = int(first.stdout.readline())
    first.kill()
    first.communicate()
    assert files.sweep(tmp_path, "work-") == []
    psutil.Process(heir).kill()
    wait_until(lambda: files.sweep(tmp_path, "work-"), "the folder of the dead is swept")
    assert not os.path.exists(folder)


def test_a_sweep_takes_only_what_is_its_own(tmp_path):
    elsewhere, mark = files.held_folder(tmp_path, "elsewhere-")
    os.close(mark)
    (tmp_path / "work-link").symlink_to(elsewhere)
    (tmp_path / "work-file").write_text("mine")
    (tmp_path / "work-unmarked").mkdir()
    (tmp_path / "work-pipe").mkdir()
    os.mkfifo(tmp_path / "work-pipe" / files.ALIVE)
    (tmp_path / "work-linked-mark").mkdir()
    (tmp_path / "work-linked-mark" / files.ALIVE).symlink_to(elsewhere / files.ALIVE)
    before = sorted(tmp_path.iterdir())
    assert files.sweep(tmp_path, "work-") == [] and sorted(tmp_path.iterdir()) == before
    if os.geteuid() == 0:
        other, mark = files.held_folder(tmp_path, "work-")
        os.close(mark)
        os.chown(other, 65534, 65534)
        assert files.sweep(tmp_path, "work-") == [] and other.exists()
    assert files.sweep(tmp_path / "nowhere", "work-") == []


def test_a_folder_whose_making_failed_leaves_the_old_one_and_nothing_else(tmp_path):
    with files.written_aside(tmp_path / "new", "thing") as aside:
        (aside / "file").write_text("first")
    with (
        pytest.raises(CourseError, match="The thing could not be written"),
        files.written_aside(tmp_path / "new", "thing") as aside,
    ):
        (aside / "file").write_text("second")
        raise OSError(28, "No space left on device")
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    assert (tmp_path / "new" / "file").read_text() == "first"
    with files.written_aside(tmp_path / "new", "thing") as aside:
        (aside / "file").write_text("third")
    assert [path.name for path in tmp_path.iterdir()] == ["new"] and os.listdir(tmp_path / "new") == ["file"]
    assert (tmp_path / "new" / "file").read_text() == "third"
