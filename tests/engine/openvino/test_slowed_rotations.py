"""A checkpoint whose rotation of positions is slowed, as that of Llama 3.1 and later: the engine for CPUs follows."""

import numpy as np
import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from inflight.checkpoint import as_huggingface
from inflight.checkpoint.sources import fetch
from inflight.checkpoint.weights import GgufFile, requantize
from inflight.engine import model as engine_model
from inflight.engine.messages import Chunk
from tests.engines import build_small, write_quantized

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
SEED = 5
TOLERANCE = 0.1  # of logits up to 60: OpenVINO's kernels round elsewhere
EXACT = {"quant_algo": None, "max_input_len": 80, "max_seq_len": 128, "max_num_tokens": 128}


@pytest.fixture(scope="module")
def prompts():
    print(f"seed {SEED}")
    draw = np.random.default_rng(SEED)
    return [draw.integers(3, 300, length).tolist() for length in (5, 40, 70)]


@pytest.fixture(scope="module")
def slowed(small_checkpoint):
    """The small model in transformers, its rotations slowed."""
    plain = as_huggingface.dequantized(small_checkpoint.path, "float32")
    plain.config.rope_parameters |= LLAMA3
    slowed = transformers.LlamaForCausalLM(plain.config).eval()
    slowed.load_state_dict(plain.state_dict())
    return slowed


@pytest.fixture(scope="module")
def factors(slowed):
    """What the frequencies of the plain rotation are divided by."""
    config = slowed.config
    plain = 1 / config.rope_parameters["rope_theta"] ** (np.arange(0, config.head_dim, 2) / config.head_dim)
    slow, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    return (plain / slow.numpy()).astype(np.float32)


def difference(gguf_file, folder, prompts, slowed) -> float:
    """The largest difference of a logit between the file's engine and transformers."""
    model = engine_model.load(build_small(fetch(str(gguf_file)), folder, **EXACT))
    model.allocate_kv_cache(4)
    ours = [np.array(model.forward([Chunk(prompt, 0, [0, 1, 2])]))[0] for prompt in prompts]
    with torch.inference_mode():
        theirs = [slowed(torch.tensor([prompt])).logits[0, -1].numpy() for prompt in prompts]
    return max(np.abs(one - other).max() for one, other in zip(ours, theirs))


def test_logits_are_those_of_transformers(small_checkpoint, slowed, factors, prompts, tmp_path):
    file = write_quantized(small_checkpoint.path, tmp_path / "slowed.gguf", "F16", factors=factors)
    assert difference(file, tmp_path / "engine", prompts, slowed) < TOLERANCE
    requantize(GgufFile(file), tmp_path / "again.gguf", "W8A16")
    assert np.array_equal(GgufFile(tmp_path / "again.gguf").rotary_factors(), factors)


def test_without_the_factors_it_would_be_another_model(small_checkpoint, slowed, prompts, tmp_path):
    assert difference(small_checkpoint.path, tmp_path / "engine", prompts, slowed) > 5 * TOLERANCE
