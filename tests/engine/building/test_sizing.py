"""The arithmetic of lesson 01 against engines that are really built."""

import dataclasses

import pytest

from inflight.checkpoint.sources import fetch
from inflight.checkpoint.weights import GgufFile
from inflight.engine.building import builder as engine
from inflight.engine.building.sizing import KINDS, Sizing, kind
from inflight.engine.folder import WEIGHTS_FILE, read
from inflight.engine.model import load as load_model
from inflight.engine.settings import BuildConfig
from tests.engines import SMALL_BUILD, write_quantized


@pytest.fixture(scope="module")
def default_engine():
    return engine.cached(fetch())


@pytest.fixture(scope="module")
def sizing(default_engine):
    return Sizing(GgufFile(fetch().path), read(default_engine).pretrained_config)


def test_weights_are_predicted_but_for_a_few_constants(sizing, default_engine):
    on_disk = (default_engine / WEIGHTS_FILE).stat().st_size
    assert 0 <= on_disk - sizing.weight_bytes(BuildConfig()) < 1000


@pytest.mark.parametrize(
    ("stored", "quant_algo"),
    [("F16", "auto"), ("Q4_1", "auto"), ("mixed", "auto"), ("Q8_0", "auto")],
)
def test_weights_of_every_format_are_predicted(small_checkpoint, tmp_path, stored, quant_algo):
    file = write_quantized(small_checkpoint.path, tmp_path / "stored.gguf", stored)
    config = dataclasses.replace(SMALL_BUILD, quant_algo=quant_algo)
    folder = engine.build(fetch(str(file)), config, tmp_path / "engine")
    predicted = Sizing(GgufFile(file), read(folder).pretrained_config).weight_bytes(config)
    assert 0 <= (folder / WEIGHTS_FILE).stat().st_size - predicted < 1000


def test_kv_cache_is_predicted_exactly_with_and_without_scales(sizing, default_engine):
    int8 = BuildConfig(kv_cache_quant_algo="INT8")
    for config, folder in ((BuildConfig(), default_engine), (int8, engine.cached(fetch(), int8))):
        model = load_model(folder)
        assert sizing.kv_bytes_per_token(config) * config.tokens_per_block == model.block_bytes


def test_users_take_whole_blocks_and_the_weights_come_first(sizing):
    config = BuildConfig()
    one = sizing.kv_bytes_per_user(config, 33)
    assert one == 2 * sizing.kv_bytes_per_user(config, 32)
    memory = sizing.weight_bytes(config) + 3 * one
    assert sizing.users(config, 33, memory) == 3
    assert sizing.users(config, 33, memory - 1) == 2
    assert sizing.users(config, 33, 0) == 0


def test_every_tensor_has_a_kind_and_none_is_lost(sizing):
    weights = sizing.weights_by_kind(BuildConfig())
    assert tuple(weights["kind"]) == KINDS
    assert weights["parameters"].sum() == sizing.model["num_parameters"]
    assert kind("blk.0.attn_norm.weight") == "norms" and kind("token_embd.weight") == "embedding"
