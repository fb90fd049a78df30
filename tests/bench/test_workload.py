"""Requests with lengths and times: prompts, named sets, arrivals; and what options name."""

import re
import statistics
from itertools import pairwise

import pytest

from inflight.bench import workload
from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.engine.settings import BuildConfig
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


# What the command line names ------------------------------------------------------------------------------------------


def test_without_a_rate_requests_come_as_the_set_says(text):
    assert workload.named("mild", text, BUILD, print, 5) == workload.trace("mild", text)[:5]
    assert {request.at_s for request in workload.named("dataset", text, BUILD, print, 5)} == {0.0}


def test_a_rate_draws_the_times_by_the_seed(text):
    at_s = [request.at_s for request in workload.named("mild", text, BUILD, print, rate=4.0, seed=7)]
    assert at_s == workload.poisson(32, 4.0, 7)


@pytest.mark.parametrize(
    ("dataset", "asked", "complaint"),
    [
        ("nothing.json", {}, "nothing.json"),
        ("dataset", {"number": 101}, "There are 100 requests: ask for 1 to 100 with --requests"),
        ("mild", {"rate": 0.0}, "The rate is 0.0 requests per second; it must be above 0."),
        ("mild", {"number": 0}, "The number of requests is 0"),
    ],
)
def test_requests_that_cannot_be_made_are_one_sentence(text, dataset, asked, complaint):
    with pytest.raises(CourseError, match=re.escape(complaint)):
        workload.named(dataset, text, BUILD, print, **asked)
