"""Puts what a lesson is called, asks and takes, from its `lesson.toml`, into the notebooks and into three pages.

In a markdown cell of a lesson's script these stand for it:

    {heading}       04 · Title in a lecture, Lab 04 · Title in a lab
    {minutes}       what a lecture takes, or a lab: the sum of its exercises
    {core}          what a lab's exercises marked Core take
    {question}      what it asks
    {navigation}    links from a lecture to the one before, its lab and the one after; from a lab to its lecture, its
                    solution and the next lecture
    {next}          a link to the lecture after it
    {lab}           where a lecture's lab is
    {map}           a table of all lessons, in a lecture
    {counterpart}   a link from a lab to its solution, and from a solution to its lab
    {glossary}      every term of the glossary with its sentence, and a link back to where it comes up

A link to a term, such as `[prefill](00_start_here.ipynb#Prefill)`, gets its sentence as title, which a page shows when
the mouse is over it.
"""

import re
from pathlib import Path

from inflight.errors import CourseError
from inflight.notebook import syllabus
from inflight.notebook.syllabus import Lesson

FIELD = re.compile(r"\{(heading|minutes|core|question|navigation|next|lab|map|counterpart|glossary)\}")
# A tab shows a notebook's name without its folder: lecture, lab and solution of a lesson are told apart by it.
SUFFIX = {"notebooks": "", "labs": "_lab", "solutions": "_solution"}
# The line below the heading of an exercise.
EXERCISE = re.compile(r"^# \*(Core · )?(?:Further · )?importance .* (\d+) minutes\b.*\*$", re.M)
TERM = re.compile(r"\]\(((?:(?:\.\./notebooks/)?00_start_here\.ipynb)?#([\w`.-]+))\)")
GLOSSARY = "# Glossary\n\nThe terms of the course, in the order in which they come up, with a sentence each."
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
    values = {"heading": lesson.heading, "minutes": str(lesson.minutes), "question": lesson.question, "lab": lab}
    if after:
        values["next"] = f"[{after[0].heading}]({lectures}{after[0].name}.ipynb)"
    if kind == "notebooks":
        values["map"] = _table(lessons, "", "../labs/")
        values["glossary"] = _glossary(lesson)
        back = [f"[← {other.heading}]({other.name}.ipynb)" for other in before]
        back += [f"[Lab {lesson.number}]({lab})"] if (lesson.folder / "lab.py").exists() else []
    else:
        other, said = ("solutions", "its solution") if kind == "labs" else ("labs", "the lab")
        values["heading"] = f"Lab {lesson.heading}"
        values["minutes"], values["core"] = map(str, lab_minutes(lesson.folder))
        values["counterpart"] = f"[{said}](../{other}/{file_name(other, lesson.name)})"
        back = [f"[← {lesson.heading}]({lectures}{lesson.name}.ipynb)", values["counterpart"]]
    return {**values, "navigation": " · ".join([*back, *onward])}


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


def _glossary(own: Lesson) -> str:
    """All terms, each with a link back: to the section of this lecture that links to it first, or to its lesson."""
    lecture, entries = (own.folder / "lecture.py").read_text(encoding="utf-8"), []
    for anchor, (term, sentence, lesson) in terms(own.folder.parent).items():
        before, linked, _ = lecture.partition(f"](#{anchor})")
        if linked:
            section = re.findall(r"^# ## (.+)", before, re.M)[-1].strip()
            back = f"[↩ {section}](#{section.replace(' ', '-')})"
        else:
            back = f"[lesson {lesson.number}]({lesson.name}.ipynb)" if lesson != own else ""
        entries.append(f"### {term}\n{sentence} {back}".rstrip())
    return "\n\n".join(entries)


def pages(root: Path) -> dict[Path, str]:
    """README.md and the instructor's, where there is one, with their tables of the lessons; and the glossary."""
    lessons = syllabus.read(folder(root))
    guide = [f"| {one.number} | [{one.title}](../../inflight/lessons/{one.topic}/instructor.md) |" for one in lessons]
    tables = {
        root / "README.md": _table(lessons, "notebooks/", "labs/"),
        root / "assets" / "instructor" / "README.md": "\n".join(["| lesson | page |", "|---|---|", *guide]),
    }
    written = {path: _with_table(path, table) for path, table in tables.items() if path.exists()}
    return {**written, root / "notebooks" / "glossary.md": _glossary_page(root)}


def _glossary_page(root: Path) -> str:
    """Every term with its sentence, lesson by lesson."""
    text, of = [GLOSSARY], None
    for term, sentence, lesson in terms(folder(root)).values():
        if lesson != of:
            of = lesson
            text.append(f"## {lesson.heading}")
        text.append(f"### {term}\n{sentence}")
    return "\n\n".join(text) + "\n"


def _with_table(path: Path, table: str) -> str:
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
            minutes, _ = lab_minutes(lesson.folder)
            lab = f"[lab]({labs}{file_name('labs', lesson.name)}), {minutes}" if minutes else ""
            title = f"[{lesson.title}]({lectures}{lesson.name}.ipynb)"
            rows.append(f"| {lesson.number} | {title} | {lesson.question} | {lesson.minutes} | {lab} |")
            sums = [sums[0] + lesson.minutes, sums[1] + minutes]
        if some:
            rows.append(f"| | | {said}, in all | {_hours(sums[0])} | {_hours(sums[1])} |")
    return "\n".join(rows)


def _hours(minutes: int) -> str:
    """To the nearest hour, or in minutes where that says too little."""
    return f"{minutes / 60:.0f} hours" if minutes > 150 else f"{minutes} minutes"
