"""The checks of lab 01 find the mistakes that learners make, and say which; other right ways pass too."""

import json
import os
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

from inflight import engine
from inflight.checkpoint import fetch, q4_1, quantized
from inflight.checkpoint.weights import GgufFile
from inflight.engine import BuildConfig, Executor, Request
from inflight.errors import CourseError
from inflight.notebook import mine
from inflight.notebook.grading import check
from inflight.notebook.grading import engine as graders
from inflight.paths import ASSETS
from tests.engines import start_python

COURSES = ASSETS / "parts" / "quantizer.py"


@pytest.fixture(autouse=True)
def as_in_a_lab(monkeypatch):
    """Checks report and do not raise, whatever the run that these tests are part of has set."""
    monkeypatch.setenv("COURSE_STRICT", "0")


def refused(exercise, answer, *words):
    result = check(exercise, answer)
    assert result.status in ("wrong", "partly"), result
    assert all(word in repr(result) for word in words), result


# 1.1 ------------------------------------------------------------------------------------------------------------------


def halves(block):
    return [byte & 15 for byte in block[4:]], [byte >> 4 for byte in block[4:]]


def scales(block):
    return struct.unpack("<2e", bytes(block[:4]))


def decode(block):
    d, m = scales(block)
    low, high = halves(block)
    return [d * q + m for q in low + high]


def test_a_block_is_read_in_other_ways():
    assert check("1.1", decode).status == "done"
    assert check("1.1", lambda block: q4_1.dequantize(np.frombuffer(block, np.uint8)[None])[0]).status == "done"


def neighbours(block):
    d, m = scales(block)
    return [d * q + m for pair in zip(*halves(block)) for q in pair]


def without_m(block):
    return [weight - scales(block)[1] for weight in decode(block)]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda block: [0.0] * 32, "0, where exactly 24 is wanted. Take one block apart on paper"),
        (lambda block: list(block), "A block has 32 weights: give a list"),
        (lambda block: 57, "A block has 32 weights"),
        (lambda block: "many", "A block has 32 weights"),
        (lambda block: decode(bytes(range(20))), "0, where exactly 24"),  # of one block only
        (neighbours, "halves of a byte are not neighbours"),
        (lambda block: decode(block)[16:] + decode(block)[:16], "The low halves come first"),
        (lambda block: decode(block[2:4] + block[:2] + block[4:]), "The first two bytes are d"),
        (without_m, "leave out m"),
        (lambda block: [weight - 2 * scales(block)[1] for weight in decode(block)], "m is added"),
        (lambda block: [np.nan] * 32, "0, where exactly 24"),
        (lambda block: 1 / 0, "could not be checked: ZeroDivisionError"),
    ],
)
def test_a_block_that_is_misread_is_told_how(answer, words):
    refused("1.1", answer, words)


def test_a_block_that_nobody_has_read_is_open():
    assert check("1.1", lambda block: None).status == "not done yet"


# 1.2 ------------------------------------------------------------------------------------------------------------------

WITH_LOOPS = """
import struct

import numpy as np


def quantize(blocks):
    made = []
    for block in blocks.tolist():
        least = min(block)
        d = (max(block) - least) / 15
        q = [round((weight - least) / d) if d else 0 for weight in block]
        made.append(struct.pack("<2e", d, least) + bytes(q[i] | q[i + 16] << 4 for i in range(16)))
    return np.frombuffer(b"".join(made), np.uint8).reshape(-1, 20)
"""
SEARCHED = "from inflight.checkpoint.q4_1 import quantize\n"


@pytest.fixture
def written(tmp_path):
    def write(text):
        (tmp_path / "quantizer.py").write_text(text)
        return tmp_path / "quantizer.py"

    return write


def changed(old, new):
    text = COURSES.read_text()
    assert old in text
    return text.replace(old, new)


@pytest.mark.parametrize("text", [COURSES.read_text(), WITH_LOOPS, SEARCHED])
def test_blocks_are_written_in_other_ways(written, text):
    result = check("1.2", written(text))
    assert result.status == "done", result
    assert "Hidden cases: seed" in repr(result) and "the course's" in repr(result)


GIVES = "import numpy as np\n\n\ndef quantize(blocks):\n    return {}\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (GIVES.format("np.zeros((len(blocks), 20), np.uint8)"), "All steps are 0"),
        (GIVES.format("blocks"), "uint8 [772, 20]; yours is float32 [772, 32]"),
        (GIVES.format("np.full((len(blocks), 20), 57, np.uint8)"), "bell curve not right yet"),
        (GIVES.format("57"), "yours is int64 []"),
        (GIVES.format("[[1], [1, 2]]"), "quantizer.py fails: ValueError"),
        (changed("np.rint(", "np.floor("), "0.5 steps too low"),
        (changed("/ 15", "/ 16"), "at most"),
        (changed("q[:, :16] | q[:, 16:] << 4", "q[:, ::2] | q[:, 1::2] << 4"), "shares its byte with weight i + 16"),
        (changed("np.stack([d, m]", "np.stack([m, d]"), "bell curve not right yet"),
        (changed("[d, m], axis=1)", "[d, 0 * m], axis=1)"), "steps too"),
        (WITH_LOOPS.replace(" if d else 0", ""), "quantizer.py fails: ZeroDivisionError"),
        (changed("least.astype(np.float16)", "np.where(most > least, least, 0).astype(np.float16)"), "all 32 weights"),
        ("", "quantizer.py fails: KeyError: 'quantize'"),
        ("def quantize(blocks)", "quantizer.py fails: SyntaxError"),
        ("import sys\nsys.exit(0)\n", "fails: it ended without a word"),
    ],
)
def test_blocks_that_lose_too_much_are_told_why(written, text, words):
    refused("1.2", written(text), words)


def test_a_quantizer_without_end_is_ended(written, monkeypatch):
    monkeypatch.setattr(graders, "CHECK_S", 1)
    refused("1.2", written("def quantize(blocks):\n    while True:\n        pass\n"), "has not answered in 1 s")


def test_a_quantizer_that_nobody_has_written_is_open(written, tmp_path):
    assert check("1.2", written(GIVES.format("None"))).status == "not done yet"
    refused("1.2", tmp_path / "nowhere.py", "There is no file")
    refused("1.2", 57, "could not be checked: TypeError")


def test_the_courses_quantizer_makes_an_engine(small_checkpoint, tmp_path):
    """As a learner's does: a checkpoint is written with it, built, loaded, and answers."""
    own = quantized(small_checkpoint, mine.load("quantizer").quantize, tmp_path / "own.gguf")
    assert GgufFile(own.path).precision() == "W4"
    limits = {"max_batch_size": 4, "max_input_len": 48, "max_seq_len": 96, "max_num_tokens": 64}
    folder = engine.build(own, BuildConfig(**limits), tmp_path / "engine", tier="cpu")
    with Executor.load(folder) as executor:
        assert len(executor.generate(Request([5, 6, 7], 8)).token_ids) == 8


def test_a_quantizer_that_gives_no_blocks_leaves_no_checkpoint(small_checkpoint, tmp_path):
    with pytest.raises(CourseError, match=r"uint8 \[blocks, 20\]; of \d+ blocks this one made float32"):
        quantized(small_checkpoint, lambda blocks: blocks, tmp_path / "own.gguf")
    assert list(tmp_path.iterdir()) == []


# 1.3 ------------------------------------------------------------------------------------------------------------------


def kv_bytes(config):
    if "kv_lora_rank" in config:
        return 2 * config["num_hidden_layers"] * (config["kv_lora_rank"] + config["qk_rope_head_dim"])
    return 2 * llama_only(config | {"num_key_value_heads": config.get("num_key_value_heads", heads(config))}) // 2


def heads(config):
    return config["num_attention_heads"]


def llama_only(config):
    size = config.get("head_dim") or config["hidden_size"] // heads(config)
    return 2 * 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * size


def users(config, memory, tokens):
    return int(memory // ((tokens + 31) // 32 * 32 * kv_bytes(config)))


def test_the_cache_of_any_model_is_worked_out_in_another_way():
    assert check("1.3", (kv_bytes, users)).status == "done"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((lambda config: 57, lambda *rest: 57), ["57, where exactly", "whole blocks not right yet"]),
        ((kv_bytes, lambda *rest: 57), ["latent ✓, whole blocks not right yet", "round tokens up"]),
        ((kv_bytes, lambda config, memory, tokens: memory // (tokens * kv_bytes(config))), ["round tokens up"]),
        ((kv_bytes, lambda config, memory, tokens: memory // (tokens // 32 * 32 * kv_bytes(config))), ["whole blocks"]),
        ((lambda config: kv_bytes(config) // 2, users), ["2 (key and value)"]),
        ((llama_only, users), ["KeyError: 'num_key_value_heads'", "head_dim ✓, latent not right yet"]),
        ((lambda config: llama_only(config | {"num_key_value_heads": heads(config)}), users),
         ["KV heads not right yet, no num_key_value_heads ✓"]),
        ((lambda config: kv_bytes({**config, "head_dim": config["hidden_size"] // heads(config)}), users),
         ["Where head_dim is given"]),
        ((lambda config: "many", users), ["none, where exactly"]),
        (kv_bytes, ["Give both functions"]),
    ],
)  # fmt: skip
def test_a_formula_of_one_model_alone_is_told_where_it_ends(answer, words):
    refused("1.3", answer, *words)


def test_a_formula_that_nobody_has_written_is_open():
    assert check("1.3", (lambda *_: None, lambda *_: None)).status == "not done yet"
    says = "no num_key_value_heads ✓, head_dim ✓, latent ✓, whole blocks still open."
    assert says in repr(check("1.3", (kv_bytes, lambda *_: None)))


# 1.4 ------------------------------------------------------------------------------------------------------------------

FITS = {"max_batch_size": 16, "max_input_len": 200, "max_seq_len": 256, "max_num_tokens": 2048}
INT8 = {"kv_cache_quant_algo": "INT8"}


def variant(folder, to, quant_algo=None, **options):
    """The same engine with other limits: here they are nothing but numbers in its config."""
    shutil.copytree(folder, to)
    content = json.loads((to / "config.json").read_text())
    content["build_config"] |= options
    if quant_algo:
        content["build_config"]["quant_algo"] = quant_algo
        content["pretrained_config"]["quantization"]["quant_algo"] = quant_algo
    (to / "config.json").write_text(json.dumps(content))
    engine.accept(to)
    return to


@pytest.fixture
def service(small_checkpoint, small_engine, monkeypatch, tmp_path):
    """Makes engines of the small model, which is the course's here; its memory is as tight as the lab's."""
    monkeypatch.setattr(graders.checkpoint, "fetch", lambda: small_checkpoint)
    with Executor.load(variant(small_engine, tmp_path / "int8", **FITS, **INT8)) as executor:
        cache = 16 * 256 // 32 * executor.model.block_bytes
    monkeypatch.setattr(graders, "MEMORY", engine.read(small_engine).weight_bytes + 1.2 * cache)
    return lambda **options: variant(small_engine, tmp_path / "service", **FITS | INT8 | options)


def test_an_engine_that_serves_is_measured(service):
    result = check("1.4", service())
    assert result.status == "done" and "users in one iteration: yours 16" in repr(result), result


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_num_tokens": 16}, "It does not serve: A prompt of max_input_len (200) tokens does not fit"),
        ({"max_num_tokens": 200}, "users not right yet"),
        ({"max_batch_size": 8}, "users in one iteration: 8, where at least 16"),
        ({"max_input_len": 100}, "It does not serve: "),
        ({"max_seq_len": 230}, "answers not right yet"),
        ({"kv_cache_quant_algo": None}, "memory not right yet"),
        ({"max_seq_len": 2048}, "memory not right yet"),
    ],
)
def test_an_engine_that_does_not_serve_is_told_why(service, options, words):
    refused("1.4", service(**options), words)


@pytest.mark.parametrize("answer", [{"max_batch_size": 16}, 57, "/nowhere", lambda: None])
def test_what_is_no_engine_does_not_serve(answer):
    assert check("1.4", answer).status == "wrong"


def test_an_engine_of_another_checkpoint_does_not_count(small_engine):
    refused("1.4", small_engine, "another checkpoint")


# 1.5 ------------------------------------------------------------------------------------------------------------------


def compare(executor, prompt, others):
    together = executor.generate_all([Request(ids, request_output_len=32) for ids in (*others, prompt)])
    return executor.generate(Request(prompt, request_output_len=32)).token_ids, together[-1].token_ids


def one_run_twice(executor, prompt, others):
    words = executor.generate(Request(prompt, 32)).token_ids
    return words, words


def one_after_the_other(executor, prompt, others):
    words = [executor.generate(Request(ids, 32)).token_ids for ids in (prompt, *others, prompt)]
    return words[0], words[-1]


def company_twice(executor, prompt, others):
    words = executor.generate_all([Request(ids, 32) for ids in (prompt, *others)])[0].token_ids
    return words, words


def somebody_elses(executor, prompt, others):
    words = executor.generate_all([Request(ids, 32) for ids in (prompt, *others)])
    return executor.generate(Request(prompt, 32)).token_ids, words[-1].token_ids


def too_short(executor, prompt, others):
    words = executor.generate_all([Request(ids, 8) for ids in (prompt, *others)])[0].token_ids
    return executor.generate(Request(prompt, 8)).token_ids, words


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda *_: ([0] * 32, [0] * 32), "not both words that the engine gave"),
        (one_run_twice, "requests in one iteration: 1, where at least 5"),
        (one_after_the_other, "requests in one iteration: 1, where at least 5"),
        (company_twice, "run `prompt` once with nobody beside it"),
        (somebody_elses, "not both words that the engine gave"),
        (too_short, "Each answer must have 32 tokens"),
        (lambda *_: 57, "Return two lists"),
        (lambda executor, prompt, others: executor.generate(prompt), "could not be checked"),
    ],
)
def test_a_comparison_that_compares_nothing_is_found(answer, words):
    refused("1.5", (answer, None), words, "the engine still open")


def test_a_comparison_and_an_engine(small_engine, tmp_path):
    assert "the comparison ✓, the engine still open" in repr(check("1.5", (compare, None)))
    steady = variant(small_engine, tmp_path / "steady", **FITS)  # W4A16, with room for a question
    assert check("1.5", (compare, steady)).status == "done"
    refused("1.5", (compare, small_engine), "exceeds maximum input length")
    assert check("1.5", (lambda *_: None, None)).status == "not done yet"
    refused("1.5", (compare, Path("/nowhere")), "the comparison ✓, the engine not right yet. There is no engine")
    refused("1.5", compare, "Give the function and the engine's folder")


def test_an_engine_that_company_sways_is_found(small_engine, monkeypatch, tmp_path):
    swayed = variant(small_engine, tmp_path / "w4a8", "W4A8")
    monkeypatch.setattr(graders.Executor, "load", lambda folder: Executor(graders._Sociable(BuildConfig())))
    refused("1.5", (compare, swayed), "of 64 words, those that company", "where exactly 0", "quant_algo is W4A8")


# Where a single core computes, nothing is divided among cores, and company sways nobody.
ON_ALL_CORES = """
import json, os, sys
os.sched_setaffinity(0, range(os.cpu_count()))
from inflight.notebook.grading import check
print(json.dumps([check("1.5", (lambda *_: None, folder)).parts["the engine"] for folder in sys.argv[1:]]))
"""


@pytest.mark.skipif(os.cpu_count() == 1, reason="on a single core company sways no engine")
def test_the_courses_model_is_swayed_with_activations_of_8_bits_and_not_otherwise(tmp_path):
    default = engine.cached(fetch(), BuildConfig(), "cpu")
    steady = variant(default, tmp_path / "w4a16", "W4A16")
    process = start_python(ON_ALL_CORES, default, steady, env={**os.environ, "COURSE_STRICT": "0"})
    output, _ = process.communicate(timeout=300)
    assert json.loads(output.splitlines()[-1]) == ["wrong", "done"], output
    assert check("1.5", (compare, steady)).status == "done"
