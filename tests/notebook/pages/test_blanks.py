"""What a reader is to write: blank in their copy, filled in where it stays blank, compared where it does not."""

import nbformat
import numpy as np
import pytest
from IPython.core.interactiveshell import InteractiveShell

from inflight.notebook.pages import blanks

VALUE = "per_layer = 2 * 3\n# your line: the numbers of 30 layers\ntotal = 30 * per_layer"
FUNCTION = """def gaps_ms(times_s):
    # your line: from each token to the next, in milliseconds
    return 1000 * np.diff(times_s)"""
REPEATED = '''def repeated(number):
    """Eight times.

    >>> repeated(3)
    """
    # your line: all of them
    return [number] * 8'''
MODEL = """%%writefile {folder}/model.py
class Model:
    def double(self, number):
        # your line: twice the number
        twice = 2 * number

        return twice
"""
CONFIG = """%%writefile {folder}/config.pbtxt
name: "slots"
# your line: the input
input [ { name: "guest" } ]
"""


def opened(source, tags=()):
    cell = nbformat.v4.new_code_cell(source, metadata={"tags": list(tags)} if tags else {})
    return [one.source for one in blanks.opened([cell])]


@pytest.fixture
def kernel(monkeypatch, tmp_path):
    """Runs cells as a notebook does; `folder` is a name in it."""
    shell = InteractiveShell()
    shell.user_ns |= {"np": np, "folder": str(tmp_path)}
    return lambda source: shell.run_cell(source, store_history=True).raise_error()


def test_a_cell_for_ci_is_in_no_copy_and_any_other_is_as_it_was():
    assert opened("assert True", [blanks.FOR_CI]) == []
    assert opened("slots = 8") == ["slots = 8"]


@pytest.mark.parametrize("source", [VALUE, FUNCTION, MODEL, CONFIG])
def test_nothing_gives_the_answer_away_above_the_folded_cell(source):
    blank, answer = opened(source)
    comment, line = source[source.index("# your line") :].split("\n")[:2]
    assert line.strip() not in blank and comment in blank
    assert line.strip() in answer and answer.startswith("# The course's line: click")


def test_the_folded_cell_is_folded():
    cells = list(blanks.opened([nbformat.v4.new_code_cell(VALUE)]))
    assert cells[1].metadata == {"jupyter": {"source_hidden": True}}
    nbformat.validate(nbformat.v4.new_notebook(cells=cells))


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("...", "total: your line is blank, and the course's is used."),
        ("30 * per_layer", "total: your line and the course's give the same."),
        ("180.0000000001", "give the same"),
        ("3 * per_layer", "total: yours gives 18, the course's 180, which is used."),
        ("[180, 180]", "yours gives [180, 180], the course's 180"),
        ("'many'", "yours gives 'many', the course's 180"),
    ],
)
def test_a_value_is_compared_and_the_course_goes_on_with_its_own(kernel, capsys, written, says):
    blank, answer = opened(VALUE)
    kernel(blank.replace("...", written))
    for _ in range(2):  # the second time it is the course's own
        kernel(answer)
    kernel("assert total == 180")
    assert says in capsys.readouterr().out


@pytest.mark.parametrize(
    ("written", "says", "times"),
    [
        ("...", "gaps_ms: your line is blank, and the course's is used.", 1),
        ("pass", "gaps_ms: your line is compared with the course's when a cell below calls it.", 2),
        ("return 1000 * (times_s[1:] - times_s[:-1])", "gaps_ms: yes, your line gives what the course's gives.", 1),
        (
            "return 1000 * times_s[1:]",
            "gaps_ms(array([0.  , 0.01, 0.03])): yours gives array([10., 30.]), the course's array([10., 20.])",
            1,
        ),
        ("return nothing", ": yours gives NameError (name 'nothing' is not defined), the course's", 1),
        ("pass", ": yours gives None, the course's", 1),
    ],
)
def test_a_function_is_compared_at_each_call_and_told_once(kernel, capsys, written, says, times):
    blank, answer = opened(FUNCTION)
    kernel(blank.replace("...", written))
    kernel(answer)
    kernel(answer)  # run again, it compares the same function
    for _ in range(3):
        kernel("assert np.allclose(gaps_ms(np.array([0, 0.01, 0.03])), [10, 20])")
    assert capsys.readouterr().out.count(says) == (2 if written == "..." else times)


@pytest.mark.parametrize(
    ("source", "right", "name"),
    [(VALUE, "30 * per_layer", "total"), (FUNCTION, "return 1000 * np.diff(times_s)", "gaps_ms")],
)
def test_a_cell_that_failed_is_told_nothing_of_the_line_before(kernel, capsys, source, right, name):
    blank, answer = opened(source)
    kernel(blank.replace("...", right))
    kernel(answer)
    capsys.readouterr()
    with pytest.raises(SyntaxError):
        kernel(blank.replace("...", f"{right} ("))
    kernel(answer)
    said = f"{name}: the cell that ran before has an error, so nothing is compared, and the course's is used.\n"
    assert capsys.readouterr().out.endswith(said)


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("return [number] * 8", "repeated: yes, your line gives"),
        ("return [number] * 7 + [0]", "repeated(3): yours gives 8 values, the course's 8; [7] differs, 0 and 3."),
        ("return [number] * 9", "yours gives 9 values, the course's 8; the first 8 are the same."),
        ("return nothing", "yours gives NameError"),
    ],
)
def test_the_examples_of_a_functions_docstring_answer_at_once(kernel, capsys, written, says):
    blank, answer = opened(REPEATED)
    kernel(blank.replace("...", written))
    kernel(answer)
    assert says in capsys.readouterr().out


def test_of_two_tables_the_column_that_differs_is_told(kernel, capsys):
    kernel("import pandas as pd")
    table = "pd.DataFrame({'sent': [1], 'due': [late]})"
    answer_is = f"def views(n):\n    # your line: seconds\n    late = 2 * n\n\n    return {table}"
    blank, answer = opened(answer_is)
    kernel(blank.replace("...", "late = n"))
    kernel(answer)
    kernel("views(3)")
    assert "views(3): due: yours gives [3], the course's [6]" in capsys.readouterr().out


def test_a_table_that_is_given_is_told_by_its_rows_and_a_no_after_a_yes_says_but(kernel, capsys):
    blank, answer = opened("def count(log):\n    # your line: its rows\n    return len(log)")
    kernel(blank.replace("...", "return 0"))
    kernel(answer)
    kernel("import pandas as pd\ncount(pd.DataFrame({'iteration': range(9)}))")
    assert "count(a table of 9 rows): yours gives 0, the course's 9" in capsys.readouterr().out
    kernel(blank.replace("...", "return 9"))
    kernel(answer)
    kernel("for rows in (9, 8):\n    count(pd.DataFrame({'iteration': range(rows)}))")
    assert "count(a table of 8 rows): but here yours gives 9, the course's 8" in capsys.readouterr().out


HAS_ENDED = '''def has_ended(events):
    """Whether one of the events ends the answer.

    >>> has_ended([])
    False
    >>> has_ended(["stop"])
    True
    """
    # your line: return it
    return "stop" in events'''


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("return any(events)", "has_ended: yes, your line gives what the course's gives.\n"),
        ("return False", "has_ended(['stop']): yours gives False, the course's True, which is used.\n"),
        ("return np.bool_(not events)", "has_ended([]): yours gives True, the course's False, which is used.\n"),
    ],
)
def test_yes_is_said_after_the_last_example_and_a_truth_is_no_number(kernel, capsys, written, says):
    blank, answer = opened(HAS_ENDED)
    kernel(blank.replace("...", written))
    kernel(answer)
    assert capsys.readouterr().out == says


def test_a_line_that_left_the_dots_standing_above_it_is_no_blank(kernel, capsys):
    blank, answer = opened(FUNCTION)
    kernel(blank.replace("...", "...\n    return 0"))
    kernel(answer)
    kernel("gaps_ms(np.array([0, 0.01]))")
    assert "yours gives 0, the course's" in capsys.readouterr().out


@pytest.mark.parametrize(("source", "line"), [(MODEL, "twice = number + number"), (CONFIG, "input []")])
@pytest.mark.parametrize("is_left", [True, False])
def test_a_file_is_filled_in_where_it_was_left_blank(kernel, capsys, tmp_path, source, line, is_left):
    blank, answer = opened(source)
    dots = "twice = ..." if source is MODEL else "# ..."
    assert dots in blank
    _, name = blank.split("\n")[0].rsplit("/", 1)
    # as %%writefile does
    (tmp_path / name).write_text(blank.partition("\n")[2] if is_left else blank.partition("\n")[2].replace(dots, line))
    kernel(answer)
    wanted = source if is_left else source.replace(source.split("# your line")[1].split("\n")[1].strip(), line)
    assert (tmp_path / name).read_text() == wanted.partition("\n")[2]
    assert ("is blank" in capsys.readouterr().out) == is_left
