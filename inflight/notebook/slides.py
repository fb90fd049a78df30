"""Slides of a lecture, made from its own cells: one HTML file that needs no network.

    slides.write("04")        writes 04_batching.slides.html

A heading of the lecture (`#`, `##`) begins a slide, and what does not fit goes to further ones. Of a paragraph the
slide has the first sentences; lists, tables, pictures and short code are there as they are, pictures as large as they
can be, and without the code that draws them. What the slide leaves out stands in the presenter's notes, with the
instructor's page on that heading. Cells tagged `parameters` are left out, and so is what only brings names: imports and
`catch_up`.
"""

from __future__ import annotations

import base64
import html
import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import mistune
import nbformat
from nbformat import NotebookNode
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from inflight.errors import CourseError
from inflight.notebook import execution, guide
from inflight.notebook.palette import DECODE, FONT, INK, WASTE_TEXT
from inflight.notebook.progress import is_progress

PICTURE = "image/svg+xml"
HIGH = 570  # pixels of a picture 880 wide: a higher one has a slide of its own
LONGEST_CODE, LONGEST_OUTPUT = 12, 13  # lines that a slide shows; longer code is in the notes
# In rem: a slide is 80 by 45, and what the browser makes of it is set in STYLE. These only decide where a slide ends;
# should a line break elsewhere, the page makes the letters of that slide smaller.
ROOM, PROSE, CODE, ROW = 34.0, 2.2, 1.65, 2.05
ROW_LINE = 1.55  # each further line of a table's row
LINE = 2.5  # of small letters about what is left out
FIGURE = 25.0  # the least height of a picture; it takes all that is left
PROSE_COLUMNS, CODE_COLUMNS, TABLE_COLUMNS = 80, 92, 110  # letters in a line
_FOLDED = re.compile(r"<details>\s*<summary>(.*?)</summary>(.*?)</details>", re.S)
_ITEM = re.compile(r"^(?:[-*]|\d+\.) ")


@dataclass
class Block:
    """A piece of a slide.

    Attributes
    ----------
    html : str
        What the slide shows; may be nothing.
    height : float
        Of that, in rem.
    note : str
        HTML for the presenter's notes: what the slide leaves out.
    """

    html: str
    height: float
    note: str = ""

    @property
    def is_prose(self) -> bool:
        return self.html.startswith(("<p>", "<ul", "<ol"))

    @property
    def is_high_picture(self) -> bool:
        return self.html.startswith("<figure") and self.height == ROOM


@dataclass
class Slide:
    """One slide: its heading, what it shows, and the presenter's notes as HTML."""

    heading: str
    level: int
    body: list[Block] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    part: int = 1
    parts: int = 1

    def add(self, block: Block) -> None:
        self.body += [block] if block.html else []
        self.notes += [block.note] if block.note else []

    def takes(self, block: Block) -> bool:
        """Whether there is room for one more block."""
        together = [*self.body, block]
        if not self.body or not block.html or sum(one.height for one in together) <= ROOM:
            return True
        # Beside a high picture there is a third of the width, for prose.
        prose = [one for one in together if one.is_prose]
        one_picture = len(prose) == len(together) - 1 and any(one.is_high_picture for one in together)
        return one_picture and sum(one.height for one in prose) <= ROOM / 4


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
    [path] = execution.select(sorted(execution.NOTEBOOKS.glob("[0-9][0-9]_*.ipynb")), [lesson])
    page, output = guide.path(path.stem), output or Path(f"{path.stem}.slides.html")
    made = deck(nbformat.read(path, as_version=4), page.read_text(encoding="utf-8") if page.exists() else "")
    try:
        output.write_text(made, encoding="utf-8")
    except OSError as error:
        raise CourseError(f"The slides cannot be written to {output} ({error.strerror}); name another file.") from None
    return output


def slides(lecture: NotebookNode, page: str = "") -> list[Slide]:
    """The slides of an executed lecture; `page` is the text of its instructor's page."""
    made: list[Slide] = []
    for heading, level, blocks in _sections(lecture):
        section = _packed(heading, level, blocks)
        section[0].notes[:0] = _from_page(page, heading, is_title=level == 1)
        for number, slide in enumerate(section, 1):
            slide.part, slide.parts = number, len(section)
        made += section
    return made


def deck(lecture: NotebookNode, page: str = "") -> str:
    """All slides of an executed lecture as one HTML page, with the presenter's notes from `page`, if there is one."""
    made = slides(lecture, page)
    articles = "\n".join(_article(number, slide, len(made)) for number, slide in enumerate(made, 1))
    colours = HtmlFormatter(style="default").get_style_defs(".code")
    return PAGE.format(
        title=html.escape(_plain(made[0].heading)), style=colours + STYLE, script=SCRIPT, articles=articles
    )


# From cells to blocks -------------------------------------------------------------------------------------------------


def _sections(lecture: NotebookNode) -> Iterator[tuple[str, int, list[Block]]]:
    """Each heading that begins a slide, its level, and the blocks below it."""
    heading, level, blocks = "", 0, list[Block]()
    for cell in lecture.cells:
        if cell.cell_type == "code":
            blocks += _code_blocks(cell)
            continue
        for chunk in _chunks(cell.source):
            if begins := re.match(r"(##?) (.+)", chunk):
                if level:
                    yield heading, level, blocks
                heading, level, blocks = begins[2], len(begins[1]), []
            else:
                blocks += _prose_blocks(chunk)
    yield heading, level, blocks


def _chunks(text: str) -> Iterator[str]:
    """Paragraphs, lists, tables, headings, fenced code and folded answers of a markdown cell."""
    lines, fence, folded = list[str](), False, False
    for line in text.splitlines():
        inside = fence or folded
        lists = bool(lines) and _ITEM.match(lines[0])
        begins = line.startswith(("#", "<details", "```")) or (_ITEM.match(line) and not lists)
        if not inside and lines and (not line.strip() or begins):
            yield "\n".join(lines)
            lines = []
        if line.startswith("```"):
            fence = not fence
        folded = (folded or line.startswith("<details")) and "</details>" not in line
        if line.strip() or inside:
            lines.append(line)
        if line.startswith("#") and not inside:
            yield line
            lines = []
    if lines:
        yield "\n".join(lines)


def _prose_blocks(chunk: str) -> Iterator[Block]:
    if folded := _FOLDED.search(chunk):
        question, answer = folded[1].strip(), folded[2].strip()
        yield Block(f"<p>{question}</p>", _lines(question, PROSE_COLUMNS) * PROSE + 0.8, _html(f"{answer}"))
    elif chunk.startswith("```"):
        yield Block(_html(chunk), (chunk.count("\n") - 1) * CODE + 1.5)
    elif chunk.startswith("|"):
        yield _table(_html(chunk))
    elif chunk.startswith("#"):
        yield Block(f"<p><b>{_html(chunk.lstrip('# '), inline=True)}</b></p>", PROSE + 0.3)
    elif _ITEM.match(chunk):
        yield from _items(chunk)
    elif not re.match(r"\[.*\]\(\S+\)( · \[|$)", chunk):  # the links to the other notebooks
        said = re.sub(r"\s+", " ", chunk)
        opening = _opening(said)
        yield Block(
            _html(opening), _lines(opening, PROSE_COLUMNS) * PROSE + 0.8, "" if opening == said else _html(said)
        )


def _items(chunk: str) -> Iterator[Block]:
    """Each item of a list, for a slide may end after any."""
    for number, item in enumerate(re.split(r"\n(?=(?:[-*]|\d+\.) )", chunk), 1):
        text = re.sub(r"\s+", " ", _ITEM.sub("", item, count=1))
        said = _html(text, inline=True)
        opened, closed = (f'<ol start="{number}">', "</ol>") if item[0].isdigit() else ("<ul>", "</ul>")
        yield Block(f"{opened}<li>{said}</li>{closed}", _lines(text, PROSE_COLUMNS - 4) * PROSE + 0.4)


def _opening(text: str) -> str:
    """The sentences with which a paragraph begins: as many as fit into two lines, but at least one."""
    ends = [match.end() for match in re.finditer(r"[.?!:](?=\s+[A-Z*`\[\"“(])", re.sub(r"`[^`]*`", _blank, text))]
    whole = [*ends, len(text)]
    fitting = [end for end in whole if len(_plain(text[:end])) <= 2 * PROSE_COLUMNS]
    return text[: fitting[-1] if fitting else whole[0]]


def _blank(match: re.Match) -> str:
    return "x" * len(match[0])


def _code_blocks(cell: NotebookNode) -> Iterator[Block]:
    if "parameters" in cell.metadata.get("tags", []) or "session.running()" in cell.source:
        return
    pictures = [output.data["text/plain"] for output in cell.outputs if PICTURE in output.get("data", {})]
    shown = []
    if not cell.source.startswith("%%writefile"):  # that says only where it has written
        outputs = [output for output in cell.outputs if not is_progress(output)]
        shown = [block for output in outputs for block in _output_blocks(output, pictures)]
    code = _code(cell.source, is_shown=not any(block.html.startswith(("<figure", "<div class=")) for block in shown))
    if code and code.html and shown and code.height + shown[0].height <= ROOM:
        first = shown.pop(0)  # code and what it prints stay together
        yield Block(code.html + first.html, code.height + first.height, code.note + first.note)
    elif code:
        yield code
    yield from shown


def _code(source: str, is_shown: bool) -> Block | None:
    """The code of a cell, if there is any that does something; `is_shown` is False where its picture says it all."""
    code = _essential(source)
    if not code:
        return None
    coloured = f'<div class="code">{highlight(code, PythonLexer(), HtmlFormatter())}</div>'
    lines = code.splitlines()
    if not is_shown:
        return Block("", 0, coloured)
    if len(lines) > LONGEST_CODE:
        words = f"{_name_of(lines[0])}, {len(lines)} lines: in the notebook, and in the notes"
        return Block(_aside(words), LINE, coloured)
    return Block(coloured, sum(_lines(line, CODE_COLUMNS) for line in lines) * CODE + 1.6)


def _name_of(first_line: str) -> str:
    """What code is called that is too long for a slide: the file that it is written to, or just code."""
    written = re.match(r"%%writefile (?:-a )?(?:\{.*\}/)?(\S+)", first_line)
    return f"<code>{html.escape(written[1])}</code>" if written else "Code"


def _aside(words: str) -> str:
    """A line about what a slide does not show."""
    return f'<p class="live">{words}</p>'


def _essential(source: str) -> str:
    """The code without what only brings names."""
    kept = [line for line in source.splitlines() if not re.match(r"(from \S+ )?import [^(]*$|catch_up\(", line)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip()


def _output_blocks(output: NotebookNode, pictures: list[str]) -> Iterator[Block]:
    data = output.get("data", {})
    if output.output_type == "stream":
        text = output.text.rstrip()
        if not any(text.strip() in said for said in pictures):
            yield _printed(text)
    elif PICTURE in data:
        source = base64.b64encode(data[PICTURE].encode()).decode()
        said = data["text/plain"]
        picture = f'<img alt="{html.escape(said)}" src="data:{PICTURE};base64,{source}">'
        high = float(re.search(r'height="(\d+)"', data[PICTURE])[1]) > HIGH
        yield Block(f"<figure>{picture}</figure>", ROOM if high else FIGURE, f"<p>{html.escape(said)}</p>")
    elif "text/html" in data:
        yield from _shown_as_html(data["text/html"])
    elif "text/markdown" in data:
        if not any(data["text/markdown"].strip() in said for said in pictures):
            for chunk in _chunks(data["text/markdown"]):
                yield from _prose_blocks(chunk)
    elif "text/plain" in data:
        yield _printed(data["text/plain"])


def _printed(text: str) -> Block:
    lines = text.splitlines()
    cut, height = [], 0
    for line in lines:
        height += _lines(line, CODE_COLUMNS)
        if height > LONGEST_OUTPUT:
            break
        cut.append(line)
    note = ""
    if len(cut) < len(lines):
        note = f'<pre class="output">{html.escape(text)}</pre>'
        cut = [*(cut or [lines[0][: CODE_COLUMNS * LONGEST_OUTPUT]]), "…"]
    height = sum(_lines(line, CODE_COLUMNS) for line in cut)
    return Block(f'<pre class="output">{html.escape(chr(10).join(cut))}</pre>', height * CODE + 1.2, note)


def _shown_as_html(shown: str) -> Iterator[Block]:
    """A table; a question that is asked of the learner; for what only works with a kernel, its name."""
    shown = re.sub(r' href="(?!https?:)[^"]*"', "", shown)  # it would lead nowhere
    if group := re.match(r'<div role="group" aria-label="([^"]*)"', shown):
        if group[1].endswith("?"):
            yield Block(f'<div class="ask">{shown}</div>', 2 + PROSE * (1 + shown.count("○")))
        elif group[1] != "Servers of this notebook":
            yield Block(_aside(f"Live in the notebook: {group[1]}"), LINE)
    elif "<tr" in shown:
        yield _table(re.sub(r"<style.*?</style>", "", shown, flags=re.S))
    else:
        yield Block(f'<div class="whole">{shown}</div>', ROOM)


def _table(table: str) -> Block:
    """A table, with as many rows as a slide has room for."""
    found = re.findall(r"<tr.*?</tr>", table, re.S)
    texts = [[_plain(cell) for cell in re.findall(r"<t[hd].*?</t[hd]>", row, re.S)] for row in found]
    columns = _columns(texts)
    heights = [ROW + ROW_LINE * (_row_lines(cells, columns) - 1) for cells in texts]
    kept = 1
    while kept < len(found) and sum(heights[: kept + 1]) <= ROOM - 4:
        kept += 1
    left = len(found) - kept
    more = _aside(f"{left} more row{'s' * (left > 1)} in the notebook") if left else ""
    shown = f"<table><thead>{found[0]}</thead><tbody>{''.join(found[1:kept])}</tbody></table>{more}"
    return Block(shown, sum(heights[:kept]) + 1.5 + (LINE if left else 0), table if left else "")


def _columns(rows: list[list[str]]) -> list[float]:
    """How many letters a line has in each column: as many as its longest cell, or their share of the width."""
    longest = [max(map(len, column)) + 2 for column in itertools.zip_longest(*rows, fillvalue="")]
    scale = min(1, TABLE_COLUMNS / sum(longest))
    return [letters * scale for letters in longest]


def _row_lines(cells: list[str], columns: list[float]) -> int:
    return max(max(1, math.ceil(len(cell) / letters)) for cell, letters in zip(cells, columns))


def _lines(text: str, columns: int) -> int:
    return max(1, math.ceil(len(_plain(text)) / columns))


def _plain(text: str) -> str:
    """What of HTML or markdown is read."""
    text = re.sub(r"<[^>]+>", "", text)
    return html.unescape(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)).strip()


_markdown = mistune.create_markdown(escape=False, plugins=["table"])


def _html(text: str, inline: bool = False) -> str:
    """Markdown as HTML. A link to a place on this machine would lead nowhere: its words stay."""
    made = _markdown(re.sub(r"\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", text)).strip()
    made = made.replace("<a href=", '<a target="_blank" rel="noopener" href=')
    return re.sub(r"^<p>|</p>$", "", made) if inline else made


# From blocks to slides ------------------------------------------------------------------------------------------------


def _packed(heading: str, level: int, blocks: list[Block]) -> list[Slide]:
    """The slides of a section: each gets blocks while there is room."""
    made = [Slide(heading, level)]
    for block in blocks:
        if not made[-1].takes(block):
            made.append(Slide(heading, level))
        made[-1].add(block)
    return made


def _from_page(page: str, heading: str, is_title: bool) -> list[str]:
    """What the instructor's page says of a heading: as HTML, for the notes of its first slide."""
    found = guide.parts(page)
    said = [text for of, text in guide.points(found.get(guide.POINTS, "")) if of == heading]
    said = [_html(text[0].upper() + text[1:]) for text in said]
    if is_title:
        said += [_html(found[part]) for part in (guide.LEAVES, guide.KNOW) if part in found]
    normal = [row for row in guide.expected(found.get(guide.EXPECTED, "")) if row.heading == heading]
    if normal:
        items = "".join(f"<li>{_html(row.what, inline=True)}: {row.normal}</li>" for row in normal)
        said.append(f"Normal on two cores:<ul>{items}</ul>")
    return [f'<div class="say">{text}</div>' for text in said]


def _body(slide: Slide) -> str:
    high = [block.html for block in slide.body if block.is_high_picture]
    others = "".join(block.html for block in slide.body if not block.is_high_picture)
    if high and others:
        return f'<div class="body beside">{high[0]}<div>{others}</div></div>'
    return f'<div class="body">{"".join(high)}{others}</div>'


def _article(number: int, slide: Slide, of: int) -> str:
    part = f" <small>{slide.part}/{slide.parts}</small>" if slide.parts > 1 else ""
    tag = "h1" if slide.level == 1 and slide.part == 1 else "h2"
    notes = "\n".join(slide.notes) or "<p>No notes on this slide.</p>"
    heading = _html(slide.heading, inline=True)
    return (
        f'<article id="s{number}" aria-label="Slide {number} of {of}">\n'
        f'<section class="slide"><{tag}>{heading}{part}</{tag}>'
        f"{_body(slide)}</section>\n"
        f'<aside class="notes" aria-label="Notes">{notes}</aside>\n</article>'
    )


# The page -------------------------------------------------------------------------------------------------------------

# Nothing is loaded: the browser itself holds the page to it.
PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>{title}</title><style>{style}</style></head><body>
<main>
{articles}
</main>
<nav aria-label="Slides"><button id="back" title="Previous slide (←)">←</button><output id="place"></output>
<button id="on" title="Next slide (→)">→</button><button id="note" title="Notes (n)" aria-pressed="false">Notes</button>
<button id="second" title="Notes in a second window (p)">Second window</button></nav>
<script>{script}</script></body></html>
"""

# A slide is 80 by 45 rem, and a rem is what makes that fill the window: so a slide breaks its lines alike everywhere.
# On a phone slides follow each other, as high as they are. On paper each is a page of 1280 by 720 pixels.
STYLE = f"""
:root {{ font-size: min(1.25vw, 2.2222vh); }}
* {{ box-sizing: border-box; }}
body {{ margin: 0; font-family: {FONT}; color: {INK}; background: white; }}
article {{ display: none; height: 100vh; }}
article.at {{ display: block; }}
.slide {{ width: 80rem; height: 45rem; margin: 0 auto; padding: 2.2rem 3rem 3rem; overflow: hidden; display: flex;
  flex-direction: column; }}
h1, h2 {{ margin: 0 0 1.2rem; font-size: 2.3rem; line-height: 1.15; flex: none; }}
h1 {{ font-size: 3rem; margin-top: 2rem; }}
small {{ font-size: 1.2rem; font-weight: normal; color: {WASTE_TEXT}; }}
.body {{ flex: 1; min-height: 0; display: flex; flex-direction: column; line-height: 1.4;
  font-size: calc(1.55rem * var(--fit, 1)); }}
.body > * {{ max-width: 72rem; flex: none; }}
p, ul, ol {{ margin: 0 0 .5em; }} li {{ margin-bottom: .2em; }} ul, ol {{ padding-left: 1.3em; }}
code, pre {{ font-family: ui-monospace, "DejaVu Sans Mono", "Liberation Mono", monospace; font-size: .8em; }}
pre {{ margin: 0 0 .8em; padding: .5em .7em; line-height: 1.35; white-space: pre-wrap; overflow-wrap: anywhere;
  background: #f4f4f2; border-radius: .3em; }}
pre code {{ font-size: 1em; }}
.code, .code .highlight {{ background: none; }} .code pre {{ border-left: .25em solid {DECODE}; }}
.body pre.output {{ background: white; border: 1px solid #ccc; }}
.body > figure {{ margin: 0; flex: 1 1 0; min-height: 20rem; max-width: none; }}
figure img {{ display: block; width: 100%; height: 100%; object-fit: contain; }}
.beside {{ flex-direction: row; gap: 2rem; }} .beside > figure {{ flex: 1 1 0; height: 100%; min-width: 0; }}
.beside > div {{ flex: 0 0 24rem; }}
table {{ border-collapse: collapse; font-size: .76em; margin-bottom: .8em; max-width: 100%; line-height: 1.3; }}
th, td {{ text-align: left; vertical-align: top; border-bottom: 1px solid #ccc; padding: .25em .6em;
  overflow-wrap: anywhere; }}
.whole {{ font-size: 1.1rem; zoom: var(--fit, 1); }}
.ask > div {{ padding: .5em; }}
.live {{ color: {WASTE_TEXT}; font-size: .85em; }}
.notes {{ display: none; line-height: 1.4; padding: 1rem 3rem; background: #f4f4f2; overflow-y: auto; }}
.notes img {{ max-width: 100%; }} .notes pre {{ background: white; }}
.say {{ border-left: .3em solid {DECODE}; padding-left: .8em; margin-bottom: .8em; }}
nav {{ position: fixed; right: .8rem; bottom: .5rem; display: flex; gap: .5rem; align-items: center;
  font-size: 1rem; color: {WASTE_TEXT}; }}
nav button {{ font: inherit; color: inherit; background: white; border: 1px solid #ccc; border-radius: .3em;
  padding: .1em .6em; cursor: pointer; }}
nav button[aria-pressed=true] {{ background: {INK}; color: white; }}
@media screen and (min-width: 701px) {{
  .with-notes {{ font-size: min(.78vw, 1.3888vh); }}
  .with-notes .at .notes {{ display: block; height: calc(100vh - 45rem); font-size: 1.9rem; }}
  .with-notes nav {{ font-size: 1.6rem; }}
  .only-notes .at .slide {{ display: none; }}
  .only-notes .at .notes {{ display: block; height: 100vh; font-size: 1.6rem; padding-bottom: 4rem; }}
}}
@media screen and (max-width: 700px) {{
  :root {{ font-size: 11px; }}
  article, article.at {{ display: block; height: auto; border-bottom: 1px solid #ccc; }}
  .slide {{ width: auto; height: auto; padding: 1.5rem 1.2rem; }}
  h1, h2 {{ font-size: 1.9rem; }}
  .body, .body > figure, .beside > div {{ display: block; min-height: 0; }} figure img {{ height: auto; }}
  table, pre {{ display: block; overflow-x: auto; }} td, th {{ overflow-wrap: normal; }}
  .with-notes .notes {{ display: block; font-size: 1.4rem; padding: 1rem 1.2rem; }}
  #back, #on, #place, #second {{ display: none; }} nav {{ font-size: 1.3rem; }}
}}
@media print {{
  @page {{ size: 1280px 720px; margin: 0; }}
  :root {{ font-size: 16px; }}
  article, article.at {{ display: block; height: 720px; break-after: page; overflow: hidden; }}
  article:last-child {{ break-after: auto; }}
  nav, .notes {{ display: none; }}
}}
"""

# The second window has the same page with notes alone; each tells the other where it is.
SCRIPT = """
const slides = [...document.querySelectorAll("article")], root = document.documentElement;
const phone = matchMedia("(max-width: 700px)");
const find = id => document.getElementById(id);
let at = 0, other = window.opener;

function show(number, tell = true) {
  at = Math.max(0, Math.min(slides.length - 1, number));
  slides.forEach((slide, index) => slide.classList.toggle("at", index === at));
  find("place").textContent = `${at + 1} / ${slides.length}`;
  history.replaceState(null, "", `#${at + 1}`);
  if (tell) other?.postMessage({ slide: at }, "*");
}
function toggleNotes() {
  find("note").setAttribute("aria-pressed", root.classList.toggle("with-notes"));
}
function openSecond() {
  other = window.open(`${location.href.split(/[?#]/)[0]}?notes#${at + 1}`, "notes", "width=900,height=600");
}
// A slide whose lines come out longer than was reckoned gets smaller letters. All are laid out for that, unseen.
function fit() {
  if (phone.matches) return;
  for (const slide of slides) {
    const body = slide.querySelector(".body"), was = slide.style.cssText;
    slide.style.cssText = "display: block; position: absolute; visibility: hidden";
    for (let scale = 1; scale > 0.5; scale -= 0.03) {
      body.style.setProperty("--fit", scale);
      if (body.scrollHeight <= body.clientHeight + 1) break;
    }
    slide.style.cssText = was;
  }
}
const keys = {
  ArrowRight: () => show(at + 1), ArrowDown: () => show(at + 1), PageDown: () => show(at + 1), " ": () => show(at + 1),
  ArrowLeft: () => show(at - 1), ArrowUp: () => show(at - 1), PageUp: () => show(at - 1),
  Home: () => show(0), End: () => show(slides.length - 1), n: toggleNotes, s: toggleNotes, p: openSecond,
  f: () => document.fullscreenElement ? document.exitFullscreen() : root.requestFullscreen(),
};
addEventListener("keydown", event => {
  if (!keys[event.key] || event.ctrlKey || event.altKey || event.metaKey) return;
  if (event.key === " " && event.target.closest?.("button")) return;
  if (phone.matches && event.key !== "n" && event.key !== "s") return;  // there one scrolls
  event.preventDefault();
  keys[event.key]();
});
addEventListener("message", event => {
  if (event.source !== other && event.source !== window.opener) return;
  other = event.source;
  if (Number.isInteger(event.data?.slide)) show(event.data.slide, false);
});
addEventListener("hashchange", () => show(Number(location.hash.slice(1)) - 1));
find("on").onclick = () => show(at + 1);
find("back").onclick = () => show(at - 1);
find("note").onclick = toggleNotes;
find("second").onclick = openSecond;
root.classList.toggle("only-notes", location.search === "?notes");
fit();
addEventListener("resize", fit);
show((Number(location.hash.slice(1)) || 1) - 1);
root.dataset.ready = "yes";
"""
