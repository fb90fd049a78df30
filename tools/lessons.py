"""Makes the notebooks from `lessons/` and holds them to their source: the only way an .ipynb of the course changes.

    python -m tools.lessons build [NN …]     write notebooks/, labs/ and solutions/
    python -m tools.lessons build --sources [NN …]    the same, keeping the outputs that are stored: nothing is run
    python -m tools.lessons check            compare what is committed with what the source gives

`lessons/NN_topic/lecture.py` and `lab.py` are jupytext percent scripts. In a lab, the tag `solution` keeps a cell from
the learner; inside a cell, what stands between these two lines is replaced by its `# LAB:` lines, or by `...`:

    # BEGIN SOLUTION
    # LAB: answer = None
    answer = 2 * layers * heads
    # END SOLUTION

What `%%writefile` writes may stand in the script as comments: a `config.pbtxt` is no Python.

What a lesson is called, asks and takes is written in from `lessons/syllabus.toml`: `tools.titles`. The minutes of the
instructor's pack follow from it: `tools.instructor`. Commands of TensorRT-LLM are written in from the table of the
package, and so is `assets/lab-gpu`: `tools.lab_gpu`.
"""

import hashlib
import itertools
import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import jupytext
import nbformat
from nbformat import NotebookNode

from inflight.errors import CourseError
from inflight.notebook import syllabus
from inflight.notebook.execution import WIDGET_MIME, execute, select
from inflight.notebook.progress import is_progress
from tools import form, homes, instructor, lab_gpu, pictures, titles

ROOT = Path(__file__).resolve().parent.parent
# Each kind of notebook, by the folder it goes to: the script it is made from.
SCRIPTS = {"notebooks": "lecture.py", "labs": "lab.py", "solutions": "lab.py"}
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"file_extension": ".py", "mimetype": "text/x-python", "name": "python"},
}
MAX_COLUMNS = 88  # of a cell: as in lessons/ruff.toml, whose formatter leaves long strings and comments alone
MAX_BYTES = 900_000  # of which the static pictures are up to two thirds
MARKER = re.compile(r"\s*# (BEGIN SOLUTION|END SOLUTION|LAB:).*")
REGION = re.compile(r"^([ \t]*)# BEGIN SOLUTION\n(.*?)^[ \t]*# END SOLUTION$", re.M | re.S)


def build(
    root: Path, execute_cells: bool = True, lessons: list[str] | None = None, keep_outputs: bool = False
) -> list[Path]:
    """Write the notebooks of every lesson, or of those whose number or name is in `lessons`; return their paths.

    Lectures and solutions are executed in their own folder (unless `execute_cells` is False), labs never are. With
    `keep_outputs` they get the stored notebook's outputs instead: for changes that no output shows, such as a new name.
    In the end each plotly figure that has no static picture gets one.

    Raises
    ------
    CourseError
        No such lesson, a lesson that the syllabus does not name, a marker out of place (file and line), a cell that
        fails, with `keep_outputs` code cells that came or went, or no Chromium for the pictures: then everything else
        is done.
    """
    lab_gpu.write(root)
    written: dict[Path, NotebookNode] = {}
    try:
        for folder in _folders(root, lessons):
            for kind in _kinds(folder):
                notebook, path = source(folder, kind), root / kind / titles.file_name(kind, folder.name)
                path.parent.mkdir(exist_ok=True)
                if keep_outputs and kind != "labs":
                    notebook = _cleaned(_with_stored_outputs(notebook, path))
                elif execute_cells and kind != "labs":
                    _write(notebook, path)  # a section that catches up looks its heading up there
                    started = time.monotonic()
                    notebook = _cleaned(execute(notebook, f"{kind}/{folder.name}", path.parent))
                    _note_seconds(root, f"{kind}/{folder.name}", time.monotonic() - started)
                _write(notebook, path)
                written[path] = notebook
    finally:  # the next build would not know that those before a cell that fails lack theirs
        bare = {path: bundles for path, book in written.items() if (bundles := pictures.without_picture(book))}
        if bare:
            pictures.draw(itertools.chain(*bare.values()))
        for path in bare:
            _write(written[path], path)
    if (picture := pictures.of_readme(root)) is not None:
        (root / pictures.README_PICTURE).parent.mkdir(parents=True, exist_ok=True)
        (root / pictures.README_PICTURE).write_text(picture, encoding="utf-8")
    return list(written)


def _note_seconds(root: Path, name: str, seconds: float) -> None:
    """Keep what a notebook's run took, by which the minutes of its lesson are counted."""
    took = dict(sorted({**form.machine_seconds(root), name: round(seconds)}.items()))
    (root / "lessons" / form.SECONDS).write_text(json.dumps(took, indent=1) + "\n", encoding="utf-8")


def _write(notebook: NotebookNode, path: Path) -> None:
    path.write_text(nbformat.writes(notebook).rstrip() + "\n", encoding="utf-8")


def _with_stored_outputs(notebook: NotebookNode, path: Path) -> NotebookNode:
    """`notebook` with the outputs of the one stored at `path`, code cell by code cell."""
    stored = nbformat.read(path, as_version=4) if path.exists() else nbformat.v4.new_notebook()
    given, kept = ([cell for cell in book.cells if cell.cell_type == "code"] for book in (notebook, stored))
    if len(given) != len(kept):
        raise CourseError(
            f"{path} has {len(kept)} code cells and its source now {len(given)}: what they show must be made anew. "
            "Run `make notebooks`."
        )
    for cell, old in zip(given, kept, strict=True):
        cell.outputs, cell.execution_count = old.outputs, old.execution_count
    return notebook


def source(folder: Path, kind: str) -> NotebookNode:
    """The notebook of `kind` ("notebooks", "labs", "solutions") that the lesson in `folder` gives, without outputs.

    Raises
    ------
    CourseError
        A marker is out of place (file and line), or the syllabus does not name the lesson.
    """
    script = folder / SCRIPTS[kind]
    text = script.read_text(encoding="utf-8")
    _check_markers(script, text)
    cells = _cells(text)
    if kind == "labs":
        cells = [cell for cell in cells if not _is_solution(cell)]
    values = titles.fields(folder, kind)
    notebook = nbformat.v4.new_notebook(metadata=nbformat.from_dict(METADATA), nbformat_minor=5)
    for index, cell in enumerate(cells):
        if cell.cell_type == "code":
            cell.source = REGION.sub(_for_learner if kind == "labs" else _for_teacher, cell.source)
        else:
            cell.source = lab_gpu.filled(titles.filled(cell.source, values), folder.parent.parent)
        cell.metadata = _only_tags(cell)
        # The same place in the same lesson keeps its id, so that a rebuild changes only what changed.
        cell.id = hashlib.sha256(f"{folder.name}/{kind}/{index}".encode()).hexdigest()[:8]
        notebook.cells.append(cell)
    return notebook


def check(root: Path) -> list[str]:
    """What is wrong with the committed notebooks and README.md, one sentence each; empty when nothing is.

    Raises
    ------
    CourseError
        There is no lesson, a marker is out of place, or the syllabus does not name a lesson.
    """
    problems, expected = [], set()
    if titles.readme(root) != (root / "README.md").read_text(encoding="utf-8"):
        problems.append("README.md: its table of lessons differs from lessons/syllabus.toml; run `make notebooks`")
    picture, shown = root / pictures.README_PICTURE, pictures.of_readme(root)
    if shown is not None and (not picture.exists() or picture.read_text(encoding="utf-8") != shown):
        problems.append(f"{pictures.README_PICTURE} is not the lecture's picture; run `make notebooks`")
    problems += lab_gpu.problems(root)
    for folder in _folders(root, None):
        problems += _wide_lines(folder)
        for kind in _kinds(folder):
            path = root / kind / titles.file_name(kind, folder.name)
            expected.add(path)
            problems += [f"{kind}/{path.name}: {problem}" for problem in _problems(path, folder, kind)]
    strays = {path for kind in SCRIPTS for path in (root / kind).glob("*.ipynb")} - expected
    return problems + [f"{path.parent.name}/{path.name}: no lesson gives it; delete it" for path in sorted(strays)]


def _cells(text: str) -> list[NotebookNode]:
    """The cells of a script. What `%%writefile` writes may stand there as comments, as what is no Python must."""
    cells = jupytext.reads(text, fmt="py:percent").cells
    for cell in cells:
        magic, _, body = cell.source.partition("\n")
        lines = body.split("\n")
        if magic.startswith("%%writefile") and all(not line or line.startswith("#") for line in lines):
            cell.source = "\n".join([magic, *(re.sub("^# ?", "", line) for line in lines)])
    return cells


def _folders(root: Path, lessons: list[str] | None) -> list[Path]:
    found = sorted(path for path in (root / "lessons").glob("[0-9][0-9]_*") if path.is_dir())
    if not found:
        raise CourseError(f"No lesson in {root / 'lessons'}; run this in a clone of the course.")
    return select(found, lessons)


def _kinds(folder: Path) -> list[str]:
    return [kind for kind, script in SCRIPTS.items() if (folder / script).exists()]


def _check_markers(script: Path, text: str) -> None:
    """Raise CourseError for a marker that is nested, unclosed, unopened, or not inside one code cell."""
    opened, cell = 0, "# %%"
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("# %%"):
            if opened:
                break
            cell = line
            continue
        marker = MARKER.fullmatch(line)
        if not marker:
            continue
        where = f"{script}, line {number}:"
        if "[markdown]" in cell:
            raise CourseError(f"{where} a solution marker in a markdown cell; tag the cell instead.")
        if marker[1] == "BEGIN SOLUTION":
            if opened:
                raise CourseError(f"{where} BEGIN SOLUTION inside the one of line {opened}; end that first.")
            opened = number
        elif not opened:
            raise CourseError(f"{where} {marker[1]} with no BEGIN SOLUTION before it; add one, or drop it.")
        elif marker[1] == "END SOLUTION":
            opened = 0
    if opened:
        raise CourseError(f"{script}, line {opened}: BEGIN SOLUTION has no END SOLUTION in its cell; add one.")


def _wide_lines(folder: Path) -> Iterator[str]:
    """Lines of code that would scroll sideways in a notebook, with their place in the script."""
    for script in sorted(folder.glob("*.py")):
        is_code = False
        for number, line in enumerate(script.read_text(encoding="utf-8").splitlines(), 1):
            if line.startswith("# %%"):
                is_code = "[markdown]" not in line
                continue
            width = len(line.replace("# LAB: ", "", 1))  # what of it a learner sees
            if is_code and width > MAX_COLUMNS:
                where = f"lessons/{folder.name}/{script.name}, line {number}"
                yield f"{where}: {width} columns, more than {MAX_COLUMNS}; break the line"


def _is_solution(cell: NotebookNode) -> bool:
    return "solution" in cell.metadata.get("tags", [])


def _for_learner(region: re.Match) -> str:
    given = re.findall(r"^[ \t]*# LAB: ?(.*)$", region[2], re.M) or ["..."]
    return "\n".join(region[1] + line for line in given)


def _for_teacher(region: re.Match) -> str:
    return "\n".join(line for line in region[2].rstrip("\n").split("\n") if not MARKER.fullmatch(line))


def _only_tags(cell: NotebookNode) -> NotebookNode:
    """The cell's metadata without what jupytext or a run left there."""
    return nbformat.from_dict({"tags": cell.metadata.tags} if cell.metadata.get("tags") else {})


def _cleaned(notebook: NotebookNode) -> NotebookNode:
    """The executed notebook without what differs from run to run: timing, homes, and widgets that no kernel backs.

    In place of a widget's view stays its picture. A view without a kernel reads "model not found" in JupyterLab, and
    what an output has besides is not shown.
    """
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        cell.metadata = _only_tags(cell)
        if "outputs" in cell:
            cell.outputs = homes.without_home(output for output in cell.outputs if not is_progress(output))
        for output in cell.get("outputs", []):
            output.get("data", {}).pop(WIDGET_MIME, None)
    return notebook


def _problems(path: Path, folder: Path, kind: str) -> Iterator[str]:
    if not path.exists():
        yield "missing; run `make notebooks`"
        return
    notebook, expected = nbformat.read(path, as_version=4), source(folder, kind)
    if _sources(notebook) != _sources(expected) or "widgets" in notebook.metadata:
        yield f"differs from lessons/{folder.name}/{SCRIPTS[kind]}; run `make notebooks`"
    if notebook.metadata != METADATA or any(set(cell.metadata) - {"tags"} for cell in notebook.cells):
        yield "carries what an editor or a run left in its metadata; run `make notebooks`"
    if path.stat().st_size > MAX_BYTES:
        yield f"{path.stat().st_size} bytes, more than {MAX_BYTES}; show less"
    script = (folder / SCRIPTS[kind]).read_text(encoding="utf-8")
    yield from titles.problems(script, titles.fields(folder, kind), kind)
    yield from _execution_problems(notebook, kind)
    if kind == "labs":
        yield from _leaks(notebook, folder)
    yield from _prose_problems(notebook, path.parent)
    yield from _form_problems(expected, folder, kind)


def _form_problems(notebook: NotebookNode, folder: Path, kind: str) -> Iterator[str]:
    if kind == "notebooks":
        minutes = next(lesson.minutes for lesson in syllabus.read(folder.parent.parent) if lesson.name == folder.name)
        took = form.machine_seconds(folder.parent.parent).get(f"{kind}/{folder.name}", 0.0)
        yield from form.lecture_problems(notebook, folder.name, minutes, took)
    if kind == "labs":
        yield from form.lab_problems(notebook)


def _sources(notebook: NotebookNode) -> list[tuple]:
    return [(cell.id, cell.cell_type, cell.source, cell.metadata.get("tags", [])) for cell in notebook.cells]


def _execution_problems(notebook: NotebookNode, kind: str) -> Iterator[str]:
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    counts = [cell.execution_count for cell in code]
    if kind == "labs":
        if any(counts) or any(cell.outputs for cell in code):
            yield "a lab has outputs; run `make notebooks`"
    elif counts != list(range(1, len(code) + 1)):
        yield f"not run once from top to bottom: its cells carry {counts}; run `make notebooks`"
    if pictures.without_picture(notebook):
        yield "a figure has no static picture; run `python -m tools.lessons build --sources`"
    if any(WIDGET_MIME in output.get("data", {}) for cell in code for output in cell.outputs):
        yield "a widget's view is stored, which no kernel backs; run `make notebooks`"
    if shown := homes.homes(output for cell in code for output in cell.outputs):
        yield f"an output shows {', '.join(sorted(shown))}; run `python -m tools.lessons build --sources`"
    if any(output.output_type == "error" for cell in code for output in cell.outputs):
        yield "a cell shows an error; catch it and print its message"


def _leaks(lab: NotebookNode, folder: Path) -> Iterator[str]:
    """Lines of the answers, long enough to be one, that a learner could read in the lab."""
    text = (folder / SCRIPTS["labs"]).read_text(encoding="utf-8")
    answers, given = set(), set()
    for cell in _cells(text):
        hidden = cell.source if _is_solution(cell) else "\n".join(m[2] for m in REGION.finditer(cell.source))
        answers.update(line.strip() for line in hidden.splitlines() if not MARKER.fullmatch(line))
        if cell.cell_type == "code" and not _is_solution(cell):
            given.update(line.strip() for line in REGION.sub(_for_learner, cell.source).splitlines())
    shown = "\n".join(cell.source for cell in lab.cells)
    opens = ("(", "[", "{")  # where a value begins is no answer yet
    for line in sorted(
        line for line in answers - given if len(line) >= 12 and not line.endswith(opens) and line in shown
    ):
        yield f"the answer `{line}` can be read in the lab"


def _prose_problems(notebook: NotebookNode, base: Path) -> Iterator[str]:
    markdown = "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    prose = re.sub(r"^(```|~~~).*?^\1|`[^`\n]*`", "", markdown, flags=re.M | re.S)
    levels = [len(mark) for mark in re.findall(r"^(#{1,6}) ", prose, re.M)]
    if levels.count(1) != 1 or levels[0] != 1:
        yield f"{levels.count(1)} top headings; a notebook opens with its only one"
    if any(deeper > level + 1 for level, deeper in zip(levels, levels[1:], strict=False)):
        yield f"headings skip a level: {levels}"
    targets = re.findall(r"\]\(([^)\s]+)|(?:href|src)=[\"']([^\"']+)", prose)
    for link in sorted({"".join(target).split("#")[0] for target in targets}):
        if link and not re.match(r"[a-z]+:", link) and not (base / link).exists():
            yield f"the link to {link} leads nowhere"


def main(arguments: list[str]) -> int:
    """The two commands of the module's docstring; returns the exit status."""
    command, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    try:
        if command == "build":
            keep = "--sources" in rest
            readme = titles.readme(ROOT)
            written = build(ROOT, lessons=[name for name in rest if name != "--sources"], keep_outputs=keep)
            (ROOT / "README.md").write_text(readme, encoding="utf-8")
            written += instructor.write(ROOT)
            print(*(path.relative_to(ROOT) for path in written), sep="\n")
            return 0
        if command == "check":
            problems = check(ROOT)
            print(*problems or ["The notebooks and README.md are what their source gives."], sep="\n")
            return 1 if problems else 0
    except CourseError as error:
        print(error, file=sys.stderr)
        return 1
    print("Usage: python -m tools.lessons build [--sources] [NN …] | check", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
