"""The dashboards of the course: what is set, what runs, and what is drawn of it meanwhile."""

from __future__ import annotations

import contextlib
import dataclasses
import html
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import ipywidgets
import pandas as pd
import plotly.graph_objects as go
from tritonclient.grpc.model_config_pb2 import ModelConfig

from inflight import engine
from inflight.bench import batch_run, gpt2_client, gpt2_race, promised_blocks, trace_run, workload
from inflight.bench.batch_run import Arrival, Outcome, at
from inflight.bench.load import COLUMNS, Run
from inflight.bench.trace_run import TraceRun
from inflight.bench.workload import TimedRequest
from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.engine.config import BATCHING_TYPES, POLICIES, IterationStats
from inflight.errors import CourseError
from inflight.notebook import charts, session
from inflight.notebook.dashboard import WRAP, Dashboard, Frame
from inflight.notebook.session import Kept
from inflight.triton import repository, telemetry
from inflight.triton.client import Client
from inflight.triton.repository.batchers import FIELDS, get_field
from inflight.triton.server import Server

STYLE = {"description_width": "10em"}
MAX_LANES = 8

NO_ITERATION = pd.DataFrame(columns=[field.name for field in dataclasses.fields(IterationStats)])
NOTHING_YET = TraceRun(Run(pd.DataFrame(columns=COLUMNS), started_at=0.0), NO_ITERATION)


def _wide(width: str) -> dict[str, str]:
    """Layout of a control that is so wide where the page has the room."""
    return {"width": width, "max_width": "calc(100% - 4px)"}  # but for its margins


class _Runs:
    """Runs one after the other on one server, each with other parameters; the one before stays to compare with."""

    def __init__(self, kept: Kept, log_path: str | Path):
        self._kept, self._log_path = kept, log_path
        self._before: dict[str, TraceRun] = {}

    def next(self, title: str, requests: list[TimedRequest], **parameters) -> Iterator[dict[str, TraceRun]]:
        """Edit the engine's config, load it again, send `requests`; yield the runs so far, by their title."""
        before = {f"before: {name}": run for name, run in self._before.items()}
        yield {**before, title: NOTHING_YET}
        server = self._kept.server
        _edit_and_load(server, "tensorrt_llm", **parameters)
        with Client(server.grpc_url) as client:
            for so_far in trace_run.follow(client, requests, self._log_path):
                yield {**before, title: so_far}
        self._before = {title: so_far}


def _edit_and_load(server: Server, model: str, **values) -> None:
    """Change a model's config and load it; the file is as it was where Triton refuses it."""
    path = server.repo / model / repository.CONFIG
    before = repository.read_config(path)
    repository.edit(server.repo, model, **values)
    try:
        server.load(model)
    except CourseError:
        repository.write_config(before, path)
        raise


# Lesson 04: who sits where --------------------------------------------------------------------------------------------

EQUAL = "equal"  # a trace in which nobody waits for anybody
EQUAL_NUMBER, EQUAL_TOKENS = 24, 48


def batching(server: Server, engine_dir: str | Path, log_path: str | Path) -> Dashboard:
    """Choose batching type and trace: the config is edited, the model loaded again, and the slots drawn as they fill.

    The run before stays above, on the same scale.

    Parameters
    ----------
    server : Server
        Runs, and serves `ensemble` on the engine in `engine_dir`.
    log_path : path
        Its iteration log.
    """
    slots = engine.read(engine_dir).build_config.max_batch_size
    kept = session.keep(server)
    runs = _Runs(kept, log_path)

    def work(gpt_model_type: str, trace: str) -> Iterator[Frame]:
        requests = _trace(trace, engine_dir)
        for so_far in runs.next(f"{gpt_model_type}, {trace}", requests, gpt_model_type=gpt_model_type):
            stays = {title: run.stays for title, run in so_far.items()}
            yield Frame(charts.slot_map(stays, slots), charts.slot_map_summary(stays, slots))

    look = {"style": STYLE, "layout": _wide("26em")}
    return Dashboard(
        {
            "gpt_model_type": ipywidgets.Dropdown(options=BATCHING_TYPES, description="gpt_model_type", **look),
            "trace": ipywidgets.Dropdown(options=["skewed", "mild", EQUAL], description="trace", **look),
        },
        work,
        kept=kept,
        label="Batching: who sits where",
    )


def _trace(name: str, engine_dir: str | Path) -> list[TimedRequest]:
    if name == EQUAL:
        return [TimedRequest("Tell me a story about a bridge.", EQUAL_TOKENS, 0.0, 0)] * EQUAL_NUMBER
    return workload.trace(name, load_tokenizer(engine_dir))


# Lesson 05: who holds which blocks ------------------------------------------------------------------------------------

PROMISES = "guaranteed_no_evict"  # the policy under which idle blocks may be promised


def policies(server: Server, requests: list[TimedRequest], log_path: str | Path) -> Dashboard:
    """Choose policy and size of the KV cache: the config is edited, the model loaded again, and the blocks drawn.

    The run before stays above, on the same scale.

    Parameters
    ----------
    server : Server
        Runs, and serves `ensemble` on an engine whose `max_seq_len` is at most 1024.
    requests : list of TimedRequest
        What each run sends.
    log_path : path
        The engine's iteration log.
    """
    kept = session.keep(server)
    runs = _Runs(kept, log_path)

    def work(policy: str, cache_tokens: int) -> Iterator[Frame]:
        for so_far in runs.next(
            f"{policy}, {cache_tokens:,} tokens",
            requests,
            batch_scheduler_policy=policy,
            max_tokens_in_paged_kv_cache=cache_tokens,
        ):
            logs = {title: run.log for title, run in so_far.items()}
            idle = _idle_blocks(logs, requests)
            yield Frame(charts.kv_blocks(logs, idle), charts.kv_blocks_summary(logs, idle))

    look = {"style": {"description_width": "19em"}, "layout": _wide("42em")}
    return Dashboard(
        {
            "policy": ipywidgets.Dropdown(
                options=POLICIES, value="max_utilization", description="batch_scheduler_policy", **look
            ),
            "cache_tokens": ipywidgets.IntSlider(
                1280, 1024, 4096, 128, description="max_tokens_in_paged_kv_cache", continuous_update=False, **look
            ),
        },
        work,
        kept=kept,
        label="Policies: who holds which blocks",
    )


def _idle_blocks(logs: dict[str, pd.DataFrame], requests: list[TimedRequest]) -> dict[str, pd.DataFrame]:
    """`promised_blocks.idle` of the runs that promise blocks, as far as their logs tell; titles name the policy."""
    found = {}
    for title, log in logs.items():
        if PROMISES in title and telemetry.names_requests(log):
            with contextlib.suppress(CourseError):  # a prompt in chunks, or found in the cache, is not recognized
                found[title] = promised_blocks.idle(log, requests)
    return found


# Lesson 06: who is computed together ----------------------------------------------------------------------------------

# What may arrive, by its name: few enough that a run without any batcher ends within a second or two.
ARRIVALS = {
    "one every 10 ms": at([0.010 * number for number in range(24)]),
    "one every 60 ms": at([0.060 * number for number in range(16)]),
    "all at once": at([0.0] * 20),
    "at random, 60 a second": at(workload.poisson(24, rate=60, seed=0)),
    "a crowd, then four urgent ones": [
        *at([0.002 * number for number in range(20)]),
        *at([0.060, 0.070, 0.080, 0.090], priority=1),
    ],
    "uneven work": [Arrival(0.010 * number, work=1 if number % 4 else 20) for number in range(16)],
}


# Fields of the dynamic batcher, for the title of a picture.
IN_SHORT = {
    "max_queue_delay_microseconds": "delay {} µs",
    "preferred_batch_size": "preferred {}",
    "preserve_ordering": "in order",
    "priority_levels": "{} levels",
    "default_queue_policy.max_queue_size": "queue {}",
    "default_queue_policy.default_timeout_microseconds": "time-out {} µs",
}


BATCHER = "dynamic_batching"
# What the board edits, in the order in which it shows them.
BATCHER_FIELDS = (
    "max_batch_size",
    "instance_group.count",
    *(name for name in FIELDS if name.startswith(BATCHER)),
)


class Batches(NamedTuple):
    """A picture of batches, in words too, and the sizes of those that were drawn last."""

    figure: go.Figure
    alt: str
    sizes: list[int]


def batchers(server: Server, log_path: str | Path) -> Dashboard:
    """Choose what arrives at batch-cost and the fields of its batcher: its config is edited and loaded, then drawn.

    The run before stays above, on the same scale.

    Parameters
    ----------
    server : Server
        Runs, and serves `batch-cost`.
    log_path : path
        Its execution log.
    """
    before: dict[str, Outcome] = {}
    kept = session.keep(server)
    config = _batch_cost(server)

    def work(arrivals: str, **settings) -> Iterator[Batches]:
        server = kept.server
        now = _batch_cost(server)
        changed = {name: text for name, text in settings.items() if text != get_field(now, name)}
        _edit_and_load(server, repository.BATCH_COST, **changed)
        batch_run.run(server, repository.BATCH_COST, at([0.0]), log_path)  # the first after a load waits for its start
        title, earlier = _batcher(_batch_cost(server)), {f"before: {name}": run for name, run in before.items()}
        for outcome in batch_run.follow(server, repository.BATCH_COST, ARRIVALS[arrivals], log_path):
            runs = {**earlier, f"now: {title}": outcome}
            words = f"{arrivals}. {charts.batches_summary(runs)}"
            yield Batches(charts.batches(runs), words, outcome.executions["size"].tolist())
        before.clear()
        before[title] = outcome

    look = {"style": {"description_width": "19em"}, "layout": _wide("34em")}
    fields = {name: _field(name, get_field(config, name), look) for name in BATCHER_FIELDS}
    _in_step(fields)
    return Dashboard(
        {"arrivals": ipywidgets.Dropdown(options=list(ARRIVALS), description="arrivals", **look), **fields},
        work,
        kept=kept,
        label="Batchers: who is computed together",
    )


def _batch_cost(server: Server) -> ModelConfig:
    return repository.read_config(server.repo / repository.BATCH_COST / repository.CONFIG)


def _field(name: str, text: str, look: dict) -> ipywidgets.ValueWidget:
    """A field of the config: blank means that it is not there."""
    spec, called = FIELDS[name], name.rpartition(".")[2]
    choices = {"bool": ("true",), "choice": spec.choices}.get(spec.kind)
    if choices is None:
        return ipywidgets.Text(text, description=called, tooltip=spec.help, **look)
    options = [("(blank)", ""), *((choice, choice) for choice in choices)]
    return ipywidgets.Dropdown(options=options, value=text, description=called, tooltip=spec.help, **look)


def _in_step(fields: dict[str, ipywidgets.ValueWidget]) -> None:
    """Let the batcher and its fields say the same: to fill in one of them chooses it, to take it away empties them.

    Otherwise the controls would name a delay and no batcher, and which of the two was meant would depend on the file.
    """
    batcher = fields[BATCHER]
    of_it = [field for name, field in fields.items() if name.startswith(f"{BATCHER}.")]

    def chosen(change) -> None:
        if change["new"]:
            batcher.value = "true"

    def taken_away(change) -> None:
        for field in of_it if not change["new"] else []:
            field.value = ""

    for field in of_it:
        field.observe(chosen, "value")
    batcher.observe(taken_away, "value")


def _batcher(config: ModelConfig) -> str:
    """What a config says of batches, as short as a picture's title has to be."""
    if not config.HasField(BATCHER):
        return "no batcher"
    values = {name: get_field(config, f"{BATCHER}.{name}") for name in IN_SHORT}
    words = [IN_SHORT[name].format(value) for name, value in values.items() if value]
    return textwrap.shorten(", ".join([f"at most {config.max_batch_size}", *words]), 50, placeholder=" …")


# Lesson 08: prompts that race for one model ---------------------------------------------------------------------------


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
        return f"{self.model}: {gpt2_race.summary(self.tokens)}."


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
        self._kept, self._prompts = session.keep(server), prompts
        wide = {"style": STYLE, "layout": _wide("30em"), "continuous_update": False}
        self.lanes = ipywidgets.VBox()
        super().__init__(
            {
                "model": ipywidgets.Dropdown(options=models, description="model", style=STYLE),
                "streams": ipywidgets.IntSlider(2, 1, MAX_LANES, description="streams", **wide),
                "offset_s": ipywidgets.FloatSlider(0.1, min=0, max=3, step=0.1, description="start offset (s)", **wide),
                "max_tokens": ipywidgets.IntSlider(64, 8, 256, 8, description="max_tokens", **wide),
            },
            self._race,
            kept=self._kept,
            label="Race: prompts that share one model",
        )
        place = self.children.index(self.picture)
        self.children = [*self.children[:place], self.lanes, *self.children[place:]]
        self._before: RaceSoFar | None = None

    @property
    def tokens(self) -> pd.DataFrame:
        return self.frame.tokens if self.frame else gpt2_client.table([])

    def _race(self, model: str, streams: int, offset_s: float, max_tokens: int) -> Iterator[RaceSoFar]:
        prompts = gpt2_race.prompts(streams, self._prompts)
        self.frame, self.words.value = None, ""  # or a race that fails would seem to have measured the one before
        self.lanes.children = [_lane(number, prompt, max_tokens) for number, prompt in enumerate(prompts, 1)]
        so_far = RaceSoFar(model, gpt2_race.offsets(streams, offset_s), [], self._before)
        racing = gpt2_client.race(self._kept.server.grpc_url, model, prompts, max_tokens, so_far.offsets_s)
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


def race(
    server: Server, models: tuple[str, ...] = repository.GPT2, prompts: Sequence[str] = gpt2_race.PROMPTS
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
