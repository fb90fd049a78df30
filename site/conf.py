"""Sphinx's settings for the course's pages on the web: `make site`.

The clone itself is the source: notebooks as they are stored, and its own Markdown files. Nothing is executed, and the
finished pages fetch nothing from another host.
"""

import re
import sys
from pathlib import Path

from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform

sys.path.insert(0, str(Path(__file__).resolve().parent))

project = "Serving LLMs with Triton, hands on"
author = "The authors of the course"
language = "en"
extensions = ["myst_nb", "glossary_links"]
root_doc = "README"
include_patterns = [
    "*.md",
    "notebooks/*.ipynb",
    "labs/*.ipynb",
    "solutions/*.ipynb",
    "notebooks/glossary.md",
    "inflight/lessons/*/instructor.md",
    "inflight/lessons/engine/appendix.md",
    "assets/instructor/**.md",
    "assets/lab-gpu/README.md",
    "assets/results/README.md",
    "assets/elsewhere.md",
    "assets/going-live.md",
    "assets/help.md",
]
exclude_patterns = [".*", "build", "dist", "tests", "tools", "work"]
CLONE = Path(__file__).resolve().parents[1]
sys.path.append(str(CLONE))
from inflight import syllabus  # noqa: E402
from tools import address  # noqa: E402

LESSONS = syllabus.read()
# A heading, and the pages under it.
CONTENTS = {
    "Lectures": [f"notebooks/{lesson.name}" for lesson in LESSONS if lesson.part != syllabus.ELECTIVES],
    "Electives": [f"notebooks/{lesson.name}" for lesson in LESSONS if lesson.part == syllabus.ELECTIVES],
    "Labs": ["labs/*"],
    "Solutions": ["solutions/*"],
    "Look it up": [
        "assets/help",
        "notebooks/glossary",
        "REFERENCE",
        "inflight/lessons/engine/appendix",
        "assets/elsewhere",
        "assets/lab-gpu/README",
        "assets/results/README",
        "assets/going-live",
        "CHANGELOG",
    ],
    "Teach it": [
        "assets/instructor/README",
        *[f"inflight/lessons/{lesson.topic}/instructor" for lesson in LESSONS],
        "assets/instructor/hub/**",
    ],
    "Work on it": ["CONTRIBUTING", "SECURITY"],
}
ADDRESS = address.current(CLONE)
html_baseurl = f"https://{address.forms(ADDRESS)[1]}/"
suppress_warnings = [
    "misc.highlighting_failure",  # cells with magics, and outputs in a fence: shown as they are
    "mystnb.unknown_mime_type",  # a figure's data for plotly.js
]

nb_execution_mode = "off"
nb_merge_streams = True
# A figure is shown as its picture, and a widget as what stands in its place: no kernel runs behind these pages.
nb_mime_priority_overrides = [
    ("html", "application/vnd.jupyter.widget-view+json", None),
    ("html", "image/svg+xml", 1),
]
myst_heading_anchors = 4
myst_heading_slug_func = "glossary_links.anchor"

html_theme = "furo"
html_title = "Serving LLMs with Triton"
html_favicon = "_static/icon.svg"
html_static_path = ["_static"]
templates_path = ["_templates"]
html_css_files = ["site.css"]
html_js_files = [("site.js", {"defer": "defer"})]
html_show_sourcelink = False
html_show_copyright = False
html_copy_source = False
html_context = {"repository": ADDRESS}
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
html_theme_options = {
    "top_of_page_buttons": [],
    # Pictures come from notebooks, drawn on white. On a dark page light and dark change places; a colour stays.
    "light_css_variables": {"picture-filter": "none"},
    "dark_css_variables": {"picture-filter": "invert(0.92) hue-rotate(180deg)"},
}


def _read(app, docname: str, source: list[str]) -> None:
    """README.md, which is the first page, without its badges, and with all contents."""
    if docname != root_doc:
        return
    text = re.sub(r"^\[!\[.*\n+", "", source[0], flags=re.M)
    for caption, pages in CONTENTS.items():
        text += "\n".join(["\n\n```{toctree}", ":hidden:", ":glob:", f":caption: {caption}", "", *pages, "```"])
    source[0] = text


class PicturesInWords(SphinxPostTransform):
    """Gives a picture of a cell the words that its output has for those who do not see it."""

    default_priority = 2  # before myst-nb takes one of an output's forms

    def run(self, **_kwargs) -> None:
        for picture in list(self.document.findall(nodes.image)):
            forms = picture.parent.parent if picture.parent else None
            words = [node.astext() for node in (forms or []) if node.get("mime_type") == "text/plain"]
            if words:
                picture["alt"] = words[0]


def _complete(app, pagename: str, template: str, context: dict, doctree) -> None:
    """Tables of notebooks link to pages; a corner in which nothing stands is no heading, also to a screen reader."""
    body = re.sub(r'(href="(?!https?:)[^"]+)\.ipynb', r"\1.html", context.get("body", ""))
    context["body"] = re.sub(r"<th\b[^>]*>(?:<p></p>|\s*)</th>", "<td></td>", body)


def _finish(app, exception) -> None:
    """GitHub's pages leave out no folder for its underscore."""
    Path(app.outdir, ".nojekyll").touch()


def setup(app) -> None:
    app.connect("source-read", _read)
    app.connect("html-page-context", _complete)
    app.connect("build-finished", _finish)
    app.add_post_transform(PicturesInWords)
