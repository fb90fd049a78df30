"""Moves KV cache blocks: from the cache to the store, back for a prompt that begins alike, and from another engine.

A block is written when it is full, and before the answer that it was computed for goes out: who has the answer finds
the blocks. A prompt's blocks are read before a scheduler is shown it, into blocks that nobody holds; to the scheduler
they are blocks in memory.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, islice, takewhile
from pathlib import Path
from queue import SimpleQueue

from inflight.engine.block_format import BlockFormat
from inflight.engine.messages import IterationStats
from inflight.engine.model import Model
from inflight.engine.own.part import OwnPart, PartError
from inflight.engine.sequences import Sequence, Sequences
from inflight.engine.settings import ExecutorConfig
from inflight.engine.store import PEER_TIMEOUT_S, BlockFolder, Peer
from inflight.errors import CourseError

log = logging.getLogger("inflight.engine.moving")

START_MS = {"compute": 8.0, "fetch": 0.4, "take": 0.4}  # a token, until it has been measured
ASK_AGAIN_S = 30.0  # after another engine did not answer


@dataclass
class Count:
    """What went one way since the start."""

    blocks: int = 0
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
        Called in another thread with a request whose blocks have been taken, and the error of its policy or None.

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
        kind = BlockFormat(model.info)
        self._folder = BlockFolder(config.kv_store_path, config.kv_store_bytes, kind, model.block_bytes)
        self._policy = _OwnPolicy(config.kv_policy_path) if config.kv_policy_path is not None else None
        self._peer = Peer(config.kv_peer_url, os.environ.get("INFLIGHT_API_KEY")) if config.kv_peer_url else None
        self.counts = {way: Count() for way in ("stored", "fetched", "taken")}
        self._computed_ms, self._computed_tokens = START_MS["compute"], 1
        self._fetched_s = 0.0  # before this iteration
        sequences.newly_kept = []
        self._ask_again_s = 0.0
        self._queue: SimpleQueue[tuple[Sequence, float] | None] = SimpleQueue()  # and when each came
        self._thread = threading.Thread(target=self._run, name="taking blocks", daemon=True)

    # In the engine's thread -------------------------------------------------------------------------------------------

    def fetch(self) -> list[Sequence]:
        """Read from the store what those who are next in line lack in memory; return those whose policy failed."""
        lines = self._sequences
        lines.newly_kept = []  # an iteration that failed may have left some, and not what they should hold
        slots = max(0, lines.limits.max_batch_size - len(lines.running))
        self._fetched_s = self.counts["fetched"].seconds
        free, failed = self._blocks.num_free, []
        for sequence in islice(chain(reversed(lines.paused.values()), lines.waiting.values()), slots):
            free -= self._blocks.blocks_for(len(sequence.tokens))
            if free < 0:  # it cannot be admitted now, and its blocks would drive out those of the ones before it
                break
            if not sequence.was_fetched:
                sequence.was_fetched = True
                try:
                    self._fetch(sequence)
                except PartError as error:
                    sequence.error = error
                    failed.append(sequence)
        return failed

    def _fetch(self, sequence: Sequence) -> None:
        started = time.perf_counter()
        names, kept = self._names(sequence)
        self._folder.touch(names)
        found = self._folder.count(names[kept:])
        if not found or not (sequence.num_taken or self._is_worth("fetch", sequence, found)):
            return
        data = list(takewhile(bool, map(self._folder.read, names[kept : kept + found])))

        def fill(blocks: list[int]) -> None:
            for block, each in zip(blocks, data):
                self._model.write_blocks([block], each or b"")

        number = self._blocks.adopt(sequence.tokens, len(data), sequence.salt, fill)
        sequence.num_fetched = number * self._blocks.tokens_per_block
        self._count("fetched", number, started)

    def store(self) -> None:
        """Write the blocks that are full now; the end of a prompt first, so that it is forgotten first."""
        assert self._sequences.newly_kept is not None
        new, self._sequences.newly_kept = self._sequences.newly_kept, []
        started, written = time.perf_counter(), 0
        names = [self._folder.name(content) for _, content in new]
        for (block, _), name in zip(reversed(new), reversed(names)):
            if not self._folder.has(name):
                written += self._folder.write(name, self._model.read_blocks([block]))
        self._folder.touch(names)
        self._count("stored", written, started)

    def note(self, stats: IterationStats) -> None:
        """Learn from an iteration what it costs to compute a token of a prompt; fetching is left out."""
        if stats.context_tokens >= self._blocks.tokens_per_block:
            fetched_s = self.counts["fetched"].seconds - self._fetched_s
            self._computed_ms += stats.iteration_ms - 1000 * fetched_s
            self._computed_tokens += stats.context_tokens

    # In a thread of its own -------------------------------------------------------------------------------------------

    def take(self, sequence: Sequence) -> bool:
        """Bring what a new request lacks, and another engine has, into the store, then call `ready`; or say no."""
        if self._peer is None or len(sequence.tokens) <= self._blocks.tokens_per_block:
            return False
        if not self._thread.ident:  # an executor that could not be made has no thread
            self._thread.start()
        self._queue.put((sequence, time.monotonic()))
        return True

    def end(self) -> None:
        """End the thread; those who wait for their blocks are not asked for."""
        self._ask_again_s = math.inf
        self._queue.put(None)
        if self._thread.ident:
            self._thread.join()

    def _run(self) -> None:
        for sequence, came_s in iter(self._queue.get, None):
            failed = None
            try:
                # Who has waited for others' blocks as long as one may for its own is computed here.
                is_early = self._ask_again_s <= time.monotonic() < came_s + PEER_TIMEOUT_S
                if is_early and not sequence.finish_reason:
                    self._take(sequence)
            except PartError as error:
                failed = error
            except Exception as error:  # whatever the other engine answers, later requests need this thread
                log.warning("the prompt is computed here: no blocks from kv_peer_url (%r)", error)
                self._ask_again_s = max(self._ask_again_s, time.monotonic() + ASK_AGAIN_S)
            self._ready(sequence, failed)

    def _take(self, sequence: Sequence) -> None:
        started, taken = time.perf_counter(), 0
        names, kept = self._names(sequence)
        names = names[kept + self._folder.count(names[kept:]) :]
        assert self._peer is not None
        if not names or not self._is_worth("take", sequence, len(names)):
            return
        try:
            for name, content in zip(names, self._peer.read(names, self._folder.file_bytes)):
                data = self._folder.opened(name, content)  # what is no block drives none out
                if sequence.finish_reason or not self._folder.write(name, data):
                    break
                taken += 1
        finally:
            sequence.num_taken = taken * self._blocks.tokens_per_block
            self._count("taken", taken, started)

    # In both ----------------------------------------------------------------------------------------------------------

    def _names(self, sequence: Sequence) -> tuple[list[str], int]:
        """Return the names of the blocks that a request looks for, and how many of them are in memory."""
        names = [self._folder.name(content) for content in self._blocks.findable(sequence.tokens, sequence.salt)]
        return names, self._blocks.count_kept(sequence.tokens, sequence.salt) // self._blocks.tokens_per_block

    def _is_worth(self, way: str, sequence: Sequence, found: int) -> bool:
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
            count.seconds += time.perf_counter() - started


class _OwnPolicy:
    """A learner's class `Policy`, which says how the blocks of a prompt come into the cache."""

    def __init__(self, path: str | Path):
        self._part = OwnPart(path, "Policy", "choose", "self, tokens, found, prices")
        self._policy = self._part.call(self._part.made)
        self._lock = threading.Lock()  # both threads ask it
        for way in ("fetch", "take"):
            self.choose(64, {way: 32}, dict(START_MS))

    def choose(self, tokens: int, found: dict[str, int], prices: dict[str, float]) -> str:
        with self._lock:
            chosen = self._part.call(self._policy.choose, tokens, found, prices)
        if not isinstance(chosen, str) or chosen not in ("compute", *found):
            raise PartError(
                f"{self._part.place}: choose() gave {chosen!r:.80}; give {' or '.join(map(repr, ('compute', *found)))}."
            )
        return chosen
