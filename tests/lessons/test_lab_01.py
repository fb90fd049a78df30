"""The checks of lab 01 find the mistakes that learners make, and say which; other right ways pass too."""

import dataclasses
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
from inflight.lessons.engine import grading as graders
from inflight.notebook import checks, mine
from inflight.notebook.checks import check
from inflight.paths import ASSETS

COURSES = ASSETS / "parts" / "quantizer.py"


@pytest.fixture(autouse=True)
def as_in_a_lab(monkeypatch):
    """Checks report and do not raise, whatever the run that these tests are part of has set."""
    monkeypatch.setenv("COURSE_STRICT", "0")


def refused(exercise, answer, *says):
    result = check(exercise, answer)
    assert result.status in ("wrong", "partly"), result
    assert all(fact in repr(result) for fact in says), result


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
    ("answer", "says"),
    [
        (lambda block: [0.0] * 32, "0, where exactly 24"),
        (lambda block: list(block), "32"),
        (lambda block: decode(bytes(range(20))), "0, where exactly 24"),  # of one block only
        (neighbours, "neighbours"),
        (lambda block: decode(block)[16:] + decode(block)[:16], "low halves"),
        (lambda block: decode(block[2:4] + block[:2] + block[4:]), "first two bytes are d"),
        (without_m, "leave out m"),
        (lambda block: [np.nan] * 32, "0, where exactly 24"),
    ],
)
def test_a_block_that_is_misread_is_told_how(answer, says):
    refused("1.1", answer, says)


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
    ("text", "says"),
    [
        (GIVES.format("np.zeros((len(blocks), 20), np.uint8)"), "at most"),
        (GIVES.format("blocks"), "float32 [256, 32]"),
        (changed("np.rint(", "np.floor("), "0.5 steps"),
        (changed("/ 15", "/ 16"), "at most"),
        (changed("q[:, :16] | q[:, 16:] << 4", "q[:, ::2] | q[:, 1::2] << 4"), "not neighbours"),
        (changed("np.stack([d, m]", "np.stack([m, d]"), "first two bytes are d"),
        (changed("q[:, :16] | q[:, 16:] << 4", "q[:, 16:] | q[:, :16] << 4"), "low halves come first"),
        (WITH_LOOPS.replace(" if d else 0", ""), "all alike not right yet. quantizer.py, line 12: ZeroDivisionError"),
        ("", "'quantize'"),
        ("def quantize(blocks)", "quantizer.py, line 1: SyntaxError"),
        ("import os\nos._exit(3)\n", "exit status 3"),
    ],
)
def test_blocks_that_lose_too_much_are_told_why(written, text, says):
    refused("1.2", written(text), says)


def test_a_quantizer_without_end_is_ended(written, monkeypatch):
    grader = dataclasses.replace(checks.graders["1.2"], within_s=10)
    monkeypatch.setitem(checks.graders, "1.2", grader)
    text = "def quantize(blocks):\n    while True:\n        pass\n"
    refused("1.2", written(text), "quantizer.py, line", "not ended after 10 s")


def test_a_quantizer_that_nobody_has_written_is_open(written, tmp_path):
    assert check("1.2", written(GIVES.format("None"))).status == "not done yet"
    refused("1.2", tmp_path / "nowhere.py", "no file")


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
    others = (lambda config: np.float64(kv_bytes(config)), lambda *asked: np.int64(users(*asked)))
    assert check("1.3", others).status == "done"


def without_kv_heads(config):
    return llama_only(config | {"num_key_value_heads": heads(config)})


def without_head_dim(config):
    return kv_bytes({**config, "head_dim": config["hidden_size"] // heads(config)})


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [
        ((kv_bytes, lambda *rest: 57), "whole blocks"),
        ((kv_bytes, lambda config, memory, tokens: memory // (tokens * kv_bytes(config))), "whole blocks"),
        ((kv_bytes, lambda config, memory, tokens: memory // (tokens // 32 * 32 * kv_bytes(config))), "whole blocks"),
        ((lambda config: kv_bytes(config) // 2, users), "KV heads"),
        ((llama_only, users), "latent"),
        ((without_kv_heads, users), "KV heads"),
        ((without_head_dim, users), "head_dim"),
    ],
)
def test_a_formula_of_one_model_alone_is_told_where_it_ends(answer, wrong):
    result = check("1.3", answer)
    assert result.status in ("wrong", "partly") and result.parts[wrong] == "wrong", result


def test_a_formula_that_nobody_has_written_is_open():
    assert check("1.3", (lambda *_: None, lambda *_: None)).status == "not done yet"
    result = check("1.3", (kv_bytes, lambda *_: None))
    assert [part for part, status in result.parts.items() if status == "not done yet"] == ["whole blocks"]


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
    return to


@pytest.fixture
def service(small_engine, monkeypatch, tmp_path):
    """Makes engines of the small model; its memory is as tight as the lab's."""
    with Executor.load(variant(small_engine, tmp_path / "int8", **FITS, **INT8)) as executor:
        cache = 16 * 256 // 32 * executor.model.block_bytes
    monkeypatch.setattr(graders, "MEMORY", engine.read(small_engine).weight_bytes + 1.2 * cache)
    return lambda **options: variant(small_engine, tmp_path / "service", **FITS | INT8 | options)


def test_an_engine_that_serves_is_measured(service):
    result = check("1.4", str(service()))
    assert result.status == "done" and "users in one iteration: yours 16" in repr(result), result


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_num_tokens": 16}, "max_input_len (200)"),
        ({"max_batch_size": 8}, "users in one iteration: 8, where at least 16"),
        ({"kv_cache_quant_algo": None}, "memory not right yet"),
        ({"max_seq_len": 240}, "answers not right yet"),
    ],
)
def test_an_engine_that_does_not_serve_is_told_why(service, options, says):
    refused("1.4", service(**options), says)


@pytest.mark.parametrize("answer", [{"max_batch_size": 16}, "/nowhere"])
def test_what_is_no_engine_does_not_serve(answer):
    assert check("1.4", answer).status == "wrong"


# 1.5 ------------------------------------------------------------------------------------------------------------------


def compare(executor, prompt, others):
    together = executor.generate_all([Request(ids, request_output_len=32) for ids in (*others, prompt)])
    return executor.generate(Request(prompt, request_output_len=32)).token_ids, np.array(together[-1].token_ids)


def one_run_twice(executor, prompt, others):
    words = executor.generate(Request(prompt, 32)).token_ids
    return words, words


def one_after_the_other(executor, prompt, others):
    words = [executor.generate(Request(ids, 32)).token_ids for ids in (prompt, *others, prompt)]
    return words[0], words[-1]


def both_in_company(executor, prompt, others):
    words = [executor.generate_all([Request(ids, 32) for ids in (prompt, *others)])[0].token_ids for _ in "ab"]
    return words[0], words[1]


def the_same_run(executor, prompt, others):
    executor.generate_all([Request(ids, 32) for ids in (prompt, *others)])
    words = executor.generate(Request(prompt, 32)).token_ids
    return words, words


def somebody_elses(executor, prompt, others):
    words = executor.generate_all([Request(ids, 32) for ids in (prompt, *others)])
    return executor.generate(Request(prompt, 32)).token_ids, words[-1].token_ids


def too_short(executor, prompt, others):
    words = executor.generate_all([Request(ids, 8) for ids in (prompt, *others)])[0].token_ids
    return executor.generate(Request(prompt, 8)).token_ids, words


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda *_: ([0] * 32, [0] * 32), "requests in one iteration: 0"),
        (one_run_twice, "requests in one iteration: 1, where at least 5"),
        (one_after_the_other, "requests in one iteration: 1, where at least 5"),
        (both_in_company, "with nobody beside it"),
        (the_same_run, "return the second run's"),
        (somebody_elses, "is the second to `prompt`?"),
        (too_short, "32"),
        (lambda *_: 57, "two lists"),
    ],
)
def test_a_comparison_that_compares_nothing_is_found(answer, says):
    refused("1.5", (answer, None), says)


def test_a_comparison_and_an_engine(small_engine, tmp_path):
    steady = variant(small_engine, tmp_path / "steady", **FITS)  # W4A16, with room for a question
    assert check("1.5", (compare, steady)).status == "done"
    assert check("1.5", (compare, None)).parts == {"the comparison": "done", "the engine": "not done yet"}
    assert check("1.5", (lambda *_: None, None)).status == "not done yet"
    lonely = variant(small_engine, tmp_path / "lonely", **FITS | {"max_batch_size": 1})
    refused("1.5", (compare, lonely), "never has company")
    for wrong in (small_engine, Path("/nowhere")):
        assert check("1.5", (compare, wrong)).parts == {"the comparison": "done", "the engine": "wrong"}


@pytest.mark.slow
@pytest.mark.skipif(os.cpu_count() == 1, reason="on a single core company sways no engine")
def test_the_courses_model_is_swayed_with_activations_of_8_bits_and_not_otherwise(tmp_path):
    default = engine.cached(fetch(), BuildConfig(), "cpu")
    steady = variant(default, tmp_path / "w4a16", "W4A16")
    found = [check("1.5", (lambda *_: None, folder)).parts["the engine"] for folder in (default, steady)]
    assert found == ["wrong", "done"]
    assert check("1.5", (compare, steady)).status == "done"
