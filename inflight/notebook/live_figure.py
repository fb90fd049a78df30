"""A plotly figure that is redrawn in its place while something runs, so that hover and zoom stay through the updates.

plotly's own `FigureWidget` changes traces and layout one by one, each in a message and a redraw of its own, and a new
range of an axis undoes the reader's zoom. Here each update is the whole figure, a few kilobytes, which the page hands
to plotly.js's `Plotly.react`: it finds out what is new, and keeps what a reader did to the view (`uirevision`).
"""

import anywidget
import plotly.graph_objects as go
import plotly.io as pio
import traitlets
from plotly.offline import get_plotlyjs

from inflight.notebook.charts.display import in_course_look
from inflight.notebook.linked_marks import SCRIPT

_DRAWING = """
// A page has one plotly.js, from whichever figure comes first. It is no part of this module, which has to load within
// two seconds: after that anywidget gives a widget up.
function plotly(source) {
  const url = () => URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  return (globalThis.inflightPlotly ??= import(url()).then(() => globalThis.Plotly));
}

function render({ model, el }) {
  el.classList.add("inflight-figure");
  const chart = el.appendChild(document.createElement("div"));
  const resized = new ResizeObserver(() => chart.layout && el.offsetWidth && Plotly.Plots.resize(chart));
  let drawing = false;
  // While one figure is drawn, newer ones may arrive: only the newest is drawn next, so a slow page never falls behind.
  async function draw() {
    if (drawing) return;
    drawing = true;
    try {
      const { react } = await plotly(model.get("plotly_js"));
      for (let drawn = ""; drawn !== model.get("value"); ) {
        drawn = model.get("value");
        const { data, layout, config } = JSON.parse(drawn);
        chart.style.height = `${layout.height}px`;  // which plotly forgets when the cell gets wider
        await react(chart, data, layout, config);
      }
    } finally {
      drawing = false;
    }
  }
  resized.observe(el);
  model.on("change:value", draw);
  draw();
  return () => {
    resized.disconnect();
    if (chart.layout) Plotly.purge(chart);
  };
}

export default { render };
"""
# Light in a dark theme too, as the stored pictures are.
_CARD = ".inflight-figure { background: white; border-radius: 4px; padding: 8px; overflow: hidden; }"


class LiveFigure(anywidget.AnyWidget):
    """Shows the figure that it was given last.

    plotly.js travels with it, 5 MB once, so it needs no network; it is no part of a stored notebook.

    Attributes
    ----------
    value : str
        The figure as plotly's JSON, "" before the first.
    plotly_js : str
        The library's source.
    """

    value = traitlets.Unicode("").tag(sync=True)
    plotly_js = traitlets.Unicode().tag(sync=True)
    _esm = SCRIPT + _DRAWING
    _css = _CARD

    @traitlets.default("plotly_js")
    def _plotly_js(self) -> str:
        return get_plotlyjs()

    def draw(self, figure: go.Figure, view: int = 0) -> None:
        """Show `figure` in the course's look.

        Parameters
        ----------
        figure : Figure
        view : int
            While it stays the same, so does what a reader has zoomed into; with another, all is shown again.
        """
        spec = in_course_look(figure)
        spec["layout"]["uirevision"] = view
        self.value = pio.to_json(spec, validate=False)
