"""Lab 04: static against in-flight batching.

A learner's scheduler plays hidden requests on an engine without a model. What it lets run is counted, and beside it
what the built-in rule and one request at a time come to.
"""

import copy
import math
import random
from collections.abc import Callable
from functools import partial

from inflight.engine.scheduler import GuaranteedNoEvict, Scheduler, StaticBatching
from inflight.engine.settings import BuildConfig
from inflight.engine.simulate import SimulatedRequest, Simulation
from inflight.lessons.batching.simulate import iterations, slots_of
from inflight.notebook.checks import grades, simulate_scheduler
from inflight.notebook.checks.answers import brief, is_untouched
from inflight.notebook.checks.findings import NOT_YET, RIGHT, Case, Compared, Finding, Measured, Wrong, asked, told

TRIAL_S = 30  # for all that a learner's scheduler plays; it takes one or two, or some on a busy machine
SLACK = 1.03  # so much of the built-in rule's count is another way to do the same


# 4.1: slots from a log ------------------------------------------------------------------------------------------------


@grades("4.1", "Two rows that follow one another say who left and who came: a slot map needs no more.")
def _slots_of_a_log(stays: Callable, choose: random.Random) -> Finding:
    for rule in (StaticBatching(), GuaranteedNoEvict()) * 3:
        played, names = _short_prompts(choose).run(rule), choose.sample(range(10, 1000), 100)  # in no order
        computed = [[names[sequence.id] for sequence in iteration.chunks] for iteration in played]
        drawn = stays(copy.deepcopy(computed))
        if drawn is None:
            return NOT_YET
        if problem := _unlike(drawn, computed):
            return Wrong(problem)
    return RIGHT


def _unlike(drawn: object, computed: list[list[int]]) -> str:
    """The first stay in which what was drawn differs from the engine's own slot map, blank if none does."""
    stays = slots_of(computed)[["request", "slot", "first", "last"]].to_numpy().tolist()
    try:
        rows = drawn.to_numpy().tolist() if hasattr(drawn, "to_numpy") else list(drawn)
        own = {request: (slot, first, last) for request, slot, first, last in rows}
    except (TypeError, ValueError):
        return f"Return a list with (request, slot, first, last) for each request; yours is {brief(drawn)}."
    if len(rows) != len(stays):
        return f"You return {len(rows)} rows for {len(stays)} requests: each keeps its slot until its last iteration."
    for request, slot, first, last in stays:
        its = own.get(request)
        if its != (slot, first, last):
            return f"Request {request}: (slot, first, last) is {its}, where {(slot, first, last)} is wanted. " + (
                "Iterations count from 1." if its and its[1:] == (first - 1, last - 1) else
                "Slots count from 1." if its and its[0] == 0 else
                "A slot is free again in the iteration after its request's last."
                if its and its[0] > slot and first > 1 else
                "It takes the lowest slot that is free in its first iteration, in the row's order, and keeps it."
            )  # fmt: skip
    return ""


# 4.2 and 4.3: schedulers ----------------------------------------------------------------------------------------------


ADVICE = {
    "joined": "With V1 nobody starts while anybody runs: look at now.running.",
    "overtaken": "now.waiting is in the order of arrival: start with its first, and stop at the first that does not "
    "fit.",
    "iterations": "Each running request gets a token in every iteration, and a free slot is taken right away.",
}


@grades("4.2", "Static batching is one condition: nobody starts while anybody runs.", within_s=TRIAL_S)
def _static(path: str, choose: random.Random) -> list[Measured]:
    empty_slots = "A batch takes as many as wait, up to now.max_batch_size."
    beside = _beside(path, _short_prompts(choose), StaticBatching(), empty_slots)
    joined = beside.measured("joined", "requests that started while others ran", exactly=0)
    return [joined, *_of_both_rules(beside)]


@grades(
    "4.3",
    "In-flight batching is the same loop without that condition: a free slot is taken in the next iteration.",
    keeps="scheduler",
    within_s=TRIAL_S,
)
def _in_flight(path: str, choose: random.Random) -> dict[str, Callable[[], Finding]]:
    def with_these(case: str, trial: Simulation) -> list[Measured]:
        empty_slots = "Start a waiting request as soon as a slot is free, even if others run."
        return _of_both_rules(_beside(path, trial, GuaranteedNoEvict(), empty_slots), SLACK, f", {case}")

    trials = {"short prompts": _short_prompts(choose), "long prompts": _long_prompts(choose)}
    return {case: partial(with_these, case, trial) for case, trial in trials.items()}


def _beside(path: str, trial: Simulation, built_in: Scheduler, empty_slots: str) -> Compared:
    """A learner's scheduler beside the built-in rule and one request at a time, which is the file as it was given.

    `empty_slots` is the advice for who leaves slots empty.
    """
    beside = simulate_scheduler.beside(path, [trial], built_in, ADVICE | {"empty_slots": empty_slots})
    if beside.own == beside.nothing:
        raise NotImplementedError
    return beside


def _of_both_rules(beside: Compared, slack: float = 1.0, case: str = "") -> list[Measured]:
    most = {count: math.floor(slack * getattr(beside.course, count)) for count in ("empty_slots", "iterations")}
    return [
        beside.measured("overtaken", f"requests overtaken by one that came later{case}", exactly=0),
        beside.measured("empty_slots", f"slots left empty while requests waited{case}", at_most=most["empty_slots"]),
        beside.measured("iterations", f"iterations{case}", at_most=most["iterations"]),
    ]


def _short_prompts(choose: random.Random) -> Simulation:
    """Answers of very different lengths; half of them wait from the start, the others come while these run."""
    slots = choose.randint(4, 8)
    number = 4 * slots + choose.randint(1, slots - 1)  # the last batch is not full
    lengths = [64, 64, 16, 8, *choose.choices((4, 8, 16, 64), (6, 3, 2, 2), k=number - 4)]
    choose.shuffle(lengths)
    arrivals = [0] * (number // 2) + sorted(choose.randint(1, 80) for _ in range(number - number // 2))
    requests = [SimulatedRequest(choose.randint(5, 40), length, length, at) for length, at in zip(lengths, arrivals)]
    return _trial(requests, BuildConfig(max_batch_size=slots))


def _long_prompts(choose: random.Random) -> Simulation:
    """All wait from the start, and the prompts of all slots together are more than an iteration takes."""
    slots = choose.randint(5, 8)
    limits = BuildConfig(max_batch_size=slots, max_num_tokens=246 + slots, max_input_len=256, max_seq_len=512)
    # The first fits alone, the second not beside it, and the third would: here it shows who overtakes.
    prompts = [180, 190, 60, *(choose.choice((60, 90, 180, 200)) for _ in range(17))]
    # These fit beside two that run: here it shows who forgets that these compute, too.
    prompts[8] = prompts[14] = limits.max_num_tokens - 2
    lengths = [choose.randint(4, 40) for _ in prompts]
    return _trial([SimulatedRequest(prompt, length, length) for prompt, length in zip(prompts, lengths)], limits)


def _trial(requests: list[SimulatedRequest], limits: BuildConfig) -> Simulation:
    """These requests, and blocks for as many of the longest as run at once: memory is no question here."""
    return Simulation(requests, limits.max_batch_size * -(-limits.max_seq_len // limits.tokens_per_block), limits)


# 4.4 ------------------------------------------------------------------------------------------------------------------

WINS = ([128] + [8] * 7) * 3  # the course's
A_LONG_ONE_EACH = "The worst batch for static batching has one long answer; let each batch have one."
EIGHT_AND_EIGHT = "Let eight answers be long and eight short; a single long one is not enough."
ALIKE_IN_A_BATCH = "A batch loses nothing when its answers end together."


@grades("4.4", "It matters how lengths differ within a batch, not in the whole list.")
def _two_traces(answer: tuple) -> dict[str, Callable[[], Finding]]:
    wins, draws = answer
    return {"wins": lambda: _is_trace("wins", wins), "draws": lambda: _is_trace("draws", draws)}


def _is_trace(name: str, lengths: list[int] | None) -> Finding:
    if is_untouched(lengths):
        return NOT_YET
    if len(lengths) != 24 or not all(8 <= length <= 128 for length in lengths):
        return Wrong(
            f"{name} needs 24 lengths between 8 and 128; it has {len(lengths)}, from {min(lengths)} to {max(lengths)}."
        )
    if name == "wins":
        what = "times the iterations, in wins"
        return Measured(what, _times(lengths), at_least=2.5, course=_times(WINS), nothing=1, advice=A_LONG_ONE_EACH)
    ordered = sorted(lengths)
    differ = "times the length, of the eighth longest against the eighth shortest, in draws"
    what = "times the iterations, in draws"
    return [
        Measured(differ, ordered[-8] / ordered[7], at_least=4, course=4, nothing=1, advice=EIGHT_AND_EIGHT),
        Measured(what, _times(lengths), at_most=1.1, course=1, nothing=1, advice=ALIKE_IN_A_BATCH),
    ]


def _times(lengths: list[int]) -> float:
    """Iterations of static batching over those in flight."""
    static, in_flight = (sum(1 for _ in iterations(lengths, 8, kind)) for kind in ("V1", "inflight_fused_batching"))
    return static / in_flight


# 4.5 ------------------------------------------------------------------------------------------------------------------


@grades(
    "4.5",
    "By Little's law it is the sum of all latencies over the time of the run; requests that wait are part of it.",
)
def _requests_in_flight(in_flight: Callable, choose: random.Random) -> Finding:
    return asked(in_flight, [_requests(choose) for _ in range(5)])


def _requests(choose: random.Random) -> Case:
    """Make the table of a run's requests; the first is sent some time after the run began."""
    import pandas as pd

    begin = choose.uniform(0.5, 2)
    rows = []
    for request in range(choose.randint(5, 30)):
        sent, latency = begin + 0.02 * request, choose.uniform(0.2, 3)
        rows.append(
            {
                "request": request,
                "sent_s": sent,
                "last_s": sent + latency,
                "output_len": choose.choice((8, 64)),
                "latency_ms": 1000 * latency,
            }
        )
    table = pd.DataFrame(rows)
    end, total_s = float(table["last_s"].max()), float(table["latency_ms"].sum()) / 1000
    mean = total_s / (end - begin)
    return Case(
        (table,),
        mean,
        told(
            "Add up the seconds that requests spend in the server; over which time do you spread them?",
            (1000 * mean, "latency_ms are milliseconds, the others seconds."),
            (total_s / end, "The run begins when the first request is sent, not at 0."),
        ),
        f"in flight, of {len(rows)} requests that take {total_s / len(rows):.2f} s on average, sent and answered "
        f"within {end - begin:.2f} s",
    )
