"""Triton's own tools: the Performance Analyzer measures a model, the Model Analyzer tries configurations of it.

    program = perf_analyzer(folder)                         # a path, to run as NVIDIA's documentation says
    table = search(server, "text-embedding", "texts.json", {"dynamic_batching": {"max_queue_delay_microseconds": [0]}})

The first is inside the tritonclient wheel, and misses two libraries that another wheel of the course carries. The
second is installed at its first use, into the course's cache folder.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from importlib.metadata import files as files_of
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
import psutil
import yaml
from google.protobuf import text_format
from tritonclient.grpc import InferenceServerClientPlugin
from tritonclient.grpc.model_config_pb2 import ModelConfig

from inflight import cache, files
from inflight.errors import CourseError
from inflight.paths import ASSETS
from inflight.triton import records, repository
from inflight.triton.server import Server

# Libraries that the binary wants, and the names under which nvidia-pytriton carries them.
LIBRARIES = {"libb64.so.0d": "libb64-*.so.0d", "libcudart.so.12": "libcudart-*.so.12*"}
REQUIREMENTS = ASSETS / "model-analyzer" / "requirements.txt"
# What the Model Analyzer is asked for -> its heading and our name.
FIELDS = {
    "perf_throughput": ("Throughput (infer/sec)", "throughput"),
    "perf_latency_p99": ("p99 Latency (ms)", "latency_ms_p99"),
}


# The Performance Analyzer ---------------------------------------------------------------------------------------------


def perf_analyzer(folder: str | Path) -> Path:
    """Write a program `perf_analyzer` into `folder`: the one of the tritonclient wheel, with its libraries.

    Raises
    ------
    CourseError
        This is no x86-64 Linux, or the wheels do not have it.
    """
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise CourseError(
            f"The Performance Analyzer of the tritonclient wheel runs on x86-64 Linux only, and this is "
            f"{platform.machine()} {platform.system()}: measure with `inflight bench load`."
        )
    libraries = Path(folder).absolute() / "perf_analyzer_libraries"
    libraries.mkdir(exist_ok=True)
    binary = _carried("tritonclient", "perf_analyzer")
    folders = {libraries}
    for name, pattern in LIBRARIES.items():
        path = _carried("nvidia-pytriton", pattern)
        (libraries / name).unlink(missing_ok=True)
        (libraries / name).symlink_to(path)
        folders.add(path.parent)
    program = libraries.parent / "perf_analyzer"
    found = shlex.quote(os.pathsep.join(map(str, sorted(folders))))
    program.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH={found} exec {shlex.quote(str(binary))} "$@"\n')
    program.chmod(0o755)
    return program


def _carried(distribution: str, pattern: str) -> Path:
    """The file of an installed package whose name fits the pattern."""
    try:
        [path, *_] = [Path(each.locate()) for each in files_of(distribution) or [] if Path(each.name).match(pattern)]
    except (PackageNotFoundError, ValueError):
        raise CourseError(
            f"The installed {distribution} has no {pattern}: install the course's requirements (`make course` does it)."
        ) from None
    return path.resolve()


# The Model Analyzer ---------------------------------------------------------------------------------------------------


def search(
    server: Server, model: str, input_data: str | Path, parameters: dict, concurrency: int = 8, requests: int = 48
) -> pd.DataFrame:
    """Have the Model Analyzer measure the model as it is, then in every combination of `parameters`.

    It loads each configuration through the server's API; the repository's files stay as they are, and in the end the
    server serves the model as they say.

    Parameters
    ----------
    server : Server
        Runs, and has `model`.
    input_data : path
        Requests in the Performance Analyzer's format.
    parameters : dict
        Its `model_config_parameters`: fields of a config.pbtxt, each with a list of values to try.
    concurrency : int
        Requests under way at any time.
    requests : int
        Least requests of a measurement.

    Returns
    -------
    DataFrame
        One row a configuration, highest throughput first: `config` (its name for it; "default" is the model as its
        files say), `batching` (its batcher, blank without one), `throughput` (items/s), `latency_ms_p99`.

    Raises
    ------
    CourseError
        It is not installed and cannot be, or it failed, with its own reason.
    """
    packages = _installed()
    with TemporaryDirectory(prefix="inflight-model-analyzer-") as scratch:
        folder = Path(scratch)
        settings = {
            "triton_launch_mode": "remote",
            "triton_http_endpoint": server.http_url.removeprefix("http://"),
            "triton_grpc_endpoint": server.grpc_url,
            "triton_metrics_url": server.metrics_url,  # named only: without a GPU it does not read it
            "model_repository": str(server.repo),
            "output_model_repository_path": str(folder / "configurations"),
            "checkpoint_directory": str(folder / "checkpoints"),
            "export_path": str(folder / "export"),
            "gpus": [],
            "duration_seconds": 1,
            "skip_detailed_reports": True,
            "inference_output_fields": ["model_config_path", *FIELDS],
            "perf_analyzer_path": str(perf_analyzer(folder)),
            "perf_analyzer_cpu_util": 100 * (os.cpu_count() or 1),
            "perf_analyzer_flags": {
                "input-data": str(Path(input_data).absolute()),
                "measurement-mode": "count_windows",
                "measurement-request-count": -(-requests // 3),  # it measures three windows
                "stability-percentage": 999,
            },
            "profile_models": {
                model: {
                    "cpu_only": True,
                    "parameters": {"concurrency": [concurrency]},
                    "model_config_parameters": parameters,
                }
            },
        }
        (folder / "settings.yaml").write_text(yaml.safe_dump(settings))
        (folder / "export").mkdir()
        try:
            _run(folder, packages)
        finally:
            if server.is_alive():
                server.load(model)
        measured = pd.read_csv(folder / "export" / "results" / "metrics-model-inference.csv")
        rows = [
            {
                "config": row["Model Config Path"].removeprefix(f"{model}_config_"),
                "batching": _batching(folder / "configurations" / row["Model Config Path"] / repository.CONFIG),
                **{ours: row[theirs] for theirs, ours in FIELDS.values()},
            }
            for row in measured.to_dict("records")
        ]
    return pd.DataFrame(rows).sort_values("throughput", ascending=False, ignore_index=True)


def _installed() -> Path:
    """Folder with the Model Analyzer's packages; made by one run of pip (340 MB), and nothing of the course changes."""
    pins = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:12]
    target = cache.place("model-analyzer", f"{pins}-py{sys.version_info.major}.{sys.version_info.minor}")

    def install() -> None:
        options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--no-compile", "--retries", "1"]
        with files.written_aside(target, "Model Analyzer") as aside:
            pip = [sys.executable, "-m", "pip", "install", *options, "--target", str(aside), "-r", str(REQUIREMENTS)]
            done = subprocess.run(pip, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True)
            if done.returncode:
                said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["pip said nothing"]
                raise CourseError(
                    f"The Model Analyzer could not be installed ({said[-1]}). Connect to the network and try again, or "
                    "go on without it."
                )

    return cache.made_once(target, install)


def _run(folder: Path, packages: Path) -> None:
    """Run it in `folder`, where it leaves files of its own, to its end."""
    command = [sys.executable, "-m", __name__, "profile", "-f", "settings.yaml"]
    # It looks for GPUs by itself, and for libraries to watch them with, which come with none of its packages.
    variables = {**os.environ, "PYTHONPATH": str(packages), "CUDA_VISIBLE_DEVICES": "", "MPLBACKEND": "agg"}
    with open(folder / "log", "w+") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            status = process.wait()
        finally:  # the Performance Analyzer that it started is in a session of its own
            if process.poll() is None:
                for one in [*psutil.Process(process.pid).children(recursive=True), process]:
                    one.kill()
                process.wait()
    if status:
        path = folder / "export" / "perf_analyzer_error.log"
        said = path.read_text(errors="replace").partition("Error:")[2].partition("Command:")[0] if path.exists() else ""
        reason = " ".join(said.split()) or (folder / "log").read_text(errors="replace").strip().rpartition("\n")[2]
        raise CourseError(
            f"The Model Analyzer failed: {reason.rstrip('.')}. See that the server's model answers such requests, and "
            "search again."
        )


def _batching(path: Path) -> str:
    """The batcher of a config in a line, blank without one."""
    config, part = repository.read_config(path), ModelConfig()
    if config.HasField("dynamic_batching"):
        part.dynamic_batching.CopyFrom(config.dynamic_batching)
    return text_format.MessageToString(part, as_one_line=True).strip()


class _KeySender(InferenceServerClientPlugin):
    """Has a client of tritonclient send the key of the server that it asks."""

    def __init__(self, url: str):
        self._headers = records.headers(url)

    def __call__(self, request) -> None:
        request.headers = {**request.headers, **self._headers}


def main() -> None:
    """Run the Model Analyzer's command line, in a process in which it is installed; its requests carry our key.

    It has no setting for headers, but makes its clients in one place.
    """
    from model_analyzer import entrypoint
    from model_analyzer.triton.client.client_factory import TritonClientFactory

    create = TritonClientFactory.create_grpc_client

    def create_with_key(server_url: str, **options):
        client = create(server_url, **options)
        client._client.register_plugin(_KeySender(server_url))
        return client

    TritonClientFactory.create_grpc_client = staticmethod(create_with_key)
    entrypoint.main()


if __name__ == "__main__":
    main()
