"""Slides are the lesson's own: its headings, its code, its pictures; what they leave out is in the notes."""

import re
from pathlib import Path

import bs4
import nbformat
import pytest

from inflight import syllabus
from inflight.errors import CourseError
from inflight.notebook.pages import blanks, execution, instructor, slides

LECTURES = sorted(execution.NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))
SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="880" height="400"></svg>'
PAGE = {
    instructor.LEAVES: "One idea.",
    instructor.POINTS: "- **See**: say\n  this.",
    instructor.EXPECTED: "| Section | Figure | As the lesson says it | Normal |\n|---|---|---|---|\n"
    "| See | tokens/s | `makes {} tokens/s` | 5 to 1,000 |",
}


def deck(monkeypatch, *cells):
    """The slides, parsed, of a lecture with a title and these cells: markdown, or a pair of code and its outputs."""
    monkeypatch.setattr(instructor, "parts", lambda name: PAGE)
    lecture = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# 04 · A lesson\n\n40 min.")])
    for cell in cells:
        if isinstance(cell, str):
            lecture.cells.append(nbformat.v4.new_markdown_cell(cell))
        else:
            tags = [blanks.FOR_CI] if cell[0].startswith("assert") else []
            code = nbformat.v4.new_code_cell(cell[0], outputs=list(cell[1:]), metadata={"tags": tags})
            lecture.cells.append(code)
    return bs4.BeautifulSoup(slides.deck(lecture, "04_a_lesson"), "html.parser").select(".slides section section")


def parts(slide):
    """What a slide shows, and its notes."""
    notes = " ".join(note.extract().get_text() for note in slide.select("aside"))
    return slide.get_text(), notes


@pytest.mark.parametrize("path", LECTURES, ids=lambda path: path.stem)
def test_every_lecture_has_slides_that_load_nothing_and_notes_with_the_instructors_points(path):
    page = bs4.BeautifulSoup(slides.deck(nbformat.read(path, as_version=4), path.stem), "html.parser")
    assert page.select_one("meta[http-equiv]")["content"].startswith("default-src 'none'")
    assert not page.select("link, script[src], iframe, object")
    assert all(image["src"].startswith("data:") for image in page.select("img"))
    assert all(link["href"].startswith(("https://", "#")) for link in page.select(".slides a"))
    notes = {}
    for slide in page.select(".slides section"):
        if heading := slide.select_one("h1, h2"):
            notes[re.sub("¶$", "", heading.get_text())] = slide.get_text()
    for heading, said in instructor.points(instructor.parts(syllabus.LESSONS / path.stem[3:])[instructor.POINTS]):
        assert re.sub("[`*]", "", said)[1:20] in re.sub("[`*]", "", notes[re.sub("[`*]", "", heading)])


def test_of_a_paragraph_the_slide_has_two_sentences_and_the_notes_have_all(monkeypatch):
    text = "It `begins. With` this. It goes on. " + "And on and on. " * 12
    _, slide = deck(monkeypatch, f"## See\n\n{text}\n\nShort")
    shown, notes = parts(slide)
    assert "It begins. With this. It goes on." in shown and "Short" in shown and "on and on" not in shown
    assert notes.count("on and on") == 12


def test_of_a_cell_that_draws_the_slide_has_the_picture_and_the_notes_its_code_and_words(monkeypatch):
    picture = nbformat.v4.new_output("display_data", {"image/svg+xml": SVG, "text/plain": "What"})
    words = nbformat.v4.new_output("display_data", {"text/markdown": "It shows this.", "text/plain": "x"})
    printed = nbformat.v4.new_output("stream", text="one\n")
    cells = ("draw()", picture, words), ("print('one')", printed), ("assert 'for CI'",)
    *_, draw, code = deck(monkeypatch, "## See", *cells)
    assert draw.img["alt"] == "What"
    shown, notes = parts(draw)
    assert "for CI" not in notes + shown + code.get_text()
    assert "draw()" not in shown and "draw()" in notes and "It shows this." in notes
    assert "print('one')" in code.get_text() and "one" in code.get_text()


def test_a_folded_answer_stays_folded_and_whole(monkeypatch):
    folded = "<details><summary>1. How many?</summary>\n\nEight, and `x`. Or more. Or less.\n\nNine.\n</details>"
    _, slide = deck(monkeypatch, f"## Recap\n\n{folded}\n\nEnd.")
    assert slide.details.summary.text == "1. How many?"
    assert "Or less." in slide.get_text() and "Nine." in slide.get_text()


def test_the_instructors_page_stands_in_the_notes_of_its_heading(monkeypatch):
    title, see, other = (parts(slide)[1] for slide in deck(monkeypatch, "## See\n\nWhat.", "## Else\n\nThat."))
    assert "One idea." in title
    assert "Say this." in see and "tokens/s: 5 to 1,000" in see
    assert not other


def test_a_link_to_a_file_is_words(monkeypatch):
    _, slide = deck(monkeypatch, "## See\n\n[lesson 00](00_start_here.ipynb), [there](https://example.org/a).")
    assert [link["href"] for link in slide.select("p a")] == ["https://example.org/a"] and "lesson 00" in slide.text


def test_slides_are_written_where_one_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert slides.write("04") == Path("04_batching.slides.html") and Path("04_batching.slides.html").exists()
    assert slides.write("00_start_here", tmp_path / "a.html").read_text().startswith("<!DOCTYPE html>")
    with pytest.raises(CourseError, match="No lesson '17'"):
        slides.write("17")
    with pytest.raises(CourseError, match="name another file"):
        slides.write("00", tmp_path / "nowhere" / "a.html")
