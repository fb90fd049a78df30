"""The second way to a server: a Triton that runs somewhere already, started by whoever it was.

Nothing of it is ours but the addresses. What can be done is found out when we attach, and what cannot is told in one
sentence: whether models are loaded on request, and whether the engine's iteration log can be read here.

Its configs are its own, and its paths lead to its own files. So a model is loaded with the settings of our repository
and the places of the server's, and keeps them when we let go.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from google.protobuf import json_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from inflight.errors import CourseError
from inflight.triton import iteration_feed, records, repository, transport
from inflight.triton.iteration_feed import MetricsFeed

URL, GRPC_URL, METRICS_URL = "INFLIGHT_URL", "INFLIGHT_GRPC_URL", "INFLIGHT_METRICS_URL"  # environment
ENGINE, LOG_PATH = "tensorrt_llm", "iteration_log_path"
NO_SUCH_MODEL = "inflight-is-anything-loaded-on-request"
LOOK_EVERY_S = 0.2
LOAD_TIMEOUT_S = 300
PLACES = ("_path", "_dir", "_file")  # how parameters end that name files of the machine where Triton runs


@dataclass(frozen=True)
class Address:
    """Where a Triton answers. `at` finds the other two from one of them.

    Attributes
    ----------
    http_url, metrics_url : str
        "http://host:port" and "http://host:port/metrics".
    grpc_url : str
        "host:port".
    """

    http_url: str
    grpc_url: str
    metrics_url: str

    @classmethod
    def at(cls, url: str, grpc_url: str | None = None, metrics_url: str | None = None) -> Address:
        """From the address of HTTP ("http://host:port") or of gRPC ("host:port").

        What is not named is what a server of this user at that address says, and else as Triton counts by default:
        gRPC one after HTTP, metrics one after gRPC.

        Raises
        ------
        CourseError
            It is no address.
        """
        transport.check_address(url)
        known = records.at(url)
        if known is None:
            scheme, separator, rest = url.rstrip("/").rpartition("://")
            host, _, port = rest.partition("/")[0].rpartition(":")
            http = int(port) if separator else int(port) - 1
            known = {
                "http": f"{scheme or 'http'}://{host}:{http}",
                "grpc": f"{host}:{http + 1}",
                "metrics": f"http://{host}:{http + 2}/metrics",
            }
        return cls(known["http"], grpc_url or known["grpc"], metrics_url or known["metrics"])

    @classmethod
    def of_environment(cls) -> Address | None:
        """As INFLIGHT_URL, INFLIGHT_GRPC_URL and INFLIGHT_METRICS_URL say; None without the first."""
        url = os.environ.get(URL)
        return cls.at(url, os.environ.get(GRPC_URL), os.environ.get(METRICS_URL)) if url else None


class Attached:
    """A Triton at an address. As `Process` to a `Server`, but that it neither starts nor ends.

    Parameters
    ----------
    repo : path or None
        The repository whose settings its models are to have. None: one that is made of the server's own configs.
    """

    def __init__(self, repo: Path | None, address: Address):
        self.address = address
        self.can_load = False
        self._repo = repo
        self._opened = ExitStack()
        self._scratch: Path | None = None
        self._feed: MetricsFeed | None = None
        self._shares_files = False

    @property
    def repo(self) -> Path:
        return self._repo or self.folder / "repository"

    @property
    def http_url(self) -> str:
        return self.address.http_url

    @property
    def grpc_url(self) -> str:
        return self.address.grpc_url

    @property
    def metrics_url(self) -> str:
        return self.address.metrics_url

    @property
    def pid(self) -> int | None:
        raise CourseError(
            f"The server at {self.http_url} was started elsewhere: it has no process here to look at or to end."
        )

    @property
    def folder(self) -> Path:
        """A scratch folder of ours."""
        if self._scratch is None:
            raise CourseError(f"The server at {self.http_url} is not attached. Attach it first.")
        return self._scratch

    # Attach and let go ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Attach: find out what the server is and can, and say in one sentence what it cannot."""
        self._let_go()  # of what it was when it answered last
        about = self._about()
        self._scratch = Path(self._opened.enter_context(tempfile.TemporaryDirectory(prefix="inflight-attached-")))
        self._shares_files = records.at(self.http_url) is not None
        self.can_load = self._loads_on_request()
        if self._repo is None:
            self._copy_configs()
        self._read_iterations()
        _tell(f"Attached to Triton {about.get('version', '')} at {self.http_url}.{self._limits()}")

    def _about(self) -> dict:
        try:
            about = transport.get_json(self.http_url, "/v2")
        except (transport.ServerGone, transport.NoAnswer) as error:
            raise CourseError(
                f"No Triton answers at {self.http_url}. Start one there, or name another address."
            ) from error
        if not (isinstance(about, dict) and "extensions" in about):
            raise CourseError(f"What answers at {self.http_url} is no Triton.")
        with transport.Connection(self.grpc_url) as connection:
            if not connection.is_live():
                raise CourseError(
                    f"Triton's HTTP answers at {self.http_url}, but its gRPC not at {self.grpc_url}: name its "
                    f"address (grpc_url, or {GRPC_URL})."
                )
        return about

    def _loads_on_request(self) -> bool:
        """Whether this user may load and unload models, asked by unloading one that no server has."""
        try:
            transport.post_json(self.http_url, f"/v2/repository/models/{NO_SUCH_MODEL}/unload", {}, LOAD_TIMEOUT_S)
        except transport.Refused as error:
            return NO_SUCH_MODEL in str(error)
        return True

    def _copy_configs(self) -> None:
        """A repository of the configs that the server has loaded, to look at and to edit."""
        for name in self.names():
            config = self._message(name)
            (self.repo / name).mkdir(parents=True)
            repository.write_config(config, self.repo / name / repository.CONFIG)

    def names(self) -> list[str]:
        """The models that it serves, as far as it tells: those of our repository where it tells no others."""
        try:
            index = transport.post_json(self.http_url, "/v2/repository/index", {"ready": True}, LOAD_TIMEOUT_S)
        except transport.Refused:
            known = repository.models(self._repo) if self._repo else repository.PIPELINE
            return [name for name in known if self.is_model_ready(name)]
        return sorted({row["name"] for row in index})

    def is_model_ready(self, model: str) -> bool:
        return transport.is_ok(self.http_url, f"/v2/models/{model}/ready")

    def _read_iterations(self) -> None:
        """Where the engine cannot write the log that our repository names, write it from its metrics."""
        path = self._log_path()
        if path is not None and not (self._shares_files and self.can_load):
            self._feed = self._opened.enter_context(MetricsFeed(self.metrics_url, path))

    def _log_path(self) -> Path | None:
        config = self.repo / ENGINE / repository.CONFIG
        if not config.exists():
            return None
        path = repository.get_parameter(repository.read_config(config), LOG_PATH)
        return Path(path) if path else None

    def _limits(self) -> str:
        """What this server does not do, as one sentence; blank when it does everything."""
        missing = sorted(set(repository.models(self.repo)) - set(self.names()))
        if self.can_load and self._shares_files:  # then it gets them from us
            missing = []
        limits = [
            "" if self.can_load else "loads no model on request, so that its settings stay as they are",
            "" if self._feed is None else f"keeps no iteration log here, so that {iteration_feed.STAND_IN}",
            f"has no {' and no '.join(missing)}" if missing else "",
            ""
            if self._streams()
            else "answers in one piece only, so that streams are refused (decoupled_mode is false)",
        ]
        said = [limit for limit in limits if limit]
        return f" It {'; it '.join(said)}." if said else ""

    def _streams(self) -> bool:
        """Whether its engine will stream, where our repository's does."""
        config = self.repo / ENGINE / repository.CONFIG
        if self.can_load or not config.exists() or ENGINE not in self.names():
            return True
        ours = repository.read_config(config).model_transaction_policy.decoupled
        return not ours or self._message(ENGINE).model_transaction_policy.decoupled

    def ends(self, within_s: float | None) -> bool:
        """Whether it does not answer (any more), now or within so many seconds."""
        deadline = None if within_s is None else time.monotonic() + within_s
        while self._scratch is not None and transport.is_ok(self.http_url, "/v2/health/live"):
            if deadline is not None and time.monotonic() >= deadline:
                return False
            time.sleep(LOOK_EVERY_S if deadline is None else max(0, min(LOOK_EVERY_S, deadline - time.monotonic())))
        return True

    def stop(self, drain_s: float) -> None:
        """Let go: the server runs on, with its models as they are."""
        self._let_go()

    def death(self) -> str:
        """Of what it died is not known here."""
        return ""

    def _let_go(self) -> None:
        self._feed = None
        self._opened.close()
        self._scratch = None

    # Models -----------------------------------------------------------------------------------------------------------

    def adopt(self) -> list[str]:
        """The models of our repository that the server is to load: those with other settings, and those it lacks."""
        if self._repo is None or not self.can_load:
            return []
        served = set(self.names())
        return [
            name
            for name in repository.models(self._repo)
            if (self._differs(name) if name in served else self._shares_files)
        ]

    def _differs(self, model: str) -> bool:
        ours = repository.read_config(self.repo / model / repository.CONFIG)
        theirs = self._message(model)
        fitted = self.fitted(ours)
        return (
            dict(fitted.parameters) != dict(theirs.parameters)
            or fitted.model_transaction_policy != theirs.model_transaction_policy
        )

    def fitted(self, config: ModelConfig) -> ModelConfig:
        """A config of our repository with the places of the server's; on a machine that is ours, as it is."""
        if self._shares_files:
            return config
        theirs = self._message(config.name)
        theirs.model_transaction_policy.CopyFrom(config.model_transaction_policy)
        for name, value in config.parameters.items():
            if not name.endswith(PLACES):
                theirs.parameters[name].CopyFrom(value)
        return theirs

    def may_load(self, model: str) -> bool:
        """Whether a model may be loaded or unloaded; where it may not, that is said."""
        if not self.can_load:
            _tell(
                f"{model} stays as it is: the server at {self.http_url} loads no model on request "
                "(--model-control-mode=explicit, and control that is open to you, would let it)."
            )
        return self.can_load

    def _config(self, model: str) -> dict:
        return transport.get_json(self.http_url, f"/v2/models/{model}/config")

    def _message(self, model: str) -> ModelConfig:
        return json_format.ParseDict(self._config(model), ModelConfig(), ignore_unknown_fields=True)

    def log_tail(self, lines: int) -> str:
        """Where to look: the log itself is not here."""
        return f"(where the server at {self.http_url} runs)"


def _tell(sentence: str) -> None:
    print(sentence, file=sys.stderr)
