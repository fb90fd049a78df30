"""A model whose process is gone: who notices, what those who wait are told, and that it is loaded again."""

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from inflight.engine import executor
from inflight.engine.folder import WEIGHTS_FILE, read
from inflight.errors import CourseError
from inflight.triton import repository, watch
from inflight.triton.client import Client
from inflight.triton.repository import PIPELINE
from inflight.triton.server import Server
from inflight.triton.transport import Refused, ServerGone
from tests.engines import clients, model_process, wait_until

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def server(small_engine, tmp_path_factory):
    """A server of the small model; each test kills other models of it, or the same once, and leaves all ready."""
    repo = repository.assemble(
        tmp_path_factory.mktemp("deaths") / "repo", small_engine, decoupled_mode=True, apply_chat_template=False
    )
    with Server(repo) as server:
        yield server


def kill(server, *models):
    """Kill the processes of models, when those of earlier loads have ended: one that has not hides a death from all."""
    for model in models:
        wait_until(lambda model=model: watch.living(server.pid, model) == 1, f"{model} has one process")
    processes = [model_process(server, model) for model in models]
    for process in processes:
        process.kill()
    for process in processes:
        wait_until(lambda process=process: has_ended(process), "the process has ended")


def has_ended(process):
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def what(server, model):
    return [event.what for event in server.events() if event.model == model]


def wait_until_mended(server, num_events):
    """All is ready again, after so many more events."""
    wait_until(lambda: len(server.events()) >= num_events and server.is_ready(), "all models are ready again")


def state(server, model):
    [row] = [row for row in server.models() if row.name == model]
    return row


def test_a_death_is_noticed_by_all_who_look_and_mended(server):
    before, waiting = len(server.events()), clients(server)
    assert server.is_ready() and all(client.is_ready() for client in waiting)
    kill(server, "preprocessing", "postprocessing")
    wait_until(lambda: state(server, "preprocessing").state == "UNAVAILABLE", "the server's table shows it")
    assert not server.is_ready()
    assert "ended by signal 9" in state(server, "preprocessing").reason
    wait_until(lambda: not any(client.is_ready() for client in waiting), "clients see it")
    wait_until_mended(server, before + 4)
    assert [row.state for row in server.models()] == ["READY"] * len(PIPELINE)
    for model in ("preprocessing", "postprocessing"):
        died, mended = what(server, model)[-2:]
        assert died == "It died: its process was ended by signal 9 (Killed)." and "is ready" in mended
    wait_until(lambda: all(client.is_ready() for client in waiting), "clients see that it is ready again")
    assert Client(server.grpc_url).ask("Hello", max_tokens=3).pieces


def test_who_waits_for_a_model_that_dies_is_told(server):
    """No piece comes any more from any of them; the time limit is far beyond the test's."""
    before, first = len(server.events()), threading.Semaphore(0)

    def read(client):
        try:
            for _ in client.stream("Hello", max_tokens=40, min_length=40):
                first.release()
        except CourseError as error:
            return error
        return None

    waiting = [Client(url, timeout_s=3600) for url in (server.grpc_url, server.http_url) * 4]
    with ThreadPoolExecutor(len(waiting)) as pool:
        reading = [pool.submit(read, client) for client in waiting]
        assert first.acquire(timeout=60)
        kill(server, "tensorrt_llm")
        told = [each.result(timeout=300) for each in reading]
    told = [error for error in told if error is not None]  # some may have had all of it
    assert all(isinstance(error, ServerGone | Refused) and "\n" not in str(error) for error in told), told
    if any(type(error) is ServerGone for error in told):  # now and then the server crashes with its model
        wait_until(lambda: any(event.model == "" for event in server.events()[before:]), "its end is told of")
    wait_until_mended(server, before + 2)


# A load that fails ----------------------------------------------------------------------------------------------------


def test_a_load_that_fails_leaves_the_old_one_serving(server, small_engine, tmp_path):
    damaged = shutil.copytree(small_engine, tmp_path / "damaged")
    with open(damaged / WEIGHTS_FILE, "ab") as weights:
        weights.write(b"x")
    scheduler = tmp_path / "scheduler.py"
    scheduler.write_text("a bug of mine")
    for override in (
        {"gpt_model_path": tmp_path / "nowhere"},
        {"gpt_model_path": damaged},
        {"scheduler_path": scheduler},
        {"max_tokens_in_paged_kv_cache": 32},
    ):
        with pytest.raises(CourseError):
            server.load("tensorrt_llm", **override)
        assert server.is_ready()
        assert Client(server.grpc_url).ask("Hello", max_tokens=3).pieces


def test_an_engine_without_room_in_memory_is_refused_before_it_is_loaded(small_engine, monkeypatch):
    info, real = read(small_engine), psutil.virtual_memory()
    executor.check_memory(info)
    weights = (small_engine / WEIGHTS_FILE).stat().st_size
    monkeypatch.setattr(psutil, "virtual_memory", lambda: real._replace(available=weights))
    monkeypatch.setattr(executor, "load_model", lambda _: pytest.fail("something was loaded"))
    with pytest.raises(CourseError, match=r"needs .* MB of weights and .* MB of KV cache .* are available"):
        executor.Executor.load(small_engine)


# Waiting --------------------------------------------------------------------------------------------------------------
