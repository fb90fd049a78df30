"""One server, one request at a time, each takes as long as the other: what each that arrives must wait."""

from itertools import pairwise


def waits_s(times, service_s):
    """What each request waits that arrives at `times`: Lindley's recursion (1952), exact for these arrivals."""
    waits = [0.0]
    for before, now in pairwise(times):
        waits.append(max(0.0, waits[-1] + service_s - (now - before)))
    return waits
