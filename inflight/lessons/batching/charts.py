"""Lesson 04: who has which slot when, and who pays."""

import numpy as np
import pandas as pd
import plotly.express as px
import plotly.graph_objects as go

from inflight.notebook.charts.marks import counted, in_order, once_in_legend
from inflight.notebook.charts.palette import EMPTY, PATTERN, REQUEST, SYMBOLS, WASTE, WASTE_TEXT
from inflight.notebook.charts.panels import panels

WASTED = "empty slot: waste"
COLOURS = {
    "short answer": REQUEST[0],
    "medium answer": REQUEST[2],
    "long answer": REQUEST[3],
    WASTED: EMPTY["color"],
}
PATTERNS = dict(zip(COLOURS, ("", "/", "x", "")))
SYMBOL_OF = dict(zip(COLOURS, SYMBOLS))
EQUAL = {"type": "line", "name": "no change", "line": {"color": WASTE, "width": 2, "dash": "dash"}}


def length_class(tokens: pd.Series) -> pd.Series:
    """ "short", "medium" or "long": up to an eighth, up to a half, or more of the longest answer."""
    share = tokens / tokens.max()
    return pd.Series(np.select([share <= 1 / 8, share <= 1 / 2], ["short", "medium"], "long"), index=tokens.index)


# Slots × iterations ---------------------------------------------------------------------------------------------------


def slot_map(runs: dict[str, pd.DataFrame], slots: int) -> go.Figure:
    """Slots × iterations, one panel a run on one scale: a bar for each stay, grey where a slot was empty.

    Parameters
    ----------
    runs : dict of str to DataFrame
        By the panel's title. One row a stay: `request`, `slot`, `first` and `last` iteration; a run begins with 1. The
        `kind` of its answer is that of `length_class`, unless a column says it.
    slots : int
        The engine's `max_batch_size`.
    """
    fig = panels(list(runs), 150, [_waste(stays, slots) for stays in runs.values()])
    for number, stays in enumerate(runs.values(), 1):
        bars = px.bar(
            _drawn(stays, slots), x="iterations", base="begin", y="slot", orientation="h", color="what",
            color_discrete_map=COLOURS, pattern_shape="what", pattern_shape_map=PATTERNS,
            category_orders={"what": list(COLOURS)}, custom_data="told",
        )  # fmt: skip
        fig.add_traces(bars.data, rows=number, cols=1)
    fig.update_traces(marker={"pattern": PATTERN, "line": {"color": "white", "width": 1}})
    fig.update_traces(marker=EMPTY, zorder=-1, selector={"name": WASTED})  # behind the stays
    fig.update_traces(width=0.88, hovertemplate="%{customdata[0]}<extra></extra>")
    end = max([stays["last"].max() for stays in runs.values() if len(stays)], default=1)
    fig.update_xaxes(range=[0, end * 1.02], showgrid=False)
    fig.update_xaxes(title="iteration", row=len(runs), col=1)
    fig.update_yaxes(title="slot", dtick=1, range=[slots + 0.6, 0.4], showgrid=False)
    once_in_legend(fig)
    return fig.update_layout(barmode="overlay")


def _drawn(stays: pd.DataFrame, slots: int) -> pd.DataFrame:
    """Return what is drawn of a run: each stay, and behind them the iterations in which each slot could be used."""
    end = stays["last"].max() if len(stays) else 0
    stays = stays.assign(begin=stays["first"] - 1, iterations=stays["last"] - stays["first"] + 1)
    busy = stays.groupby("slot")["iterations"].sum().reindex(range(1, slots + 1), fill_value=0)
    waste = pd.DataFrame({"slot": busy.index, "begin": 0, "iterations": end, "what": WASTED})
    waste["told"] = [f"slot {slot} · empty in {end - own} of {counted(end, 'iteration')}" for slot, own in busy.items()]
    if "kind" not in stays:  # of one that was paused, that of all its stays together
        stays["kind"] = length_class(stays.groupby("request")["iterations"].transform("sum"))
    stays = stays.assign(number=in_order(stays["request"]), what=stays["kind"] + " answer")
    stays["told"] = [
        f"request {stay.number} · slot {stay.slot} · {stay.what} · {counted(stay.iterations, 'iteration')}: "
        f"{stay.first} to {stay.last}"
        for stay in stays.itertuples()
    ]
    return pd.concat([stays, waste])


def _waste(stays: pd.DataFrame, slots: int) -> str:
    if stays.empty:
        return "nobody yet"
    end, busy = stays["last"].max(), (stays["last"] - stays["first"] + 1).sum()
    return f"{end:,} iterations, {100 * (1 - busy / (end * slots)):.0f} % of the slots' time wasted"


def slot_map_summary(runs: dict[str, pd.DataFrame], slots: int) -> str:
    """The picture of `slot_map` in a paragraph."""
    parts = [
        f"{title}: {stays['request'].nunique()} requests in {_waste(stays, slots)}" for title, stays in runs.items()
    ]
    return f"Which of {slots} slots was taken by which request in which iteration. " + "; ".join(parts) + "."


# Who pays -------------------------------------------------------------------------------------------------------------


def who_pays(runs: dict[str, pd.DataFrame]) -> go.Figure:
    """Every request as a mark: when its answer was complete in one run against the other.

    On the line nothing changes; above it the second run is the slower one.

    Parameters
    ----------
    runs : dict of str to DataFrame
        Two runs of the same requests. One row a request: `output_len` (tokens), `latency_ms`.
    """
    (before, first), (after, second) = runs.items()
    names = f"complete after, {before} (s)", f"complete after, {after} (s)"
    pairs = pd.DataFrame(
        {
            "what": length_class(first["output_len"]) + " answer",
            names[0]: first["latency_ms"] / 1000,
            names[1]: second["latency_ms"] / 1000,
        }
    )
    fig = px.scatter(
        pairs, *names, color="what", color_discrete_map=COLOURS, symbol="what", symbol_map=SYMBOL_OF,
        category_orders={"what": list(COLOURS)}, hover_data=dict.fromkeys(names, ":.2f"), labels={"what": ""},
    )  # fmt: skip
    most = 1.08 * pairs[[*names]].max(axis=None)
    fig.update_traces(marker_size=9)
    fig.add_shape(EQUAL, x0=0, y0=0, x1=most, y1=most, showlegend=True)
    for text, x, y in ((f"later {after}", 0.12, 0.94), (f"earlier {after}", 0.88, 0.06)):
        fig.add_annotation(x=x * most, y=y * most, text=text, font_color=WASTE_TEXT, showarrow=False)
    fig.update_xaxes(range=[0, most], constrain="domain")
    fig.update_yaxes(range=[0, most], constrain="domain", scaleanchor="x")
    return fig


def who_pays_summary(runs: dict[str, pd.DataFrame]) -> str:
    """The picture of `who_pays` in a sentence."""
    (_, first), (after, second) = runs.items()
    was, becomes = (run["latency_ms"].mean() / 1000 for run in (first, second))
    later = int((second["latency_ms"] > first["latency_ms"]).sum())
    return (
        f"An answer is complete after {becomes:.1f} s on average in place of {was:.1f} s; "
        f"{later} of {counted(len(first), 'request')} are complete later {after}."
    )
