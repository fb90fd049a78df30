"""Lesson 03: when the tokens arrive."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from inflight.notebook.charts.marks import line_saying, once_in_legend, saying, saying_alike
from inflight.notebook.palette import DECODE, INK, WASTE


def token_timeline(pieces: pd.DataFrame) -> go.Figure:
    """Answers on one time line: grey while there is nothing to read, a mark for each piece that arrives.

    Parameters
    ----------
    pieces : DataFrame
        One row a piece: `case` (what its users share), `user`, `time_s` from sending the request. In one case either
        each answer is one piece, given whole, or each is streamed; one case is a single user's stream.
    """
    fig, names, middles, top = go.Figure(), [], [], 0.0
    for case, rows in pieces.groupby("case", sort=False):
        users = [user["time_s"].tolist() for _, user in rows.groupby("user")]
        places = [top - number for number in range(len(users))]
        _draw_answers(fig, case, users, places)
        names.append(case.replace(", ", ",<br>"))
        middles.append((places[0] + places[-1]) / 2)
        is_marked = len(users) == 1 and len(users[0]) > 1
        if is_marked:
            _mark_latencies(fig, users[0], top)
        below = places[-1] - (2.6 if is_marked else 0.5)
        told = below - (0.8 if len(users) == 1 and not is_marked else 0)  # a name of two lines beside a single row
        at = {"xref": "paper", "x": 0, "xshift": -96, "y": told, "xanchor": "left", "yanchor": "top"}
        fig.add_annotation(at, text=_latencies(users), showarrow=False)
        top = below - 4.4
    fig.update_xaxes(title="time since the request was sent (s)", range=[0, pieces["time_s"].max() * 1.04])
    fig.update_yaxes(tickvals=middles, ticktext=names, range=[top + 2.4, 2.5], showgrid=False)
    once_in_legend(fig)
    return fig.update_layout(height=700, margin={"l": 110})


def token_timeline_summary(pieces: pd.DataFrame) -> str:
    """The picture of `token_timeline` in a sentence a case."""
    told = [
        f"{case}: {_latencies([user['time_s'].tolist() for _, user in rows.groupby('user')])}."
        for case, rows in pieces.groupby("case", sort=False)
    ]
    return "\n".join(["When each piece of each answer arrived.", *told])


def _draw_answers(fig: go.Figure, case: str, users: list[list[float]], places: list[float]) -> None:
    is_whole = len(users[0]) == 1
    name = "a whole answer" if is_whole else "a piece of an answer"
    marker = {"color": DECODE, "symbol": "square" if is_whole else "line-ns-open", "size": 10, "line": {"width": 1.6}}
    for number, (place, times) in enumerate(zip(places, users, strict=True), 1):
        who = f"user {number}"
        fig.add_scatter(
            x=[0, times[0]],
            y=[place, place],
            mode="lines",
            line={"color": WASTE, "width": 2},
            name="nothing to read",
            legendgroup="nothing",
            **saying([f"{case} · {who} · sent at 0 s", f"{case} · {who} · nothing to read for {times[0]:.2f} s"]),
        )
        fig.add_scatter(
            x=[round(time, 4) for time in times],
            y=[place] * len(times),
            mode="markers",
            marker=marker,
            name=name,
            legendgroup=name,
            customdata=list(range(1, len(times) + 1)),
            **saying_alike(f"{case} · {who} · piece %{{customdata}} of {len(times)} · after %{{x:.2f}} s"),
        )


def _mark_latencies(fig: go.Figure, times: list[float], place: float) -> None:
    """TTFT and one ITL above the answer at `place`, end-to-end latency below it."""
    middle = len(times) // 2
    for name, start, end, side in (
        ("TTFT", 0, times[0], 1),
        ("ITL", times[middle], times[middle + 1], 1),
        ("end-to-end", 0, times[-1], -1),
    ):
        fig.add_scatter(
            x=[start, end],
            y=[place + side] * 2,
            mode="lines",
            line={"color": INK, "width": 3},
            showlegend=False,
            **line_saying(f"{name} · {1000 * (end - start):,.0f} ms"),
        )
        anchor = {"yanchor": "bottom" if side > 0 else "top", "yshift": 2 * side}
        fig.add_annotation(x=(start + end) / 2, y=place + side, text=name, showarrow=False, **anchor)


def _latencies(users: list[list[float]]) -> str:
    """What a user of the case sees: the median over its users."""
    end_to_end = f"end-to-end {np.median([times[-1] for times in users]):.2f} s"
    if len(users[0]) == 1:
        return f"all at once · {end_to_end}"
    gaps = np.concatenate([np.diff(times) for times in users])
    ttft, itl = np.median([times[0] for times in users]), np.median(gaps)
    tpot = np.median([(times[-1] - times[0]) / (len(times) - 1) for times in users])
    return f"TTFT {ttft * 1000:.0f} ms · median ITL {itl * 1000:.1f} ms · TPOT {tpot * 1000:.1f} ms · {end_to_end}"
