"""An engine's unfinished requests: the state of each, the KV cache blocks that it holds, and what is computed next.

The scheduler decides by counts; this module carries out its plan, block by block. No thread, model or clock.
"""

from __future__ import annotations

import math
from collections import abc
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from inflight.engine.kv_cache import BlockManager, Content
from inflight.engine.messages import Chunk, Request, Response
from inflight.engine.scheduler import Now, Plan, RequestView
from inflight.engine.settings import BuildConfig

if TYPE_CHECKING:
    from inflight.engine.drafts import Guesser
    from inflight.engine.grammar import Matcher
    from inflight.engine.sampling import Sampler
    from inflight.errors import CourseError


class Sequence:
    """A request on its way through the engine.

    Parameters
    ----------
    request_id : int
    request : Request
    receive : callable
        Called with each of its responses.
    ends_by_s : float
        The end of its allotted time, on the executor's clock.
    guesser : Guesser, optional
        Guesses its next tokens.
    """

    def __init__(
        self,
        request_id: int,
        request: Request,
        receive: Callable[[Response], None] = lambda response: None,
        ends_by_s: float = math.inf,
        guesser: Guesser | None = None,
    ):
        self.id = request_id
        self.request = request
        self.receive = receive
        self.ends_by_s = ends_by_s
        self.guesser = guesser
        self.guide: Matcher | None = None  # says which tokens may come next
        self.tokens = list(request.input_ids)  # prompt and answer so far
        self.answer: list[int] = []
        self.log_probs: list[float] = []
        self.num_sent = 0  # tokens of the answer that were handed over
        self.num_cached = 0
        self.salt = sha256(b"salt " + request.cache_salt.encode()).digest() if request.cache_salt else b""
        self.num_taken = self.num_fetched = 0  # tokens of its prompt brought from another engine, and from the store
        self.was_fetched = False  # the store has been asked for them
        self.found = (0, 0, 0)  # tokens that need not be computed: from memory, from the store, from another engine
        self.blocks: list[int] = []
        self.last_computed = 0  # iteration in which it was computed last, or before which it came
        self.finish_reason: str | None = None
        self.error: CourseError | None = None

    @cached_property
    def sampler(self) -> Sampler:
        """Chooses its tokens. Made for the first of them: what plays without a model needs no NumPy."""
        from inflight.engine.sampling import Sampler

        return Sampler(self.request.sampling, self.request.end_id, self.request.bad_words, self.guide)

    @property
    def num_pending(self) -> int:
        """The number of known tokens that are not in the cache: the whole prompt at first, then one."""
        return len(self.tokens) - self.num_cached

    def add(self, token: int) -> str | None:
        """Make `token` part of the answer, unless it is the end token; return why the answer ends now, or None."""
        guide = self.guide
        is_complete = guide is not None and guide.take(token)
        if token == self.request.end_id or (guide is not None and token == guide.end_id):
            return "end_id"
        self.tokens.append(token)
        self.answer.append(token)
        if is_complete:
            return "end_id"
        if any(self.answer[-len(word) :] == word for word in self.request.stop_words):
            return "stop_words"
        return "length" if len(self.answer) >= self.request.request_output_len else None


class Sequences:
    """The requests that wait, run, and are paused, each by its id.

    Parameters
    ----------
    blocks : BlockManager
    limits : BuildConfig
    chunked_context : bool
        Whether prompts may be computed in parts.
    reuse : bool
        Whether blocks are kept for later prompts that begin with the same tokens.
    """

    def __init__(self, blocks: BlockManager, limits: BuildConfig, chunked_context: bool, reuse: bool):
        self.blocks = blocks
        self.limits = limits
        self.chunked_context = chunked_context
        self.reuse = reuse
        self.newly_kept: list[tuple[int, Content]] | None = None  # a list where a store takes new blocks from it
        self.waiting: dict[int, Sequence] = {}
        self.running: dict[int, Sequence] = {}
        self.paused: dict[int, Sequence] = {}  # the one that was paused last is last

    def __len__(self) -> int:
        return len(self.waiting) + len(self.running) + len(self.paused)

    def __iter__(self) -> Iterator[Sequence]:
        return iter([*self.running.values(), *self.paused.values(), *self.waiting.values()])

    def add(self, sequence: Sequence) -> None:
        """Let a new request wait."""
        self.waiting[sequence.id] = sequence

    def now(self) -> Now:
        """Return what a scheduler is shown."""
        return Now(
            waiting=_Views(self.waiting.values(), self._view),
            running=[self._view(sequence) for sequence in self.running.values()],
            paused=_Views(reversed(self.paused.values()), self._view),
            free_blocks=self.blocks.num_free,
            num_blocks=self.blocks.num_blocks,
            tokens_per_block=self.blocks.tokens_per_block,
            max_batch_size=self.limits.max_batch_size,
            max_num_tokens=self.limits.max_num_tokens,
            chunked_context=self.chunked_context,
        )

    def _view(self, sequence: Sequence) -> RequestView:
        cached, blocks = sequence.num_cached, sequence.blocks
        if self.reuse and not blocks:
            cached = self.blocks.count_kept(sequence.tokens, sequence.salt)
        return RequestView(
            id=sequence.id,
            prompt_tokens=len(sequence.request.input_ids),
            answer_tokens=len(sequence.answer),
            max_answer_tokens=sequence.request.request_output_len,
            cached_tokens=cached,
            num_blocks=len(blocks),
            own_blocks=self.blocks.count_own(blocks) if self.reuse else len(blocks),
        )

    def carry_out(self, plan: Plan) -> dict[Sequence, Chunk]:
        """Pause, admit, and return what the model computes: a chunk for each request, in the plan's order.

        The plan must keep the rules of `plan_rules`.
        """
        for number in plan.pause:
            sequence = self.paused[number] = self.running.pop(number)
            self.blocks.release(sequence.blocks)
            sequence.num_cached = sequence.num_fetched = sequence.num_taken = 0
            sequence.was_fetched = False
        admitted = [(self.paused if number in self.paused else self.waiting).pop(number) for number in plan.admit]
        if self.reuse:  # before any grows: growing may give up a kept block that nobody holds
            for sequence in admitted:
                sequence.num_cached = self.blocks.find(sequence.blocks, sequence.tokens, sequence.salt)
                fetched = min(sequence.num_fetched, sequence.num_cached)
                taken = min(sequence.num_taken, fetched)
                sequence.found = (sequence.num_cached - fetched, fetched - taken, taken)
                self.blocks.num_reused -= fetched // self.blocks.tokens_per_block
        for sequence in admitted:
            self.blocks.grow(sequence.blocks, len(sequence.tokens))
            self.running[sequence.id] = sequence
        chunks = {}
        for number, tokens in plan.compute.items():
            sequence = self.running[number]
            self.blocks.grow(sequence.blocks, len(sequence.tokens))
            past, pending = sequence.num_cached, sequence.num_pending
            chunks[sequence] = Chunk(
                sequence.tokens[past : past + tokens],
                past,
                sequence.blocks,
                is_context=pending > 1 or past < len(sequence.request.input_ids),
                num_logits=int(tokens == pending),
            )
        return chunks

    def computed(self, sequence: Sequence, num_tokens: int) -> None:
        """Note that the model has computed so many of a request's pending tokens."""
        sequence.num_cached += num_tokens
        if self.reuse:
            new = self.blocks.keep(sequence.blocks, sequence.tokens, sequence.num_cached, sequence.salt)
            if self.newly_kept is not None:
                self.newly_kept += new

    # Drafts are no tokens of a request before they have been found right. What lies after its computed tokens in a
    # block is overwritten.

    def add_draft(self, sequence: Sequence, chunk: Chunk, draft: int) -> bool:
        """Put a guess after the tokens of a chunk, unless that takes a block and none is free; say whether it did."""
        num_tokens = chunk.num_past + len(chunk.token_ids) + 1
        if self.blocks.blocks_for(num_tokens) > len(sequence.blocks) and not self.blocks.num_free:
            return False
        self.blocks.grow(sequence.blocks, num_tokens)
        chunk.token_ids.append(draft)
        chunk.num_logits += 1
        return True

    def pad(self, sequence: Sequence, chunk: Chunk) -> bool:
        """Put a token that only fills up the length after those of a chunk, if there is room."""
        num_tokens = chunk.num_past + len(chunk.token_ids)
        if num_tokens == self.limits.max_seq_len or not self.add_draft(sequence, chunk, chunk.token_ids[-1]):
            return False
        chunk.num_padding += 1
        return True

    def give_back_blocks(self, sequence: Sequence) -> None:
        """Take back the blocks of a request that hold wrong drafts only."""
        first = self.blocks.blocks_for(sequence.num_cached)
        spare, sequence.blocks[first:] = sequence.blocks[first:], []
        self.blocks.release(spare)

    def remove(self, sequence: Sequence) -> None:
        """Remove a request from its line, and take its blocks back."""
        self.blocks.release(sequence.blocks)
        for line in (self.running, self.waiting, self.paused):
            line.pop(sequence.id, None)


class _Views(abc.Sequence[RequestView]):
    """A line of requests as a scheduler sees them; each view is made when it is looked at, for the line may be long."""

    def __init__(self, line: Iterable[Sequence], view: Callable[[Sequence], RequestView]):
        self._line, self._view = list(line), view

    def __len__(self) -> int:
        return len(self._line)

    def __getitem__(self, index: Any) -> Any:
        picked = self._line[index]
        return [self._view(sequence) for sequence in picked] if isinstance(index, slice) else self._view(picked)

    def __iter__(self) -> Iterator[RequestView]:
        return map(self._view, self._line)
