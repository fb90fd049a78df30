"""What a model's process makes of a request that is wrong, or that the model fails on."""

import numpy as np
import pytest

from inflight.errors import CourseError
from inflight.triton.client.connection import Connection
from inflight.triton.serving.server import Server
from tests.engines import wait_until

pytestmark = pytest.mark.server

MODEL = "faulty"
CONFIG = """
backend: "python"
max_batch_size: 1
input [ { name: "values"  data_type: TYPE_INT32  dims: [ -1 ] } ]
output [ { name: "inverse"  data_type: TYPE_FP32  dims: [ 1 ] } ]
instance_group [ { count: 1  kind: KIND_CPU } ]
"""
CODE = """
import numpy as np
import triton_python_backend_utils as pb_utils
from inflight.triton.model import python_model

class TritonPythonModel:
    def execute(self, requests):
        return [python_model.answer(self._inverse, request) for request in requests]

    def _inverse(self, request):
        value = python_model.array(request, "values").sum().item()
        return [pb_utils.Tensor("inverse", np.array([[1 / value]], np.float32))]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repo") / MODEL
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(CONFIG, encoding="utf-8")
    (folder / "1" / "model.py").write_text(CODE, encoding="utf-8")
    with Server(folder.parent, drain_s=0) as server:
        yield server


def ask(server, values) -> float:
    with Connection(server.grpc_url) as connection:
        return (
            connection.infer(MODEL, {"values": np.array([values], np.int32)}, timeout_s=60).as_numpy("inverse").item()
        )


def test_what_a_model_fails_on_is_one_sentence_for_the_client_and_a_traceback_in_the_log(server):
    assert ask(server, [4]) == 0.25
    with pytest.raises(CourseError) as caught:
        ask(server, [0])
    assert "ZeroDivisionError" in str(caught.value) and "\n" not in str(caught.value)
    wait_until(lambda: "division by zero" in server.log_tail(), "the log has the traceback")
    assert ask(server, [4]) == 0.25


def test_more_values_than_are_taken(server):
    with pytest.raises(CourseError, match="262,144"):
        ask(server, [1] * (256 * 1024 + 1))
