"""Prompts that begin alike: what they share, and when a turn of a conversation is due."""

import pytest

from inflight.bench import prefixes, traffic, workload
from inflight.bench.workload import TimedRequest, input_len
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


def test_a_turn_holds_the_turns_before_it_and_waits_for_their_answer(text, requests):
    turns = prefixes.conversations(requests, 3, 2.5, text)
    assert [turn.after for turn in turns] == [None, 0, 1, None, 3]
    assert [turn.at_s for turn in turns] == [requests[0].at_s, 2.5, 2.5, requests[3].at_s, 2.5]
    for turn in turns:
        assert turn.input_len == input_len(turn.text, text)
        if turn.after is not None:
            before = turns[turn.after]
            assert turn.text.startswith(before.text)
            # What follows the user's text in a prompt, the end of the turn, is not shared.
            assert shared(ids(text, before), ids(text, turn)) > before.input_len - 10
            assert turn.input_len >= before.input_len + before.max_tokens
    assert turns[0] == requests[0] and turns[3] == requests[3]


def test_arrivals_are_those_of_first_turns(text, requests):
    turns = workload.with_times(prefixes.conversations(requests, 3, 2.5, text), [7.0, 9.0])
    assert [turn.at_s for turn in turns] == [7.0, 2.5, 2.5, 9.0, 2.5]


def test_requests_that_are_sent_again_have_another_opening_and_keep_their_turns(text, requests):
    made = traffic.repeated(prefixes.conversations(requests, 3, 1.0, text), 12, text)
    assert len(made) == 12 and len({one.text for one in made}) == 12
    assert [one.after for one in made] == [None, 0, 1, None, 3, None, 5, 6, None, 8, None, 10]
    assert all(one.input_len == input_len(one.text, text) for one in made)
    assert made[6].text.startswith(made[5].text)
    again = traffic.repeated(prefixes.conversations(requests, 3, 1.0, text), 12, text)
    assert not {one.text for one in made} & {one.text for one in again}, "the next round asks nothing twice either"


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
