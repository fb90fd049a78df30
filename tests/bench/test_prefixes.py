"""Prompts that begin alike: what they share, and when a turn of a conversation is due."""

import pytest

from inflight.bench import prefixes, traffic, workload
from inflight.bench.workload import TimedRequest
from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.errors import CourseError


@pytest.fixture(scope="module")
def text(course_engine):
    return load_tokenizer(course_engine)


def ids(text, request):
    return text.encode(text.chat(request.text))


def shared(first, second):
    """How many ids two prompts begin with alike."""
    return next((n for n, (one, other) in enumerate(zip(first, second)) if one != other), min(len(first), len(second)))


@pytest.fixture
def requests(text):
    return workload.trace("mild", text, num_requests=5)


def test_a_system_prompt_is_what_all_prompts_begin_with(text, requests):
    shaped = prefixes.with_system_prompt(requests, 120, text)
    assert shared(ids(text, shaped[0]), ids(text, shaped[1])) >= 119
    for before, after in zip(requests, shaped):
        assert after.text.endswith(before.text) and after.input_len == len(ids(text, after))
        assert 118 <= after.input_len - before.input_len <= 124
        assert (after.max_tokens, after.at_s, after.after) == (before.max_tokens, before.at_s, None)


def test_requests_that_are_sent_again_keep_what_they_share(text, requests):
    shaped = prefixes.with_system_prompt(requests, 20, text)
    made = traffic.repeated(shaped, 2 * len(shaped), text)
    kept = workload.alike_until(one.text for one in shaped)
    assert kept > 20 and {one.text[:kept] for one in made} == {shaped[0].text[:kept]}
    assert len({one.text[kept:].partition(" ")[0] for one in made}) == 2, "a number for each time"


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda one, text: prefixes.with_system_prompt(one, 0, text), "The system prompt has 0 tokens"),
        (lambda one, text: prefixes.conversations(one, 0, 0, text), "A conversation of 0 turns is none"),
        (lambda one, text: prefixes.conversations(one, 2, float("nan"), text), "A user thinks for nan s"),
    ],
)
def test_what_is_none_is_one_sentence(text, make, complaint):
    with pytest.raises(CourseError, match=complaint):
        make([TimedRequest("Hi", 4, 0.0, 3)], text)
