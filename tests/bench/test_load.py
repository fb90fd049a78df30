"""Sending a load to a real server, what is kept of it, and what happens when something goes wrong."""

import json
import os
import signal
import threading
import time

import pandas as pd
import pytest
from typer.testing import CliRunner

from inflight.bench.load import COLUMNS, send_all
from inflight.bench.senders import Sender, Timing
from inflight.bench.workload import TimedRequest
from inflight.cli.commands import app
from inflight.errors import CourseError
from inflight.triton import repository, telemetry
from inflight.triton.serving.server import Server

pytestmark = pytest.mark.server

LENGTHS = (1, 2, 3, 5, 8, 13)
NEVER_DUE = 3600.0


def requests(number: int, at_s=lambda index: 0.0, lengths=LENGTHS) -> list[TimedRequest]:
    return [TimedRequest(f"Hi {index}", lengths[index % len(lengths)], at_s(index), 3) for index in range(number)]


@pytest.fixture(scope="module")
def served(roomy_engine, tmp_path_factory):
    """By whether it is decoupled: a server of the small model, and the path of its iteration log."""
    folder, servers = tmp_path_factory.mktemp("served"), {}
    try:
        for decoupled in (False, True):
            log = folder / f"{decoupled}.jsonl"
            repo = repository.assemble(
                folder / str(decoupled),
                roomy_engine,
                decoupled_mode=decoupled,
                apply_chat_template=False,
                iteration_log_path=log,
            )
            servers[decoupled] = Server(repo).start(), log
        yield servers
    finally:
        for server, _ in servers.values():
            server.stop(drain_s=0)


@pytest.fixture
def whole(served):
    with Sender(served[False][0].grpc_url) as send:
        yield send


@pytest.fixture
def streaming(served):
    with Sender(served[True][0].grpc_url, stream=True) as send:
        yield send


@pytest.fixture
def mortal_server(small_repo):
    """A server that a test may kill."""
    server = Server(small_repo).start()
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def no_thread_left(request):
    before = set(threading.enumerate())
    yield
    left = {thread.name for thread in set(threading.enumerate()) - before if thread.name.startswith("load ")}
    assert not left or request.node.name.startswith("test_an_interrupt")


# A load ---------------------------------------------------------------------------------------------------------------


def test_every_request_has_its_row(whole):
    done = []
    run = send_all(whole, requests(20), progress=lambda *numbers: done.append(numbers))
    table = run.requests
    assert list(table) == COLUMNS
    assert table["request"].tolist() == list(range(20))
    assert table["output_len"].tolist() == table["max_tokens"].tolist() == [LENGTHS[i % 6] for i in range(20)]
    assert table[["first_s", "ttft_ms", "tpot_ms"]].isna().all(axis=None)
    assert (table["latency_ms"] / 1000).tolist() == pytest.approx((table["last_s"] - table["due_s"]).tolist(), abs=1e-6)
    assert (table["due_s"] == 0).all() and (table["sent_s"] >= 0).all()
    assert done == [(number, 20) for number in range(1, 21)]
    assert (run.stopped, set(table["error"])) == ("", {""})


def test_a_streamed_answer_has_ttft_and_itl(streaming):
    table = send_all(streaming, requests(12)).requests
    assert (table["error"] == "").all()
    assert (table["ttft_ms"] <= table["latency_ms"]).all()
    assert (table["ttft_ms"] / 1000).tolist() == pytest.approx((table["first_s"] - table["due_s"]).tolist(), abs=1e-6)
    several = table[table["max_tokens"] > 1]
    tpot_ms = (several["latency_ms"] - several["ttft_ms"]) / (several["output_len"] - 1)
    assert several["tpot_ms"].tolist() == pytest.approx(tpot_ms.tolist())
    assert table[table["max_tokens"] == 1]["tpot_ms"].isna().all()


@pytest.mark.parametrize("decoupled", [False, True])
def test_the_tokens_counted_are_those_that_the_engine_made(served, decoupled):
    server, log = served[decoupled]
    known = len(telemetry.iterations(log)) if log.exists() else 0
    with Sender(server.grpc_url, stream=decoupled) as send:
        table = send_all(send, requests(15)).requests
    rows = telemetry.iterations(log)[known:]
    assert rows["finished"].sum() == 15
    # A request's first token comes with the iteration that computes its prompt, in one piece as it is this short.
    assert rows["generation_tokens"].sum() + 15 == table["output_len"].sum()


def test_a_request_is_not_sent_before_it_is_due(whole):
    times = [0.2, 0.0, 0.1]
    assert (send_all(whole, requests(3, at_s=times.__getitem__)).requests["sent_s"] >= times).all()


class Together:
    """Answers when so many requests are under way; no more may ever be."""

    url = "nowhere"

    def __init__(self, users):
        self.all_here, self.free = threading.Barrier(users), threading.Semaphore(users)

    def __call__(self, request):
        assert self.free.acquire(blocking=False)
        self.all_here.wait(60)
        self.free.release()
        now = time.perf_counter_ns()
        return Timing(now, None, now, request.max_tokens)

    def is_alive(self):
        return True

    def abort(self):
        self.all_here.abort()


@pytest.mark.parametrize("concurrency", [1, 3])
def test_users_do_not_wait_for_a_time_but_for_their_answers(concurrency):
    table = send_all(Together(concurrency), requests(12, at_s=lambda index: NEVER_DUE), concurrency).requests
    assert (table["error"] == "").all() and len(table) == 12


# Trouble --------------------------------------------------------------------------------------------------------------


def test_a_failed_request_is_a_row_with_its_error(whole):
    mixed = requests(6)
    mixed[2] = TimedRequest("Hi", 0, 0.0, 3)
    mixed[4] = TimedRequest("word " * 200, 4, 0.0, 100)
    run = send_all(whole, mixed)
    errors = run.requests["error"]
    assert "max_tokens) is 0" in errors[2]
    assert "exceeds maximum input length" in errors[4]
    assert run.answered["request"].tolist() == [0, 1, 3, 5]
    assert run.requests["output_len"][[2, 4]].tolist() == [0, 0]
    assert run.stopped == ""


def test_nothing_to_send_and_no_concurrency_are_refused(whole):
    with pytest.raises(CourseError, match="no request to send"):
        send_all(whole, [])
    with pytest.raises(CourseError, match="concurrency is 0"):
        send_all(whole, requests(1), 0)


@pytest.mark.parametrize("stream", [False, True])
def test_a_server_that_goes_away_ends_the_run_and_what_came_is_kept(mortal_server, stream):
    def kill_after_ten(done, total):
        if done == 10:
            os.kill(mortal_server.pid, signal.SIGKILL)

    asked = [*requests(60, lengths=(80,)), *requests(2, at_s=lambda index: NEVER_DUE)]
    with Sender(mortal_server.grpc_url, stream=stream) as send:
        run = send_all(send, asked, progress=kill_after_ten)
    assert len(run.requests) == 62
    assert 10 <= len(run.answered) < 60
    assert run.stopped == f"The server at {mortal_server.grpc_url} went away after {len(run.answered)} of 62 answers."
    errors = set(run.requests["error"][60:])
    assert errors == {f"No answer: The server at {mortal_server.grpc_url} went away."}


class Silent:
    """Takes a request, and never answers it."""

    url = "nowhere"

    def __init__(self):
        self.asked = threading.Event()

    def __call__(self, request):
        self.asked.set()
        threading.Event().wait()

    def is_alive(self):
        return True

    def abort(self):
        """Nothing that could be ended."""


def test_an_interrupt_waits_for_no_server_that_does_not_answer():
    send = Silent()
    interrupt = threading.Thread(target=lambda: send.asked.wait() and os.kill(os.getpid(), signal.SIGINT))
    interrupt.start()
    run = send_all(send, requests(3))
    assert run.interrupt is not None and run.answered.empty and len(run.requests) == 3


# The command ----------------------------------------------------------------------------------------------------------


def bench_load(*arguments):
    return CliRunner().invoke(app, ["bench", "load", *map(str, arguments)])


@pytest.mark.parametrize("stream", [False, True])
def test_the_command_prints_figures_and_writes_its_file(served, roomy_engine, tmp_path, stream):
    files = ["--csv", tmp_path / "run.csv"]
    what = ["--dataset", "mild", "--requests", 9, "--rate", 100]
    where = ["--url", served[stream][0].grpc_url, "--engine-dir", roomy_engine]
    result = bench_load(*where, *what, *files, *(["--stream"] if stream else []), "--json")
    assert result.exit_code == 0, result.exception
    printed = json.loads(result.stdout)
    assert set(printed) == {"machine", "settings", "rows", "ratios"}
    [row] = printed["rows"]
    assert (row["requests"], row["stopped"]) == (9, "")
    assert (row["ttft_ms_mean"] is not None) == stream
    assert printed["settings"]["loop"] == "open"
    assert len(pd.read_csv(tmp_path / "run.csv")) == 9


def test_a_server_that_gives_whole_answers_is_not_asked_for_pieces(served, roomy_engine):
    url = served[False][0].grpc_url
    result = bench_load("--url", url, "--engine-dir", roomy_engine, "--dataset", "mild", "--stream")
    assert isinstance(result.exception, CourseError) and "leave out --stream" in str(result.exception)


@pytest.mark.parametrize(
    "arguments, fact",
    [
        (["--csv", "/nowhere/rows.csv"], "/nowhere/rows.csv cannot be written"),
        (["--rate", "2", "--concurrency", "3"], "leave out --rate"),
    ],
)
def test_a_wrong_value_is_named_before_anything_starts(roomy_engine, arguments, fact):
    result = bench_load("--engine-dir", roomy_engine, "--dataset", "mild", *arguments)
    assert isinstance(result.exception, CourseError) and fact in str(result.exception)
