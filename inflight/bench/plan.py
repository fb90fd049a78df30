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

from inflight import leftovers
from inflight.bench import workload
from inflight.bench.load_generator import Sender, Stop
from inflight.bench.names import ARRIVALS, TRACES
from inflight.bench.workload import TimedRequest
from inflight.checkpoint.tokenizer import ChatTokenizer
from inflight.engine.config import BuildConfig
from inflight.errors import CourseError
from inflight.triton import doors, repository
from inflight.triton.client import Client
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


def first(requests: list[TimedRequest], number: int | None, source: str) -> list[TimedRequest]:
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


def arrivals(name: str | None, rate: float | None, recorded: Path | None, output_lengths: str) -> str:
    """The arrival process that four options ask for together.

    Parameters
    ----------
    name : str or None
        One of `ARRIVALS`; None: "recorded" with a recorded run, else "all-at-once".
    rate : float or None
        Requests a second, which "constant" and "poisson" need and no other takes.
    recorded : path or None
        CSV of an earlier run, which "recorded" needs and no other takes.
    output_lengths : str
        See `with_lengths`; a recorded run has its own.

    Raises
    ------
    CourseError
        The options do not go together.
    """
    name = name or ("all-at-once" if recorded is None else "recorded")
    if name not in ARRIVALS:
        raise CourseError(f"--arrivals is {name!r}; it must be one of {', '.join(ARRIVALS)}.")
    if (name == "recorded") != (recorded is not None):
        raise CourseError("--arrivals recorded and --recorded FILE belong together: give both, or the file alone.")
    if recorded is not None and output_lengths != "dataset":
        raise CourseError("A recorded run has lengths of its own: leave out --output-lengths, or --recorded.")
    if (name in ("constant", "poisson")) != (rate is not None):
        raise CourseError(
            "--rate belongs to --arrivals constant or poisson, and they need it: requests a second, such as --rate 4."
        )
    return name


def with_arrivals(
    requests: Sequence[TimedRequest], arrivals: str, rate: float | None = None, seed: int = 0
) -> list[TimedRequest]:
    """The requests at the times of an arrival process, "constant" and "poisson" at `rate` a second."""
    number = len(requests)
    if arrivals == "constant":
        times = workload.constant(number, rate)
    elif arrivals == "poisson":
        times = workload.poisson(number, rate, seed)
    else:
        times = workload.all_at_once(number)
    return workload.with_times(requests, times)


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


def check_target(url: str | None, model: str) -> None:
    """Refuse an address that is none, and a model that the server for the occasion does not have."""
    if url is not None:
        doors.check(url)
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
) -> Iterator[tuple[Sender, Path | None]]:
    """A sender to a running server, or to one for the occasion with the path of its iteration log.

    Parameters
    ----------
    url : str or None
        The running server; None: one of `engine_dir`, which ends with the context.
    stream : bool
        Ask for answers in pieces; the server for the occasion is decoupled then.
    serve : function
        Repository -> a context manager of a server of it.
    stop, request_id
        As `Sender` takes them.
    """
    if url is not None:
        with Sender(Client(url, model), stream, stop, request_id) as send:
            yield send, None
        return
    with leftovers.folder("inflight-bench-") as scratch:
        log = Path(scratch) / "iterations.jsonl"
        repo = repository.assemble(
            Path(scratch) / "repository", engine_dir, decoupled_mode=stream, iteration_log_path=log
        )
        with serve(repo) as server, Sender(Client(server.grpc_url, model), stream, stop, request_id) as send:
            yield send, log


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
