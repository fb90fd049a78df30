"""`inflight bench`: what it prints and how it ends."""

import json
import signal
import subprocess
import sys

import nbformat
import pandas as pd
import pytest
from typer.testing import CliRunner

from inflight.bench.compare import RATIOS
from inflight.cli.bench import check_writable
from inflight.cli.commands import app
from inflight.errors import CourseError
from inflight.paths import COURSE
from tests.bench.openai_stand_in import StandIn
from tests.engines import wait_until


@pytest.fixture
def stand_in():
    with StandIn(" a") as server:  # one token of the small model
        yield server


def bench(*arguments):
    return CliRunner().invoke(app, ["bench", *map(str, arguments)])


@pytest.mark.parametrize(
    ("lecture", "name"), [("06_batchers", "dynamic_over_none"), ("08_iterative_gpt2", "kv_cache_over_recompute")]
)
def test_what_a_lecture_measures_in_place_of_a_command_is_a_line_of_json(lecture, name):
    cells = nbformat.read(COURSE / "notebooks" / f"{lecture}.ipynb", as_version=4).cells
    lines = "".join(output.get("text", "") for cell in cells for output in cell.get("outputs", [])).splitlines()
    [ratio] = [json.loads(line)[name] for line in lines if line.startswith(f'{{"{name}"')]
    assert list(ratio) == ["median", "min", "max"] and 0 < ratio["min"] <= ratio["median"] <= ratio["max"]


def test_what_cannot_be_written_is_refused_and_nothing_left(tmp_path):
    (tmp_path / "file").write_text("kept")
    for path in (tmp_path / "nowhere" / "run.csv", tmp_path / "file" / "run.csv", tmp_path):
        with pytest.raises(CourseError, match="cannot be written"):
            check_writable(path)
    check_writable(tmp_path / "file")
    check_writable(tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "kept"


# Ended by a signal ----------------------------------------------------------------------------------------------------


@pytest.fixture
def ended_at(tmp_path):
    """Ends a benchmark once it has told of a step, and gives what it printed and what it told."""

    def ended_at(step, number, *arguments):
        told = tmp_path / "told"
        command = [sys.executable, "-m", "inflight", "bench", *map(str, arguments), "--json"]
        with told.open("w") as errors, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as process:
            wait_until(lambda: step in told.read_text() or process.poll() is not None, f"it tells of {step!r}")
            process.send_signal(number)
            printed = process.stdout.read()
        assert process.returncode == 128 + number, told.read_text()
        assert told.read_text().endswith("Ended; nothing that was started is left running.\n")
        assert "Traceback" not in told.read_text()
        return printed, told.read_text()

    return ended_at


SIGNALS = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])


@SIGNALS
def test_a_signal_in_an_import_waits_for_its_end(tmp_path, number):
    (tmp_path / "slow.py").write_text(f"import os\nos.kill(os.getpid(), {number:d})\nprint('imported', flush=True)\n")
    (tmp_path / "command.py").write_text(
        "import time\nfrom inflight import cli\nfrom inflight.cli import commands\n\n\n"
        "def app():\n    import slow\n    time.sleep(60)\n\n\n"
        "commands.app = app\ncli.main()\n"
    )
    done = subprocess.run([sys.executable, tmp_path / "command.py"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (128 + number, "imported\n")
    assert done.stderr == "Ended; nothing that was started is left running.\n"


@pytest.mark.server
@pytest.mark.parametrize(
    ("number", "step", "arguments"),
    [
        (signal.SIGINT, "starting", ["compare", "in-process", "ensemble"]),
        (signal.SIGTERM, "starting", ["compare", "in-process", "ensemble"]),
        (signal.SIGTERM, "warming up", ["load"]),
        pytest.param(signal.SIGTERM, "building ", ["quality"], marks=pytest.mark.slow),
    ],
)
def test_a_signal_before_anything_is_measured_ends_it_in_a_sentence(ended_at, course_engine, number, step, arguments):
    printed, _ = ended_at(step, number, *arguments)
    assert printed == b""


@SIGNALS
def test_a_signal_ends_a_load_with_what_it_has(ended_at, stand_in, roomy_engine, tmp_path, number):
    where = ["--url", f"openai:{stand_in.url}", "--engine-dir", roomy_engine, "--csv", tmp_path / "run.csv"]
    printed, told = ended_at("requests answered (", number, "load", *where, "--dataset", "mild", "--rate", 1)
    answered = json.loads(printed)["rows"][0]["requests"]
    assert 1 <= answered < 32 and f"The benchmark was interrupted after {answered} of 32 answers." in told
    assert (pd.read_csv(tmp_path / "run.csv")["output_len"] > 0).sum() == answered


@SIGNALS
def test_a_signal_ends_a_comparison_with_its_whole_rounds(ended_at, stand_in, course_engine, number):
    with StandIn(" a") as another:
        ways = [f"openai:{server.url}" for server in (stand_in, another)]
        printed, _ = ended_at("round 3 of 20000", number, "compare", *ways, "--requests", 4, "--rounds", 20000)
    result = json.loads(printed)
    assert 2 <= result["settings"]["rounds"] < 20000 and set(result["ratios"]) == set(RATIOS)


# Refused --------------------------------------------------------------------------------------------------------------


def test_a_wrong_way_to_serve_is_one_sentence_before_anything_starts():
    result = bench("compare", "V1", "V2")
    assert isinstance(result.exception, CourseError) and "no way to serve called 'V2'" in str(result.exception)
