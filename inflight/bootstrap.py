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
import json
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
# JupyterLab asks nobody for news, for a newer version of itself, or for what else there is to install; nor does it look
# for language servers, for which it starts npm.
JUPYTER = {
    "LabApp": {
        "news_url": None,
        "check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
        "extension_manager": "readonly",
    },
    "LanguageServerManager": {"autodetect": False},
}
CONTAINER = "use a Linux machine or container with Debian 12, Ubuntu 22.04 or newer"


class SetupError(Exception):
    """What stops the set-up, in one sentence with what to do instead."""


def machine_facts():
    """Operating system, CPU, and C library of this machine (`glibc` is None where there is another library)."""
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
    """One sentence that says why the course cannot run on such a machine and what to do instead; None when it can."""
    if facts["system"] == "Darwin":
        return "macOS has no Triton Inference Server: {}, for example in Docker Desktop or on Binder.".format(CONTAINER)
    if facts["system"] == "Windows":
        return (
            "Windows has no Triton Inference Server: install WSL 2 with Ubuntu 22.04 or newer, and run this inside it."
        )
    if facts["system"] != "Linux":
        return "{} has no Triton Inference Server: {}.".format(facts["system"], CONTAINER)
    if facts["machine"] not in MACHINES:
        return "There is no Triton wheel for this CPU ({}): the course needs 64-bit {}, so {} on such a CPU.".format(
            facts["machine"], " or ".join(MACHINES), CONTAINER
        )
    if facts["glibc"] is None:
        return "This Linux has no glibc (Alpine and others use musl), and Triton needs {}.{} or newer: {}.".format(
            *GLIBC, CONTAINER
        )
    if facts["glibc"] < GLIBC:
        return "This Linux has glibc {}.{}, and Triton needs {}.{} or newer: {}.".format(
            *facts["glibc"], *GLIBC, CONTAINER
        )
    return None


def python_facts(command):
    """(version, has_venv) of a Python command; None when it does not run, like the empty shim of a version manager."""
    probe = "import sys; print(*sys.version_info[:2]); import venv, ensurepip; print('venv')"
    try:
        result = subprocess.run([command, "-I", "-c", probe], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except OSError:
        return None
    words = result.stdout.decode().split()
    if len(words) < 2:
        return None
    return (int(words[0]), int(words[1])), words[2:] == ["venv"]


def choose_python(candidates):
    """The first command of `candidates`, a list of (command, facts), that can make .venv.

    Raises
    ------
    SetupError
        None can: the Python is too old or too new, or Debian's venv package is missing.
    """
    without_venv = None
    for command, facts in candidates:
        if facts is None or facts[0] not in PYTHONS:
            continue
        if facts[1]:
            return command
        without_venv = without_venv or (command, facts[0])
    if without_venv:
        command, version = without_venv
        raise SetupError(
            "Python {1}.{2} ({0}) has no venv module: install it (on Debian and Ubuntu: "
            "sudo apt install python{1}.{2}-venv), then run the command again.".format(command, *version)
        )
    found = ["{}.{}".format(*facts[0]) for _, facts in candidates if facts]
    raise SetupError(
        "The course needs Python 3.11 or 3.12, and here is {}: install one of them (on Debian 12: sudo "
        "apt install python3.11-venv; on Ubuntu 24.04: sudo apt install python3.12-venv; or conda env "
        "create -f environment.yml), then run the command again.".format(
            "Python " + ", ".join(found) if found else "none"
        )
    )


def find_python():
    """The running Python if it can make .venv, else python3.12 or python3.11 from PATH.

    Raises
    ------
    SetupError
        None of them can.
    """
    # Inside an activated .venv, its Python would be removed together with it: take the one that it was made from.
    running = getattr(sys, "_base_executable", sys.executable)
    commands = [running] + [found for found in map(shutil.which, ("python3.12", "python3.11")) if found]
    return choose_python([(command, python_facts(command)) for command in commands])


def fingerprint(root, python_version):
    """Hash of what a .venv is made from: pinned packages, project, Python version, and the folder its scripts name."""
    parts = [root.encode(), python_version.encode()]
    for name in ("requirements.txt", "pyproject.toml"):
        with open(os.path.join(root, name), "rb") as file:
            parts.append(file.read())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def venv_python_version(venv):
    """Full version of the Python in .venv, asked of itself; None when it does not run."""
    probe = "import platform; print(platform.python_version())"
    command = [os.path.join(venv, "bin", "python"), "-I", "-S", "-c", probe]
    try:
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except OSError:
        return None
    return result.stdout.decode().strip() or None


def is_ready(root):
    """True when .venv is whole and was made from the files as they are now."""
    stamp = os.path.join(root, ".venv", "stamp")
    if not os.path.exists(stamp):
        return False
    version = venv_python_version(os.path.join(root, ".venv"))
    with open(stamp) as file:
        return version is not None and file.read() == fingerprint(root, version)


def why_pip_failed(output, log_file):
    """One sentence for the end of a failed pip run, from its output, which is kept in `log_file`."""
    if re.search(r"No space left on device|Disk quota exceeded|Errno (28|122)\b", output):
        return (
            "The disk became full while packages were installed: free 5 GB (12 GB where pip takes PyTorch's build for "
            "GPUs), then run the command again."
        )
    if re.search(
        r"name resolution|NewConnectionError|NameResolutionError|Connection refused|Network is unreachable|"
        r"ConnectTimeout|Read timed out|Connection aborted|ProxyError",
        output,
    ):
        return (
            "The package index cannot be reached: connect this machine to the network (or set PIP_INDEX_URL to "
            "your mirror), then run the command again."
        )
    if "DO NOT MATCH THE HASHES" in output:
        other = re.search(r"^ +(\S+) from (\S+)", output, re.MULTILINE)
        return "{} is not the file whose hash is in requirements.txt, and nothing was installed: {}".format(
            "{} from {}".format(*other.groups()) if other else "A package",
            "another package index (PIP_INDEX_URL) may have it, and whoever runs this one should know.",
        )
    if re.search(r"No matching distribution found for torch==\S+\+cpu", output):
        return (
            "The package index has no PyTorch for CPUs, which INFLIGHT_TORCH=cpu asks for: set PIP_EXTRA_INDEX_URL to "
            "the CPU index that PyTorch's installation page names, or leave INFLIGHT_TORCH out."
        )
    errors = re.findall(r"^ERROR: (.+)$", output, re.MULTILINE)
    reason = errors[-1].rstrip(".") if errors else "no reason given"
    return "pip could not install the packages ({}): its full output is in {}.".format(reason, log_file)


def show_progress(line, done, total):
    """Rewrite one line of a terminal; say nothing elsewhere, where it would only fill a log."""
    if sys.stdout.isatty():
        sys.stdout.write("\r\033[K" + (line and "  {}/{} {}".format(done, total, line)[:78]))
        sys.stdout.flush()


def follow(pip, log_file, total):
    """Show what a running pip is at, keep its output in a file, and return it once pip has ended."""
    seen, lines = 0, []
    with open(log_file, "a") as log:
        for line in pip.stdout:
            log.write(line)
            lines.append(line)
            if line.startswith("Collecting "):
                seen += 1
                show_progress(line.split()[1], seen, total)
            elif line.startswith("Installing collected packages"):
                show_progress("unpacking", seen, total)
    show_progress("", seen, total)
    pip.wait()
    return "".join(lines)


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
    with open(os.path.join(root, "requirements.txt")) as file:
        pins = [line for line in file if "==" in line and not line.startswith("#")]
    with open(os.path.join(root, "pyproject.toml")) as file:
        torch = re.findall(r'^ *"(torch==[^"]+)"', file.read(), re.MULTILINE)
    # requirements.txt is the whole set, so nothing is left for pip to resolve; why it must not try: see pyproject.toml.
    hashed = ["--no-deps", "--require-hashes", "--only-binary=:all:", "-r", "requirements.txt"]
    run_pip(root, prefix, ["install", *hashed], len(pins))
    if not IN_WHEEL:
        # setuptools, which this needs, has just been installed: no other is fetched.
        run_pip(root, prefix, ["install", "--no-deps", "--no-build-isolation", "-e", "."], 0)
    if os.environ.get("INFLIGHT_TORCH") == "cpu":
        torch = [pin + "+cpu" for pin in torch]
    if torch:  # with the CUDA libraries that its build for GPUs names
        run_pip(root, prefix, ["install", *torch], len(torch))


def run_pip(root, prefix, arguments, total):
    """Run pip in the environment at `prefix`, showing its progress towards `total` packages.

    Raises
    ------
    SetupError
        pip failed; the sentence says why.
    """
    command = [os.path.join(prefix, "bin", "python"), "-m", "pip", *arguments]
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    environment.update(PIP_USER="0", PIP_NO_INPUT="1", PIP_PROGRESS_BAR="off", PIP_DISABLE_PIP_VERSION_CHECK="1")
    pip = subprocess.Popen(
        command,
        cwd=root,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
    )
    log_file = os.path.join(prefix, "setup.log")
    try:
        output = follow(pip, log_file, total)
    finally:
        pip.terminate()  # no effect on a pip that has ended; an interrupted set-up leaves none behind
        pip.wait()
    if pip.returncode:
        raise SetupError(why_pip_failed(output, log_file))


def quiet_jupyter(prefix):
    """Settings for the JupyterLab in the environment at `prefix`; a file that is there already stays as it is."""
    path = os.path.join(prefix, "etc", "jupyter", "jupyter_lab_config.json")
    if not os.path.exists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            json.dump(JUPYTER, file, indent=2)


def tell_of_gpu(prefix):
    """Say in a sentence whether the environment at `prefix` uses the machine's GPU; nothing where there is none."""
    command = [os.path.join(prefix, "bin", "python"), "-I", "-c", "from inflight import tiers; print(tiers.note())"]
    told = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.decode().strip()
    if told:
        print(told)


def install_here(root, prefix):
    """Install everything into the environment at `prefix`, which its user has made for the course.

    Raises
    ------
    SetupError
        Its Python has another version, or pip failed.
    """
    version = sys.version_info[:2]
    if version not in PYTHONS:
        raise SetupError(
            "The course needs Python 3.11 or 3.12, and here is Python {}.{}: make the environment with one of them "
            "(conda env create -f environment.yml), then run the command again.".format(*version)
        )
    print("Setting up {} (1 to 4 minutes) ...".format(prefix))
    sys.stdout.flush()
    install(root, prefix)
    # What an earlier installation brought: see inflight/__init__.py. Where it is not, pip says so and all is well.
    run_pip(root, prefix, ["uninstall", "--yes", "openvino-telemetry"], 0)
    quiet_jupyter(prefix)
    print("{} is ready.".format(prefix))
    tell_of_gpu(prefix)


def remove(venv):
    """Remove what an earlier set-up left, whole or half-made."""
    if os.path.islink(venv):
        os.unlink(venv)
    elif os.path.exists(venv):
        shutil.rmtree(venv)


def make_venv(root, python):
    """Make .venv new with `python`, and stamp it last."""
    venv = os.path.join(root, ".venv")
    print("Setting up .venv with {} (1 to 4 minutes, once) ...".format(python))
    sys.stdout.flush()
    remove(venv)
    made = subprocess.run([python, "-I", "-m", "venv", venv], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if made.returncode:
        reason = " ".join(made.stdout.decode(errors="replace").split())
        raise SetupError("{} -m venv failed: {}".format(python, reason))
    install(root, venv)
    quiet_jupyter(venv)
    aside = os.path.join(venv, "stamp.part")
    with open(aside, "w") as file:
        file.write(fingerprint(root, venv_python_version(venv)))
    os.rename(aside, os.path.join(venv, "stamp"))
    print(".venv is ready.")
    tell_of_gpu(venv)


def setup(root, here=False):
    """Make .venv unless it is there and whole. Two at once: the second waits, then finds it made.

    `here`: install into the Python that runs this, and make no .venv.

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
    if here:
        return install_here(root, sys.prefix)
    if is_ready(root):
        return
    import fcntl  # Windows has none, and is refused above

    with open(os.path.join(root, "requirements.txt"), "r+b") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Another set-up is at work in this folder: waiting for it ...")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_ready(root):
            make_venv(root, find_python())


def main():
    """Set up; exit 2 with one sentence where that is impossible, 130 when interrupted."""
    here = sys.argv[1:] == ["--here"]
    try:
        setup(ROOT, here)
    except SetupError as error:
        sys.stderr.write("error: {}\n".format(error))
        return 2
    except OSError as error:
        sys.stderr.write(
            "error: {} cannot be made ({}): make room there and check that you may write to it, "
            "then run the command again.\n".format(sys.prefix if here else os.path.join(ROOT, ".venv"), error.strerror)
        )
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("\nInterrupted: run the command again, and set-up starts over.\n")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
