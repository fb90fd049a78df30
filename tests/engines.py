"""What tests of engine, executor, server and client call; their fixtures are in conftest.py.

Most tests run a small model: a few layers and a thousand tokens of the course's own, so that an engine is built in a
second and an iteration takes a millisecond. Its text makes no sense, but it is the same architecture throughout.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import gguf
import numpy as np
import psutil
from prometheus_client.parser import text_string_to_metric_families

from inflight import engine
from inflight.checkpoint import as_huggingface, tokenizer, weights
from inflight.checkpoint import sources as checkpoints
from inflight.engine.fake_model import next_token
from inflight.engine.settings import BuildConfig
from inflight.triton import telemetry
from inflight.triton.client.client import Client
from inflight.triton.client.connection import Connection, is_ok
from inflight.triton.repository.request import arrays_for
from inflight.triton.serving.server import Server

SMALL_LAYERS = 3
SMALL_VOCAB = 1024
SPECIAL_AND_BYTES = 252  # tokens of the course's model that are no merge; each of the others is the next merge's result
SMALL_BUILD = BuildConfig(
    max_batch_size=4, max_input_len=48, max_seq_len=96, max_num_tokens=64, dtype="float32", quant_algo="W4A16"
)


# A small model --------------------------------------------------------------------------------------------------------


def write_small_gguf(source: weights.GgufFile, target: Path) -> Path:
    """The first layers and tokens of `source` as a GGUF file of its own, in 16-bit floating point."""
    changed = {
        "llama.block_count": SMALL_LAYERS,
        "llama.vocab_size": SMALL_VOCAB,
        "tokenizer.ggml.tokens": source.metadata["tokenizer.ggml.tokens"][:SMALL_VOCAB],
        "tokenizer.ggml.token_type": source.metadata["tokenizer.ggml.token_type"][:SMALL_VOCAB],
        "tokenizer.ggml.merges": source.metadata["tokenizer.ggml.merges"][: SMALL_VOCAB - SPECIAL_AND_BYTES],
    }
    tensors = [
        (name, values[:SMALL_VOCAB] if name == "token_embd.weight" else values, "F16")
        for name, values in _floats(source)
        if not name.startswith("blk.") or int(name.split(".")[1]) < SMALL_LAYERS
    ]
    return _write_gguf(source, target, changed, tensors)


def write_quantized(small: Path, target: Path, stored: str, factors=None) -> Path:
    """The small model with its layers' matrices in a format of GGUF, by its name, or in a mixture of them.

    The vocabulary's matrix is in 8 bits beside 4 bits, as in the files that people share. `factors` are those of a
    slowed rotation, as in files of Llama 3.1 and later.
    """
    source = weights.GgufFile(small)
    tensors = [] if factors is None else [("rope_freqs.weight", factors, "")]
    for number, (name, values) in enumerate(_floats(source)):
        kind = stored if stored != "mixed" else ("Q4_0", "Q4_1", "Q8_0", "Q4_1")[number % 4]
        if name == "token_embd.weight" and kind.startswith("Q"):
            kind = "Q8_0"
        tensors.append((name, values, kind))
    return _write_gguf(source, target, {}, tensors)


def _floats(source: weights.GgufFile) -> Iterator[tuple[str, np.ndarray]]:
    """The tensors of a GGUF file by name, as floating point."""
    for tensor in source.tensors.values():
        yield tensor.name, gguf.dequantize(tensor.data, tensor.tensor_type)


def _write_gguf(source: weights.GgufFile, target: Path, changed: dict, tensors: list) -> Path:
    """A GGUF file with the metadata of `source` but for what is `changed`; tensors: name, values, a matrix's format."""
    writer = gguf.GGUFWriter(target, "llama")
    for key, (kind, item_kind) in source.kinds.items():
        if key != "general.architecture":
            writer.add_key_value(key, changed.get(key, source.metadata[key]), kind, sub_type=item_kind)
    for name, values, stored in tensors:
        if values.ndim == 1:
            writer.add_tensor(name, values)
        else:
            kind = gguf.GGMLQuantizationType[stored]
            writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def build_small(checkpoint: checkpoints.Checkpoint, folder: Path, **options) -> Path:
    """An engine of the small model with `SMALL_BUILD` and what is changed in it."""
    return engine.build(checkpoint, dataclasses.replace(SMALL_BUILD, **options), folder)


# A tiny model for PyTorch: random weights, large enough that an answer does not repeat its last token for ever.
TINY_LLAMA = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "vocab_size": SMALL_VOCAB,
    "tie_word_embeddings": False,
    "initializer_range": 0.4,
}


def write_tiny(small: Path, folder: Path, **changed) -> checkpoints.Checkpoint:
    """A Hugging Face folder of a tiny Llama, with the small model's tokenizer and seeded random weights."""
    import torch
    import transformers

    config = transformers.LlamaConfig(**(TINY_LLAMA | changed))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(config)
    with as_huggingface.quiet():
        model.save_pretrained(folder)
    source = weights.GgufFile(small)
    tokenizer.write_files(checkpoints.Checkpoint("small", small, "gguf", ""), source.metadata, folder)
    return checkpoints.fetch(folder)


def build_tiny(checkpoint: checkpoints.Checkpoint, folder: Path, **options) -> Path:
    """An engine for PyTorch on the CPU with `SMALL_BUILD` and what is changed in it."""
    config = dataclasses.replace(SMALL_BUILD, **{"quant_algo": None, **options})
    return engine.build(checkpoint, config, folder, tier="cuda", device="cpu")


def fake_answer(prompt: Sequence[int], length: int, vocab: int) -> list[int]:
    """What a model without weights answers to a prompt that it computes alone."""
    tokens = list(prompt)
    for _ in range(length):
        tokens.append(next_token(tokens, vocab))
    return tokens[len(prompt) :]


# Servers --------------------------------------------------------------------------------------------------------------


def ask_tokens(server: Server, input_ids: list[int], length: int, **options) -> list[int]:
    """What the engine itself answers to tokens; options are its other inputs."""
    inputs = {"input_ids": input_ids, "input_lengths": len(input_ids), "request_output_len": length, **options}
    with Client(server.grpc_url, "tensorrt_llm") as client, Connection(server.grpc_url) as connection:
        connection.open_stream()
        arrays = arrays_for(client.config(), inputs)
        connection.send_on_stream("tensorrt_llm", arrays, enable_empty_final_response=True)
        tokens, is_over = [], False
        while not is_over:
            reply = connection.next_reply(timeout_s=120)
            if reply.error is not None:
                raise reply.error
            is_over = reply.is_final
            if not reply.is_empty:
                tokens += reply.result.as_numpy("output_ids").reshape(-1).tolist()
    return tokens


def metric(server: Server, family: str, **labels) -> float:
    """One value of /metrics, which has those of the engine a moment after it was loaded."""
    page = telemetry.wait_for(
        lambda: telemetry.page(server.metrics_url),
        lambda text: not family.startswith("nv_trt_llm") or "nv_trt_llm_general_metrics{" in text,
        "The engine shows no figures.",
    )
    for sample in (each for found in text_string_to_metric_families(page) for each in found.samples):
        if sample.name == family and labels.items() <= sample.labels.items():
            return sample.value
    raise LookupError(f"{family} {labels} is not among the metrics")


def model_process(server: Server, model: str) -> psutil.Process:
    """The process that runs a model; that of an earlier load may still be ending."""
    found = [
        child
        for child in psutil.Process(server.pid).children(recursive=True)
        if child.status() != psutil.STATUS_ZOMBIE and any(f"/{model}/" in argument for argument in child.cmdline())
    ]
    return max(found, key=lambda child: child.create_time())


def is_ready(server: Server) -> bool:
    """Whether the server answers and all its models are loaded."""
    return is_ok(server.http_url, "/v2/health/ready")


def active_requests(server: Server) -> float:
    return metric(server, "nv_trt_llm_request_metrics", request_type="active")


# Waiting, and processes of their own ----------------------------------------------------------------------------------


def wait_until(condition, what: str, deadline_s: float = 120) -> None:
    """Return as soon as `condition()` is true; fail with `what` if it is not within the deadline."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {deadline_s} s: {what}"
        time.sleep(0.01)


def start_python(script: str, *arguments, **options) -> subprocess.Popen:
    """Run `script` in another interpreter, its output piped."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)


def flip(file: Path) -> None:
    """Change one bit in the middle of a file, as a failing disk does."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
