"""Requests with lengths and times: datasets, traces, arrivals, replay; and the dataset that ships with the course."""

import json
import re
import statistics
from itertools import pairwise

import pandas as pd
import pytest
from huggingface_hub import constants
from typer.testing import CliRunner

from inflight.bench import workload
from inflight.bench.workload import Record, TimedRequest
from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.cli import commands
from inflight.errors import CourseError
from tests.engines import start_python

README = workload.MINI_CNN_EVAL.with_name("README.md")
RECORD = {"input": "The bridge is open.", "instruction": "Summarize:", "output": "A bridge opened today."}


@pytest.fixture(scope="module")
def text(course_engine):
    return load_tokenizer(course_engine)


@pytest.fixture(scope="module")
def small_text(small_engine):
    """A vocabulary of a thousand: most words are several tokens."""
    return load_tokenizer(small_engine)


def as_engine_gets_it(text, prompt: str) -> int:
    return len(text.encode(text.chat(prompt)))


def save(path, content) -> str:
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return str(path)


# Datasets -------------------------------------------------------------------------------------------------------------


def test_prompt_and_answer_length_are_those_of_the_classic_client():
    record = Record(**RECORD)
    assert record.prompt == "The bridge is open. Summarize:"
    assert record.output_len == 5  # int(4 words × 1.3)
    assert Record("a", "b", "c").output_len == 1


def test_a_dataset_comes_back_as_it_was_written(tmp_path):
    records = [Record("Ein Café.", "Fass zusammen:", "Café"), Record(**RECORD)]
    path = workload.write_dataset(records, tmp_path / "mini.json")
    assert workload.read_dataset(path) == records
    assert json.loads(path.read_text(encoding="utf-8"))[1] == RECORD
    assert [file.name for file in tmp_path.iterdir()] == ["mini.json"]


@pytest.mark.parametrize(
    "content, complaint",
    [
        ("not JSON at all", "is not JSON (Expecting value in line 1)"),
        ("[" * 100_000, "is not JSON that can be read"),
        ("9" * 10_000, "is not JSON that can be read"),
        ('[{"input": "cut of', "is not JSON"),
        ({"input": "a"}, "is not a JSON list of records"),
        ([], "has no records"),
        ([RECORD, "text"], "Record 2 of the dataset"),
        ([RECORD, "text"], "is not an object with input, instruction and output"),
        ([RECORD, RECORD, {"input": "a", "instruction": "b"}], "Record 3 of the dataset"),
        ([{"input": "a", "instruction": "b"}], "has no output: correct or remove it."),
        ([{**RECORD, "output": 7}], "has an output that is not text (int)"),
        ([{**RECORD, "input": None}], "has an input that is not text (NoneType)"),
        ([{**RECORD, "output": " \n"}], "has an empty output"),
    ],
)
def test_a_broken_dataset_is_one_sentence(tmp_path, content, complaint):
    path = save(tmp_path / "broken.json", content)
    with pytest.raises(CourseError) as error:
        workload.read_dataset(path)
    assert complaint in str(error.value) and path in str(error.value) and "\n" not in str(error.value)


def test_requests_of_a_dataset(text):
    records = workload.read_dataset()[:20]
    requests = workload.from_dataset(records, text)
    assert [request.text for request in requests] == [record.prompt for record in records]
    assert [request.max_tokens for request in requests] == [record.output_len for record in records]
    assert all(request.input_len == as_engine_gets_it(text, request.text) for request in requests)
    assert {request.at_s for request in requests} == {0.0} and requests.num_dropped == 0


def test_prompts_that_are_too_long_are_dropped_and_counted(text):
    records = workload.read_dataset()[:20]
    lengths = [as_engine_gets_it(text, record.prompt) for record in records]
    limit = sorted(lengths)[11]
    requests = workload.from_dataset(records, text, max_input_len=limit)
    assert [request.input_len for request in requests] == [length for length in lengths if length <= limit]
    assert requests.num_dropped == 20 - len(requests) > 0


def test_the_limit_is_taken_before_the_filter(text):
    records = [Record("word " * 500, "Summarize:", "a"), *workload.read_dataset()[:3]]
    requests = workload.from_dataset(records, text, max_input_len=510, limit=3)
    assert len(requests) == 2 and requests.num_dropped == 1


def test_a_selection_that_leaves_nothing_is_one_sentence(text):
    records = workload.read_dataset()[:5]
    shortest = min(as_engine_gets_it(text, record.prompt) for record in records)
    with pytest.raises(CourseError, match=rf"longer than max_input_len \(40 tokens\); the shortest has {shortest}"):
        workload.from_dataset(records, text, max_input_len=40)
    with pytest.raises(CourseError, match="The limit is 0 records"):
        workload.from_dataset(records, text, limit=0)


FULL_DISK = """
import resource, signal, sys
from inflight.bench import workload
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    workload.write_dataset(workload.read_dataset(), sys.argv[1])
except workload.CourseError as error:
    sys.exit(f"CourseError: {error}")
"""


def test_a_write_that_fails_leaves_the_file_that_was_there(tmp_path):
    target = tmp_path / "mini.json"
    save(target, [RECORD])
    process = start_python(FULL_DISK, target)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 1 and "CourseError: The dataset cannot be written" in output
    assert workload.read_dataset(target) == [Record(**RECORD)]
    assert [file.name for file in tmp_path.iterdir()] == ["mini.json"]


# The hub --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def hub_cache(tmp_path, monkeypatch):
    """What the hub's client has in its cache when a dataset was fetched before; it is offline now."""
    monkeypatch.setenv("INFLIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    repo = tmp_path / "home" / "huggingface" / "datasets--someone--news"
    snapshot = repo / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("0123abcd")
    return snapshot


def test_a_dataset_of_the_hub_is_its_json_file(hub_cache):
    save(hub_cache / "news.json", [RECORD])
    assert workload.read_dataset(workload.find_dataset("someone/news")) == [Record(**RECORD)]
    save(hub_cache / "cnn_eval.json", [RECORD, RECORD])
    assert workload.find_dataset("someone/news").name == "cnn_eval.json"


def test_without_network_the_manual_way_is_told(hub_cache):
    with pytest.raises(
        CourseError, match="someone/else cannot be fetched .* or download its JSON file elsewhere and give its path"
    ):
        workload.find_dataset("someone/else")


# Lengths and prompts --------------------------------------------------------------------------------------------------


def test_normal_lengths():
    lengths = workload.normal_lengths(2000, mean=64, stdev=16, seed=1)
    assert lengths == workload.normal_lengths(2000, 64, 16, seed=1) != workload.normal_lengths(2000, 64, 16, seed=2)
    # The mean of 2000 draws has a standard error of 16 / sqrt(2000) = 0.36: four of them to each side.
    assert abs(statistics.mean(lengths) - 64) < 1.5 and abs(statistics.stdev(lengths) - 16) < 1.5
    assert min(workload.normal_lengths(500, mean=2, stdev=5, seed=0)) == 1
    assert workload.normal_lengths(3, mean=10, stdev=0, seed=0) == [10, 10, 10]


def test_histogram_lengths():
    lengths = workload.histogram_lengths({8: 6, 16: 2, 256: 1}, 1800, seed=3)
    assert lengths == workload.histogram_lengths({8: 6, 16: 2, 256: 1}, 1800, seed=3)
    # Binomial with p = 2/3, 2/9, 1/9: standard deviations 20, 18, 13; four of them to each side.
    for length, expected, margin in ((8, 1200, 80), (16, 400, 71), (256, 200, 53)):
        assert abs(lengths.count(length) - expected) < margin
    assert set(lengths) == {8, 16, 256}


@pytest.mark.parametrize(
    "draw, complaint",
    [
        (lambda: workload.normal_lengths(0, 10, 1, 0), "The number of requests is 0; it must be at least 1."),
        (lambda: workload.normal_lengths(5, 0, 1, 0), "mean 0 and standard deviation 1 cannot be drawn"),
        (lambda: workload.normal_lengths(5, float("nan"), 1, 0), "mean nan"),
        (lambda: workload.normal_lengths(5, 10, -1, 0), "standard deviation -1"),
        (lambda: workload.histogram_lengths({8: 1}, -1, 0), "The number of requests is -1"),
        (lambda: workload.histogram_lengths({0: 1}, 5, 0), "has 0: 1; a length must be at least 1"),
        (lambda: workload.histogram_lengths({8: -2}, 5, 0), "has 8: -2"),
        (lambda: workload.histogram_lengths({8: 0}, 5, 0), "no weight above 0"),
        (lambda: workload.histogram_lengths({}, 5, 0), "no weight above 0"),
        (lambda: workload.all_at_once(0), "The number of requests is 0"),
        (lambda: workload.constant(5, 0), "The rate is 0 requests a second; it must be above 0."),
        (lambda: workload.poisson(5, float("inf"), 0), "The rate is inf"),
        (lambda: workload.poisson(0, 1, 0), "The number of requests is 0"),
    ],
)
def test_what_cannot_be_drawn_is_one_sentence(draw, complaint):
    with pytest.raises(CourseError, match=re.escape(complaint)):
        draw()


@pytest.mark.parametrize("vocabulary", ["text", "small_text"])
def test_prompts_have_exactly_the_tokens_asked_for(vocabulary, request):
    text = request.getfixturevalue(vocabulary)
    shortest = as_engine_gets_it(text, "a")
    lengths = [shortest, shortest + 1, shortest + 2, *range(shortest + 3, shortest + 60, 7), 300, 1024]
    prompts = workload.prompts_of(lengths, text)
    assert [as_engine_gets_it(text, prompt) for prompt in prompts] == lengths
    assert len(set(prompts)) == len(prompts)
    assert all(re.fullmatch(r"[\w :.,]+", prompt) for prompt in prompts)


def test_prompts_of_one_length_differ(text):
    prompts = workload.prompts_of([64] * 120, text)
    assert len(set(prompts)) == 120 and prompts == workload.prompts_of([64] * 120, text)


# Traces and arrivals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, number, lengths", [("mild", 32, {8, 16, 24, 32, 64, 128}), ("skewed", 48, {8, 16, 256})]
)
def test_named_traces(text, name, number, lengths):
    requests = workload.trace(name, text)
    assert requests == workload.trace(name, text, seed=0) != workload.trace(name, text, seed=1)
    assert len(requests) == number and {request.max_tokens for request in requests} == lengths
    assert [request.at_s for request in requests] == [index * workload.TRACE_GAP_S for index in range(number)]
    assert len({request.text for request in requests}) == number
    assert all(request.input_len == as_engine_gets_it(text, request.text) for request in requests)
    assert max(r.input_len for r in requests) - min(r.input_len for r in requests) <= 3


def test_a_trace_of_another_size_begins_the_same(text):
    assert workload.trace("mild", text, num_requests=8) == workload.trace("mild", text)[:8]
    assert workload.trace("mild", text, num_requests=40)[:32] == workload.trace("mild", text)


def test_constant_arrivals():
    assert workload.all_at_once(3) == [0, 0, 0]
    assert workload.constant(4, rate=2.0) == [0, 0.5, 1.0, 1.5]


def test_poisson_arrivals():
    times = workload.poisson(4001, rate=5.0, seed=7)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert times == workload.poisson(4001, 5.0, seed=7) != workload.poisson(4001, 5.0, seed=8)
    assert times[0] == 0 and times == sorted(times)
    # Exponential gaps: mean and standard deviation are both 1 / rate = 0.2 s; the mean's standard error is 1.6 % of it.
    assert statistics.mean(gaps) == pytest.approx(0.2, rel=0.06)
    assert statistics.stdev(gaps) == pytest.approx(0.2, rel=0.1)


def test_times_and_lengths_are_put_on_requests(text):
    requests = workload.trace("mild", text)[:3]
    timed = workload.with_times(workload.with_lengths(requests, [5, 6, 7]), workload.constant(3, 1.0))
    assert [(r.text, r.max_tokens, r.at_s) for r in timed] == [
        (requests[0].text, 5, 0),
        (requests[1].text, 6, 1),
        (requests[2].text, 7, 2),
    ]
    with pytest.raises(ValueError):
        workload.with_times(requests, [0.0])


# Replay ---------------------------------------------------------------------------------------------------------------


def test_a_recorded_run_comes_back(tmp_path, text):
    run = [TimedRequest("one", 20, 0.25, 40), TimedRequest("two", 8, 0.0, 64), TimedRequest("three", 300, 1.5, 33)]
    rows = [
        {"request": i, "sent_s": r.at_s, "input_len": r.input_len, "output_len": r.max_tokens, "error": ""}
        for i, r in enumerate(run)
    ]
    rows.append({"request": 3, "sent_s": 1.0, "input_len": 50, "output_len": 0, "error": "the server went away"})
    rows.append({"request": 4, "sent_s": None, "input_len": 50, "output_len": 0, "error": "not sent"})
    pd.DataFrame(rows).to_csv(tmp_path / "run.csv", index=False)
    replayed = workload.recorded(tmp_path / "run.csv").requests(text)
    assert [(r.at_s, r.input_len, r.max_tokens) for r in replayed] == [(0.0, 64, 8), (0.25, 40, 20), (1.5, 33, 300)]
    assert [as_engine_gets_it(text, r.text) for r in replayed] == [64, 40, 33]
    assert all(type(r.max_tokens) is int and type(r.at_s) is float for r in replayed)


@pytest.mark.parametrize(
    "content, complaint",
    [
        ("sent_s,input_len\n0,5\n", "has no column output_len"),
        ("input_len,output_len\n5,5\n", "has no column sent_s"),
        ("sent_s,input_len,output_len\n0,5,5\n1,many,5\n", "In line 3 of the recorded run"),
        ("sent_s,input_len,output_len\n0,0,5\n", "input_len is not a number of at least 1"),
        ("sent_s,input_len,output_len\n-1,5,5\n", "sent_s is not a number of at least 0"),
        ("sent_s,input_len,output_len\n0,5,\n", "output_len is not a number"),
        ("sent_s,input_len,output_len\n0,5,0\n", "has no request that was answered"),
        ("sent_s,input_len,output_len\n", "has no request that was answered"),
        ("", "is not a CSV file"),
        ("sent_s,input_len,output_len\n0,5,5,7\n", "is not a CSV file"),
        ("sent_s,input_len,output_len\n0,1e12,5\n", "input_len is not a number of at least 1 and at most"),
        ("sent_s,input_len,output_len\n1e300,5,5\n", "sent_s is not a number of at least 0 and at most"),
        ("a,b\n1,2,3\n1,2,3,4,5\n", "is not a CSV file"),
        ("\0\0\0", "recorded run"),
    ],
)
def test_a_broken_recording_is_one_sentence(tmp_path, content, complaint):
    path = save(tmp_path / "run.csv", content)
    with pytest.raises(CourseError) as error:
        workload.recorded(path)
    assert complaint in str(error.value) and path in str(error.value) and "\n" not in str(error.value)


# The shipped dataset --------------------------------------------------------------------------------------------------


def test_the_shipped_dataset_has_mlperfs_layout_and_varied_lengths():
    records = workload.read_dataset()
    assert len(records) == 100 and len({record.input for record in records}) == 100
    assert {record.instruction for record in records} == {"Summarize the following news article:"}
    words = [len(record.output.split()) for record in records]
    assert min(words) >= 15 and max(words) <= 170 and statistics.stdev(words) > 15
    assert all(record.input.isascii() and record.input.endswith(".") for record in records)


def test_the_readme_states_the_lengths_of_the_shipped_dataset(text):
    readme = README.read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|", readme, re.MULTILINE)
    stated = {measure: [int(number) for number in numbers] for measure, *numbers in rows}
    table = workload.length_table(workload.read_dataset(), text)
    assert stated == {measure: row.tolist() for measure, row in table.iterrows()}


# Commands -------------------------------------------------------------------------------------------------------------


def test_show_prints_the_shipped_dataset(text):
    result = CliRunner().invoke(commands.app, ["dataset", "show"], catch_exceptions=False)
    assert "100 records" in result.output
    for number in workload.length_table(workload.read_dataset(), text).loc["prompt, tokens"]:
        assert str(number) in result.output


# Prompts unlike each other --------------------------------------------------------------------------------------------


def test_an_opening_makes_a_prompt_unlike_all_others_and_no_longer():
    text = "The train to the coast left the station at nine."
    assert workload.opening(text, 7) == "7: left the station at nine."
    assert workload.opening("Hello there", 7) == "7: Hello there", "of a few words none can be spared"
    assert workload.opening(text, 12, shared=len("The train ")) == "The train 12: station at nine."


@pytest.mark.parametrize(
    ("texts", "shared"),
    [
        (["rules a", "rules b", "rules c"], 6),
        (["a", "b"], 0),
        (["one", "one"], 0),
        (["one"], 0),
        (["one", "one two"], 3),
    ],
)
def test_what_texts_share_is_what_they_begin_with(texts, shared):
    assert workload.alike_until(texts) == shared
