"""Requests with lengths and times: prompts, named sets, arrivals, trace files; and what `Traffic` makes of options."""

import re
import statistics
from itertools import pairwise

import pytest

from inflight.bench import workload
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
    assert requests == workload.trace(name, text, num_requests=60)[:number]
    assert {request.max_tokens for request in requests} == lengths
    assert [request.at_s for request in requests] == [index * workload.TRACE_GAP_S for index in range(number)]
    assert len({request.text for request in requests}) == number
    assert all(request.input_len == as_engine_gets_it(text, request.text) for request in requests)
    assert max(r.input_len for r in requests) - min(r.input_len for r in requests) <= 3


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
        ["2023-11-16 18:15:46.6805900", "2023-11-16 18:15:48.6805900", "2023-11-16 18:15:46.9305900"],
        ["2024-05-10 23:59:59+00:00", "2024-05-11 00:00:01+00:00", "2024-05-10 23:59:59.25+00:00"],
    ],
)
def test_a_public_trace_is_read_in_the_order_of_its_moments_without_what_has_no_answer(tmp_path, moments):
    first, last, second = moments
    path = save(tmp_path, "2023-01-01,9,0", f"{first},40,7", f"{last},42,9", f"{second},41,8")
    found = workload.read_trace(path)
    assert found["at_s"].tolist() == pytest.approx([0, 0.25, 2])
    assert (found["input_len"].tolist(), found["output_len"].tolist()) == ([40, 41, 42], [7, 8, 9])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (f"{HEADER}\n2024-05-10,forty,7", "forty"),
        (f"{HEADER}\nsoon,40,7", "soon"),
        (f"{HEADER}\n2024-05-10,40,0", "has no request with an answer"),
        ("a,b\n1,2", "TIMESTAMP"),
        ("", "No columns"),
    ],
)
def test_a_broken_trace_is_one_sentence(tmp_path, text, complaint):
    path = save(tmp_path, header=text)
    with pytest.raises(
        CourseError, match=f"^The trace {path} .*{complaint}.* Give a CSV file with the columns"
    ) as refused:
        workload.read_trace(path)
    assert "\n" not in str(refused.value)


# Traffic --------------------------------------------------------------------------------------------------------------


def test_traffic_without_a_rate_comes_as_the_set_says(text):
    assert Traffic("mild").requests(text, BUILD, 5) == workload.trace("mild", text)[:5]
    assert {request.at_s for request in Traffic("dataset").requests(text, BUILD, 5)} == {0.0}


def test_a_rate_draws_the_times_by_the_seed(text):
    at_s = [request.at_s for request in Traffic("mild", rate=4.0, seed=7).requests(text, BUILD)]
    assert at_s == workload.poisson(32, 4.0, 7)


def test_the_times_of_a_trace_file_are_stretched_to_a_rate(text, tmp_path):
    path = save(tmp_path, *(f"2024-05-10 00:00:0{row}" for row in ("0,60,7", "1,70,8", "4,80,9")))
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
        (Traffic("mild"), 0, "The number of requests is 0"),
    ],
)
def test_traffic_that_cannot_be_made_is_one_sentence(text, traffic, number, complaint):
    with pytest.raises(CourseError, match=re.escape(complaint)):
        traffic.requests(text, BUILD, number)
