"""A learner's repository in a real Triton, for a check: with a stand-in for its engine, which takes too long to load.

    with served(repo) as connection:
        reply = connection.infer("ensemble", {"text_input": text("Hello"), "max_tokens": …}, ANSWER_S)

A check takes a few seconds, and ends whatever the learner's code does.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from inflight.errors import CourseError
from inflight.paths import ASSETS
from inflight.triton import repository, transport
from inflight.triton.server import Server

ENGINE = "tensorrt_llm"
LOAD_S = 60  # for what takes a second or two, unless a loop does not end
ANSWER_S = 20


@contextlib.contextmanager
def served(repo: Path) -> Iterator[transport.Connection]:
    """Serve a copy of a repository as long as the block lasts, its engine replaced by `assets/stand-in-engine`.

    The ensemble answers with one response, also where the repository's own would stream.

    Raises
    ------
    CourseError
        A model cannot be loaded, or is not within `LOAD_S`; with Triton's reason.
    """
    with tempfile.TemporaryDirectory(prefix="inflight-check-") as folder:
        copy = Path(shutil.copytree(repo, Path(folder) / "repo"))
        _replace_engine(copy / ENGINE)
        server = Server.by_hand(
            [f"--model-repository={copy}", "--model-control-mode=explicit", "--disable-auto-complete-config"]
        )
        try:
            server.start()
            _load(server)
            with transport.Connection(server.grpc_url) as connection:
                yield connection
        except CourseError as error:
            raise CourseError(str(error).partition("\nLast lines")[0].replace(f"{copy}/", "")) from error
        finally:
            server.stop(drain_s=0)


def _replace_engine(folder: Path) -> None:
    shutil.copyfile(ASSETS / "stand-in-engine" / "model.py", folder / "1" / "model.py")
    config = repository.read_config(folder / repository.CONFIG)
    config.model_transaction_policy.decoupled = False
    repository.write_config(config, folder / repository.CONFIG)


def _load(server: Server) -> None:
    is_late = threading.Event()

    def give_up() -> None:
        is_late.set()
        server.stop(drain_s=0)  # whoever waits for it learns that it has gone

    timer = threading.Timer(LOAD_S, give_up)
    timer.start()
    try:
        server.load_all()
    except CourseError as error:
        if is_late.is_set():
            raise CourseError(
                f"The models are not loaded after {LOAD_S} s: does every loop in model.py end?"
            ) from error
        raise
    finally:
        timer.cancel()
