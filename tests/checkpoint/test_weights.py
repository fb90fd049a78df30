"""Weights on their way into an engine: read, and written again in other precisions."""

import gguf
import numpy as np
import pytest

from inflight.checkpoint import as_huggingface, fetch, q4_1, weights
from inflight.checkpoint.weights import GgufFile
from inflight.engine.folder import read
from inflight.errors import CourseError
from tests.engines import SMALL_LAYERS, SMALL_VOCAB, build_small, write_quantized


@pytest.fixture(scope="module")
def source(small_checkpoint) -> GgufFile:
    return GgufFile(small_checkpoint.path)


def values(file: GgufFile) -> dict[str, np.ndarray]:
    return {tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type) for tensor in file.tensors.values()}


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


def one_matrix(kind: gguf.GGMLQuantizationType, target) -> GgufFile:
    """A file with one matrix of zeros, of a type of GGUF."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    writer = gguf.GGUFWriter(target, "llama")
    writer.add_tensor("blk.0.attn_q.weight", np.zeros((2, 256 // block * size), np.uint8), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufFile(target)


@pytest.mark.parametrize("kind", list(gguf.GGMLQuantizationType), ids=lambda kind: kind.name)
def test_every_type_of_gguf_has_a_precision_or_is_refused_by_name(tmp_path, kind):
    if kind.name in weights.TYPES:
        file = one_matrix(kind, tmp_path / "one.gguf")
        assert file.precision() == weights.TYPES[kind.name].bits
    else:
        with pytest.raises(CourseError, match=rf"GGUF type {kind.name} \(blk.0.attn_q.weight\)"):
            one_matrix(kind, tmp_path / "one.gguf").precision()


@pytest.mark.parametrize(("kind", "quant_algo"), [("F32", None), ("BF16", None), ("Q5_1", "W8A16")])
def test_what_the_compiler_does_not_read_is_written_again(small_checkpoint, tmp_path, kind, quant_algo):
    file = write_quantized(small_checkpoint.path, tmp_path / "stored.gguf", kind)
    engine = build_small(fetch(str(file)), tmp_path / "engine", quant_algo="auto")
    assert read(engine).pretrained_config["quantization"]["quant_algo"] == quant_algo


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


@pytest.mark.parametrize("damage", [lambda data: data[:30], lambda data: data[:-40]])
def test_a_file_that_is_cut_short_is_one_sentence(small_checkpoint, tmp_path, damage):
    path = tmp_path / "short.gguf"
    path.write_bytes(damage(small_checkpoint.path.read_bytes()))
    with pytest.raises(CourseError, match=f"The GGUF file {path} cannot be read .*: download or copy it again"):
        GgufFile(path)


def test_a_block_of_four_bits_is_read_as_the_library_reads_it():
    blocks = q4_1.quantize(np.random.default_rng(3).normal(size=(8, 64)).astype(np.float32)).reshape(-1, 20)
    expected = gguf.dequantize(blocks, gguf.GGMLQuantizationType.Q4_1)
    assert np.array_equal(q4_1.dequantize(blocks), expected)


def test_a_folder_that_is_made_of_a_file_with_slowed_rotation_is_refused(small_checkpoint, tmp_path, monkeypatch):
    """Transformers leaves the factors aside, so the model would be another one."""
    monkeypatch.setenv("INFLIGHT_HOME", str(tmp_path))
    monkeypatch.setattr(GgufFile, "rotary_factors", lambda self: np.ones(32, np.float32))
    with pytest.raises(CourseError, match="scales its rotary positions as Llama 3.1 and later do"):
        as_huggingface.folder(small_checkpoint)
