"""Lesson 02: a model repository, and what flows through its ensemble."""

import itertools

import pandas as pd
import plotly.graph_objects as go

from inflight.notebook.charts.palette import DECODE, INK, TINT, WASTE, WASTE_TEXT

# Pixels, and so are the units of both axes: the map is never wider than this, and a page narrower still shrinks it.
_WIDTH, _RAIL, _ARROW, _BOX_LEFT, _BOX_RIGHT, _FILES = 420, 14, 52, 28, 172, 184
_ROW, _BOX_HEIGHT, _GAP, _FRAME_HEAD = 18, 40, 30, 44


def repository_map(files: list[str], edges: pd.DataFrame) -> go.Figure:
    """A model repository: its models from the top, each with its files, and the tensors that flow between them.

    Parameters
    ----------
    files : list of str
        Paths of the files within the repository, as "ensemble/config.pbtxt".
    edges : DataFrame
        One row a tensor: source, target, tensor (the name that the steps share), output, input, data_type, dims,
        optional; "client" is at both ends, and targets come in the order of the steps. Optional tensors are counted,
        the others named.
    """
    steps = list(dict.fromkeys(name for name in edges.target if name != "client"))
    nodes = ["client", *steps, "client "]  # the client asks at the top and is answered at the bottom
    edges = edges.assign(target=edges.target.replace("client", "client "))
    pairs = dict(iter(edges.groupby(["source", "target"], sort=False)))
    detours = {pair: rows for pair, rows in pairs.items() if pair not in itertools.pairwise(nodes)}
    fig, places = go.Figure(), {"client": 10}  # the upper edge of each box
    for pair in itertools.pairwise(nodes):
        lines = [(text, INK) for text in _flow_lines(pairs[pair])] if pair in pairs else []
        past = [text for (_, end), rows in detours.items() if end == pair[1] for text in _flow_lines(rows)]
        lines += [(f"╌ {text}", DECODE) for text in past]  # as the line is drawn that goes past the boxes between
        begin = places[pair[0]] + _BOX_HEIGHT
        lines_from = begin + (_FRAME_HEAD if pair[0] == "client" else 0)
        places[pair[1]] = lines_from + _GAP + _ROW * len(lines)
        _draw_arrow(fig, begin, places[pair[1]], lines_from, lines)
    for source, target in detours:
        _draw_detour(fig, places[source] + _BOX_HEIGHT / 2, places[target] + _BOX_HEIGHT / 2)
    _draw_frame(fig, files, places)
    for name, top in places.items():
        own = [path.split("/", 1)[1] for path in files if path.startswith(f"{name}/")]
        _draw_node(fig, name.strip(), top, own)
    height = places["client "] + _BOX_HEIGHT + 10
    axis = {"visible": False, "fixedrange": True, "constrain": "domain"}
    fig.update_xaxes(axis, range=[0, _WIDTH], constraintoward="left")
    fig.update_yaxes(axis, range=[height, 0], constraintoward="top", scaleanchor="x")
    layout = {"height": height, "margin": dict.fromkeys("lrtb", 0), "dragmode": False, "showlegend": False}
    return fig.update_layout({**layout, "meta": {"device": ""}})  # a drawing: nothing is measured


def _flow_lines(rows: pd.DataFrame) -> list[str]:
    """Return the lines at an arrow: each required tensor by its names, type and shape, and how many more may come."""
    lines = []
    for row in rows[~rows.optional].sort_values("output").itertuples():
        lines.append(f"<b>{row.tensor}</b>  {row.data_type} {list(row.dims)}")
        if {row.output, row.input} != {row.tensor}:
            lines.append(f"\N{EM SPACE}{row.output} → {row.input}")
    count = int(rows.optional.sum())
    return lines + ([f"and {count} optional"] if lines else [f"{count} optional"]) * (count > 0)


def _write(
    fig: go.Figure, x: float, y: float, text: str, colour: str = INK, size: int = 12, anchor: str = "left"
) -> None:
    fig.add_annotation(
        x=x, y=y, text=text, showarrow=False, xanchor=anchor, yanchor="middle", font={"color": colour, "size": size}
    )


def _draw_line(fig: go.Figure, x: list[float], y: list[float], **look) -> None:
    fig.add_scatter(x=x, y=y, mode="lines", line={"color": DECODE, "width": 2, **look}, hoverinfo="skip")


def _draw_node(fig: go.Figure, name: str, top: float, files: list[str]) -> None:
    """A box with the model's name, and beside it its files as a tree."""
    is_client, middle = name == "client", top + _BOX_HEIGHT / 2
    look = {"color": WASTE, "width": 1} if is_client else {"color": INK, "width": 2}
    sides = {"x0": _BOX_LEFT, "x1": _BOX_RIGHT, "y0": top, "y1": top + _BOX_HEIGHT}
    fig.add_shape(type="rect", **sides, line=look, fillcolor="white" if is_client else TINT)
    text = name if is_client else f"<b>{name}/</b>"
    _write(fig, (_BOX_LEFT + _BOX_RIGHT) / 2, middle, text, size=13, anchor="center")
    _draw_tree(fig, files, middle)


def _draw_tree(fig: go.Figure, files: list[str], middle: float) -> None:
    for number, path in enumerate(files):
        branch = "└" if number == len(files) - 1 else "├"
        _write(fig, _FILES, middle + _ROW * (number - (len(files) - 1) / 2), f"{branch} {path}", WASTE_TEXT)


def _draw_arrow(fig: go.Figure, begin: float, end: float, lines_from: float, lines: list[tuple[str, str]]) -> None:
    """Straight down from a box to the next, with the tensors at its right."""
    _draw_line(fig, [_ARROW] * 2, [begin, end - 8])
    _write(fig, _ARROW, end - 7, "▼", DECODE, anchor="center")
    first = (lines_from + end - _ROW * (len(lines) - 1)) / 2 - 3
    for number, (text, colour) in enumerate(lines):
        _write(fig, _ARROW + 12, first + number * _ROW, text, colour)


def _draw_detour(fig: go.Figure, begin: float, end: float) -> None:
    """Past the boxes between, at the left."""
    _draw_line(fig, [_BOX_LEFT, _RAIL, _RAIL, _BOX_LEFT - 8], [begin, begin, end, end], dash="dash", width=1.5)
    _write(fig, _BOX_LEFT - 7, end, "▶", DECODE, anchor="center")


def _draw_frame(fig: go.Figure, files: list[str], places: dict[str, float]) -> None:
    """Around the models of the ensemble, with its own files."""
    ends = list(places.values())
    top, bottom = ends[0] + _BOX_HEIGHT + 14, ends[-1] - 14
    line = {"color": WASTE, "dash": "dot"}
    fig.add_shape(type="rect", x0=2, x1=_WIDTH - 2, y0=top, y1=bottom, line=line, layer="below")
    _write(fig, _ARROW + 12, top + 16, "<b>ensemble/</b>", size=13)
    own = [path.split("/", 1)[1] for path in files if path.startswith("ensemble/")]
    _draw_tree(fig, own, top + 16)
