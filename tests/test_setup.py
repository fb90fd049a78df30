"""Set-up: the files that name packages agree, unfit machines are told why, and .venv is remade when it must be."""

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from inflight import bootstrap
from inflight.paths import COURSE

ROOT = COURSE
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
# A requirement and its hashes are one logical line, continued by backslashes.
LINES = (ROOT / "requirements.txt").read_text().replace("\\\n", "").splitlines()
HASHES = {line.split()[0]: re.findall(r"--hash=(\S+)", line) for line in LINES if not line.startswith("#")}
LOCK = [Requirement(line.partition(" --hash")[0].strip()) for line in LINES if not line.startswith("#")]
TORCH = next(line for line in PROJECT["project"]["dependencies"] if line.startswith("torch=="))
LOCK.append(Requirement(TORCH))
LINUX = {"system": "Linux", "machine": "x86_64", "glibc": (2, 36)}


MODEL = PROJECT["dependency-groups"]["model"]
DIRECT = [*PROJECT["project"]["dependencies"], *PROJECT["project"]["optional-dependencies"]["dev"], *MODEL]


def locked(python: str) -> dict[str, str]:
    """Name -> version of what requirements.txt installs with this Python on Linux."""
    environment = {
        "python_version": python,
        "python_full_version": python + ".9",
        "sys_platform": "linux",
        "platform_machine": "x86_64",
        "implementation_name": "cpython",
    }
    return {
        canonicalize_name(line.name): str(line.specifier).removeprefix("==")
        for line in LOCK
        if line.marker is None or line.marker.evaluate(environment)
    }


@pytest.mark.parametrize("python", ["3.11", "3.12"])
def test_every_direct_dependency_is_pinned_alike_in_requirements(python):
    pins = locked(python)
    for line in DIRECT:
        direct = Requirement(line)
        assert str(direct.specifier) == "==" + pins[canonicalize_name(direct.name)], line


def test_environment_yml_gives_the_same_set_and_a_python_in_the_range():
    dependencies = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    python = next(entry for entry in dependencies if str(entry).startswith("python="))
    assert python.removeprefix("python=") in ("3.11", "3.12")
    assert "pip" in dependencies
    commands = (ROOT / "postBuild").read_text().splitlines()[-2:]
    assert commands == ["python -I inflight/bootstrap.py --here", "exec python -m inflight lab --prepare-only"]
    assert (ROOT / "postBuild").stat().st_mode & 0o111
    assert "python -I inflight/bootstrap.py --here" in (ROOT / "README.md").read_text()


def test_the_python_range_is_the_same_everywhere():
    assert PROJECT["project"]["requires-python"] == ">=3.11,<3.13"
    assert bootstrap.PYTHONS == ((3, 11), (3, 12))
    job = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]["test"]
    assert job["strategy"]["matrix"]["python"] == ["{}.{}".format(*python) for python in bootstrap.PYTHONS]
    assert job["env"]["PYTHON3"] == "python${{ matrix.python }}" and job["steps"][-1] == {"run": ".ci/run"}


def test_every_file_that_set_up_installs_has_its_hash():
    """All but PyTorch's, whose build depends on the index."""
    assert [pin for pin, hashes in HASHES.items() if not hashes] == []
    assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", value) for hashes in HASHES.values() for value in hashes)
    assert not any(pin.startswith("torch==") for pin in HASHES)
    build = PROJECT["build-system"]["requires"]
    assert all(any(pin == need for pin in HASHES) for need in build), "set-up fetches nothing more to build the project"


def test_a_file_with_another_hash_is_not_installed(project, monkeypatch, tmp_path, capfd):
    wheel = tmp_path / "index" / "bait-1-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("bait.py", "")
        archive.writestr("bait-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: bait\nVersion: 1\n")
        archive.writestr("bait-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("bait-1.dist-info/RECORD", "bait.py,,\nbait-1.dist-info/RECORD,,\n")
    (project / "requirements.txt").write_text(f"bait==1 --hash=sha256:{'0' * 64}\n")
    offline = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheel.parent)}
    for name, value in offline.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(bootstrap, "ROOT", str(project))
    assert bootstrap.main() == 2
    error = capfd.readouterr().err
    assert (
        "DO NOT MATCH THE HASHES" in error and "error: pip could not install the packages, and says why above" in error
    )
    assert (project / ".venv").exists() and not list((project / ".venv").rglob("bait*"))
    assert not bootstrap.is_ready(str(project))


@pytest.mark.parametrize("wish, wanted", [("cpu", f"{TORCH}+cpu"), ("any", TORCH), ("", TORCH)])
def test_set_up_here_installs_into_this_python(monkeypatch, tmp_path, wish, wanted):
    ran = []
    monkeypatch.setenv("INFLIGHT_TORCH", wish)
    monkeypatch.setattr(bootstrap, "run_pip", lambda root, prefix, arguments: ran.append((prefix, arguments)))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    bootstrap.setup(str(ROOT), here=True)
    assert {prefix for prefix, _ in ran} == {str(tmp_path)}
    hashed, project, torch = (arguments for _, arguments in ran)
    assert {"--require-hashes", "--no-deps", "--only-binary=:all:", "requirements.txt"} < set(hashed)
    assert {"--no-build-isolation", "--no-deps", "."} < set(project)
    assert torch == ["install", wanted]
    settings = json.loads((tmp_path / "etc" / "jupyter" / "jupyter_lab_config.json").read_text())
    assert settings["LabApp"]["news_url"] is None


def test_committed_files_name_no_package_index():
    files = (
        "requirements.txt",
        "environment.yml",
        "pyproject.toml",
        "inflight/bootstrap.py",
        "inflight/checkpoint/sources.py",
    )
    for name in files:
        text = (ROOT / name).read_text()
        assert not re.search(r"--(extra-)?index-url|https?://\w", text), name


def test_requirements_hold_everything_that_its_packages_ask_for():
    """Set-up installs without resolving, so what is installed must already be a full answer."""
    pins = locked("{}.{}".format(*sys.version_info))
    uv = PROJECT["tool"]["uv"]  # uv leaves out the latter; what they need in turn is not there either
    replaced = {
        canonicalize_name(Requirement(line).name) for line in uv["override-dependencies"] + uv["exclude-dependencies"]
    }
    extras = {canonicalize_name(r.name): r.extras for r in map(Requirement, DIRECT)}
    for name in pins:
        try:
            wanted = [Requirement(line) for line in requires(name) or []]
        except PackageNotFoundError:
            pytest.fail(f"{name} is in requirements.txt and not installed: run make test")
        for need in wanted:
            chosen = {"", *extras.get(name, ())}
            needed = canonicalize_name(need.name)
            if needed in (*replaced, "setuptools") or (
                need.marker and not any(need.marker.evaluate({"extra": extra}) for extra in chosen)
            ):
                continue
            assert needed in pins and need.specifier.contains(pins[needed]), f"{name} needs {need}"


@pytest.mark.parametrize(
    "facts, says",
    [
        ({"system": "Darwin"}, "macOS"),
        ({"system": "Windows"}, "WSL 2"),
        ({"system": "FreeBSD"}, "FreeBSD"),
        ({"machine": "riscv64"}, "riscv64"),
        ({"machine": "32-bit x86_64"}, "64-bit"),
        ({"glibc": None}, "no glibc"),
        ({"glibc": (2, 31)}, "glibc 2.31"),
    ],
)
def test_an_unfit_machine_gets_one_sentence_with_what_to_do(facts, says):
    assert bootstrap.unsupported(bootstrap.machine_facts()) is None
    sentence = bootstrap.unsupported({**LINUX, **facts})
    assert says in sentence
    assert sentence.endswith(".") and sentence.count(". ") == 0 and "\n" not in sentence
    assert re.search(r"\buse a Linux|\binstall WSL", sentence)


@pytest.mark.parametrize(
    ("running", "on_path", "chosen"),
    [((3, 11), ["python3.12"], "running"), ((3, 13), ["python3.11"], "python3.11"), ((3, 9), [], None)],
)
def test_a_python_in_the_range_is_taken_or_the_sentence_says_what_to_install(monkeypatch, running, on_path, chosen):
    stand_in = SimpleNamespace(version_info=running, executable="in .venv", _base_executable="running")
    monkeypatch.setattr(bootstrap, "sys", stand_in)
    monkeypatch.setattr(bootstrap.shutil, "which", lambda name: name if name in on_path else None)
    if chosen:
        assert bootstrap.choose_python() == chosen
        return
    with pytest.raises(bootstrap.SetupError, match=r"here is Python 3\.9: install .* then run the command again"):
        bootstrap.choose_python()


def test_bootstrap_parses_on_an_old_python():
    """Its newest syntax must be what Python 3.6 knows, or an old Python prints a traceback and not the sentence."""
    import ast

    ast.parse((ROOT / "inflight" / "bootstrap.py").read_text(), feature_version=(3, 6))


@pytest.fixture
def project(tmp_path):
    """A project with nothing to install but itself; made the way set-up makes the real one, with no network."""
    (tmp_path / "requirements.txt").write_text("# nothing\n")
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "tiny"\nversion = "1"\n')
    return tmp_path


def stamped(project: Path) -> Path:
    """A .venv without packages in `project`, with the stamp that fits it."""
    venv = project / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    stamp = venv / "stamp"
    stamp.write_text(bootstrap.fingerprint(str(project), str(venv / "bin" / "python")))
    return stamp


def test_a_whole_venv_is_left_alone(project):
    stamp = stamped(project)
    before = stamp.stat().st_mtime_ns
    bootstrap.setup(str(project))
    assert bootstrap.is_ready(str(project)) and stamp.stat().st_mtime_ns == before


@pytest.mark.parametrize("change", ["no stamp", "other requirements", "other pyproject", "python gone", "folder moved"])
def test_a_half_made_outdated_or_moved_venv_is_not_ready(project, change):
    stamp = stamped(project)
    if change == "no stamp":
        stamp.unlink()
    elif change == "other requirements":
        (project / "requirements.txt").write_text("x==1\n")
    elif change == "other pyproject":
        (project / "pyproject.toml").write_text("")
    elif change == "python gone":
        (project / ".venv" / "bin" / "python").unlink()
    else:
        moved = project.with_name("moved-" + project.name)
        project = project.rename(moved)
    assert not bootstrap.is_ready(str(project))


def test_the_version_stands_in_the_package_alone():
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "inflight.__version__"}


def test_the_paths_that_contributors_are_shown_are_there():
    shown = re.findall(r"`([\w./]+/[\w.]*)[` ]", (ROOT / "CONTRIBUTING.md").read_text())
    assert len(shown) > 20
    assert [path for path in shown if "NN" not in path and not (ROOT / path).exists()] == []
