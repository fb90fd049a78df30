"""Lab 12: a policy over hidden days, one P95 through a restart, when somebody is woken, and homes with a bound."""

import math
import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from unittest import mock

from inflight.errors import CourseError
from inflight.lessons.replicas.simulate import Asked, InTurn, RoutingCounts, ServerView, days, simulate
from inflight.notebook.checks import grades
from inflight.notebook.checks.answers import load
from inflight.notebook.checks.findings import NOT_YET, Case, Compared, Finding, Measured, Wrong, asked, told

TRIAL_S = 30
MOST_COMPUTED = 0.75  # of what is computed in turn: homes come to 0.5, homes within reach to 0.65
MOST_CROWDED = 0.6  # the same where a cache is too small for all: homes come to 0.2, homes within reach to 0.25
MOST_LEAD = 2.0  # requests: least outstanding comes to 0.6, homes alone to 8 and more
MOST_AHEAD = 4  # requests that the home of a prefix may have more than the emptiest server
BOUNDS = [0.1, 0.25, 0.5, 1.0, 2.5, math.inf]
# Shares of a ring: a third server takes a third of the keys, and each server has a half or a third.
MOST_MOVED, LEAST_SHARE, KEYS = 0.45, 0.2, 600
BOUND = 1.25  # times its share of the requests under way that a server may have
ARRIVALS, STAYS = 300, 40  # requests, one after the other, and how many come until one is answered

ADVICE = {
    "lost": "A home may die: look at is_healthy with every request, not only when the home is chosen.",
    "computed": "Most of them were in some server's cache: send a prefix where it went before.",
    "crowded": "Two caches that hold the same desks are one of half the size: each second home pushes a desk out.",
    "lead": "One server works while another waits: a hot prefix, or a slow server, needs a second home. Leave home "
    "when it is some requests ahead of the emptiest.",
}
NO_REASON = "A new server takes keys; it gives the others no reason to change. A hash modulo the number does."
ABOUT_A_THIRD = "A third server should take about a third."
ROOM = "Count the new request, too: the bound is 1.25 times (all under way + 1) / servers, rounded up."
STAY = "Only a server that is full sends a prefix away."
SECOND = "The next in the order of that prefix, whoever else has room: its blocks will be there the next time, too."
SPREAD = "An order for each prefix, not one for all servers: else one neighbour gets all that a full server sends away."
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
    tried = policy()
    if all(tried.choose(Asked("Desk 1"), [ServerView("a"), ServerView("b")]) is None for _ in range(2)):
        return NOT_YET
    hidden = days(choose)
    own, course, in_turn = (_counted(each, hidden) for each in (policy, WithinReach, InTurn))
    beside = Compared(own, course, in_turn, ADVICE, nothing_is="in turn")
    most, most_crowded = int(MOST_COMPUTED * in_turn.computed), int(MOST_CROWDED * in_turn.crowded)
    return [
        beside.measured("lost", "sent to a server that was known to be dead", exactly=0),
        beside.measured("computed", "blocks of system prompts computed, caches with room", at_most=most),
        beside.measured("lead", "mean lead of the fullest server, in requests", at_most=MOST_LEAD),
        beside.measured("crowded", "blocks of system prompts computed, small caches", at_most=most_crowded),
    ]


class WithinReach:
    """Sends a prefix where it went before, unless that server is dead, or ahead of the emptiest by MOST_AHEAD."""

    def __init__(self):
        self._homes: dict[str, set[str]] = {}

    def choose(self, request: Asked, servers: list[ServerView]) -> ServerView:
        alive = [one for one in servers if one.is_healthy]
        emptiest = min(alive, key=lambda one: one.under_way)
        homes = self._homes.setdefault(request.prefix, set())
        known = [one for one in alive if one.name in homes]
        best = min(known, key=lambda one: one.under_way, default=emptiest)
        chosen = best if best.under_way - emptiest.under_way < MOST_AHEAD else emptiest
        homes.add(chosen.name)
        return chosen


def _counted(policy: Callable, hidden: list) -> RoutingCounts:
    """All days together, each with a new policy."""
    of_days = [simulate(policy().choose, day) for day in hidden]
    computed, crowded, lost = (sum(getattr(one, name) for one in of_days) for name in ("computed", "crowded", "lost"))
    return RoutingCounts(computed, crowded, sum(one.lead for one in of_days) / len(of_days), lost)


Page = dict[float, int]


@grades("12.2", "Growth of each counter first, then the sum of the buckets, and the quantile last.")
def _one_p95(one_p95: Callable, choose: random.Random) -> Finding:
    def drawn(least: int, most: int) -> Page:
        """Most of the values in one bucket, a fifth of as many in the others, none beyond the last bound."""
        usual = choose.randrange(len(BOUNDS) - 1)
        counts = [choose.randrange(least, most) // (1 if place == usual else 5) for place in range(len(BOUNDS) - 1)]
        return dict(zip(BOUNDS, accumulate([*counts, 0])))

    def plus(page: Page, more: Page) -> Page:
        return {bound: page[bound] + more[bound] for bound in BOUNDS}

    def case(about: str, *looks: dict[str, Page]) -> Case:
        grown = _grown(looks)
        each = [_p95(_grown([{name: look[name]} if name in look else {} for look in looks])) for name in _names(looks)]
        summed = [_merged(look.values()) for look in looks]
        hint = told(
            "First each counter's growth from look to look: after a restart it begins at zero, and what it says is all "
            "new. Then for each bound the sum over servers. Then find where 95 % of them are reached, and go on in "
            "that bucket in a straight line.",
            (_p95(_grown([{"sum": page} for page in summed])), "That is the sum first: when a server dies, the sum "
             "loses all that it has ever counted."),
            (sum(each) / len(each), "That is the mean of the P95s: ten answers would count as much as a thousand."),
            (max(each), "That is the largest of the P95s: 95 % of all may be reached earlier."),
            (_upper(grown), "That is the bucket's upper bound: go on from its lower one in a straight line."),
            (_p95(_merged(looks[-1].values())), "That is of all since the servers' start: only what came after the "
             "first look is asked for."),
        )  # fmt: skip
        return Case((list(looks),), float(_p95(grown)), hint, f"The P95 of {about}")

    def service(number: int) -> Case:
        """Servers that count; one dies and comes back, one joins."""
        names = [f"server {name}" for name in range(number)]
        looks = [{name: drawn(2000, 9000) for name in names}]
        looks.append({name: plus(looks[0][name], drawn(20, 200)) for name in names})
        dies, alive = names[-1], names[:-1]
        looks.append({name: plus(looks[1][name], drawn(20, 200)) for name in alive})
        looks.append({name: plus(looks[2][name], drawn(20, 200)) for name in alive} | {dies: drawn(10, 60)})
        looks[3]["server new"] = drawn(20, 200)
        return case(f"{number} servers, of which one restarts, and one that joins", *looks)

    busy = [{name: drawn(2000, 9000) for name in "ab"}]
    busy.append({name: plus(busy[0][name], drawn(20, 200)) for name in "ab"})
    before = case("two servers that were busy before the first look", *busy)
    missed = case("two servers, of which one restarts between two looks", busy[0], busy[1] | {"b": drawn(20, 200)})
    zero = dict.fromkeys(BOUNDS, 0)
    plain = case("two servers", {"a": zero, "b": zero}, {"a": dict(zip(BOUNDS, accumulate([900, 80, 20, 0, 0, 0]))),
                                          "b": dict(zip(BOUNDS, accumulate([0, 0, 0, 2, 8, 0])))})  # fmt: skip
    late = {"a": dict(zip(BOUNDS, accumulate([10, 10, 10, 10, 10, 40])))}
    last = Case(
        ([{"a": zero}, late],),
        BOUNDS[-2],
        "Beyond the last finite bound nothing is known: that bound is the answer.",
        "The P95 of a slow server",
    )
    return asked(one_p95, [plain, before, missed, *(service(choose.choice((2, 3))) for _ in range(12)), last])


def _names(looks: Sequence[dict[str, Page]]) -> list[str]:
    return sorted({name for look in looks for name in look})


def _merged(pages: Iterable[Page]) -> Page:
    found = dict.fromkeys(BOUNDS, 0)
    for page in pages:
        found = {bound: found[bound] + page[bound] for bound in BOUNDS}
    return found


def _grown(looks: Sequence[dict[str, Page]]) -> Page:
    grown, last = dict.fromkeys(BOUNDS, 0), dict(looks[0])
    for look in looks[1:]:
        for name, page in look.items():
            before = last.get(name, {})
            is_new = page[math.inf] < before.get(math.inf, 0)
            for bound, count in page.items():
                grown[bound] += count - (0 if is_new else before.get(bound, 0))
            last[name] = page
    return grown


def _p95(page: Page) -> float:
    wanted, lower, below = 0.95 * page[math.inf], 0.0, 0
    for bound, count in page.items():
        if count >= wanted and count > below:
            return lower if bound == math.inf else lower + (bound - lower) * (wanted - below) / (count - below)
        lower, below = bound, count
    return math.nan


def _upper(page: Page) -> float:
    return next(bound for bound, count in page.items() if count >= 0.95 * page[math.inf])


Minutes = list[tuple[int, int]]


@grades("12.3", "The hour says that it matters, the five minutes that it still goes on.")
def _woken(woken: Callable, choose: random.Random) -> Finding:
    def case(about: str, *parts: tuple[int, float, float]) -> Case:
        """Parts of a day: minutes, the share that fails as a multiple of the most that may, requests a minute."""
        busy = choose.randrange(300, 600)
        slo, (days, share) = 1 - choose.uniform(0.001, 0.004), choose.choice(((30, 0.02), (28, 0.02), (30, 0.01)))
        most = share * days * 24 * (1 - slo)
        minutes = []
        for number, times, requests in parts:
            for _ in range(number):
                total = int(min(requests, busy))
                failed = min(total, int(times * most * total + choose.random()))
                minutes.append((total - failed, failed))
        right = _minutes(minutes, most, min)
        hint = told(
            "A minute counts where, over all requests of the last 60 minutes and over those of the last 5, this minute "
            "included, more than share × days × 24 × (1 − slo) fail.",
            ([minute for minute in right if minute >= 59], "At the beginning a window has the minutes that there are."),
            (_minutes(minutes, most, min, 60), "That is the hour alone: it rings long after the last failure."),
            (_minutes(minutes, most, min, 5), "That is the five minutes alone: a blip wakes somebody."),
            (_minutes(minutes, most, max), "That is either window: both must burn."),
            (_minutes(minutes, most, min, share=_mean), "That is a mean of the minutes' shares: three requests at "
             "night would count as much as a thousand by day. Add up first."),
            *((_minutes(minutes, most / hours, min), "An hour may take that share of the budget of all days: it is "
               "spent days × 24 times as fast.") for hours in (24, 24 * days)),
            (_minutes(minutes, most / (1 - slo), min), "That compares with the burn rate: times 1 − slo it is a "
             "share."),
        )  # fmt: skip
        return Case((minutes, slo, days, share), right, hint, f"Woken in a day with {about}")

    calm = (70, 0, math.inf)
    days = [
        case("half an hour of failures", calm, (30, 3.6, math.inf), calm),
        case("a blip of one minute", calm, (1, 15, math.inf), calm),
        case("failures that do not end", calm, (80, 2, math.inf)),
        case("failures that are too few", (150, 0.5, math.inf)),
        case("failures from the first minute on", (12, 3, math.inf), calm),
        case("nights on which three come", calm, (20, 25, 3), calm),
        case("minutes in which nobody comes", (8, 0, 0), (30, 5, math.inf), (8, 0, 0), calm),
    ]
    return asked(woken, days)


def _minutes(minutes: Minutes, most: float, of_both: Callable, *windows: int, share: Callable | None = None) -> list:
    """The minutes in which `of_both` the shares that fail, of both windows where none is given, is above `most`."""
    shares = [
        [(share or _failing)(minutes[max(0, end - window) : end]) for window in windows or (60, 5)]
        for end in range(1, len(minutes) + 1)
    ]
    return [number for number, each in enumerate(shares) if of_both(each) > most]


def _failing(window: Minutes) -> float:
    return sum(failed for _, failed in window) / max(1, sum(map(sum, window)))


def _mean(window: Minutes) -> float:
    return sum(_failing([minute]) for minute in window) / len(window)


@grades(
    "12.4", "A hash keeps a prefix at home without a table; the bound lets a full home send it on, always to the same."
)
def _home(home: Callable, choose: random.Random) -> Finding:
    keys = [f"Desk {choose.randrange(10**9)}" for _ in range(KEYS)]
    two = dict.fromkeys(["http://a:9000", "http://c:9000"], 0)
    three = two | {"http://b:9000": 0}  # whose name is between theirs
    before, after = ([home(key, dict(servers)) for key in keys] for servers in (two, three))
    if set(before) == {None}:
        return NOT_YET
    if not set(before) <= set(two) or not set(after) <= set(three):
        return Wrong("home() must return one of the servers that it was given.")
    with mock.patch("builtins.hash", lambda value, own=hash: ~own(value)):  # as in another process
        if [home(key, dict(two)) for key in keys] != before:
            return Wrong("Python's hash() of a text is another number in each process: take hashlib.")
    if [home(key, dict(reversed(two.items()))) for key in keys] != before:
        return Wrong("The order of the servers must not matter: two routers may know them in different orders.")
    moved = [(old, new) for old, new in zip(before, after) if old != new]
    shares = [before.count(one) / KEYS for one in two] + [after.count(one) / KEYS for one in three]
    seconds = [[home(key, {one: load if one == first else 0 for one in three}) for load in (2, 50)]
               for key, first in zip(keys, after)]  # fmt: skip
    if not {second for pair in seconds for second in pair} <= set(three):
        return Wrong("home() must return one of the servers that it was given, also when one is full.")
    of_a = [pair[0] for pair, first in zip(seconds, after) if first == "http://a:9000"]
    beyond, left = _hot(home, choose, three)
    return [
        Measured("keys that moved between the two old servers", sum(new in two for _, new in moved), exactly=0,
                 advice=NO_REASON),
        Measured("share of the keys that moved", len(moved) / KEYS, at_most=MOST_MOVED, advice=ABOUT_A_THIRD),
        Measured("smallest share of a server", min(shares), at_least=LEAST_SHARE, advice=MANY_POINTS),
        Measured("requests beyond the bound", beyond, exactly=0, advice=ROOM),
        Measured("requests sent away from a home that had room", left, exactly=0, advice=STAY),
        Measured("keys whose second home depends on how full the first is", sum(one != other for one, other in seconds),
                 exactly=0, advice=SECOND),
        Measured("smaller share of what server a sends away", min(map(of_a.count, [*three][1:])) / max(1, len(of_a)),
                 at_least=LEAST_SHARE, advice=SPREAD),
    ]  # fmt: skip


def _hot(home: Callable, choose: random.Random, servers: dict[str, int]) -> tuple[int, int]:
    """A day on which one of twenty prefixes has half of the requests: how many went beyond the bound, or astray."""
    prefixes = [f"Hot {choose.randrange(10**9)}" for _ in range(20)]
    load, under_way, beyond, left = dict(servers), deque[str](), 0, 0
    for prefix in choose.choices(prefixes, [19, *[1] * 19], k=ARRIVALS):
        if len(under_way) == STAYS:
            load[under_way.popleft()] -= 1
        bound = math.ceil(BOUND * (len(under_way) + 1) / len(load))
        first, chosen = home(prefix, dict(servers)), home(prefix, dict(load))
        if chosen not in load:
            raise CourseError("home() must return one of the servers that it was given, also when one is full.")
        beyond += load[chosen] >= bound
        left += chosen != first and load[first] < bound
        load[chosen] += 1
        under_way.append(chosen)
    return beyond, left
