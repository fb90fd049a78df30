"""A Triton that runs already, started by whoever it was: what this user may change in it, and what it cannot do.

Nothing of it is ours but the addresses. Attaching reads what is there, and says in one sentence what the server cannot
do: load models on request, write an iteration log that can be read here, stream.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tritonclient.grpc.model_config_pb2 import ModelConfig

from inflight.errors import CourseError
from inflight.triton import client, records, repository
from inflight.triton.address import GRPC_URL, Address
from inflight.triton.request import is_llmapi

ENGINE, LOG_PATH = "tensorrt_llm", "iteration_log_path"
NO_SUCH_MODEL = "inflight-is-anything-loaded-on-request"
PLACES = ("_path", "_dir", "_file")  # how parameters end that name files of the machine where Triton runs


class Attached:
    """A Triton at an address, and what it lets this user do. Its limits are printed in one sentence.

    Parameters
    ----------
    repo : path
        The repository whose settings its models are to have.

    Attributes
    ----------
    can_load : bool
        Whether this user may load models there.

    Raises
    ------
    CourseError
        Nobody answers at the address, or no Triton, or not over gRPC.
    """

    def __init__(self, repo: Path, address: Address):
        self.repo, self.address = repo, address
        try:
            about = client.get_json(address.http_url, "/v2")
        except (client.ServerGone, client.NoAnswer) as error:
            raise CourseError(
                f"No Triton answers at {address.http_url}. Start one there, or name another address."
            ) from error
        if not (isinstance(about, dict) and "extensions" in about):
            raise CourseError(f"The server at {address.http_url} is not a Triton.")
        try:
            loads_on_request = self._loads_on_request()
        except client.ServerGone as error:
            raise CourseError(
                f"Triton answers over HTTP at {address.http_url}, but not over gRPC at {address.grpc_url}: name its "
                f"gRPC address (grpc_url, or {GRPC_URL})."
            ) from error
        self._is_llmapi = ENGINE in self.names() and is_llmapi(self._config(ENGINE))
        self.can_load = loads_on_request and not self._is_llmapi
        limits = "; it ".join(self._limits())
        print(
            f"Attached to Triton {about.get('version', '')} at {address.http_url}.{f' It {limits}.' if limits else ''}",
            file=sys.stderr,
        )

    def _limits(self) -> Iterator[str]:
        """What it cannot do of what our repository asks for."""
        takes_our_files = self.can_load and self._has_our_files()
        served, wanted = self.names(), repository.models(self.repo)
        if self._is_llmapi:
            yield "has TensorRT-LLM's model of today, which takes text and has its settings in its own model.yaml"
        elif not self.can_load:
            yield "loads no model on request, so that its settings stay as they are"
        if not self._is_llmapi and not takes_our_files and (missing := sorted(set(wanted) - set(served))):
            yield f"has no {' and no '.join(missing)}"
        if ENGINE not in wanted:
            return
        ours = repository.read_config(self.repo / ENGINE / repository.CONFIG)
        if repository.get_parameter(ours, LOG_PATH) and not takes_our_files:
            yield "keeps no iteration log here, so that nothing can be told of its iterations"
        if ours.model_transaction_policy.decoupled and not self.can_load and ENGINE in served:
            if not self._config(ENGINE).model_transaction_policy.decoupled:
                yield "answers in one piece only, so that streams are refused (decoupled_mode is false)"

    def names(self) -> list[str]:
        """The models that it serves, as far as it tells: those of our repository where it tells no others."""
        try:
            index = self._ask(lambda triton, **how: triton.get_model_repository_index(**how))
            return sorted({model.name for model in index.models if model.state == "READY"})
        except client.Refused:
            known = repository.models(self.repo)
            return [name for name in known if client.is_ok(self.address.http_url, f"/v2/models/{name}/ready")]

    def differing(self) -> list[str]:
        """The models of our repository that the server is to load: those with other settings, and those it lacks."""
        if not self.can_load:
            return []
        served = self.names()
        return [
            name
            for name in repository.models(self.repo)
            if (self._differs(name) if name in served else self._has_our_files())
        ]

    def _differs(self, model: str) -> bool:
        theirs = self._config(model)
        ours = self.fitted(repository.read_config(self.repo / model / repository.CONFIG))
        return (
            dict(ours.parameters) != dict(theirs.parameters)
            or ours.model_transaction_policy != theirs.model_transaction_policy
        )

    def fitted(self, config: ModelConfig) -> ModelConfig:
        """A config of our repository with the places of the server's; on a server of this user, as it is."""
        if self._has_our_files():
            return config
        theirs = self._config(config.name)
        theirs.model_transaction_policy.CopyFrom(config.model_transaction_policy)
        for name, value in config.parameters.items():
            if not name.endswith(PLACES):
                theirs.parameters[name].CopyFrom(value)
        return theirs

    def _loads_on_request(self) -> bool:
        """Whether this user may load and unload models, asked by unloading one that no server has."""
        try:
            self._ask(lambda triton, **how: triton.unload_model(NO_SUCH_MODEL, **how))
        except client.Refused as error:
            return NO_SUCH_MODEL in str(error)
        return True

    def _has_our_files(self) -> bool:
        """Whether it is a server of this user on this machine."""
        return records.at(self.address.http_url) is not None

    def _config(self, model: str) -> ModelConfig:
        return self._ask(lambda triton, **how: triton.get_model_config(model, **how)).config

    def _ask(self, ask: Callable[..., Any]) -> Any:
        """What tritonclient's client answers, asked with the key; CourseError with the reason."""
        with client.Connection(self.address.grpc_url) as connection, client.errors(self.address.grpc_url):
            return ask(connection.triton, headers=records.headers(self.address.http_url))
