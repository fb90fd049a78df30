"""How far builds are from their checkpoint, on a small model; what cannot be measured is refused."""

import json

import pytest

from inflight.bench import quality
from inflight.checkpoint.sources import fetch
from inflight.checkpoint.tokenizer import load_tokenizer
from tests.engines import build_small, write_quantized


@pytest.fixture(scope="module")
def stored(small_checkpoint, tmp_path_factory):
    """The small model as people share models: in 4 bits, the vocabulary in 8."""
    return fetch(str(write_quantized(small_checkpoint.path, tmp_path_factory.mktemp("stored") / "q.gguf", "Q4_1")))


def test_a_small_models_builds_beside_itself(stored, tmp_path):
    folders = {
        name: build_small(stored, tmp_path / name, quant_algo=algo)
        for name, algo in {"W4A8": "W4A8", "W4A16": "W4A16", "float": None}.items()
    }
    steps = []
    result = quality.bench(stored, folders, 800, lambda what, done, total: steps.append((done, total)))
    assert result["settings"]["tokens"] == 768 and result["settings"]["default_build"] == "W4A8"
    assert [row["build"] for row in result["rows"]] == ["checkpoint", *folders]
    assert all(done < total for done, total in steps) and steps == sorted(steps)
    own, *builds = result["rows"]
    for row in builds:
        size = (folders[row["build"]] / "openvino_model.bin").stat().st_size
        assert row["weight_bytes"] == size
        for figure in ("perplexity", "over_checkpoint", "same_top"):
            assert row[figure]["low"] <= row[figure]["value"] <= row[figure]["high"], figure
        ratio = row["perplexity"]["value"] / own["perplexity"]["value"]
        assert row["over_checkpoint"]["value"] == pytest.approx(ratio)
    assert builds[2]["same_top"]["value"] > 0.98 and builds[2]["over_checkpoint"]["value"] == pytest.approx(1, abs=0.01)
    assert builds[1]["over_checkpoint"]["value"] == pytest.approx(1, abs=0.02)
    ratio = result["ratios"]["perplexity_over_checkpoint"]
    assert (ratio["median"], ratio["min"], ratio["max"]) == tuple(builds[0]["over_checkpoint"].values())
    assert json.dumps(result) and "±" in quality.in_words(result["rows"])[1]["same_top"]


def test_the_prose_has_twenty_windows(course_engine):
    assert quality.windows(load_tokenizer(course_engine)).shape == (20, 256)


def test_an_interrupt_keeps_the_builds_that_were_read(stored, tmp_path):
    folders = {name: build_small(stored, tmp_path / name, quant_algo=name) for name in ("W4A8", "W4A16")}

    def interrupted_at(what):
        def tell(now, done, total):
            if now == what:
                raise SystemExit(143)

        return tell

    result = quality.bench(stored, folders, 768, interrupted_at("W4A16 reads"))
    assert [row["build"] for row in result["rows"]] == ["checkpoint", "W4A8"]
    with pytest.raises(SystemExit):
        quality.bench(stored, folders, 768, interrupted_at("W4A8 reads"))
