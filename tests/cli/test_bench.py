"""`inflight bench`: what it prints, how it ends, and what it says of commands that went."""

import json
import re
import signal
import subprocess
import sys

import pandas as pd
import pytest
from typer.testing import CliRunner

from inflight.cli.bench import GONE
from inflight.cli.commands import app
from inflight.errors import CourseError
from tests.bench.openai_stand_in import StandIn
from tests.engines import wait_until


@pytest.fixture
def stand_in():
    with StandIn(" a") as server:  # one token of the small model
        yield server


def bench(*arguments):
    return CliRunner().invoke(app, ["bench", *map(str, arguments)])


def test_a_sweep_prints_one_object_and_keeps_its_requests(stand_in, roomy_engine, tmp_path):
    where = ["--url", f"openai:{stand_in.url}", "--engine-dir", roomy_engine, "--csv", tmp_path / "rows.csv"]
    what = ["--rates", "200,400", "--requests", 16, "--objective", "ttft=60000,latency=60000"]
    result = bench("sweep", *where, *what, "--json")
    assert result.exit_code == 0, result.exception
    printed = json.loads(result.stdout)
    assert {"machine", "settings", "rows", "ratios"} <= set(printed) and printed["stopped"] == ""
    assert printed["rows"][0]["rate"] == 200 and printed["rows"][0]["rounds"] == 2
    table = pd.read_csv(tmp_path / "rows.csv")
    assert set(table["round"]) == {1, 2} and len(table) == 32 * len(printed["rows"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_sweep_with_what_it_has(stand_in, roomy_engine, tmp_path, number):
    path = tmp_path / "rows.csv"
    command = [sys.executable, "-m", "inflight", "bench", "sweep", "--url", f"openai:{stand_in.url}", "--csv", path]
    what = ["--rates", "50,51", "--requests", "8", "--rounds", "200", "--engine-dir", roomy_engine, "--json"]
    process = subprocess.Popen(
        [*map(str, command), *map(str, what)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    lines = 1 + 2 * 8  # the header, and two rounds of eight requests
    wait_until(lambda: path.exists() and path.read_text().count("\n") >= lines, "two rounds are kept")
    process.send_signal(number)
    shown, errors = process.communicate(timeout=300)
    assert process.returncode == 128 + number, errors
    [row] = json.loads(shown)["rows"]
    assert (
        row["rate"] == 50 and 1 <= row["rounds"] < 200 and json.loads(shown)["stopped"] == "The sweep was interrupted."
    )
    assert "50 requests per second, round 2 of 200" in errors and "Traceback" not in errors
    assert len(pd.read_csv(path)) >= 16


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sweep", "--objective", "p99=3"], r"^The objective 'p99=3' cannot be read"),
        (["sweep", "--objective", "ttft=3", "--whole"], r"add --stream"),
        (["sweep", "--rates", "1,x"], r"^--rates 1,x: write requests per second"),
        (["sweep", "--rates", "3,2"], r"^The rates must be above 0 and rise"),
        (["sweep", "--csv", "/nowhere/rows.csv"], r"^/nowhere/rows\.csv cannot be written"),
        (["sweep", "--url", "openai:http://127.0.0.1:9"], r"^The server at http://127.0.0.1:9 does not answer"),
        (["compare", "V1", "V2"], r"no way to serve called 'V2'"),
    ],
)
def test_a_wrong_value_is_one_sentence_before_anything_starts(roomy_engine, arguments, message):
    where = [] if arguments[0] == "compare" else ["--dataset", "mild", "--engine-dir", roomy_engine]
    result = bench(*arguments, *where)
    assert isinstance(result.exception, CourseError) and re.search(message, str(result.exception))


@pytest.mark.parametrize("name", GONE)
def test_a_command_that_went_says_what_does_it_now(name):
    result = bench(name, "--url", "http://127.0.0.1:8080", "--rounds", 3)
    assert isinstance(result.exception, CourseError)
    assert str(result.exception).startswith(f"inflight bench {name} is no longer a command. Use this: ")
    assert f" {name} " not in bench("--help").stdout
