"""Who runs next: the decision that an engine takes before every iteration.

A scheduler looks at the requests (`Now`) and says who is admitted, who computes how many tokens, and who is paused
(`Plan`). It has no model, no thread and no clock, and never sees a block of the KV cache, only how many are free. The
three built-in ones are examples for one of your own: a class `Scheduler` in a Python file that `scheduler_path` names.

    class Scheduler:
        def schedule(self, now: Now) -> Plan:
            ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from inflight.engine.settings import ExecutorConfig

EMPTY_PLANS = 100  # consecutive plans that compute nothing, after which the scheduler counts as stuck


@dataclass(frozen=True, slots=True)
class RequestView:
    """A request as a scheduler sees it. All counts are of tokens, but the two of blocks.

    Attributes
    ----------
    id : int
    prompt_tokens, answer_tokens, max_answer_tokens : int
        Length of its prompt, of its answer so far, and of the longest answer that it may get.
    cached_tokens : int
        How many of prompt and answer are in the KV cache; for a request that does not run, how many it would find.
    num_blocks : int
        KV cache blocks that it holds.
    own_blocks : int
        Those among them that become free when it is paused; others share the rest.
    """

    id: int
    prompt_tokens: int
    answer_tokens: int
    max_answer_tokens: int
    cached_tokens: int
    num_blocks: int
    own_blocks: int

    @property
    def known_tokens(self) -> int:
        return self.prompt_tokens + self.answer_tokens

    @property
    def pending_tokens(self) -> int:
        """Tokens that can be computed now: the whole prompt at first, then one token, the answer's latest."""
        return self.known_tokens - self.cached_tokens

    @property
    def max_tokens(self) -> int:
        """Tokens of its prompt and its longest answer together."""
        return self.prompt_tokens + self.max_answer_tokens


@dataclass(frozen=True)
class Now:
    """The engine between two iterations.

    Attributes
    ----------
    waiting : sequence of RequestView
        Not admitted yet; the one that came first is first.
    running : sequence of RequestView
        Admitted; the one that was admitted first is first.
    paused : sequence of RequestView
        Admitted once and paused since, without blocks; the one that was paused last is first.
    free_blocks, num_blocks : int
        KV cache blocks that nobody holds, and all that exist. A request is given blocks for all of its `known_tokens`
        when it is admitted, and another when its answer has filled the last.
    tokens_per_block : int
    max_batch_size : int
        Most running requests.
    max_num_tokens : int
        Most tokens computed in an iteration.
    chunked_context : bool
        Whether a prompt may be computed in parts.
    """

    waiting: Sequence[RequestView]
    running: Sequence[RequestView]
    paused: Sequence[RequestView]
    free_blocks: int
    num_blocks: int
    tokens_per_block: int
    max_batch_size: int
    max_num_tokens: int
    chunked_context: bool

    def blocks_for(self, tokens: int) -> int:
        """Return how many blocks so many tokens of one request fill."""
        return -(-tokens // self.tokens_per_block)

    def blocks_needed(self, request: RequestView) -> int:
        """Return how many free blocks a request takes when it is admitted, or computes on."""
        return self.blocks_for(request.known_tokens) - request.num_blocks


@dataclass
class Plan:
    """A scheduler's decisions for the next iteration.

    Attributes
    ----------
    admit : list of int
        Ids of waiting or paused requests that run from now on.
    compute : dict of int to int
        Id of a running request -> how many of its pending tokens to compute.
    pause : list of int
        Ids of running requests that give their blocks back; they are computed again from the start.
    """

    admit: list[int] = field(default_factory=list)
    compute: dict[int, int] = field(default_factory=dict)
    pause: list[int] = field(default_factory=list)


class Scheduler(Protocol):
    """Decides who runs next. With an attribute `answers_together` that is True, nobody is answered before the last of
    those who run has finished: static batching. Without one, each is answered as it finishes.
    """

    def schedule(self, now: Now) -> Plan:
        """Say what to do in the next iteration; there is at least one request."""
        ...


def tokens_to_compute(now: Now, running: Iterable[RequestView]) -> dict[int, int]:
    """Give each answer one token, then the prompts, in their order, as many as `max_num_tokens` allows."""
    compute, room = {}, now.max_num_tokens
    for request in sorted(running, key=lambda request: request.pending_tokens > 1):  # stable: answers, then prompts
        if not fits_iteration(now, request, room):
            break
        compute[request.id] = min(request.pending_tokens, room)
        room -= compute[request.id]
    return compute


def fits_iteration(now: Now, request: RequestView, room: int) -> bool:
    """Say whether a request can be computed, at least in part, in an iteration that has room for so many tokens."""
    # A paused answer may have grown longer than an iteration: only a part of it fits into one.
    in_parts = now.chunked_context or request.pending_tokens > now.max_num_tokens
    return room > 0 if in_parts else request.pending_tokens <= room


def with_promised_blocks(now: Now) -> Iterator[RequestView]:
    """Yield who is next to run, as long as blocks for its prompt and its longest answer can be promised."""
    num_running = len(now.running)
    promised = sum(now.blocks_for(request.max_tokens) for request in now.running)
    for request in now.waiting:
        promised += now.blocks_for(request.max_tokens)
        if num_running == now.max_batch_size or promised > now.num_blocks:
            return
        num_running += 1
        yield request


class StaticBatching:
    """Forms a batch when nobody runs, and lets nobody join until its last request has its answer: V1."""

    answers_together = True

    def schedule(self, now: Now) -> Plan:
        batch = [] if now.running else list(with_promised_blocks(now))
        compute = tokens_to_compute(now, [*now.running, *batch])
        return Plan(admit=[request.id for request in batch], compute=compute)


class GuaranteedNoEvict:
    """Admits a request when blocks for its prompt and its longest answer can be promised: nobody is ever paused."""

    def schedule(self, now: Now) -> Plan:
        running = list(now.running)
        room = now.max_num_tokens - sum(request.pending_tokens for request in running)
        for request in with_promised_blocks(now):
            if not fits_iteration(now, request, room):
                break  # shorter prompts that come later must not overtake it for ever
            running.append(request)
            room -= request.pending_tokens
        admitted = running[len(now.running) :]
        return Plan(admit=[request.id for request in admitted], compute=tokens_to_compute(now, running))


class MaxUtilization:
    """Admits a request when its next iteration fits. When blocks run out later, the youngest gives its blocks back."""

    def schedule(self, now: Now) -> Plan:
        running, free = list(now.running), now.free_blocks
        room = now.max_num_tokens - sum(request.pending_tokens for request in running)
        for request in chain(now.paused, now.waiting):
            needed = now.blocks_needed(request)
            if len(running) == now.max_batch_size or needed > free or not fits_iteration(now, request, room):
                break
            running.append(request)
            free -= needed
            room -= request.pending_tokens

        # An answer that has filled its last block needs another. The longest-running request is served first.
        for request in now.running:
            while request in running and now.blocks_needed(request) > free:
                youngest = running.pop()
                free += youngest.own_blocks if youngest in now.running else now.blocks_needed(youngest)
            if request in running:
                free -= now.blocks_needed(request)
        return Plan(
            admit=[request.id for request in running if request not in now.running],
            compute=tokens_to_compute(now, running),
            pause=[request.id for request in reversed(now.running) if request not in running],
        )


# By `batch_scheduler_policy`, whose choices these are.
POLICIES: dict[str, Callable[[], Scheduler]] = {
    "guaranteed_no_evict": GuaranteedNoEvict,
    "max_utilization": MaxUtilization,
}


def built_in(config: ExecutorConfig) -> Scheduler:
    """Return the scheduler that `gpt_model_type` and `batch_scheduler_policy` name."""
    if config.gpt_model_type == "V1":
        return StaticBatching()
    return POLICIES[config.batch_scheduler_policy]()
