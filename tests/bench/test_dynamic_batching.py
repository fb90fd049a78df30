"""The benchmark of dynamic batching: its arithmetic, and one short run of the real thing."""

import json
from collections import Counter

import pytest
from typer.testing import CliRunner

from inflight.bench import dynamic_batching
from inflight.cli.commands import app
from inflight.errors import CourseError
from inflight.models import huggingface

REQUESTS, LARGEST = 32, 4


@pytest.fixture(scope="module")
def result(small_checkpoint, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFLIGHT_HOME", str(tmp_path_factory.mktemp("home")))
        folder = huggingface.folder(small_checkpoint)
    told = []
    result = dynamic_batching.bench(
        folder,
        tmp_path_factory.mktemp("work"),
        rounds=1,
        requests=REQUESTS,
        max_batch_size=LARGEST,
        progress=lambda *step: told.append(step),
    )
    return {**result, "told": told}


# Arithmetic -----------------------------------------------------------------------------------------------------------


def test_a_line_is_found_again():
    fixed_ms, item_ms = dynamic_batching.line({size: 20 + 3 * size for size in (1, 2, 4, 8)})
    assert (fixed_ms, item_ms) == pytest.approx((20, 3))


@pytest.mark.parametrize(("requests", "batches"), [(17, [1, 8, 8]), (20, [1, 8, 8, 3]), (16, [1, 8, 7])])
def test_batches_of_a_load_that_fills_two(requests, batches):
    assert dynamic_batching.expected_batches(requests, 8) == batches


@pytest.mark.parametrize(
    ("fixed_ms", "item_ms", "gain"),
    [
        (20, 0, 17 / 3),  # a batch costs what one text costs: as many times fewer batches
        (0, 5, 1.0),  # only texts cost: nothing to gain
        (20, 5, 17 * 25 / (25 + 60 + 60)),
    ],
)
def test_the_gain_by_hand(fixed_ms, item_ms, gain):
    assert dynamic_batching.predicted_gain(fixed_ms, item_ms, 17, 8) == pytest.approx(gain)


# Measured -------------------------------------------------------------------------------------------------------------


@pytest.mark.server
@pytest.mark.slow
def test_it_gains_what_its_batches_promise(result):
    none, dynamic = result["rows"]
    assert (none["batcher"], dynamic["batcher"]) == ("none", "dynamic")
    assert none["mean_batch"] == 1
    assert dynamic["mean_batch"] > LARGEST / 2, "most batches are full"
    assert dynamic["expected_batch"] == REQUESTS / 9
    assert sorted(result["cost"]["batch_ms"]) == [1, 2, 4]
    for name in ("dynamic_over_none", "measured_over_predicted"):
        ratio = result["ratios"][name]
        assert 0 < ratio["min"] <= ratio["median"] <= ratio["max"]


@pytest.mark.server
@pytest.mark.slow
def test_it_tells_where_it_is(result):
    assert [done for _, done, _ in result["told"]] == list(range(4))
    assert {total for *_, total in result["told"]} == {4}
    assert Counter(what.rpartition(": ")[2] for what, *_ in result["told"]) == {
        "none": 2,
        "dynamic": 2,
    }
    assert result["told"][-1][0].startswith("round 1 of 1: ")


@pytest.mark.server
@pytest.mark.slow
def test_it_is_one_json_object(result):
    kept = {name: value for name, value in result.items() if name != "told"}
    assert json.loads(json.dumps(kept))["settings"]["in_flight"] == 2 * LARGEST


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--max-batch-size", "1"], "with less than 2 there is nothing to batch"),
        (["--requests", "10"], "10 requests cannot keep 16 under way"),
    ],
)
def test_what_the_command_cannot_do_is_refused(options, message):
    result = CliRunner().invoke(app, ["bench", "batchers", *options])
    assert isinstance(result.exception, CourseError) and message in str(result.exception)
