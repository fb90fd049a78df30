"""Who else could change what lies at a path."""

import pytest

from inflight import trust


@pytest.fixture(autouse=True)
def nobody_is_trusted(monkeypatch):
    monkeypatch.delenv("INFLIGHT_TRUST", raising=False)


@pytest.fixture
def place(tmp_path):
    (tmp_path / "above" / "folder").mkdir(parents=True)
    return tmp_path / "above" / "folder"


@pytest.mark.parametrize("mode", [0o777, 0o757, 0o702])
def test_a_folder_that_others_can_write_is_named_wherever_it_is_on_the_way(place, mode):
    for opened in (place, place.parent):
        opened.chmod(mode)
        for asked in (place, place / "not" / "there", place.parent / "x" / ".." / "folder"):
            if opened in (asked, *asked.parents):
                found = trust.doubt(asked)
                assert (found.path, found.is_open, found.is_own) == (opened, True, True)
                assert str(found) == f"{opened} can be written by other users (mode {mode:04o})"
        opened.chmod(0o755)
