"""Lesson 09: what a deployment does as the rate of arrivals rises, and where it breaks."""

import math

import plotly.graph_objects as go

from inflight.notebook.palette import DECODE, INK, PREFILL, REQUEST, WASTE, WASTE_TEXT, as_text

GOOD, OVER = REQUEST[0], REQUEST[3]
_MS = [digit * 10**power for power in range(7) for digit in (1, 2, 5)]
TICKS = {"tickvals": _MS, "ticktext": [f"{value:,}" for value in _MS]}
TIMES = {"ttft_ms": ("TTFT", PREFILL), "latency_ms": ("end-to-end latency", DECODE), "itl_ms": ("ITL", REQUEST[1])}


def load_sweep(result: dict) -> go.Figure:
    """Requests a second that are answered, and answered in time, by those that come; below, how long they take.

    Points are medians over the rounds, bars from the least to the most. The knee is the highest rate up to which the
    objective was kept; where requests come faster than they are answered, the server is over its limit.

    Parameters
    ----------
    result : dict
        From `sweep.summary`.
    """
    rows, fig = result["rows"], go.Figure()
    rates = [row["rate"] for row in rows]
    most = 1.06 * max(rates)
    fig.add_scatter(
        x=[0, most],
        y=[0, most],
        mode="lines",
        name="all that come",
        line={"color": WASTE, "dash": "dot"},
        hovertemplate="as many requests answered as come<extra></extra>",
    )
    _rates(fig, rows, "served_per_s", "answered", DECODE, "requests answered a second")
    _rates(fig, rows, "goodput_per_s", "goodput", GOOD, "a second answered within the objective")
    for column, (name, colour) in TIMES.items():
        _times(fig, rows, column, name, colour)
    _mark_limits(fig, result, most)
    _mark_objective(fig, result, most)
    top = 1.12 * max(_most(rows, "served_per_s_max"), _most(rows, "goodput_per_s_max"), rates[0])
    fig.update_layout(
        xaxis={"range": [0, most], "anchor": "y", "showticklabels": False},
        yaxis={"domain": [0.5, 1], "range": [0, top], "title": "requests a second"},
        xaxis2={
            "range": [0, most],
            "anchor": "y2",
            "matches": "x",
            "title": "requests that come a second (✕: over the limit)",
        },
        yaxis2={
            "domain": [0, 0.43],
            "type": "log",
            "range": _log_range(rows, result),
            "title": "P99 (ms, log scale)",
            **TICKS,
        },
        height=560,
        margin={"l": 76, "r": 28, "t": 36},
        meta={"device": next(iter(result["devices"].values()))},
    )
    return fig


def load_sweep_summary(result: dict) -> str:
    """The picture of `load_sweep` in a paragraph."""
    rows = result["rows"]
    first, last = rows[0], rows[-1]
    knee = result["knee"]
    parts = [
        f"Requests answered a second by requests that come, from {first['rate']:.3g} to {last['rate']:.3g} a second: "
        f"{first['served_per_s_median']:.2f} at the lowest, {last['served_per_s_median']:.2f} at the highest",
        "no rate kept the objective" if knee is None else f"the objective was kept up to {knee:.3g} a second, the knee",
        f"P99 of the end-to-end latency rises from {first['latency_ms_p99_median']:,.0f} to "
        f"{last['latency_ms_p99_median']:,.0f} ms",
    ]
    capacity = result["capacity"]
    if capacity["measured"] is not None:
        parts.append(f"over its limit the server answers {capacity['measured']['median']:.2f} a second")
    if capacity["predicted"] is not None:
        parts.append(f"{capacity['predicted']:.2f} were predicted from the cost of an iteration")
    return f"{'; '.join(parts)}."


def _rates(fig: go.Figure, rows: list[dict], key: str, name: str, colour: str, unit: str) -> None:
    middle = [row[f"{key}_median"] for row in rows]
    fig.add_scatter(
        x=[row["rate"] for row in rows],
        y=middle,
        name=name,
        mode="lines+markers",
        line={"color": colour},
        marker={"symbol": ["x" if row["over_limit"] else "circle" for row in rows], "size": 8, "color": colour},
        error_y=_bars(rows, key, middle, colour),
        text=[_point(row, key) for row in rows],
        hovertemplate=f"%{{text}} {unit}<extra>{name}</extra>",
    )


def _times(fig: go.Figure, rows: list[dict], column: str, name: str, colour: str) -> None:
    known = [row for row in rows if row[f"{column}_p99_median"]]
    if not known:
        return
    middle = [row[f"{column}_p99_median"] for row in known]
    fig.add_scatter(
        x=[row["rate"] for row in known],
        y=middle,
        name=f"P99 of {name}",
        mode="lines+markers",
        line={"color": colour, "dash": "dash"},
        marker={"symbol": ["x" if row["over_limit"] else "circle" for row in known], "size": 8, "color": colour},
        error_y=_bars(known, f"{column}_p99", middle, colour),
        text=[
            f"{row['rate']:.3g} requests come a second<br>{name}: P50 {row[f'{column}_p50_median']:,.0f} ms, "
            f"P90 {row[f'{column}_p90_median']:,.0f} ms, P99 {row[f'{column}_p99_median']:,.0f} ms<br>"
            f"P99 of {row['rounds']} rounds: {row[f'{column}_p99_min']:,.0f} to {row[f'{column}_p99_max']:,.0f} ms"
            for row in known
        ],
        hovertemplate="%{text}<extra></extra>",
        xaxis="x2",
        yaxis="y2",
    )


def _bars(rows: list[dict], key: str, middle: list[float], colour: str) -> dict:
    return {
        "type": "data",
        "symmetric": False,
        "array": [row[f"{key}_max"] - value for row, value in zip(rows, middle)],
        "arrayminus": [value - row[f"{key}_min"] for row, value in zip(rows, middle)],
        "color": colour,
        "thickness": 1.2,
    }


def _point(row: dict, key: str) -> str:
    over = "<br>over its limit" if row["over_limit"] else ""
    return (
        f"{row['rate']:.3g} requests come a second{over}<br>{100 * row['met_share_median']:.0f} % meet the objective"
        f"<br>{row[f'{key}_median']:.2f} ({row[f'{key}_min']:.2f} to {row[f'{key}_max']:.2f})"
    )


def _mark_limits(fig: go.Figure, result: dict, most: float) -> None:
    """The knee, as a line through both panels; the capacity, measured and predicted, as levels of the upper one."""
    if result["knee"] is not None:
        said = f"knee: {result['knee']:.3g} requests/s"
        for suffix, ends in (("", [0, 10 * most]), ("2", [_MS[0], _MS[-1]])):
            fig.add_scatter(
                x=[result["knee"]] * 2,
                y=ends,
                mode="lines",
                name="knee",
                legendgroup="knee",
                showlegend=False,
                line={"color": GOOD, "width": 1.5},
                hovertemplate=f"{said}<extra></extra>",
                xaxis=f"x{suffix}",
                yaxis=f"y{suffix}",
            )
        note = {"xref": "x", "x": result["knee"], "yref": "paper", "y": 1, "xanchor": "center", "yanchor": "bottom"}
        fig.add_annotation(**note, showarrow=False, font={"color": as_text(GOOD)}, text=f"<b>{said}</b>")
    capacity = result["capacity"]
    measured = None if capacity["measured"] is None else capacity["measured"]["median"]
    for name, level, colour, dash in (
        ("capacity, measured", measured, OVER, "solid"),
        ("capacity, predicted from an iteration's cost", capacity["predicted"], INK, "dash"),
    ):
        if level is not None:
            fig.add_scatter(
                x=[0, most / 2, most],
                y=[level] * 3,
                mode="lines",
                name=name,
                line={"color": colour, "dash": dash, "width": 1.5},
                hovertemplate=f"{name}: {level:.2f} requests a second<extra></extra>",
            )


def _mark_objective(fig: go.Figure, result: dict, most: float) -> None:
    """Each limit as a thin line of the colour of what it limits, named at its left end."""
    for part in filter(None, (result["settings"].get("objective") or "").split(",")):
        name, _, limit = part.strip().partition("=")
        title, colour = TIMES[f"{name}_ms"]
        said = f"{title} at most {float(limit):g} ms"
        fig.add_scatter(
            x=[0, most / 2, most],
            y=[float(limit)] * 3,
            mode="lines",
            name=said,
            showlegend=False,
            line={"color": colour, "width": 1, "dash": "dot"},
            hovertemplate=f"the objective: {said}<extra></extra>",
            xaxis="x2",
            yaxis="y2",
        )
        fig.add_annotation(
            xref="x2",
            x=0,
            yref="y2",
            y=math.log10(float(limit)),
            xanchor="left",
            yanchor="bottom",
            showarrow=False,
            text=said,
            font={"size": 11, "color": WASTE_TEXT},
        )


def _log_range(rows: list[dict], result: dict) -> list[float]:
    """The powers of ten between which all times and limits lie, with some room."""
    objective = (result["settings"].get("objective") or "").split(",")
    limits = [float(part.partition("=")[2]) for part in objective if part]
    times = [row[f"{column}_p99_{end}"] for row in rows for column in TIMES for end in ("min", "max")]
    known = [value for value in [*times, *limits] if value]
    return [math.log10(min(known)) - 0.15, math.log10(max(known)) + 0.2] if known else [0, 3]


def _most(rows: list[dict], key: str) -> float:
    return max(row[key] for row in rows)
