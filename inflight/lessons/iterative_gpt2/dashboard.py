"""The dashboard of the lesson: prompts that race for one model."""

from __future__ import annotations

import contextlib
import html
from collections.abc import Generator
from typing import NamedTuple

import ipywidgets
import pandas as pd
import plotly.graph_objects as go

from inflight.lessons.iterative_gpt2 import charts, gpt2_client
from inflight.notebook.widgets.dashboard import Dashboard
from inflight.triton import repository
from inflight.triton.serving.server import Server


class RaceSoFar(NamedTuple):
    """The tokens that have arrived. Their table, picture and words are made when asked for: most are never drawn."""

    model: str
    prompts: list[str]
    offset_s: float
    arrived: list[gpt2_client.Token]
    before: RaceSoFar | None = None

    @property
    def tokens(self) -> pd.DataFrame:
        return gpt2_client.table(self.arrived)

    @property
    def offsets_s(self) -> list[float]:
        return [number * self.offset_s for number in range(len(self.prompts))]

    @property
    def figure(self) -> go.Figure:
        """Tokens of the race over time, and above them those of the one before, if there was one."""
        races = {f"now: {self.title}": self}
        if self.before is not None:
            races = {f"before: {self.before.title}": self.before, **races}
        return charts.race(
            {title: race.tokens for title, race in races.items()},
            {title: race.offsets_s for title, race in races.items()},
        )

    @property
    def title(self) -> str:
        return f"{self.model}, streams sent at {', '.join(f'{at:.1f}' for at in self.offsets_s)} s"

    @property
    def alt(self) -> str:
        return f"{self.model}: {gpt2_client.summary(self.tokens)}."

    @property
    def words(self) -> str:
        """Each prompt, and in bold the answer so far."""
        answers = gpt2_client.standings(self.tokens).set_index("stream")["text"]
        texts = [
            f"{number}. {html.escape(prompt)}<b>{html.escape(answers.get(number, ''))}</b>"
            for number, prompt in enumerate(self.prompts, 1)
        ]
        return f"<p>{html.escape(self.alt)}</p>" + "".join(
            f'<p style="white-space: pre-wrap">{text}</p>' for text in texts
        )


def board(server: Server, models: tuple[str, ...] = repository.GPT2) -> Dashboard:
    """Choose model, number of streams and their start offset: the prompts race, and every token is seen as it comes.

    Parameters
    ----------
    server : Server
        Runs, and serves `models`.
    models : tuple of str
        Which to choose from; the first is the default.
    """
    before: RaceSoFar | None = None

    def race(
        server: Server, model: str, streams: int, offset_s: float, max_tokens: int
    ) -> Generator[RaceSoFar, None, None]:
        nonlocal before
        so_far = RaceSoFar(model, list(gpt2_client.PROMPTS[:streams]), offset_s, [], before)
        racing = gpt2_client.race(server.grpc_url, model, so_far.prompts, max_tokens, offset_s)
        with contextlib.closing(racing):
            for arrived in racing:
                so_far.arrived.extend(arrived)
                yield so_far
        before = so_far._replace(before=None)

    controls = {
        "model": ipywidgets.Dropdown(options=models, description="model"),
        "streams": ipywidgets.IntSlider(2, 1, len(gpt2_client.PROMPTS), description="streams"),
        "offset_s": ipywidgets.FloatSlider(0.1, min=0, max=3, step=0.1, description="start offset (s)"),
        "max_tokens": ipywidgets.IntSlider(192, 8, 256, 8, description="max_tokens"),
    }
    return Dashboard(controls, race, server, "Race: prompts that share one model")
