"""Times count from when a request was due: figures that theory knows, exactly; stalls and slow clients are seen."""

import threading

import pandas as pd
import pytest

from inflight.bench import arrivals, load_generator, md1, report
from inflight.bench.load_generator import Timing
from inflight.bench.workload import TimedRequest
from inflight.errors import CourseError
from tests.bench.virtual_clock import OneServer, VirtualClock

SEED = 3
MS = 10**6


def asked(times, **changes):
    return [TimedRequest("Hi", 5, at_s, 3, **changes) for at_s in times]


def run_at(times, service_ns, workers=None, **options):
    clock = VirtualClock(len(times), workers)
    return load_generator.load(OneServer(clock, service_ns), asked(times), workers, clock=clock, **options)


# A queue that theory knows --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("load", [0.2, 0.5, 0.8, 0.95])
def test_the_generators_figures_are_those_of_lindleys_recursion(load):
    service_s = 0.06
    times = arrivals.poisson(300, load / service_s, SEED)
    table = run_at(times, lambda number: round(service_s * 1e9)).requests
    expected = [1000 * (wait + service_s) for wait in md1.waits_s(times, service_s)]
    assert table["latency_ms"].tolist() == pytest.approx(expected, abs=1e-3)
    assert table["ttft_ms"].tolist() == pytest.approx([ms - 30 for ms in expected], abs=1e-3)
    assert table["itl_ms"].tolist() == pytest.approx([30 / 4] * 300, abs=1e-3)
    assert table["due_s"].tolist() == pytest.approx(times, abs=1e-8)
    figures, drawn = report.summary(load_generator.Run(table, 0.0)), md1.drawn_ms(times, service_s)
    assert {name: figures[f"latency_ms_{name}"] for name in drawn} == pytest.approx(drawn, rel=1e-6)


@pytest.mark.parametrize("load", [0.3, 0.8])
def test_many_arrivals_come_to_the_distribution_of_theory(load):
    queue = md1.Md1(load / 0.06, 0.06)
    drawn = md1.drawn_ms(arrivals.poisson(400_000, queue.rate, SEED), 0.06)
    assert drawn == pytest.approx(queue.latency_ms(), rel=0.02)


@pytest.mark.slow
def test_the_distribution_of_theory():
    queue = md1.Md1(8.0, 0.1)  # a load of 0.8
    assert queue.mean_wait_s == pytest.approx(0.2)
    assert queue.waits_at_most(0) == pytest.approx(0.2)  # who comes to an idle server
    assert queue.waits_at_most(0.1) == pytest.approx(0.2 * (2.718281828**0.8))
    shares = [queue.waits_at_most(at / 50) for at in range(200)]
    assert shares == sorted(shares) and 0.999 < shares[-1] < 1
    assert queue.waits_at_most(queue.wait_s(0.99)) == pytest.approx(0.99, abs=1e-6)
    tail = sum((1 - queue.waits_at_most(at / 1000)) / 1000 for at in range(6000))
    assert tail == pytest.approx(0.2, rel=0.01)  # the mean is the sum of the tail


# Coordinated omission -------------------------------------------------------------------------------------------------


def test_a_stall_is_in_the_latency_of_all_that_were_due_in_it():
    """Ten a second, each takes 1 ms, but the 20th takes 2 s."""
    times = arrivals.constant(60, 10.0)
    run = run_at(times, lambda number: 2000 * MS if number == 20 else MS)
    late = run.requests["latency_ms"]
    assert late[:20].max() == pytest.approx(1.0)
    # The one due 0.1 s after the stall began waits 1.9 s, the next 1.8 s, ...
    assert late[20:40].tolist() == pytest.approx([2000 - 99 * n for n in range(20)], abs=2)
    assert run.requests["sent_s"].tolist() == pytest.approx(times)  # the client kept up, the server did not
    assert report.lateness(run) == ""


def test_a_client_that_cannot_keep_up_counts_the_wait_and_says_so():
    """One request under way at most: the client waits for the server that stalls, and its requests with it."""
    times = arrivals.constant(60, 10.0)
    run = run_at(times, lambda number: 2000 * MS if number == 20 else MS, workers=1)
    everyone = run_at(times, lambda number: 2000 * MS if number == 20 else MS)
    assert run.requests["latency_ms"].tolist() == pytest.approx(everyone.requests["latency_ms"].tolist(), abs=1e-3)
    said = report.lateness(run)
    assert said.startswith(
        "The client could not keep up: it sent 20 of 60 requests more than 10 ms after they were due"
    )
    assert "the latest by 1,900 ms" in said and said.count(".") == 2
    figures = report.result({"bench load": run}, {}, "here")["rows"][0]
    assert figures["late"] == said and figures["late_ms_max"] == pytest.approx(1900, abs=2)


def test_in_a_closed_loop_a_request_is_due_when_a_user_has_an_answer():
    run = run_at([0.0] * 30, lambda number: 100 * MS, workers=2, closed=True)
    table = run.requests
    assert table["latency_ms"][2:].tolist() == pytest.approx([200] * 28)  # the other user's, and one's own
    assert (table["sent_s"] - table["due_s"]).max() == pytest.approx(0)
    assert report.lateness(run) == ""


# Conversations --------------------------------------------------------------------------------------------------------


class Answers:
    """Answers at once, and notes the order; fails what it is told to."""

    url = "nowhere"

    def __init__(self):
        self.order, self._lock = [], threading.Lock()

    def __call__(self, request):
        now = load_generator.WALL.now_ns()
        with self._lock:
            self.order.append(request.text)
        if request.text == "fail":
            raise CourseError("It was told to fail.")
        return Timing(now, None, load_generator.WALL.now_ns(), request.max_tokens)

    def is_alive(self):
        return True

    def abort(self):
        """Nothing to end."""


def conversation(*texts, think_s=0.0, start=0):
    return [
        TimedRequest(text, 2, think_s if number else 0.0, 1, start + number - 1 if number else None)
        for number, text in enumerate(texts)
    ]


def test_one_looks_whether_the_server_is_gone_for_all_whose_requests_fail_together():
    """A look at a server that is gone may take long, and hundreds of them at once do."""

    class Gone:
        url = "nowhere"
        together, looks = threading.Barrier(50), 0

        def __call__(self, request):
            self.together.wait(60)
            raise CourseError("It went away.")

        def is_alive(self):
            self.looks += 1
            return False

        def abort(self):
            """Nothing to end."""

    send = Gone()
    run = load_generator.load(send, asked([0.0] * 50))
    assert send.looks == 1 and run.stopped == "The server at nowhere went away after 0 of 50 answers."
    assert set(run.requests["error"]) == {"It went away."}


def test_rows_of_what_was_not_sent_have_no_times():
    table = load_generator.load(Answers(), conversation("fail", "b")).requests
    assert isinstance(table, pd.DataFrame) and table.loc[1, ["due_s", "sent_s", "last_s"]].isna().all()
