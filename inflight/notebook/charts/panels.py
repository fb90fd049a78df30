"""Panels one above the other, each with its title above it: all in pixels, so that no title meets another panel."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from inflight.notebook.charts.display import LINE_EM, wrapped

SIZE = 13  # of the letters of a title, in pixels
LEFT_PX = 54  # a title begins that far left of the axes, above the names of the lanes
ROOM_PX, BOLD = 340, 0.9  # on a phone; of that, for bold letters
AXIS_PX, BOTTOM_PX = 26, 56  # what the numbers of an axis take, and with the axis' title


def stack(
    fig: go.Figure,
    titles: Sequence[str],
    heights_px: Sequence[int],
    notes: Sequence[str] = (),
    axis_px: int = AXIS_PX,
) -> list[tuple[float, float]]:
    """Set the figure's height and upper and lower margin, and write the titles, which stay when a reader zooms.

    Parameters
    ----------
    titles : sequence of str
        One a panel, from the top.
    heights_px : sequence of int
        Of the panels without their titles.
    notes : sequence of str
        What stands below each title, in light letters; none by default.
    axis_px : int
        Room below each panel but the last.

    Returns
    -------
    list of (float, float)
        Each panel's `domain`: its lower and upper end.
    """
    lines = [wrapped(title, SIZE, round(ROOM_PX * BOLD)) for title in titles]
    texts = [[f"<b>{line}</b>" for line in title] for title in lines]
    for text, note in zip(texts, notes):
        text += wrapped(note, SIZE, ROOM_PX)
    heads_px = [round(LINE_EM * SIZE * len(text)) + 8 for text in texts]
    inner_px = sum(heights_px) + sum(heads_px[1:]) + axis_px * (len(titles) - 1)
    domains, top_px = [], inner_px
    for number, (text, head_px, height_px) in enumerate(zip(texts, heads_px, heights_px, strict=True)):
        top_px -= head_px + axis_px if number else 0
        domains.append((max(0.0, (top_px - height_px) / inner_px), top_px / inner_px))
        fig.add_annotation(
            text="<br>".join(text), align="left", font={"size": SIZE}, showarrow=False,
            xref="paper", x=0, xanchor="left", xshift=-LEFT_PX,
            yref="paper", y=top_px / inner_px, yanchor="bottom", yshift=2,
        )  # fmt: skip
        top_px -= height_px
    fig.update_layout(height=inner_px + heads_px[0] + BOTTOM_PX, margin={"t": heads_px[0], "b": BOTTOM_PX})
    return domains
