"""The real Performance Analyzer against a real server."""

import json
import platform
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from inflight.bench import perf_analyzer, report
from inflight.bench.workload import TimedRequest
from inflight.cli.commands import app
from inflight.errors import CourseError
from inflight.triton import repository
from inflight.triton.server import Server
from tests.engines import build_small

LENGTHS = (1, 3, 6)
REQUESTS = [TimedRequest(f"Hi {index}", LENGTHS[index % 3], 0.0, 3 + index) for index in range(9)]


@pytest.fixture(scope="module")
def engine_dir(small_checkpoint, tmp_path_factory):
    """The chat template takes many of the small model's tokens, so its prompts are allowed some more of them."""
    return build_small(small_checkpoint, tmp_path_factory.mktemp("engine") / "engine", max_input_len=64)


@pytest.fixture(scope="module", params=[False, True], ids=["whole", "streaming"])
def served(request, engine_dir, tmp_path_factory):
    repo = repository.assemble(
        tmp_path_factory.mktemp("served") / "repo", engine_dir, decoupled_mode=request.param, apply_chat_template=False
    )
    with Server(repo) as server:
        yield server, request.param


def test_it_measures_every_request_once(served):
    server, streams = served
    run = perf_analyzer.run(server.grpc_url, REQUESTS, concurrency=3)
    rows = run.answered
    assert len(rows) == len(run.requests) == 9
    assert sorted(rows["output_len"]) == sorted(request.max_tokens for request in REQUESTS)
    assert sorted(rows["input_len"]) == list(range(3, 12))
    assert (rows["latency_ms"] > 0).all()
    assert rows["sent_s"].is_monotonic_increasing and rows["sent_s"][0] == 0
    if streams:
        assert (rows["ttft_ms"] <= rows["latency_ms"]).all()
        assert rows[rows["max_tokens"] > 1]["itl_ms"].notna().all()
    else:
        assert rows["ttft_ms"].isna().all()


@pytest.fixture
def command(served, engine_dir, tmp_path):
    """`bench perf-analyzer` on four short records."""
    records = [{"input": f"Hi {number}", "instruction": "b", "output": "word " * number} for number in range(1, 5)]
    (tmp_path / "dataset.json").write_text(json.dumps(records))
    return [
        "bench",
        "perf-analyzer",
        "--url",
        served[0].grpc_url,
        "--engine-dir",
        str(engine_dir),
        "--dataset",
        str(tmp_path / "dataset.json"),
        "--concurrency",
        "2",
        "--warm-up",
        "1",
        "--json",
    ]


def test_the_command_puts_it_beside_the_load_of_the_course(served, command):
    streams = served[1]
    result = CliRunner().invoke(app, [*command, *(["--stream"] if streams else [])])
    assert result.exit_code == 0, result.exception
    ours, theirs = json.loads(result.stdout)["rows"]
    assert (ours["way"], theirs["way"]) == ("bench load", "perf_analyzer")
    assert ours.keys() == theirs.keys()
    for name in ("requests", "errors", "input_len_mean", "output_len_mean"):
        assert ours[name] == theirs[name]
    assert (theirs["ttft_ms_p90"] is not None) == streams
    assert theirs["tokens_per_s"] > 0


def test_the_command_wants_stream_to_fit_the_server(served, command):
    streams = served[1]
    result = CliRunner().invoke(app, [*command, *([] if streams else ["--stream"])])
    assert str(result.exception).endswith(
        "is decoupled: add --stream." if streams else "does not stream: leave out --stream."
    )


def test_what_it_says_of_a_failure_is_in_the_error(served):
    wrong = [TimedRequest("Hi", 0, 0.0, 3)]
    with pytest.raises(CourseError, match=r"The Performance Analyzer failed: .*max_tokens\) is 0.*\. Measure with"):
        perf_analyzer.run(served[0].grpc_url, wrong, concurrency=1)
    with pytest.raises(CourseError, match="unknown model: 'nothing'"):
        perf_analyzer.run(served[0].grpc_url, REQUESTS, model="nothing")


def forgetful(monkeypatch, runs):
    """In place of the program one that notes `runs[0]` requests when it is first run, `runs[1]` then, and so on."""
    runs = iter(runs)
    noted = {"timestamp": 1, "request_inputs": {"text_input": "Hi 0", "max_tokens": 1}, "response_timestamps": [2]}

    def execute(command, url, variables, timeout_s):
        profile = Path(command[command.index("--profile-export-file") + 1])
        assert not profile.exists()  # the program refuses one that is there
        if number := next(runs):
            export(profile, *[noted] * number)

    monkeypatch.setattr(perf_analyzer, "_execute", execute)


def test_one_that_noted_nothing_is_run_again(served, monkeypatch):
    forgetful(monkeypatch, (5, 0, 9))
    assert len(perf_analyzer.run(served[0].grpc_url, REQUESTS).requests) == 9


def test_one_that_never_notes_all_is_one_sentence(served, monkeypatch):
    forgetful(monkeypatch, (5, 0, 8))
    with pytest.raises(CourseError, match="noted 8 of 9 requests, and no more when it tried again: run it again when"):
        perf_analyzer.run(served[0].grpc_url, REQUESTS)


def test_its_usage_is_no_part_of_a_reason(served, tmp_path):
    (tmp_path / "there.json").touch()
    command = [str(perf_analyzer.find()), "-m", "ensemble", "--profile-export-file", str(tmp_path / "there.json")]
    with pytest.raises(CourseError) as caught:
        perf_analyzer._execute(command, served[0].grpc_url, perf_analyzer.environment(tmp_path), timeout_s=60)
    assert "Path must not already exist" in str(caught.value)
    assert len(str(caught.value)) < 300


def test_one_that_takes_too_long_is_ended(served):
    with pytest.raises(CourseError, match="not done after 0 s and was ended"):
        perf_analyzer.run(served[0].grpc_url, REQUESTS, timeout_s=0.01)


def test_a_server_that_is_not_there_is_one_sentence():
    with pytest.raises(CourseError, match="The server at 127.0.0.1:9 does not answer"):
        perf_analyzer.run("127.0.0.1:9", REQUESTS)


@pytest.mark.parametrize(
    ("requests", "concurrency", "url", "message"),
    [
        ([], 1, "127.0.0.1:1", "no request to send"),
        (REQUESTS, 0, "127.0.0.1:1", "concurrency is 0; with 9 requests it must be from 1 to 9"),
        (REQUESTS, 10, "127.0.0.1:1", "concurrency is 10; with 9"),
        (REQUESTS, 1, "http://127.0.0.1:1", "HTTP address: name the server's gRPC port"),
    ],
)
def test_what_it_cannot_do_is_refused(requests, concurrency, url, message):
    with pytest.raises(CourseError, match=message):
        perf_analyzer.run(url, requests, concurrency)


# A sweep --------------------------------------------------------------------------------------------------------------


def test_a_sweep_agrees_with_littles_law(tmp_path):
    """44 ms and more a batch: a throughput that counts time after the last answer would be far too low."""
    with Server(repository.assemble(tmp_path / "repo", models=("batch-cost",), batch_cost_fixed_ms=40)) as server:
        repository.edit(server.repo, "batch-cost", "dynamic_batching { }")
        server.load("batch-cost")
        table = perf_analyzer.sweep(server.grpc_url, "batch-cost", {"data": [{"work": [1]}]}, (1, 4), requests=30)
    under_way = table["throughput"] * table["latency_ms_mean"] / 1000
    assert (under_way / table["concurrency"]).between(0.8, 1.25).all()
    assert table["throughput"][1] > 1.5 * table["throughput"][0]


# Machines where it cannot run -----------------------------------------------------------------------------------------


def test_on_another_processor_it_is_one_sentence(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(CourseError, match="runs on x86-64 Linux only, and this is aarch64 Linux: measure with"):
        perf_analyzer.find()
    result = CliRunner().invoke(app, ["bench", "perf-analyzer"])
    assert isinstance(result.exception, CourseError)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("tritonclient", lambda folder: perf_analyzer.find()),
        ("nvidia-pytriton", perf_analyzer.environment),
    ],
)
def test_a_wheel_without_its_files_is_one_sentence(monkeypatch, tmp_path, name, call):
    monkeypatch.setattr(perf_analyzer, "files", lambda distribution: [] if distribution == name else None)
    with pytest.raises(CourseError, match="install the course's requirements"):
        call(tmp_path)


def test_a_loader_that_fails_is_told_with_its_reason(served, monkeypatch):
    monkeypatch.setattr(perf_analyzer, "environment", lambda folder: {})
    with pytest.raises(CourseError, match="failed: .*error while loading shared libraries"):
        perf_analyzer.run(served[0].grpc_url, REQUESTS)


def test_a_file_that_is_no_program_is_one_sentence(served, monkeypatch, tmp_path):
    program = tmp_path / "perf_analyzer"
    program.write_text("not a program")
    program.chmod(stat.S_IRWXU)
    monkeypatch.setattr(perf_analyzer, "find", lambda: program)
    with pytest.raises(CourseError, match=r"cannot be started \(Exec format error\)"):
        perf_analyzer.run(served[0].grpc_url, REQUESTS)


# Its export -----------------------------------------------------------------------------------------------------------


def export(path, *measured):
    path.write_text(json.dumps({"experiments": [{"requests": list(measured)}]}))
    return path


def test_times_of_an_export_by_hand(tmp_path):
    given = {"text_input": "Hi 2", "max_tokens": 6}
    late = {"timestamp": 5_000_000_000, "request_inputs": given, "response_timestamps": [5_100_000_000, 5_600_000_000]}
    lost = {"timestamp": 4_000_000_000, "request_inputs": given, "response_timestamps": []}
    run = perf_analyzer.read(export(tmp_path / "profile.json", late, lost), REQUESTS, streams=True)
    assert run.requests["error"].tolist() == ["The Performance Analyzer got no response.", ""]
    row = run.answered.iloc[0]
    assert (row.sent_s, row.last_s, row.ttft_ms, row.latency_ms, row.input_len) == (1.0, 1.6, 100.0, 600.0, 5)
    assert row.itl_ms == pytest.approx(100.0)
    assert report.summary(run)["errors"] == 1


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        '{"experiments": []}',
        '{"experiments": [{"requests": []}]}',
        '{"experiments": [{"requests": [{"timestamp": 1}]}]}',
    ],
)
def test_an_export_that_cannot_be_read_is_one_sentence(tmp_path, content):
    (tmp_path / "profile.json").write_text(content)
    with pytest.raises(CourseError, match="left no measurements that can be read"):
        perf_analyzer.read(tmp_path / "profile.json", REQUESTS, streams=False)
