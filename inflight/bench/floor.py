"""How far an iteration is from the time that reading memory takes, which no engine can beat, and where the rest goes.

    result = floor.bench(engine_dir, checkpoint)
    result["ratios"]["iteration_over_floor_1"]["median"]

One token more for each sequence needs every weight once, and the keys and values of each sequence once:

    floor = (bytes of the checkpoint's weights + sequences × tokens × bytes of a token's keys and values) / bandwidth

On a CPU the weights of a GGUF file count as it stores them, whatever the engine made of them; otherwise as the engine
has them. The bandwidth is that of the device that the engine computes on. A cache that is larger than the weights may
read them faster than memory: then the ratio can be below 1.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import pandas as pd

from inflight import engine, machine, tiers
from inflight.bench import devices, load_generator
from inflight.bench.bandwidth import read_bandwidth
from inflight.checkpoint import Checkpoint, GgufFile
from inflight.engine import sizing
from inflight.engine.config import BuildConfig, Chunk, Request
from inflight.engine.executor import Executor
from inflight.engine.folder import DTYPE_BYTES
from inflight.engine.openvino import profile as openvino_profile
from inflight.errors import CourseError

BATCHES = (1, 8, 32)
PROMPT_TOKENS, ANSWER_TOKENS = 128, 48  # of each sequence
FEWEST = 8  # iterations of a round that a median is taken of

# Kind of layer in the report -> kind of weight that it reads.
WEIGHTS_OF = {
    openvino_profile.ATTENTION: "attention",
    openvino_profile.FEED_FORWARD: "feed-forward",
    openvino_profile.OUTPUT: "embedding",
    openvino_profile.NORMS: "norms",
}
BETWEEN = "between kernels"


def bench(
    engine_dir: str | Path,
    checkpoint: Checkpoint,
    rounds: int = 5,
    batches: Sequence[int] = BATCHES,
    prompt_tokens: int = PROMPT_TOKENS,
    answer_tokens: int = ANSWER_TOKENS,
    seed: int = 0,
    progress: Callable[[str], None] = lambda step: None,
) -> dict:
    """Time of an iteration with so many sequences over that of reading what it needs, measured in turns.

    A round measures the bandwidth, then each number of sequences: all prompts are computed, then each iteration gives
    every sequence a token. An iteration is timed from its start to the next one's, with scheduling and sampling. Before
    the rounds that count there is one that is not.

    Parameters
    ----------
    engine_dir : path
        With at least as many slots as the largest of `batches`.
    checkpoint : Checkpoint
        What the engine was built from.
    prompt_tokens, answer_tokens : int
        Of each sequence. So there are `prompt_tokens + answer_tokens / 2` in the cache of each, on average.
    seed : int
        Of the prompts' tokens, which are drawn.

    Returns
    -------
    dict
        `machine`, `devices`, `settings`; `rows`, one a number of `requests`, medians over the rounds: `iteration_ms`,
        `floor_ms` and `ratio`; `weight_mb` and `kv_mb`, what is read, in 10⁶ bytes; `read_gb_per_s`, in 10⁹ bytes.
        `ratios`: `iteration_over_floor_1` and so on. On a CPU, of a GGUF file, `rows_by_kind`, one a kind of layer
        and number of `requests`: `ms` of its kernels, their names, and `floor_ms`, the time to read what this kind
        needs; from a compilation of its own, in which taking times costs some.

    Raises
    ------
    CourseError
        The engine has too few slots, or no room for such a prompt and answer; the engine cannot be loaded.
    """
    info = engine.read(engine_dir)
    _check(info.build_config, rounds, batches, prompt_tokens, answer_tokens)
    as_stored = info.tier == tiers.CPU and checkpoint.format == "gguf"
    weights = weight_bytes(GgufFile(checkpoint.path)) if as_stored else {"all": engine_weight_bytes(info)}
    draw = random.Random(seed)
    vocabulary = info.pretrained_config["vocab_size"]
    prompts = [[draw.randrange(vocabulary) for _ in range(prompt_tokens)] for _ in range(max(batches))]
    requests = [Request(ids, answer_tokens) for ids in prompts]
    threads = len(os.sched_getaffinity(0))  # as many as the engine has
    bandwidths: list[float] = []
    times: dict[int, list[float]] = {batch: [] for batch in batches}
    with Executor.load(engine_dir) as executor:
        kv_token_bytes = executor.model.block_bytes / info.build_config.tokens_per_block
        for number in range(rounds + 1):
            progress(f"round {number} of {rounds}: bandwidth" if number else "warm-up: bandwidth")
            bandwidth = read_bandwidth(threads, info.device)
            bandwidths += [bandwidth] if number else []
            for batch in batches if number % 2 else batches[::-1]:
                progress(f"round {number} of {rounds}: {batch} sequences" if number else f"warm-up: {batch} sequences")
                taken = iteration_ms(executor, requests[:batch])
                if number:
                    times[batch].append(taken)
    tokens = prompt_tokens + answer_tokens / 2
    kv = {batch: batch * tokens * kv_token_bytes for batch in batches}
    floors = {batch: [floor_ms(weights["all"] + kv[batch], one) for one in bandwidths] for batch in batches}
    rows = [
        {
            "requests": batch,
            "iteration_ms": median(times[batch]),
            "floor_ms": median(floors[batch]),
            "ratio": load_generator.ratio(times[batch], floors[batch])["median"],
            "weight_mb": weights["all"] / 1e6,
            "kv_mb": kv[batch] / 1e6,
            "read_gb_per_s": median(bandwidths) / 1e9,
        }
        for batch in batches
    ]
    by_kind = {}
    if as_stored:
        progress("profile")
        profiles = openvino_profile.profile(info, [_iteration(prompts[:batch], int(tokens), info) for batch in batches])
        by_kind["rows_by_kind"] = [
            row
            for batch, found in zip(batches, profiles)
            for row in _by_kind(batch, found, weights, kv[batch], median(bandwidths))
        ]
    return {
        "machine": machine.describe(),
        "devices": {f"{batch} sequences": devices.of_engine(engine_dir) for batch in batches},
        "settings": {
            "rounds": rounds,
            "warm_up_rounds": 1,
            "prompt_tokens": prompt_tokens,
            "answer_tokens": answer_tokens,
            "read_threads": threads,
            "seed": seed,
            "quant_algo": info.pretrained_config["quantization"]["quant_algo"],
        },
        "rows": rows,
        **by_kind,
        "ratios": {
            f"iteration_over_floor_{batch}": load_generator.ratio(times[batch], floors[batch]) for batch in batches
        },
    }


def floor_ms(num_bytes: float, bandwidth: float) -> float:
    """Milliseconds to read so many bytes at `bandwidth` bytes a second."""
    return num_bytes / bandwidth * 1000


def weight_bytes(source: GgufFile) -> dict[str, int]:
    """Bytes of a checkpoint's weights that one token needs, as stored: by kind (`sizing.KINDS`), and `all`.

    The embedding of tokens counts where it is the output's matrix as well; of one that is not, a row is read.
    """
    table = source.tensor_table()
    has_output = any(row["name"] == "output.weight" for row in table)
    sizes = dict.fromkeys(sizing.KINDS, 0)
    for row in table:
        if not (has_output and row["name"] == "token_embd.weight"):
            sizes[sizing.kind(row["name"])] += row["bytes"]
    return {**sizes, "all": sum(sizes.values())}


def engine_weight_bytes(info: engine.EngineInfo) -> int:
    """Bytes of weights that a GPU reads for one token: all of an engine's, but of an embedding of its own a row.

    Where the output's matrix is the embedding of tokens as well, an engine stores it once.
    """
    model = info.pretrained_config
    if model.get("share_embedding_table", True):
        return info.weight_bytes
    return info.weight_bytes - model["vocab_size"] * model["hidden_size"] * DTYPE_BYTES[info.build_config.dtype]


def iteration_ms(executor: Executor, requests: list[Request]) -> float:
    """Milliseconds of an iteration in which each of `requests` gets a token and no prompt is computed, a median.

    Raises
    ------
    CourseError
        There were too few such iterations.
    """
    executor.iteration_stats.clear()
    executor.generate_all(requests)
    log = pd.DataFrame([(one.timestamp, one.scheduled, one.context_tokens) for one in executor.iteration_stats])
    log.columns = ["timestamp", "scheduled", "context_tokens"]
    lasted_ms = (log["timestamp"].shift(-1) - log["timestamp"]) * 1000
    pure = lasted_ms[(log["scheduled"] == len(requests)) & (log["context_tokens"] == 0)].dropna()
    if len(pure) < FEWEST:
        raise CourseError(
            f"Only {len(pure)} iterations had all {len(requests)} sequences: ask for longer answers, or build the "
            "engine with a larger max_num_tokens."
        )
    return float(pure.median())


def _check(build: BuildConfig, rounds: int, batches: Sequence[int], prompt_tokens: int, answer_tokens: int) -> None:
    if rounds < 1:
        raise CourseError(f"There are {rounds} rounds; ask for at least 1.")
    if max(batches) > build.max_batch_size:
        raise CourseError(
            f"The engine has {build.max_batch_size} slots and {max(batches)} are needed: build one with a larger "
            "max_batch_size."
        )
    if prompt_tokens > build.max_input_len or prompt_tokens + answer_tokens >= build.max_seq_len:
        raise CourseError(
            f"A prompt of {prompt_tokens} tokens and an answer of {answer_tokens} do not fit into the engine's "
            f"max_input_len ({build.max_input_len}) and max_seq_len ({build.max_seq_len}): build one with larger ones."
        )


def _iteration(prompts: list[list[int]], past: int, info: engine.EngineInfo) -> list[Chunk]:
    """A token more for each sequence, `past` tokens in."""
    blocks = -(-(past + 1) // info.build_config.tokens_per_block)
    return [
        Chunk(token_ids=[ids[0]], num_past=past, blocks=list(range(number * blocks, (number + 1) * blocks)))
        for number, ids in enumerate(prompts)
    ]


def _by_kind(
    batch: int, found: openvino_profile.Profile, weights: dict[str, int], kv_bytes: float, bandwidth: float
) -> list[dict]:
    """One row a kind of layer, then what lies between the kernels."""
    reads = {kind: weights[of] for kind, of in WEIGHTS_OF.items()} | {openvino_profile.KERNEL: kv_bytes}
    rows = [
        {
            "requests": batch,
            "kind": kind,
            "ms": ms,
            "floor_ms": floor_ms(reads[kind], bandwidth) if kind in reads else None,
            "kernels": ", ".join(found.kernels.get(kind, [])),
        }
        for kind, ms in found.ms.items()
    ]
    between_ms = found.whole_ms - sum(found.ms.values())
    return [*rows, {"requests": batch, "kind": BETWEEN, "ms": between_ms, "floor_ms": None, "kernels": ""}]
