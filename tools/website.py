"""The course's pages on the web: `make site`.

    python -m tools.website [FOLDER]     write them to FOLDER, or to build/site

Sphinx makes them from the stored notebooks; nothing is executed. It is no part of a learner's set-up: the first call
installs it, from `assets/site/requirements.txt`, into an environment of its own in build/site-venv. From then on no
network is needed. The finished pages need none either: what they show and search comes with them.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from plotly.offline import get_plotlyjs

from inflight import bootstrap
from inflight.errors import CourseError
from inflight.notebook import linked_marks
from inflight.notebook.execution import DRAW
from inflight.paths import COURSE
from tools import website_pages

SETTINGS = COURSE / "assets" / "site"
REQUIREMENTS = SETTINGS / "requirements.txt"
VENV = COURSE / "build" / "site-venv"
SITE = COURSE / "build" / "site"


def environment(venv: Path = VENV) -> Path:
    """The Python of the environment that has Sphinx; made, or made anew, where it is not as `REQUIREMENTS` says.

    Raises
    ------
    CourseError
        pip could not install it: no network, a full disk, a hash that does not match.
    """
    python, stamp = venv / "bin" / "python", venv / "stamp"
    wanted = hashlib.sha256(f"{sys.version}\n{REQUIREMENTS.read_text()}".encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"Setting up {venv.relative_to(COURSE) if venv.is_relative_to(COURSE) else venv} (a minute, once) ...")
    shutil.rmtree(venv, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    hashed = ["--no-deps", "--require-hashes", "--only-binary=:all:", "-r", str(REQUIREMENTS)]
    try:
        bootstrap.run_pip(str(COURSE), str(venv), ["install", *hashed])
    except bootstrap.SetupError as error:
        raise CourseError(str(error)) from None
    stamp.write_text(wanted)
    return python


def build(out: Path = SITE, python: Path | None = None) -> None:
    """Write the pages to `out`, in the place of what is there.

    Parameters
    ----------
    python : Path or None
        One that has Sphinx; None takes that of `environment`.

    Raises
    ------
    CourseError
        A link leads nowhere, Sphinx found a fault, or a page would fetch something from another host.
    """
    python = python or environment()
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder) / "source", Path(folder) / "made" / "html"
        source.mkdir()
        website_pages.prepare(COURSE, source, website_pages.repository(COURSE))
        command = [python, "-m", "sphinx", "-b", "html", "-c", SETTINGS, "-d", f"{folder}/doctrees"]
        command += ["--fail-on-warning", "--keep-going", "--quiet", "--jobs", "auto", source, made]
        ran = subprocess.run([str(part) for part in command], capture_output=True, text=True, cwd=COURSE)
        if ran.returncode:
            said = (ran.stderr or ran.stdout).replace(f"{source}/", "").strip()
            raise CourseError(f"Sphinx could not make the pages; mend what it names:\n{said}")
        static = made / "_static"
        shutil.copytree(source / website_pages.PICTURES, static / "pictures")
        (static / "plotly.min.js").write_text(get_plotlyjs(), encoding="utf-8")
        (static / "pictures.js").write_text(f"{linked_marks.SCRIPT}\n{DRAW}", encoding="utf-8")
        (made / ".nojekyll").touch()  # GitHub's pages would leave out folders that begin with an underscore
        for page in made.rglob("*.html"):
            for tag in website_pages.outside(page.read_text(encoding="utf-8")):
                raise CourseError(f"{page.relative_to(made)} would fetch {tag} from another host; bring it along.")
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(made, out)


def main(arguments: list[str]) -> int:
    """Build and say where the pages are; returns the exit status."""
    out = Path(arguments[0]).absolute() if arguments else SITE
    try:
        python = environment()
        start = time.monotonic()
        build(out, python)
    except CourseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    size_mb = sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) / 1e6
    print(f"{len(list(out.rglob('*.html')))} pages, {size_mb:.0f} MB, in {time.monotonic() - start:.0f} s.")
    if not website_pages.repository(COURSE):
        print("No [project.urls] Repository in pyproject.toml: no links to an editor and to Binder.")
    print(f"Open {out / 'index.html'} in a browser.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
