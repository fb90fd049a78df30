"""A playground: asks a running server, and shows the answer while it is made."""

from __future__ import annotations

import html
from collections.abc import Generator

import ipywidgets
import pandas as pd

from inflight.notebook.charts.marks import counted
from inflight.notebook.charts.palette import DECODE
from inflight.notebook.widgets.dashboard import Dashboard
from inflight.triton.client.client import Answer, Client
from inflight.triton.serving.server import Server

MOST_RUNS = 6  # runs whose figures a playground shows


class Playground(Dashboard):
    """Asks a running server and shows the answer while it is made.

    Parameters
    ----------
    server : Server
        Its `ensemble` is decoupled.

    Attributes
    ----------
    prompt, max_tokens, temperature, top_k : widget
        The controls of a request: text and options.
    text : HTML
        The answer so far.
    frame : Answer or None
        The same with its times.
    runs : list of dict
        The figures of the runs that have ended; the table below the answer shows the last ones.
    """

    def __init__(self, server: Server):
        whole_row = {"grid_area": "auto / 1 / auto / -1"}  # a grid_column would go with ipywidgets' empty grid_area
        prompt = "Write a short story about a lighthouse."
        self.prompt = ipywidgets.Textarea(prompt, description="Prompt", layout=whole_row)
        self.max_tokens = ipywidgets.IntSlider(120, 1, 400, description="Max tokens")
        self.temperature = ipywidgets.FloatSlider(0.7, min=0, max=2, step=0.1, description="Temperature")
        self.top_k = ipywidgets.IntSlider(40, 1, 200, description="top_k")
        self.text = ipywidgets.HTML()
        self.runs: list[dict[str, str]] = []
        controls = {name: getattr(self, name) for name in ("prompt", "max_tokens", "temperature", "top_k")}
        super().__init__(controls, self._ask, server, "Playground: ask the server", self.text)

    def __repr__(self) -> str:
        return (
            f"Playground: a prompt ({self.prompt.value!r}), sliders for max_tokens, temperature and top_k, buttons "
            "Run and Stop; the answer appears as it is made."
        )

    def _ask(self, server: Server, prompt: str, max_tokens: int, **sampling) -> Generator[Answer, None, None]:
        self.frame = None
        self._say("Waiting for the first token")
        self._show_text("")
        with Client(server.grpc_url) as client:
            stream = client.stream(prompt, max_tokens, **sampling)
            try:
                for _ in stream:
                    yield stream.answer
            finally:
                stream.cancel()

    def _draw(self, frame: Answer) -> None:
        self.frame = frame
        self._show_text(frame.text)
        self._say(f"{counted(len(frame.times_s), 'piece')} so far")

    def _show_text(self, text: str) -> None:
        look = f"white-space: pre-wrap; border-left: 4px solid {DECODE}; padding: 4px 12px; min-height: 1.5em"
        self.text.value = f'<div aria-live="polite" style="{look}">{html.escape(text)}</div>'

    def _result(self) -> str:
        if self.frame is None:
            return "The model ended its answer at once."
        count, gaps = len(self.frame.times_s), self.frame.inter_token_s
        pieces = counted(count, "piece")
        figures = {
            "TTFT": f"{self.frame.time_to_first_s * 1000:.0f} ms",
            "TPOT": f"{sum(gaps) / len(gaps) * 1000:.1f} ms" if gaps else "none, of a single piece",
            "end-to-end": f"{self.frame.latency_s:.2f} s",
        }
        self.runs.append({"prompt": f"{len(self.prompt.value):,} characters", "answer": pieces, **figures})
        table = pd.DataFrame(self.runs, index=range(1, len(self.runs) + 1)).rename_axis("run")
        self.words.value = table.tail(MOST_RUNS).to_html(border=0, justify="left")
        said = ", ".join(f"{name} {figure}" for name, figure in figures.items())
        return f"{pieces}, {said}, {count / self.frame.latency_s:.0f} pieces/s."
