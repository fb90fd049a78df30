"""A model whose process is gone ends its server: who is told, what they are told, and how it is started again."""

import json
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from inflight.engine import executor, limits
from inflight.engine.folder import WEIGHTS_FILE, read
from inflight.errors import CourseError
from inflight.triton import keeper, repository
from inflight.triton.client.client import Client
from inflight.triton.client.connection import ServerGone
from inflight.triton.serving.server import Server
from tests.engines import is_ready, model_process

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def server(small_engine, tmp_path_factory):
    """A server of the small model; each test leaves all its models ready."""
    repo = repository.assemble(
        tmp_path_factory.mktemp("deaths") / "repo", small_engine, decoupled_mode=True, apply_chat_template=False
    )
    with Server(repo, drain_s=0) as server:
        yield server


def test_a_model_that_was_unloaded_and_is_not_reaped_yet_has_not_died(tmp_path):
    """In place of a busy Triton: a process whose child ends in order, and that takes no leave of it for two seconds."""
    busy = "import os, time; os.fork() or os._exit(0); time.sleep(2); os._exit(3)"
    folder, records = tmp_path / "server", tmp_path / "records"
    folder.mkdir()
    records.mkdir()
    (folder / keeper.RECORD).write_text(json.dumps({"shm_prefix": f"no-such-prefix-{tmp_path.name}"}))
    command = [sys.executable, "-S", keeper.__file__, folder, records, sys.executable, "-c", busy]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as keeping:
        _pid, death = keeping.stdout.readline(), keeping.stdout.readline()
    assert death == "tritonserver ended with exit status 3.\n"


@pytest.mark.parametrize(
    "end, how",
    [(psutil.Process.kill, r"ended by signal 9 \(Killed\)"), (psutil.Process.suspend, "stopped")],
    ids=["killed", "stopped"],
)
def test_who_waits_for_a_model_that_dies_is_told_and_the_server_starts_again(server, end, how):
    """No piece comes any more from any of them; without the news they wait for their time limit, another error."""
    first = threading.Semaphore(0)

    def read_all(client):
        try:
            for _ in client.stream("Hello", max_tokens=80, min_length=80):
                first.release()
        except CourseError as error:
            return error
        return None

    waiting, engine = [Client(server.grpc_url, timeout_s=200) for _ in range(8)], model_process(server, "tensorrt_llm")
    with ThreadPoolExecutor(len(waiting)) as pool:
        reading = [pool.submit(read_all, client) for client in waiting]
        assert first.acquire(timeout=60)
        end(engine)
        told = [each.result(timeout=300) for each in reading]
    told = [error for error in told if error is not None]  # some may have had all of it
    assert told and all(isinstance(error, ServerGone) and "\n" not in str(error) for error in told), told
    said = f"The process of the model 'tensorrt_llm' was {how}, and Triton was ended with it"
    assert all(re.match(said, str(error)) and "Start it again" in str(error) for error in told), told
    with pytest.raises(CourseError, match=said):
        server.wait()
    assert not server.is_alive()
    for use in (lambda: server.load("ensemble"), lambda: Client(server.grpc_url).ask("Hello", max_tokens=3)):
        with pytest.raises(CourseError, match=f"{said}.*[Ss]tart it"):
            use()
    before = server.http_url, server.grpc_url
    assert is_ready(server.start()) and (server.http_url, server.grpc_url) == before
    assert Client(server.grpc_url).ask("Hello", max_tokens=3).pieces


def test_when_triton_itself_is_killed_its_end_is_told(server):
    psutil.Process(server.pid).kill()
    with pytest.raises(CourseError, match=r"^tritonserver was ended by signal 9 \(Killed\)\.\nLast lines"):
        server.wait()
    with pytest.raises(ServerGone, match="^tritonserver was ended by signal 9"):
        Client(server.grpc_url).ask("Hello", max_tokens=3)
    assert is_ready(server.start())


# No room --------------------------------------------------------------------------------------------------------------


def test_an_engine_without_room_in_memory_is_refused_before_it_is_loaded(small_engine, monkeypatch):
    info, real = read(small_engine), psutil.virtual_memory()
    limits.check_memory(info)
    weights = (small_engine / WEIGHTS_FILE).stat().st_size
    monkeypatch.setattr(psutil, "virtual_memory", lambda: real._replace(available=weights))
    monkeypatch.setattr(executor, "load_model", lambda _: pytest.fail("something was loaded"))
    with pytest.raises(CourseError, match=r"needs .* MB of weights and .* MB of KV cache .* are available"):
        executor.Executor.load(small_engine)
