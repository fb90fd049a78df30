"""Makes the 4-bit matrix products of an OpenVINO graph say what the checkpoint says.

GGUF's Q4_1 stores a weight as w = d·q + m: q is one of 16 levels, and the 32 weights of a block share the scale d and
the smallest value m (https://github.com/ggml-org/ggml, `block_q4_1`). OpenVINO's products take d·(q − z). OpenVINO
GenAI's reader of GGUF files rounds z = −m / d to a whole number, and every weight of a block is wrong by the same
c = m + d·z.

When an engine is built, `make_exact` puts −m / d there as it is, so the engine holds the file's own numbers. It also
makes one product of those that share their input (query, key and value; gate and up).

A processor that multiplies 8-bit whole numbers is quickest with a whole z. When an engine is loaded for one,
`in_whole_numbers` rounds z and gives back what the weights lack by another term,

    x · Wᵀ  =  x · W₄ᵀ + s · Cᵀ

where s are the sums of x over blocks of 32 and C holds the c of each block. It appends s to x and C, in 4 bits too, to
W₄, so that one product of 1/32 more columns computes both terms.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

import gguf
import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as ops

from inflight import checkpoint
from inflight.checkpoint import q4_1
from inflight.checkpoint.q4_1 import BLOCK, STEPS

SMALLEST_SCALE = 2.0**-24  # of float16
LARGEST_ZERO = 2.0**15  # −m / d in float16; beyond it, steps of d are finer than the rounding of m


class Blocks(NamedTuple):
    """A matrix of 4-bit weights d·q + m: `q` uint8 [rows, blocks, 16], two in a byte; float16 [rows, blocks, 1]."""

    q: NDArray[Any]
    d: NDArray[Any]
    m: NDArray[Any]


# When it is built -----------------------------------------------------------------------------------------------------


def make_exact(graph: ov.Model, source: checkpoint.GgufFile) -> int:
    """Give the products of Q4_1 weights in `graph`, which was made from `source`, the zero points of the file.

    Returns
    -------
    int
        How many products were changed; 0 where the checkpoint has no such weights.
    """
    stored = _stored(source)
    by_input: defaultdict[str, list[tuple[ov.Node, Blocks]]] = defaultdict(list)
    for product in _products(graph):
        if (matrix := stored.get(_q(product).data.tobytes())) is not None:
            by_input[product.input_value(0).get_node().get_name()].append((product, matrix))
    for pairs in by_input.values():
        products, matrices = zip(*pairs)
        _replace(products, Blocks(*map(np.concatenate, zip(*matrices))))
    graph.validate_nodes_and_infer_types()
    return sum(map(len, by_input.values()))


def _stored(source: checkpoint.GgufFile) -> dict[bytes, Blocks]:
    """Return each Q4_1 matrix of a file by its q, in the graph's order of rows."""
    sizes, found = source.sizes(), {}
    heads = {"attn_q": sizes["num_attention_heads"], "attn_k": sizes["num_key_value_heads"]}
    for tensor in source.tensors.values():
        if tensor.tensor_type == gguf.GGMLQuantizationType.Q4_1 and len(tensor.shape) == 2:
            d, m, q = q4_1.unpacked(tensor.data.reshape(len(tensor.data), -1, q4_1.BLOCK_BYTES))
            matrix = Blocks(_packed(q), *(values.astype(np.float16)[..., None] for values in (d, m)))
            rotary = heads.get(tensor.name.split(".")[-2])
            if rotary:  # the graph has the halves of a head where GGUF has neighbours
                matrix = Blocks(*(_halves(part, rotary) for part in matrix))
            found[matrix.q.tobytes()] = _with_scales(matrix)
    return found


def _halves(rows: NDArray[Any], heads: int) -> NDArray[Any]:
    return rows.reshape(heads, len(rows) // heads // 2, 2, -1).swapaxes(1, 2).reshape(rows.shape)


def _with_scales(matrix: Blocks) -> Blocks:
    """The matrix with w = m as −m · (0 − 1) in blocks whose weights are all the same: there d is 0, or as good as."""
    q, d, m = matrix
    same = np.abs(m.astype(np.float32)) >= LARGEST_ZERO * d.astype(np.float32)
    return Blocks(np.where(same, np.uint8(0), q), np.where(same, np.where(m == 0, np.float16(1), -m), d), m)


def _replace(products: tuple[ov.Node, ...], together: Blocks) -> None:
    """Put one product in the place of `products`, which have the same input."""
    d = ops.constant(together.d)
    weights = _weights(_constant(together.q), ops.divide(ops.constant(-together.m), d), d)
    name = products[0].get_friendly_name()
    result = ops.matmul(products[0].input_value(0), weights, False, True, name=name)
    if len(products) > 1:
        result = ops.variadic_split(result, np.int64(2), np.array([_q(one).get_output_shape(0)[0] for one in products]))
    for number, product in enumerate(products):
        for target in list(product.output(0).get_target_inputs()):
            target.replace_source_output(result.output(number))


# When it is loaded ----------------------------------------------------------------------------------------------------


def in_whole_numbers(graph: ov.Model) -> None:
    """Give the products that `make_exact` made whole zero points, and one more column a block for what these lack."""
    summing: dict[int, ov.Node] = {}  # one a width: the compiler keeps what it is given twice once, and in the cache
    for product in _products(graph):
        zero = _zero(product)
        if zero.get_type_name() == "Divide":
            minus_m, d = (zero.input_value(number).get_node().data for number in (0, 1))
            z, offsets = _whole(minus_m.astype(np.float32), d.astype(np.float32))
            num_blocks = d.shape[1]
            more_q, more_z, more_d = _quantized(np.pad(offsets, ((0, 0), (0, -num_blocks % BLOCK))))
            q = np.concatenate([_q(product).data.reshape(*d.shape[:2], BLOCK // 2), more_q], axis=1)
            z, d = np.concatenate([z, more_z], axis=1), np.concatenate([d, more_d], axis=1)
            weights = _weights(_constant(q), ops.convert(_constant(_packed(z), z.shape), "f16"), ops.constant(d))
            product.input(1).replace_source_output(weights.output(0))
            if num_blocks not in summing:
                summing[num_blocks] = _summing(num_blocks)
            source = product.input_value(0)
            sums = ops.matmul(source, summing[num_blocks], False, False)  # one kernel; ReduceSum and Pad are two
            product.input(0).replace_source_output(ops.concat([source, sums], axis=2).output(0))
    graph.validate_nodes_and_infer_types()


def _whole(minus_m: NDArray[Any], d: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Zero points uint8 [rows, blocks, 1], and what the weights lack with them, [rows, blocks]."""
    z = np.clip(np.floor(minus_m / d + 0.5), 0, STEPS)
    return z.astype(np.uint8), (d * z - minus_m)[..., 0]


def _quantized(values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Float values [rows, columns] in 4 bits, packed, with z and d: each block with the least scale that reaches it."""
    blocks = values.reshape(len(values), -1, BLOCK)
    least, most = np.minimum(blocks.min(-1, keepdims=True), 0), np.maximum(blocks.max(-1, keepdims=True), 0)
    z = np.round(STEPS * -least / np.maximum(most - least, SMALLEST_SCALE))
    below, above = -least / np.maximum(z, 1), most / np.maximum(STEPS - z, 1)
    d = np.maximum(np.maximum(below, above), SMALLEST_SCALE).astype(np.float16)
    q = np.clip(np.round(blocks / d.astype(np.float32)) + z, 0, STEPS)
    return _packed(q.astype(np.uint8)), z.astype(np.uint8), d


def _summing(num_blocks: int) -> ov.Node:
    """Make the matrix that sums x over blocks of 32, with zero columns up to a whole block of sums."""
    ones = np.zeros((num_blocks * BLOCK, num_blocks + -num_blocks % BLOCK), np.float32)
    ones[np.arange(len(ones)), np.arange(len(ones)) // BLOCK] = 1
    return ops.constant(ones)


# A product in the graph -----------------------------------------------------------------------------------------------


def _products(graph: ov.Model) -> list[ov.Node]:
    """Find the products with 4-bit weights in blocks of 32: Convert(Reshape((Convert(q) − z) · d))."""
    return [node for node in graph.get_ordered_ops() if node.get_type_name() == "MatMul" and _has_blocks(node)]


def _has_blocks(product: ov.Node) -> bool:
    node = product.input_value(1).get_node()
    for expected in ("Convert", "Reshape", "Multiply", "Subtract", "Convert"):
        if node.get_type_name() != expected:
            return False
        node = node.input_value(0).get_node()
    return node.get_output_element_type(0) == ov.Type.u4 and list(node.get_output_shape(0))[2:] == [BLOCK]


def _difference(product: ov.Node) -> ov.Node:
    """Convert(q) − z."""
    scaled = product.input_value(1).get_node().input_value(0).get_node().input_value(0).get_node()
    return scaled.input_value(0).get_node()


def _q(product: ov.Node) -> ov.Node:
    return _difference(product).input_value(0).get_node().input_value(0).get_node()


def _zero(product: ov.Node) -> ov.Node:
    return _difference(product).input_value(1).get_node()


def _weights(q: ov.Node, zero: ov.Node, d: ov.Node) -> ov.Node:
    """Make the subgraph that the compiler recognises as packed weights."""
    rows, blocks, _ = q.get_output_shape(0)
    scaled = ops.multiply(ops.subtract(ops.convert(q, "f16"), zero), d)
    return ops.convert(ops.reshape(scaled, np.array([rows, blocks * BLOCK]), False), "f32")


def _packed(values: NDArray[Any]) -> NDArray[Any]:
    """Pack 4-bit values in order, two in a byte; an odd number fills half of the last."""
    flat = values.reshape(-1)
    nibbles = flat[0::2].copy()
    nibbles[: len(flat) // 2] |= flat[1::2] << 4
    return nibbles.reshape(*values.shape[:-1], -1) if values.shape[-1] % 2 == 0 else nibbles


def _constant(nibbles: NDArray[Any], shape: tuple[int, ...] | None = None) -> ov.Node:
    """Packed 4-bit values as a constant; of `shape`, or as `nibbles` with twice as many in the last dimension."""
    tensor = ov.Tensor(ov.Type.u4, ov.Shape(shape or (*nibbles.shape[:-1], nibbles.shape[-1] * 2)))
    tensor.data[:] = nibbles.reshape(-1)  # of its own memory: one made of an array does not hold it
    return ov.op.Constant(tensor)
