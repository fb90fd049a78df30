"""Two running servers on the same requests."""

import pytest

from inflight.bench import compare_servers
from inflight.bench.workload import TimedRequest
from inflight.errors import CourseError
from inflight.triton import repository
from inflight.triton.server import Server

REQUESTS = [TimedRequest("Hi", length, 0.0, 2) for length in (6, 3, 3)]


@pytest.fixture(scope="module")
def servers(small_engine, tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    repos = [
        repository.assemble(folder / name, small_engine, apply_chat_template=False, batching_strategy=name)
        for name in ("V1", "inflight_fused_batching")
    ]
    with Server(repos[0]) as first, Server(repos[1]) as second:
        yield first, second


@pytest.mark.server
@pytest.mark.slow
def test_both_get_the_same_requests_in_turns_and_ratios_are_second_over_first(servers):
    urls = [servers[0].grpc_url, servers[1].http_url]
    steps = []
    result = compare_servers.bench(urls, REQUESTS, rounds=2, progress=steps.append)
    assert [row["server"] for row in result["rows"]] == urls
    assert set(result["ratios"]) == {"throughput", "mean_latency", "p99_latency"}
    assert all(ratio["min"] <= ratio["median"] <= ratio["max"] for ratio in result["ratios"].values())
    assert [step.partition(":")[2].strip() for step in steps] == [*urls[::-1], *urls, *urls[::-1]]
    assert result["settings"]["output_tokens"] == 12


@pytest.mark.parametrize(
    "urls, rounds, said",
    [
        (["127.0.0.1:1"], 1, "give it twice"),
        (["127.0.0.1:1"] * 3, 1, "give it twice"),
        (["127.0.0.1:8001", "http://127.0.0.1:8000"], 1, "two different servers"),
        (["127.0.0.1:8001", "127.0.0.1:9001"], 0, "at least 1"),
        (["127.0.0.1:8001", "lab"], 1, "is no address of a server"),
    ],
)
def test_what_cannot_be_compared_is_refused(urls, rounds, said):
    with pytest.raises(CourseError, match=said):
        compare_servers.check(urls, rounds)


@pytest.mark.server
@pytest.mark.slow
def test_a_model_that_one_does_not_have_is_named(servers):
    with pytest.raises(CourseError, match="is ready with a model llama-python"):
        compare_servers.bench([each.grpc_url for each in servers], REQUESTS, model="llama-python", rounds=1)
