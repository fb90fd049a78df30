"""Drafts change how fast an answer comes and nothing else, whatever happens to its request."""

import random
import threading
from collections import Counter
from dataclasses import replace
from math import e

import numpy as np
import pytest

from inflight.engine.drafts import Guesser, IterationPrices, PromptLookup
from inflight.engine.executor import Executor
from inflight.engine.fake_model import FakeModel, next_token
from inflight.engine.messages import Guide, Request
from inflight.engine.settings import BuildConfig, ExecutorConfig, SamplingConfig
from inflight.errors import CourseError
from tests.engines import SMALL_VOCAB, fake_answer, wait_until

VOCAB = 3  # so few that a lookup is often right
BUILD = BuildConfig(max_batch_size=4, max_input_len=48, max_seq_len=96, max_num_tokens=50)
DRAFTS = {"decoding_type": "NGram", "max_draft_len": 5, "max_matching_ngram_size": 3}
FREE, DEAR = IterationPrices(4, [1, 2, 6], [1, 1, 1], [1, 1, 1]), IterationPrices(4, [1, 2, 6], [1, 2, 6], [4, 8, 24])
PROMPTS = [[1] * min(length, 33) + [length % 3, 2] for length in (1, 2, 9, 20, 30, 31, 32, 40, 44, 46)]


def load(drafts=DRAFTS, prices=FREE, **config) -> Executor:
    """An executor over a model without weights, whose drafts cost nothing."""
    return Executor(FakeModel(BUILD, VOCAB), ExecutorConfig(speculative_config=drafts, **config), prices=prices)


def accepted(executor) -> int:
    return sum(row.accepted for row in executor.iteration_stats)


@pytest.mark.parametrize("reuse", [False, True], ids=["", "reuse"])
@pytest.mark.parametrize("chunked", [False, True], ids=["", "chunked"])
@pytest.mark.parametrize("tokens", [96, 160, None], ids=["tight", "short", "loose"])
@pytest.mark.parametrize("way", ["V1", "guaranteed_no_evict", "max_utilization"])
def test_each_request_gets_the_answer_it_would_get_alone(way, tokens, chunked, reuse):
    config = {"gpt_model_type": "V1"} if way == "V1" else {"batch_scheduler_policy": way}
    config |= {"enable_chunked_context": chunked, "enable_kv_cache_reuse": reuse}
    with load(max_tokens_in_paged_kv_cache=tokens, **config) as executor:
        for _ in range(2):  # the second time blocks of the first are found again, and those of answers next
            prompts = PROMPTS + [(prompt + fake_answer(prompt, 40, VOCAB))[:48] for prompt in PROMPTS]
            answers = executor.generate_all([Request(prompt, 44) for prompt in prompts])
            for prompt, answer in zip(prompts, answers):
                assert answer.token_ids == fake_answer(prompt, 44, VOCAB)
        rows = list(executor.iteration_stats)
        assert accepted(executor) > 100
        assert all(row.context_tokens + row.generation_tokens <= BUILD.max_num_tokens for row in rows)
        assert sum(row.generation_tokens - row.drafted + row.accepted for row in rows) <= 2 * len(prompts) * 43
        assert any(row.paused for row in rows) == (way == "max_utilization" and tokens is not None)
        assert bool(executor.blocks.num_reused) == reuse and executor.blocks.num_used == 0


def test_streamed_cancelled_stopped_and_timed_out_requests_stand_beside_others():
    with load() as executor:
        streamed, done = [], threading.Event()
        executor.enqueue_request(
            Request(PROMPTS[3], 40, streaming=True),
            lambda response: (streamed.append(response), response.is_final and done.set()),
        )
        ends: list = []
        for end in (executor.cancel_request, executor.stop_request):
            end(executor.enqueue_request(Request(PROMPTS[4], 60), ends.append))
        executor.enqueue_request(Request(PROMPTS[5], 60, allotted_time_ms=0), ends.append)
        assert executor.generate(Request(PROMPTS[6], 44)).token_ids == fake_answer(PROMPTS[6], 44, VOCAB)
        assert done.wait(30)
        wait_until(lambda: len(ends) == 3, "all are answered")
        assert accepted(executor) > 0 == executor.blocks.num_used
    assert [len(response.token_ids) for response in streamed] == [1] * 40
    assert [response.token_ids[0] for response in streamed] == fake_answer(PROMPTS[3], 40, VOCAB)
    assert {response.finish_reason for response in ends} == {"cancelled", "stopped", "timed_out"}


class Changing:
    """A guide by which no token follows itself, and the answer ends when it has held the token 2 ten times."""

    end_id = None

    def __init__(self):
        self.last, self.twos = None, 0

    def mask(self, answer, logits):
        assert not answer or answer[-1] == self.last
        if self.last is not None:
            logits[self.last] = -np.inf

    def take(self, token):
        self.last, self.twos = token, self.twos + (token == 2)
        return self.twos == 10


class Guides:
    def matcher(self, guide):
        return Changing()


WAYS = {
    "greedy": {},
    "sampled": {"sampling": SamplingConfig(top_k=3, random_seed=5)},
    "stop words": {"stop_words": [[2, 1, 0]]},
    "end, not before 20": {"end_id": 2, "sampling": SamplingConfig(min_length=20)},
    "penalties": {"sampling": SamplingConfig(repetition_penalty=1.5, frequency_penalty=0.1)},
    "bad words": {"bad_words": [[1, 1], [0, 2]], "sampling": SamplingConfig(top_k=3, random_seed=6)},
    "guide": {"guide": Guide("json")},
    "probabilities": {"return_log_probs": True, "sampling": SamplingConfig(top_k=3)},
}


@pytest.mark.parametrize("asked", WAYS.values(), ids=WAYS)
def test_an_answer_is_the_same_with_and_without(asked):
    requests = [Request(prompt, 44, **asked) for prompt in PROMPTS]
    answers = []
    for drafts in (None, DRAFTS):
        config = ExecutorConfig(speculative_config=drafts)
        with Executor(FakeModel(BUILD, VOCAB), config, guides=Guides(), prices=FREE) as executor:
            answers.append(executor.generate_all(requests))
            assert (accepted(executor) > 0) == (drafts is not None)
    for plain, drafted in zip(*answers):
        assert replace(plain, request_id=0) == replace(drafted, request_id=0)


def test_both_runners_answer_the_same_with_and_without(load_real):
    """In floating point, with nothing rounded to fewer bits: a row computed among others is the row computed alone."""
    prompts = [[(7 * number + index % (2 + number % 5)) % SMALL_VOCAB for index in range(40)] for number in range(24)]
    requests = [Request(prompt, 24) for prompt in prompts]
    with load_real() as plain, load_real(ExecutorConfig(speculative_config=DRAFTS)) as drafting:
        drafting.drafting._prices = FREE
        expected, answers = plain.generate_all(requests), drafting.generate_all(requests)
        assert accepted(drafting) > 10
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in expected]


# Sampling -------------------------------------------------------------------------------------------------------------

HIGHEST = e / (e + 2)  # the probability of `next_token`: its logit is 1, those of the two others are 0
CHI_SQUARE = 20.5  # of 4 × 2 = 8 degrees of freedom, surpassed once in 100 times; the seeds are fixed


def chi_square(executor, number: int) -> float:
    """How far the 2nd to 5th tokens of many short answers are from the distribution that they are drawn from."""
    seen: Counter = Counter()
    requests = [
        Request([1, 2, 1, 2, 1, 2], 6, sampling=SamplingConfig(top_k=3, random_seed=seed)) for seed in range(number)
    ]
    for request, answer in zip(requests, executor.generate_all(requests)):
        tokens = request.input_ids + answer.token_ids
        for place in range(1, 5):
            likeliest = next_token(tokens[: 6 + place], VOCAB)
            seen[place, (tokens[6 + place] - likeliest) % VOCAB] += 1
    expected = [number * share for share in (HIGHEST, (1 - HIGHEST) / 2, (1 - HIGHEST) / 2)]
    return sum((seen[place, off] - count) ** 2 / count for place in range(1, 5) for off, count in enumerate(expected))


class Biased(Executor):
    """Takes a draft that is likely enough, without drawing."""

    def _take_tokens(self, sequence, rows, drafts):
        for draft in drafts:
            if np.exp(rows[0][draft]) / np.exp(rows[0]).sum() < 0.2:
                break
            if reason := sequence.add(draft):
                return reason
            self._sequences.computed(sequence, 1)
            rows = rows[1:]
        return super()._take_tokens(sequence, rows[:1], [])


@pytest.mark.parametrize("number", [300, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind, drafts", [(Executor, None), (Executor, DRAFTS), (Biased, DRAFTS)])
def test_tokens_are_distributed_as_the_model_says_and_a_biased_rule_is_found_out(kind, drafts, number):
    config = ExecutorConfig(speculative_config=drafts)
    with kind(FakeModel(BUILD, VOCAB), config, prices=FREE) as executor:
        assert (chi_square(executor, number) > CHI_SQUARE) == (kind is Biased)
        assert (accepted(executor) > number / 10) == (drafts is not None)


# Who guesses, and how much --------------------------------------------------------------------------------------------


def looked_up(tokens: list[int], k: int, size: int) -> list[int]:
    """What `PromptLookup` should find, by looking at every place."""
    for length in range(size, 0, -1):
        for begin in range(len(tokens) - length - 1, -1, -1):
            if tokens[begin : begin + length] == tokens[-length:]:
                return tokens[begin + length : begin + length + k]
    return []


def test_the_index_finds_what_a_search_finds_and_looks_at_new_tokens_alone():
    draw = random.Random(1)
    for size in (1, 2, 3, 5):
        lookup, tokens = PromptLookup(size), [draw.randrange(6) for _ in range(draw.randint(1, 9))]
        for _ in range(200):
            assert lookup.propose(tokens, 4) == looked_up(tokens, 4, size)
            tokens += [draw.randrange(6) for _ in range(draw.randint(1, 4))]
    assert len(lookup._latest) < len(tokens) * size

    class Counted(list):
        looks = 0

        def __getitem__(self, place):
            Counted.looks += 1
            return super().__getitem__(place)

    lookup, tokens = PromptLookup(3), Counted(range(2000))
    lookup.propose(tokens, 4)
    tokens.append(7)
    Counted.looks = 0
    assert lookup.propose(tokens, 4) == [8, 9, 10, 11] and Counted.looks <= 2 * 3 + 1


def test_drafts_that_cost_what_they_spare_are_not_made():
    with load(prices=DEAR) as executor:
        executor.generate_all([Request(prompt, 44) for prompt in PROMPTS])
        assert sum(row.drafted for row in executor.iteration_stats) == 0


class Repeating(FakeModel):
    """Says its prompt again and again, or after every other token of it something else."""

    invents = False

    def allocate_kv_cache(self, num_blocks, tokens_of_answer=1):
        super().allocate_kv_cache(num_blocks)
        self.tokens_of_answer = tokens_of_answer

    def forward(self, chunks):
        rows = super().forward(chunks)
        ends = [(chunk, chunk.num_past + len(chunk.token_ids) - chunk.num_logits + 1) for chunk in chunks]
        places = [end + number for chunk, end in ends for number in range(chunk.num_logits)]
        for row, place in zip(rows, places):
            row[:] = 0
            row[(place * place + 1) % 997 + 1000 if self.invents and place % 2 else place % 20] = 1
        return rows


def test_where_a_draft_costs_two_fifths_of_an_iteration_only_those_that_prove_right_are_made():
    dear, made = IterationPrices(4, [1, 6], [1, 3], [4, 12]), {}
    for invents in (False, True):
        model = Repeating(BUILD, 2000)
        model.invents = invents
        with Executor(model, ExecutorConfig(speculative_config=DRAFTS), prices=dear) as executor:
            executor.generate(Request(list(range(20)), 76))
            made[invents] = sum(row.drafted for row in executor.iteration_stats)
    assert 0 < 4 * made[True] < made[False]


def test_padding_keeps_the_length_of_iterations_and_is_no_draft():
    with Executor(Repeating(BUILD, 2000), ExecutorConfig(speculative_config=DRAFTS), prices=FREE) as executor:
        answer = executor.generate(Request(list(range(20)), 60)).token_ids
        rows = [row for row in executor.iteration_stats if not row.context_tokens]
        assert answer == [place % 20 for place in range(20, 80)]
        assert {row.rows for row in rows} == {6} == {executor.model.tokens_of_answer}
        assert all(row.generation_tokens == 1 + row.drafted for row in rows)
        assert sum(row.drafted for row in rows) < 5 * len(rows) and executor.blocks.num_used == 0


def test_right_drafts_are_the_tokens_that_iterations_bring_beyond_one_each():
    for end in (57, 58, 59, 60):  # the last draft of an answer may be its last token, or not
        with Executor(Repeating(BUILD, 2000), ExecutorConfig(speculative_config=DRAFTS), prices=FREE) as executor:
            executor.generate(Request(list(range(20)), end))
            rows = [row for row in executor.iteration_stats if not row.context_tokens]
            assert accepted(executor) == executor.statistics.num_accepted == end - 1 - len(rows) > 0
            assert sum(row.drafted for row in rows) == executor.statistics.num_drafted


class Fixed:
    matched = 1

    def propose(self, token_ids, k):
        return [5, 6, 7][:k]


@pytest.mark.parametrize("came, learnt", [([5, 6, 7, 8], (3, 3)), ([5, 6, 9], (2, 3)), ([9], (0, 1)), ([9, 6], (0, 1))])
def test_a_guess_after_a_wrong_one_was_not_tried(came, learnt):
    """Where the request was paused, more than one token has come since."""
    guesser = Guesser(Fixed(), 2)
    guesser.propose([1, 2], 3, np.ones(2), 3)
    assert guesser.learn([1, 2, *came]) == (1, *learnt)
    assert (guesser.right.tolist(), guesser.tried.tolist()) == ([0, learnt[0]], [0, learnt[1]])


def test_chances_and_worth_by_hand():
    """Four tries weigh as much as the odds of all; each iteration keeps four fifths of what drafts were worth."""
    guesser, odds = Guesser(Fixed(), 2), np.array([0.9, 0.5])
    assert guesser.propose([1, 2], 3, odds, 4) == [(0.5, 5), (0.25, 6), (0.125, 7)]
    assert guesser.worth.tolist() == [0.5, 0.75, 0.875, 0.875]
    guesser.learn([1, 2, 5, 6, 9])  # two right of three: (2 + 4 × 0.5) / (3 + 4)
    chances, drafts = zip(*guesser.propose([1, 2, 5, 6, 9], 2, odds, 4))
    assert drafts == (5, 6) and chances == pytest.approx((4 / 7, 16 / 49))
    worth = [4 / 7, 44 / 49, 44 / 49, 44 / 49]
    assert guesser.worth == pytest.approx([0.8 * old + 0.2 * new for old, new in zip((0.5, 0.75, 0.875, 0.875), worth)])
    assert [len(guesser.propose([1], most, odds, 4)) for most in (0, 1)] == [0, 1]


OWN = """
class Drafter:
    def __init__(self):
        self.calls = 0

    def propose(self, token_ids, k):
        self.calls += 1
        assert len(token_ids) > self.calls and k >= 1
        return [token_ids[-1]] * k
"""


def written(tmp_path, text):
    (tmp_path / "mine.py").write_text(text)
    return tmp_path / "mine.py"


def own(tmp_path, text, **config):
    return load(None, drafter_path=written(tmp_path, text), **config)


def test_a_drafter_of_ones_own_guesses_one_object_a_request(tmp_path):
    with own(tmp_path, OWN) as executor:
        answers = executor.generate_all([Request(prompt, 44) for prompt in PROMPTS])
        assert [answer.token_ids for answer in answers] == [fake_answer(prompt, 44, VOCAB) for prompt in PROMPTS]
        assert accepted(executor) > 0 and max(row.drafted for row in executor.iteration_stats) <= 4 * 4


def test_blocks_of_wrong_drafts_alone_are_given_back_after_each_iteration(tmp_path):
    wrong = OWN.replace("[token_ids[-1]] * k", "[len(token_ids) % 2000] * k")
    executor = Executor(Repeating(BUILD, 2000), ExecutorConfig(drafter_path=written(tmp_path, wrong)), prices=FREE)
    with executor:
        executor.generate(Request([1] * 28, 12))
        used = [row.kv_blocks_used for row in executor.iteration_stats]
        assert max(row.rows for row in executor.iteration_stats) > 4 and accepted(executor) == 0
    assert used == [1] * 5 + [2] * 6 + [0]  # 28 to 32 tokens are in one block; then in two, until it has its answer


@pytest.mark.parametrize(
    "change, told",
    [
        (
            ("[token_ids[-1]] * k", "[1] * (k + 1)"),
            r"mine.py, line 6: propose\(\) gave \[1, 1, 1, 1, 1\]; .* at most 4",
        ),
        (("[token_ids[-1]] * k", "None"), "propose.. gave None"),
        (("[token_ids[-1]] * k", "[3]"), "from 0 to 2"),
        (("[token_ids[-1]] * k", "oops"), "mine.py, line 9: NameError"),
        (("self.calls = 0", "1 / 0"), "mine.py, line 4: ZeroDivisionError"),
    ],
)
def test_what_one_does_wrong_is_told_with_its_line(tmp_path, change, told):
    with own(tmp_path, OWN.replace(*change)) as executor, pytest.raises(CourseError, match=told):
        executor.generate(Request(PROMPTS[0], 20))


@pytest.mark.parametrize(
    "given, told",
    [
        ('{"max_draft_len": 0}', "max_draft_len of speculative_config is 0"),
        ({"max_matching_ngram_size": "3"}, "whole number"),
        ('{"decoding_type": "Eagle"}', "must be NGram"),
        ('{"draft_len": 3}', "of decoding_type, max_draft_len, max_matching_ngram_size"),
        ("NGram", "give a JSON object"),
    ],
)
def test_a_config_that_is_none_is_refused(given, told):
    with pytest.raises(CourseError, match=told):
        ExecutorConfig(speculative_config=given)


class Timed(FakeModel):
    """Takes 10 ms and one more a token, and on a clock of its own; and 5 more after an iteration of another length."""

    now_s, length = 0.0, 0

    def forward(self, chunks):
        logits = super().forward(chunks)
        number = len(chunks[0].token_ids)
        assert number <= 1 + 5, "an iteration has no more"
        self.now_s += (10 + number * len(chunks) + 5 * (number != self.length)) / 1000
        self.length = number
        return logits


def test_prices_are_those_of_an_iteration_as_long_as_the_one_before_and_what_lies_between_is_on_a_line(monkeypatch):
    build = replace(BUILD, max_seq_len=97)  # the last token is alone in its block
    model = Timed(build, VOCAB)
    model.allocate_kv_cache(-(-build.max_seq_len // build.tokens_per_block))
    monkeypatch.setattr("inflight.engine.drafts.time.perf_counter", lambda: model.now_s)
    prices = IterationPrices.measured(model, max_draft_len=5)
    expected = {1: [11, 12, 13, 14, 15, 16], 2: [12, 14, 16, 18, 20, 22], 4: [14, 18, 22, 26, 30, 34]}
    for answers, ms in {**expected, 9: expected[4]}.items():
        assert prices.of(answers, 5) == pytest.approx(ms)
    assert IterationPrices(2, [1], [10], [14]).of(2, 0) == [14]
