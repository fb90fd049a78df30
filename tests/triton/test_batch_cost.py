"""Each property of Triton's dynamic batcher, by what it does to real batches: their number, order and answers."""

import os
import signal
import threading

import numpy as np
import pytest
import tritonclient.grpc as triton

from inflight.bench import batch_run, workload
from inflight.bench.batch_run import QUEUE_FULL, TIMED_OUT, Arrival, at
from inflight.errors import CourseError
from inflight.triton import repository
from inflight.triton.server import Server
from tests.engines import metric, wait_until

MODEL = "batch-cost"
BUSY = Arrival(0, work=150)  # a batch of its own, of 320 ms: what comes meanwhile waits
LATER_S = 0.5  # when that batch is over
LATE_S = 0.05  # a request that was sent so much later than planned may have missed what it was sent for
MOST_TRIES = 10
TIMEOUT_US = 100_000


@pytest.fixture(scope="module")
def log_path(tmp_path_factory):
    return tmp_path_factory.mktemp("log") / "executions.jsonl"


@pytest.fixture(scope="module")
def server(log_path, tmp_path_factory):
    folder = tmp_path_factory.mktemp("batching") / "repo"
    with Server(repository.assemble(folder, models=(MODEL,), execution_log_path=log_path)) as server:
        yield server


@pytest.fixture
def trial(server, log_path):
    """Load the model with a batcher, then send: `trial("dynamic_batching { }", arrivals, max_batch_size=4)`.

    What was to come while the model is busy, and came later, says nothing of a batcher: it is sent once more.
    """
    path = server.repo / MODEL / repository.CONFIG
    plain = repository.read_config(path)

    def run(fragment, arrivals, moments_matter=True, **values):
        repository.write_config(plain, path)
        values = {name.replace("__", "."): value for name, value in values.items()}
        repository.edit(server.repo, MODEL, fragment, **values)
        server.load(MODEL)
        for _ in range(MOST_TRIES if moments_matter else 1):
            outcome = batch_run.run(server, MODEL, arrivals, log_path)
            assert_all_are_accounted_for(outcome, len(arrivals))
            if is_as_planned(outcome):
                break
        return outcome

    yield run
    repository.write_config(plain, path)


@pytest.fixture
def plain_server(server):
    """The model as its file has it: without a batcher."""
    server.load(MODEL)
    return server


def is_as_planned(outcome):
    """Whether all was sent at its time, and what keeps the model busy began at once."""
    requests = outcome.requests
    busy = requests[requests["work"] >= BUSY.work]
    return (requests["sent_s"] - requests["at_s"]).max() < LATE_S and not (busy["queue_ms"] > 1000 * LATE_S).any()


def assert_all_are_accounted_for(outcome, sent):
    requests, executions, counted = outcome.requests, outcome.executions, outcome.statistics
    answered = requests[requests["outcome"] == "answered"]
    assert len(requests) == len(answered) + (requests["outcome"] == "rejected").sum() == sent
    assert sorted(requests["answer_order"]) == list(range(1, sent + 1))
    assert sorted(answered["request"]) == sorted(request for batch in executions["requests"] for request in batch)
    assert counted.batches.to_dict() == executions["size"].value_counts().to_dict()
    assert counted.succeeded == len(answered)
    assert counted.failed == (requests["message"] == TIMED_OUT).sum()


def work_of(items, units=1):
    """The input of a request of so many items, each of so many units."""
    return triton.InferInput("work", [items, 1], "INT32").set_data_from_numpy(np.full((items, 1), units, np.int32))


def waiting(number, **values):
    """Requests that come while the model is busy."""
    return at([0.1 + 0.005 * index for index in range(number)], **values)


def order(outcome):
    """The answered requests as the model saw them: batch by batch, place by place."""
    return [request for batch in outcome.executions["requests"] for request in batch]


def outcomes(outcome):
    """Of each request in turn: blank if it was answered, Triton's reason if not."""
    return outcome.requests["message"].tolist()


# The model ------------------------------------------------------------------------------------------------------------


def test_a_request_may_have_several_items_and_each_has_its_place(plain_server):
    with triton.InferenceServerClient(plain_server.grpc_url) as client:
        answer = client.infer(MODEL, [work_of(3)])
    columns = {name: answer.as_numpy(name).ravel().tolist() for name in ("instance", "execution", "place")}
    assert columns["place"] == [0, 1, 2]
    assert columns["instance"] == [0, 0, 0] and len(set(columns["execution"])) == 1


def test_a_log_that_cannot_be_written_is_told_when_the_model_is_loaded(server):
    with pytest.raises(CourseError, match="The execution log /nowhere/log cannot be written .*Name another file"):
        server.load(MODEL, execution_log_path="/nowhere/log")


def test_without_a_batcher_every_request_is_a_batch(trial):
    outcome = trial("", [BUSY, *waiting(5)])
    assert outcome.executions["size"].tolist() == [1] * 6
    assert outcome.executions["work"].tolist() == [150] + [1] * 5
    assert (outcome.requests["place"] == 0).all()
    assert (outcome.executions["start_s"].iloc[1:].to_numpy() > outcome.executions["end_s"].iloc[:-1].to_numpy()).all()


# Size and time --------------------------------------------------------------------------------------------------------


def test_what_waits_while_the_model_is_busy_becomes_a_batch_of_at_most_max_batch_size(trial):
    arrivals = [BUSY, *waiting(12)]
    assert trial("dynamic_batching { }", arrivals).executions["size"].tolist() == [1, 8, 4]
    assert trial("dynamic_batching { }", arrivals, max_batch_size=5).executions["size"].tolist() == [1, 5, 5, 2]


def test_a_queue_delay_lets_requests_that_trickle_in_come_together(trial):
    trickle = at([0.03 * index for index in range(5)])
    assert trial("dynamic_batching { }", trickle).executions["size"].iloc[0] == 1
    delayed = trial("dynamic_batching { max_queue_delay_microseconds: 600000 }", trickle)
    assert delayed.executions["requests"].map(sorted).tolist() == [[1, 2, 3, 4, 5]]


def test_a_full_batch_does_not_wait_for_the_delay(trial):
    outcome = trial("dynamic_batching { max_queue_delay_microseconds: 59000000 }", waiting(8))
    assert outcome.executions["size"].tolist() == [8]


def test_a_preferred_size_splits_what_would_have_been_one_batch(trial):
    arrivals = [BUSY, *waiting(8)]
    assert trial("dynamic_batching { preferred_batch_size: [ 4 ] }", arrivals).executions["size"].tolist() == [1, 4, 4]


def test_with_a_delay_a_preferred_size_goes_at_once_and_the_rest_waits(trial):
    trickle = at([0.03 * index for index in range(5)])
    outcome = trial("dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 600000 }", trickle)
    assert outcome.executions["size"].tolist() == [4, 1]


# Instances and order --------------------------------------------------------------------------------------------------


def test_two_instances_compute_side_by_side(trial):
    outcome = trial("dynamic_batching { }", [BUSY, Arrival(0.05, work=150)], instance_group__count=2)
    first, second = outcome.executions.itertuples()
    assert {first.instance, second.instance} == {0, 1}
    assert second.start_s < first.end_s


@pytest.mark.parametrize("preserve_ordering, answered", [("false", [2, 3, 4, 1]), ("true", [1, 2, 3, 4])])
def test_answers_overtake_each_other_unless_the_order_is_preserved(trial, preserve_ordering, answered):
    arrivals = [BUSY, *at([0.05, 0.12, 0.19])]
    outcome = trial(f"dynamic_batching {{ preserve_ordering: {preserve_ordering} }}", arrivals, instance_group__count=2)
    assert order(outcome) == [1, 2, 3, 4]
    assert outcome.requests.sort_values("answer_order")["request"].tolist() == answered


def test_a_higher_priority_overtakes_and_a_request_that_names_none_has_the_default(trial):
    levels = {3: 3, 4: 3, 0: 2, 7: 2, 2: 2, 1: 1}  # what is named, and what it counts as; 3 and 7 are sent twice
    named = [3, 3, 0, 7, 7, 2, 1, 1]
    arrivals = [BUSY, *(Arrival(one.at_s, priority=level) for one, level in zip(waiting(8), named))]
    outcome = trial("dynamic_batching { priority_levels: 3 default_priority_level: 2 }", arrivals, max_batch_size=4)
    assert [levels[named[request - 2]] for request in order(outcome)[1:]] == [1, 1, 2, 2, 2, 2, 3, 3]
    assert outcome.executions["size"].tolist() == [1, 4, 4]


# The queue ------------------------------------------------------------------------------------------------------------


def test_a_full_queue_rejects_and_triton_does_not_count_it(trial):
    outcome = trial("dynamic_batching { default_queue_policy { max_queue_size: 3 } }", [BUSY, *waiting(7)])
    assert outcomes(outcome).count(QUEUE_FULL) == 4 and outcomes(outcome).count("") == 4
    assert outcome.statistics.succeeded + outcome.statistics.failed == 4


def test_what_waits_too_long_is_rejected(trial):
    policy = f"default_queue_policy {{ default_timeout_microseconds: {TIMEOUT_US} }}"
    outcome = trial(f"dynamic_batching {{ {policy} }}", [BUSY, *waiting(5), Arrival(LATER_S)])
    assert outcomes(outcome)[1:6] == [TIMED_OUT] * 5
    assert outcome.requests["execution"].isna().tolist()[1:6] == [True] * 5


def test_what_waits_too_long_is_delayed_behind_what_came_later(trial):
    policy = "default_queue_policy { default_timeout_microseconds: 1000000 timeout_action: DELAY }"
    arrivals = [Arrival(0, work=700), *waiting(3), Arrival(1.2)]  # the model is busy for 1.42 s
    outcome = trial(f"dynamic_batching {{ {policy} }}", arrivals)
    assert outcomes(outcome) == [""] * 5
    assert order(outcome)[:2] == [1, 5] and sorted(order(outcome)[2:]) == [2, 3, 4]


@pytest.mark.parametrize(
    "policy, own_us, message",
    [
        ("default_timeout_microseconds: 9000000 allow_timeout_override: true", TIMEOUT_US, TIMED_OUT),
        ("default_timeout_microseconds: 9000000", TIMEOUT_US, ""),
        (f"default_timeout_microseconds: {TIMEOUT_US} allow_timeout_override: true", 9_000_000, TIMED_OUT),
        ("allow_timeout_override: true", TIMEOUT_US, ""),
    ],
    ids=["shorter", "not allowed", "longer is not granted", "without a default it is ignored"],
)
def test_a_request_may_only_name_a_shorter_time_out_than_the_default(trial, policy, own_us, message):
    arrivals = [BUSY, *waiting(2, timeout_us=own_us), Arrival(LATER_S)]
    outcome = trial(f"dynamic_batching {{ default_queue_policy {{ {policy} }} }}", arrivals)
    assert outcomes(outcome)[1:3] == [message] * 2


def test_each_priority_may_have_a_queue_of_its_own(trial):
    batcher = (
        "dynamic_batching { priority_levels: 2 default_priority_level: 1 "
        "priority_queue_policy { key: 2 value { max_queue_size: 2 } } }"
    )
    outcome = trial(batcher, [BUSY, *waiting(4, priority=2), *waiting(4, priority=1)])
    refused = outcome.requests[outcome.requests["outcome"] == "rejected"]
    assert refused["priority"].tolist() == [2, 2] and set(refused["message"]) == {QUEUE_FULL}


def test_a_thousand_requests_at_a_short_queue_with_time_outs_are_all_accounted_for(trial, server):
    policy = f"max_queue_size: 32 default_timeout_microseconds: {TIMEOUT_US}"
    rejected = lambda: metric(server, "nv_inference_request_failure", reason="REJECTED")
    before = rejected()
    outcome = trial(
        f"dynamic_batching {{ default_queue_policy {{ {policy} }} }}",
        at(workload.poisson(1000, rate=600, seed=0)),
        moments_matter=False,
    )
    messages = outcomes(outcome)
    assert set(messages) <= {"", QUEUE_FULL, TIMED_OUT}
    assert 0 < messages.count("") < 1000
    assert outcome.statistics.succeeded + outcome.statistics.failed + messages.count(QUEUE_FULL) == 1000
    wait_until(lambda: rejected() - before == messages.count(TIMED_OUT), "the metrics count the time-outs")


# Followed while it runs -----------------------------------------------------------------------------------------------


def test_a_run_is_followed_while_requests_wait_and_are_answered(plain_server, log_path):
    *parts, whole = batch_run.follow(plain_server, MODEL, [BUSY, *at([0.1, 0.2, 3.0])], log_path)
    assert_all_are_accounted_for(whole, 4)
    assert any((part.requests["outcome"] == "waiting").any() for part in parts)
    assert any(len(part.executions) for part in parts)
    numbers = [len(part.requests) for part in parts]
    assert numbers == sorted(numbers) and numbers[0] < 4
    for part in parts:
        assert (part.requests["answered_s"] >= part.requests["sent_s"]).all()


def test_nobody_looks_while_a_request_is_late():
    run = object.__new__(batch_run._Run)  # of which only the time line is asked
    run._arrivals, run._clock = at([0.0, 0.5, 5.0]), lambda: 1.0
    for number, is_behind in enumerate((True, True, False, False)):
        run.sent = [{}] * number
        assert run.is_behind == is_behind


def test_a_run_that_is_left_sends_no_more(plain_server, log_path):
    before = log_path.read_text().count("\n")
    following = batch_run.follow(plain_server, MODEL, at([0.0, 600.0]), log_path)
    next(following)
    following.close()
    assert log_path.read_text().count("\n") - before == 1


# When it goes wrong ---------------------------------------------------------------------------------------------------


def test_a_request_that_is_neither_answered_nor_rejected_ends_the_trial(plain_server, log_path):
    with pytest.raises(CourseError, match="Request 2 to 'batch-cost' was neither answered nor rejected: work is -1"):
        batch_run.run(plain_server, MODEL, [Arrival(0), Arrival(0.1, work=-1)], log_path)


def test_a_trial_needs_requests_a_model_and_its_log(plain_server, log_path, tmp_path):
    with pytest.raises(CourseError, match="no request to send"):
        batch_run.run(plain_server, MODEL, [], log_path)
    with pytest.raises(CourseError, match="There are no statistics of 'nobody'"):
        batch_run.run(plain_server, "nobody", at([0]), log_path)
    with pytest.raises(CourseError, match="There is no execution log .*other. Set the model's execution_log_path"):
        batch_run.run(plain_server, MODEL, at([0]), tmp_path / "other")
    (tmp_path / "empty").touch()
    with pytest.raises(CourseError, match="Request 1 was answered, but is not in the execution log"):
        batch_run.run(plain_server, MODEL, at([0]), tmp_path / "empty")


def test_a_trial_needs_the_model_for_itself(plain_server, log_path):
    with triton.InferenceServerClient(plain_server.grpc_url) as client:
        client.async_infer(MODEL, [work_of(1, units=500)], lambda result, error: None)  # the trial begins meanwhile
        with pytest.raises(CourseError, match="is not an execution log of these requests alone.* let nobody else send"):
            batch_run.run(plain_server, MODEL, at([0]), log_path)


def test_a_server_that_ends_meanwhile_is_told(log_path, server):
    with Server(server.repo) as other:
        kill = threading.Timer(0.5, os.kill, (other.pid, signal.SIGKILL))
        kill.start()
        with pytest.raises(CourseError, match="The server went away while requests were under way. Start it again"):
            batch_run.run(other, MODEL, at([0] * 20, work=1000), log_path)
        kill.join()
