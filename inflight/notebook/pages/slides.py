"""Slides of a lecture: nbconvert's, with reveal.js, as one HTML file that needs no network.

    slides.write("04")        writes 04_batching.slides.html

A heading of the lecture (`#`, `##`) begins a slide, and below it each code cell begins another. A paragraph is shown by
its first sentences. What a slide leaves out stands in its notes, with what the instructor's page says of that heading.
"""

import re
from collections.abc import Iterator
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path

import nbformat
from nbconvert.exporters import SlidesExporter
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell
from traitlets.config import Config

from inflight import syllabus
from inflight.errors import CourseError
from inflight.notebook.pages import blanks, execution, instructor

PICTURE = "image/svg+xml"
SHOWN = [PICTURE, "text/html", "text/markdown", "text/plain"]  # forms of an output, the first that it has is shown
PIECE = re.compile(r"<details>.*?</details>|```.*?```|\S.*?(?=\n\n|\Z)", re.S)
SENTENCES = re.compile(r"(?:(?:`[^`]*`|.)+?(?:[.?!:](?=\s+[A-Z*`\[“(])|\Z)\s*){1,2}", re.S)

# nbconvert's own page loads reveal.js and four other libraries from elsewhere. Here nothing is loaded: the browser
# itself holds the page to it.
PAGE = """{%- extends 'reveal/base.html.j2' -%}
{%- block header -%}<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="default-src 'none';
 img-src data:; font-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'; frame-src 'self' file:">
<title>{{ resources.metadata.name }}</title>
<style>{{ resources.reveal_css }}</style>
{{ resources.include_css("static/index.css") }}{{ resources.include_css("static/theme-light.css") }}
<style>{{ resources.inlining.css | join }}
:root { --jp-content-font-size1: 24px; --jp-code-font-size: 20px; --jp-cell-padding: 4px }
.slides section { height: 100%; overflow-y: auto; text-align: left; font-family: var(--jp-content-font-family) }
.jp-InputPrompt, .jp-OutputPrompt, .anchor-link, .by-hand { display: none }
.jp-RenderedSVG > * { width: 100%; height: 670px }
</style></head>
<body data-jp-theme-light="true"><div class="reveal"><div class="slides">
{%- endblock -%}
{%- block data_svg scoped -%}<div class="jp-RenderedSVG"><img alt="{{ output.data["text/plain"] | escape_html }}"
 src="data:image/svg+xml;base64,{{ output.data["image/svg+xml"] | text_base64 | escape_html }}"></div>{%- endblock -%}
{%- block footer -%}
</div></div>
<script>{{ resources.reveal_js }}</script><script>{{ resources.notes_js }}</script>
<script>Reveal.initialize({ width: 1280, height: 720, margin: 0.03, center: false, hash: true, slideNumber: "c/t",
  transition: "none", plugins: [RevealNotes] });</script></body></html>
{%- endblock -%}
"""


def write(lesson: str, output: Path | None = None) -> Path:
    """Write the slides of a lesson, such as "04" or "04_batching", to a file; return its path.

    Parameters
    ----------
    output : Path or None
        None is NN_topic.slides.html in the current folder.

    Raises
    ------
    CourseError
        No such lesson, or the file cannot be written.
    """
    [path] = syllabus.select(sorted(execution.NOTEBOOKS.glob("[0-9][0-9]_*.ipynb")), [lesson])
    output = output or Path(f"{path.stem}.slides.html")
    try:
        output.write_text(deck(nbformat.read(path, as_version=4), path.stem), encoding="utf-8")
    except OSError as error:
        raise CourseError(f"The slides cannot be written to {output} ({error.strerror}); name another file.") from None
    return output


def deck(lecture: NotebookNode, name: str) -> str:
    """Make all slides of an executed lecture, such as "04_batching", as one HTML page."""
    spec = find_spec("pyreveal")
    assert spec is not None and spec.submodule_search_locations is not None
    [package] = spec.submodule_search_locations
    files = {"reveal_css": "reveal.css", "reveal_js": "reveal.js", "notes_js": "plugin/notes.js"}
    resources = {key: (Path(package) / "revealjs" / "dist" / file).read_text("utf-8") for key, file in files.items()}
    slides = nbformat.v4.new_notebook(
        cells=list(_cells(lecture, instructor.parts(syllabus.LESSONS / name[3:]))), metadata=lecture.metadata
    )
    exporter = SlidesExporter(raw_template=PAGE, config=Config(NbConvertBase={"display_data_priority": SHOWN}))
    made, _ = exporter.from_notebook_node(slides, resources={**resources, "metadata": {"name": name}})
    return made


def _cells(lecture: NotebookNode, page: dict[str, str]) -> Iterator[NotebookNode]:
    """Return the lecture's cells with nbconvert's `slide_type`, and notes among them; `page` is the instructor's."""
    for cell in deepcopy(lecture.cells):
        if cell.cell_type == "markdown":
            before, *parts = re.split(r"^(##? .+)\n?", cell.source, flags=re.M)
            yield from _prose(before)
            for heading, text in zip(parts[::2], parts[1::2]):
                yield _markdown(heading, "slide")
                yield from map(_note, _said_of(heading, page))
                yield from _prose(text)
        elif not blanks.is_for_ci(cell):
            yield from _code(cell)


def _code(cell: NotebookNode) -> Iterator[NotebookNode]:
    """Return a code cell with what it shows; where it draws, only the picture."""
    cell.metadata.slideshow = {"slide_type": "subslide"}
    pictures = [output for output in cell.outputs if PICTURE in output.get("data", {})]
    if not pictures:
        yield cell
        return
    words = [output.data["text/markdown"] for output in cell.outputs if "text/markdown" in output.get("data", {})]
    code, cell.outputs, cell.metadata.transient = cell.source, pictures, {"remove_source": True}
    yield cell
    yield _note("\n\n".join([*words, f"```python\n{code}\n```"]))


def _prose(text: str) -> Iterator[NotebookNode]:
    pieces = PIECE.findall(text)
    begins = [_begin(piece) if piece[0].isalpha() else piece for piece in pieces]
    if pieces:
        yield _markdown("\n\n".join(begins))
    if begins != pieces:
        yield _note(text)


def _begin(piece: str) -> str:
    """Return the first sentences of a paragraph."""
    found = SENTENCES.match(piece)
    return found[0].strip() if found else piece


def _said_of(heading: str, page: dict[str, str]) -> Iterator[str]:
    """Return what the instructor's page says about a heading."""
    title = heading.lstrip("# ")
    yield from (
        said[0].upper() + said[1:] for of, said in instructor.points(page.get(instructor.POINTS, "")) if of == title
    )
    if heading.startswith("# "):
        yield from (page[part] for part in (instructor.LEAVES, instructor.KNOW) if part in page)
    normal = [f"- {row[1]}: {row[3]}" for row in instructor.rows(page.get(instructor.EXPECTED, "")) if row[0] == title]
    if normal:
        yield "\n".join(["Normal on two cores:\n", *normal])


def _note(text: str) -> NotebookNode:
    return _markdown(text, "notes")


def _markdown(text: str, slide_type: str = "-") -> NotebookNode:
    """Make a cell; a link to a file would lead nowhere, so only its words stay."""
    text = re.sub(r"\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", text)
    return new_markdown_cell(text, metadata={"slideshow": {"slide_type": slide_type}})
