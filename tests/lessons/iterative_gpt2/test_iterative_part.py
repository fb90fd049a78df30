"""A learner's iterative model in a real Triton: the course's own part."""

import shutil

import pytest

from inflight.lessons.iterative_gpt2 import gpt2_client
from inflight.models import gpt2_checkpoint
from inflight.notebook.checks import parts
from inflight.triton import repository
from inflight.triton.serving.server import Server

pytestmark = pytest.mark.server

MODEL = "own"
PROMPTS = ["Programming in C++ is like", "One", "The capital of France", "A cat is", "Once upon a time", "A king"]
CONFIG = """
name: "{name}"
backend: "python"
max_batch_size: 8
model_transaction_policy {{ decoupled: true }}
input [ {{ name: "text_input"  data_type: TYPE_STRING  dims: [ 1 ] }} ]
output [ {{ name: "text_output"  data_type: TYPE_STRING  dims: [ 1 ] }} ]
sequence_batching {{
  iterative_sequence: true
  direct {{ }}
  max_sequence_idle_microseconds: 60000000
  control_input [
    {{ name: "number"  control [ {{ kind: CONTROL_SEQUENCE_CORRID  data_type: TYPE_UINT64 }} ] }},
    {{ name: "start"  control [ {{ kind: CONTROL_SEQUENCE_START  fp32_false_true: [ 0, 1 ] }} ] }},
    {{ name: "ready"  control [ {{ kind: CONTROL_SEQUENCE_READY  fp32_false_true: [ 0, 1 ] }} ] }}
  ]
}}
parameters {{ key: "checkpoint_dir"  value {{ string_value: "{folder}" }} }}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repo, folder = tmp_path_factory.mktemp("part") / "repo", gpt2_checkpoint.find("course-gpt2")
    models = ("iterative-gpt2",)
    repository.assemble(repo, models=models, gpt2_checkpoint_dir=folder, gpt2_dtype="float32")
    (repo / MODEL / "1").mkdir(parents=True)
    shutil.copy(parts.COURSES_OWN["iterative_gpt2"], repo / MODEL / "1" / "model.py")
    (repo / MODEL / "config.pbtxt").write_text(CONFIG.format(name=MODEL, folder=folder))
    with Server(repo) as server:
        yield server


def answers(server, model):
    tokens = gpt2_client.run(server.grpc_url, model, PROMPTS, 16)
    return gpt2_client.standings(tokens)["text"].tolist()


def test_it_answers_like_the_courses_model(server):
    assert answers(server, MODEL) == answers(server, "iterative-gpt2")
