"""A section runs after the cells that catch_up runs alone: tried in a kernel, and held for every lecture."""

import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from inflight.errors import CourseError
from inflight.notebook import sections


def lecture(*cells):
    """Markdown from strings that begin with #, code from others; "@" marks a cell that later ones need, "&" a long."""
    made = nbformat.v4.new_notebook()
    for source in cells:
        new = nbformat.v4.new_markdown_cell if source.startswith("#") else nbformat.v4.new_code_cell
        text = source.lstrip("@&")
        marks = source.removesuffix(text)
        made.cells.append(new(text, metadata={"tags": [TAGS[mark] for mark in marks]}))
    return made


TAGS = {"@": "setup", "&": "long"}
CAUGHT_UP = 'from inflight.notebook import catch_up\n\ncatch_up("09", "Ask")\n'


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        (["@client = 1", "# Top\n\n## Ask", CAUGHT_UP + "client"], []),
        (["client = 1", "## Ask", CAUGHT_UP + "client"], ["'Ask' takes client from a cell that is no `setup`"]),
        (["@client = 1", "## Ask", "client"], ["'Ask' takes names from earlier ones and does not begin with catch_up"]),
        (["@client = 1", "## Ask", CAUGHT_UP.replace("Ask", "Tell") + "client"], ["does not begin with catch_up"]),
        (["@client = 1", "## Ask", CAUGHT_UP.replace("09", "08") + "client"], ["does not begin with catch_up"]),
        (["@client = 1", "## Ask", "client = 2", "[client for _ in range(3)]"], []),
        (["@&client = 1", "## Ask", CAUGHT_UP + "client"], []),
        (["&client = 1", "## Ask", "2"], ["'' has a cell tagged `long` that is no `setup`"]),
        (["@&print(1)", "## Ask", "2"], ["'' has a cell tagged `long` that is no `setup` or gives no name"]),
        (["client = 1", "## Ask", "client", "## Tell", "client"], []),
        (["## Ask", "def f(x):\n    return x + y"], ["takes y from"]),
        (["## Ask", "%%writefile {folder}/x\nabc"], ["takes folder from"]),
        (["## Ask", "import math\n[math.sqrt(n) for n in (lambda q: q)(range(3))]", "math.pi"], []),
    ],
)
def test_what_a_section_needs_is_seen(cells, says):
    found = list(sections.unmet(lecture(*cells), "09"))
    assert len(found) == len(says) and all(words in one for words, one in zip(says, found)), found


@pytest.fixture
def shell(monkeypatch, tmp_path):
    """IPython as a kernel has it, with nothing in it."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    shell = InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))
    monkeypatch.setattr(sections, "get_ipython", lambda: shell)
    return shell


def test_what_is_missing_is_run_once_and_quietly(shell, monkeypatch, capsys):
    book = lecture("@runs = []", "print('not this')", "@runs.append(1); print('quiet')\nbase = 7", "## Ask", "base")
    monkeypatch.setattr(sections, "_lecture", lambda number: book)
    sections.catch_up("09", "Ask")
    assert shell.user_ns["base"] == 7 and shell.user_ns["runs"] == [1]
    sections.catch_up("09", "Ask")
    assert shell.user_ns["runs"] == [1], "all is there"
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("cells", "ran"),
    [
        (["@a = 1", "@&b = a", "@c = 1", "## Ask", "c"], ["a = 1", "c = 1"]),
        (["@a = 1", "@&b = a", "@c = 1", "## Ask", "b"], ["a = 1", "b = a", "c = 1"]),
        (["@&a = 1", "@&b = a", "@&c = 1", "## Ask", "b"], ["a = 1", "b = a"]),
        (["@&a = 1", "@b = a", "## Ask", "0"], ["a = 1", "b = a"]),
        (["@&a = 1", "@a = 2", "## Ask", "a"], ["a = 2"]),
        (["@&a = 1", "## Ask", "a = 3\na", "a", "## See", "a"], []),
    ],
)
def test_a_long_cell_is_run_for_a_section_that_takes_a_name_from_it(cells, ran):
    assert [one.cell.source for one in sections._needed(lecture(*cells), "Ask")] == ran


def test_what_is_long_is_made_up_for_when_a_section_takes_it(shell, monkeypatch):
    book = lecture("@runs = ['a']", "## Build", "@&runs.append('b')\nbuilt = 1", "## Ask", "runs", "## See", "built")
    monkeypatch.setattr(sections, "_lecture", lambda number: book)
    sections.catch_up("09", "Ask")
    assert shell.user_ns["runs"] == ["a"]
    sections.catch_up("09", "See")
    assert shell.user_ns["runs"] == ["a", "b"]


def test_a_cell_that_catches_up_itself_brings_nothing_that_the_section_does_not_take(shell, monkeypatch):
    catches_up = "from inflight.notebook import catch_up\ncatch_up('09', 'Build')\nready = 1"
    book = lecture("@runs = []", "@&long = runs.append(1)", "## Build", f"@{catches_up}", "long", "## Ask", "ready")
    monkeypatch.setattr(sections, "_lecture", lambda number: book)
    sections.catch_up("09", "Ask")
    assert shell.user_ns["ready"] == 1 and shell.user_ns["runs"] == []
    sections.catch_up("09", "Build")
    assert shell.user_ns["runs"] == [1]


def test_a_cell_that_fails_is_named(shell, monkeypatch):
    monkeypatch.setattr(sections, "_lecture", lambda number: lecture("@x = 1\ny = 1 / 0", "## Ask", "x"))
    with pytest.raises(CourseError, match="begins with 'x = 1': division by zero. Run the notebook from its first"):
        sections.catch_up("09", "Ask")


def test_one_that_is_interrupted_says_to_run_the_cell_again(shell, monkeypatch):
    monkeypatch.setattr(sections, "_lecture", lambda number: lecture("@x = 1\nraise KeyboardInterrupt", "## Ask", "x"))
    with pytest.raises(CourseError, match="Interrupted while earlier sections ran. Run this cell again"):
        sections.catch_up("09", "Ask")


def test_an_unknown_lecture_or_section(shell):
    with pytest.raises(CourseError, match="no lecture '77'"):
        sections.catch_up("77", "Ask")
    with pytest.raises(CourseError, match="no section 'Nowhere'"):
        sections.catch_up("00", "Nowhere")


def test_outside_of_a_notebook():
    with pytest.raises(CourseError, match="belongs into a notebook"):
        sections.catch_up("00", "Ask")


def test_the_name_of_an_error_that_was_caught_is_not_given_to_later_cells():
    assert sections.given("try:\n    made = 1\nexcept ValueError as error:\n    print(error)") == {"made"}
