"""A policy over a day of requests, without a model: counts of what servers would compute, and who would wait.

    counts = simulate(policy, day)

Time is counted in ticks. A server computes one request after the other: a tick for each block of a system prompt that
it does not have, and REST_TICKS; a slow one takes three times as long. A full cache evicts the system prompt that was
used longest ago. It is a picture of servers, and no forecast.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass

from inflight.errors import CourseError

REST_TICKS = 3  # of each request: the rest of its prompt, and its answer
NOTICED = 6  # ticks until a server that is dead is called so


@dataclass(frozen=True)
class Asked:
    """A request as a policy sees it: the text that its prompt begins with."""

    prefix: str


@dataclass
class ServerView:
    """A server as a policy sees it: how many requests it has, and whether the last health check found it well."""

    name: str
    under_way: int = 0
    is_healthy: bool = True


@dataclass(frozen=True)
class Day:
    """Requests, and what befalls the servers."""

    requests: list[tuple[int, str]]  # the tick at which each comes, in order, and its prefix
    blocks: dict[str, int]  # of each prefix
    slow: str = ""  # takes three times as long
    dies: str = ""
    dies_at: int = 0
    names: tuple[str, ...] = ("a", "b")
    room: int = 100  # prefixes that a cache holds: more than any day has, where none is given


@dataclass
class RoutingCounts:
    """The counts of a day."""

    computed: int = 0  # blocks of system prompts, where a cache has room for all
    crowded: int = 0  # the same, where it has not
    lead: float = 0.0  # requests that the fullest healthy server has and the emptiest has not, on average
    lost: int = 0  # requests that were sent to a server that the health check had found dead


def simulate(choose: Callable[[Asked, list[ServerView]], ServerView], day: Day) -> RoutingCounts:
    """Give each request of a day to the server that `choose` returns; CourseError if that is none of those given."""
    counts, leads = RoutingCounts(), 0
    ends: dict[str, list[int]] = {name: [] for name in day.names}
    caches: dict[str, list[str]] = {name: [] for name in day.names}  # used last at the end
    for tick, prefix in day.requests:
        for name in day.names:
            ends[name] = [end for end in ends[name] if end > tick]
        is_dead = day.dies and tick >= day.dies_at
        if is_dead:
            ends[day.dies], caches[day.dies] = [], []
        known_dead = is_dead and tick >= day.dies_at + NOTICED
        views = [ServerView(name, len(ends[name]), not (known_dead and name == day.dies)) for name in day.names]
        chosen = choose(Asked(prefix), list(views))
        if not isinstance(chosen, ServerView) or chosen.name not in day.names:
            raise CourseError(f"choose() returned {chosen!r}; return one of the servers that it was given.")
        name = chosen.name
        if is_dead and name == day.dies:
            counts.lost += bool(known_dead)
            name = next(other for other in day.names if other != name)  # the router sends it again
        cache = caches[name]
        fresh = 0 if prefix in cache else day.blocks[prefix]
        if prefix in cache:
            cache.remove(prefix)
        cache.append(prefix)
        del cache[: -day.room]
        if day.room < len(day.blocks):
            counts.crowded += fresh
        else:
            counts.computed += fresh
        takes = (fresh + REST_TICKS) * (3 if name == day.slow else 1)
        ends[name].append(max([tick, *ends[name]]) + takes)
        alive = [len(ends[one]) for one in day.names if not (is_dead and one == day.dies)]
        leads += max(alive) - min(alive)
    counts.lead = leads / len(day.requests)
    return counts


def days(choose: random.Random) -> list[Day]:
    """Hidden days: hot prefixes, a slow server, one that dies; three servers in one; in the last, small caches."""

    def day(weights: list[int], gap: float, names: tuple[str, ...] = ("a", "b"), **befalls) -> Day:
        desks = [f"Desk {choose.randrange(10**6)}: " for _ in weights]
        blocks = {desk: choose.randrange(6, 11) for desk in desks}
        requests, tick = [], 0.0
        for desk in choose.choices(desks, weights, k=240):
            tick += choose.expovariate(1 / gap)
            requests.append((int(tick), desk))
        return Day(requests, blocks, names=names, **befalls)

    even, hot = [1] * 12, [14, 6, 4, 3, 2, 2, 1, 1, 1, 1]
    return [
        day(even, 2.4),
        day(hot, 2.4),
        day([30, 1, 1, 1, 1, 1], 2.4),
        day(even, 4.0, slow=choose.choice("ab")),
        day(hot, 3.4, dies=choose.choice("ab"), dies_at=300),
        day(hot, 1.8, names=("a", "b", "c")),
        day([1] * 24, 3.2, room=14),
    ]


class InTurn:
    """Sends to each healthy server in turn, and looks at nothing else."""

    def __init__(self):
        self._turn = itertools.count()

    def choose(self, request: Asked, servers: list[ServerView]) -> ServerView:
        alive = [one for one in servers if one.is_healthy]
        return alive[next(self._turn) % len(alive)]
