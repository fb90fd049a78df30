"""Lab 09's answers: figures from logs, settings for three contracts, twice the load, a scheduler, a report."""

import math

import numpy as np

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

GOOD, COST, MACHINES, BIAS = defined("capstone", "solutions", "(goodput, cost, machines, bias)")
REPORT = defined("capstone", "solutions", "report")


def kept(run, ttft, tpot):
    return [
        not row.error and row.ttft_ms <= ttft and (math.isnan(row.tpot_ms) or row.tpot_ms <= tpot)
        for row in run.itertuples()
    ]


def length_s(run):
    return max(run["last_s"]) - min(run["due_s"])


def row_by_row(run, ttft, tpot):
    return np.float32(sum(kept(run, ttft, tpot)) / length_s(run))


def answered(run):
    return run[run["error"] == ""]


def of_tokens(run, ttft, tpot, per_hour, count):
    return per_hour * length_s(run) / 3600 / count(run, kept(run, ttft, tpot)) * 1e6


def highest(test):
    """Machines, where a rate counts whose run passes `test(run, ttft, tpot)`."""
    return lambda runs, ttft, tpot, rate: math.ceil(
        rate / max(tried for tried, run in runs.items() if test(run, ttft, tpot))
    )


def instead(**functions):
    own = {"goodput": GOOD, "cost": COST, "machines": MACHINES, "bias": BIAS} | functions
    return tuple(own.values())


def priced(log, iteration_ms, answer_ms, prompt_token_ms):
    return iteration_ms + log["generation_tokens"] * answer_ms + log["context_tokens"] * prompt_token_ms


def ends(folder):
    """A scheduler that ends the process it runs in."""
    (folder / "ends.py").write_text("import os\nclass Scheduler:\n    def schedule(self, now):\n        os._exit(3)\n")
    return folder / "ends.py"


def for_contract(kind="solutions", order=None, name=NOTICES):
    """The file of 9.4 with a name; another order of those who wait in place of the solution's."""

    def make(request, folder):
        text = written("capstone", kind, "for_contract.py")
        path = folder / "for_contract.py"
        path.write_text(text if order is None else replaced(text, (SHORTEST, order)))
        return path, name

    return Made(make)


def pages(figures, words):
    """A report of so many words."""
    text = REPORT(figures)
    return text + " and" * (words - len(text.split()))


SHORTEST = "sorted(waiting, key=lambda one: one.pending_tokens + one.max_answer_tokens)"


ANSWERS = [
    *of_the_lab(
        "capstone",
        {
            "9.1": "(goodput, cost, machines, bias)",
            "9.2": "(scheduler, name, settings)[1:]",
            "9.3": "(scheduler, settings, name, monday)[2:]",
            "9.5": "report",
        },
    ),
    Answer("9.1", "row by row", instead(goodput=row_by_row)),
    Answer("9.1", "a share", instead(goodput=lambda run, *limits: np.mean(kept(run, *limits))), "partly", "divide by the seconds"),
    Answer("9.1", "a number", instead(goodput=lambda run, *limits: sum(kept(run, *limits))), "partly", "divide by the seconds"),
    Answer("9.1", "throughput", instead(goodput=lambda run, *_: len(answered(run)) / length_s(run)), "partly", "too late"),
    Answer("9.1", "no TPOT", instead(goodput=lambda run, ttft, _: sum(kept(run, ttft, math.inf)) / length_s(run)), "partly",
           "two limits"),
    Answer("9.1", "single tokens dropped",
           instead(goodput=lambda run, *limits: sum(kept(run.dropna(subset="tpot_ms"), *limits)) / length_s(run)), "partly",
           "single token"),
    Answer("9.1", "until the last answer",
           instead(goodput=lambda run, *limits: sum(kept(run, *limits)) / length_s(answered(run))), "partly", "answered or not"),
    Answer("9.1", "cost of all tokens",
           instead(cost=lambda *case: of_tokens(*case, lambda run, good: run["output_len"].sum())), "partly", "late answers"),
    Answer("9.1", "cost per request", instead(cost=lambda *case: of_tokens(*case, lambda run, good: sum(good))), "partly",
           "count tokens"),
    Answer("9.1", "an hour is a second", instead(cost=lambda *case: 3600 * COST(*case)), "partly", "3,600"),
    Answer("9.1", "P95 of a mean",
           instead(machines=highest(lambda run, ttft, _: answered(run)["ttft_ms"].mean() <= ttft and
                                    (answered(run)["ttft_ms"] <= ttft).mean() > 0.6)), "partly", "the mean is within"),
    Answer("9.1", "the highest rate tried", instead(machines=highest(lambda *_: True)), "partly", "half of the requests are late"),
    Answer("9.1", "rounded down", instead(machines=lambda *case: MACHINES(*case) - 1), "partly", "Round up"),
    Answer("9.1", "a fraction of a machine", instead(machines=lambda runs, _, __, rate: rate / 3), "partly", "Machines are whole"),
    Answer("9.1", "capacity from means",
           instead(machines=lambda runs, _, __, rate: math.ceil(rate / max(len(run) / length_s(run) for run in runs.values()))),
           "partly", "half of the requests are late"),
    Answer("9.1", "prices of an empty machine",
           instead(bias=lambda log, *prices: (log["ms"] / priced(log, *prices))[log["generation_tokens"] == 1].mean()),
           "partly", "empty machine"),
    Answer("9.1", "a mean of quotients", instead(bias=lambda log, *prices: (log["ms"] / priced(log, *prices)).mean()), "partly",
           "add up first"),
    Answer("9.1", "one of four", (GOOD, None, None, None), "partly", "goodput ✓"),

    Answer("9.2", "the course's, notices", (NOTICES, COURSES["notices"])),
    Answer("9.2", "the course's, stories", (STORIES, COURSES["stories"])),
    Answer("9.2", "the course's, reports", (REPORTS, COURSES["reports"])),
    Answer("9.2", "a scheduler of one's own", (STORIES, COURSES["stories"] | {"scheduler_path": COURSES_OWN["scheduler"]})),
    Answer("9.2", "a scheduler that ends its process", Made(lambda request, folder: (STORIES, {"scheduler_path": ends(folder)})),
           "wrong", "ended its process (exit status 3)"),
    *(Answer("9.2", f"of the lecture, {name} {number}", (name, one), "wrong", "at least 1,900")
      for name in (NOTICES, STORIES, REPORTS)
      for number, one in enumerate([INT8, REUSE, REUSE | INT8, REUSE | PAUSES, REUSE | INT8 | QUEUE])),
    Answer("9.2", "without its bias", (NOTICES, REUSE | INT8 | QUEUE), "wrong", "Without its bias"),
    Answer("9.2", "another's contract", (REPORTS, COURSES["stories"]), "wrong", "TPOTs were too high"),
    Answer("9.2", "the memory", (NOTICES, {"cache_tokens": 10**6}), "wrong", "no knob"),
    Answer("9.2", "too small iterations", (NOTICES, {"max_num_tokens": 128}), "wrong", "enable_chunked_context"),
    Answer("9.2", "a number", 16, "wrong", "Hand in your name"),

    Answer("9.3", "the course's, stories", (STORIES, COURSES["stories"] | {"max_queue_size": 4})),
    Answer("9.3", "the course's, reports", (REPORTS, COURSES["reports"] | {"max_queue_size": 10})),
    Answer("9.3", "a queue without a limit", (NOTICES, COURSES["notices"]), "wrong", "first tokens"),
    Answer("9.3", "hardly a queue", (NOTICES, REUSE | INT8 | {"max_queue_size": 1}), "wrong", "no answer"),
    Answer("9.3", "a long queue", (NOTICES, COURSES["notices"] | {"max_queue_size": 40}), "wrong", "first tokens"),

    Answer("9.4", "the solution", for_contract()),
    Answer("9.4", "as handed out", for_contract("labs"), "not done yet"),
    Answer("9.4", "for other names", for_contract(name=STORIES)),
    Answer("9.4", "for long prompts", for_contract(name=REPORTS)),
    Answer("9.4", "the shortest prompt", for_contract(order="sorted(waiting, key=lambda one: one.prompt_tokens)")),
    Answer("9.4", "as they came", for_contract(order="waiting"), "not done yet"),
    Answer("9.4", "without a key", for_contract(order="sorted(waiting)"), "wrong", "TypeError"),
    Answer("9.4", "nobody", for_contract(order="[]"), "wrong", "computed nothing"),
    Answer("9.4", "a slip", for_contract(order="sorted(waitin)"), "wrong", "NameError"),

    Answer("9.5", "rounded", lambda figures: REPORT(figures | {"share": round(figures["share"], 2)})),
    Answer("9.5", "always kept", lambda figures: REPORT(figures).replace("does not keep", "keeps"), "partly", "whether the contract"),
    Answer("9.5", "without its bias", lambda figures: REPORT(figures | {"bias": 1}), "wrong", "without its bias"),
    Answer("9.5", "no bill", lambda figures: REPORT(figures | {"cost": 0}), "wrong", "has to pay"),
    Answer("9.5", "whose parts", lambda figures: REPORT(figures | {"own_parts": []}), "wrong", "cannot repeat it"),
    Answer("9.5", "within a page", lambda figures: pages(figures, 250)),
    Answer("9.5", "more than a page", lambda figures: pages(figures, 251), "wrong", "251"),
    Answer("9.5", "a table", lambda figures: figures, "wrong", "is a text"),
]  # fmt: skip
# Requests are all in time or not by the hundred: what lies within two per cent of the limit depends on the seed.
FAR_FROM_BUDGET = {
    "9.2": {"in time": "20 runs of 100 requests move together"},
    "9.3": {"in time": "20 runs of 100 requests move together"},
    "9.4": {"% in time": "a better order wins by far more than the margin"},
}
