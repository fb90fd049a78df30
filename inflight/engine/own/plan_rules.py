"""Checks that a plan asks only for what the engine can do, and says which rule it breaks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from inflight.engine.own.part import PartError
from inflight.engine.scheduler import Now, Plan, RequestView, Scheduler

COMPUTED_NOTHING = "computed_nothing"  # the code of a SchedulerError: too many plans in a row computed nothing


class SchedulerError(PartError):
    """A scheduler failed, took too long, or asked for what cannot be done; the message names it and the rule."""


def place(scheduler: Scheduler) -> str:
    """Return a scheduler's name for messages: file and line where it comes from a file."""
    return getattr(scheduler, "place", type(scheduler).__name__)


def enforce(plan: object, now: Now, scheduler: Scheduler) -> None:
    """Raise SchedulerError if `plan`, which `scheduler` made of `now`, breaks a rule."""
    if rule := broken_rule(now, plan):
        raise SchedulerError(f"{place(scheduler)}: schedule() {rule}.")


def broken_rule(now: Now, plan: object) -> str | None:
    """Say which rule `plan` breaks first, as a sentence goes on after "schedule()"; None for a good plan."""
    if not isinstance(plan, Plan):
        return f"returned a {type(plan).__name__}; it must return a Plan"
    return next(chain(_wrong_types(plan), _wrong_requests(now, plan)), None)


def _wrong_types(plan: Plan) -> Iterator[str]:
    for name, ids in (("admit", plan.admit), ("pause", plan.pause)):
        if not isinstance(ids, list) or not all(map(_is_count, ids)):
            yield f"gave a plan whose {name} is not a list of request ids"
        elif len(set(ids)) < len(ids):
            yield f"names a request twice in {name}"
    if not isinstance(plan.compute, dict) or not all(map(_is_count, chain(*plan.compute.items()))):
        yield "gave a plan whose compute is not a dict from request ids to numbers of tokens"


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _wrong_requests(now: Now, plan: Plan) -> Iterator[str]:
    running, requests = {request.id for request in now.running}, _named(now, plan)
    for number in plan.admit:
        if number not in requests or number in running:
            yield f"admits request {number}, which is neither waiting nor paused"
    for number in plan.pause:
        if number not in running:
            yield f"pauses request {number}, which does not run"
    after = (running - set(plan.pause)) | set(plan.admit)
    if len(after) > now.max_batch_size:
        yield f"lets {len(after)} requests run at once; max_batch_size is {now.max_batch_size}"
    for number in plan.compute:
        if number not in after:
            yield f"computes tokens of request {number}, which would not run"
    for number, tokens in plan.compute.items():
        pending = requests[number].pending_tokens
        if not 1 <= tokens <= pending:
            yield f"computes {tokens} tokens of request {number}, of which {pending} are pending; give 1 to {pending}"
        if tokens < pending <= now.max_num_tokens and not now.chunked_context:
            yield f"computes {tokens} of {pending} tokens of request {number}; without enable_chunked_context, give all"
    total = sum(plan.compute.values())
    if total > now.max_num_tokens:
        yield f"computes {total} tokens in an iteration; max_num_tokens is {now.max_num_tokens}"
    free = now.free_blocks + sum(requests[number].own_blocks for number in plan.pause)
    needed = sum(now.blocks_needed(requests[number]) for number in {*plan.admit, *plan.compute})
    if needed > free:
        yield f"needs {needed} KV cache blocks, of which {free} are free; admit or compute fewer requests, or pause one"


def _named(now: Now, plan: Plan) -> dict[int, RequestView]:
    """Return by id who runs, who is paused, and who of the waiting is admitted; the others may be many."""
    requests = {request.id: request for line in (now.running, now.paused) for request in line}
    left = set(plan.admit) - set(requests)
    for request in now.waiting:
        if not left:
            break
        if request.id in left:
            requests[request.id] = request
            left.discard(request.id)
    return requests
