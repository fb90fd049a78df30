"""A lesson is added by its own folder, its place in the order, and its tests: nothing else."""

import os
import shutil
import subprocess
import sys

import nbformat
import pytest

from inflight import syllabus
from inflight.notebook.pages import instructor
from inflight.paths import COURSE
from tests.browser.chromium import needs_chromium

TREE = ("assets", "inflight", "labs", "notebooks", "solutions", "tests", "tools")
NUMBER, NAME = "14", "14_counting"
BEFORE = syllabus.read()[-1].name
LESSON = """title = "Counting"
question = "How many slots stay empty?"
exercises = 1
parts = { counter = "counter.py" }
"""
LECTURE = """# %% [markdown]
# # {heading}
#
# **{question}** {navigation}

# %%
import pandas as pd

from inflight.lessons import counting
from inflight.notebook import charts

# %% [markdown]
# ## Count
#
# Of eight slots some stay empty.

# %%
tokens = pd.DataFrame({"slot": range(8), "tokens": [9, 9, 9, 0, 0, 0, 0, 0]})
charts.show(counting.slots(tokens), "Three slots of eight have tokens.")
"""
LAB = """# %% [markdown]
# # {heading}
#
# {minutes} minutes, *Core* {core}. {navigation}

# %%
import tempfile

from inflight.notebook import check, parts

work = tempfile.mkdtemp()

# %% [markdown]
# ## Exercise 14.1: a counter of your own
#
# *Core · importance 3/5 · difficulty 1/5 · 10 minutes*

# %% tags=["part:counter.py"]
# %%writefile {work}/counter.py
def count(slots, guests):
    # BEGIN SOLUTION
    # LAB: raise NotImplementedError
    return max(0, slots - guests)
    # END SOLUTION

# %%
check("14.1", f"{work}/counter.py")

# %%
print(parts.part("counter"))
"""
GRADING = '''"""The graders of lab 14."""

import runpy

from inflight.notebook.checks.findings import Case, asked
from inflight.notebook.checks import grades

CASES = [Case((8, 3), right=5, hint="Guests take a slot each."), Case((2, 5), right=0, hint="No slot is empty.")]


@grades("14.1", "More guests than slots leave none empty.", keeps="counter", within_s=60)
def _counter(path, choose):
    return asked(runpy.run_path(path)["count"], CASES)
'''
CHARTS = '''"""The picture of lesson 14."""

import plotly.express as px
import plotly.graph_objects as go


def slots(table) -> go.Figure:
    """Tokens in each slot."""
    return px.bar(table, x="slot", y="tokens")
'''
FACE = '''"""How many slots stay empty: what this lesson alone uses."""

from inflight.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
'''
STUB = """from .charts import slots

__all__ = ["slots"]
"""
ANSWERS = '''"""Lab 14's answers."""

from tests.lessons.answers import Answer, File, of_the_lab
from tests.lessons.table import *

COUNT = "def count(slots, guests):\\n    return "

ANSWERS = [
    *of_the_lab("counting", {"14.1": "counter.py"}),
    Answer("14.1", "another way", File(COUNT + "(slots - guests) * (slots > guests)")),
    Answer("14.1", "below zero", File(COUNT + "slots - guests"), "wrong", "No slot is empty."),
    Answer("14.1", "the guests", File(COUNT + "guests"), "wrong", "Guests take a slot each."),
    Answer("14.1", "all slots", File(COUNT + "slots"), "wrong", "Guests take a slot each."),
]
'''
CHART_TEST = '''"""The picture of lesson 14."""

import pandas as pd

from inflight.lessons import counting


def test_slots():
    fig = counting.slots(pd.DataFrame({"slot": [0, 1], "tokens": [9, 0]}))
    assert list(fig.data[0].y) == [9, 0]
'''


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A copy of the course, with a lesson more."""
    course = tmp_path_factory.mktemp("course")
    for name in TREE:
        litter = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")
        shutil.copytree(COURSE / name, course / name, ignore=litter)
    for file in (path for path in COURSE.iterdir() if path.is_file()):
        shutil.copy(file, course)
    page = "".join(f"## {part}\n\nWords.\n\n" for part in instructor.PARTS)
    wrong = "### Exercise 14.1: a counter of your own\n\nWords.\n"
    files = {
        "inflight/lessons/counting/lesson.toml": LESSON,
        "inflight/lessons/counting/lecture.py": LECTURE,
        "inflight/lessons/counting/lab.py": LAB,
        "inflight/lessons/counting/__init__.py": FACE,
        "inflight/lessons/counting/__init__.pyi": STUB,
        "inflight/lessons/counting/charts.py": CHARTS,
        "inflight/lessons/counting/grading.py": GRADING,
        "inflight/lessons/counting/instructor.md": page.replace(
            f"{instructor.WRONG}\n\n", f"{instructor.WRONG}\n\n{wrong}"
        ),
        "tests/lessons/counting/test_lab.py": ANSWERS,
        "tests/lessons/counting/test_charts.py": CHART_TEST,
    }
    for name, text in files.items():
        (course / name).parent.mkdir(exist_ok=True)
        (course / name).write_text(text, encoding="utf-8")
    order = course / "inflight/lessons/order.toml"
    order.write_text(order.read_text("utf-8").replace('"moving_a_cache"]', '"moving_a_cache", "counting"]'), "utf-8")
    call(course, "-m", "tools.lessons", "build", "--sources")
    return course


def call(course, *arguments):
    """What `python` prints in the copy, which is all that it finds of the course."""
    environment = os.environ | {"PYTHONPATH": str(course)}
    ran = subprocess.run([sys.executable, *arguments], cwd=course, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_the_lesson_before_and_both_tables_name_it(course):
    assert f"({NAME}.ipynb)" in nbformat.read(course / f"notebooks/{BEFORE}.ipynb", as_version=4).cells[0].source
    before, after = ((root / "README.md").read_text(encoding="utf-8").splitlines() for root in (COURSE, course))
    [row] = [line for line in after if line not in before and line.startswith(f"| {NUMBER} |")]
    assert row.endswith(f"| How many slots stay empty? | 2 | [lab](labs/{NAME}_lab.ipynb), 10 |")
    assert f"| {NUMBER} | [Counting](../../inflight/lessons/counting/instructor.md) |" in (
        course / "assets/instructor/README.md"
    ).read_text("utf-8")
    assert len(syllabus.read(course / "inflight/lessons")) == len(syllabus.read()) + 1


def test_its_part_is_one_of_the_learners_stack(course):
    script = """
from pathlib import Path
from inflight.notebook.checks import parts
print(parts.load("counter").count(8, 3), parts.table(Path()))
"""
    told = call(course, "-c", script)
    assert told.startswith("5 ") and "counter  the course's" in told


def test_the_tests_find_its_modules_graders_and_answers(course):
    chosen = ["-k", "counting or 14.1 or a_face or has_a_table or has_its_test or test_parts"]
    files = ["tests/test_rooms.py", "tests/notebook/checks/test_parts.py"]
    own = ("counting/test_lab", "counting/test_charts", "test_charts", "test_tables")
    files += [f"tests/lessons/{name}.py" for name in own]
    told = call(course, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *chosen, *files)
    assert int(told.split(" passed")[0].split()[-1]) > 20


@needs_chromium
@pytest.mark.browser
@pytest.mark.slow
def test_it_is_run_drawn_and_shown_like_any_other(course):
    call(course, "-m", "tools.lessons", "build", NUMBER)
    call(course, "-m", "tools.lessons", "check")
    lecture = nbformat.read(course / "notebooks" / f"{NAME}.ipynb", as_version=4)
    assert any("image/svg+xml" in output.get("data", {}) for output in lecture.cells[-1].outputs)
    assert NAME in call(course, "-m", "inflight", "run", NUMBER)
    call(course, "-m", "inflight", "slides", NUMBER)
