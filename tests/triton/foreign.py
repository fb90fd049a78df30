"""A Triton that the course did not start: on fixed settings, with no keeper and no key of ours."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from inflight.triton import records, repository
from inflight.triton.address import Address
from inflight.triton.client import connection
from inflight.triton.serving import process
from tests.engines import wait_until


@contextlib.contextmanager
def running(repo: Path, folder: Path, *options: str) -> Iterator[Address]:
    """`tritonserver` as somebody else starts it: every model loaded at the start, none on request."""
    triton = process.installation()
    process._link_backend(triton, folder)
    ports = process.free_ports(dict.fromkeys(records.SERVICES))
    command = [
        str(triton / "bin" / "tritonserver"),
        f"--model-repository={repo}",
        f"--backend-directory={folder / 'backends'}",
        *([] if repository.serves_llmapi(repo) else ["--disable-auto-complete-config"]),
        *(f"--{name}-port={port}" for name, port in ports.items()),
        *(f"--{name}-address=127.0.0.1" for name in ports),
        *options,
    ]
    with (
        open(folder / "log", "wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log, env=process.environment(folder)) as it,
    ):
        try:
            http, grpc, metrics = (f"127.0.0.1:{port}" for port in ports.values())
            address = Address(f"http://{http}", grpc, f"http://{metrics}/metrics")
            wait_until(
                lambda: it.poll() is not None or connection.is_ok(address.http_url, "/v2/health/ready"),
                "Triton is ready",
                deadline_s=180,
            )
            assert it.poll() is None, (folder / "log").read_text()[-2000:]
            yield address
        finally:
            it.kill()
