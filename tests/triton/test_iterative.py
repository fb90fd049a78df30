"""Housekeeping of iterative models without a server: who is told what, when, and what is kept of whom."""

import importlib
import json
import threading

import numpy as np
import pytest

from inflight.errors import CourseError
from inflight.notebook.checks import simulate_triton
from tests.engines import wait_until
from tests.triton import backend_stand_ins

IDLE_S = 5.0
ARGS = {"model_config": json.dumps({"sequence_batching": {"max_sequence_idle_microseconds": str(int(IDLE_S * 1e6))}})}
FINAL, RELEASE_ALL, RESCHEDULE = simulate_triton.FINAL, simulate_triton.ALL, simulate_triton.RESCHEDULE
SHORT_S = 0.001


@pytest.fixture
def iterative():
    """The module, with stand-ins for what only a model's process has, and a clock that a test sets."""
    with backend_stand_ins.backend(simulate_triton.backend()):
        yield importlib.import_module("inflight.triton.model.iterative")


class Clock:
    """Seconds that pass only when a test says so, and how often somebody looked."""

    def __init__(self):
        self.now_s, self.looks = 1000.0, 0

    def monotonic(self):
        self.looks += 1
        return self.now_s

    def time(self):
        return 1.7e9 + self.now_s


class Client:
    """Who asked, and what was sent to them: stands for Triton's response sender too."""

    def __init__(self, number):
        self.number, self.got, self.has_left = number, [], False

    def send(self, response=None, flags=0):
        assert FINAL not in [flags for _, flags in self.got], "nothing may follow a final response: Triton crashes"
        error = None if response is None or response.error is None else str(response.error)
        self.got.append((error or (response and "a token"), flags))

    def is_cancelled(self):
        assert FINAL not in [flags for _, flags in self.got], "asked after the final response, Triton crashes"
        return self.has_left


class Request:
    """A client's request in one execution; `release` is what it was told to become, None while it was told nothing."""

    def __init__(self, client, start=False, end=False, ready=True):
        self.client, self.release, self.controls = client, None, {"start": start, "end": end, "ready": ready}

    def inputs(self):
        values = {"correlation_id": np.array([[self.client.number]], np.uint64)}
        values |= {name: np.array([[float(value)]], np.float32) for name, value in self.controls.items()}
        return [simulate_triton.Tensor(name, array) for name, array in values.items()]

    def get_response_sender(self):
        return self.client

    def is_cancelled(self):
        return self.client.has_left

    def set_release_flags(self, flags):
        assert self.release is None, "a request is told twice what becomes of it"
        self.release = flags


class House:
    """A `Housekeeping` whose states are "state of N", with what it began, forgot and told, in order."""

    def __init__(self, iterative, quiet_s):
        iterative.QUIET_S = quiet_s
        self.clock = iterative.time = Clock()
        self.events, self.changes, self.before_it_begins = [], 0, lambda: None
        self.keeps = iterative.Housekeeping(ARGS, self.begin, self.forget, self.changed)

    def begin(self, request):
        self.before_it_begins()
        self.events.append(f"begin {request.client.number}")
        if request.client.number == 13:
            raise CourseError("Thirteen is no prompt: send another.")
        if request.client.number == 14:
            raise ZeroDivisionError
        return f"state of {request.client.number}"

    def forget(self, state):
        self.events.append(f"forget {state}")

    def changed(self):
        self.changes += 1

    def run(self, *requests, ends=(), fails=None):
        """One execution: the numbers in `ends` end, the others come again; the members there were."""
        with self.keeps.execution(requests) as execution:
            for member in execution.members:
                if member.number == fails:
                    raise RuntimeError("the pass failed")
                self.keeps.end(member) if member.number in ends else self.keeps.again(member)
        return execution


@pytest.fixture
def make(iterative):
    """A house, whose own thread does nothing unless it is to look often."""
    houses = []

    def new(looks_often=False):
        houses.append(House(iterative, SHORT_S if looks_often else 3600.0))
        return houses[-1]

    yield new
    for house in houses:
        house.keeps.close()


@pytest.fixture
def house(make):
    return make()


# Begin and end --------------------------------------------------------------------------------------------------------


def test_a_sequence_comes_again_with_its_state_until_it_ends(house):
    one, two = Client(1), Client(2)
    execution = house.run(Request(one, start=True), Request(two, start=True))
    assert [(member.number, member.is_new, member.state) for member in execution.members] == [
        (1, True, "state of 1"),
        (2, True, "state of 2"),
    ]
    later = house.run(Request(two), Request(one), ends=[1])
    assert [(member.number, member.is_new, member.state) for member in later.members] == [
        (2, False, "state of 2"),
        (1, False, "state of 1"),
    ]
    assert house.keeps.states == ["state of 2"], "in the order of their start, and without the one that has ended"
    assert house.events == ["begin 1", "begin 2", "forget state of 1"] and house.changes == 2


def test_a_final_response_leaves_only_when_the_next_execution_has_come(house):
    one, two, three = Client(1), Client(2), Client(3)
    requests = [Request(one, start=True), Request(two, start=True)]
    house.run(*requests, ends=[1])
    assert [request.release for request in requests] == [RELEASE_ALL, RESCHEDULE]
    assert one.got == [], "its request is released after the execution, and until then nothing final may leave"
    got_by_then = []
    house.before_it_begins = lambda: got_by_then.extend(one.got)
    house.run(Request(two), Request(three, start=True))
    assert got_by_then == one.got == [(None, FINAL)], "before anything new is taken up"
    house.run(Request(two), Request(three))
    assert one.got == [(None, FINAL)] and two.got == three.got == []


def test_responses_have_all_left_before_it_goes_on(house):
    clients = [Client(number) for number in range(1, 7)]
    together = threading.Barrier(3, timeout=60)  # of four senders, so that one member alone would wait for ever
    with house.keeps.execution([Request(client, start=True) for client in clients]) as execution:

        def response(member):
            together.wait()
            return simulate_triton.InferenceResponse()

        house.keeps.send(execution.members, response)
        got = [list(client.got) for client in clients]
        for member in execution.members:
            house.keeps.again(member)
    assert got == [[("a token", 0)]] * 6


# What goes wrong ------------------------------------------------------------------------------------------------------


def test_what_is_raised_is_the_error_of_those_that_were_not_told_yet(house):
    clients = [Client(number) for number in (1, 2, 3, 4)]
    requests = [Request(client, start=True) for client in clients]
    house.run(*requests, ends=[1], fails=3)
    assert [request.release for request in requests] == [RELEASE_ALL, RESCHEDULE, RELEASE_ALL, RELEASE_ALL]
    assert house.keeps.states == ["state of 2"] and house.changes == 1
    house.run(Request(clients[1]))
    told = [[(said and "RuntimeError" in said, flags) for said, flags in client.got] for client in clients]
    assert told == [[(None, FINAL)], [], [(True, FINAL)], [(True, FINAL)]]


@pytest.mark.parametrize(("number", "fact"), [(13, "Thirteen is no prompt"), (14, "ZeroDivisionError")])
def test_a_request_that_cannot_begin_is_told_and_hurts_nobody(house, number, fact):
    wrong, right = Client(number), Client(1)
    requests = [Request(wrong, start=True), Request(right, start=True)]
    assert [member.number for member in house.run(*requests).members] == [1]
    assert requests[0].release == RELEASE_ALL and house.keeps.states == ["state of 1"]
    house.run(Request(right))
    ((said, flags),) = wrong.got
    assert fact in said and flags == FINAL and right.got == []


# Clients that leave ---------------------------------------------------------------------------------------------------


def test_who_left_before_the_end_has_its_place_freed_by_triton(house):
    """Released, the place of a cancelled request is kept for ever; rescheduled, Triton ends it itself."""
    client = Client(1)
    house.run(Request(client, start=True))
    client.has_left, request = True, Request(client)
    house.run(request, ends=[1])
    house.run()
    assert request.release == RESCHEDULE and client.got == [] and house.events == ["begin 1", "forget state of 1"]


def test_who_leaves_while_it_is_queued_is_forgotten_without_a_word(house):
    gone, stays = Client(1), Client(2)
    house.run(Request(gone, start=True), Request(stays, start=True))
    gone.has_left = True
    house.clock.now_s += 0.01
    house.run(Request(stays))
    assert house.keeps.states == ["state of 2"] and house.events[-1] == "forget state of 1" and gone.got == []


def test_who_was_not_computed_for_twice_the_idle_time_is_told(house):
    lost, stays = Client(1), Client(2)
    house.run(Request(lost, start=True), Request(stays, start=True))
    house.clock.now_s += 2 * IDLE_S
    house.run(Request(stays))
    assert len(house.keeps.states) == 2 and lost.got == [], "Triton may still bring it"
    house.clock.now_s += 0.1
    house.run(Request(stays))
    ((said, flags),) = lost.got
    assert "5,000,000 µs" in said and flags == FINAL
    assert house.keeps.states == ["state of 2"] and house.run(Request(lost), Request(stays)).members[0].number == 2


# When no execution comes ----------------------------------------------------------------------------------------------


def test_endings_leave_by_themselves_once_triton_has_had_its_time(make, iterative):
    house, client = make(looks_often=True), Client(1)
    house.run(Request(client, start=True), ends=[1])
    enough = house.clock.looks + 20
    wait_until(lambda: house.clock.looks > enough, "it looks, and no time has passed since the execution")
    assert client.got == []
    house.clock.now_s += 2 * iterative.QUIET_S
    wait_until(lambda: client.got, "the final response has left")
    assert client.got == [(None, FINAL)]
    wait_until(lambda: house.changes > 1, "what changed is told")


def test_what_is_left_leaves_at_the_end(iterative):
    house, client = House(iterative, 3600.0), Client(1)
    house.run(Request(client, start=True), ends=[1])
    house.keeps.close()
    assert client.got == [(None, FINAL)]
