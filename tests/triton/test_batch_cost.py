"""Requests to the model of batches on a time line: what became of each, and what Triton counts of them."""

import numpy as np
import pytest
import tritonclient.grpc as triton

from inflight.errors import QUEUE_FULL, TIMED_OUT, CourseError
from inflight.lessons.batchers import batch_run
from inflight.lessons.batchers.batch_run import Arrival, at
from inflight.triton import repository
from inflight.triton.serving.server import Server

pytestmark = pytest.mark.server

MODEL = "batch-cost"
BUSY = Arrival(0, work=990)  # a batch of its own, of 2 s: what comes meanwhile waits
LATER_S = 3.0  # when that batch is over
TIMEOUT_US = 500_000


@pytest.fixture(scope="module")
def log_path(tmp_path_factory):
    return tmp_path_factory.mktemp("log") / "executions.jsonl"


@pytest.fixture(scope="module")
def server(log_path, tmp_path_factory):
    folder = tmp_path_factory.mktemp("batching") / "repo"
    with Server(repository.assemble(folder, models=(MODEL,), execution_log_path=log_path), drain_s=0) as server:
        yield server


@pytest.fixture
def trial(server, log_path):
    """Load the model with a batcher, then send: `trial("dynamic_batching { }", arrivals)`."""
    path = server.repo / MODEL / repository.CONFIG
    plain = repository.read_config(path)

    def run(fragment, arrivals):
        repository.edit(server.repo, MODEL, fragment)
        server.load(MODEL)
        outcome = batch_run.run(server, MODEL, arrivals, log_path)
        assert_all_are_accounted_for(outcome, len(arrivals))
        return outcome

    yield run
    repository.write_config(plain, path)


@pytest.fixture
def plain_server(server):
    """The model as its file has it: without a batcher."""
    server.load(MODEL)
    return server


def assert_all_are_accounted_for(outcome, sent):
    requests, executions, counted = outcome.requests, outcome.executions, outcome.statistics
    answered = requests[requests["outcome"] == "answered"]
    assert len(requests) == len(answered) + (requests["outcome"] == "rejected").sum() == sent
    assert sorted(requests["answer_order"]) == list(range(1, sent + 1))
    assert sorted(answered["request"]) == sorted(request for batch in executions["requests"] for request in batch)
    assert counted.batches.to_dict() == executions["size"].value_counts().to_dict()
    assert counted.succeeded == len(answered)
    assert counted.failed == (requests["code"] == TIMED_OUT).sum()


def work_of(items, units=1):
    """The input of a request of so many items, each of so many units."""
    return triton.InferInput("work", [items, 1], "INT32").set_data_from_numpy(np.full((items, 1), units, np.int32))


def waiting(number):
    """Requests that come while the model is busy."""
    return at([0.5 + 0.01 * index for index in range(number)])


def outcomes(outcome):
    """Of each request in turn: blank if it was answered, why if not."""
    return outcome.requests["code"].tolist()


# The model ------------------------------------------------------------------------------------------------------------


def test_a_request_may_have_several_items_and_each_has_its_place(plain_server):
    with triton.InferenceServerClient(plain_server.grpc_url) as client:
        answer = client.infer(MODEL, [work_of(3)])
    columns = {name: answer.as_numpy(name).ravel().tolist() for name in ("instance", "execution", "place")}
    assert columns["place"] == [0, 1, 2]
    assert columns["instance"] == [0, 0, 0] and len(set(columns["execution"])) == 1


def test_in_a_closed_loop_a_request_waits_for_a_caller_who_has_an_answer(plain_server, log_path):
    rows = batch_run.run(plain_server, MODEL, at([0.0] * 6), log_path, callers=2).requests
    under_way = [((rows["sent_s"] <= sent_s) & (rows["answered_s"] > sent_s)).sum() for sent_s in rows["sent_s"]]
    assert max(under_way) == 2 and (rows["outcome"] == "answered").all()
    assert (rows["sent_s"] > rows["at_s"]).all()


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


# When it goes wrong ---------------------------------------------------------------------------------------------------


def test_a_request_that_is_neither_answered_nor_rejected_ends_the_trial(plain_server, log_path):
    with pytest.raises(CourseError, match="work is -1"):
        batch_run.run(plain_server, MODEL, [Arrival(0), Arrival(0.1, work=-1)], log_path)


def test_a_trial_needs_a_model_and_its_log(plain_server, log_path, tmp_path):
    with pytest.raises(CourseError, match="nobody"):
        batch_run.run(plain_server, "nobody", at([0]), log_path)
    with pytest.raises(CourseError, match=str(tmp_path / "other")):
        batch_run.run(plain_server, MODEL, at([0]), tmp_path / "other")
