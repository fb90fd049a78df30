"""What the course's pages on the web are made from: its notebooks as they are stored, and its own Markdown files.

Sphinx takes it from there (`assets/site/conf.py`). Each file keeps its place in the clone, so that links between them
hold. What is changed in the copies: figures get their picture and the data to draw it live; links to what is no page
lead to the repository; a lecture's lab and solution are listed below it.
"""

import html
import json
import os
import re
import shutil
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from inflight.errors import CourseError
from inflight.notebook import syllabus
from inflight.notebook.charts.display import PLOTLY_MIME
from inflight.notebook.execution import WIDGET_MIME
from tools.pictures import PICTURE_MIME
from tools.titles import SUFFIX, file_name

HOME = "README.md"
GLOSSARY = "lessons/glossary.md"
IMAGES, PICTURES = "assets/images", "_pictures"  # of README.md; of notebooks
# Besides the lessons: a heading, and the Markdown files under it.
PARTS = {
    "Look it up": (GLOSSARY, "REFERENCE.md", "assets/lab-gpu/README.md", "CHANGELOG.md"),
    "Teach it": ("assets/instructor/README.md", "assets/instructor/*.md", "assets/instructor/hub/*.md"),
    "Work on it": ("CONTRIBUTING.md", "SECURITY.md"),
}
BELOW = {"labs": "Lab", "solutions": "Solution"}  # what stands under a lecture, and how it is called there
BRANCH = "main"
ADDRESS_HERE = "URL-OF-THIS-REPOSITORY"  # in README.md, which cannot know where it is read
_CODE = re.compile(r"(^(?:```|~~~).*?^(?:```|~~~)|`[^`\n]*`)", re.M | re.S)
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Page:
    """A page: the file it is made from, and the file in which its text is changed; both relative to the clone."""

    path: str
    source: str

    @property
    def name(self) -> str:
        """What Sphinx calls it."""
        return "index" if self.path == HOME else os.path.splitext(self.path)[0]


def repository(root: Path) -> str:
    """The address of the course's repository on the web, "" where it has none.

    GitHub Actions knows whose it is, so that a fork's pages lead to the fork; elsewhere `Repository` among the
    `[project.urls]` of pyproject.toml says so.
    """
    if "GITHUB_REPOSITORY" in os.environ:
        return f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{os.environ['GITHUB_REPOSITORY']}"
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project.get("urls", {}).get("Repository", "").rstrip("/")


def pages(root: Path) -> dict[str, list[Page]]:
    """All pages but the first, by the heading of their part: what the syllabus calls it, or one of `PARTS`."""
    found: dict[str, list[Page]] = {}
    for lesson in syllabus.read(root):
        if lesson.planned:
            continue
        for kind in SUFFIX:
            path = f"{kind}/{file_name(kind, lesson.name)}"
            if (root / path).exists():
                script = "lecture" if kind == "notebooks" else "lab"
                found.setdefault(lesson.part, []).append(Page(path, f"lessons/{lesson.name}/{script}.py"))
    for part, patterns in PARTS.items():
        paths = [path.relative_to(root).as_posix() for pattern in patterns for path in sorted(root.glob(pattern))]
        found[part] = [Page(path, path) for path in dict.fromkeys(paths)]
    return {part: listed for part, listed in found.items() if listed}


def prepare(root: Path, target: Path, address: str) -> None:
    """Write into the empty folder `target` what Sphinx makes the pages from; `address` as `repository` gives it.

    Raises
    ------
    CourseError
        A link of a page leads nowhere, or a figure has no stored picture.
    """
    parts = pages(root)
    all_pages = [Page(HOME, HOME), *(page for listed in parts.values() for page in listed)]
    links = Links(root, {page.path: page for page in all_pages}, address)
    for page in all_pages:
        place = target / page.path
        place.parent.mkdir(parents=True, exist_ok=True)
        if page.path.endswith(".ipynb"):
            notebook = nbformat.read(root / page.path, as_version=4)
            place.write_text(nbformat.writes(_for_web(notebook, page, links, target)), encoding="utf-8")
        else:
            text = links.moved(_without_badges((root / page.path).read_text(encoding="utf-8")), page)
            text = text.replace(ADDRESS_HERE, address or ADDRESS_HERE)
            place.write_text(text, encoding="utf-8")
    if (root / IMAGES).exists():
        shutil.copytree(root / IMAGES, target / IMAGES)
    (target / HOME).rename(target / "index.md")
    with (target / "index.md").open("a", encoding="utf-8") as home:
        home.write("".join(_contents(part, listed) for part, listed in parts.items()))
    facts = {page.name: _facts(page, address) for page in all_pages}
    (target / "pages.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")


class Links:
    """Where the links of the pages lead: to other pages, to the repository, to pictures."""

    def __init__(self, root: Path, by_path: dict[str, Page], address: str):
        self.root, self.by_path, self.address = root, by_path, address
        glossary = root / GLOSSARY
        text = glossary.read_text(encoding="utf-8") if glossary.exists() else ""
        self.terms = {anchor(head) for head in re.findall(r"^### (.+)$", text, re.M)}

    def moved(self, text: str, page: Page) -> str:
        """`text` in Markdown of `page` with every link as it must be on the web; code stays as it is."""
        return "".join(
            part if index % 2 else _LINK.sub(lambda match: self._link(match, page), part)
            for index, part in enumerate(_CODE.split(text))
        )

    def _link(self, match: re.Match, page: Page) -> str:
        is_image, words, target = match.groups()
        words = _LINK.sub(lambda inner: self._link(inner, page), words)
        path, _, place = target.partition("#")
        if re.match(r"[a-z]+:", path) or is_image:
            return f"{is_image}[{words}]({target})"
        if path.startswith("../../") and page.path == HOME:  # of the repository's page: its releases
            return self._outside(words, path.removeprefix("../../"))
        place = anchor(place) if place else ""
        found = self._file(page, path) if path else page.path
        if found == "notebooks/00_start_here.ipynb" and page.path != found and place in self.terms | {"glossary"}:
            found, place = GLOSSARY, place if place in self.terms else ""
        if found in self.by_path:
            there = "index.md" if found == HOME else found
            here = os.path.relpath(there, Path(page.path).parent)
            return f"[{words}]({'' if found == page.path and place else here}{'#' + place if place else ''})"
        return self._outside(words, f"{'tree' if (self.root / found).is_dir() else 'blob'}/{BRANCH}/{found}")

    def _outside(self, words: str, path: str) -> str:
        return f"[{words}]({self.address}/{path})" if self.address else words

    def _file(self, page: Page, path: str) -> str:
        """The file of the clone, or folder, to which `path` leads from `page`."""
        found = os.path.normpath(Path(page.path).parent / path)
        if not (self.root / found).exists():
            raise CourseError(f"{page.path}: the link to {path} leads nowhere; mend it in {page.source}.")
        return f"{found}/README.md" if f"{found}/README.md" in self.by_path else found


def anchor(heading: str) -> str:
    """What a link to `heading` ends with, however it was written: `#What-the-file-holds` of Jupyter is one."""
    return re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-")


def _facts(page: Page, address: str) -> dict[str, str]:
    """What the page offers: its source, the command that opens it, and on GitHub Binder and the editor."""
    facts = {"source": page.source}
    lesson = re.match(r"(notebooks|labs)/(\d\d)_", page.path)
    if lesson:
        facts |= {"run": page.path, "lesson": lesson[2]}
    if address:
        facts["edit"] = f"{address}/edit/{BRANCH}/{page.source}"
    if lesson and address.startswith("https://github.com/"):
        name = address.removeprefix("https://github.com/")
        facts["binder"] = f"https://mybinder.org/v2/gh/{name}/{BRANCH}?urlpath=lab/tree/work/{page.path}"
    return facts


def _contents(part: str, listed: list[Page]) -> str:
    """The directive that lists `listed` under the heading `part`; labs and solutions stand below their lectures."""
    top = [page for page in listed if page.path.split("/")[0] not in BELOW]
    entries = "\n".join(f"/{page.name}" for page in top)
    return f"\n```{{toctree}}\n:hidden:\n:caption: {part}\n\n{entries}\n```\n"


def _without_badges(text: str) -> str:
    """A badge is for the repository's page; here it would be a picture from elsewhere."""
    return re.sub(r"^\[!\[.*\n+", "", text, flags=re.M)


def _for_web(notebook: NotebookNode, page: Page, links: Links, target: Path) -> NotebookNode:
    number = 0
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = links.moved(cell.source, page)
            continue
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            data.pop(WIDGET_MIME, None)
            if PLOTLY_MIME in data:
                number += 1
                output.data = _figure(data, f"{Path(page.path).stem}_{number}", page, target)
            elif "text/html" in data:
                data["text/html"] = re.sub(r'(href="[^":]+)\.ipynb', r"\1.html", data["text/html"])
    if page.path.startswith("solutions/"):  # or a search shows two of one name
        notebook.cells[0].source = notebook.cells[0].source.replace("# Lab ", "# Solution ", 1)
    below = [other for other in links.by_path.values() if _belongs_to(other, page)]
    if below:
        entries = "\n".join(f"{BELOW[other.path.split('/')[0]]} </{other.name}>" for other in below)
        toctree = f"```{{toctree}}\n:hidden:\n\n{entries}\n```"
        notebook.cells.append(nbformat.v4.new_markdown_cell(toctree, id="contents"))
    return notebook


def _belongs_to(other: Page, page: Page) -> bool:
    lesson = Path(page.path).stem
    return page.path.startswith("notebooks/") and other.path in {f"{kind}/{file_name(kind, lesson)}" for kind in BELOW}


def _figure(data: dict, name: str, page: Page, target: Path) -> NotebookNode:
    """A stored figure as HTML: its picture at once, and its data for `site.js`, which draws it live."""
    if PICTURE_MIME not in data:
        raise CourseError(f"{page.path}: a figure has no picture; run `python -m tools.lessons build --sources`.")
    pictures = target / PICTURES
    pictures.mkdir(exist_ok=True)
    (pictures / f"{name}.svg").write_text(data[PICTURE_MIME], encoding="utf-8")
    words, spec = html.escape(data["text/plain"]), data[PLOTLY_MIME]
    layout = spec["layout"]
    # "</" would end the script element early, wherever it stands inside a string of the JSON.
    live = json.dumps({key: spec.get(key, {}) for key in ("data", "layout", "config")}).replace("</", "<\\/")
    return nbformat.from_dict(
        {
            "text/html": f'<figure class="inflight-figure" aria-label="{words}">'
            f'<img src="../_static/pictures/{name}.svg" alt="{words}" width="880" height="{layout["height"]}" '
            f'loading="lazy"><div id="chart-{name}" class="chart" hidden></div>'
            f'<script type="application/json">{live}</script></figure>'
        }
    )


def outside(page: str) -> Iterator[str]:
    """What a page of HTML would fetch from another host as it opens."""
    for tag in re.findall(r"<(?:script|link|img|iframe)\b[^>]*>", page):
        if re.search(r"\b(?:src|href)\s*=\s*[\"']?(?:https?:)?//", tag) and 'rel="canonical"' not in tag:
            yield tag
