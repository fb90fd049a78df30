"""Lab 01: the KV cache of any model, an engine for a service, 4-bit blocks, and what company changes."""

from __future__ import annotations

import math
import random
import reprlib
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from inflight import checkpoint, engine
from inflight.checkpoint import q4_1
from inflight.engine import Sizing
from inflight.engine.executor import Executor
from inflight.engine.fake_model import FakeModel
from inflight.engine.messages import Chunk, Request
from inflight.engine.settings import BuildConfig
from inflight.notebook import parts, progress
from inflight.notebook.checks import grades
from inflight.notebook.checks.answers import brief, load
from inflight.notebook.checks.findings import NOT_YET, RIGHT, Case, Finding, Measured, Wrong, asked, because

# 1.1: the KV cache of any model ---------------------------------------------------------------------------------------

CASES = 6
FLOAT16 = 2
PER_BLOCK = 32
BYTES_ADVICE = {
    "KV heads": "2 (key and value) × layers × num_key_value_heads × head size × 2 bytes.",
    "no num_key_value_heads": "Without num_key_value_heads, each of num_attention_heads has a key and a value.",
    "head_dim": "Where head_dim is given, it is the size of a head, whatever hidden_size is.",
    "latent": "With kv_lora_rank a layer keeps one vector of kv_lora_rank + qk_rope_head_dim numbers, not a pair.",
}


@grades("1.1", "What a layer keeps of a token stands in the config: work out the memory before you buy it.")
def _kv_of_any_model(answer: tuple[Callable, Callable], choose: random.Random) -> dict[str, Callable[[], Finding]]:
    kv_bytes, users_that_fit = answer
    configs = {kind: [_architecture(kind, choose) for _ in range(CASES)] for kind in BYTES_ADVICE}
    of_each = {
        kind: [Case((one,), _kv_bytes(one), BYTES_ADVICE[kind], f"bytes per token for {one}") for one in configs[kind]]
        for kind in configs
    }
    in_blocks = [
        _where_blocks_matter(one, empty, choose)
        for one in configs["KV heads"] + configs["latent"]
        for empty in (choose.randint(PER_BLOCK // 2, PER_BLOCK - 1), 0)
    ]
    return {
        **{kind: partial(asked, kv_bytes, cases) for kind, cases in of_each.items()},
        "whole blocks": partial(asked, users_that_fit, in_blocks),
    }


def _architecture(kind: str, choose: random.Random) -> dict[str, int]:
    """A config.json of Hugging Face, as far as it matters here, of a size that nobody knows by heart."""
    heads, size = choose.choice((12, 16, 24, 32, 40, 64)), choose.choice((48, 64, 80, 96, 128))
    config = {
        "num_hidden_layers": choose.randint(12, 90),
        "num_attention_heads": heads,
        "hidden_size": heads * size,
        "num_key_value_heads": heads // choose.choice((2, 4)),
    }
    if kind == "no num_key_value_heads":
        del config["num_key_value_heads"]
    if kind == "head_dim":
        config["head_dim"] = size * 2
    if kind == "latent":
        config |= {"num_key_value_heads": heads, "kv_lora_rank": choose.choice((256, 512, 768))}
        config |= {"qk_rope_head_dim": choose.choice((32, 64))}
    return config


def _kv_bytes(config: dict[str, int]) -> int:
    if "kv_lora_rank" in config:
        kept = config["kv_lora_rank"] + config["qk_rope_head_dim"]
    else:
        heads = config.get("num_key_value_heads", config["num_attention_heads"])
        kept = 2 * heads * config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    return config["num_hidden_layers"] * kept * FLOAT16


def _where_blocks_matter(config: dict[str, int], empty: int, choose: random.Random) -> Case:
    """Make a case with so many users that wrong rounding changes them, and so many `empty` tokens in a last block."""
    users, blocks = choose.randint(50, 200), choose.randint(3, 20)
    tokens = PER_BLOCK * blocks - empty
    of_each = blocks * PER_BLOCK * _kv_bytes(config)
    memory = users * of_each + choose.randrange(of_each)
    round_up = "A block belongs to one user: round the tokens up to whole blocks of 32 before you divide."
    return Case(
        (config, memory, tokens), users,
        round_up if empty else f"{tokens} tokens are {blocks} whole blocks, and need no other.",
        f"users with {tokens} tokens each in {memory / 1e9:.1f} GB, for {config}",
    )  # fmt: skip


# 1.2: an engine for a service -----------------------------------------------------------------------------------------

DAYS, REQUESTS = 5, 2000
ROOM_FOR_SLOTS = 0.95  # of the course's: who rounds a percentile up keeps nearly as many


@grades("1.2", "The sum of two P99s is no P99: count prompt and answer together, and slots come from what is left.")
def _limits_of_a_service(limits_for: Callable, choose: random.Random) -> Finding:
    refused, slots, most, shares, advice = [], 0, 0, [], ""
    for _ in range(DAYS):
        sizing, day = _model(choose), _day(choose)
        longest = _longest_of(day)
        course = BuildConfig(max_input_len=longest - 1, max_seq_len=longest, kv_cache_quant_algo="INT8")
        memory = sizing.weight_bytes(course) + choose.uniform(60, 90) * sizing.kv_bytes_per_user(course, longest)
        own = limits_for(list(day), memory, sizing)
        if own is None:
            return NOT_YET
        if not isinstance(own, BuildConfig):
            return Wrong(f"Return a BuildConfig; yours returned {brief(own)}.")
        refused.append(sum(p > own.max_input_len or p + a > own.max_seq_len for p, a in day))
        of_each = sizing.kv_bytes_per_user(own, own.max_seq_len)
        shares.append((sizing.weight_bytes(own) + own.max_batch_size * of_each) / memory)
        slots += own.max_batch_size
        most += sizing.users(course, longest, memory)
        advice = _why_few(own, day)
    return [
        Measured(f"of {REQUESTS:,} requests of a day, those that do not fit", max(refused), at_most=REQUESTS // 100,
                 course=REQUESTS // 100,
                 advice="Count those whose prompt is longer than max_input_len, or whose prompt and answer together "
                        "are longer than max_seq_len."),
        Measured("weights and a full KV cache, of the memory", 100 * max(shares), at_most=100, unit="%",
                 advice="Beside the weights each slot needs the whole blocks of max_seq_len tokens."),
        Measured(f"slots, over {DAYS} days", slots, at_least=math.ceil(ROOM_FOR_SLOTS * most), course=most,
                 nothing=DAYS, advice=advice),
    ]  # fmt: skip


def _longest_of(day: list[tuple[int, int]]) -> int:
    """The smallest max_seq_len that at most one request in a hundred is too long for."""
    return sorted(prompt + answer for prompt, answer in day)[-(len(day) // 100) - 1]


def _why_few(own: BuildConfig, day: list[tuple[int, int]]) -> str:
    if own.kv_cache_quant_algo is None:
        return "What makes a token of the cache smaller?"
    if own.max_seq_len > _longest_of(day) + PER_BLOCK:
        return "max_seq_len is longer than it need be: a request that has a long prompt rarely has a long answer, too."
    return "Memory is left: Sizing.users says how many fit."


def _day(choose: random.Random) -> list[tuple[int, int]]:
    """Tokens of prompt and answer of each request of a day: a few are very long."""
    prompt, answer = choose.uniform(60, 200), choose.uniform(40, 150)

    def near(median: float) -> int:
        return min(900, max(4, round(median * choose.lognormvariate(0, 0.6))))

    return [(near(prompt), near(answer)) for _ in range(REQUESTS)]


def _model(choose: random.Random) -> Sizing:
    """The sizes of a model that nobody knows by heart."""
    shape = choose.randint(4_000, 60_000), 32 * choose.randint(20, 120)
    parameters = shape[0] * shape[1]
    table = [{"name": "token_embd.weight", "shape": shape, "format": "Q4_1", "parameters": parameters}]
    source = SimpleNamespace(tensor_table=lambda: table, precision=lambda: "W4")
    kept = {"num_hidden_layers": choose.randint(12, 40), "num_key_value_heads": choose.randint(1, 8), "head_size": 64}
    return Sizing(source, kept)


# 1.3: blocks are made -------------------------------------------------------------------------------------------------

# What blocks say to somebody who takes them for something else, and what to tell them.
MISREADINGS: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], np.ndarray]] = {
    "The two halves of a byte are not neighbours: the low ones are weights 0 to 15, the high ones 16 to 31.": (
        lambda d, m, low, high: d * np.stack([low, high], axis=2).reshape(len(low), -1) + m
    ),
    "The low halves come first, then the high ones.": (
        lambda d, m, low, high: d * np.concatenate([high, low], axis=1) + m
    ),
    "The first two bytes are d, the width of a step; the next two are m, the smallest weight.": (
        lambda d, m, low, high: m * np.concatenate([low, high], axis=1) + d
    ),
    "Your weights leave out m: where q is 0, the weight is m, not 0.": (
        lambda d, m, low, high: d * np.concatenate([low, high], axis=1)
    ),
}


def _misreading(blocks: np.ndarray, weights: np.ndarray) -> str:
    """Return the hint for a reading of blocks, uint8 [.., 20], as these weights, [.., 32]; blank if none fits."""
    d, m, q = q4_1.unpacked(blocks)
    halves = np.split(q, 2, axis=1)
    with np.errstate(all="ignore"):  # nonsense may be infinite
        most = 0.1 * ((q4_1.dequantize(blocks) - weights) ** 2).sum()
        for advice, misread in MISREADINGS.items():
            if ((misread(d[:, None], m[:, None], *halves) - weights) ** 2).sum() < most:
                return advice
    return ""


CHECK_S = 30  # a quantizer that has not answered by then, also beside other work, never will
ROOM = 1.03  # over the error of steps laid from the smallest weight to the largest
ENCODE = "Lay 15 steps from the smallest weight to the largest, and give each weight the nearest: round, do not cut."


@grades("1.3", "The steps of a block are as wide as its range asks: one weight far out costs all 32 of them precision.",
        keeps="quantizer", within_s=CHECK_S)  # fmt: skip
def _encoded(path: str, choose: random.Random) -> dict[str, Callable[[], Finding]]:
    quantize, courses = (load(file, "quantize").quantize for file in (path, parts.COURSES_OWN["quantizer"]))
    return {kind: partial(_loss, kind, blocks, quantize, courses(blocks)) for kind, blocks in _weights(choose).items()}


def _weights(choose: random.Random) -> dict[str, np.ndarray]:
    """Hidden blocks, float32 [.., 32]: of a bell curve, with outliers, and all alike."""
    draw, scale = np.random.default_rng(choose.getrandbits(32)), np.float32(choose.uniform(0.02, 0.2))
    return {
        "bell curve": scale * draw.normal(choose.uniform(-1, 1), 1, (256, q4_1.BLOCK)).astype(np.float32),
        "outliers": scale * draw.standard_t(3, (256, q4_1.BLOCK)).astype(np.float32),
        "all alike": np.repeat(np.float32([0, -0.25, 0.125, 3]), q4_1.BLOCK).reshape(4, q4_1.BLOCK),
    }


def _loss(kind: str, blocks: np.ndarray, quantize: Callable, courses: np.ndarray) -> Finding:
    made = quantize(blocks.copy())
    if made is None:
        return NOT_YET
    made = np.asarray(made)
    if made.dtype != np.uint8 or made.shape != courses.shape:
        return Wrong(
            f"For {len(blocks)} blocks give uint8 [{len(blocks)}, 20]; yours is {made.dtype} {list(made.shape)}."
        )
    lost, course = q4_1.share_lost(blocks, made), q4_1.share_lost(blocks, courses)
    if kind == "all alike":
        wrong = "Where all 32 weights are alike there is no range to divide by: d is 0, and m says it all."
        return because(None if lost < 1e-6 else wrong)
    off = (q4_1.dequantize(made) - blocks).mean() / (np.ptp(blocks, axis=1).mean() / q4_1.STEPS)
    bias = f"On average your weights lie {abs(off):.1f} steps too {'high' if off > 0 else 'low'}. "
    return Measured(
        f"{kind}: squared error, of the weights' own spread", 100 * lost, at_most=100 * ROOM * course,
        course=100 * course, nothing=100, unit="%",
        advice=_misreading(made, blocks) or (bias if abs(off) > 0.25 else "") + ENCODE,
    )  # fmt: skip


# 1.4: NVFP4 -----------------------------------------------------------------------------------------------------------

NUM_BLOCKS, WEIGHTS = 24, 16  # of a part, and of a block
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
NVFP4_ADVICE = "Take one block apart on paper: sign, exponent and fraction of the scale, then of the first two numbers."


@grades("1.4", "Levels of floating-point numbers are dense near 0, where most weights are, and a scale moves them all.")
def _nvfp4_read(decode: Callable, choose: random.Random) -> dict[str, Callable[[], Finding]]:
    scales = {
        "blocks": range(8, 127),
        "blocks of small scales": range(1, 8),
    }  # 127 is no number; below 8 the exponent is 0
    return {
        part: partial(
            _decoded, part, decode, [(choose.choice(within), choose.randbytes(WEIGHTS // 2)) for _ in range(NUM_BLOCKS)]
        )
        for part, within in scales.items()
    }


def _decoded(part: str, decode: Callable, blocks: list[tuple[int, bytes]]) -> Finding:
    answers = [decode(*block) for block in blocks]
    if all(answer is None for answer in answers):
        return NOT_YET
    try:
        made = [np.asarray(answer, float).reshape(-1) for answer in answers]
    except (TypeError, ValueError):
        return Wrong(f"Return {WEIGHTS} numbers for each block; yours returned {reprlib.repr(answers[0])}.")
    if any(len(weights) != WEIGHTS for weights in made):
        return Wrong(f"A block has {WEIGHTS} weights: return a list or an array of {WEIGHTS} numbers.")
    right = sum(np.allclose(own, _nvfp4(*block), rtol=1e-3) for own, block in zip(made, blocks, strict=True))
    advice = next(
        (
            words
            for words, wrong in NVFP4_MISREADINGS.items()
            if all(np.allclose(own, wrong(*block), rtol=1e-3) for own, block in zip(made, blocks, strict=True))
        ),
        NVFP4_ADVICE,
    )
    return Measured(
        f"{part} decoded as the format means them", right, exactly=NUM_BLOCKS, course=NUM_BLOCKS, nothing=0,
        advice=advice,
    )  # fmt: skip


def _e4m3(byte: int, bias: int = 7, is_hidden: bool = True) -> float:
    exponent, fraction = byte >> 3, byte & 7
    if exponent == 0 and is_hidden:
        return fraction / 8 * 2.0 ** (1 - bias)
    return (1 + fraction / 8) * 2.0 ** (exponent - bias)


def _halves(packed: bytes) -> np.ndarray:
    """The numbers of 4 bits, two of each byte, the low one first: uint8 [16]."""
    values = np.frombuffer(packed, np.uint8)
    return np.stack([values & 15, values >> 4], axis=1).reshape(-1)


def _signed(halves: np.ndarray) -> np.ndarray:
    return np.where(halves & 8, -1, 1) * E2M1[halves & 7]


def _nvfp4(scale: int, packed: bytes) -> np.ndarray:
    return _e4m3(scale) * _signed(_halves(packed))


NVFP4_MISREADINGS: dict[str, Callable[[int, bytes], np.ndarray]] = {
    "The first weight of a byte is in its low half.": (
        lambda scale, packed: _e4m3(scale) * _signed(_halves(packed).reshape(-1, 2)[:, ::-1].reshape(-1))
    ),
    "The halves of a byte are neighbours here, other than in Q4_1.": (
        lambda scale, packed: _e4m3(scale) * _signed(_halves(packed).reshape(-1, 2).T.reshape(-1))
    ),
    "The highest bit of a number is its sign.": lambda scale, packed: _e4m3(scale) * E2M1[_halves(packed) & 7],
    "The numbers are not whole: 7 stands for 6.0, and 8 is the sign.": (
        lambda scale, packed: _e4m3(scale) * ((_halves(packed) ^ 8).astype(int) - 8)
    ),
    "The scale is a floating-point number, too: 0x38 is 1.0.": (lambda scale, packed: scale * _signed(_halves(packed))),
    "Where the scale's exponent is 0 there is no 1 before its fraction, and it counts as 2^-6.": (
        lambda scale, packed: _e4m3(scale, is_hidden=False) * _signed(_halves(packed))
    ),
}


# 1.5: what company changes --------------------------------------------------------------------------------------------

LENGTH, FRIENDS = 32, 4  # tokens of an answer, and others in its company, of a learner's own comparison
PROMPTS, WORDS = 4, 16  # of the check's
MOVED = 1e-3  # of a log-probability: sums in another order move it by some 1e-5, activations of 8 bits by 1e-1
TOPICS = ("rivers", "chess", "bread", "bees", "maps", "salt", "tides", "paper", "bridges", "owls", "clocks", "glass")


@grades("1.5", "Batch invariance, within rounding: with activations as they are, company moves sums, and here no word.")
def _company(answer: tuple[Callable, Path | None], choose: random.Random) -> dict[str, Callable[[], Finding]]:
    compare, folder = answer
    return {
        "the comparison": lambda: _compares(compare, choose),
        "the engine": lambda: NOT_YET if folder is None else _keeps_its_words(folder, choose),
    }


class _InCompany(FakeModel):
    """At the pace of a model, so that requests meet; each other request in its iteration moves a token by `sways`."""

    def __init__(self, sways: int):
        super().__init__(BuildConfig())
        self.sways = sways

    def forward(self, chunks: list[Chunk]) -> np.ndarray:
        time.sleep(0.005)
        return np.roll(super().forward(chunks), self.sways * (len(chunks) - 1), axis=1)


def _compares(compare: Callable, choose: random.Random) -> Finding:
    """Say whether a learner's function can tell an engine whose answers change in company from one whose do not."""
    for sways in (1, 0):
        prompt, *others = [[choose.randrange(1000) for _ in range(8)] for _ in range(1 + FRIENDS)]
        with Executor(_InCompany(sways)) as executor:
            right = executor.generate(Request(prompt, LENGTH)).token_ids
            before = len(executor.iteration_stats)
            given = compare(executor, list(prompt), [list(one) for one in others])
            together = max((row.scheduled for row in list(executor.iteration_stats)[before:]), default=0)
        if given is None:
            return NOT_YET
        try:
            alone, in_company = (list(part) for part in given)
        except (TypeError, ValueError):
            return Wrong("Return two lists of token ids: (alone, in_company).")
        if together <= FRIENDS:
            return Measured(
                "requests in one iteration", together, at_least=1 + FRIENDS, course=1 + FRIENDS, nothing=0,
                advice="Hand prompt and others over at once, in one call of generate_all.",
            )  # fmt: skip
        if alone != right:
            return Wrong(
                f"The first is not what the engine answers to `prompt` in {LENGTH} tokens with nobody beside it."
            )
        if (in_company != alone) != bool(sways):
            changes, yours = ("changes", "the same") if sways else ("does not change", "different")
            return Wrong(
                f"Company {changes} this engine's words, and your two answers are {yours}: return the second run's "
                "answer to `prompt`."
            )
    return RIGHT


def _keeps_its_words(folder: Path, choose: random.Random) -> Finding:
    """Prompts that nobody knows, alone and in company, on the learner's engine: by the check itself."""
    info = engine.read(folder)
    tokenizer = checkpoint.load_tokenizer(info.folder)
    prompts = [tokenizer.encode(tokenizer.chat(f"Tell me about {one}.")) for one in choose.sample(TOPICS, PROMPTS)]
    requests = [Request(prompt, WORDS, return_log_probs=True) for prompt in prompts]
    progress.say(f"your engine computes {PROMPTS} prompts, alone and together")
    with Executor.load(info.folder) as executor:
        alone = [executor.generate(request) for request in requests]
        together = executor.generate_all(requests)
        most = max(row.scheduled for row in executor.iteration_stats)
    if most < PROMPTS:
        return Measured("requests in one iteration of your engine", most, at_least=PROMPTS, nothing=1,
                        advice="An engine that never has company keeps its words, and serves one user: give it slots "
                               "(max_batch_size).")  # fmt: skip
    changed = sum(
        one.token_ids != other.token_ids or np.abs(np.subtract(one.log_probs, other.log_probs)).max() > MOVED
        for one, other in zip(alone, together)
    )
    rounds = (info.quant_algo or "").endswith("A8")
    advice = f"It computes in {info.quant_algo}, which rounds activations to 8 bits. Which quant_algo does not?"
    return Measured(f"of {PROMPTS} answers, those whose words or probabilities company changed", changed, exactly=0,
                    course=0, advice=advice if rounds else "")  # fmt: skip
