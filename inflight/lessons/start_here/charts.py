"""Lesson 00: the path of one request."""

import pandas as pd
import plotly.express as px
import plotly.graph_objects as go

from inflight.notebook.charts.marks import saying
from inflight.notebook.charts.palette import DECODE, INK, PREFILL, REQUEST, WASTE, pattern

_LANES = ("postprocessing", "tensorrt_llm", "preprocessing", "client")  # from the bottom up
_STEPS = {
    "text to tokens": REQUEST[0],
    "hand-over": WASTE,
    "prompt": PREFILL,
    "token": DECODE,
    "tokens to text": REQUEST[1],
}


def request_map(path: pd.DataFrame) -> go.Figure:
    """One request through client and models over time; `path` as `request_path.measure` gives it."""
    steps = path[path["what"] != "arrival"]
    steps = steps.assign(ms=steps["end_ms"] - steps["start_ms"], place=steps["lane"].map(_LANES.index))
    steps["told"] = [
        f"{step.what} · {step.ms:.1f} ms: {step.start_ms:.1f} to {step.end_ms:.1f} ms · {step.lane}"
        for step in steps.itertuples()
    ]
    fig = px.bar(
        steps, x="ms", base="start_ms", y="place", color="what", color_discrete_map=_STEPS, orientation="h",
        barmode="overlay", opacity=1, labels={"ms": "milliseconds since Enter"}, custom_data="told",
    )  # fmt: skip
    fig.update_traces(width=0.42, marker_line={"color": "white", "width": 1})
    fig.update_traces(hovertemplate="%{customdata[0]}<extra></extra>")
    fig.update_traces(marker_pattern=pattern("/"), selector={"name": "prompt"})  # in one lane with the tokens
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
    fig.update_xaxes(range=[-0.01 * ends, 1.04 * ends])
    fig.update_yaxes(title=None, tickvals=list(range(4)), ticktext=list(_LANES), range=[-0.9, 3.9], showgrid=False)
    return fig.update_layout(title="One request, from Enter to the last word", height=420, showlegend=False)


def _draw_first_word(fig: go.Figure, path: pd.DataFrame) -> None:
    """The first word's path through the lanes, dotted where nobody measures it, and the names of the steps."""
    begins = path.groupby("what")["start_ms"].min()
    tokenized, handed, computing = begins[["text to tokens", "hand-over", "prompt"]]
    computed = path.loc[path["what"] == "prompt", "end_ms"].max()
    decoding, arrived = begins["tokens to text"], begins["arrival"]
    x = [tokenized, tokenized, handed, handed, computed, None, decoding, decoding, arrived, arrived]
    y = [3, 2, 2, 1, 1, None, 1, 0, 0, 3]
    remains_x, remains_y = [0, tokenized, None, computed, decoding], [3, 3, None, 1, 1]
    for name, at, lanes, dash in (
        ("the first word's path", x, y, "solid"),
        ("what remains", remains_x, remains_y, "dot"),
    ):
        told = saying("" if lane is None else f"{name} · {_LANES[lane]} · {ms:.1f} ms" for ms, lane in zip(at, lanes))
        fig.add_scatter(x=at, y=lanes, mode="lines", line={"color": INK, "width": 1.5, "dash": dash}, name=name, **told)
    gap, iterations = path["end_ms"].max() * 0.012, path.loc[path["what"] == "token", "start_ms"]
    for right, up, text in (
        (arrived, 3.42, f"<b>first word: {arrived:.0f} ms</b>"),
        (0, 3.42, "Enter"),
        (handed + gap, 2, "text → tokens"),
        (computing, 1.38, "prompt"),
        (max(iterations.min(), arrived) + gap, 1.52, f"{len(iterations)} iterations,<br>one token each"),
        (arrived + gap, -0.54, "tokens → text,<br>piece by piece"),
    ):
        fig.add_annotation(x=right, y=up, text=text, showarrow=False, xanchor="left", align="left", font_size=12)


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
