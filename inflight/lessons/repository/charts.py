"""Lesson 02: when a fault in a repository is found."""

from collections.abc import Sequence

import plotly.graph_objects as go

from inflight.notebook.charts.palette import DECODE, INK, PREFILL, REQUEST, WASTE

_NETS = {  # what each is called, and the colour of what it stops
    "files": ("the files<br>are read", DECODE),
    "load": ("the model<br>is loaded", PREFILL),
    "answer": ("an answer<br>is read", REQUEST[3]),
}


def nets(faults: Sequence[str], found: Sequence[str]) -> go.Figure:
    """How far each fault gets, from the edit on: to the reading of the files, to the load, or to an answer.

    Parameters
    ----------
    faults : sequence of str
    found : sequence of str
        When each is found: "files", "load" or "answer".
    """
    fig, ends = go.Figure(), list(_NETS)
    for row, (fault, net) in enumerate(zip(faults, found, strict=True)):
        end, colour = ends.index(net) + 1, _NETS[net][1]
        marker = {"symbol": ["circle", "x"], "size": [1, 15], "color": colour, "opacity": 1}
        line = {"mode": "lines+markers", "line": {"color": colour, "width": 6}, "marker": marker}
        fig.add_scatter(x=[0, end], y=[row, row], name=fault, hoverinfo="skip", cliponaxis=False, **line)
        place = {"xanchor": "left", "yanchor": "bottom", "yshift": 6, "borderpad": 0}
        fig.add_annotation(x=0, y=row, text=fault, showarrow=False, bgcolor="white", font_color=INK, **place)
    for end in range(1, len(ends) + 1):
        fig.add_vline(end, line={"color": WASTE, "width": 2, "dash": "dot"}, layer="below")
    names = ["an edit<br>is saved", *(name for name, _ in _NETS.values())]
    ticks = {"tickvals": list(range(len(names))), "ticktext": names, "side": "top", "tickangle": 0}
    fig.update_xaxes(ticks, range=[-0.35, 3.4], showgrid=False, showline=False)
    fig.update_yaxes(visible=False, range=[len(faults) - 0.5, -0.8])
    layout = {"height": 100 + 48 * len(faults), "showlegend": False, "margin": {"l": 4, "r": 4, "b": 4}}
    return fig.update_layout(title="How far a fault gets", meta={"device": ""}, **layout)  # nothing is measured


def nets_summary(faults: Sequence[str], found: Sequence[str]) -> str:
    """The picture in words."""
    stopped = {net: [fault for fault, at in zip(faults, found) if at == net] for net in _NETS}
    said = {net: name.replace("<br>", " ") for net, (name, _) in _NETS.items()}
    return "Found " + "; ".join(f"when {said[net]}: {', '.join(some)}" for net, some in stopped.items() if some) + "."
