"""Moves KV cache blocks: from the cache to the store, back for a prompt that begins alike, and from another engine.

A block is written when it is full, and before the answer that it was computed for goes out: who has the answer finds
the blocks. A prompt's blocks are read before a scheduler is shown it, into blocks that nobody holds; to the scheduler
they are blocks in memory.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from itertools import chain, islice, takewhile
from pathlib import Path
from queue import SimpleQueue

from inflight.engine.block_format import BlockFormat
from inflight.engine.messages import IterationStats
from inflight.engine.model import Model
from inflight.engine.own.part import OwnPart, PartError
from inflight.engine.sequences import Sequence, Sequences
from inflight.engine.settings import ExecutorConfig
from inflight.engine.store import BlockFolder, Peer
from inflight.errors import CourseError

log = logging.getLogger("inflight.engine.moving")

WAYS = ("compute", "fetch", "take")
START_MS = {"compute": 8.0, "fetch": 0.4, "take": 0.4}  # a token, until it has been measured
ASK_AGAIN_S = 5.0  # after another engine did not answer


@dataclass
class Count:
    """What went one way since the start."""

    blocks: int = 0
    bytes: int = 0
    seconds: float = 0.0


class Moving:
    """The store of an engine, and the engine that it takes blocks from.

    Parameters
    ----------
    model : Model
    sequences : Sequences
    config : ExecutorConfig
        Its settings whose names begin with kv_.
    ready : callable
        Called in another thread with a request whose blocks have been taken, and the error of a learner's policy.

    Attributes
    ----------
    counts : dict of str to Count
        What was "stored", "fetched" from the store, and "taken" from another engine into it.

    Raises
    ------
    CourseError
        The folder, the address or the policy's file cannot be used.
    """

    def __init__(
        self,
        model: Model,
        sequences: Sequences,
        config: ExecutorConfig,
        ready: Callable[[Sequence, PartError | None], None],
    ):
        assert config.kv_store_path is not None
        if config.kv_store_bytes < 2 * model.block_bytes:
            raise CourseError(
                f"kv_store_bytes is {config.kv_store_bytes}: a block of this engine has {model.block_bytes} bytes; "
                "give room for many."
            )
        self._model, self._sequences, self._blocks, self._ready = model, sequences, sequences.blocks, ready
        self._folder = BlockFolder(config.kv_store_path, config.kv_store_bytes, BlockFormat(model.info))
        self._policy = _OwnPolicy(config.kv_policy_path) if config.kv_policy_path is not None else None
        self._peer = Peer(config.kv_peer_url, os.environ.get("INFLIGHT_API_KEY")) if config.kv_peer_url else None
        self.counts = {way: Count() for way in ("stored", "fetched", "taken")}
        self._computed_ms, self._computed_tokens = START_MS["compute"], 1
        sequences.newly_kept = []
        self._ask_again_s = 0.0
        self._queue: SimpleQueue[Sequence | None] = SimpleQueue()
        if self._peer:
            threading.Thread(target=self._run, name="taking blocks", daemon=True).start()

    # In the engine's thread -------------------------------------------------------------------------------------------

    def fetch(self) -> None:
        """Read from the store what those who are next in line lack in memory."""
        lines = self._sequences
        lines.newly_kept = []  # an iteration that failed may have left some, and not what they should hold
        slots = max(0, lines.limits.max_batch_size - len(lines.running))
        for sequence in islice(chain(reversed(lines.paused.values()), lines.waiting.values()), slots):
            needed = self._blocks.blocks_for(len(sequence.tokens))
            if not sequence.was_fetched and needed <= self._blocks.num_free:  # else it cannot be admitted now
                sequence.was_fetched = True
                self._fetch(sequence)

    def _fetch(self, sequence: Sequence) -> None:
        started = time.perf_counter()
        names = self._lacking(sequence)
        found = self._folder.count(names)
        if not found or not (sequence.num_taken or self._is_worth("fetch", sequence, len(names), found)):
            return
        size = self._model.block_bytes
        read = [self._folder.read(name, size) for name in reversed(names[:found])]  # the beginning is the most recent
        data = list(takewhile(bool, reversed(read)))
        blocks = self._blocks.adopt(sequence.tokens, len(data), sequence.salt)
        for block, each in zip(blocks, data):
            self._model.write_blocks([block], each or b"")
        sequence.num_fetched = len(blocks) * self._blocks.tokens_per_block
        self._count("fetched", len(blocks), started)

    def store(self) -> None:
        """Write the blocks that are full now; the end of a prompt first, so that it is forgotten first."""
        assert self._sequences.newly_kept is not None
        new, self._sequences.newly_kept = self._sequences.newly_kept, []
        started, written = time.perf_counter(), 0
        for block, content in reversed(new):
            name = self._folder.name(content)
            if not self._folder.has(name):
                written += self._folder.write(name, self._model.read_blocks([block]))
        self._count("stored", written, started)

    def note(self, stats: IterationStats) -> None:
        """Learn from an iteration what it costs to compute a token of a prompt."""
        if stats.context_tokens >= self._blocks.tokens_per_block:
            self._computed_ms += stats.iteration_ms
            self._computed_tokens += stats.context_tokens

    # In a thread of its own -------------------------------------------------------------------------------------------

    @property
    def takes(self) -> bool:
        """Whether there is another engine to take blocks from."""
        return self._peer is not None

    def take(self, sequence: Sequence) -> None:
        """Bring what a new request lacks, and another engine has, into the store; then call `ready`."""
        self._queue.put(sequence)

    def end(self) -> None:
        """Let the thread end."""
        self._queue.put(None)

    def _run(self) -> None:
        for sequence in iter(self._queue.get, None):
            failed = None
            try:
                if time.monotonic() >= self._ask_again_s and not sequence.finish_reason:
                    self._take(sequence)
            except PartError as error:
                failed = error
            except (OSError, HTTPException, ValueError, LookupError, TypeError, CourseError) as error:
                log.warning("the prompt is computed here: no blocks from kv_peer_url (%s)", error)
                self._ask_again_s = time.monotonic() + ASK_AGAIN_S
            self._ready(sequence, failed)

    def _take(self, sequence: Sequence) -> None:
        started, taken = time.perf_counter(), 0
        lacking = self._lacking(sequence)
        names = lacking[self._folder.count(lacking) :]
        if not names or self._peer is None:
            return
        with self._peer as peer:
            found = min(peer.count(names), len(names))
            if not found or not self._is_worth("take", sequence, len(names), found):
                return
            try:
                for name in names[:found]:
                    data = self._folder.opened(name, peer.read(name), self._model.block_bytes)
                    if not self._folder.write(name, data):
                        break
                    taken += 1
            finally:
                sequence.num_taken = taken * self._blocks.tokens_per_block
                self._count("taken", taken, started)

    # In both ----------------------------------------------------------------------------------------------------------

    def _lacking(self, sequence: Sequence) -> list[str]:
        """Return the names of the blocks that a request would find, and that memory lacks."""
        return [self._folder.name(content) for content in self._blocks.lacking(sequence.tokens, sequence.salt)]

    def _is_worth(self, way: str, sequence: Sequence, lacking: int, found: int) -> bool:
        if self._policy is None:
            return True
        tokens = len(sequence.tokens) - self._blocks.count_kept(sequence.tokens, sequence.salt)
        return self._policy.choose(tokens, {way: found * self._blocks.tokens_per_block}, self.prices()) == way

    def prices(self) -> dict[str, float]:
        """Return milliseconds a token, measured since the start, to compute it, to fetch it, and to take it."""
        width = self._blocks.tokens_per_block

        def price(way: str, count: Count) -> float:
            return (START_MS[way] + 1000 * count.seconds) / (1 + count.blocks * width)

        fetch = price("fetch", self.counts["fetched"])
        take = fetch + price("take", self.counts["taken"])  # a taken block is fetched, too
        return {"compute": self._computed_ms / self._computed_tokens, "fetch": fetch, "take": take}

    def _count(self, way: str, blocks: int, started: float) -> None:
        if blocks:
            count = self.counts[way]
            count.blocks += blocks
            count.bytes += blocks * self._model.block_bytes
            count.seconds += time.perf_counter() - started


class _OwnPolicy:
    """A learner's class `Policy`, which says how the blocks of a prompt come into the cache."""

    def __init__(self, path: str | Path):
        self._part = OwnPart(path, "Policy", "choose", "self, tokens, found, prices")
        self._policy = self._part.call(self._part.made)
        for way in WAYS[1:]:
            self.choose(64, {way: 32}, dict(START_MS))

    def choose(self, tokens: int, found: dict[str, int], prices: dict[str, float]) -> str:
        chosen = self._part.call(self._policy.choose, tokens, found, prices)
        if chosen != WAYS[0] and chosen not in found:
            raise PartError(
                f"{self._part.place}: choose() gave {chosen!r:.80}; give {' or '.join(map(repr, ('compute', *found)))}."
            )
        return str(chosen)
