"""Plays prompts whose blocks lie here and there, and a store that is full: counts, no clock.

A policy's `choose` and a store's `victim` are the learner's.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile

WAYS = ("compute", "fetch", "take")


@dataclass(frozen=True)
class Prompt:
    """A prompt that comes: its tokens, those found by way, and the milliseconds a token of each way at that time."""

    tokens: int
    found: dict[str, int]
    prices: dict[str, float]

    def cost(self, way: str) -> float:
        """Milliseconds until the whole prompt is in the cache."""
        moved = self.found.get(way, 0)
        return moved * self.prices[way] + (self.tokens - moved) * self.prices["compute"]


def day(choose: random.Random, number: int = 200) -> list[Prompt]:
    """Prompts of a day on which network and disk are slow at times, and quicker machines compute at others."""
    prompts = []
    for _ in range(number):
        tokens = choose.randrange(40, 2000)
        prices = {"compute": choose.choice((0.4, 8.0)), "fetch": choose.choice((0.2, 0.5, 2.0))}
        prices["take"] = prices["fetch"] + choose.choice((0.05, 0.3, 9.0))
        ways = choose.choice((("fetch",), ("take",), ("fetch", "take")))
        most = tokens // 32 * 32
        prompts.append(Prompt(tokens, {way: choose.randrange(32, most + 1, 32) for way in ways}, prices))
    return prompts


def spent(policy: Callable[[Prompt], str], prompts: list[Prompt]) -> float:
    """Milliseconds of a day."""
    return sum(each.cost(policy(each)) for each in prompts)


@dataclass
class Stored:
    """A block in the store: its place in its conversation, from 0, and when it was used last, in turns."""

    place: int
    used: int


def computed_again(victim: Callable[[list[Stored]], int], room: int, seed: int, turns: int = 400) -> int:
    """Play conversations that go on and rest; return the blocks that were computed though they had been before.

    Parameters
    ----------
    victim : callable
        Given the blocks of a full store, returns the number of the one to forget.
    room : int
        Blocks that the store holds.
    """
    choose = random.Random(seed)
    store: dict[tuple[int, int], Stored] = {}
    lengths = dict.fromkeys(range(12), 0)
    again = 0
    for turn in range(turns):
        who = min(choose.randrange(12), choose.randrange(12))  # some come more often
        known = lengths[who]
        places = zip([who] * known, range(known))
        found = len([*takewhile(store.__contains__, places)])
        again += known - found
        lengths[who] = known + choose.randrange(1, 4) if known < 24 else 0
        for place in range(max(known, lengths[who])):
            if (who, place) not in store and len(store) >= room:
                keys = list(store)
                del store[keys[victim([Stored(**vars(store[key])) for key in keys])]]
            store[who, place] = Stored(place, turn)
        if not lengths[who]:  # it ended, and the next one is new
            for key in [key for key in store if key[0] == who]:
                del store[key]
    return again


def least_recent(blocks: list[Stored]) -> int:
    """The block that was used least recently; of a conversation, its beginning."""
    return min(range(len(blocks)), key=lambda number: (blocks[number].used, blocks[number].place))
