"""A learner's own copies of lectures and labs, in a folder laid out as the course is, so that links hold.

    prepared = prepare(home())
    prepared.made, prepared.before        # what was copied now; copies of yours that now stand beside a newer one

Lectures come without outputs, so that nothing gives a measurement away, and with blanks where lines are the learner's.
A copy in which nothing was written or run follows the course; any other is kept beside the new one. Solutions and
assets are the course's own, for reading.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import lazy_loader
from jupyter_core.paths import jupyter_runtime_dir

from inflight.errors import CourseError
from inflight.files import replace_text
from inflight.notebook.pages import blanks
from inflight.paths import COURSE

if TYPE_CHECKING:
    from nbformat import NotebookNode

nbformat = lazy_loader.load("nbformat")  # one to two seconds, and a notebook needs it for no cell
COPIED = ("notebooks", "labs")  # a learner's
SHOWN = ("solutions", "assets", "notebooks/glossary.md")  # the course's
MARK = ".inflight-workspace"  # an empty file that marks a workspace
MINE = "mine"  # what a learner has written in the labs
TRANSPORT = "--KernelManager.transport"
MOST_RUNTIME_DIR = 50  # bytes: a kernel's sockets in it have 50 more, and Linux takes 107 in all


@dataclass(frozen=True)
class Prepared:
    """A workspace, and what was done to it.

    Attributes
    ----------
    folder : Path
    made : list of str
        Copies made now, such as "labs/01_engine_lab.ipynb".
    before : list of Path
        Former copies that the learner has changed or run, kept under these names.
    """

    folder: Path
    made: list[str]
    before: list[Path]


def home(course: Path = COURSE) -> Path:
    """Return the workspace's folder: $INFLIGHT_WORK, else `work` in the clone, else `work` in the current folder.

    A clone that the user cannot write to, as in a class's image, is no place for it; nor is an installed package.
    """
    if named := os.environ.get("INFLIGHT_WORK"):
        return Path(os.path.expanduser(named)).absolute()
    is_clone = (course / "Makefile").is_file()
    return (course if is_clone and os.access(course, os.W_OK) else Path.cwd()) / "work"


def around(folder: Path) -> Path | None:
    """Return the workspace that `folder` is in, or None."""
    return next((parent for parent in (folder, *folder.parents) if (parent / MARK).is_file()), None)


def prepare(folder: Path, fresh: str | None = None, course: Path = COURSE) -> Prepared:
    """Copy the course's notebooks to the workspace `folder`; what the learner has written there is kept.

    Parameters
    ----------
    folder : Path
    fresh : str, optional
        The number of a lesson to begin anew; or "all", with the parts that the learner has written.
    course : Path
        Where the course is.

    Returns
    -------
    Prepared

    Raises
    ------
    CourseError
        There are no notebooks to copy, no such lesson, or the folder cannot be written.
    """
    sources = {
        f"{kind}/{path.name}": path for kind in COPIED for path in sorted((course / kind).glob("[0-9][0-9]_*.ipynb"))
    }
    if not sources:
        raise CourseError(f"There are no notebooks in {course}: run `make notebooks` there, or get the course anew.")
    numbers = sorted({path.name[:2] for path in sources.values()})
    if fresh not in (None, "all", *numbers):
        raise CourseError(f"There is no lesson {fresh!r} to start again; the lessons are {', '.join(numbers)}.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MARK).touch()
        prepared = _copy(sources, folder, fresh)
        if fresh == "all" and (folder / MINE).exists():
            prepared.before.append(set_aside(folder / MINE))
        for name in SHOWN:
            _link(folder / name, course / name)
    except OSError as error:
        raise CourseError(
            f"The workspace {folder} cannot be made ({error.strerror or error}): name another with INFLIGHT_WORK."
        ) from error
    return prepared


def set_aside(path: Path) -> Path:
    """Rename a file or a folder to the first free one of `NAME.before.EXT`, `NAME.before-2.EXT`, …; returns it."""
    number, place = 1, path.with_name(f"{path.stem}.before{path.suffix}")
    while place.exists():
        number += 1
        place = path.with_name(f"{path.stem}.before-{number}{path.suffix}")
    return path.rename(place)


def open_lab(folder: Path, first: Path, arguments: list[str]) -> NoReturn:
    """Replace this process by JupyterLab in the workspace, open at notebook `first`; `arguments` are JupyterLab's own.

    It asks nobody for news.
    """
    configs = [str(COURSE / "assets" / "jupyterlab"), os.environ.get("JUPYTER_CONFIG_PATH")]
    environment = {**os.environ, "JUPYTER_CONFIG_PATH": os.pathsep.join(filter(None, configs))}
    opened = f"--LabApp.default_url=/lab/tree/{first.relative_to(folder).as_posix()}"
    os.execve(sys.executable, lab_command(folder, [opened, *arguments]), environment)


def lab_command(folder: Path, arguments: list[str]) -> list[str]:
    """Return the command of a JupyterLab that shows a folder; `arguments` are JupyterLab's own.

    It listens on this machine alone unless they say otherwise. No other user of it can read what its kernels print.
    """
    given = {argument.split("=")[0] for argument in arguments}
    own = [] if given & {"--ip", "--ServerApp.ip"} else ["--ServerApp.ip=127.0.0.1"]
    if TRANSPORT not in given and len(os.fsencode(jupyter_runtime_dir())) <= MOST_RUNTIME_DIR:
        own.append(f"{TRANSPORT}=ipc")  # over TCP, Jupyter's default, every account on the machine could listen
    if os.geteuid() == 0 and "--allow-root" not in given:
        own.append("--allow-root")  # in a container there may be nobody else
    places = [
        f"--ServerApp.root_dir={folder}",
        f"--ServerApp.tornado_settings=static_custom_path={COURSE / 'assets' / 'jupyterlab'}",
    ]
    return [sys.executable, "-m", "jupyter", "lab", *own, *places, *arguments]


def _copy(sources: dict[str, Path], folder: Path, fresh: str | None) -> Prepared:
    prepared = Prepared(folder, [], [])
    for name, source in sources.items():
        notebook = _for_learner(nbformat.read(source, as_version=4))
        copy = folder / name
        if copy.exists():
            made_from, is_untouched = _state(copy)
            if made_from == _made_from(notebook) and fresh not in ("all", source.name[:2]):
                continue
            if not is_untouched:
                prepared.before.append(set_aside(copy))
        copy.parent.mkdir(exist_ok=True)
        replace_text(copy, nbformat.writes(notebook) + "\n")
        prepared.made.append(name)
    return prepared


def _state(copy: Path) -> tuple[str, bool]:
    """Return what a copy was made from, blank for a file that is no notebook, and whether it is as it was made."""
    try:
        learners = nbformat.read(copy, as_version=4)
    except ValueError:  # such as one that a full disk cut short
        return "", False
    made_from = _made_from(learners)
    return made_from, not _has_run(learners) and _version(learners) == made_from


def _version(notebook: NotebookNode) -> str:
    return hashlib.sha256(json.dumps([cell.source for cell in notebook.cells]).encode()).hexdigest()


def _made_from(copy: NotebookNode) -> str:
    """Return the version of the course's notebook that a copy was made from; blank for other files."""
    return copy.metadata.get("inflight", {}).get("made_from", "")


def _has_run(notebook: NotebookNode) -> bool:
    return any(cell.get("execution_count") or cell.get("outputs") for cell in notebook.cells)


def _for_learner(notebook: NotebookNode) -> NotebookNode:
    notebook.cells = list(blanks.opened(notebook.cells))
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    notebook.metadata["inflight"] = {"made_from": _version(notebook)}
    return notebook


def _link(link: Path, target: Path) -> None:
    """Make `link` lead to `target`, also after the course has moved; any other file there stays."""
    if link.is_symlink() and link.readlink() != target:
        link.unlink()
    if not link.exists() and not link.is_symlink():
        link.symlink_to(target)
