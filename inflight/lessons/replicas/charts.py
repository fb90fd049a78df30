"""Lesson 12: which server had which request when, and what the pages said while one died."""

import pandas as pd
import plotly.graph_objects as go

from inflight.notebook.charts.marks import once_in_legend, saying
from inflight.notebook.charts.palette import DECODE, INK, REQUEST, WASTE, WASTE_TEXT
from inflight.notebook.charts.panels import axes_of, panels

FOUND = {"shape": "/", "fillmode": "overlay", "fgcolor": "white", "fgopacity": 1, "size": 7, "solidity": 0.5}
FIRST = {"symbol": "line-ns-open", "size": 16, "color": INK, "line": {"width": 2}}


def lanes(runs: dict[str, pd.DataFrame], prompt_tokens: float) -> go.Figure:
    """Servers × seconds, one panel a run on one scale: a bar for each request in the colour of its system prompt.

    The hatched part of a bar is the share of its prompt that was found in the KV cache; a mark is its first token.

    Parameters
    ----------
    runs : dict of str to DataFrame
        By the panel's title: rows of `load.traced`, of at most five system prompts.
    prompt_tokens : float
        Tokens of each prompt.
    """
    fig = panels(list(runs), 190, [_in_short(rows) for rows in runs.values()])
    for number, rows in enumerate(runs.values(), 1):
        rows = _in_lanes(rows.assign(found=(1 - rows["computed"] / prompt_tokens).clip(0, 1)))
        for prefix, own in rows.groupby("prefix"):
            _draw(fig, prefix, own, axes_of(number))
        x, y = (rows["start"] + rows["first_s"] - rows["sent_s"]).tolist(), rows["lane"].tolist()
        look = {"mode": "markers", "marker": FIRST, "hoverinfo": "skip"}
        fig.add_scatter(x=x, y=y, name="first token", legendgroup="first", **look, **axes_of(number))
        order = sorted(rows["lane"].unique(), reverse=True)
        fig.update_yaxes(categoryorder="array", categoryarray=order, title="streams", row=number, col=1)
    fig.update_xaxes(showgrid=False, rangemode="tozero")
    fig.update_xaxes(title="seconds since the first request", row=len(runs), col=1)
    once_in_legend(fig)
    return fig.update_layout(barmode="overlay", bargap=0.1)


def lanes_summary(runs: dict[str, pd.DataFrame]) -> str:
    """The picture of `lanes` in a paragraph."""
    parts = [f"{title}: {_in_short(rows)}" for title, rows in runs.items()]
    return f"Which of two servers answered which request, and when. {'; '.join(parts)}."


def _in_short(rows: pd.DataFrame) -> str:
    by_server = " + ".join(f"{count}" for count in rows["server"].value_counts().sort_index())
    places = rows.groupby("prefix")["server"].nunique().sum()
    return (
        f"{by_server} requests, {rows['computed'].sum():,.0f} prompt tokens computed, {places} system prompts in caches"
    )


def _in_lanes(rows: pd.DataFrame) -> pd.DataFrame:
    """With `lane`: a server, and a place on it that no other request has at the same time; `start`: seconds."""
    rows = rows.sort_values("sent_s").assign(start=rows["sent_s"] - rows["sent_s"].min())
    free, lanes = dict[str, float](), []  # when a lane is free
    for row in rows.itertuples():
        names = (f"server {row.server:.0f}.{place}" for place in range(1, len(rows) + 1))
        lanes.append(next(name for name in names if free.get(name, 0.0) <= row.sent_s))
        free[lanes[-1]] = row.last_s
    return rows.assign(lane=lanes, length=rows["last_s"] - rows["sent_s"])


def _draw(fig: go.Figure, prefix: int, own: pd.DataFrame, axes: dict) -> None:
    name = f"system prompt {prefix + 1}"
    texts = [f"{name} · {row.found:.0%} found, {row.computed:.0f} tokens computed" for row in own.itertuples()]
    for begin, share, pattern in ((0.0, own["found"], FOUND), (own["found"], 1 - own["found"], {})):
        fig.add_bar(
            orientation="h",
            base=(own["start"] + begin * own["length"]).tolist(),
            x=(share * own["length"]).tolist(),
            y=own["lane"].tolist(),
            name=name,
            legendgroup=name,
            marker={"color": REQUEST[prefix], "pattern": pattern, "line": {"color": "white", "width": 1}},
            **saying(texts),
            **axes,
        )


def watched(lines: dict[str, pd.Series], marks: dict[str, float], limit: float) -> go.Figure:
    """Figures over seconds, a panel each, with moments marked; the first one has the limit of the alert.

    Parameters
    ----------
    lines : dict of str to Series
        By the panel's title: values at each look, as `watching` gives them.
    marks : dict of str to float
        By what happened, when: seconds since 1970.
    limit : float
    """
    fig, zero = panels(list(lines), 110), min(line.index[0] for line in lines.values())
    for number, (title, line) in enumerate(lines.items(), 1):
        place = {"row": number, "col": 1}
        look = {"color": DECODE, "width": 2, "shape": "hv"}
        fig.add_scatter(x=line.index - zero, y=line, mode="lines", line=look, name=title, **place)
        fig.update_yaxes(range=[0, 1.2 * max(line.max(), limit if number == 1 else 1)], **place)
    for number, (name, at) in enumerate(marks.items()):
        fig.add_vline(at - zero, line={"color": INK, "width": 1, "dash": "dot"})
        where = {"x": at - zero, "y": 0.3 - 0.2 * number, "yref": "y domain", "xanchor": "left", "yanchor": "bottom"}
        fig.add_annotation(where, text=name, showarrow=False, row=len(lines), col=1)  # where there is room
    look = {"line": {"color": WASTE, "dash": "dash"}, "annotation_font": {"color": WASTE_TEXT}}
    fig.add_hline(limit, row=1, annotation_text=f"the alert: {limit}", annotation_position="top left", **look)
    fig.update_xaxes(title="seconds", row=len(lines), col=1)
    return fig.update_layout(showlegend=False)


def watched_summary(lines: dict[str, pd.Series], marks: dict[str, float]) -> str:
    """The picture of `watched` in a paragraph."""
    zero = min(line.index[0] for line in lines.values())
    moments = ", ".join(f"{name} at {at - zero:.1f} s" for name, at in marks.items())
    parts = [f"{title}: {line.min():.0f} to {line.max():.0f}" for title, line in lines.items()]
    return f"What the pages said over time, with {moments}. {'; '.join(parts)}."
