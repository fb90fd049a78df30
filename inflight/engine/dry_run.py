"""An engine without a model: what a scheduler decides for lengths that are known, and which blocks that takes.

    policy = built_in(ExecutorConfig(batch_scheduler_policy="max_utilization"))
    dry_run([(45, 110), (190, 40)], policy, num_blocks=32, slots=8).iterations

The scheduler is the real one. Nothing is computed and nothing waits, so hundreds of iterations take a few milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inflight.engine.scheduler import Now, RequestView, Scheduler
from inflight.errors import CourseError


@dataclass(frozen=True)
class Stretch:
    """Iterations, one after the other, in which the same requests run and none takes or gives back a block.

    Attributes
    ----------
    first, number : int
        The first of them (from 1), and how many they are.
    running, waiting, paused : int
        Requests.
    blocks_used : int
        KV cache blocks that the running ones hold.
    """

    first: int
    number: int
    running: int
    waiting: int
    paused: int
    blocks_used: int


@dataclass(frozen=True)
class DryRun:
    """What has happened until every answer was complete.

    Attributes
    ----------
    stretches : list of Stretch
    pauses : int
        How often a request was paused.
    tokens_twice : int
        Tokens that were computed once more, for those who had been paused.
    """

    stretches: list[Stretch]
    pauses: int
    tokens_twice: int

    @property
    def iterations(self) -> int:
        return sum(stretch.number for stretch in self.stretches)


class _Guest:
    """A request on its way."""

    def __init__(self, number: int, prompt_tokens: int, max_answer_tokens: int, ends: int):
        self.id, self.prompt_tokens, self.max_answer_tokens, self.ends = number, prompt_tokens, max_answer_tokens, ends
        self.answered = self.cached = self.blocks = self.computed = 0

    @property
    def known(self) -> int:
        return self.prompt_tokens + self.answered

    def view(self) -> RequestView:
        return RequestView(
            self.id, self.prompt_tokens, self.answered, self.max_answer_tokens, self.cached, self.blocks, self.blocks
        )


def dry_run(
    lengths: Sequence[tuple[int, int]],
    scheduler: Scheduler,
    num_blocks: int,
    slots: int,
    tokens_per_block: int = 32,
    max_num_tokens: int = 2048,
    at_the_start: int = 1,
    ends: Sequence[int] | None = None,
) -> DryRun:
    """Play an engine with one of the built-in schedulers, iteration by iteration, until all answers are complete.

    Parameters
    ----------
    lengths : sequence of (int, int)
        Tokens of the prompt and of the longest answer of each request, in the order in which they come. All wait from
        the start, as in `prediction.schedule`.
    scheduler : Scheduler
        One that decides the same as long as nobody comes, ends, or needs a block: `scheduler.built_in`.
    num_blocks, slots, tokens_per_block, max_num_tokens : int
        The engine's KV cache and limits. Prompts are not computed in parts.
    at_the_start : int
        Requests that are there when the idle engine begins; the others come during its first iteration.
    ends : sequence of int, optional
        Tokens of each answer, which no scheduler knows; by default each is as long as it may be.

    Raises
    ------
    CourseError
        One request needs more blocks than there are, or more tokens in an iteration: it would wait for ever.
    """
    for prompt, answer in lengths:
        if -(-(prompt + answer) // tokens_per_block) > num_blocks or prompt > max_num_tokens:
            raise CourseError(
                f"A prompt of {prompt} and an answer of {answer} tokens fit into no engine of {num_blocks} blocks of "
                f"{tokens_per_block} tokens and {max_num_tokens} tokens an iteration: give it more, or ask for less."
            )
    ends = ends or [answer for _, answer in lengths]
    guests = {number: _Guest(number, *both, end) for number, (both, end) in enumerate(zip(lengths, ends, strict=True))}
    views = {number: guest.view() for number, guest in guests.items()}
    waiting, running, paused = list(guests)[:at_the_start], list[int](), list[int]()
    coming = list(guests)[at_the_start:]
    stretches: list[Stretch] = []
    iteration, pauses, twice = 1, 0, 0
    while waiting or coming or running or paused:
        used = sum(guests[number].blocks for number in running)
        now = Now(
            waiting=[views[number] for number in waiting],
            running=[views[number] for number in running],
            paused=[views[number] for number in paused],
            free_blocks=num_blocks - used,
            num_blocks=num_blocks,
            tokens_per_block=tokens_per_block,
            max_batch_size=slots,
            max_num_tokens=max_num_tokens,
            chunked_context=False,
        )
        plan = scheduler.schedule(now)
        for number in plan.pause:
            running.remove(number)
            guests[number].cached = guests[number].blocks = 0
            views[number] = guests[number].view()
            paused.insert(0, number)
            pauses += 1
        for number in plan.admit:
            (paused if number in paused else waiting).remove(number)
            running.append(number)
        computing = [guests[number] for number in plan.compute]
        for guest in computing:
            guest.blocks = now.blocks_for(guest.known)
        number_alike = _until_something_changes(computing, tokens_per_block) if not (plan.admit or plan.pause) else 1
        used = sum(guests[number].blocks for number in running)
        stretches.append(Stretch(iteration, number_alike, len(running), len(waiting), len(paused), used))
        for guest in computing:
            twice += max(0, min(guest.known, guest.computed) - guest.cached)
            guest.cached = guest.computed = guest.known + number_alike - 1
            guest.answered += number_alike
            views[guest.id] = guest.view()
            if guest.answered == guest.ends:
                running.remove(guest.id)
        waiting, coming = waiting + coming, []
        iteration += number_alike
    return DryRun(stretches, pauses, twice)


def _until_something_changes(computing: list[_Guest], tokens_per_block: int) -> int:
    """Iterations until an answer ends or needs a block; 1 where a prompt is computed."""
    if any(guest.known - guest.cached > 1 for guest in computing):
        return 1
    return min(
        min(guest.ends - guest.answered, guest.blocks * tokens_per_block - guest.known + 1) for guest in computing
    )
