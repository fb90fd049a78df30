"""Slides of a lecture, made from its own cells: one HTML file that needs no network.

    slides.write("04")        writes 04_batching.slides.html

A heading of the lecture (`#`, `##`) begins a slide. Of a paragraph the slide has the first sentences; lists, tables and
pictures are there as they are, short code too, but for a cell that draws a picture. What a slide leaves out stands in
its notes, with what the instructor's page says of that heading. The page itself deals out what comes under a heading,
piece by piece, to as many slides as it needs: it alone knows how high a piece is.
"""

import base64
import html
import re
from collections.abc import Iterator
from pathlib import Path

import mistune
import nbformat
from nbformat import NotebookNode
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from inflight.errors import CourseError
from inflight.notebook import blanks, execution, guide
from inflight.notebook.palette import DECODE, FONT, INK, WASTE_TEXT
from inflight.notebook.progress import is_progress

PICTURE = "image/svg+xml"
MOST_LINES, MOST_ROWS = 13, 10  # of code, and of what it prints; of a table
IMPORT = re.compile(r"^(?:from \S+ )?import [^(\n]*\n*", re.M)
FOLDED = re.compile(r"<details>\s*<summary>(.*?)</summary>(.*?)</details>", re.S)
SENTENCES = re.compile(r"(?:(?:`[^`]*`|.)+?(?:[.?!:](?=\s+[A-Z*`\[“(])|$)\s*){1,2}", re.S)


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
    output = output or Path(f"{path.stem}.slides.html")
    try:
        output.write_text(deck(nbformat.read(path, as_version=4), guide.parts(path.stem)), encoding="utf-8")
    except OSError as error:
        raise CourseError(f"The slides cannot be written to {output} ({error.strerror}); name another file.") from None
    return output


def deck(lecture: NotebookNode, page: dict[str, str]) -> str:
    """All slides of an executed lecture as one HTML page; `page` has the parts of its instructor's page."""
    articles = []
    for heading, pieces in _sections(lecture):
        shown = "".join(piece for piece, _ in pieces)
        notes = "".join([*_from_page(page, heading, is_title=not articles), *(note for _, note in pieces)])
        articles.append(
            f"<article><section><h2>{_inline(heading)}</h2><div>{shown}</div></section>"
            f'<aside aria-label="Notes">{notes or "<p>No notes on this slide.</p>"}</aside></article>'
        )
    colours = HtmlFormatter(style="default").get_style_defs(".highlight")
    title = re.search(r"^# (.+)", lecture.cells[0].source, re.M)[1]
    return PAGE.format(title=html.escape(title), style=colours + STYLE, script=SCRIPT, articles="\n".join(articles))


def _sections(lecture: NotebookNode) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Each heading that begins a slide, and what comes under it: pieces to show, and what of each is for the notes."""
    heading, pieces = "", []
    for cell in lecture.cells:
        if cell.cell_type == "code":
            pieces += _of_code(cell)
            continue
        before, *parts = re.split(r"^##? (.+)\n?", cell.source, flags=re.M)
        pieces += _of_prose(before)
        for begins, text in zip(parts[::2], parts[1::2]):
            if heading:
                yield heading, pieces
            heading, pieces = begins, list(_of_prose(text))
    yield heading, pieces


def _of_prose(text: str) -> Iterator[tuple[str, str]]:
    for paragraph in re.split(r"\n\n(?!.*</details>)", FOLDED.sub(_one_paragraph, text.strip())):
        if folded := FOLDED.search(paragraph):
            yield f"<p>{folded[1]}</p>", _html(folded[2].replace(FOLD, "\n\n"))
        elif re.match(r"[-*|#`]|\d+\. |<", paragraph):  # a list, a table, a heading, code
            yield _html(paragraph), ""
        elif paragraph and not re.match(r"\[.*\]\(\S+\)( · \[|$)", paragraph):  # the links to other notebooks
            begins = SENTENCES.match(paragraph)[0]
            yield _html(begins), _html(paragraph) if begins.strip() != paragraph else ""


FOLD = "\0"  # in place of a blank line inside a folded answer


def _one_paragraph(folded: re.Match) -> str:
    return folded[0].replace("\n\n", FOLD)


def _of_code(cell: NotebookNode) -> Iterator[tuple[str, str]]:
    if blanks.is_for_ci(cell) or "parameters" in cell.metadata.get("tags", []) or "session.running()" in cell.source:
        return
    outputs = [] if cell.source.startswith("%%writefile") else [one for one in cell.outputs if not is_progress(one)]
    has_picture = any(PICTURE in output.get("data", {}) for output in outputs)
    shown = [piece for output in outputs if (piece := _output(output, has_picture))]
    if code := IMPORT.sub("", cell.source).strip():
        coloured = highlight(code, PythonLexer(), HtmlFormatter())
        draws = any(piece.startswith(("<figure", "<div")) for piece, _ in shown)
        is_long = code.count("\n") >= MOST_LINES
        said = f'<p class="aside">{code.count(chr(10)) + 1} lines of code: in the notebook, and in the notes</p>'
        yield ("" if draws else said, coloured) if draws or is_long else (coloured, "")
    yield from shown


def _output(output: NotebookNode, has_picture: bool) -> tuple[str, str] | None:
    """What a slide shows of an output, and what of it is for the notes; None where there is nothing to see."""
    data = output.get("data", {})
    if PICTURE in data:
        said, source = html.escape(data["text/plain"]), base64.b64encode(data[PICTURE].encode()).decode()
        return f'<figure><img alt="{said}" src="data:{PICTURE};base64,{source}"></figure>', f"<p>{said}</p>"
    if "text/html" in data:
        shown = re.sub(r' href="(?!https?:)[^"]*"|<style.*?</style>', "", data["text/html"], flags=re.S)
        if live := re.match(r'<div role="group" aria-label="([^"]*[^?"])"', shown):
            return f'<p class="aside">Live in the notebook: {live[1]}</p>', ""
        rows = re.findall(r"<tr.*?</tr>", shown, re.S)
        if len(rows) <= MOST_ROWS:
            return f"<div>{shown}</div>" if not rows else shown, ""
        more = f'<p class="aside">{len(rows) - MOST_ROWS} more rows in the notebook</p>'
        return f"<table>{''.join(rows[:MOST_ROWS])}</table>{more}", shown
    if "text/markdown" in data:
        words = _html(data["text/markdown"])
        return ("", words) if has_picture else (words, "")  # beside a picture they tell what it shows
    text = (output.get("text") or data.get("text/plain", "")).rstrip()
    if not text:
        return None
    lines = text.splitlines()
    cut = "\n".join([*lines[:MOST_LINES], *(["…"] if len(lines) > MOST_LINES else [])])
    whole = f"<pre>{html.escape(text)}</pre>"
    return f'<pre class="output">{html.escape(cut)}</pre>', whole if len(lines) > MOST_LINES else ""


def _from_page(page: dict[str, str], heading: str, is_title: bool) -> Iterator[str]:
    """What the instructor's page says of a heading, as HTML."""
    said = [text[0].upper() + text[1:] for of, text in guide.points(page.get(guide.POINTS, "")) if of == heading]
    said += [page[part] for part in (guide.LEAVES, guide.KNOW) if is_title and part in page]
    normal = [f"- {row[1]}: {row[3]}" for row in guide.rows(page.get(guide.EXPECTED, "")) if row[0] == heading]
    said += ["\n".join(["Normal on two cores:\n", *normal])] if normal else []
    return (f'<div class="say">{_html(text)}</div>' for text in said)


_markdown = mistune.create_markdown(escape=False, plugins=["table"])


def _html(text: str) -> str:
    """Markdown as HTML. A link to a place on this machine would lead nowhere: its words stay."""
    made = _markdown(re.sub(r"\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", text)).strip()
    return made.replace("<a href=", '<a target="_blank" rel="noopener" href=')


def _inline(text: str) -> str:
    return re.sub(r"^<p>|</p>$", "", _html(text))


# Nothing is loaded: the browser itself holds the page to it.
PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>{title}</title><style>{style}</style></head><body>
<main>
{articles}
</main>
<output></output>
<script>{script}</script></body></html>
"""

# A slide is 80 by 45 rem, and a rem is what makes that fill the window: so a slide breaks its lines alike everywhere.
STYLE = f"""
:root {{ font-size: min(1.25vw, 2.2222vh); }}
:root.notes {{ font-size: min(.78vw, 1.3888vh); }}
* {{ box-sizing: border-box; }}
body {{ margin: 0; font-family: {FONT}; color: {INK}; background: white; }}
article {{ display: none; }} article.at, .all article {{ display: block; }}
section {{ width: 80rem; height: 45rem; margin: 0 auto; padding: 2.2rem 3rem 2.6rem; overflow: hidden;
  display: flex; flex-direction: column; }}
h2 {{ margin: 0 0 1.2rem; font-size: 2.3rem; line-height: 1.15; }}
article:first-child h2 {{ font-size: 3rem; margin-top: 2rem; }}
section > div {{ flex: 1; min-height: 0; display: flex; flex-direction: column; line-height: 1.4;
  font-size: calc(1.55rem * var(--fit, 1)); }}
section > div > * {{ flex: none; max-width: 74rem; }}
p, ul, ol, pre, table {{ margin: 0 0 .5em; }} ul, ol {{ padding-left: 1.3em; }}
code, pre {{ font-family: ui-monospace, "DejaVu Sans Mono", "Liberation Mono", monospace; font-size: .8em; }}
pre {{ padding: .5em .7em; line-height: 1.35; white-space: pre-wrap; overflow-wrap: anywhere; background: #f4f4f2;
  border-left: .25em solid {DECODE}; }}
pre code {{ font-size: 1em; }} pre.output {{ background: white; border: 1px solid #ccc; }}
section > div > figure {{ margin: 0; flex: 1 1 0; min-height: 30rem; max-width: none; }}
img {{ display: block; width: 100%; height: 100%; object-fit: contain; }}
table {{ border-collapse: collapse; font-size: .76em; line-height: 1.3; }}
th, td {{ text-align: left; vertical-align: top; border-bottom: 1px solid #ccc; padding: .25em .6em;
  overflow-wrap: anywhere; }}
.aside, output {{ color: {WASTE_TEXT}; font-size: .85em; }}
output {{ position: fixed; right: 1rem; bottom: .5rem; font-size: 1.1rem; }}
aside {{ display: none; height: calc(100vh - 45rem); padding: 1rem 3rem; overflow-y: auto; font-size: 1.9rem;
  line-height: 1.4; background: #f4f4f2; }}
.notes aside {{ display: block; }} aside pre {{ background: white; }} aside > * {{ max-width: 100%; }}
.say {{ border-left: .3em solid {DECODE}; padding-left: .8em; margin-bottom: .8em; }}
@media print {{
  @page {{ size: 1280px 720px; margin: 0; }}
  :root {{ font-size: 16px !important; }}
  article {{ display: block; height: 720px; overflow: hidden; break-after: page; }}
  aside, output {{ display: none !important; }}
}}
"""

# The second window is the same page with its notes; each sends the other to its slide.
SCRIPT = """
const root = document.documentElement, main = document.querySelector("main");
const boxOf = article => article.querySelector("section > div");
const overflows = box => box.scrollHeight > box.clientHeight + 1;
// A slide takes pieces while there is room; the others begin a slide of the same heading. All are laid out for that.
main.className = "all";
for (const article of [...main.children]) {
  const pieces = [...boxOf(article).children];
  boxOf(article).replaceChildren();
  let last = article;
  for (const piece of pieces) {
    boxOf(last).append(piece);
    if (!overflows(boxOf(last)) || boxOf(last).children.length === 1) continue;
    const next = last.cloneNode(true);
    boxOf(next).replaceChildren(piece);
    last.after(next);
    last = next;
  }
}
// What is too high for a slide of its own, or is in a window of this size, gets smaller letters.
function fit() {
  main.className = "all";
  for (const box of document.querySelectorAll("section > div")) {
    box.style.removeProperty("--fit");
    for (let scale = 1; scale > 0.5 && overflows(box); scale -= 0.05) box.style.setProperty("--fit", scale);
  }
  main.className = "";
}
const slides = [...main.children];
let at = 0, other = window.opener;
function show(number, tell = true) {
  at = Math.max(0, Math.min(slides.length - 1, number));
  slides.forEach((slide, index) => slide.classList.toggle("at", index === at));
  document.querySelector("output").textContent = `${at + 1} / ${slides.length}`;
  history.replaceState(null, "", `#${at + 1}`);
  if (tell) other?.postMessage(at, "*");
}
const keys = {
  ArrowRight: () => show(at + 1), PageDown: () => show(at + 1), " ": () => show(at + 1),
  ArrowLeft: () => show(at - 1), PageUp: () => show(at - 1), Home: () => show(0), End: () => show(slides.length - 1),
  n: () => root.classList.toggle("notes"),
  p: () => { other = window.open(`${location.href.split(/[?#]/)[0]}?notes#${at + 1}`, "", "popup,width=900"); },
  f: () => document.fullscreenElement ? document.exitFullscreen() : root.requestFullscreen(),
};
addEventListener("keydown", event => {
  if (!keys[event.key] || event.ctrlKey || event.altKey || event.metaKey) return;
  event.preventDefault();
  keys[event.key]();
});
addEventListener("message", event => {
  if (event.source === other && Number.isInteger(event.data)) show(event.data, false);
});
addEventListener("hashchange", () => show(Number(location.hash.slice(1)) - 1));
root.classList.toggle("notes", location.search === "?notes");
fit();
addEventListener("resize", fit);
root.dataset.ready = "yes";
show((Number(location.hash.slice(1)) || 1) - 1);
"""
