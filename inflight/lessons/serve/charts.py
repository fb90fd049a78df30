"""Lesson 03: when the tokens arrive."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from inflight.notebook.charts.marks import saying
from inflight.notebook.charts.palette import DECODE, INK, WASTE


def token_timeline(pieces: pd.DataFrame) -> go.Figure:
    """Answers on one time line: grey while there is nothing to read, a mark for each piece that arrives.

    Parameters
    ----------
    pieces : DataFrame
        One row a piece: `case` (what its users share), `user`, `time_s` from sending the request. In one case either
        each answer is one piece, given whole, or each is streamed; one case is a single user's stream.
    """
    fig, drawn, places, top = go.Figure(), [], {}, 0.0
    for case, rows in pieces.groupby("case", sort=False):
        users = [user["time_s"].tolist() for _, user in rows.groupby("user")]
        lowest = top - len(users) + 1
        places[case.replace(", ", ",<br>")] = (top + lowest) / 2
        drawn.append(_placed(rows, top))
        is_marked = len(users) == 1 and len(users[0]) > 1
        if is_marked:
            _mark_latencies(fig, users[0], top)
        below = lowest - (2.6 if is_marked else 0.5)
        top = below - 2.4
    rows = pd.concat(drawn)
    waits = rows[rows["number"] == 1]
    told = [f"{row.case} · user {row.user} · nothing to read for {row.time_s:.2f} s" for row in waits.itertuples()]
    x, y = [at for wait in waits["time_s"] for at in (0, wait, None)], waits["place"].repeat(3)
    look = {"color": WASTE, "width": 2}
    fig.add_scatter(x=x, y=y, mode="lines", line=look, name="nothing to read", **saying(np.repeat(told, 3)))
    for name, symbol in (("a whole answer", "square"), ("a piece of an answer", "line-ns-open")):
        own, look = rows[rows["what"] == name], {"color": DECODE, "symbol": symbol, "size": 10, "line_width": 1.6}
        told = [
            f"{row.case} · user {row.user} · piece {row.number} of {row.of} · after {row.time_s:.2f} s"
            for row in own.itertuples()
        ]
        fig.add_scatter(x=own["time_s"], y=own["place"], mode="markers", marker=look, name=name, **saying(told))
    fig.update_xaxes(title="time since the request was sent (s)", range=[0, pieces["time_s"].max() * 1.04])
    ticks = {"tickvals": list(places.values()), "ticktext": list(places)}
    fig.update_yaxes(ticks, range=[top + 1.6, 2.5], showgrid=False)
    fig.update_layout(title="When there is something to read", height=620, margin={"l": 110}, showlegend=True)
    return fig


def token_timeline_summary(pieces: pd.DataFrame) -> str:
    """The picture of `token_timeline` in a sentence a case."""
    told = [
        f"{case}: {_latencies([user['time_s'].tolist() for _, user in rows.groupby('user')])}."
        for case, rows in pieces.groupby("case", sort=False)
    ]
    return "\n".join(["When each piece of each answer arrived.", *told])


def _placed(rows: pd.DataFrame, top: float) -> pd.DataFrame:
    """Pieces of a case with the `place` of their answer, the first at `top`, and which one it is of how many."""
    answers = rows.groupby("user")["time_s"]
    user = rows["user"].rank(method="dense").astype(int)
    what = "a whole answer" if answers.size().max() == 1 else "a piece of an answer"
    numbers = {"number": answers.cumcount() + 1, "of": answers.transform("size")}
    return rows.assign(user=user, place=top - user + 1, what=what, **numbers)


def _mark_latencies(fig: go.Figure, times: list[float], place: float) -> None:
    """TTFT and one ITL above the answer at `place`, end-to-end latency below it."""
    middle = len(times) // 2
    for name, start, end, side in (
        ("TTFT", 0, times[0], 1),
        ("ITL", times[middle], times[middle + 1], 1),
        ("end-to-end", 0, times[-1], -1),
    ):
        text = f"{name} {1000 * (end - start):,.0f} ms"
        label = {"text": text, "textposition": "start", "yanchor": "bottom" if side > 0 else "top", "padding": 6}
        ends = {"x0": start, "x1": end, "y0": place + side, "y1": place + side}
        fig.add_shape(type="line", **ends, line={"color": INK, "width": 3}, label=label)


def _latencies(users: list[list[float]]) -> str:
    """Return what a user of the case sees: the median over its users."""
    end_to_end = f"end-to-end {np.median([times[-1] for times in users]):.2f} s"
    if len(users[0]) == 1:
        return f"all at once · {end_to_end}"
    gaps = np.concatenate([np.diff(times) for times in users])
    ttft, itl = np.median([times[0] for times in users]), np.median(gaps)
    tpot = np.median([(times[-1] - times[0]) / (len(times) - 1) for times in users])
    return f"TTFT {ttft * 1000:.0f} ms · median ITL {itl * 1000:.1f} ms · TPOT {tpot * 1000:.1f} ms · {end_to_end}"
