"""Puts what a lesson is called, asks and takes, from `lessons/syllabus.toml`, into the notebooks and into README.md.

In a markdown cell of a lesson's script these stand for it:

    {heading}       04 · Title in a lecture, Lab 04 · Title in a lab
    {minutes}       what a lecture takes
    {question}      what it asks
    {navigation}    links from a lecture to the one before, its lab and the one after; from a lab to its lecture, its
                    solution and the next lecture
    {next}          a link to the lecture after it
    {lab}           where a lecture's lab is
    {lecture}       a link from a lab to its lecture
    {counterpart}   a link from a lab to its solution, and from a solution to its lab
"""

import re
from pathlib import Path

from inflight.errors import CourseError
from inflight.notebook import syllabus
from inflight.notebook.syllabus import Lesson

# What a script of each kind must take from the syllabus rather than say itself.
REQUIRED = {
    "notebooks": ("{heading}", "{minutes}", "{question}"),
    "labs": ("{heading}", "{navigation}", "{counterpart}"),
    "solutions": ("{heading}", "{navigation}", "{counterpart}"),
}
FIELD = re.compile(r"\{(heading|minutes|question|navigation|next|lab|lecture|counterpart)\}")
# A tab shows a notebook's name without its folder: lecture, lab and solution of a lesson are told apart by it.
SUFFIX = {"notebooks": "", "labs": "_lab", "solutions": "_solution"}
BEGIN = "<!-- written by `make notebooks` from lessons/syllabus.toml -->\n"
END = "<!-- end of what is written -->\n"
_LECTURES = "../notebooks/"  # from a lab or a solution


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
    index = next((index for index, lesson in enumerate(lessons) if lesson.name == folder.name), None)
    if index is None:
        raise CourseError(f"{folder} is not in lessons/syllabus.toml; add an entry there.")
    lesson, after = lessons[index], lessons[index + 1] if index + 1 < len(lessons) else None
    values = {"{heading}": f"Lab {lesson.heading}" if kind != "notebooks" else lesson.heading}
    if kind != "notebooks":
        other, said = ("solutions", "its solution") if kind == "labs" else ("labs", "the lab")
        counterpart = f"[{said}](../{other}/{file_name(other, lesson.name)})"
        around = [f"[← {lesson.heading}]({_LECTURES}{lesson.name}.ipynb)", counterpart]
        return {
            **values,
            "{lecture}": _link(lesson, _LECTURES),
            "{counterpart}": counterpart,
            "{navigation}": " · ".join([*around, *_onward(after, _LECTURES)]),
            **({"{next}": _link(after, _LECTURES)} if after else {}),
        }
    return {
        **values,
        "{minutes}": str(lesson.minutes),
        "{question}": lesson.question,
        "{navigation}": _navigation(folder, lessons, index),
        "{lab}": f"../labs/{file_name('labs', lesson.name)}",
        **({"{next}": _link(after)} if after else {}),
    }


def filled(text: str, values: dict[str, str]) -> str:
    """`text` of a markdown cell with every field that `values` knows replaced by its value."""
    return FIELD.sub(lambda match: values.get(match[0], match[0]), text)


def problems(script: str, values: dict[str, str], kind: str) -> list[str]:
    """What is wrong with the fields in the text of a script of `kind`, one sentence each."""
    unknown = sorted({match[0] for match in FIELD.finditer(script)} - set(values))
    missing = [field for field in REQUIRED[kind] if field not in script]
    return [f"{field} stands for nothing in this lesson's {kind}" for field in unknown] + [
        f"its script does not take {field} from lessons/syllabus.toml" for field in missing
    ]


def readme(root: Path) -> str:
    """The text that README.md should have: its own, with the table of the lessons written anew.

    Raises
    ------
    CourseError
        There is no README.md, or the two comments that enclose the table are not there.
    """
    path = root / "README.md"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise CourseError(f"{path} has no table of lessons between {BEGIN.strip()} and {END.strip()}; put them back.")
    return before + begin + _table(root, syllabus.read(root)) + end + after


def _table(root: Path, lessons: list[Lesson]) -> str:
    rows = ["| | lesson | question | minutes |", "|---|---|---|---|"]
    for lesson in lessons:
        title = f"{lesson.title} (planned)" if lesson.planned else f"[{lesson.title}](notebooks/{lesson.name}.ipynb)"
        lab = (
            f" · [lab](labs/{file_name('labs', lesson.name)})"
            if (root / "lessons" / lesson.name / "lab.py").exists()
            else ""
        )
        rows.append(f"| {lesson.number} | {title}{lab} | {lesson.question} | {lesson.minutes} |")
    return "\n".join(rows) + "\n\n"


def _navigation(folder: Path, lessons: list[Lesson], index: int) -> str:
    links = []
    if index > 0:
        before = lessons[index - 1]
        links.append(f"before: {_link(before)}" if before.planned else f"[← {before.heading}]({before.name}.ipynb)")
    if (folder / "lab.py").exists():
        links.append(f"[Lab {lessons[index].number}](../labs/{file_name('labs', folder.name)})")
    links += _onward(lessons[index + 1] if index + 1 < len(lessons) else None)
    return " · ".join(links)


def _onward(after: Lesson | None, lectures: str = "") -> list[str]:
    """The last link of a navigation, if there is a lesson after this one; `lectures` is the way to their folder."""
    if after is None:
        return []
    return [f"next: {_link(after)}" if after.planned else f"[{after.heading} →]({lectures}{after.name}.ipynb)"]


def _link(lesson: Lesson, lectures: str = "") -> str:
    return f"{lesson.heading} (planned)" if lesson.planned else f"[{lesson.heading}]({lectures}{lesson.name}.ipynb)"
