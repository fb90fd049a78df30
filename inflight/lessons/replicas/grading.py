"""Lab 12: a policy over hidden days, one P95 of several histograms, an alert's threshold, and homes that move."""

import math
import random
from collections.abc import Callable
from itertools import accumulate

from inflight.errors import CourseError
from inflight.lessons.replicas.simulate import Asked, InTurn, RoutingCounts, Server, WithinReach, days, simulate
from inflight.notebook.checks import grades
from inflight.notebook.checks.answers import load
from inflight.notebook.checks.findings import NOT_YET, Case, Compared, Finding, Measured, Wrong, asked, told

TRIAL_S = 30
MOST_COMPUTED = 0.75  # of what is computed in turn: homes come to 0.5, homes within reach to 0.65
MOST_LEAD = 2.0  # requests: least outstanding comes to 0.6, homes alone to 8 and more
BOUNDS = [0.1, 0.25, 0.5, 1.0, 2.5, math.inf]
# Shares of a ring: a third server takes a third of the keys, and each server has a half or a third.
MOST_MOVED, LEAST_SHARE, KEYS = 0.45, 0.2, 600

ADVICE = {
    "lost": "A home may die: look at is_healthy with every request, not only when the home is chosen.",
    "computed": "Most of them were in some server's cache: send a prefix where it went before.",
    "lead": "One server works while another waits: a hot prefix, or a slow server, needs a second home. Leave home "
    "when it is some requests ahead of the emptiest.",
}
NO_REASON = "A new server takes keys; it gives the others no reason to change. A hash modulo the number does."
ABOUT_A_THIRD = "A third server should take about a third."
MANY_POINTS = "Give each server many points on the ring, or compare a hash of key and server."


@grades(
    "12.1",
    "Homes save work and leads cost time: a policy that holds both in bounds leaves home only when home is behind.",
    within_s=TRIAL_S,
)
def _policy(path: str, choose: random.Random) -> Finding:
    policy = getattr(load(path), "Policy", None)
    if policy is None:
        raise CourseError("The file has no class Policy.")
    if policy().choose(Asked("Desk 1"), [Server("a"), Server("b")]) is None:
        return NOT_YET
    hidden = days(choose)
    own, course, in_turn = (_counted(each, hidden) for each in (policy, WithinReach, InTurn))
    beside = Compared(own, course, in_turn, ADVICE)
    return [
        beside.measured("lost", "sent to a server that was known to be dead", exactly=0),
        beside.measured("computed", "blocks of system prompts computed", at_most=int(MOST_COMPUTED * in_turn.computed)),
        beside.measured("lead", "mean lead of the fullest server, in requests", at_most=MOST_LEAD),
    ]


def _counted(policy: Callable, hidden: list) -> RoutingCounts:
    """All days together, each with a new policy."""
    of_days = [simulate(policy().choose, day) for day in hidden]
    lead = sum(one.lead for one in of_days) / len(of_days)
    return RoutingCounts(sum(one.computed for one in of_days), lead, sum(one.lost for one in of_days))


@grades("12.2", "Add what can be added, the buckets, and ask for the quantile last.")
def _one_p95(one_p95: Callable, choose: random.Random) -> Finding:
    def histogram(counts: list[int]) -> dict[float, int]:
        return dict(zip(BOUNDS, accumulate(counts)))

    def case(*servers: list[int]) -> Case:
        pages = [histogram(counts) for counts in servers]
        merged = {bound: sum(page[bound] for page in pages) for bound in BOUNDS}
        each = [_p95(page) for page in pages]
        twice = histogram(list(merged.values()))  # as if the counts were not cumulative
        hint = told(
            "Merge first: for each bound, add what came within it. Then find where 95 % of all are reached, and go on "
            "in that bucket in a straight line.",
            (
                sum(each) / len(each),
                "That is the mean of the P95s: ten answers would count as much as a thousand.",
            ),
            (max(each), "That is the larger of the P95s: 95 % of all may be reached earlier."),
            (_upper(merged), "That is the bucket's upper bound: go on from its lower one in a straight line."),
            (_p95(twice), "The counts are of all within a bound already: do not add them up again."),
        )
        return Case((pages,), float(_p95(merged)), hint)

    fixed = [[900, 80, 20, 0, 0, 0], [0, 0, 0, 2, 8, 0]]
    mixed = [[[choose.randrange(5, 60) for _ in BOUNDS[:-1]] + [0] for _ in range(number)] for number in (1, 2, 2, 3)]
    beyond = [[10, 10, 10, 10, 10, 40], [20, 0, 0, 0, 0, 0]]
    late = case(*beyond)
    last = Case(late.given, BOUNDS[-2], "Beyond the last finite bound nothing is known: that bound is the answer.")
    return asked(one_p95, [case(*fixed), *(case(*servers) for servers in mixed), last])


def _p95(page: dict[float, int]) -> float:
    wanted, lower, below = 0.95 * page[math.inf], 0.0, 0
    for bound, count in page.items():
        if count >= wanted:
            return lower if bound == math.inf else lower + (bound - lower) * (wanted - below) / (count - below)
        lower, below = bound, count
    return lower


def _upper(page: dict[float, int]) -> float:
    return next(bound for bound, count in page.items() if count >= 0.95 * page[math.inf])


@grades("12.3", "The window says how soon you are told, the share how much it takes: the threshold follows from both.")
def _threshold(threshold: Callable, choose: random.Random) -> Finding:
    cases = []
    for slo, period, share, hours in (
        (0.95, 30, 0.05, 12),
        (0.999, 30, 0.02, 1),
        (0.995, 28, 0.1, 72),
        (1 - choose.choice((0.02, 0.04)), 7, choose.choice((0.02, 0.03)), choose.choice((1, 2, 3))),
    ):
        burn, budget = share * period * 24 / hours, 100 * (1 - slo)
        hint = told(
            "In these hours, this share of the budget of all days may go: how many times as fast is that, and of which "
            "share of requests?",
            (100 * burn, "That is the burn rate; the threshold is a share of requests, burn rate times 1 − slo."),
            (share * budget, "That share of the budget would be gone after all days: scale it to the window."),
            (burn * (100 - budget), "The budget is what may fail, 1 − slo."),
            (burn / 24 * budget, "The days have 24 hours each."),
        )
        about = f"threshold({slo:.3g}, {period}, {share}, {hours}) in per cent"
        cases.append(Case((slo, period, share, hours), burn * budget, hint, about))
    return asked(lambda *given: _per_cent(threshold(*given)), cases)


def _per_cent(value: object) -> object:
    """A share in per cent, of which two decimals are compared: 0.01 of a share is no rounding error."""
    return value * 100 if isinstance(value, int | float) and not isinstance(value, bool) else value


@grades(
    "12.4", "A new server takes its share, a third, and each desk that moves is computed once more; nobody else moves."
)
def _home(home: Callable, choose: random.Random) -> Finding:
    keys = [f"Desk {choose.randrange(10**9)}" for _ in range(KEYS)]
    two, three = ["http://a:9000", "http://b:9000"], ["http://a:9000", "http://b:9000", "http://c:9000"]
    before, after = ([home(key, servers) for key in keys] for servers in (two, three))
    if set(before) == {None}:
        return NOT_YET
    if not set(before) <= set(two) or not set(after) <= set(three):
        return Wrong("home() must return one of the servers that it was given.")
    if [home(key, two[::-1]) for key in keys] != before:
        return Wrong("The order of the servers must not matter: two routers may know them in different orders.")
    moved = [(old, new) for old, new in zip(before, after) if old != new]
    shares = [before.count(one) / KEYS for one in two] + [after.count(one) / KEYS for one in three]
    between_old = sum(new in two for _, new in moved)
    return [
        Measured("keys that moved between the two old servers", between_old, exactly=0, advice=NO_REASON),
        Measured("share of the keys that moved", len(moved) / KEYS, at_most=MOST_MOVED, advice=ABOUT_A_THIRD),
        Measured("smallest share of a server", min(shares), at_least=LEAST_SHARE, advice=MANY_POINTS),
    ]
