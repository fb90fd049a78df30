"""Slides are the lesson's own: its headings, its pictures, its tables; whatever they leave out is in the notes."""

import re
from pathlib import Path

import nbformat
import pytest

from inflight.errors import CourseError
from inflight.notebook import execution, guide, slides

LECTURES = sorted(execution.NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))
SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="880" height="{}"></svg>'
PAGE = """# 04 · A lesson

## What it must leave behind

One idea.

## Talking points

- **See**: say
  this.

## What to expect

| Section | Figure | As the lesson says it | Normal |
|---|---|---|---|
| See | tokens/s | `makes {} tokens/s` | 5 to 1,000 |
"""


def lecture(*cells):
    """A lecture with a title and these cells: markdown, or a pair of code and its outputs."""
    made = [nbformat.v4.new_markdown_cell("# 04 · A lesson\n\n40 min.")]
    for cell in cells:
        if isinstance(cell, str):
            made.append(nbformat.v4.new_markdown_cell(cell))
        else:
            code, *outputs = cell
            made.append(nbformat.v4.new_code_cell(code, outputs=outputs))
    return nbformat.v4.new_notebook(cells=made)


def printed(text):
    return nbformat.v4.new_output("stream", text=text)


def shown(**data):
    kinds = {"svg": "image/svg+xml", "html": "text/html", "markdown": "text/markdown", "plain": "text/plain"}
    return nbformat.v4.new_output("display_data", {kinds[kind]: value for kind, value in data.items()})


def bodies(made):
    return ["".join(block.html for block in slide.body) for slide in made]


@pytest.mark.parametrize("path", LECTURES, ids=lambda path: path.stem)
def test_every_lecture_has_slides_that_load_nothing(path):
    page = guide.path(path.stem).read_text(encoding="utf-8")
    notebook = nbformat.read(path, as_version=4)
    deck = slides.deck(notebook, page)
    assert not re.search(r"<(?:script|link|iframe|object)\b[^>]*(?:src|href)=", deck)
    assert set(re.findall(r'\bsrc="([^:"]*):', deck)) <= {"data"}
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest", deck)
    assert "default-src 'none'" in deck
    links = re.findall(r'<a [^>]*href="([^"]*)"', deck)
    assert all(link.startswith("https://") for link in links)
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    headings = re.findall(r"^##? (.+)", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)
    assert list(dict.fromkeys(slide.heading for slide in slides.slides(notebook, page))) == headings
    pictures = sum("image/svg+xml" in o.get("data", {}) for c in notebook.cells for o in c.get("outputs", []))
    assert deck.count("<figure>") == pictures


@pytest.mark.parametrize("path", LECTURES, ids=lambda path: path.stem)
def test_every_talking_point_is_in_the_notes_of_its_heading(path):
    page = guide.path(path.stem).read_text(encoding="utf-8")
    made = slides.slides(nbformat.read(path, as_version=4), page)
    for heading, _ in guide.points(guide.parts(page)[guide.POINTS]):
        first = next(slide for slide in made if slide.heading == heading)
        assert 'class="say"' in "".join(first.notes)


def test_of_a_paragraph_the_slide_has_two_lines_and_the_notes_have_all():
    long = "It begins with this. " + "Then it goes on and on. " * 12
    [_, slide] = slides.slides(lecture(f"## See\n\n{long}\n\nShort. And sweet."))
    assert "It begins with this." in bodies([slide])[0] and bodies([slide])[0].count("on and on") < 8
    assert "".join(slide.notes).count("on and on") == 12
    assert "Short. And sweet." in bodies([slide])[0]


def test_short_code_stays_with_what_it_prints_and_long_code_goes_to_the_notes():
    short, long = "x = 1\nprint(x)", "\n".join(f"print({n})" for n in range(40))
    made = slides.slides(lecture("## See", (short, printed("1\n")), (long, printed("0\n1\n"))))
    assert "print" in bodies(made)[1] and '<pre class="output">1</pre>' in bodies(made)[1]
    assert "40 lines" in bodies(made)[1] and "39" not in bodies(made)[1] and "39" in "".join(made[1].notes)


def test_a_picture_is_shown_without_its_code_and_a_high_one_has_prose_beside_it():
    flat, high = (shown(svg=SVG.format(pixels), plain="What it shows") for pixels in (400, 800))
    made = slides.slides(lecture("## Flat", ("draw()", flat), "## High\n\nLook.", ("draw()", high)))
    assert "draw" not in "".join(bodies(made)) and "draw" in "".join(made[1].notes)
    assert 'alt="What it shows"' in bodies(made)[1] and "<p>What it shows</p>" in made[1].notes
    assert len(made) == 3 and 'class="body beside"' in slides.deck(lecture("## High\n\nLook.", ("draw()", high)))


def test_a_question_is_shown_and_its_answer_only_in_the_notes():
    asked = "<details><summary>1. How many?</summary>\n\nEight, and `x`.\n</details>"
    [_, slide] = slides.slides(lecture(f"## Recap\n\n{asked}"))
    assert "How many?" in bodies([slide])[0] and "Eight" not in bodies([slide])[0]
    assert "Eight, and <code>x</code>" in "".join(slide.notes)


def test_a_prediction_is_asked_and_a_dashboard_is_named():
    question = shown(html='<div role="group" aria-label="How many?">How many? ○ one ○ two</div>')
    board = shown(html='<div role="group" aria-label="Batching: who sits where">Run Stop</div>')
    [_, slide] = slides.slides(lecture("## See", ("ask()", question), ("board", board)))
    assert "○ two" in bodies([slide])[0] and "ask" not in re.sub("<[^>]+>", "", bodies([slide])[0]).replace("asks", "")
    assert "Live in the notebook: Batching: who sits where" in bodies([slide])[0]


def test_the_instructors_page_stands_in_the_notes_of_its_heading():
    made = slides.slides(lecture("## See\n\nWhat.", "## Else\n\nThat."), PAGE)
    assert "One idea." in made[0].notes[0]
    assert "Say this." in made[1].notes[0] and "tokens/s: 5 to 1,000" in made[1].notes[1]
    assert made[2].notes == []


def test_a_link_to_a_file_is_words_and_one_to_the_web_opens_beside_the_slides():
    deck = slides.deck(lecture("## See\n\nAs in [lesson 00](00_start_here.ipynb) and [there](https://example.org/a)."))
    assert "lesson 00" in deck and "00_start_here.ipynb" not in deck
    assert '<a target="_blank" rel="noopener" href="https://example.org/a">there</a>' in deck


def test_what_the_notebook_prints_is_text_and_no_page():
    deck = slides.deck(lecture("## See", ("x", printed("</pre><script>alert(1)</script>"))))
    assert "<script>alert" not in deck


def test_slides_are_written_where_one_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert slides.write("04") == Path("04_batching.slides.html") and Path("04_batching.slides.html").exists()
    assert slides.write("00_start_here", tmp_path / "a.html").read_text().startswith("<!DOCTYPE html>")
    with pytest.raises(CourseError, match="No lesson '17'"):
        slides.write("17")
    with pytest.raises(CourseError, match="name another file"):
        slides.write("00", tmp_path / "nowhere" / "a.html")
