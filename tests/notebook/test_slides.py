"""Slides are the lesson's own: its headings, its pictures, its tables; whatever they leave out is in the notes."""

import re
from pathlib import Path

import bs4
import nbformat
import pytest

from inflight.errors import CourseError
from inflight.notebook import execution, guide, slides

LECTURES = sorted(execution.NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))
SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="880" height="400"></svg>'
PAGE = {
    guide.LEAVES: "One idea.",
    guide.POINTS: "- **See**: say\n  this.",
    guide.EXPECTED: "| Section | Figure | As the lesson says it | Normal |\n|---|---|---|---|\n"
    "| See | tokens/s | `makes {} tokens/s` | 5 to 1,000 |",
}


def deck(*cells, page=PAGE):
    """The slides, parsed, of a lecture with a title and these cells: markdown, or a pair of code and its outputs."""
    lecture = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# 04 · A lesson\n\n40 min.")])
    for cell in cells:
        if isinstance(cell, str):
            lecture.cells.append(nbformat.v4.new_markdown_cell(cell))
        else:
            lecture.cells.append(nbformat.v4.new_code_cell(cell[0], outputs=list(cell[1:])))
    return bs4.BeautifulSoup(slides.deck(lecture, page), "html.parser").find_all("article")


def printed(text):
    return nbformat.v4.new_output("stream", text=text)


def shown(**data):
    kinds = {"svg": "image/svg+xml", "html": "text/html", "plain": "text/plain"}
    return nbformat.v4.new_output("display_data", {kinds[kind]: value for kind, value in data.items()})


@pytest.mark.parametrize("path", LECTURES, ids=lambda path: path.stem)
def test_every_lecture_has_slides_that_load_nothing_and_notes_with_the_instructors_points(path):
    page, notebook = guide.parts(path.stem), nbformat.read(path, as_version=4)
    made = slides.deck(notebook, page)
    assert not re.search(r"<(?:script|link|iframe|object)\b[^>]*(?:src|href)=", made)
    assert set(re.findall(r'\bsrc="([^:"]*):', made)) <= {"data"}
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest", made) and "default-src 'none'" in made
    assert all(link.startswith("https://") for link in re.findall(r'<a [^>]*href="([^"]*)"', made))
    pictures = sum("image/svg+xml" in o.get("data", {}) for c in notebook.cells for o in c.get("outputs", []))
    assert made.count("<figure>") == pictures
    articles = bs4.BeautifulSoup(made, "html.parser").find_all("article")
    with_points = [article.h2.text for article in articles if article.select(".say")]
    for heading, _ in guide.points(page[guide.POINTS]):
        assert re.sub("[`*]", "", heading) in with_points


def test_of_a_paragraph_the_slide_has_two_sentences_and_the_notes_have_all():
    _, slide = deck("## See\n\nIt `begins. With` this. It goes on. " + "And on and on. " * 12 + "\n\nAs short as this")
    assert slide.section.get_text() == "SeeIt begins. With this. It goes on.As short as this"
    assert slide.aside.get_text().count("on and on") == 12


def test_short_code_stays_with_what_it_prints_and_long_code_goes_to_the_notes():
    short, long = "import os\nx = 1\nprint(x)", "\n".join(f"print({n})" for n in range(40))
    _, slide = deck("## See", (short, printed("1\n")), (long, printed("\n".join(map(str, range(40))))))
    assert [code.get_text().strip() for code in slide.section.select(".highlight")] == ["x = 1\nprint(x)"]
    assert slide.section.find_all("pre")[1].text == "1" and slide.section.find_all("pre")[-1].text.endswith("12\n…")
    assert "40 lines of code" in slide.section.text and "print(39)" in slide.aside.text and "\n39" in slide.aside.text


def test_a_picture_and_a_table_are_shown_without_their_code():
    table = shown(html="<table>" + "".join(f"<tr><td>row {n}</td></tr>" for n in range(20)) + "</table>", plain="rows")
    _, slide = deck("## See", ("draw()", shown(svg=SVG, plain="What it shows")), ("rows", table))
    assert slide.section.img["alt"] == "What it shows" and "draw" not in slide.section.text
    assert "draw()" in slide.aside.text and "What it shows" in slide.aside.text
    assert "row 9" in slide.section.text and "10 more rows" in slide.section.text and "row 19" in slide.aside.text


def test_a_question_is_shown_and_its_answer_only_in_the_notes():
    _, slide = deck(
        "## Recap\n\n<details><summary>1. How many?</summary>\n\nEight, and `x`.\n\nNine.\n</details>\n\nEnd."
    )
    assert "How many?" in slide.section.text and "Eight" not in slide.section.text and "End." in slide.section.text
    assert slide.aside.code.text == "x" and "Nine." in slide.aside.text


def test_a_prediction_is_asked_and_a_dashboard_is_named():
    question = shown(html='<div role="group" aria-label="How many?">How many? ○ one ○ two</div>')
    board = shown(html='<div role="group" aria-label="Batching: who sits where">Run Stop</div>')
    _, slide = deck("## See", ("ask()", question), ("board", board))
    assert "○ two" in slide.section.text and "ask()" not in slide.section.text
    assert "Live in the notebook: Batching: who sits where" in slide.section.text


def test_the_instructors_page_stands_in_the_notes_of_its_heading():
    title, see, other = deck("## See\n\nWhat.", "## Else\n\nThat.")
    assert "One idea." in title.aside.text
    assert "Say this." in see.aside.text and see.aside.li.text == "tokens/s: 5 to 1,000"
    assert "No notes" in other.aside.text


def test_a_link_to_a_file_is_words_and_what_is_printed_is_text():
    _, slide = deck(
        "## See\n\n[lesson 00](00_start_here.ipynb), [there](https://example.org/a).", ("x", printed("<b>a"))
    )
    assert [link["href"] for link in slide.find_all("a")] == ["https://example.org/a"] and "lesson 00" in slide.text
    assert "<b>a" in slide.section.text


def test_slides_are_written_where_one_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert slides.write("04") == Path("04_batching.slides.html") and Path("04_batching.slides.html").exists()
    assert slides.write("00_start_here", tmp_path / "a.html").read_text().startswith("<!DOCTYPE html>")
    with pytest.raises(CourseError, match="No lesson '17'"):
        slides.write("17")
    with pytest.raises(CourseError, match="name another file"):
        slides.write("00", tmp_path / "nowhere" / "a.html")
