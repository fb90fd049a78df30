"""Times count from when a request was due: figures that theory knows, exactly; stalls and slow clients are seen."""

from types import SimpleNamespace

import pytest

from inflight.bench import load as loads
from inflight.bench import report
from inflight.bench.load import send_all
from inflight.bench.workload import TimedRequest, poisson
from tests.bench.queue_theory import waits_s
from tests.bench.virtual_clock import OneServer, VirtualClock

SEED = 3
MS = 10**6
TEN_A_SECOND = [number / 10 for number in range(60)]


def asked(times):
    return [TimedRequest("Hi", 5, at_s, 3) for at_s in times]


def run_at(times, service_ns, users=None):
    clock = VirtualClock(len(times), min(len(times), users or loads.MOST_UNDER_WAY))
    return send_all(OneServer(clock, service_ns), asked(times), users, clock=clock)


def test_the_machines_own_clock_waits_for_no_moment_that_has_passed():
    clock, waited_s = loads.Clock(), []
    clock.wait_until(clock.now_ns() - MS, SimpleNamespace(wait=waited_s.append))
    assert waited_s == [0]


# A queue that theory knows --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.2, 0.8, 0.95])
def test_the_generators_figures_are_those_of_lindleys_recursion(share):
    service_s = 0.06
    times = poisson(300, share / service_s, SEED)
    table = run_at(times, lambda number: round(service_s * 1e9)).requests
    expected = [1000 * (wait + service_s) for wait in waits_s(times, service_s)]
    assert table["latency_ms"].tolist() == pytest.approx(expected, abs=1e-3)
    assert table["ttft_ms"].tolist() == pytest.approx([ms - 30 for ms in expected], abs=1e-3)
    assert table["tpot_ms"].tolist() == [30 / 4] * 300
    assert table["due_s"].tolist() == pytest.approx(times, abs=1e-8)


# Coordinated omission -------------------------------------------------------------------------------------------------


def test_a_stall_is_in_the_latency_of_all_that_were_due_in_it():
    """Ten a second, each takes 1 ms, but the 20th takes 2 s."""
    run = run_at(TEN_A_SECOND, lambda number: 2000 * MS if number == 20 else MS)
    late = run.requests["latency_ms"]
    assert late[:20].max() == pytest.approx(1.0)
    # The one due 0.1 s after the stall began waits 1.9 s, the next 1.8 s, ...
    assert late[20:40].tolist() == pytest.approx([2000 - 99 * n for n in range(20)], abs=2)
    assert run.requests["sent_s"].tolist() == pytest.approx(TEN_A_SECOND)  # the client kept up, the server did not
    assert report.lateness(run) == run.trouble == ""


def test_a_client_that_cannot_keep_up_counts_the_wait_and_says_so(monkeypatch):
    """One request under way at most: the client waits for the server that stalls, and its requests with it."""
    everyone = run_at(TEN_A_SECOND, lambda number: 2000 * MS if number == 20 else MS)
    monkeypatch.setattr(loads, "MOST_UNDER_WAY", 1)
    run = run_at(TEN_A_SECOND, lambda number: 2000 * MS if number == 20 else MS)
    assert run.requests["latency_ms"].tolist() == pytest.approx(everyone.requests["latency_ms"].tolist(), abs=1e-3)
    said = report.lateness(run)
    assert said.startswith(
        "The client could not keep up: it sent 20 of 60 requests more than 10 ms after they were due"
    )
    assert "the latest by 1,900 ms" in said and said.count(".") == 2
    assert report.summary(run)["late_ms_max"] == pytest.approx(1900, abs=2)


def test_in_a_closed_loop_a_request_is_due_when_a_user_has_an_answer():
    run = run_at([0.0] * 30, lambda number: 100 * MS, users=2)
    table = run.requests
    assert table["latency_ms"][2:].tolist() == pytest.approx([200] * 28)  # the other user's, and one's own
    assert (table["sent_s"] - table["due_s"]).max() == pytest.approx(0)
    assert report.lateness(run) == ""
