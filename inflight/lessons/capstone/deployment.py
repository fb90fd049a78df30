"""Deploys the service: its settings, and a run with them, in virtual time or on a server.

    played = rehearse({"enable_kv_cache_reuse": True}, contract, seeds=(1, 2, 3))

Settings, a dict of knob to value, say how its engine is built, and how it is loaded.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from inflight import engine
from inflight.bench import load as loads
from inflight.bench.senders import Sender, Sends
from inflight.bench.workload import TimedRequest
from inflight.checkpoint import fetch
from inflight.checkpoint.tokenizer import ChatTokenizer
from inflight.engine.scheduler import Now
from inflight.engine.settings import BuildConfig, ExecutorConfig
from inflight.errors import CourseError
from inflight.lessons.capstone import contract as contracts
from inflight.lessons.capstone import rehearsal
from inflight.lessons.capstone.contract import NUMBER, Contract
from inflight.triton.serving.server import Server

LONGEST_PROMPT, LONGEST_ANSWER = 512, 64  # tokens that an engine of the service must take
MIB = 2**20

Settings = Mapping[str, object]  # of knob to value, as a learner writes them


# Every knob with its default. Of the build, where another value is another engine:
BUILT = {"max_batch_size": 8, "max_num_tokens": 2048, "kv_cache_quant_algo": None}
# Of the load:
LOADED = {
    "enable_kv_cache_reuse": False,
    "enable_chunked_context": False,
    "batch_scheduler_policy": "guaranteed_no_evict",
    "scheduler_path": None,
    "max_queue_size": 0,
}
# And a request that takes longer than the allotted time, its wait included, is ended; 0: none is.
KNOBS = {**BUILT, **LOADED, "allotted_time_ms": 0}
KINDS = {int: "a whole number", bool: "True or False", str: "one of the names in lesson 05"}


def configs(settings: Settings, contract: Contract | None = None) -> tuple[BuildConfig, ExecutorConfig, int]:
    """Return the configs of a deployment's engine, in the contract's memory, and its allotted time in ms.

    Raises
    ------
    CourseError
        There is no such knob, or it does not take the value.
    """
    if not isinstance(settings, Mapping):
        raise CourseError(f"Settings are a dict of knob to value; this is a {type(settings).__name__}.")
    for name, value in settings.items():
        if name not in KNOBS:
            raise CourseError(f"There is no knob {name!r}; there are {', '.join(KNOBS)}.")
        kind = type(KNOBS[name])
        if kind in KINDS and type(value) is not kind:
            raise CourseError(f"{name} is {value!r}; give {KINDS[kind]}.")
    chosen: dict[str, Any] = {**KNOBS, **settings}
    if (path := chosen["scheduler_path"]) is not None:
        if not isinstance(path, str | os.PathLike):
            raise CourseError(f"scheduler_path is {path!r}; give the path of a Python file.")
        chosen["scheduler_path"] = Path(path).absolute()
    built, loaded = ({name: chosen[name] for name in names} for names in (BUILT, LOADED))
    build = BuildConfig(max_input_len=LONGEST_PROMPT, max_seq_len=LONGEST_PROMPT + LONGEST_ANSWER, **built)
    if contract is not None:
        loaded["max_tokens_in_paged_kv_cache"] = int(contract.memory_mib * MIB // bytes_per_token(build))
    return build, ExecutorConfig(**loaded), chosen["allotted_time_ms"]


def bytes_per_token(build: BuildConfig) -> int:
    """Of a token in the KV cache of an engine that is built so."""
    return replace(contracts.course_engine(), build_config=build).kv_cache_bytes_per_token


def rehearse(
    settings: Settings,
    contract: Contract,
    seeds: Sequence[int],
    load: float = 1.0,
    bias: float = 1.0,
    number: int = NUMBER,
    let_in: Callable[[Now], bool] | None = None,
) -> pd.DataFrame:
    """Rehearse a deployment at the contract's prices, in virtual time: a run for each seed, a row a request.

    Parameters
    ----------
    load : float
        So many times the contract's rate.
    bias : float
        So many times as long as the prices say an iteration takes.
    number : int
        Requests of a run.
    let_in : callable, optional
        See `rehearsal.play`.

    Returns
    -------
    DataFrame
        The columns of `load.Run.requests`, the `kind` of each request, and the `seed` of its run.

    Raises
    ------
    CourseError
        A setting is refused, or its scheduler fails.
    """
    build, config, allotted_time_ms = configs(settings, contract)
    tables = []
    for seed in seeds:
        asked = with_ids(contract.traffic.requests(load * contract.rate, seed, number))
        played = rehearsal.play(asked, build, config, contract.prices.times(bias), allotted_time_ms, let_in)
        tables.append(played.assign(kind=contract.traffic.drawn(seed, number)["kind"], seed=seed))
    return pd.concat(tables, ignore_index=True)


def with_ids(requests: Sequence[TimedRequest]) -> list[rehearsal.TokenRequest]:
    """The requests as an engine gets them: token ids in place of texts."""
    return [rehearsal.TokenRequest(_ids(contracts.tokenizer(), one.text), one.max_tokens, one.at_s) for one in requests]


@functools.lru_cache(maxsize=20_000)
def _ids(tokenizer: ChatTokenizer, text: str) -> list[int]:
    return tokenizer.encode_chat(text)


# On a server ----------------------------------------------------------------------------------------------------------


def engine_of(settings: Settings) -> Path:
    """The engine of a deployment, of the course's checkpoint, built the first time."""
    return engine.cached(fetch(), configs(settings)[0])


def bring_in(server: Server, settings: Settings, contract: Contract, engine_dir: str | Path | None = None) -> None:
    """Bring a deployment into a running server, with an empty KV cache, and warm it up.

    Raises
    ------
    CourseError
        A setting is refused by the build or by the engine: then the server serves what it served before.
    """
    _, config, allotted_time_ms = configs(settings, contract)
    values = {name: getattr(config, name) for name in (*LOADED, "max_tokens_in_paged_kv_cache")}
    values["scheduler_path"] = config.scheduler_path or ""
    folder = engine_dir or engine_of(settings)
    server.load("tensorrt_llm", gpt_model_path=folder, allotted_time_ms=allotted_time_ms, **values)
    with Sender(server.grpc_url, stream=True) as send:
        loads.warm_up(send, contract.traffic.requests(contract.rate, seed=0, number=2), 2)


def measure(server: Server, requests: list[TimedRequest], send: Sends | None = None) -> pd.DataFrame:
    """Send a run and wait for all answers: a row a request, columns as in a rehearsal.

    Parameters
    ----------
    send : Sends, optional
        Who asks; by default the course's own client.

    Raises
    ------
    CourseError
        The server went away.
    """
    with Sender(server.grpc_url, stream=True) as courses:
        run = loads.send_all(send or courses, requests)
    if run.stopped:
        raise CourseError(f"{run.stopped} Start the server again, and repeat the run.")
    return run.requests
