"""Static pictures of plotly's figures, for where a notebook is read without plotly.js, such as on the web.

plotly's own exporter (kaleido) draws them in a Chromium: SVG, for it is sharp at any size, and a third of the bytes of
a PNG that is not.
"""

import asyncio
import html
import re
from collections.abc import Iterable

import kaleido
from choreographer.errors import ChromeNotFoundError
from nbformat import NotebookNode

from inflight.errors import CourseError
from inflight.notebook.charts.display import PLOTLY_MIME

PICTURE_MIME = "image/svg+xml"
WIDTH = 880  # pixels, about what a page of GitHub gives an output


def without_picture(notebook: NotebookNode) -> list[NotebookNode]:
    """The MIME bundles of `notebook` with a figure of plotly and no static picture."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    bundles = [output.data for output in outputs if "data" in output]
    return [data for data in bundles if PLOTLY_MIME in data and PICTURE_MIME not in data]


def draw(bundles: Iterable[NotebookNode]) -> None:
    """Add its static picture to each MIME bundle, all of them in one browser.

    Raises
    ------
    CourseError
        There is no Chromium.
    """
    asyncio.run(_draw(bundles))


async def _draw(bundles: Iterable[NotebookNode]) -> None:
    try:
        browser = kaleido.Kaleido(mathjax=False)  # MathJax would come from a network
    except ChromeNotFoundError:
        raise CourseError(
            "plotly's figures cannot be drawn: there is no Chromium here. Install it, or let BROWSER_PATH name it, "
            "then run `python -m tools.lessons build --sources`, which keeps what has been executed."
        ) from None
    async with browser:
        for data in bundles:
            figure = {"data": data[PLOTLY_MIME]["data"], "layout": data[PLOTLY_MIME]["layout"]}
            size = {"format": "svg", "width": WIDTH, "height": figure["layout"]["height"]}
            picture = (await browser.calc_fig(figure, opts=size)).decode()
            title = f' role="img"><title>{html.escape(data["text/plain"])}</title>'
            data[PICTURE_MIME] = _compact(picture).replace(">", title, 1)


def _compact(svg: str) -> str:
    """The same picture in two thirds of the bytes: plotly.js's classes, its empty groups and its many decimals go."""
    svg = re.sub(r'="[^"]*"', lambda value: re.sub(r"(\d\.\d\d)\d+", r"\1", value[0]), svg)
    svg = re.sub(r' (?:class|data-[a-z-]+)="[^"]*"', "", svg)
    svg = re.sub(r"(?:vector-effect: none|pointer-events: \w+|cursor: [\w-]+|user-select: none); ?", "", svg)
    svg = re.sub(r"(?:font-(?:style|variant|weight)|line-height): normal; ?", "", svg).replace(' style=""', "")
    attributes = r'(?: (?:style|transform|clip-path)="[^"]*")*'
    before = ""
    while before != svg:  # a group may be empty once those in it are gone
        before = svg
        svg = re.sub(rf"<(?:g|path|rect){attributes}/>|<g{attributes}></g>", "", svg)
    return svg
