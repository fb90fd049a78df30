"""The dashboard of the lesson: prompts that race for one model."""

from __future__ import annotations

import contextlib
import html
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import ipywidgets
import pandas as pd
import plotly.graph_objects as go

from inflight.bench import gpt2_client
from inflight.lessons.iterative_gpt2 import charts
from inflight.notebook.dashboard import Dashboard
from inflight.notebook.panel import WRAP
from inflight.triton import repository
from inflight.triton.server import Server

MAX_LANES = 8


class RaceSoFar(NamedTuple):
    """The tokens that have arrived. Their table, picture and words are made when asked for: most are never drawn."""

    model: str
    offsets_s: Sequence[float]
    arrived: list[gpt2_client.Token]
    before: RaceSoFar | None = None

    @property
    def tokens(self) -> pd.DataFrame:
        return gpt2_client.table(self.arrived)

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


class RaceBoard(Dashboard):
    """A dashboard with a progress bar a stream, and the stream's text beside it, above the picture of all tokens.

    Attributes
    ----------
    tokens : DataFrame
        What the last run measured, one row a token: see `gpt2_client.table`.
    lanes : VBox
        A bar and a text for each stream.
    """

    def __init__(self, server: Server, models: tuple[str, ...], prompts: Sequence[str]):
        self._prompts = prompts
        self.lanes = ipywidgets.VBox()
        super().__init__(
            {
                "model": ipywidgets.Dropdown(options=models, description="model"),
                "streams": ipywidgets.IntSlider(2, 1, MAX_LANES, description="streams"),
                "offset_s": ipywidgets.FloatSlider(0.1, min=0, max=3, step=0.1, description="start offset (s)"),
                "max_tokens": ipywidgets.IntSlider(64, 8, 256, 8, description="max_tokens"),
            },
            self._race,
            server,
            "Race: prompts that share one model",
        )
        place = self.children.index(self.picture)
        self.children = [*self.children[:place], self.lanes, *self.children[place:]]
        self._before: RaceSoFar | None = None

    @property
    def tokens(self) -> pd.DataFrame:
        return self.frame.tokens if self.frame else gpt2_client.table([])

    def _race(self, server: Server, model: str, streams: int, offset_s: float, max_tokens: int) -> Iterator[RaceSoFar]:
        prompts = gpt2_client.prompts(streams, self._prompts)
        self.frame, self.words.value = None, ""  # or a race that fails would seem to have measured the one before
        self.lanes.children = [_lane(number, prompt, max_tokens) for number, prompt in enumerate(prompts, 1)]
        so_far = RaceSoFar(model, [number * offset_s for number in range(streams)], [], self._before)
        racing = gpt2_client.race(server.grpc_url, model, prompts, max_tokens, offset_s)
        with contextlib.closing(racing):
            for arrived in racing:
                so_far.arrived.extend(arrived)
                yield so_far
        self._before = so_far._replace(before=None)

    def _draw(self, frame: RaceSoFar) -> None:
        for row in gpt2_client.standings(frame.tokens).itertuples():
            bar, text = self.lanes.children[row.stream - 1].children
            bar.value = row.tokens
            text.value = _lane_text(self._prompts[(row.stream - 1) % len(self._prompts)], row.text)
        super()._draw(frame)


def board(
    server: Server, models: tuple[str, ...] = repository.GPT2, prompts: Sequence[str] = gpt2_client.PROMPTS
) -> RaceBoard:
    """Choose model, number of streams and their start offset: the prompts race, and every token is seen as it comes.

    Parameters
    ----------
    server : Server
        Runs, and serves `models`.
    models : tuple of str
        Which to choose from; the first is the default.
    prompts : sequence of str
        One a stream, from the first again when there are more streams.
    """
    return RaceBoard(server, models, prompts)


def _lane(number: int, prompt: str, max_tokens: int) -> ipywidgets.HBox:
    bar = ipywidgets.IntProgress(
        0, 0, max_tokens, description=f"stream {number}", layout={"width": "18em", "flex": "none"}
    )
    return ipywidgets.HBox([bar, ipywidgets.HTML(_lane_text(prompt, ""), layout={"flex": "1 1 18em"})], layout=WRAP)


def _lane_text(prompt: str, answer: str) -> str:
    text = f"{html.escape(prompt)}<b>{html.escape(answer)}</b>"
    return f'<div style="white-space: pre-wrap; line-height: 1.4">{text}</div>'
