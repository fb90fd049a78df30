"""A queue of which theory knows everything, and the load generator's figures of it: can they be believed?

    result = bench((0.3, 0.8), service_s=0.1, requests=200, tokenizer=tokenizer)

One server, one request at a time, each takes as long as the other, arrivals by a Poisson process: M/D/1 in Kendall's
notation. A stand-in for a server is made to be just that (`md1_server`), and what `load_generator.load` measures of it
is held against what follows for the very arrivals that were drawn (Lindley 1952, "The theory of queues with a single
server") and against the distribution over all arrivals (Erlang 1909; Crommelin 1932).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from itertools import pairwise

import numpy as np

from inflight import machine
from inflight.bench import arrivals, load_generator
from inflight.bench.load_generator import Run
from inflight.bench.openai_server import COMPLETIONS, Asking, OpenAIServer, PeerSender, Wire
from inflight.bench.workload import TimedRequest
from inflight.checkpoint.tokenizer import ChatTokenizer
from inflight.errors import CourseError

DIGITS = 200  # the terms of the sum below are as large as e^(rate · time), and nearly cancel
MEASURES = {"mean": None, "p50": 0.5, "p90": 0.9, "p99": 0.99}
SEEDS = 1500  # that a typical sample is looked for among
TOKENS = 8
FIRST_SHARE = 0.8  # of the service time, after which the stand-in sends its first token


@dataclass(frozen=True)
class Md1:
    """The queue M/D/1.

    Attributes
    ----------
    rate : float
        Arrivals a second; `rate` · `service_s`, the load, must be below 1.
    service_s : float
        Seconds that each request is served.
    """

    rate: float
    service_s: float

    @property
    def load(self) -> float:
        return self.rate * self.service_s

    @property
    def mean_wait_s(self) -> float:
        """Pollaczek and Khinchine: load · service / (2 · (1 − load))."""
        return self.load * self.service_s / (2 * (1 - self.load))

    def waits_at_most(self, t: float) -> float:
        """The share of requests that wait at most `t` seconds (Crommelin 1932).

        (1 − load) · Σ (−x)^k / k! · e^x with x = rate · (t − k · service), over all k up to t / service. Terms of
        opposite signs are far larger than their sum, so they are added with many digits.
        """
        if t < 0:
            return 0.0
        with localcontext() as context:
            context.prec = DIGITS
            rate, service, total, factorial = Decimal(self.rate), Decimal(self.service_s), Decimal(0), Decimal(1)
            for k in range(int(t / self.service_s) + 1):
                factorial *= max(k, 1)
                x = rate * (Decimal(t) - k * service)
                total += ((-x) ** k if k else 1) / factorial * x.exp()  # 0^0 is 1 here, and an error to Decimal
            return float((1 - rate * service) * total)

    def wait_s(self, share: float) -> float:
        """The wait that `share` of the requests do not exceed."""
        low, high = 0.0, self.service_s
        while self.waits_at_most(high) < share:
            high *= 2
        while high - low > 1e-7 * self.service_s:
            middle = (low + high) / 2
            low, high = (low, middle) if self.waits_at_most(middle) >= share else (middle, high)
        return high

    def latency_ms(self) -> dict[str, float]:
        """By measure (`MEASURES`): wait and service together, in milliseconds."""
        return {
            name: 1000 * (self.service_s + (self.mean_wait_s if share is None else self.wait_s(share)))
            for name, share in MEASURES.items()
        }


def waits_s(times: Sequence[float], service_s: float) -> list[float]:
    """What each request waits that arrives at `times` at one server: Lindley's recursion, exact for these arrivals."""
    waits = [0.0]
    for before, now in pairwise(times):
        waits.append(max(0.0, waits[-1] + service_s - (now - before)))
    return waits


def drawn_ms(times: Sequence[float], service_s: float) -> dict[str, float]:
    """By measure: the latencies of requests at these times, in milliseconds."""
    return _measures(1000 * (np.array(waits_s(times, service_s)) + service_s))


def _measures(latency_ms: np.ndarray) -> dict[str, float]:
    return {
        name: float(latency_ms.mean() if share is None else np.quantile(latency_ms, share))
        for name, share in MEASURES.items()
    }


def typical_seed(queue: Md1, number: int) -> int:
    """Of `SEEDS` seeds, the one whose arrivals come nearest to theory in all measures, before anything is measured.

    A few hundred arrivals at a high load differ from theory by some ten percent whoever measures them; what is to be
    tested is the generator and not the draw.
    """
    theory = queue.latency_ms()

    def distance(seed: int) -> float:
        drawn = drawn_ms(arrivals.poisson(number, queue.rate, seed), queue.service_s)
        return max(abs(drawn[name] / theory[name] - 1) for name in MEASURES)

    return min(range(SEEDS), key=distance)


def check(loads: Sequence[float], service_s: float, requests: int) -> None:
    """Refuse what is no such queue, before anything starts."""
    for load in loads:
        if not 0 < load < 0.99:
            raise CourseError(f"The load is {load:g}; it must be above 0 and below 0.99, or the queue has no end.")
    if not 0.001 <= service_s <= 10:
        raise CourseError(f"A service of {1000 * service_s:g} ms is out of range: give 1 to 10,000 ms.")
    if requests < 20:
        raise CourseError(f"{requests} requests are too few for percentiles; give at least 20.")


def bench(
    loads: Sequence[float],
    service_s: float,
    requests: int,
    tokenizer: ChatTokenizer,
    progress: Callable[[str], None] = lambda step: None,
) -> dict:
    """The load generator against the stand-in, at each load (arrivals a second times seconds of service).

    Returns
    -------
    dict
        `machine`, `devices`, `settings`; `rows`, one a load and measure: milliseconds `measured`, of the very arrivals
        (`drawn`) and in theory (`theory`), `over_drawn` and `over_theory`; `ratios`, of the end-to-end latencies:
        `measured_over_drawn`, `measured_over_theory`, `first_token_over_drawn`, each over loads and measures.
    """
    check(loads, service_s, requests)
    rows = []
    with Server(service_s) as server:
        for load in loads:
            queue = Md1(load / service_s, service_s)
            progress(f"drawing arrivals for a load of {load:g}")
            seed = typical_seed(queue, requests)
            times = arrivals.poisson(requests, queue.rate, seed)
            progress(f"load {load:g}: {requests} requests at {queue.rate:.1f} a second")
            rows += _rows(queue, times, seed, measured(server.url, times, tokenizer))
    ratios = {
        f"measured_over_{base}": [row[f"over_{base}"] for row in rows if row["what"] != "ttft"]
        for base in ("drawn", "theory")
    }
    ratios["first_token_over_drawn"] = [row["over_drawn"] for row in rows if row["what"] == "ttft"]
    return {
        "machine": machine.describe(),
        "devices": {"bench honesty": machine.device_name()},
        "settings": {"loads": list(loads), "service_ms": 1000 * service_s, "requests": requests},
        "rows": rows,
        "ratios": {name: load_generator.ratio(values, [1.0] * len(values)) for name, values in ratios.items()},
    }


def measured(url: str, times: Sequence[float], tokenizer: ChatTokenizer) -> Run:
    """What `load` measures of the stand-in at `url` with requests at these times.

    Raises
    ------
    CourseError
        A request was not answered.
    """
    asked = [TimedRequest("Hi", TOKENS, at_s, 1) for at_s in times]
    server, asking = OpenAIServer(url, tokenizer), Asking(COMPLETIONS, "md1", ())
    # The first request of a process finds much not yet imported. `bench load` has asked by then how it is to ask.
    server.ask(asked[0], asking, True, Wire())
    send = PeerSender(server, asking, stream=True)
    run = load_generator.load(send, asked)
    if run.stopped or send.failure:
        raise CourseError(send.failure or run.stopped)
    return run


def _rows(queue: Md1, times: Sequence[float], seed: int, run: Run) -> list[dict]:
    theory, drawn = queue.latency_ms(), drawn_ms(times, queue.service_s)
    # The first token comes after the same wait, and a part of the service.
    earlier_ms = 1000 * queue.service_s * (1 - FIRST_SHARE)
    rows = []
    for what, column, less in (("latency", "latency_ms", 0.0), ("ttft", "ttft_ms", earlier_ms)):
        found = _measures(run.requests[column].to_numpy(float))
        for name in MEASURES:
            by_theory, by_draw = theory[name] - less, drawn[name] - less
            rows.append(
                {
                    "load": queue.load,
                    "seed": seed,
                    "what": what,
                    "measure": name,
                    "measured": found[name],
                    "drawn": by_draw,
                    "theory": by_theory,
                    "over_drawn": found[name] / by_draw,
                    "over_theory": found[name] / by_theory,
                }
            )
    return rows


class Server:
    """The stand-in in a process of its own, on loopback, for as long as the block lasts.

    Attributes
    ----------
    url : str
    """

    def __init__(self, service_s: float):
        self._service_s = service_s
        self.url = ""

    def __enter__(self) -> Server:
        command = [sys.executable, "-m", "inflight.bench.md1_server", str(self._service_s), str(FIRST_SHARE)]
        # It ends when its standard input does, however this process ends.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.url = self._process.stdout.readline().strip()
        if not self.url:
            raise CourseError("The stand-in server did not start: run the command again.")
        return self

    def __exit__(self, *_) -> None:
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
