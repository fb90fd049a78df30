"""Lab 09's answers: attainment by kind, settings for three contracts, who is let in, and a scheduler."""

import math

import numpy as np
import pandas as pd

from inflight.lessons.capstone.grading import COURSES
from inflight.notebook.checks.parts import COURSES_OWN
from tests.lessons.answers import Answer, Made, defined, of_the_lab, replaced, written
from tests.lessons.table import *  # noqa: F403

REUSE, INT8, PAUSES = (
    {"enable_kv_cache_reuse": True},
    {"kv_cache_quant_algo": "INT8"},
    {"batch_scheduler_policy": "max_utilization"},
)
QUEUE = {"max_queue_size": 6}
NOTICES, STORIES, REPORTS = "Ada", "Bo", "Cy"  # names, by what is drawn for them

ATTAINMENT, GOODPUT, MACHINES = defined("capstone", "solutions", "(attainment, goodput, machines)")


# 9.1: a learner's functions, with one thing changed


def is_in_time(row, slos, ttft=True, tpot=True):
    limits = slos[row.kind]
    return (
        not row.error
        and (not ttft or row.ttft_ms <= limits[0])
        and (not tpot or math.isnan(row.tpot_ms) or row.tpot_ms <= limits[1])
    )


def row_by_row(run, slos, of=lambda run: run, **how):
    good = {}
    for row in of(run).itertuples():
        good.setdefault(row.kind, []).append(is_in_time(row, slos, **how))
    return {kind: np.float32(sum(each)) / len(each) for kind, each in good.items()}


def answered(run):
    return run[run["error"] == ""]


def length_s(run):
    return max(run["last_s"]) - min(run["due_s"])


def good_of(run, slos, **how):
    return sum(is_in_time(row, slos, **how) for row in run.itertuples())


def highest(share, at_least=0.95):
    """Machines, where a rate counts whose run has such a share."""
    return lambda runs, slos, rate: math.ceil(
        rate / max(tried for tried, run in runs.items() if share(run, slos) >= at_least)
    )


def least(run, slos, **how):
    return min(row_by_row(run, slos, **how).values())


def instead(**functions):
    return tuple(({"attainment": ATTAINMENT, "goodput": GOODPUT, "machines": MACHINES} | functions).values())


# 9.3: rules of who is let in


def of_work(share):
    """The work of those who wait, over a share of the limit; with the running ones' own iterations."""

    def let_in(now, contract):
        p = contract.prices
        each = [
            one.pending_tokens * p.prompt_token_ms
            + one.max_answer_tokens * (p.iteration_ms / now.max_batch_size + p.answer_ms)
            for one in now.waiting
        ]
        return np.bool_(sum(each[:-1]) < share * contract.ttft_ms)

    return let_in


def of_prompts(now, contract):
    """VLLM's limit of queued tokens."""
    tokens = sum(one.pending_tokens for one in now.waiting)
    return bool(tokens * contract.prices.prompt_token_ms <= 0.5 * contract.ttft_ms)


# Files


def ends(folder):
    """A scheduler that ends the process it runs in."""
    (folder / "ends.py").write_text("import os\nclass Scheduler:\n    def schedule(self, now):\n        os._exit(3)\n")
    return folder / "ends.py"


def for_contract(kind="labs", order=None, name=NOTICES, pairs=()):
    """The file of 9.4 with a name; another order of those who wait in place of the order of arrival."""

    def make(request, folder):
        text = written("capstone", kind, "for_contract.py")
        path = folder / "for_contract.py"
        path.write_text(replaced(text, *pairs, *([("return list(waiting)", f"return {order}")] if order else [])))
        return path, name

    return Made(make)


WORK = "one.pending_tokens + one.max_answer_tokens"

ANSWERS = [
    *of_the_lab(
        "capstone",
        {"9.1": "(attainment, goodput, machines)", "9.2": "(scheduler, name, settings)[1:]", "9.3": "let_in"},
    ),
    Answer("9.1", "row by row", instead(attainment=row_by_row, machines=highest(least))),
    Answer("9.1", "a Series", instead(attainment=lambda *case: pd.Series(ATTAINMENT(*case)))),
    Answer("9.1", "below the limits", instead(attainment=lambda run, slos: row_by_row(run, {
        kind: [limit - 1e-9 for limit in limits] for kind, limits in slos.items()})), "partly", "who just meets it"),
    Answer("9.1", "no share of 0", instead(attainment=lambda *case: {kind: share for kind, share in ATTAINMENT(*case).items() if share}),
           "partly", "'notice': 0"),
    Answer("9.1", "a machine more than whole ones",
           instead(machines=lambda runs, slos, rate: MACHINES(runs, slos, rate * (1 - 1e-12)) + (MACHINES(runs, slos, rate)
                                                     < MACHINES(runs, slos, rate * (1 + 1e-12)))), "partly", "Without a spare one"),
    Answer("9.1", "the last rate that is kept", instead(machines=lambda runs, slos, rate: math.ceil(
        rate / [tried for tried, run in runs.items() if least(run, slos) >= 0.95][-1])), "partly", "A higher rate is kept, too"),
    Answer("9.1", "a mean over kinds", instead(machines=highest(lambda *case: np.mean([*ATTAINMENT(*case).values()]))), "partly"),
    Answer("9.1", "of all", instead(attainment=lambda run, slos: dict.fromkeys(slos, good_of(run, slos) / len(run))), "partly",
           "take each kind by itself"),
    Answer("9.1", "no TPOT", instead(attainment=lambda *case: row_by_row(*case, tpot=False)), "partly", "a TPOT above theirs"),
    Answer("9.1", "no TTFT", instead(attainment=lambda *case: row_by_row(*case, ttft=False)), "partly", "a TTFT above theirs"),
    Answer("9.1", "answered only", instead(attainment=lambda *case: row_by_row(*case, of=answered)), "partly", "is a request"),
    Answer("9.1", "single tokens dropped",
           instead(goodput=lambda run, slos: good_of(run.dropna(subset="tpot_ms"), slos) / length_s(run)), "partly", "single token"),
    Answer("9.1", "a share", instead(goodput=lambda run, slos: good_of(run, slos) / len(run)), "partly", "divide by the seconds"),
    Answer("9.1", "a number", instead(goodput=good_of), "partly", "divide by the seconds"),
    Answer("9.1", "throughput", instead(goodput=lambda run, slos: len(answered(run)) / length_s(run)), "partly", "too late"),
    Answer("9.1", "until the last answer",
           instead(goodput=lambda run, slos: good_of(run, slos) / length_s(answered(run))), "partly", "answered or not"),
    Answer("9.1", "from 0", instead(goodput=lambda run, slos: good_of(run, slos) / max(run["last_s"])), "partly", "not at 0"),
    Answer("9.1", "a rate divided by three", instead(machines=lambda runs, slos, rate: math.ceil(rate / 3)), "partly", "each kind"),
    Answer("9.1", "machines of all kinds", instead(machines=highest(lambda run, slos: good_of(run, slos) / len(run))), "partly",
           "the small kind is broken first"),
    Answer("9.1", "machines without TPOT", instead(machines=highest(lambda *case: least(*case, tpot=False))), "partly",
           "a TPOT above theirs"),
    Answer("9.1", "machines of the answered", instead(machines=highest(lambda *case: least(*case, of=answered))), "partly",
           "without an answer"),
    Answer("9.1", "90 %", instead(machines=highest(least, 0.9)), "partly", "The objective is 95 %"),
    Answer("9.1", "one machine less", instead(machines=lambda *case: MACHINES(*case) - 1), "partly", "ound up"),
    Answer("9.1", "one of three", (ATTAINMENT, None, None), "partly", "attainment ✓"),

    Answer("9.2", "the course's, notices", (NOTICES, COURSES["notices"])),
    Answer("9.2", "the course's, stories", (STORIES, COURSES["stories"])),
    Answer("9.2", "the course's, reports", (REPORTS, COURSES["reports"])),
    Answer("9.2", "a scheduler of one's own", (STORIES, COURSES["stories"] | {"scheduler_path": COURSES_OWN["scheduler"]})),
    Answer("9.2", "a scheduler that ends its process", Made(lambda request, folder: (STORIES, {"scheduler_path": ends(folder)})),
           "wrong", "ended its process (exit status 3)"),
    *(Answer("9.2", f"of the lecture, {number}", (name, one), "wrong", "at least 1,140")
      for number, (name, one) in enumerate([(STORIES, REUSE | INT8), (REPORTS, REUSE | INT8), (NOTICES, REUSE | PAUSES)])),
    Answer("9.2", "without its bias", (NOTICES, REUSE | INT8 | QUEUE), "wrong", "Without its bias"),
    Answer("9.2", "another's contract", (REPORTS, COURSES["stories"]), "wrong", "TPOTs were too high"),
    Answer("9.2", "the memory", (NOTICES, {"cache_tokens": 10**6}), "wrong", "no knob"),
    Answer("9.2", "too small iterations", (NOTICES, {"max_num_tokens": 128}), "wrong", "enable_chunked_context"),
    Answer("9.2", "a number", 16, "wrong", "Hand in your name"),

    Answer("9.3", "of work, 0.6", of_work(0.6)),
    Answer("9.3", "everybody", lambda now, contract: True, "wrong", "were late"),
    Answer("9.3", "nobody", lambda now, contract: False, "wrong", "were refused"),
    Answer("9.3", "the lecture's six", lambda now, contract: len(now.waiting) <= 6, "partly", "were late"),
    Answer("9.3", "four", lambda now, contract: len(now.waiting) <= 4, "partly", "were refused"),
    Answer("9.3", "prompts alone", of_prompts, "partly", "stories not right yet"),
    Answer("9.3", "the whole limit and more", of_work(1.5), "wrong", "were late"),
    Answer("9.3", "milliseconds", lambda now, contract: contract.ttft_ms, "wrong", "return True or False"),

    Answer("9.4", "the solution", for_contract("solutions")),
    Answer("9.4", "as handed out", for_contract(), "not done yet"),
    Answer("9.4", "for other names", for_contract("solutions", name=STORIES)),
    Answer("9.4", "for long prompts", for_contract("solutions", name=REPORTS)),
    Answer("9.4", "as they came", for_contract(order="waiting"), "not done yet"),
    Answer("9.4", "shortest first", for_contract(order=f"sorted(waiting, key=lambda one: {WORK})"), "wrong", "overtaken"),
    Answer("9.4", "the shortest prompt", for_contract(order="sorted(waiting, key=lambda one: one.prompt_tokens)"), "wrong",
           "overtaken"),
    Answer("9.4", "longest first", for_contract(order=f"sorted(waiting, key=lambda one: -({WORK}))"), "wrong", "overtaken"),
    Answer("9.4", "the newest first", for_contract(order="waiting[::-1]"), "wrong", "overtaken"),
    Answer("9.4", "in any order", for_contract(order="sorted(waiting, key=lambda one: hash((one.id, 7)) % 101)"), "wrong", "overtaken"),
    Answer("9.4", "hardly ever in turn", for_contract("solutions", pairs=[("LONG = 60", "LONG = 6000")]), "wrong", "overtaken"),
    Answer("9.4", "nearly as they came", for_contract(order="[*waiting[1:2], *waiting[:1], *waiting[2:]]"), "wrong",
           "which one delays"),
    Answer("9.4", "without a key", for_contract(order="sorted(waiting)"), "wrong", "TypeError"),
    Answer("9.4", "nobody", for_contract(order="[]"), "wrong", "computed nothing"),
    Answer("9.4", "a slip", for_contract(order="sorted(waitin)"), "wrong", "NameError"),
]  # fmt: skip
# Requests are in time or not by the hundred: what lies within two per cent of the limit depends on the seed.
FAR_FROM_BUDGET = {
    "9.2": {"in time": "12 runs of 100 requests move together", "euros": "they follow the requests in time"},
    "9.3": dict.fromkeys(COURSES, "6 runs of 100 requests move together"),
    "9.4": {"% in time": "a better order wins by far more than the margin", "longest wait": "one request decides it"},
}
