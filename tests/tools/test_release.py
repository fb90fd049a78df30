"""A release: what is in the wheel and the source distribution, and the course from the wheel alone."""

import fnmatch
import io
import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import nbformat
import pytest

from inflight import __version__
from inflight.paths import COURSE, cache_dir
from tools import release

EPOCH = 1_750_000_000
MOST_BYTES = 400_000
NOTEBOOK = "inflight/course/notebooks/03_serve.ipynb"


def clone_files() -> list[str]:
    """The files of the clone that git does not ignore; git itself may not be there."""
    lines = (COURSE / ".gitignore").read_text().splitlines()
    ignored = [".git", *(line.rstrip("/") for line in lines if line and not line.startswith("#"))]
    found = []
    for folder, folders, names in os.walk(COURSE):
        for each in (folders, names):
            each[:] = [name for name in each if not any(fnmatch.fnmatch(name, pattern) for pattern in ignored)]
        found += [os.path.relpath(os.path.join(folder, name), COURSE) for name in names]
    return found


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    return release.copied(COURSE, clone_files(), tmp_path_factory.mktemp("release") / "source")


@pytest.fixture(scope="module")
def built(source) -> tuple[Path, Path]:
    return release.build(source, source.with_name("built"), EPOCH)


def test_both_hold_what_the_clone_has(built, source):
    wheel, sdist = built
    assert wheel.name == f"inflight-{__version__}-py3-none-any.whl" and sdist.name == f"inflight-{__version__}.tar.gz"
    assert release.wheel_problems(wheel, source) == []
    assert release.sdist_problems(sdist, source) == []


def test_a_wheel_needs_what_pyproject_pins_and_an_authors_tools_only_if_asked(built):
    with zipfile.ZipFile(built[0]) as archive:
        metadata = archive.read(f"inflight-{__version__}.dist-info/METADATA").decode()
    needed = re.findall(r"^Requires-Dist: (.+)$", metadata, re.M)
    assert all(re.match(r"[\w.-]+(\[[\w,]+\])?==\S+", line) for line in needed)
    assert any(line.startswith("openvino==") for line in needed)
    assert all("extra ==" in line for line in needed if line.startswith(("pytest", "ruff", "mypy", "hypothesis")))
    assert "Requires-Python: <3.13,>=3.11" in metadata


def test_the_same_commit_gives_the_same_bytes_wherever_it_is_built(source, tmp_path):
    """Of a clone without its large files."""
    small = [
        path.relative_to(source) for path in source.rglob("*") if path.is_file() and path.stat().st_size < MOST_BYTES
    ]
    places = [release.copied(source, sorted(map(str, small)), tmp_path / name / "source") for name in ("here", "there")]
    first = release.build(places[0], tmp_path / "first", EPOCH)
    umask = os.umask(0o077)
    try:
        again = release.build(places[1], tmp_path / "again", EPOCH)
    finally:
        os.umask(umask)
    assert [release.sha256(path) for path in again] == [release.sha256(path) for path in first]


def without_outputs(data: bytes) -> bytes:
    notebook = nbformat.reads(data.decode(), as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    return nbformat.writes(notebook).encode()


@pytest.mark.parametrize(
    "name, change, says",
    [
        (NOTEBOOK, lambda data: None, f"lacks {NOTEBOOK}"),
        (NOTEBOOK, without_outputs, f"{NOTEBOOK} has lost its outputs"),
        (NOTEBOOK, lambda data: data + b" ", f"{NOTEBOOK} is not as it is in git"),
        ("inflight/course/work/labs/01_engine_lab.ipynb", lambda data: b"{}", "which git does not have there"),
        ("inflight/stray.py", lambda data: f"{COURSE}/x".encode(), f"holds the path {COURSE}/ of this machine"),
        (f"inflight-{__version__}.dist-info/METADATA", lambda data: None, "lacks METADATA"),
    ],
)
def test_what_a_wheel_should_not_be_is_seen(built, source, tmp_path, name, change, says):
    spoilt = tmp_path / built[0].name
    with zipfile.ZipFile(built[0]) as before, zipfile.ZipFile(spoilt, "w") as after:
        files = {each: before.read(each) for each in before.namelist()}
        files[name] = change(files.get(name))
        for each, data in files.items():
            if data is not None:
                after.writestr(each, data)
    assert any(says in problem for problem in release.wheel_problems(spoilt, source))


def test_what_a_source_distribution_should_not_be_is_seen(built, source, tmp_path):
    spoilt = tmp_path / built[1].name
    with tarfile.open(built[1]) as before, tarfile.open(spoilt, "w:gz") as after:
        for member in before.getmembers():
            if not member.name.endswith("labs/01_engine_lab.ipynb"):
                after.addfile(member, before.extractfile(member) if member.isfile() else None)
        stray = tarfile.TarInfo(f"inflight-{__version__}/.env")
        after.addfile(stray, io.BytesIO())
    assert sorted(release.sdist_problems(spoilt, source)) == [
        f"{spoilt.name} holds .env, which git does not have there",
        f"{spoilt.name} lacks labs/01_engine_lab.ipynb",
    ]


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A folder that git would call clean, and what git says of it, to be changed."""
    says = {"status": "", "tag": ""}
    monkeypatch.setattr(release, "_git", lambda root, command, *arguments: says[command])
    (tmp_path / "CHANGELOG.md").write_text(f"# Changes\n\n## [{__version__}] – today\n")
    return tmp_path, says


def test_a_clean_clone_with_a_new_version_is_released(repository):
    release.refuse_unclean(repository[0])


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda root, says: says.update(status=" M README.md"), "not committed:\n M README.md"),
        (lambda root, says: says.update(tag=f"v{__version__}"), "tagged already: raise __version__"),
        (lambda root, says: (root / "CHANGELOG.md").write_text("## 0.0.1\n"), f"no section `## [{__version__}]`"),
        (lambda root, says: (root / "CHANGELOG.md").unlink(), f"no section `## [{__version__}]`"),
    ],
)
def test_what_cannot_be_released_is_said(repository, change, words):
    change(*repository)
    with pytest.raises(release.NoRelease, match=re.escape(words)):
        release.refuse_unclean(repository[0])


@pytest.fixture
def stood_in(tmp_path, monkeypatch):
    """A release of which every part but the last is stood in for; a dict says which of them find something."""
    finds = {"checks": 0, "wheel": []}

    def build(source, out, epoch):
        assert epoch == EPOCH and source == tmp_path / "copy"
        out.mkdir()
        for name in ("inflight.whl", "inflight.tar.gz"):
            (out / name).write_text(name)
        return out / "inflight.whl", out / "inflight.tar.gz"

    monkeypatch.setattr(release, "COURSE", tmp_path / "clone")
    monkeypatch.setattr(release, "refuse_unclean", lambda root: None)
    monkeypatch.setattr(release, "_git", lambda root, command, *arguments: str(EPOCH))
    monkeypatch.setattr(release.check, "main", lambda names: finds["checks"])
    monkeypatch.setattr(release, "copied", lambda root, names, to: tmp_path / "copy")
    monkeypatch.setattr(release, "build", build)
    monkeypatch.setattr(release, "wheel_problems", lambda wheel, source: finds["wheel"])
    monkeypatch.setattr(release, "sdist_problems", lambda sdist, source: [])
    (tmp_path / "clone" / "dist").mkdir(parents=True)
    (tmp_path / "clone" / "dist" / "old.whl").touch()
    return tmp_path / "clone" / "dist", finds


def test_a_release_says_what_it_made_and_what_comes_next(stood_in, capsys):
    dist, _ = stood_in
    assert release.main() == 0
    assert sorted(path.name for path in dist.iterdir()) == ["SHA256SUMS", "inflight.tar.gz", "inflight.whl"]
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=dist, check=True)
    said = capsys.readouterr().out
    assert (dist / "SHA256SUMS").read_text() in said and f"git tag -a v{__version__}" in said and "make test" in said


@pytest.mark.parametrize("found, says", [({"checks": 1}, "`make check` fails"), ({"wheel": ["a", "b"]}, "a\nb")])
def test_what_a_release_finds_ends_it_and_touches_nothing(stood_in, capsys, found, says):
    dist, finds = stood_in
    finds.update(found)
    assert release.main() == 1 and f"error: no release: {says}" in capsys.readouterr().err
    assert [path.name for path in dist.iterdir()] == ["old.whl"]


def test_a_build_that_fails_says_why(tmp_path):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "pyproject.toml").write_text("[project]\nname = 1\n")
    with pytest.raises(release.NoRelease, match=r"build_sdist failed:[\s\S]*project"):
        release.build(tmp_path / "source", tmp_path / "out", EPOCH)


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory) -> Path:
    """The `inflight` command of an environment that holds the wheel, and of the clone nothing but its dependencies."""
    prefix = tmp_path_factory.mktemp("installed")
    venv.create(prefix, with_pip=False)
    python = prefix / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", built[0]]
    subprocess.run(pip, check=True, capture_output=True)
    [packages] = prefix.glob("lib/*/site-packages")
    (packages / "dependencies.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    return prefix / "bin" / "inflight"


@pytest.fixture
def inflight(installed, tmp_path):
    """Function that runs the command in an empty folder, as somebody would who has never seen the clone."""
    (tmp_path / "empty").mkdir()
    away = ("PYTHONPATH", "VIRTUAL_ENV", "INFLIGHT_WORK")
    environment = {name: value for name, value in os.environ.items() if name not in away}
    # What pip would have put into the environment itself, had it installed the dependencies there.
    environment |= {"INFLIGHT_HOME": str(cache_dir()), "JUPYTER_PATH": f"{sys.prefix}/share/jupyter"}

    def run(*arguments):
        command = [installed, *arguments]
        ran = subprocess.run(
            command, cwd=tmp_path / "empty", env=environment, capture_output=True, text=True, timeout=300
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    return run


def test_from_an_empty_folder_the_lessons_are_there(inflight, installed, tmp_path):
    """And nothing of it comes from the clone."""
    assert "Copied 19 notebooks" in inflight("lab", "--prepare-only")
    work = tmp_path / "empty" / "work"
    assert sorted(path.name for path in work.iterdir() if not path.name.startswith(".")) == [
        "assets", "labs", "notebooks", "solutions"
    ]  # fmt: skip
    assert (work / "assets").resolve().is_relative_to(installed.parent.parent)
    assert "04 · " in inflight("progress")
    assert "Python" in inflight("doctor")


def test_from_an_empty_folder_a_lesson_runs(inflight, tmp_path):
    inflight("run", "00")
    page = (tmp_path / "empty" / "build" / "course" / "00_start_here.html").read_text()
    assert str(COURSE) + "/" not in page
