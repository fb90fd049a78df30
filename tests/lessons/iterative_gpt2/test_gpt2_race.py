"""Streams that race for one GPT-2 model: client and widget, against a real server of a tiny model."""

import threading

import pytest

from inflight.errors import CourseError
from inflight.lessons import iterative_gpt2
from inflight.lessons.iterative_gpt2.gpt2_client import race, standings, table
from inflight.models import gpt2
from inflight.triton import repository
from inflight.triton.repository import GPT2
from inflight.triton.serving.server import Server
from tests.engines import metric, wait_until
from tests.tiny_gpt2 import POSITIONS, answer, tiny_gpt2

pytestmark = pytest.mark.server

SIMPLE, ITERATIVE = GPT2
PROMPTS = ["Programming in C++ is like", "One two"]
LONG = POSITIONS - 28


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_gpt2(tmp_path_factory.mktemp("gpt2"))


@pytest.fixture(scope="module")
def server(folder, tmp_path_factory):
    repo = repository.assemble(
        tmp_path_factory.mktemp("race") / "repo", models=GPT2, gpt2_checkpoint_dir=folder, gpt2_dtype="float32"
    )
    with Server(repo, drain_s=0) as server:
        yield server


def run(server, model, prompts=PROMPTS, max_tokens=32, **options):
    return table(
        [token for arrived in race(server.grpc_url, model, prompts, max_tokens, **options) for token in arrived]
    )


def is_idle(server):
    return metric(server, "inflight_gpt2_kv_cache_slots", kind="sequences") == 0


# The client -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", GPT2)
def test_every_token_of_every_stream_is_there(server, folder, model):
    tokens = run(server, model)
    assert [group["token"].tolist() for _, group in tokens.groupby("stream")] == [list(range(1, 33))] * 2
    assert all(group["time_s"].is_monotonic_increasing for _, group in tokens.groupby("stream"))
    alone = gpt2.TutorialGpt2(folder, "cpu")
    assert standings(tokens)["text"].tolist() == ["".join(answer(alone, prompt, 32)) for prompt in PROMPTS]
    assert standings(tokens)["tokens"].tolist() == [32, 32]


def test_what_is_refused_is_one_sentence(server):
    with pytest.raises(CourseError, match="text_input is empty: send at least one character."):
        run(server, ITERATIVE, ["One", ""])
    wait_until(lambda: is_idle(server), "the other streams have ended")


# The widget -----------------------------------------------------------------------------------------------------------


def ready_again(board):
    return not board.run_button.disabled and board.stop_button.disabled


def test_the_board_runs_unattended_and_keeps_what_it_measured(server):
    board = iterative_gpt2.board(server)
    board.controls["offset_s"].value, board.controls["max_tokens"].value = 0, 64
    standing = board.run()
    assert standings(standing.tokens)["tokens"].tolist() == [64, 64]
    assert standing.alt.startswith("simple-gpt2: stream 1: 64 tokens, the first after") and standing.alt in repr(board)
    assert "Done" in board.status.value and ready_again(board)


def test_its_controls_reach_the_race(server):
    board = iterative_gpt2.board(server, (ITERATIVE,))
    board.controls["streams"].value, board.controls["max_tokens"].value, board.controls["offset_s"].value = 3, 16, 0.1
    standing = standings(board.run().tokens)
    assert standing["tokens"].tolist() == [16] * 3 and standing["first_s"].iloc[2] > 0.2


# Ended early ----------------------------------------------------------------------------------------------------------


def test_stop_ends_the_race_and_keeps_its_tokens(server):
    board = iterative_gpt2.board(server, (ITERATIVE,))
    board.controls["streams"].value, board.controls["max_tokens"].value, board.controls["offset_s"].value = 8, 104, 3
    some = threading.Event()
    board.words.observe(lambda _: some.set(), "value")
    board.run_button.click()
    assert some.wait(60)
    board.stop_button.click()
    board.wait()
    assert "Stopped" in board.status.value and ready_again(board)
    assert len(board.frame.tokens) < 8 * 104
    wait_until(lambda: is_idle(server), "every sequence has ended")
