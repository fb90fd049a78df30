"""Puts what a lesson is called, asks and takes, from `lessons/syllabus.toml`, into the notebooks and into two pages.

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
    {glossary}      every term of lessons/glossary.md with its sentence, and a link back to where it comes up

A link to a term, such as `[prefill](00_start_here.ipynb#Prefill)`, gets its sentence as title, which a page shows when
the mouse is over it.
"""

import re
from pathlib import Path

from inflight.errors import CourseError
from inflight.notebook import syllabus

FIELD = re.compile(r"\{(heading|minutes|core|question|navigation|next|lab|map|counterpart|glossary)\}")
# A tab shows a notebook's name without its folder: lecture, lab and solution of a lesson are told apart by it.
SUFFIX = {"notebooks": "", "labs": "_lab", "solutions": "_solution"}
# The line below the heading of an exercise.
EXERCISE = re.compile(r"^# \*(Core · )?(?:Further · )?importance .* (\d+) minutes\b.*\*$", re.M)
TERM = re.compile(r"\]\(((?:(?:\.\./notebooks/)?00_start_here\.ipynb)?#([\w`.-]+))\)")
TABLE = re.compile(r"(<!-- written by `make notebooks`[^\n]*-->\n).*?(<!-- end of what is written -->)", re.S)


def file_name(kind: str, lesson: str) -> str:
    """Name of the notebook of `kind` ("notebooks", "labs", "solutions") of a lesson such as "01_engine"."""
    return f"{lesson}{SUFFIX[kind]}.ipynb"


def fields(folder: Path, kind: str) -> dict[str, str]:
    """What each field of the module's docstring stands for in the notebook of `kind` of the lesson in `folder`.

    Raises
    ------
    CourseError
        The syllabus does not name this lesson.
    """
    lessons = syllabus.read(folder.parent.parent)
    names = [lesson.name for lesson in lessons]
    if folder.name not in names:
        raise CourseError(f"{folder} is not in lessons/syllabus.toml; add an entry there.")
    place = names.index(folder.name)
    lesson = lessons[place]
    before, after = ([one for one in some if not one.planned] for some in (lessons[:place], lessons[place + 1 :]))
    before, after = before[-1:], after[:1]
    lab = f"../labs/{file_name('labs', lesson.name)}"
    lectures = "" if kind == "notebooks" else "../notebooks/"
    onward = [f"[{other.heading} →]({lectures}{other.name}.ipynb)" for other in after]
    values = {"heading": lesson.heading, "minutes": str(lesson.minutes), "question": lesson.question, "lab": lab}
    if after:
        values["next"] = f"[{after[0].heading}]({lectures}{after[0].name}.ipynb)"
    if kind == "notebooks":
        values["map"] = _table(folder.parent.parent, "", "../labs/")
        values["glossary"] = _glossary(folder)
        back = [f"[← {other.heading}]({other.name}.ipynb)" for other in before]
        back += [f"[Lab {lesson.number}]({lab})"] if (folder / "lab.py").exists() else []
    else:
        other, said = ("solutions", "its solution") if kind == "labs" else ("labs", "the lab")
        values["heading"] = f"Lab {lesson.heading}"
        values["minutes"], values["core"] = map(str, lab_minutes(folder))
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


def terms(root: Path) -> dict[str, tuple[str, str, str]]:
    """The glossary of the clone `root`: anchor of each term -> the term, its sentence, the number of its lesson."""
    path, found, number = root / "lessons" / "glossary.md", {}, ""
    for part in re.split(r"^##", path.read_text(encoding="utf-8") if path.exists() else "", flags=re.M)[1:]:
        head, _, body = part.partition("\n")
        if head.startswith("#"):
            found[head[2:].replace(" ", "-")] = (head[2:], " ".join(body.split()), number)
        else:
            number = head.strip()[:2]
    return found


def explained(text: str, known: dict[str, tuple[str, str, str]]) -> str:
    """`text` of a markdown cell in which each link to a term of the glossary has the term's sentence as title."""

    def link(found: re.Match) -> str:
        if found[2] not in known:
            return found[0]
        sentence = known[found[2]][1].partition(" Also: ")[0].replace('"', "'")
        return f']({found[1]} "{sentence}")'

    return TERM.sub(link, text)


def _glossary(folder: Path) -> str:
    """All terms, each with a link back: to the section of this lecture that links to it first, or to its lesson."""
    lecture, entries = (folder / "lecture.py").read_text(encoding="utf-8"), []
    names = {lesson.number: lesson.name for lesson in syllabus.read(folder.parent.parent)}
    for anchor, (term, sentence, number) in terms(folder.parent.parent).items():
        before, linked, _ = lecture.partition(f"](#{anchor})")
        if linked:
            section = re.findall(r"^# ## (.+)", before, re.M)[-1].strip()
            back = f"[↩ {section}](#{section.replace(' ', '-')})"
        else:
            back = f"[lesson {number}]({names[number]}.ipynb)" if names[number] != folder.name else ""
        entries.append(f"### {term}\n{sentence} {back}".rstrip())
    return "\n\n".join(entries)


def pages(root: Path) -> dict[Path, str]:
    """README.md and the instructor's, where there is one: each with its table of the lessons written anew."""
    guide = [f"| {one.number} | [{one.title}]({one.name}.md) |" for one in syllabus.read(root) if not one.planned]
    tables = {
        root / "README.md": _table(root, "notebooks/", "labs/"),
        root / "assets" / "instructor" / "README.md": "\n".join(["| lesson | page |", "|---|---|", *guide]),
    }
    return {path: _with_table(path, table) for path, table in tables.items() if path.exists()}


def _with_table(path: Path, table: str) -> str:
    return TABLE.sub(lambda match: f"{match[1]}{table}\n\n{match[2]}", path.read_text(encoding="utf-8"))


def _table(root: Path, lectures: str, labs: str) -> str:
    """The lessons in the clone `root` as a table in Markdown, part by part, with links that begin as given.

    The sums of the core stand before the electives, and theirs after them. A planned lesson has no links.
    """
    lessons = syllabus.read(root)
    electives = [lesson for lesson in lessons if lesson.part == syllabus.ELECTIVES]
    core = [lesson for lesson in lessons if lesson not in electives]
    rows = ["| | lesson | question | minutes | lab |", "|---|---|---|---|---|"]
    for said, some in (("the core", core), ("the electives", electives)):
        part, sums = "", [0, 0]
        for lesson in some:
            if lesson.part != part:
                part = lesson.part
                rows.append(f"| | **{part}** | | | |")
            minutes, _ = lab_minutes(root / "lessons" / lesson.name)
            lab = f"[lab]({labs}{file_name('labs', lesson.name)}), {minutes}" if minutes else ""
            title = lesson.title if lesson.planned else f"[{lesson.title}]({lectures}{lesson.name}.ipynb)"
            rows.append(f"| {lesson.number} | {title} | {lesson.question} | {lesson.minutes} | {lab} |")
            sums = [sums[0] + lesson.minutes, sums[1] + minutes]
        if some:
            rows.append(f"| | | {said}, in all | {_hours(sums[0])} | {_hours(sums[1])} |")
    return "\n".join(rows)


def _hours(minutes: int) -> str:
    """To the nearest hour, or in minutes where that says too little."""
    return f"{minutes / 60:.0f} hours" if minutes > 150 else f"{minutes} minutes"
