"""Readers and a newcomer, against a real server of the small model."""

import pytest

from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.engine.folder import read
from inflight.errors import CourseError
from inflight.lessons.kv_cache.long_prompt import QUIET_TOKENS, prompts_that_fit, send_while_others_read
from inflight.triton import repository
from inflight.triton.client import Client
from inflight.triton.server import Server
from tests.engines import build_small

pytestmark = pytest.mark.server

PROMPT = list(range(5, 45))


@pytest.fixture
def client(small_repo):
    with Server(small_repo) as server, Client(server.grpc_url) as client:
        yield client


def test_every_token_of_every_reader_is_in_the_table(client):
    gaps, newcomer = send_while_others_read(client, PROMPT, readers=3, tokens=QUIET_TOKENS + 20)
    assert gaps.groupby("reader").size().tolist() == [QUIET_TOKENS + 19] * 3
    assert (gaps["gap_ms"] >= 0).all()
    assert (gaps["time_s"] < 0).sum() >= 3 * (QUIET_TOKENS - 1)
    assert len(newcomer.pieces) == 4


@pytest.fixture
def roomy(small_checkpoint, tmp_path):
    """The chat template takes many of the small model's tokens, so its prompts are allowed some more of them."""
    engine_dir = build_small(small_checkpoint, tmp_path / "engine", max_input_len=64)
    repo = repository.assemble(tmp_path / "repo", engine_dir, decoupled_mode=True)
    with Server(repo) as server, Client(server.grpc_url) as client:
        yield client, engine_dir


def test_where_an_engine_takes_shorter_prompts_they_are_made_as_long_as_it_takes(roomy, capsys):
    client, engine_dir = roomy
    tokenizer, most = load_tokenizer(engine_dir), read(engine_dir).build_config.max_input_len
    lengths = lambda prompts: [len(tokenizer.encode(tokenizer.chat(prompt))) for prompt in prompts]
    assert lengths(prompts_that_fit(client, [most, most - 1], tokenizer)) == [most, most - 1]
    assert capsys.readouterr().err == ""
    assert lengths(prompts_that_fit(client, [most - 1, most + 20], tokenizer)) == [most - 1, most]
    assert capsys.readouterr().err == (
        f"The engine at {client.url} takes prompts of at most {most:,} tokens: here the longest has so many, and "
        f"not {most + 20:,}.\n"
    )
    with pytest.raises(CourseError, match="gRPC is needed"):
        prompts_that_fit(Client("http://127.0.0.1:1"), [most], tokenizer)
