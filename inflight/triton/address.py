"""Finds a server's HTTP, gRPC and metrics addresses from one of them or from the environment."""

from __future__ import annotations

import os
from typing import NamedTuple

from inflight.errors import CourseError
from inflight.triton import records

URL, GRPC_URL, METRICS_URL = "INFLIGHT_URL", "INFLIGHT_GRPC_URL", "INFLIGHT_METRICS_URL"  # environment


class Address(NamedTuple):
    """The addresses of a Triton: "http://host:port", "host:port" for gRPC, and "http://host:port/metrics"."""

    http_url: str
    grpc_url: str
    metrics_url: str

    @classmethod
    def at(cls, url: str, grpc_url: str | None = None, metrics_url: str | None = None) -> Address:
        """Find all three from the address of HTTP ("http://host:port") or of gRPC ("host:port").

        The missing ones come from the record of this user's server at that address, else from Triton's default ports:
        gRPC one after HTTP, metrics one after gRPC.

        Raises
        ------
        CourseError
            It is no address.
        """
        if known := records.at(url):
            http_url, grpc, metrics = known["http"], known["grpc"], known["metrics"]
        else:
            host, port = parsed(url)
            http = port if is_http(url) else port - 1
            http_url, grpc, metrics = f"http://{host}:{http}", f"{host}:{http + 1}", f"http://{host}:{http + 2}/metrics"
        return cls(http_url, grpc_url or grpc, metrics_url or metrics)


def grpc_of(url: str) -> str:
    """Return a server's gRPC address: the given one itself, or the one that belongs to an address of HTTP.

    That comes from the record of this user's server there; else from INFLIGHT_GRPC_URL, unless INFLIGHT_URL names
    another server; else it is the next port.

    Raises
    ------
    CourseError
        It is no address.
    """
    parsed(url)
    if not is_http(url):
        return url
    is_named = os.environ.get(URL, url).rstrip("/") == url.rstrip("/") and not records.at(url)
    return Address.at(url, os.environ.get(GRPC_URL) if is_named else None).grpc_url


def of_environment() -> Address | None:
    """Read INFLIGHT_URL, INFLIGHT_GRPC_URL and INFLIGHT_METRICS_URL; None without the first."""
    url = os.environ.get(URL)
    return Address.at(url, os.environ.get(GRPC_URL), os.environ.get(METRICS_URL)) if url else None


def parsed(url: str) -> tuple[str, int]:
    """Return host and port of "host:port" or "http://host:port"; CourseError for anything else."""
    scheme, _, rest = url.rpartition("://")
    host, _, port = rest.partition("/")[0].rpartition(":")
    if not (scheme in ("", "http") and host and port.isdecimal()):
        raise CourseError(
            f"{url!r} is no address of a server. Write host:port for gRPC, such as 127.0.0.1:8001, or http://host:port "
            "for HTTP, such as http://127.0.0.1:8000."
        )
    return host, int(port)


def is_http(url: str) -> bool:
    """Say whether an address is for HTTP ("http://host:port") rather than gRPC ("host:port")."""
    return url.startswith("http://")
