"""Checkpoints whose rotation of positions is slowed, as that of Llama 3.1 and later: the engine for CPUs follows."""

import gguf
import numpy as np
import pytest
import torch
import transformers

from inflight import checkpoint as checkpoints
from inflight.checkpoint import weights
from inflight.checkpoint.weights import GgufFile
from inflight.engine import model as engine_model
from inflight.engine.config import Chunk
from inflight.errors import CourseError
from tests.engines import build_small, write_tiny

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
SEED = 5
TOLERANCE = 0.1  # of logits up to 60: weights are stored in 16 bits, and OpenVINO's kernels round elsewhere
EXACT = {
    "dtype": "float32",
    "quant_algo": None,
    "kv_cache_quant_algo": None,
    "max_input_len": 80,
    "max_seq_len": 128,
    "max_num_tokens": 128,
}


@pytest.fixture(scope="module")
def prompts():
    print(f"seed {SEED}")
    draw = np.random.default_rng(SEED)
    return [draw.integers(3, 300, length).tolist() for length in (5, 40, 70)]


@pytest.fixture(scope="module")
def folder(small_checkpoint, tmp_path_factory):
    """A Hugging Face folder of a model with a slowed rotation."""
    target = tmp_path_factory.mktemp("slowed") / "hf"
    return write_tiny("llama", small_checkpoint.path, target, rope_parameters=LLAMA3).path


@pytest.fixture(scope="module")
def slowed(folder, small_checkpoint, tmp_path_factory):
    """The same as a GGUF file, with the factors in a tensor of their own as llama.cpp's converter writes them."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    config, heads = (
        model.config,
        {"q_proj": model.config.num_attention_heads, "k_proj": model.config.num_key_value_heads},
    )
    path = tmp_path_factory.mktemp("slowed") / "slowed.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    source = GgufFile(small_checkpoint.path)
    for key, (kind, item_kind) in source.kinds.items():
        if key.startswith("tokenizer."):
            writer.add_key_value(key, source.metadata[key], kind, sub_type=item_kind)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(LLAMA3["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_tensor(weights.ROTARY_FACTORS, factors(config))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        values = tensor.numpy()
        if name.split(".")[-2] in heads:  # the halves of a head become neighbours
            parts = values.reshape(heads[name.split(".")[-2]], 2, config.head_dim // 2, -1)
            values = parts.swapaxes(1, 2).reshape(values.shape)
        values = values if values.ndim == 1 else values.astype(np.float16)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return checkpoints.fetch(path)


def factors(config) -> np.ndarray:
    """What each frequency is divided by, float32 [head_size / 2], as transformers computes it."""
    plain = 1.0 / LLAMA3["rope_theta"] ** (np.arange(0, config.head_dim, 2) / config.head_dim)
    slower, _ = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    return (plain / slower.numpy()).astype(np.float32)


@pytest.fixture(scope="module")
def expected(folder, prompts):
    """Hugging Face's logits of each prompt's next token."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        return [model(torch.tensor([prompt])).logits[0, -1].numpy() for prompt in prompts]


def difference(checkpoint, folder, prompts, expected) -> float:
    """The largest difference of a logit between the checkpoint's engine and `expected`."""
    model = engine_model.load(build_small(checkpoint, folder, **EXACT))
    model.allocate_kv_cache(4)
    logits = [np.array(model.forward([Chunk(prompt, 0, [0, 1, 2])]))[0] for prompt in prompts]
    return max(np.abs(ours - theirs).max() for ours, theirs in zip(logits, expected, strict=True))


def test_logits_are_transformers(slowed, expected, prompts, tmp_path):
    assert difference(slowed, tmp_path / "engine", prompts, expected) < TOLERANCE


def test_another_precision_keeps_the_factors(slowed, tmp_path):
    weights.requantize(GgufFile(slowed.path), tmp_path / "again.gguf", "W8A16")
    again = GgufFile(tmp_path / "again.gguf").rotary_factors()
    assert np.array_equal(again, GgufFile(slowed.path).rotary_factors()) and again.max() > 1


def test_without_the_factors_it_would_be_another_model(slowed, expected, prompts, tmp_path, monkeypatch):
    monkeypatch.setattr(GgufFile, "rotary_factors", lambda self: None)
    assert difference(slowed, tmp_path / "engine", prompts, expected) > 5 * TOLERANCE


def test_a_hugging_face_folder_is_refused_on_a_cpu(folder, tmp_path):
    with pytest.raises(CourseError, match="is a Hugging Face folder, and engines for a CPU are built from GGUF files"):
        build_small(checkpoints.fetch(folder), tmp_path / "engine", **EXACT)
