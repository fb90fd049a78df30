"""The cache folder: whose it may be, and things that are made once."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

from inflight import cache, files
from inflight.errors import CourseError
from tests.engines import start_python

NOBODY = 65534


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A cache folder of this test's own, that nobody has filled yet."""
    monkeypatch.setenv("INFLIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("COURSE_STRICT", raising=False)  # somebody watches
    return tmp_path / "home"


def needs_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can act as another user")


def thing(text: str = "made") -> Path:
    """A folder with one file, made once."""
    target = cache.place("things", "thing")

    def make() -> None:
        with files.written_aside(target, "thing") as aside:
            (aside / "file").write_text(text)
            cache.seal(aside)

    return cache.made_once(target, make)


# Whose it is ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o777, 0o775])
@pytest.mark.parametrize("use", [thing, lambda: cache.folder("things", "thing")])
def test_a_cache_that_others_can_write_is_refused_in_a_sentence(home, mode, use):
    thing()
    home.chmod(mode)
    with pytest.raises(CourseError) as caught:
        use()
    assert str(caught.value) == (
        f"The cache folder {home} is not used, because others could change what runs from it: other users can "
        f"write there (mode 0{mode:o}). Run `chmod go-w {home}`, or set INFLIGHT_HOME to a folder of your "
        "own."
    )
    home.chmod(0o755)
    assert use() == home / "things" / "thing"


def test_a_cache_of_another_user_is_refused(home):
    needs_root()
    home.mkdir()
    os.chown(home, NOBODY, NOBODY)
    with pytest.raises(CourseError, match="it belongs to another user"):
        thing()


def test_what_is_made_is_closed_whatever_the_umask(home):
    before = os.umask(0)
    try:
        made = thing()
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (home, made.parent, made)} == {0o755}


def test_of_the_administrators_cache_what_is_there_is_used_and_the_rest_made_in_ones_own(home, monkeypatch, tmp_path):
    shared = thing()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    monkeypatch.setattr(cache.os, "access", lambda path, mode: path != home)  # as for a user who is not root
    assert thing() == shared
    assert cache.place("things", "other") == tmp_path / "own" / "inflight" / "things" / "other"


def test_a_cache_that_cannot_be_written_is_a_sentence(home):
    home.write_text("a file")
    with pytest.raises(CourseError, match=f"The cache folder {home} cannot be written .*: set INFLIGHT_HOME to"):
        cache.folder("things")


# Made once ------------------------------------------------------------------------------------------------------------


def test_a_thing_is_made_once(capsys):
    made = thing("first")
    assert thing("second") == made and (made / "file").read_text() == "first"
    assert sorted(path.name for path in made.parent.iterdir()) == ["thing", "thing.lock"]
    assert capsys.readouterr().err == ""


DAMAGE = [
    (lambda file: file.unlink(), "it has no file"),
    (lambda file: os.truncate(file, 3), "file has 3 bytes in place of 4"),
    (lambda file: file.write_text("Made"), "file is not what was written"),
    (lambda file: (file.parent / cache.CHECKSUMS).unlink(), "it has no checksums.json"),
    (lambda file: (file.parent / cache.CHECKSUMS).write_text("{"), "checksums.json cannot be read"),
    (lambda file: (file.parent / cache.CHECKSUMS).write_text('{"file": 1}'), "checksums.json cannot be read"),
]


@pytest.mark.parametrize("damage, problem", DAMAGE, ids=[problem for _, problem in DAMAGE])
def test_what_is_damaged_is_made_again_and_said(damage, problem, capsys):
    made = thing()
    damage(made / "file")
    assert thing("again") == made and (made / "file").read_text() == "again"
    assert capsys.readouterr().err == f"{made} is damaged ({problem}): it is made again.\n"
    assert thing() == made and (made / "file").read_text() == "again"


def test_what_the_administrators_cache_has_damaged_is_made_in_ones_own(home, monkeypatch, tmp_path):
    (thing() / "file").unlink()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    monkeypatch.setattr(cache.os, "access", lambda path, mode: path != home)  # as for a user who is not root
    assert thing() == tmp_path / "own" / "inflight" / "things" / "thing"


HOLD = """
import sys
from filelock import FileLock
with FileLock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_who_waits_too_long_is_told_and_a_dead_holders_lock_is_free(monkeypatch):
    holder = start_python(HOLD, cache.folder("things") / "thing.lock", stdin=subprocess.PIPE)
    assert holder.stdout.readline() == "held\n"
    monkeypatch.setattr(cache, "LOCK_TIMEOUT_S", 0.2)
    with pytest.raises(CourseError, match="Another process has been making thing in .*: wait for it or end it"):
        thing()
    holder.kill()
    holder.communicate()
    assert thing().is_dir()


MAKE = """
import sys
from inflight import cache, files
target = cache.place("things", sys.argv[1])
def make():
    with files.written_aside(target, "thing"):
        print("making", flush=True)
        sys.stdin.read()
cache.made_once(target, make)
"""


def test_what_a_killed_maker_left_is_removed_and_not_what_one_at_work_has(home):
    killed, at_work = (start_python(MAKE, name, stdin=subprocess.PIPE) for name in ("1.5-killed", "1.5-at-work"))
    for maker in (killed, at_work):
        assert maker.stdout.readline() == "making\n"
    killed.kill()
    killed.communicate()
    assert len(list(home.glob("things/.1.5-killed.*"))) == 1
    thing()
    assert not list(home.glob("things/.1.5-killed.*")) and len(list(home.glob("things/.1.5-at-work.*"))) == 1
    at_work.communicate()
    assert not list(home.glob("things/.*"))
