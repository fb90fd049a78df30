"""GPT-2 behind Triton, way by way in one run: batch after batch, recomputed at every token, with a KV cache.

    result = bench(gpt2_checkpoint.find("gpt2-124m-random"), workdir)
    result["ratios"]["kv_cache_over_recompute"]["median"]

The ways take turns in one run; beside them stands what reading the weights from memory takes, which no way can beat.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from inflight import machine, tiers
from inflight.bench import gpt2_client
from inflight.bench.gpt2_client import Token
from inflight.bench.targets import serving
from inflight.bench.turns import Progress, ratio, result, silent, take_turns
from inflight.errors import CourseError
from inflight.models import gpt2, huggingface
from inflight.triton import repository

SIMPLE, ITERATIVE = repository.GPT2
IN_PROCESS = "in process, KV cache"
# Name of a way -> model, and its kv_cache. The tutorial's way is what simple-gpt2 does too: float32, nothing kept.
SERVED = {
    "simple": (SIMPLE, None),
    "iterative, tutorial's way": (ITERATIVE, "tutorial"),
    "iterative, no cache": (ITERATIVE, "off"),
    "iterative, KV cache": (ITERATIVE, "on"),
}
_, TUTORIAL_WAY, NO_CACHE, KV_CACHE = SERVED

# Ratio -> the way that the served KV cache is compared with.
RATIOS = {
    "kv_cache_over_recompute": TUTORIAL_WAY,
    "kv_cache_over_recompute_same_dtype": NO_CACHE,
    "kv_cache_over_in_process_loop": IN_PROCESS,
}

WARM_UP_TOKENS = 4
TIMEOUT_S = 600  # for a token: a large checkpoint that recomputes everything takes its time
BANDWIDTH = "reading memory"  # takes turns with the ways, too
CPU_BUFFER_BYTES, GPU_BUFFER_BYTES = 2**30, 2**32  # much more than any cache holds
READS = 5


# Ways in turns --------------------------------------------------------------------------------------------------------


def bench(
    folder: str | Path,
    workdir: str | Path,
    streams: int = 8,
    tokens: int = 64,
    rounds: int = 3,
    progress: Progress = silent,
) -> dict:
    """Every way of `SERVED`, and the same KV cache in a plain loop without a server, in turns.

    All streams start at once, each with a prompt of a few words. The tutorial's way is in float32, the others in the
    precision that is the faster one here. Before its turn each way makes tokens that are not
    counted: those with the KV cache all of them once, as a model just loaded is slower for a second; the slow ones
    `WARM_UP_TOKENS` a stream.

    Parameters
    ----------
    folder : path
        Hugging Face folder of a GPT-2.
    workdir : path
        Folder for the model repository.

    Returns
    -------
    dict
        `machine`, `settings`; `rows`, one a way, with medians over the rounds of what `figures` gives; `floor`, what
        reading the weights takes: `weight_mb`, `read_gb_per_s`, `ms`; `ratios`, each with median, min and max over the
        rounds. Three are of tokens/s, the served KV cache over another way; `kv_cache_over_bandwidth_floor` is its time
        per token over that of reading the weights.

    Raises
    ------
    CourseError
        A number is too small, or too large for the checkpoint, before a server starts; what `gpt2.load` and `Server`
        raise.
    """
    prompts = gpt2_client.prompts(streams)
    if tokens < 2 or rounds < 1:
        raise CourseError(f"There are {tokens} tokens and {rounds} rounds: ask for at least 2 tokens and 1 round.")
    dtype = huggingface.best_dtype(tiers.checked(None))
    model = gpt2.load(folder, "on", dtype, streams)
    _sequences(model, prompts, tokens)  # refuses what is too long
    repo = repository.assemble(
        Path(workdir) / "repository",
        models=repository.GPT2,
        gpt2_checkpoint_dir=folder,
        gpt2_dtype=dtype,
        gpt2_max_batch_size=max(8, streams),
        gpt2_kv_cache_slots=streams,
    )
    progress("starting Triton", 0, 1)
    with serving(repo) as server:

        def turn(way: str) -> dict[str, float]:
            name, kv_cache = SERVED.get(way, (None, None))
            if name == ITERATIVE:
                server.load(ITERATIVE, kv_cache=kv_cache)
            for number in (tokens if way in (KV_CACHE, IN_PROCESS) else WARM_UP_TOKENS, tokens):
                if way == IN_PROCESS:
                    tokens_of = _loop(model, prompts, number)
                else:
                    tokens_of = gpt2_client.race(server.grpc_url, name, prompts, number, timeout_s=TIMEOUT_S)
                raced = gpt2_client.table(token for arrived in tokens_of for token in arrived)
            return figures(raced)

        turns = take_turns(
            {
                **{way: lambda way=way: turn(way) for way in (*SERVED, IN_PROCESS)},
                BANDWIDTH: lambda: {"bytes_per_s": read_bandwidth()},
            },
            rounds,
            progress,
            warm_up=False,
        )
    settings = {
        "device": machine.device_name(),
        "dtype": dtype,
        "streams": streams,
        "tokens": tokens,
        "rounds": len(turns[KV_CACHE]),
        "warm_up_tokens": WARM_UP_TOKENS,
        "prompts": prompts,
    }
    return _result(settings, turns, weight_bytes(folder, dtype))


def figures(raced: pd.DataFrame) -> dict[str, float]:
    """Figures of a race whose streams began at 0 s.

    Parameters
    ----------
    raced : DataFrame
        One row a token: see `gpt2_client.table`.

    Returns
    -------
    dict
        `tokens_per_s`, of all streams, until the last token; `ms_per_token`, the time from one token of a stream to its
        next (mean of a stream, median of the streams); `first_ms` and `last_ms`, when a stream's first and last token
        came (median of the streams), `first_ms_max` and `last_ms_max` (most).
    """
    streams = gpt2_client.standings(raced)
    per_token_s = (streams["last_s"] - streams["first_s"]) / (streams["tokens"] - 1)
    first_ms, last_ms = streams["first_s"] * 1000, streams["last_s"] * 1000
    return {
        "tokens_per_s": len(raced) / streams["last_s"].max(),
        "ms_per_token": per_token_s.median() * 1000,
        "first_ms": first_ms.median(),
        "first_ms_max": first_ms.max(),
        "last_ms": last_ms.median(),
        "last_ms_max": last_ms.max(),
    }


def _loop(model: gpt2.Gpt2, prompts: list[str], tokens: int) -> Iterator[list[Token]]:
    """The plain loop: all sequences together, step by step."""
    started = time.perf_counter()
    sequences = _sequences(model, prompts, tokens)
    for sequence in sequences:
        model.join(sequence)
    for number in range(1, tokens + 1):
        model.step(sequences)
        elapsed = time.perf_counter() - started
        yield [
            Token(stream, number, elapsed, model.last_piece(sequence)) for stream, sequence in enumerate(sequences, 1)
        ]
    for sequence in sequences:
        model.leave(sequence)


def _sequences(model: gpt2.Gpt2, prompts: list[str], tokens: int) -> list[gpt2.Sequence]:
    return [model.sequence(prompt, {"max_tokens": tokens, "ignore_eos": True}) for prompt in prompts]


def _result(settings: dict, turns: dict[str, list[dict]], num_bytes: int) -> dict:
    """Rows, floor and ratios of all rounds."""
    bandwidths = [one["bytes_per_s"] for one in turns[BANDWIDTH]]
    floors_ms = [num_bytes / bandwidth * 1000 for bandwidth in bandwidths]
    rows = [{"way": way, **pd.DataFrame(turns[way]).median().to_dict()} for way in (*SERVED, IN_PROCESS)]
    speeds = {way: [one["tokens_per_s"] for one in turns[way]] for way in (*SERVED, IN_PROCESS)}
    ratios = {name: ratio(speeds[KV_CACHE], speeds[way]) for name, way in RATIOS.items()}
    served = [one["ms_per_token"] for one in turns[KV_CACHE]]
    ratios["kv_cache_over_bandwidth_floor"] = ratio(served, floors_ms)
    bandwidth = statistics.median(bandwidths)
    return result(
        settings,
        rows,
        ratios,
        floor={"weight_mb": num_bytes / 1e6, "read_gb_per_s": bandwidth / 1e9, "ms": num_bytes / bandwidth * 1000},
    )


# The floor ------------------------------------------------------------------------------------------------------------


def weight_bytes(folder: str | Path, dtype: str = "bfloat16") -> int:
    """Bytes of weights that each forward pass reads: all of a GPT-2's but the embeddings of positions.

    A block of width d and inner width i has 4 d² + 8 d in attention and norms, and 2 d i + i + d in the other two
    matrices. The head has d for each token of the vocabulary; it is the embedding of tokens as well, of which a row a
    token is read.
    """
    import torch
    import transformers

    config = transformers.GPT2Config.from_pretrained(folder, local_files_only=True)
    width = config.n_embd
    inner = config.n_inner or 4 * width
    block = 4 * width**2 + 9 * width + 2 * width * inner + inner
    return (config.n_layer * block + 2 * width + config.vocab_size * width) * getattr(torch, dtype).itemsize


def read_bandwidth() -> float:
    """Bytes a second that PyTorch reads from the memory of this machine's tier.

    The sum of a buffer of float32 that is much larger than the caches, as in the STREAM benchmark but reading alone:
    the fastest of `READS` times.
    """
    import torch

    device, size = tiers.checked(None), CPU_BUFFER_BYTES
    if device != "cpu":
        size = min(GPU_BUFFER_BYTES, torch.cuda.mem_get_info()[0] // 2)
    buffer = torch.ones(size // 4, dtype=torch.float32, device=device)
    buffer.sum().item()
    times = []
    for _ in range(READS):
        started = time.perf_counter()
        buffer.sum().item()  # the item waits for the GPU
        times.append(time.perf_counter() - started)
    return size / min(times)
