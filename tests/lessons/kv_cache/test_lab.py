"""Lab 05's answers: a cap, and schedulers for readers and for a cache that is too small."""

import math
import textwrap

import numpy as np

from tests.lessons.answers import Answer, File, of_the_lab, replaced
from tests.lessons.table import *  # noqa: F403

# 5.1: a function ------------------------------------------------------------------------------------------------------


def right_cap(day, size, most=None, with_cap=min, at=0.99):
    if most is None:
        answers = sorted(answer for *_, answer in day)
        most = answers[math.ceil(round(at * len(day), 6)) - 1]
    return most, sum(
        math.ceil((row[0] + row[1]) / size) - math.ceil((row[0] + with_cap(row[1], most)) / size) for row in day
    )


def in_numpy(day, size):
    prompt, asked, got = np.array(day).T
    most = np.quantile(got, 0.99, method="inverted_cdf")
    return np.array(
        [most, (-(-(prompt + asked) // size)).sum() - (-(-(prompt + np.minimum(asked, most)) // size)).sum()]
    )


def by_trying(day, size):
    most = next(n for n in range(1, 10**6) if 100 * sum(row[2] <= n for row in day) >= 99 * len(day))
    return list(right_cap(day, size, most))


def rounded_apart(day, size):
    most, _ = right_cap(day, size)
    blocks = [(math.ceil(row[0] / size) + math.ceil(min(row[1], most) / size)) for row in day]
    return most, sum(math.ceil((row[0] + row[1]) / size) for row in day) - sum(blocks)


def answers_alone(day, size):
    most, _ = right_cap(day, size)
    return most, sum(math.ceil(row[1] / size) - math.ceil(min(row[1], most) / size) for row in day)


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


def bounded(when, to="128", waiting="now.waiting"):
    """The built-in scheduler, which sees other limits."""
    return File(BOUNDED.replace("WHEN", when).replace("TO", to).replace("WAITING", waiting))


BOUNDED = """
from dataclasses import replace

from inflight.engine import GuaranteedNoEvict


class Scheduler(GuaranteedNoEvict):
    def schedule(self, now):
        readers = [one for one in now.running if one.answer_tokens]
        if WHEN:
            now = replace(now, max_num_tokens=TO, waiting=WAITING)
        return super().schedule(now)
"""
PLAN = """
from inflight.engine import Plan


class Scheduler:
    def schedule(self, now):
        reads = any(one.answer_tokens > 0 for one in now.running)
        left = 128 if reads else now.max_num_tokens
        compute, admit, slots = {}, [], now.max_batch_size - len(now.running)
        promised = sum(now.blocks_for(one.max_tokens) for one in now.running)
        for one in sorted(now.running, key=lambda one: not one.answer_tokens) + list(now.waiting):
            if one in now.waiting:
                promised += now.blocks_for(one.max_tokens)
                if not slots or not left or promised > now.num_blocks:
                    break
                slots -= 1
                admit.append(one.id)
            if part := min(one.pending_tokens, left):
                compute[one.id] = part
                left -= part
        return Plan(admit, compute)
"""
SKIPS = """
    last = ()

    def skips(self, one):
        \"\"\"A reader who has got a token goes without the next.\"\"\"
        got = (one.id, one.answer_tokens)
        again, self.last = got in self.last, {*self.last, got}
        return one.answer_tokens and not again
"""
ANSWERS = [
    *of_the_lab("kv_cache", {"5.1": "cap", "5.2": "in_parts.py", "5.3": "scheduler.py"}),
    Answer("5.1", "in NumPy", in_numpy),
    Answer("5.1", "by trying", by_trying),
    Answer("5.1", "the longest answer", lambda day, size: right_cap(day, size, at=1), "wrong", "A smaller cap does, too"),
    Answer("5.1", "95 of 100", lambda day, size: right_cap(day, size, at=0.95), "wrong", "95 of the 100 answers come whole"),
    Answer("5.1", "one place too far", lambda day, size: right_cap(day, size, sorted(row[2] for row in day)[int(0.99 * len(day))]),
           "wrong", "A smaller cap does, too"),
    Answer("5.1", "interpolated", lambda day, size: right_cap(day, size, np.quantile([row[2] for row in day], 0.99)), "wrong",
           "Two whole numbers"),
    Answer("5.1", "all ask for the cap", lambda day, size: right_cap(day, size, with_cap=lambda _, most: most), "wrong",
           "goes on asking for less"),
    Answer("5.1", "rounded apart", rounded_apart, "wrong", "add the tokens, then round up"),
    Answer("5.1", "answers alone", answers_alone, "wrong", "add the tokens, then round up"),
    Answer("5.1", "blocks of 32", lambda day, size: right_cap(day, 32), "wrong", "count the blocks"),
    Answer("5.1", "the cap alone", lambda *day: right_cap(*day)[0], "wrong", "Two whole numbers"),
    Answer("5.1", "as text", lambda *day: str(right_cap(*day)), "wrong", "Two whole numbers"),

    Answer("5.2", "a plan of its own", File(PLAN)),
    Answer("5.2", "one token pends", bounded("any(one.pending_tokens == 1 for one in now.running)")),
    Answer("5.2", "the built-in one", bounded("False"), "wrong", "longest iteration of a reader: 512"),
    Answer("5.2", "the lecture's", bounded("True"), "wrong", "until the first tokens"),
    Answer("5.2", "who runs, reads", bounded("now.running"), "wrong", "until the first tokens"),
    Answer("5.2", "128 of prompts", bounded("readers", "128 + len(readers)"), "wrong", "where at most 128"),
    Answer("5.2", "129", bounded("readers", "129"), "wrong", "where at most 128"),
    Answer("5.2", "each second time", File(PLAN.replace("if part :=", "if not self.skips(one) and (part :=").replace("left):", "left)):")
                                           + SKIPS), "wrong", "gets its token in every iteration"),
    Answer("5.2", "one less", bounded("readers", "127"), "wrong", "until the first tokens"),
    Answer("5.2", "no prompt beside readers", bounded("readers", "128", "[]"), "wrong", "until the first tokens"),
    Answer("5.2", "prompts first", File(PLAN.replace("not one.answer_tokens)", "bool(one.answer_tokens))")), "wrong",
           "gets its token in every iteration"),

    Answer("5.3", "three blocks", pausing("running[-1]", "3")),
    Answer("5.3", "the fewest blocks", pausing("min(running, key=lambda one: one.own_blocks)", "others")),
    Answer("5.3", "P99, just inside", pausing(CHEAPEST, "others", some_idle(1106))),
    Answer("5.3", "P99, just outside", pausing(CHEAPEST, "others", some_idle(1107)), "wrong",
           "in iterations: 671, where at most 670"),
    Answer("5.3", "iterations, just inside", pausing(CHEAPEST, "others", some_idle(1114)), "wrong"),
    Answer("5.3", "iterations, just outside", pausing(CHEAPEST, "others", some_idle(1115)), "wrong",
           "iterations: 7,891, where at most 7,890"),
    Answer("5.3", "twice, just inside", pausing(CHEAPEST, "(1 if self.calls < 100 else 2)")),
    Answer("5.3", "twice, just outside", pausing(CHEAPEST, "(1 if self.calls < 300 else 2)"), "wrong",
           "tokens computed twice: 7,860, where at most 7,839"),
    Answer("5.3", "half a block for each", pausing(CHEAPEST, "others // 2")),
    Answer("5.3", "one block", pausing(CHEAPEST, "1"), "wrong", "Leave some blocks free"),
    Answer("5.3", "a larger reserve", pausing(CHEAPEST, "2 * others")),
    Answer("5.3", "half of what may come",
           pausing(CHEAPEST, "sum((one.max_tokens - one.known_tokens) // 64 for one in running + joining)")),
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
