"""From one row of logits to the next token."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from inflight.errors import CourseError


@dataclass(frozen=True)
class SamplingConfig:
    """How to choose tokens, under TensorRT-LLM's names.

    Parameters
    ----------
    temperature : float
        Logits are divided by it; above 1 flatter, below 1 sharper. 0 means greedy.
    top_k : int
        Choose among the k most likely tokens; 0 means no such limit.
    top_p : float
        Choose among the most likely tokens whose probabilities reach this sum; 0 or 1 means no such limit.
        With `top_k` 0 and `top_p` 0, or with `top_k` 1, the most likely token is taken: greedy.
    repetition_penalty : float
        Logits of tokens in prompt or answer are divided (if positive) or multiplied by it. Keskar et al. 2019,
        arXiv:1909.05858, section 4.1.
    presence_penalty, frequency_penalty : float
        Taken from the logits of tokens in the answer: once, and once for each occurrence.
    min_length : int
        The end token is not chosen before the answer has this many tokens.
    random_seed : int
        Same seed, same request: same tokens.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_length: int = 0
    random_seed: int = 0

    def __post_init__(self):
        for name in ("temperature", "top_p", "repetition_penalty", "presence_penalty", "frequency_penalty"):
            if not math.isfinite(getattr(self, name)):
                raise CourseError(f"{name} is {getattr(self, name)}; give a finite number.")
        for name, low, high in (
            ("temperature", 0, math.inf),
            ("top_k", 0, math.inf),
            ("top_p", 0, 1),
            ("min_length", 0, math.inf),
            ("random_seed", 0, math.inf),
        ):
            if not low <= getattr(self, name) <= high:
                limits = f"at least {low}" if high == math.inf else f"between {low} and {high}"
                raise CourseError(f"{name} is {getattr(self, name)}; give a value of {limits}.")
        if self.repetition_penalty <= 0:
            raise CourseError(f"repetition_penalty is {self.repetition_penalty}; give a value above 0 (1 means none).")

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0 or self.top_k == 1 or (self.top_k == 0 and self.top_p == 0)

    @property
    def has_penalties(self) -> bool:
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)


@dataclass
class Sampler:
    """Chooses the tokens of one request.

    Parameters
    ----------
    config : SamplingConfig
    end_id : int or None
        Token that ends an answer.
    bad_words : list of list of int
        Token sequences that must not appear in the answer.
    """

    config: SamplingConfig
    end_id: int | None = None
    bad_words: list[list[int]] = field(default_factory=list)

    def __post_init__(self):
        self._random = np.random.default_rng(self.config.random_seed)

    def choose(self, logits: np.ndarray, prompt: list[int], answer: list[int]) -> int:
        """The next token.

        Parameters
        ----------
        logits : float32 array [vocab_size]
        prompt, answer : list of int
            Tokens so far.
        """
        if self._needs_change(answer):
            logits = self._changed(logits.astype(np.float64), prompt, answer)
        if self.config.is_greedy:
            return int(logits.argmax())
        return self._draw(logits)

    def _needs_change(self, answer: list[int]) -> bool:
        return self.config.has_penalties or len(answer) < self.config.min_length or bool(self.bad_words)

    def _changed(self, logits: np.ndarray, prompt: list[int], answer: list[int]) -> np.ndarray:
        config = self.config
        if config.repetition_penalty != 1.0:
            seen = np.unique(prompt + answer)
            logits[seen] *= np.where(logits[seen] > 0, 1 / config.repetition_penalty, config.repetition_penalty)
        if answer:
            tokens, counts = np.unique(answer, return_counts=True)
            logits[tokens] -= config.presence_penalty + config.frequency_penalty * counts
        if len(answer) < config.min_length and self.end_id is not None:
            logits[self.end_id] = -np.inf
        for *beginning, last in self.bad_words:
            if not beginning or answer[-len(beginning) :] == beginning:
                logits[last] = -np.inf
        return logits

    def _draw(self, logits: np.ndarray) -> int:
        """Temperature, then top-k, then top-p (nucleus: Holtzman et al. 2020, arXiv:1904.09751), then chance."""
        config = self.config
        count = min(config.top_k or len(logits), len(logits))
        top = np.argpartition(logits, -count)[-count:] if count < len(logits) else np.arange(len(logits))
        top = top[np.argsort(-logits[top], kind="stable")]
        scaled = logits[top].astype(np.float64) / config.temperature
        probabilities = np.exp(scaled - scaled.max())
        probabilities /= probabilities.sum()
        if 0 < config.top_p < 1:
            keep = int(np.searchsorted(probabilities.cumsum(), config.top_p)) + 1
            top, probabilities = top[:keep], probabilities[:keep] / probabilities[:keep].sum()
        return int(self._random.choice(top, p=probabilities))


def log_probability(logits: np.ndarray, token: int) -> float:
    """Natural logarithm of the probability that `logits` [vocab_size] give to `token`."""
    shifted = logits.astype(np.float64) - logits.max()
    return float(shifted[token] - np.log(np.exp(shifted).sum()))
