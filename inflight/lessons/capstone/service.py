"""A service to be tuned: what it is asked and promises, every knob of its deployment, and what a setting comes to.

    brief = BRIEF.at(pace(server, tokenizer))                  # load and limits, scaled to this machine
    served = serve(server, Deployment(enable_kv_cache_reuse=True), brief, seed=1)
    served.goodput, served.ttft_p99_ms, served.keeps

The service summarizes news: every prompt begins with the same house rules, then comes an article that nobody has asked
about before. Load and limits are written down for one machine. Another one is so many times slower or faster, its pace,
and gets a load and limits that are as hard for it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import numpy as np
import pandas as pd

from inflight import engine
from inflight.bench import load as loads
from inflight.bench.dataset import input_len, read_dataset
from inflight.bench.load import Run
from inflight.bench.objective import Objective, goodput
from inflight.bench.workload import TimedRequest, gamma
from inflight.checkpoint import fetch
from inflight.checkpoint.tokenizer import ChatTokenizer, load_tokenizer
from inflight.engine.config import BuildConfig, ExecutorConfig
from inflight.errors import CourseError
from inflight.lessons.capstone import rehearsal
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
MIB = 2**20
LOOK_EVERY_S = 0.5
FEWEST = 12  # requests of a run


# The brief ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Brief:
    """What the service is to keep to.

    Attributes
    ----------
    rate : float
        Requests a second, on average.
    cv : float
        How bursty they come; see `workload.gamma`.
    objective : Objective
        The limits of each answer; the service keeps them at P99.
    memory_mib : float
        Most MiB of the KV cache.
    number : int
        Requests of a run.
    pace : float
        How many times slower this machine is than the one that the numbers were written down for.
    """

    rate: float
    cv: float
    objective: Objective
    memory_mib: float
    number: int
    pace: float = 1.0

    def at(self, pace: float) -> Brief:
        """The same task for a machine that is `pace` times slower than this brief's."""
        limits = {name: None if limit is None else limit * pace for name, limit in asdict(self.objective).items()}
        return replace(self, rate=self.rate / pace, objective=Objective(**limits), pace=self.pace * pace)

    def number_in(self, seconds: float) -> int:
        """Requests that come in so many seconds: at least `FEWEST`, at most `number`."""
        return min(self.number, max(FEWEST, round(self.rate * seconds)))

    def __str__(self) -> str:
        return (
            f"{self.rate:.2f} requests a second; at P99 TTFT at most {self.objective.ttft_ms:,.0f} ms and ITL at most "
            f"{self.objective.itl_ms:,.0f} ms; {self.memory_mib:g} MiB of KV cache"
        )


BRIEF = Brief(rate=1.9, cv=1.2, objective=Objective(ttft_ms=1800, itl_ms=80), memory_mib=64, number=40)


def requests(tokenizer: ChatTokenizer, brief: Brief, seed: int, number: int | None = None) -> list[TimedRequest]:
    """What users of the service ask, and when: another seed, other articles at other times.

    Parameters
    ----------
    number : int, optional
        How many; by default the brief's.
    """
    number, choose = number or brief.number, random.Random(seed)
    articles = [record for record in read_dataset() if len(record.input.split()) <= LONGEST_ARTICLE]
    found = []
    for place, at_s in enumerate(gamma(number, brief.rate, brief.cv, seed)):
        record = choose.choice(articles)
        text, tokens = _prompt(f"(report {seed}-{place}) {record.input}", tokenizer)  # no two users send the same
        found.append(TimedRequest(text, max(8, min(record.output_len // 2, LONGEST_ANSWER)), at_s, tokens))
    return found


def _prompt(article: str, tokenizer: ChatTokenizer) -> tuple[str, int]:
    """The house rules and as much of an article as the engine takes, with the number of tokens."""
    words = article.split()
    while (tokens := input_len(text := " ".join([HOUSE_RULES, *words]), tokenizer)) > LONGEST_PROMPT:
        words = words[: len(words) * 9 // 10]
    return text, tokens


# Every knob -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Deployment:
    """Every knob of the service; without one, the defaults.

    Attributes
    ----------
    max_batch_size, max_num_tokens, kv_cache_quant_algo
        Of the build; see `BuildConfig`. Another value is another engine.
    cache_tokens : int or None
        `max_tokens_in_paged_kv_cache`; None: as many as the brief's memory has room for.
    enable_kv_cache_reuse, enable_chunked_context, batch_scheduler_policy, scheduler_path, max_queue_size
        Of the load; see `ExecutorConfig`.
    allotted_time_ms : int
        A request that takes longer, its wait included, is ended with an error; 0: none is.
    instances : int
        Of each of the two models that turn text into tokens and back.
    """

    max_batch_size: int = 8
    max_num_tokens: int = 2048
    kv_cache_quant_algo: str | None = None
    cache_tokens: int | None = None
    enable_kv_cache_reuse: bool = False
    enable_chunked_context: bool = False
    batch_scheduler_policy: str = "guaranteed_no_evict"
    scheduler_path: str | None = None
    max_queue_size: int = 0
    allotted_time_ms: int = 0
    instances: int = 1

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
        """What its engine is loaded with, where a token of the KV cache takes so many bytes.

        Raises
        ------
        CourseError
            A setting is out of its range, or its KV cache takes more than the memory.
        """
        room = int(memory_mib * MIB // bytes_per_token)
        tokens = room if self.cache_tokens is None else self.cache_tokens
        if tokens > room:
            raise CourseError(
                f"A KV cache of {tokens:,} tokens takes {tokens * bytes_per_token / MIB:,.0f} MiB, and the brief has "
                f"{memory_mib:g}: give cache_tokens {room:,} or less, or fewer bytes a token."
            )
        return ExecutorConfig(
            batch_scheduler_policy=self.batch_scheduler_policy,
            scheduler_path=self.scheduler_path,
            max_tokens_in_paged_kv_cache=tokens,
            enable_kv_cache_reuse=self.enable_kv_cache_reuse,
            enable_chunked_context=self.enable_chunked_context,
            max_queue_size=self.max_queue_size,
        )

    @property
    def changed(self) -> dict[str, object]:
        """What is not as by default."""
        default = Deployment()
        return {
            field.name: value
            for field in fields(self)
            if (value := getattr(self, field.name)) != getattr(default, field.name)
        }

    def __str__(self) -> str:
        words = [
            f"{name}: {Path(value).name if name == 'scheduler_path' else value}" for name, value in self.changed.items()
        ]
        return ", ".join(words) or "the defaults"


def deployment(settings: object) -> Deployment:
    """A deployment from a dict of settings, such as a learner writes; one that is there already stays as it is.

    Raises
    ------
    CourseError
        There is no such knob, or the value is of another kind.
    """
    if isinstance(settings, Deployment):
        return settings
    if not isinstance(settings, dict):
        raise CourseError(f"Settings are a dict of knob to value, and this is a {type(settings).__name__}.")
    known = {field.name: field for field in fields(Deployment)}
    for name, value in settings.items():
        if name not in known:
            raise CourseError(f"There is no knob {name!r}; there are {', '.join(known)}.")
        if not _is_of_kind(name, value):
            raise CourseError(f"{name} is {value!r}, which is no {KINDS[name]}.")
    given = dict(settings)
    if given.get("scheduler_path") is not None:
        given["scheduler_path"] = str(Path(given["scheduler_path"]).absolute())
    return Deployment(**given)


KINDS = {
    "max_batch_size": "whole number",
    "max_num_tokens": "whole number",
    "kv_cache_quant_algo": "'INT8' or None",
    "cache_tokens": "whole number or None",
    "enable_kv_cache_reuse": "True or False",
    "enable_chunked_context": "True or False",
    "batch_scheduler_policy": "name of a policy",
    "scheduler_path": "path or None",
    "max_queue_size": "whole number",
    "allotted_time_ms": "whole number",
    "instances": "whole number from 1 to 4",
}


def _is_of_kind(name: str, value: object) -> bool:
    if name.startswith("enable_"):
        return isinstance(value, bool)
    if name == "kv_cache_quant_algo":
        return value in (None, "INT8")
    if name == "batch_scheduler_policy":
        return isinstance(value, str)
    if name == "scheduler_path":
        return value is None or isinstance(value, str | Path) or hasattr(value, "__fspath__")
    if name == "cache_tokens" and value is None:
        return True
    whole = isinstance(value, int) and not isinstance(value, bool)
    return whole and (name != "instances" or 1 <= value <= 4)


# What a setting comes to ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Served:
    """What a deployment made of a run.

    Attributes
    ----------
    deployment : Deployment
    run : Run
        One row a request.
    brief : Brief
    """

    deployment: Deployment
    run: Run
    brief: Brief

    @property
    def met(self) -> int:
        """Requests that met every limit."""
        return int(self.brief.objective.met(self.run.requests).sum())

    @property
    def goodput(self) -> float:
        """Requests a second that met every limit."""
        return goodput(self.run, self.brief.objective)

    @property
    def in_time_per_s(self) -> float:
        """Of the requests that come in a second, those that met every limit: goodput without the run's tail."""
        return self.brief.rate * self.met / max(1, len(self.run.requests))

    @property
    def keeps(self) -> bool:
        """Whether the objective is kept: every request is answered, and both P99 are within their limits."""
        limits = self.brief.objective
        is_whole = len(self.run.answered) == len(self.run.requests)
        return is_whole and self.ttft_p99_ms <= limits.ttft_ms and self.itl_p99_ms <= limits.itl_ms

    @property
    def ttft_p99_ms(self) -> float:
        return _p99(self.run.answered["ttft_ms"])

    @property
    def itl_p99_ms(self) -> float:
        return _p99(self.run.answered["itl_ms"])

    @property
    def per_s(self) -> float:
        """Answers a second."""
        answered = self.run.answered
        seconds = answered["last_s"].max() - self.run.requests["sent_s"].min()
        return len(answered) / seconds if seconds > 0 else 0.0

    def row(self) -> dict:
        """A line of a table."""
        return {
            "settings": str(self.deployment),
            "goodput_per_s": self.goodput,
            "met": self.met,
            "requests": len(self.run.requests),
            "answers_per_s": self.per_s,
            "ttft_p99_ms": self.ttft_p99_ms,
            "itl_p99_ms": self.itl_p99_ms,
            "keeps": self.keeps,
            "error": "",
        }


def _p99(values: pd.Series) -> float:
    return float(np.percentile(values.astype(float).dropna(), 99)) if len(values) else float("inf")


def engine_of(chosen: Deployment) -> Path:
    """The engine of a deployment, built the first time."""
    return engine.cached(fetch(), chosen.build_config)


def start(folder: str | Path, log_path: str | Path | None = None) -> Server:
    """A server of the service with the defaults, started; `load` brings a deployment into it."""
    log = {} if log_path is None else {"iteration_log_path": log_path}
    repo = repository.assemble(folder, engine_of(Deployment()), decoupled_mode=True, **log)
    return Server(repo).start()


def load(server: Server, chosen: Deployment, brief: Brief) -> None:
    """Bring a deployment into a running server, with an empty KV cache, and warm it up.

    Raises
    ------
    CourseError
        A setting is refused: by the brief, by the build, or by the engine; the server serves what it served before.
    """
    engine_dir = engine_of(chosen)
    config = chosen.executor_config(brief.memory_mib, engine.read(engine_dir).kv_cache_bytes_per_token)
    group = f"instance_group [ {{ count: {chosen.instances}  kind: KIND_CPU }} ]"
    for model in ("preprocessing", "postprocessing"):
        if repository.edit(server.repo, model, group):
            server.load(model)
    names = (
        "batch_scheduler_policy",
        "scheduler_path",
        "max_tokens_in_paged_kv_cache",
        "enable_kv_cache_reuse",
        "enable_chunked_context",
        "max_queue_size",
    )
    values: dict[str, object] = {name: "" if (value := getattr(config, name)) is None else value for name in names}
    values["allotted_time_ms"] = chosen.allotted_time_ms
    server.load("tensorrt_llm", gpt_model_path=engine_dir, **values)
    tokenizer = load_tokenizer(engine_dir)
    with Client(server.grpc_url) as client, loads.sender(client, stream=True) as send:
        loads.warm_up(send, requests(tokenizer, brief, seed=0, number=2), 2)


@dataclass(frozen=True)
class Progress:
    """How far a run is: how many of how many requests are done."""

    done: int
    total: int


def follow(
    server: Server, chosen: Deployment, brief: Brief, seed: int, number: int | None = None
) -> Iterator[Progress | Served]:
    """Load a deployment and send a run of the service to it; tell meanwhile how far it is, and at last what it came to.

    Closed early, as when a loop over it is left, it ends the requests that are under way.

    Raises
    ------
    CourseError
        As `load`; or the server went away: what was answered until then is in no `Served`, and the message says so.
    """
    total = number or brief.number
    yield Progress(0, total)
    load(server, chosen, brief)
    asked = requests(load_tokenizer(engine_of(chosen)), brief, seed, number)
    done = [0]

    def count(number: int, _total: int) -> None:
        done[0] = number

    with (
        Client(server.grpc_url) as client,
        loads.sender(client, stream=True) as send,
        ThreadPoolExecutor(1) as pool,
    ):
        running = pool.submit(loads.load, send, asked, progress=count)
        try:
            while not wait([running], timeout=LOOK_EVERY_S).done:
                yield Progress(done[0], total)
        finally:
            if not running.done():
                send.abort()
    run = running.result()
    if run.stopped:
        raise CourseError(f"{run.stopped} Start the server again, and run it once more.")
    yield Served(chosen, run, brief)


def serve(server: Server, chosen: Deployment, brief: Brief, seed: int, number: int | None = None) -> Served:
    """As `follow`, without telling: what a run came to."""
    *_, served = follow(server, chosen, brief, seed, number)
    assert isinstance(served, Served)
    return served


def rehearse(
    chosen: Deployment, brief: Brief, tokenizer: ChatTokenizer, seed: int, number: int | None = None
) -> Served:
    """What the deployment would come to at the reference's prices, in virtual time: `rehearsal` says how.

    Raises
    ------
    CourseError
        A setting is refused, or its scheduler fails.
    """
    bytes_per_token = BYTES_PER_TOKEN[chosen.kv_cache_quant_algo]
    config = chosen.executor_config(brief.memory_mib, bytes_per_token)
    asked = [
        rehearsal.Asked(tokenizer.encode(tokenizer.chat(request.text)), request.max_tokens, request.at_s)
        for request in requests(tokenizer, brief, seed, number)
    ]
    run = rehearsal.rehearse(
        asked, chosen.build_config, config, rehearsal.PRICES.times(brief.pace), chosen.allotted_time_ms
    )
    return Served(chosen, run, brief)


# Of the course's model: 2 × 30 layers × 3 KV heads × 64 numbers, of 4 bytes or 1.
BYTES_PER_TOKEN = {None: 46080, "INT8": 11520}
BURST = 8  # requests by which the pace is found


def pace(server: Server, tokenizer: ChatTokenizer, rounds: int = 3) -> float:
    """How many times longer this machine takes for a burst than the rehearsal says, in the fastest of some rounds.

    Whatever else the machine does only makes a round longer, and a brief for a machine that seems slower is easier. The
    server is left with the default deployment.
    """
    burst = [replace(request, at_s=0.0) for request in requests(tokenizer, BRIEF, seed=0, number=BURST)]
    asked = [rehearsal.Asked(tokenizer.encode(tokenizer.chat(r.text)), r.max_tokens, 0.0) for r in burst]
    config = Deployment().executor_config(BRIEF.memory_mib, BYTES_PER_TOKEN[None])
    rehearsed = rehearsal.rehearse(asked, Deployment().build_config, config, rehearsal.PRICES)
    expected_s = rehearsed.requests["last_s"].max()
    load(server, Deployment(), BRIEF)
    took_s = []
    with Client(server.grpc_url) as client, loads.sender(client, stream=True) as send:
        for _ in range(rounds):
            run = loads.load(send, burst)
            if len(run.answered) < len(burst):
                raise CourseError(f"The pace cannot be found: {run.requests['error'].max()}")
            took_s.append(run.requests["last_s"].max() - run.requests["sent_s"].min())
    return float(min(took_s)) / expected_s


# Kept in a file -------------------------------------------------------------------------------------------------------


def to_json(served: Served) -> str:
    """A run with its settings and its task, as text."""
    content = {
        "deployment": asdict(served.deployment),
        "brief": asdict(served.brief),
        "requests": served.run.requests.astype(object).where(served.run.requests.notna(), None).to_dict("list"),
        "started_at": served.run.started_at,
    }
    return json.dumps(content, indent=1) + "\n"


def from_json(text: str) -> Served:
    """What `to_json` wrote.

    Raises
    ------
    CourseError
        It is something else.
    """
    try:
        content = json.loads(text)
        limits = Objective(**content["brief"].pop("objective"))
        table = pd.DataFrame(content["requests"], columns=loads.COLUMNS)
        run = Run(table.astype(dict.fromkeys(("ttft_ms", "itl_ms", "latency_ms"), float)), content["started_at"])
        return Served(Deployment(**content["deployment"]), run, Brief(**content["brief"], objective=limits))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CourseError(f"This is no result of a run ({type(error).__name__}: {error}): run it again.") from None
