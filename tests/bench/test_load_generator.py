"""Sending a load to a real server, what is kept of it, and what happens when something goes wrong."""

import json
import os
import re
import signal
import subprocess
import sys
import threading

import pandas as pd
import pytest
from typer.testing import CliRunner

from inflight.bench import load_generator
from inflight.bench.load_generator import COLUMNS, Sender, Stop
from inflight.bench.workload import TimedRequest
from inflight.cli.commands import app
from inflight.errors import CourseError
from inflight.triton import repository, telemetry
from inflight.triton.client import Answer, Client
from inflight.triton.server import Server
from tests.bench.test_report import check_schema
from tests.engines import build_small, metric, wait_until

LENGTHS = (1, 2, 3, 5, 8, 13)
NEVER_DUE = 3600.0


def requests(number: int, at_s=lambda index: 0.0, lengths=LENGTHS) -> list[TimedRequest]:
    return [TimedRequest(f"Hi {index}", lengths[index % len(lengths)], at_s(index), 3) for index in range(number)]


@pytest.fixture(scope="module")
def served(small_engine, tmp_path_factory):
    """By whether it is decoupled: a server of the small model, and the path of its iteration log."""
    folder, servers = tmp_path_factory.mktemp("served"), {}
    try:
        for decoupled in (False, True):
            log = folder / f"{decoupled}.jsonl"
            repo = repository.assemble(
                folder / str(decoupled),
                small_engine,
                decoupled_mode=decoupled,
                apply_chat_template=False,
                iteration_log_path=log,
            )
            servers[decoupled] = Server(repo).start(), log
        yield servers
    finally:
        for server, _ in servers.values():
            server.stop()


@pytest.fixture
def whole(served):
    with Sender(Client(served[False][0].grpc_url)) as send:
        yield send


@pytest.fixture
def streaming(served):
    with Sender(Client(served[True][0].grpc_url), stream=True) as send:
        yield send


@pytest.fixture
def mortal_server(small_repo):
    """A server that a test may kill."""
    server = Server(small_repo).start()
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def no_thread_left():
    before = set(threading.enumerate())
    yield
    left = [thread.name for thread in set(threading.enumerate()) - before if thread.name.startswith("ThreadPool")]
    assert not left


def most_under_way(table: pd.DataFrame) -> int:
    changes = sorted([(at, 1) for at in table["sent_s"]] + [(at, -1) for at in table["last_s"]])
    return int(pd.Series([change for _, change in changes]).cumsum().max())


def num_answered(server: Server) -> float:
    """Requests to the ensemble since the server started; one that has just been answered may not be among them."""
    return metric(server, "nv_inference_request_success", model="ensemble")


def num_answered_in_all(server: Server) -> float:
    return telemetry.settled(lambda: num_answered(server))


def num_answered_since(server: Server, before: float, at_least: int) -> float:
    wait_until(lambda: num_answered(server) - before >= at_least, f"{at_least} requests are counted")
    return num_answered_in_all(server) - before


# A load ---------------------------------------------------------------------------------------------------------------


def test_every_request_has_its_row(whole):
    done = []
    run = load_generator.load(whole, requests(20), progress=lambda *numbers: done.append(numbers))
    table = run.requests
    assert list(table) == COLUMNS
    assert table["request"].tolist() == list(range(20))
    assert table["output_len"].tolist() == table["max_tokens"].tolist() == [LENGTHS[i % 6] for i in range(20)]
    assert table[["first_s", "ttft_ms", "itl_ms"]].isna().all(axis=None)
    assert (table["latency_ms"] / 1000).tolist() == pytest.approx((table["last_s"] - table["due_s"]).tolist(), abs=1e-6)
    assert (table["due_s"] == 0).all() and (table["sent_s"] >= 0).all()
    assert done == [(number, 20) for number in range(1, 21)]
    assert (run.stopped, set(table["error"])) == ("", {""})


def test_a_streamed_answer_has_ttft_and_itl(streaming):
    table = load_generator.load(streaming, requests(12)).requests
    assert (table["error"] == "").all()
    assert (table["ttft_ms"] <= table["latency_ms"]).all()
    assert (table["ttft_ms"] / 1000).tolist() == pytest.approx((table["first_s"] - table["due_s"]).tolist(), abs=1e-6)
    several = table[table["max_tokens"] > 1]
    itl_ms = (several["latency_ms"] - several["ttft_ms"]) / (several["output_len"] - 1)
    assert several["itl_ms"].tolist() == pytest.approx(itl_ms.tolist())
    assert table[table["max_tokens"] == 1]["itl_ms"].isna().all()


@pytest.mark.parametrize("decoupled", [False, True])
def test_the_tokens_counted_are_those_that_the_engine_made(served, decoupled):
    server, log = served[decoupled]
    known = len(telemetry.iterations(log)) if log.exists() else 0
    with Sender(Client(server.grpc_url), stream=decoupled) as send:
        table = load_generator.load(send, requests(15)).requests
    rows = telemetry.iterations(log)[known:]
    assert rows["finished"].sum() == 15
    # A request's first token comes with the iteration that computes its prompt, in one piece as it is this short.
    assert rows["generation_tokens"].sum() + 15 == table["output_len"].sum()


def test_a_request_is_not_sent_before_it_is_due(whole):
    times = [0.2, 0.0, 0.1]
    table = load_generator.load(whole, requests(3, at_s=times.__getitem__)).requests
    assert (table["sent_s"] >= times).all()
    assert table["sent_s"].rank().tolist() == [3, 1, 2]
    untimed = load_generator.load(whole, requests(2, at_s=lambda index: NEVER_DUE), timed=False)
    assert (untimed.requests["error"] == "").all()


@pytest.mark.parametrize("concurrency", [1, 3])
def test_concurrency_is_the_most_under_way(whole, concurrency):
    assert most_under_way(load_generator.load(whole, requests(12), concurrency).requests) == concurrency


@pytest.mark.parametrize("decoupled", [False, True])
def test_500_requests_50_under_way_are_all_answered(served, decoupled):
    server = served[decoupled][0]
    with Sender(Client(server.grpc_url), stream=decoupled) as send:  # a stream is a connection of its own
        before = num_answered_in_all(server)
        run = load_generator.load(send, requests(500, lengths=(4,)), 50)
    assert (run.requests["error"] == "").all()
    assert run.requests["request"].tolist() == list(range(500))
    assert 1 < most_under_way(run.requests) <= 50
    assert num_answered_since(server, before, 500) == 500


def test_a_load_over_http(served):
    with Sender(Client(served[False][0].http_url)) as send:
        run = load_generator.load(send, requests(12), 4)
    assert (run.requests["error"] == "").all()


def test_warm_up_sends_as_many_as_it_is_told(served, whole):
    server = served[False][0]
    before = num_answered_in_all(server)
    load_generator.warm_up(whole, requests(3), 7)
    assert num_answered_since(server, before, 7) == 7


def test_sender_asks_another_model_and_leaves_the_client_as_it_is(served):
    server = served[False][0]
    with Client(server.grpc_url) as client, load_generator.sender(client, "nothing") as send:
        with pytest.raises(CourseError, match="unknown model: 'nothing'"):
            send(requests(1)[0])
        assert client.ask("Hi", 2).text is not None


def test_serving_tax_compares_three_ways_in_turns(small_checkpoint, tmp_path):
    engine_dir = build_small(small_checkpoint, tmp_path / "engine", max_input_len=64, max_seq_len=200)
    result = load_generator.serving_tax(engine_dir, tmp_path, num_requests=3, in_flight=2, rounds=2)
    assert [row["way"] for row in result["rows"]] == ["engine in process", "Triton, tensorrt_llm", "Triton, ensemble"]
    for ratio in result["ratios"].values():
        assert 0 < ratio["min"] <= ratio["median"] <= ratio["max"]


def test_ratio_is_taken_round_by_round():
    assert load_generator.ratio([2.0, 9.0, 4.0], [1.0, 3.0, 1.0]) == {"median": 3.0, "min": 2.0, "max": 4.0}


class Noting:
    """In place of a client: notes how it is asked, and repeats the prompt."""

    model, url = "ensemble", "nowhere"

    def __init__(self):
        self.asked = []

    def ask(self, text, max_tokens, **how):
        self.asked.append(how)
        return Answer([text + " and so on"], [0.1])

    def stream(self, text, max_tokens, **how):
        self.asked.append(how)
        return iter(["and ", "so ", "on"])


@pytest.mark.parametrize("stream", [False, True])
def test_answers_are_ended_early_and_their_tokens_counted(stream):
    client = Noting()
    send = Sender(client, stream, Stop(0.25, lambda text: len(text.split())), "mine")
    timings = [send(request) for request in requests(2)]
    assert [timing.output_len for timing in timings] == [3, 3]
    assert [timing.first_ns is None for timing in timings] == [not stream] * 2
    ended = {"end_id": -1, "stop_after_s": 0.25}
    assert client.asked == [{**ended, "request_id": "mine-1"}, {**ended, "request_id": "mine-2"}]


def test_whole_answers_of_a_model_without_an_engine_cannot_be_ended(served):
    with Client(served[False][0].grpc_url, "llama-python") as client:
        with pytest.raises(CourseError, match="llama-python cannot end a whole answer early"):
            Sender(client, stop=Stop(1.0, len))
        Sender(client, stream=True, stop=Stop(1.0, len))


# Trouble --------------------------------------------------------------------------------------------------------------


def test_a_failed_request_is_a_row_with_its_error(whole):
    mixed = requests(6)
    mixed[2] = TimedRequest("Hi", 0, 0.0, 3)
    mixed[4] = TimedRequest("word " * 100, 4, 0.0, 100)
    run = load_generator.load(whole, mixed)
    errors = run.requests["error"]
    assert "max_tokens) is 0" in errors[2]
    assert "exceeds maximum input length" in errors[4]
    assert run.answered["request"].tolist() == [0, 1, 3, 5]
    assert run.requests["output_len"][[2, 4]].tolist() == [0, 0]
    assert run.stopped == ""


def test_nothing_to_send_and_no_concurrency_are_refused(whole):
    with pytest.raises(CourseError, match="no request to send"):
        load_generator.load(whole, [])
    with pytest.raises(CourseError, match="concurrency is 0"):
        load_generator.load(whole, requests(1), 0)


def test_a_warm_up_that_fails_says_why(served):
    with (
        Sender(Client(served[False][0].grpc_url), stream=True) as send,
        pytest.raises(CourseError, match="A warm-up request failed: .*decoupled"),
    ):
        load_generator.warm_up(send, requests(2), 2)


@pytest.mark.parametrize("stream", [False, True])
def test_a_server_that_goes_away_ends_the_run_and_what_came_is_kept(mortal_server, stream):
    def kill_after_ten(done, total):
        if done == 10:
            os.kill(mortal_server.pid, signal.SIGKILL)

    load = [*requests(60), *requests(2, at_s=lambda index: NEVER_DUE)]
    with Sender(Client(mortal_server.grpc_url), stream=stream) as send:
        run = load_generator.load(send, load, 4, kill_after_ten)
    assert len(run.requests) == 62
    assert 10 <= len(run.answered) < 60
    assert run.stopped == f"The server at {mortal_server.grpc_url} went away after {len(run.answered)} of 62 answers."
    errors = set(run.requests["error"][60:])
    assert errors == {f"Not sent: The server at {mortal_server.grpc_url} went away."}


@pytest.mark.parametrize("stream", [False, True])
def test_an_interrupt_ends_the_run_and_what_came_is_kept(served, stream):
    def interrupt_after_five(done, total):
        if done == 5:
            os.kill(os.getpid(), signal.SIGINT)

    load = [*requests(5), *requests(30, lengths=(80,)), *requests(1, at_s=lambda index: NEVER_DUE)]
    with Sender(Client(served[stream][0].grpc_url), stream=stream) as send:
        run = load_generator.load(send, load, progress=interrupt_after_five)
    assert 5 <= len(run.answered) < 36
    assert run.stopped == f"The benchmark was interrupted after {len(run.answered)} of 36 answers."
    assert set(run.requests["error"]) <= {
        "",
        "The request was ended before its answer was there.",
        "Not sent: The benchmark was interrupted.",
    }


# The command ----------------------------------------------------------------------------------------------------------


SHORT = ["--output-lengths", "histogram:8=3,4=1", "--dataset", "mild", "--warm-up", "2"]


def bench_load(*arguments):
    return CliRunner().invoke(app, ["bench", "load", *map(str, arguments)])


@pytest.mark.parametrize("stream", [False, True])
def test_the_command_prints_figures_and_writes_every_file(served, small_engine, tmp_path, stream):
    files = [
        "--csv",
        tmp_path / "run.csv",
        "--op-stats-csv",
        tmp_path / "stats.csv",
        "--perfetto",
        tmp_path / "run.json",
    ]
    result = bench_load(
        "--url",
        served[stream][0].grpc_url,
        "--engine-dir",
        small_engine,
        *SHORT,
        *files,
        "--requests",
        9,
        "--arrivals",
        "poisson",
        "--rate",
        100,
        *(["--stream"] if stream else []),
        "--json",
    )
    assert result.exit_code == 0, result.exception
    printed = json.loads(result.stdout)
    assert printed["rows"][0]["requests"] == 9
    assert (printed["rows"][0]["ttft_ms_mean"] is not None) == stream
    assert printed["settings"]["warm_up_requests"] == 2
    table = pd.read_csv(tmp_path / "run.csv")
    assert len(table) == 9 and set(table["output_len"]) <= {4, 8}
    assert len((tmp_path / "stats.csv").read_text().splitlines()) == 2
    assert json.loads((tmp_path / "run.json").read_text())["traceEvents"]


def test_the_command_starts_a_server_of_its_own_and_shows_its_engine(small_checkpoint, tmp_path):
    # The chat template takes many of the small model's tokens, so its prompts must be allowed more of them.
    engine_dir = build_small(small_checkpoint, tmp_path / "engine", max_input_len=64)
    result = bench_load(
        "--engine-dir",
        engine_dir,
        "--recorded",
        recording(tmp_path),
        "--perfetto",
        tmp_path / "run.json",
        "--warm-up",
        1,
    )
    assert result.exit_code == 0, result.exception
    assert "output tokens/s" in result.stdout and "TTFT" not in result.stdout
    assert "1 warm-up requests went before" in result.stdout
    content = json.loads((tmp_path / "run.json").read_text())
    check_schema(content)
    names = {event["name"] for event in content["traceEvents"]}
    assert {"req_0", "req_1", "in flight", "scheduled", "waiting", "paused", "KV cache blocks used"} <= names


def recording(folder):
    path = folder / "earlier.csv"
    path.write_text("sent_s,input_len,output_len\n0.0,60,5\n0.1,55,9\n")
    return path


def test_the_command_says_where_the_results_are_when_the_server_goes_away(mortal_server, small_engine, tmp_path):
    command = [
        sys.executable,
        "-m",
        "inflight",
        "bench",
        "load",
        "--url",
        mortal_server.grpc_url,
        "--engine-dir",
        str(small_engine),
        *SHORT,
        "--warm-up",
        "0",
        "--arrivals",
        "constant",
        "--rate",
        "4",
        "--csv",
        str(tmp_path / "run.csv"),
        "--op-stats-csv",
        str(tmp_path / "stats.csv"),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: num_answered(mortal_server) >= 3, "three requests are answered")
    os.kill(mortal_server.pid, signal.SIGKILL)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 1
    table = pd.read_csv(tmp_path / "run.csv")
    kept = table["error"].isna().sum()
    assert len(table) == 32 and 2 <= kept < 32
    assert errors.strip() == (
        f"error: The server at {mortal_server.grpc_url} went away after {kept} of 32 answers. "
        f"They are in {tmp_path / 'run.csv'}."
    )
    assert not (tmp_path / "stats.csv").exists()  # figures of half a run belong in no statistics


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command_with_what_it_has(served, small_engine, tmp_path, number):
    server = served[False][0]
    before = num_answered_in_all(server)
    command = [
        sys.executable,
        "-m",
        "inflight",
        "bench",
        "load",
        "--url",
        server.grpc_url,
        "--engine-dir",
        str(small_engine),
        *SHORT,
        "--warm-up",
        "0",
        "--arrivals",
        "constant",
        "--rate",
        "4",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: num_answered(server) >= before + 3, "three requests are answered")
    process.send_signal(number)
    shown, errors = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "requests answered" in shown
    assert errors.startswith("error: The benchmark was interrupted after ")
    assert errors.strip().endswith("of 32 answers. They are above; --csv keeps them in a file.")


def test_failed_requests_are_told_after_the_figures(served, small_engine):
    result = bench_load(
        "--url",
        served[False][0].grpc_url,
        "--engine-dir",
        small_engine,
        "--warm-up",
        0,
        "--dataset",
        "mild",
        "--output-lengths",
        "histogram:4=1",
        "--model",
        "nothing",
    )
    assert "requests answered" in result.stdout
    assert str(result.exception).startswith(
        "32 of 32 requests failed, the first with: Request for unknown model: 'nothing'"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--csv", "/nowhere/run.csv"],
            r"^/nowhere/run\.csv cannot be written \(No such file or directory\)\. Name a file",
        ),
        (["--op-stats-csv", "/"], r"^/ is a folder"),
        (["--op-stats-csv", __file__], r"is a table with other columns"),
        (["--csv", "a.csv", "--perfetto", "./a.csv"], r"^One file is named for two"),
        (
            ["--arrivals", "sometimes"],
            r"^--arrivals is 'sometimes'; it must be one of all-at-once, constant, poisson, recorded",
        ),
        (["--arrivals", "poisson"], r"^--rate belongs to --arrivals constant, poisson, bursts or day"),
        (["--rate", "3"], r"^--rate belongs to --arrivals constant, poisson, bursts or day"),
        (
            ["--arrivals", "bursts", "--rate", "3", "--cv", "0", "--output-lengths", "histogram:8=1"],
            r"^The coefficient of variation is 0; it must be from",
        ),
        (
            ["--arrivals", "day", "--rate", "3", "--day-s", "0", "--output-lengths", "histogram:8=1"],
            r"^A day of 0 s is none",
        ),
        (
            ["--arrivals", "day", "--rate", "3", "--day-swing", "2", "--output-lengths", "histogram:8=1"],
            r"^The day's swing is 2; it must be from 0",
        ),
        (["--arrivals", "trace"], r"^--arrivals trace and --trace FILE belong together"),
        (["--trace", "small", "--recorded", "a.csv"], r"^--recorded and --trace both say what is sent"),
        (["--trace", "small", "--output-lengths", "normal:8,1"], r"^A trace run has lengths of its own"),
        (["--trace", "/nowhere.csv"], r"^There is no trace file /nowhere\.csv: give the path"),
        (["--loop", "sideways"], r"^--loop is 'sideways'; it must be open or closed"),
        (["--loop", "closed"], r"^A closed loop has so many users.*add --concurrency"),
        (
            ["--loop", "closed", "--concurrency", "2", "--arrivals", "poisson", "--rate", "1"],
            r"^In a closed loop a request is sent when an answer has come, not by --arrivals poisson",
        ),
        (["--objective", "ttft"], r"^The objective 'ttft' cannot be read: write limits in milliseconds"),
        (["--objective", "ttft=100"], r"^An objective of ttft or itl needs answers in pieces: add --stream"),
        (["--api", "rest"], r"^--api is 'rest'; it must be one of auto, triton, openai"),
        (["--api", "openai"], r"^The server for the occasion is Triton"),
        (["--url", "127.0.0.1:9", "--set", "a=b"], r"^--set is for the server for the occasion"),
        (["--set", "a"], r"^--set a: write it as NAME=VALUE"),
        (["--turns", "0"], r"^A conversation of 0 turns is none"),
        (["--turns", "2", "--think-s", "-1"], r"^A user thinks for -1"),
        (["--system-prompt", "0"], r"^The system prompt has 0 tokens"),
        (["--system-prompt", "900"], r"a prompt has \d+ tokens, and the engine's max_input_len"),
        (["--arrivals", "constant", "--rate", "0"], r"^The rate is 0\.0 requests a second"),
        (["--arrivals", "recorded"], r"^--arrivals recorded and --recorded FILE belong together"),
        (["--arrivals", "constant", "--rate", "1", "--recorded", "a.csv"], r"belong together"),
        (["--recorded", "/nowhere.csv"], r"^The recorded run /nowhere\.csv cannot be read"),
        (["--recorded", "a.csv", "--output-lengths", "normal:8,1"], r"^A recorded run has lengths of its own"),
        (["--dataset", "/nowhere.json"], r"nowhere\.json"),
        (["--requests", "0"], r"^The number of requests is 0"),
        (["--output-lengths", "long"], r"^--output-lengths long: write dataset, normal:MEAN,STDEV"),
        (["--output-lengths", "normal:60"], r"^--output-lengths normal:60: write"),
        (["--output-lengths", "normal:nan,1"], r"^Output lengths of mean nan"),
        (["--output-lengths", "histogram:8=x"], r"^--output-lengths histogram:8=x: write"),
        (["--output-lengths", "histogram:0=1"], r"length must be at least 1"),
        (
            ["--output-lengths", "histogram:1000=1"],
            r"^Request 0 has 62 tokens and asks for 1000 more, but the engine's max_seq_len",
        ),
        (["--output-lengths", "histogram:8=1", "--warm-up", "-1"], r"^--warm-up is -1"),
        (["--model", "llama-python"], r"^The server for the occasion has no llama-python"),
    ],
)
def test_a_wrong_value_is_one_sentence_before_anything_starts(small_engine, arguments, message):
    if "--dataset" not in arguments:
        arguments = [*arguments, "--dataset", "mild"]
    result = bench_load("--engine-dir", small_engine, *arguments)
    assert isinstance(result.exception, CourseError)
    assert re.search(message, str(result.exception))


def test_no_concurrency_is_refused(served, small_engine):
    result = bench_load("--url", served[False][0].grpc_url, "--engine-dir", small_engine, *SHORT, "--concurrency", 0)
    assert str(result.exception) == "The concurrency is 0; it must be at least 1."


def test_a_server_that_is_not_there_is_one_sentence(small_engine):
    result = bench_load("--url", "127.0.0.1:9", "--engine-dir", small_engine, *SHORT)
    assert str(result.exception).startswith("A warm-up request failed: The server at 127.0.0.1:9 does not answer")
