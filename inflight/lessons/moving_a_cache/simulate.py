"""Plays prompts whose blocks lie here and there, a store that is full, and engines that die: counts, no clock.

A policy's `choose`, a store's `victim` and a client's `whole` are the learner's.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from zlib import crc32

from inflight.errors import CourseError

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


END = 0


def next_token(text: list[int], end: int) -> int:
    """What these engines say after a text; END where it is `end` tokens long."""
    return END if len(text) >= end else 1 + crc32(repr(text).encode()) % 999


class Dying:
    """Engines of one service, of which each dies after some tokens.

    Parameters
    ----------
    lives : list of int
        The tokens that each engine computes before it dies.
    end : int
        The length of prompt and answer before END.

    Attributes
    ----------
    computed : int
        Tokens that they have computed.
    received : int
        Tokens that the client has; whoever plays counts them.
    held_back : bool
        Whether the first engine was asked for another token before the client had the last one.
    """

    def __init__(self, lives: list[int], end: int):
        self._lives, self._end = [*lives], end
        self.computed = self.received = self._calls = 0
        self.held_back = False

    def ask(self, prompt: list[int], most: int) -> Iterator[int]:
        """Yield an answer's tokens as long as the engine lives."""
        self._calls += 1
        if most < 1:
            raise CourseError(f"An engine was asked for {most} tokens: the answer had been said.")
        if prompt[-1] == END:
            raise CourseError("An engine was asked to go on after END: the answer had been said.")
        if not self._lives:
            # Who asks for ever catches errors, and a GeneratorExit is none.
            raise GeneratorExit if self._calls > 1000 else ConnectionRefusedError("no engine is left")
        text, longest = list(prompt), len(prompt) + most  # the list may become longer meanwhile
        while len(text) < longest and text[-1] != END:
            self._live()
            self._lives[0] -= 1
            self.computed += 1
            text.append(next_token(text, self._end))
            yield text[-1]
            self.held_back |= self._calls == 1 and self.received < self.computed
        self._live()

    def _live(self) -> None:
        if not self._lives[0]:
            del self._lives[0]
            raise ConnectionResetError("the engine has died")
