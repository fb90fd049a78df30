"""The benchmark of the GPT-2 models, with a tiny one of random weights: what is measured, printed and kept."""

import json

import pandas as pd
import pytest
import transformers
from typer.testing import CliRunner

from inflight.bench.gpt2 import figures, weight_bytes
from inflight.bench.gpt2_client import Token, table
from inflight.cli.commands import app
from inflight.models.gpt2_checkpoint import SIZES, random_checkpoint

STREAMS, TOKENS = 3, 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return random_checkpoint(tmp_path_factory.mktemp("gpt2") / "tiny", "gpt2-tiny")


@pytest.fixture(scope="module")
def result(folder):
    """What the command prints."""
    what = ["--checkpoint", str(folder), "--streams", str(STREAMS), "--tokens", str(TOKENS), "--rounds", "1"]
    ran = CliRunner().invoke(app, ["bench", "gpt2", *what, "--json"])
    assert ran.exit_code == 0, ran.exception
    return json.loads(ran.stdout)


# The run --------------------------------------------------------------------------------------------------------------


@pytest.mark.server
@pytest.mark.slow
def test_each_way_has_a_row_whose_figures_agree(result):
    rows = pd.DataFrame(result["rows"]).set_index("way")
    assert rows.index.tolist() == [
        "simple",
        "iterative, tutorial's way",
        "iterative, no cache",
        "iterative, KV cache",
        "in process, KV cache",
    ]
    assert (rows > 0).all(axis=None)
    assert (rows["first_ms"] <= rows["first_ms_max"]).all() and (rows["last_ms"] <= rows["last_ms_max"]).all()


@pytest.mark.server
@pytest.mark.slow
def test_ratios_have_their_names_and_spread(result):
    assert list(result["ratios"]) == [
        "kv_cache_over_recompute",
        "kv_cache_over_recompute_same_dtype",
        "kv_cache_over_in_process_loop",
        "kv_cache_over_bandwidth_floor",
    ]
    for ratio in result["ratios"].values():
        assert 0 < ratio["min"] <= ratio["median"] <= ratio["max"]
    floor = result["floor"]
    assert floor["ms"] == pytest.approx(floor["weight_mb"] / floor["read_gb_per_s"])


# Figures --------------------------------------------------------------------------------------------------------------


def test_figures_of_a_race():
    tokens = table(
        [
            Token(1, 1, 0.1, "a"),
            Token(2, 1, 0.3, "b"),
            Token(1, 2, 0.3, "c"),
            Token(1, 3, 0.5, "d"),
            Token(2, 2, 0.7, "e"),
            Token(2, 3, 0.8, "f"),
        ]
    )
    assert figures(tokens) == pytest.approx(
        {
            "tokens_per_s": 6 / 0.8,
            "ms_per_token": 225,
            "first_ms": 200,
            "first_ms_max": 300,
            "last_ms": 650,
            "last_ms_max": 800,
        }
    )


def test_the_bytes_are_those_of_all_weights_but_the_positions(folder, tmp_path):
    model = transformers.GPT2LMHeadModel.from_pretrained(folder, local_files_only=True)
    numbers = sum(weight.numel() for weight in model.parameters()) - model.transformer.wpe.weight.numel()
    assert weight_bytes(folder, "float32") == 2 * weight_bytes(folder) == 4 * numbers
    transformers.GPT2Config(**SIZES["gpt2-124m"]).save_pretrained(tmp_path)
    assert weight_bytes(tmp_path) == pytest.approx(247e6, rel=0.01)
