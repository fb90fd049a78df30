"""Triton's own Performance Analyzer against the same server, its measurements in the same columns.

    run = perf_analyzer.run("127.0.0.1:8001", requests, concurrency=8)
    report.summary(run)["tokens_per_s"]

The binary is the one inside the tritonclient wheel.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import pandas as pd
from tritonclient.grpc.model_config_pb2 import ModelConfig

from inflight.bench.load_generator import COLUMNS, Run, exactly
from inflight.bench.workload import TimedRequest
from inflight.errors import CourseError
from inflight.files import temporary
from inflight.triton.client import Client, arrays_for

# Libraries that the binary wants, and the names under which another wheel carries them.
LIBRARIES = {"libb64.so.0d": "libb64-*.so.0d", "libcudart.so.12": "libcudart-*.so.12*"}
TIMEOUT_S = 1800
ATTEMPTS = (
    3  # on a busy machine requests may be over before it begins to note them; then it even ends well without a file
)
WINDOWS = 3  # that the Performance Analyzer measures, each of as many requests, before it compares them


def run(
    url: str, requests: list[TimedRequest], concurrency: int = 8, model: str = "ensemble", timeout_s: float = TIMEOUT_S
) -> Run:
    """Let the Performance Analyzer send `requests`, so many at any time, in an order of its own.

    A closed loop over gRPC: the requests' times play no part. It streams if the model is decoupled, which gives TTFT
    and ITL. As with `benchmark.load`, every answer is exactly as long as asked for.

    Parameters
    ----------
    url : str
        host:port of the server's gRPC.
    requests : list of TimedRequest
    concurrency : int
        Requests under way at any time.
    model : str
        A text model: `ensemble` or `llama-python`.
    timeout_s : float
        Longest time for all of it; begun again where it did not note every request.

    Returns
    -------
    Run
        As of `benchmark.load`; seconds since the first request was sent.

    Raises
    ------
    CourseError
        This machine cannot run it, the server refused, or it failed, with its own reason.
    """
    check(requests, concurrency, url)
    binary = find()
    with Client(url, model) as client:
        config = client.config()
    streams = config.model_transaction_policy.decoupled
    with temporary("inflight-perf-analyzer-") as scratch:
        folder = Path(scratch)
        (folder / "input.json").write_text(json.dumps(input_data(requests, config)))
        command = [
            *_command(binary, model, url, folder, concurrency),
            "--request-count",
            str(len(requests)),
            "--profile-export-file",
            str(folder / "profile.json"),
        ]
        variables = environment(folder)
        for _ in range(ATTEMPTS):
            (folder / "profile.json").unlink(missing_ok=True)  # it refuses to write over an export
            _execute([*command, "--streaming"] if streams else command, url, variables, timeout_s)
            noted = _noted(folder / "profile.json")
            if noted == len(requests):
                return read(folder / "profile.json", requests, streams)
    raise CourseError(
        f"The Performance Analyzer noted {noted} of {len(requests)} requests, and no more when it tried again: run it "
        "again when the machine is less busy, or measure with `inflight bench load`."
    )


def _command(binary: Path, model: str, url: str, folder: Path, concurrency: int) -> list[str]:
    """What its runs share; the requests are in the folder's input.json."""
    return [
        *(str(binary), "-m", model, "-i", "grpc", "-u", url),
        *("--input-data", str(folder / "input.json"), "--concurrency-range", str(concurrency)),
    ]


def _noted(profile: Path) -> int:
    """How many requests an export holds; 0 where there is none."""
    try:
        return len(json.loads(profile.read_text())["experiments"][0]["requests"])
    except (OSError, ValueError, LookupError, TypeError):
        return 0


def check(requests: list[TimedRequest], concurrency: int, url: str | None = None) -> None:
    """Refuse what the Performance Analyzer cannot do: no requests, fewer of them than `concurrency`, HTTP."""
    if not requests:
        raise CourseError("There is no request to send: give at least one.")
    if not 1 <= concurrency <= len(requests):
        raise CourseError(
            f"The concurrency is {concurrency}; with {len(requests)} requests it must be from 1 to {len(requests)}."
        )
    if url is not None and url.startswith(("http://", "https://")):
        raise CourseError(f"{url} is an HTTP address: name the server's gRPC port as host:port.")


def find() -> Path:
    """The `perf_analyzer` of the installed tritonclient.

    Raises
    ------
    CourseError
        This is no x86-64 Linux, or the wheel has none.
    """
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise CourseError(
            f"The Performance Analyzer of the tritonclient wheel runs on x86-64 Linux only, and this is "
            f"{platform.machine()} {platform.system()}: measure with `inflight bench load`."
        )
    path = next((Path(file.locate()) for file in _files("tritonclient") if file.name == "perf_analyzer"), None)
    if path is None or not path.exists():
        raise CourseError(
            "The installed tritonclient has no perf_analyzer: install the course's requirements "
            "(`make course` does it), or measure with `inflight bench load`."
        )
    return path.resolve()


def input_data(requests: list[TimedRequest], config: ModelConfig) -> dict:
    """The requests in the format of `--input-data`: each a set of input tensors as the model of `config` has them."""
    stream = {"stream": True} if config.model_transaction_policy.decoupled else {}
    return {
        "data": [
            _tensors(
                {
                    "text_input": request.text.encode(),
                    "max_tokens": request.max_tokens,
                    **stream,
                    **exactly(request, config.name),
                },
                config,
            )
            for request in requests
        ]
    }


def _tensors(values: dict, config: ModelConfig) -> dict:
    """Single values as the model takes them; of a tensor that may have any number of them, how many are said."""
    is_free = {tensor.name: -1 in tensor.dims for tensor in config.input}
    tensors = {}
    for name, array in arrays_for(config, values).items():
        content = [value.decode() if isinstance(value, bytes) else value for value in array.reshape(-1).tolist()]
        tensors[name] = {"content": content, "shape": [1]} if is_free.get(name) else content
    return tensors


def text_data(texts: list[str]) -> dict:
    """Texts in the format of `--input-data`, for models with one input, `text_input`; each is a request."""
    return {"data": [{"text_input": [text]} for text in texts]}


def windows(requests: int) -> dict[str, str | int]:
    """Flags that have it measure `requests` at least, in windows of a third of them each.

    With --request-count it counts the time until it next looks, once a second, whether all are answered. And few
    requests vary: without so wide a limit it would measure again and again until they do not.
    """
    return {
        "measurement-mode": "count_windows",
        "measurement-request-count": -(-requests // WINDOWS),
        "stability-percentage": 999,
    }


def sweep(
    url: str, model: str, data: dict, concurrency: Sequence[int], requests: int = 96, timeout_s: float = TIMEOUT_S
) -> pd.DataFrame:
    """Throughput and latency of any model that answers a request once, by the number of requests under way.

    Parameters
    ----------
    url : str
        host:port of the server's gRPC.
    data : dict
        Requests in the format of `--input-data`, as `text_data` makes it; they are sent again and again.
    concurrency : sequence of int
        Requests under way at any time: one measurement each.
    requests : int
        Least requests of a measurement.
    timeout_s : float
        Longest time for a measurement.

    Returns
    -------
    DataFrame
        One row a concurrency: `concurrency`; `throughput` (items/s); `latency_ms_mean`, `latency_ms_p50`,
        `latency_ms_p90`, `latency_ms_p99`; `queue_ms`, `compute_ms`, the part of the mean that a request waited and was
        computed.

    Raises
    ------
    CourseError
        As `run`.
    """
    if not concurrency or not 1 <= min(concurrency) <= max(concurrency) <= requests:
        raise CourseError(
            f"The concurrency is {list(concurrency)}; with {requests} requests each must be from 1 to {requests}."
        )
    binary = find()
    with temporary("inflight-perf-analyzer-") as scratch:
        folder = Path(scratch)
        (folder / "input.json").write_text(json.dumps(data))
        variables = environment(folder)
        rows = []
        for number in concurrency:
            command = [
                *_command(binary, model, url, folder, number),
                *(f"--{flag}={value}" for flag, value in windows(requests).items()),
                "-f",
                str(folder / "report.csv"),
                "--verbose-csv",
            ]
            _execute(command, url, variables, timeout_s)
            rows.append(read_report(folder / "report.csv"))
    return pd.DataFrame(rows)


def read_report(path: Path) -> dict[str, float]:
    """The one row of a report (`-f`, with `--verbose-csv`), by the names of `sweep`.

    Raises
    ------
    CourseError
        It is not such a report.
    """
    try:
        [row] = pd.read_csv(path).to_dict("records")
        return {
            "concurrency": int(row["Concurrency"]),
            "throughput": row["Inferences/Second"],
            "latency_ms_mean": row["Avg latency"] / 1000,
            **{f"latency_ms_p{part}": row[f"p{part} latency"] / 1000 for part in (50, 90, 99)},
            "queue_ms": row["Server Queue"] / 1000,
            "compute_ms": row["Server Compute Infer"] / 1000,
        }
    except (OSError, ValueError, LookupError) as error:
        raise CourseError(
            f"The Performance Analyzer left no report that can be read ({type(error).__name__}: {error}). "
            "Measure with `inflight bench load`."
        ) from None


def read(profile: Path, requests: list[TimedRequest], streams: bool) -> Run:
    """The rows of a `--profile-export-file`: one request each, with the nanoseconds at which it was sent and answered.

    Raises
    ------
    CourseError
        The file is not there or is not such an export.
    """
    lengths = {(request.text, request.max_tokens): request.input_len for request in requests}
    try:
        measured = json.loads(profile.read_text())["experiments"][0]["requests"]
        zero = min(one["timestamp"] for one in measured)
        rows = [
            _row(number, one, zero, lengths, streams)
            for number, one in enumerate(sorted(measured, key=lambda one: one["timestamp"]))
        ]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise CourseError(
            f"The Performance Analyzer left no measurements that can be read ({type(error).__name__}: {error}). "
            "Measure with `inflight bench load`."
        ) from None
    return Run(pd.DataFrame(rows, columns=COLUMNS), started_at=zero / 1e9)


def _row(number: int, measured: dict, zero: int, lengths: dict, streams: bool) -> dict:
    given, arrived = measured["request_inputs"], measured["response_timestamps"]
    length, input_len = given["max_tokens"], lengths[given["text_input"], given["max_tokens"]]
    sent = measured["timestamp"]
    row = {
        "request": number,
        "due_s": (sent - zero) / 1e9,  # a closed loop: due when it could be sent
        "sent_s": (sent - zero) / 1e9,
        "input_len": input_len,
        "max_tokens": length,
        "output_len": 0,
    }
    if not arrived:
        return {**row, "last_s": row["sent_s"], "error": "The Performance Analyzer got no response."}
    first_ms, latency_ms = (arrived[0] - sent) / 1e6, (arrived[-1] - sent) / 1e6
    row |= {"last_s": (arrived[-1] - zero) / 1e9, "latency_ms": latency_ms, "output_len": length, "error": ""}
    if streams:
        row |= {"first_s": (arrived[0] - zero) / 1e9, "ttft_ms": first_ms}
        if length > 1:
            row["itl_ms"] = (latency_ms - first_ms) / (length - 1)
    return row


def _execute(command: list[str], url: str, variables: dict[str, str], timeout_s: float) -> None:
    try:
        done = subprocess.run(
            command,
            check=False,
            env=variables,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        raise CourseError(
            f"The Performance Analyzer was not done after {timeout_s:.0f} s and was ended: give it fewer requests."
        ) from None
    except OSError as error:
        raise CourseError(
            f"The Performance Analyzer cannot be started ({error.strerror}): measure with `inflight bench load`."
        ) from None
    if done.returncode:
        raise CourseError(
            f"The Performance Analyzer failed: {_reason(done.stderr or done.stdout, done.returncode)}. Measure "
            "with `inflight bench load` to see whether it is the server."
        )


def _reason(text: str, status: int) -> str:
    """Its own words in one line, without its usage and the sentences that only say that something was wrong."""
    said = [line.strip() for line in text.partition("\nUsage:")[0].splitlines() if line.strip()]
    said = [line for line in said if not line.startswith("Failed to maintain requested")] or [f"exit status {status}"]
    return " ".join(said).removeprefix("error: ").rstrip(".")


def environment(folder: Path) -> dict[str, str]:
    """What to start the binary with: the libraries that it misses are linked into `folder`, which is on their path.

    Raises
    ------
    CourseError
        The nvidia-pytriton wheel, which carries them, is not there or has others.
    """
    carried = {
        file.name: Path(file.locate()) for file in _files("nvidia-pytriton") if "nvidia_pytriton.libs" in file.parts
    }
    for wanted, pattern in LIBRARIES.items():
        path = next((path for name, path in carried.items() if Path(name).match(pattern)), None)
        if path is None:
            raise CourseError(
                f"The Performance Analyzer misses {wanted}, which the nvidia-pytriton wheel carries: install "
                "the course's requirements (`make course` does it)."
            )
        (folder / wanted).symlink_to(path.resolve())
    libraries = [str(folder), *sorted({str(path.parent.resolve()) for path in carried.values()})]
    return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(libraries)}


def _files(distribution: str) -> list:
    try:
        return files(distribution) or []
    except PackageNotFoundError:
        return []
