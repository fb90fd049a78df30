"""The executor: whatever comes in, each request gets the tokens it would get alone, and gives back its blocks."""

import json
import logging
import re
import threading
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from inflight.engine.executor import Executor
from inflight.engine.fake_model import FakeModel
from inflight.engine.limits import check_memory
from inflight.engine.messages import IterationStats, Request, Response
from inflight.engine.sampling import Sampler
from inflight.engine.scheduler import EMPTY_PLANS, POLICIES, GuaranteedNoEvict, Plan
from inflight.engine.settings import ExecutorConfig, SamplingConfig
from inflight.errors import CourseError
from tests.engines import SMALL_BUILD, SMALL_VOCAB, fake_answer, wait_until

MAX_OUTPUT = 32
# Prompts of 1 to 48 tokens: within a cache block, at its edge, over it.
PROMPTS = [
    [(7 * length + 31 * index) % SMALL_VOCAB for index in range(length)] for length in (1, 2, 9, 20, 31, 32, 33, 40, 48)
]
PROMPTS[-2][:33] = PROMPTS[-1][:33]  # so that reuse finds the first block of another one
TIGHT_CACHE = SMALL_BUILD.max_seq_len  # tokens: room for one longest request


def load(config=None, **options) -> Executor:
    """An executor over a model without weights."""
    return Executor(FakeModel(replace(SMALL_BUILD, **options), SMALL_VOCAB), config)


ALONE = [fake_answer(prompt, MAX_OUTPUT, SMALL_VOCAB) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def real_executor(load_real):
    with load_real() as executor:
        yield executor


@pytest.fixture(scope="module")
def alone(real_executor):
    """Greedy tokens of each prompt, of a runner that computes, when nothing else runs."""
    return [real_executor.generate(Request(prompt, MAX_OUTPUT)).token_ids for prompt in PROMPTS]


@pytest.fixture(scope="module")
def executor():
    with load() as executor:
        yield executor


@dataclass
class Receiver:
    """Keeps the responses of one request."""

    responses: list[Response] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)
    on_token: object = None

    def __call__(self, response: Response) -> None:
        self.responses.append(response)
        if response.is_final:
            self.done.set()
        elif self.on_token:
            self.on_token(self)

    @property
    def tokens(self) -> list[int]:
        return sum((response.token_ids for response in self.responses), [])

    @property
    def last(self) -> Response:
        return self.responses[-1]

    def wait(self):
        assert self.done.wait(60), "no final response"
        return self


def send(executor: Executor, request: Request) -> Receiver:
    receiver = Receiver()
    executor.enqueue_request(request, receiver)
    return receiver


def is_idle(executor: Executor) -> bool:
    return executor.snapshot().active == 0 and executor.blocks.num_used == 0


# Any trace ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Arrival:
    """One request of a trace, which its client may end early."""

    prompt: int
    output_len: int
    streaming: bool
    ending: str | None  # "stop" or "cancel", by the client
    end_after: int  # tokens


arrivals = st.builds(
    Arrival,
    prompt=st.integers(0, len(PROMPTS) - 1),
    output_len=st.integers(1, MAX_OUTPUT),
    streaming=st.booleans(),
    ending=st.sampled_from([None, None, None, "stop", "cancel"]),
    end_after=st.integers(0, 12),
)


def play(executor: Executor, trace: list[Arrival]) -> list[Receiver]:
    """Send a trace; requests with an ending are ended at once, or, when they stream, after some tokens."""
    static = executor.config.gpt_model_type == "V1"
    receivers = []
    for arrival in trace:
        streams = arrival.streaming and not static
        receiver = Receiver()
        end = {"stop": executor.stop_request, "cancel": executor.cancel_request}.get(arrival.ending)
        if end and streams and arrival.end_after:
            receiver.on_token = lambda r, end=end, n=arrival.end_after: (
                end(r.responses[0].request_id) if len(r.tokens) >= n else None
            )
        request = Request(PROMPTS[arrival.prompt], arrival.output_len, streaming=streams)
        number = executor.enqueue_request(request, receiver)
        if end and receiver.on_token is None:
            end(number)
        receivers.append(receiver)
    return [receiver.wait() for receiver in receivers]


def check_answer(arrival: Arrival, receiver: Receiver, expected: list[int]) -> None:
    expected = expected[: arrival.output_len]
    assert [response.is_final for response in receiver.responses].count(True) == 1
    assert receiver.last.is_final and receiver.last.error is None
    reason = receiver.last.finish_reason
    if reason == "length":
        assert receiver.tokens == expected
    else:
        assert reason == {"stop": "stopped", "cancel": "cancelled"}[arrival.ending]
        assert receiver.tokens == expected[: len(receiver.tokens)]
    if arrival.ending is None:
        assert reason == "length"
    if reason == "cancelled":
        assert receiver.last.token_ids == []


def check_iterations(executor: Executor) -> None:
    build = executor.build_config
    for row in executor.iteration_stats:
        assert row.scheduled + row.waiting + row.paused == row.active
        assert min(row.scheduled, row.waiting, row.paused, row.empty_slots, row.finished) >= 0
        assert row.scheduled == len(row.requests) <= build.max_batch_size
        assert len({number for number, *_ in row.requests}) == row.scheduled
        assert 0 < row.context_tokens + row.generation_tokens <= build.max_num_tokens
        assert row.kv_blocks_used + row.kv_blocks_free == row.kv_blocks_max


SETTINGS = {
    f"{batching} {policy} {name}": ExecutorConfig(
        gpt_model_type=batching, batch_scheduler_policy=policy, max_tokens_in_paged_kv_cache=cache
    )
    for batching in ("V1", "inflight_fused_batching")
    for policy in POLICIES
    for name, cache in (("tight", TIGHT_CACHE), ("loose", None))
} | {
    f"inflight_fused_batching {policy} {name} {feature}": ExecutorConfig(
        batch_scheduler_policy=policy, max_tokens_in_paged_kv_cache=cache, **{setting: True}
    )
    for policy in POLICIES
    for name, cache in (("tight", TIGHT_CACHE), ("loose", None))
    for feature, setting in (("reuse", "enable_kv_cache_reuse"), ("chunked", "enable_chunked_context"))
}


def check_trace(executor: Executor, trace: list[Arrival], answers: list[list[int]]) -> None:
    executor.iteration_stats.clear()
    for arrival, receiver in zip(trace, play(executor, trace)):
        check_answer(arrival, receiver, answers[arrival.prompt])
    wait_until(lambda: is_idle(executor), "slots and blocks are free")
    check_iterations(executor)


# Of a runner that computes; every setting is played without weights, below.
TELLING = (
    "V1 guaranteed_no_evict tight",
    "inflight_fused_batching guaranteed_no_evict loose",
    "inflight_fused_batching max_utilization tight",
    "inflight_fused_batching max_utilization tight reuse",
)


@pytest.fixture(scope="module", params=TELLING)
def any_executor(request, load_real):
    with load_real(SETTINGS[request.param]) as executor:
        yield executor


@settings(derandomize=True, max_examples=2, deadline=None, database=None)
@given(trace=st.lists(arrivals, min_size=1, max_size=10))
@example(trace=[Arrival(8, MAX_OUTPUT, True, None, 0)] * 10)  # more blocks than a tight cache has
@example(trace=[Arrival(prompt, 20, False, None, 0) for prompt in range(len(PROMPTS))])
def test_any_trace_gets_the_tokens_it_would_get_alone(any_executor, alone, trace):
    check_trace(any_executor, trace, alone)


@pytest.fixture(scope="module", params=SETTINGS)
def fake_executor(request):
    with load(SETTINGS[request.param]) as executor:
        yield executor


@settings(derandomize=True, max_examples=30, deadline=None, database=None)
@given(trace=st.lists(arrivals, min_size=1, max_size=10))
@example(trace=[Arrival(7 + n % 2, 4 + 7 * (n % 5), False, None, 0) for n in range(20)])  # many share a first block
def test_any_trace_gets_its_tokens_from_a_model_without_weights(fake_executor, trace):
    check_trace(fake_executor, trace, ALONE)


def test_a_prompt_that_begins_like_an_earlier_one_starts_from_its_blocks(load_real, alone):
    longest = PROMPTS.index(max(PROMPTS, key=len))
    with load_real(ExecutorConfig(enable_kv_cache_reuse=True)) as executor:
        answers = [executor.generate(Request(PROMPTS[longest], 4)).token_ids for _ in range(2)]
        rows = [row for row in executor.iteration_stats if row.context_tokens]
    assert answers == [alone[longest][:4]] * 2
    per_block = SMALL_BUILD.tokens_per_block
    assert [row.context_tokens for row in rows] == [len(PROMPTS[longest]), len(PROMPTS[longest]) - per_block]
    assert [row.kv_blocks_reused for row in rows] == [0, 1]


@pytest.mark.parametrize(("batching", "order"), [("inflight_fused_batching", [1, 2, 0]), ("V1", [0, 1, 2])])
def test_in_flight_a_short_answer_overtakes_a_long_one_and_a_static_batch_is_answered_together(batching, order):
    with load(ExecutorConfig(gpt_model_type=batching)) as executor:
        answered, everything = [], threading.Semaphore(0)

        def note(position):
            return lambda response: response.is_final and (answered.append(position), everything.release())

        held = hold(executor)  # else a quick model may have answered the first before the last is sent
        for position, length in enumerate((40, 2, 20)):
            executor.enqueue_request(Request(PROMPTS[0], length), note(position))
        held.set()
        assert all(everything.acquire(timeout=60) for _ in order)
    assert answered == order


def test_a_waiting_request_does_not_overtake_a_paused_one():
    config = ExecutorConfig(batch_scheduler_policy="max_utilization", max_tokens_in_paged_kv_cache=TIGHT_CACHE)
    with load(config) as executor:
        held = hold(executor)
        # Three that take all three blocks, until the first needs another; one that would fit in what is left then.
        receivers = [send(executor, Request(PROMPTS[3], 32)) for _ in range(3)] + [send(executor, Request([1], 2))]
        held.set()
        last = receivers[-1].wait().last.request_id
        for receiver in receivers:
            receiver.wait()
        rows = list(executor.iteration_stats)
    first = next(row for row in rows if last in [number for number, *_ in row.requests])
    assert max(row.paused for row in rows) > 0 == first.paused


def test_a_long_prompt_is_computed_in_parts(load_real, alone):
    with pytest.raises(CourseError, match=r"\(48\) tokens does not fit into an iteration of max_num_tokens \(16\)"):
        load_real(max_num_tokens=16)
    with load_real(ExecutorConfig(enable_chunked_context=True), max_num_tokens=16) as executor:
        answers = executor.generate_all([Request(prompt, MAX_OUTPUT) for prompt in PROMPTS])
        check_iterations(executor)
    assert [answer.token_ids for answer in answers] == alone


def test_a_prompt_of_which_a_part_is_computed_has_not_found_that_part():
    with load(ExecutorConfig(enable_chunked_context=True), max_num_tokens=16) as executor:
        held = hold(executor)
        receivers = [send(executor, Request(PROMPTS[3][:length], 2)) for length in (15, 20)]
        held.set()
        assert [len(receiver.wait().tokens) for receiver in receivers] == [2, 2]
        rows = list(executor.iteration_stats)
    assert [row for stats in rows for row in stats.requests if row[:2] == [3, 1]] == [[3, 1, 0, 1]]
    assert not any(stats.not_computed for stats in rows)


# Limits ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_, message",
    [
        (Request([], 4), "The prompt is empty"),
        (Request([1], 0), r"request_output_len \(max_tokens\) is 0; it must be at least 1"),
        (Request([1] * 49, 4), r"Prompt length \(49\) exceeds maximum input length \(48\)"),
        (Request([1, SMALL_VOCAB], 4), f"token id {SMALL_VOCAB}; this model's ids go from 0 to {SMALL_VOCAB - 1}"),
        (Request([1], 4, stop_words=[[2], [99999]]), "stop_words_list has the token id 99999"),
        (Request([1], 4, bad_words=[[1], []]), "bad_words_list has an empty word"),
        (Request([1], 4, end_id=SMALL_VOCAB), f"end_id has the token id {SMALL_VOCAB}; this model's ids go from 0"),
        (Request([1.5], 4), "input_ids has the token id 1.5"),
        (Request([1], 2.5), r"\(max_tokens\) is 2.5; it must be at least 1"),
    ],
    ids=lambda value: "" if isinstance(value, Request) else value[:20],
)
def test_a_request_over_a_limit_is_refused(executor, request_, message):
    with pytest.raises(CourseError, match=message):
        executor.generate(request_)
    assert len(executor.generate(Request([1], 4)).token_ids) == 4


def test_an_answer_ends_at_max_seq_len(executor, caplog):
    with caplog.at_level(logging.WARNING, "inflight.engine.executor"):
        executor.generate(Request(PROMPTS[-1], SMALL_BUILD.max_seq_len - len(PROMPTS[-1])))
        assert not caplog.text, "it has room"
        response = executor.generate(Request(PROMPTS[-1], 10**9))
    assert len(response.token_ids) == SMALL_BUILD.max_seq_len - len(PROMPTS[-1])
    assert "exceed max_seq_len (96): at most 48 tokens are made" in caplog.text


def test_static_batching_gives_a_streamed_request_one_whole_answer_and_says_so(caplog):
    with (
        load(ExecutorConfig(gpt_model_type="V1")) as executor,
        caplog.at_level(logging.WARNING, "inflight.engine.executor"),
    ):
        whole = executor.generate(Request([1], 4)).token_ids
        assert "cannot stream" not in caplog.text
        receiver = send(executor, Request([1], 4, streaming=True))
        receiver.wait()
        assert [(response.token_ids, response.is_final) for response in receiver.responses] == [(whole, True)]
    assert "static batching (gpt_model_type V1) cannot stream" in caplog.text


def test_a_full_queue_refuses_and_goes_on():
    with load(ExecutorConfig(max_queue_size=2)) as executor:
        held = hold(executor)
        running = [send(executor, Request([1], 4)) for _ in range(2)]
        with pytest.raises(CourseError, match=r"The queue is full: 2 requests wait \(max_queue_size\)"):
            executor.enqueue_request(Request([1], 4), Receiver())
        held.set()
        assert all(len(receiver.wait().tokens) == 4 for receiver in running)
        assert len(executor.generate(Request([1], 4)).token_ids) == 4


def hold(executor: Executor) -> threading.Event:
    """Keep the engine's thread inside a callback, so that what is sent now stays waiting; until the event is set."""
    go_on, inside = threading.Event(), threading.Event()

    def on_response(response):
        inside.set()
        go_on.wait(60)

    executor.enqueue_request(Request([1], 1), on_response)
    assert inside.wait(60)
    return go_on


@pytest.mark.parametrize(
    "options, message",
    [
        ({"gpt_model_type": "V2"}, "is 'V2'; it must be V1 or inflight_batching or inflight_fused_batching"),
        ({"batch_scheduler_policy": "fair"}, "is 'fair'; it must be guaranteed_no_evict or max_utilization"),
        ({"kv_cache_free_gpu_mem_fraction": float("nan")}, "is nan; give a finite number of at least 0 and at most 1"),
        ({"max_queue_size": -1}, "max_queue_size is -1; give a whole number of at least 0"),
        ({"max_tokens_in_paged_kv_cache": 0}, "max_tokens_in_paged_kv_cache is 0; give a finite number of at least 1"),
    ],
)
def test_a_wrong_setting_is_refused(options, message):
    with pytest.raises(CourseError, match=message):
        ExecutorConfig(**options)


@pytest.mark.parametrize(
    "options, limit",
    [
        ({"max_tokens_in_paged_kv_cache": 95}, r"max_tokens_in_paged_kv_cache \(95\) gives 64 tokens"),
        ({"kv_cache_free_gpu_mem_fraction": 0}, r"kv_cache_free_gpu_mem_fraction \(0\) gives 0 tokens"),
        ({"kv_cache_free_gpu_mem_fraction": 1e-9}, r"kv_cache_free_gpu_mem_fraction \(1e-09\) gives 0 tokens"),
    ],
)
def test_a_cache_too_small_for_one_request_is_refused(options, limit):
    with pytest.raises(CourseError, match=f"{limit} of KV cache, too few for one request of max_seq_len: it needs 96"):
        load(ExecutorConfig(**options))


def test_older_spelling_of_the_policy_is_taken_and_said(caplog):
    with caplog.at_level(logging.WARNING, "inflight.engine.executor"):
        config = ExecutorConfig(batch_scheduler_policy="guaranteed_completion")
    assert config.batch_scheduler_policy == "guaranteed_no_evict"
    assert "guaranteed_completion is an older spelling" in caplog.text


class Idling(GuaranteedNoEvict):
    """Computes nothing so often, then as the built-in one does, then again nothing so often, ..."""

    def __init__(self, *times):
        self.idles = [idles for number in times for idles in [*[True] * number, False]]

    def schedule(self, now):
        return Plan() if self.idles and self.idles.pop(0) else super().schedule(now)


@pytest.mark.parametrize(("times", "is_said"), [([EMPTY_PLANS], True), ([EMPTY_PLANS - 1] * 2, False)])
def test_a_scheduler_that_computes_nothing_for_long_is_in_the_log(times, is_said, caplog, monkeypatch):
    monkeypatch.setattr("inflight.engine.executor.EMPTY_PLAN_S", 0)
    with Executor(FakeModel(SMALL_BUILD, SMALL_VOCAB), scheduler=Idling(*times)) as executor:
        executor.generate(Request([1], 3))
    assert (f"has computed nothing {EMPTY_PLANS} times in a row" in caplog.text) == is_said


def test_a_plan_that_breaks_a_rule_fails_those_in_flight_and_no_later_one():
    scheduler = GuaranteedNoEvict()
    with Executor(FakeModel(SMALL_BUILD, SMALL_VOCAB), scheduler=scheduler) as executor:
        scheduler.schedule = lambda now: Plan(admit=[99])
        with pytest.raises(CourseError, match="admits request 99, which is neither waiting nor paused"):
            executor.generate(Request([1], 3))
        del scheduler.schedule
        assert executor.generate(Request(PROMPTS[3], 3)).token_ids == ALONE[3][:3]


@pytest.mark.parametrize("is_room", [True, False])
def test_an_engine_needs_room_for_its_weights_and_the_blocks_of_one_longest_request(is_room, monkeypatch):
    build = replace(SMALL_BUILD, max_seq_len=65)  # tokens, which take three blocks
    info = SimpleNamespace(folder="it", weight_bytes=10**6, kv_cache_bytes_per_token=10**4, build_config=build)
    monkeypatch.setattr("inflight.engine.limits.free_bytes", lambda _: 10**6 + 96 * 10**4 - (not is_room))
    with nullcontext() if is_room else pytest.raises(CourseError, match="engine in it needs 2.0 MB"):
        check_memory(info)


# What a request can ask for -------------------------------------------------------------------------------------------


def test_a_stream_is_one_token_a_response_and_joins_to_the_whole(executor):
    receiver = send(executor, Request(PROMPTS[3], MAX_OUTPUT, streaming=True)).wait()
    assert [len(response.token_ids) for response in receiver.responses] == [1] * MAX_OUTPUT
    assert receiver.tokens == ALONE[3]


def first_time(tokens: list[int], position: int) -> int:
    """The first position from `position` on whose token has not come before."""
    return next(i for i in range(position, len(tokens)) if tokens[i] not in tokens[:i])


@pytest.fixture
def varied():
    """A prompt and its greedy answer in which tokens differ, so that there is something to end at."""
    index = max(range(len(PROMPTS)), key=lambda i: len(set(ALONE[i])))
    return PROMPTS[index], ALONE[index]


def test_the_end_token_ends_the_answer_and_is_not_in_it(executor, varied):
    prompt, tokens = varied
    position = first_time(tokens, 1)
    response = executor.generate(Request(prompt, MAX_OUTPUT, end_id=tokens[position]))
    assert (response.token_ids, response.finish_reason) == (tokens[:position], "end_id")


def test_a_stop_word_ends_the_answer_and_is_in_it(executor, varied):
    prompt, tokens = varied
    position = first_time(tokens, 2)
    word = tokens[position - 1 : position + 1]
    response = executor.generate(Request(prompt, MAX_OUTPUT, stop_words=[[tokens[0], SMALL_VOCAB - 1], word]))
    assert (response.token_ids, response.finish_reason) == (tokens[: position + 1], "stop_words")


def test_sampling_is_repeatable_by_its_seed(real_executor):
    def sampled(seed):
        config = SamplingConfig(top_p=1.0, temperature=1.5, random_seed=seed)
        return Request(PROMPTS[2], MAX_OUTPUT, sampling=config)

    together = real_executor.generate_all([sampled(1), sampled(1), sampled(2)])
    assert together[0].token_ids == together[1].token_ids != together[2].token_ids
    assert real_executor.generate(sampled(1)).token_ids == together[0].token_ids


def test_log_probs(real_executor, alone):
    response = real_executor.generate(Request(PROMPTS[3], MAX_OUTPUT, return_log_probs=True))
    assert response.token_ids == alone[3]
    assert len(response.log_probs) == MAX_OUTPUT and max(response.log_probs) < 0
    assert response.cum_log_prob == pytest.approx(sum(response.log_probs))
    streamed = send(real_executor, Request(PROMPTS[3], MAX_OUTPUT, return_log_probs=True, streaming=True)).wait()
    assert sum((piece.log_probs for piece in streamed.responses), []) == pytest.approx(response.log_probs)
    assert real_executor.generate(Request(PROMPTS[3], 4)).log_probs == []


def test_a_probability_belongs_to_each_token_of_an_answer_and_none_to_its_end(executor):
    end = next(index for index in range(4, MAX_OUTPUT) if ALONE[3][index] not in ALONE[3][:index])
    request = Request(PROMPTS[3], MAX_OUTPUT, end_id=ALONE[3][end], return_log_probs=True)
    response = executor.generate(request)
    assert (response.token_ids, len(response.log_probs)) == (ALONE[3][:end], end)


def test_an_idle_engine_takes_no_steps():
    steps = []
    with load() as executor:
        executor.step = lambda step=executor.step: (steps.append(1), step())
        for prompt in PROMPTS[:3]:
            executor.generate(Request(prompt, 4))
    assert len(steps) == 3 * 4


def test_a_closed_executor_has_no_thread_left():
    before = set(threading.enumerate())
    with load() as executor:
        executor.generate(Request([1], 2))
        assert {thread.name for thread in set(threading.enumerate()) - before} == {"executor", "guides"}
    wait_until(lambda: not set(threading.enumerate()) - before, "both have ended")


def test_stop_gives_the_tokens_so_far(executor):
    receiver = Receiver(on_token=lambda r: executor.stop_request(r.last.request_id) if len(r.tokens) == 3 else None)
    executor.enqueue_request(Request(PROMPTS[3], MAX_OUTPUT, streaming=True), receiver)
    receiver.wait()
    assert (receiver.tokens, receiver.last.finish_reason) == (ALONE[3][:3], "stopped")


def test_a_waiting_request_can_be_stopped_and_cancelled(executor):
    held = hold(executor)
    receivers = [Receiver(), Receiver()]
    stopped, cancelled = (executor.enqueue_request(Request([1], 4), receiver) for receiver in receivers)
    executor.stop_request(stopped)
    executor.cancel_request(cancelled)
    held.set()
    assert [receiver.wait().last.finish_reason for receiver in receivers] == ["stopped", "cancelled"]
    assert [receiver.tokens for receiver in receivers] == [[], []]


def test_ending_a_request_that_is_over_does_nothing(executor):
    number = executor.generate(Request([1], 2)).request_id
    executor.stop_request(number)
    executor.cancel_request(10**6)
    assert len(executor.generate(Request([1], 4)).token_ids) == 4


# Time that is allotted ------------------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch):
    """The executor's clock, which stands still until it is set."""
    clock = SimpleNamespace(time=time.time, perf_counter=time.perf_counter, now_s=0.0)
    clock.monotonic = lambda: clock.now_s
    monkeypatch.setattr("inflight.engine.executor.time", clock)
    return clock


@pytest.mark.parametrize("batching", ["V1", "inflight_fused_batching"])
def test_a_request_whose_time_is_over_while_it_waits_is_told_so_and_never_computed(clock, batching):
    with load(ExecutorConfig(gpt_model_type=batching)) as executor:
        held = hold(executor)
        receiver = send(executor, Request(PROMPTS[3], MAX_OUTPUT, allotted_time_ms=20))
        clock.now_s = 0.021
        held.set()
        receiver.wait()
        assert len(receiver.responses) == 1 and receiver.last.finish_reason == "timed_out"
        assert receiver.last.error.startswith(
            "The request was not finished within 20 ms, its wait included, and was ended"
        )
        wait_until(lambda: is_idle(executor), "slots and blocks are free")
        assert sum(len(stats.requests) for stats in executor.iteration_stats) == 1  # of the one that held it up


@pytest.mark.parametrize("streaming", [True, False])
def test_a_request_whose_time_is_over_while_it_runs_gives_back_its_slot(executor, clock, streaming):
    other = Receiver(on_token=lambda receiver: setattr(clock, "now_s", 20.0 * len(receiver.tokens)))
    held = hold(executor)
    late = send(executor, Request(PROMPTS[3], MAX_OUTPUT, streaming=streaming, allotted_time_ms=59_000))
    executor.enqueue_request(Request(PROMPTS[4], MAX_OUTPUT, streaming=True), other)
    held.set()
    assert late.wait().last.finish_reason == "timed_out"
    assert "within 59,000 ms" in late.last.error and late.tokens == ALONE[3][:3]
    assert other.wait().tokens == ALONE[4]  # whose time has no end is not disturbed
    wait_until(lambda: is_idle(executor), "slots and blocks are free")


def test_in_a_static_batch_who_is_late_does_not_wait_for_the_others(clock, monkeypatch):
    with load(ExecutorConfig(gpt_model_type="V1")) as executor:
        forward, order = executor.model.forward, []

        def forward_and_let_time_pass(chunks):
            clock.now_s += 1
            return forward(chunks)

        monkeypatch.setattr(executor.model, "forward", forward_and_let_time_pass)
        held, patient, late = hold(executor), Receiver(), Receiver()
        for receiver, allotted_time_ms in ((patient, None), (late, 3500)):
            request = Request(PROMPTS[4], MAX_OUTPUT, allotted_time_ms=allotted_time_ms)
            executor.enqueue_request(request, lambda response, to=receiver: (order.append(to), to(response)))
        held.set()
        assert patient.wait().tokens == ALONE[4]
        assert order == [late, patient] and late.last.finish_reason == "timed_out"
        wait_until(lambda: is_idle(executor), "slots and blocks are free")


# Trouble --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batching", ["V1", "inflight_fused_batching"])
def test_a_failing_iteration_fails_those_in_flight_and_no_later_one(monkeypatch, batching):
    with load(ExecutorConfig(gpt_model_type=batching)) as executor:
        forward = executor.model.forward
        held = hold(executor)
        receivers = [send(executor, Request(PROMPTS[i], MAX_OUTPUT)) for i in range(6)]  # four running, two waiting

        def fail_once(chunks):
            monkeypatch.setattr(executor.model, "forward", forward)
            receivers.append(send(executor, Request(PROMPTS[3], MAX_OUTPUT)))  # it has not been taken in
            raise RuntimeError("the cache caught fire")

        monkeypatch.setattr(executor.model, "forward", fail_once)
        held.set()
        for receiver in receivers:
            assert len(receiver.wait().responses) == 1
            assert receiver.last.finish_reason == "error"
            assert "failed (RuntimeError): the engine's log says where" in receiver.last.error
        assert executor.generate(Request(PROMPTS[3], MAX_OUTPUT)).token_ids == ALONE[3]
        wait_until(lambda: is_idle(executor), "slots and blocks are free")


ALL_TOKENS = [[token] for token in range(SMALL_VOCAB)]
EXPLODES = SamplingConfig(frequency_penalty=-1e308)  # counted twice it is more than a number can be
POISON = 1000  # a prompt that begins with it has logits that are no numbers
BAD = {
    "every token forbidden": (Request([1, 2], 8, bad_words=ALL_TOKENS), "Every token is forbidden by bad_words_list"),
    "penalty beyond numbers": (Request([1, 2], 8, sampling=EXPLODES), "The logits contain inf, so no token can be"),
    "logits that are no numbers, with top-p and log-probabilities": (
        Request([POISON, 2], 8, sampling=SamplingConfig(top_p=0.9), return_log_probs=True),
        "The logits contain nan, so no token can be chosen",
    ),
    "what nobody foresaw": (
        Request([7, 7, 7], 8),
        r"iteration \d+ failed \(ZeroDivisionError\): the engine's log says",
    ),
}


class Poisoned(FakeModel):
    def forward(self, chunks):
        logits = super().forward(chunks)
        logits[[chunk.token_ids[0] == POISON for chunk in chunks]] = np.nan
        return logits


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("batching", ["V1", "inflight_fused_batching"])
def test_a_fault_while_sampling_ends_that_request_alone(batching, bad, monkeypatch):
    wrong, message = BAD[bad]
    choose = Sampler.choose

    def choose_or_raise(sampler, logits, prompt, answer):
        return 1 // 0 if prompt == [7, 7, 7] else choose(sampler, logits, prompt, answer)

    monkeypatch.setattr(Sampler, "choose", choose_or_raise)
    with Executor(Poisoned(SMALL_BUILD, SMALL_VOCAB), ExecutorConfig(gpt_model_type=batching)) as executor:
        good = [Request(prompt, MAX_OUTPUT) for prompt in PROMPTS[:3]]
        expected = [executor.generate(request).token_ids for request in good]
        held = hold(executor)
        first, *others = [send(executor, request) for request in (wrong, *good)]
        held.set()
        assert re.match(message, first.wait().last.error)
        assert first.last.finish_reason == "error"
        assert [receiver.wait().tokens for receiver in others] == expected
        wait_until(lambda: is_idle(executor), "slots and blocks are free")
        assert [executor.generate(request).token_ids for request in good] == expected


@pytest.mark.parametrize("streaming", [True, False])
def test_a_callback_that_raises_harms_nobody_else(executor, streaming):
    def explode(response):
        raise ValueError("receiver is gone")

    number = executor.enqueue_request(Request(PROMPTS[3], MAX_OUTPUT, streaming=streaming), explode)
    assert executor.generate(Request(PROMPTS[4], MAX_OUTPUT)).token_ids == ALONE[4]
    wait_until(lambda: is_idle(executor), "the request without a receiver has ended")
    computed = sum(number == row[0] for iteration in executor.iteration_stats for row in iteration.requests)
    assert computed == (1 if streaming else MAX_OUTPUT), "nothing is computed for who cannot be answered"


def test_shutdown_ends_requests_in_flight_and_may_be_repeated():
    executor = load()
    held = hold(executor)
    receivers = [send(executor, Request(PROMPTS[3], MAX_OUTPUT)) for _ in range(6)]
    closer = threading.Thread(target=executor.shutdown)
    closer.start()
    wait_until(lambda: executor._closing, "shutdown has begun")
    held.set()
    closer.join(60)
    assert not closer.is_alive()
    assert {receiver.wait().last.error for receiver in receivers} == {"the engine was shut down"}
    executor.shutdown()
    with pytest.raises(CourseError, match="The engine is shut down and takes no more requests"):
        executor.generate(Request([1], 4))


def test_an_interrupted_or_refused_generate_all_leaves_nothing_running(executor):
    held = hold(executor)
    before = executor.snapshot().iteration
    with pytest.raises(CourseError, match="The prompt is empty"):
        executor.generate_all([Request(PROMPTS[3], MAX_OUTPUT), Request([], 4)])
    held.set()
    wait_until(lambda: is_idle(executor), "the first request was cancelled")
    assert executor.snapshot().iteration - before <= 1, "it was computed on"


def test_many_threads_may_enqueue(executor):
    answers: dict[int, bool] = {}

    def ask(number):
        for turn in range(3):
            index = (number + turn) % len(PROMPTS)
            response = executor.generate(Request(PROMPTS[index], MAX_OUTPUT))
            answers[3 * number + turn] = response.token_ids == ALONE[index]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(answers) == 36 and all(answers.values())


# Statistics -----------------------------------------------------------------------------------------------------------


def test_iteration_log_is_one_json_object_a_line(tmp_path):
    path = tmp_path / "iterations.jsonl"
    with load(ExecutorConfig(iteration_log_path=path)) as executor:
        executor.generate_all([Request(PROMPTS[3], 6), Request(PROMPTS[6], 3)])
    kept = [asdict(row) for row in executor.iteration_stats]
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows == kept
    assert [row["iteration"] for row in rows] == list(range(1, len(rows) + 1))
    assert set(rows[0]) == set(IterationStats.__dataclass_fields__)
    assert sum(row["context_tokens"] for row in rows) == len(PROMPTS[3]) + len(PROMPTS[6])
    assert sum(row["generation_tokens"] for row in rows) == 5 + 2  # the first token of each comes with its prompt
    assert sum(row["finished"] for row in rows) == 2
    assert all(row["kv_blocks_max"] == 12 and row["tokens_per_block"] == 32 for row in rows)
    assert str(path) not in [file.path for file in psutil.Process().open_files()], "a closed engine keeps no log open"


def test_figures_of_each_iteration_by_hand(monkeypatch):
    """A prompt of 40 tokens, and one of 48 whose first block is the same; an iteration takes 250 ms."""
    clock = SimpleNamespace(time=time.time, perf_counter=lambda: len(calls) / 4)
    monkeypatch.setattr("inflight.engine.statistics.time", clock)
    monkeypatch.setattr("inflight.engine.executor.time", SimpleNamespace(monotonic=time.monotonic, **vars(clock)))
    with load(ExecutorConfig(enable_kv_cache_reuse=True)) as executor:
        forward, calls = executor.model.forward, []
        monkeypatch.setattr(executor.model, "forward", lambda chunks: calls.append(0) or forward(chunks))
        idle = [executor.snapshot()]
        for prompt, name in ((PROMPTS[-2], "a"), (PROMPTS[-1], "b")):
            executor.generate(Request(prompt, 2, request_id=name))
        wait_until(lambda: is_idle(executor), "both are answered")
        rows = list(executor.iteration_stats)
        idle.append(executor.snapshot())
    none = IterationStats(0, 0, kv_blocks_free=12, kv_blocks_max=12, tokens_per_block=32, empty_slots=4)
    both = none, replace(none, iteration=4, kv_blocks_reused=1, timestamp=rows[-1].timestamp)
    assert (replace(idle[0], timestamp=0), idle[1]) == both
    one = replace(none, iteration_ms=250, active=1, scheduled=1, rows=1, empty_slots=3)
    new = replace(one, kv_blocks_used=2, kv_blocks_free=10)
    assert [replace(row, timestamp=0) for row in rows] == [
        replace(new, iteration=1, context_tokens=40, requests=[[1, 40, 0, 2]], client_ids=["a"], longest_wait=[1, 0]),
        replace(one, iteration=2, generation_tokens=1, requests=[[1, 0, 1, 2]], client_ids=["a"], finished=1),
        replace(new, iteration=3, context_tokens=16, requests=[[2, 16, 0, 2]], client_ids=["b"], longest_wait=[2, 0],
                kv_blocks_reused=1, not_computed=[[2, 32, 0, 0]]),
        replace(one, iteration=4, generation_tokens=1, requests=[[2, 0, 1, 2]], client_ids=["b"], finished=1,
                kv_blocks_reused=1),
    ]  # fmt: skip


def test_the_log_says_who_has_waited_longest_and_how_many_iterations():
    with load(max_batch_size=1) as executor:
        held = hold(executor)
        receivers = [send(executor, Request([1], 4)) for _ in range(2)]
        held.set()
        for receiver in receivers:
            receiver.wait()
        waits = [row.longest_wait for row in executor.iteration_stats]
    assert waits == [None, *([3, number] for number in (1, 2, 3, 4, 0, 0, 0)), None]
