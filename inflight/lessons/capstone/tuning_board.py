"""The dashboard of lesson 09: every knob of a deployment, and each request of the last two runs against both limits.

board = tuning_board.TuningBoard(server, brief, number=16)
board.set({"enable_kv_cache_reuse": True}).run()                     # as the buttons do
board.runs[-1].met
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from os import PathLike, fspath

import ipywidgets
import pandas as pd
import traitlets

from inflight.engine.config import POLICIES
from inflight.errors import CourseError
from inflight.lessons.capstone import service
from inflight.lessons.capstone.charts import in_words, requests_in_time
from inflight.lessons.capstone.service import Brief, Deployment, Served, Settings
from inflight.notebook.dashboard import Dashboard, Frame
from inflight.triton.server import Server

DEFAULT = Deployment()
FIRST_SEED = 101


class TuningBoard(Dashboard):
    """Edits a deployment, loads it, sends a run of the service's requests, and shows which were in time.

    A row of the table below is a run; one that fails is a row with its error.

    Parameters
    ----------
    server : Server
        Of `service.start`.
    brief : Brief
    number : int
        Requests of a run.
    scheduler : path, optional
        A scheduler of one's own, offered beside the policy's.

    Attributes
    ----------
    runs : list of Served
        Runs that ended, in their order.
    """

    def __init__(self, server: Server, brief: Brief, number: int, scheduler: PathLike | str | None = None):
        self.brief, self.runs, self._number = brief, list[Served](), number
        self._rows, self._table = list[dict](), ipywidgets.HTML()
        super().__init__(_controls(scheduler), self._serve, server, "Tune the deployment")
        self.children = [*self.children, self._table]
        self.set(DEFAULT)

    @property
    def deployment(self) -> Deployment:
        """What the controls say."""
        values = {field.name: self.controls[field.name].value for field in fields(Deployment)}
        return Deployment(**{name: value or getattr(DEFAULT, name) for name, value in values.items()})

    def set(self, settings: Settings, load: float = 1.0) -> TuningBoard:
        """Put settings into the controls; what is not named is as by default."""
        chosen = service.deployment(settings)
        for name, control in self.controls.items():
            value = load if name == "load" else getattr(chosen, name)
            try:
                control.value = "" if value is None else value
            except traitlets.TraitError:
                raise CourseError(f"This dashboard does not offer {value!r} for {name}.") from None
        return self

    def _serve(self, server: Server, load: float, **_knobs) -> Iterator[Frame]:
        chosen, brief = self.deployment, replace(self.brief, rate=load * self.brief.rate)
        seed = FIRST_SEED + len(self._rows)  # other articles at other times: nobody tunes to the luck of one run
        row = {"run": len(self._rows) + 1, "settings": str(chosen), "load": f"{load:g} ×"}
        try:
            for so_far in service.follow(server, chosen, brief, seed, self._number):
                if isinstance(so_far, Served):
                    self.runs.append(so_far)
                    self._add(row | so_far.row())
                else:
                    self._say(f"{so_far} of {self._number} requests" if so_far else "Loading the deployment")
                yield self._shown()
        except CourseError as error:
            self._add(row | {"error": str(error).splitlines()[0]})
            raise

    def _shown(self) -> Frame:
        """The last two runs."""
        first = max(0, len(self.runs) - 2)
        runs = {
            f"run {number}, {run.brief.rate / self.brief.rate:g} × the load": run
            for number, run in enumerate(self.runs[first:], first + 1)
        }
        return Frame(requests_in_time(runs, self.brief), in_words(runs))

    def _add(self, row: dict) -> None:
        self._rows.append(row)
        table = pd.DataFrame(self._rows, dtype=object).fillna("")
        shown = table.to_html(index=False, border=0, justify="left")
        self._table.value = re.sub("<(t[hd])>", r'<\1 style="padding: 2px 8px; text-align: left">', shown)

    def _result(self) -> str:
        if not self.runs or self._stopping.is_set():  # a run that was stopped adds nothing
            return ""
        return f"{self.runs[-1].met} of {self._number} requests in time."


def _controls(scheduler: PathLike | str | None) -> dict[str, ipywidgets.ValueWidget]:
    """One for the load, and one for each knob; None is "" there, which a drop-down list tells from nothing chosen."""
    off_or_on = [("off", False), ("on", True)]
    mine = [] if scheduler is None else [("mine", fspath(scheduler))]
    offered: dict[str, Sequence] = {
        "load": [("as in the contract", 1.0), ("twice as high", 2.0)],
        "max_batch_size": [4, 8, 16],
        "max_num_tokens": [128, 256, 512, 2048],
        "kv_cache_quant_algo": [("none", ""), "INT8"],
        "enable_kv_cache_reuse": off_or_on,
        "enable_chunked_context": off_or_on,
        "batch_scheduler_policy": POLICIES,
        "scheduler_path": [("the policy's", ""), *mine],
        "max_queue_size": [("no limit", 0), 1, 2, 4, 8, 16],
    }
    controls: dict[str, ipywidgets.ValueWidget] = {
        name: ipywidgets.Dropdown(
            options=[each if isinstance(each, tuple) else (str(each), each) for each in options], description=name
        )
        for name, options in offered.items()
    }
    time = ipywidgets.BoundedIntText(0, min=0, max=10**6, step=500, description="allotted_time_ms")
    return controls | {"allotted_time_ms": time}
