"""Lesson 02: a model repository, and what flows through its ensemble."""

import itertools

import pandas as pd
import plotly.graph_objects as go

from inflight.notebook.charts.marks import area_saying, counted, line_saying, words
from inflight.notebook.palette import DECODE, INK, WASTE, WASTE_TEXT

_BOX = {"width": 140, "height": 34, "left": 206}  # pixels; the tree is left of the boxes, the labels right of them
_ROW, _LANE, _MAP_WIDTH = 19, 650, 880


def repository_map(files: list[str], edges: pd.DataFrame) -> go.Figure:
    """A model repository as a tree, and beside it the ensemble's models with the tensors that flow between them.

    Parameters
    ----------
    files : list of str
        Paths of the files within the repository, as "ensemble/config.pbtxt".
    edges : DataFrame
        One row a tensor: source, target, output, input, data_type, dims, optional; "client" is at both ends, and
        targets come in the order of the steps. Optional tensors are counted, the others named.
    """
    steps = list(dict.fromkeys(name for name in edges.target if name != "client"))
    nodes = ["client", *steps, "client "]  # the client asks at the top and is answered at the bottom
    edges = edges.assign(target=edges.target.replace("client", "client "))
    pairs = dict(iter(edges.groupby(["source", "target"], sort=False)))
    flows = {pair: _flow_lines(rows) for pair, rows in pairs.items()}
    gaps = [len(flows.get(pair, [])) * _ROW + 40 for pair in itertools.pairwise(nodes)]
    height = sum(gaps) + len(nodes) * _BOX["height"] + 20
    tops = [height - 10 - sum(gaps[:i]) - i * _BOX["height"] for i in range(len(nodes))]
    layout = {"width": _MAP_WIDTH, "height": height, "margin": dict.fromkeys("lrtb", 0), "dragmode": False}
    fig = go.Figure(layout={**layout, "meta": {"device": ""}})  # a drawing: nothing is measured
    for axis, end in (("xaxis", _MAP_WIDTH), ("yaxis", height)):
        fig.update_layout({axis: {"visible": False, "range": [0, end], "fixedrange": True}})
    frame = {"x0": _BOX["left"] - 22, "x1": _MAP_WIDTH - 8, "y0": tops[-1] + 8, "y1": tops[0] - _BOX["height"] - 8}
    fig.add_shape(type="rect", **frame, line={"color": WASTE, "dash": "dot"})
    _write(fig, frame["x1"] - 8, frame["y1"] - 14, "ensemble", "right", WASTE_TEXT)
    places = dict(zip(nodes, tops, strict=True))
    for name, top in places.items():
        _draw_node(fig, name, top, _node_in_words(name, files, edges))
    for (source, target), rows in pairs.items():
        lines = flows[source, target]
        neighbours = nodes.index(target) == nodes.index(source) + 1
        draw = _draw_arrow if neighbours else _draw_detour
        told = f"{source.strip()} → {target.strip()} · {counted(len(rows), 'tensor')}"
        draw(fig, places[source] - _BOX["height"], places[target], lines, told)
    _draw_tree(fig, files, places, frame["y1"])
    return fig


def _flow_lines(rows: pd.DataFrame) -> list[str]:
    """What is written at an arrow: each required tensor by name, type and shape, and how many more there may be."""
    lines = []
    for row in rows[~rows.optional].sort_values("output").itertuples():
        name = row.output if row.input == row.output else f"{row.output} → {row.input}"
        lines.append(f"{name}  {row.data_type} {list(row.dims)}")
    count = int(rows.optional.sum())
    return lines + ([f"and {count} optional"] if lines else [f"{count} optional"]) * (count > 0)


def _write(
    fig: go.Figure, x: float, y: float, text: str, anchor: str = "left", colour: str = INK, size: int = 12
) -> None:
    fig.add_annotation(
        x=x, y=y, text=text, showarrow=False, xanchor=anchor, yanchor="middle", font={"color": colour, "size": size}
    )


def _node_in_words(name: str, files: list[str], edges: pd.DataFrame) -> str:
    own = sum(path.startswith(f"{name}/") for path in files)
    gets, gives = (edges["target"] == name).sum(), (edges["source"] == name).sum()
    return words(
        name.strip(),
        counted(own, "file") if own else "",
        f"gets {counted(gets, 'tensor')}" if gets else "",
        f"gives {counted(gives, 'tensor')}" if gives else "",
    )


def _draw_node(fig: go.Figure, name: str, top: float, told: str) -> None:
    is_client, left = name.strip() == "client", _BOX["left"]
    right, bottom = left + _BOX["width"], top - _BOX["height"]
    fig.add_scatter(
        x=[left, right, right, left, left],
        y=[top, top, bottom, bottom, top],
        fill="toself",
        fillcolor="white" if is_client else "#EAF3FA",
        mode="lines",
        line={"color": WASTE if is_client else INK, "width": 1 if is_client else 2},
        showlegend=False,
        **area_saying(told),
    )
    text = name.strip() if is_client else f"<b>{name}</b>"
    _write(fig, left + _BOX["width"] / 2, top - _BOX["height"] / 2, text, "center", size=13)


def _draw_arrow(fig: go.Figure, y0: float, y1: float, lines: list[str], told: str) -> None:
    """Straight down from a box to the next, with the tensors at its right."""
    x = _BOX["left"] + _BOX["width"] / 2
    _draw_line(fig, [x, x, x], [y0, (y0 + y1) / 2, y1 + 6], {"color": DECODE, "width": 2}, told)
    _write(fig, x, y1 + 6, "▼", "center", DECODE)
    for index, line in enumerate(lines):
        _write(fig, x + 12, (y0 + y1) / 2 + (len(lines) / 2 - index - 0.5) * _ROW, line)


def _draw_detour(fig: go.Figure, y0: float, y1: float, lines: list[str], told: str) -> None:
    """Around the boxes between, at the right, with the tensors outside."""
    right, line = _BOX["left"] + _BOX["width"], {"color": DECODE, "width": 1.5, "dash": "dash"}
    start, end = y0 + _BOX["height"] * 0.25, y1 - _BOX["height"] * 0.25
    _draw_line(fig, [right, _LANE, _LANE, right + 8], [start, start, end, end], line, told)
    _write(fig, right + 6, end, "◀", "center", DECODE)
    for index, text in enumerate(lines):
        _write(fig, _LANE + 8, (start + end) / 2 + (len(lines) / 2 - index - 0.5) * _ROW, text)


def _draw_line(fig: go.Figure, x: list[float], y: list[float], line: dict, told: str) -> None:
    fig.add_scatter(x=x, y=y, mode="lines", line=line, showlegend=False, **line_saying(told, len(x)))


def _draw_tree(fig: go.Figure, files: list[str], places: dict[str, float], ensemble_top: float) -> None:
    """The files, each model's at the height of its box; the ensemble's at the top of its frame."""
    for model in dict.fromkeys(path.split("/")[0] for path in files):
        own = [path.split("/", 1)[1] for path in files if path.startswith(f"{model}/")]
        top = places[model] - _BOX["height"] / 2 if model in places else ensemble_top
        _write(fig, 14, top, f"<b>{model}/</b>", size=13)
        end = _BOX["left"] if model in places else _BOX["left"] - 22
        fig.add_shape(type="line", x0=146, x1=end - 4, y0=top, y1=top, line={"color": WASTE, "dash": "dot"})
        for index, path in enumerate(own, 1):
            y = top - index * _ROW
            fig.add_shape(type="line", x0=22, x1=36, y0=y, y1=y, line={"color": WASTE})
            _write(fig, 42, y, path)
        fig.add_shape(type="line", x0=22, x1=22, y0=top - 8, y1=top - len(own) * _ROW, line={"color": WASTE})
