"""How close the builds of a checkpoint come to its own words: perplexity, most likely tokens, KL divergence.

    source = checkpoint.fetch()
    result = bench(source, engines(source, workdir))
    result["ratios"]["perplexity_over_checkpoint"]["median"]

The text is the prose of the course's own lessons, which no data set that the course fetches contains, cut into windows
of 256 tokens. Within a window every model is given each token and asked for the next one. The reference is the
checkpoint itself: its weights, whatever their format, as float32 in PyTorch. An engine is asked through the very
function that serves, one token of each of 8 windows an iteration.

A learner's share of a machine has no room for all of them: the checkpoint reads first, and what it expects waits in a
file; then there is one engine at a time.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from statistics import NormalDist
from typing import IO, TYPE_CHECKING

import numpy as np

from inflight import checkpoint as checkpoints
from inflight import engine, machine, models
from inflight.bench.turns import Progress, result, silent
from inflight.checkpoint.sources import Checkpoint
from inflight.checkpoint.tokenizer import Tokenizer
from inflight.engine.config import BuildConfig, Chunk
from inflight.engine.model import Model, load
from inflight.errors import CourseError
from inflight.paths import COURSE

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

WINDOW = 256  # tokens; the first has nothing before it and is not judged
TOKENS = 20 * WINDOW
GROUP = 8  # windows that are read side by side; the reference of one is 25 MB with a vocabulary of 50,000
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
    """Whether a tier builds such engines."""
    try:
        config.on(tier)
    except CourseError:
        return False
    return True


def prose() -> str:
    """The text of all lessons: their markdown, without code and without the lines that a build fills in."""
    import jupytext

    paragraphs = []
    for path in sorted((COURSE / "lessons").glob("*/lecture.py")):
        for cell in jupytext.read(path, fmt="py:percent").cells:
            if cell.cell_type == "markdown":
                lines = [line for line in cell.source.splitlines() if "{" not in line]
                paragraphs.append("\n".join(lines).strip())
    return "\n\n".join(paragraphs)


def windows(tokenizer: Tokenizer, tokens: int = TOKENS) -> np.ndarray:
    """The first `tokens` tokens of the lessons' prose in windows, int64 [windows, 256]; what fills no window is left.

    Raises
    ------
    CourseError
        Too few tokens for two windows, or more than the text has.
    """
    ids = np.array(tokenizer.encode(prose()), np.int64)
    if not 2 * WINDOW <= tokens <= len(ids):
        raise CourseError(
            f"{tokens} tokens were asked for: ask for {2 * WINDOW}, two windows of {WINDOW}, to {len(ids)}, as many as "
            "the lessons' prose has with this checkpoint's tokenizer."
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
        perplexities), `same_top` (share of tokens where the most likely one is the checkpoint's) and `kl` (mean
        Kullback-Leibler divergence of the engine's distribution from the checkpoint's, in nats); `ratios`:
        `perplexity_over_checkpoint` of the default build, `min` and `max` being the ends of its interval. An
        interrupt (Ctrl-C, SIGTERM) leaves the engines that have read the text until then; before the first, it
        is raised.

    Raises
    ------
    CourseError
        `tokens` is too small or more than the text has; a model cannot be loaded; there is no room for a file of what
        the checkpoint expects, twice the vocabulary in bytes a token.
    """
    default = next(iter(folders))
    text = windows(checkpoints.load_tokenizer(folders[default]), tokens)
    steps, done = len(_groups(text)) * (1 + len(folders)), count()
    step = lambda what: progress(what, next(done), steps)
    scores: dict[str, np.ndarray] = {}
    with tempfile.TemporaryFile() as file:
        expected, own = _expected(source, text, file, step)
        try:
            for name, folder in folders.items():
                scores[name] = _scores(_loaded(folder), text, expected, partial(step, f"{name} reads"))
        except (KeyboardInterrupt, SystemExit):
            if not scores:
                raise
    rows: list[dict] = [dict.fromkeys(("build", "device", "weight_bytes"))]
    rows[0] |= {"build": "checkpoint", "perplexity": _exp(_interval(np.array(own)))}
    rows[0] |= dict.fromkeys(("over_checkpoint", "same_top", "kl"))
    for name, found in scores.items():
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
    """The rows as a terminal shows them: sizes in MB, and figures of quality with the reach of their interval."""
    return [
        {
            "build": row["build"],
            "MB": _rounded(row["weight_bytes"] and row["weight_bytes"] / 1e6),
            "perplexity": _with_reach(row["perplexity"], 1),
            "over_checkpoint": _with_reach(row["over_checkpoint"], 3),
            "same_top": _with_reach(row["same_top"], 3),
            "KL": _with_reach(row["kl"], 4),
        }
        for row in rows
    ]


def _rounded(value: float | None) -> str | None:
    return None if value is None else f"{value:,.0f}"


def _with_reach(interval: dict[str, float] | None, places: int) -> str | None:
    if interval is None:
        return None
    return f"{interval['value']:.{places}f} ± {interval['value'] - interval['low']:.{places}f}"


def _loaded(folder: Path) -> Model:
    runner = load(folder)
    runner.allocate_kv_cache(GROUP * _blocks(runner))
    return runner


def _blocks(runner: Model) -> int:
    """KV cache blocks of a window."""
    return -(-WINDOW // runner.info.build_config.tokens_per_block)


def _next(runner: Model, column: np.ndarray, num_past: int) -> np.ndarray:
    """Logits [windows, vocabulary] after the tokens `column`, one of each window, which has `num_past` before it."""
    per_window = _blocks(runner)
    return runner.forward(
        [
            Chunk([int(token)], num_past, list(range(number * per_window, (number + 1) * per_window)))
            for number, token in enumerate(column)
        ]
    )


# Quality --------------------------------------------------------------------------------------------------------------


def _groups(text: np.ndarray) -> list[slice]:
    """The windows that are read side by side."""
    return [slice(begin, begin + GROUP) for begin in range(0, len(text), GROUP)]


def _expected(
    source: Checkpoint, text: np.ndarray, file: IO[bytes], step: Callable[[str], None]
) -> tuple[np.ndarray, list[float]]:
    """`_reference` of all windows, the log-probabilities being in `file`; the checkpoint's model is gone afterwards."""
    model, own = models.huggingface.reference(source), []
    for group in _groups(text):
        step("the checkpoint in float32")
        log_p, likelihoods = _reference(model, text[group])
        own += likelihoods
        try:
            file.write(log_p.numpy())
            file.flush()
        except OSError as error:
            raise CourseError(
                f"What the checkpoint expects takes {len(text) * log_p[0].nbytes / 1e6:,.0f} MB, and the folder "
                f"{tempfile.gettempdir()} cannot take it: {error.strerror}. Make room there, or set TMPDIR to another."
            ) from None
    return np.memmap(file, np.float16, "r+", shape=(len(text), *log_p.shape[1:])), own


def _reference(model: PreTrainedModel, group: np.ndarray) -> tuple[torch.Tensor, list[float]]:
    """The checkpoint's log-probabilities, float16 [windows, 255, vocabulary], and each window's mean -log-likelihood.

    In float16 they are wrong by less than a thousandth of themselves.
    """
    import torch

    expected, likelihoods = [], []
    with torch.inference_mode():
        for window in torch.from_numpy(group):  # one after the other: in float32 each takes twice the room
            log_p = model(window[None]).logits[0, :-1].log_softmax(-1)
            likelihoods.append(-log_p.gather(-1, window[1:, None]).mean().item())
            expected.append(log_p.half())
    return torch.stack(expected), likelihoods


def _scores(runner: Model, text: np.ndarray, expected: np.ndarray, step: Callable[[], None]) -> np.ndarray:
    """For each window the means of -log-likelihood, equal most likely tokens, and KL divergence: [windows, 3]."""
    import torch

    total = torch.zeros(len(text), 3, dtype=torch.float64)
    for group in _groups(text):
        step()
        for place in range(WINDOW - 1):
            log_q = torch.from_numpy(np.asarray(_next(runner, text[group, place], place))).log_softmax(-1)
            log_p = torch.from_numpy(expected[group, place]).float()
            following = torch.from_numpy(text[group, place + 1])
            total[group, 0] -= log_q.gather(-1, following[:, None])[:, 0]
            total[group, 1] += log_q.argmax(-1) == log_p.argmax(-1)
            total[group, 2] += (log_p.exp() * (log_p - log_q)).sum(-1)
    return (total / (WINDOW - 1)).numpy()


def _figures(scores: np.ndarray, own: list[float]) -> dict:
    """A row's figures of quality from [windows, 3] and the reference's -log-likelihoods."""
    likelihoods, same, divergence = scores.T
    return {
        "perplexity": _exp(_interval(likelihoods)),
        "over_checkpoint": _exp(_interval(likelihoods - np.array(own))),
        "same_top": _interval(same, most=1.0),
        "kl": _interval(divergence),
    }


def _interval(values: np.ndarray, most: float = math.inf) -> dict[str, float]:
    mean, spread = float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values)))
    reach = student_t(len(values) - 1) * spread
    return {"value": mean, "low": mean - reach, "high": min(most, mean + reach)}


def student_t(degrees: int) -> float:
    """The 97.5th percentile of Student's t, to 1 % from 3 degrees of freedom (Abramowitz and Stegun, 26.7.5)."""
    z = NormalDist().inv_cdf(0.975)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / degrees**power for power, term in enumerate(terms, start=1))


def _exp(interval: dict[str, float]) -> dict[str, float]:
    return {name: math.exp(value) for name, value in interval.items()}
