"""Attaches to a Triton that somebody else has started: what this user may change in it, and what it cannot do.

Nothing of it is ours but the addresses. Attaching reads what is there, and says in one sentence what the server cannot
do: load models on request, write an iteration log that can be read here, stream.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.utils import InferenceServerException

from inflight.errors import CourseError
from inflight.triton import records, repository
from inflight.triton.address import GRPC_URL
from inflight.triton.client.client import Client
from inflight.triton.client.connection import (
    Connection,
    NoAnswer,
    Refused,
    ServerGone,
    course_error,
    errors,
    get_json,
    is_ok,
)
from inflight.triton.repository.layout import ENGINE
from inflight.triton.repository.request import is_llmapi

LOG_PATH = "iteration_log_path"
NO_SUCH_MODEL = "inflight-is-anything-loaded-on-request"


@dataclass(frozen=True)
class Attached:
    """A Triton that somebody else has started, and what it lets this user do."""

    http_url: str
    grpc_url: str
    version: str
    can_load: bool  # its models, with other settings
    has_our_files: bool  # it is a server of this user on this machine
    is_llmapi: bool  # its `tensorrt_llm` is TensorRT-LLM's model of today
    is_decoupled: bool  # its `tensorrt_llm` streams; true where it has none

    # As `Process` has them.

    @property
    def pid(self) -> int:
        raise CourseError(
            f"The server at {self.http_url} was started elsewhere: it has no process here to look at or to end."
        )

    def has_ended(self) -> bool:
        return not is_ok(self.http_url, "/v2/health/live")

    def stop(self, drain_s: float) -> None:
        """Let go of it: it runs on."""

    def log_tail(self, lines: int) -> str:
        """Return nothing: its log is elsewhere."""
        return ""

    def fitted(self, config: ModelConfig) -> ModelConfig:
        """Return a model's config with our settings, but with the server's own paths of files."""
        theirs = _config(self.grpc_url, config.name)
        theirs.model_transaction_policy.CopyFrom(config.model_transaction_policy)
        rows = repository.PARAMETERS.get(config.name, {})
        for name, value in config.parameters.items():
            if name not in rows or rows[name].kind != "path":
                theirs.parameters[name].CopyFrom(value)
        return theirs

    def limits(self, repo: Path, served: Collection[str]) -> Iterator[str]:
        """List what a repository asks for and it cannot do; `served` are the names of the models that it has."""
        wanted, takes_our_files = repository.models(repo), self.can_load and self.has_our_files
        if self.is_llmapi:
            yield "has TensorRT-LLM's model of today, which takes text and has its settings in its own model.yaml"
        elif not self.can_load:
            yield "loads no model on request, so that its settings stay as they are"
        if not self.is_llmapi and not takes_our_files and (missing := sorted(set(wanted) - set(served))):
            yield f"has no {' and no '.join(missing)}"
        if ENGINE not in wanted:
            return
        ours = repository.read_config(repo / ENGINE / repository.CONFIG)
        if repository.get_parameter(ours, LOG_PATH) and not takes_our_files:
            yield "keeps no iteration log here, so that nothing can be told of its iterations"
        if ours.model_transaction_policy.decoupled and not self.can_load and not self.is_decoupled:
            yield "answers in one piece only, so that streams are refused (decoupled_mode is false)"


def look(http_url: str, grpc_url: str) -> Attached:
    """Find out what the Triton at these addresses lets this user do.

    Raises
    ------
    CourseError
        Nobody answers at the address, or no Triton, or not over gRPC.
    """
    try:
        about = get_json(http_url, "/v2")
    except (ServerGone, NoAnswer) as error:
        raise CourseError(f"No Triton answers at {http_url}. Start one there, or name another address.") from error
    if not (isinstance(about, dict) and "extensions" in about):
        raise CourseError(f"The server at {http_url} is not a Triton.")
    engine = None
    try:
        loads_on_request = _loads_on_request(grpc_url, records.headers(http_url))
        with contextlib.suppress(Refused):  # it has none
            engine = _config(grpc_url, ENGINE)
    except ServerGone as error:
        raise CourseError(
            f"Triton answers over HTTP at {http_url}, but not over gRPC at {grpc_url}: name its gRPC address "
            f"(grpc_url, or {GRPC_URL})."
        ) from error
    has_llmapi = engine is not None and is_llmapi(engine)
    return Attached(
        http_url=http_url,
        grpc_url=grpc_url,
        version=about.get("version", ""),
        can_load=loads_on_request and not has_llmapi,
        has_our_files=records.at(http_url) is not None,
        is_llmapi=has_llmapi,
        is_decoupled=engine is None or engine.model_transaction_policy.decoupled,
    )


def _config(grpc_url: str, model: str) -> ModelConfig:
    with Client(grpc_url, model) as asking:
        return asking.config()


def _loads_on_request(grpc_url: str, headers: dict[str, str]) -> bool:
    """Find out whether this user may load and unload models, by unloading one that no server has."""
    with Connection(grpc_url) as connection, errors(grpc_url):
        try:
            connection.triton.unload_model(NO_SUCH_MODEL, headers=headers)
        except InferenceServerException as error:
            if isinstance(course_error(error, grpc_url), Refused):
                return NO_SUCH_MODEL in error.message()  # a server that allows it has looked for the model
            raise
    return True
