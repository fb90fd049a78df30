"""The key of the control API: what keeps web pages and careless clients from loading models.

A server that we start loads and unloads models, and changes shared memory, traces and logs, only for requests that
carry its key; inference, health, metadata, configs, statistics and metrics are open to whoever reaches the ports, which
is every program of this machine. The key is an argument of `tritonserver`, and stands in the server's record
(`records`). Other users of the machine can read arguments: where there are any, a private server has no ports at all.
"""

from __future__ import annotations

import secrets

from inflight.triton import records

HEADER = "inflight-key"
GRPC_HEADER = f"triton-grpc-protocol-{HEADER}"
CONTROL = "model-repository,shared-memory,trace,logging"


def new() -> str:
    return secrets.token_hex(16)


def arguments(key: str) -> list[str]:
    """Arguments of `tritonserver` by which its control takes the key."""
    return [f"--{option}={CONTROL}:{HEADER}={key}" for option in ("http-restricted-api", "grpc-restricted-protocol")]


def headers(url: str) -> dict[str, str]:
    """What a request to `url` carries, over HTTP and gRPC, to load models; blank where no server of this user is."""
    record = records.at(url)
    key = "" if record is None or "death" in record else record["key"]
    return {HEADER: key, GRPC_HEADER: key} if key else {}
