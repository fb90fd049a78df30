"""Lab 01's answers: the KV cache of any model, engines, blocks of 4 bits, and what company changes."""

import json
import math
import os
import shutil
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch

from inflight import engine
from inflight.checkpoint import fetch
from inflight.engine import BuildConfig, Request
from inflight.notebook.checks.parts import COURSES_OWN
from tests.lessons.answers import SLOW, Answer, File, Made, of_the_lab, replaced
from tests.lessons.table import *  # noqa: F403

FAR_FROM_BUDGET = {"1.5": {"requests in one iteration": "it is told only where it is not kept"}}


# 1.1: the KV cache of any model ---------------------------------------------------------------------------------------


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


def without_kv_heads(config):
    return llama_only(config | {"num_key_value_heads": heads(config)})


def without_head_dim(config):
    return kv_bytes({**config, "head_dim": config["hidden_size"] // heads(config)})


# 1.2: an engine for a service -----------------------------------------------------------------------------------------

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


def limits_of(nth=21, take=lambda lengths: lengths, slots=lambda fit: fit, **options):
    """Limits by the nth longest of what `take` makes of prompts and answers, and as many slots as `slots` of those that fit."""

    def limits_for(day, memory_bytes, sizing):
        longest = sorted(map(sum, take(day)))[-nth]
        config = BuildConfig(**{"max_input_len": longest - 1, "max_seq_len": longest} | INT8 | options)
        return replace(config, max_batch_size=int(slots(sizing.users(config, longest, memory_bytes))))

    return limits_for


def each_sorted(day):
    """The longest prompt with the longest answer, and so on: the sum of two percentiles."""
    return list(zip(*(sorted(lengths) for lengths in zip(*day))))


def in_numpy(day, memory_bytes, sizing):
    longest = int(np.quantile(np.sum(day, axis=1), 0.99, method="higher"))
    prompts = max(prompt for prompt, answer in day if prompt + answer <= longest)
    config = BuildConfig(max_num_tokens=4096, max_input_len=prompts, max_seq_len=-(-longest // 32) * 32, **INT8)
    left = memory_bytes - sizing.weight_bytes(config)
    return replace(config, max_batch_size=int(left // sizing.kv_bytes_per_user(config, config.max_seq_len)))


def apart(day, memory_bytes, sizing):
    """A limit for prompts that refuses one in a hundred, and one for both that refuses others."""
    prompts = sorted(prompt for prompt, _ in day)
    return replace(limits_of()(day, memory_bytes, sizing), max_input_len=prompts[-21])


def a_dict(day, memory_bytes, sizing):
    return {"max_seq_len": 256}


# 1.3: blocks are written ----------------------------------------------------------------------------------------------

COURSES = COURSES_OWN["quantizer"].read_text()
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
GIVES = "import numpy as np\n\n\ndef quantize(blocks):\n    return {}\n"


def quantizer(*changes):
    return File(replaced(COURSES, *changes), "quantizer.py")


PACKED = "q[:, :16] | q[:, 16:] << 4"


# 1.4: NVFP4 -----------------------------------------------------------------------------------------------------------

LEVELS = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
LEVELS += [-level for level in LEVELS]


def e4m3(byte):
    return (1 + byte % 8 / 8) * 2 ** (byte // 8 - 7) if byte > 7 else byte / 512


def halves(packed):
    return [half for byte in packed for half in (byte & 15, byte >> 4)]


def by_table(scale, packed):
    return tuple(Fraction(e4m3(scale)) * Fraction(LEVELS[half]) for half in halves(packed))


def by_pytorch(scale, packed):
    width = torch.tensor([scale], dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    return (width * torch.tensor(LEVELS)[halves(packed)]).numpy()


def swapped(scale, packed):
    return by_table(scale, bytes(byte >> 4 | (byte & 15) << 4 for byte in packed))


def like_q4_1(scale, packed):
    made = by_table(scale, packed)
    return [*made[::2], *made[1::2]]


def always_one_before(scale, packed):
    return [(1 + scale % 8 / 8) * 2.0 ** (scale // 8 - 7) * LEVELS[half] for half in halves(packed)]


# 1.5: what company changes --------------------------------------------------------------------------------------------


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


def with_three_others(executor, prompt, others):
    return compare(executor, prompt, others[:3])


def comparing(function, **limits):
    """With an engine of 16-bit activations that has room for a question."""
    return Made(
        lambda request, folder: (
            function,
            variant(request.getfixturevalue("small_engine"), folder / "own", **FITS | limits),
        )
    )


def not_written(*_):
    return None


def of_the_course(quant_algo):
    def make(request, folder):
        default = engine.cached(fetch(), BuildConfig(), "cpu")
        return not_written, variant(default, folder / "own", quant_algo) if quant_algo else default

    return Made(make)


CORES = len(os.sched_getaffinity(0))
SWAYED = [SLOW, pytest.mark.skipif(CORES == 1, reason="on a single core company sways no engine: run it with -n 0")]
ANSWERS = [
    *of_the_lab("engine", {"1.3": "quantizer.py", "1.4": "decode", "1.1": "(kv_bytes, users_that_fit)", "1.2": "limits_for"}),
    Answer("1.3", "with loops", File(WITH_LOOPS)),
    Answer("1.3", "the course's search", File("from inflight.checkpoint.q4_1 import quantize\n")),
    Answer("1.3", "steps too wide, just inside", quantizer(("/ 15", "/ 15 * 1.01"))),
    Answer("1.3", "steps too wide, just outside", quantizer(("/ 15", "/ 15 * 1.015")), "partly", "bell curve not right yet, outliers not"),
    Answer("1.3", "zeros", File(GIVES.format("np.zeros((len(blocks), 20), np.uint8)")), "wrong", "at most"),
    Answer("1.3", "the weights", File(GIVES.format("blocks")), "wrong", "yours is float32 [256, 32]"),
    Answer("1.3", "cut", quantizer(("np.rint(", "np.floor(")), "partly", "0.5 steps too low"),
    Answer("1.3", "sixteen steps", quantizer(("/ 15", "/ 16")), "partly", "15 steps from the smallest"),
    Answer("1.3", "neighbours", quantizer((PACKED, "q[:, ::2] | q[:, 1::2] << 4")), "partly", "not neighbours"),
    Answer("1.3", "m before d", quantizer(("np.stack([d, m]", "np.stack([m, d]")), "wrong", "first two bytes are d"),
    Answer("1.3", "high halves first", quantizer((PACKED, "q[:, 16:] | q[:, :16] << 4")), "partly", "low halves come first"),
    Answer("1.3", "no range", File(WITH_LOOPS.replace(" if d else 0", "")), "partly",
           "all alike not right yet. answer.py, line 12: ZeroDivisionError"),

    Answer("1.4", "by a table, in fractions", by_table),
    Answer("1.4", "PyTorch's", by_pytorch),
    Answer("1.4", "zeros", lambda scale, packed: [0.0] * 16, "wrong", "0, where exactly 24"),
    Answer("1.4", "bytes", lambda scale, packed: list(packed), "wrong", "A block has 16 weights"),
    Answer("1.4", "words", lambda scale, packed: ["one"] * 16, "wrong", "Return 16 numbers for each block"),
    Answer("1.4", "high half first", swapped, "wrong", "in its low half"),
    Answer("1.4", "halves as in Q4_1", like_q4_1, "wrong", "neighbours here"),
    Answer("1.4", "without a sign", lambda scale, packed: [abs(one) for one in by_table(scale, packed)], "wrong", "is its sign"),
    Answer("1.4", "whole numbers", lambda scale, packed: [e4m3(scale) * ((half ^ 8) - 8) for half in halves(packed)], "wrong",
           "7 stands for 6.0"),
    Answer("1.4", "a whole scale", lambda scale, packed: [scale * LEVELS[half] for half in halves(packed)], "wrong", "0x38 is 1.0"),
    Answer("1.4", "always a 1 before the fraction", always_one_before, "partly", "blocks ✓, blocks of small scales not right yet"),

    Answer("1.1", "one formula", (kv_bytes, users)),
    Answer("1.1", "numbers of NumPy", (lambda config: np.float64(kv_bytes(config)), lambda *asked: np.int64(users(*asked)))),
    Answer("1.1", "one function", (kv_bytes, not_written), "partly", "latent ✓, whole blocks still open"),
    Answer("1.1", "a guess", (kv_bytes, lambda *rest: 57), "partly", "whole blocks not right yet"),
    Answer("1.1", "rounded users", (kv_bytes, lambda config, memory, tokens: round(memory / (-(-tokens // 32) * 32 * kv_bytes(config)))),
           "partly", "whole blocks not right yet"),
    Answer("1.1", "no blocks", (kv_bytes, lambda config, memory, tokens: memory // (tokens * kv_bytes(config))), "partly",
           "A block belongs to one user"),
    Answer("1.1", "rounded down", (kv_bytes, lambda config, memory, tokens: memory // (tokens // 32 * 32 * kv_bytes(config))),
           "partly", "A block belongs to one user"),
    Answer("1.1", "always a block more", (kv_bytes, lambda config, memory, tokens: memory // ((tokens // 32 + 1) * 32 * kv_bytes(config))),
           "partly", "whole blocks, and need no other"),
    Answer("1.1", "keys alone", (lambda config: kv_bytes(config) // 2, users), "partly", "KV heads not right yet"),
    Answer("1.1", "Llama's", (llama_only, users), "partly", "latent not right yet"),
    Answer("1.1", "no KV heads", (without_kv_heads, users), "partly", "KV heads not right yet"),
    Answer("1.1", "no head_dim", (without_head_dim, users), "partly", "head_dim not right yet"),

    Answer("1.2", "in NumPy", in_numpy),
    Answer("1.2", "just enough slots", limits_of(slots=lambda fit: math.ceil(0.955 * fit))),
    Answer("1.2", "just too few slots", limits_of(slots=lambda fit: 0.95 * fit), "wrong", "Memory is left"),
    Answer("1.2", "one request too many", limits_of(22), "wrong", "that do not fit: 21, where at most 20"),
    Answer("1.2", "one slot too many", limits_of(slots=lambda fit: fit + 1), "wrong", "each slot needs the whole blocks"),
    Answer("1.2", "prompts refused, too", apart, "wrong", "Count those whose prompt is longer"),
    Answer("1.2", "two percentiles added", limits_of(take=each_sorted), "wrong", "rarely has a long answer, too"),
    Answer("1.2", "nobody is refused", limits_of(1), "wrong", "longer than it need be"),
    Answer("1.2", "numbers as they are", limits_of(kv_cache_quant_algo=None), "wrong", "smaller?"),
    Answer("1.2", "the defaults", lambda *_: BuildConfig(), "wrong"),
    Answer("1.2", "by the median", limits_of(1000), "wrong", "that do not fit"),
    Answer("1.2", "a dict", a_dict, "wrong", "Return a BuildConfig"),

    Answer("1.5", "as handed out", (not_written, None), "not done yet"),
    Answer("1.5", "the solution", comparing(compare)),
    Answer("1.5", "in arrays, four slots", comparing(lambda *given: list(map(np.array, compare(*given))), max_batch_size=4)),
    Answer("1.5", "no engine", (compare, None), "partly", "the comparison ✓, the engine still open"),
    Answer("1.5", "a folder that is none", (compare, "/nowhere"), "partly", "the comparison ✓, the engine not right yet"),
    Answer("1.5", "one slot", comparing(compare, max_batch_size=1), "partly", "never has company"),
    Answer("1.5", "three slots", comparing(compare, max_batch_size=3), "partly", "your engine: 3, where at least 4"),
    *(
        Answer("1.5", name, (function, None), "wrong", says)
        for name, function, says in (
            ("zeros", lambda *_: ([0] * 32, [0] * 32), "requests in one iteration: 0"),
            ("one run twice", one_run_twice, "requests in one iteration: 1, where at least 5"),
            ("one after the other", one_after_the_other, "requests in one iteration: 1, where at least 5"),
            ("three others", with_three_others, "requests in one iteration: 4, where at least 5"),
            ("both in company", both_in_company, "with nobody beside it"),
            ("the same run", the_same_run, "are the same: return the second run's"),
            ("somebody else's", somebody_elses, "are different: return the second run's answer to `prompt`"),
            ("too short", too_short, "in 32 tokens with nobody"),
            ("a number", lambda *_: 57, "two lists"),
        )
    ),
    Answer("1.5", "the course's model, with activations of 8 bits", of_the_course(None), "wrong", "rounds activations", SWAYED),
    Answer("1.5", "the course's model, with activations as they are", of_the_course("W4A16"), "partly", "the engine ✓", SWAYED),
]  # fmt: skip
