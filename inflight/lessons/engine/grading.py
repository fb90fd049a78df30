"""Lab 01: 4-bit blocks, the KV cache of any model, an engine for a service, and what company changes."""

from __future__ import annotations

import math
import os
import random
import runpy
import time
from collections.abc import Callable

import numpy as np

from inflight import checkpoint, engine
from inflight.checkpoint import q4_1
from inflight.engine.config import BuildConfig, Chunk, Request, Response
from inflight.engine.executor import Executor
from inflight.engine.fake_model import FakeModel
from inflight.errors import CourseError
from inflight.notebook import mine, progress
from inflight.notebook.checks import NOT_YET, Finding, Measured, grades
from inflight.paths import ASSETS

# 1.1: a block is decoded ----------------------------------------------------------------------------------------------

NUM_BLOCKS = 24
# What a block says to somebody who takes it for something else, and what to tell them.
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
    "Your weights leave out m: a step of 0 is the smallest weight, not 0.": (
        lambda d, m, low, high: d * np.concatenate([low, high], axis=1)
    ),
    "m is added, whatever its sign.": lambda d, m, low, high: d * np.concatenate([low, high], axis=1) - m,
}
ELSEWISE = "Take one block apart on paper: float16 d, float16 m, then 16 bytes of two steps each; w = d·q + m."


@grades("1.1", "A weight of 4 bits is a step on a ladder that it shares with 31 others: w = d·q + m.")
def _decoded(decode: Callable, choose: random.Random) -> Finding:
    blocks = np.array([_random_block(choose) for _ in range(NUM_BLOCKS)])
    answers = [decode(bytes(block)) for block in blocks]
    if all(answer is None for answer in answers):
        return NOT_YET
    made = [_floats(answer) for answer in answers]
    if any(answer is None for answer in made):
        return (
            f"A block has {q4_1.BLOCK} weights: give a list or an array of so many numbers, for each block that comes."
        )
    right = [_alike(answer, says) for answer, says in zip(made, q4_1.dequantize(blocks))]
    return Measured(
        "blocks decoded as the file means them", sum(right), exactly=NUM_BLOCKS, course=NUM_BLOCKS, nothing=0,
        advice=_misread(blocks, made),
    )  # fmt: skip


def _random_block(choose: random.Random) -> np.ndarray:
    d, m = choose.uniform(0.002, 0.05), choose.uniform(-0.4, 0.4)
    scales = np.array([d, m], np.float16).view(np.uint8)
    return np.concatenate([scales, np.array([choose.randrange(256) for _ in range(q4_1.BLOCK // 2)], np.uint8)])


def _floats(answer: object) -> np.ndarray | None:
    """An answer as 32 floats, or None where it is something else."""
    try:
        values = np.asarray(answer, np.float64).reshape(-1)
    except (TypeError, ValueError):
        return None
    return values if len(values) == q4_1.BLOCK else None


def _alike(made: np.ndarray, says: np.ndarray) -> bool:
    return bool(np.allclose(made, says, rtol=1e-3, atol=1e-5))


def _misread(blocks: np.ndarray, made: list[np.ndarray]) -> str:
    d, m = np.ascontiguousarray(blocks[:, :4]).view(np.float16).astype(np.float32).T[..., None]
    low, high = (half.astype(np.float32) for half in (blocks[:, 4:] & 15, blocks[:, 4:] >> 4))
    for advice, misread in MISREADINGS.items():
        if all(_alike(answer, one) for answer, one in zip(made, misread(d, m, low, high))):
            return advice
    return ELSEWISE


# 1.2: blocks are made -------------------------------------------------------------------------------------------------

CHECK_S = 30  # a quantizer that has not answered by then, also beside other work, never will
ROOM = 1.03  # over the error of steps laid from the smallest weight to the largest
ENCODE = "Lay 15 steps from the smallest weight to the largest, and give each weight the nearest: round, do not cut."


@grades("1.2", "Four bits cost what the widest weight of a block makes them cost: its steps are as wide as its range.",
        keeps="quantizer", within_s=CHECK_S,
        endless="Compute with whole arrays, not weight by weight.")  # fmt: skip
def _encoded(path: str, choose: random.Random) -> Finding | dict[str, Finding]:
    kinds = _weights(choose)
    given = np.concatenate(list(kinds.values()))
    made = runpy.run_path(path)["quantize"](given.copy())
    if made is None:
        return NOT_YET
    made = np.asarray(made)
    if made.dtype != np.uint8 or made.shape != (len(given), 20):
        return f"Of {len(given)} blocks give uint8 [{len(given)}, 20]; yours is {made.dtype} {list(made.shape)}."
    courses = runpy.run_path(str(mine.COURSES_OWN / "quantizer.py"))["quantize"]
    ends = np.cumsum([len(blocks) for blocks in kinds.values()])
    findings: dict[str, Finding] = {}
    for (kind, blocks), theirs in zip(kinds.items(), np.split(made, ends[:-1])):
        reached = q4_1.share_lost(blocks, theirs)
        if kind == "all alike":
            wrong = "Where all 32 weights are alike there is no range to divide by: d is 0, and m says it all."
            findings[kind] = wrong if not reached < 1e-6 else None
            continue
        course = q4_1.share_lost(blocks, courses(blocks))
        findings[kind] = Measured(
            f"{kind}: squared error, of the weights' own spread", 100 * reached, at_most=100 * ROOM * course,
            course=100 * course, nothing=100, unit="%", advice=_what_is_wrong(blocks, theirs),
        )  # fmt: skip
    return findings


def _weights(choose: random.Random) -> dict[str, np.ndarray]:
    """Hidden blocks, float32 [.., 32]: of a bell curve, with outliers, of a trained model, and all alike."""
    numbers = np.random.default_rng(choose.getrandbits(32))
    scale = np.float32(choose.uniform(0.02, 0.2))
    return {
        "bell curve": scale * numbers.normal(choose.uniform(-1, 1), 1, (256, q4_1.BLOCK)).astype(np.float32),
        "outliers": scale * numbers.standard_t(3, (256, q4_1.BLOCK)).astype(np.float32),
        "trained": _trained(choose),
        "all alike": np.repeat(np.float32([0, -0.25, 0.125, 3]), q4_1.BLOCK).reshape(4, q4_1.BLOCK),
    }


def _trained(choose: random.Random) -> np.ndarray:
    """Blocks of the course's GPT-2, whose weights never were quantized."""
    from safetensors import safe_open

    name = f"transformer.h.{choose.randrange(8)}.mlp.c_fc.weight"
    with safe_open(ASSETS / "checkpoints" / "course-gpt2" / "model.safetensors", framework="pt") as tensors:
        values = tensors.get_tensor(name).float().numpy().reshape(-1, q4_1.BLOCK)
    return values[choose.randrange(len(values) - 256) :][:256]


def _what_is_wrong(blocks: np.ndarray, made: np.ndarray) -> str:
    """The advice for what a quantizer's blocks look like."""
    low, high = made[:, 4:] & 15, made[:, 4:] >> 4
    pairs = np.concatenate([made[:, :4], np.stack([low, high], 2).reshape(len(made), -1)], axis=1)
    steps = pairs[:, 4:]
    as_neighbours = np.concatenate([pairs[:, :4], steps[:, :16] | steps[:, 16:] << 4], axis=1).astype(np.uint8)
    if q4_1.share_lost(blocks, as_neighbours) < 0.5 * q4_1.share_lost(blocks, made):
        return "Weight i shares its byte with weight i + 16, not with its neighbour."
    if (low.max(), high.max()) == (0, 0):
        return "All steps are 0."
    off = (q4_1.dequantize(made) - blocks).mean() / max(float(np.ptp(blocks, axis=1).mean()) / q4_1.STEPS, 1e-9)
    if abs(off) > 0.25:
        return f"On average your weights lie {abs(off):.1f} steps too {'high' if off > 0 else 'low'}. {ENCODE}"
    return ENCODE


# 1.3: the KV cache of any model ---------------------------------------------------------------------------------------

CASES = 6
FLOAT16 = 2
PER_BLOCK = 32


@grades("1.3", "The formula follows from what a layer keeps of a token: read it from the config before you buy memory.")
def _kv_of_any_model(answer: object, choose: random.Random) -> Finding | dict[str, Callable[[], Finding]]:
    if not isinstance(answer, tuple | list) or len(answer) != 2:
        return "Give both functions: check('1.3', (kv_bytes, users_that_fit))."
    kv_bytes, users_that_fit = answer
    advice = {
        "KV heads": "2 (key and value) × layers × num_key_value_heads × head size × 2 bytes.",
        "no num_key_value_heads": "Without num_key_value_heads every one of num_attention_heads has its own.",
        "head_dim": "Where head_dim is given it is the size of a head, whatever hidden_size is.",
        "latent": "With kv_lora_rank a layer keeps one vector of kv_lora_rank + qk_rope_head_dim numbers, no pair.",
    }

    def bytes_of(kind: str) -> Finding:
        for _ in range(CASES):
            config = _architecture(kind, choose)
            got, right = kv_bytes(dict(config)), _kv_bytes(config)
            if got is None:
                return NOT_YET
            if got != right:
                return Measured(f"bytes a token of {config}", _number(got), exactly=right, advice=advice[kind])
        return None

    def whole_blocks() -> Finding:
        for number in range(CASES):
            config = _architecture(("KV heads", "latent")[number % 2], choose)
            memory, tokens = _where_blocks_matter(config, choose)
            got, right = users_that_fit(dict(config), memory, tokens), _users(config, memory, tokens)
            if got is None:
                return NOT_YET
            if got != right:
                what = f"users with {tokens:,} tokens each in {memory / 1e9:.2f} GB"
                hint = "A user's last block is theirs alone: round tokens up to whole blocks of 32 before you divide."
                return Measured(what, _number(got), exactly=right, advice=hint)
        return None

    return {**{kind: lambda kind=kind: bytes_of(kind) for kind in advice}, "whole blocks": whole_blocks}


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
        numbers = config["kv_lora_rank"] + config["qk_rope_head_dim"]
    else:
        heads = config.get("num_key_value_heads", config["num_attention_heads"])
        numbers = 2 * heads * config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    return config["num_hidden_layers"] * numbers * FLOAT16


def _users(config: dict[str, int], memory: int, tokens: int) -> int:
    return memory // (-(-tokens // PER_BLOCK) * PER_BLOCK * _kv_bytes(config))


def _where_blocks_matter(config: dict[str, int], choose: random.Random) -> tuple[int, int]:
    """Memory and tokens for which other roundings give another number of users."""
    while True:
        tokens, memory = choose.randint(2, 60) * PER_BLOCK + choose.randint(1, PER_BLOCK - 1), choose.randint(4, 80)
        memory = memory * 10**9
        whole, down = (_users(config, memory, number) for number in (tokens, tokens - tokens % PER_BLOCK))
        if whole not in (memory // (tokens * _kv_bytes(config)), down):
            return memory, tokens


def _number(answer: object) -> float:
    return float(answer) if isinstance(answer, int | float) else math.nan


# 1.4: an engine for a service -----------------------------------------------------------------------------------------

USERS, PROMPT, ANSWER, MEMORY = 16, 200, 56, 170e6


@grades("1.4", "A service's limits decide its engine: room for users comes from shorter limits and smaller numbers.")
def _engine_for_a_service(folder: object, choose: random.Random) -> Finding | dict[str, Finding]:
    try:
        info = engine.read(os.fspath(folder))
    except (CourseError, TypeError) as error:
        return str(error) if isinstance(error, CourseError) else "Give the folder that engine.build made."
    if info.pretrained_config["checkpoint"]["sha256"] != checkpoint.fetch().sha256:
        return "That engine was built from another checkpoint than the course's."
    # The longest last: where an iteration has no room for it beside the others, it must wait until they are gone.
    lengths = [*(choose.randint(20, 60) for _ in range(USERS - 1)), PROMPT]
    words = info.pretrained_config["vocab_size"]
    requests = [Request([choose.randrange(words) for _ in range(length)], ANSWER) for length in lengths]
    progress.say(f"your engine computes {len(requests)} prompts")
    try:
        with Executor.load(info.folder) as executor:
            responses = executor.generate_all(requests)
            together = max(row.scheduled for row in executor.iteration_stats)
            block_bytes = executor.model.block_bytes
    except CourseError as error:
        return f"It does not serve: {error}"
    limits = info.build_config
    cache = limits.max_batch_size * -(-limits.max_seq_len // limits.tokens_per_block) * block_bytes
    taken = (info.weight_bytes + cache) / 1e6
    return {
        "users": Measured("users in one iteration", together, at_least=USERS, course=USERS, nothing=8,
                          advice="See max_batch_size, and max_num_tokens: everybody's tokens share an iteration."),
        "answers": Measured(f"answers of {ANSWER} tokens", sum(len(one.token_ids) == ANSWER for one in responses),
                            exactly=USERS, course=USERS, nothing=USERS,
                            advice="max_seq_len counts the prompt and its answer together."),
        "memory": Measured("weights and a full KV cache", taken, at_most=MEMORY / 1e6, course=152.2, nothing=851.1,
                           unit="MB", advice="Shorter limits, or smaller numbers in the cache, make room."),
    }  # fmt: skip


# 1.5: what company changes --------------------------------------------------------------------------------------------

LENGTH, FRIENDS = 32, 4  # tokens of an answer, and others in its company, of a learner's own comparison
PROMPTS, WORDS = 4, 16  # of the check's
MOVED = 1e-3  # of a log-probability: sums in another order move it by some 1e-5, activations of 8 bits by 1e-1
TOPICS = ("rivers", "chess", "bread", "bees", "maps", "salt", "tides", "paper", "bridges", "owls", "clocks", "glass")
ATTEMPTS = 3


@grades("1.5", "With activations as they are, company changes nothing: each answer is computed as if it were alone.")
def _company(answer: object, choose: random.Random) -> Finding | dict[str, Callable[[], Finding] | Finding]:
    if not isinstance(answer, tuple | list) or len(answer) != 2:
        return "Give the function and the engine's folder: check('1.5', (compare, folder))."
    compare, folder = answer
    return {
        "the comparison": lambda: _compares(compare, choose),
        "the engine": lambda: NOT_YET if folder is None else _keeps_its_words(folder, choose),
    }


class _Sociable(FakeModel):
    """Its words are others as soon as somebody is in the same iteration; at the pace of a model, so that they meet."""

    sways = 1  # by how much a token moves for each of the others

    def forward(self, chunks: list[Chunk]) -> np.ndarray:
        time.sleep(0.002)
        return np.roll(super().forward(chunks), self.sways * (len(chunks) - 1), axis=1)


class _Steadfast(_Sociable):
    sways = 0


class _Watched(Executor):
    """Remembers what each prompt was answered."""

    def __init__(self, model: FakeModel):
        self.answers: list[tuple[list[int], list[int]]] = []
        super().__init__(model)

    def enqueue_request(self, request: Request, on_response: Callable[[Response], None]) -> int:
        words: list[int] = []

        def heard(response: Response) -> None:
            words.extend(response.token_ids)
            if response.is_final:
                self.answers.append((list(request.input_ids), words))
            on_response(response)

        return super().enqueue_request(request, heard)


def _compares(compare: Callable, choose: random.Random) -> Finding:
    """Whether a learner's function tells an engine that company sways from one that it does not."""
    for model in (_Sociable, _Steadfast):
        prompts = [[choose.randrange(1000) for _ in range(8)] for _ in range(1 + FRIENDS)]
        for _ in range(ATTEMPTS):
            found, they_met = _compared(compare, model, prompts)
            if found is None or found == NOT_YET or they_met:
                break
        if found is not None:
            return found
    return None


def _compared(compare: Callable, model: type[FakeModel], prompts: list[list[int]]) -> tuple[Finding, bool]:
    """What is to be said of one comparison, and whether all prompts were in one iteration."""
    with _Watched(model(BuildConfig())) as executor:
        given = compare(executor, list(prompts[0]), [list(prompt) for prompt in prompts[1:]])
        together = max((row.scheduled for row in executor.iteration_stats), default=0)
        own = [words for prompt, words in executor.answers if prompt == prompts[0]]
    they_met = together > FRIENDS
    if given is None or (isinstance(given, tuple | list) and all(part is None for part in given)):
        return NOT_YET, they_met
    if not isinstance(given, tuple | list) or len(given) != 2:
        return "Return two lists of token ids: (alone, in_company).", they_met
    alone, in_company = (list(part) if isinstance(part, list | tuple) else None for part in given)
    if alone not in own or in_company not in own:
        return (
            "These are not both words that the engine gave to `prompt`: return its answers, and no others'.",
            they_met,
        )
    if len(alone) != LENGTH or len(in_company) != LENGTH:
        return f"Each answer must have {LENGTH} tokens; yours have {len(alone)} and {len(in_company)}.", they_met
    if not they_met:
        return Measured(
            "requests in one iteration", together, at_least=1 + FRIENDS, course=1 + FRIENDS, nothing=0,
            advice="Hand prompt and others over at once, in one call of generate_all.",
        ), they_met  # fmt: skip
    is_swayed = alone != in_company
    if is_swayed != (model is _Sociable):
        return "One of the two must come from an iteration of its own: run `prompt` once with nobody beside it.", True
    return None, True


def _keeps_its_words(folder: object, choose: random.Random) -> Finding:
    """Prompts that nobody knows, alone and in company, on the learner's engine: by the check itself."""
    try:
        info = engine.read(os.fspath(folder))
        tokenizer = checkpoint.load_tokenizer(info.folder)
        prompts = [tokenizer.encode(tokenizer.chat(f"Tell me about {one}.")) for one in choose.sample(TOPICS, PROMPTS)]
        requests = [Request(prompt, WORDS, return_log_probs=True) for prompt in prompts]
        progress.say(f"your engine computes {PROMPTS} prompts, alone and together")
        with Executor.load(info.folder) as executor:
            alone = [executor.generate(request) for request in requests]
            together = executor.generate_all(requests)
            most = max(row.scheduled for row in executor.iteration_stats)
    except CourseError as error:
        return str(error)
    except TypeError:
        return "The second part of the answer is the folder that engine.build made."
    if most < PROMPTS:
        return Measured("requests in one iteration of your engine", most, at_least=PROMPTS, nothing=1,
                        advice="Who never has company is not changed by it: leave max_batch_size larger.")  # fmt: skip
    changed = sum(_changed(one, other) for one, other in zip(alone, together))
    quant_algo = info.quant_algo
    why = f"Its quant_algo is {quant_algo}: activations are rounded to 8 bits. Build one with W4A16."
    advice = why if (quant_algo or "").endswith("A8") else "Its words depend on who is beside them."
    return Measured(f"of {PROMPTS * WORDS} words, those that company made another, or more or less likely", changed,
                    exactly=0, course=0, advice=advice)  # fmt: skip


def _changed(alone: Response, together: Response) -> int:
    """How many tokens of an answer are others in company, or have another probability."""
    for place, (one, other) in enumerate(zip(alone.token_ids, together.token_ids)):
        if one != other:
            return len(alone.token_ids) - place + _moved(alone.log_probs[:place], together.log_probs[:place])
    return _moved(alone.log_probs, together.log_probs)


def _moved(one: list[float], other: list[float]) -> int:
    return int((np.abs(np.subtract(one, other)) > MOVED).sum())
