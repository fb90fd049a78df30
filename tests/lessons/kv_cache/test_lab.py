"""Lab 05's answers: blocks on paper, and schedulers for a cache that is too small."""

import math
import textwrap

import numpy as np

from tests.lessons.answers import Answer, File, of_the_lab, replaced
from tests.lessons.table import *  # noqa: F403

# 5.1: a function ------------------------------------------------------------------------------------------------------


def right_share(day, size):
    promised = sum(math.ceil((prompt + most) / size) for prompt, most, _ in day)
    return 1 - sum(math.ceil((prompt + got) / size) for prompt, most, got in day) / promised


def in_numpy(day, size):
    prompt, most, got = np.array(day).T
    return 1 - np.ceil((prompt + got) / size).sum() / np.ceil((prompt + most) / size).sum()


def of_tokens(day, _):
    return 1 - sum(prompt + got for prompt, _, got in day) / sum(prompt + most for prompt, most, _ in day)


def rounded_apart(day, size):
    blocks = [[math.ceil(tokens / size) for tokens in row] for row in day]
    return 1 - sum(prompt + got for prompt, _, got in blocks) / sum(prompt + most for prompt, most, _ in blocks)


def mean_of_shares(day, size):
    return np.mean([right_share([row], size) for row in day])


# 5.2 and 5.3: schedulers ----------------------------------------------------------------------------------------------

HEAD = """
from itertools import chain

from inflight.engine import Plan
from inflight.engine.scheduler import tokens_to_compute


class Scheduler:
    calls = at = 0
    last = None

    def schedule(self, now):
        self.calls += 1
        running, free, pause, joining = list(now.running), now.free_blocks, [], []
        room = now.max_num_tokens - sum(one.pending_tokens for one in running)
"""
TAIL = """
        return Plan([one.id for one in joining], tokens_to_compute(now, running + joining), pause)
"""
PROMISES = """
for one in now.waiting:
    together = [*running, *joining, one]
    whole = sum(-(-(each.prompt_tokens + each.max_answer_tokens) // now.tokens_per_block) for each in together)
    if len(together) > now.max_batch_size or whole > now.num_blocks or one.pending_tokens > room:
        break
    joining.append(one)
    room -= one.pending_tokens
"""
PAUSES = """
def needed():
    return sum(now.blocks_needed(one) for one in running)

while needed() > free:
    victim = VICTIM
    running.remove(victim)
    pause.append(victim.id)
    free += victim.own_blocks
free -= needed()
for one in chain(now.paused, now.waiting):
    others = len(running) + len(joining)
    if pause or others == now.max_batch_size or one.pending_tokens > room:
        break
    if now.blocks_needed(one) + RESERVE > free:
        break
    joining.append(one)
    free -= now.blocks_needed(one)
    room -= one.pending_tokens
"""
CHEAPEST = "min(running, key=lambda one: one.known_tokens)"


def scheduler(body, *changes):
    return File(HEAD + textwrap.indent(replaced(body, *changes), " " * 8) + TAIL)


def pausing(victim, reserve, *changes):
    return scheduler(PAUSES, ("VICTIM", victim), ("RESERVE", reserve), *changes)


def some_idle(times):
    """Starts with iterations that compute nothing, each second one."""
    return ("def needed", f"if self.calls % 2 == 0 and self.calls <= 2 * {times}:\n    return Plan()\n\ndef needed")


IDLE_AT_FIRST = "self.at += not now.running\nif now.running or self.at % 2 == 0:\n" + textwrap.indent(PROMISES, "    ")
ANSWERS = [
    *of_the_lab(
        "kv_cache", {"5.1": "unused", "5.2": "no_evict.py", "5.3": "scheduler.py"}
    ),
    Answer("5.1", "in NumPy", in_numpy),
    Answer("5.1", "rounded", lambda *day: round(right_share(*day), 2)),
    Answer("5.1", "a guess", lambda *_: 0.5, "wrong", "both were used"),
    Answer("5.1", "of tokens", of_tokens, "wrong", "both were used"),
    Answer("5.1", "rounded apart", rounded_apart, "wrong", "add prompt and answer, then round up"),
    Answer("5.1", "a mean of shares", mean_of_shares, "wrong", "before you divide"),
    Answer("5.1", "blocks of 32", lambda day, size: right_share(day, 32), "wrong", "tokens_per_block"),
    Answer("5.1", "what was used", lambda *day: 1 - right_share(*day), "wrong", "both were used"),
    Answer("5.1", "in per cent", lambda *day: 100 * right_share(*day), "wrong", "a number from 0 to 1"),
    Answer("5.1", "a text", lambda *day: f"{right_share(*day):.0%}", "wrong", "a number from 0 to 1"),

    Answer("5.2", "promises", scheduler(PROMISES)),
    Answer("5.2", "the built-in one", File("from inflight.engine.scheduler import GuaranteedNoEvict as Scheduler\n")),
    Answer("5.2", "the last token is never read",
           scheduler(PROMISES, ("max_answer_tokens)", "max_answer_tokens - 1)"))),
    Answer("5.2", "one idle iteration", scheduler(f"if self.calls > 1:\n{textwrap.indent(PROMISES, '    ')}"), "wrong",
           "iterations: 3,564, where at most 3,563"),
    Answer("5.2", "each trial begins idle", scheduler(IDLE_AT_FIRST), "wrong", "in iterations: yours 671"),
    Answer("5.2", "one at a time", scheduler("joining += [] if running else list(now.waiting)[:1]"), "wrong",
           "iterations: "),
    Answer("5.2", "no limit of blocks",
           scheduler("joining += list(now.waiting)[: now.max_batch_size - len(running)]"), "wrong", "KV cache blocks"),
    Answer("5.2", "by the answer so far", scheduler(PROMISES, ("each.max_answer_tokens", "each.answer_tokens")),
           "wrong", "KV cache blocks"),
    Answer("5.2", "no limit of tokens", scheduler(PROMISES, (" or one.pending_tokens > room", "")), "wrong",
           "pending_tokens"),
    Answer("5.2", "no limit of slots", scheduler(PROMISES, ("len(together) > now.max_batch_size or ", "")), "wrong",
           "schedule() lets 12 requests run at once; max_batch_size is 8."),
    Answer("5.2", "newest first", scheduler(PROMISES, ("in now.waiting", "in list(now.waiting)[::-1]")), "wrong",
           "First come, first served"),
    Answer("5.2", "shorter ones overtake", scheduler(PROMISES, ("\n        break", "\n        continue")), "wrong",
           "First come, first served"),
    Answer("5.2", "tokens summed, then rounded up",
           scheduler(PROMISES, ("sum(-(-(each.prompt_tokens + each.max_answer_tokens) // now.tokens_per_block) "
                                "for each in together)",
                                "-(-sum(each.prompt_tokens + each.max_answer_tokens for each in together) "
                                "// now.tokens_per_block)")), "wrong", "KV cache blocks"),
    Answer("5.2", "pauses the newest", pausing("running[-1]", "0"), "wrong", "pauses: "),

    Answer("5.3", "a larger reserve", pausing(CHEAPEST, "2 * others")),
    Answer("5.3", "the fewest blocks", pausing("min(running, key=lambda one: one.own_blocks)", "others")),
    Answer("5.3", "iterations, just inside", pausing(CHEAPEST, "3 * others", some_idle(41))),
    Answer("5.3", "iterations, just outside", pausing(CHEAPEST, "3 * others", some_idle(42)), "wrong",
           "iterations: 2,889, where at most 2,888"),
    Answer("5.3", "twice, just inside", pausing(CHEAPEST, "others - 2")),
    Answer("5.3", "twice, just outside", pausing(CHEAPEST, "(others if self.calls < 150 else others // 2)"), "wrong",
           "tokens computed twice: 2,624, where at most 2,612"),
    Answer("5.3", "P99, just inside", pausing(CHEAPEST, "others", some_idle(287))),
    Answer("5.3", "P99, just outside", pausing(CHEAPEST, "others", some_idle(288)), "wrong", "671, where at most 670"),
    Answer("5.3", "tokens for each block", pausing("min(running, key=lambda one: one.known_tokens / one.own_blocks)",
                                                   "others")),
    Answer("5.3", "who is far from the end",
           pausing("max(running, key=lambda one: one.max_answer_tokens - one.answer_tokens)", "others")),
    Answer("5.3", "one at a time", scheduler("joining += [] if running else list(now.waiting)[:1]"), "wrong"),
    Answer("5.3", "the newest, with a reserve", pausing("running[-1]", "others")),
    Answer("5.3", "the newest", pausing("running[-1]", "0"), "wrong", "Leave some blocks free"),
    Answer("5.3", "the oldest", pausing("running[0]", "0"), "wrong", "Leave some blocks free"),
    Answer("5.3", "the largest", pausing("max(running, key=lambda one: one.known_tokens)", "0"), "wrong",
           "Leave some blocks free"),
    Answer("5.3", "too large a reserve", pausing("running[-1]", "6 * others"), "wrong", "Slots stay empty"),
    Answer("5.3", "admits who runs", scheduler("joining += now.running[:1] or list(now.waiting)[:1]"), "wrong",
           "neither waiting nor paused"),
    Answer("5.3", "waiting before paused",
           pausing(CHEAPEST, "others", ("chain(now.paused, now.waiting)", "chain(now.waiting, now.paused)")), "wrong",
           "Paused requests come first"),
]  # fmt: skip
