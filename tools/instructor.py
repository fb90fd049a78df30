"""Holds the instructor's pack, `assets/instructor/`, to the lessons.

    python -m tools.instructor           write what is generated: the routes, and the minutes on each lesson's page
    python -m tools.instructor check     say what differs from the lessons

The minutes of a lecture stand in `lessons/syllabus.toml`, those of an exercise in its lab. A section's share of a
lecture is reckoned from its words and cells, as `tools.form` reckons the whole. Headings, exercises and figures
that a page names are looked up in the lessons; a figure must lie in its range in the notebook that is stored.
"""

from __future__ import annotations

import html
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from inflight.errors import CourseError
from inflight.notebook import guide, syllabus
from inflight.notebook.charts.display import PLOTLY_MIME
from inflight.notebook.syllabus import Lesson
from inflight.paths import COURSE
from tools import form, titles

BEGIN = "<!-- written by `python -m tools.instructor` from the lessons -->\n"
END = "<!-- end of what is written -->\n"
EXERCISE = re.compile(r"^## Exercise ((\d+\.\d+): .+)\n\n(\*.*\*)$", re.M)
QUESTION = re.compile(r"^\*\*(\d)\. (.+?)\*\*\n\n(.+?)(?=\n\n\*\*\d\.|\Z)", re.M | re.S)


@dataclass(frozen=True)
class Exercise:
    """An exercise of a lab: "4.2: static batching", its minutes, its difficulty of 5, and whether it is Core."""

    title: str
    minutes: int
    difficulty: int
    is_core: bool

    @property
    def number(self) -> str:
        return self.title.partition(":")[0]


@dataclass(frozen=True)
class Taught:
    """A lesson with all that its page may name."""

    lesson: Lesson
    lecture: NotebookNode
    sections: dict[str, float]  # heading: minutes
    exercises: list[Exercise]
    machine_s: float  # of a run of the lecture on a machine that does nothing else; 0 where none is noted


def lessons(root: Path = COURSE) -> list[Taught]:
    """Every lesson that is built, in its order."""
    return [_taught(root, lesson) for lesson in syllabus.read(root) if not lesson.planned]


def _taught(root: Path, lesson: Lesson) -> Taught:
    lecture = nbformat.read(root / "notebooks" / f"{lesson.name}.ipynb", as_version=4)
    lab = root / "labs" / titles.file_name("labs", lesson.name)
    machine_s = form.machine_seconds(root).get(f"notebooks/{lesson.name}", 0.0)
    return Taught(lesson, lecture, _minutes_of_sections(lecture, lesson.minutes), _exercises(lab), machine_s)


def _exercises(lab: Path) -> list[Exercise]:
    if not lab.exists():
        return []
    found = []
    for cell in nbformat.read(lab, as_version=4).cells:
        for title, _, effort in EXERCISE.findall(cell.source):
            said = form.EFFORT.search(effort)
            difficulty = re.search(r"difficulty (\d)", effort)
            found.append(Exercise(title, int(said[2]), int(difficulty[1]), bool(said[1])))
    return found


def by_section(lecture: NotebookNode) -> dict[str, list[NotebookNode]]:
    """The cells of each section (`## …`) of a lecture; what stands before the first has the blank heading."""
    found: dict[str, list[NotebookNode]] = {"": []}
    heading = ""
    for cell in lecture.cells:
        parts = re.split(r"^## (.+)\n?", cell.source, flags=re.M) if cell.cell_type == "markdown" else [cell.source]
        found[heading].append(nbformat.from_dict({**cell, "source": parts[0]}))
        for heading, body in zip(parts[1::2], parts[2::2]):
            found[heading] = [nbformat.from_dict({**cell, "source": body})]
    return found


def _minutes_of_sections(lecture: NotebookNode, minutes: int) -> dict[str, float]:
    sizes = {
        heading: form.size(nbformat.v4.new_notebook(cells=cells)).minutes
        for heading, cells in by_section(lecture).items()
    }
    scale = minutes / sum(sizes.values())
    return {heading: size * scale for heading, size in sizes.items() if heading}


# What is generated ----------------------------------------------------------------------------------------------------


def write(root: Path = COURSE) -> list[Path]:
    """Write routes and minutes anew; return the files that changed.

    Raises
    ------
    CourseError
        A route names a lesson, heading or exercise that there is not.
    """
    changed = []
    try:
        texts = list(_texts(root, lessons(root)))
    except KeyError as error:
        raise CourseError(
            f"assets/instructor/routes.toml names {error}, which is no lesson, heading or exercise."
        ) from None
    for path, text in texts:
        if text != path.read_text(encoding="utf-8"):
            path.write_text(text, encoding="utf-8")
            changed.append(path)
    return changed


def _texts(root: Path, taught: list[Taught]) -> Iterator[tuple[Path, str]]:
    """Each file of the pack that has a generated part, and the text that it should have."""
    pages = root / "assets" / "instructor"
    yield pages / "README.md", _with_part((pages / "README.md").read_text(encoding="utf-8"), _routes(pages, taught))
    for one in taught:
        path = guide.path(one.lesson.name, pages)
        if path.exists():
            yield path, _with_part(path.read_text(encoding="utf-8"), _facts(one))


def _with_part(text: str, part: str) -> str:
    """`text` with `part` in its place: between the two comments, or below the first heading where there are none."""
    if BEGIN in text and END in text:
        return text.partition(BEGIN)[0] + BEGIN + part + END + text.partition(END)[2]
    first, _, rest = text.partition("\n")
    return f"{first}\n\n{BEGIN}{part}{END}{rest}"


def _facts(one: Taught) -> str:
    """How long a lesson and its parts take, as one reads it at the top of its page."""
    name, core = one.lesson.name, sum(exercise.minutes for exercise in one.exercises if exercise.is_core)
    runs = f", in which one that runs it alone waits {one.machine_s:.0f} s for the machine" if one.machine_s else ""
    links = [f"[lecture](../../notebooks/{name}.ipynb), {one.lesson.minutes} minutes{runs}"]
    if one.exercises:
        whole = sum(exercise.minutes for exercise in one.exercises)
        links += [
            f"[lab](../../labs/{name}_lab.ipynb), {whole} minutes, of which *Core* {core}",
            f"[its solution](../../solutions/{name}_solution.ipynb)",
        ]
    links.append(f"slides: `inflight slides {one.lesson.number}`")
    rows = ["| section | minutes |", "|---|---|"]
    rows += [f"| {heading} | {max(1, round(minutes))} |" for heading, minutes in one.sections.items()]
    if one.exercises:
        rows += ["", "| exercise | minutes | difficulty |", "|---|---|---|"]
        for exercise in one.exercises:
            title = f"{exercise.title}, *Core*" if exercise.is_core else exercise.title
            rows.append(f"| {title} | {exercise.minutes} | {exercise.difficulty}/5 |")
    return f"**{one.lesson.question}**\n\n{' · '.join(links)}\n\n" + "\n".join(rows) + "\n"


def _routes(pages: Path, taught: list[Taught]) -> str:
    routes = tomllib.loads((pages / "routes.toml").read_text(encoding="utf-8"))["route"]
    return "\n".join(_route(route, {one.lesson.number: one for one in taught}) for route in routes)


def _route(route: dict, taught: dict[str, Taught]) -> str:
    rows, clock, whole = [], 0, 0
    for step in route["steps"]:
        if "new_day" in step:
            rows.append(f"| | **{step['new_day']}** | |")
            clock = 0
            continue
        what, minutes = _step(step, taught)
        rows.append(f"| {clock // 60}:{clock % 60:02} | {what} | {minutes} |")
        clock, whole = clock + minutes, whole + minutes
    said = f"For {route['is_for']}. {whole} minutes, {route['minutes'] - whole} to spare."
    head = ["| from | what | minutes |", "|---|---|---|"]
    return "\n".join([f"### {route['name']}", "", said, "", *head, *rows, ""])


def _step(step: dict, taught: dict[str, Taught]) -> tuple[str, int]:
    """What a step of a route is, and its minutes.

    Raises
    ------
    KeyError
        A lesson, heading or exercise that there is not.
    """
    if "break" in step:
        return step["break"], step["minutes"]
    one = taught[step.get("lecture") or step["lab"]]
    if "lecture" in step:
        without = step.get("without", [])
        minutes = one.lesson.minutes - sum(one.sections[heading] for heading in without)
        rest = f", without {'; '.join(f'*{heading}*' for heading in without)}" if without else ""
        return f"[{one.lesson.heading}]({one.lesson.name}.md){rest}", round(minutes)
    by_number = {exercise.number: exercise for exercise in one.exercises}
    asked = step.get("exercises", list(by_number))
    if asked == "core":
        asked = [number for number, exercise in by_number.items() if exercise.is_core]
    chosen = [by_number[number] for number in asked]
    return f"Lab {one.lesson.number}: {', '.join(asked)}", sum(exercise.minutes for exercise in chosen)


# What is checked ------------------------------------------------------------------------------------------------------


def problems(root: Path = COURSE) -> list[str]:
    """What of the pack is not as the lessons are, one sentence each; empty when all is."""
    taught = lessons(root)
    try:
        found = [
            f"{path.name}: its generated part differs from the lessons; run `python -m tools.instructor`"
            for path, text in _texts(root, taught)
            if text != path.read_text(encoding="utf-8")
        ]
    except KeyError as error:
        found = [f"routes.toml names {error}, which is no lesson, heading or exercise"]
    found += _full_routes(root)
    for one in taught:
        path = guide.path(one.lesson.name, root / "assets" / "instructor")
        if not path.exists():
            found.append(f"{path.name} is missing: every lesson has a page")
            continue
        text = path.read_text(encoding="utf-8").partition(END)[2]
        found += [f"{path.name}: {problem}" for problem in _of_page(text, one, root)]
    return found


def _full_routes(root: Path) -> Iterator[str]:
    text = (root / "assets" / "instructor" / "README.md").read_text(encoding="utf-8")
    for minutes, left in re.findall(r"(\d+) minutes, (-\d+) to spare", text):
        yield f"README.md: a route of {minutes} minutes takes {left[1:]} too many; leave something out in routes.toml"


def _of_page(text: str, one: Taught, root: Path) -> Iterator[str]:
    parts = guide.parts(text)
    if list(parts) != list(guide.PARTS):
        yield f"has the parts {list(parts)}; they are {list(guide.PARTS)}"
        return
    if blank := [heading for heading, body in parts.items() if not body]:
        yield f"says nothing under {blank}"
    for part in (guide.POINTS, guide.CUTS):
        if not (points := guide.points(parts[part])):
            yield f"{part}: has no point that begins with a heading"
        for heading, _ in points:
            if heading not in one.sections:
                yield f"{part}: the lesson has no section {heading!r}"
    yield from _expectations(parts[guide.EXPECTED], one)
    yield from _questions(parts[guide.QUESTIONS], one, root)
    yield from _wrong_answers(parts[guide.WRONG], one)
    if len(guide.rows(parts[guide.ROOM])) < 3:
        yield f"{guide.ROOM}: has fewer than three rows"


def _expectations(part: str, one: Taught) -> Iterator[str]:
    cells = by_section(one.lecture)
    try:
        expected = guide.expected(part)
    except ValueError as error:
        yield f"{guide.EXPECTED}: {error}"
        return
    if not expected:
        yield f"{guide.EXPECTED}: names no figure"
    for figure in expected:
        where = f"{guide.EXPECTED}: {figure.words!r}"
        if figure.heading not in cells:
            yield f"{guide.EXPECTED}: the lesson has no section {figure.heading!r}"
        elif not (match := figure.pattern().search(shown(cells[figure.heading]))):
            yield f"{where} is not what the section {figure.heading!r} shows"
        elif not figure.low <= (value := float(match[1].replace(",", ""))) <= figure.high:
            yield f"{where} is {value:g} in the stored notebook, and {figure.normal} is said to be normal"


def shown(cells: list[NotebookNode]) -> str:
    """Whatever words the outputs of cells have, a line an output."""
    said = []
    for output in (output for cell in cells for output in cell.get("outputs", [])):
        data = output.get("data", {})
        said.append(output.get("text", "") or data.get("text/plain", ""))
        if PLOTLY_MIME not in data and "text/html" in data:
            said.append(html.unescape(re.sub(r"<[^>]+>", " ", data["text/html"])))
        said.append(data.get("text/markdown", ""))
    return "\n".join(said)


def _questions(part: str, one: Taught, root: Path) -> Iterator[str]:
    asked = QUESTION.findall(part)
    if [number for number, _, _ in asked] != ["1", "2", "3"]:
        yield f"{guide.QUESTIONS}: has {len(asked)} questions with an answer"
    lab = root / "labs" / titles.file_name("labs", one.lesson.name)
    cells = [*one.lecture.cells, *(nbformat.read(lab, as_version=4).cells if lab.exists() else [])]
    known = _squeezed("\n".join(cell.source for cell in cells))
    for number, question, _ in asked:
        if _squeezed(question) in known:
            yield f"{guide.QUESTIONS}: question {number} is one of the lesson's own"


def _wrong_answers(part: str, one: Taught) -> Iterator[str]:
    tables = re.split(r"^### (.+)\n", part, flags=re.M)
    found = dict(zip(tables[1::2], tables[2::2]))
    wanted = [f"Exercise {exercise.title}" for exercise in one.exercises]
    if list(found) != wanted:
        yield f"{guide.WRONG}: has {list(found)}; the lab has {wanted}"
        return
    for heading, table in found.items():
        if len(rows := guide.rows(table)) < 2:
            yield f"{heading}: has fewer than two wrong answers"
        for fields in rows:
            if not re.search(r'"[^"]+"', fields[1]):
                yield f"{heading}: {fields[0]!r} does not say what the check says"


def _squeezed(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def main(arguments: list[str]) -> int:
    """The two commands of the module's docstring; returns the exit status."""
    if not arguments:
        for path in write():
            print(path.relative_to(COURSE))
        return 0
    if arguments != ["check"]:
        print("Usage: python -m tools.instructor [check]", file=sys.stderr)
        return 2
    found = problems()
    print(*found or ["The instructor's pack is what the lessons are."], sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
