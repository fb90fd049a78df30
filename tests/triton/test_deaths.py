"""A model whose process is gone: who notices, what those who wait are told, and that it is loaded again."""

import contextlib
import os
import shutil
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import psutil
import pytest

from inflight.engine import executor
from inflight.engine.folder import WEIGHTS_FILE, read
from inflight.errors import CourseError
from inflight.triton import client, repository, watch
from inflight.triton.client import Client
from inflight.triton.lookout import Lookout
from inflight.triton.repository import PIPELINE
from inflight.triton.server import Server
from inflight.triton.transport import ModelGone, Refused, ServerGone, text
from tests.engines import add_silent_model, clients, metric, model_process, wait_until


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


def num_blocks(server):
    """Blocks of the KV cache; a model that was loaded again shares the gauge with the one before for a moment."""
    return metric(server, "nv_trt_llm_kv_cache_block_metrics", kv_cache_block_type="max")


def what(server, model):
    return [event.what for event in server.events() if event.model == model]


def wait_until_mended(server, num_events):
    """All is ready again, after so many more events."""
    wait_until(lambda: len(server.events()) >= num_events and server.is_ready(), "all models are ready again")


def state(server, model):
    [row] = [row for row in server.models() if row.name == model]
    return row


def test_an_unload_or_a_load_is_no_death(server):
    # First of all: Triton 2.51 does not end the unload of a model that answers nobody waits for have gone through.
    before = server.events()
    server.unload("preprocessing")
    server.load("preprocessing")
    server.load("ensemble")
    server.load("tensorrt_llm", max_tokens_in_paged_kv_cache=192)
    server.load("tensorrt_llm")
    assert server.events() == before and server.is_ready()


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


def test_a_whole_answer_is_not_waited_for_in_vain(small_engine, tmp_path):
    repo = repository.assemble(tmp_path / "repo", small_engine, decoupled_mode=False, apply_chat_template=False)
    add_silent_model(repo)
    taken = repo / "silent" / "taken"
    with Server(repo) as server:
        for url in (server.grpc_url, server.http_url):
            before = len(server.events())
            with ThreadPoolExecutor(1) as pool:
                if url == server.grpc_url:
                    client = Client(url, timeout_s=3600)
                    asked = pool.submit(
                        client._ask_grpc, "silent", {"text_input": text("Hello")}, lambda reply: reply, "id"
                    )
                else:
                    client = Client(url, model="silent", timeout_s=3600)
                    asked = pool.submit(client._ask_http, {"text_input": "Hello"}, "id")
                wait_until(taken.exists, "the model has the request")
                taken.unlink()
                with pytest.raises(TimeoutError):  # meanwhile the call returns: in it Triton sees the end itself
                    asked.result(timeout=2)
                kill(server, "silent")
                with pytest.raises(ModelGone, match="'silent' .* its process ended, or it was unloaded"):
                    asked.result(timeout=300)
            wait_until_mended(server, before + 2)


def test_an_override_is_kept_over_a_death(server):
    server.load("tensorrt_llm", max_tokens_in_paged_kv_cache=192)
    try:
        before = len(server.events())
        kill(server, "tensorrt_llm")
        wait_until_mended(server, before + 2)
        wait_until(lambda: num_blocks(server) == 6, "the override is there again")
    finally:
        server.load("tensorrt_llm")
    wait_until(lambda: num_blocks(server) > 6, "the model is as its file has it")


def test_a_load_by_hand_and_the_watch_do_not_hinder_each_other(server):
    before = len(server.events())
    kill(server, "tensorrt_llm")
    server.load("tensorrt_llm")
    wait_until(lambda: server.is_ready(), "all models are ready")
    assert Client(server.grpc_url).ask("Hello", max_tokens=3).pieces
    wait_until(lambda: len(server.events()) != before + 1, "a death that is told has its end")
    told = [event.what for event in server.events()[before:]]
    # None where the load came first: nothing was missing any more when the watch looked.
    assert told == [] or (len(told) == 2 and "It died" in told[0] and "is ready" in told[1]), told


def test_a_model_that_dies_again_and_again_stays_down_and_can_be_loaded(small_repo):
    with Server(small_repo) as server:
        for deaths in range(1, watch.MOST_RELOADS + 1):
            kill(server, "postprocessing")
            wait_until_mended(server, 2 * deaths)
        kill(server, "postprocessing")
        wait_until(lambda: "stays down" in what(server, "postprocessing")[-1], "it is given up")
        row = state(server, "postprocessing")
        assert row.state == "UNAVAILABLE" and "it died 4 times in 10 minutes" in row.reason
        assert not Client(server.grpc_url).is_ready() and not Client(server.http_url).is_ready()
        with pytest.raises(Refused):
            Client(server.grpc_url, timeout_s=3600).ask("Hello", max_tokens=3)
        server.load("postprocessing")
        server.load("ensemble")
        wait_until(server.is_ready, "it is known to be ready")
        assert Client(server.grpc_url).ask("Hello", max_tokens=3).pieces


def test_a_server_that_crashes_comes_back_with_what_it_served(server):
    server.load("tensorrt_llm", max_tokens_in_paged_kv_cache=192)
    wait_until(lambda: _is_learned(server), "the override is known")
    pid = server.pid
    os.kill(pid, signal.SIGABRT)
    wait_until(lambda: server.pid != pid and server.is_ready(), "another one serves")
    wait_until(lambda: num_blocks(server) == 6, "the override is there again")
    assert Client(server.grpc_url).ask("Hello", max_tokens=3).pieces
    server.load("tensorrt_llm")


def _is_learned(server):
    """Whether the watch has had the time to see what is served: all that it takes, for on a busy machine it is late."""
    threading.Event().wait(watch.LEARN_S)
    return server.is_ready()


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


def test_a_process_killed_while_it_loads_leaves_the_old_one_serving(server):
    old = model_process(server, "tensorrt_llm")
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(server.load, "tensorrt_llm", max_tokens_in_paged_kv_cache=192)
        wait_until(lambda: model_process(server, "tensorrt_llm") != old, "the new process runs")
        model_process(server, "tensorrt_llm").kill()
        with pytest.raises(CourseError, match="'tensorrt_llm' could not be loaded"):
            loading.result(timeout=300)
    assert old.is_running() and server.is_ready()
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


def test_a_lookout_asks_only_when_nothing_comes():
    asked, told = threading.Semaphore(0), threading.Event()

    def is_gone():
        asked.release()
        return True

    with Lookout(is_gone, told.set) as lookout:
        lookout.has_come()
        assert told.wait(30)
    assert asked.acquire(blocking=False) and not asked.acquire(blocking=False)


def test_a_request_on_a_stream_is_sent_before_anybody_begins_to_look(monkeypatch):
    """To begin takes a thread, and on a busy machine that would be part of the time to the first token."""
    steps = []

    class Wire:
        url = "127.0.0.1:1"

        def __init__(self, url):
            self.reply = SimpleNamespace(error=None, is_final=True, is_empty=True)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            steps.append("close")

        def open_stream(self):
            steps.append("open")

        def send_on_stream(self, *_, **__):
            steps.append("send")

        @contextlib.contextmanager
        def lookout(self, model, is_gone):
            steps.append("look")
            yield SimpleNamespace(has_come=lambda: None)
            steps.append("look no more")

        def next_reply(self, timeout_s):
            return self.reply

        def is_model_gone(self, model):
            return False

    monkeypatch.setattr(client, "Connection", Wire)
    monkeypatch.setattr(client.fitting, "fit", lambda arrays, config: arrays)
    monkeypatch.setattr(Client, "_config", lambda self, model: None)
    assert list(Client("127.0.0.1:1").stream("Hi", 2)) == []
    assert steps == ["open", "send", "look", "look no more", "close"]
