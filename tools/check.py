"""The checks that need no server: `make check`.

    python -m tools.check [STEP …]    all steps, or those that are named, in the order of STEPS

Every step runs, also after one that fails. What a step says is shown when it fails, and when it is skipped: without a
network nobody can tell what is known of the packages.
"""

import subprocess
import sys
import time

from inflight.paths import COURSE
from tools.audit import SKIPPED

PYTHON = [sys.executable, "-m"]
SCRIPTS = sys.prefix + "/bin"
STEPS = {
    "format": [*PYTHON, "ruff", "format", "--check", "."],
    "lint": [*PYTHON, "ruff", "check", "."],
    "imports": [f"{SCRIPTS}/lint-imports"],
    "types": [*PYTHON, "mypy"],
    # A workflow that is no valid one would only be warned of without --strict-collection.
    "workflows": [f"{SCRIPTS}/zizmor", "--offline", "--quiet", "--strict-collection", ".github/workflows"],
    "scripts": [f"{SCRIPTS}/shellcheck", ".ci/run", "postBuild", *map(str, sorted((COURSE / "assets").rglob("*.sh")))],
    "notebooks": [*PYTHON, "tools.lessons", "check"],
    "advisories": [*PYTHON, "tools.audit"],
}


def main(names: list[str]) -> int:
    """Run the steps `names`, or all; returns the exit status: 0, 1 when one failed, 2 for a step there is not."""
    unknown = [name for name in names if name not in STEPS]
    if unknown:
        print(f"There is no check {unknown[0]!r}; the checks are {', '.join(STEPS)}.", file=sys.stderr)
        return 2
    failed = [name for name in STEPS if name in (names or STEPS) and not _passes(name)]
    if failed:
        print(f"Failed: {', '.join(failed)}. One alone: python -m tools.check {failed[0]}", file=sys.stderr)
    return 1 if failed else 0


def _passes(name: str) -> bool:
    start = time.monotonic()
    try:
        result = subprocess.run(STEPS[name], cwd=COURSE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    except FileNotFoundError:
        print(f"{name:<12}FAILED\n{STEPS[name][0]} is not there: `make setup` installs it.\n", flush=True)
        return False
    verdict = {0: "passed", SKIPPED: "skipped"}.get(result.returncode, "FAILED")
    print(f"{name:<12}{verdict:<7}{time.monotonic() - start:6.1f} s", flush=True)
    if verdict != "passed":
        print(result.stdout, flush=True)
    return verdict != "FAILED"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
