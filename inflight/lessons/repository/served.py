"""A learner's repository in a real Triton, for a check: with stand-ins for what takes long to load.

    with served(repo) as connection:
        reply = connection.infer("ensemble", {"text_input": text("Hello"), "max_tokens": …}, ANSWER_S)
        right = stand_ins().answer_ids(…)

A check takes a few seconds, and ends whatever the learner's code does.
"""

from __future__ import annotations

import contextlib
import functools
import runpy
import shutil
import tempfile
import threading
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from types import SimpleNamespace

from inflight.errors import CourseError
from inflight.notebook import progress
from inflight.triton import repository
from inflight.triton.client.connection import Connection
from inflight.triton.repository.layout import ENGINE
from inflight.triton.serving.server import Server

PIPELINE = ("preprocessing", ENGINE, "postprocessing")
STAND_INS = Path(__file__).parent / "stand_ins"
LOAD_S = 60  # for what takes a second or two, unless a loop does not end
ANSWER_S = 20


@contextlib.contextmanager
def served(repo: Path, replaced: Collection[str] = PIPELINE) -> Iterator[Connection]:
    """Serve a copy of a repository as long as the block lasts, some of its models replaced by those in `stand_ins/`.

    The ensemble answers with one response, also where the repository's own would stream.

    Parameters
    ----------
    replaced : collection of str
        Of the pipeline's three models, those whose code is not run. The engine is always among them.

    Raises
    ------
    CourseError
        A model cannot be loaded, or is not within `LOAD_S`; with Triton's reason.
    """
    with tempfile.TemporaryDirectory(prefix="inflight-check-") as folder:
        copy = Path(shutil.copytree(repo, Path(folder) / "repo"))
        for model in {ENGINE, *replaced}:
            shutil.rmtree(copy / model / "1")
            shutil.copytree(STAND_INS, copy / model / "1")
        config = repository.read_config(copy / ENGINE / repository.CONFIG)
        config.model_transaction_policy.decoupled = False
        repository.write_config(config, copy / ENGINE / repository.CONFIG)
        arguments = [f"--model-repository={copy}", "--model-control-mode=explicit", "--disable-auto-complete-config"]
        progress.say("a Triton loads the repository")
        try:  # what is wrong with it, Triton says
            with Server(copy, arguments=arguments, drain_s=0) as server:
                _load(server)
                progress.say("it is asked")
                with Connection(server.grpc_url) as connection:
                    yield connection
        except CourseError as error:
            said = error.sentence.replace(f"{copy}/", "")
            raise CourseError(f"Triton says: {said}") from error


@functools.cache
def stand_ins() -> SimpleNamespace:
    """Return the stand-ins' answers as functions: `prompt_ids`, `answer_ids`, `answer_text`."""
    return SimpleNamespace(**runpy.run_path(str(STAND_INS / "stand_ins.py")))


def _load(server: Server) -> None:
    begun = time.monotonic()
    timer = threading.Timer(LOAD_S, server.stop, kwargs={"drain_s": 0})  # whoever waits for it learns that it has gone
    timer.start()
    try:
        server.load_all()
    except CourseError as error:
        if time.monotonic() - begun < LOAD_S:
            raise
        raise CourseError(f"The models are not loaded after {LOAD_S} s: does every loop in model.py end?") from error
    finally:
        timer.cancel()
