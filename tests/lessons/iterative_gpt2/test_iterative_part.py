"""A learner's iterative models in a real Triton: the course's own parts."""

import shutil

import pytest

from inflight.lessons import iterative_gpt2
from inflight.lessons.iterative_gpt2 import gpt2_client
from inflight.models import gpt2_checkpoint
from inflight.notebook.checks import parts
from inflight.triton import repository
from inflight.triton.serving.server import Server

pytestmark = pytest.mark.server

PARTS = ("iterative_gpt2", "paged_gpt2")
PROMPTS = ["Programming in C++ is like", "One", "The capital of France", "A cat is", "Once upon a time", "A king"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repo, folder = tmp_path_factory.mktemp("part") / "repo", gpt2_checkpoint.find("course-gpt2")
    models = ("iterative-gpt2",)
    repository.assemble(repo, models=models, gpt2_checkpoint_dir=folder, gpt2_dtype="float32")
    for name in PARTS:
        (repo / name / "1").mkdir(parents=True)
        shutil.copy(parts.COURSES_OWN[name], repo / name / "1" / "model.py")
        log = repo / name / "1" / "waited.log"
        (repo / name / "config.pbtxt").write_text(iterative_gpt2.config(name, checkpoint_dir=folder, log=log))
    with Server(repo, drain_s=0) as server:
        yield server


def answers(server, model):
    tokens = gpt2_client.run(server.grpc_url, model, PROMPTS, 16)
    return gpt2_client.standings(tokens)["text"].tolist()


@pytest.mark.parametrize("model", PARTS)
def test_it_answers_like_the_courses_model(server, model):
    assert answers(server, model) == answers(server, "iterative-gpt2")


def test_each_prompt_waits_until_the_first_stream_has_so_many_tokens_more(server):
    tokens = gpt2_client.run(server.grpc_url, PARTS[0], PROMPTS[:3], 12, apart=4)
    before = [(tokens["stream"] == 1)[: tokens.index[tokens["stream"] == stream][0]].sum() for stream in (2, 3)]
    assert before[0] >= 4 and before[1] >= 8 and len(tokens) == 36
