"""Lesson 11: what each iteration of an answer brought, and how much faster drafts make an answer."""

import numpy as np
import pandas as pd
import plotly.express as px
import plotly.graph_objects as go

from inflight.notebook.charts.marks import counted, once_in_legend
from inflight.notebook.charts.palette import DECODE, INK, REQUEST, SYMBOLS, WASTE, WASTE_TEXT, pattern
from inflight.notebook.charts.panels import panels
from inflight.paths import ASSETS

RESULTS = ASSETS / "results"  # what was measured on other machines
THROWN = "drafts thrown away"
STEPS = {"the token that comes in any case": DECODE, "accepted drafts": REQUEST[0], THROWN: WASTE}


def steps(answers: dict[str, list[tuple[int, int]]]) -> go.Figure:
    """A column for each iteration: upwards the tokens that it brought, downwards the drafts that were thrown away.

    Parameters
    ----------
    answers : dict of str to list of (int, int)
        By the panel's title: how many drafts each iteration of an answer accepted, and how many it threw away.
    """
    fig = panels(list(answers), 110, [_in_short(each) for each in answers.values()])
    for number, each in enumerate(answers.values(), 1):
        accepted, thrown = np.transpose(each)
        columns = dict(zip(STEPS, (1, accepted, -thrown)))
        bars = px.bar(pd.DataFrame(columns, index=range(1, 1 + len(each))), color_discrete_map=STEPS)
        fig.add_traces(bars.data, rows=number, cols=1)
    fig.update_traces(hovertemplate="iteration %{x} · %{fullData.name}: %{y}<extra></extra>")
    fig.update_traces(marker_pattern=pattern("/"), selector={"name": THROWN})
    most, least = (max(step[kind] for each in answers.values() for step in each) for kind in (0, 1))
    fig.update_yaxes(range=[-least - 0.5, most + 1.5], title="tokens", zeroline=True, zerolinecolor=INK)
    fig.update_xaxes(range=[0, 1 + max(map(len, answers.values()))], showgrid=False)
    fig.update_xaxes(title="iteration", row=len(answers), col=1)
    once_in_legend(fig)
    return fig.update_layout(barmode="relative", bargap=0.15)


def steps_summary(answers: dict[str, list[tuple[int, int]]]) -> str:
    """The picture of `steps` in a paragraph."""
    said = "; ".join(f"{name}: {_in_short(each)}" for name, each in answers.items())
    return f"Tokens that each iteration of an answer brought, and drafts that it threw away. {said}."


def _in_short(each: list[tuple[int, int]]) -> str:
    accepted, thrown = map(sum, zip(*each))
    tokens, iterations = len(each) + accepted, counted(len(each), "iteration")
    return f"{tokens} tokens in {iterations}, {thrown} thrown away"


def gains(rows: pd.DataFrame) -> go.Figure:
    """Speed-up against the length of a draft, a line a workload and a panel a number of users.

    Parameters
    ----------
    rows : DataFrame
        `users`, `workload`, `drafts` (tokens proposed at most) and `times`, the speed-up over no drafts at all.
    """
    low, high, last = min(0.8, rows["times"].min()) - 0.1, max(1.2, rows["times"].max()) + 0.1, rows["drafts"].max()
    fig = panels([counted(number, "user") for number in rows["users"].unique().tolist()], 200)
    for number, (_, panel) in enumerate(rows.groupby("users", sort=False), 1):
        lines = px.line(
            panel, x="drafts", y="times", color="workload", color_discrete_sequence=REQUEST, symbol="workload",
            symbol_sequence=SYMBOLS, labels={"times": "times as fast"}, hover_data={"times": ":.2f"},
        )  # fmt: skip
        fig.add_traces(lines.data, rows=number, cols=1)
    fig.update_traces(marker_size=8)
    fig.add_hline(1, line={"color": INK, "dash": "dash"})
    fig.add_hrect(
        low, 1, fillcolor=WASTE, opacity=0.15, line_width=0, annotation_text="slower than without drafts",
        annotation_position="bottom left", annotation_font={"color": WASTE_TEXT, "size": 12},
    )  # fmt: skip
    fig.update_yaxes(range=[low, high], title="times as fast")
    fig.update_xaxes(range=[-0.2, last + 0.4])
    fig.update_xaxes(title="tokens proposed at most", row=number, col=1)
    once_in_legend(fig)
    return fig


def gains_summary(rows: pd.DataFrame) -> str:
    """The picture of `gains` in a paragraph: the best and the last of each line."""
    parts = []
    for (users, name), line in rows.groupby(["users", "workload"], sort=False):
        best, last = line.loc[line["times"].idxmax()], line.iloc[-1]
        parts.append(
            f"{counted(users, 'user')}, {name}: {best.times:.2f} times as fast with the best length, {best.drafts}, "
            f"and {last.times:.2f} with {last.drafts}"
        )
    return f"Speed-up against the number of tokens proposed. {'; '.join(parts)}."
