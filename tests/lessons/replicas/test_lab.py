"""Lab 12's answers: policies, merged histograms, thresholds, and homes that stay."""

import hashlib
import math
import zlib

from tests.lessons.answers import Answer, File, of_the_lab
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
ONCE_TO_THE_FULLEST = """        if self.calls == 155:
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


# 12.2 to 12.4: functions ----------------------------------------------------------------------------------------------


def p95(page):
    wanted, lower, below = 0.95 * max(page.values()), 0.0, 0
    for bound in sorted(page):
        if page[bound] >= wanted:
            return lower if bound == math.inf else lower + (bound - lower) * (wanted - below) / (page[bound] - below)
        lower, below = bound, page[bound]


def merged(pages):
    return {bound: sum(page[bound] for page in pages) for bound in pages[0]}


def summed_again(pages):
    whole, total = {}, 0
    for bound, count in merged(pages).items():
        whole[bound] = total = total + count
    return p95(whole)


def upper_bound(pages):
    whole = merged(pages)
    return next(bound for bound, count in whole.items() if count >= 0.95 * max(whole.values()))


def right(slo, days, share, hours):
    return share * days * 24 / hours * (1 - slo)


def score(server, prefix):
    return hashlib.md5(f"{prefix}|{server}".encode()).hexdigest()


def points(number, prefix, servers):
    """On a ring with so many points a server, the next one."""
    ring = sorted((score(f"{server}#{point}", ""), server) for server in servers for point in range(number))
    own = score("", prefix)
    return next((server for place, server in ring if place >= own), ring[0][1])


def mostly_first(share):
    """The best of the scores, but a share of the prefixes goes to the first server by name."""

    def home(prefix, servers):
        if zlib.crc32(prefix.encode()) / 2**32 < share:
            return min(servers)
        return max(servers, key=lambda server: score(server, prefix))

    return home


def third_takes(weight):
    """Scores in which server c has a weight of its own."""

    def home(prefix, servers):
        def drawn(server):
            number = (int(score(server, prefix), 16) + 1) / 2**128
            return math.log(number) / (weight if "c:" in server else 1.0)

        return max(servers, key=drawn)

    return home


ANSWERS = [
    *of_the_lab(
        "replicas",
        {"12.1": "policy.py", "12.2": "one_p95", "12.3": "threshold", "12.4": "home"},
    ),
    Answer("12.1", "six ahead", within(6)),
    Answer("12.1", "one home, and away from it", policy(ONE_HOME)),
    Answer("12.1", "lead, just inside", within(16)),
    Answer("12.1", "lead, just outside", policy(WITHIN.replace("REACH", "16").replace(ADD, ONCE_TO_THE_FULLEST + ADD)),
           "wrong", "needs a second home"),
    Answer("12.1", "computed, just inside", within("(2 if self.calls < 170 else 3)")),
    Answer("12.1", "computed, just outside", within("(2 if self.calls < 188 else 3)"), "wrong", "where it went before"),
    Answer("12.1", "all to one", policy("        return alive[0]\n"), "wrong", "needs a second home"),
    Answer("12.1", "in turn", policy("        return alive[next(self.turn) % len(alive)]\n"), "wrong",
           "where it went before"),
    Answer("12.1", "least outstanding", policy("        return emptiest\n"), "wrong", "where it went before"),
    Answer("12.1", "a hash with its skew",
           policy("        return alive[zlib.crc32(request.prefix.encode()) % len(alive)]\n"), "wrong",
           "needs a second home"),
    Answer("12.1", "homes alone", policy(HOME.replace("SERVERS", "alive")), "wrong", "needs a second home"),
    Answer("12.1", "stale health", policy(HOME.replace("SERVERS", "servers")), "wrong", "look at is_healthy"),
    Answer("12.1", "a name", policy("        return emptiest.name\n"), "wrong", "none of the servers"),
    Answer("12.1", "no class", File("def choose(): ...\n", "policy.py"), "wrong", "no class Policy"),

    Answer("12.2", "in another order", lambda pages: p95(merged(pages[::-1]))),
    Answer("12.2", "rounded", lambda pages: round(p95(merged(pages)), 3)),
    Answer("12.2", "a mean of P95s", lambda pages: sum(map(p95, pages)) / len(pages), "wrong", "the mean of the P95s"),
    Answer("12.2", "the largest", lambda pages: max(map(p95, pages)), "wrong", "the larger of the P95s"),
    Answer("12.2", "added up again", summed_again, "wrong", "do not add them up again"),
    Answer("12.2", "the upper bound", upper_bound, "wrong", "upper bound"),

    Answer("12.3", "by the hour", lambda slo, days, share, hours: (1 - slo) * share / (hours / (24 * days))),
    Answer("12.3", "the burn rate", lambda slo, days, share, hours: share * days * 24 / hours, "wrong", "1 − slo"),
    Answer("12.3", "of the good ones", lambda slo, *rest: right(1 - slo, *rest), "wrong", "what may fail"),
    Answer("12.3", "in days", lambda slo, days, share, hours: right(slo, days, share, hours) / 24, "wrong",
           "24 hours each"),
    Answer("12.3", "not scaled", lambda slo, days, share, hours: share * (1 - slo), "wrong", "scale it to the window"),

    Answer("12.4", "a ring of 160 points", lambda prefix, servers: points(160, prefix, servers)),
    Answer("12.4", "modulo", lambda prefix, servers: sorted(servers)[zlib.crc32(prefix.encode()) % len(servers)],
           "wrong", "gives the others no reason"),
    Answer("12.4", "all to one", lambda prefix, servers: min(servers), "wrong", "smallest share"),
    Answer("12.4", "by the order", lambda prefix, servers: servers[zlib.crc32(prefix.encode()) % len(servers)],
           "wrong", "order of the servers"),
    Answer("12.4", "something else", lambda prefix, servers: "http://d:9000", "wrong", "one of the servers"),
    Answer("12.4", "moved, just inside", third_takes(1.85)),
    Answer("12.4", "moved, just outside", third_takes(1.9), "wrong", "about a third"),
    Answer("12.4", "share, just inside", mostly_first(0.33)),
    Answer("12.4", "share, just outside", mostly_first(0.34), "wrong", "many points"),
]  # fmt: skip
