"""The load generator against a queue of which theory knows everything: one server, a known time of service."""

import sys
import threading
import time

import numpy as np
import pytest

from inflight.bench.load import load
from inflight.bench.openai import OpenAISender
from inflight.bench.workload import TimedRequest, poisson
from inflight.checkpoint.tokenizer import load_tokenizer
from tests.bench.openai_stand_in import StandIn, begin, event
from tests.bench.queue_theory import waits_s

SERVICE_S = 0.2  # long beside what a client and a network add: on an idle machine 2 ms
WITHIN = 0.05


class Queue:
    """Has a stand-in serve one request at a time; nothing is computed, so it is done exactly when it should be."""

    def __init__(self, stand_in):
        self._word, self._lock, self._free_from = stand_in.word, threading.Lock(), 0.0

    def __call__(self, handler, body):
        with self._lock:
            start = max(self._free_from, time.perf_counter())
            self._free_from = start + SERVICE_S
        begin(handler)
        for share in (0.5, 1.0):
            while (left := start + share * SERVICE_S - time.perf_counter()) > 0:
                time.sleep(left)
            event(handler, {"choices": [{"text": self._word, "finish_reason": None}]})
        handler.wfile.write(b"data: [DONE]\n\n")


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.3, 0.8])
def test_what_it_measures_is_within_5_percent_of_what_the_arrivals_must_wait(small_engine, share):
    tokenizer = load_tokenizer(small_engine)
    times = poisson(100, share / SERVICE_S, seed=1)
    expected = 1000 * (np.array(waits_s(times, SERVICE_S)) + SERVICE_S)
    with StandIn(" a") as stand_in:
        send = OpenAISender(stand_in.url, tokenizer, stream=True)
        stand_in.odd = Queue(stand_in)
        interval, _ = sys.getswitchinterval(), sys.setswitchinterval(0.0005)
        try:
            run = load(send, [TimedRequest("Hi", 2, at_s, 1) for at_s in times]).whole()
        finally:
            sys.setswitchinterval(interval)
    latency, first = (run.requests[name].to_numpy(float) for name in ("latency_ms", "ttft_ms"))
    for measure in (np.mean, np.median, lambda values: np.quantile(values, 0.9)):
        assert measure(latency) == pytest.approx(measure(expected), rel=WITHIN)
        assert measure(first) == pytest.approx(measure(expected - 500 * SERVICE_S), rel=WITHIN)
