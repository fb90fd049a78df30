"""From one row of logits to the next token."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from inflight.engine.settings import SamplingConfig
from inflight.errors import CourseError

if TYPE_CHECKING:
    from inflight.engine.grammar import Matcher


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
    guide : Matcher, optional
        Says which tokens may come next.
    """

    config: SamplingConfig
    end_id: int | None = None
    bad_words: list[list[int]] = field(default_factory=list)
    guide: Matcher | None = None

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.config.random_seed)

    def choose(self, logits: NDArray[Any], prompt: list[int], answer: list[int]) -> int:
        """Choose the next token.

        Parameters
        ----------
        logits : float32 array [vocab_size]
            Or a model's row that stays elsewhere, and is fetched when more than the likeliest token is asked for.
        prompt, answer : list of int
            Tokens so far.

        Raises
        ------
        CourseError
            No token is left to choose, or the logits cannot be compared.
        """
        if self._needs_change(answer):
            with np.errstate(over="ignore", invalid="ignore"):  # what comes of it is looked at below
                logits = self._changed(np.array(logits, np.float64), prompt, answer)
        likeliest = int(logits.argmax())
        if logits[likeliest] == -np.inf:
            guide = "" if self.guide is None else ", the guide"
            raise CourseError(f"Every token is forbidden by bad_words_list{guide} and min_length: allow some.")
        if not np.isfinite(logits[likeliest]):  # argmax finds NaN first
            advice = ": use smaller penalties" if self.config.has_penalties else ""
            raise CourseError(f"The logits contain {logits[likeliest]}, so no token can be chosen{advice}.")
        return likeliest if self.config.is_greedy else self._draw(np.asarray(logits))

    def _needs_change(self, answer: list[int]) -> bool:
        is_short = len(answer) < self.config.min_length
        return self.config.has_penalties or is_short or bool(self.bad_words) or self.guide is not None

    def _changed(self, logits: NDArray[Any], prompt: list[int], answer: list[int]) -> NDArray[Any]:
        config = self.config
        if config.repetition_penalty != 1.0:
            seen = np.unique(prompt + answer)
            logits[seen] *= np.where(logits[seen] > 0, 1 / config.repetition_penalty, config.repetition_penalty)
        if answer and config.has_penalties:
            tokens, counts = np.unique(answer, return_counts=True)
            logits[tokens] -= config.presence_penalty + config.frequency_penalty * counts
        if self.guide is not None:
            self.guide.mask(answer, logits)
        if len(answer) < config.min_length and self.end_id is not None:
            end, logits[self.end_id] = logits[self.end_id], -np.inf
            if self.guide is not None and logits.max() == -np.inf:  # an answer that is complete ends
                logits[self.end_id] = end
        for *beginning, last in self.bad_words:
            if not beginning or answer[-len(beginning) :] == beginning:
                logits[last] = -np.inf
        return logits

    def _draw(self, logits: NDArray[Any]) -> int:
        """Apply temperature, then top-k, then top-p (nucleus: Holtzman et al. 2020, arXiv:1904.09751), then draw."""
        config = self.config
        count = min(config.top_k or len(logits), len(logits))
        top = np.argpartition(logits, -count)[-count:] if count < len(logits) else np.arange(len(logits))
        top = top[np.argsort(-logits[top], kind="stable")]
        below = logits[top].astype(np.float64)
        below -= below[0]
        with np.errstate(over="ignore"):  # -inf at a very low temperature: a probability of 0
            probabilities = np.exp(below / config.temperature)
        probabilities /= probabilities.sum()
        if 0 < config.top_p < 1:
            keep = int(np.searchsorted(probabilities.cumsum(), config.top_p)) + 1
            top, probabilities = top[:keep], probabilities[:keep] / probabilities[:keep].sum()
        return int(self._random.choice(top, p=probabilities))


def log_probability(logits: NDArray[Any], token: int) -> float:
    """Return the natural logarithm of the probability that `logits` [vocab_size] give to `token`."""
    logits = np.asarray(logits, np.float64)
    shifted = logits - logits.max()
    return float(shifted[token] - np.log(np.exp(shifted).sum()))
