"""Lesson 04: who sits when, what an iteration costs, and who pays."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from inflight.notebook.charts.marks import counted, in_order, once_in_legend, saying, words
from inflight.notebook.charts.panels import stack
from inflight.notebook.palette import DECODE, EMPTY, INK, REQUEST, WASTE, WASTE_TEXT, patterns

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
        By the panel's title. One row a stay: `request`, `slot`, `first` and `last` iteration; a run begins with 1.
    slots : int
        The engine's `max_batch_size`.
    """
    fig = go.Figure()
    end = max([stays["last"].max() for stays in runs.values() if len(stays)], default=1)
    domains = stack(fig, list(runs), [150] * len(runs), [_waste(stays, slots) for stays in runs.values()])
    for number, (stays, domain) in enumerate(zip(runs.values(), domains, strict=True)):
        suffix = "" if number == 0 else str(number + 1)
        axes = {"xaxis": f"x{suffix}", "yaxis": f"y{suffix}"}
        _draw_stays(fig, stays, slots, axes)
        fig.update_layout(
            {
                f"xaxis{suffix}": {
                    "anchor": f"y{suffix}",
                    "range": [0, end * 1.02],
                    "matches": "x" if number else None,
                    "showgrid": False,
                    "title": "iteration" if number == len(runs) - 1 else None,
                },
                f"yaxis{suffix}": {
                    "anchor": f"x{suffix}",
                    "domain": domain,
                    "title": "slot",
                    "dtick": 1,
                    "range": [slots + 0.6, 0.4],
                    "showgrid": False,
                },
            }
        )
    once_in_legend(fig)
    return fig.update_layout(barmode="overlay", bargap=0.12, margin={"l": 70, "r": 16})


def _kinds(stays: pd.DataFrame) -> pd.Series:
    """Class of the request of each stay; one that was paused has several, and its class is that of all together."""
    if stays.empty:
        return pd.Series(dtype=object)
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
                **saying((_stay_in_words(row, kind) for row in rows.itertuples()), rows["number"]),
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


# Cost and payment -----------------------------------------------------------------------------------------------------


def iteration_cost(answers_ms: pd.Series) -> go.Figure:
    """Milliseconds of an iteration against the answers in it, beside what it were if each slot paid in full.

    `answers_ms` is indexed by the number of answers.
    """
    cost = answers_ms[answers_ms.index > 0]
    number, full = cost.index.to_numpy(), cost.iloc[0] * cost.index.to_numpy()
    fig = go.Figure()
    fig.add_scatter(
        x=number.tolist(),
        y=full.tolist(),
        mode="lines",
        line={"color": WASTE, "width": 2, "dash": "dash"},
        **saying(
            f"{counted(answers, 'answer')} · {ms:.1f} ms, if each paid in full" for answers, ms in zip(number, full)
        ),
    )
    fig.add_scatter(
        x=number.tolist(),
        y=cost.tolist(),
        mode="lines+markers+text",
        textposition="top center",
        text=[f"{value:.1f}" for value in cost],
        textfont={"color": INK},
        line={"color": DECODE, "width": 2},
        marker={"color": DECODE, "size": 9},
        **saying(f"{counted(answers, 'answer')} · {ms:.1f} ms an iteration, measured" for answers, ms in cost.items()),
    )
    inner = len(number) - len(number) // 3 - 1
    fig.add_annotation(
        x=int(number[inner]),
        y=float(full[inner]),
        text="if each answer paid in full",
        xanchor="right",
        yanchor="bottom",
        xshift=-10,
        showarrow=False,
        font={"color": WASTE_TEXT},
    )
    fig.add_annotation(
        x=int(number[-1]),
        y=float(cost.iloc[-1]),
        text="measured",
        xanchor="right",
        yanchor="top",
        yshift=-10,
        showarrow=False,
        font={"color": DECODE},
    )
    fig.update_xaxes(title="answers in the iteration", dtick=1, range=[0.5, number[-1] + 0.5])
    fig.update_yaxes(title="time of an iteration (ms)", range=[0, float(full[-1]) * 1.08])
    return fig.update_layout(showlegend=False, height=360)


def who_pays(runs: dict[str, pd.DataFrame]) -> go.Figure:
    """Throughput as bars, and below it P50 and P99 of the latency of short and of long answers, a line for each run.

    Parameters
    ----------
    runs : dict of str to DataFrame
        One row a request: `output_len` (tokens), `latency_ms`, and `sent_s` and `last_s` (s since the run's start).
    """
    fig, names = go.Figure(), list(runs)[::-1]  # plotly draws the first at the bottom
    speeds = [rows["output_len"].sum() / (rows["last_s"].max() - rows["sent_s"].min()) for rows in runs.values()][::-1]
    fig.add_bar(
        orientation="h",
        x=speeds,
        y=names,
        marker={"color": DECODE},
        text=[f"{speed:.0f}" for speed in speeds],
        textposition="outside",
        textfont={"color": INK},
        xaxis="x",
        yaxis="y",
        **saying(f"{name} · {speed:.0f} tokens a second" for name, speed in zip(names, speeds, strict=True)),
    )
    _panel(fig, "", (0.76, 1.0), "tokens a second", max(speeds), len(names))
    for suffix, kind, domain in (("2", "short", (0.4, 0.58)), ("3", "long", (0.0, 0.19))):
        longest = 0.0
        for name in names:
            rows = runs[name]
            seconds = rows["latency_ms"][length_class(rows["output_len"]) == kind] / 1000
            marks = np.percentile(seconds, [50, 99]).tolist()
            longest = max(longest, marks[1])
            fig.add_scatter(
                x=marks,
                y=[name, name],
                mode="lines+markers+text",
                textposition="middle right",
                text=["", f"  {marks[0]:.2f} · {marks[1]:.2f}"],  # together: the marks may touch each other
                textfont={"color": INK},
                line={"color": CLASSES[kind], "width": 4},
                marker={"color": CLASSES[kind], "size": 12, "symbol": ["circle", "diamond"]},
                **saying(
                    f"{name} · {percentile} of {kind} answers · {mark:.2f} s"
                    for percentile, mark in zip(("P50", "P99"), marks, strict=True)
                ),
                xaxis=f"x{suffix}",
                yaxis=f"y{suffix}",
            )
        title = f"end-to-end latency of {kind} answers (s):<br>● P50 and ◆ P99"
        _panel(fig, suffix, domain, title, 1.45 * longest, len(names))
    return fig.update_layout(showlegend=False, bargap=0.3, height=540, margin={"l": 90})


def _panel(fig: go.Figure, suffix: str, domain: tuple[float, float], title: str, most: float, lanes: int) -> None:
    fig.update_layout(
        {
            f"xaxis{suffix}": {"anchor": f"y{suffix}", "title": title, "range": [0, most * 1.12]},
            f"yaxis{suffix}": {
                "anchor": f"x{suffix}",
                "domain": domain,
                "showgrid": False,
                "range": [-0.5, lanes - 0.3],
            },
        }
    )


def against_the_baseline(rows: pd.DataFrame) -> go.Figure:
    """Tokens a second of each model; `rows` has `model` and `tokens_per_s`."""
    fig = go.Figure()
    fig.add_bar(
        orientation="h",
        y=rows["model"].tolist(),
        x=rows["tokens_per_s"].tolist(),
        marker={"color": DECODE},
        text=[f"{value:.0f}" for value in rows["tokens_per_s"]],
        textposition="outside",
        textfont={"color": INK},
        **saying(f"{row.model} · {row.tokens_per_s:.1f} tokens a second" for row in rows.itertuples()),
    )
    fig.update_xaxes(title="tokens a second", range=[0, float(rows["tokens_per_s"].max()) * 1.12])
    return fig.update_layout(showlegend=False, height=100 + 50 * len(rows), margin={"l": 120})
