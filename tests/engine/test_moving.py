"""Blocks that move: what is taken from a store or another engine is what would have been computed, or is not taken."""

from dataclasses import replace

import numpy as np
import pytest

from inflight.engine.block_format import BlockFormat
from inflight.engine.fake_model import FakeModel
from inflight.engine.messages import Chunk
from inflight.engine.model import load as load_model
from inflight.errors import CourseError
from tests.engines import SMALL_BUILD, build_small, build_tiny

BLOCK = 32
BUILD = replace(SMALL_BUILD, max_input_len=200, max_seq_len=240, max_num_tokens=240)
PROMPT = [(7 * place) % 900 + 5 for place in range(150)]  # four full blocks and a part of one
FULL = len(PROMPT) // BLOCK * BLOCK


@pytest.fixture(scope="session", params=["openvino", "openvino INT8", "torch"])
def folder(request, tmp_path_factory):
    target = tmp_path_factory.mktemp("moving") / "engine"
    sizes = {name: getattr(BUILD, name) for name in ("max_input_len", "max_seq_len", "max_num_tokens")}
    if request.param == "torch":
        return build_tiny(request.getfixturevalue("tiny_llama"), target, **sizes)
    kind = "INT8" if "INT8" in request.param else None
    return build_small(request.getfixturevalue("small_checkpoint"), target, kv_cache_quant_algo=kind, **sizes)


# Blocks as bytes ------------------------------------------------------------------------------------------------------


def test_blocks_put_into_other_blocks_of_another_engine_give_the_same_logits_to_the_last_bit(folder):
    one, other = load_model(folder), load_model(folder)
    one.allocate_kv_cache(8)
    other.allocate_kv_cache(8)
    held, elsewhere = [0, 1, 2, 3, 4], [7, 2, 5, 0, 6]
    one.forward([Chunk(PROMPT[:-1], 0, held)])
    other.write_blocks(elsewhere, one.read_blocks(held))
    last = [Chunk(PROMPT[-1:], len(PROMPT) - 1, blocks, is_context=False) for blocks in (held, elsewhere)]
    expected, found = (np.array(np.asarray(model.forward([chunk]))) for model, chunk in zip((one, other), last))
    assert (expected == found).all()


def test_what_does_not_fit_is_refused_in_one_sentence_and_the_cache_stays_as_it_was(folder):
    model = load_model(folder)
    model.allocate_kv_cache(4)
    model.forward([Chunk(PROMPT[:64], 0, [0, 1])])
    before = model.read_blocks([0])
    elsewhere = BlockFormat(replace(model.info, version="openvino 1.0"))
    changed = bytearray(before)
    changed[100] ^= 1
    for data, why in (
        (elsewhere.sealed([np.zeros(model.block_bytes, np.uint8)]), "another kind of engine"),
        (b"", "another kind of engine"),
        (bytes(changed), "damaged"),
        (before[: len(before) // 2], "damaged"),
        (model.read_blocks([0, 1]), "not as many"),
    ):
        with pytest.raises(CourseError, match=why):
            model.write_blocks([0], data)
    assert model.read_blocks([0]) == before


@pytest.mark.parametrize(
    "change", [{"tokens_per_block": 64, "dtype": "float32"}, {"kv_cache_quant_algo": "INT8"}, {"dtype": "bfloat16"}]
)
def test_a_build_that_lays_blocks_out_otherwise_has_another_fingerprint_and_one_with_other_limits_has_not(change):
    def fingerprint(**build):
        return BlockFormat(FakeModel(replace(BUILD, **build)).info).fingerprint

    assert fingerprint(**change) != fingerprint() == fingerprint(max_batch_size=2, max_seq_len=4000)
