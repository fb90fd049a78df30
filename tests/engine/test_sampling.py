"""One row of logits to a token, by numbers that can be checked by hand."""

import math

import numpy as np
import pytest

from inflight.engine.sampling import Sampler, log_probability
from inflight.engine.settings import SamplingConfig
from inflight.errors import CourseError

LOGITS = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))  # so that probabilities are these, in this order


def shares(config: SamplingConfig, count: int = 4000) -> np.ndarray:
    """How often each of the four tokens is chosen."""
    sampler = Sampler(config)
    tokens = [sampler.choose(LOGITS, [0], []) for _ in range(count)]
    return np.bincount(tokens, minlength=4) / count


@pytest.mark.parametrize(
    "config",
    [
        SamplingConfig(),
        SamplingConfig(top_k=1, temperature=5.0),
        SamplingConfig(temperature=0, top_p=0.9),
    ],
    ids=["default", "top_k 1", "temperature 0"],
)
def test_greedy(config):
    assert config.is_greedy
    assert Sampler(config).choose(LOGITS, [0], []) == 0


@pytest.mark.parametrize(
    "config, expected",
    [
        (SamplingConfig(top_p=1.0), [0.5, 0.3, 0.15, 0.05]),
        (SamplingConfig(top_k=4), [0.5, 0.3, 0.15, 0.05]),
        (SamplingConfig(top_k=100), [0.5, 0.3, 0.15, 0.05]),
        (SamplingConfig(top_k=2), [0.5 / 0.8, 0.3 / 0.8, 0, 0]),
        (SamplingConfig(top_p=0.7), [0.5 / 0.8, 0.3 / 0.8, 0, 0]),
        (SamplingConfig(top_p=0.3), [1, 0, 0, 0]),
        (SamplingConfig(top_k=3, top_p=0.6), [0.5 / 0.8, 0.3 / 0.8, 0, 0]),
        # temperature 0.5 squares the probabilities: 0.25, 0.09, 0.0225, 0.0025 of 0.365
        (SamplingConfig(top_p=1.0, temperature=0.5), np.array([0.25, 0.09, 0.0225, 0.0025]) / 0.365),
    ],
    ids=["all", "top_k 4", "top_k beyond", "top_k 2", "top_p 0.7", "top_p 0.3", "both", "temperature 0.5"],
)
def test_shares_are_the_probabilities(config, expected):
    assert shares(config) == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize("temperature", [1e-320, 1e-45, 1e38])
def test_any_temperature_gives_a_token(temperature):
    assert Sampler(SamplingConfig(temperature=temperature, top_k=4)).choose(LOGITS * 100, [0], []) in range(4)


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize(
    "logits, message",
    [
        ([1, math.nan, 2], "The logits contain nan, so no token can be chosen."),
        ([1, math.inf, 2], "The logits contain inf, so no token can be chosen."),
        ([-math.inf] * 3, "Every token is forbidden by bad_words_list and min_length: allow some."),
    ],
)
def test_logits_without_a_choice_are_said(logits, message, greedy):
    sampler = Sampler(SamplingConfig() if greedy else SamplingConfig(top_k=2))
    with pytest.raises(CourseError) as caught:
        sampler.choose(np.array(logits, np.float32), [0], [])
    assert str(caught.value) == message


def test_order_of_the_vocabulary_does_not_matter():
    sampler = Sampler(SamplingConfig(top_k=2))
    assert {sampler.choose(LOGITS[::-1].copy(), [0], []) for _ in range(100)} == {2, 3}


def test_same_seed_same_tokens():
    logits = np.zeros(1000, np.float32)
    runs = [[Sampler(SamplingConfig(top_p=1.0, random_seed=seed)).choose(logits, [0], [])] for seed in (7, 7, 8)]
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize(
    ("config", "logits", "prompt", "answer"),
    [
        # The first token, which is the likeliest, is brought down to just what the second has.
        (SamplingConfig(repetition_penalty=2.0), [4, 2], [0], []),
        (SamplingConfig(repetition_penalty=2.0), [4, 2], [0, 0], [0]),  # once
        (SamplingConfig(repetition_penalty=2.0), [-2, -4], [0], []),  # what is negative is multiplied
        (SamplingConfig(presence_penalty=1.5), [4, 2.5], [1], [0, 0]),  # once, and not for the prompt
        (SamplingConfig(frequency_penalty=1.5), [4, 1], [1], [0, 0]),  # for each occurrence
        (SamplingConfig(repetition_penalty=2.0, presence_penalty=1.0, frequency_penalty=0.5), [8, 2], [2], [0, 0]),
    ],
)
def test_penalties_by_hand(config, logits, prompt, answer):
    sampler = Sampler(config)
    for more, chosen in ((0.01, 0), (-0.01, 1)):
        assert sampler.choose(np.array([logits[0] + more, logits[1], -9], np.float32), prompt, answer) == chosen


def test_a_penalty_changes_the_choice_and_leaves_the_logits_as_they_were():
    logits = LOGITS.copy()
    assert Sampler(SamplingConfig(frequency_penalty=1.0)).choose(logits, [3], [0]) == 1
    assert np.array_equal(logits, LOGITS)


def test_min_length_keeps_the_end_away_until_the_answer_is_long_enough():
    sampler = Sampler(SamplingConfig(min_length=2), end_id=0)
    assert [sampler.choose(LOGITS, [3], answer) for answer in ([], [1], [1, 1])] == [1, 1, 0]


@pytest.mark.parametrize("answer, expected", [([], 0), ([1], 0), ([2], 0), ([1, 2], 1), ([0, 1, 2], 1), ([2, 1], 0)])
def test_a_bad_word_of_several_tokens_is_kept_out_at_its_last(answer, expected):
    assert Sampler(SamplingConfig(), bad_words=[[1, 2, 0]]).choose(LOGITS, [3], answer) == expected


def test_bad_words_of_one_token():
    assert Sampler(SamplingConfig(), bad_words=[[0], [1]]).choose(LOGITS, [3], []) == 2


def test_a_bad_word_is_never_drawn():
    sampler = Sampler(SamplingConfig(top_p=1.0), bad_words=[[0], [2]])
    assert {sampler.choose(LOGITS, [3], []) for _ in range(300)} == {1, 3}


class Only:
    """A guide that allows some tokens."""

    end_id = 0

    def __init__(self, *allowed):
        self.forbidden = [token for token in range(4) if token not in allowed]

    def mask(self, answer, logits):
        logits[self.forbidden] = -np.inf


@pytest.mark.parametrize(("allowed", "chosen"), [((2, 3), 2), ((0, 3), 3), ((0,), 0)])  # a complete answer may be short
def test_a_guide_goes_before_what_is_likely_and_before_min_length(allowed, chosen):
    sampler = Sampler(SamplingConfig(min_length=2), end_id=0, guide=Only(*allowed))
    assert sampler.choose(LOGITS, [3], [1]) == chosen


def test_log_probability():
    assert log_probability(LOGITS + 7, 1) == pytest.approx(math.log(0.3), abs=1e-6)
    assert log_probability(LOGITS + 800, 1) == pytest.approx(math.log(0.3), abs=1e-3)  # e to that is no number


@pytest.mark.parametrize(
    "option, message",
    [
        ({"temperature": math.nan}, "temperature is nan; give a finite number"),
        ({"presence_penalty": -math.inf}, "presence_penalty is -inf; give a finite number"),
        ({"temperature": -1.0}, "temperature is -1.0; give a finite number of at least 0"),
        ({"top_k": -1}, "top_k is -1; give a whole number of at least 0"),
        ({"top_p": 1.5}, "top_p is 1.5; give a finite number of at least 0 and at most 1"),
        ({"random_seed": 1.5}, "random_seed is 1.5; give a whole number"),
        ({"temperature": "hot"}, "temperature is 'hot'; give a finite number"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0; give a value above 0"),
    ],
)
def test_refused(option, message):
    with pytest.raises(CourseError, match=message):
        SamplingConfig(**option)
