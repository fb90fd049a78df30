"""Makes the 4-bit matrix products of an OpenVINO graph say what the checkpoint says.

GGUF's Q4_1 stores a weight as w = d·q + m: q is one of 16 steps, and the 32 weights of a block share the scale d and
the smallest value m (https://github.com/ggml-org/ggml, `block_q4_1`). OpenVINO's fast kernel multiplies with d·(q − z),
where z must be a whole number, so its reader rounds −m / d, and every weight of a block is wrong by the same
c = m + d·z. The weights alone therefore say

    x · Wᵀ  =  x · W₄ᵀ + s · Cᵀ

where s are the sums of x over blocks of 32 and C holds the c of each block. `make_exact` appends s to x and C, in 4
bits too, to W₄, so that one product of 1/32 more columns computes both terms. It also makes one product of those that
share their input (query, key and value; gate and up): the input is then summed and rounded to 8 bits once for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import gguf
import numpy as np
import openvino as ov
from openvino import opset13 as ops

from inflight import checkpoint
from inflight.checkpoint import q4_1

BLOCK = 32  # weights that share a scale
STEPS = 15  # the largest q
SUMS = "/sums"  # ends the name of what adds up the input of the product with the name before
SMALLEST_SCALE = 2.0**-24  # of float16


@dataclass
class Packed:
    """A matrix of 4-bit weights d·(q − z): `q` uint8 [rows, blocks, 32], `z` uint8 and `d` float16 [rows, blocks]."""

    q: np.ndarray
    z: np.ndarray
    d: np.ndarray


def make_exact(graph: ov.Model, source: checkpoint.GgufFile) -> int:
    """Give the products of Q4_1 weights in `graph`, which was made from `source`, the terms that rounding took away.

    Returns
    -------
    int
        How many products were changed; 0 where the checkpoint has no such weights.
    """
    offsets = _offsets(source)
    found = [(product, offsets.get(_content(_weights(product).q))) for product in _products(graph)]
    exact = [(product, offset) for product, offset in found if offset is not None]
    by_input = lambda pair: pair[0].input_value(0).get_node().get_name()
    for _, pairs in groupby(sorted(exact, key=by_input), by_input):
        products, smallest = zip(*pairs)
        matrices = [_with_offsets(_weights(product), m) for product, m in zip(products, smallest)]
        _replace(products, matrices, num_blocks=smallest[0].shape[1])
    graph.validate_nodes_and_infer_types()
    return len(exact)


# What the checkpoint says ---------------------------------------------------------------------------------------------


def _offsets(source: checkpoint.GgufFile) -> dict[bytes, np.ndarray]:
    """The smallest values m, float32 [rows, blocks], of each Q4_1 matrix, by the content of its q."""
    shape, found = source.shape(), {}
    for tensor in source.tensors.values():
        if tensor.tensor_type == gguf.GGMLQuantizationType.Q4_1 and len(tensor.shape) == 2:
            _, m, q = q4_1.unpacked(tensor.data.reshape(len(tensor.data), -1, q4_1.BLOCK_BYTES))
            rotary = {"attn_q": shape.heads, "attn_k": shape.kv_heads}.get(tensor.name.split(".")[-2])
            if rotary:  # the graph has the halves of a head where GGUF has neighbours
                q, m = _halves(q, rotary), _halves(m, rotary)
            found[_content(q)] = m
    return found


def _halves(rows: np.ndarray, heads: int) -> np.ndarray:
    return rows.reshape(heads, len(rows) // heads // 2, 2, -1).swapaxes(1, 2).reshape(rows.shape)


def _content(q: np.ndarray) -> bytes:
    return q.tobytes()


# What the graph has ---------------------------------------------------------------------------------------------------


def _products(graph: ov.Model) -> list[ov.Node]:
    """The products with 4-bit weights in blocks of 32."""
    return [node for node in graph.get_ordered_ops() if node.get_type_name() == "MatMul" and _constants(node)]


def _constants(product: ov.Node) -> tuple[ov.Node, ov.Node, ov.Node] | None:
    """The constants q, z and d of a product, if its weights are Convert(Reshape((Convert(q) − Convert(z)) · d))."""
    node = product.input_value(1).get_node()
    for expected in ("Convert", "Reshape", "Multiply"):
        if node.get_type_name() != expected:
            return None
        multiply, node = node, node.input_value(0).get_node()
    if node.get_type_name() != "Subtract":
        return None
    q, z = (node.input_value(number).get_node().input_value(0).get_node() for number in (0, 1))
    is_packed = q.get_output_element_type(0) == ov.Type.u4 and list(q.get_output_shape(0))[2:] == [BLOCK]
    return (q, z, multiply.input_value(1).get_node()) if is_packed else None


def _weights(product: ov.Node) -> Packed:
    constants = _constants(product)
    assert constants is not None
    q, z, d = constants
    rows, blocks, _ = q.get_output_shape(0)
    return Packed(
        _unpacked(q.data, (rows, blocks, BLOCK)), _unpacked(z.data, (rows, blocks)), d.data.reshape(rows, blocks)
    )


def _unpacked(nibbles: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    flat = np.stack([nibbles.reshape(-1) & 15, nibbles.reshape(-1) >> 4], axis=-1).reshape(-1)
    return flat[: np.prod(shape)].reshape(shape)  # an odd number fills half of the last byte


def _packed(values: np.ndarray) -> ov.Node:
    flat = values.reshape(-1)
    nibbles = flat[0::2].copy()
    nibbles[: len(flat) // 2] |= flat[1::2] << 4
    tensor = ov.Tensor(ov.Type.u4, ov.Shape(values.shape))  # of its own memory: one made of an array does not hold it
    tensor.data[:] = nibbles
    return ov.op.Constant(tensor)


# The exact product ----------------------------------------------------------------------------------------------------


def _with_offsets(weights: Packed, smallest: np.ndarray) -> Packed:
    """The weights with the columns C appended, filled up to whole blocks."""
    scales = weights.d.astype(np.float32)
    offsets = smallest + scales * weights.z
    more = _quantized(np.pad(offsets, ((0, 0), (0, -offsets.shape[1] % BLOCK))))
    join = lambda first, second: np.concatenate([first, second], axis=1)
    return Packed(join(weights.q, more.q), join(weights.z, more.z), join(weights.d, more.d))


def _quantized(values: np.ndarray) -> Packed:
    """Float values [rows, columns] in 4 bits, each block with the least scale that reaches all of it."""
    blocks = values.reshape(len(values), -1, BLOCK)
    least, most = np.minimum(blocks.min(-1), 0), np.maximum(blocks.max(-1), 0)
    z = np.round(STEPS * -least / np.maximum(most - least, SMALLEST_SCALE))
    below, above = -least / np.maximum(z, 1), most / np.maximum(STEPS - z, 1)
    d = np.maximum(np.maximum(below, above), SMALLEST_SCALE).astype(np.float16)
    q = np.clip(np.round(blocks / d[..., None].astype(np.float32)) + z[..., None], 0, STEPS)
    return Packed(q.astype(np.uint8), z.astype(np.uint8), d)


def _replace(products: tuple[ov.Node, ...], matrices: list[Packed], num_blocks: int) -> None:
    """Put one product of all `matrices` in the place of `products`, which have one input of `num_blocks` blocks."""
    together = Packed(*(np.concatenate([getattr(matrix, part) for matrix in matrices]) for part in ("q", "z", "d")))
    name = products[0].get_friendly_name()
    summed = _with_sums(products[0].input_value(0), num_blocks, name + SUMS)
    result = ops.matmul(summed, _unpacking(together), False, True, name=name)
    if len(products) > 1:
        result = ops.variadic_split(result, np.int64(2), np.array([len(matrix.q) for matrix in matrices]))
    for number, product in enumerate(products):
        for target in list(product.output(0).get_target_inputs()):
            target.replace_source_output(result.output(number))


def _with_sums(source: ov.Output, num_blocks: int, name: str) -> ov.Node:
    """`source` [.., .., columns] with its sums over blocks of 32 appended, and zeros up to a whole block of sums."""
    summing = np.zeros((num_blocks * BLOCK, num_blocks + -num_blocks % BLOCK), np.float32)
    summing[np.arange(len(summing)), np.arange(len(summing)) // BLOCK] = 1
    sums = ops.matmul(source, ops.constant(summing), False, False, name=name)  # one kernel; ReduceSum and Pad are two
    return ops.concat([source, sums], axis=2)


def _unpacking(weights: Packed) -> ov.Node:
    """The subgraph that the compiler takes for packed weights: Convert(Reshape((Convert(q) − Convert(z)) · d))."""
    rows, blocks, _ = weights.q.shape
    q, z = (ops.convert(_packed(values), "f16") for values in (weights.q, weights.z[..., None]))
    scaled = ops.multiply(ops.subtract(q, z), ops.constant(weights.d[..., None]))
    return ops.convert(ops.reshape(scaled, np.array([rows, blocks * BLOCK]), False), "f32")
