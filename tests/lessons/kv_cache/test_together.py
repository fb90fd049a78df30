"""Requests that are to wait behind a first one are refused where they do not; the lecture counts those that do."""

import pytest

from inflight.bench.workload import TimedRequest
from inflight.errors import CourseError
from inflight.lessons import kv_cache
from inflight.triton import Client

pytestmark = pytest.mark.server


def test_requests_for_which_there_is_room_beside_the_first_are_told(streaming_server):
    first, *others = (TimedRequest(f"Tell me {number} facts about rivers.", 24, 0.0, 0) for number in (2, 3, 4))
    log = streaming_server.repo.parent / "iterations.jsonl"
    with Client(streaming_server.grpc_url) as client, pytest.raises(CourseError, match="of 2 requests began, 0 waited"):
        kv_cache.run_behind(first, client, others, log)
