"""From a lesson's scripts to its three notebooks, and the gate that holds these to their source."""

import json
import re
import shutil

import nbformat
import pytest

from inflight import syllabus
from inflight.errors import CourseError
from inflight.notebook.pages.instructor import PARTS
from tools import instructor, lessons, titles

ORDER = """[[part]]
title = "Eat"
lessons = ["slots"]
"""
LESSON = """title = "Slots"
question = "How many guests can sit?"
"""
FOLDER, NAME = "inflight/lessons/slots", "00_slots"
README = """# A meal

<!-- written by `make notebooks` from the lessons -->
<!-- end of what is written -->

## Guests
"""
LECTURE = """# %% [markdown]
# # {heading}
# {minutes} min. You will be able to count slots. {question} {navigation} See [the lab]({lab}).

# %% tags=["nbval-ignore-output"]
import time
time.time()

# %%
slots = 8
print(slots)
"""
LAB = '''# %% [markdown]
# # {heading}
# {minutes} minutes, {core} of them Core. See {lecture}. {navigation} Compare with {counterpart}.
#
# *Core · importance 5/5 · difficulty 1/5 · 10 minutes*
#
# *Further · importance 3/5 · difficulty 1/5 · 5 minutes, if you like*

# %%
import os

def empty(slots, guests):
    """Slots that stay empty."""
    # BEGIN SOLUTION
    # LAB: answer = None
    # LAB: return answer
    answer = slots - guests % slots
    return answer
    # END SOLUTION

# %%
# BEGIN SOLUTION
total_of_all_slots = 8
# END SOLUTION
print(os.environ["COURSE_STRICT"])

# %% tags=["solution"]
print("the tagged cell is hidden")
'''


@pytest.fixture
def root(tmp_path):
    """A course of one lesson."""
    folder = tmp_path / FOLDER
    folder.mkdir(parents=True)
    (tmp_path / "notebooks").mkdir()
    (folder.parent / "order.toml").write_text(ORDER)
    (folder / "lesson.toml").write_text(LESSON)
    (folder / "lecture.py").write_text(LECTURE)
    (folder / "lab.py").write_text(LAB)
    (tmp_path / "README.md").write_text(README)
    for page, text in titles.pages(tmp_path).items():
        page.write_text(text)
    return tmp_path


@pytest.fixture
def built(root):
    """The same, with notebooks written but nothing executed."""
    lessons.build(root, keep_outputs=True)
    return root


def read(root, kind):
    return nbformat.read(root / kind / titles.file_name(kind, NAME), as_version=4)


def change(root, kind, edit):
    """Let `edit` alter a notebook's JSON."""
    path = root / kind / titles.file_name(kind, NAME)
    notebook = json.loads(path.read_text())
    edit(notebook)
    path.write_text(json.dumps(notebook))


def executed(notebook, is_run=True):
    for count, cell in enumerate((c for c in notebook["cells"] if c["cell_type"] == "code"), 1):
        cell["execution_count"] = count if is_run else None


def test_the_courses_own_notebooks_are_what_their_source_gives():
    assert lessons.check(lessons.ROOT) == []


def test_the_instructors_pages_name_the_headings_of_their_lessons(monkeypatch, tmp_path):
    assert list(instructor.problems()) == []
    copy = shutil.copytree(syllabus.LESSONS, tmp_path / "lessons")
    monkeypatch.setattr(instructor.syllabus, "read", lambda read=syllabus.read: read(copy))
    page = copy / "batching" / "instructor.md"
    text = page.read_text().replace("**On paper**", "**On papers**")
    text = text.replace("Eight answers cost {} times", "Nine answers cost {} times")
    page.write_text(text.replace("### Exercise 4.2", "### Exercise"))
    (copy / "sequences" / "instructor.md").unlink()
    found = "\n".join(instructor.problems())
    assert "batching/instructor.md: the lecture has no section 'On papers'" in found
    assert "batching/instructor.md: the lecture does not say 'Nine answers cost {} times what one costs'" in found
    assert "batching/instructor.md: 'Exercise 4.2: static batching' is in the page or in the lab, not in both" in found
    assert found.count("sequences/instructor.md: says nothing under") == len(PARTS)


def test_executing_keeps_outputs_and_nothing_that_differs_from_run_to_run(root):
    paths = lessons.build(root)
    assert [str(path.relative_to(root)) for path in paths] == [
        "notebooks/00_slots.ipynb",
        "labs/00_slots_lab.ipynb",
        "solutions/00_slots_solution.ipynb",
    ]
    lecture, solution = read(root, "notebooks"), read(root, "solutions")
    assert lecture.cells[2].outputs[0].text == "8\n"
    assert solution.cells[2].outputs[0].text == "1\n"  # the checks of a solution raise
    assert set(lecture.metadata) == {"kernelspec", "language_info"}
    assert [dict(cell.metadata) for cell in lecture.cells] == [{}, {"tags": ["nbval-ignore-output"]}, {}]
    assert lessons.check(root) == []
    first = (root / "solutions/00_slots_solution.ipynb").read_bytes()
    lessons.build(root)
    assert (root / "solutions/00_slots_solution.ipynb").read_bytes() == first


def test_the_lab_has_what_the_learner_gets_and_the_solution_has_the_answers(built):
    lab, solution = ([cell.source for cell in read(built, kind).cells] for kind in ("labs", "solutions"))
    assert lab[1].endswith('"""Slots that stay empty."""\n    answer = None\n    return answer')
    assert lab[2] == '...\nprint(os.environ["COURSE_STRICT"])' and len(lab) == 3
    assert solution[1].endswith("    answer = slots - guests % slots\n    return answer")
    assert solution[3] == 'print("the tagged cell is hidden")'
    assert not any(marker in cell for cell in solution for marker in ("SOLUTION", "LAB:"))


def test_a_labs_minutes_are_the_sum_of_its_exercises(built, root):
    assert "15 minutes, 10 of them Core." in read(built, "labs").cells[0].source
    assert "| 2 | [lab](labs/00_slots_lab.ipynb), 15 |" in (built / "README.md").read_text()
    script = root / FOLDER / "lab.py"
    script.write_text(script.read_text().replace("{minutes} minutes", "20 minutes"))
    lessons.build(root, keep_outputs=True)
    assert any("does not say {minutes} and {core}" in problem for problem in lessons.check(root))


@pytest.mark.parametrize(
    ("cell", "says"),
    [
        ("# %%\nassert 8 == 8", "`assert 8 == 8` stands on the page"),
        ('# %% tags=["parameters"]\nprediction = None', "papermill"),
        ("# %%\nfor i in range(8):\n    # your line: the next\n    j = i + 1", "A blank stands inside of a loop"),
        ("# %%\n# your line: one\none = 1\n\nprint(one)", "`print(one)` comes after a blank"),
        ("# %%\n# your lines: two\none = 1\ntwo = 2", "opens no blank"),
        ('# %% tags=["remove-cell"]\nassert 8 == 8', None),
        ("# %%\n# your line: one\none = 1", None),
    ],
)
def test_what_is_there_for_a_test_stands_on_no_page_and_each_blank_can_be_opened(root, cell, says):
    script = root / FOLDER / "lecture.py"
    script.write_text(f"{LECTURE}\n{cell}\n")
    lessons.build(root, keep_outputs=True)
    change(root, "notebooks", executed)
    found = [problem for problem in lessons.check(root) if problem.startswith("notebooks/")]
    assert len(found) == (says is not None) and all(says in problem for problem in found)


@pytest.mark.parametrize(
    ("lab", "marker"),
    [
        ("# %%\n# BEGIN SOLUTION\nx = 1\n", "# BEGIN SOLUTION"),
        ("# %%\n# BEGIN SOLUTION\nx = 1\n# %%\n# END SOLUTION\n", "# BEGIN SOLUTION"),
        ("# %%\nx = 1\n# END SOLUTION\n", "# END SOLUTION"),
        ("# %%\n# BEGIN SOLUTION\n# BEGIN SOLUTION\n# END SOLUTION\n", "# BEGIN SOLUTION"),
        ("# %%\n# LAB: x = None\n", "# LAB: x = None"),
        ("# %%\n# %%writefile {folder}/joins.h\n# // LAB: int x;\n", "// LAB: int x;"),
    ],
)
def test_a_marker_out_of_place_is_named_with_its_script(root, lab, marker):
    (root / FOLDER / "lab.py").write_text(lab)
    with pytest.raises(CourseError, match=rf"lab.py: `{marker}` is out of place"):
        lessons.build(root, keep_outputs=True)


def add_markdown(text):
    cell = {"cell_type": "markdown", "id": "m", "metadata": {}, "source": text}
    return lambda notebook: notebook["cells"].append(cell)


def shows(text):
    output = {"output_type": "display_data", "metadata": {}, "data": {"text/html": text}}
    return lambda notebook: notebook["cells"][2]["outputs"].append(output)


@pytest.mark.parametrize(
    ("kind", "edit", "says"),
    [
        (
            "notebooks",
            lambda nb: nb["cells"][2].update(source="slots = 9"),
            "differs from inflight/lessons/slots/lecture.py",
        ),
        ("notebooks", lambda nb: nb["metadata"].update(widgets={}), "differs from"),
        ("solutions", lambda nb: nb["metadata"]["kernelspec"].update(name="mine"), "carries what an editor"),
        ("labs", lambda nb: nb["cells"][1]["metadata"].update(collapsed=True), "carries what an editor"),
        ("notebooks", lambda nb: nb["cells"][1].update(execution_count=7), "not run once from top to bottom"),
        ("solutions", lambda nb: executed(nb, is_run=False), "not run once from top to bottom"),
        ("notebooks", shows("in /root/.cache/x"), "an output shows somebody's home folder; run"),
        ("solutions", shows("<a href='file:///home/ada/x'>"), "an output shows somebody's home folder; run"),
        ("notebooks", shows("C:/Users/me.you/x"), "an output shows somebody's home folder; run"),
        ("notebooks", add_markdown("see [this](../labs/02_none.ipynb)"), "link to ../labs/02_none.ipynb leads nowhere"),
        ("notebooks", add_markdown("x" * lessons.MAX_BYTES), f"more than {lessons.MAX_BYTES}"),
        ("labs", lambda nb: nb["cells"][1].update(execution_count=1), "a lab has outputs"),
        ("labs", add_markdown("try `answer = slots - guests % slots`"), "the answer `answer = slots - guests % slots`"),
        ("labs", lambda nb: nb["cells"][2].update(source="# total_of_all_slots = 8"), "can be read in the lab"),
        (
            "labs",
            lambda nb: nb["cells"][2].update(source="check('0.1', 8)"),
            "lesson.toml says 0 exercises",
        ),
    ],
)
def test_the_gate_names_what_is_wrong(built, kind, edit, says):
    for folder in ("notebooks", "solutions"):
        change(built, folder, executed)
    assert lessons.check(built) == []
    change(built, kind, edit)
    start = f"{kind}/{titles.file_name(kind, NAME)}: "
    assert any(problem.startswith(start) and says in problem for problem in lessons.check(built))


WRITTEN_FILES = """# %%
# %%writefile {folder}/config.pbtxt
# name: "slots"  # a comment stays
#
#   input [ { name: "guest" } ]

# %%
# %%writefile {folder}/slots.py
# # BEGIN SOLUTION
# # LAB: # your model
# class Slots:
#     guests = 48
# # END SOLUTION

# %%
# %%writefile {folder}/slots.h
# // BEGIN SOLUTION
# // LAB: int guests = 0;
# int guests = 48;
# // END SOLUTION

# %%
# %%writefile {folder}/plain.py
class Plain:
    # a comment stays
    guests = 8

"""


PART = '# %% tags=["part:slots.py"]\n# %%writefile {folder}/slots.py'


def test_what_is_written_to_a_file_stands_in_the_script_as_comments(root):
    script = root / FOLDER / "lab.py"
    script.write_text(LAB + "\n" + WRITTEN_FILES)
    lessons.build(root, keep_outputs=True)
    lab, solution = (
        dict(cell.source.split("\n", 1) for cell in read(root, kind).cells if cell.source.startswith("%%writefile"))
        for kind in ("labs", "solutions")
    )
    config = 'name: "slots"  # a comment stays\n\n  input [ { name: "guest" } ]'
    assert lab["%%writefile {folder}/config.pbtxt"] == solution["%%writefile {folder}/config.pbtxt"] == config
    assert lab["%%writefile {folder}/slots.py"] == "# your model"
    assert solution["%%writefile {folder}/slots.py"] == "class Slots:\n    guests = 48"
    assert lab["%%writefile {folder}/slots.h"] == "int guests = 0;"
    assert solution["%%writefile {folder}/slots.h"] == "int guests = 48;"
    assert lab["%%writefile {folder}/plain.py"] == "class Plain:\n    # a comment stays\n    guests = 8"


def test_a_part_of_the_courses_stack_is_what_its_solution_writes(root):
    script, part = root / FOLDER / "lab.py", root / FOLDER / "parts" / "slots.py"
    script.write_text(LAB + "\n" + WRITTEN_FILES.replace("# %%\n# %%writefile {folder}/slots.py", PART))
    lessons.build(root, keep_outputs=True)
    assert part.read_text() == "class Slots:\n    guests = 48\n"
    part.write_text("class Slots:\n    guests = 47\n")
    assert any(one.startswith(f"{FOLDER}/parts/slots.py: differs from the solution") for one in lessons.check(root))


GLOSSARY = """### Slot
A place in the "batch". Also: seat.

### Guest
Who sits there.
"""


def test_a_link_to_a_term_has_its_sentence_and_the_glossary_has_all(root):
    (root / FOLDER / "glossary.md").write_text(GLOSSARY)
    said = "# %% [markdown]\n# ## Count\n# A [slot](glossary.md#Slot).\n"
    (root / FOLDER / "lecture.py").write_text(f"{LECTURE}\n{said}")
    lessons.build(root, keep_outputs=True)
    prose = [cell.source for cell in read(root, "notebooks").cells if cell.cell_type == "markdown"]
    assert """A [slot](glossary.md#Slot "A place in the 'batch'.").""" in prose[1]
    page = titles.pages(root)[root / "notebooks" / "glossary.md"]
    assert '## 00 · Slots\n\n### Slot\nA place in the "batch". Also: seat.\n\n### Guest\nWho sits there.\n' in page


def test_a_section_takes_by_its_words_cells_and_blanks(root):
    words, blank = "word " * 500, "# %%\n# your line: one\none = 1\n"
    said = f"# %% [markdown]\n# ## Count\n# {words}\n\n# %%\none = 2\n\n{blank}"
    (root / FOLDER / "lecture.py").write_text(f"{LECTURE}\n{said}")
    assert titles.section_minutes(root / FOLDER)["Count"] == 8 + 1 + (1 + 3) + 2  # the title's two cells


ROUTES = """# Teach

### An hour

For a start. 1 minutes, 59 to spare.

| from | what | minutes |
|---|---|---|
| 0:00 | [00 · Slots](../../inflight/lessons/slots/instructor.md), without *Count* | 9 |
| 0:09 | Lab 00: 1.1 | 9 |
| 0:18 | pause | 10 |
"""


def test_a_routes_times_are_those_of_its_lessons_and_exercises(root):
    said = "# %% [markdown]\n# ## Seat\n# Words.\n\n# ## Count\n# Words.\n"
    (root / FOLDER / "lecture.py").write_text(f"{LECTURE}\n{said}")
    exercise = (
        "\n# %% [markdown]\n# ## Exercise 1.1: seats\n#\n# *Core · importance 5/5 · difficulty 1/5 · 7 minutes*\n"
    )
    (root / FOLDER / "lab.py").write_text(LAB + exercise)
    page = root / "assets" / "instructor" / "README.md"
    page.parent.mkdir(parents=True)
    page.write_text(ROUTES)
    timed = instructor.pages(root)[page]
    minutes = titles.section_minutes(root / FOLDER)["Seat"]
    assert f"without *Count* | {minutes} |" in timed and f"| 0:{minutes:02} | Lab 00: 1.1 | 7 |" in timed
    assert f"{minutes + 17} minutes, {43 - minutes} to spare" in timed
    for wrong, says in (("*Count*", "no such section"), ("1.1", "no lab has it"), ("59 to", "too many")):
        page.write_text(ROUTES.replace(wrong, {"*Count*": "*Counting*", "1.1": "1.9", "59 to": "1 to"}[wrong]))
        with pytest.raises(CourseError, match=says):
            instructor.pages(root)


def test_readmes_first_picture_is_that_of_lecture_04_and_its_caption_has_its_figures():
    readme = (lessons.ROOT / "README.md").read_text()
    lecture = nbformat.read(lessons.ROOT / "notebooks/04_batching.ipynb", 4)
    bundles = [output.data for cell in lecture.cells for output in cell.get("outputs", []) if "data" in output]
    [drawn] = [data for data in bundles if data.get("text/plain", "").startswith("Which of 8 slots was taken")]
    assert drawn["image/svg+xml"] == (lessons.ROOT / "assets/images/static_above_in_flight.svg").read_text()
    caption = " ".join(readme[readme.index("*From lesson 04") :].split())
    for iterations, wasted in re.findall(r"in (\d+) iterations, (\d+) % of the slots' time", drawn["text/plain"]):
        assert re.search(rf"{iterations}(?: iterations)?, {wasted} %", caption)
