"""From a lesson's scripts to its three notebooks, and the gate that holds these to their source."""

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from inflight.errors import CourseError
from inflight.paths import COURSE
from tools import form, homes, lessons, titles

SYLLABUS = """[[lesson]]
name = "01_slots"
part = "Eat"
title = "Slots"
question = "How many guests can sit?"
minutes = 5

[[lesson]]
name = "02_plates"
part = "Eat"
title = "Plates"
question = "Who gets one?"
minutes = 10
"""
README = f"# A meal\n\n{titles.BEGIN}{titles.END}\n## Guests\n"
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
# See {lecture}. {navigation} Compare with {counterpart}, then {next}.

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
def root(tmp_path, monkeypatch):
    """A course of one lesson, and a planned one; its lesson is too short for the form that lessons have."""
    monkeypatch.setattr(form, "lecture_problems", lambda *arguments: ())
    monkeypatch.setattr(form, "lab_problems", lambda lab: ())
    folder = tmp_path / "lessons" / "01_slots"
    folder.mkdir(parents=True)
    (folder.parent / "syllabus.toml").write_text(SYLLABUS)
    (folder / "lecture.py").write_text(LECTURE)
    (folder / "lab.py").write_text(LAB)
    (tmp_path / "README.md").write_text(README)
    (tmp_path / "README.md").write_text(titles.readme(tmp_path))
    return tmp_path


@pytest.fixture
def built(root):
    """The same, with notebooks written but nothing executed."""
    lessons.build(root, execute_cells=False)
    return root


def read(root, kind):
    return nbformat.read(root / kind / titles.file_name(kind, "01_slots"), as_version=4)


def change(root, kind, edit):
    """Let `edit` alter a notebook's JSON."""
    path = root / kind / titles.file_name(kind, "01_slots")
    notebook = json.loads(path.read_text())
    edit(notebook)
    path.write_text(json.dumps(notebook))


def executed(notebook):
    for count, cell in enumerate((c for c in notebook["cells"] if c["cell_type"] == "code"), 1):
        cell["execution_count"] = count


def test_the_courses_own_notebooks_are_what_their_source_gives():
    assert lessons.check(lessons.ROOT) == []


def test_a_line_of_code_that_a_notebook_would_scroll_is_named_with_its_place_and_its_width(built):
    fits, too_wide = f'note = "{"a" * 79}"', f'note = "{"b" * 80}"'  # 88 and 89 columns
    prose = "# " + "in a sentence it does not matter " * 4
    for_learner = f"# BEGIN SOLUTION\n# LAB: {fits}\n{too_wide}\n# END SOLUTION"
    for name, text in (("lecture.py", LECTURE), ("lab.py", LAB)):
        script = built / "lessons/01_slots" / name
        script.write_text(f"{text}\n# %%\n{fits}\n{for_learner}\n\n# %% [markdown]\n{prose}\n")
    assert [problem for problem in lessons.check(built) if "columns" in problem] == [
        f"lessons/01_slots/{name}, line {len(text.splitlines()) + 6}: 89 columns, more than 88; break the line"
        for name, text in (("lab.py", LAB), ("lecture.py", LECTURE))
    ]


def test_a_lecture_that_is_executed_finds_its_new_headings_where_it_is_stored(root):
    script = root / "lessons/01_slots/lecture.py"
    reads = 'from pathlib import Path\nprint("## A new section" in Path("01_slots.ipynb").read_text())'
    script.write_text(f"{LECTURE}\n# %% [markdown]\n# ## A new section\n\n# %%\n{reads}\n")
    lessons.build(root)
    assert read(root, "notebooks").cells[-1].outputs[0].text == "True\n"


def test_executing_keeps_outputs_and_nothing_that_differs_from_run_to_run(root):
    paths = lessons.build(root)
    assert [str(path.relative_to(root)) for path in paths] == [
        "notebooks/01_slots.ipynb",
        "labs/01_slots_lab.ipynb",
        "solutions/01_slots_solution.ipynb",
    ]
    lecture, solution = read(root, "notebooks"), read(root, "solutions")
    assert lecture.cells[2].outputs[0].text == "8\n"
    assert solution.cells[2].outputs[0].text == "1\n"  # the checks of a solution raise
    assert set(lecture.metadata) == {"kernelspec", "language_info"}
    assert [dict(cell.metadata) for cell in lecture.cells] == [{}, {"tags": ["nbval-ignore-output"]}, {}]
    assert lessons.check(root) == []
    first = (root / "solutions/01_slots_solution.ipynb").read_bytes()
    lessons.build(root)
    assert (root / "solutions/01_slots_solution.ipynb").read_bytes() == first


def test_nbval_accepts_a_built_notebook_and_rejects_a_changed_output(root):
    lessons.build(root)
    pytest_nbval = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--nbval", "--nbval-current-env",
                    "--nbval-cell-timeout=60", "notebooks"]  # fmt: skip
    assert subprocess.run(pytest_nbval, cwd=root, capture_output=True).returncode == 0
    change(root, "notebooks", lambda notebook: notebook["cells"][2]["outputs"][0].update(text=["9\n"]))
    result = subprocess.run(pytest_nbval, cwd=root, capture_output=True, text=True)
    assert result.returncode == 1 and "1 failed, 1 passed" in result.stdout


def test_widget_views_become_text(root):
    widget = "\n# %%\nfrom ipywidgets import IntSlider\nIntSlider(3)\n"
    (root / "lessons/01_slots/lecture.py").write_text(LECTURE + widget)
    lessons.build(root)
    assert list(read(root, "notebooks").cells[3].outputs[0].data) == ["text/plain"]
    assert "widgets" not in read(root, "notebooks").metadata


def test_a_failing_cell_is_named(root):
    (root / "lessons/01_slots/lecture.py").write_text(LECTURE + "\n# %%\nslots / 0\n")
    with pytest.raises(CourseError, match=r"notebooks/01_slots, cell \[3\] `slots / 0` failed with ZeroDivisionError"):
        lessons.build(root)


def test_the_lab_has_what_the_learner_gets(built):
    cells = [cell.source for cell in read(built, "labs").cells]
    assert cells[1].endswith('"""Slots that stay empty."""\n    answer = None\n    return answer')
    assert cells[2] == '...\nprint(os.environ["COURSE_STRICT"])'
    assert len(cells) == 3


def test_the_solution_has_the_answers_and_no_markers(built):
    cells = [cell.source for cell in read(built, "solutions").cells]
    assert cells[1].endswith("    answer = slots - guests % slots\n    return answer")
    assert not any(marker in cell for cell in cells for marker in ("SOLUTION", "LAB:"))
    assert cells[3] == 'print("the tagged cell is hidden")'


def test_a_lesson_has_the_title_the_question_and_the_minutes_of_the_syllabus(built):
    head = read(built, "notebooks").cells[0].source
    assert head.startswith("# 01 · Slots\n5 min.") and " How many guests can sit? " in head
    assert "[Lab 01](../labs/01_slots_lab.ipynb) · next: 02 · Plates (planned)" in head
    lab, solution = (read(built, kind).cells[0].source for kind in ("labs", "solutions"))
    for text in (lab, solution):
        assert text.startswith("# Lab 01 · Slots\nSee [01 · Slots](../notebooks/01_slots.ipynb). [← 01 · Slots](")
        assert text.count("next: 02 · Plates (planned)") == 1 and text.endswith("then 02 · Plates (planned).")
    assert lab.count("[its solution](../solutions/01_slots_solution.ipynb)") == 2
    assert solution.count("[the lab](../labs/01_slots_lab.ipynb)") == 2
    rows = (built / "README.md").read_text().splitlines()
    assert (
        "| 01 | [Slots](notebooks/01_slots.ipynb) · [lab](labs/01_slots_lab.ipynb) | How many guests can sit? | 5 |"
        in rows
    )
    assert "| 02 | Plates (planned) | Who gets one? | 10 |" in rows


def test_a_written_lesson_links_to_its_neighbours(built):
    folder = built / "lessons/02_plates"
    folder.mkdir()
    (folder / "lecture.py").write_text("# %% [markdown]\n# # {heading}\n# {minutes} {question} {navigation}\n")
    before = lessons.source(built / "lessons/01_slots", "notebooks").cells[0].source
    after = lessons.source(folder, "notebooks").cells[0].source
    lab = lessons.source(built / "lessons/01_slots", "labs").cells[0].source
    assert "[02 · Plates →](../notebooks/02_plates.ipynb)" in lab and "then [02 · Plates](../notebooks/02_p" in lab
    assert before.endswith("[02 · Plates →](02_plates.ipynb) See [the lab](../labs/01_slots_lab.ipynb).")
    assert after.endswith("[← 01 · Slots](01_slots.ipynb)")


def test_a_title_of_ones_own_and_an_outdated_readme_fail_the_gate(built):
    script = built / "lessons/01_slots/lecture.py"
    script.write_text(LECTURE.replace("{heading}", "Chairs") + "\n# %% [markdown]\n# Go on to {next}, not {lecture}.\n")
    (built / "README.md").write_text((built / "README.md").read_text().replace("Plates", "Dishes"))
    problems = "\n".join(lessons.check(built))
    assert "notebooks/01_slots.ipynb: its script does not take {heading} from lessons/syllabus.toml" in problems
    assert "notebooks/01_slots.ipynb: {lecture} stands for nothing in this lesson's notebooks" in problems
    assert "README.md: its table of lessons differs from lessons/syllabus.toml" in problems


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        (
            "lessons/syllabus.toml",
            SYLLABUS.replace("01_slots", "01_chairs"),
            "01_slots is not in lessons/syllabus.toml",
        ),
        ("lessons/syllabus.toml", SYLLABUS.replace("minutes = 5", ""), "missing 1 required .* 'minutes'"),
        ("lessons/syllabus.toml", SYLLABUS.replace("[[", "[", 1), "cannot be read as the course's syllabus"),
        ("README.md", "# A meal\n", "no table of lessons between"),
    ],
)
def test_a_broken_syllabus_or_readme_is_named(built, file, text, says):
    (built / file).write_text(text)
    with pytest.raises(CourseError, match=says):
        lessons.check(built)


def test_ids_are_stable_and_differ(built):
    ids = [cell.id for kind in lessons.SCRIPTS for cell in read(built, kind).cells]
    assert len(set(ids)) == len(ids)
    before = (built / "labs/01_slots_lab.ipynb").read_bytes()
    lessons.build(built, execute_cells=False)
    assert (built / "labs/01_slots_lab.ipynb").read_bytes() == before


@pytest.mark.parametrize(
    ("lab", "line", "says"),
    [
        ("# %%\n# BEGIN SOLUTION\nx = 1\n", 2, "has no END SOLUTION"),
        ("# %%\n# BEGIN SOLUTION\nx = 1\n# %%\n# END SOLUTION\n", 2, "has no END SOLUTION"),
        ("# %%\nx = 1\n# END SOLUTION\n", 3, "END SOLUTION with no BEGIN SOLUTION"),
        ("# %%\n# BEGIN SOLUTION\n# BEGIN SOLUTION\n# END SOLUTION\n", 3, "inside the one of line 2"),
        ("# %%\n# LAB: x = None\n", 2, "LAB: with no BEGIN SOLUTION"),
        ("# %% [markdown]\n# BEGIN SOLUTION\n# END SOLUTION\n", 2, "in a markdown cell"),
    ],
)
def test_a_marker_out_of_place_is_named_with_its_line(root, lab, line, says):
    (root / "lessons/01_slots/lab.py").write_text(lab)
    with pytest.raises(CourseError) as error:
        lessons.build(root, execute_cells=False)
    assert f"lab.py, line {line}: " in str(error.value) and says in str(error.value)


def test_an_unknown_lesson_is_refused(root):
    with pytest.raises(CourseError, match="No lesson '07'; the lessons are 01_slots"):
        lessons.build(root, execute_cells=False, lessons=["07"])


def test_an_unrun_solution_fails_the_gate_though_nbval_would_pass_it(built):
    problems = lessons.check(built)
    assert [p.split(":")[0] for p in problems] == ["notebooks/01_slots.ipynb", "solutions/01_slots_solution.ipynb"]
    assert all("not run once from top to bottom" in problem for problem in problems)


def add_markdown(text):
    cell = {"cell_type": "markdown", "id": "m", "metadata": {}, "source": text}
    return lambda notebook: notebook["cells"].append(cell)


def shows(text):
    output = {"output_type": "display_data", "metadata": {}, "data": {"text/html": text}}
    return lambda notebook: notebook["cells"][2]["outputs"].append(output)


@pytest.mark.parametrize(
    ("kind", "edit", "says"),
    [
        ("notebooks", lambda nb: nb["cells"][2].update(source="slots = 9"), "differs from lessons/01_slots/lecture.py"),
        ("notebooks", lambda nb: nb["metadata"].update(widgets={}), "differs from"),
        ("solutions", lambda nb: nb["metadata"]["kernelspec"].update(name="mine"), "carries what an editor"),
        ("labs", lambda nb: nb["cells"][1]["metadata"].update(collapsed=True), "carries what an editor"),
        ("notebooks", lambda nb: nb["cells"][1].update(execution_count=7), "not run once from top to bottom"),
        ("notebooks", shows("in /root/.cache/x"), "an output shows /root/; run"),
        ("solutions", shows("<a href='file:///home/ada/x'>"), "an output shows /home/ada/; run"),
        ("notebooks", shows("C:/Users/me.you/x"), "an output shows /Users/me.you/; run"),
        ("notebooks", add_markdown("see [this](../labs/02_none.ipynb)"), "link to ../labs/02_none.ipynb leads nowhere"),
        ("notebooks", add_markdown("# Another"), "2 top headings"),
        ("notebooks", add_markdown("### Deep"), "headings skip a level: [1, 3]"),
        ("notebooks", add_markdown("x" * lessons.MAX_BYTES), f"more than {lessons.MAX_BYTES}"),
        ("labs", lambda nb: nb["cells"][1].update(execution_count=1), "a lab has outputs"),
        ("labs", add_markdown("try `answer = slots - guests % slots`"), "the answer `answer = slots - guests % slots`"),
        ("labs", lambda nb: nb["cells"][2].update(source="# total_of_all_slots = 8"), "can be read in the lab"),
    ],
)
def test_the_gate_names_what_is_wrong(built, kind, edit, says):
    for folder in ("notebooks", "solutions"):
        change(built, folder, executed)
    assert lessons.check(built) == []
    change(built, kind, edit)
    start = f"{kind}/{titles.file_name(kind, '01_slots')}: "
    assert any(problem.startswith(start) and says in problem for problem in lessons.check(built))


def test_the_gate_sees_errors_missing_notebooks_and_strays(built):
    error = {"output_type": "error", "ename": "E", "evalue": "", "traceback": []}
    change(built, "solutions", lambda notebook: notebook["cells"][1].update(outputs=[error]))
    (built / "labs/01_slots_lab.ipynb").rename(built / "labs/05_old.ipynb")
    problems = "\n".join(lessons.check(built))
    assert "solutions/01_slots_solution.ipynb: a cell shows an error" in problems
    assert "labs/01_slots_lab.ipynb: missing" in problems
    assert "labs/05_old.ipynb: no lesson gives it" in problems


def test_a_home_folder_is_stored_as_a_tilde_whosever_it_is():
    texts = {
        "/srv/ada/.cache/x": "~/.cache/x",
        "/root/a and /home/ada/b": "~/a and ~/b",
        "/workspace/root/a, /rooted/b, /srv/adam/c": "/workspace/root/a, /rooted/b, /srv/adam/c",
    }
    for text, kept in texts.items():
        stream = nbformat.v4.new_output("stream", text=text)
        shown = nbformat.v4.new_output("display_data", {"text/html": f"<b>{text}</b>", "image/png": "/root/"})
        homes.without_home([stream, shown], Path("/srv/ada"))
        assert stream.text == kept and shown.data == {"text/html": f"<b>{kept}</b>", "image/png": "/root/"}
    [root] = homes.without_home([nbformat.v4.new_output("stream", text="/a/b")], Path("/"))
    assert root.text == "/a/b", "who has no home lives in /"


def test_links_in_code_are_not_links(built):
    for folder in ("notebooks", "solutions"):
        change(built, folder, executed)
    text = "`[a](b.md)`\n```\n# [c](d.md)\n```\n[out](https://example.org) [up](#slots)"
    change(built, "notebooks", add_markdown(text))
    assert [problem for problem in lessons.check(built) if "differs" not in problem] == []


@pytest.mark.parametrize(("arguments", "status"), [([], 2), (["sing"], 2), (["build", "99"], 1)])
def test_the_command_line_reports_misuse(arguments, status):
    environment = {**os.environ, "PYTHONPATH": str(COURSE)}
    command = [sys.executable, "-m", "tools.lessons", *arguments]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == status and result.stderr and "Traceback" not in result.stderr


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
# %%writefile {folder}/plain.py
class Plain:
    # a comment stays
    guests = 8

"""


def test_what_is_written_to_a_file_stands_in_the_script_as_comments(root):
    script = root / "lessons" / "01_slots" / "lab.py"
    script.write_text(LAB + "\n" + WRITTEN_FILES)
    lessons.build(root, execute_cells=False)
    lab, solution = (
        {cell.source.partition("\n")[0]: cell.source.partition("\n")[2] for cell in read(root, kind).cells}
        for kind in ("labs", "solutions")
    )
    config = 'name: "slots"  # a comment stays\n\n  input [ { name: "guest" } ]'
    assert lab["%%writefile {folder}/config.pbtxt"] == solution["%%writefile {folder}/config.pbtxt"] == config
    assert lab["%%writefile {folder}/slots.py"] == "# your model"
    assert solution["%%writefile {folder}/slots.py"] == "class Slots:\n    guests = 48"
    assert lab["%%writefile {folder}/plain.py"] == "class Plain:\n    # a comment stays\n    guests = 8"
