"""What takes too long is ended, by one thread for all that is under way."""

import threading

from inflight.bench import time_limits
from inflight.bench.time_limits import TimeLimits


def watchers():
    return [thread for thread in threading.enumerate() if thread.name == "time limits"]


def test_what_takes_too_long_is_cut_and_what_is_over_is_not():
    limits, late, later, never = TimeLimits(), threading.Event(), threading.Event(), threading.Event()
    with limits.within(60, never.set), limits.within(0.02, late.set), limits.within(0.04, later.set):
        assert late.wait(10) and later.wait(10)
    with limits.within(0.02, never.set):
        pass
    after = threading.Event()
    with limits.within(0.04, after.set):
        assert after.wait(10) and not never.is_set()


def test_one_thread_watches_all_and_stays_for_the_next_but_not_for_ever(monkeypatch):
    before, limits = watchers(), TimeLimits()
    seen = set()
    for _ in range(5):
        with limits.within(60, lambda: None), limits.within(30, lambda: None):
            seen |= set(watchers()) - set(before)
    [thread] = seen
    monkeypatch.setattr(time_limits, "LINGER_S", 0.01)
    done = threading.Event()
    with limits.within(0.0, done.set):
        assert done.wait(10)
    thread.join(10)
    assert not thread.is_alive()
    again = threading.Event()
    with limits.within(0.0, again.set):
        assert again.wait(10)
