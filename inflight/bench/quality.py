"""Compares engines with the checkpoint they were built from: perplexity and most likely tokens.

    source = checkpoint.fetch()
    result = bench(source, engines(source, workdir))
    result["ratios"]["perplexity_over_checkpoint"]["median"]

The text is prose of the course's own lessons as it once was (`assets/datasets/prose.txt`), which no data set that the
course fetches contains, cut into windows of 256 tokens. Within a window every model is given each token and asked for
the next one. The reference is the checkpoint itself: its weights, whatever their format, as float32 in PyTorch. An
engine is asked through the very function that serves, one token of each of 8 windows an iteration.

One model is loaded at a time, to save memory: the checkpoint first, then engine after engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count, pairwise
from pathlib import Path

import numpy as np

from inflight import checkpoint as checkpoints
from inflight import engine, machine, models
from inflight.bench.turns import Progress, interval, result, silent
from inflight.checkpoint.sources import Checkpoint
from inflight.checkpoint.tokenizer import ChatTokenizer
from inflight.engine.messages import Chunk
from inflight.engine.model import load
from inflight.engine.sampling import log_probability
from inflight.engine.settings import BuildConfig
from inflight.errors import CourseError
from inflight.paths import ASSETS

PROSE = ASSETS / "datasets" / "prose.txt"
WINDOW = 256  # tokens; the first has nothing before it and is not judged
TOKENS = 20 * WINDOW
GROUP = 8  # windows that an engine reads side by side
BUILDS = {
    "W4A8": BuildConfig(quant_algo="W4A8"),
    "W4A16": BuildConfig(quant_algo="W4A16"),
    "W8A16": BuildConfig(quant_algo="W8A16"),
    "float": BuildConfig(quant_algo=None),
    "INT8 KV": BuildConfig(kv_cache_quant_algo="INT8"),
}

# What is compared -----------------------------------------------------------------------------------------------------


def engines(
    source: Checkpoint,
    workdir: str | Path,
    tokens: int = TOKENS,
    progress: Progress = silent,
) -> dict[str, Path]:
    """Engines of `source` by the name of their build: the default one, the other precisions, and an 8-bit KV cache.

    Those that this machine's tier has. The default build comes from the course's cache folder, under its precision's
    name; the others are built in `workdir`.

    Raises
    ------
    CourseError
        `source` cannot be built, or the text has not so many tokens for it, before more than one engine is built.
    """
    default = engine.cached(source)
    windows(checkpoints.load_tokenizer(default), tokens)
    info = engine.read(default)
    folders = {info.quant_algo or "float": default}
    others = {name: config for name, config in BUILDS.items() if name not in folders and _has(info.tier, config)}
    for number, (name, config) in enumerate(others.items()):
        progress(f"building {name}", number, len(others))
        folders[name] = engine.build(source, config, Path(workdir) / name)
    return folders


def _has(tier: str, config: BuildConfig) -> bool:
    """Say whether a tier builds such engines."""
    try:
        config.on(tier)
    except CourseError:
        return False
    return True


def prose() -> str:
    """Return the text that is read: a change of a lesson does not change what is measured."""
    return PROSE.read_text(encoding="utf-8")


def windows(tokenizer: ChatTokenizer, tokens: int = TOKENS) -> np.ndarray:
    """The first `tokens` tokens of the lessons' prose in windows, int64 [windows, 256]; what fills no window is left.

    Raises
    ------
    CourseError
        Too few tokens for three windows, or more than the text has.
    """
    ids = np.array(tokenizer.encode(prose()), np.int64)
    if not 3 * WINDOW <= tokens <= len(ids):
        raise CourseError(
            f"{tokens} tokens were asked for: ask for {3 * WINDOW}, three windows of {WINDOW}, to {len(ids)}, as many "
            "as the lessons' prose has with this checkpoint's tokenizer."
        )
    return ids[: tokens // WINDOW * WINDOW].reshape(-1, WINDOW)


# The benchmark --------------------------------------------------------------------------------------------------------


def bench(
    source: Checkpoint,
    folders: dict[str, Path],
    tokens: int = TOKENS,
    progress: Progress = silent,
) -> dict:
    """Quality and size of engines, beside the checkpoint that they were built from.

    All figures of quality are means over windows. Their 95 % intervals take the windows for independent draws from the
    text: mean ± t · s / √n, with the standard deviation s between the n windows and Student's t; for perplexity and its
    ratio this is done with the mean negative log-likelihood of a window, and with its difference to the reference's in
    the same window, and e is raised to the results. So the ratio's interval is far narrower than that of two
    perplexities: which text is hard is the same for both.

    Parameters
    ----------
    source : Checkpoint
    folders : dict of str to path
        Engines of `source` by name, the default build first.
    tokens : int
        Length of the text.
    progress : callable, optional
        Called with what runs, and how many steps of all are done.

    Returns
    -------
    dict
        `machine`, `settings`; `rows`: the checkpoint first, then one an engine: `build`, `device`,
        `weight_bytes`, and with `value`, `low`, `high` each `perplexity`, `over_checkpoint` (ratio of
        perplexities) and `same_top` (share of tokens where the most likely one is the checkpoint's); `ratios`:
        `perplexity_over_checkpoint` of the default build, `min` and `max` being the ends of its interval. An
        interrupt (Ctrl-C, SIGTERM) leaves the engines that have read the text until then; before the first, it
        is raised.

    Raises
    ------
    CourseError
        `tokens` is too small or more than the text has; a model cannot be loaded.
    """
    default = next(iter(folders))
    text = windows(checkpoints.load_tokenizer(folders[default]), tokens)
    groups = [text[begin : begin + GROUP] for begin in range(0, len(text), GROUP)]
    steps, done = len(groups) * (1 + len(folders)), count()
    step = lambda what: progress(what, next(done), steps)
    own = _read_by_checkpoint(source, groups, partial(step, "the checkpoint in float32"))
    judged: dict[str, np.ndarray] = {}
    try:
        for name, folder in folders.items():
            judged[name] = _read_by_engine(folder, groups, partial(step, f"{name} reads"))
    except (KeyboardInterrupt, SystemExit):
        if not judged:
            raise
    rows: list[dict] = [dict.fromkeys(("build", "device", "weight_bytes"))]
    rows[0] |= {"build": "checkpoint", "perplexity": _exp(_interval(own[..., 0].mean(axis=1)))}
    rows[0] |= dict.fromkeys(("over_checkpoint", "same_top"))
    for name, found in judged.items():
        info = engine.read(folders[name])
        row = {"build": name, "device": machine.device_name(info.device), "weight_bytes": info.weight_bytes}
        rows.append(row | _figures(found, own))
    over = rows[1]["over_checkpoint"]
    settings = {
        "checkpoint": source.name,
        "device": rows[1]["device"],
        "default_build": default,
        "tokens": text.size,
        "windows": len(text),
        "interval": 0.95,
    }
    ratios = {"perplexity_over_checkpoint": {"median": over["value"], "min": over["low"], "max": over["high"]}}
    return result(settings, rows, ratios)


def in_words(rows: list[dict]) -> list[dict]:
    """Return the rows for a terminal: sizes in MB, and figures of quality with the reach of their interval."""
    return [
        {
            "build": row["build"],
            "MB": row["weight_bytes"] and f"{row['weight_bytes'] / 1e6:,.0f}",
            "perplexity": _with_reach(row["perplexity"], 1),
            "over_checkpoint": _with_reach(row["over_checkpoint"], 3),
            "same_top": _with_reach(row["same_top"], 3),
        }
        for row in rows
    ]


def _with_reach(figure: dict[str, float] | None, places: int) -> str | None:
    if figure is None:
        return None
    return f"{figure['value']:.{places}f} ± {figure['value'] - figure['low']:.{places}f}"


# Quality --------------------------------------------------------------------------------------------------------------


def _read_by_checkpoint(source: Checkpoint, groups: list[np.ndarray], step: Callable[[], None]) -> np.ndarray:
    """Judge each token but the first by the checkpoint's model: see `_judged`; [windows, 255, 2]."""
    import torch

    model, found = models.huggingface.reference(source), []
    for group in groups:
        step()
        with torch.inference_mode():
            found += [
                _judged(model(window[None]).logits[0, :-1].numpy(), window[1:]) for window in torch.from_numpy(group)
            ]
    return np.array(found)


def _read_by_engine(folder: Path, groups: list[np.ndarray], step: Callable[[], None]) -> np.ndarray:
    """Judge them by an engine."""
    runner = load(folder)
    num_blocks = -(-WINDOW // runner.info.build_config.tokens_per_block)  # of a window
    runner.allocate_kv_cache(GROUP * num_blocks)
    blocks = np.arange(GROUP * num_blocks).reshape(GROUP, num_blocks).tolist()
    found = []
    for group in groups:
        step()
        columns = [
            _judged(runner.forward([Chunk([token], place, own) for token, own in zip(given, blocks)]), following)
            for place, (given, following) in enumerate(pairwise(group.T.tolist()))
        ]
        found += list(np.swapaxes(columns, 0, 1))
    return np.array(found)


def _judged(logits: Iterable[np.ndarray], following: Sequence[int]) -> list[tuple[float, int]]:
    """Return for each row of logits the -log-likelihood of the token that follows, and the most likely token."""
    return [(-log_probability(row, int(token)), int(row.argmax())) for row, token in zip(logits, following)]


def _figures(judged: np.ndarray, own: np.ndarray) -> dict:
    """A row's figures of quality: means over the windows of an engine, beside the checkpoint's."""
    likelihoods = judged[..., 0].mean(axis=1)
    return {
        "perplexity": _exp(_interval(likelihoods)),
        "over_checkpoint": _exp(_interval(likelihoods - own[..., 0].mean(axis=1))),
        "same_top": _interval((judged[..., 1] == own[..., 1]).mean(axis=1), most=1.0),
    }


def _interval(values: np.ndarray, most: float = math.inf) -> dict[str, float]:
    mean, low, high = interval(values.tolist())
    return {"value": mean, "low": low, "high": min(most, high)}


def _exp(figure: dict[str, float]) -> dict[str, float]:
    return {name: math.exp(value) for name, value in figure.items()}
