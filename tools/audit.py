"""Known faults of the packages that set-up installs, as pip-audit finds them: a step of `make check`.

    python -m tools.audit

The versions of requirements.txt, and PyTorch's, are held against the advisories of the Python Package Index. The exit
status is 1 when one has an advisory, and `SKIPPED` where the index cannot be asked. An advisory that cannot be mended
yet is accepted in pyproject.toml, with the reason and the day on which that ends:

    [[tool.inflight.accepted-advisories]]
    id = "CVE-2030-1234"
    reason = "Only its server part is concerned, which the course does not start."
    until = 2030-06-01
"""

import datetime
import json
import re
import subprocess
import sys
import tempfile
import tomllib

from inflight.paths import COURSE

SKIPPED = 77
LONGEST_S = 45  # of all questions together: `make check` takes less than a minute


def pins(requirements: str, project: dict) -> list[str]:
    """What set-up installs, `name==version ; marker` a line: requirements.txt without its hashes, and PyTorch."""
    lines = [line.rstrip("\\ ") for line in requirements.splitlines() if re.match(r"[\w.-]+==", line)]
    return lines + [line for line in project["project"]["dependencies"] if line.startswith("torch==")]


def ask(pins: list[str]) -> list[dict] | str:
    """pip-audit's list of packages; or why there is none, in one sentence."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(pins))
        file.flush()
        command = [
            sys.executable,
            "-m",
            "pip_audit",
            "--format",
            "json",
            "--progress-spinner",
            "off",
            "--timeout",
            "10",
        ]
        command += ["--no-deps", "--disable-pip", "-r", file.name]
        try:
            ran = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S)
        except subprocess.TimeoutExpired:
            return f"the index did not answer within {LONGEST_S} s"
    try:
        packages = json.loads(ran.stdout)["dependencies"]
    except (ValueError, LookupError):
        return (ran.stderr.strip().splitlines() or [f"pip-audit ended with status {ran.returncode}"])[-1]
    if not any("version" in package for package in packages):
        return "the index has none, as a mirror may"
    return packages


def problems(packages: list[dict], accepted: list[dict], today: datetime.date) -> list[str]:
    """One line an advisory that is not accepted, or no longer, and for each package that could not be looked up."""
    by_id = {entry["id"]: entry for entry in accepted}
    found = []
    for package in packages:
        if "skip_reason" in package:
            found.append(f"{package['name']}: {package['skip_reason']}")
        for advisory in package.get("vulns", []):
            names = [advisory["id"], *advisory.get("aliases", [])]
            entry = next((by_id[name] for name in names if name in by_id), None)
            if entry and today <= entry["until"]:
                continue
            fixed = ", ".join(advisory.get("fix_versions", [])) or "no version yet"
            over = f"; it was accepted until {entry['until']}: {entry['reason']}" if entry else ""
            found.append(f"{package['name']} {package['version']}: {', '.join(names)}; mended in {fixed}{over}")
    return found


def main() -> int:
    """Ask and print; returns the exit status."""
    project = tomllib.loads((COURSE / "pyproject.toml").read_text())
    wanted = pins((COURSE / "requirements.txt").read_text(), project)
    packages = ask(wanted[:1])  # where the index knows of none, there is no need for all the other questions
    if isinstance(packages, list):
        packages = ask(wanted)
    if isinstance(packages, str):
        print(f"Advisories cannot be read here: {packages}.")
        return SKIPPED
    accepted = project["tool"].get("inflight", {}).get("accepted-advisories", [])
    found = problems(packages, accepted, datetime.date.today())
    print("\n".join(found or [f"{len(packages)} packages, no advisory"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
