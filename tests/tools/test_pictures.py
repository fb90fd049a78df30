"""The static pictures of stored notebooks, drawn in a real browser; and what an author without one is told."""

import shutil
from xml.etree import ElementTree

import nbformat
import plotly.graph_objects as go
import pytest

from inflight.errors import CourseError
from inflight.notebook.charts.display import PLOTLY_MIME, in_course_look
from inflight.notebook.palette import DECODE, PREFILL
from tests.tools.test_lessons import README, SYLLABUS
from tools import lessons, pictures, titles

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NS = "{http://www.w3.org/2000/svg}"
ALT = "Two bars: a < b & c, in some more words."

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: install it to draw pictures")


def bundle(fig):
    return nbformat.from_dict({PLOTLY_MIME: in_course_look(fig), "text/plain": ALT})


def notebook_of(*bundles):
    outputs = [nbformat.v4.new_output("display_data", data) for data in bundles]
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("show()", outputs=outputs)])


BARS = go.Figure(go.Bar(x=["prefill", "decode"], y=[1, 3], marker_color=[PREFILL, DECODE]))
AREA = go.Figure(go.Scatter(x=[0, 1, 1], y=[0, 0, 1], fill="toself", fillpattern={"shape": "/"}, mode="none"))
FIGURES = BARS.update_layout(title="Title", height=300, yaxis_title="time (ms)"), AREA


@pytest.fixture(scope="module")
def drawn():
    """Two figures that one browser has drawn."""
    bundles = [bundle(figure) for figure in FIGURES]
    pictures.draw(bundles)
    return [ElementTree.fromstring(data[pictures.PICTURE_MIME]) for data in bundles]


@needs_chromium
def test_a_picture_has_the_figure_s_words_and_colours_and_a_summary_for_a_screen_reader(drawn):
    root = drawn[0]
    assert root.get("role") == "img" and root.find(NS + "title").text == ALT
    words = {"".join(text.itertext()) for text in root.iter(NS + "text")}
    assert {"Title", "time (ms)", "prefill", "decode"} <= words
    colours = {f"rgb({', '.join(str(int(c[at : at + 2], 16)) for at in (1, 3, 5))})" for c in (PREFILL, DECODE)}
    seen = ElementTree.tostring(root).decode()
    assert all(colour in seen for colour in colours)


@needs_chromium
def test_a_picture_is_as_wide_as_a_page_and_as_tall_as_its_figure(drawn):
    heights = [str(in_course_look(figure)["layout"]["height"]) for figure in FIGURES]
    assert [(root.get("width"), root.get("height")) for root in drawn] == [("880", height) for height in heights]


@needs_chromium
def test_a_picture_brings_its_patterns_along_and_needs_no_network(drawn):
    assert list(drawn[1].iter(NS + "pattern"))
    links = [value for root in drawn for part in root.iter() for name, value in part.attrib.items() if "href" in name]
    assert [link for link in links if not link.startswith(("#", "data:"))] == []


def test_only_figures_without_a_picture_are_to_be_drawn():
    bare, done = bundle(go.Figure()), bundle(go.Figure())
    done[pictures.PICTURE_MIME] = "<svg/>"
    text = nbformat.from_dict({"text/plain": "no figure"})
    assert pictures.without_picture(notebook_of(text, bare, done)) == [bare]


def test_without_a_browser_an_author_is_told_what_to_do(monkeypatch):
    monkeypatch.setenv("BROWSER_PATH", "/nowhere/chromium")
    with pytest.raises(CourseError, match="no Chromium here. Install it, or let BROWSER_PATH name it"):
        pictures.draw([bundle(go.Figure())])


# In a build -----------------------------------------------------------------------------------------------------------

LECTURE = f"""# %% [markdown]
# # A figure

# %%
from IPython.display import display
display({{"{PLOTLY_MIME}": {{"data": [], "layout": {{"height": 200}}}}, "text/plain": "An empty figure."}}, raw=True)
"""


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "lessons" / "01_slots"
    folder.mkdir(parents=True)
    (folder.parent / "syllabus.toml").write_text(SYLLABUS)
    (folder / "lecture.py").write_text(LECTURE)
    (tmp_path / "README.md").write_text(README)
    (tmp_path / "README.md").write_text(titles.readme(tmp_path))
    return tmp_path


def stored(root):
    return nbformat.read(root / "notebooks" / "01_slots.ipynb", as_version=4).cells[1].outputs[0].data


@needs_chromium
def test_a_build_stores_a_picture_and_the_next_one_without_a_run_keeps_it(root):
    lessons.build(root)
    picture = stored(root)[pictures.PICTURE_MIME]
    assert "<title>An empty figure.</title>" in picture and not any(
        "no static picture" in problem for problem in lessons.check(root)
    )
    lessons.build(root, keep_outputs=True)
    assert stored(root)[pictures.PICTURE_MIME] == picture


def test_a_build_without_a_browser_keeps_what_has_run_and_the_check_says_what_lacks(root, monkeypatch):
    monkeypatch.setenv("BROWSER_PATH", "/nowhere/chromium")
    with pytest.raises(CourseError, match="keeps what has been executed"):
        lessons.build(root)
    assert set(stored(root)) == {PLOTLY_MIME, "text/plain"}
    assert any("a figure has no static picture; run" in problem for problem in lessons.check(root))
