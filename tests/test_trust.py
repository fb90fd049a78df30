"""Who else could change what lies at a path."""

import os
import pwd
from types import SimpleNamespace

import pytest

from inflight import trust

NOBODY = 65534


@pytest.fixture(autouse=True)
def nobody_is_trusted(monkeypatch):
    monkeypatch.delenv("INFLIGHT_TRUST", raising=False)


@pytest.fixture
def place(tmp_path):
    (tmp_path / "above" / "folder").mkdir(parents=True)
    return tmp_path / "above" / "folder"


def give_away(path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a folder another user's")
    os.lchown(path, NOBODY, NOBODY)


def test_ones_own_folder_is_in_no_doubt_nor_is_one_to_be_made(place):
    place.chmod(0o755)
    assert trust.doubt(place, holds_files=True) is None
    assert trust.doubt(place / "not" / "there") is None
    assert trust.doubt(place / ".." / "folder") is None
    (place / "file").write_text("")
    assert trust.doubt(place / "file" / "below") is None and trust.doubt_within(place) is None


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


def test_where_the_sticky_bit_keeps_names_safe_the_next_name_decides(place):
    place.parent.chmod(0o1777)
    assert trust.doubt(place) is None and trust.doubt(place, holds_files=True) is None
    assert trust.doubt(place.parent) is None
    assert trust.doubt(place.parent, holds_files=True).path == place.parent
    give_away(place)
    assert trust.doubt(place).path == place


def test_what_belongs_to_another_user_is_in_doubt_unless_they_are_trusted(place, monkeypatch):
    name = pwd.getpwuid(NOBODY).pw_name
    (place / "file").write_text("")
    give_away(place.parent)
    found = trust.doubt(place / "file")
    assert (found.path, found.is_open, found.owner) == (place.parent, False, name)
    assert str(found) == f"{place.parent} belongs to {name}"
    for trusted in (name, str(NOBODY), f"ada, {name}", "everyone"):
        monkeypatch.setenv("INFLIGHT_TRUST", trusted)
        assert trust.doubt(place / "file") is None
    monkeypatch.setenv("INFLIGHT_TRUST", "ada, 12345")
    assert trust.doubt(place) is not None


def test_a_trusted_owner_does_not_excuse_a_folder_that_all_can_write(place, monkeypatch):
    monkeypatch.setenv("INFLIGHT_TRUST", str(NOBODY))
    give_away(place)
    place.chmod(0o777)
    assert trust.doubt(place).is_open


def test_links_are_followed_and_belong_to_who_made_them(place, tmp_path):
    (tmp_path / "link").symlink_to("above/folder")
    assert trust.doubt(tmp_path / "link" / "x") is None
    (tmp_path / "absolute").symlink_to(place)
    place.chmod(0o777)
    for link in ("link", "absolute"):
        assert trust.doubt(tmp_path / link / "x").path == place
    place.chmod(0o755)
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(OSError, match="symbolic links"):
        trust.doubt(tmp_path / "round")
    give_away(tmp_path / "link")
    assert trust.doubt(tmp_path / "link" / "x").path == tmp_path / "link"


def test_files_in_a_folder_are_asked_one_by_one(place):
    (place / "deep").mkdir()
    (place / "deep" / "file").write_text("")
    (place / "deep" / "file").chmod(0o666)
    assert trust.doubt_within(place).path == place / "deep" / "file"
    (place / "deep" / "file").chmod(0o644)
    assert trust.doubt_within(place) is None
    give_away(place / "deep" / "file")
    assert trust.doubt_within(place).path == place / "deep" / "file"


def fake_users(monkeypatch, *, gid, members=(), others_of_the_group=(), known=True):
    """A list of users in which this one has a group, and other users as they are given."""
    users = [SimpleNamespace(pw_name="me", pw_uid=os.geteuid(), pw_gid=gid)] if known else []
    users += [SimpleNamespace(pw_name=name, pw_uid=7000 + n, pw_gid=gid) for n, name in enumerate(others_of_the_group)]
    monkeypatch.setattr(trust.pwd, "getpwall", lambda: users)
    monkeypatch.setattr(trust.grp, "getgrgid", lambda asked: SimpleNamespace(gr_mem=list(members)))


@pytest.mark.parametrize(
    "users, is_shared",
    [
        ({}, False),
        ({"members": ["me"]}, False),
        ({"members": ["me", "ada"]}, True),
        ({"others_of_the_group": ["ada"]}, True),
        ({"known": False}, True),
    ],
)
def test_a_group_of_ones_own_is_nobody_else(place, monkeypatch, users, is_shared):
    gid = 4321 if os.geteuid() == 0 else os.getegid()
    os.chown(place, -1, gid)
    if gid == 0:
        pytest.skip("the administrators' group")
    place.chmod(0o775)
    fake_users(monkeypatch, gid=gid, **users)
    assert (trust.doubt(place) is not None) == is_shared


def test_what_an_access_control_list_allows_counts_as_shared(place, monkeypatch):
    gid = 4321 if os.geteuid() == 0 else os.getegid()
    os.chown(place, -1, gid)
    place.chmod(0o775)
    fake_users(monkeypatch, gid=gid)
    assert trust.doubt(place) is None
    monkeypatch.setattr(trust.os, "listxattr", lambda path: ["system.posix_acl_access"])
    assert trust.doubt(place).is_open
