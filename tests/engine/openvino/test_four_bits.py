"""The products of an engine's graph beside what the checkpoint says, in both forms that a processor may compute."""

import dataclasses

import numpy as np
import openvino as ov
import pytest
import torch

from inflight import processor
from inflight.checkpoint import as_huggingface
from inflight.checkpoint.sources import fetch
from inflight.checkpoint.weights import GgufFile
from inflight.engine.building import builder as engine
from inflight.engine.folder import MODEL_FILE, WEIGHTS_FILE, read
from inflight.engine.messages import Chunk
from inflight.engine.model import load
from inflight.engine.openvino import four_bits, steps
from inflight.processor import Processor
from tests.engine.openvino.test_steps import fused
from tests.engines import SMALL_BUILD, build_small, write_quantized

# In whole numbers: offsets c lie within half a scale of 0 and share 15 steps with the 31 beside them, so half of a
# fifteenth, and a fifth more where zero must be one of the steps. A zero point alone leaves half a scale.
LEFT = 0.5 / 15 * 1.2
SEED = 12


@pytest.fixture(scope="module")
def stored_file(small_checkpoint, tmp_path_factory):
    """The small model in Q4_1."""
    return write_quantized(small_checkpoint.path, tmp_path_factory.mktemp("stored") / "stored.gguf", "Q4_1")


def test_a_graph_without_such_weights_is_left_alone(small_checkpoint, tmp_path):
    file = write_quantized(small_checkpoint.path, tmp_path / "stored.gguf", "Q4_0")
    graph = steps.read(engine.build(fetch(str(file)), SMALL_BUILD, tmp_path / "engine"))
    before = len(graph.get_ops())
    assert four_bits.make_exact(graph, GgufFile(file)) == 0
    four_bits.in_whole_numbers(graph)
    assert len(graph.get_ops()) == before


# How it is computed is chosen when it is loaded -----------------------------------------------------------------------


@pytest.mark.parametrize("has_8_bits", [True, False])
def test_the_processor_chooses_where_the_build_did_not(stored_file, tmp_path, monkeypatch, has_8_bits):
    monkeypatch.setattr(processor, "here", lambda: pytest.fail("a build asked what this processor is"))
    config = dataclasses.replace(SMALL_BUILD, quant_algo="auto")
    folder = engine.build(fetch(str(stored_file)), config, tmp_path / "auto")
    decided = engine.build(fetch(str(stored_file)), SMALL_BUILD, tmp_path / "decided")
    for name in (MODEL_FILE, WEIGHTS_FILE):
        assert (folder / name).read_bytes() == (decided / name).read_bytes()
    monkeypatch.setattr(processor, "here", lambda: Processor(has_bfloat16=False, has_8_bits=has_8_bits))
    assert read(folder).quant_algo == ("W4A8" if has_8_bits else "W4A16") and "8-bit" in read(folder).precision
    assert read(decided).quant_algo == "W4A16" and "as it was built" in read(decided).precision
    has_sums, has_none = (fused(load(one).program)["FullyConnected"] for one in (folder, decided))
    assert (has_sums > has_none) == has_8_bits


@pytest.mark.parametrize("kind", ["Q4_1", "Q4_0", "mixed"])
@pytest.mark.parametrize(("quant_algo", "most"), [("W4A16", 0.005), ("W4A8", 0.05)])
def test_every_format_gives_the_logits_of_the_dequantized_checkpoint(
    small_checkpoint, tmp_path, kind, quant_algo, most
):
    """The mean error over the spread of the logits; with products of 18 blocks and of 48."""
    print(f"seed {SEED}")
    draw = np.random.default_rng(SEED)
    prompts = [draw.integers(3, 300, length).tolist() for length in (5, 17, 40)]
    file = write_quantized(small_checkpoint.path, tmp_path / "stored.gguf", kind)
    model = load(build_small(fetch(str(file)), tmp_path / "engine", quant_algo=quant_algo))
    model.allocate_kv_cache(6)
    ours = model.forward([Chunk(prompt, 0, [2 * number, 2 * number + 1]) for number, prompt in enumerate(prompts)])
    reference = as_huggingface.dequantized(file, "float32").eval()
    with torch.inference_mode():
        theirs = np.stack([reference(torch.tensor([prompt])).logits[0, -1].numpy() for prompt in prompts])
    assert np.abs(ours - theirs).mean() / theirs.std() < most


@pytest.mark.parametrize("columns", [32, 64, 576, 1056])
@pytest.mark.parametrize("whole", [False, True], ids=["as it stands", "in whole numbers"])
def test_a_product_is_the_exact_one(columns, whole):
    """One product with no other of its input, of 1, 2, 18 and 33 blocks; in one, all weights are the same."""
    print(f"seed {SEED}")
    rng = np.random.default_rng(SEED)
    rows, blocks = 5, columns // 32
    q = rng.integers(0, 16, (rows, blocks, 32)).astype(np.uint8)
    d = rng.uniform(0.01, 0.02, (rows, blocks, 1)).astype(np.float16)
    m = (-d * rng.uniform(4, 12, d.shape)).astype(np.float16)
    d[0, 0] = 0
    d[1, -1] = m[1, -1] = 0
    source = ov.opset13.parameter([-1, -1, columns], np.float32)
    matrix = four_bits._with_scales(four_bits.Blocks(four_bits._packed(q), d, m))
    scale = ov.opset13.constant(matrix.d)
    zero = ov.opset13.divide(ov.opset13.constant(-matrix.m), scale)
    product = ov.opset13.matmul(source, four_bits._weights(four_bits._constant(matrix.q), zero, scale), False, True)
    graph = ov.Model([ov.opset13.result(product)], [source])
    if whole:
        four_bits.in_whole_numbers(graph)
    properties = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
    x = rng.normal(size=(1, 3, columns)).astype(np.float32)
    result = processor.core().compile_model(graph, "CPU", properties)(x)[0]
    exact = (d.astype(np.float32) * q + m.astype(np.float32)).reshape(rows, columns)
    of_scale = np.broadcast_to(d.astype(np.float32).max(1), (rows, blocks)).T
    left = np.abs(x.reshape(3, blocks, 32).sum(-1)) @ of_scale * LEFT if whole else 0
    rounding = np.abs(x[0]) @ np.repeat(np.abs(m.astype(np.float32)), 32, 1).reshape(rows, columns).T * 2.0**-11
    assert (np.abs(result[0] - x[0] @ exact.T) <= left + rounding + 1e-4).all()
