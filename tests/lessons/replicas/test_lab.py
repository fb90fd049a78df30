"""Lab 12's answers: policies, histograms through a restart, who is woken, and homes with a bound."""

import functools
import hashlib
import math
import random
import zlib

import numpy as np

from tests.lessons.answers import Answer, File, of_the_lab, replaced
from tests.lessons.table import *  # noqa: F403

# 12.1: policies -------------------------------------------------------------------------------------------------------

HEAD = """
import itertools
import zlib


class Policy:
    def __init__(self):
        self.homes, self.turn, self.calls = {}, itertools.count(), 0

    def choose(self, request, servers):
        alive = [one for one in servers if one.is_healthy]
        emptiest = min(alive, key=lambda one: one.under_way)
        self.calls += 1
"""
WITHIN = """
        homes = self.homes.setdefault(request.prefix, set())
        known = [one for one in alive if one.name in homes]
        best = min(known, key=lambda one: one.under_way, default=emptiest)
        if best.under_way >= emptiest.under_way + REACH:
            best = emptiest
        homes.add(best.name)
        return best
"""
ADD = "        homes.add"
ONCE_TO_THE_FULLEST = """        if self.calls == {}:
            best = max(alive, key=lambda one: one.under_way)
"""
HOME = """
        by_name = {one.name: one for one in SERVERS}
        if self.homes.get(request.prefix) not in by_name:
            live = [*self.homes.values()]
            self.homes[request.prefix] = min(by_name, key=live.count)
        return by_name[self.homes[request.prefix]]
"""
ONE_HOME = """
        by_name = {one.name: one for one in alive}
        home = by_name.get(self.homes.get(request.prefix), emptiest)
        self.homes[request.prefix] = home.name
        return home if home.under_way < emptiest.under_way + 4 else emptiest
"""


def policy(body):
    return File(HEAD + body, "policy.py")


def within(reach):
    return policy(WITHIN.replace("REACH", str(reach)))


def once_to_the_fullest(call):
    return policy(WITHIN.replace("REACH", "17").replace(ADD, ONCE_TO_THE_FULLEST.format(call) + ADD))


def many_homes(calls):
    """Two homes for many desks, so often, where there are many desks."""
    return within(f"(2 if len(self.homes) > 12 and self.calls < {calls} else 6)")


# 12.2 to 12.4: functions ----------------------------------------------------------------------------------------------


INF = math.inf


def p95(page):
    wanted, lower, below = 0.95 * page[INF], 0.0, 0
    for bound in sorted(page):
        if page[bound] >= wanted:
            return lower if bound == INF else lower + (bound - lower) * (wanted - below) / (page[bound] - below)
        lower, below = bound, page[bound]


def merged(pages):
    pages = list(pages)
    return {bound: sum(page[bound] for page in pages) for bound in pages[0]}


def growths(looks, restarts=True):
    """Of each server, bucket by bucket: a value that falls begins anew, as in Prometheus."""
    found = {}
    for name in {name for look in looks for name in look}:
        pages = [look[name] for look in looks if name in look]
        if name not in looks[0]:
            pages.insert(0, dict.fromkeys(pages[0], 0))
        found[name] = {
            bound: sum(
                new[bound] - (0 if restarts and new[bound] < old[bound] else old[bound])
                for old, new in zip(pages, pages[1:])
            )
            for bound in pages[0]
        }
    return found


def grown(looks, **how):
    return merged(growths(looks, **how).values())


def upper_bound(looks):
    whole = grown(looks)
    return next(bound for bound, count in whole.items() if count >= 0.95 * whole[INF])


def each(looks):
    return [p95(page) for page in growths(looks).values() if page[INF]]


def by_absence(looks):
    """A server has restarted if the look before has no page of it, and only then."""
    steps = [(before.get(name, {}), page) for before, now in zip(looks, looks[1:]) for name, page in now.items()]
    return p95({bound: sum(new[bound] - old.get(bound, 0) for old, new in steps) for bound in steps[0][1]})


def without_the_new(looks):
    return p95(grown([{name: page for name, page in look.items() if name in looks[0]} for look in looks]))


def failing(window):
    whole, failed = map(sum, zip(*window))
    return failed / max(1, whole + failed)


def mean(window):
    return sum(map(failing, ([minute] for minute in window))) / len(window)


def woken(*, windows=(60, 5), both=min, of=failing, most=lambda slo, days, share: share * days * 24 * (1 - slo)):
    """The rule, and each way to get it wrong."""

    def wakes(minutes, *objective):
        burning = [[of(minutes[max(0, n + 1 - size) : n + 1]) for size in windows] for n in range(len(minutes))]
        return [n for n, shares in enumerate(burning) if both(shares) > most(*objective)]

    return wakes


def by_running_sums(minutes, slo, days, share):
    """Burn rates, from sums that run through the day, as an array."""
    whole, failed = np.array(minutes).T
    totals = [np.concatenate([np.zeros(60), np.cumsum(each)]) for each in (failed, whole + failed)]
    burns = True
    for size in (60, 5):
        lost, came = (each[60:] - each[60 - size : len(each) - size] for each in totals)
        burns = burns & (np.divide(lost, came, where=came > 0, out=np.zeros_like(lost)) / (1 - slo) > share * days * 24)
    return np.flatnonzero(burns)


def score(server, prefix):
    return hashlib.md5(f"{prefix}|{server}".encode()).hexdigest()


def in_order(under_way, prefix):
    return sorted(under_way, key=lambda server: score(server, prefix), reverse=True)


def bounded(order, share=1.25, new=1):
    """The first in the order of a prefix that has room."""

    def home(prefix, under_way):
        bound = math.ceil(share * (sum(under_way.values()) + new) / len(under_way))
        return next(one for one in order(under_way, prefix) if under_way[one] < max(1, bound))

    return home


@functools.cache
def on_ring(number, servers):
    return sorted((score(f"{server}#{point}", ""), server) for server in servers for point in range(number))


def ring(number):
    """The order of the servers on a ring with so many points each, beginning at the prefix."""

    def order(under_way, prefix):
        points = on_ring(number, tuple(sorted(under_way)))
        own = score("", prefix)
        after = [server for place, server in points if place >= own] + [server for _, server in points]
        return list(dict.fromkeys(after))

    return order


def mostly_first(share):
    """An order by score, but for a share of the prefixes by name."""

    def order(under_way, prefix):
        if zlib.crc32(prefix.encode()) / 2**32 < share:
            return [min(under_way), *in_order({*under_way} - {min(under_way)}, prefix)]
        return in_order(under_way, prefix)

    return order


def third_takes(weight):
    """An order by scores in which server b has a weight of its own."""

    def order(under_way, prefix):
        def drawn(server):
            number = (int(score(server, prefix), 16) + 1) / 2**128
            return math.log(number) / (weight if "b:" in server else 1.0)

        return sorted(under_way, key=drawn, reverse=True)

    return order


def neighbour(share):
    """From server a mostly to the same neighbour: to the other one for this share of the prefixes."""

    def order(under_way, prefix):
        first, *others = in_order(under_way, prefix)
        if "a:" in first:
            others.sort(reverse=zlib.crc32(prefix[::-1].encode()) / 2**32 < share)
        return [first, *others]

    return order


def shuffled(under_way, prefix):
    order = sorted(under_way)
    random.Random(prefix).shuffle(order)
    return order


def to_the_emptiest(prefix, under_way):
    first, bound = in_order(under_way, prefix)[0], math.ceil(1.25 * (sum(under_way.values()) + 1) / len(under_way))
    empty = lambda one: (under_way[one], zlib.crc32(f"{one}{under_way}".encode()))
    return first if under_way[first] < bound else min(under_way, key=empty)


ANSWERS = [
    *of_the_lab(
        "replicas",
        {"12.1": "policy.py", "12.2": "one_p95", "12.3": "woken", "12.4": "home"},
    ),
    Answer("12.1", "six ahead", within(6)),
    Answer("12.1", "one home, and away from it", policy(ONE_HOME)),
    Answer("12.1", "lead, just inside", once_to_the_fullest(155)),
    Answer("12.1", "lead, just outside", once_to_the_fullest(130), "wrong", "needs a second home"),
    Answer("12.1", "computed, just inside", within("(2 if self.calls < 170 else 3)")),
    Answer("12.1", "computed, just outside", within("(2 if self.calls < 188 else 3)"), "wrong", "where it went before"),
    Answer("12.1", "small caches, just inside", many_homes(175)),
    Answer("12.1", "small caches, just outside", many_homes(220), "wrong", "each second home pushes a desk out"),
    Answer("12.1", "all to one", policy("        return alive[0]\n"), "wrong", "needs a second home"),
    Answer("12.1", "in turn", policy("        return alive[next(self.turn) % len(alive)]\n"), "wrong",
           "where it went before"),
    Answer("12.1", "least outstanding", policy("        return emptiest\n"), "wrong", "where it went before"),
    Answer("12.1", "a hash with its skew",
           policy("        return alive[zlib.crc32(request.prefix.encode()) % len(alive)]\n"), "wrong",
           "needs a second home"),
    Answer("12.1", "homes alone", policy(HOME.replace("SERVERS", "alive")), "wrong", "needs a second home"),
    Answer("12.1", "stale health", policy(HOME.replace("SERVERS", "servers")), "wrong", "look at is_healthy"),
    Answer("12.1", "a name", policy("        return emptiest.name\n"), "wrong", "return one of the servers"),
    Answer("12.1", "no return at the first visit", policy(replaced(ONE_HOME, ("        return home if",
           "        if self.calls > 1:\n            return home if"))), "wrong", "choose() returned None"),
    Answer("12.1", "no class", File("def choose(): ...\n", "policy.py"), "wrong", "no class Policy"),

    Answer("12.2", "bucket by bucket", lambda looks: p95(grown(looks))),
    Answer("12.2", "rounded", lambda looks: round(p95(grown(looks)), 3)),
    Answer("12.2", "the sum first", lambda looks: p95(grown([{"": merged(look.values())} for look in looks])), "wrong",
           "the sum first"),
    Answer("12.2", "since the start", lambda looks: p95(merged(looks[-1].values())), "wrong", "since the servers' start"),
    Answer("12.2", "no restart", lambda looks: p95(grown(looks, restarts=False)), "wrong", "begins at zero"),
    Answer("12.2", "a restart is an absence", by_absence, "wrong", "begins at zero"),
    Answer("12.2", "a mean of P95s", lambda looks: sum(each(looks)) / len(each(looks)), "wrong", "the mean of the P95s"),
    Answer("12.2", "the largest", lambda looks: max(each(looks)), "wrong", "the largest of the P95s"),
    Answer("12.2", "the upper bound", upper_bound, "wrong", "upper bound"),
    Answer("12.2", "who joined is forgotten", without_the_new, "wrong", "First each counter's growth"),

    Answer("12.3", "by running sums", by_running_sums),
    Answer("12.3", "the hour alone", woken(windows=(60,)), "wrong", "rings long after"),
    Answer("12.3", "five minutes alone", woken(windows=(5,)), "wrong", "a blip wakes somebody"),
    Answer("12.3", "either", woken(both=max), "wrong", "both must burn"),
    Answer("12.3", "a mean of shares", woken(of=mean), "wrong", "Add up first"),
    Answer("12.3", "the burn rate", woken(most=lambda slo, days, share: share * days * 24), "wrong", "burn rate"),
    Answer("12.3", "not scaled", woken(most=lambda slo, days, share: share * (1 - slo)), "wrong", "days × 24 times"),
    Answer("12.3", "in days", woken(most=lambda slo, days, share: share * days * (1 - slo)), "wrong", "days × 24 times"),
    Answer("12.3", "full windows alone", lambda minutes, *objective: [n for n in woken()(minutes, *objective) if n > 58],
           "wrong", "the minutes that there are"),
    Answer("12.3", "a minute more", woken(windows=(61, 6)), "wrong", "this minute included"),
    Answer("12.3", "a minute less", woken(windows=(59, 4)), "wrong", "this minute included"),

    Answer("12.4", "a ring of 160 points", bounded(ring(160))),
    Answer("12.4", "modulo", bounded(lambda under_way, prefix: sorted(
        under_way, key=lambda one: (sorted(under_way).index(one) - zlib.crc32(prefix.encode())) % len(under_way))),
        "wrong", "gives the others no reason"),
    Answer("12.4", "shuffled", bounded(shuffled), "wrong", "gives the others no reason"),
    Answer("12.4", "Python's hash", bounded(lambda under_way, prefix: sorted(
        under_way, key=lambda one: hash(prefix + one))), "wrong", "take hashlib"),
    Answer("12.4", "all to one", bounded(lambda under_way, prefix: sorted(under_way)), "wrong", "smallest share"),
    Answer("12.4", "by the order", lambda prefix, under_way: [*under_way][zlib.crc32(prefix.encode()) % len(under_way)],
           "wrong", "order of the servers"),
    Answer("12.4", "something else", lambda prefix, under_way: "http://d:9000", "wrong", "one of the servers"),
    Answer("12.4", "no bound", lambda prefix, under_way: in_order(under_way, prefix)[0], "wrong", "beyond the bound"),
    Answer("12.4", "the new one not counted", bounded(in_order, new=0), "wrong", "away from a home that had room"),
    Answer("12.4", "a wider bound", bounded(in_order, share=1.35), "wrong", "beyond the bound"),
    Answer("12.4", "a narrower bound", bounded(in_order, share=1.15), "wrong", "away from a home that had room"),
    Answer("12.4", "to the emptiest", to_the_emptiest, "wrong", "second home"),
    Answer("12.4", "moved, just inside", bounded(third_takes(1.65))),
    Answer("12.4", "moved, just outside", bounded(third_takes(1.67)), "wrong", "about a third"),
    Answer("12.4", "share, just inside", bounded(mostly_first(0.33))),
    Answer("12.4", "share, just outside", bounded(mostly_first(0.34)), "wrong", "many points"),
    Answer("12.4", "sent away, just inside", bounded(neighbour(0.185))),
    Answer("12.4", "sent away, just outside", bounded(neighbour(0.18)), "wrong", "one neighbour"),
]  # fmt: skip
