"""Resolves what is installed: `python -m tools.requirements` writes requirements.txt and site/requirements.txt.

uv resolves pyproject.toml, and names for each package all the files that the index has. What is written has the hashes
of those alone that an installer takes: the best wheel for each Python and processor that the course runs on. A pin that
still fits is kept: to have it chosen anew, remove it from the file before.
"""

import re
import shutil
import subprocess
import tempfile
import tomllib
from pathlib import Path

from packaging.markers import Marker
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

from inflight import bootstrap
from inflight.paths import COURSE

# File -> what uv is asked for. PyTorch's build is chosen by set-up; the site's browser is driven from the course's own.
FILES = {
    "requirements.txt": "pyproject.toml --extra dev --group model --no-emit-package torch",
    "site/requirements.txt": "--group site --no-emit-package playwright --no-emit-package greenlet "
    "--no-emit-package pyee",
}
OLDER = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}  # names from before manylinux had glibc's number


def main() -> None:
    """Write each file anew."""
    for name, options in FILES.items():
        path = COURSE / name
        lines = [text for package in resolved(path, options.split()) if (text := requirement(package))]
        head = "# By `python -m tools.requirements`: each package, and the hash of each file that is taken of it.\n"
        path.write_text(head + "".join(lines))
        print(f"{name}: {len(lines)} packages, {path.stat().st_size / 1000:.0f} kB")


def resolved(path: Path, options: list[str]) -> list[dict]:
    """Every package that pyproject.toml asks for by `options`, as pylock.toml has it: version, marker and all files."""
    compile_ = [
        bootstrap.find_uv(str(COURSE / "build" / "uv")),
        "pip",
        "compile",
        "--quiet",
        "--universal",
        "--python-version",
        "3.11",
    ]
    with tempfile.TemporaryDirectory() as folder:
        pins, lock = Path(folder, "requirements.txt"), Path(folder, "pylock.toml")
        shutil.copy(path, pins)  # uv keeps the pins of the file that it writes
        asked = [*compile_, *options]
        subprocess.run([*asked, "--output-file", pins], cwd=COURSE, check=True)
        subprocess.run([*asked, "--constraints", pins, "--output-file", lock], cwd=COURSE, check=True)
        return tomllib.loads(lock.read_text())["packages"]


def requirement(package: dict) -> str:
    """Return the lines of a package: its pin, where it is needed, its hashes; empty where no machine needs it."""
    marker = package.get("marker", "")
    targets = [target for target in environments() if not marker or Marker(marker).evaluate(target)]
    if not targets:
        return ""
    # What holds everywhere goes without saying. `and` inside parentheses belongs to a condition.
    conditions = re.split(r" and (?![^(]*\))", marker) if marker else []
    said = [text for text in conditions if not all(Marker(text).evaluate(target) for target in environments())]
    hashes = sorted({best_wheel(package, target) for target in targets})
    pin = f"{package['name']}=={package['version']}" + (f" ; {' and '.join(said)}" if said else "")
    return " \\\n    ".join([pin, *(f"--hash=sha256:{value}" for value in hashes)]) + "\n"


def environments() -> list[dict[str, str]]:
    """What markers see on the machines of the course: first and last release of each Python, each processor."""
    return [
        {
            "python_version": f"{major}.{minor}",
            "python_full_version": f"{major}.{minor}.{micro}",
            "implementation_name": "cpython",
            "platform_python_implementation": "CPython",
            "sys_platform": "linux",
            "platform_system": "Linux",
            "os_name": "posix",
            "platform_machine": machine,
        }
        for major, minor in bootstrap.PYTHONS
        for micro in (0, 99)
        for machine in bootstrap.MACHINES
    ]


def best_wheel(package: dict, target: dict[str, str]) -> str:
    """SHA-256 of the wheel that an installer takes there.

    Raises
    ------
    SystemExit
        There is none: set-up could not install the package there.
    """
    ranks = {tag: rank for rank, tag in enumerate(tags(target))}
    found = []
    for wheel in package.get("wheels", ()):
        *_, its_tags = parse_wheel_filename(wheel.get("name") or wheel["url"].rpartition("/")[2])
        found += [(ranks[tag], wheel["hashes"]["sha256"]) for tag in its_tags if tag in ranks]
    if not found:
        where = f"Python {target['python_version']} on {target['platform_machine']}"
        raise SystemExit(f"{package['name']} {package['version']} has no wheel for {where}.")
    return min(found)[1]


def tags(target: dict[str, str]) -> list[Tag]:
    """Every tag of a wheel that can be installed there with the oldest glibc of the course, the best first."""
    machine = target["platform_machine"]
    names = [
        name
        for minor in range(bootstrap.GLIBC[1], 4, -1)
        for name in (f"manylinux_2_{minor}", OLDER.get(minor))
        if name
    ]
    platforms = [f"{name}_{machine}" for name in (*names, "linux")]
    python = tuple(int(part) for part in target["python_version"].split("."))
    interpreter = "cp{}{}".format(*python)
    return [
        *cpython_tags(python, abis=[interpreter], platforms=platforms),
        *compatible_tags(python, interpreter, platforms),
    ]


if __name__ == "__main__":
    main()
