"""Two batching types of the engine alone, without a server."""

import pytest

from inflight.bench import in_process, workload
from inflight.bench.devices import of_engine
from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.errors import CourseError
from tests.engines import build_small


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
