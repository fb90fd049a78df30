"""The repository's address: it stands in pyproject.toml, and wherever else it is needed this writes it.

    make address URL=https://github.com/you/your-course

From it follow the address of the image, in the registry of the same owner, and that of the site.
"""

import argparse
import re
import subprocess
import sys
import tomllib
from pathlib import Path

URL = re.compile(r"https://github\.com/([\w.-]+)/([\w.-]+?)(?:\.git)?/?")


def forms(url: str) -> tuple[str, str, str]:
    """Return the image, the site, and `owner/name`, which all other addresses end with; ValueError for another URL."""
    if not (found := URL.fullmatch(url)):
        raise ValueError(f"{url!r} is no address of a repository: give one such as https://github.com/you/your-course.")
    owner, name = found.groups()
    return f"ghcr.io/{owner}/{name}".lower(), f"{owner.lower()}.github.io/{name}", f"{owner}/{name}"


def current(root: Path) -> str:
    """Return the address in pyproject.toml."""
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Repository"]


def write(url: str, root: Path) -> list[str]:
    """Write the address into all files of the clone that have the former one; returns their names."""
    new = dict(zip(forms(current(root)), forms(url)))
    former = re.compile("|".join(rf"(?<![\w.-]){re.escape(form)}(?![\w-])" for form in new).encode())
    changed = []
    for name in subprocess.check_output(["git", "ls-files", "-z"], cwd=root, text=True).split("\0")[:-1]:
        before = (root / name).read_bytes()
        after = former.sub(lambda found: new[found[0].decode()].encode(), before)
        if after != before:
            (root / name).write_bytes(after)
            changed.append(name)
    return changed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("url")
    try:
        changed = write(parser.parse_args().url, Path(__file__).resolve().parents[1])
    except ValueError as error:
        sys.exit(f"error: {error}")
    print("\n".join(changed) or "It is this address already.")


if __name__ == "__main__":
    main()
