"""Several clients of a real model that answers word by word: what each hears, who leaves, and what goes wrong."""

import pytest

from inflight.lessons.sequences import streams
from inflight.notebook.checks.parts import COURSES_OWN
from inflight.triton.client.connection import NoAnswer, text
from inflight.triton.client.streams import follow
from inflight.triton.serving.server import Server
from tests.engines import wait_until

pytestmark = pytest.mark.server

CONFIG = """
backend: "python"  max_batch_size: 4
model_transaction_policy { decoupled: true }
input [ { name: "text"  data_type: TYPE_STRING  dims: [ 1 ] } ]
output [ { name: "word"  data_type: TYPE_STRING  dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU } ]
sequence_batching {
  iterative_sequence: true
  max_sequence_idle_microseconds: 60000000
  control_input [
    { name: "ID"     control [ { kind: CONTROL_SEQUENCE_CORRID  data_type: TYPE_UINT64 } ] },
    { name: "START"  control [ { kind: CONTROL_SEQUENCE_START  int32_false_true: [ 0, 1 ] } ] },
    { name: "READY"  control [ { kind: CONTROL_SEQUENCE_READY  int32_false_true: [ 0, 1 ] } ] }
  ]
}
"""
# The part of lab 07, which notes after each call how many states it keeps.
WORDS = COURSES_OWN["iterative_model"].read_text(encoding="utf-8").replace("class TritonPythonModel:", "class Words:")
WORDS += """

class TritonPythonModel(Words):
    def execute(self, requests):
        super().execute(requests)
        with open("NOTES", "w") as notes:
            print(len(self.states), file=notes)
"""
SILENT = """
import time, triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.01)
        for request in requests:
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
"""


@pytest.fixture(scope="module")
def notes(tmp_path_factory):
    return tmp_path_factory.mktemp("notes") / "states"


@pytest.fixture(scope="module")
def server(notes, tmp_path_factory):
    repo = tmp_path_factory.mktemp("streams") / "repo"
    for name, code in (("words", WORDS.replace("NOTES", str(notes))), ("silent", SILENT)):
        (repo / name / "1").mkdir(parents=True)
        (repo / name / "config.pbtxt").write_text(CONFIG)
        (repo / name / "1" / "model.py").write_text(code)
    with Server(repo, drain_s=0) as server:
        yield server


def of_each(heard):
    return heard.groupby("stream")["word"].agg(" ".join).to_dict()


def test_each_hears_its_own_words_in_their_order_and_an_empty_word_is_one(server):
    heard = streams.ask(server, "words", ["a ä c", "", "one two three four"])
    assert of_each(heard) == {1: "a ä c", 2: "", 3: "one two three four"} and set(heard["message"]) == {""}


def test_who_leaves_hears_no_more_the_others_hear_all_and_the_courses_model_forgets_who_is_gone(server, notes):
    for _ in range(2):  # more who leave than there are places: each gets one back
        heard = streams.ask(server, "words", ["x " * 200] * 4 + ["y z"], leave_after={1: 1, 2: 2, 3: 3, 4: 9})
        assert heard.groupby("stream").size().to_dict() == {1: 1, 2: 2, 3: 3, 4: 9, 5: 2}
    assert of_each(streams.ask(server, "words", ["to the end"], leave_after={1: 5})) == {1: "to the end"}
    wait_until(lambda: notes.read_text() == "0\n", "the model keeps no state")  # it notes that after it has answered


def test_who_is_refused_or_waits_in_vain_is_told(server):
    [row] = streams.ask(server, "nobody", ["a"]).itertuples()
    assert (row.stream, row.word) == (1, "") and "nobody" in row.message
    with pytest.raises(NoAnswer, match="0.5 s"):
        list(follow(server.grpc_url, "silent", [{"text": text("a")}], timeout_s=0.5))
    assert streams.ask(server, "words", []).empty
