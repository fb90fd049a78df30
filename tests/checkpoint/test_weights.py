"""Weights on their way into an engine: other precisions, and from Hugging Face's layout."""

import json
import shutil

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file
from safetensors.torch import load_file
from safetensors.torch import save_file as save_torch_file

from inflight.checkpoint import q4_1, weights
from inflight.checkpoint.weights import GgufFile
from inflight.errors import CourseError
from tests.engines import SMALL_LAYERS, SMALL_VOCAB

HUGGINGFACE_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


@pytest.fixture(scope="module")
def source(small_checkpoint) -> GgufFile:
    return GgufFile(small_checkpoint.path)


def values(file: GgufFile) -> dict[str, np.ndarray]:
    return {tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type) for tensor in file.reader.tensors}


@pytest.mark.parametrize("quant_algo, half", [(None, None), ("W8A16", "W8"), ("W4A8", "W4"), ("W4A16", "W4")])
def test_bits_are_the_weights_half(quant_algo, half):
    assert weights.bits(quant_algo) == half


# Rounding to n bits in groups moves a value by at most half a step of its group; 4 bits leave 15 steps, 8 bits 254.
@pytest.mark.parametrize(
    "quant_algo, kind, precision, error",
    [(None, "F16", None, 0), ("W8A16", "Q8_0", "W8", 0.5 / 127), ("W4A16", "Q4_1", "W4", 0.75 / 15)],
)
def test_requantize(source, tmp_path, quant_algo, kind, precision, error):
    weights.requantize(source, tmp_path / "out.gguf", quant_algo)
    result = GgufFile(tmp_path / "out.gguf")
    assert result.precision() == precision
    formats = {row["name"]: row["format"] for row in result.tensor_table() if len(row["shape"]) == 2}
    vocabulary = formats.pop("token_embd.weight")
    assert vocabulary == ("Q8_0" if quant_algo == "W4A16" else kind) and set(formats.values()) == {kind}
    before, after = values(source), values(result)
    assert before.keys() == after.keys()
    for name, matrix in before.items():
        span = np.ptp(matrix)
        assert np.abs(after[name] - matrix).max() <= (error * span if matrix.ndim == 2 else 0) * 1.02, name


def test_four_bits_are_searched_for():
    """Less is lost than with a range from the smallest weight to the largest, and in no block more."""
    seed = 12
    print(f"seed {seed}")
    values = np.random.default_rng(seed).normal(size=(64, 320)).astype(np.float32)
    kind = gguf.GGMLQuantizationType.Q4_1
    searched, plain = (
        ((gguf.dequantize(stored, kind) - values) ** 2).reshape(-1, 32).sum(-1)
        for stored in (q4_1.quantize(values), gguf.quantize(values, kind))
    )
    assert searched.sum() < 0.92 * plain.sum()
    assert (searched <= plain * 1.01).all()


def test_four_bits_of_weights_that_are_all_the_same():
    values = np.repeat(np.float32([0, 0.25, -3]), 32).reshape(3, 32)
    assert (gguf.dequantize(q4_1.quantize(values), gguf.GGMLQuantizationType.Q4_1) == values).all()
    with pytest.raises(ValueError, match="rows of 33 weights"):
        q4_1.quantize(np.zeros((1, 33), np.float32))


def test_requantize_keeps_all_metadata(source, tmp_path):
    weights.requantize(source, tmp_path / "out.gguf", "W8A16")
    before, after = (
        {key: value for key, value in file.metadata.items() if not key.startswith("GGUF.")}
        for file in (source, GgufFile(tmp_path / "out.gguf"))
    )
    assert after == before


def test_tensor_table(source):
    rows = {row["name"]: row for row in source.tensor_table()}
    assert rows["token_embd.weight"] == {
        "name": "token_embd.weight",
        "shape": (SMALL_VOCAB, 576),
        "format": "F16",
        "parameters": SMALL_VOCAB * 576,
        "bytes": SMALL_VOCAB * 576 * 2,
    }
    assert len(rows) == 2 + 9 * SMALL_LAYERS


# Hugging Face ---------------------------------------------------------------------------------------------------------


def halves_from_pairs(matrix: np.ndarray, heads: int) -> np.ndarray:
    """GGUF's rotary pairs back to Hugging Face's halves: even rows of a head first, then its odd ones."""
    return np.concatenate([np.concatenate([head[0::2], head[1::2]]) for head in np.split(matrix, heads)])


def huggingface_name(name: str) -> str:
    *layer, part, _ = name.split(".")
    prefix = f"model.layers.{layer[1]}." if layer else ""
    return f"{prefix}{HUGGINGFACE_NAMES[part]}.weight"


@pytest.fixture(scope="module")
def huggingface_folder(source, small_engine, tmp_path_factory):
    """The small model as a Hugging Face folder."""
    folder = tmp_path_factory.mktemp("hf") / "small-llama"
    folder.mkdir()
    heads = {"attn_q": 9, "attn_k": 3}
    tensors = {}
    for name, matrix in values(source).items():
        part = name.split(".")[-2]
        ordered = halves_from_pairs(matrix, heads[part]) if part in heads else matrix
        tensors[huggingface_name(name)] = ordered.astype(np.float32)
    save_file(tensors, folder / "model.safetensors")
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": SMALL_LAYERS,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100000.0,
        "vocab_size": SMALL_VOCAB,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(small_engine / name, folder / name)
    return folder


def test_rotary_order_there_and_back():
    matrix = np.arange(2 * 8 * 3).reshape(16, 3)
    assert np.array_equal(weights._interleave_rotary(halves_from_pairs(matrix, 2), 2), matrix)
    assert weights._interleave_rotary(np.arange(8).reshape(8, 1), 1)[:, 0].tolist() == [0, 4, 1, 5, 2, 6, 3, 7]


def test_huggingface_weights_are_those_of_the_gguf(source, huggingface_folder, tmp_path):
    weights.from_huggingface(huggingface_folder, tmp_path / "out.gguf", None)
    before, after = values(source), values(GgufFile(tmp_path / "out.gguf"))
    assert before.keys() == after.keys()
    for name, matrix in before.items():
        assert np.array_equal(after[name], matrix), name


def test_bfloat16_weights_are_read_as_their_values(huggingface_folder, tmp_path):
    folder = shutil.copytree(huggingface_folder, tmp_path / "bfloat16")
    tensors = {name: tensor.bfloat16() for name, tensor in load_file(folder / "model.safetensors").items()}
    save_torch_file(tensors, folder / "model.safetensors")
    weights.from_huggingface(folder, tmp_path / "out.gguf", None)
    after = values(GgufFile(tmp_path / "out.gguf"))
    assert np.array_equal(after["token_embd.weight"], tensors["model.embed_tokens.weight"].float().numpy())


def test_a_model_that_is_not_a_llama(huggingface_folder, tmp_path):
    folder = tmp_path / "gpt2"
    shutil.copytree(huggingface_folder, folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(CourseError, match="holds a 'gpt2' model; on this machine the course builds engines from Llama"):
        weights.from_huggingface(folder, tmp_path / "out.gguf", None)
