"""Drafts: guesses at the next tokens of answers, which one iteration checks all at once.

    lookup = PromptLookup(max_matching_ngram_size=3)             # one a request
    lookup.propose([5, 6, 7, 8, 9, 5, 6], 2)                     # [7, 8]: what followed 5, 6 before

With few answers an iteration is spent on reading the weights, and a few tokens more in it cost little. So drafts are
put after an answer's latest token, and the model computes what should follow each. The executor chooses tokens as
always, and goes on as long as the chosen one is the next draft (`Executor._take_tokens`): the answer is the same, and
wrong drafts are overwritten in the cache.
"""

from __future__ import annotations

import time
from operator import index
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from inflight.engine.messages import Chunk
from inflight.engine.model import Model
from inflight.engine.own.part import OwnPart, PartError
from inflight.engine.sequences import Sequence, Sequences
from inflight.engine.settings import SpeculativeConfig

ROUNDS, PAST = 5, 128  # rounds of measuring prices, and tokens that are in the cache then
FORGETTING = 0.99  # each iteration multiplies what was learnt of all requests' drafts by this
OTHERS = 4  # a request's own tries that weigh as much as the odds of all requests
LATELY = 0.8  # each iteration multiplies the worth of drafts by this
CHANGE = 1.05  # gain for which the number of drafts is changed, as a new length has its price


class Drafter(Protocol):
    """Guesses for one request.

    Attributes
    ----------
    matched : int
        Kind of its latest guesses: the engine learns per kind how often they are right.
    """

    matched: int

    def propose(self, token_ids: list[int], k: int) -> list[int]:
        """Guess what follows the tokens of prompt and answer: at most `k` tokens, the next one first."""


class PromptLookup:
    """Guesses what followed the last tokens earlier in prompt or answer: Saxena 2023, "Prompt Lookup Decoding".

    Parameters
    ----------
    max_matching_ngram_size : int
        How many of the last tokens to look for; where they are not found, one less, down to one.

    Attributes
    ----------
    matched : int
        How many were found.
    """

    def __init__(self, max_matching_ngram_size: int):
        self.matched = 0
        self._sizes = range(max_matching_ngram_size, 0, -1)
        self._latest: dict[tuple[int, ...], int] = {}  # tokens in a row -> where what followed them last begins
        self._num_known = 0  # tokens whose successors are noted

    def propose(self, token_ids: list[int], k: int) -> list[int]:
        """See `Drafter`. `token_ids` must begin with those of the call before; only new ones are looked at."""
        for end in range(self._num_known + 1, len(token_ids)):
            for size in self._sizes:
                if size <= end:
                    self._latest[tuple(token_ids[end - size : end])] = end
        self._num_known = len(token_ids) - 1
        for size in self._sizes:
            if found := self._latest.get(tuple(token_ids[-size:])):
                self.matched = size
                return token_ids[found : found + k]
        return []


class _OwnDrafter:
    """Guesses by a class of the learner's own, one object a request."""

    matched = 0  # one kind, as the engine cannot tell its guesses apart

    def __init__(self, part: OwnPart, vocab_size: int):
        self._part, self._vocab_size = part, vocab_size
        self._drafter = part.call(part.made)

    def propose(self, token_ids: list[int], k: int) -> list[int]:
        given = self._part.call(self._drafter.propose, list(token_ids), k)
        try:
            drafts = list(map(index, given))
        except TypeError:
            drafts = [-1]
        if len(drafts) > k or not all(0 <= draft < self._vocab_size for draft in drafts):
            raise PartError(
                f"{self._part.place}: propose() gave {given!r:.80}; give a list of at most {k} token ids from 0 to "
                f"{self._vocab_size - 1}."
            )
        return drafts


class Guesser:
    """The drafts of one request: who makes them, how often they were right, and what they have been worth lately.

    Parameters
    ----------
    drafter : Drafter
    kinds : int
        Number of kinds of guesses: values of `Drafter.matched`.
    """

    def __init__(self, drafter: Drafter, kinds: int):
        self._drafter = drafter
        self._latest: list[int] = []  # what it guessed last,
        self._kind = self._begin = 0  # of what kind, and where in the tokens
        self.right, self.tried = np.zeros(kinds), np.zeros(kinds)
        self.worth = np.zeros(0)  # tokens that 1, 2, ... drafts bring, averaged over its iterations

    def learn(self, tokens: list[int]) -> tuple[int, int, int]:
        """Compare the latest guesses with what came; return their kind, and how many were right and were tried."""
        came = tokens[self._begin : self._begin + len(self._latest)]
        alike = [guess == token for guess, token in zip(self._latest, came)]
        right = [*alike, False].index(False)
        tried = min(right + 1, len(alike))
        self.right[self._kind] += right
        self.tried[self._kind] += tried
        return self._kind, right, tried

    def propose(self, tokens: list[int], most: int, odds: NDArray[Any], max_draft_len: int) -> list[tuple[float, int]]:
        """Return at most `most` guesses, each with the chance that it and all before it are right.

        `odds` are those of each kind in all requests; the fewer guesses this request has tried, the more they count.
        """
        self._latest = self._drafter.propose(tokens, most) if most > 0 else []
        self._kind, self._begin = self._drafter.matched, len(tokens)
        own = (self.right[self._kind] + OTHERS * odds[self._kind]) / (self.tried[self._kind] + OTHERS)
        chances = own ** np.arange(1, len(self._latest) + 1)
        worth = np.cumsum(np.pad(chances, (0, max_draft_len - len(chances))))
        self.worth = worth if not len(self.worth) else LATELY * self.worth + (1 - LATELY) * worth
        return list(zip(chances.tolist(), self._latest))


class IterationPrices:
    """The milliseconds that iterations of answers take, each with as many tokens as the one before.

    Parameters
    ----------
    most : int
        Answers in the largest iteration.
    tokens : list of int
        Numbers of tokens of each answer, rising, the first of them 1.
    one_ms, most_ms : list of float
        Milliseconds of an iteration of one answer, and of `most`, for each number of tokens.
    """

    def __init__(self, most: int, tokens: list[int], one_ms: list[float], most_ms: list[float]):
        self._more = max(most - 1, 1)
        self._tokens, self._one_ms, self._most_ms = map(np.array, (tokens, one_ms, most_ms))

    @classmethod
    def measured(cls, model: Model, max_draft_len: int) -> IterationPrices:
        """Measure the prices of a model whose KV cache holds nothing yet."""
        build = model.info.build_config
        tokens = sorted({1, min(2, build.max_seq_len), min(1 + max_draft_len, build.max_seq_len)})
        past = min(PAST, build.max_seq_len - tokens[-1])
        blocks = list(range(-(-(past + tokens[-1]) // build.tokens_per_block)))  # one for all: any content will do
        shapes = [(answers, number) for answers in (1, build.max_batch_size) for number in tokens]
        took_ms: dict[tuple[int, int], list[float]] = {shape: [] for shape in shapes}
        for _ in range(ROUNDS):
            for answers, number in shapes:
                chunks = [Chunk([0] * number, past, blocks, is_context=False, num_logits=number)] * answers
                for _ in range(2):  # the second counts
                    started = time.perf_counter()
                    model.forward(chunks)
                    took = (time.perf_counter() - started) * 1000
                took_ms[answers, number].append(took)
        ms = [min(took_ms[shape]) for shape in shapes]  # the shortest: other work on the machine only adds to it
        return cls(build.max_batch_size, tokens, ms[: len(tokens)], ms[len(tokens) :])

    def of(self, answers: int, max_draft_len: int) -> NDArray[Any]:
        """Return the milliseconds of an iteration with so many answers and 0, 1, ... `max_draft_len` drafts of each."""
        ms = self._one_ms + (self._most_ms - self._one_ms) * min((answers - 1) / self._more, 1)
        return np.interp(1 + np.arange(max_draft_len + 1), self._tokens, ms)


class Drafting:
    """Makes an engine's drafts, and decides how many of them are worth their price.

    An iteration of another length than the one before costs extra where shapes are prepared, as OpenVINO does. So
    the number of drafts follows what they have been worth lately, and where fewer are found, padding keeps the length.

    Parameters
    ----------
    config : SpeculativeConfig
    prices : IterationPrices
    vocab_size : int
    drafter_path : path, optional
        File with a class `Drafter`, which guesses in place of `PromptLookup`.

    Raises
    ------
    PartError
        The file cannot be used.
    """

    def __init__(
        self,
        config: SpeculativeConfig,
        prices: IterationPrices,
        vocab_size: int,
        drafter_path: str | Path | None = None,
    ):
        self._config, self._prices, self._vocab_size = config, prices, vocab_size
        self._own = None
        if drafter_path is not None:
            self._own = OwnPart(drafter_path, "Drafter", "propose", "self, token_ids, k")
        self._kinds = config.max_matching_ngram_size + 1
        self._right, self._tried = np.zeros(self._kinds), np.zeros(self._kinds)  # of all requests' guesses, by kind
        self._each = 0  # drafts of an answer on average, in the latest iteration

    def guesser(self) -> Guesser:
        """Make the guesser of a new request. Raises PartError where it is a learner's and fails."""
        if self._own:
            return Guesser(_OwnDrafter(self._own, self._vocab_size), self._kinds)
        return Guesser(PromptLookup(self._config.max_matching_ngram_size), self._kinds)

    def add(self, chunks: dict[Sequence, Chunk], sequences: Sequences) -> None:
        """Put drafts after the latest tokens of answers, the likeliest first.

        They take what others leave of max_num_tokens and of free blocks.
        """
        limits, max_draft_len = sequences.limits, self._config.max_draft_len
        answers = [sequence for sequence, chunk in chunks.items() if not chunk.is_context]
        if not answers:
            return
        self._right *= FORGETTING
        self._tried *= FORGETTING
        for sequence in answers:
            kind, right, tried = _guesser(sequence).learn(sequence.tokens)
            self._right[kind] += right
            self._tried[kind] += tried
        odds = (self._right + 1) / (self._tried + 2)
        room = limits.max_num_tokens - sum(len(chunk.token_ids) for chunk in chunks.values())
        guesses = []
        for sequence in answers:
            missing = sequence.request.request_output_len - len(sequence.answer)
            most = min(max_draft_len, missing - 1, room)
            found = _guesser(sequence).propose(sequence.tokens, most, odds, max_draft_len)
            guesses += [(chance, sequence, draft) for chance, draft in found]
        room = min(room, self._number_each(answers) * len(answers))
        guesses.sort(key=lambda guess: -guess[0])  # stable: each answer's stay in their order
        for _, sequence, draft in guesses[:room]:
            sequences.add_draft(sequence, chunks[sequence], draft)
        if len(answers) == len(chunks):  # a prompt among them changes the length in any case
            missing = room - sum(len(chunks[sequence].drafts) for sequence in answers)
            for sequence in answers:
                while missing > 0 and sequences.pad(sequence, chunks[sequence]):
                    missing -= 1

    def _number_each(self, answers: list[Sequence]) -> int:
        """Choose the drafts per answer that give most tokens a millisecond; a new number must be worth the change."""
        worth = np.sum([_guesser(sequence).worth for sequence in answers], axis=0)
        tokens = len(answers) + np.array([0, *worth])
        rates = tokens / self._prices.of(len(answers), self._config.max_draft_len)
        if rates.max() > CHANGE * rates[self._each]:
            self._each = int(rates.argmax())
        return self._each


def _guesser(sequence: Sequence) -> Guesser:
    assert sequence.guesser is not None
    return sequence.guesser
