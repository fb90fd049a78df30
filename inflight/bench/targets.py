"""Opens the server that a load is sent to: a new one, a running Triton, or one with OpenAI's endpoints.

with target(None, engine_dir, stream=True) as send:
    run = send_all(send, requests)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from inflight import engine, machine
from inflight.bench.senders import OpenAISender, Sender, Sends
from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.errors import CourseError
from inflight.triton import repository
from inflight.triton.repository.layout import BASELINE, ENSEMBLE
from inflight.triton.serving.server import Server

OPENAI = "openai:"


def is_url(name: str) -> bool:
    """Say whether a way of serving is the address of a server."""
    return ":" in name


@contextlib.contextmanager
def target(url: str | None, engine_dir: str | Path, stream: bool = False, model: str = ENSEMBLE) -> Iterator[Sends]:
    """A sender to a server that runs already or, without a URL, to one of `engine_dir` that ends with the context.

    Parameters
    ----------
    url : str or None
        host:port or http://host:port of a Triton, which is asked over gRPC; openai:http://host:port of any server with
        OpenAI's endpoints, which serves the model of `engine_dir`.
    stream : bool
        Ask for answers in pieces, which gives TTFT and TPOT.

    Raises
    ------
    CourseError
        There is no such server, it has no such model, or one that does not give answers so.
    """
    if url is None:
        with TemporaryDirectory(prefix="inflight-bench-") as scratch:
            repo = repository.assemble(Path(scratch) / "repository", engine_dir, decoupled_mode=stream)
            with Server(repo, drain_s=0) as server, Sender(server.grpc_url, model, stream) as send:
                yield send
    elif url.startswith(OPENAI):
        yield OpenAISender(url.removeprefix(OPENAI), load_tokenizer(engine_dir), stream)
    else:
        with Sender(url, model, stream) as send:
            if send.client.is_decoupled() != stream:
                pieces = "gives answers in pieces, which `inflight bench load --stream` measures"
                raise CourseError(
                    f"{model} at {url} {'gives whole answers: leave out --stream' if stream else pieces}."
                )
            yield send


def device(way: str | None, engine_dir: str | Path) -> str:
    """Name the device that a way of serving computes on, as far as it is known; None is a server started here."""
    if way is not None and is_url(way):
        return f"whatever {way} computes on"
    if way == BASELINE:  # it computes where the machine's tier is; the engine where it was built for
        return machine.device_name()
    return machine.device_name(engine.read(engine_dir).device)
