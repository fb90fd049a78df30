"""Sphinx's settings for the course's pages on the web. What they are made from prepares tools/website_pages.py."""

import json
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

project = "Serving LLMs with Triton, hands on"
author = "The authors of the course"
language = "en"
extensions = ["myst_nb", "glossary_links"]
exclude_patterns = ["pages.json"]
suppress_warnings = [
    "misc.highlighting_failure",  # cells with magics, and outputs in a fence: shown as they are
    "mystnb.unknown_mime_type",
]

# Notebooks are shown with the outputs that are stored in them. Nothing is executed here.
nb_execution_mode = "off"
nb_merge_streams = True
myst_heading_anchors = 4
myst_links_external_new_tab = False
myst_heading_slug_func = "glossary_links.anchor"

html_theme = "pydata_sphinx_theme"
html_title = project
html_static_path = ["_static"]
templates_path = ["_templates"]
html_css_files = ["site.css"]
html_js_files = [("pictures.js", {"defer": "defer"}), ("site.js", {"defer": "defer"})]
html_sidebars = {"**": ["course-contents"]}
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "logo": {"text": "Serving LLMs with Triton"},
    "navbar_center": [],
    "navbar_persistent": ["search-button-field"],
    "navbar_end": ["theme-switcher"],
    "article_header_end": ["page-actions"],
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["course-footer"],
    "footer_end": [],
    "show_toc_level": 1,
    "back_to_top_button": False,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}


def _complete(app, pagename: str, _template: str, context: dict, _doctree) -> None:
    """Give the templates what `pages.json` says of a page: its source, and where it can be run.

    And a corner of a table in which nothing stands is no heading, also to a screen reader.
    """
    context["page_facts"] = app.config.course_pages.get(pagename, {})
    context["body"] = re.sub(r"<th\b[^>]*>(?:<p></p>|\s*)</th>", "<td></td>", context.get("body", ""))


def _read_pages(app, config) -> None:
    config.course_pages = json.loads((Path(app.srcdir) / "pages.json").read_text(encoding="utf-8"))


def setup(app) -> None:
    app.add_config_value("course_pages", {}, "html")
    app.connect("config-inited", _read_pages)
    app.connect("html-page-context", _complete)
