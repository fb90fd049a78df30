"""The products of a graph after `four_bits.make_exact`, beside what the checkpoint says."""

import gguf
import numpy as np
import openvino as ov
import pytest

from inflight.checkpoint.sources import fetch
from inflight.checkpoint.weights import GgufFile
from inflight.engine import builder as engine
from inflight.engine.folder import MODEL_FILE, WEIGHTS_FILE
from inflight.engine.openvino import four_bits
from tests.engines import SMALL_BUILD, SMALL_LAYERS, write_quantized

PRODUCTS = 7 * SMALL_LAYERS
# What is left, over the largest scale of a row: offsets c lie within half a scale of 0 and share 15 steps with the 31
# beside them, so half of a fifteenth, and a fifth more where zero must be one of the steps. A zero point alone leaves
# half a scale.
LEFT = 0.5 / 15 * 1.2


def weights_of(product: ov.Node, num_blocks: int) -> np.ndarray:
    """What a product multiplies its input with, from the graph's own constants; float32 [rows, columns]."""
    packed = four_bits._weights(product)
    values = (packed.q.astype(np.float32) - packed.z[..., None]) * packed.d.astype(np.float32)[..., None]
    offsets = values[:, num_blocks:].reshape(len(values), -1)[:, :num_blocks]
    if offsets.size:
        values = values[:, :num_blocks] + offsets[..., None]
    return values.reshape(len(values), -1)


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


def products_by_rows(folder) -> list[ov.Node]:
    return four_bits._products(ov.Core().read_model(folder / MODEL_FILE))


@pytest.mark.parametrize("kind", ["Q4_1", "Q4_0", "mixed"])
def test_the_graph_says_what_the_checkpoint_says(small_checkpoint, tmp_path, kind):
    """Among them products of 18 blocks and of 48: neither is a multiple of the 32 offsets that share a scale."""
    file = write_quantized(small_checkpoint.path, tmp_path / "stored.gguf", kind)
    folder = engine.build(fetch(str(file)), SMALL_BUILD, tmp_path / "engine")
    source = GgufFile(file)
    wanted = [(name, *pair, LEFT) for name, pair in stored(source, "Q4_1").items()]
    wanted += [(name, *pair, 0.002) for name, pair in stored(source, "Q4_0").items()]  # a 16-bit float's rounding
    assert len(wanted) == (PRODUCTS if kind != "mixed" else len(wanted)) > SMALL_LAYERS
    found: dict[int, list[np.ndarray]] = {}
    for product in products_by_rows(folder):
        q = four_bits._weights(product).q
        blocks = {18: 18, 19: 18, 48: 48, 50: 48}[q.shape[1]]
        found.setdefault(blocks, []).append(weights_of(product, blocks))
    for name, values, scales, most in wanted:
        errors = [
            np.abs(matrix[begin : begin + len(values)] - values).reshape(*scales.shape, 32).max(-1)
            / scales.max(-1, keepdims=True)
            for matrix in found[scales.shape[1]]
            for begin in {0, len(matrix) - len(values), *starts(len(matrix), len(values))}
            if begin >= 0 and begin + len(values) <= len(matrix)
        ]
        assert min(error.max() for error in errors) <= most, name


def starts(rows: int, part: int) -> range:
    """Where a matrix may begin among those that were joined: all sizes are multiples of a KV head's 192 rows."""
    return range(0, rows - part + 1, 192)


def test_products_of_one_input_are_one(small_checkpoint, tmp_path):
    """Query, key and value; gate and up; the other two have an input of their own."""
    file = write_quantized(small_checkpoint.path, tmp_path / "stored.gguf", "Q4_1")
    folder = engine.build(fetch(str(file)), SMALL_BUILD, tmp_path / "engine")
    rows = sorted(four_bits._weights(product).q.shape[0] for product in products_by_rows(folder))
    assert rows == sorted([576 + 192 + 192, 576, 2 * 1536, 576] * SMALL_LAYERS)


def test_a_graph_without_such_weights_is_left_alone(small_checkpoint, tmp_path):
    file = write_quantized(small_checkpoint.path, tmp_path / "stored.gguf", "Q4_0")
    folder = engine.build(fetch(str(file)), SMALL_BUILD, tmp_path / "engine")
    graph = ov.Core().read_model(folder / MODEL_FILE)
    before = len(graph.get_ops())
    assert four_bits.make_exact(graph, GgufFile(file)) == 0 and len(graph.get_ops()) == before
    assert {path.name for path in folder.iterdir()} >= {MODEL_FILE, WEIGHTS_FILE}


@pytest.mark.parametrize("columns", [32, 64, 576, 1056])
def test_a_product_with_appended_sums_is_the_exact_one(columns):
    """One product with no other of its input, of a number of blocks that is 1, 2, 18 and 33."""
    seed = 12
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    rows, blocks = 5, columns // 32
    q = rng.integers(0, 16, (rows, blocks, 32)).astype(np.uint8)
    z = rng.integers(4, 12, (rows, blocks)).astype(np.uint8)
    d = rng.uniform(0.01, 0.02, (rows, blocks)).astype(np.float16)
    smallest = (-d.astype(np.float32) * (z + rng.uniform(-0.5, 0.5, z.shape))).astype(np.float32)
    source = ov.opset13.parameter([-1, -1, columns], np.float32)
    product = ov.opset13.matmul(source, four_bits._unpacking(four_bits.Packed(q, z, d)), False, True)
    graph = ov.Model([ov.opset13.result(product)], [source])
    matrix = four_bits._with_offsets(four_bits.Packed(q, z, d), smallest)
    four_bits._replace((product,), [matrix], blocks)
    graph.validate_nodes_and_infer_types()
    properties = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
    x = rng.normal(size=(1, 3, columns)).astype(np.float32)
    result = ov.Core().compile_model(graph, "CPU", properties)(x)[0]
    exact = q * d.astype(np.float32)[..., None] + smallest[..., None]
    expected = x[0] @ exact.reshape(rows, columns).T
    sums = (
        np.abs(x.reshape(3, blocks, 32).sum(-1))
        @ np.broadcast_to(d.astype(np.float32).max(-1, keepdims=True), d.shape).T
        * LEFT
    )
    assert (np.abs(result[0] - expected) <= sums + 1e-4).all()
