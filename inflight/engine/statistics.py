"""The figures of each iteration: counted, kept for those who ask, and written to the iteration log."""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict
from itertools import chain, islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from inflight.engine.messages import Chunk, IterationStats
from inflight.engine.sequences import Sequence, Sequences
from inflight.errors import CourseError

if TYPE_CHECKING:
    from inflight.engine.moving import Moving

log = logging.getLogger("inflight.engine.executor")

MOST_KEPT = 1000  # iterations


class Statistics:
    """Counts an engine's iterations.

    Parameters
    ----------
    sequences : Sequences
    log_path : path, optional
        Gets a line of JSON for each iteration.
    moving : Moving, optional
        Moves blocks to a store and from it.

    Attributes
    ----------
    iteration : int
        The number of the latest iteration.
    num_drafted, num_accepted : int
        Drafts that were checked, and drafts that were right, counted since the start.
    latest : deque of IterationStats
        Those of the last `MOST_KEPT` iterations.

    Raises
    ------
    CourseError
        The log cannot be written.
    """

    def __init__(self, sequences: Sequences, log_path: str | Path | None = None, moving: Moving | None = None):
        self.iteration = self.num_drafted = self.num_accepted = 0
        self.latest: deque[IterationStats] = deque(maxlen=MOST_KEPT)
        self._sequences, self._moving = sequences, moving
        self._log_file = None if log_path is None else _opened(log_path)

    def record(
        self,
        started: tuple[float, float],
        chunks: Mapping[Sequence, Chunk],
        finished: int,
        unfinished: int,
        not_taken_in: int,
    ) -> None:
        """Record an iteration that computed `chunks`.

        Parameters
        ----------
        started : tuple of float
            When it began: seconds since 1970, and on the clock `time.perf_counter`.
        finished, unfinished : int
            Requests that it completed, and those that are left.
        not_taken_in : int
            Of these, those that do not yet wait in `sequences`.
        """
        sequences, blocks = self._sequences, self._sequences.blocks
        rows, num_rows, drafted, accepted = [], 0, 0, 0
        for sequence, chunk in chunks.items():
            num_new, is_context = len(chunk.token_ids) - chunk.num_padding, chunk.is_context
            num_rows += chunk.num_logits
            if chunk.num_logits > 1:
                drafted += len(chunk.drafts)
                accepted += sequence.num_cached - chunk.num_past - 1
            num_blocks = blocks.blocks_for(chunk.num_past + num_new)  # the sequence's own are gone if it finished
            rows.append([sequence.id, num_new if is_context else 0, 0 if is_context else num_new, num_blocks])
        num_unscheduled = sum(other not in chunks for other in sequences.running.values())
        self.iteration += 1
        self.num_drafted += drafted
        self.num_accepted += accepted
        stats = IterationStats(
            iteration=self.iteration,
            timestamp=started[0],
            iteration_ms=(time.perf_counter() - started[1]) * 1000,
            active=unfinished + finished,
            scheduled=len(chunks),
            waiting=not_taken_in + len(sequences.waiting) + num_unscheduled,
            paused=len(sequences.paused),
            context_tokens=sum(row[1] for row in rows),
            generation_tokens=sum(row[2] for row in rows),
            rows=num_rows,
            drafted=drafted,
            accepted=accepted,
            kv_blocks_used=blocks.num_used,
            kv_blocks_free=blocks.num_free,
            finished=finished,
            empty_slots=sequences.limits.max_batch_size - len(chunks),
            requests=rows,
            client_ids=[sequence.request.request_id for sequence in chunks],
            paused_ids=list(sequences.paused)[::-1],
            not_computed=[
                [sequence.id, *sequence.found]
                for sequence, chunk in chunks.items()
                if chunk.is_context and 0 < chunk.num_past == sum(sequence.found)
            ],
            longest_wait=self._longest_wait(),
            **self._of_the_cache(),
        )
        self.latest.append(stats)
        if self._log_file:
            try:
                self._log_file.write(json.dumps(asdict(stats)) + "\n")
            except OSError as error:
                log.warning("iteration log %s cannot be written (%s): going on without it", self._log_file.name, error)
                self._log_file = None

    def _of_the_cache(self) -> dict[str, Any]:
        """Return the figures of the KV cache that stay when nothing runs."""
        blocks, counts = self._sequences.blocks, self._moving.counts if self._moving else {}
        moved = {f"kv_blocks_{way}": count.blocks for way, count in counts.items()}
        size = {"kv_blocks_max": blocks.num_blocks, "tokens_per_block": blocks.tokens_per_block}
        return {**size, "kv_blocks_reused": blocks.num_reused, **moved}

    def _longest_wait(self) -> list[int] | None:
        """Return the request that has waited longest: [its id, iterations since it was computed or came]."""
        sequences = self._sequences
        first = islice(sequences.waiting.values(), 1)
        left_out = chain(sequences.running.values(), sequences.paused.values(), first)
        oldest = min(left_out, key=attrgetter("last_computed"), default=None)
        return None if oldest is None else [oldest.id, self.iteration - oldest.last_computed]

    def of_an_idle_engine(self) -> IterationStats:
        """Return the figures of an engine that has nothing to do."""
        return IterationStats(
            self.iteration,
            self.latest[-1].timestamp if self.latest else time.time(),
            kv_blocks_free=self._sequences.blocks.num_blocks,
            empty_slots=self._sequences.limits.max_batch_size,
            **self._of_the_cache(),
        )

    def close(self) -> None:
        """Close the log."""
        if self._log_file:
            self._log_file.close()


def _opened(log_path: str | Path) -> TextIO:
    try:
        return open(log_path, "a", encoding="utf-8", buffering=1)
    except OSError as error:
        raise CourseError(
            f"The iteration log {log_path} cannot be written ({error.strerror}). Name another file."
        ) from error
