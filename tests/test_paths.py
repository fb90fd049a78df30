"""Where a user's own folders are, and what a command says where there are none."""

import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from inflight import paths
from inflight.bench import dataset
from inflight.checkpoint import sources
from inflight.errors import CourseError

NOBODYS = next(number for number in range(54321, 60000) if number not in {user.pw_uid for user in pwd.getpwall()})


@pytest.fixture
def homeless(monkeypatch):
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: NOBODYS)


def test_a_user_without_a_home_folder_is_told_so(homeless, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with pytest.raises(CourseError, match=f"User {NOBODYS} has no home folder.* Set HOME to a folder of yours"):
        paths.own_cache_dir()
    assert paths.without_home("~/x and /y") == "~/x and /y"
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert paths.own_cache_dir() == Path("/somewhere/inflight")


@pytest.mark.parametrize("open_it", [dataset.read_dataset, sources.fetch])
def test_a_home_folder_that_nobody_has_is_a_sentence(open_it):
    with pytest.raises(CourseError, match="~nobody-of-this-name/x"):
        open_it("~nobody-of-this-name/x")


WITHOUT = """
import os, sys, tempfile
os.getuid = lambda: {number}
tempfile._candidate_tempdir_list = lambda: ["/proc"]
sys.argv = ["inflight", *{arguments}]
from inflight.cli import main
main()
"""


@pytest.mark.parametrize("command", [["doctor"], ["run", "00"]])
@pytest.mark.parametrize(
    ("has_home", "says"), [(False, "has no home folder"), (True, "There is no folder for temporary files")]
)
def test_without_a_home_or_a_temporary_folder_a_command_is_one_sentence(command, has_home, says):
    environment = {name: value for name, value in os.environ.items() if has_home or name != "HOME"}
    program = WITHOUT.format(number=NOBODYS, arguments=command)
    ended = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert says in ended.stderr and len(ended.stderr.splitlines()) == 1
