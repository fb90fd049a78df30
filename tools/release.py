"""A release: everything is checked, and dist/ holds a wheel and a source distribution that hold what they should.

    python -m tools.release

What git tracks is copied aside and built there, so that nothing else can get in. The wheel is built from the source
distribution, which shows that it is whole. Both have the same bytes wherever and whenever they are built from a commit.
The version stands in inflight/__init__.py, and nowhere else.
"""

import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import nbformat

from inflight import __version__
from inflight.paths import COURSE
from tools import check

PROJECT = "inflight"
# What somebody who has the wheel alone reads, runs and serves; the package itself comes on top.
IN_WHEEL = ("assets", "labs", "lessons", "notebooks", "solutions", "requirements.txt", "pyproject.toml")
SUMS = "SHA256SUMS"
SCRATCH = "inflight-release-"
BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"


class NoRelease(Exception):
    """Why there is none, in a sentence or some lines."""


def main() -> int:
    """Check, build, hold what was built against the clone, and say what comes next; returns the exit status."""
    try:
        refuse_unclean(COURSE)
        if check.main([]):
            raise NoRelease("`make check` fails: mend what it names.")
        epoch = int(_git(COURSE, "log", "-1", "--format=%ct"))
        with tempfile.TemporaryDirectory(prefix=SCRATCH) as scratch:
            source = copied(COURSE, _git(COURSE, "ls-files", "-z").split("\0"), Path(scratch) / "source")
            built = build(source, Path(scratch) / "built", epoch)
            if found := [*wheel_problems(built[0], source), *sdist_problems(built[1], source)]:
                raise NoRelease("\n".join(found))
            shutil.rmtree(COURSE / "dist", ignore_errors=True)
            shutil.copytree(Path(scratch) / "built", COURSE / "dist")
    except NoRelease as error:
        print(f"error: no release: {error}", file=sys.stderr)
        return 1
    made = [COURSE / "dist" / path.name for path in built]
    sums = "".join(f"{sha256(path)}  {path.name}\n" for path in made)
    (COURSE / "dist" / SUMS).write_text(sums)
    for path in made:
        print(f"dist/{path.name}  {path.stat().st_size / 1e6:.1f} MB")
    print(f"{sums}\nThe tests have not run here: `make test`. Then")
    print(f"    git tag -a v{__version__} -m 'Version {__version__}' && git push origin v{__version__}")
    print("and publish what is in dist/ with that tag.")
    return 0


def refuse_unclean(root: Path) -> None:
    """NoRelease for changes that are not committed, and for a version that is tagged or that no entry tells of."""
    if changed := _git(root, "status", "--porcelain"):
        raise NoRelease(f"these files are not committed:\n{changed}")
    if _git(root, "tag", "--list", f"v{__version__}"):
        raise NoRelease(f"v{__version__} is tagged already: raise __version__ in inflight/__init__.py.")
    changes = root / "CHANGELOG.md"
    if not changes.exists() or f"## {__version__}" not in changes.read_text(encoding="utf-8").replace("[", ""):
        raise NoRelease(
            f"CHANGELOG.md has no section `## [{__version__}]`: put what is [Unreleased] under that heading."
        )


def copied(root: Path, names: list[str], to: Path) -> Path:
    """A copy of the files `names` of the clone `root`, with the same permissions on every machine."""
    for name in filter(None, names):
        place = to / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / name, place)
        place.chmod(0o755 if os.access(root / name, os.X_OK) else 0o644)
    return to


def build(source: Path, out: Path, epoch: int) -> tuple[Path, Path]:
    """Build both from the files in `source`, which is left as it is.

    Parameters
    ----------
    source, out : Path
        `out` is made.
    epoch : int
        The time that every file in them gets, in seconds since 1970: the commit's.

    Returns
    -------
    tuple of Path
        The wheel and the source distribution.

    Raises
    ------
    NoRelease
        The build failed; the end of what it said.
    """
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix=SCRATCH) as scratch:
        [made] = _built(
            "build_sdist", shutil.copytree(source, Path(scratch) / "source"), Path(scratch) / "sdist", epoch
        )
        sdist = _timeless(made, out / made.name, epoch)
        with tarfile.open(sdist) as archive:
            archive.extractall(scratch)
        [wheel] = _built("build_wheel", Path(scratch) / made.name.removesuffix(".tar.gz"), out, epoch, "*.whl")
    return wheel, sdist


def wheel_problems(wheel: Path, source: Path) -> list[str]:
    """What is wrong with a wheel that was built from the clone in `source`, a line each."""
    with zipfile.ZipFile(wheel) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    package = {f"{PROJECT}/{name}" for name in _files(source / PROJECT)}
    course = {f"{PROJECT}/course/{name}": name for name in _files(source) if name.split("/")[0] in IN_WHEEL}
    wanted = {name: source / name for name in package} | {name: source / path for name, path in course.items()}
    about = {name for name in held if name.split("/")[0] == f"{PROJECT}-{__version__}.dist-info"}
    found = _differences(wheel, {name: data for name, data in held.items() if name not in about}, wanted)
    for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"):
        if f"{PROJECT}-{__version__}.dist-info/{name}" not in about:
            found.append(f"{wheel.name} lacks {name} of version {__version__}")
    lectures = [name for name in held if name.startswith(f"{PROJECT}/course/notebooks/") and name.endswith(".ipynb")]
    if not lectures:
        found.append(f"{wheel.name} holds no lecture")
    for name in lectures:
        cells = nbformat.reads(held[name].decode(), as_version=4).cells
        if not any(cell.get("outputs") for cell in cells):
            found.append(f"{wheel.name}: {name} has lost its outputs")
    return found + _tells_of_this_machine(wheel, held, source)


def sdist_problems(sdist: Path, source: Path) -> list[str]:
    """What is wrong with a source distribution of the clone in `source`, a line each."""
    top = sdist.name.removesuffix(".tar.gz")
    with tarfile.open(sdist) as archive:
        held = {
            member.name.removeprefix(f"{top}/"): archive.extractfile(member).read()
            for member in archive.getmembers()
            if member.isfile()
        }
    made = [name for name in held if name in ("PKG-INFO", "setup.cfg") or name.startswith(f"{PROJECT}.egg-info/")]
    ours = {name: data for name, data in held.items() if name not in made}
    found = _differences(sdist, ours, {name: source / name for name in _files(source)})
    return found + _tells_of_this_machine(sdist, held, source)


def sha256(path: Path) -> str:
    """The file's digest, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _differences(archive: Path, held: dict[str, bytes], wanted: dict[str, Path]) -> list[str]:
    """Files that are missing, that nobody asked for, and that differ."""
    return [
        *(f"{archive.name} lacks {name}" for name in sorted(set(wanted) - set(held))),
        *(f"{archive.name} holds {name}, which git does not have there" for name in sorted(set(held) - set(wanted))),
        *(
            f"{archive.name}: {name} is not as it is in git"
            for name in sorted(set(held) & set(wanted))
            if held[name] != wanted[name].read_bytes()
        ),
    ]


def _tells_of_this_machine(archive: Path, held: dict[str, bytes], source: Path) -> list[str]:
    """Files with a path of this machine in them: of the clone, of the place it was built in, of the user's home."""
    paths = [f"{COURSE}/", f"{source}/", f"{tempfile.gettempdir()}/{SCRATCH}"]
    if Path.home() != Path("/root"):  # root's is the same everywhere, and tells nothing
        paths.append(f"{Path.home()}/")
    return [
        f"{archive.name}: {name} holds the path {path} of this machine"
        for name, data in held.items()
        for path in paths
        if path.encode() in data
    ]


def _files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def _built(hook: str, source: Path, out: Path, epoch: int, pattern: str = "*") -> list[Path]:
    """What a hook of the build backend makes in `out`; the backend is the one that set-up has installed."""
    out.mkdir(exist_ok=True)
    ran = subprocess.run(
        [sys.executable, "-c", BUILD, hook, str(out)],
        cwd=source,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "PYTHONDONTWRITEBYTECODE": "1"},
        umask=0o022,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if ran.returncode:
        raise NoRelease(f"{hook} failed:\n{ran.stdout[-2000:]}")
    return list(out.glob(pattern))


def _timeless(made: Path, place: Path, epoch: int) -> Path:
    """The archive without what depends on who made it and when: owners, times, the order of its files."""
    plain = io.BytesIO()
    with tarfile.open(made) as before, tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as after:
        for member in sorted(before.getmembers(), key=lambda member: member.name):
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mtime, member.pax_headers = epoch, {}
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            after.addfile(member, before.extractfile(member) if member.isfile() else None)
    place.write_bytes(gzip.compress(plain.getvalue(), 6, mtime=epoch))
    return place


def _git(root: Path, *arguments: str) -> str:
    try:
        return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout.strip()
    except FileNotFoundError:
        raise NoRelease("git is not installed.") from None
    except subprocess.CalledProcessError as error:
        raise NoRelease(f"git says: {error.stderr.strip()}") from None


if __name__ == "__main__":
    sys.exit(main())
