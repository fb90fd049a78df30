"""One iteration of the model: tokens of several sequences in, one row of logits a sequence out.

    model = OpenVINOModel(read("engine"))
    model.allocate_kv_cache(num_blocks=256)
    logits = model.forward([Chunk(token_ids=[1, 2, 3], num_past=0, blocks=[0])])     # [1, vocab_size] float32

No padding anywhere: the new tokens of all sequences lie in one row, prompts and single tokens side by side, and the
attention kernel finds each sequence's past through its list of cache blocks.
"""

from __future__ import annotations

import numpy as np
import openvino as ov
from openvino import opset13 as ops
from openvino._offline_transformations import paged_attention_transformation

from inflight.engine.config import Chunk
from inflight.engine.folder import MODEL_FILE, EngineInfo
from inflight.errors import CourseError

# With quant_algo W…A8, activations are rounded to 8 bits in groups of this many values before a product. Half a block
# of weights: with 32 the most likely token is another in 4 of 100 places, with 16 in 3, for some 5 % more time.
A8_GROUP = 16
OPENVINO_TYPE = {"float32": "f32", "bfloat16": "bf16", "INT8": "u8"}


class OpenVINOModel:
    """An engine, loaded, with its KV cache; see `inflight.engine.model.Model`.

    Attributes
    ----------
    info : EngineInfo
    block_bytes : int
        Bytes of one KV cache block: keys and values of `tokens_per_block` tokens in every layer, with their scales.

    Parameters
    ----------
    profiled : bool
        Have the runtime take the time of each of its kernels, and keep the graph: see `openvino_profile`.

    Raises
    ------
    CourseError
        The graph in the folder cannot be read or compiled.
    """

    def __init__(self, info: EngineInfo, profiled: bool = False):
        self.info = info
        build = self.info.build_config
        quant_algo = self.info.pretrained_config["quantization"]["quant_algo"] or ""
        properties = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": OPENVINO_TYPE[build.dtype],
            "KV_CACHE_PRECISION": OPENVINO_TYPE[build.kv_cache_quant_algo or build.dtype],
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": A8_GROUP if quant_algo.endswith("A8") else 0,
            "PERF_COUNT": profiled,
        }
        core = ov.Core()
        try:
            graph = core.read_model(self.info.folder / MODEL_FILE)
            paged_attention_transformation(graph)
            _keep_last_tokens(graph)
            self._graph = graph if profiled else None
            self._compiled = core.compile_model(graph, "CPU", properties)
        except RuntimeError as error:
            raise CourseError(
                f"The engine in {self.info.folder} cannot be loaded "
                f"({str(error).strip().splitlines()[-1]}). Build it again: `inflight build`."
            ) from error
        self._request = self._compiled.create_infer_request()
        # [blocks, KV heads, tokens_per_block (+ scales), head size (+ scales)] for each layer's keys and values
        self._cache_ports = {
            port.get_any_name(): (port.element_type, [dim.get_length() for dim in list(port.partial_shape)[1:]])
            for port in self._compiled.inputs
            if port.get_any_name().startswith(("key_cache.", "value_cache."))
        }
        self.block_bytes = sum(kind.size * int(np.prod(shape)) for kind, shape in self._cache_ports.values())

    def allocate_kv_cache(self, num_blocks: int) -> None:
        """Give the model a cache of `num_blocks` blocks; memory is taken as blocks are first written."""
        for name, (kind, shape) in self._cache_ports.items():
            self._request.set_tensor(name, ov.Tensor(kind, ov.Shape([num_blocks, *shape])))

    def forward(self, chunks: list[Chunk]) -> np.ndarray:
        """Run one iteration.

        Parameters
        ----------
        chunks : list of Chunk
            One a sequence.

        Returns
        -------
        float32 array [len(chunks), vocab_size]
            Logits that follow the last new token of each chunk; valid until the next call.
        """
        lengths = np.array([len(chunk.token_ids) for chunk in chunks])
        past = np.array([chunk.num_past for chunk in chunks], np.int32)
        begins = np.concatenate([[0], np.cumsum(lengths)])
        tokens_per_block = self.info.build_config.tokens_per_block
        used_blocks = [chunk.blocks[: -(-(p + n) // tokens_per_block)] for chunk, p, n in zip(chunks, past, lengths)]
        inputs = {
            "input_ids": np.concatenate([chunk.token_ids for chunk in chunks]).astype(np.int64),
            "position_ids": np.concatenate([np.arange(p, p + n) for p, n in zip(past, lengths)]).astype(np.int64),
            "past_lens": past,
            "subsequence_begins": begins.astype(np.int32),
            "block_indices": np.concatenate(used_blocks).astype(np.int32),
            "block_indices_begins": np.cumsum([0, *map(len, used_blocks)]).astype(np.int32),
            "max_context_len": np.array((past + lengths).max(), np.int32),
            "last_tokens": begins[1:] - 1,
        }
        for name, value in inputs.items():
            self._request.set_tensor(name, ov.Tensor(value))
        self._request.infer()
        return self._request.get_tensor("logits").data[:, 0, :]


def _keep_last_tokens(graph: ov.Model) -> None:
    """Compute logits for the last token of each sequence only: the vocabulary is the widest matrix of all.

    Adds the input `last_tokens` int64 [sequences] in front of the last matrix product.
    """
    product = graph.get_results()[0].input_value(0).get_node()
    while product.get_type_name() != "MatMul":
        product = product.input_value(0).get_node()
    index = ops.parameter([-1], np.int64, name="last_tokens")
    index.output(0).set_names({"last_tokens"})
    picked = ops.gather(product.input_value(0), index, ops.constant(np.int64(0)))
    product.input(0).replace_source_output(picked.output(0))
    graph.add_parameters([index])
    graph.validate_nodes_and_infer_types()
