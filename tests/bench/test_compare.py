"""Two ways to serve the same requests in turns: what comes out, and what is refused before anything starts."""

import pytest

from inflight.bench import workload
from inflight.bench.compare import RATIOS, compare
from inflight.bench.workload import TimedRequest
from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.errors import CourseError
from inflight.triton import repository
from inflight.triton.serving.server import Server
from tests.bench.openai_stand_in import StandIn
from tests.engines import build_small


@pytest.fixture(scope="module")
def engine_dir(small_checkpoint, tmp_path_factory):
    """The small model with room for the chat template, which its few tokens make long."""
    return build_small(
        small_checkpoint,
        tmp_path_factory.mktemp("compare") / "engine",
        max_batch_size=8,
        max_input_len=512,
        max_seq_len=1024,
        max_num_tokens=4096,
    )


@pytest.fixture(scope="module")
def mild(engine_dir):
    return workload.trace("mild", load_tokenizer(engine_dir), num_requests=10)


def check(result, first, second):
    assert list(result) == ["machine", "settings", "rows", "ratios"]
    assert [row["way"] for row in result["rows"]] == [first, second]
    assert all(row["tokens_per_s"] > 0 and row["device"] for row in result["rows"])
    assert set(result["ratios"]) == set(RATIOS)
    for name, key in (("throughput", "tokens_per_s"), ("mean_latency", "mean_latency_ms")):
        one, other = (row[key] for row in result["rows"])
        assert result["ratios"][name]["median"] == pytest.approx(other / one)  # there is but one round
    assert result["settings"]["rounds"] == 1


@pytest.mark.server
def test_the_engine_alone_and_behind_triton(engine_dir, mild, tmp_path):
    told = []
    result = compare(
        "in-process", "ensemble", engine_dir, mild, tmp_path, 4, 1, progress=lambda *step: told.append(step[0])
    )
    check(result, "in-process", "ensemble")
    assert result["settings"] | {"requests": 10, "concurrency": 4, "max_batch_size": 8} == result["settings"]
    assert told == [
        "starting",
        "round 1 of 1: in-process",
        "round 1 of 1: ensemble",
    ]


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.parametrize("first, second", [("V1", "inflight_fused_batching"), ("inflight_fused_batching", "ngram")])
def test_the_engine_in_two_ways_behind_one_server(engine_dir, mild, tmp_path, first, second):
    check(compare(first, second, engine_dir, mild, tmp_path, rounds=1), first, second)


@pytest.mark.server
@pytest.mark.slow
def test_a_triton_and_a_server_with_openais_endpoints(engine_dir, mild, tmp_path):
    repo = repository.assemble(tmp_path / "running", engine_dir)
    with StandIn(" a") as stand_in, Server(repo, drain_s=0) as server:
        theirs = f"openai:{stand_in.url}"
        check(compare(server.grpc_url, theirs, engine_dir, mild, tmp_path, rounds=1), server.grpc_url, theirs)
        stand_in.tokens = lambda asked: max(1, asked // 2)
        with pytest.raises(CourseError, match=r"was asked for \d+ tokens and its text has \d+: .* obeys ignore_eos"):
            compare(server.grpc_url, theirs, engine_dir, mild, tmp_path, rounds=1)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("V1", "V2"), "no way to serve called 'V2'. There are: in-process, V1, inflight_batching"),
        (("V1", "V1"), "Both sides are V1: name two different ones"),
        (("V1", "inflight_batching", {"rounds": 0}), "The number of rounds is 0; it must be at least 1."),
        (("openai:http://127.0.0.1:9", "ensemble", {}), "The server at http://127.0.0.1:9 does not answer .*Start it"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_starts(engine_dir, tmp_path, arguments, message):
    first, second, *options = arguments
    with pytest.raises(CourseError, match=message):
        compare(first, second, engine_dir, [TimedRequest("Hello", 4, 0.0, 1)], tmp_path, **dict(*options))
    assert list(tmp_path.iterdir()) == []
