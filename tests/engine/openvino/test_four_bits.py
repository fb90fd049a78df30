"""The products of an engine's graph beside what the checkpoint says, in both forms that a processor may compute."""

import dataclasses

import gguf
import numpy as np
import openvino as ov
import pytest
import torch

from inflight import processor
from inflight.checkpoint import as_huggingface
from inflight.checkpoint.sources import fetch
from inflight.checkpoint.weights import GgufFile
from inflight.engine import builder as engine
from inflight.engine.config import Chunk
from inflight.engine.folder import MODEL_FILE, WEIGHTS_FILE, read
from inflight.engine.model import load
from inflight.engine.openvino import four_bits, steps
from inflight.processor import Processor
from tests.engine.openvino.test_steps import fused
from tests.engines import SMALL_BUILD, SMALL_LAYERS, build_small, write_quantized

PRODUCTS = 7 * SMALL_LAYERS
# Errors of a weight over the largest scale of its row. The file's numbers: a 16-bit float's rounding of up to 16 steps.
EXACT = 16 * 2.0**-11
# In whole numbers: offsets c lie within half a scale of 0 and share 15 steps with the 31 beside them, so half of a
# fifteenth, and a fifth more where zero must be one of the steps. A zero point alone leaves half a scale.
LEFT = 0.5 / 15 * 1.2
SEED = 12


@pytest.fixture(scope="module")
def stored_file(small_checkpoint, tmp_path_factory):
    """The small model in Q4_1."""
    return write_quantized(small_checkpoint.path, tmp_path_factory.mktemp("stored") / "stored.gguf", "Q4_1")


def weights_of(product: ov.Node) -> np.ndarray:
    """What a product multiplies its input with, from the graph's own constants; float32 [rows, columns]."""
    nibbles, zero = four_bits._q(product), four_bits._zero(product)
    rows, blocks, _ = nibbles.get_output_shape(0)
    q = unpacked(nibbles.data, (rows, blocks, 32))
    scaled = product.input_value(1).get_node().input_value(0).get_node().input_value(0).get_node()
    d = scaled.input_value(1).get_node().data.astype(np.float32)
    if zero.get_type_name() == "Divide":
        z = zero.input_value(0).get_node().data.astype(np.float32) / d
        return (d * (q - z)).reshape(rows, -1)
    z = unpacked(zero.input_value(0).get_node().data, (rows, blocks, 1))
    values, own = d * (q - z), {19: 18, 50: 48}.get(blocks, blocks)
    if own != blocks:
        values = values[:, :own] + values[:, own:].reshape(rows, -1)[:, :own, None]
    return values.reshape(rows, -1)


def unpacked(nibbles: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    flat = np.stack([nibbles.reshape(-1) & 15, nibbles.reshape(-1) >> 4], axis=-1).reshape(-1)
    return flat[: np.prod(shape)].reshape(shape).astype(np.float32)


def stored(source: GgufFile, kind: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Weights and scales of each matrix in a 4-bit format, rows in the graph's order."""
    found, shape = {}, source.shape()
    for tensor in source.tensors.values():
        if tensor.tensor_type.name == kind:
            values = gguf.dequantize(tensor.data, tensor.tensor_type)
            block = {"Q4_0": 18, "Q4_1": 20}[kind]
            raw = np.asarray(tensor.data).reshape(len(values), -1, block)[..., :2]
            scales = np.ascontiguousarray(raw).view(np.float16)[..., 0].astype(np.float32)
            heads = {"attn_q": shape.heads, "attn_k": shape.kv_heads}.get(tensor.name.split(".")[2])
            if heads:
                values, scales = four_bits._halves(values, heads), four_bits._halves(scales, heads)
            found[tensor.name] = values, np.abs(scales)
    return found


@pytest.mark.parametrize("whole", [False, True], ids=["as it stands", "in whole numbers"])
@pytest.mark.parametrize("kind", ["Q4_1", "Q4_0", "mixed"])
def test_the_graph_says_what_the_checkpoint_says(small_checkpoint, tmp_path, kind, whole):
    """Among them products of 18 blocks and of 48: neither is a multiple of the 32 offsets that share a scale."""
    file = write_quantized(small_checkpoint.path, tmp_path / "stored.gguf", kind)
    graph = steps.read(engine.build(fetch(str(file)), SMALL_BUILD, tmp_path / "engine"))
    if whole:
        four_bits.in_whole_numbers(graph)
    source = GgufFile(file)
    wanted = [(name, *pair, LEFT if whole else EXACT) for name, pair in stored(source, "Q4_1").items()]
    wanted += [(name, *pair, EXACT) for name, pair in stored(source, "Q4_0").items()]
    assert len(wanted) == (PRODUCTS if kind != "mixed" else len(wanted)) > SMALL_LAYERS
    found = [weights_of(product) for product in four_bits._products(graph)]
    for name, values, scales, most in wanted:
        errors = [
            np.abs(matrix[begin : begin + len(values)] - values).reshape(*scales.shape, 32).max(-1)
            / scales.max(-1, keepdims=True)
            for matrix in found
            if matrix.shape[1] == values.shape[1]
            for begin in range(0, len(matrix) - len(values) + 1, 192)  # all sizes are multiples of a KV head's rows
        ]
        assert min(error.max() for error in errors) <= most, name


def test_products_of_one_input_are_one(stored_file, tmp_path):
    """Query, key and value; gate and up; the other two have an input of their own."""
    folder = engine.build(fetch(str(stored_file)), SMALL_BUILD, tmp_path / "engine")
    rows = sorted(weights_of(product).shape[0] for product in four_bits._products(steps.read(folder)))
    assert rows == sorted([576 + 192 + 192, 576, 2 * 1536, 576] * SMALL_LAYERS)


def test_a_graph_without_such_weights_is_left_alone(small_checkpoint, tmp_path):
    file = write_quantized(small_checkpoint.path, tmp_path / "stored.gguf", "Q4_0")
    graph = steps.read(engine.build(fetch(str(file)), SMALL_BUILD, tmp_path / "engine"))
    before = len(graph.get_ops())
    assert four_bits.make_exact(graph, GgufFile(file)) == 0
    four_bits.in_whole_numbers(graph)
    assert len(graph.get_ops()) == before


def test_products_of_one_width_share_the_constant_that_adds_up_their_input(stored_file, tmp_path):
    """One for each product would be read from memory at every iteration."""
    graph = steps.read(engine.build(fetch(str(stored_file)), SMALL_BUILD, tmp_path / "engine"))
    four_bits.in_whole_numbers(graph)
    joined = [product.input_value(0).get_node() for product in four_bits._products(graph)]
    sums = [node.input_value(1).get_node() for node in joined if node.get_type_name() == "Concat"]
    summing = [node.input_value(1).get_node() for node in sums]
    widths = {node.get_output_shape(0)[0] for node in summing}
    assert len(summing) > len({node.get_friendly_name() for node in summing}) == len(widths)


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
    has_sums, has_none = (fused(load(one)._compiled)["FullyConnected"] for one in (folder, decided))
    assert (has_sums > has_none) == has_8_bits


@pytest.mark.parametrize(("quant_algo", "most"), [("W4A16", 0.005), ("W4A8", 0.05)])
def test_both_forms_give_the_logits_of_the_dequantized_checkpoint(stored_file, tmp_path, quant_algo, most):
    """The mean error over the spread of the logits."""
    print(f"seed {SEED}")
    draw = np.random.default_rng(SEED)
    prompts = [draw.integers(3, 300, length).tolist() for length in (5, 17, 40)]
    model = load(build_small(fetch(str(stored_file)), tmp_path / "engine", quant_algo=quant_algo))
    model.allocate_kv_cache(6)
    ours = model.forward([Chunk(prompt, 0, [2 * number, 2 * number + 1]) for number, prompt in enumerate(prompts)])
    reference = as_huggingface.dequantized(stored_file, "float32").eval()
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
