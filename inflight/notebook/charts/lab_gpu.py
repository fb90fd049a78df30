""" "On the lab GPU": what was recorded on GPUs, beside what was measured just now."""

import math

import pandas as pd
import plotly.graph_objects as go

from inflight import machine
from inflight.notebook.charts.display import NARROWEST_PX, wrapped
from inflight.notebook.charts.marks import once_in_legend, saying
from inflight.notebook.palette import DECODE, INK, REQUEST, WASTE_TEXT, patterns

HERE = "here, just now"
NONE_YET = (
    "No result of a GPU is recorded for this yet.",
    "On a machine that has one,",
    "assets/lab-gpu/measure.sh makes them.",
)
LINE_PX = 22
LEFT_PX, RIGHT_PX = 150, 60


def lab_results(measured: pd.DataFrame, recorded: pd.DataFrame, name: str, value: str, unit: str) -> go.Figure:
    """A bar for each figure that was measured, and one of each GPU and model there is a result of.

    Parameters
    ----------
    measured : DataFrame
        One row a figure, with the columns `name` and `value`.
    recorded : DataFrame
        From `recorded.table(…, gpus_only=True)`: `device`, `checkpoint`, and the same columns. What has no counterpart
        in `measured` is left out.
    unit : str
        Title of the axis.
    """
    rows = _rows(measured, recorded, name, value)
    fig, sources = go.Figure(), rows["source"].unique()
    for source, colour, pattern in zip(sources, [DECODE, *REQUEST] * len(sources), patterns(len(sources))):
        own = rows[rows["source"] == source]
        fig.add_bar(
            orientation="h",
            name=source,
            x=own[value].round(3),
            y=own[name],
            legendgroup=source,
            marker={"color": colour, "pattern": pattern},
            text=own[value].map(_rounded),
            textposition="outside",
            textfont={"color": INK},
            cliponaxis=False,
            **saying(f"{label} · {_rounded(number)} {unit} · {source}" for label, number in zip(own[name], own[value])),
        )
    once_in_legend(fig)
    if len(sources) == 1:
        fig.add_annotation(
            {"xref": "paper", "yref": "paper", "x": 0, "y": 1, "xanchor": "left", "yanchor": "bottom"},
            xshift=-142,
            yshift=12,
            text="<br>".join(NONE_YET),
            align="left",
            showarrow=False,
            font={"color": WASTE_TEXT},
        )
    fig.update_xaxes(_axis(unit, rows[value]))
    fig.update_yaxes(autorange="reversed", tickfont={"color": INK})
    top = 12 if len(sources) > 1 else LINE_PX * (len(NONE_YET) + 1)
    return fig.update_layout(
        height=top + 60 + 40 + LINE_PX * len(rows),
        barmode="group",
        margin={"l": LEFT_PX, "r": RIGHT_PX, "t": top},
        meta={"device": ""},  # the legend names them
    )


def lab_results_summary(measured: pd.DataFrame, recorded: pd.DataFrame, name: str, value: str) -> str:
    """The picture of `lab_results` in a paragraph."""
    rows = _rows(measured, recorded, name, value)
    parts = []
    for source, own in rows.groupby("source", sort=False):
        figures = ", ".join(f"{label} {_rounded(number)}" for label, number in zip(own[name], own[value]))
        parts.append(f"{source[0].upper()}{source[1:]}: {figures}.")
    return " ".join([*parts, *(NONE_YET if len(parts) == 1 else [])])


def _rows(measured: pd.DataFrame, recorded: pd.DataFrame, name: str, value: str) -> pd.DataFrame:
    """`source`, `name` and `value` of all figures, those of this machine first."""
    here = measured[[name, value]].dropna().assign(source=f"{HERE}: {machine.device_name()}")
    if recorded.empty:
        return here
    of_lab = recorded.assign(source=recorded["device"] + ", " + recorded["checkpoint"])
    of_lab = of_lab[of_lab[name].isin(here[name])].dropna(subset=value)
    return pd.concat([here, of_lab[["source", name, value]]], ignore_index=True)


def _rounded(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _title(unit: str) -> str:
    return "<br>".join(wrapped(unit, 14, NARROWEST_PX - LEFT_PX - RIGHT_PX))


def _axis(unit: str, values: pd.Series) -> dict:
    """Logarithmic where a bar would be twenty times as long as another; with room for what is written beside a bar."""
    low, high = values.min(), values.max()
    if high < 20 * low:
        return {"title": _title(unit), "range": [0, 1.15 * high]}
    decades = [math.floor(math.log10(low / 2)), math.log10(high) + 0.3]
    return {"title": _title(f"{unit} (log scale)"), "type": "log", "range": decades, "dtick": 1}
