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

_DRAWING = """
// A page has one plotly.js, from whichever figure gets it first. It comes by a message of its own, for it is large:
// this module has to load within two seconds, and all states of a notebook's widgets together within four.
function plotly(model) {
  return globalThis.inflightPlotly ?? new Promise((resolve) => {
    function receive(content, [source]) {
      if (content !== "plotly.js") return;
      model.off("msg:custom", receive);
      const url = () => URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
      resolve(globalThis.inflightPlotly ??= import(url()).then(() => globalThis.Plotly));
    }
    model.on("msg:custom", receive);
    model.send("plotly.js");
  });
}

function render({ model, el }) {
  const chart = el.appendChild(document.createElement("div"));
  const resized = new ResizeObserver(() => chart.layout && el.offsetWidth && Plotly.Plots.resize(chart));
  let drawing = false;
  // While one figure is drawn, newer ones may arrive: only the newest is drawn next, so a slow page never falls behind.
  async function draw() {
    if (drawing) return;
    drawing = true;
    try {
      const { react } = await plotly(model);
      for (let drawn = ""; drawn !== model.get("value"); ) {
        drawn = model.get("value");
        el.classList.add("inflight-figure");  // nothing white before there is anything on it
        const { data, layout, config } = JSON.parse(drawn);
        chart.style.height = `${layout.height}px`;  // which plotly forgets when the cell gets wider
        await react(chart, data, layout, { ...config, responsive: true });
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
# In a dark theme as the pictures of `charts.show` are by assets/jupyterlab/custom.css: light and dark change places.
_DARK = '[data-jp-theme-light="false"] .inflight-figure { filter: invert(0.93) hue-rotate(180deg); }'


class LiveFigure(anywidget.AnyWidget):
    """Shows the figure that it was given last.

    The page asks for plotly.js once and gets it from the kernel, so it needs no network.

    Attributes
    ----------
    value : str
        The figure as plotly's JSON, "" before the first.
    """

    value = traitlets.Unicode("").tag(sync=True)
    _esm = _DRAWING
    _css = _DARK

    def __init__(self, **traits):
        super().__init__(**traits)
        self.on_msg(self._answer)

    def _answer(self, _, content: object, buffers: list) -> None:
        if content == "plotly.js":
            self.send(content, buffers=[get_plotlyjs().encode()])

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
