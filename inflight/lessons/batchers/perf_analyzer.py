"""Triton's own Performance Analyzer: throughput and latency of a model by the number of requests under way.

    perf_analyzer.sweep(server.grpc_url, "text-embedding", perf_analyzer.text_data(texts), concurrency=(1, 4, 16))

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
from tempfile import TemporaryDirectory

import pandas as pd

from inflight.errors import CourseError

# Libraries that the binary wants, and the names under which another wheel carries them.
LIBRARIES = {"libb64.so.0d": "libb64-*.so.0d", "libcudart.so.12": "libcudart-*.so.12*"}
TIMEOUT_S = 1800
WINDOWS = 3  # that the Performance Analyzer measures, each of as many requests, before it compares them


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
        This machine cannot run it, the server refused, or it failed, with its own reason.
    """
    if url.startswith(("http://", "https://")):
        raise CourseError(f"{url} is an HTTP address: name the server's gRPC port as host:port.")
    if not concurrency or not 1 <= min(concurrency) <= max(concurrency) <= requests:
        raise CourseError(
            f"The concurrency is {list(concurrency)}; with {requests} requests each must be from 1 to {requests}."
        )
    binary = find()
    with TemporaryDirectory(prefix="inflight-perf-analyzer-") as scratch:
        folder = Path(scratch)
        (folder / "input.json").write_text(json.dumps(data))
        variables = environment(folder)
        rows = []
        for number in concurrency:
            command = [
                *(str(binary), "-m", model, "-i", "grpc", "-u", url),
                *("--input-data", str(folder / "input.json"), "--concurrency-range", str(number)),
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
