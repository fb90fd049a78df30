"""Where a sequence sits: places of the batch, and lanes of the instances."""

from __future__ import annotations

from itertools import cycle

import pandas as pd
import plotly.graph_objects as go

from inflight.notebook.charts.marks import on_the_cpu, saying, whole_ms
from inflight.notebook.charts.panels import stack
from inflight.notebook.palette import DECODE, INK, REQUEST, text_on


def sequence_places(runs: dict[str, pd.DataFrame]) -> go.Figure:
    """Places of the batch × executions: which sequence sat where; one panel a run.

    Parameters
    ----------
    runs : dict of str to DataFrame
        By the panel's title. One row a request: `sequence`, `execution`, `place` (from 0).
    """
    fig = go.Figure()
    everything = pd.concat(runs.values())
    names = sorted(everything["sequence"].unique().tolist())
    colours = dict(zip(names, [*REQUEST[:4], DECODE, INK]))
    last_place = int(everything["place"].max())
    domains = stack(fig, list(runs), [24 + 34 * (last_place + 1)] * len(runs))
    most = max(rows["execution"].nunique() for rows in runs.values())
    for number, (rows, domain) in enumerate(zip(runs.values(), domains, strict=True)):
        suffix = "" if number == 0 else str(number + 1)
        axes = {"xaxis": f"x{suffix}", "yaxis": f"y{suffix}"}
        turn, who = rows["execution"].rank(method="dense").astype(int), rows["sequence"]
        fig.add_scatter(
            x=turn.tolist(),
            y=rows["place"].tolist(),
            mode="markers+text",
            text=who.astype(str).tolist(),
            textposition="middle center",
            textfont={"color": [text_on(colours[name]) for name in who], "size": 13},
            marker={"symbol": "square", "size": 26, "color": [colours[name] for name in who]},
            **saying(
                (
                    f"sequence {sequence} · execution {execution} · place {place}"
                    for sequence, execution, place in zip(who, turn, rows["place"], strict=True)
                ),
                who,
            ),
            **axes,
        )
        fig.update_layout(
            {
                f"xaxis{suffix}": {
                    "anchor": f"y{suffix}",
                    "range": [0.3, most + 0.7],
                    "matches": "x" if number else None,
                    "dtick": 1,
                    "showgrid": False,
                    "title": "execution" if number == len(runs) - 1 else None,
                },
                f"yaxis{suffix}": {
                    "anchor": f"x{suffix}",
                    "domain": domain,
                    "title": "place",
                    "dtick": 1,
                    "range": [last_place + 0.7, -0.7],
                },
            }
        )
    return fig.update_layout(showlegend=False, meta=on_the_cpu())


def sequence_lanes(rows: pd.DataFrame) -> go.Figure:
    """Instances × time: which sequence was computed where, a lane for each place of each instance.

    Parameters
    ----------
    rows : DataFrame
        One row a request: `sequence`, `instance`, `place` (from 0), `start_s` of its execution.
    """
    fig = go.Figure()
    lanes = sorted(set(zip(rows["instance"].tolist(), rows["place"].tolist())), reverse=True)
    first_s = rows["start_s"].min()
    names = sorted(rows["sequence"].unique().tolist())
    for name, colour in zip(names, cycle([*REQUEST[:4], DECODE, INK])):
        own = rows[rows["sequence"] == name]
        at_ms = [whole_ms(start_s - first_s) for start_s in own["start_s"]]
        where = list(zip(own["instance"].tolist(), own["place"].tolist()))
        fig.add_scatter(
            x=at_ms,
            y=[lanes.index(lane) for lane in where],
            mode="lines+markers+text",
            line={"color": colour, "width": 2},
            marker={"symbol": "square", "size": 22, "color": colour},
            text=[str(name)] * len(own),
            textposition="middle center",
            textfont={"color": text_on(colour), "size": 13},
            **saying(
                f"sequence {name} · instance {instance}, place {place} · {ms:,} ms"
                for (instance, place), ms in zip(where, at_ms)
            ),
        )
    fig.update_xaxes(title="time (ms)", showgrid=False)
    fig.update_yaxes(
        tickvals=list(range(len(lanes))),
        ticktext=[f"instance {instance}, place {place}" for instance, place in lanes],
        range=[-0.6, len(lanes) - 0.4],
    )
    return fig.update_layout(showlegend=False, height=90 + 46 * len(lanes), margin={"l": 140}, meta=on_the_cpu())
