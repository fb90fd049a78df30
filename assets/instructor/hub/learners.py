#!/usr/bin/env python3
"""Users of this machine for a day: made with new passwords, and removed with all that they left.

    sudo assets/instructor/hub/learners.py add 30            prints a sheet to cut into strips: name and password
    sudo assets/instructor/hub/learners.py add 30 --sheet FILE      the same, into a file that only root can read
    sudo assets/instructor/hub/learners.py remove            ends their processes, and removes them and their files

Passwords are nowhere else: the machine keeps their hashes. `add` again gives new ones, and keeps the files.
"""

import argparse
import grp
import os
import pwd
import secrets
import shutil
import subprocess
import sys
from pathlib import Path

GROUP = os.environ.get("HUB_GROUP") or "inflight-class"
COMMENT = "learner of the course"  # marks the users that are ours to remove
LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"  # none that is mistaken for another
SHARED = Path("/tmp"), Path("/var/tmp"), Path("/dev/shm")


def password() -> str:
    """Three groups of four letters: 59 bits, and read aloud without mistakes."""
    return "-".join("".join(secrets.choice(LETTERS) for _ in range(4)) for _ in range(3))


def names(count: int, prefix: str) -> list[str]:
    """learner01, learner02, …"""
    return [f"{prefix}{number:02d}" for number in range(1, count + 1)]


def sheet(passwords: dict[str, str]) -> str:
    """One strip a learner."""
    rule = "- " * 20
    strips = [f"user name   {name}\npassword    {word}\n{rule}\n" for name, word in passwords.items()]
    return "".join(strips)


def add(count: int, prefix: str) -> dict[str, str]:
    """Make the users that are not there yet, and give all of them new passwords: name -> password."""
    _run("groupadd", "--force", GROUP)
    members = set(_members())
    for name in names(count, prefix):
        try:
            pwd.getpwnam(name)
        except KeyError:
            _run("useradd", "--create-home", "--shell", "/bin/bash", "--comment", COMMENT, "--groups", GROUP, name)
        else:
            if name not in members:
                sys.exit(f"There is a user {name} who is not of this class: give another --prefix.")
        Path(pwd.getpwnam(name).pw_dir).chmod(0o700)
    passwords = {name: password() for name in names(count, prefix)}
    _run("chpasswd", given="".join(f"{name}:{word}\n" for name, word in passwords.items()))
    return passwords


def remove() -> list[str]:
    """Remove the class: processes, users, homes, and files in the folders that all share. A number is used again."""
    gone = _members()
    for name in gone:
        number = pwd.getpwnam(name).pw_uid
        subprocess.run(["pkill", "-KILL", "--uid", str(number)], check=False)  # 1: there was none
        for folder in SHARED:
            for path in _owned_by(number, folder):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        _run("userdel", "--remove", name)
    return gone


def _owned_by(number: int, folder: Path) -> list[Path]:
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        try:
            owner = path.lstat().st_uid
        except FileNotFoundError:  # others use the folder, too, and have removed it meanwhile
            continue
        found += [path] if owner == number else []
    return found


def _members() -> list[str]:
    try:
        members = grp.getgrnam(GROUP).gr_mem
    except KeyError:
        return []
    return sorted(name for name in members if pwd.getpwnam(name).pw_gecos.startswith(COMMENT))


def _run(*command: str, given: str | None = None) -> None:
    """Passwords are given on standard input: everybody can read a command's arguments."""
    done = subprocess.run(command, input=given, text=True, capture_output=True)
    if done.returncode:
        sys.exit(f"{command[0]} failed: {done.stderr.strip()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    adding = commands.add_parser("add")
    adding.add_argument("count", type=int)
    adding.add_argument("--prefix", default="learner")
    adding.add_argument("--sheet", type=Path)
    commands.add_parser("remove")
    given = parser.parse_args()
    if os.geteuid():
        sys.exit("Users are made and removed by root: run it with sudo.")
    if given.command == "remove":
        print(f"removed: {', '.join(remove()) or 'nobody'}")
    elif given.sheet is None:
        print(sheet(add(given.count, given.prefix)), end="")
    else:
        with open(os.open(given.sheet, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(sheet(add(given.count, given.prefix)))


if __name__ == "__main__":
    main()
