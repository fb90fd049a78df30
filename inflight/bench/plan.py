"""A load before it is sent: which requests, of what lengths, when, to which server, and what goes before them.

    requests = plan.requests("mild", 16, tokenizer, build)
    requests = plan.with_arrivals(requests, "poisson", rate=4.0)
    plan.check_fit(requests, build)
    with plan.target(None, "ensemble", engine_dir) as (send, log):
        load_generator.load(send, requests)

A choice that cannot be made is told in the words of the command line, where it is made.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from inflight import files
from inflight.bench import arrivals as processes
from inflight.bench import prefixes, trace_file, workload
from inflight.bench.load_generator import Sender, Stop
from inflight.bench.names import APIS, ARRIVALS, RATED, TRACES
from inflight.bench.openai_server import OpenAIServer, PeerSender
from inflight.bench.workload import TimedRequest
from inflight.checkpoint.tokenizer import ChatTokenizer, load_tokenizer
from inflight.engine.config import BuildConfig
from inflight.errors import CourseError
from inflight.triton import repository
from inflight.triton.client import Client, check_address, is_ok
from inflight.triton.server import Server

# Requests -------------------------------------------------------------------------------------------------------------


def requests(
    dataset: str,
    number: int | None,
    tokenizer: ChatTokenizer,
    build: BuildConfig,
    seed: int = 0,
    tell: Callable[[str], None] = lambda sentence: None,
    max_input_len: int | None = None,
) -> list[TimedRequest]:
    """The first requests of a trace or a dataset, with its own lengths.

    Those of a dataset go all at once, those of a trace at its own times.

    Parameters
    ----------
    dataset : str
        Name of a trace, "dataset" for the course's own, or the path of a file in MLPerf's layout.
    number : int or None
        How many; None: all. Of a trace there may be more than it has by default.
    build : BuildConfig
        The engine's. Prompts of a dataset that are longer than its `max_input_len` are left out.
    seed : int
        Of the lengths that a trace draws.
    tell : function
        Called with a sentence when prompts are left out.
    max_input_len : int, optional
        Leave out prompts with more tokens, of a dataset before `number` counts, of a trace after it.

    Raises
    ------
    CourseError
        A dataset that cannot be read or has fewer requests, or no prompt that is short enough.
    """
    if dataset in TRACES:
        return _short_enough(workload.trace(dataset, tokenizer, seed, number), dataset, max_input_len, tell)
    path = workload.MINI_CNN_EVAL if dataset == "dataset" else Path(dataset)
    most = min(build.max_input_len, max_input_len or build.max_input_len)
    found = workload.from_dataset(workload.read_dataset(path), tokenizer, most)
    if found.num_dropped:
        whose = "the engine's max_input_len" if most == build.max_input_len else "--max-input-len"
        tell(f"{found.num_dropped} prompts of {path} are longer than {whose} ({most} tokens) and are left out.")
    return first(found, number, f"The dataset {path}")


def _short_enough(
    requests: list[TimedRequest], trace: str, most: int | None, tell: Callable[[str], None]
) -> list[TimedRequest]:
    if most is None:
        return requests
    kept = [request for request in requests if request.input_len <= most]
    if not kept:
        raise CourseError(
            f"Every prompt of the trace {trace} is longer than --max-input-len ({most} tokens); the shortest has "
            f"{min(request.input_len for request in requests)}. Allow longer ones."
        )
    if len(kept) < len(requests):
        tell(
            f"{len(requests) - len(kept)} prompts of {trace} are longer than --max-input-len ({most} tokens) and are "
            "left out."
        )
    return kept


def recorded(path: str | Path, number: int | None, tokenizer: ChatTokenizer) -> list[TimedRequest]:
    """The first requests of an earlier run, from its CSV: its times and lengths once more; None: all."""
    return first(workload.recorded(path).requests(tokenizer), number, f"The recorded run {path}")


def from_trace(
    name: str,
    number: int | None,
    tokenizer: ChatTokenizer,
    build: BuildConfig,
    tell: Callable[[str], None] = lambda sentence: None,
) -> list[TimedRequest]:
    """The first requests of a file of arrivals with lengths that the engine can take; None: all.

    Parameters
    ----------
    name : str
        A path, or a name of `names.TRACE_FILES`.
    tell : function
        Called with a sentence when requests are too long for the engine and left out, or too short and lengthened.

    Raises
    ------
    CourseError
        The file is not right, or has fewer requests that fit.
    """
    path = trace_file.find(name)
    found = trace_file.read(path)
    shortest = workload.input_len("a b", tokenizer)
    rows = list(zip(found.times, found.input_lens, found.output_lens))
    fits = [
        (at_s, max(prompt, shortest), answer)
        for at_s, prompt, answer in rows
        if prompt <= build.max_input_len and max(prompt, shortest) + answer <= build.max_seq_len
    ]
    if not fits:
        raise CourseError(
            f"No request of the trace {path} fits into the engine (max_input_len {build.max_input_len}, max_seq_len "
            f"{build.max_seq_len}): build one with larger ones, or give another trace."
        )
    if len(fits) < len(rows):
        tell(
            f"{len(rows) - len(fits)} of {len(rows)} requests of {path} are longer than the engine's max_input_len "
            f"({build.max_input_len}) or max_seq_len ({build.max_seq_len}) and are left out."
        )
    if raised := sum(prompt < shortest for _, prompt, _ in rows):
        tell(f"{raised} prompts of {path} are shorter than the chat template with a word and get {shortest} tokens.")
    kept = first(fits, number, f"The trace {path}")
    times, input_lens, output_lens = map(list, zip(*kept))
    start = times[0]
    return workload.Recording([at_s - start for at_s in times], input_lens, output_lens).requests(tokenizer)


def first(requests: list, number: int | None, source: str) -> list:
    """The first `number` requests of what `source` names, or all; CourseError when there are fewer."""
    if number is not None and not 1 <= number <= len(requests):
        raise CourseError(
            f"{source} has {len(requests)} requests and --requests asks for {number}: name a number from 1 to "
            f"{len(requests)}."
        )
    return requests[:number]


def with_lengths(requests: Sequence[TimedRequest], spec: str, seed: int = 0) -> list[TimedRequest]:
    """The same prompts, with answers of other lengths.

    Parameters
    ----------
    spec : str
        "dataset": as they are. "normal:MEAN,STDEV" and "histogram:LENGTH=TIMES,…" draw lengths in tokens.

    Raises
    ------
    CourseError
        `spec` is none of them.
    """
    if spec == "dataset":
        return list(requests)
    kind, _, values = spec.partition(":")
    try:
        if kind == "normal":
            mean, stdev = map(float, values.split(","))
            lengths = workload.normal_lengths(len(requests), mean, stdev, seed)
        elif kind == "histogram":
            pairs = [pair.split("=") for pair in values.split(",")]
            weights = {int(length): int(times) for length, times in pairs}
            lengths = workload.histogram_lengths(weights, len(requests), seed)
        else:
            raise ValueError(kind)
    except ValueError:
        raise CourseError(
            f"--output-lengths {spec}: write dataset, normal:MEAN,STDEV as normal:60,20, or histogram with "
            "LENGTH=TIMES as histogram:8=6,16=2,256=1."
        ) from None
    return workload.with_lengths(requests, lengths)


def with_prefixes(
    requests: list[TimedRequest],
    system_prompt: int | None,
    turns: int,
    think_s: float,
    tokenizer: ChatTokenizer,
    build: BuildConfig,
) -> list[TimedRequest]:
    """The requests with a system prompt of so many tokens before each, as conversations of so many turns.

    Raises
    ------
    CourseError
        A value is out of its range, or a prompt becomes longer than the engine's `max_input_len`.
    """
    shaped = requests
    if system_prompt is not None:
        shaped = prefixes.with_system_prompt(shaped, system_prompt, tokenizer)
    if turns != 1:
        shaped = prefixes.conversations(shaped, turns, think_s, tokenizer)
    longest = max(request.input_len for request in shaped)
    if shaped is not requests and longest > build.max_input_len:
        raise CourseError(
            f"With --system-prompt and --turns as given, a prompt has {longest} tokens, and the engine's max_input_len "
            f"is {build.max_input_len}: ask for fewer, take shorter prompts, or build an engine with a larger one."
        )
    return shaped


def arrivals(
    name: str | None,
    rate: float | None,
    recorded: Path | None,
    output_lengths: str,
    trace: str | None = None,
) -> str:
    """The arrival process that five options ask for together.

    Parameters
    ----------
    name : str or None
        One of `ARRIVALS`; None: "recorded" with a recorded run, "trace" with a trace, else "all-at-once".
    rate : float or None
        Requests a second, which those of `RATED` need, a trace may have, and no other takes.
    recorded : path or None
        CSV of an earlier run, which "recorded" needs and no other takes.
    output_lengths : str
        See `with_lengths`; a recorded run and a trace have their own.
    trace : str or None
        File of arrivals with lengths, or its name, which "trace" needs and no other takes.

    Raises
    ------
    CourseError
        The options do not go together.
    """
    if recorded is not None and trace is not None:
        raise CourseError("--recorded and --trace both say what is sent and when: give one of them.")
    name = name or ("recorded" if recorded is not None else "trace" if trace is not None else "all-at-once")
    if name not in ARRIVALS:
        raise CourseError(f"--arrivals is {name!r}; it must be one of {', '.join(ARRIVALS)}.")
    for kind, file in (("recorded", recorded), ("trace", trace)):
        if (name == kind) != (file is not None):
            raise CourseError(f"--arrivals {kind} and --{kind} FILE belong together: give both, or the file alone.")
    if name in ("recorded", "trace") and output_lengths != "dataset":
        raise CourseError(f"A {name} run has lengths of its own: leave out --output-lengths, or --{name}.")
    if name != "trace" and (name in RATED) != (rate is not None):
        raise CourseError(
            f"--rate belongs to --arrivals {', '.join(RATED[:-1])} or {RATED[-1]}, and they need it: requests a "
            "second, such as --rate 4."
        )
    if rate is not None:
        processes.check_rate(rate)
    return name


def with_arrivals(
    requests: Sequence[TimedRequest],
    arrivals: str,
    rate: float | None = None,
    seed: int = 0,
    cv: float = processes.BURSTS_CV,
    day_s: float = processes.DAY_S,
    day_swing: float = processes.DAY_SWING,
) -> list[TimedRequest]:
    """The requests at the times of an arrival process, those of `RATED` at `rate` a second.

    Requests that wait for another's answer keep that. Those of "recorded" and "trace" have times of their own, which a
    rate stretches.
    """
    openings = [request for request in requests if request.after is None]
    number = len(openings)
    if arrivals in ("recorded", "trace"):
        times = [request.at_s for request in openings]
        times = times if rate is None else processes.at_rate(times, rate)
    elif arrivals == "constant":
        times = processes.constant(number, rate)
    elif arrivals == "poisson":
        times = processes.poisson(number, rate, seed)
    elif arrivals == "bursts":
        times = processes.bursts(number, rate, cv, seed)
    elif arrivals == "day":
        times = processes.day(number, rate, day_s, day_swing, seed)
    else:
        times = processes.all_at_once(number)
    return workload.with_times(requests, times)


def is_closed(loop: str | None, arrivals: str, concurrency: int | None) -> bool:
    """Whether the loop is closed: as asked for, else where all are there at once and only so many may be under way.

    Raises
    ------
    CourseError
        There is no such loop, or it does not go with the arrivals or without a concurrency.
    """
    if loop is None:
        return arrivals == "all-at-once" and concurrency is not None
    if loop not in ("open", "closed"):
        raise CourseError(f"--loop is {loop!r}; it must be open or closed.")
    if loop == "closed" and concurrency is None:
        raise CourseError("A closed loop has so many users, each with one request under way: add --concurrency.")
    if loop == "closed" and arrivals != "all-at-once":
        raise CourseError(
            f"In a closed loop a request is sent when an answer has come, not by --arrivals {arrivals}: leave one out."
        )
    return loop == "closed"


def check_fit(requests: Sequence[TimedRequest], build: BuildConfig) -> None:
    """Refuse an answer that would reach the engine's `max_seq_len`.

    It would end there, and be counted as longer than it is.
    """
    for number, request in enumerate(requests):
        if request.input_len + request.max_tokens > build.max_seq_len:
            raise CourseError(
                f"Request {number} has {request.input_len} tokens and asks for {request.max_tokens} more, but the "
                f"engine's max_seq_len is {build.max_seq_len}: ask for shorter answers, or build an engine "
                "with a larger one."
            )


# The server, and what goes before -------------------------------------------------------------------------------------


def check_target(url: str | None, model: str, api: str = "auto", values: dict[str, str] | None = None) -> None:
    """Refuse an address that is none, a model that our own server does not have, or settings for one that runs."""
    if api not in APIS:
        raise CourseError(f"--api is {api!r}; it must be one of {', '.join(APIS)}.")
    if url is None and api == "openai":
        raise CourseError("The server for the occasion is Triton: name one with OpenAI's endpoints with --url.")
    if url is not None and values:
        raise CourseError("--set is for the server for the occasion: set what runs at --url where it was started.")
    if url is not None and api != "openai" and not url.startswith("https://"):  # which Triton does not speak
        check_address(url)
    if url is None and model != "ensemble":
        raise CourseError(
            f"The server for the occasion has no {model}: name a running server with --url, or leave out --model."
        )


@contextlib.contextmanager
def target(
    url: str | None,
    model: str,
    engine_dir: str | Path,
    stream: bool = False,
    serve: Callable[[Path], contextlib.AbstractContextManager[Server]] = Server,
    stop: Stop | None = None,
    request_id: str | None = None,
    api: str = "triton",
    probe: TimedRequest | None = None,
    exact: bool = True,
    remember: bool = False,
    values: dict[str, str] | None = None,
) -> Iterator[tuple[Sender | PeerSender, Path | None]]:
    """A sender to a running server, or to one for the occasion with the path of its iteration log.

    Parameters
    ----------
    url : str or None
        The running server; None: one of `engine_dir`, which ends with the context.
    model : str
        The text model; of a server with OpenAI's endpoints "ensemble" is the first that it lists.
    stream : bool
        Ask for answers in pieces; the server for the occasion is decoupled then.
    serve : function
        Repository -> a context manager of a server of it.
    stop, request_id
        As `Sender` takes them.
    api : str
        How the running server is asked: "triton", "openai", or "auto", which finds out.
    probe : TimedRequest, optional
        A request by which is found out how a server with OpenAI's endpoints is asked; only that needs one.
    exact : bool
        Whether answers are exactly as long as asked for; if not, they end by themselves.
    remember : bool
        Whether a server with OpenAI's endpoints may use what it has computed of a prompt again.
    values : dict, optional
        Values of the templates' variables, for the server for the occasion.
    """
    tokenizer = None if exact else load_tokenizer(engine_dir)
    if url is not None and is_openai(url, api):
        if stop is not None or request_id is not None:
            raise CourseError(
                "A server with OpenAI's endpoints takes neither --stop-after-ms nor --request-id: leave them out."
            )
        server = OpenAIServer(url, load_tokenizer(engine_dir))
        asking = server.find(probe, stream, None if model == "ensemble" else model, exact, remember)
        yield PeerSender(server, asking, stream, goes_on=True), None
        return
    if url is not None:
        with Sender(Client(url, model), stream, stop, request_id, tokenizer) as send:
            yield send, None
        return
    with files.temporary("inflight-bench-") as scratch:
        log = Path(scratch) / "iterations.jsonl"
        repo = repository.assemble(
            Path(scratch) / "repository",
            engine_dir,
            **{**(values or {}), "decoupled_mode": stream, "iteration_log_path": log},
        )
        with (
            serve(repo) as server,
            Sender(Client(server.grpc_url, model), stream, stop, request_id, tokenizer) as send,
        ):
            yield send, log


def is_openai(url: str, api: str) -> bool:
    """Whether the server at `url` is asked by OpenAI's protocol: as `api` says, or, for "auto", as it turns out."""
    if api != "auto":
        return api == "openai"
    return url.startswith(("http://", "https://")) and not is_ok(url.rstrip("/"), "/v2/health/live")


def check_streaming(client: Client, stream: bool) -> None:
    """Refuse to ask a running server for pieces when its model gives whole answers, and the other way round."""
    if client.is_decoupled() != stream:
        what = "does not stream: leave out" if stream else "is decoupled: add"
        raise CourseError(f"{client.model} at {client.url} {what} --stream.")


def warm_up_requests(number: int | None, build: BuildConfig) -> int:
    """How many requests go before and are not counted: `number`, or two for each that the engine runs at a time."""
    if number is not None and number < 0:
        raise CourseError(f"--warm-up is {number}; it must be 0 or more.")
    return 2 * build.max_batch_size if number is None else number
