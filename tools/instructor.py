"""Holds what the instructor's pages say of lessons, headings and minutes, to them: `python -m tools.lessons check`."""

import re
from collections.abc import Iterator
from pathlib import Path

import nbformat

from inflight.notebook import guide, syllabus
from inflight.paths import COURSE
from tools import titles


def problems() -> Iterator[str]:
    """A page that is missing, a part of it that is, and a section or an exercise that its lesson does not have."""
    for lesson in syllabus.read():
        page, parts = f"inflight/lessons/{lesson.topic}/instructor.md", guide.parts(lesson.folder)
        for part in guide.PARTS:
            if not parts.get(part):
                yield f"{page}: says nothing under {part!r}"
        sections = _headings(COURSE / "notebooks" / f"{lesson.name}.ipynb")
        named = [heading for part in (guide.POINTS, guide.CUTS) for heading, _ in guide.points(parts.get(part, ""))]
        named += [row[0] for row in guide.rows(parts.get(guide.EXPECTED, ""))]
        for heading in sorted(set(named) - sections):
            yield f"{page}: the lecture has no section {heading!r}"
        if (told := _lab_minutes(lesson.folder)) and told != (added := titles.lab_minutes(lesson.folder)):
            yield f"{page}: lab and Core take {told} minutes, and its exercises {added}"
        lab = COURSE / "labs" / titles.file_name("labs", lesson.name)
        exercises = (
            {heading for heading in _headings(lab) if heading.startswith("Exercise ")} if lab.exists() else set()
        )
        told = set(re.findall(r"^### (Exercise .+)", parts.get(guide.WRONG, ""), re.M))
        for heading in sorted(exercises ^ told):
            yield f"{page}: {heading!r} is in the page or in the lab, not in both"


def _lab_minutes(folder: Path) -> tuple[int, int] | None:
    """What the page says that the lab takes, and its Core; None where it says nothing."""
    page = folder / "instructor.md"
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    found = re.search(r"_lab\.ipynb\), (\d+) minutes[^,]*, of which \*Core\* (\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def _headings(notebook: Path) -> set[str]:
    cells = nbformat.read(notebook, as_version=4).cells
    return {
        found for cell in cells if cell.cell_type == "markdown" for found in re.findall(r"^## (.+)", cell.source, re.M)
    }
