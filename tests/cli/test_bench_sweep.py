"""`inflight bench load` and `bench sweep` on another's server, and what they say when something goes wrong."""

import json
import re
import subprocess
import sys
import threading

import pandas as pd
import pytest
from typer.testing import CliRunner

from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.cli.commands import app
from inflight.errors import CourseError
from tests.bench.openai_stand_in import StandIn, send
from tests.engines import wait_until

# Rounds of a moment: the least number of requests, forty, at once or nearly so.
MILD = ["--dataset", "mild", "--output-lengths", "histogram:8=3,4=1"]
QUICK = ["--rates", "200,400", "--seconds", "0.1", "--rounds", "2", *MILD]


@pytest.fixture
def stand_in(small_engine):
    word = " a"
    assert len(load_tokenizer(small_engine).encode(word, add_special_tokens=False)) == 1
    with StandIn(word) as server:
        yield server


def bench(small_engine, *arguments):
    return CliRunner().invoke(app, ["bench", *map(str, arguments), "--engine-dir", str(small_engine)])


def sentence(result) -> str:
    assert isinstance(result.exception, CourseError), result.exception
    return str(result.exception)


# Another's server -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["auto", "openai"])
def test_a_load_goes_to_a_server_with_openais_endpoints(stand_in, small_engine, api):
    arguments = ["--url", stand_in.url, "--api", api, "--stream", *MILD, "--requests", 9, "--warm-up", 2]
    result = bench(small_engine, "load", *arguments, "--objective", "ttft=60000", "--json")
    assert result.exit_code == 0, result.exception
    printed = json.loads(result.stdout)
    [row] = printed["rows"]
    assert row["requests"] == 9 and row["ttft_ms_mean"] > 0 and row["met_share"] == 1.0
    assert row["goodput_per_s"] == pytest.approx(row["requests_per_s"])
    assert printed["settings"]["loop"] == "open" and printed["settings"]["api"] == api
    asked = [body for path, _, body in stand_in.got if path == "/v1/completions"]
    assert all(body["ignore_eos"] and body["cache_prompt"] is False for body in asked)


def test_answers_that_end_by_themselves_are_counted_as_they_came(stand_in, small_engine):
    stand_in.tokens = lambda asked: min(asked, 5)
    arguments = ["--url", stand_in.url, "--dataset", "mild", "--requests", 8, "--warm-up", 0, "--let-end"]
    result = bench(small_engine, "load", *arguments, "--output-lengths", "histogram:9=1", "--json")
    assert result.exit_code == 0, result.exception
    assert json.loads(result.stdout)["rows"][0]["output_len_mean"] == 5
    bodies = [body for path, _, body in stand_in.got if path == "/v1/completions"]
    assert not any({"ignore_eos", "min_tokens"} & set(body) for body in bodies)


def test_a_request_that_is_shed_is_a_row_and_the_load_goes_on(stand_in, small_engine, tmp_path):
    def shed_every_third(handler, body):
        if body["stream"] and len(stand_in.got) % 3 == 0:
            return send(handler, 429, {"error": {"message": "busy"}})
        handler.send_response(200)
        handler.end_headers()
        piece = {"choices": [{"index": 0, "text": " a" * body["max_tokens"], "finish_reason": "length"}]}
        handler.wfile.write(b"data: " + json.dumps(piece).encode() + b"\n\ndata: [DONE]\n\n")

    stand_in.odd = shed_every_third
    path = tmp_path / "run.csv"
    arguments = ["--url", stand_in.url, "--stream", *MILD, "--requests", 12, "--warm-up", 0, "--csv", path]
    result = bench(small_engine, "load", *arguments, "--loop", "closed", "--concurrency", 1)
    assert re.match(r"4 of 12 requests failed, the first with: .*answered with status 429: busy", sentence(result))
    assert pd.read_csv(path)["error"].isna().sum() == 8


def test_a_target_that_dies_in_a_load_is_one_sentence_and_its_answers_are_in_the_files(
    stand_in, small_engine, tmp_path
):
    dying = threading.Thread(target=stand_in.die)

    def die_after_a_while(handler, body):
        if len(stand_in.got) == 30:
            dying.start()
        stand_in.answer(handler, body)

    stand_in.odd = die_after_a_while
    csv, trace, lines = tmp_path / "run.csv", tmp_path / "run.json", tmp_path / "statistics.csv"
    files = ["--csv", csv, "--perfetto", trace, "--op-stats-csv", lines]
    arguments = ["load", "--url", stand_in.url, "--stream", *MILD, "--concurrency", 2, "--warm-up", 0, *files]
    result = bench(small_engine, *arguments)
    dying.join()
    table = pd.read_csv(csv)
    answered = table["error"].isna().sum()
    assert result.exit_code != 0 and 20 <= answered < len(table)
    counted = f"{answered} of {len(table)} answers"
    assert sentence(result) == f"The server at {stand_in.url} went away after {counted}. They are in {csv} and {trace}."
    events = json.loads(trace.read_text())["traceEvents"]
    assert sum(event["name"].startswith("req_") for event in events) == answered and not lines.exists()


@pytest.mark.parametrize("command", ["load", "sweep"])
def test_a_target_that_is_not_there_is_one_sentence(small_engine, command):
    result = bench(small_engine, command, "--url", "http://127.0.0.1:9", *MILD)
    said = sentence(result)
    assert said.startswith("The server at http://127.0.0.1:9 does not answer") and "Start it" in said


# A sweep --------------------------------------------------------------------------------------------------------------


def test_a_sweep_prints_one_object_and_keeps_its_rounds_and_a_picture(stand_in, small_engine, tmp_path):
    files = ["--results", tmp_path / "sweep.json", "--csv", tmp_path / "rows.csv", "--picture", tmp_path / "sweep.html"]
    limits = ["--objective", "ttft=60000,latency=60000"]
    result = bench(small_engine, "sweep", "--url", stand_in.url, *QUICK, *files, *limits, "--json")
    assert result.exit_code == 0, result.exception
    printed = json.loads(result.stdout)
    assert {"machine", "devices", "settings", "rows", "ratios"} <= set(printed)
    assert printed["rows"][0]["rate"] == 200 and printed["rows"][0]["rounds"] == 2
    assert printed["settings"]["warm_up_requests"] >= 32  # two blocks at least were compared
    table = pd.read_csv(tmp_path / "rows.csv")
    assert set(table["round"]) == {1, 2} and len(table) == 80 * len(printed["rows"])
    assert "Plotly" in (tmp_path / "sweep.html").read_text()
    asked = len(stand_in.got)
    again = bench(small_engine, "sweep", "--url", stand_in.url, *QUICK, *files, *limits, "--resume")
    assert again.exit_code == 0, again.exception
    assert "goodput" in again.stdout and "The objective was kept up to" in again.stdout
    assert len(stand_in.got) - asked < 200  # a warm-up, and no round


def test_a_target_that_dies_in_the_middle_is_one_sentence_and_nothing_is_lost(stand_in, small_engine, tmp_path):
    dying = threading.Thread(target=stand_in.die)

    def die_after_a_while(handler, body):
        if len(stand_in.got) == 201:
            dying.start()
        stand_in.answer(handler, body)

    stand_in.odd = die_after_a_while
    path, rows = tmp_path / "sweep.json", tmp_path / "rows.csv"
    rounds = ["--rates", "200", "--seconds", "0.1", "--rounds", "50", *MILD]
    arguments = ["sweep", "--url", stand_in.url, *rounds, "--results", path, "--csv", rows]
    said = sentence(bench(small_engine, *arguments))
    assert said.startswith(f"The server at {stand_in.url} went away after ") and said.endswith("--resume goes on.")
    kept = json.loads(path.read_text())["rounds"]
    dying.join()
    table = pd.read_csv(rows)
    assert kept[-1]["stopped"] and len(table) == 40 * len(kept)
    last = table[table["round"] == kept[-1]["round"]]
    assert len(kept[-1]["answered"]) == last["error"].isna().sum()


def test_a_signal_ends_a_sweep_with_what_it_has(stand_in, small_engine, tmp_path):
    path = tmp_path / "sweep.json"
    rounds = ["--rates", "20", "--seconds", "2", "--rounds", "200", *MILD]
    command = [sys.executable, "-m", "inflight", "bench", "sweep", "--url", stand_in.url, *rounds, "--results", path]
    process = subprocess.Popen(
        [*map(str, command), "--engine-dir", str(small_engine)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: path.exists() and json.loads(path.read_text())["rounds"], "a round is kept")
    process.terminate()
    shown, errors = process.communicate(timeout=300)
    assert process.returncode == 1 and "goodput" in shown
    assert re.search(r"error: The (benchmark|sweep) was interrupted.* --resume goes on\.$", errors.strip()), errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--objective", "p99=3"], r"^The objective 'p99=3' cannot be read"),
        (["--objective", "ttft=3", "--whole"], r"add --stream"),
        (["--rates", "1,x"], r"^--rates 1,x: write requests a second"),
        (["--rates", "3,2"], r"^The rates must be above 0 and rise"),
        (["--share", "2"], r"^--share is 2"),
        (["--arrivals", "recorded"], r"belong together"),
        (["--arrivals", "all-at-once"], r"^A sweep raises the rate of arrivals"),
        (["--resume"], r"^--resume goes on with a results file"),
        (["--csv", "/nowhere/rows.csv"], r"^/nowhere/rows\.csv cannot be written"),
    ],
)
def test_a_wrong_value_is_one_sentence_before_anything_starts(small_engine, arguments, message):
    assert re.search(message, sentence(bench(small_engine, "sweep", *arguments)))
