"""Set-up: make .venv with exactly the packages of requirements.txt, or say in one sentence why this is impossible.

Run by the Makefile before everything else, with whatever `python3` the machine has: standard library only, and written
so that even Python 3.6 parses it, because only then can an old Python be told what it should be.

uv does the work: the one on the path, else one that pip installs into build/uv. It makes .venv with this machine's
Python 3.11 or 3.12, or brings 3.12 itself. It takes packages from where pip would, since it is told what pip is told
(`uv_settings`).

A stamp inside .venv is written last. It names what .venv was made from, so a half-made, moved or outdated .venv has no
stamp that fits, and is made again.

With --here the packages go into the Python that runs this, and no .venv is made: for conda and images. So it is where
this file came in a wheel (`pip install --no-deps inflight-….whl && python -m inflight.bootstrap --here`).

INFLIGHT_TORCH chooses PyTorch's build by the name that its index has (cpu, cu130, …), or is `auto`: `choose_torch`.
"""

import configparser
import glob
import hashlib
import importlib.util
import json
import os
import platform
import re
import shutil
import ssl
import subprocess
import sys
import tempfile

PACKAGE = os.path.dirname(os.path.abspath(__file__))
IN_WHEEL = os.path.isdir(os.path.join(PACKAGE, "course"))
ROOT = os.path.join(PACKAGE, "course") if IN_WHEEL else os.path.dirname(PACKAGE)
PYTHONS = ((3, 11), (3, 12))
MACHINES = ("x86_64", "aarch64")  # CPUs that Triton's and OpenVINO's wheels exist for
GLIBC = (2, 35)
DISK_GB = 5  # for packages, and for what the course itself makes
CONTAINER = "open the course in a container or in Codespaces, as README.md says"
OLDEST_UV = (0, 13)  # older ones do not hold a file against the hash that an index names
UV = (
    "uv==0.13.9 --hash=sha256:d7f459fe4fd247d830351c75686d3996ace3c6f3f728eb0e85a30b7ada0cef19"  # x86-64
    " --hash=sha256:ecb6028d79dc96fbeafffe5c8af62a7099487ebc05a701e76714eebcffd06375"  # arm64
)


class SetupError(Exception):
    """The set-up cannot go on; one sentence says why, and what to do instead."""


# The machine ----------------------------------------------------------------------------------------------------------


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
    if facts["system"] != "Linux":
        name = {"Darwin": "macOS"}.get(facts["system"], facts["system"])
        wsl = ", or run this in WSL 2 with Ubuntu 22.04 or newer" if name == "Windows" else ""
        return "{} has no Triton Inference Server: {}{}.".format(name, CONTAINER, wsl)
    if facts["machine"] not in MACHINES:
        return "There is no Triton wheel for this CPU ({}): the course needs 64-bit {}, so {}.".format(
            facts["machine"], " or ".join(MACHINES), CONTAINER
        )
    if facts["glibc"] is None or facts["glibc"] < GLIBC:
        has = "glibc {}.{}".format(*facts["glibc"]) if facts["glibc"] else "no glibc (Alpine and others use musl)"
        return "This Linux has {}, and Triton needs glibc {}.{} or newer: {}.".format(has, *GLIBC, CONTAINER)
    return None


def has_nvidia_gpu():
    """True where there is an NVIDIA GPU, or Windows' subsystem hands on a GPU, which may be one."""
    return bool(glob.glob("/dev/nvidia[0-9]*")) or os.path.exists("/dev/dxg")


# What pip is told -----------------------------------------------------------------------------------------------------


def pip_settings(environ):
    """Options of `pip install` from pip's files and from PIP_*, put together as pip does; name -> text."""
    own = environ.get("PIP_CONFIG_FILE")
    home = os.path.expanduser("~")
    folders = environ.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    files = [os.path.join(folder, "pip", "pip.conf") for folder in folders.split(os.pathsep)]
    files += ["/etc/pip.conf", os.path.join(home, ".pip", "pip.conf")]
    files.append(os.path.join(environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config"), "pip", "pip.conf"))
    files.append(os.path.join(sys.prefix, "pip.conf"))
    parser = configparser.RawConfigParser()
    if own != os.devnull:
        parser.read([*files, own or os.devnull], encoding="utf-8")
    said = [item for section in ("global", "install") if parser.has_section(section) for item in parser.items(section)]
    said += [(name[len("PIP_") :].lower(), value) for name, value in environ.items() if name.startswith("PIP_")]
    return {name.replace("_", "-"): value.strip() for name, value in said if value and value.strip()}


def uv_settings(environ):
    """Translate what pip is told for uv, which reads none of it.

    Returns
    -------
    tuple
        Variables for uv's environment, and options for its commands. Variables of uv that are set already are left out.
    """
    pip = pip_settings(environ)
    links = [
        place if "://" in place else os.path.abspath(os.path.expanduser(place)) for place in words(pip, "find-links")
    ]
    said = {
        "UV_DEFAULT_INDEX": pip.get("index-url"),
        "UV_INDEX": " ".join(words(pip, "extra-index-url")),
        "UV_FIND_LINKS": ",".join(links),
        "UV_INSECURE_HOST": " ".join(words(pip, "trusted-host")),
        "UV_HTTP_TIMEOUT": pip.get("timeout") or pip.get("default-timeout"),
        "SSL_CERT_FILE": pip.get("cert"),
        "SSL_CLIENT_CERT": pip.get("client-cert"),
        "HTTPS_PROXY": pip.get("proxy"),
        "HTTP_PROXY": pip.get("proxy"),
        # As pip: the best file of all indexes. No other project's file can slip in, because each has its hash.
        "UV_INDEX_STRATEGY": "unsafe-best-match" if "extra-index-url" in pip else None,
        # As pip and git: the certificates of this machine, where a company has added its own.
        "UV_SYSTEM_CERTS": "true" if ssl.get_default_verify_paths().cafile else None,
    }
    no_index = pip.get("no-index", "").lower() in ("1", "true", "yes", "on")
    return (
        {name: value for name, value in said.items() if value and name not in environ},
        ["--no-index"] if no_index else [],
    )


def words(settings, name):
    """Values of an option that may have several."""
    return settings.get(name, "").split()


# uv -------------------------------------------------------------------------------------------------------------------


def find_uv(folder):
    """Path of a uv: the one on the path if it is new enough, else one of our own, which pip installs into `folder`.

    Raises
    ------
    SetupError
        There is no uv and no pip, or pip failed.
    """
    found = shutil.which("uv")
    if found:
        said = subprocess.run([found, "--version"], stdout=subprocess.PIPE, universal_newlines=True).stdout
        if tuple(int(part) for part in re.findall(r"\d+", said)[:2]) >= OLDEST_UV:
            return found
    own = os.path.join(folder, "bin", "uv")
    mark = os.path.join(folder, "installed")  # written last, with what was installed
    if os.path.exists(mark):
        with open(mark) as file:
            if file.read() == UV:
                return own
    print("Installing uv, which does the rest (20 MB) ...", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    if importlib.util.find_spec("pip"):
        python, target = sys.executable, ["--target", folder]
    else:
        python, target = os.path.join(folder, "bin", "python"), []
        if subprocess.call([sys.executable, "-I", "-m", "venv", folder], stdout=subprocess.DEVNULL):
            raise SetupError(
                "Python's packages cannot be installed here, because this machine has neither uv nor pip: "
                "sudo apt install python3-venv (or install uv, and put it on the path), then run the command again."
            )
    command = [python, "-I", "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]
    command += [*target, "--no-deps", "--require-hashes", "--only-binary=:all:", "--requirement", "/dev/stdin"]
    environ = dict(os.environ, PIP_USER="0", PIP_ROOT_USER_ACTION="ignore")
    if subprocess.run(command, input=UV, universal_newlines=True, env=environ).returncode:
        raise SetupError(
            "pip could not install uv, and says why above: connect this machine to the network, or name your package "
            "index in pip's configuration (or PIP_INDEX_URL), then run the command again."
        )
    with open(mark, "w") as file:
        file.write(UV)
    return own


def run(command, problem):
    """Run a command of uv, which shows what it does, where no settings of this project are in its way.

    Raises
    ------
    SetupError
        It failed. `problem` says what that means, unless the disk is full.
    """
    if subprocess.call(command, cwd="/"):
        places = [
            path for path in (ROOT, os.path.expanduser("~")) if os.path.exists(path)
        ]  # uv keeps files in the latter
        free = min(shutil.disk_usage(path).free for path in places) / 1e9
        if free < 1:
            problem = (
                "The disk is full ({:.1f} GB free): make room, {} GB in all (12 GB with PyTorch's build for GPUs)"
            ).format(free, DISK_GB)
        raise SetupError(problem + ", then run the command again.")


# Python and PyTorch ---------------------------------------------------------------------------------------------------


def missing_library(python):
    """Name the shared library of this Python, which Triton loads, if it is not there: Debian's is a package apart."""
    probe = "import sys, sysconfig as s; print('libpython{}.{}'.format(*sys.version_info), s.get_config_var('LIBDIR'))"
    said = subprocess.run([python, "-I", "-c", probe], stdout=subprocess.PIPE, universal_newlines=True).stdout
    name, _, folder = said.strip().partition(" ")
    return None if os.path.exists(os.path.join(folder, name + ".so.1.0")) else name


def make_venv(uv, venv):
    """Make .venv anew; return why it has the Python that it has.

    Raises
    ------
    SetupError
        There is neither Python 3.11 nor 3.12 with its library, and uv could not bring one; or .venv cannot be written.
    """
    mine = "Python {}.{}".format(*sys.version_info[:2])
    if sys.version_info[:2] in PYTHONS:
        # Inside an activated .venv, its Python would be removed together with it: take the one that it was made from.
        wanted, why = getattr(sys, "_base_executable", sys.executable), "set-up was run with it"
    else:
        find = [uv, "python", "find", "--system", "--no-python-downloads", ">=3.11,<3.13"]
        wanted = subprocess.run(
            find, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, universal_newlines=True, cwd="/"
        ).stdout.strip()
        why = "set-up was run with {}, and found this one".format(mine)
    command, problem = ["--python", wanted], "uv could not make .venv, and says why above: mend that"
    library = missing_library(wanted) if wanted else None
    if library or not wanted:
        here = "{} without {}".format(wanted, library) if library else "{} only".format(mine)
        print("Here is {}: uv brings Python 3.12 (35 MB).".format(here), flush=True)
        command, why = (
            ["--python-preference", "only-managed", "--python", "3.12"],
            "uv brought it, as set-up found {}".format(here),
        )
        problem = (
            "The course needs Python 3.11 or 3.12, here is {}, and uv could not bring 3.12, as it says above: connect "
            "this machine to the network, name a mirror in UV_PYTHON_INSTALL_MIRROR, or install {}"
        ).format(here, library or "Python 3.12 or 3.11 (conda has both)")
    run([uv, "venv", "--quiet", "--clear", "--prompt", "inflight", *command, venv], problem)
    return why


def choose_torch(uv, options, python, root):
    """Choose PyTorch's build for this machine.

    First what pip's configuration has (a `+cpu` wheel in a folder or an index): who wrote that knows the machine. Then
    PyTorch's own index: the build for CPUs, or the one for an NVIDIA GPU and its driver. Then what the package index
    has, which is its build for GPUs.

    Returns
    -------
    tuple
        Pins of PyTorch and of what requirements.txt has not (CUDA's libraries); the option that finds them; and why.

    Raises
    ------
    SetupError
        No index can be asked, or none has the build that INFLIGHT_TORCH names.
    """
    with open(os.path.join(root, "pyproject.toml")) as file:
        [torch] = re.findall(r'^ *"(torch==[^"]+)"', file.read(), re.MULTILINE)
    requirements = os.path.join(root, "requirements.txt")
    with open(requirements) as file:
        pinned = {line.split()[0] for line in file if "==" in line}
    wish = os.environ.get("INFLIGHT_TORCH", "")
    if wish not in ("", "auto"):
        torch += "+" + wish

    def resolve(*backend):
        command = [uv, "pip", "compile", "-", "--quiet", "--no-header", "--no-annotate", "--only-binary=:all:"]
        command += ["--python", python, "--constraints", requirements, *options, *backend]
        made = subprocess.run(
            command, input=torch, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, cwd="/"
        )
        return [line for line in made.stdout.split("\n") if line and line not in pinned], made.stderr

    # Not `auto` everywhere: it takes the build for Intel's GPUs, which the course cannot use, on most laptops.
    backend = "--torch-backend=" + (wish or ("auto" if has_nvidia_gpu() else "cpu"))
    found, said = resolve() if wish != "auto" else ([], "")
    if any(line.startswith("torch==") and "+" in line for line in found):
        return found, [], "pip's configuration has it"
    theirs, said = resolve(backend) if found or wish else (found, said)
    if theirs and theirs != found:
        reason = "INFLIGHT_TORCH says so" if wish else "it fits this machine"
        return theirs, [backend], "PyTorch's own index has it, and " + reason
    if found:
        return found, [], "the package index has it, and PyTorch's own, which has smaller ones, gave none"
    sys.stderr.write(said)
    raise SetupError(
        "uv found no {}, and says why above: connect this machine to the network, or name an index or a folder that "
        "has it in pip's configuration (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS), then run the command "
        "again.".format(torch)
    )


# Set-up ---------------------------------------------------------------------------------------------------------------


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


def install(uv, options, root, prefix, python, why_python):
    """Install requirements.txt, PyTorch and this project, which a wheel has brought already, for `python` at `prefix`.

    Every file is a wheel, so that none runs code now, and is held against its hash in requirements.txt. The one
    exception is PyTorch: whether its build is for CPUs or for GPUs depends on the machine and the index, and so does
    its hash. uv holds it against the one that the index names.

    Raises
    ------
    SetupError
        uv could not: no network, a full disk, a hash that does not match.
    """
    torch, backend, why_torch = choose_torch(uv, options, python, root)
    version = next(line for line in torch if line.startswith("torch==")).partition("==")[2]
    size = " for GPUs, 2.7 GB to download and 4.8 GB on disk" if len(torch) > 1 else ""
    print("PyTorch {}{}: {}.".format(version, size, why_torch), flush=True)
    # requirements.txt is the whole set, so nothing is left to resolve; why uv must not try: see pyproject.toml.
    into = [uv, "pip", "install", "--python", python, "--no-deps", *options]
    run(
        [*into, "--only-binary=:all:", "--requirement", os.path.join(root, "requirements.txt"), *torch, *backend],
        "uv could not install the packages, and says why above: mend the network, or name in pip's configuration an "
        "index or a folder that has these files (one with another hash is another file)",
    )
    if not IN_WHEEL:
        # setuptools, which this needs, has just been installed: no other is fetched.
        run(
            [*into, "--quiet", "--no-build-isolation", "--editable", root],
            "uv could not install the course itself, and says why above: mend that",
        )
    # JupyterLab asks nobody for news or newer versions, and looks for no language servers, for which it starts npm.
    quiet = os.path.join(prefix, "etc", "jupyter", "jupyter_lab_config.json")
    if not os.path.exists(quiet):
        os.makedirs(os.path.dirname(quiet), exist_ok=True)
        shutil.copyfile(os.path.join(root, "assets", "jupyterlab", "jupyter_lab_config.json"), quiet)
    with open(os.path.join(prefix, "etc", "inflight.json"), "w") as file:  # `inflight doctor` shows it
        json.dump({"python": why_python, "torch": why_torch}, file)


def setup(root, here=False):
    """Make .venv unless it is there and whole; with `here`, install into the Python that runs this, and make no .venv.

    Raises
    ------
    SetupError
        The machine is unfit, has no usable Python and gets none, or uv failed.
    """
    problem = unsupported(machine_facts())
    if problem:
        raise SetupError(problem)
    if IN_WHEEL and not here:
        raise SetupError(
            "The course came in a wheel: run `python -m inflight.bootstrap --here` in an environment of its own."
        )
    if here and sys.version_info[:2] not in PYTHONS:
        raise SetupError(
            "The course needs Python 3.11 or 3.12, and here is {}.{}: make an environment with one of them (conda env "
            "create -f environment.yml), or run `make setup` in a clone, which brings its own.".format(
                *sys.version_info
            )
        )
    if here and missing_library(sys.executable):
        raise SetupError(
            "Triton cannot load this Python, because its shared library is missing: install {} (conda's Python has "
            "its own), then run the command again.".format(missing_library(sys.executable))
        )
    venv = os.path.join(root, ".venv")
    if not here and is_ready(root):
        return
    print("Setting up {} (a minute or two) ...".format(sys.prefix if here else ".venv"), flush=True)
    variables, options = uv_settings(os.environ)
    os.environ.update(variables)
    for name in ("PYTHONPATH", "PYTHONHOME"):  # another environment's
        os.environ.pop(name, None)
    if here:
        with tempfile.TemporaryDirectory() as folder:
            install(find_uv(folder), options, root, sys.prefix, sys.executable, "set-up was run with it")
    else:
        uv = find_uv(os.path.join(root, "build", "uv"))
        why = make_venv(uv, venv)
        python = os.path.join(venv, "bin", "python")
        install(uv, options, root, venv, python, why)
        with open(os.path.join(venv, "stamp"), "w") as file:
            file.write(fingerprint(root, python))
    print("Ready; `inflight doctor` shows what this machine has.")


def main():
    """Set up; exit 2 with one sentence where that is impossible, 130 when interrupted."""
    try:
        setup(ROOT, here=sys.argv[1:] == ["--here"])
    except SetupError as error:
        sys.stderr.write("error: {}\n".format(error))
        return 2
    except configparser.Error as error:
        said = str(error).replace("\n", " ")
        sys.stderr.write(
            "error: pip's configuration cannot be read ({}): correct it, then run it again.\n".format(said)
        )
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
