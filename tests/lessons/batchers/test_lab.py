"""Lab 06's answers: batches on paper, a delay for a budget, batches by padded volume, the histogram of a tester that waits."""

import operator
from decimal import Decimal
from fractions import Fraction
from functools import partial

import numpy as np

from tests.lessons.answers import Answer, File, of_the_lab
from tests.lessons.table import *  # noqa: F403


def as_hdr_histogram(counts, every_ms, percent):
    """Each latency on its own, as an array."""
    each = np.repeat(list(counts), list(counts.values()))
    added = [np.arange(ms % every_ms + every_ms, ms, every_ms) for ms in each]
    return np.percentile(np.concatenate([each, *added]), percent, method="inverted_cdf")


def batches(arrivals_ms, delay_ms, max_batch_size, fixed_ms, item_ms, full_leaves=True, is_in=operator.le):
    """Batch by batch; who comes at the very moment at which a batch leaves is in it where `is_in` says so."""
    waiting, free_ms, sizes = list(arrivals_ms), 0, []
    while waiting:
        full_ms = waiting[max_batch_size - 1 : max_batch_size] if full_leaves else []
        leaves_ms = max(free_ms, min([waiting[0] + delay_ms, *full_ms]))
        size = max(1, sum(is_in(arrival, leaves_ms) for arrival in waiting[:max_batch_size]))
        if full_ms and full_ms[0] <= leaves_ms:
            size = max_batch_size
        sizes, waiting, free_ms = [*sizes, size], waiting[size:], leaves_ms + fixed_ms + item_ms * size
    return sizes


def leaves_with_the_newest(arrivals_ms, delay_ms, max_batch_size, fixed_ms, item_ms):
    """The delay counts from the newest request: each that comes makes the batch wait anew."""
    waiting, free_ms, sizes = list(arrivals_ms), 0, []
    while waiting:
        size, leaves_ms = 1, max(free_ms, waiting[0] + delay_ms)
        while size < min(max_batch_size, len(waiting)) and waiting[size] <= leaves_ms:
            leaves_ms, size = max(leaves_ms, waiting[size] + delay_ms), size + 1
        sizes, waiting, free_ms = [*sizes, size], waiting[size:], leaves_ms + fixed_ms + item_ms * size
    return sizes


def corrected(left_out):
    """The percentile with other ideas of what one latency that so many requests had left out."""

    def percentile(counts, every_ms, percent):
        each = [[ms] * number + left_out(ms, every_ms, number) for ms, number in counts.items()]
        with_them = sorted(sum(each, []))
        return with_them[-(-percent * len(with_them) // 100) - 1]

    return percentile


def those(latency_ms, every_ms):
    return list(range(latency_ms - every_ms, every_ms - 1, -every_ms))


def taking(body):
    """A file whose `take` ends with `chosen`: the queue is `waiting`, and places join while the volume allows it."""
    return File(
        f"""def take(waiting, limit):
    def fitting(places, most=99):
        taken, longest = [0], waiting[0]
        for place in places:
            with_it = max(longest, waiting[place])
            if len(taken) < most and with_it * (len(taken) + 1) <= limit:
                taken.append(place)
                longest = with_it
        return taken

    others = range(1, len(waiting))
    nearest = sorted(others, key=lambda place: abs(waiting[place] - waiting[0]))
    {body}
""",
        "batching.py",
    )


UNDER_THE_FIRST = (
    "under = [place for place in others if waiting[place] <= waiting[0]]\n"
    "    return fitting(sorted(under, key=lambda place: -waiting[place]))"
)


ANSWERS = [
    *of_the_lab("batchers", {"6.1": "batch_sizes", "6.2": "delay_us", "6.3": "batching.py", "6.4": "corrected"}),
    Answer("6.1", "batch by batch", batches),
    Answer("6.1", "an array of floats", lambda *case: np.array(batches(*case), float)),
    Answer("6.1", "misses a tie", partial(batches, is_in=operator.lt)),
    Answer("6.1", "no batches", lambda arrivals, *_: [1] * len(arrivals), "wrong", "Not right yet. your function("),
    Answer("6.1", "no limit", lambda arrivals, delay, _, *cost: batches(arrivals, delay, 99, *cost), "partly", "max_batch_size not right yet"),
    Answer("6.1", "no delay", lambda arrivals, _, *rest: batches(arrivals, 0, *rest), "partly",
           "no delay ✓, max_batch_size ✓, the delay not right yet, a full batch not right yet, a busy "),
    Answer("6.1", "a model that is never busy", lambda *case: batches(*case[:3], 0, 0), "partly", "no delay not right yet, max_batch_size not right yet"),
    Answer("6.1", "a full batch waits", partial(batches, full_leaves=False), "partly", "the delay ✓, a full batch not right yet"),
    Answer("6.1", "the newest decides", leaves_with_the_newest, "partly", "the delay not right yet"),

    Answer("6.2", "a fraction", Fraction(150_001, 2)),
    Answer("6.2", "a decimal", Decimal("76e3")),
    Answer("6.2", "NumPy's", np.float64(75e3)),
    Answer("6.2", "a text", "75000"),
    Answer("6.2", "two more on average, on paper", 1e6 * 2 / 30),
    Answer("6.2", "busy, just inside", 61_000),
    Answer("6.2", "busy, just outside", 59_000, "wrong", "model busy: 54.5 %"),
    Answer("6.2", "P95, just inside", 89_000),
    Answer("6.2", "P95, just outside", 91_500, "wrong", "where at most 150 ms"),
    Answer("6.2", "no delay", 0, "wrong", "at most 54 %"),
    Answer("6.2", "milliseconds", 75, "wrong", "1,000 microseconds are a millisecond"),
    Answer("6.2", "a delay of a day", 86_400_000_000, "wrong", "from 0 to a minute's"),
    Answer("6.2", "not a number", float("nan"), "wrong", "from 0 to a minute's"),
    Answer("6.2", "a word", "long", "wrong", "give the microseconds as a number"),

    Answer("6.3", "the longest that are no longer than the first", taking(UNDER_THE_FIRST)),
    Answer("6.3", "an array, the last first", taking("import numpy; return numpy.array(fitting(nearest)[::-1])")),
    Answer("6.3", "a set", taking("return set(fitting(nearest))")),
    Answer("6.3", "of at most half the volume", taking("limit //= 2; return fitting(nearest)")),
    Answer("6.3", "those that pad least",
           taking("return fitting(each for each in nearest if 2 / 3 <= waiting[each] / waiting[0] <= 1.5)")),
    Answer("6.3", "cost, just inside", taking("return fitting(nearest, 4 if waiting[0] % 5 else 8)")),
    Answer("6.3", "cost, just outside", taking("return fitting(nearest, 4 if waiting[0] % 10 else 8)"), "wrong",
           "cost in tokens: "),
    Answer("6.3", "the first that are no longer", taking("return fitting(place for place in others if waiting[place] <= waiting[0])"),
           "wrong", "cost in tokens: "),
    Answer("6.3", "in the order of arrival", taking("return fitting(others)"), "wrong", "cost in tokens: "),
    Answer("6.3", "the shortest", taking("return fitting(sorted(others, key=waiting.__getitem__))"), "wrong",
           "cost in tokens: "),
    Answer("6.3", "one at a time", taking("return [0]"), "wrong", "least padding"),
    Answer("6.3", "all", taking("return [0, *others]"), "wrong", "is the limit"),
    Answer("6.3", "the sum of the lengths",
           taking("return [place for place in range(len(waiting)) if sum(waiting[: place + 1]) <= limit] or [0]"), "wrong",
           "as wide as the longest"),
    Answer("6.3", "without the first", taking("return fitting(others)[1:]"), "wrong", "place 0 has waited longest"),
    Answer("6.3", "lengths", taking("return [waiting[place] for place in fitting(others)]"), "wrong", "each place is one of"),
    Answer("6.3", "twice", taking("return [0, 0]"), "wrong", "given once"),
    Answer("6.3", "a number", taking("return 3"), "wrong", "a list of places"),
    Answer("6.3", "no function", File("taken = []\n", "batching.py"), "wrong", "take"),

    Answer("6.4", "in NumPy", as_hdr_histogram),
    Answer("6.4", "as it was told", corrected(lambda *_: []), "partly", "nothing left out ✓, one slow not right yet"),
    Answer("6.4", "of all together, whatever the percentile", lambda counts, *_: max(counts), "wrong",
           "Not right yet. your function("),
    Answer("6.4", "a rank too low", lambda counts, every, percent: as_hdr_histogram(counts, every, percent - 1), "partly",
           "nothing left out not right yet"),
    Answer("6.4", "down to zero", corrected(lambda ms, every, number: list(range(ms - every, 0, -every)) * number),
           "partly", "the last of them not right yet"),
    Answer("6.4", "one alone", corrected(lambda ms, every, number: those(ms, every)[:1] * number), "partly",
           "nothing left out ✓, one slow not right yet"),
    Answer("6.4", "all as slow", corrected(lambda ms, every, number: [ms] * len(those(ms, every)) * number), "partly",
           "nothing left out ✓, one slow not right yet"),
    Answer("6.4", "once for many", corrected(lambda ms, every, _: those(ms, every)), "partly",
           "one slow ✓, many alike not right yet"),
]  # fmt: skip
