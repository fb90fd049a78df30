"""Writes what the instructor's pages say of minutes, and holds the headings that they name to their lessons.

The head of a lesson's page, its tables of sections and exercises, is made anew, and so are the times of the routes in
`assets/instructor/README.md`: a route's row names a lesson "without" some of its sections, exercises of a lab, or else
its own minutes.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import nbformat

from inflight import syllabus
from inflight.errors import CourseError
from inflight.notebook.pages import instructor
from inflight.paths import COURSE
from inflight.syllabus import Lesson
from tools import titles

EXERCISE = re.compile(
    r"^# ## Exercise ([\d.]+): (.+)\n#\n# \*(Core|Further) · importance \S+ · difficulty (\S+) · (\d+) minutes", re.M
)
ROW = re.compile(r"^\| (\d+:\d\d) \| (.+) \| (\d+) \|$", re.M)
ROUTE = re.compile(r"^### .+?(?=^###? |\Z)", re.M | re.S)
SPARE = re.compile(r"(\d+) minutes, (-?\d+) to spare")
SECOND_DAY = "| | **the second day** | |"


def pages(root: Path) -> dict[Path, str]:
    """The instructor's pages of the clone `root`, each with its minutes as the lessons give them.

    Raises
    ------
    CourseError
        A route names a section or an exercise that is not there, or has no minute to spare.
    """
    lessons = {lesson.topic: lesson for lesson in syllabus.read(titles.folder(root))}
    found = {}
    for lesson in lessons.values():
        page = lesson.folder / "instructor.md"
        if page.exists():
            _, *parts = re.split(r"^(?=## )", page.read_text(encoding="utf-8"), flags=re.M)
            found[page] = head(lesson) + "".join(parts)
    routes = root / "assets" / "instructor" / "README.md"
    if routes.exists():
        text = titles.with_table(routes, _lessons(list(lessons.values())))
        found[routes] = ROUTE.sub(lambda route: _timed(route[0], lessons), text)
    return found


def head(lesson: Lesson) -> str:
    """The first lines of a lesson's page: its question, its notebooks, the minutes of sections and exercises."""
    sections, exercises = titles.section_minutes(lesson.folder), _exercises(lesson)
    minutes, core = titles.lab_minutes(lesson.folder)
    up = "../../.."
    links = [f"[lecture]({up}/notebooks/{lesson.name}.ipynb), {sum(sections.values())} minutes"]
    if exercises:
        lab, solution = (f"{up}/{kind}/{titles.file_name(kind, lesson.name)}" for kind in ("labs", "solutions"))
        links += [f"[lab]({lab}), {minutes} minutes, of which *Core* {core}", f"[its solution]({solution})"]
    links.append(f"slides: `inflight slides {lesson.number}`")
    rows = ["| section | minutes |", "|---|---|", *(f"| {name} | {each} |" for name, each in sections.items())]
    if exercises:
        rows += ["", "| exercise | minutes | difficulty |", "|---|---|---|"]
        rows += [
            f"| {number}: {title}{', *Core*' if kind == 'Core' else ''} | {each} | {difficulty} |"
            for number, (title, kind, difficulty, each) in exercises.items()
        ]
    parts = [f"# {lesson.heading}", f"**{lesson.question}**", " · ".join(links), "\n".join(rows)]
    return "\n\n".join(parts) + "\n\n"


def _exercises(lesson: Lesson) -> dict[str, tuple[str, str, str, int]]:
    """Title, kind, difficulty and minutes of each exercise, by its number."""
    script = lesson.folder / "lab.py"
    found = EXERCISE.findall(script.read_text(encoding="utf-8")) if script.exists() else []
    return {number: (title, kind, hard, int(minutes)) for number, title, kind, hard, minutes in found}


def _lessons(lessons: list[Lesson]) -> str:
    rows = [f"| {one.number} | [{one.title}](../../inflight/lessons/{one.topic}/instructor.md) |" for one in lessons]
    return "\n".join(["| lesson | page |", "|---|---|", *rows])


def _timed(route: str, lessons: dict[str, Lesson]) -> str:
    """A route with the minutes of its rows, when each begins, and their sum."""
    total, begins = 0, 0

    def row(found: re.Match) -> str:
        nonlocal total, begins
        if found[0] == SECOND_DAY:
            begins = 0
            return found[0]
        minutes = _minutes(found[2], int(found[3]), lessons)
        line = f"| {begins // 60}:{begins % 60:02} | {found[2]} | {minutes} |"
        total, begins = total + minutes, begins + minutes
        return line

    route = re.sub(rf"{ROW.pattern}|^{re.escape(SECOND_DAY)}$", row, route, flags=re.M)
    if spare := SPARE.search(route):
        left = int(spare[1]) + int(spare[2]) - total
        if left < 0:
            raise CourseError(f"{route.splitlines()[0]}: the route takes {-left} minutes too many; leave out more.")
        route = SPARE.sub(f"{total} minutes, {left} to spare", route)
    return route


def _minutes(what: str, stated: int, lessons: dict[str, Lesson]) -> int:
    if found := re.search(r"/lessons/(\w+)/instructor\.md\)(?:, without (.+))?", what):
        sections = titles.section_minutes(lessons[found[1]].folder)
        left_out = re.findall(r"\*(.+?)\*", found[2] or "")
        if strange := [name for name in left_out if name not in sections]:
            raise CourseError(f"A route leaves out {strange[0]!r} of {found[1]}, which has no such section.")
        return sum(sections.values()) - sum(sections[name] for name in left_out)
    if found := re.match(r"Lab \d\d: ([\d., ]+)$", what):
        known = {number: each[-1] for lesson in lessons.values() for number, each in _exercises(lesson).items()}
        numbers = found[1].split(", ")
        if strange := [number for number in numbers if number not in known]:
            raise CourseError(f"A route has exercise {strange[0]}, and no lab has it.")
        return sum(known[number] for number in numbers)
    return stated


def problems() -> Iterator[str]:
    """A page that is missing, a part of it that is, and a section, an exercise or a figure that its lesson has not."""
    for lesson in syllabus.read():
        page, parts = f"inflight/lessons/{lesson.topic}/instructor.md", instructor.parts(lesson.folder)
        for part in instructor.PARTS:
            if not parts.get(part):
                yield f"{page}: says nothing under {part!r}"
        lecture = COURSE / "notebooks" / f"{lesson.name}.ipynb"
        sections, printed = _headings(lecture), _printed(lecture)
        named = [
            heading
            for part in (instructor.POINTS, instructor.CUTS)
            for heading, _ in instructor.points(parts.get(part, ""))
        ]
        expected = instructor.rows(parts.get(instructor.EXPECTED, ""))
        named += [row[0] for row in expected]
        for heading in sorted(set(named) - sections):
            yield f"{page}: the lecture has no section {heading!r}"
        for said in (" ".join(row[2].strip("`").split()) for row in expected if "{}" in row[2]):
            if not re.search(r"\S+".join(map(re.escape, said.split("{}"))), printed):
                yield f"{page}: the lecture does not say {said!r}"
        lab = COURSE / "labs" / titles.file_name("labs", lesson.name)
        exercises = (
            {heading for heading in _headings(lab) if heading.startswith("Exercise ")} if lab.exists() else set()
        )
        told = set(re.findall(r"^### (Exercise .+)", parts.get(instructor.WRONG, ""), re.M))
        for heading in sorted(exercises ^ told):
            yield f"{page}: {heading!r} is in the page or in the lab, not in both"


def _headings(notebook: Path) -> set[str]:
    cells = nbformat.read(notebook, as_version=4).cells
    return {
        found for cell in cells if cell.cell_type == "markdown" for found in re.findall(r"^## (.+)", cell.source, re.M)
    }


def _printed(notebook: Path) -> str:
    """What the cells of a stored notebook say, in one line."""
    outputs = (output for cell in nbformat.read(notebook, as_version=4).cells for output in cell.get("outputs", ()))
    texts = (output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs)
    return " ".join(" ".join(texts).split())
