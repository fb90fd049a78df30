"""Texts that a mark shows under the pointer, such as "request 7 · 5 blocks · from iteration 120 on"."""

from collections.abc import Iterable

import pandas as pd
import plotly.graph_objects as go

from inflight.notebook.charts.palette import INK


def saying(texts: Iterable[str]) -> dict:
    """Return the properties of a trace whose marks have a text each."""
    return {"hoverinfo": "text", "hovertext": list(texts)}


def area_saying(text: str) -> dict:
    """Return the properties of a filled area, which has one text wherever it is pointed at."""
    return {"hoveron": "fills", "hoverinfo": "text", "text": text}


def counted(number: float, noun: str, plural: str = "") -> str:
    """Return a number with its noun: "1 block", "5 blocks"."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def keep_panel(fig: go.Figure, axes: dict) -> None:
    """Keep the panel on `axes` while nothing is drawn in it: plotly leaves out a panel without a trace."""
    fig.add_scatter(x=[None], y=[None], mode="lines", line={"color": INK}, hoverinfo="text", **axes)


def once_in_legend(fig: go.Figure) -> None:
    """Give each class of marks, a `legendgroup`, one entry in the legend that switches it on and off in all panels."""
    fig.update_layout(showlegend=True)
    seen = set()
    for trace in fig.data:
        trace.showlegend = trace.legendgroup is not None and trace.legendgroup not in seen
        seen.add(trace.legendgroup)


def in_order(ids: pd.Series) -> pd.Series:
    """Number a run's requests from 1 on, by an engine's ids: ids go on from run to run, numbers do not."""
    return ids.rank(method="dense").astype(int)
