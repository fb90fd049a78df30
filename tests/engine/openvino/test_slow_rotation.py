"""Checkpoints whose rotation of positions is slowed, as that of Llama 3.1 and later: the engine for CPUs follows."""

import json
import shutil

import numpy as np
import pytest
import torch
import transformers

from inflight import checkpoint as checkpoints
from inflight.checkpoint import rotary, weights
from inflight.checkpoint.shapes import RopeParameters
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
def slowed(small_checkpoint, tmp_path_factory):
    """A Hugging Face folder."""
    return write_tiny("llama", small_checkpoint.path, tmp_path_factory.mktemp("slowed") / "hf", rope_parameters=LLAMA3)


@pytest.fixture(scope="module")
def expected(slowed, prompts):
    """Hugging Face's logits of each prompt's next token."""
    model = transformers.AutoModelForCausalLM.from_pretrained(slowed.path, dtype=torch.float32).eval()
    with torch.inference_mode():
        return [model(torch.tensor([prompt])).logits[0, -1].numpy() for prompt in prompts]


def difference(checkpoint, folder, prompts, expected) -> float:
    """The largest difference of a logit between the checkpoint's engine and `expected`."""
    model = engine_model.load(build_small(checkpoint, folder, **EXACT))
    model.allocate_kv_cache(4)
    logits = [np.array(model.forward([Chunk(prompt, 0, [0, 1, 2])]))[0] for prompt in prompts]
    return max(np.abs(ours - theirs).max() for ours, theirs in zip(logits, expected, strict=True))


def test_from_a_hugging_face_folder_logits_are_transformers(slowed, expected, prompts, tmp_path):
    assert difference(slowed, tmp_path / "engine", prompts, expected) < TOLERANCE


def test_from_a_gguf_file_too_with_its_precision_or_another(slowed, expected, prompts, tmp_path):
    path = tmp_path / "slowed.gguf"
    weights.from_huggingface(slowed.path, path, None)
    assert difference(checkpoints.fetch(str(path)), tmp_path / "engine", prompts, expected) < TOLERANCE
    weights.requantize(GgufFile(path), tmp_path / "again.gguf", "W8A16")
    again = GgufFile(tmp_path / "again.gguf").rotary_factors()
    assert np.array_equal(again, rotary.factors(RopeParameters(**LLAMA3), 16, 10000.0))


def test_without_the_factors_it_would_be_another_model(slowed, expected, prompts, tmp_path, monkeypatch):
    monkeypatch.setattr(GgufFile, "rotary_factors", lambda self: None)
    assert difference(slowed, tmp_path / "engine", prompts, expected) > 5 * TOLERANCE


def test_factors_are_those_of_transformers():
    config = transformers.LlamaConfig(hidden_size=256, num_attention_heads=4, rope_parameters=LLAMA3)
    frequencies, _ = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    ours = rotary.frequencies(64, 10000.0) / rotary.factors(RopeParameters(**LLAMA3), 64, 10000.0)
    np.testing.assert_allclose(ours, frequencies.numpy(), rtol=1e-5)
    assert rotary.factors(RopeParameters(), 64, 10000.0) is None


@pytest.mark.parametrize(
    "changed, said",
    [
        ({"rope_type": "yarn"}, "has rope_type = 'yarn', and the course computes 'default' or 'llama3' only"),
        ({"rope_type": "linear"}, "has rope_type = 'linear', and the course computes"),
        ({"low_freq_factor": 4.0}, "has high_freq_factor 4.0 and low_freq_factor 4.0"),
    ],
    ids=str,
)
def test_another_rotation_is_refused_instead_of_computed_wrongly(slowed, tmp_path, changed, said):
    folder = shutil.copytree(slowed.path, tmp_path / "other")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "rope_parameters": {**LLAMA3, **changed}}))
    with pytest.raises(CourseError, match=said):
        build_small(checkpoints.fetch(str(folder)), tmp_path / "engine", **EXACT)
