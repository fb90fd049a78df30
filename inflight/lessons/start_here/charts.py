"""Lesson 00: the path of one request."""

import pandas as pd
import plotly.graph_objects as go

from inflight.notebook.charts.marks import saying
from inflight.notebook.palette import DECODE, INK, PREFILL, REQUEST, WASTE, pattern

_LANES = ("postprocessing", "tensorrt_llm", "preprocessing", "client")  # from the bottom up
_STEPS = {
    "travel": WASTE,
    "text to tokens": REQUEST[0],
    "prompt": PREFILL,
    "token": DECODE,
    "tokens to text": REQUEST[1],
}
_PATTERNS = {"prompt": pattern("/")}  # in one lane with the tokens


def request_map(path: pd.DataFrame) -> go.Figure:
    """One request through client and models over time; `path` as `request_path.measure` gives it."""
    fig = go.Figure()
    for what, colour in _STEPS.items():
        rows = path[path["what"] == what]
        fig.add_bar(
            x=(rows["end_ms"] - rows["start_ms"]).tolist(),
            base=rows["start_ms"].tolist(),
            y=[_LANES.index(lane) for lane in rows["lane"]],
            width=0.42,
            orientation="h",
            marker={"color": colour, "pattern": _PATTERNS.get(what), "line": {"color": "white", "width": 1}},
            name=what,
            **saying(
                f"{what} · {row.end_ms - row.start_ms:.1f} ms: {row.start_ms:.1f} to {row.end_ms:.1f} ms · {row.lane}"
                for row in rows.itertuples()
            ),
        )
    arrivals = path[path["what"] == "arrival"]["end_ms"].tolist()
    fig.add_scatter(
        x=arrivals,
        y=[3] * len(arrivals),
        mode="markers",
        marker={"symbol": "diamond", "size": 10, "color": REQUEST[1]},
        name="a piece of text arrives",
        **saying(f"piece {number} of the text · arrives after {ms:.1f} ms" for number, ms in enumerate(arrivals, 1)),
    )
    _draw_first_word(fig, path)
    ends = path["end_ms"].max()
    fig.update_xaxes(title="milliseconds since Enter", range=[-0.01 * ends, 1.04 * ends])
    fig.update_yaxes(tickvals=list(range(4)), ticktext=list(_LANES), range=[-0.9, 3.9], showgrid=False)
    return fig.update_layout(
        title="One request, from Enter to the last word",
        barmode="overlay",
        height=420,
        showlegend=False,
    )


def _draw_first_word(fig: go.Figure, path: pd.DataFrame) -> None:
    """The first word's path as one line through the lanes, and the names of the steps beside it."""
    begins = path.groupby("what")["start_ms"].min()
    tokenized, computed = begins["text to tokens"], begins["prompt"]
    decoded, arrived = begins["tokens to text"], begins["arrival"]
    way = [
        (0, 3),
        (tokenized, 3),
        (tokenized, 2),
        (computed, 2),
        (computed, 1),
        (decoded, 1),
        (decoded, 0),
        (arrived, 0),
        (arrived, 3),
    ]
    fig.add_scatter(
        x=[x for x, _ in way],
        y=[y for _, y in way],
        mode="lines",
        line={"color": INK, "width": 1.5},
        name="the first word's path",
        **saying(f"the first word's path · {_LANES[y]} · {x:.1f} ms" for x, y in way),
    )
    gap = path["end_ms"].max() * 0.012
    tokens = path[path["what"] == "token"]
    notes = [
        (arrived, 3.42, f"<b>first word: {arrived:.0f} ms</b>", "left", INK),
        (0, 3.42, "Enter", "left", INK),
        (computed + gap, 2, "text → tokens", "left", INK),
        (computed, 1.38, "prompt", "left", INK),
        (
            max(tokens["start_ms"].min(), arrived) + gap,
            1.52,
            f"{len(tokens)} iterations,<br>one token each",
            "left",
            INK,
        ),
        (arrived + gap, -0.54, "tokens → text,<br>piece by piece", "left", INK),
    ]
    for x, y, text, anchor, colour in notes:
        fig.add_annotation(
            x=x,
            y=y,
            text=text,
            showarrow=False,
            xanchor=anchor,
            yanchor="middle",
            align=anchor,
            font={"color": colour, "size": 12},
        )


def request_map_summary(path: pd.DataFrame, first_word: pd.DataFrame) -> str:
    """The picture of `request_path` in a paragraph."""
    parts = ", ".join(f"{row.stage} {row.ms:.1f} ms" for row in first_word.itertuples())
    arrivals = path[path["what"] == "arrival"]["end_ms"]
    return (
        f"Four lanes over time: client, preprocessing, tensorrt_llm, postprocessing. The first word goes through "
        f"all of them and arrives after {first_word['ms'].sum():.0f} ms: {parts}. Then tensorrt_llm makes a token an "
        f"iteration, and each is turned into text while the next is computed; the last of {len(arrivals)} pieces "
        f"arrives after {arrivals.max():.0f} ms."
    )
