"""The course's pictures: one look, and one way to show a figure wherever a notebook is read.

A figure function takes DataFrames and returns a plotly figure; `show(figure, alt)` puts it into a notebook as plotly
(JupyterLab, the pages of `make course`), as a static SVG (pages that run no script) and as words.
"""

import html
import itertools

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import plotly.io as pio
from IPython.display import HTML, display

from inflight.errors import CourseError
from inflight.palette import DECODE, FONT, GRID, HEIGHT, INK, MARGIN, PREFILL, REQUEST, WASTE
from inflight.static_chart import static_svg

_AXIS = {"gridcolor": GRID, "linecolor": INK, "zeroline": False, "automargin": True}
pio.templates["course"] = go.layout.Template(
    layout={
        "font": {"family": FONT, "size": 14, "color": INK},
        "colorway": [DECODE, PREFILL, *REQUEST, WASTE],
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "margin": MARGIN,
        "xaxis": _AXIS,
        "yaxis": _AXIS,
        "title": {"x": 0, "xref": "paper", "y": 1, "yref": "container", "yanchor": "top", "pad": {"t": 10}},
        "legend": {"orientation": "h", "x": 0, "yref": "container", "yanchor": "bottom", "traceorder": "normal"},
    }
)
pio.templates.default = "course"


def show(fig: go.Figure, alt: str) -> None:
    """Display `fig` in the course's look: plotly, a static SVG and `alt` in one output.

    Args:
        alt: the picture in a sentence or two, for those who do not see it: what the axes are and what it shows.

    Raises:
        CourseError: `alt` is not a summary.
        NotImplementedError: the static picture cannot draw a part of `fig`; names the part.
    """
    if len(alt.split()) < 6:
        raise CourseError(f"show() got alt={alt!r}; say in a sentence what the picture shows, with its figures.")
    fig = go.Figure(fig).update_layout(template="course")
    height = fig.layout.height or HEIGHT
    fig.update_layout(height=height)
    if fig.layout.legend.y is None:  # between the title and the titles of subplots
        fig.update_layout(legend_y=1 - 54 / height)
    spec = fig.to_dict()
    plotly = {"data": spec["data"], "layout": spec["layout"], "config": {"displaylogo": False, "responsive": True}}
    bundle = {"application/vnd.plotly.v1+json": plotly, "image/svg+xml": static_svg(fig, alt), "text/plain": alt}
    display(bundle, raw=True)


# Tables ---------------------------------------------------------------------------------------------------------------


def table(frame: pd.DataFrame, decimals: int = 1) -> HTML:
    """`frame` without its index: text to the left, numbers to the right, whole texts."""
    def cell(tag: str, value: object, is_number: bool) -> str:
        look = f"text-align: {'right' if is_number else 'left'}; vertical-align: top"
        places = decimals if isinstance(value, float) else 0
        text = f"{value:,.{places}f}" if is_number and tag == "td" else str(value)
        return f'<{tag} style="{look}">{html.escape(text)}</{tag}>'

    numeric = [pd.api.types.is_numeric_dtype(kind) for kind in frame.dtypes]
    head = "".join(cell("th", name, number) for name, number in zip(frame.columns, numeric, strict=True))
    rows = ["".join(cell("td", value, number) for value, number in zip(row, numeric, strict=True))
            for row in frame.itertuples(index=False, name=None)]
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return HTML(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")


# Lesson 00: the path of one request, the map of the course -----------------------------------------------------------

_LANES = ("postprocessing", "tensorrt_llm", "preprocessing", "client")  # from the bottom up
_STEPS = {"travel": WASTE, "text to tokens": REQUEST[0], "prompt": PREFILL, "token": DECODE,
          "tokens to text": REQUEST[1]}  # fmt: skip


def request_path(path: pd.DataFrame) -> go.Figure:
    """One request through client and models over time; `path` as `inflight.request_path.measure` gives it."""
    fig = go.Figure()
    for what, colour in _STEPS.items():
        rows = path[path["what"] == what]
        fig.add_bar(x=rows["end_ms"] - rows["start_ms"], base=rows["start_ms"],
                    y=[_LANES.index(lane) for lane in rows["lane"]], width=0.42, orientation="h",
                    marker={"color": colour, "line": {"color": "white", "width": 1}},
                    name=what, showlegend=False)
    arrivals = path[path["what"] == "arrival"]["end_ms"]
    fig.add_scatter(x=arrivals, y=[3] * len(arrivals), mode="markers", showlegend=False,
                    marker={"symbol": "diamond", "size": 10, "color": REQUEST[1]}, name="a piece of text arrives")
    _draw_first_word(fig, path)
    ends = path["end_ms"].max()
    fig.update_xaxes(title="milliseconds since Enter", range=[-0.01 * ends, 1.04 * ends])
    fig.update_yaxes(tickvals=list(range(4)), ticktext=list(_LANES), range=[-0.7, 3.9], showgrid=False)
    return fig.update_layout(title="One request, from Enter to the last word", barmode="overlay", height=430,
                             margin={"l": 120, "r": 24, "t": 56, "b": 76})


def _draw_first_word(fig: go.Figure, path: pd.DataFrame) -> None:
    """The way of the first word as one line through the lanes, and the names of the steps beside it."""
    begins = path.groupby("what")["start_ms"].min()
    tokenized, computed = begins["text to tokens"], begins["prompt"]
    decoded, arrived = begins["tokens to text"], begins["arrival"]
    way = [(0, 3), (tokenized, 3), (tokenized, 2), (computed, 2), (computed, 1), (decoded, 1), (decoded, 0),
           (arrived, 0), (arrived, 3)]
    fig.add_scatter(x=[x for x, _ in way], y=[y for _, y in way], mode="lines", line={"color": INK, "width": 1.5},
                    showlegend=False, name="the first word")
    gap = path["end_ms"].max() * 0.012
    tokens = path[path["what"] == "token"]
    notes = [(arrived, 3.42, f"<b>first word: {arrived:.0f} ms</b>", "left", INK), (0, 3.42, "Enter", "left", INK),
             (computed + gap, 2, "text → tokens", "left", INK), (computed + gap, 1.38, "prompt", "left", INK),
             (max(tokens["start_ms"].min(), arrived) + gap, 1.38, f"{len(tokens)} iterations, one token each", "left",
              INK),
             (arrived + gap, -0.42, "tokens → text, piece by piece", "left", INK)]
    for x, y, text, anchor, colour in notes:
        fig.add_annotation(x=x, y=y, text=text, showarrow=False, xanchor=anchor, yanchor="middle",
                           font={"color": colour, "size": 13})


def request_path_summary(path: pd.DataFrame, first_word: pd.DataFrame) -> str:
    """The picture of `request_path` in a paragraph."""
    parts = ", ".join(f"{row.stage} {row.ms:.1f} ms" for row in first_word.itertuples())
    arrivals = path[path["what"] == "arrival"]["end_ms"]
    return (f"Four lanes over time: client, preprocessing, tensorrt_llm, postprocessing. The first word goes through "
            f"all of them and arrives after {first_word['ms'].sum():.0f} ms: {parts}. Then tensorrt_llm makes a token an "
            f"iteration, and each is turned into text while the next is computed; the last of {len(arrivals)} pieces "
            f"arrives after {arrivals.max():.0f} ms.")


def course_map(lessons: pd.DataFrame) -> HTML:
    """The lessons as cards, side by side by `part`.

    Args:
        lessons: `number`, `title`, `part`, `question`, `minutes`, `link` (blank while the lesson is planned).
    """
    columns = "".join(
        f'<div style="flex: 1 1 14em; min-width: 14em">'
        f'<div style="font-weight: 600; margin: 4px">{html.escape(part)}</div>'
        f'{"".join(map(_card, rows.to_dict("records")))}</div>' for part, rows in lessons.groupby("part", sort=False))
    return HTML(f'<div style="display: flex; flex-wrap: wrap; gap: 12px">{columns}</div>')


def _card(lesson: dict) -> str:
    title = f"{lesson['number']} · {html.escape(lesson['title'])}"
    if lesson["link"]:
        title = f'<a href="{lesson["link"]}">{title}</a>'
    colour, state = (DECODE, "") if lesson["link"] else (WASTE, " · planned")
    look = f"border-left: 6px solid {colour}; padding: 4px 10px; margin: 6px 0; background: #F7F7F7; color: {INK}"
    return (f'<div style="{look}">'
            f'<div style="font-weight: 600">{title}</div><div>{html.escape(lesson["question"])}</div>'
            f'<div style="color: #555555">{lesson["minutes"]} min{state}</div></div>')


# Lesson 01: bytes -----------------------------------------------------------------------------------------------------

_KINDS = {"feed-forward": "#444444", "embedding": "#6E6E6E", "attention": "#9A9A9A", "norms": "#C8C8C8"}
MB, GB = 1e6, 1e9


def engine_bytes(weights: pd.DataFrame, kv_per_user: pd.DataFrame, memory_bytes: float) -> go.Figure:
    """Above, weights and the KV cache of a few users on one scale; below, the cache growing until memory is full.

    `weights` has `kind`, `bytes`; `kv_per_user` has `tokens`, `bytes`: the KV cache of one user with that many tokens,
    the longest first.
    """
    fig = go.Figure()
    _draw_bars(fig, weights, kv_per_user.iloc[0])
    for row in kv_per_user.itertuples():
        _draw_growth(fig, row.tokens, row.bytes / GB, weights["bytes"].sum() / GB, memory_bytes / GB)
    most = _users_that_fit(memory_bytes / GB, weights["bytes"].sum() / GB, kv_per_user["bytes"].min() / GB)
    fig.add_shape(type="line", xref="x2", yref="y2", x0=0, x1=most * 1.15, y0=memory_bytes / GB, y1=memory_bytes / GB,
                  line={"color": REQUEST[3], "width": 2, "dash": "dash"})
    fig.add_annotation(xref="x2", yref="y2", x=0, y=memory_bytes / GB, xanchor="left", yanchor="bottom",
                       text=f"free memory: {memory_bytes / GB:.1f} GB", yshift=22, showarrow=False,
                       font={"color": REQUEST[3]})
    fig.update_layout(
        title="What fills the memory", barmode="stack", height=640, margin={"l": 150, "r": 30, "t": 56, "b": 76},
        xaxis={"title": "megabytes", "anchor": "y"}, yaxis={"domain": [0.68, 1], "showgrid": False},
        xaxis2={"title": "users at the same time", "anchor": "y2", "range": [0, most * 1.15]},
        yaxis2={"title": "gigabytes", "domain": [0, 0.5], "anchor": "x2", "range": [0, memory_bytes / GB * 1.3]})
    return fig


def _draw_bars(fig: go.Figure, weights: pd.DataFrame, longest: pd.Series) -> None:
    lanes, megabytes = ["KV, 4 users ", "KV, 1 user ", "weights "], longest["bytes"] / MB
    look = {"orientation": "h", "showlegend": False, "textposition": "inside", "insidetextanchor": "middle",
            "textangle": 0}  # fmt: skip
    for row in weights.itertuples():
        fig.add_bar(x=[0, 0, row.bytes / MB], y=lanes, name=row.kind,
                    marker={"color": _KINDS[row.kind], "line": {"color": "white", "width": 1}}, **look)
    for user in range(4):
        fig.add_bar(x=[megabytes, 0 if user else megabytes, 0], y=lanes, name=f"user {user + 1}",
                    text=[f"{megabytes:.0f}", "", ""],
                    marker={"color": DECODE, "line": {"color": "white", "width": 1}}, **look)
    kinds = ", ".join(f"{row.kind} {row.bytes / MB:,.1f}" for row in weights.itertuples())
    for lane, end, text in ((lanes[2], weights["bytes"].sum() / MB, kinds),
                            (lanes[1], megabytes, f"{megabytes:.1f}: {longest['tokens']:,.0f} tokens")):
        fig.add_annotation(x=end, y=lane, text=text, xanchor="left", yanchor="middle", xshift=8, showarrow=False)


def _users_that_fit(memory: float, weights: float, per_user: float) -> int:
    return max(1, int((memory - weights) / per_user))


def _draw_growth(fig: go.Figure, tokens: int, per_user: float, weights: float, memory: float) -> None:
    """A line from the weights alone to full memory, with the number of users at its end."""
    users = _users_that_fit(memory, weights, per_user)
    fig.add_scatter(x=[0, users], y=[weights, weights + users * per_user], mode="lines+markers+text", xaxis="x2",
                    yaxis="y2", text=["", f"{users:,} × {tokens:,} tokens"], textposition="top center",
                    showlegend=False,
                    line={"color": DECODE, "width": 2}, marker={"color": DECODE, "size": 8},
                    name=f"{tokens} tokens a user")


def engine_bytes_summary(weights: pd.DataFrame, kv_per_user: pd.DataFrame, memory_bytes: float) -> str:
    """The picture of `engine_bytes` in a paragraph."""
    total, kinds = weights["bytes"].sum(), ", ".join(f"{row.kind} {row.bytes / MB:.1f}" for row in weights.itertuples())
    ends = "; ".join(f"{_users_that_fit(memory_bytes, total, row.bytes):,} users of {row.tokens:,} tokens"
                     for row in kv_per_user.itertuples())
    first = kv_per_user.iloc[0]
    return (f"Above, in megabytes: the weights take {total / MB:.1f} ({kinds}), and the KV cache of a single user with "
            f"{first['tokens']:,.0f} tokens {first['bytes'] / MB:.1f}, {first['bytes'] / total:.2f} times as much as "
            f"the whole model. Below, memory against users, one line a length: {memory_bytes / GB:.1f} GB are full "
            f"at {ends}.")


# Lesson 02: the repository and its ensemble ---------------------------------------------------------------------------

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
    flows = {pair: _flow_lines(rows) for pair, rows in edges.groupby(["source", "target"], sort=False)}
    gaps = [len(flows.get(pair, [])) * _ROW + 40 for pair in itertools.pairwise(nodes)]
    height = sum(gaps) + len(nodes) * _BOX["height"] + 20
    tops = [height - 10 - sum(gaps[:i]) - i * _BOX["height"] for i in range(len(nodes))]
    layout = {"width": _MAP_WIDTH, "height": height, "margin": dict.fromkeys("lrtb", 0), "dragmode": False}
    fig = go.Figure(layout=layout)
    for axis, end in (("xaxis", _MAP_WIDTH), ("yaxis", height)):
        fig.update_layout({axis: {"visible": False, "range": [0, end], "fixedrange": True}})
    # Without a trace plotly draws no plot area, and with it no shapes.
    fig.add_scatter(x=[0], y=[0], mode="markers", marker={"opacity": 0, "size": 1}, hoverinfo="skip", showlegend=False)
    frame = {"x0": _BOX["left"] - 22, "x1": _MAP_WIDTH - 8, "y0": tops[-1] + 8, "y1": tops[0] - _BOX["height"] - 8}
    fig.add_shape(type="rect", **frame, line={"color": WASTE, "dash": "dot"})
    _write(fig, frame["x1"] - 8, frame["y1"] - 14, "ensemble", "right", WASTE)
    places = dict(zip(nodes, tops, strict=True))
    for name, top in places.items():
        _draw_node(fig, name, top)
    for (source, target), lines in flows.items():
        neighbours = nodes.index(target) == nodes.index(source) + 1
        draw = _draw_arrow if neighbours else _draw_detour
        draw(fig, places[source] - _BOX["height"], places[target], lines)
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
    fig.add_annotation(x=x, y=y, text=text, showarrow=False, xanchor=anchor, yanchor="middle",
                       font={"color": colour, "size": size})


def _draw_node(fig: go.Figure, name: str, top: float) -> None:
    is_client, left = name.strip() == "client", _BOX["left"]
    line = {"color": WASTE if is_client else INK, "width": 1 if is_client else 2}
    fig.add_shape(type="rect", x0=left, x1=left + _BOX["width"], y0=top - _BOX["height"], y1=top, line=line,
                  fillcolor="white" if is_client else "#EAF3FA")
    text = name.strip() if is_client else f"<b>{name}</b>"
    _write(fig, left + _BOX["width"] / 2, top - _BOX["height"] / 2, text, "center", size=13)


def _draw_arrow(fig: go.Figure, y0: float, y1: float, lines: list[str]) -> None:
    """Straight down from a box to the next, with the tensors at its right."""
    x = _BOX["left"] + _BOX["width"] / 2
    fig.add_shape(type="line", x0=x, x1=x, y0=y0, y1=y1 + 6, line={"color": DECODE, "width": 2})
    _write(fig, x, y1 + 6, "▼", "center", DECODE)
    for index, line in enumerate(lines):
        _write(fig, x + 12, (y0 + y1) / 2 + (len(lines) / 2 - index - 0.5) * _ROW, line)


def _draw_detour(fig: go.Figure, y0: float, y1: float, lines: list[str]) -> None:
    """Around the boxes between, at the right, with the tensors outside."""
    right, line = _BOX["left"] + _BOX["width"], {"color": DECODE, "width": 1.5, "dash": "dash"}
    start, end = y0 + _BOX["height"] * 0.25, y1 - _BOX["height"] * 0.25
    for x0, x1, at, to in ((right, _LANE, start, start), (_LANE, _LANE, start, end), (_LANE, right + 8, end, end)):
        fig.add_shape(type="line", x0=x0, x1=x1, y0=at, y1=to, line=line)
    _write(fig, right + 6, end, "◀", "center", DECODE)
    for index, text in enumerate(lines):
        _write(fig, _LANE + 8, (start + end) / 2 + (len(lines) / 2 - index - 0.5) * _ROW, text)


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


# Lesson 03: when the words arrive -------------------------------------------------------------------------------------


def token_timeline(pieces: pd.DataFrame) -> go.Figure:
    """Answers on one time line: grey while there is nothing to read, a mark for each piece that arrives.

    Args:
        pieces: one row a piece: `case` (what its users share), `user`, `time_s` from sending the request. In one case
            either each answer is one piece, given whole, or each is streamed; one case is a single user's stream.
    """
    fig, names, middles, top = go.Figure(), [], [], 0.0
    for case, rows in pieces.groupby("case", sort=False):
        users = [user["time_s"].tolist() for _, user in rows.groupby("user")]
        places = [top - number for number in range(len(users))]
        _draw_answers(fig, users, places)
        if len(users) == 1 and len(users[0]) > 1:
            _mark_latencies(fig, users[0], top)
        names.append(case.replace(", ", ",<br>"))
        middles.append((places[0] + places[-1]) / 2)
        note = {"x": max(map(max, users)), "y": middles[-1], "text": _latencies(users), "xshift": 14}
        fig.add_annotation(note, xanchor="left", showarrow=False, align="left")
        top = places[-1] - 3.2
    fig.update_xaxes(title="time since the request was sent (s)", range=[0, pieces["time_s"].max() * 1.25])
    fig.update_yaxes(tickvals=middles, ticktext=names, range=[top + 2, 2.5], showgrid=False)
    return fig.update_layout(height=580, showlegend=False, margin={"l": 110, "t": 16})


def _draw_answers(fig: go.Figure, users: list[list[float]], places: list[float]) -> None:
    for place, times in zip(places, users, strict=True):
        line = {"color": WASTE, "width": 2}
        fig.add_shape(type="line", x0=0, x1=times[0], y0=place, y1=place, line=line, layer="below")
    points = [(round(time, 4), place) for place, times in zip(places, users, strict=True) for time in times]
    is_whole = len(users[0]) == 1
    marker = {"color": DECODE, "symbol": "square" if is_whole else "line-ns-open", "size": 10, "line": {"width": 1.6}}
    fig.add_scatter(x=[x for x, _ in points], y=[y for _, y in points], mode="markers", marker=marker)


def _mark_latencies(fig: go.Figure, times: list[float], place: float) -> None:
    """TTFT and one ITL above the answer at `place`, end-to-end latency below it."""
    middle = len(times) // 2
    for name, start, end, side in (("TTFT", 0, times[0], 1), ("ITL", times[middle], times[middle + 1], 1),
                                   ("end-to-end", 0, times[-1], -1)):  # fmt: skip
        fig.add_shape(type="line", x0=start, x1=end, y0=place + side, y1=place + side, line={"color": INK, "width": 3})
        anchor = {"yanchor": "bottom" if side > 0 else "top", "yshift": 2 * side}
        fig.add_annotation(x=(start + end) / 2, y=place + side, text=name, showarrow=False, **anchor)


def _latencies(users: list[list[float]]) -> str:
    """What a user of the case sees: the median over its users."""
    end_to_end = f"end-to-end {np.median([times[-1] for times in users]):.2f} s"
    if len(users[0]) == 1:
        return f"all at once<br>{end_to_end}"
    gaps = np.concatenate([np.diff(times) for times in users])
    first = f"TTFT {np.median([times[0] for times in users]) * 1000:.0f} ms"
    return f"{first}<br>ITL {np.median(gaps) * 1000:.0f} ms<br>{end_to_end}"
