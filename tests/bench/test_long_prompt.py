"""Readers and a newcomer, against a real server of the small model."""

import pytest

from inflight.bench.long_prompt import QUIET_TOKENS, send_while_others_read
from inflight.errors import CourseError
from inflight.triton.client import Client
from inflight.triton.server import Server

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


def test_a_refused_request_ends_it_in_a_sentence(client):
    with pytest.raises(CourseError, match="exceeds maximum input length"):
        send_while_others_read(client, list(range(5, 65)), readers=2, tokens=QUIET_TOKENS + 4)
    with pytest.raises(CourseError, match="token id 99999"):
        send_while_others_read(client, [99999] * 20, readers=2)
