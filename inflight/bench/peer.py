"""Another server on our traces, taking turns with ours: the same requests, as many slots, tokens counted by us.

result = peer.bench("http://127.0.0.1:8080", engine_dir, requests, workdir)
result["ratios"]["throughput"]["median"]        # ours over theirs
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from inflight import engine, machine
from inflight.bench import devices, load_generator, report
from inflight.bench.load_generator import Run, Sender
from inflight.bench.openai_server import Asking, Heard, OpenAIServer, PeerSender, count_tokens
from inflight.bench.workload import TimedRequest
from inflight.checkpoint.tokenizer import ChatTokenizer, load_tokenizer
from inflight.errors import CourseError
from inflight.triton import repository
from inflight.triton.client import Client
from inflight.triton.server import Server

APIS = ("openai",)
OURS, THEIRS = "inflight", "peer"
# Text says how many tokens it was to within some: see `PeerSender`. What differs by more is another number.
MOST_OFF = 0.1
FIGURES = {
    "tokens_per_s": "tokens_per_s",
    "mean_latency_ms": "latency_ms_mean",
    "p99_latency_ms": "latency_ms_p99",
    "mean_ttft_ms": "ttft_ms_mean",
    "mean_itl_ms": "itl_ms_mean",
}
RATIOS = {"throughput": "tokens_per_s", "mean_latency": "latency_ms_mean", "p99_latency": "latency_ms_p99"}


@dataclass(frozen=True)
class Count:
    """Tokens of a round.

    Attributes
    ----------
    asked, counted : int
        What the requests ask for; what our tokenizer makes of the text that came.
    claimed : int or None
        The sum of what the server says of itself; None where it says it of no answer, or not of all.
    stopped : int
        Answers that ended by themselves, as it says.
    """

    asked: int
    counted: int
    claimed: int | None
    stopped: int


def check(api: str, rounds: int) -> None:
    """Refuse what is not known before anything starts."""
    if api not in APIS:
        raise CourseError(f"--api is {api!r}; it must be {' or '.join(APIS)}.")
    if rounds < 1:
        raise CourseError(f"There are {rounds} rounds; ask for at least 1.")


def bench(
    url: str,
    engine_dir: str | Path,
    requests: list[TimedRequest],
    workdir: str | Path,
    rounds: int = 5,
    stream: bool = False,
    model: str | None = None,
    concurrency: int | None = None,
    timeout_s: float = 300,
    progress: Callable[[str], None] = lambda step: None,
    their_device: str | None = None,
    mix_devices: bool = False,
) -> dict:
    """Run the trace against the server at `url` and against ours in turns, after one round that is not counted.

    Theirs gets the prompt as text, with our chat template (at /v1/completions; at /v1/chat/completions with its own),
    and is asked for answers of exactly `max_tokens` tokens, greedily. Each request is a connection of its own. Ours is
    `ensemble` behind a server for the occasion, over gRPC.

    Parameters
    ----------
    url : str
        http://host:port of a server with OpenAI's endpoints, with the same model and as many slots as the engine.
    workdir : path
        Folder for the model repository.
    stream : bool
        Ask both for answers in pieces, which gives TTFT and ITL.
    model : str, optional
        Its name there; by default the first that it lists.
    concurrency : int, optional
        Most requests under way at any time; by default as in `load_generator.load`.
    timeout_s : float
        Most seconds for one of its answers.
    their_device : str, optional
        Name of what it computes on; needed unless it is on this machine, and this has no GPU.
    mix_devices : bool
        Compare servers that compute on different devices, too.

    Returns
    -------
    dict
        `machine`, `devices`, `settings` (with `endpoint` and `fields`, how theirs is asked), `rows`, one a server,
        medians over the rounds: `tokens_per_s`, latencies, TTFT and ITL in milliseconds, and of a round `asked`,
        `counted` and `claimed` tokens; `ratios`, ours over theirs: `throughput`, `mean_latency`, `p99_latency`.

    Raises
    ------
    CourseError
        The two compute on different devices; the server cannot be asked in OpenAI's way, fails, stops early or says
        another number of tokens than its text has; a request of ours failed.
    """
    check(APIS[0], rounds)
    tokenizer = load_tokenizer(engine_dir)
    server = OpenAIServer(url, tokenizer, timeout_s)
    sides = {THEIRS: devices.of_peer(server.url, their_device), OURS: devices.of_engine(engine_dir)}
    devices.check(sides, mix_devices)
    progress(f"asking {server.url} how it is to be asked")
    asking = server.find(requests[0], stream, model)
    repo = repository.assemble(Path(workdir) / "repository", engine_dir, decoupled_mode=stream)
    runs: dict[str, list[Run]] = {THEIRS: [], OURS: []}
    counts = []
    progress("starting Triton")
    with Server(repo) as ours, Client(ours.grpc_url) as client:
        for number in range(rounds + 1):
            for name in (THEIRS, OURS) if number % 2 else (OURS, THEIRS):
                progress(f"round {number} of {rounds}: {name}" if number else f"warm-up: {name}")
                if name == OURS:
                    run = _ours(client, requests, stream, concurrency)
                else:
                    run, count = _theirs(server, asking, requests, stream, concurrency)
                    counts += [count] if number else []
                if number:
                    runs[name].append(run)
    settings = {
        "url": server.url,
        "api": APIS[0],
        "model": asking.model,
        "endpoint": asking.endpoint,
        "fields": list(asking.fields),
        "requests": len(requests),
        "output_tokens": sum(request.max_tokens for request in requests),
        "max_batch_size": engine.read(engine_dir).build_config.max_batch_size,
        "concurrency": concurrency,
        "stream": stream,
        "rounds": rounds,
        "warm_up_rounds": 1,
    }
    return {"machine": machine.describe(), "devices": sides, "settings": settings, **_result(runs, counts)}


def _ours(client: Client, requests: list[TimedRequest], stream: bool, concurrency: int | None) -> Run:
    with load_generator.sender(client, stream=stream) as send:
        return _whole(send, requests, concurrency)


def _theirs(
    server: OpenAIServer, asking: Asking, requests: list[TimedRequest], stream: bool, concurrency: int | None
) -> tuple[Run, Count]:
    send = PeerSender(server, asking, stream)
    run = _whole(send, requests, concurrency)
    found = count(send.heard, server.tokenizer)
    check_count(found, server.url)
    return run, found


def _whole(send: Sender | PeerSender, requests: list[TimedRequest], concurrency: int | None) -> Run:
    """A load in which every request was answered."""
    run = load_generator.load(send, requests, concurrency, closed=concurrency is not None)
    if isinstance(send, PeerSender) and send.failure:
        raise CourseError(send.failure)
    errors = run.requests["error"][run.requests["error"] != ""]
    if run.stopped or len(errors):
        raise CourseError(run.stopped or f"{len(errors)} of {len(run.requests)} requests failed: {errors.iloc[0]}")
    return run


def count(heard: list[Heard], tokenizer: ChatTokenizer) -> Count:
    """The tokens of a round's answers."""
    claims = [one.claimed for one in heard]
    return Count(
        asked=sum(one.asked for one in heard),
        counted=sum(count_tokens(tokenizer, one.text) for one in heard),
        claimed=None if None in claims else sum(claims),
        stopped=sum(one.is_stopped for one in heard),
    )


def check_count(found: Count, url: str) -> None:
    """Refuse a server whose answers are of other lengths than asked for, or than it says.

    Raises
    ------
    CourseError
        Its text differs by more than `MOST_OFF`, with the figures.
    """
    if found.counted < (1 - MOST_OFF) * found.asked:
        early = f"; {found.stopped} of its answers ended by themselves" if found.stopped else ""
        says = "" if found.claimed is None else f", and says that it sent {found.claimed}"
        raise CourseError(
            f"The server at {url} was asked for {found.asked} tokens and its text has {found.counted}{says}{early}: "
            "start it so that it heeds ignore_eos, and with room for every prompt with its answer in each slot."
        )
    if found.counted > (1 + MOST_OFF) * found.asked:
        raise CourseError(
            f"The server at {url} was asked for {found.asked} tokens and its text has {found.counted}: it does not "
            "heed max_tokens, or its model has another tokenizer. Give it the same model."
        )
    if found.claimed is not None and abs(found.claimed - found.counted) > MOST_OFF * found.counted:
        raise CourseError(
            f"The server at {url} says that it sent {found.claimed} tokens and its text has {found.counted}: it "
            "miscounts, or its model has another tokenizer. Give it the same model."
        )


def _result(runs: dict[str, list[Run]], counts: list[Count]) -> dict:
    """Rows and ratios of all rounds."""
    figures = {name: [report.summary(run) for run in turns] for name, turns in runs.items()}
    tokens = {
        THEIRS: {
            "asked": median(one.asked for one in counts),
            "counted": median(one.counted for one in counts),
            "claimed": None if any(one.claimed is None for one in counts) else median(one.claimed for one in counts),
        },
        # The engine's own count, which the client of our server cannot see in the text.
        OURS: {
            "asked": median(one.asked for one in counts),
            "counted": median(int(run.requests["output_len"].sum()) for run in runs[OURS]),
            "claimed": None,
        },
    }
    rows = [
        {
            "server": name,
            **{title: _median([one[key] for one in figures[name]]) for title, key in FIGURES.items()},
            **tokens[name],
        }
        for name in runs
    ]
    of = lambda name, key: [one[key] for one in figures[name]]
    return {
        "rows": rows,
        "ratios": {title: load_generator.ratio(of(OURS, key), of(THEIRS, key)) for title, key in RATIOS.items()},
    }


def _median(values: list[float | None]) -> float | None:
    return None if None in values else median(values)
