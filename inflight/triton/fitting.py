"""A request as the model that it goes to takes it: its contract may be an older one, or its model a plainer one.

fit({"text_input": text("Hello"), "max_tokens": np.array([[8]], np.int32)}, connection.config("ensemble"))
"""

from __future__ import annotations

import numpy as np
from google.protobuf import json_format
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig
from tritonclient.utils import triton_to_np_dtype

WORDS = ("bad_words", "stop_words")  # which TensorRT-LLM 0.5 requires


def from_json(content: dict) -> ModelConfig:
    """The config that a server tells over HTTP; of a newer server, without the fields that are unknown here."""
    return json_format.ParseDict(content, ModelConfig(), ignore_unknown_fields=True)


def fit(arrays: dict[str, np.ndarray], config: ModelConfig) -> dict[str, np.ndarray]:
    """Arrays of a request, [1, n] each, as the model of `config` takes them.

    Whole numbers get the model's own type, words that it requires are blank where none are given, and the batch
    dimension goes where the model has none. What the model does not know is left as it is, for the server to refuse.
    """
    inputs = {tensor.name: tensor for tensor in config.input}
    blanks = {name: np.array([[b""]], np.object_) for name in WORDS if name in inputs and not inputs[name].optional}
    return {
        name: _fit(array, inputs[name], config.max_batch_size > 0) if name in inputs else array
        for name, array in {**blanks, **arrays}.items()
    }


def _fit(array: np.ndarray, tensor, is_batched: bool) -> np.ndarray:
    if np.issubdtype(array.dtype, np.integer):
        wanted = np.dtype(triton_to_np_dtype(DataType.Name(tensor.data_type).removeprefix("TYPE_")))
        if np.issubdtype(wanted, np.integer):
            array = array.astype(wanted)
    return array[0] if not is_batched and array.ndim == len(tensor.dims) + 1 else array
