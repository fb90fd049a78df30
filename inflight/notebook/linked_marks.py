"""Pointing at a mark of a picture lets all marks of the same request stand out, in every panel.

plotly.js draws a picture, but runs nothing of ours. So a script listens on the page: to every picture in it, whoever
draws it. It changes no figure, only the look of what is drawn, and it does so with a class of CSS. A page without a
kernel has the script in its head; into JupyterLab a running kernel brings it, with a widget that nobody sees: nothing
of it is in a notebook.
"""

import functools

import anywidget

# A mark's owner is in its trace's `meta.who`, or in its own `customdata`: see `charts.marks`.
SCRIPT = """
(() => {
  if (globalThis.inflightLinkedMarks) return;
  globalThis.inflightLinkedMarks = true;
  const style = document.createElement("style");
  style.textContent = ".inflight-faint { opacity: 0.15 !important; }";
  document.head.append(style);

  const owners = (trace, number) => [trace.meta?.who ?? trace.customdata?.[number] ?? []].flat(2).map(String);

  // plotly.js binds what it has computed to what it draws, as d3 does.
  function letStandOut(chart, chosen) {
    for (const drawn of chart.querySelectorAll(".cartesianlayer .trace")) {
      const trace = chart.data[drawn.__data__?.[0]?.trace?.index];
      if (!trace) continue;
      const isWhole = trace.meta?.who !== undefined;
      for (const mark of isWhole ? [drawn] : drawn.querySelectorAll(".point, .textpoint")) {
        const whose = owners(trace, mark.__data__?.i);
        const isOther = chosen.length > 0 && whose.length > 0 && !whose.some((name) => chosen.includes(name));
        mark.classList.toggle("inflight-faint", isOther);
      }
    }
  }

  const known = new WeakSet();
  document.addEventListener("pointerover", (event) => {
    const chart = event.target.closest?.(".js-plotly-plot");
    if (!chart?.on || known.has(chart)) return;
    known.add(chart);
    chart.on("plotly_hover", ({ points }) =>
      letStandOut(chart, points.flatMap((point) => owners(point.data, point.pointNumber))));
    chart.on("plotly_unhover", () => letStandOut(chart, []));
  }, true);
})();
"""


class LinkedMarks(anywidget.AnyWidget):
    """Brings the script into the page as soon as it is made; it is not to be displayed."""

    _esm = f"{SCRIPT}\nexport default {{}};\n"


@functools.cache
def link() -> LinkedMarks:
    """Let pictures on this kernel's page be linked; the first call does it."""
    return LinkedMarks()
