"""Folders that are whole or not there."""

import os
import stat

import pytest

from inflight import files
from inflight.errors import CourseError


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


@pytest.mark.parametrize("umask", [0, 0o077])
def test_what_is_written_others_may_read_and_not_change_whatever_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        with files.written_aside(tmp_path / "new", "thing") as aside:
            (aside / "1").mkdir()
            (aside / "1" / "model.py").write_text("print()")
        files.replace_text(tmp_path / "new" / "config", "x")
    finally:
        os.umask(before)
    modes = {
        path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "new", *(tmp_path / "new").rglob("*"))
    }
    assert modes == {"new": 0o755, "1": 0o755, "model.py": 0o644, "config": 0o644 & ~umask}


@pytest.mark.parametrize(
    "make, says",
    [
        (lambda path: None, "cannot be read"),
        (lambda path: path.mkdir(), "cannot be read"),
        (lambda path: path.write_bytes(b"\xff"), "is not UTF-8"),
    ],
)
def test_a_file_that_cannot_be_used_is_a_sentence(tmp_path, make, says):
    make(tmp_path / "file")
    with pytest.raises(CourseError, match=f"The dataset .*{says}.* Name another."):
        files.read_text(tmp_path / "file", "dataset", "Name another.")
