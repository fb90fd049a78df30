"""The second way to a server: a Triton in a container that we start, and that ends with us.

The supervisor runs inside, from our files, and its standard input and output come out through the runtime's client
(`docker run --interactive`). So the same holds as without a container: when the program that started it dies, or the
client, the input ends, and with it the server. What is mounted has the same path inside as outside, so that a config
means the same files there. The key lies in a mounted file that the user alone can read, and is on no command line.

The server listens on all addresses of the container, and is published on this machine's loopback alone.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

import psutil
from tritonclient.grpc.model_config_pb2 import ModelConfig

from inflight import containers
from inflight.containers import Image, Runtime
from inflight.errors import CourseError
from inflight.paths import cache_dir
from inflight.triton import image_repository, keys, repository, supervisor, watch
from inflight.triton.iteration_feed import VerboseLogFeed
from inflight.triton.supervised import PORTS, Options, Supervised

TRITON = "/opt/tritonserver/bin/tritonserver"
EVERY_ADDRESS = "0.0.0.0"
INSIDE = dict(zip(PORTS, (8000, 8001, 8002)))
START_TIMEOUT_S = 300  # an image of 20 GB is not in memory yet
RUNTIME_LOG = "runtime.log"
TAKEN = re.compile(r"address already in use|port is already allocated", re.IGNORECASE)
ADVICE = re.compile(r"^(Run|See) '\S+ run --help'")  # with which docker ends what it says of a failure
LOG_PATH = "log_path"  # how parameters end that name a file to be written


class Container(Supervised):
    """A server in a container of `image`."""

    start_timeout_s = START_TIMEOUT_S

    def __init__(self, repo: Path, options: Options, image: Image):
        super().__init__(repo, options)
        self.image = image
        self._runtime: Runtime | None = None
        self._mounts: list[tuple[Path, bool]] = []
        self._feed = contextlib.ExitStack()
        self._served = repo
        self._init_pid: int | None = None

    @property
    def name(self) -> str:
        """The container's."""
        return self._shm_prefix.strip("_").replace("_", "-")

    @property
    def folder(self) -> Path:
        return super().folder / keys.INSIDE  # the supervisor empties it; the lock beside it stays ours

    @property
    def pid(self) -> int | None:
        """Process id of `tritonserver` as this machine counts, None where it cannot be seen."""
        inside = super().pid
        if inside is None or self._init_pid is None:
            return None
        with contextlib.suppress(psutil.Error, OSError):
            for process in psutil.Process(self._init_pid).children(recursive=True):
                if _pids(process.pid)[-1] == inside:
                    return process.pid
        return None

    # Start ------------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._runtime = containers.find(self.image.runtime)
        self._runtime.check_image(self.image.name)
        super().start()
        self._init_pid = self._find_init()
        self._follow_iterations()

    def _prepare(self) -> None:
        assert self._runtime is not None
        self.folder.mkdir(mode=0o700)
        self._mounts = _mounts(self.repo)
        if self.image.has_tensorrt_llm:
            self._served = image_repository.make(self._runtime, self.image, self.repo, self.folder / "repository")

    def _command(self) -> list[str]:
        assert self._runtime is not None
        own = [(self.folder, True), (Path(supervisor.__file__).parent, False)]
        serve = [
            "python3",
            "-S",
            supervisor.__file__,
            str(self.folder),
            self._shm_prefix,
            TRITON,
            *self._triton_options(self._served, EVERY_ADDRESS, INSIDE, self._metrics_address(EVERY_ADDRESS)),
            *(["--log-verbose=1"] if self.image.has_tensorrt_llm else []),
        ]
        published = [name for name in PORTS if not (name == "metrics" and self.options.private)]
        ports = [(self._ports[name], INSIDE[name]) for name in published]
        return self._runtime.command(self.image, self.name, serve, [*self._mounts, *own], ports, interactive=True)

    def _environment(self) -> dict[str, str]:
        return dict(os.environ)

    def _runtime_log(self):
        return open(super().folder / RUNTIME_LOG, "ab")

    def _is_ours(self) -> bool:
        return True  # the runtime starts no container whose port is taken

    def _why_not_started(self, said: str) -> str:
        log = super().folder / RUNTIME_LOG
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
        lines = [line for line in lines if not ADVICE.search(line)]
        reason = lines[-1] if lines else said or "it ended at once"
        if TAKEN.search(reason):
            return f"A port of the server is in use ({reason}). Stop what uses it, or name other ports."
        return f"The container of {self.image.name} could not be started: {reason}"

    def _find_init(self) -> int | None:
        """The container's first process, as this machine counts; None where it runs in a machine of its own."""
        assert self._runtime is not None
        said = self._runtime.ask("inspect", "--format", "{{.State.Pid}}", self.name).stdout.strip()
        return int(said) if said.isdecimal() and int(said) > 0 else None

    def _follow_iterations(self) -> None:
        """TensorRT-LLM tells of each iteration in the verbose log: write it where our repository wants it."""
        config = self.repo / "tensorrt_llm" / repository.CONFIG
        if not self.image.has_tensorrt_llm or not config.exists():
            return
        path = repository.get_parameter(repository.read_config(config), "iteration_log_path")
        if path:
            self._feed.enter_context(VerboseLogFeed(self.folder / watch.LOG, Path(path)))

    # End --------------------------------------------------------------------------------------------------------------

    def stop(self, drain_s: float) -> None:
        self._feed.close()
        super().stop(drain_s)
        self._init_pid = None

    def _do_its_work(self) -> None:
        assert self._runtime is not None
        self._runtime.remove(self.name)

    # Models -----------------------------------------------------------------------------------------------------------

    def fitted(self, config: ModelConfig) -> ModelConfig:
        """The config, if the container sees all files that it names; of NVIDIA's model, with our settings."""
        for name, path in _paths(config):
            place = path.parent if name.endswith(LOG_PATH) else path
            if place.exists() and not any(place.is_relative_to(seen) for seen, _ in self._mounts):
                raise CourseError(
                    f"The container does not see {place}: it was started with what the repository named then, and "
                    "with the cache. Stop the server, name it in the repository, and start it again."
                )
        if not self.image.has_tensorrt_llm:
            return config
        return image_repository.with_settings(_config(self._served, config.name), config)


def _mounts(repo: Path) -> list[tuple[Path, bool]]:
    """What a repository needs: itself, the cache, the files that its configs name, and the folders of its logs.

    Each with whether it is written to; the folder of a log covers what lies in it.
    """
    named = [pair for model in repository.models(repo) for pair in _paths(_config(repo, model))]
    written = {path.parent for name, path in named if name.endswith(LOG_PATH)}
    read = {repo, cache_dir(), *(path for name, path in named if not name.endswith(LOG_PATH))}
    covered = lambda path: any(path.is_relative_to(folder) for folder in written)
    return [
        *((path, True) for path in sorted(written)),
        *((path, False) for path in sorted(read) if path.exists() and not covered(path)),
    ]


def _config(repo: Path, model: str) -> ModelConfig:
    return repository.read_config(repo / model / repository.CONFIG)


def _paths(config: ModelConfig) -> list[tuple[str, Path]]:
    """The parameters of a config that name files of this machine."""
    values = {name: value.string_value for name, value in config.parameters.items()}
    return [(name, Path(value)) for name, value in values.items() if os.path.isabs(value)]


def _pids(pid: int) -> list[int]:
    """The numbers of a process, from this machine's to the innermost container's."""
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("NSpid:")]
    return list(map(int, line.split()[1:]))
