"""Two batching types of the engine alone, without a server."""

import pytest

from inflight.bench import in_process, workload
from inflight.bench.devices import of_engine
from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.errors import CourseError
from tests.engines import build_small, build_tiny, write_tiny


@pytest.fixture(scope="module")
def engine_dir(small_checkpoint, tmp_path_factory):
    """The small model with room for the chat template, which its few tokens make long."""
    folder = tmp_path_factory.mktemp("in_process") / "engine"
    return build_small(
        small_checkpoint, folder, max_batch_size=4, max_input_len=512, max_seq_len=1024, max_num_tokens=4096
    )


def test_both_types_run_in_turns_and_a_prediction_stands_beside_them(engine_dir):
    steps, mild = [], workload.trace("mild", load_tokenizer(engine_dir), num_requests=10)
    result = in_process.compare("V1", "inflight_fused_batching", engine_dir, mild, rounds=2, progress=steps.append)
    static, in_flight = result["rows"]
    assert (static["way"], in_flight["way"]) == ("V1, in process", "inflight_fused_batching, in process")
    iterations = result["predicted"]["iterations"]
    assert iterations["V1"] > iterations["inflight_fused_batching"]
    assert result["devices"] == dict.fromkeys(("V1", "inflight_fused_batching"), of_engine(engine_dir))
    predicted, measured = result["predicted"]["throughput"], result["ratios"]["throughput"]
    assert predicted > 1 and measured["min"] <= measured["median"] <= measured["max"]
    ratio = result["ratios"]["throughput_measured_over_predicted"]["median"]
    assert ratio == pytest.approx(measured["median"] / predicted)
    ways = [step for step in steps if ": " in step and step.startswith(("round", "warm-up"))]
    assert ways == [
        "warm-up: inflight_fused_batching",
        "warm-up: V1",
        "round 1 of 2: V1",
        "round 1 of 2: inflight_fused_batching",
        "round 2 of 2: inflight_fused_batching",
        "round 2 of 2: V1",
    ]


def test_an_engine_of_pytorch_runs_the_same(small_checkpoint, tmp_path):
    tiny = write_tiny("llama", small_checkpoint.path, tmp_path / "tiny", max_position_embeddings=1024)
    sizes = {"max_batch_size": 4, "max_input_len": 512, "max_seq_len": 1024, "max_num_tokens": 4096}
    folder = build_tiny(tiny, tmp_path / "engine", **sizes)
    mild = workload.trace("mild", load_tokenizer(folder), num_requests=6)
    result = in_process.compare("V1", "inflight_fused_batching", folder, mild, rounds=1)
    assert result["ratios"]["throughput"]["median"] > 0 and result["predicted"]["throughput"] > 1


def test_two_policies_run_in_a_cache_that_is_short_and_nothing_is_predicted(engine_dir):
    mild = workload.trace("mild", load_tokenizer(engine_dir), num_requests=6)
    ways = ("guaranteed_no_evict", "max_utilization")
    result = in_process.compare(*ways, engine_dir, mild, rounds=1, kv_cache_tokens=1024)
    assert [row["way"] for row in result["rows"]] == [f"{way}, in process" for way in ways]
    assert list(result["ratios"]) == ["throughput"] and "predicted" not in result
    assert result["settings"]["kv_cache_tokens"] == 1024


@pytest.mark.parametrize(
    "first, second, message",
    [
        (
            "llama-python",
            "ensemble",
            "llama-python does not run in process, where there are V1, inflight_batching",
        ),
        ("V1", "V1", "Both sides are V1"),
    ],
)
def test_what_does_not_run_in_process_is_refused(engine_dir, first, second, message):
    with pytest.raises(CourseError, match=message):
        in_process.compare(first, second, engine_dir, [])
