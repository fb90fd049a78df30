"""Puts what a lesson is called, asks and takes, from its `lesson.toml`, into the notebooks, README.md and the glossary.

In a markdown cell of a lesson's script these stand for it:

    {heading}       04 · Title in a lecture, Lab 04 · Title in a lab
    {minutes}       what a lecture takes by the formula below, or a lab: the sum of its exercises
    {core}          what a lab's exercises marked Core take
    {question}      what it asks
    {navigation}    links from a lecture to the one before, its lab and the one after; from a lab to its lecture, its
                    solution and the next lecture
    {next}          a link to the lecture after it
    {lab}           where a lecture's lab is
    {counterpart}   a link from a lab to its solution, and from a solution to its lab

A link to a term, such as `[prefill](glossary.md#Prefill)`, gets its sentence as title, which a page shows when
the mouse is over it.
"""

import re
import tomllib
from pathlib import Path

import jupytext

from inflight import syllabus
from inflight.errors import CourseError
from inflight.notebook.pages import blanks
from inflight.syllabus import Lesson

FIELD = re.compile(r"\{(heading|minutes|core|question|navigation|next|lab|counterpart)\}")
# A tab shows a notebook's name without its folder: lecture, lab and solution of a lesson are told apart by it.
SUFFIX = {"notebooks": "", "labs": "_lab", "solutions": "_solution"}
# The line below the heading of an exercise.
EXERCISE = re.compile(r"^# \*(Core · )?(?:Further · )?importance .* (\d+) minutes\b.*\*$", re.M)
TERM = re.compile(r"\]\(((?:\.\./notebooks/)?glossary\.md#([\w`.-]+))\)")
GLOSSARY = "# Glossary\n\nThe terms of the course, in the order in which they come up, with a sentence each."
LINK = re.compile(r"\]\([^)]*\)")
TABLE = re.compile(r"(<!-- written by `make notebooks`[^\n]*-->\n).*?(<!-- end of what is written -->)", re.S)


def file_name(kind: str, lesson: str) -> str:
    """Name of the notebook of `kind` ("notebooks", "labs", "solutions") of a lesson such as "01_engine"."""
    return f"{lesson}{SUFFIX[kind]}.ipynb"


def folder(root: Path) -> Path:
    """Where the clone `root` has its lessons."""
    return root / "inflight" / "lessons"


def fields(lesson: Lesson, kind: str) -> dict[str, str]:
    """What each field of the module's docstring stands for in the notebook of `kind` of a lesson."""
    lessons = syllabus.read(lesson.folder.parent)
    place = lessons.index(lesson)
    before, after = lessons[:place][-1:], lessons[place + 1 :][:1]
    lab = f"../labs/{file_name('labs', lesson.name)}"
    lectures = "" if kind == "notebooks" else "../notebooks/"
    onward = [f"[{other.heading} →]({lectures}{other.name}.ipynb)" for other in after]
    values = {
        "heading": lesson.heading,
        "minutes": str(lecture_minutes(lesson.folder)),
        "question": lesson.question,
        "lab": lab,
    }
    if after:
        values["next"] = f"[{after[0].heading}]({lectures}{after[0].name}.ipynb)"
    if kind == "notebooks":
        back = [f"[← {other.heading}]({other.name}.ipynb)" for other in before]
        back += [f"[Lab {lesson.number}]({lab})"] if (lesson.folder / "lab.py").exists() else []
    else:
        other, said = ("solutions", "its solution") if kind == "labs" else ("labs", "your lab")
        values["heading"] = f"Lab {lesson.heading}"
        values["minutes"], values["core"] = map(str, lab_minutes(lesson.folder))
        values["counterpart"] = f"[{said}](../{other}/{file_name(other, lesson.name)})"
        back = [f"[← {lesson.heading}]({lectures}{lesson.name}.ipynb)", values["counterpart"]]
    return {**values, "navigation": " · ".join([*back, *onward])}


def section_minutes(folder: Path) -> dict[str, int]:
    """What each section (`## …`) of the lecture in `folder` takes, the title with the first.

    8 minutes for 500 words, 1 for a code cell, 3 more for a blank or a prediction.
    """
    cells = jupytext.reads((folder / "lecture.py").read_text(encoding="utf-8"), fmt="py:percent").cells
    taken, heading, question = {"": 0.0}, "", tomllib.loads((folder / "lesson.toml").read_text("utf-8"))["question"]
    for cell in cells:
        if cell.cell_type == "code":
            if not blanks.is_for_ci(cell):
                asked = len(blanks.BLANK.findall(cell.source)) + cell.source.count("widgets.predict(")
                taken[heading] += 1 + 3 * asked
            continue
        for part in re.split(r"^(?=## )", cell.source, flags=re.M):
            if found := re.match(r"## (.+)", part):
                heading = found[1].strip().replace("{question}", question)
                taken[heading] = taken.pop("", 0.0)
            taken[heading] += len(LINK.sub("]", part).split()) * 8 / 500
    return {name: max(1, round(minutes)) for name, minutes in taken.items()}


def lecture_minutes(folder: Path) -> int:
    """What the lecture in `folder` takes: the sum of its sections."""
    return sum(section_minutes(folder).values())


def lab_minutes(folder: Path) -> tuple[int, int]:
    """What the exercises of the lab in `folder` take, all and those marked Core; 0 where there is none."""
    script = folder / "lab.py"
    found = EXERCISE.findall(script.read_text(encoding="utf-8")) if script.exists() else []
    return sum(int(minutes) for _, minutes in found), sum(int(minutes) for core, minutes in found if core)


def filled(text: str, values: dict[str, str]) -> str:
    """`text` of a markdown cell with every field replaced by its value; CourseError for one that has none here."""
    try:
        return FIELD.sub(lambda match: values[match[1]], text)
    except KeyError as error:
        raise CourseError(f"{{{error.args[0]}}} stands for nothing in {values['heading']!r}; take it out.") from None


def terms(lessons: Path) -> dict[str, tuple[str, str, Lesson]]:
    """The glossary of the folder of lessons: anchor of each term -> the term, its sentence, its lesson."""
    found = {}
    for lesson in syllabus.read(lessons):
        path = lesson.folder / "glossary.md"
        for entry in re.split(r"^### ", path.read_text(encoding="utf-8") if path.exists() else "", flags=re.M)[1:]:
            term, _, sentence = entry.partition("\n")
            found[term.replace(" ", "-")] = (term, " ".join(sentence.split()), lesson)
    return found


def explained(text: str, known: dict[str, tuple[str, str, Lesson]]) -> str:
    """`text` of a markdown cell in which each link to a term of the glossary has the term's sentence as title."""

    def link(found: re.Match) -> str:
        if found[2] not in known:
            return found[0]
        sentence = known[found[2]][1].partition(" Also: ")[0].replace('"', "'")
        return f']({found[1]} "{sentence}")'

    return TERM.sub(link, text)


def pages(root: Path) -> dict[Path, str]:
    """README.md with its table of the lessons, and the glossary."""
    lessons, readme = syllabus.read(folder(root)), root / "README.md"
    return {
        readme: with_table(readme, _table(lessons, "notebooks/", "labs/")),
        root / "notebooks" / "glossary.md": _glossary_page(root),
    }


def _glossary_page(root: Path) -> str:
    """Every term with its sentence, lesson by lesson."""
    text, of = [GLOSSARY], None
    for term, sentence, lesson in terms(folder(root)).values():
        if lesson != of:
            of = lesson
            text.append(f"## {lesson.heading}")
        text.append(f"### {term}\n{sentence}")
    return "\n\n".join(text) + "\n"


def with_table(path: Path, table: str) -> str:
    """A page with its table of the lessons written anew."""
    return TABLE.sub(lambda match: f"{match[1]}{table}\n\n{match[2]}", path.read_text(encoding="utf-8"))


def _table(lessons: list[Lesson], lectures: str, labs: str) -> str:
    """The lessons as a table in Markdown, part by part, with links that begin as given.

    The sums of the core stand before the electives, and theirs after them.
    """
    electives = [lesson for lesson in lessons if lesson.part == syllabus.ELECTIVES]
    core = [lesson for lesson in lessons if lesson not in electives]
    rows = ["| | lesson | question | minutes | lab |", "|---|---|---|---|---|"]
    for said, some in (("the core", core), ("the electives", electives)):
        part, sums = "", [0, 0]
        for lesson in some:
            if lesson.part != part:
                part = lesson.part
                rows.append(f"| | **{part}** | | | |")
            own, (minutes, _) = lecture_minutes(lesson.folder), lab_minutes(lesson.folder)
            lab = f"[lab]({labs}{file_name('labs', lesson.name)}), {minutes}" if minutes else ""
            title = f"[{lesson.title}]({lectures}{lesson.name}.ipynb)"
            rows.append(f"| {lesson.number} | {title} | {lesson.question} | {own} | {lab} |")
            sums = [sums[0] + own, sums[1] + minutes]
        if some:
            rows.append(f"| | | {said}, in all | {_hours(sums[0])} | {_hours(sums[1])} |")
    return "\n".join(rows)


def _hours(minutes: int) -> str:
    """To the nearest hour, or in minutes where that says too little."""
    return f"{minutes / 60:.0f} hours" if minutes > 150 else f"{minutes} minutes"
