"""The dashboard of lesson 09: every knob of a deployment, and a picture to which each run adds a point.

board = tuning_board.TuningBoard(server, brief)
board.run()                                    # as the button does
board.points[-1].keeps
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import ipywidgets
import pandas as pd
import plotly.graph_objects as go

from inflight.engine.config import POLICIES
from inflight.errors import CourseError
from inflight.lessons.capstone import service
from inflight.lessons.capstone.charts import pareto, pareto_summary
from inflight.lessons.capstone.service import Brief, Deployment, Progress, Served
from inflight.notebook.dashboard import Dashboard
from inflight.triton.server import Server

OWN = "policy"  # the scheduler that the policy names
NONE = "none"  # stands for None, which a drop-down list takes for "nothing chosen"
FIRST_SEED = 1


@dataclass(frozen=True)
class Shown:
    """What the board shows: the points so far, and what is happening."""

    points: list[Served]
    brief: Brief
    doing: str = ""

    @property
    def figure(self) -> go.Figure:
        return pareto(self.points, self.brief)

    @property
    def alt(self) -> str:
        return f"{self.doing} {pareto_summary(self.points, self.brief)}".strip()


class TuningBoard(Dashboard):
    """Edits a deployment, loads it, sends the service's requests to it, and adds a point to the picture.

    Pointing at a point names its settings, and `set` brings them back into the controls. A run that fails is a row of
    the table with its error.

    Parameters
    ----------
    server : Server
        Of `service.start`.
    brief : Brief
    schedulers : dict of str to path, optional
        Schedulers of one's own, by what they are called in the list.
    number : int, optional
        Requests of a run; by default the brief's.

    Attributes
    ----------
    points : list of Served
        Runs that ended, in their order; point 1 is the first.
    rows : list of dict
        A line for each run, failed ones too.
    """

    def __init__(
        self,
        server: Server,
        brief: Brief,
        schedulers: dict[str, str | Path] | None = None,
        number: int | None = None,
    ):
        self.brief, self.points, self.rows = brief, list[Served](), list[dict]()
        self._number = number
        self._schedulers = {OWN: None, **{name: str(path) for name, path in (schedulers or {}).items()}}
        self._table = ipywidgets.HTML()
        super().__init__(_controls(list(self._schedulers)), self._serve, server, "Tune the deployment")
        self.children = [*self.children, self._table]

    @property
    def deployment(self) -> Deployment:
        """What the controls say."""
        return self._of({name: control.value for name, control in self.controls.items()})

    def set(self, chosen: Deployment | dict) -> TuningBoard:
        """Put settings into the controls; what is not named is as by default."""
        chosen = service.deployment(chosen)
        named = {path: name for name, path in self._schedulers.items()}
        if chosen.scheduler_path not in named:
            raise CourseError(f"This board has no scheduler {chosen.scheduler_path}: give it one when you make it.")
        values = {name: getattr(chosen, name) for name in self.controls if name != "scheduler_path"}
        values |= {
            "cache_tokens": chosen.cache_tokens or 0,
            "kv_cache_quant_algo": chosen.kv_cache_quant_algo or NONE,
            "scheduler_path": named[chosen.scheduler_path],
        }
        for name, value in values.items():
            self.controls[name].value = value
        return self

    def table(self) -> pd.DataFrame:
        """A row for each run, as in the dashboard."""
        return pd.DataFrame(self.rows)

    def _of(self, values: dict) -> Deployment:
        algo = values["kv_cache_quant_algo"]
        return Deployment(**{
            **values,
            "cache_tokens": values["cache_tokens"] or None,
            "kv_cache_quant_algo": None if algo == NONE else algo,
            "scheduler_path": self._schedulers[values["scheduler_path"]],
        })  # fmt: skip

    def _serve(self, server: Server, **values) -> Iterator[Shown]:
        chosen = self._of(values)
        seed = FIRST_SEED + len(self.rows)  # other articles at other times: who tunes to one run tunes to its luck
        try:
            for so_far in service.follow(server, chosen, self.brief, seed, self._number):
                if isinstance(so_far, Progress):
                    doing = f"{so_far.done} of {so_far.total} requests" if so_far.done else "Loading the deployment"
                    self._say(doing)
                    yield Shown(self.points, self.brief, f"{doing}.")
                else:
                    self.points.append(so_far)
                    self._add({"point": str(len(self.points)), **so_far.row()})
                    yield Shown(self.points, self.brief)
        except CourseError as error:
            self._add({"point": "", "settings": str(chosen), "error": str(error).splitlines()[0]})
            raise

    def _add(self, row: dict) -> None:
        self.rows.append(row)
        self._table.value = as_table(self.rows)

    def _result(self) -> str:
        if not self.points or self._stopping.is_set():  # a run that was stopped adds no point
            return ""
        last = self.points[-1]
        return f"Point {len(self.points)} {'keeps' if last.keeps else 'does not keep'} the objective."


def as_table(rows: list[dict]) -> str:
    """Runs as an HTML table: what each came to, or why it failed."""
    names = {"point": "", "settings": "settings", "met": "in time", "goodput_per_s": "goodput (1/s)"}
    names |= {"ttft_p99_ms": "TTFT P99 (ms)", "itl_p99_ms": "ITL P99 (ms)", "kept": "objective"}
    head = "".join(f'<th scope="col" style="text-align: left; padding: 2px 8px">{name}</th>' for name in names.values())
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(map(_line, rows))}</tbody></table>"


def _line(row: dict) -> str:
    if row["error"]:
        cells = [row["point"], row["settings"]]
        rest = f'<td colspan="5" style="text-align: left; padding: 2px 8px">{html.escape(row["error"])}</td>'
    else:
        cells = [
            row["point"],
            row["settings"],
            f"{row['met']} of {row['requests']}",
            f"{row['goodput_per_s']:.2f}",
            f"{row['ttft_p99_ms']:,.0f}",
            f"{row['itl_p99_ms']:,.0f}",
            "kept" if row["keeps"] else "missed",
        ]
        rest = ""
    shown = "".join(f'<td style="text-align: left; padding: 2px 8px">{html.escape(cell)}</td>' for cell in cells)
    return f"<tr>{shown}{rest}</tr>"


def _controls(schedulers: list[str]) -> dict[str, ipywidgets.ValueWidget]:
    def number(name: str, high: int, step: int = 1, said: str = "") -> ipywidgets.BoundedIntText:
        return ipywidgets.BoundedIntText(0, min=0, max=high, step=step, description=said or name)

    def choice(name: str, options: Sequence, index: int = 0, said: str = "") -> ipywidgets.Dropdown:
        return ipywidgets.Dropdown(options=options, index=index, description=said or name)

    off_or_on = [("off", False), ("on", True)]
    return {
        "max_batch_size": choice("max_batch_size", [4, 8, 16], 1),
        "max_num_tokens": choice("max_num_tokens", [128, 256, 512, 2048], 3),
        "kv_cache_quant_algo": choice("kv_cache_quant_algo", [NONE, "INT8"]),
        "cache_tokens": number("cache_tokens", 1 << 16, 64, "KV cache tokens (0: all)"),
        "enable_kv_cache_reuse": choice("enable_kv_cache_reuse", off_or_on),
        "enable_chunked_context": choice("enable_chunked_context", off_or_on),
        "batch_scheduler_policy": choice(
            "batch_scheduler_policy", POLICIES, POLICIES.index(Deployment().batch_scheduler_policy)
        ),
        "scheduler_path": choice("scheduler_path", schedulers, said="scheduler"),
        "max_queue_size": number("max_queue_size", 256),
        "allotted_time_ms": number("allotted_time_ms", 1 << 20, 500),
        "instances": choice("instances", [1, 2], said="instances (text)"),
    }
