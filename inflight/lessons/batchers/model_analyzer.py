"""Triton's Model Analyzer: tries configurations of a model on a running server, and ranks them.

    prepare()                                               # once: installs it into the course's cache folder
    found = search(server, "text-embedding", input_data, concurrency=(1, 16), max_queue_delays_us=(0, 2000))
    found.table, found.best

It is given the server's address only ("remote" mode): it loads each configuration through the API, as `Server.load`
does, lets the Performance Analyzer measure it, and loads the next. The repository's files stay as they are. It has no
setting for the server's key: `model_analyzer_with_key` starts it so that it sends it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
import psutil
import yaml
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from inflight import cache, files
from inflight.errors import CourseError
from inflight.lessons.batchers import perf_analyzer
from inflight.paths import ASSETS
from inflight.triton import repository
from inflight.triton.server import Server

REQUIREMENTS = ASSETS / "model-analyzer" / "requirements.txt"
RUN_TIMEOUT_S = 300  # for one run of the Performance Analyzer
SERVER_RETRIES = 5  # one a second
# What it is asked for -> its heading and our name.
FIELDS = {
    "perf_throughput": ("Throughput (infer/sec)", "throughput"),
    "perf_latency_avg": ("Avg Latency (ms)", "latency_ms_mean"),
    "perf_latency_p99": ("p99 Latency (ms)", "latency_ms_p99"),
    "perf_server_queue": ("Server Queue time (ms)", "queue_ms"),
    "perf_server_compute_infer": ("Server Compute Infer time (ms)", "compute_ms"),
}


@dataclass(frozen=True)
class Search:
    """What a search found.

    Attributes
    ----------
    table : DataFrame
        One row a configuration and concurrency, highest throughput first, those within the latency budget before the
        others: `config` (its name for it; "default" is the model as its files say); `batching` (its batcher as a
        fragment of a config.pbtxt, blank without one); `instances`, `max_batch_size`, `concurrency`; `throughput`
        (items/s); `latency_ms_mean`, `latency_ms_p99`; `queue_ms`, `compute_ms` (means of a request); `within_budget`.
    best : str
        The first row's configuration as a fragment for `repository.edit`.
    summary : str
        Its own report, an HTML page.
    """

    table: pd.DataFrame
    best: str
    summary: str


# Installing -----------------------------------------------------------------------------------------------------------


def prepare() -> Path:
    """Folder with the Model Analyzer's packages, in the course's cache folder; made by one run of pip (340 MB).

    Its pins agree with the course's, so what the course has is not installed again, and nothing of the course is
    changed.

    Raises
    ------
    CourseError
        The packages could not be had, or the cache folder cannot be written or is full.
    """
    pins = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:12]
    target = cache.place("model-analyzer", f"{pins}-py{sys.version_info.major}.{sys.version_info.minor}")
    return cache.made_once(target, lambda: _install(target))


def _install(target: Path) -> None:
    with files.written_aside(target, "Model Analyzer") as aside:
        _run_pip(aside)


def _run_pip(folder: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--no-compile",
        "--retries",
        "1",
        "--disable-pip-version-check",
        "--target",
        str(folder),
        "-r",
        str(REQUIREMENTS),
    ]
    done = subprocess.run(
        command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace"
    )
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise CourseError(
            f"The Model Analyzer could not be installed ({said[-1] if said else 'pip said nothing'}). Connect to "
            "the network and try again, or go on without it: `inflight bench batchers` needs none."
        )


# Searching ------------------------------------------------------------------------------------------------------------


def search(
    server: Server,
    model: str,
    input_data: dict,
    concurrency: Sequence[int] = (8,),
    instance_counts: Sequence[int] = (1,),
    max_queue_delays_us: Sequence[int] = (0,),
    preferred_batch_sizes: Sequence[Sequence[int]] = (),
    latency_budget_ms: int | None = None,
    requests: int = 60,
    progress: Callable[[str], None] = lambda step: None,
) -> Search:
    """Measure the model as it is, then with dynamic batching in every combination of what is given.

    Parameters
    ----------
    server : Server
        Runs, and has `model`; when the search ends, it serves the model as its files say.
    input_data : dict
        Requests in the Performance Analyzer's format; see `perf_analyzer.text_data`.
    concurrency : sequence of int
        Requests under way at any time; each is a measurement of every configuration.
    instance_counts : sequence of int
        Copies of the model, see `instance_group`.
    max_queue_delays_us : sequence of int
        Values of `max_queue_delay_microseconds`.
    preferred_batch_sizes : sequence of sequences of int
        Values of `preferred_batch_size`; none: it is left out.
    latency_budget_ms : int, optional
        A configuration whose p99 latency is longer ranks behind all that keep to it.
    requests : int
        Least requests of a measurement.
    progress : callable, optional
        Called with the configuration and concurrency that it measures next.

    Raises
    ------
    CourseError
        A search that measures nothing; the server does not run or has no such model; the Model Analyzer is not
        installed and cannot be, or failed, with its own reason.
    """
    if not all((concurrency, instance_counts, max_queue_delays_us)) or requests < 1:
        raise CourseError(
            "There is nothing to measure: give at least one concurrency, instance count, delay and request."
        )
    if model not in (names := [row.name for row in server.models()]):
        raise CourseError(f"The server has no model {model!r}. It has: {', '.join(names)}.")
    binary = perf_analyzer.find()  # before the packages, which are of no use without it
    packages = prepare()
    with TemporaryDirectory(prefix="inflight-model-analyzer-") as scratch:
        folder = Path(scratch)
        (folder / "input.json").write_text(json.dumps(input_data))
        _write_perf_analyzer(folder, binary)
        batching = {"max_queue_delay_microseconds": list(max_queue_delays_us)}
        if preferred_batch_sizes:
            batching["preferred_batch_size"] = [list(sizes) for sizes in preferred_batch_sizes]
        parameters = {
            "dynamic_batching": batching,
            "instance_group": [[{"count": count, "kind": _kind(server, model)}] for count in instance_counts],
        }
        settings = _settings(server, model, folder, list(concurrency), parameters, latency_budget_ms, requests)
        (folder / "settings.yaml").write_text(yaml.safe_dump(settings))
        try:
            _run(folder, packages, progress)
        finally:
            if server.is_alive():
                server.load(model)
        return _read(folder, model)


def _kind(server: Server, model: str) -> str:
    """Where the model's instances compute: what is searched for is how many of them, on the same device."""
    groups = repository.read_config(server.repo / model / repository.CONFIG).instance_group
    return ModelInstanceGroup.Kind.Name(groups[0].kind) if groups else "KIND_AUTO"


def _write_perf_analyzer(folder: Path, binary: Path) -> None:
    """The Performance Analyzer as a program that finds its libraries by itself."""
    libraries = folder / "libraries"
    libraries.mkdir()
    variable = shlex.quote(perf_analyzer.environment(libraries)["LD_LIBRARY_PATH"])
    program = folder / "perf_analyzer"
    command = f'{shlex.quote(str(binary))} "$@"'
    program.write_text(f"#!/bin/sh\nLD_LIBRARY_PATH={variable} exec {command}\n")
    program.chmod(0o755)


def _settings(
    server: Server,
    model: str,
    folder: Path,
    concurrency: list[int],
    parameters: dict,
    latency_budget_ms: int | None,
    requests: int,
) -> dict:
    """What its command `profile` reads; paths are relative to `folder` where it would not take blanks in them."""
    budget = {} if latency_budget_ms is None else {"constraints": {"perf_latency_p99": {"max": latency_budget_ms}}}
    return {
        "triton_launch_mode": "remote",
        "triton_http_endpoint": server.http_url.removeprefix("http://"),
        "triton_grpc_endpoint": server.grpc_url,
        "triton_metrics_url": server.metrics_url,  # named only: without a GPU it does not read it
        "model_repository": str(server.repo),
        "output_model_repository_path": str(folder / "configurations"),
        "checkpoint_directory": str(folder / "checkpoints"),
        "export_path": str(folder / "export"),
        # Without a GPU there is nothing to watch on the server beyond what the Performance Analyzer measures.
        "gpus": [],
        "duration_seconds": 1,
        "skip_detailed_reports": True,
        "client_max_retries": SERVER_RETRIES,
        "inference_output_fields": ["concurrency", "model_config_path", "satisfies_constraints", *FIELDS],
        "perf_analyzer_path": str(folder / "perf_analyzer"),
        "perf_analyzer_timeout": RUN_TIMEOUT_S,
        "perf_analyzer_cpu_util": 100 * (os.cpu_count() or 1),
        "perf_analyzer_flags": {"input-data": "input.json", **perf_analyzer.windows(requests)},
        "profile_models": {
            model: {
                "cpu_only": True,
                "parameters": {"concurrency": concurrency},
                "model_config_parameters": parameters,
                **budget,
            }
        },
    }


def _run(folder: Path, packages: Path, progress: Callable[[str], None]) -> None:
    """Run it in `folder`, where it leaves files of its own, to its end; CourseError when it fails."""
    (folder / "export").mkdir()
    # It looks for GPUs by itself, and for libraries to watch them with, which come with none of its packages.
    variables = {**os.environ, "PYTHONPATH": str(packages), "CUDA_VISIBLE_DEVICES": "", "MPLBACKEND": "agg"}
    command = [
        sys.executable,
        "-m",
        "inflight.lessons.batchers.model_analyzer_with_key",
        "profile",
        "-f",
        "settings.yaml",
    ]
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    last_line = ""
    try:
        for line in process.stdout:
            last_line = line.strip() or last_line
            if "Profiling " in line and "concurrency=" in line:
                progress(line.partition("Profiling ")[2].strip())
        status = process.wait()
    finally:
        _end(process)
    if status:
        reason = _perf_analyzer_error(folder) or last_line.rpartition("Exception: ")[2].rpartition("an error: ")[2]
        raise CourseError(
            f"The Model Analyzer failed: {reason.rstrip('.')}. See that the server's model answers such requests, "
            "and search again."
        )


def _end(process: subprocess.Popen) -> None:
    """End it and the Performance Analyzer that it started, which is in a session of its own."""
    if process.poll() is None:
        children = psutil.Process(process.pid).children(recursive=True)
        for one in (process, *children):
            one.kill()
        process.wait()
    process.stdout.close()


# Reading --------------------------------------------------------------------------------------------------------------


def _read(folder: Path, model: str) -> Search:
    """Its tables, with each configuration from the config.pbtxt that it wrote."""
    results = folder / "export" / "results" / "metrics-model-inference.csv"
    try:
        measured = pd.read_csv(results)
        rows = [_row(folder, model, row) for row in measured.to_dict("records")]
        table = pd.DataFrame(rows).sort_values(["within_budget", "throughput"], ascending=False, ignore_index=True)
    except (OSError, ValueError, LookupError) as error:
        raise CourseError(
            f"The Model Analyzer left no results that can be read ({type(error).__name__}: {error}). Search again."
        ) from None
    best = repository.read_config(_config(folder, f"{model}_config_{table['config'][0]}"))
    summary = folder / "export" / "reports" / "summaries" / model / "result_summary.html"
    return Search(table, _fragment(best, "dynamic_batching", "instance_group"), summary.read_text())


def _row(folder: Path, model: str, measured: dict) -> dict:
    """One of its measurements by our names."""
    name = measured["Model Config Path"]
    config = repository.read_config(_config(folder, name))
    return {
        "config": name.removeprefix(f"{model}_config_"),
        "batching": _fragment(config, "dynamic_batching"),
        "instances": int(repository.get_value(config, "instance_group.count") or 1),
        "max_batch_size": config.max_batch_size,
        "concurrency": int(measured["Concurrency"]),
        **{ours: measured[theirs] for theirs, ours in FIELDS.values()},
        "within_budget": measured["Satisfies Constraints"] == "Yes",
    }


def _config(folder: Path, name: str) -> Path:
    return folder / "configurations" / name / repository.CONFIG


def _fragment(config: ModelConfig, *fields: str) -> str:
    """These fields of a config in a line, as far as they are there."""
    part = ModelConfig()
    part.CopyFrom(config)
    for field, _ in config.ListFields():
        if field.name not in fields:
            part.ClearField(field.name)
    return text_format.MessageToString(part, as_one_line=True).strip()


def _perf_analyzer_error(folder: Path) -> str:
    """What the Performance Analyzer said when it failed first, in one line; blank if it did not."""
    path = folder / "export" / "perf_analyzer_error.log"
    said = path.read_text(errors="replace") if path.exists() else ""
    return " ".join(said.partition("Error:")[2].partition("Command:")[0].split())
