"""The whole suite in one run of pytest: every test, then every notebook against its stored outputs.

    python -m tools.lessons test             all of it
    python -m tools.lessons test PATH …      only that; arguments of pytest are passed on

Hundreds of tests talk to real servers beside each other. One that fails there and passes by itself does not hold up a
change: it is named at the end, for it depends on what else runs, and that is a fault of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PATHS = ("tests", "notebooks", "solutions")
WORKERS = ("--numprocesses=logical", "--maxprocesses=4", "--dist=loadfile", "--no-loadscope-reorder")
CELL_TIMEOUT = 600  # seconds, also beside other work; nbval does not notice a dead kernel sooner
MOST_FILES = 12  # with failures, that are tried again: more have one cause, and it is not what runs beside them
TESTS_FAILED = 1  # of pytest's exit statuses, the one for a run that was whole


def run(arguments: list[str]) -> int:
    """Run pytest over tests/, then nbval over lectures and solutions; return its exit status.

    `arguments` go to pytest. All of it runs on as many workers as the machine has cores, four at most; a file, and so a
    notebook, stays with one worker. Where at most twelve files have failures, the tests that failed run once more with
    nothing beside them, notebooks from their first cell, and that decides. Paths among the arguments replace the
    default ones and run once, in this one process.
    """
    if any((ROOT / argument.split("::")[0]).exists() for argument in arguments):
        return _pytest(arguments)
    _failures_file().unlink(missing_ok=True)  # pytest adds to those of earlier runs
    status = _pytest([*PATHS, *WORKERS, *arguments])
    if status != TESTS_FAILED:
        return status
    failed = _failures()
    files = list(dict.fromkeys(name.partition("::")[0] for name in failed))
    if not 0 < len(files) <= MOST_FILES:
        return status
    print(f"\nOnce more, with nothing beside: {' '.join(files)}", flush=True)
    notebooks = [file for file in files if file.endswith(".ipynb")]  # a cell needs those before it
    tests = [file for file in files if file not in notebooks]
    runs = [[*tests, "--last-failed"]] * bool(tests) + [notebooks] * bool(notebooks)
    status = max(_pytest([*run, *arguments]) for run in runs)
    if status == 0:
        print(
            "\nFailed beside the rest and passed alone:",
            *failed,
            "What they judge depends on what else runs: that is a fault to mend.",
            sep="\n  ",
        )
    return status


def _pytest(arguments: list[str]) -> int:
    nbval = f"--nbval --nbval-current-env --nbval-cell-timeout={CELL_TIMEOUT}"
    nbval += " --nbval-sanitize-with=tests/nbval_sanitize.cfg"
    command = [sys.executable, "-m", "pytest", *nbval.split(), *arguments]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "COURSE_STRICT": "1"}).returncode


def _failures_file() -> Path:
    return ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"


def _failures() -> list[str]:
    """Ids of the tests that failed, as pytest keeps them for its --last-failed."""
    try:
        return sorted(json.loads(_failures_file().read_text()))
    except FileNotFoundError:
        return []
