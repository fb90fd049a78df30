"""Lesson 11: what each iteration of an answer brought, and how much faster drafts make an answer."""

import pandas as pd
import plotly.graph_objects as go

from inflight.notebook.charts.marks import counted, line_saying, once_in_legend, saying_alike
from inflight.notebook.charts.panels import axes_of, panels
from inflight.notebook.palette import DECODE, INK, REQUEST, SYMBOLS, WASTE, WASTE_TEXT, pattern

ACCEPTED = REQUEST[0]


def steps(answers: dict[str, list[tuple[int, int]]]) -> go.Figure:
    """A column for each iteration: upwards the tokens that it brought, downwards the drafts that were thrown away.

    Parameters
    ----------
    answers : dict of str to list of (int, int)
        By the panel's title: how many drafts each iteration of an answer accepted, and how many it threw away.
    """
    fig = panels(list(answers), 110, [_in_short(each) for each in answers.values()])
    for number, each in enumerate(answers.values(), 1):
        accepted, thrown = zip(*each)
        for name, heights, look in (
            ("the token that comes in any case", [1] * len(each), {"color": DECODE}),
            ("accepted drafts", accepted, {"color": ACCEPTED}),
            ("drafts thrown away", [-height for height in thrown], {"color": WASTE, "pattern": pattern("/")}),
        ):
            fig.add_bar(
                x=list(range(1, len(each) + 1)),
                y=list(heights),
                name=name,
                legendgroup=name,
                marker=look,
                **saying_alike(f"iteration %{{x}} · {name}: %{{y}}"),
                **axes_of(number),
            )
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
    return f"{tokens} tokens in {iterations}, {accepted} drafts accepted, {thrown} thrown away"


def gains(rows: pd.DataFrame) -> go.Figure:
    """Speed-up against the length of a draft, a line a workload and a panel a number of users.

    Parameters
    ----------
    rows : DataFrame
        `users`, `workload`, `drafts` (tokens proposed at most) and `times`, the speed-up over no drafts at all.
    """
    low, high, last = min(0.8, rows["times"].min()), max(1.2, rows["times"].max()), int(rows["drafts"].max())
    fig = panels([counted(number, "user") for number in rows["users"].unique().tolist()], 200)
    for number, (_, panel) in enumerate(rows.groupby("users", sort=False), 1):
        for place, (name, line) in enumerate(panel.groupby("workload", sort=False)):
            fig.add_scatter(
                x=line["drafts"].tolist(),
                y=line["times"].tolist(),
                mode="lines+markers",
                name=str(name),
                legendgroup=str(name),
                marker={"color": REQUEST[place % 4], "symbol": SYMBOLS[place % 4], "size": 8},
                **saying_alike(f"{name} · %{{x}} drafts · %{{y:.2f}} times as fast"),
                **axes_of(number),
            )
        fig.add_scatter(
            x=[0, last],
            y=[1, 1],
            mode="lines",
            line={"color": INK, "dash": "dash"},
            **line_saying("as fast as without drafts"),
            **axes_of(number),
        )
        fig.add_hrect(
            low - 0.1, 1, fillcolor=WASTE, opacity=0.15, line_width=0, row=number, col=1,
            annotation_text="slower than without drafts", annotation_position="bottom left",
            annotation_font={"color": WASTE_TEXT, "size": 12},
        )  # fmt: skip
    fig.update_yaxes(range=[low - 0.1, high + 0.1], title="times as fast")
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
