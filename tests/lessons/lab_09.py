"""Lab 09's answers: goodput, memory in users, deployments for the contract and for twice the load."""

import math

import numpy as np

from tests.lessons.answers import Answer, Made, of_the_lab

REUSE = {"enable_kv_cache_reuse": True}
INT8 = {"kv_cache_quant_algo": "INT8"}
TUNED = REUSE | INT8

# Promises what is really free: a block that several hold counts once, so more users fit.
SHARING = """
from inflight.engine import Plan

class Scheduler:
    def schedule(self, now):
        plan, room, blocks = Plan(), now.max_num_tokens, now.free_blocks
        for request in now.running:
            plan.compute[request.id] = request.pending_tokens
            room -= request.pending_tokens
            blocks -= now.blocks_for(request.max_tokens) - request.num_blocks
        for request in list(now.waiting)[:now.max_batch_size - len(now.running)]:
            needed = now.blocks_for(request.max_tokens)
            if needed > blocks or request.pending_tokens > room:
                break
            plan.admit.append(request.id)
            plan.compute[request.id] = request.pending_tokens
            room -= request.pending_tokens
            blocks -= needed
        return plan
"""


def right_goodput(table, ttft, itl):
    met = 0
    for row in table.itertuples():
        met += not row.error and row.ttft_ms <= ttft and (math.isnan(row.itl_ms) or row.itl_ms <= itl)
    return met / (max(table["last_s"]) - min(table["sent_s"]))


def right_users(memory, bytes_per_token, prompt, answer, shared, block):
    blocks, common = memory // (bytes_per_token * block), shared // block
    users = 0
    while common + (users + 1) * (math.ceil((prompt + answer) / block) - common) <= blocks:
        users += 1
    return users


def of_all_that_came(table, ttft, itl):
    return len(table) / (table["last_s"].max() - table["sent_s"].min())


def answered(table):
    return table[table["error"] == ""]


def own_scheduler(request, folder):
    path = folder / "scheduler.py"
    path.write_text(SHARING)
    return TUNED | {"scheduler_path": path}


ANSWERS = [
    *of_the_lab("09_capstone", {"9.1": "goodput", "9.2": "users_that_fit", "9.3": "settings", "9.4": "settings and monday"}),
    Answer("9.1", "row by row", right_goodput),
    Answer("9.1", "rounded", lambda *run: np.float64(right_goodput(*run)).round(2)),
    Answer("9.1", "of all that came", of_all_that_came, "wrong", "Some of them are late"),
    Answer("9.1", "a little more", lambda *run: right_goodput(*run) * 1.01, "wrong", "All are in time"),
    Answer("9.1", "without a single token", lambda table, *limits: right_goodput(table.dropna(subset="itl_ms"), *limits),
           "wrong", "single token"),
    Answer("9.1", "of those answered", lambda table, *limits: right_goodput(answered(table), *limits), "wrong", "have no answer"),
    Answer("9.1", "no limit of the ITL", lambda table, ttft, itl: right_goodput(table, ttft, math.inf), "wrong", "are late"),
    Answer("9.1", "a word", lambda *run: "much", "wrong", "'much', where"),
    Answer("9.1", "in seconds", lambda table, ttft, itl: right_goodput(table, ttft / 1000, itl / 1000), "wrong",
           "limits are in milliseconds"),

    Answer("9.2", "one user after the other", right_users),
    Answer("9.2", "a float", lambda *case: float(right_users(*case))),
    Answer("9.2", "a guess", lambda *_: 8, "wrong", "8, where exactly"),
    Answer("9.2", "in tokens", lambda m, b, p, a, s, n: m // b // (p + a), "wrong", "Blocks are whole"),
    Answer("9.2", "nothing shared", lambda m, b, p, a, s, n: right_users(m, b, p, a, 0, n), "partly",
           "apart ✓, shared not right yet"),
    Answer("9.2", "one more", lambda *case: right_users(*case) + 1, "wrong", "Blocks are whole"),

    Answer("9.3", "both knobs", TUNED),
    Answer("9.3", "with defaults", TUNED | {"scheduler_path": None, "max_queue_size": np.int64(0)}),
    Answer("9.3", "a scheduler of one's own", Made(own_scheduler)),
    Answer("9.3", "in time, just inside", TUNED | {"max_batch_size": 5, "allotted_time_ms": 4000}),
    Answer("9.3", "in time, just outside", TUNED | {"max_batch_size": 5}, "wrong", "894, where at least 900"),
    Answer("9.3", "more slots", {"max_batch_size": 16}, "wrong", "first tokens"),
    Answer("9.3", "no queue", {"max_queue_size": 1}, "wrong", "no answer"),
    Answer("9.3", "reuse alone", REUSE, "wrong", "first tokens"),
    Answer("9.3", "INT8 alone", INT8, "wrong", "first tokens"),
    Answer("9.3", "two slots", TUNED | {"max_batch_size": 2}, "wrong", "late"),
    Answer("9.3", "the memory", {"cache_tokens": 10**6}, "wrong", "no knob"),
    Answer("9.3", "too small iterations", {"max_num_tokens": 128}, "wrong", "enable_chunked_context"),
    Answer("9.3", "no slot", {"max_batch_size": 0}, "wrong", "at least 1"),
    Answer("9.3", "no file", {"scheduler_path": "nowhere.py"}, "wrong", "nowhere.py"),
    Answer("9.3", "a number", 16, "wrong"),

    Answer("9.4", "a queue of four", TUNED | {"max_queue_size": 4}),
    Answer("9.4", "in time, just inside", TUNED | {"max_queue_size": 6}),
    Answer("9.4", "in time, just outside", TUNED | {"max_queue_size": 2, "max_batch_size": 6}, "wrong", "704, where at least 713"),
    Answer("9.4", "more slots", TUNED | {"max_batch_size": 16}, "wrong"),
    Answer("9.4", "without INT8", REUSE | {"max_queue_size": 4}, "wrong"),
    Answer("9.4", "no queue", {"max_queue_size": 1}, "wrong", "no answer"),
]  # fmt: skip
