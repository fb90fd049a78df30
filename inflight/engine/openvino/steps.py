"""The steps from a checkpoint's file to a program for this CPU, one function each, by OpenVINO.

    graph = to_graph(checkpoint.path, folder)       # every operation of the model, and its weights, on disk
    slow_down(graph, source)                        # rotations, as Llama 3.1 and later have them
    make_exact(graph, source)                       # four_bits: the zero points that the reader rounds
    save(graph, folder)                             # up to here when an engine is built
    with_pages(graph)                               # from here on when it is loaded
    keep_last_tokens(graph)
    program = compiled(graph, build_config, "W4A8")

`builder.build` takes the first four steps, `runner.OpenVINOModel` the others.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import openvino as ov
from openvino import opset13 as ops
from openvino._offline_transformations import paged_attention_transformation

from inflight import processor
from inflight.checkpoint import GgufFile
from inflight.engine.folder import MODEL_FILE, WEIGHTS_FILE
from inflight.engine.openvino.four_bits import in_whole_numbers
from inflight.engine.settings import BuildConfig
from inflight.errors import CourseError

# With W4A8, activations are rounded to 8 bits in groups of this many values before a product. Half a block of weights:
# with 32 the most likely token is another in 4 of 100 places, with 16 in 3, for some 5 % more time.
A8_GROUP = 16
OPENVINO_TYPE = {"float32": "f32", "bfloat16": "bf16", "INT8": "u8"}

# When it is built -----------------------------------------------------------------------------------------------------


def to_graph(gguf_file: str | Path, folder: str | Path) -> ov.Model:
    """Write a GGUF file as an OpenVINO graph with packed weights into `folder`, and read that.

    Raises
    ------
    OSError
        It cannot be written; the library itself only logs that.
    """
    import openvino_genai

    folder = Path(folder)
    # A copy: the library writes beside the file that it reads, and opens that for writing as well.
    given = folder / "given.gguf"
    shutil.copyfile(gguf_file, given)
    # The pipeline is only made for the graph that it writes, and in bfloat16, its own choice where the CPU has it, it
    # divides by zero when there is one core for it (OpenVINO 2026.4.1).
    properties = {"enable_save_ov_model": True, "INFERENCE_PRECISION_HINT": "f32"}
    try:
        openvino_genai.LLMPipeline(str(given), "CPU", **properties)
    except RuntimeError as error:
        if "iostream error" not in str(error):  # the C++ library's words for a write that failed, whatever the reason
            raise
        raise _disk_full() from error
    finally:
        given.unlink()
        for file in folder.glob("openvino_*tokenizer.*"):  # the course uses tokenizer.json
            file.unlink()
    if not all((folder / name).exists() for name in (MODEL_FILE, WEIGHTS_FILE)):
        raise _disk_full()
    return read(folder)


def read(folder: str | Path) -> ov.Model:
    """Read the graph in an engine's folder."""
    return processor.core().read_model(Path(folder) / MODEL_FILE)


def slow_down(graph: ov.Model, source: GgufFile) -> bool:
    """Divide the frequencies of rotation in `graph`, which was made from `source`, by what the checkpoint says.

    A checkpoint of Llama 3.1 or later says so in `rope_freqs.weight`, which the reader of GGUF files leaves aside.

    Returns
    -------
    bool
        Whether the graph was changed; a checkpoint without slowed rotations needs no change.

    Raises
    ------
    CourseError
        The frequencies are not found in the graph.
    """
    factors = source.rotary_factors()
    if factors is None:
        return False
    node = next(node for node in graph.get_ordered_ops() if node.get_type_name() == "Sin")
    while node.get_input_size():  # angles are frequencies times positions: the constant that the sine comes from
        node = node.input_value(0).get_node()
    if node.get_type_name() != "Constant" or node.data.size != factors.size:
        raise CourseError(
            f"{source.path} scales its rotary positions, and their frequencies are not found in the graph that "
            f"OpenVINO {ov.__version__} made: install the course's requirements."
        )
    slowed = ops.constant((node.data.astype(np.float32) / factors.reshape(node.data.shape)).astype(node.data.dtype))
    for user in node.output(0).get_target_inputs():
        user.replace_source_output(slowed.output(0))
    graph.validate_nodes_and_infer_types()
    return True


def save(graph: ov.Model, folder: str | Path) -> None:
    """Write `graph` into `folder`, over the one there, which `graph` may have been read from.

    Raises
    ------
    OSError
        It cannot be written.
    """
    folder = Path(folder)
    # Names that OpenVINO makes up count what this process has made before; a file is to be the same from everywhere.
    graph.set_friendly_name("model")
    for number, node in enumerate(graph.get_ordered_ops()):
        kind, _, counted = node.get_friendly_name().rpartition("_")
        if kind == node.get_type_name() and counted.isdigit():
            node.set_friendly_name(f"{kind}_{number}")
    written = Path(tempfile.mkdtemp(dir=folder))  # the graph has the files in `folder` open: they are put there last
    try:
        ov.save_model(graph, written / MODEL_FILE, compress_to_fp16=False)
        read(written)  # a failed write may have gone unsaid
        for name in (MODEL_FILE, WEIGHTS_FILE):
            os.replace(written / name, folder / name)
    except RuntimeError as error:
        raise _disk_full() from error
    finally:
        shutil.rmtree(written)


def _disk_full() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# When it is loaded ----------------------------------------------------------------------------------------------------


def with_pages(graph: ov.Model) -> None:
    """Let attention find the keys and values of each sequence in blocks of a cache that is given to it.

    In the graph until then, each attention has a cache of its own for one batch of equal lengths. What it takes instead
    are inputs: `past_lens`, `subsequence_begins`, `block_indices`, `block_indices_begins`, `max_context_len`, and
    `key_cache.N` and `value_cache.N` of each layer.
    """
    paged_attention_transformation(graph)


def keep_last_tokens(graph: ov.Model) -> None:
    """Compute logits after some tokens only: the vocabulary is the widest matrix of all.

    Adds the input `last_tokens` int64 [rows of logits], their places among all new tokens, before the last matrix
    product.
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


def compiled(graph: ov.Model, config: BuildConfig, quant_algo: str | None) -> ov.CompiledModel:
    """Compile the program for this CPU: operations joined, weights laid out anew, a kernel chosen for each.

    Parameters
    ----------
    config : BuildConfig
        As it is `on` the tier cpu.
    quant_algo : str, optional
        As "W4A8": whether products round their input to 8 bits, for which `graph` is changed; `EngineInfo.quant_algo`
        is the one for this CPU.
    """
    rounds = quant_algo == "W4A8"
    if rounds:
        in_whole_numbers(graph)
    properties = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": OPENVINO_TYPE[config.dtype],
        "KV_CACHE_PRECISION": OPENVINO_TYPE[config.kv_cache_quant_algo or config.dtype],
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": A8_GROUP if rounds else 0,
        "CPU_RUNTIME_CACHE_CAPACITY": processor.KEPT_KERNELS,
    }
    return processor.core().compile_model(graph, "CPU", properties)


def cache_shapes(program: ov.CompiledModel) -> dict[str, tuple[ov.Type, list[int]]]:
    """Return type and shape of one cache block by the name of its input, for keys and values of each layer.

    A shape is [KV heads, tokens_per_block, head size], with room for the scales of an 8-bit cache.
    """
    return {
        port.get_any_name(): (port.element_type, [dim.get_length() for dim in list(port.partial_shape)[1:]])
        for port in program.inputs
        if port.get_any_name().startswith(("key_cache.", "value_cache."))
    }


def block_bytes(program: ov.CompiledModel) -> int:
    """Return the bytes of one KV cache block: keys, values and scales of `tokens_per_block` tokens in every layer."""
    return sum(kind.size * int(np.prod(shape)) for kind, shape in cache_shapes(program).values())
