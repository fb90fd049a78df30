"""Lesson 09: each request of a run against both limits."""

import math

import plotly.graph_objects as go

from inflight.lessons.capstone.service import Brief, Served
from inflight.notebook.charts.marks import area_saying, saying_alike
from inflight.notebook.palette import DECODE, REQUEST, WASTE_TEXT

GOOD = REQUEST[0]
_MS = [digit * 10**power for power in range(6) for digit in (1, 2, 5)]
TICKS = {"tickvals": _MS, "ticktext": [f"{value:,}" for value in _MS]}
LOOKS = ((REQUEST[3], "x"), (DECODE, "circle"))  # of the runs, in their order


def requests_in_time(runs: dict[str, Served], brief: Brief) -> go.Figure:
    """TTFT and ITL of each request, a mark each; those in the shaded corner are in time.

    Parameters
    ----------
    runs : dict of str to Served
        Two at most, by what they are called.
    """
    limits = brief.objective
    tables = {name: run.requests.dropna(subset=["ttft_ms", "itl_ms"]) for name, run in runs.items()}
    ttfts = [limits.ttft_ms, limits.ttft_ms / 8, *(ms for table in tables.values() for ms in table["ttft_ms"])]
    itls = [limits.itl_ms, *(ms for table in tables.values() for ms in table["itl_ms"])]
    low, high = min(ttfts) / 1.3, 1.5 * max(ttfts)
    fig = go.Figure()
    fig.add_scatter(
        x=[low, limits.ttft_ms, limits.ttft_ms, low, low],
        y=[0, 0, limits.itl_ms, limits.itl_ms, 0],
        fill="toself",
        fillcolor="#DDF1EA",
        mode="lines",
        line={"width": 1, "color": GOOD},
        name="in time",
        **area_saying(f"in time: TTFT at most {limits.ttft_ms:,.0f} ms, ITL at most {limits.itl_ms:,.0f} ms"),
    )
    for (name, table), (colour, symbol) in zip(tables.items(), LOOKS):
        row = runs[name].row()
        lost = f", {row['no answer']} without an answer" if row["no answer"] else ""
        fig.add_scatter(
            x=table["ttft_ms"].tolist(),
            y=table["itl_ms"].tolist(),
            mode="markers",
            marker={"size": 9, "color": colour, "symbol": symbol},
            name=f"{name}: {row['in time']} of {row['requests']} in time{lost}",
            **saying_alike(f"{name}<br>TTFT %{{x:,.0f}} ms<br>ITL %{{y:,.0f}} ms"),
        )
    return fig.update_layout(
        xaxis={"type": "log", "title": "TTFT (ms)", "range": [math.log10(low), math.log10(high)], **TICKS},
        yaxis={"title": "ITL (ms)", "range": [0, 1.1 * max(itls)]},
        height=460,
        showlegend=True,
        legend={"font": {"color": WASTE_TEXT}},
    )


def in_words(runs: dict[str, Served]) -> str:
    """What `requests_in_time` shows, and what the other requests fell short of."""
    parts = []
    for name, run in runs.items():
        row = run.row()
        parts.append(
            f"{name}: {row['in time']} of {row['requests']} requests in time; {row['first token late']} first tokens "
            f"late, {row['ITL too high']} ITLs too high, {row['no answer']} without an answer"
        )
    return f"TTFT and ITL of each request, against their limits. {'. '.join(parts) or 'No run yet'}."
