"""Which door of a server an address leads to, for the sentence that is said when nobody answered as expected.

A Triton has three ports: HTTP, gRPC and metrics. Who knocks at the wrong one hears what the libraries say of broken
frames and failed connections. So the port is asked what it is, and the sentence names the address that was meant.
"""

from __future__ import annotations

import socket

import httpx

from inflight.errors import CourseError
from inflight.triton import keys

ANSWER_S = 1.0  # longest wait for what a port says of itself
GRPC, HTTP, METRICS, OTHER = "gRPC", "HTTP", "metrics", "another web server"
# How HTTP/2, and so gRPC, begins: the client's preface and empty settings, answered by the server's settings.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_SETTINGS = 4  # kind of the server's first frame, in its fourth byte


def check(url: str) -> None:
    """Refuse what is neither "host:port" nor "http://host:port", with a CourseError that says what it lacks."""
    scheme, separator, rest = url.rpartition("://")
    if separator and scheme not in ("http", "https"):
        raise CourseError(f"{url!r} is no address of a server. Write http://host:port for HTTP, or host:port for gRPC.")
    address = rest.partition("/")[0]
    host, colon, port = address.rpartition(":")
    if host and port.isdecimal():
        return
    lacks = "host" if colon and port.isdecimal() else "port"
    host = (host if colon else address) or keys.HOST
    raise CourseError(
        f"{url!r} has no {lacks}. Write {host}:8001 for gRPC or {scheme or 'http'}://{host}:8000 for HTTP, with the "
        "port that the server said at its start."
    )


def mistaken(url: str) -> str | None:
    """What to say of an address at which something else answers than was asked for; None where nothing does.

    Parameters
    ----------
    url : str
        "host:port", asked by gRPC, or "http://host:port".
    """
    scheme, _, address = url.rstrip("/").rpartition("://")
    host, _, port = address.partition("/")[0].rpartition(":")
    if scheme not in ("", "http") or not host or not port.isdecimal():
        return None
    found, here, number = _what_answers(host, int(port)), f"{host}:{port}", int(port)
    if found is None:
        return None
    known = keys.addresses(url) or {}
    if found == GRPC and scheme:
        http = known.get("http", number - 1)
        return (
            f"{url} is asked for HTTP, and gRPC answers there. Write {here} to ask it by gRPC, or name the server's "
            f"port for HTTP, by default one lower: http://{host}:{http}."
        )
    if found == HTTP and not scheme:
        grpc = known.get("grpc", number + 1)
        return (
            f"{url} is asked for gRPC, and Triton's HTTP answers there. Write http://{here} to ask it by HTTP, or name "
            f"the server's port for gRPC, by default one higher: {host}:{grpc}."
        )
    if found == METRICS:
        http, grpc = known.get("http", number - 2), known.get("grpc", number - 1)
        return (
            f"Only Triton's metrics are at {url}. Name the server's port for HTTP or gRPC, by default two and one "
            f"lower: http://{host}:{http} or {host}:{grpc}."
        )
    if found == OTHER:
        return f"A web server answers at {url}, and it is no Triton. Name the address of a Triton, or start one there."
    return None


def _what_answers(host: str, port: int) -> str | None:
    """GRPC, HTTP, METRICS or OTHER; None when nothing answers, or nothing that is known here."""
    try:
        with socket.create_connection((host.strip("[]"), port), ANSWER_S) as wire:
            wire.settimeout(ANSWER_S)
            wire.sendall(_PREFACE)
            said = wire.recv(9)
    except TimeoutError:
        said = b""  # it waits for more than that: no HTTP/2
    except OSError:
        return None
    if len(said) > 3 and said[3] == _SETTINGS:
        return GRPC
    with httpx.Client(base_url=f"http://{host}:{port}", timeout=ANSWER_S, trust_env=False) as client:
        try:
            if is_triton(client.get("/v2")):
                return HTTP
            return METRICS if "nv_inference_" in client.get("/metrics").text else OTHER
        except (httpx.RequestError, httpx.InvalidURL):
            return None


def is_triton(response: httpx.Response) -> bool:
    """Whether this is how a Triton answers a request for `/v2`."""
    try:
        about = response.json()
    except ValueError:
        return False
    return isinstance(about, dict) and "extensions" in about
