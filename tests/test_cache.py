"""The cache folder: whose it is, locks that nobody can misuse, and things that are made once."""

import json
import os
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest

from inflight import cache, manifest
from inflight.errors import CourseError
from inflight.paths import COURSE
from tests.engines import start_python

NOBODY = 65534
AS_NOBODY = f"import os\nos.setgroups([])\nos.setgid({NOBODY})\nos.setuid({NOBODY})\n"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A cache folder of this test's own, that nobody has filled yet."""
    monkeypatch.delenv("INFLIGHT_TRUST", raising=False)
    monkeypatch.setenv("INFLIGHT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def needs_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can act as another user")


def give_away(path: Path) -> None:
    needs_root()
    for one in (path, *path.rglob("*")):
        os.lchown(one, NOBODY, NOBODY)


def make_thing(target: Path, text: str = "made") -> Path:
    from inflight import files

    with files.written_aside(target, "thing") as aside:
        (aside / "file").write_text(text)
        manifest.write(aside)
    return target


def thing(name: str = "thing") -> Path:
    """A folder with one file, made once."""
    target = cache.place("things", name)
    flaw = lambda: "is damaged" if manifest.differences(target) else None
    return cache.made_once(target, flaw, lambda: make_thing(target))


# Whose it is ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opened", ["", "things", "things/thing"])
@pytest.mark.parametrize("use", [thing, lambda: cache.folder("things", "thing")])
def test_a_cache_that_others_can_write_is_refused_in_a_sentence(home, opened, use):
    thing()
    (home / opened).chmod(0o777)
    with pytest.raises(CourseError) as caught:
        use()
    where = home / opened
    assert str(caught.value) == (
        f"The cache folder {home} is not used, for others could change what runs from it: {where} can be written by "
        f"other users (mode 0777). To go on, run chmod go-w {where}, or set INFLIGHT_HOME to a folder of your own, or, "
        "if you trust all who can write there, set INFLIGHT_TRUST=everyone."
    )
    where.chmod(0o755)
    assert use() == home / "things" / "thing"


def test_a_link_that_somebody_planted_is_refused_and_ones_own_is_followed(home, tmp_path):
    home.mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (home / "things").symlink_to(elsewhere)
    thing()
    assert (elsewhere / "thing" / "file").exists()
    needs_root()
    os.lchown(home / "things", NOBODY, NOBODY)
    with pytest.raises(CourseError, match=f"{home / 'things'} belongs to nobody"):
        thing()


@pytest.mark.parametrize("doubtful", ["0666", "owner"])
def test_a_file_that_others_can_write_is_made_again(home, capsys, doubtful):
    made = thing() / "file"
    made.chmod(0o666) if doubtful == "0666" else give_away(made)
    thing()
    said = capsys.readouterr().err
    assert said.startswith(f"{home}/things/thing cannot be trusted ({made} ") and said.endswith(": it is made again.\n")
    assert stat.S_IMODE(made.stat().st_mode) == 0o644 and made.stat().st_uid == os.geteuid()


def test_what_is_made_is_closed_whatever_the_umask(home):
    before = os.umask(0)
    try:
        thing()
    finally:
        os.umask(before)
    made = [home, *home.rglob("*")]
    assert len(made) == 6
    assert [path for path in made if path.stat().st_mode & 0o022] == []


# What it needs is imported first: another user may have no right to read this environment.
LEARNER = f"""
import sys
sys.path.insert(0, {str(COURSE)!r})
import filelock
from tests.test_cache import cache, thing, CourseError
{AS_NOBODY}
try:
    print(thing(*sys.argv[1:]))
except CourseError as error:
    sys.exit(f"CourseError: {{error}}")
"""


@pytest.fixture
def class_folder():
    """A folder that another user can search, with a cache in it, filled by this one."""
    needs_root()
    folder = Path(tempfile.mkdtemp(prefix="inflight-test-class-"))
    folder.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFLIGHT_HOME", str(folder / "shared"))
        thing()
    (folder / "learner").mkdir()
    os.chown(folder / "learner", NOBODY, NOBODY)
    yield folder
    shutil.rmtree(folder)


def run_learner(folder: Path, *arguments: str, **variables: str) -> str:
    environment = {**os.environ, "INFLIGHT_HOME": str(folder / "shared"), "HOME": str(folder / "learner"), **variables}
    environment.pop("XDG_CACHE_HOME", None)
    learner = start_python(LEARNER, *arguments, env=environment, cwd="/")
    return learner.communicate(timeout=120)[0].strip()


@pytest.mark.slow
def test_a_class_shares_what_the_administrator_has_filled(class_folder):
    shared = class_folder / "shared"
    assert run_learner(class_folder) == str(shared / "things" / "thing")
    own = class_folder / "learner" / ".cache" / "inflight"
    assert run_learner(class_folder, "another") == str(own / "things" / "another")
    assert run_learner(class_folder, "another") == str(own / "things" / "another")


# Locks ----------------------------------------------------------------------------------------------------------------

HOLD = f"""
import sys
sys.path.insert(0, {str(COURSE)!r})
from pathlib import Path
from inflight import cache
with cache.only_one(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def lock(home):
    return cache.folder("things") / "thing.lock"


@pytest.fixture
def holder(lock):
    process = start_python(HOLD, lock, stdin=subprocess.PIPE)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_who_waits_too_long_is_told_who_holds_the_lock(lock, holder, monkeypatch, capsys):
    monkeypatch.setattr(cache, "LOCK_TIMEOUT_S", 0.2)
    with pytest.raises(CourseError) as caught, cache.only_one(lock):
        pass
    holds = f"Process {holder.pid} on {os.uname().nodename} (-c {lock}"
    assert str(caught.value).startswith(holds[:100])
    assert f"has been making thing in {lock.parent} for more than 0 s: wait for it or end it" in str(caught.value)
    assert capsys.readouterr().err.endswith("is making thing: waiting for it.\n")


def test_a_dead_holders_lock_is_free(lock, holder):
    holder.kill()
    holder.wait()
    with cache.only_one(lock):
        assert json.loads(lock.read_text())["pid"] == os.getpid()
    assert lock.read_text() == "" and stat.S_IMODE(lock.stat().st_mode) == 0o600


def test_who_waits_gets_it_when_it_is_free(lock, holder, capsys):
    waiting = start_python(HOLD, lock, stdin=subprocess.PIPE)
    assert f"Process {holder.pid} on" in waiting.stdout.readline()
    holder.communicate("")
    assert waiting.stdout.readline() == "held\n"
    waiting.communicate("")


# Made once ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        lambda made: (made / "file").write_text("xade"),
        lambda made: (made / "file").unlink(),
        lambda made: shutil.rmtree(made) or made.write_text("a file"),
        lambda made: shutil.rmtree(made) or made.symlink_to("/etc"),
        lambda made: shutil.rmtree(made) or os.mkfifo(made),
        lambda made: shutil.rmtree(made) or made.mkdir(),
    ],
    ids=["changed", "missing", "a file", "a link", "a pipe", "an empty folder"],
)
def test_what_is_damaged_is_made_again_and_said(damage, capsys):
    made = thing()
    damage(made)
    assert thing() == made and (made / "file").read_text() == "made"
    said = capsys.readouterr().err
    assert said.startswith(f"{made} is ") and said.endswith(": it is made again.\n") and said.count("\n") == 1
    assert sorted(path.name for path in made.parent.iterdir()) == ["thing", "thing.lock"]
