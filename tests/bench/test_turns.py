"""Ways that take turns: their order, their rounds, and what is left of them when somebody ends it."""

import pytest

from inflight.bench.turns import ratio, result, take_turns


def test_the_order_turns_around_and_the_first_round_is_not_counted():
    called, told = [], []

    def way(name):
        return lambda: called.append(name) or len(called)

    turns = take_turns({"a": way("a"), "b": way("b")}, 2, lambda *step: told.append(step))
    assert called == ["b", "a", "a", "b", "b", "a"]
    assert turns == {"a": [3, 6], "b": [4, 5]}
    assert told[0] == ("warm-up: b", 0, 6) and told[-1] == ("round 2 of 2: a", 5, 6)


def test_without_a_warm_up_the_first_round_counts():
    assert take_turns({"a": lambda: 1, "b": lambda: 2}, 1, warm_up=False) == {"a": [1], "b": [2]}


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_leaves_the_rounds_that_are_whole(interrupt):
    def ended_at(call):
        calls = iter(range(100))

        def way():
            if next(calls) == call:
                raise interrupt
            return call

        return way

    assert take_turns({"a": lambda: 1, "b": ended_at(2)}, 5) == {"a": [1], "b": [2]}
    with pytest.raises(interrupt):
        take_turns({"a": lambda: 1, "b": ended_at(1)}, 5)


def test_a_ratio_is_taken_round_by_round():
    assert ratio([2.0, 9.0, 4.0], [1.0, 3.0, 1.0]) == {"median": 3.0, "min": 2.0, "max": 4.0}


def test_a_result_has_its_machine():
    found = result({"rounds": 1}, [{"way": "a"}], {}, more=1)
    assert list(found) == ["machine", "settings", "rows", "ratios", "more"] and found["machine"]["cores"] >= 1
