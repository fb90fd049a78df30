"""The form of lectures and labs: what is missing is named, and what is whole passes."""

import nbformat
import pytest

from tools import form

LAB = """# Lab

{exercises}

## Bonus

Try more.

## Elsewhere

{transfer}
"""
EXERCISE = """## Exercise 9.{number}: a thing

*{core}importance 4/5 · difficulty 2/5 · 10 minutes*

<details><summary>Where to look</summary> There. </details>
<details><summary>How to begin</summary> So. </details>
<details><summary>The error you see</summary> This. </details>
"""
CAUGHT_UP = 'from inflight.notebook import catch_up\n\ncatch_up("09", "Measure")\n'


def notebook(*cells):
    """Markdown from strings that begin with #, code from others, with their tags before a bar."""
    made = nbformat.v4.new_notebook()
    for cell in cells:
        if cell.startswith("#"):
            made.cells.append(nbformat.v4.new_markdown_cell(cell))
            continue
        tags, _, source = cell.rpartition("|")
        made.cells.append(nbformat.v4.new_code_cell(source, metadata={"tags": tags.split()}))
    return made


def lab(count=4, cores=2, exercise=EXERCISE, transfer=3, **parts):
    exercises = "\n".join(
        exercise.format(number=number, core="Core · " if number <= cores else "") for number in range(1, count + 1)
    )
    answers = "<details><summary>Answer</summary> No. </details>\n" * transfer
    text = LAB.format(exercises=exercises, transfer=answers)
    for old, new in parts.get("without", {}).items():
        text = text.replace(old, new)
    return notebook(*(cell if cell.startswith("#") else f"# {cell}" for cell in text.split("\n\n\n")))


def lecture(text="# Title\n\nShort.", *more):
    return notebook(text, "setup|x = 1", "parameters|prediction = None", "## Measure", *more)


def problems_of(book, minutes=3, machine_s=0.0):
    return list(form.lecture_problems(book, "09_things", minutes, machine_s))


GOOD = (f"{form.IGNORES}|{CAUGHT_UP}print(x)", "assert x == 1")


def test_a_whole_lab_passes():
    assert list(form.lab_problems(lab())) == []


@pytest.mark.parametrize(
    ("book", "says"),
    [
        (lab(count=3), "has 3 exercises; at least 4"),
        (lab(cores=1), "does not mark two exercises as Core"),
        (lab(cores=4), "does not mark two exercises as Core"),
        (lab(exercise=EXERCISE.replace("difficulty 2/5", "easy")), "exercise 9.1 does not say importance"),
        (lab(exercise=EXERCISE.replace("How to begin", "Hint")), "exercise 9.1 folds ['Where to look', 'Hint'"),
        (lab(transfer=2), "no three questions of transfer"),
        (lab(without={"## Bonus": "More"}), "has no `## Bonus`"),
    ],
)
def test_what_a_lab_lacks_is_named(book, says):
    assert any(says in problem for problem in form.lab_problems(book)), list(form.lab_problems(book))


def test_a_whole_lecture_passes():
    assert problems_of(lecture("# Title\n\nShort.", *GOOD)) == []


@pytest.mark.parametrize(
    ("book", "says"),
    [
        (lecture("# Title\n\n" + "word " * 2001, *GOOD), "2005 words and 4 code cells; at most 2000"),
        (lecture("# Title", *GOOD, *["x = 2"] * 27), "31 code cells"),
        (lecture("# Title\n\n" + "word " * 1600, *GOOD), "takes 14 minutes and promises 3"),
        (notebook("# Title", "x = 1"), "no cell tagged `parameters`"),
        (lecture("# Title", "print(x)"), "does not begin with catch_up"),
        (lecture("# Title", f"{form.IGNORES}|{CAUGHT_UP}print(x)"), "'Measure' ignores what a cell shows"),
        (lecture("# Title", *[f"{form.IGNORES}|{CAUGHT_UP}print(x)"] * 4, "assert x"), "4 of 7 code cells ignore"),
    ],
)
def test_what_a_lecture_has_too_much_of_is_named(book, says):
    assert any(says in problem for problem in problems_of(book)), problems_of(book)


def test_the_last_cell_may_ignore_what_runs():
    last = f"{form.IGNORES}|from inflight.notebook import session\n\nsession.running()"
    assert problems_of(lecture("# Title", *GOOD, "## What runs", last), minutes=4) == []


def test_code_tables_and_folded_answers_count_no_words():
    text = (
        "# Title\n\none two\n\n```\nthree four\n```\n\n| five | six |\n\n<details><summary>A</summary> seven </details>"
    )
    assert form.size(notebook(text)).words == 4, "# Title one two"


def test_minutes_come_from_words_cells_and_machine_time():
    assert form.Size(words=1602, cells=39, machine_s=0).minutes == pytest.approx(45, abs=1)
    assert form.Size(words=0, cells=0, machine_s=120).minutes == 2
