"""What a mark says when it is pointed at: a line of words and units, "request 7 · 5 blocks · from iteration 120 on"."""

from collections.abc import Iterable

import pandas as pd
import plotly.graph_objects as go

from inflight.notebook.palette import INK


def saying(texts: Iterable[str]) -> dict:
    """Properties of a trace whose marks have a text each."""
    return {"hoverinfo": "text", "hovertext": list(texts)}


def area_saying(text: str) -> dict:
    """Properties of a filled area, which has one text wherever it is pointed at."""
    return {"hoveron": "fills", "hoverinfo": "text", "text": text}


def counted(number: float, noun: str, plural: str = "") -> str:
    """ "1 block", "5 blocks"."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def keep_panel(fig: go.Figure, axes: dict) -> None:
    """Let the panel on `axes` be there while nothing is drawn in it: plotly leaves out one without a trace."""
    fig.add_scatter(x=[None], y=[None], mode="lines", line={"color": INK}, hoverinfo="text", **axes)


def once_in_legend(fig: go.Figure) -> None:
    """Each class of marks, a `legendgroup`, has one entry in the legend, which switches it on and off in all panels."""
    fig.update_layout(showlegend=True)
    seen = set()
    for trace in fig.data:
        trace.showlegend = trace.legendgroup is not None and trace.legendgroup not in seen
        seen.add(trace.legendgroup)


def in_order(ids: pd.Series) -> pd.Series:
    """The numbers, from 1 on, of a run's requests by an engine's ids: ids go on from run to run, numbers do not."""
    return ids.rank(method="dense").astype(int)
