"""Finds the precision in which this processor computes models fastest, with OpenVINO's own kernels.

    found = here()
    found.quant_algo, found.dtype, found.why       # "W4A16", "float32", "it has neither bfloat16 nor 8-bit products"

An engine's folder is the same for every processor; this is asked when one is loaded.
"""

from __future__ import annotations

import functools
import importlib
import os
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Processor:
    """The fast arithmetic that a processor has.

    Attributes
    ----------
    has_bfloat16 : bool
        It multiplies bfloat16 numbers. One that does not takes 5 to 19 times as long for a linear layer in bfloat16 as
        in float32 (AVX2, PyTorch 2.13).
    has_8_bits : bool
        It multiplies 8-bit whole numbers (VNNI, AMX): OpenVINO's kernels then round activations when they are asked to.
    """

    has_bfloat16: bool
    has_8_bits: bool

    @property
    def quant_algo(self) -> str:
        """Precision of a product with 4-bit weights in an engine."""
        return "W4A8" if self.has_8_bits else "W4A16"

    @property
    def dtype(self) -> str:
        """Precision of models that PyTorch computes."""
        return "bfloat16" if self.has_bfloat16 else "float32"

    @property
    def why(self) -> str:
        """The reason for the precision, in a few words."""
        parts = [name for name, has in (("bfloat16", self.has_bfloat16), ("8-bit products", self.has_8_bits)) if has]
        return f"the processor has {' and '.join(parts) or 'neither bfloat16 nor 8-bit products'}"


# A product is compiled anew for each number of rows, and kept twice: by OpenVINO's CPU plugin (5,000 of a kind, unless
# told otherwise) and by oneDNN in it (1,024). That is some 1.3 MB for each number of tokens that an iteration has had.
KEPT_KERNELS = 256


@functools.cache
def core() -> Any:
    """Return OpenVINO's core: a process has this one, for as long as it lives.

    OpenVINO 2026.4 gives the thread that first uses a core another stack for signals, and frees it with the core and
    its last model. If that happens in another thread, or after a second core has come, the thread keeps the freed
    stack, and the next signal that Python handles, such as an interrupt, is a segmentation fault.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(KEPT_KERNELS))  # read once, at its first product
    openvino: Any = importlib.import_module("openvino")  # by name: who imports this module does not load it
    return openvino.Core()


@functools.cache
def here() -> Processor:
    """Find out what this processor has, once a process, in a tenth of a second."""
    return Processor("BF16" in core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"), _rounds())


def _rounds() -> bool:
    """Try if a product of 4-bit weights, asked to round its input to 8 bits, does so: 1/3 is no multiple of 1/255."""
    openvino: Any = importlib.import_module("openvino")
    ops = importlib.import_module("openvino.opset13")
    rows, columns = 64, 128
    packed = openvino.Tensor(openvino.Type.u4, openvino.Shape([rows, columns // 32, 32]))
    packed.data[:] = 0x11  # ones
    ones = ops.constant(np.ones((rows, columns // 32, 1), np.float16))
    weights = ops.multiply(ops.convert(openvino.op.Constant(packed), "f16"), ones)
    weights = ops.convert(ops.reshape(weights, np.array([rows, columns]), False), "f32")
    source = ops.parameter([-1, columns], np.float32)
    properties = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 32}
    graph = openvino.Model([ops.matmul(source, weights, False, True)], [source])
    values = np.tile(np.array([1, 1 / 3], np.float32), columns // 2)[None]
    found = core().compile_model(graph, "CPU", properties)(values)[0]
    return not np.allclose(found, values.sum(), rtol=1e-5)
