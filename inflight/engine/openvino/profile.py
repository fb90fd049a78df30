"""Where an iteration spends its time, by kind of layer, as the compiled graph itself reports it.

[one] = profile(read("engine"), [[Chunk(token_ids=[1], num_past=100, blocks=[0, 1, 2, 3])]])
one.ms["feed-forward, products"], one.kernels["feed-forward, products"]     # 4.1, ["brgemm_avx512_f32"]
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass

import openvino as ov

from inflight.engine.config import Chunk
from inflight.engine.folder import EngineInfo
from inflight.engine.openvino.layers import END
from inflight.engine.openvino.runner import OpenVINOModel

ATTENTION, FEED_FORWARD, OUTPUT = "attention, products", "feed-forward, products", "output, product"
KERNEL, NORMS, ROTARY, REST = "attention, kernel", "norms", "rotary", "rest"
KINDS = (ATTENTION, KERNEL, FEED_FORWARD, OUTPUT, NORMS, ROTARY, REST)
NODE_KINDS = {"PagedAttentionExtension": KERNEL, "RMS": NORMS, "RoPE": ROTARY, "Cos": ROTARY, "Sin": ROTARY}
WARM_UP = 3  # calls; the first makes what depends on the lengths
END_OF_ATTENTION = "model.layers.self_attn.add0.layer"


@dataclass(frozen=True)
class Profile:
    """What an iteration spends where, in milliseconds.

    Attributes
    ----------
    ms : dict
        Kind of layer, of `KINDS` -> time of its kernels, one after the other.
    kernels : dict
        Kind of layer -> names of its kernels, as the runtime calls them, the longest-running first.
    whole_ms : float
        The whole call with its inputs and what lies between kernels; taking times makes it longer than it is otherwise.
    """

    ms: dict[str, float]
    kernels: dict[str, list[str]]
    whole_ms: float


def profile(info: EngineInfo, iterations: list[list[Chunk]], repeats: int = 30) -> list[Profile]:
    """Where each of `iterations` spends its time: the compiled graph's own report, of a compilation for each.

    Parameters
    ----------
    iterations : list of list of Chunk
        What `OpenVINOModel.forward` takes; each is computed `repeats` times, after a few that are not counted.

    Returns
    -------
    list of Profile
        Means over the repeats.
    """
    return [_ProfiledModel(info).profile(chunks, repeats) for chunks in iterations]


class _ProfiledModel(OpenVINOModel):
    """An engine that has run nothing yet: the runtime's report is of the graph, and a mean over all calls so far."""

    def __init__(self, info: EngineInfo):
        super().__init__(info, profiled=True)
        self._products = product_kinds(self._graph)

    def profile(self, chunks: list[Chunk], repeats: int) -> Profile:
        self.allocate_kv_cache(1 + max(block for chunk in chunks for block in chunk.blocks))
        for _ in range(WARM_UP):
            self.forward(chunks)
        before = self._totals_ms(WARM_UP)
        started = time.perf_counter()
        for _ in range(repeats):
            self.forward(chunks)
        whole_ms = (time.perf_counter() - started) / repeats * 1000
        ms: dict[str, float] = dict.fromkeys(KINDS, 0.0)
        kernels: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for node, total_ms in self._totals_ms(WARM_UP + repeats).items():
            name, node_type, kernel = node
            kind = self._products.get(name) or NODE_KINDS.get(node_type, REST)
            taken_ms = (total_ms - before.get(node, 0.0)) / repeats
            ms[kind] += taken_ms
            kernels[kind][kernel] += taken_ms
        ordered = {kind: sorted(names, key=names.__getitem__, reverse=True) for kind, names in kernels.items()}
        return Profile(ms, ordered, whole_ms)

    def _totals_ms(self, calls: int) -> dict[tuple[str, str, str], float]:
        """Name, type and kernel of each node that ran -> its time in all `calls` so far."""
        return {
            (node.node_name, node.node_type, node.exec_type): node.real_time.total_seconds() * 1000 * calls
            for node in self._request.profiling_info
            if node.status == ov.ProfilingInfo.Status.EXECUTED
        }


def product_kinds(graph: ov.Model) -> dict[str, str]:
    """Name of each matrix product of a graph -> what it is for, told by where it stands in the order of computation.

    A layer ends with `layers.END`, its attention before that with `END_OF_ATTENTION`. What multiplies by no weights
    gives the angles of rotation. What adds up the input of an exact 4-bit product is of that product's kind.
    """
    kinds, kind = {}, ATTENTION
    for node in graph.get_ordered_ops():
        name = node.get_friendly_name()
        if node.get_type_name() == "MatMul":
            kinds[name] = ROTARY if node.input_value(1).get_partial_shape().is_dynamic else kind
        elif name.startswith(END_OF_ATTENTION):
            kind = FEED_FORWARD
        elif name.startswith(END.partition("{")[0]):
            kind = ATTENTION
    return kinds | dict.fromkeys(list(kinds)[-1:], OUTPUT)
