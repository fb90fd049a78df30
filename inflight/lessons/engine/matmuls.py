"""Measures an engine's matrix products by themselves: the same weights, settings and kernels, and nothing between."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from inflight.engine import Executor, read
from inflight.engine.openvino import steps

KERNELS = ("FullyConnected", "RMSNorm", "RoPE", "PagedAttention")
NAMES = {"RMS": "RMSNorm"}  # the field's, where OpenVINO has another
NO_WORK = {"Const", "Input", "Output"}


def operations(executor: Executor) -> Counter[str]:
    """Count by kind what an engine of the tier cpu starts in an iteration, after the compiler has joined operations."""
    model: Any = executor.model  # with the program of that tier
    nodes = model.program.get_runtime_model().get_ordered_ops()
    kinds = (str(node.get_rt_info()["layerType"].value) for node in nodes)
    return Counter(NAMES.get(kind, kind) for kind in kinds if kind not in NO_WORK)


class Matmuls:
    """The matrix products of an engine's graph, compiled as the engine is, each with an input of its own numbers.

    In the graph of the engine the products wait for each other, for attention, norms and rotations. Here they are all
    that there is, so that their time is the machine's time for multiplying in the engine's precision. Of each result
    only the last token's is handed out, so that the results share memory as they do in the engine: memory of their own,
    160 MB for 256 tokens, would make the products a quarter slower.

    Parameters
    ----------
    folder : path
        The engine, of the tier cpu.

    Attributes
    ----------
    of_layers, of_vocabulary : int
        Weights that are multiplied with each token, and with each row of logits.
    """

    def __init__(self, folder: str | Path):
        info, graph = read(folder), steps.read(folder)
        words = info.pretrained_config["vocab_size"]
        self.of_layers = self.of_vocabulary = 0
        inputs: dict[str, ov.Node] = {}
        results = []
        last, first_axis = ops.constant(np.array([-1])), ops.constant(np.int64(0))
        for node in graph.get_ordered_ops():
            if node.get_type_name() != "MatMul" or not _has_weights(node):
                continue
            rows, columns = node.input_value(1).get_shape()
            name = "vocabulary" if rows == words else f"layers, {columns}"
            if rows == words:
                self.of_vocabulary += rows * columns
            else:
                self.of_layers += rows * columns
            if name not in inputs:
                inputs[name] = ops.parameter([-1, 1, columns], np.float32, name=name)
                inputs[name].output(0).set_names({name})
            node.input(0).replace_source_output(inputs[name].output(0))
            results.append(ops.gather(node, last, first_axis).output(0))
        alone = ov.Model(results, list(inputs.values()))
        self._request = steps.compiled(alone, info.build_config, info.quant_algo).create_infer_request()
        self._columns = {name: int(node.get_output_partial_shape(0)[2].get_length()) for name, node in inputs.items()}

    def seconds(self, tokens: int, users: int = 1) -> float:
        """Time of the products of one iteration: `tokens` in all, and logits for the last token of each of `users`."""
        for name, columns in self._columns.items():
            rows = users if name == "vocabulary" else tokens
            values = np.random.default_rng(0).normal(size=(rows, 1, columns)).astype(np.float32)
            self._request.set_tensor(name, ov.Tensor(values))
        started = time.perf_counter()
        self._request.infer()
        return time.perf_counter() - started


def _has_weights(product: ov.Node) -> bool:
    """Say whether a product's second factor comes from constants alone, and not from another token's keys or values."""
    node = product.input_value(1).get_node()
    while node.get_input_size():
        node = node.input_value(0).get_node()
    return node.get_type_name() == "Constant" and len(product.input_value(1).get_partial_shape()) == 2
