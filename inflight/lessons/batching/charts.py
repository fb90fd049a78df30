"""Lesson 04: who has which slot when, and who pays."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from inflight.notebook.charts.marks import counted, in_order, line_saying, once_in_legend, saying, words
from inflight.notebook.charts.panels import axes_of, panels
from inflight.notebook.palette import EMPTY, REQUEST, SYMBOLS, WASTE, WASTE_TEXT, patterns

CLASSES = {"short": REQUEST[0], "medium": REQUEST[2], "long": REQUEST[3]}
PATTERNS = dict(zip(CLASSES, patterns(len(CLASSES)), strict=True))


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
        _draw_stays(fig, stays, slots, axes_of(number))
    end = max([stays["last"].max() for stays in runs.values() if len(stays)], default=1)
    fig.update_xaxes(range=[0, end * 1.02], showgrid=False)
    fig.update_xaxes(title="iteration", row=len(runs), col=1)
    fig.update_yaxes(title="slot", dtick=1, range=[slots + 0.6, 0.4], showgrid=False)
    once_in_legend(fig)
    fig.update_traces(width=0.88)  # by itself it grows where the long answers have every second slot only
    return fig.update_layout(barmode="overlay")


def _kinds(stays: pd.DataFrame) -> pd.Series:
    """Class of the request of each stay; one that was paused has several, and its class is that of all together."""
    if stays.empty:
        return pd.Series(dtype=object)
    if "kind" in stays:
        return stays["kind"]
    tokens = stays["last"] - stays["first"] + 1
    return length_class(tokens.groupby(stays["request"]).transform("sum"))


def _waste(stays: pd.DataFrame, slots: int) -> str:
    if stays.empty:
        return "nobody yet"
    end, busy = stays["last"].max(), (stays["last"] - stays["first"] + 1).sum()
    return f"{end:,} iterations, {100 * (1 - busy / (end * slots)):.0f} % of the slots' time wasted"


def _draw_stays(fig: go.Figure, stays: pd.DataFrame, slots: int, axes: dict) -> None:
    end, tokens = stays["last"].max() if len(stays) else 0, stays["last"] - stays["first"] + 1
    busy = tokens.groupby(stays["slot"]).sum().reindex(range(1, slots + 1), fill_value=0)
    kinds, stays = _kinds(stays), stays.assign(number=in_order(stays["request"]))
    for kind, colour in CLASSES.items():
        rows = stays[kinds == kind]
        if len(rows):
            fig.add_bar(
                orientation="h",
                base=(rows["first"] - 1).tolist(),
                x=tokens[rows.index].tolist(),
                y=rows["slot"].tolist(),
                name=f"{kind} answer",
                legendgroup=kind,
                marker={"color": colour, "pattern": PATTERNS[kind], "line": {"color": "white", "width": 1}},
                **saying(_stay_in_words(row, kind) for row in rows.itertuples()),
                **axes,
            )
    fig.add_bar(
        orientation="h",
        base=[0] * slots,
        x=[int(end)] * slots,
        y=list(range(1, slots + 1)),
        zorder=-1,  # behind the stays
        name="empty slot: waste",
        legendgroup="waste",
        marker=EMPTY,
        **saying(f"slot {slot} · empty in {end - own} of {counted(end, 'iteration')}" for slot, own in busy.items()),
        **axes,
    )


def _stay_in_words(stay: tuple, kind: str) -> str:
    number = stay.last - stay.first + 1
    return words(
        f"request {stay.number}",
        f"slot {stay.slot}",
        counted(number, "iteration") + (f": {stay.first} to {stay.last}" if number > 1 else f": {stay.first}"),
        f"{kind} answer",
    )


def slot_map_summary(runs: dict[str, pd.DataFrame], slots: int) -> str:
    """The picture of `slot_map` in a paragraph."""
    parts = [
        f"{title}: {stays['request'].nunique()} requests in {_waste(stays, slots)}" for title, stays in runs.items()
    ]
    return f"Which of {slots} slots was taken by which request in which iteration. " + "; ".join(parts) + "."


# Who pays -------------------------------------------------------------------------------------------------------------


def who_pays(runs: dict[str, pd.DataFrame]) -> go.Figure:
    """Every request twice: its latency, and the time from one of its tokens to the next, in one run against the other.

    On the line nothing changes; above it the second run is the slower one.

    Parameters
    ----------
    runs : dict of str to DataFrame
        Two runs of the same requests. One row a request: `output_len` (tokens), `latency_ms`, `itl_ms`.
    """
    (before, first), (after, second) = runs.items()
    kinds = length_class(first["output_len"])
    titles, notes = ["end-to-end latency", "time from one token to the next (ITL)"], []
    for column in ("latency_ms", "itl_ms"):
        slower = int((second[column] > first[column]).sum())
        notes.append(f"{slower} of {counted(len(first), 'request')} slower {after}")
    fig = panels(titles, 270, notes, shared=False)
    for number, (column, scale, unit) in enumerate((("latency_ms", 1000, "s"), ("itl_ms", 1, "ms")), 1):
        pairs = pd.DataFrame({"x": first[column] / scale, "y": second[column] / scale})
        most = 1.08 * float(pairs.max().max())
        _draw_pairs(fig, pairs, kinds, (before, after), unit, axes_of(number))
        _draw_equal(fig, most, unit, axes_of(number))
        fig.update_xaxes(range=[0, most], title=f"{before} ({unit})", row=number, col=1)
        fig.update_yaxes(range=[0, most], title=f"{after} ({unit})", row=number, col=1)
    once_in_legend(fig)
    return fig


def who_pays_summary(runs: dict[str, pd.DataFrame]) -> str:
    """The picture of `who_pays` in a paragraph."""
    (before, first), (after, second) = runs.items()
    parts = []
    for column, name, scale, unit in (("latency_ms", "latency", 1000, "s"), ("itl_ms", "ITL", 1, "ms")):
        was, becomes = first[column].mean() / scale, second[column].mean() / scale
        slower = int((second[column] > first[column]).sum())
        parts.append(
            f"the mean {name} goes from {was:.1f} {unit} to {becomes:.1f} {unit}, and it is longer for {slower} of "
            f"{counted(len(first), 'request')}"
        )
    return f"Each request {before} against {after}: {'; '.join(parts)}."


def _draw_pairs(
    fig: go.Figure, pairs: pd.DataFrame, kinds: pd.Series, names: tuple[str, str], unit: str, axes: dict
) -> None:
    for kind, symbol in zip(CLASSES, SYMBOLS):
        rows = pairs[kinds == kind]
        if len(rows):
            fig.add_scatter(
                x=rows["x"].tolist(),
                y=rows["y"].tolist(),
                mode="markers",
                marker={"color": CLASSES[kind], "symbol": symbol, "size": 9},
                name=f"{kind} answer",
                legendgroup=kind,
                **saying(
                    f"{kind} answer · {names[0]} {row.x:.2f} {unit} · {names[1]} {row.y:.2f} {unit}"
                    for row in rows.itertuples()
                ),
                **axes,
            )


def _draw_equal(fig: go.Figure, most: float, unit: str, axes: dict) -> None:
    """The line on which nothing changes, and what its two sides mean."""
    fig.add_scatter(
        x=[0, most],
        y=[0, most],
        mode="lines",
        line={"color": WASTE, "width": 2, "dash": "dash"},
        name="no change",
        legendgroup="equal",
        **line_saying(f"as many {unit} in both runs"),
        **axes,
    )
    place = {"xref": axes["xaxis"], "yref": axes["yaxis"], "showarrow": False, "font": {"color": WASTE_TEXT}}
    fig.add_annotation(x=0.03 * most, y=0.97 * most, text="pays", xanchor="left", yanchor="top", **place)
    fig.add_annotation(x=0.97 * most, y=0.03 * most, text="gains", xanchor="right", yanchor="bottom", **place)
