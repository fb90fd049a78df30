"""Lab 04's answers: a slot map, a mean of a table, two schedulers, and two lists of lengths."""

import textwrap

import numpy as np
import pandas as pd

from inflight.notebook.checks.parts import COURSES_OWN
from tests.lessons.answers import Answer, File, of_the_lab, replaced
from tests.lessons.table import *  # noqa: F403

# With these, a body has `running`, `waiting` and what several rules have in common.
BEGIN = """
from inflight.engine import Plan


class Scheduler:
    calls = idled = 0

    def schedule(self, now):
        self.calls += 1
        running, waiting, plan = list(now.running), list(now.waiting), Plan()
        room = now.max_num_tokens - sum(request.pending_tokens for request in running)
"""
END = """
        for request in running:
            plan.compute[request.id] = request.pending_tokens
        return plan
"""


def scheduler(body, *changes, end=END):
    return File(BEGIN + textwrap.indent(replaced(body, *changes), " " * 8) + end)


STATIC = """
if not running:
    running = waiting[:now.max_batch_size]
    plan.admit = [request.id for request in running]
"""
IN_FLIGHT = """
while waiting and len(running) < now.max_batch_size and waiting[0].pending_tokens <= room:
    running.append(waiting.pop(0))
    room -= running[-1].pending_tokens
    plan.admit.append(running[-1].id)
"""
OVERTAKES = """
for request in waiting:
    if len(running) < now.max_batch_size and request.pending_tokens <= room:
        running.append(request)
        plan.admit.append(request.id)
        room -= request.pending_tokens
"""
ONE_AT_A_TIME = """
if not running:
    running = waiting[:1]
    plan.admit = [running[0].id]
"""
IN_NUMPY = """
number = min(len(waiting), now.max_batch_size - len(running))
fits = np.cumsum([one.pending_tokens for one in waiting[:number]]) <= room
plan.admit = np.array([one.id for one in waiting[:number]])[fits]
running += waiting[: fits.sum()]
"""
TAKEN = "from inflight.engine.scheduler import GuaranteedNoEvict as Scheduler\n"
WINS, DRAWS = ([128] + [8] * 7) * 3, [32] * 8 + [64] * 8 + [128] * 8


def slot_less(call):
    """In flight, but for one slot that stays empty in one call."""
    return scheduler(IN_FLIGHT, ("now.max_batch_size", f"now.max_batch_size - (self.calls == {call})"))


def idle_at_the_end(times):
    """In flight, but when nobody comes any more so many iterations compute nothing."""
    idle = f"        if self.calls > 100 and not plan.admit and self.idled < {times}:\n            running, self.idled = [], "
    return scheduler(IN_FLIGHT, end=f"\n{idle}self.idled + 1{END}")


def slots_of(computed):
    taken, stays = {}, {}
    for iteration, row in enumerate(computed, 1):
        for request in [one for one in taken if one not in row]:
            del taken[request]
        for request in row:
            free = [slot for slot in range(1, 100) if slot not in taken.values()]
            slot = taken.setdefault(request, free[0])
            stays[request] = [request, slot, stays.get(request, [0, 0, iteration])[2], iteration]
    return list(stays.values())


def in_pandas(computed):
    cells = [(request, iteration) for iteration, row in enumerate(computed, 1) for request in row]
    table = pd.DataFrame(cells, columns=["request", "at"]).groupby("request", sort=False)["at"]
    stays, free_from = table.agg(["min", "max"]).reset_index(), {}
    for request, first, last in stays.to_numpy():
        slot = next(slot for slot in range(1, 100) if free_from.get(slot, 0) < first)
        free_from[slot] = last
        stays.loc[stays["request"] == request, "slot"] = slot
    return stays[["request", "slot", "min", "max"]].astype(int)


def without_rows(table):
    return (table["last_s"] - table["sent_s"]).sum() / (table["last_s"].max() - table["sent_s"].min())


def two_long_ones(third):
    return ([128] + [8] * 7) * 2 + [third] + [8] * 7


def one_long_one(length):
    return [8] * 8 + [32] * 7 + [length] + [64] * 8


ANSWERS = [
    *of_the_lab(
        "batching",
        {"4.1": "stays", "4.2": "static.py", "4.3": "scheduler.py", "4.4": "(wins, draws)", "4.5": "in_flight_mean"},
    ),
    Answer("4.1", "a table, from pandas", in_pandas),
    Answer("4.1", "tuples in another order", lambda computed: tuple(map(tuple, slots_of(computed)[::-1]))),
    Answer("4.1", "iterations from 0", lambda computed: [[r, s, a - 1, b - 1] for r, s, a, b in slots_of(computed)],
           "wrong", "Iterations count from 1."),
    Answer("4.1", "slots from 0", lambda computed: [[r, s - 1, a, b] for r, s, a, b in slots_of(computed)],
           "wrong", "Slots count from 1."),
    Answer("4.1", "a slot for each", lambda computed: [[r, n, *rest] for n, (r, _, *rest) in enumerate(slots_of(computed), 1)],
           "wrong", "A slot is free again in the iteration after its request's last."),
    Answer("4.1", "the place in the row", lambda computed: [[r, computed[a - 1].index(r) + 1, a, b]
                                                            for r, _, a, b in slots_of(computed)],
           "wrong", "A slot is free again in the iteration after its request's last."),
    Answer("4.1", "in the order of their numbers", lambda computed: slots_of([sorted(row) for row in computed]),
           "wrong", "in the row's order"),
    Answer("4.1", "a prompt's iteration alone", lambda computed: [[r, s, a, a] for r, s, a, _ in slots_of(computed)],
           "wrong", "It takes the lowest slot that is free"),
    Answer("4.1", "some are missing", lambda computed: slots_of(computed)[:-1], "wrong", "requests: each keeps its slot"),
    Answer("4.1", "no slots", lambda computed: [row[:1] for row in slots_of(computed)], "wrong",
           "Return a list with (request, slot, first, last)"),
    Answer("4.1", "a number", lambda computed: 8, "wrong", "Return a list with (request, slot, first, last)"),

    Answer("4.2", "a slice", scheduler(STATIC)),
    Answer("4.2", "begins an iteration late", scheduler(STATIC, ("not running", "not running and self.calls > 1")),
           "wrong", "iterations: yours 217; wanted at most 216"),
    Answer("4.2", "in flight", scheduler(IN_FLIGHT), "wrong", "look at now.running"),
    Answer("4.2", "too many", scheduler(STATIC, ("waiting[:now.max_batch_size]", "waiting")), "wrong", "max_batch_size"),
    Answer("4.2", "half a batch", scheduler(STATIC, ("[:now.max_batch_size]", "[:now.max_batch_size // 2]")), "wrong",
           "A batch takes as many as wait"),
    Answer("4.2", "the newest", scheduler(STATIC, ("waiting[:now.max_batch_size]", "waiting[-now.max_batch_size:]")),
           "wrong", "now.waiting is in the order of arrival"),
    Answer("4.2", "no return", scheduler(STATIC, end=END.replace("return plan", "plan")), "wrong", "must return a Plan"),
    Answer("4.2", "one at a time", scheduler(ONE_AT_A_TIME), "not done yet"),

    Answer("4.3", "a loop that pops", scheduler(IN_FLIGHT)),
    Answer("4.3", "with arrays", File("import numpy as np\n" + scheduler(IN_NUMPY).text)),
    Answer("4.3", "lab 05's", File(COURSES_OWN["scheduler"].read_text())),
    Answer("4.3", "the built-in one", File(TAKEN)),
    Answer("4.3", "a slot less, within the slack", slot_less(72)),
    Answer("4.3", "a slot less, over it", slot_less(21), "wrong", "waited, long prompts: yours 49; wanted at most 48"),
    Answer("4.3", "three idle iterations", idle_at_the_end(3)),
    Answer("4.3", "four idle iterations", idle_at_the_end(4), "wrong", "iterations, short prompts: 116, where at most 115"),
    Answer("4.3", "static", scheduler(STATIC), "wrong", "Start a waiting request as soon as a slot is free"),
    Answer("4.3", "no limit of tokens", scheduler(IN_FLIGHT, ("<= room", "<= 10**6")), "partly", "max_num_tokens is 25"),
    Answer("4.3", "those who run are forgotten", scheduler("room = now.max_num_tokens\n" + IN_FLIGHT), "partly",
           "max_num_tokens is 25"),
    Answer("4.3", "the lab's 256 tokens", scheduler(IN_FLIGHT, ("<= room", "<= room + 256 - now.max_num_tokens")), "partly",
           "tokens in an iteration; max_num_tokens is 25"),
    Answer("4.3", "overtakes", scheduler(OVERTAKES), "partly", "short prompts ✓, long prompts not right yet"),
    Answer("4.3", "last come, first served",
           scheduler(IN_FLIGHT, ("waiting[0]", "waiting[-1]"), ("waiting.pop(0)", "waiting.pop()")), "wrong",
           "now.waiting is in the order of arrival"),
    Answer("4.3", "one at a time", scheduler(ONE_AT_A_TIME), "not done yet"),

    Answer("4.4", "tuples, just four times as long", (tuple(WINS), [8] * 8 + [32] * 16)),
    Answer("4.4", "an array, and a Series of floats", (np.array(WINS[::-1]), pd.Series(DRAWS, dtype=float))),
    Answer("4.4", "wins and draws, just inside", (two_long_ones(84), one_long_one(112))),
    Answer("4.4", "wins, just outside", (two_long_ones(82), DRAWS), "partly", "in wins: 2.49, where at least 2.5"),
    Answer("4.4", "draws, just outside", (WINS, one_long_one(116)), "partly",
           "in draws: 1.12, where at most 1.1"),
    Answer("4.4", "differ too little", (WINS, [32] * 8 + [127] * 16), "partly", "in draws: 3.97, where at least 4"),
    Answer("4.4", "all alike", ([64] * 24, [64] * 24), "wrong", "in wins: 1, where at least 2.5"),
    Answer("4.4", "one long one a batch, twice", (WINS, WINS), "partly", "in draws: 1, where at least 4"),
    Answer("4.4", "one list, twice", (DRAWS, DRAWS), "partly", "wins not right yet, draws ✓"),
    Answer("4.4", "too long a list", (WINS * 2, DRAWS), "partly", "48"),
    Answer("4.4", "too long an answer", ([1000] + [1] * 23, DRAWS), "partly", "from 1 to 1000"),
    Answer("4.4", "one list", (WINS, None), "partly", "wins ✓, draws still open"),

    Answer("4.5", "of two columns", without_rows),
    Answer("4.5", "by Little's law",
           lambda rows: len(rows) / np.ptp([*rows.sent_s, *rows.last_s]) * rows["latency_ms"].mean() / 1000),
    Answer("4.5", "a guess", lambda rows: 8.0, "wrong"),
    Answer("4.5", "in milliseconds", lambda rows: 1000 * without_rows(rows), "wrong", "are milliseconds"),
    Answer("4.5", "from zero on", lambda rows: rows["latency_ms"].sum() / 1000 / rows["last_s"].max(), "wrong", "not at 0"),
    Answer("4.5", "a mean", lambda rows: rows["latency_ms"].mean() / 1000, "wrong", "over which time do you spread them"),
]  # fmt: skip
