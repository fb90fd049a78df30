"""Requests with lengths and times: prompts, named sets, arrivals, trace files; and what `Traffic` makes of options."""

import math
import re
import statistics
from itertools import pairwise

import pandas as pd
import pytest

from inflight.bench import load, report, workload
from inflight.bench.workload import Traffic
from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.engine.config import BuildConfig
from inflight.errors import CourseError

BUILD = BuildConfig()


@pytest.fixture(scope="module")
def text(course_engine):
    return load_tokenizer(course_engine)


@pytest.fixture(scope="module")
def small_text(small_engine):
    """A vocabulary of a thousand: most words are several tokens."""
    return load_tokenizer(small_engine)


def as_engine_gets_it(text, prompt: str) -> int:
    return len(text.encode(text.chat(prompt)))


# Prompts -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vocabulary", ["text", "small_text"])
def test_prompts_have_exactly_the_tokens_asked_for(vocabulary, request):
    text = request.getfixturevalue(vocabulary)
    shortest = as_engine_gets_it(text, "a")
    lengths = [*(shortest + more for more in (0, 1, 2, *range(3, 60, 7), *[40] * 40)), 300, 1024]
    prompts = workload.prompts_of(lengths, text)
    assert [as_engine_gets_it(text, prompt) for prompt in prompts] == lengths
    assert len(set(prompts)) == len(prompts) and prompts == workload.prompts_of(lengths, text)
    assert all(re.fullmatch(r"[\w :.,]+", prompt) for prompt in prompts)


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


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_arrivals_have_the_rate_and_the_variation_asked_for(cv):
    times = workload.gamma(60_001, rate=5.0, cv=cv, seed=11)
    gaps = [after - before for before, after in pairwise(times)]
    assert times[0] == 0 and times == workload.gamma(60_001, 5.0, cv, 11) == sorted(times)
    assert (times == workload.poisson(60_001, 5.0, 11)) == (cv == 1)
    # The mean's standard error is cv / sqrt(60,000) of it, 1.2 % at a cv of 3: four of them to each side.
    assert statistics.mean(gaps) == pytest.approx(0.2, rel=0.05)
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(cv, rel=0.1)


# Trace files ----------------------------------------------------------------------------------------------------------

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"


def save(folder, *lines, header=HEADER):
    path = folder / "trace.csv"
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


@pytest.mark.parametrize(
    "moments",
    [
        ["2023-11-16 18:15:46.6805900", "2023-11-16 18:15:46.9305900", "2023-11-16 18:15:48.6805900"],
        ["2024-05-10 23:59:59+00:00", "2024-05-10 23:59:59.25+00:00", "2024-05-11 00:00:01+00:00"],
        ["0.5", "0.75", "2.5"],
    ],
)
def test_times_are_dates_in_the_forms_of_the_public_traces_or_seconds(tmp_path, moments):
    found = workload.read_trace(save(tmp_path, *(f"{at},{40 + n},{7 + n}" for n, at in enumerate(moments))))
    assert found["at_s"].tolist() == pytest.approx([0, 0.25, 2])
    assert (found["input_len"].tolist(), found["output_len"].tolist()) == ([40, 41, 42], [7, 8, 9])


def test_requests_without_an_answer_are_left_out_and_the_others_come_in_their_order(tmp_path):
    found = workload.read_trace(save(tmp_path, "1,40,0", "5,41,7", "4,42,0", "3,43,8"))
    assert found.values.tolist() == [[0, 43, 8], [2, 41, 7]]


def test_a_run_comes_back_from_its_own_csv(tmp_path, text):
    rows = [
        {"request": 0, "sent_s": 0.25, "input_len": 40, "output_len": 20, "error": ""},
        {"request": 1, "sent_s": 0.0, "input_len": 64, "output_len": 8, "error": ""},
        {"request": 2, "sent_s": None, "input_len": 50, "output_len": 0, "error": "not sent"},
    ]
    report.write(tmp_path / "run.csv", pd.DataFrame(rows, columns=load.COLUMNS))
    replayed = workload.from_trace(tmp_path / "run.csv", text, BUILD)
    assert [(r.at_s, r.input_len, r.max_tokens) for r in replayed] == [(0.0, 64, 8), (0.25, 40, 20)]
    assert [as_engine_gets_it(text, r.text) for r in replayed] == [64, 40]


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        (["1,-40,7"], "Line 2 of the trace {} is [1, -40, 7], and should be"),
        (["1,forty,7"], "is [1, 'forty', 7]"),
        (["soon,40,7"], "is ['soon', 40, 7], and should be a date with its time or a number of seconds"),
        (["inf,40,7"], "Line 2 of the trace {} is [inf, 40.0, 7.0]"),
        (["1,40,0"], "The trace {} has no request with an answer"),
    ],
)
def test_a_broken_trace_is_one_sentence(tmp_path, lines, complaint):
    path = save(tmp_path, *lines)
    with pytest.raises(CourseError) as refused:
        workload.read_trace(path)
    assert complaint.format(path) in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(("header", "complaint"), [("a,b", "has no column TIMESTAMP"), ("", "is not a CSV file")])
def test_a_file_that_is_no_trace_is_one_sentence(tmp_path, header, complaint):
    with pytest.raises(CourseError, match=complaint):
        workload.read_trace(save(tmp_path, header=header))


# Traffic --------------------------------------------------------------------------------------------------------------


def test_traffic_without_a_rate_comes_as_the_set_says(text):
    assert Traffic("mild").requests(text, BUILD, 5) == workload.trace("mild", text)[:5]
    assert {request.at_s for request in Traffic("dataset").requests(text, BUILD, 5)} == {0.0}


def test_a_rate_draws_the_times_by_the_seed(text):
    at_s = [request.at_s for request in Traffic("mild", rate=4.0, seed=7).requests(text, BUILD)]
    assert at_s == workload.poisson(32, 4.0, 7)


def test_the_times_of_a_trace_file_are_stretched_to_a_rate(text, tmp_path):
    path = save(tmp_path, "0,60,7", "1,70,8", "4,80,9")
    told = []
    asked = Traffic(trace=str(path), rate=1.0).requests(text, BUILD, tell=told.append)
    assert [(request.at_s, request.input_len, request.max_tokens) for request in asked] == [
        (0.0, 60, 7),
        (0.5, 70, 8),
        (2.0, 80, 9),
    ]
    assert told == []
    small = BuildConfig(max_input_len=64)
    [one] = Traffic(trace=str(path)).requests(text, small, tell=told.append)
    assert one.input_len == 60 and "2 of 3 requests" in told[0]


def test_the_courses_own_trace_has_a_name(text):
    assert len(Traffic(trace="small").requests(text, BUILD, 5)) == 5


def test_endless_traffic_never_sends_a_prompt_twice(text):
    make = Traffic("mild").endless(text, BUILD)
    rounds = [make(4.0, 40, seed) for seed in (1, 2)]
    assert [request.at_s for request in rounds[1]] == workload.poisson(40, 4.0, 2)
    beginnings = [one.text.partition(":")[0] for asked in rounds for one in asked]
    assert len(set(beginnings)) == 80 and all(one.isdecimal() for one in beginnings)


@pytest.mark.parametrize(
    ("traffic", "number", "complaint"),
    [
        (Traffic("nothing.json"), None, "nothing.json"),
        (Traffic("dataset"), 101, "There are 100 requests: ask for 1 to 100 with --requests"),
        (Traffic("mild", rate=0.0), None, "The rate is 0.0 requests per second; it must be above 0."),
        (Traffic("mild", rate=math.inf), None, "The rate is inf"),
        (Traffic("mild"), 0, "The number of requests is 0"),
    ],
)
def test_traffic_that_cannot_be_made_is_one_sentence(text, traffic, number, complaint):
    with pytest.raises(CourseError, match=re.escape(complaint)):
        traffic.requests(text, BUILD, number)
