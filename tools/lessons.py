"""Makes the notebooks from the lessons and holds them to their source: the only way an .ipynb of the course changes.

    python -m tools.lessons build [NN …]              write notebooks/, labs/ and solutions/
    python -m tools.lessons build --sources [NN …]    the same, keeping the outputs that are stored: nothing is run
    python -m tools.lessons check                     compare what is committed with what the source gives

A lesson's `lecture.py` and `lab.py` are jupytext percent scripts. In a lab, the tag `solution` keeps a cell from
the learner; inside a cell, what stands between these two lines is replaced by its `# LAB:` lines, or by `...`:

    # BEGIN SOLUTION
    # LAB: answer = None
    answer = 2 * layers * heads
    # END SOLUTION

What `%%writefile` writes may stand in the script as comments: a `config.pbtxt` is no Python. A lab's tag `part:FILE`
says that what the solution writes there is also a part of the course's own stack, `parts/FILE` in its folder.

What a lesson is called, asks and takes is written in from its `lesson.toml`: `tools.titles`.
"""

import copy
import hashlib
import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import jupytext
import nbformat
from nbformat import NotebookNode

from inflight import syllabus
from inflight.errors import CourseError
from inflight.notebook.pages import blanks
from inflight.notebook.pages.execution import WIDGET_MIME, execute
from inflight.syllabus import Lesson
from tools import homes, instructor, pictures, titles

ROOT = Path(__file__).resolve().parent.parent
# Each kind of notebook, by the folder it goes to: the script it is made from.
SCRIPTS = {"notebooks": "lecture.py", "labs": "lab.py", "solutions": "lab.py"}
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"file_extension": ".py", "mimetype": "text/x-python", "name": "python"},
}
ASSERTS = re.compile(r"^[ \t]*assert\b.*", re.M)
MAX_BYTES = 900_000  # of which the static pictures are up to two thirds
CHECKED = re.compile(r"""\bcheck\(\s*["'](\d+\.\d+)["']""")
PART = "part:"  # begins a tag
MARKER = re.compile(r"^\s*(?:#|//) (BEGIN SOLUTION|END SOLUTION|LAB:).*", re.M)
REGION = re.compile(r"^([ \t]*)(?:#|//) BEGIN SOLUTION\n(.*?)^[ \t]*(?:#|//) END SOLUTION$", re.M | re.S)
GIVEN = re.compile(r"^[ \t]*(?:#|//) LAB: ?(.*)\n", re.M)


def build(root: Path, lessons: list[str] | None = None, keep_outputs: bool = False) -> list[Path]:
    """Write the notebooks of every lesson, or of those whose number or name is in `lessons`; return their paths.

    Lectures and solutions are executed in their own folder, labs never are. With `keep_outputs` they get the stored
    notebook's outputs instead: for changes that no output shows, such as a new name. In the end each plotly figure that
    has no static picture gets one.

    Raises
    ------
    CourseError
        No such lesson, a marker out of place, a cell that fails, with
        `keep_outputs` code cells that came or went, or no Chromium for the pictures: then everything else is done.
    """
    for path, text in _parts(root, lessons).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    written: dict[Path, NotebookNode] = {}
    try:
        for lesson, kind in _all(root, lessons):
            notebook, path = source(lesson, kind), root / kind / titles.file_name(kind, lesson.name)
            path.parent.mkdir(exist_ok=True)
            if keep_outputs and kind != "labs":
                notebook = _cleaned(_with_stored_outputs(notebook, path))
            elif kind != "labs":
                _write(notebook, path)  # a section that catches up looks its heading up there
                notebook = _cleaned(execute(notebook, f"{kind}/{lesson.name}", path.parent))
            _write(notebook, path)
            written[path] = notebook
    finally:  # the next build would not know that those before a cell that fails lack theirs
        bare = {path: bundles for path, book in written.items() if (bundles := pictures.without_picture(book))}
        if bare:
            pictures.draw(itertools.chain(*bare.values()))
        for path in bare:
            _write(written[path], path)
    return list(written)


def source(lesson: Lesson, kind: str) -> NotebookNode:
    """The notebook of `kind` ("notebooks", "labs", "solutions") that a lesson gives, without outputs.

    Raises
    ------
    CourseError
        A marker is out of place.
    """
    folder = lesson.folder
    values, terms = titles.fields(lesson, kind), titles.terms(folder.parent)
    notebook = nbformat.v4.new_notebook(metadata=nbformat.from_dict(METADATA), nbformat_minor=5)
    for index, cell in enumerate(cell for cell in _cells(folder, kind) if kind != "labs" or not _is_solution(cell)):
        if cell.cell_type == "code":
            cell.source = REGION.sub(_for_learner if kind == "labs" else _for_teacher, cell.source)
        else:
            cell.source = titles.filled(titles.explained(cell.source, terms), values)
        if marker := MARKER.search(cell.source):
            raise CourseError(
                f"{folder / SCRIPTS[kind]}: `{marker[0].strip()}` is out of place; BEGIN SOLUTION and END SOLUTION "
                "enclose lines of one code cell, with LAB: lines among them."
            )
        cell.metadata = _only_tags(cell)
        # The same place in the same lesson keeps its id, so that a rebuild changes only what changed.
        cell.id = hashlib.sha256(f"{lesson.name}/{kind}/{index}".encode()).hexdigest()[:8]
        notebook.cells.append(cell)
    return notebook


def check(root: Path) -> list[str]:
    """What is wrong with the committed notebooks and README.md, one sentence each; empty when nothing is.

    Raises
    ------
    CourseError
        A marker is out of place.
    """
    found = []
    for page, text in {**titles.pages(root), **instructor.pages(root)}.items():
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            found.append(f"{page.relative_to(root)}: differs from what the lessons give; run `make notebooks`")
    expected = {root / kind / titles.file_name(kind, lesson.name): (lesson, kind) for lesson, kind in _all(root)}
    for path, (lesson, kind) in expected.items():
        found += [f"{kind}/{path.name}: {problem}" for problem in _problems(path, lesson, kind)]
    for path, text in _parts(root).items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            found.append(f"{path.relative_to(root)}: differs from the solution that gives it; run `make notebooks`")
    strays = {path for kind in SCRIPTS for path in (root / kind).glob("*.ipynb")} - set(expected)
    found += [f"{path.parent.name}/{path.name}: no lesson gives it; delete it" for path in sorted(strays)]
    return found


def _all(root: Path, lessons: list[str] | None = None) -> list[tuple[Lesson, str]]:
    """Each lesson, with each kind of notebook that it gives."""
    known = {Path(lesson.name): lesson for lesson in syllabus.read(titles.folder(root))}
    chosen = [known[name] for name in syllabus.select([*known], lessons)]
    return [(one, kind) for one in chosen for kind, script in SCRIPTS.items() if (one.folder / script).exists()]


def _parts(root: Path, lessons: list[str] | None = None) -> dict[Path, str]:
    """The files in the folders `parts` that the solutions of lessons give, with their text."""
    return {
        lesson.folder / "parts" / tag.removeprefix(PART): cell.source.partition("\n")[2] + "\n"
        for lesson, kind in _all(root, lessons)
        if kind == "solutions"
        for cell in source(lesson, kind).cells
        for tag in cell.metadata.get("tags", [])
        if tag.startswith(PART)
    }


def _cells(folder: Path, kind: str) -> list[NotebookNode]:
    """The cells of a script. What `%%writefile` writes may stand there as comments, as what is no Python must."""
    cells = jupytext.reads((folder / SCRIPTS[kind]).read_text(encoding="utf-8"), fmt="py:percent").cells
    for cell in cells:
        magic, _, body = cell.source.partition("\n")
        lines = body.split("\n")
        if magic.startswith("%%writefile") and all(not line or line.startswith("#") for line in lines):
            cell.source = "\n".join([magic, *(re.sub("^# ?", "", line) for line in lines)])
    return cells


def _is_solution(cell: NotebookNode) -> bool:
    return "solution" in cell.metadata.get("tags", [])


def _for_learner(region: re.Match) -> str:
    return "\n".join(region[1] + line for line in GIVEN.findall(region[2]) or ["..."])


def _for_teacher(region: re.Match) -> str:
    return GIVEN.sub("", region[2]).rstrip("\n")


def _only_tags(cell: NotebookNode) -> NotebookNode:
    """The cell's metadata without what jupytext or a run left there."""
    return nbformat.from_dict({"tags": cell.metadata.tags} if cell.metadata.get("tags") else {})


def _with_stored_outputs(notebook: NotebookNode, path: Path) -> NotebookNode:
    """`notebook` with the outputs of the one stored at `path`, if there is one, code cell by code cell."""
    if not path.exists():
        return notebook
    given, stored = _code(notebook), _code(nbformat.read(path, as_version=4))
    if len(given) != len(stored):
        raise CourseError(
            f"{path} has {len(stored)} code cells and its source now {len(given)}: what they show must be made anew. "
            "Run `make notebooks`."
        )
    for cell, old in zip(given, stored, strict=True):
        cell.outputs, cell.execution_count = old.outputs, old.execution_count
    return notebook


def _cleaned(notebook: NotebookNode) -> NotebookNode:
    """The executed notebook without what differs from run to run: timing, homes, and widgets that no kernel backs.

    In place of a widget's view stays its picture. A view without a kernel reads "model not found" in JupyterLab, and
    what an output has besides is not shown.
    """
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        cell.metadata = _only_tags(cell)
        if "outputs" in cell:
            cell.outputs = homes.without_home(cell.outputs)
        for output in cell.get("outputs", []):
            output.get("data", {}).pop(WIDGET_MIME, None)
    return notebook


def _code(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def _write(notebook: NotebookNode, path: Path) -> None:
    path.write_text(nbformat.writes(notebook).rstrip() + "\n", encoding="utf-8")


# What is wrong with a notebook ----------------------------------------------------------------------------------------


def _problems(path: Path, lesson: Lesson, kind: str) -> Iterator[str]:
    if not path.exists():
        yield "missing; run `make notebooks`"
        return
    notebook, expected = nbformat.read(path, as_version=4), source(lesson, kind)
    if _sources(notebook) != _sources(expected) or "widgets" in notebook.metadata:
        yield f"differs from inflight/lessons/{lesson.topic}/{SCRIPTS[kind]}; run `make notebooks`"
    if notebook.metadata != METADATA or any(set(cell.metadata) - {"tags"} for cell in notebook.cells):
        yield "carries what an editor or a run left in its metadata; run `make notebooks`"
    if path.stat().st_size > MAX_BYTES:
        yield f"{path.stat().st_size} bytes, more than {MAX_BYTES}; show less"
    yield from _lab_problems(notebook, lesson) if kind == "labs" else _execution_problems(notebook)
    if kind == "notebooks":
        yield from _page_problems(notebook)
    prose = "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    prose = re.sub(r"^(```|~~~).*?^\1|`[^`\n]*`", "", prose, flags=re.M | re.S)
    for link in sorted(set(re.findall(r"(?:\]\(|(?:href|src)=[\"'])([^)\s\"']+)", prose))):
        name, _, heading = link.partition("#")
        if not re.match(r"[a-z]+:", link) and not _is_there(path.parent / name if name else path, heading):
            yield f"the link to {link} leads nowhere"


def _is_there(page: Path, heading: str) -> bool:
    """Say whether a link leads somewhere, to a heading of a page of text as Jupyter names it."""
    if not heading or page.suffix != ".md":
        return page.exists()
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.M)
    return heading in [each.replace(" ", "-") for each in headings]


def _sources(notebook: NotebookNode) -> list[tuple]:
    return [(cell.id, cell.cell_type, cell.source, cell.metadata.get("tags", [])) for cell in notebook.cells]


def _execution_problems(notebook: NotebookNode) -> Iterator[str]:
    counts = [cell.execution_count for cell in _code(notebook)]
    outputs = [output for cell in _code(notebook) for output in cell.outputs]
    if counts != list(range(1, len(counts) + 1)):
        yield f"not run once from top to bottom: its cells carry {counts}; run `make notebooks`"
    if pictures.without_picture(notebook):
        yield "a figure has no static picture; run `python -m tools.lessons build --sources`"
    if any(WIDGET_MIME in output.get("data", {}) for output in outputs):
        yield "a widget's view is stored, which no kernel backs; run `make notebooks`"
    if homes.without_home(copy.deepcopy(outputs)) != outputs:
        yield "an output shows somebody's home folder; run `python -m tools.lessons build --sources`"
    if any(output.output_type == "error" for output in outputs):
        yield "a cell shows an error; catch it and print its message"


def _page_problems(lecture: NotebookNode) -> Iterator[str]:
    """Lines that a learner would read, and that are there for a test alone; blanks that cannot be opened."""
    for cell in _code(lecture):
        if blanks.is_for_ci(cell):
            continue
        if (found := ASSERTS.search(cell.source)) and not cell.source.startswith("%%writefile"):
            yield f"`{found[0].strip()}` stands on the page; print what it shows, or tag its cell `{blanks.FOR_CI}`"
        if "parameters" in cell.metadata.get("tags", []):
            yield "a cell for papermill's parameters stands on the page; a prediction is the reader's"
        try:
            list(blanks.opened([cell]))
        except CourseError as error:
            yield str(error)


def _lab_problems(lab: NotebookNode, lesson: Lesson) -> Iterator[str]:
    """Outputs; exercises that the lesson does not count; lines of the answers, long enough to be one, to be read."""
    folder = lesson.folder
    checked = list(dict.fromkeys(CHECKED.findall("\n".join(cell.source for cell in _code(lab)))))
    if checked != lesson.exercise_numbers:
        yield f"it checks {checked}; lesson.toml says {lesson.exercises} exercises, {lesson.exercise_numbers}"
    if any(cell.execution_count or cell.outputs for cell in _code(lab)):
        yield "a lab has outputs; run `make notebooks`"
    answers, given = set(), set()
    for cell in _cells(folder, "labs"):
        hidden = cell.source if _is_solution(cell) else "\n".join(map(_for_teacher, REGION.finditer(cell.source)))
        answers.update(line.strip() for line in hidden.splitlines())
        if cell.cell_type == "code" and not _is_solution(cell):
            given.update(line.strip() for line in REGION.sub(_for_learner, cell.source).splitlines())
    minutes, core = titles.lab_minutes(folder)
    wanted = {"{minutes}", "{core}"} if core < minutes else {"{minutes}"}
    if wanted - set(re.findall(r"\{\w+\}", _cells(folder, "labs")[0].source)):
        yield "its first cell does not say {minutes} and {core}, which are added up from the exercises"
    shown = "\n".join(cell.source for cell in lab.cells)
    opens = ("(", "[", "{")  # where a value begins is no answer yet
    for line in sorted(line for line in answers - given if len(line) >= 12 and not line.endswith(opens)):
        if line in shown:
            yield f"the answer `{line}` can be read in the lab"


def main(arguments: list[str]) -> int:
    """The two commands of the module's docstring; returns the exit status."""
    command, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    try:
        if command == "build":
            names = [name for name in rest if name != "--sources"]
            written = build(ROOT, names, keep_outputs="--sources" in rest)
            for page, text in {**titles.pages(ROOT), **instructor.pages(ROOT)}.items():
                page.write_text(text, encoding="utf-8")
            print(*(path.relative_to(ROOT) for path in written), sep="\n")
            return 0
        if command == "check":
            problems = [*check(ROOT), *instructor.problems()]
            print(
                *problems or ["Notebooks, README.md and the instructor's pages are what their source gives."], sep="\n"
            )
            return 1 if problems else 0
    except CourseError as error:
        print(error, file=sys.stderr)
        return 1
    print("Usage: python -m tools.lessons build [--sources] [NN …] | check", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
