"""Compares two ways to serve the same requests; they take turns in one run.

    result = compare("V1", "inflight_fused_batching", engine_dir, trace("skewed", tokenizer), workdir)
    result["ratios"]["throughput"]["median"]            # second over first

A way is `in-process`, the engine alone without a server; `V1`, `inflight_batching` or `inflight_fused_batching`, the
batching type of the engine behind `ensemble`; `ngram`, in flight with drafts; `ensemble` as it is by default;
`llama-python`, the baseline without an engine; or a server that runs already: the address of a Triton, or openai:URL.
"""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from inflight import engine
from inflight.bench import report, targets
from inflight.bench.load import Run, send_all, warm_up
from inflight.bench.senders import InProcess, Sender, Sends
from inflight.bench.turns import Progress, ratio, result, silent, take_turns
from inflight.bench.workload import TimedRequest
from inflight.engine.executor import Executor
from inflight.engine.settings import BATCHING_TYPES
from inflight.errors import CourseError
from inflight.triton import repository
from inflight.triton.repository.layout import BASELINE, ENGINE, ENSEMBLE
from inflight.triton.serving.server import Server

IN_PROCESS, NGRAM = "in-process", "ngram"
DRAFTS = {"decoding_type": "NGram", "max_draft_len": 4, "max_matching_ngram_size": 3}  # of `ngram`
BY_DEFAULT = BATCHING_TYPES[-1]  # the batching type of `ensemble`
# The ways behind `ensemble` -> batching type and drafts of the engine.
OURS: dict[str, tuple[str, dict | None]] = {kind: (kind, None) for kind in BATCHING_TYPES}
OURS |= {NGRAM: (BY_DEFAULT, DRAFTS), ENSEMBLE: (BY_DEFAULT, None)}
WAYS = (IN_PROCESS, *OURS, BASELINE)  # and the address of a Triton, and openai:URL
# Name of a ratio: the column that has both ways' medians, and the figure of `report.summary`.
RATIOS = {
    "throughput": ("tokens_per_s", "tokens_per_s"),
    "mean_latency": ("mean_latency_ms", "latency_ms_mean"),
    "p99_latency": ("p99_latency_ms", "latency_ms_p99"),
}
TIMEOUT_S = 600  # for an answer: the baseline takes one request after the other
FEWEST = 0.9  # of the tokens asked for, below which an answer's text is too short to be the same work


def compare(
    first: str,
    second: str,
    engine_dir: str | Path,
    requests: list[TimedRequest],
    workdir: str | Path,
    concurrency: int | None = None,
    rounds: int = 3,
    checkpoint_dir: str | Path | None = None,
    progress: Progress = silent,
) -> dict:
    """Send the same requests both ways in turns; before each turn one request, which is not counted.

    Parameters
    ----------
    first, second : str
        Ways of serving; ratios are second over first.
    requests : list of TimedRequest
        Sent at their `at_s`.
    workdir : path
        Folder for the model repository.
    concurrency : int, optional
        So many users instead, each with one request under way at any time.
    checkpoint_dir : path, optional
        Hugging Face folder, which `llama-python` needs.

    Returns
    -------
    dict
        `machine`; `settings`; `rows`, one a way, medians over the rounds: `way`, `device`, `tokens_per_s`,
        `mean_latency_ms`, `p99_latency_ms`; `ratios` (median, min and max over the rounds): `throughput`,
        `mean_latency`, `p99_latency`.

    Raises
    ------
    CourseError
        A way that is not known, before anything starts; a server that is not there; a request that failed; answers of
        an openai:URL that are much shorter than asked for. A Triton's are not counted: see `senders.Sender`.
    """
    validate(first, second, rounds)
    names, engine_dir = (first, second), Path(engine_dir)
    with contextlib.ExitStack() as stack:
        progress("starting", 0, 1)
        senders = {
            name: stack.enter_context(targets.target(name, engine_dir)) for name in names if targets.is_url(name)
        }
        if IN_PROCESS in names:
            executor = stack.enter_context(Executor.load(engine_dir))
            senders[IN_PROCESS] = InProcess(executor, engine_dir, requests)
        if served := [name for name in names if name not in senders]:  # one server for all that are ours
            repo = _repository(BASELINE in served, engine_dir, Path(workdir), checkpoint_dir)
            server = stack.enter_context(Server(repo, drain_s=0))
            for name in served:
                model = BASELINE if name == BASELINE else ENSEMBLE
                senders[name] = stack.enter_context(Sender(server.grpc_url, model, timeout_s=TIMEOUT_S))

        def turn(name: str) -> Run:
            if name in OURS:
                batching, drafts = OURS[name]
                server.load(ENGINE, gpt_model_type=batching, speculative_config=drafts)
            return _run(senders[name], requests, concurrency)

        turns = take_turns({name: partial(turn, name) for name in names}, rounds, progress)
    figures = {name: [report.summary(run) for run in runs] for name, runs in turns.items()}
    settings = {
        "requests": len(requests),
        "output_tokens": sum(request.max_tokens for request in requests),
        "concurrency": concurrency,
        "max_batch_size": engine.read(engine_dir).build_config.max_batch_size,
        "rounds": len(figures[first]),
    }
    rows = [
        {"way": name, "device": targets.device(name, engine_dir)}
        | {column: median(one[key] for one in runs) for column, key in RATIOS.values()}
        for name, runs in figures.items()
    ]
    ratios = {
        name: ratio([one[key] for one in figures[second]], [one[key] for one in figures[first]])
        for name, (_, key) in RATIOS.items()
    }
    return result(settings, rows, ratios)


def validate(first: str, second: str, rounds: int) -> None:
    """Refuse what `compare` cannot do, with a CourseError."""
    for name in (first, second):
        if name not in WAYS and not targets.is_url(name):
            raise CourseError(
                f"There is no way to serve called {name!r}. There are: {', '.join(WAYS)}, the address of "
                "a Triton, and openai:URL."
            )
    if first == second:
        raise CourseError(f"Both sides are {first}: name two different ones.")
    if rounds < 1:
        raise CourseError(f"The number of rounds is {rounds}; it must be at least 1.")


def _repository(with_baseline: bool, engine_dir: Path, workdir: Path, checkpoint_dir: str | Path | None) -> Path:
    models: tuple[str, ...] = repository.PIPELINE
    values: dict[str, Any] = {}
    if with_baseline:
        models, values = (*models, BASELINE), {"checkpoint_dir": checkpoint_dir}
    return repository.assemble(workdir / "repository", engine_dir, models=models, **values)


def _run(send: Sends, requests: list[TimedRequest], concurrency: int | None) -> Run:
    """Send the requests once; CourseError if one is not answered, or too briefly."""
    warm_up(send, requests, 1)  # what was just loaded takes longer at its first request
    run = send_all(send, requests, concurrency).whole()
    asked, came = run.requests["max_tokens"].sum(), run.requests["output_len"].sum()
    if came < FEWEST * asked:
        raise CourseError(
            f"{send.url} was asked for {asked} tokens and its text has {came}: start it so that it obeys ignore_eos, "
            "and with room for every prompt with its answer in each slot."
        )
    return run
