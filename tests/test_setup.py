"""Set-up: the files that name packages agree, unfit machines are told why, and .venv is remade when it must be."""

import functools
import hashlib
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
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
    assert "python -I inflight/bootstrap.py --here" in (ROOT / "REFERENCE.md").read_text()


def test_the_python_range_is_the_same_everywhere():
    assert PROJECT["project"]["requires-python"] == ">=3.11,<3.13"
    assert bootstrap.PYTHONS == ((3, 11), (3, 12))
    versions = ["{}.{}".format(*python) for python in bootstrap.PYTHONS]
    for workflow, name, tried, run in (
        ("ci", "test", versions[-1:], ""),
        ("nightly", "test-all", versions, " play test-all"),
    ):
        job = yaml.safe_load((ROOT / f".github/workflows/{workflow}.yml").read_text())["jobs"][name]
        assert job["strategy"]["matrix"]["python"] == tried
        assert job["env"]["PYTHON3"] == "python${{ matrix.python }}" and job["steps"][-1] == {"run": f".ci/run{run}"}


def test_every_file_that_set_up_installs_has_its_hash():
    """All but PyTorch's, whose build depends on the index."""
    assert [pin for pin, hashes in HASHES.items() if not hashes] == []
    assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", value) for hashes in HASHES.values() for value in hashes)
    assert not any(pin.startswith("torch==") for pin in HASHES)
    build = PROJECT["build-system"]["requires"]
    assert all(any(pin == need for pin in HASHES) for need in build), "set-up fetches nothing more to build the project"


def test_committed_files_name_no_package_index():
    files = (
        "requirements.txt",
        "environment.yml",
        "pyproject.toml",
        "inflight/bootstrap.py",
        "inflight/checkpoint/sources.py",
    )
    for name in files:
        text = (ROOT / name).read_text().replace(PROJECT["project"]["urls"]["Repository"], "")
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
    assert "open the course in a container or in Codespaces" in sentence


def test_bootstrap_parses_on_an_old_python():
    """Its newest syntax must be what Python 3.6 knows, or an old Python prints a traceback and not the sentence."""
    import ast

    ast.parse((ROOT / "inflight" / "bootstrap.py").read_text(), feature_version=(3, 6))


# A whole set-up of a small project, with real uv and real wheels, and no network --------------------------------------


@pytest.fixture(scope="module")
def uv() -> str:
    """What set-up uses here."""
    return bootstrap.find_uv(str(ROOT / "build" / "uv"))


@pytest.fixture
def project(tmp_path):
    """A project that needs the package `bait` and some PyTorch; its wheels are in `wheels`."""
    root = tmp_path / "project"
    (root / "inflight").mkdir(parents=True)
    shutil.copy(bootstrap.__file__, root / "inflight")
    settings = root / "assets" / "jupyterlab" / "jupyter_lab_config.json"
    settings.parent.mkdir(parents=True)
    shutil.copy(ROOT / "assets" / "jupyterlab" / settings.name, settings)
    (root / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "tiny"\nversion = "1"\ndependencies = [\n    "torch==1.0",\n]\n'
    )
    (root / "backend.py").write_text(BACKEND)
    (root / "requirements.txt").write_text(f"bait==1 --hash=sha256:{wheel(tmp_path / 'wheels', 'bait', '1')}\n")
    wheel(tmp_path / "wheels", "torch", "1.0+cpu")
    return root


BACKEND = """
import zipfile
def build_editable(folder, config_settings=None, metadata_directory=None):
    with zipfile.ZipFile(folder + "/tiny-1-py3-none-any.whl", "w") as archive:
        archive.writestr("tiny-1.dist-info/METADATA", "Metadata-Version: 2.1\\nName: tiny\\nVersion: 1\\n")
        archive.writestr("tiny-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        archive.writestr("tiny-1.dist-info/RECORD", "")
    return "tiny-1-py3-none-any.whl"
"""


def wheel(folder: Path, name: str, version: str, *needs: str, program: str = "") -> str:
    """Write a wheel that is empty but for a program of its name; return its SHA-256."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info, data = f"{name}-{version}.dist-info", f"{name}-{version}.data"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", "")
        script = zipfile.ZipInfo(f"{data}/scripts/{name}")
        script.external_attr = 0o100755 << 16
        archive.writestr(script, program)
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        archive.writestr(f"{info}/METADATA", metadata + "".join(f"Requires-Dist: {need}\n" for need in needs))
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def set_up(
    project: Path, uv: str, *arguments: str, python=sys.executable, **environ: str
) -> subprocess.CompletedProcess:
    """Run set-up, where pip's configuration is a file that names the folder of wheels and nothing else."""
    configuration = project.parent / "pip.conf"
    if not configuration.exists():
        configuration.write_text(f"[global]\nno-index = true\nfind-links = {project.parent / 'wheels'}\n")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_", "INFLIGHT"))
    }
    environment |= {"PATH": f"{Path(uv).parent}:/usr/bin:/bin", "HOME": str(project.parent), **environ}
    environment |= {"PIP_CONFIG_FILE": str(configuration), "XDG_CONFIG_DIRS": str(project.parent)}
    command = [python, "-I", project / "inflight" / "bootstrap.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=project)


def versions(python: Path) -> dict[str, str]:
    """Name -> version of what is installed for this Python."""
    code = "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"
    return json.loads(subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout)


def test_a_folder_of_wheels_is_enough_and_says_what_was_chosen(project, uv):
    done = set_up(project, uv)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "Ready; `inflight doctor` shows what this machine has."
    assert versions(project / ".venv/bin/python") == {"bait": "1", "torch": "1.0+cpu", "tiny": "1"}
    chosen = json.loads((project / ".venv/etc/inflight.json").read_text())
    assert chosen == {"python": "set-up was run with it", "torch": "pip's configuration has it"}
    settings = json.loads((project / ".venv/etc/jupyter/jupyter_lab_config.json").read_text())
    assert settings["LabApp"]["news_url"] is None
    assert bootstrap.is_ready(str(project))
    again = set_up(project, uv)
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")


def test_an_index_that_only_pips_configuration_names_is_enough(project, uv):
    wheels = project.parent / "wheels"
    for path in sorted(wheels.glob("*.whl")):
        page = wheels / path.name.partition("-")[0] / "index.html"
        page.parent.mkdir()
        page.write_text(f'<a href="../{path.name}">{path.name}</a>')
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=wheels)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        (project.parent / "pip.conf").write_text(f"[global]\nindex-url = http://127.0.0.1:{server.server_port}\n")
        done = set_up(project, uv)
        server.shutdown()
    assert done.returncode == 0, done.stderr
    assert versions(project / ".venv/bin/python")["torch"] == "1.0+cpu"


def test_here_installs_into_the_environment_of_its_python(project, uv, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    done = set_up(project, uv, "--here", python=tmp_path / "env/bin/python")
    assert done.returncode == 0, done.stderr
    assert versions(tmp_path / "env/bin/python") == {"bait": "1", "torch": "1.0+cpu", "tiny": "1"}
    assert (tmp_path / "env/etc/inflight.json").exists() and not (project / ".venv").exists()


def test_pytorchs_build_for_gpus_says_its_size_before_it_is_fetched(project, uv):
    wheels = project.parent / "wheels"
    (wheels / "torch-1.0+cpu-py3-none-any.whl").unlink()
    wheel(wheels, "torch", "1.0", "cudalib==1")
    wheel(wheels, "cudalib", "1")
    done = set_up(project, uv)
    assert done.returncode == 0, done.stderr
    assert "PyTorch 1.0 for GPUs, 2.7 GB to download and 4.8 GB on disk: the package index has it" in done.stdout
    assert versions(project / ".venv/bin/python") == {"bait": "1", "torch": "1.0", "cudalib": "1", "tiny": "1"}


def test_inflight_torch_chooses_the_build_or_set_up_ends(project, uv):
    wheel(project.parent / "wheels", "torch", "1.0+cu130")
    done = set_up(project, uv, INFLIGHT_TORCH="cpu")
    assert done.returncode == 0 and versions(project / ".venv/bin/python")["torch"] == "1.0+cpu"
    refused = set_up(project, uv, "--here", INFLIGHT_TORCH="cu126")
    assert refused.returncode == 2
    assert refused.stderr.splitlines()[-1].startswith(
        "error: uv found no torch==1.0+cu126, and says why above: connect"
    )


@pytest.mark.parametrize(
    "fault, says",
    [
        (
            "another hash",
            "index or a folder that has these files (one with another hash is another file)",
        ),
        ("no bait", "uv could not install the packages, and says why above"),
        (
            "no PyTorch",
            "uv found no torch==1.0, and says why above: connect this machine to the network, or name an index",
        ),
        ("a torn pip.conf", "pip's configuration cannot be read (File contains no section headers"),
        ("a file in the way", "set-up cannot write here"),
    ],
)
def test_a_set_up_that_cannot_go_on_says_one_sentence_and_leaves_no_stamp(project, uv, fault, says):
    wheels = project.parent / "wheels"
    if fault == "another hash":
        (project / "requirements.txt").write_text(f"bait==1 --hash=sha256:{'0' * 64}\n")
    elif fault == "no bait":
        (wheels / "bait-1-py3-none-any.whl").unlink()
    elif fault == "no PyTorch":
        (wheels / "torch-1.0+cpu-py3-none-any.whl").unlink()
    elif fault == "a torn pip.conf":
        (project.parent / "pip.conf").write_text("index-url = x\n")
    else:
        shutil.rmtree(project / "assets")
    done = set_up(project, uv)
    assert done.returncode == 2
    *_, sentence = re.split(r"^error: ", done.stderr, flags=re.MULTILINE)
    assert says in sentence and "then run" in sentence and "Traceback" not in done.stderr
    assert not bootstrap.is_ready(str(project))


@pytest.mark.parametrize(
    "free, says", [(0.2e9, "error: The disk is full (0.2 GB free): make room"), (9e9, "mend that")]
)
def test_a_full_disk_is_named(monkeypatch, free, says):
    monkeypatch.setattr(bootstrap.shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    with pytest.raises(bootstrap.SetupError) as caught:
        bootstrap.run(["false"], "mend that")
    assert says in f"error: {caught.value}"


# Parts of it ----------------------------------------------------------------------------------------------------------

WINS = """
[global]
index-url = https://example.org/overridden
extra_index_url =
    https://a.example.org/simple
    https://b.example.org/simple
timeout = 7
[install]
index-url = https://user:secret@example.org/simple
trusted-host = example.org other.example.org:8443
proxy = http://proxy.example.org:3128
"""


@pytest.mark.parametrize(
    "files, environ",
    [
        ({}, {}),
        ({"system": WINS}, {}),
        ({"system": WINS, "user": "[global]\ncert = /ca.pem\nindex-url = https://user.example.org\n"}, {}),
        ({"system": WINS, "named": "[install]\nindex-url = https://named.example.org\n"}, {"PIP_TIMEOUT": "9"}),
        ({"user": "[global]\nno-index = yes\nfind-links = /wheels\n"}, {"PIP_FIND_LINKS": "/one /two"}),
        ({"user": WINS}, {"PIP_EXTRA_INDEX_URL": "", "PIP_CLIENT_CERT": "/me.pem"}),
        ({"user": WINS}, {"PIP_CONFIG_FILE": os.devnull}),
    ],
)
def test_uv_is_told_what_pip_itself_reads(tmp_path, monkeypatch, files, environ):
    """The pip that is installed here is the judge: it reads the same files and variables."""
    places = {"system": "xdg/pip/pip.conf", "user": ".config/pip/pip.conf", "named": "named.conf"}
    for place, text in files.items():
        (tmp_path / places[place]).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / places[place]).write_text(text)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "XDG_CONFIG_DIRS": str(tmp_path / "xdg"),
        **environ,
    }
    if "named" in files:
        environment["PIP_CONFIG_FILE"] = str(tmp_path / "named.conf")
    script = """if True:
        import json
        from pip._internal.commands import create_command
        said, _ = create_command("install").parse_args(["x"])
        names = "index_url extra_index_urls find_links trusted_hosts cert client_cert proxy no_index timeout"
        print(json.dumps({name: getattr(said, name) for name in names.split()}))
    """
    printed = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True
    )
    pip = json.loads(printed.stdout)
    monkeypatch.setenv("HOME", str(tmp_path))
    variables, options = bootstrap.uv_settings(environment)
    variables.pop("UV_SYSTEM_CERTS", None)
    default = "https://pypi.org/simple"
    wanted = {
        "UV_DEFAULT_INDEX": pip["index_url"] if pip["index_url"] != default else None,
        "UV_INDEX": " ".join(pip["extra_index_urls"]),
        "UV_INDEX_STRATEGY": "unsafe-best-match" if pip["extra_index_urls"] else None,
        "UV_FIND_LINKS": ",".join(pip["find_links"]),
        "UV_INSECURE_HOST": " ".join(pip["trusted_hosts"]),
        "UV_HTTP_TIMEOUT": str(int(pip["timeout"])) if pip["timeout"] != 15 else None,
        "SSL_CERT_FILE": pip["cert"],
        "SSL_CLIENT_CERT": pip["client_cert"],
        "HTTPS_PROXY": pip["proxy"],
        "HTTP_PROXY": pip["proxy"],
    }
    assert variables == {name: value for name, value in wanted.items() if value}
    assert options == (["--no-index"] if pip["no_index"] else [])


def test_what_uv_is_told_already_is_left_as_it_is():
    told = {"PIP_INDEX_URL": "https://pip.example.org", "UV_DEFAULT_INDEX": "https://uv.example.org"}
    assert "UV_DEFAULT_INDEX" not in bootstrap.uv_settings({**told, "PIP_CONFIG_FILE": os.devnull})[0]


@pytest.fixture
def no_uv(tmp_path, monkeypatch):
    """A machine whose uv is too old, and whose pip finds one in a folder of wheels only."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "uv").write_text("#!/bin/sh\necho uv 0.4.30\n")
    (tmp_path / "bin" / "uv").chmod(0o755)
    digest = wheel(tmp_path / "wheels", "uv", "7", program="#!/bin/sh\necho uv 7.0.0\n")
    monkeypatch.setattr(bootstrap, "UV", f"uv==7 --hash=sha256:{digest}")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    return tmp_path / "folder"


@pytest.mark.parametrize("by", ["pip", "a venv's pip"])
def test_uv_is_installed_once_into_a_folder_of_its_own(no_uv, monkeypatch, by):
    if by != "pip":
        monkeypatch.setattr(bootstrap.importlib.util, "find_spec", lambda name: None)
        monkeypatch.setattr(bootstrap.sys, "executable", bootstrap.sys._base_executable)
    own = bootstrap.find_uv(str(no_uv))
    assert own == str(no_uv / "bin" / "uv")
    assert subprocess.run([own], capture_output=True, text=True, check=True).stdout == "uv 7.0.0\n"
    shutil.rmtree(no_uv.parent / "wheels")
    assert bootstrap.find_uv(str(no_uv)) == own


def test_a_uv_with_another_hash_is_not_installed(no_uv, monkeypatch, capfd):
    monkeypatch.setattr(bootstrap, "UV", f"uv==7 --hash=sha256:{'0' * 64}")
    with pytest.raises(bootstrap.SetupError, match="pip could not install uv, and says why above: connect"):
        bootstrap.find_uv(str(no_uv))
    assert "DO NOT MATCH THE HASHES" in capfd.readouterr().err and not (no_uv / "bin").exists()


def test_a_machine_with_neither_uv_nor_pip_gets_the_line_to_paste(no_uv, monkeypatch):
    monkeypatch.setattr(bootstrap.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(bootstrap.sys, "executable", shutil.which("false", path="/usr/bin:/bin"))
    with pytest.raises(bootstrap.SetupError, match=r"neither uv nor pip: sudo apt install python3-venv .*, then run"):
        bootstrap.find_uv(str(no_uv))


@pytest.mark.parametrize("has", ["one on the path", "none"])
def test_a_python_that_does_not_fit_makes_venv_with_another(tmp_path, monkeypatch, uv, has, capfd):
    monkeypatch.setattr(bootstrap, "sys", SimpleNamespace(version_info=(3, 14), executable="not used"))
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_PYTHON_INSTALL_DIR", str(tmp_path / "pythons"))
    if has == "none":
        monkeypatch.setenv("UV_PYTHON_PREFERENCE", "only-managed")
        with pytest.raises(
            bootstrap.SetupError, match=r"here is Python 3\.14 only, and uv could not bring 3\.12, as it says"
        ):
            bootstrap.make_venv(uv, str(tmp_path / ".venv"))
        assert "Here is Python 3.14 only: uv brings Python 3.12 (35 MB)." in capfd.readouterr().out
        return
    monkeypatch.setenv("PATH", str(Path(sys._base_executable).parent))
    why = bootstrap.make_venv(uv, str(tmp_path / ".venv"))
    assert why == "set-up was run with Python 3.14, and found this one"
    version = [tmp_path / ".venv/bin/python", "-c", "import sys; print(sys.version_info[:2] in [(3, 11), (3, 12)])"]
    assert subprocess.run(version, capture_output=True, text=True, check=True).stdout == "True\n"


def python_without_library(folder: Path) -> Path:
    """A Python that differs from this one in what Debian's lacks: no library is where it says."""
    path = folder / "bin" / "python3"
    path.parent.mkdir(parents=True)
    lie = "import sysconfig, sys; s = sysconfig.get_config_vars(); s['LIBDIR'] = '/nowhere'; exec(sys.argv[1])"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{lie}" "$3"\n')
    path.chmod(0o755)
    return path


def test_a_python_that_triton_cannot_load_is_not_taken(tmp_path, monkeypatch, project, uv, capfd):
    """Debian's and Ubuntu's Python 3.11 or 3.12, whose library is a package of its own."""
    assert bootstrap.missing_library(sys.executable) is None
    name = "libpython{}.{}".format(*sys.version_info)
    bad = str(python_without_library(tmp_path / "debian"))
    fake = SimpleNamespace(version_info=sys.version_info, executable=bad, _base_executable=bad)
    monkeypatch.setattr(bootstrap, "sys", fake)
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_PYTHON_INSTALL_DIR", str(tmp_path / "pythons"))
    with pytest.raises(bootstrap.SetupError, match=f"python3 without {name}, and uv could not bring .* install {name}"):
        bootstrap.make_venv(uv, str(tmp_path / ".venv"))
    assert f"python3 without {name}: uv brings Python 3.12 (35 MB)." in capfd.readouterr().out
    monkeypatch.setattr(bootstrap, "unsupported", lambda facts: None)
    monkeypatch.setattr(bootstrap, "machine_facts", dict)
    with pytest.raises(bootstrap.SetupError, match=f"its shared library is missing: install {name}"):
        bootstrap.setup(str(project), here=True)


# The stamp ------------------------------------------------------------------------------------------------------------


def stamped(project: Path) -> Path:
    """Make a .venv without packages in `project`, with the stamp that fits it."""
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


def test_the_paths_that_contributors_are_shown_are_there():
    shown = re.findall(r"`([\w./]+/[\w.]*)[` ]", (ROOT / "CONTRIBUTING.md").read_text())
    assert len(shown) > 20
    places = ROOT, ROOT / "inflight"  # the life of a request is told from the package's folder
    missing = [path for path in shown if not any((place / path).exists() for place in places)]
    assert missing == []
