"""Set-up: make .venv with exactly the packages of requirements.txt, or say in one sentence why this is impossible.

Run by the Makefile before everything else, with whatever `python3` the machine has: standard library only, and written
so that even Python 3.6 parses it, because only then can an old Python be told what it should be.

A stamp inside .venv is written last. It names what .venv was made from, so a half-made, moved or outdated .venv has no
stamp that fits, and is made again.

With --here the packages go into the Python that runs this, and no .venv is made: for conda, mamba and Binder. So it is
where this file came in a wheel (`pip install --no-deps inflight-….whl && python -m inflight.bootstrap --here`).

PyTorch is the build that the package index has: for GPUs, or for CPUs, which is five times smaller. With
INFLIGHT_TORCH=cpu in the environment it is the one for CPUs or none.
"""

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys

PACKAGE = os.path.dirname(os.path.abspath(__file__))
IN_WHEEL = os.path.isdir(os.path.join(PACKAGE, "course"))
ROOT = os.path.join(PACKAGE, "course") if IN_WHEEL else os.path.dirname(PACKAGE)
PYTHONS = ((3, 11), (3, 12))
MACHINES = ("x86_64", "aarch64")  # CPUs that Triton's and OpenVINO's wheels exist for
GLIBC = (2, 35)
DISK_GB = 5  # for packages, for pip, and for what the course itself makes
CONTAINER = "use a Linux machine or container with Debian 12, Ubuntu 22.04 or newer"
OTHER_PYTHON = (
    "The course needs Python 3.11 or 3.12, and here is Python {}.{}: install one of them (on Debian 12: sudo apt "
    "install python3.11-venv; on Ubuntu 24.04: sudo apt install python3.12-venv; or conda env create -f "
    "environment.yml), then run the command again."
)


class SetupError(Exception):
    """The set-up cannot go on; one sentence says why, and what to do instead."""


def machine_facts():
    """Return operating system, CPU, and C library of this machine (`glibc` is None where there is another library)."""
    try:
        libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, OSError, ValueError):  # musl and Windows do not know the name
        libc = ""
    version = re.match(r"glibc (\d+)\.(\d+)", libc)
    return {
        "system": platform.system(),
        "machine": platform.machine() if sys.maxsize > 2**32 else "32-bit " + platform.machine(),
        "glibc": tuple(int(part) for part in version.groups()) if version else None,
    }


def unsupported(facts):
    """Say in one sentence why the course cannot run on such a machine and what to do instead; None when it can."""
    if facts["system"] == "Windows":
        return "Windows has no Triton Inference Server: install WSL 2 with Ubuntu 22.04 or newer, and run this in it."
    if facts["system"] != "Linux":
        name = {"Darwin": "macOS"}.get(facts["system"], facts["system"])
        return "{} has no Triton Inference Server: {}.".format(name, CONTAINER)
    if facts["machine"] not in MACHINES:
        return "There is no Triton wheel for this CPU ({}): the course needs 64-bit {}, so {} on such a CPU.".format(
            facts["machine"], " or ".join(MACHINES), CONTAINER
        )
    if facts["glibc"] is None or facts["glibc"] < GLIBC:
        has = "glibc {}.{}".format(*facts["glibc"]) if facts["glibc"] else "no glibc (Alpine and others use musl)"
        return "This Linux has {}, and Triton needs glibc {}.{} or newer: {}.".format(has, *GLIBC, CONTAINER)
    return None


def choose_python():
    """Command of the Python that makes .venv: the one that runs this, if the course runs on it, else one on the path.

    Raises
    ------
    SetupError
        There is neither Python 3.11 nor 3.12.
    """
    if sys.version_info[:2] in PYTHONS:
        # Inside an activated .venv, its Python would be removed together with it: take the one that it was made from.
        return getattr(sys, "_base_executable", sys.executable)
    found = shutil.which("python3.12") or shutil.which("python3.11")
    if found is None:
        raise SetupError(OTHER_PYTHON.format(*sys.version_info[:2]))
    return found


def fingerprint(root, python):
    """Hash what a .venv is made from: packages, project, its Python's version, the folder that its scripts name."""
    probe = [python, "-I", "-S", "-c", "import platform; print(platform.python_version())"]
    try:
        version = subprocess.run(probe, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    except OSError:
        return None
    parts = [root.encode(), version]
    for name in ("requirements.txt", "pyproject.toml"):
        with open(os.path.join(root, name), "rb") as file:
            parts.append(file.read())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def is_ready(root):
    """True when .venv is whole and was made from the files as they are now."""
    stamp = os.path.join(root, ".venv", "stamp")
    if not os.path.exists(stamp):
        return False
    with open(stamp) as file:
        return file.read() == fingerprint(root, os.path.join(root, ".venv", "bin", "python"))


def install(root, prefix):
    """Install requirements.txt and this project, which a wheel has brought already, into the environment at `prefix`.

    Every file is held against its hash in requirements.txt, and each is a wheel, so that none runs code now. The one
    exception is PyTorch: whether its build is for CPUs or for GPUs depends on the index, and so does its hash. pip
    holds it against the one that the index names.

    Raises
    ------
    SetupError
        pip could not: no network, a full disk, a hash that does not match.
    """
    # requirements.txt is the whole set, so nothing is left for pip to resolve; why it must not try: see pyproject.toml.
    run_pip(root, prefix, ["install", "--no-deps", "--require-hashes", "--only-binary=:all:", "-r", "requirements.txt"])
    if not IN_WHEEL:
        # setuptools, which this needs, has just been installed: no other is fetched.
        run_pip(root, prefix, ["install", "--no-deps", "--no-build-isolation", "-e", "."])
    with open(os.path.join(root, "pyproject.toml")) as file:
        [torch] = re.findall(r'^ *"(torch==[^"]+)"', file.read(), re.MULTILINE)
    if os.environ.get("INFLIGHT_TORCH") == "cpu":
        torch += "+cpu"
    run_pip(root, prefix, ["install", torch])  # with the CUDA libraries that its build for GPUs names
    # JupyterLab asks nobody for news or newer versions, and looks for no language servers, for which it starts npm.
    quiet = os.path.join(prefix, "etc", "jupyter", "jupyter_lab_config.json")
    if not os.path.exists(quiet):
        os.makedirs(os.path.dirname(quiet), exist_ok=True)
        shutil.copyfile(os.path.join(root, "assets", "jupyterlab", "jupyter_lab_config.json"), quiet)


def run_pip(root, prefix, arguments):
    """Run pip in the environment at `prefix`; it shows what it does.

    Raises
    ------
    SetupError
        pip failed.
    """
    command = [os.path.join(prefix, "bin", "python"), "-m", "pip", *arguments]
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    environment.update(PIP_USER="0", PIP_NO_INPUT="1", PIP_DISABLE_PIP_VERSION_CHECK="1")
    if subprocess.call(command, cwd=root, env=environment):
        raise SetupError(
            "pip could not install the packages, and says why above: connect this machine to the network (or set "
            "PIP_INDEX_URL to your mirror), free {} GB of disk (12 GB for PyTorch's build for GPUs), with "
            "INFLIGHT_TORCH=cpu name PyTorch's index for CPUs in PIP_EXTRA_INDEX_URL, then run the command "
            "again.".format(DISK_GB)
        )


def install_here(root):
    """Install everything into the environment of the Python that runs this, which its user has made for the course."""
    if sys.version_info[:2] not in PYTHONS:
        raise SetupError(OTHER_PYTHON.format(*sys.version_info[:2]))
    print("Setting up {} (1 to 4 minutes) ...".format(sys.prefix), flush=True)
    install(root, sys.prefix)


def make_venv(root):
    """Make .venv new and stamp it last."""
    python = choose_python()
    venv = os.path.join(root, ".venv")
    print("Setting up .venv with {} (1 to 4 minutes, once) ...".format(python), flush=True)
    made = subprocess.run([python, "-I", "-m", "venv", "--clear", venv])
    if made.returncode:
        raise SetupError("{} -m venv failed, and says why above.".format(python))
    install(root, venv)
    with open(os.path.join(venv, "stamp"), "w") as file:
        file.write(fingerprint(root, os.path.join(venv, "bin", "python")))


def setup(root, here=False):
    """Make .venv unless it is there and whole; with `here`, install into the Python that runs this, and make no .venv.

    Raises
    ------
    SetupError
        The machine is unfit, has no usable Python, or pip failed.
    """
    problem = unsupported(machine_facts())
    if problem:
        raise SetupError(problem)
    if IN_WHEEL and not here:
        raise SetupError(
            "The course came in a wheel: run `python -m inflight.bootstrap --here` in an environment of its own."
        )
    if not here and is_ready(root):
        return
    if here:
        install_here(root)
    else:
        make_venv(root)
    print("Ready; `inflight doctor` shows what this machine has.")


def main():
    """Set up; exit 2 with one sentence where that is impossible, 130 when interrupted."""
    try:
        setup(ROOT, here=sys.argv[1:] == ["--here"])
    except SetupError as error:
        sys.stderr.write("error: {}\n".format(error))
        return 2
    except OSError as error:
        sys.stderr.write("error: set-up cannot write here ({}): make room, then run it again.\n".format(error))
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("\nInterrupted: run the command again, and set-up starts over.\n")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
