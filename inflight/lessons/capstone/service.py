"""The service of lesson 09: what it is asked, what it promises, the knobs of its deployment, and what a run comes to.

    brief = BRIEF.at(prices(server, log_path))                  # load and limits, as hard here as elsewhere
    rehearse({"enable_kv_cache_reuse": True}, brief, seeds=(1, 2, 3), number=100).met
    serve(server, {"enable_kv_cache_reuse": True}, brief, seed=1, number=16).met

It summarizes news: every prompt begins with the same house rules, then comes an article that nobody has asked about
before. Load and limits are written down for one machine; another gets a load and limits that are as hard for it.
"""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import pandas as pd

from inflight import engine
from inflight.bench import load as loads
from inflight.bench import trace_run
from inflight.bench.dataset import input_len, read_dataset
from inflight.bench.objective import Objective
from inflight.bench.workload import TimedRequest, gamma
from inflight.checkpoint import fetch
from inflight.checkpoint.tokenizer import ChatTokenizer, load_tokenizer
from inflight.engine.config import BuildConfig, ExecutorConfig
from inflight.errors import CourseError
from inflight.lessons.capstone import rehearsal
from inflight.lessons.capstone.rehearsal import Prices
from inflight.triton import repository
from inflight.triton.client import Client
from inflight.triton.server import Server

HOUSE_RULES = (
    "You write the short news of a railway station's screens. Travellers read them in passing, from far away, and "
    "most of them have a train to catch. Say who did what, where and when, in the order in which it matters. Begin "
    "with the fact that a reader would tell a friend. Use plain words and short sentences, no more than two of them. "
    "Write numbers as digits and names in full. Leave out opinions, adjectives that judge, and everything that the "
    "article only supposes. Never promise, never advise, never make a joke. If the article reports an accident, name "
    "the place first. If it quotes somebody, say who it was and what the quotation means, without quotation marks. If"
    " it is about sport, begin with the result. Do not mention these rules, and do not say that this is a summary. "
    "The article is:"
)
LONGEST_PROMPT, LONGEST_ANSWER = 512, 64  # tokens that an engine of the service must take
LONGEST_ARTICLE = 230  # words
USUAL_PROMPT, USUAL_ANSWER = 371, 39  # tokens, on average
BURSTS = 1.2  # coefficient of variation of the gaps between requests: more than 1 is more bursty than chance
SHARE = 0.9  # of all requests, that the contract wants in time
# Of a token in the KV cache of the course's model: 2 × 30 layers × 3 KV heads × 64 numbers, of 4 bytes or 1.
BYTES_PER_TOKEN = {None: 46080, "INT8": 11520}
MIB = 2**20
LOOK_EVERY_S = 0.5
BURSTS_FOR_PRICES = 2


# The contract ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Brief:
    """The contract: at this load and in this memory, `SHARE` of all requests are in time.

    Attributes
    ----------
    rate : float
        Requests per second, on average.
    objective : Objective
        The limits: an answer that keeps them is in time.
    memory_mib : float
        Most MiB of the KV cache.
    prices : Prices
        Of the machine that load and limits are for.
    """

    rate: float
    objective: Objective
    memory_mib: float
    prices: Prices

    def at(self, prices: Prices) -> Brief:
        """The same contract for a machine with other prices: a load and limits that are as hard for it."""
        slots = self.memory_mib * MIB / BYTES_PER_TOKEN[None] / (USUAL_PROMPT + USUAL_ANSWER)
        here, there = (each.request_ms(USUAL_PROMPT, USUAL_ANSWER, slots) for each in (prices, self.prices))
        limits = {name: limit and limit * here / there for name, limit in asdict(self.objective).items()}
        return replace(self, rate=self.rate * there / here, objective=Objective(**limits), prices=prices)

    def __str__(self) -> str:
        return (
            f"At {self.rate:.2f} requests per second, at least {100 * SHARE:.0f} % of all requests are in time: the "
            f"first token within {self.objective.ttft_ms:,.0f} ms, and an ITL of at most "
            f"{self.objective.itl_ms:,.0f} ms. The KV cache takes at most {self.memory_mib:g} MiB."
        )


# For a machine with round prices, so that what is rehearsed there is the same for everybody.
BRIEF = Brief(2.0, Objective(ttft_ms=1800, itl_ms=80), memory_mib=64, prices=Prices(15.0, 1.2, 0.9))


def requests(brief: Brief, seed: int, number: int) -> list[TimedRequest]:
    """What the first users ask, and when: another seed, other articles at other times."""
    texts, times = _texts(tokenizer(), seed, number), gamma(number, brief.rate, BURSTS, seed)
    return [replace(text, at_s=at_s) for text, at_s in zip(texts, times, strict=True)]


@functools.lru_cache(maxsize=64)
def _texts(tokenizer: ChatTokenizer, seed: int, number: int) -> list[TimedRequest]:
    choose, found = random.Random(seed), []
    articles = [record for record in read_dataset() if len(record.input.split()) <= LONGEST_ARTICLE]
    for place in range(number):
        record = choose.choice(articles)
        words = f"(report {seed}-{place}) {record.input}".split()  # no two users send the same
        while (tokens := input_len(text := " ".join([HOUSE_RULES, *words]), tokenizer)) > LONGEST_PROMPT:
            words = words[: len(words) * 9 // 10]
        found.append(TimedRequest(text, max(8, min(record.output_len // 2, LONGEST_ANSWER)), 0.0, tokens))
    return found


@functools.lru_cache(maxsize=64)
def _token_ids(tokenizer: ChatTokenizer, seed: int, number: int) -> list[list[int]]:
    return [tokenizer.encode_chat(request.text) for request in _texts(tokenizer, seed, number)]


# Every knob -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Deployment:
    """Every knob of the service; without one, the defaults.

    Attributes
    ----------
    max_batch_size, max_num_tokens, kv_cache_quant_algo
        Of the build; see `BuildConfig`. Another value is another engine.
    enable_kv_cache_reuse, enable_chunked_context, batch_scheduler_policy, scheduler_path, max_queue_size
        Of the load; see `ExecutorConfig`.
    allotted_time_ms : int
        A request that takes longer, its wait included, is ended with an error; 0: none is.
    """

    max_batch_size: int = 8
    max_num_tokens: int = 2048
    kv_cache_quant_algo: str | None = None
    enable_kv_cache_reuse: bool = False
    enable_chunked_context: bool = False
    batch_scheduler_policy: str = "guaranteed_no_evict"
    scheduler_path: str | None = None
    max_queue_size: int = 0
    allotted_time_ms: int = 0

    @property
    def build_config(self) -> BuildConfig:
        """What its engine is built with."""
        return BuildConfig(
            max_batch_size=self.max_batch_size,
            max_input_len=LONGEST_PROMPT,
            max_seq_len=LONGEST_PROMPT + LONGEST_ANSWER,
            max_num_tokens=self.max_num_tokens,
            kv_cache_quant_algo=self.kv_cache_quant_algo,
        )

    def executor_config(self, memory_mib: float, bytes_per_token: int) -> ExecutorConfig:
        """What its engine is loaded with, where a token of the KV cache takes so many bytes."""
        return ExecutorConfig(
            batch_scheduler_policy=self.batch_scheduler_policy,
            scheduler_path=self.scheduler_path,
            max_tokens_in_paged_kv_cache=int(memory_mib * MIB // bytes_per_token),
            enable_kv_cache_reuse=self.enable_kv_cache_reuse,
            enable_chunked_context=self.enable_chunked_context,
            max_queue_size=self.max_queue_size,
        )

    def __str__(self) -> str:
        default = Deployment()
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        words = [
            f"{name}: {Path(value).name if name == 'scheduler_path' else value}"
            for name, value in values.items()
            if value != getattr(default, name)
        ]
        return ", ".join(words) or "the defaults"


Settings = Deployment | dict  # of knob to value, as a learner writes them


def deployment(settings: Settings) -> Deployment:
    """The deployment that settings give.

    Raises
    ------
    CourseError
        There is no such knob, or the value is of another kind.
    """
    if isinstance(settings, Deployment):
        return settings
    if not isinstance(settings, dict):
        raise CourseError(f"Settings are a dict of knob to value; this is a {type(settings).__name__}.")
    default, given, knobs = Deployment(), dict(settings), [field.name for field in fields(Deployment)]
    for name, value in given.items():
        if name not in knobs:
            raise CourseError(f"There is no knob {name!r}; there are {', '.join(knobs)}.")
        kind = type(getattr(default, name))
        if kind in KINDS and type(value) is not kind:
            raise CourseError(f"{name} is {value!r}; give {KINDS[kind]}.")
    if given.get("scheduler_path") is not None:
        if not isinstance(given["scheduler_path"], str | os.PathLike):
            raise CourseError(f"scheduler_path is {given['scheduler_path']!r}; give the path of a Python file.")
        given["scheduler_path"] = str(Path(given["scheduler_path"]).absolute())
    return Deployment(**given)


KINDS = {int: "a whole number", bool: "True or False", str: "one of the names in lesson 05"}


# What a setting comes to ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Served:
    """What a deployment made of the requests of one run, or of several.

    Attributes
    ----------
    deployment : Deployment
    requests : DataFrame
        A row for each request; see `load.Run.requests`.
    brief : Brief
    """

    deployment: Deployment
    requests: pd.DataFrame
    brief: Brief

    @property
    def met(self) -> int:
        """Requests that were in time."""
        return int(self.brief.objective.met(self.requests).sum())

    @property
    def share(self) -> float:
        """The share of all requests that were in time."""
        return self.met / len(self.requests)

    @property
    def keeps(self) -> bool:
        """Whether that share is the contract's, or more."""
        return self.share >= SHARE

    def row(self) -> dict[str, int]:
        """How many requests were in time, and what the others fell short of; one can be late in both ways."""
        limits = self.brief.objective
        return {
            "requests": len(self.requests),
            "in time": self.met,
            "first token late": int((self.requests["ttft_ms"] > limits.ttft_ms).sum()),
            "ITL too high": int((self.requests["itl_ms"] > limits.itl_ms).sum()),
            "no answer": int((self.requests["error"] != "").sum()),
        }


def rehearse(settings: Settings, brief: Brief, seeds: Sequence[int], number: int) -> Served:
    """What a deployment would come to at the brief's prices, in virtual time: one run for each seed, taken together.

    Raises
    ------
    CourseError
        A setting is refused, or its scheduler fails.
    """
    chosen = deployment(settings)
    build = chosen.build_config
    config = chosen.executor_config(brief.memory_mib, BYTES_PER_TOKEN[build.kv_cache_quant_algo])
    tables = []
    for seed in seeds:
        texts, input_ids = requests(brief, seed, number), _token_ids(tokenizer(), seed, number)
        asked = [
            rehearsal.TokenRequest(ids, text.max_tokens, text.at_s) for ids, text in zip(input_ids, texts, strict=True)
        ]
        played = rehearsal.rehearse(asked, build, config, brief.prices, chosen.allotted_time_ms)
        tables.append(played.assign(seed=seed))
    return Served(chosen, pd.concat(tables, ignore_index=True), brief)


# On a server ----------------------------------------------------------------------------------------------------------


def engine_of(chosen: Deployment) -> Path:
    """The engine of a deployment, built the first time."""
    return engine.cached(fetch(), chosen.build_config)


@functools.cache
def tokenizer() -> ChatTokenizer:
    """The tokenizer of the service's engines."""
    return load_tokenizer(engine_of(Deployment()))


def start(folder: str | Path, log_path: str | Path) -> Server:
    """A server of the service with the defaults, started, but with no limit on its KV cache: `serve` sets that."""
    repo = repository.assemble(folder, engine_of(Deployment()), decoupled_mode=True, iteration_log_path=log_path)
    return Server(repo).start()


def prices(server: Server, log_path: str | Path) -> Prices:
    """What iterations cost on a server of `start`: from its log, while it answers bursts of eight requests."""
    burst = [replace(request, at_s=0.0) for request in requests(BRIEF, seed=0, number=8)]
    with Client(server.grpc_url) as client:
        trace_run.run(client, burst[:2], log_path, stream=True)  # an engine's first requests are its slowest
        logs = [trace_run.run(client, burst, log_path, stream=True).log for _ in range(BURSTS_FOR_PRICES)]
    return rehearsal.prices_in(pd.concat(logs))


def _bring_in(server: Server, chosen: Deployment, brief: Brief) -> None:
    """Bring a deployment into a running server, with an empty KV cache, and warm it up."""
    engine_dir = engine_of(chosen)
    config = chosen.executor_config(brief.memory_mib, engine.read(engine_dir).kv_cache_bytes_per_token)
    names = (
        "batch_scheduler_policy",
        "scheduler_path",
        "max_tokens_in_paged_kv_cache",
        "enable_kv_cache_reuse",
        "enable_chunked_context",
        "max_queue_size",
    )
    values: dict[str, object] = {name: "" if (value := getattr(config, name)) is None else value for name in names}
    server.load("tensorrt_llm", gpt_model_path=engine_dir, allotted_time_ms=chosen.allotted_time_ms, **values)
    with Client(server.grpc_url) as client, loads.sender(client, stream=True) as send:
        loads.warm_up(send, requests(brief, seed=0, number=2), 2)


def follow(server: Server, settings: Settings, brief: Brief, seed: int, number: int) -> Iterator[int | Served]:
    """Load a deployment and send it a run: yields how many requests are done, and at last what the run came to.

    Closed early, as when a loop over it is left, it ends the requests that are under way.

    Raises
    ------
    CourseError
        A setting is refused by the build or by the engine, and the server serves what it served before; or the server
        went away.
    """
    chosen, done = deployment(settings), [0]
    yield 0
    _bring_in(server, chosen, brief)
    asked = requests(brief, seed, number)

    def count(so_far: int, _total: int) -> None:
        done[0] = so_far

    with Client(server.grpc_url) as client, loads.sender(client, stream=True) as send, ThreadPoolExecutor(1) as pool:
        running = pool.submit(loads.send_all, send, asked, progress=count)
        try:
            while not wait([running], timeout=LOOK_EVERY_S).done:
                yield done[0]
        finally:
            if not running.done():
                send.abort()
    run = running.result()
    if run.stopped:
        raise CourseError(f"{run.stopped} Start the server again, and repeat the run.")
    yield Served(chosen, run.requests, brief)


def serve(server: Server, settings: Settings, brief: Brief, seed: int, number: int) -> Served:
    """What a run comes to: `follow` to its end."""
    *_, served = follow(server, settings, brief, seed, number)
    assert isinstance(served, Served)
    return served
