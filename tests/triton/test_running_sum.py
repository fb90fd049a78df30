"""Sequences sent to running-sum: what each remembers, what the model is told, and what is refused."""

import numpy as np
import pytest

from inflight.lessons.sequences import sequences
from inflight.lessons.sequences.sequences import Step, send
from inflight.triton import repository
from inflight.triton.repository import RUNNING_SUM as MODEL
from inflight.triton.server import Server

pytestmark = pytest.mark.server

PLACES = 4
CANDIDATES = "sequence_batching.oldest.max_candidate_sequences"
LATE_US = 60_000_000


@pytest.fixture(scope="module")
def log_path(tmp_path_factory):
    return tmp_path_factory.mktemp("log") / "executions.jsonl"


@pytest.fixture(scope="module")
def server(log_path, tmp_path_factory):
    repo = repository.assemble(
        tmp_path_factory.mktemp("sequences") / "repo",
        models=(MODEL,),
        execution_log_path=log_path,
        running_sum_max_batch_size=PLACES,
        running_sum_max_sequence_idle_microseconds=LATE_US,
    )
    with Server(repo) as server:
        yield server


@pytest.fixture
def load(server, log_path):
    """Load the model with values of its batcher, and forget the executions before."""

    def load(**values):
        server.load(MODEL, **values)
        log_path.write_text("")

    return load


def talks(ids, length):
    """Sequences of `length` steps, in turns; step n of sequence i has the value 100 i + n."""
    return [Step(i, 100 * i + n, f"{i}.{n}", start=n == 0, end=n == length - 1) for n in range(length) for i in ids]


def starts(*ids):
    return [Step(i, start=True) for i in ids]


# What belongs together ------------------------------------------------------------------------------------------------


def test_each_sequence_has_a_sum_and_a_memory_of_its_own(server, load):
    load()
    answers = send(server, talks([1, 2, 3], 4))
    assert set(answers["outcome"]) == {"answered"}
    for number, rows in answers.groupby("sequence"):
        assert rows["sum"].tolist() == np.cumsum([100 * number + n for n in range(4)]).tolist()
        assert rows["memory"].tolist() == ["\n".join(f"{number}.{n}" for n in range(last + 1)) for last in range(4)]
        assert rows["controls"].tolist() == ["START READY", "READY", "READY", "END READY"]
        assert rows["execution"].is_monotonic_increasing and rows["execution"].is_unique


def test_a_sequence_outlives_the_call_and_is_over_at_its_end(server, load):
    load()
    assert send(server, [Step(7, 1, "Who are you?", start=True)])["sum"].tolist() == [1]
    later = send(server, [Step(7, 2), Step(7, 3, "Ünïcödé 日本", end=True)])
    assert later["sum"].tolist() == [3, 6] and later["memory"].iloc[-1] == "Who are you?\nÜnïcödé 日本"
    again = send(server, [Step(7, 5, start=True, end=True)])
    assert again[["sum", "memory", "controls"]].values.tolist() == [[5, "", "START END READY"]]


# What the model is told -----------------------------------------------------------------------------------------------


def test_a_place_that_nobody_came_for_is_not_ready(server, load, log_path):
    load()
    places = send(server, starts(11, 12, 13)).set_index("sequence")["place"]
    last = places.idxmax()
    before = sequences.executions(log_path)["execution"].max()
    send(server, [Step(int(last), 1)])
    log = sequences.executions(log_path)
    rows = log[log["execution"] > before]
    assert rows["place"].tolist() == [0, 1, 2]  # the places below it come along, empty
    assert rows["ready"].tolist() == [False, False, True]
    assert rows["sequence"].tolist() == [0, 0, last]


@pytest.mark.parametrize("strategy", [{}, {CANDIDATES: PLACES}], ids=["direct", "oldest"])
def test_what_is_refused_is_a_row_with_tritons_reason(server, load, log_path, strategy):
    load(**strategy)
    answers = send(server, [Step(21, 1), Step(22, 5, start=True), Step(21, 2, end=True), Step(22, 5, end=True)])
    assert answers["outcome"].tolist() == ["refused", "answered", "refused", "answered"]
    assert "must specify the START flag" in answers["message"].iloc[0]
    assert answers["sum"].dropna().tolist() == [5, 10]
    assert 21 not in set(sequences.executions(log_path)["sequence"])
