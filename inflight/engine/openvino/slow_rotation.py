"""Gives an OpenVINO graph the slowed rotation of positions that a checkpoint of Llama 3.1 and later asks for.

The reader of GGUF files makes the frequencies of a graph from their base alone, and leaves `rope_freqs.weight` aside.
"""

from __future__ import annotations

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from inflight.checkpoint import rotary
from inflight.checkpoint.weights import GgufFile
from inflight.errors import CourseError


def slow_down(graph: ov.Model, source: GgufFile) -> bool:
    """Divide the frequencies in `graph`, which was made from `source`, by what the checkpoint says.

    Returns
    -------
    bool
        Whether the graph was changed; a checkpoint without slowed rotation needs no change.

    Raises
    ------
    CourseError
        The frequencies are not found in the graph.
    """
    factors = source.rotary_factors()
    if factors is None:
        return False
    shape = source.shape()
    plain = rotary.frequencies(shape.head_size, shape.rope_base or 10000.0)
    constant = _frequencies(graph)
    if constant is None or constant.data.size != plain.size or not np.allclose(constant.data.ravel(), plain, rtol=1e-3):
        raise CourseError(
            f"{source.path} asks for a slowed rotation of positions, and OpenVINO {ov.__version__} made a graph in "
            "which its frequencies are not found: install the course's requirements, or build it for a GPU."
        )
    slowed = ops.constant((plain / factors).astype(np.float32).reshape(constant.data.shape))
    if constant.get_element_type() != ov.Type.f32:
        slowed = ops.convert(slowed, constant.get_element_type())
    for user in constant.output(0).get_target_inputs():
        user.replace_source_output(slowed.output(0))
    graph.validate_nodes_and_infer_types()
    return True


def _frequencies(graph: ov.Model) -> ov.Node | None:
    """What the angles are computed from: the constant that the only sine comes from, by first inputs."""
    sines = [node for node in graph.get_ops() if node.get_type_name() == "Sin"]
    if len(sines) != 1:
        return None
    node = sines[0]
    while node.get_input_size():
        node = node.input_value(0).get_node()
    return node if node.get_type_name() == "Constant" else None
