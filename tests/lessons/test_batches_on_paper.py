"""The dynamic batcher on paper: batches by hand, figures by hand, and what holds for any arrivals."""

import random

import pytest

from inflight.bench import workload
from inflight.lessons.batchers.batches_on_paper import batches_on_paper, in_figures, most_a_second


@pytest.mark.parametrize(
    ("arrivals_ms", "delay_ms", "most", "sizes"),
    [
        ([0, 10, 21, 32, 43], 0, 8, [1, 4]),  # the second batch is what came during the first
        (list(range(12)), 0, 4, [1, 4, 4, 3]),  # no batch holds more than it may
        ([0, 30, 70, 300], 100, 8, [3, 1]),  # a delay counts from the oldest
        (list(range(8)), 1000, 8, [8]),  # a full batch does not wait for it
        ([0, 60], 60, 8, [2]),  # who comes at the very end of the delay is in
    ],
)
def test_batches_by_hand(arrivals_ms, delay_ms, most, sizes):
    assert batches_on_paper(arrivals_ms, delay_ms, most, fixed_ms=40, item_ms=4)["size"].tolist() == sizes


def test_figures_by_hand():
    arrivals_ms = [0, 10, 20]
    batches = batches_on_paper(arrivals_ms, 0, 8, fixed_ms=40, item_ms=5)
    assert batches.values.tolist() == [[0, 45, 1], [45, 95, 2]]
    figures = in_figures(arrivals_ms, batches)
    assert (figures.mean_batch, figures.busy) == (1.5, 1.0)
    assert (figures.p50_ms, figures.wait_ms) == (75.0, (0 + 35 + 25) / 3)
    assert round(figures.p95_ms, 6) == 84.0


def test_everybody_is_served_once_by_one_model_that_does_one_batch_at_a_time():
    seed = 6
    print("seed", seed)
    draw = random.Random(seed)
    for _ in range(50):
        arrivals_ms = [1000 * at_s for at_s in workload.poisson(30, rate=draw.uniform(5, 200), seed=draw.randrange(99))]
        delay_ms, most = draw.choice([0, 20, 150]), draw.choice([1, 3, 8])
        batches = batches_on_paper(arrivals_ms, delay_ms, most, fixed_ms=40, item_ms=4)
        assert batches["size"].sum() == 30 and batches["size"].between(1, most).all()
        assert (batches["start_ms"].iloc[1:].to_numpy() >= batches["end_ms"].iloc[:-1].to_numpy()).all()
        figures = in_figures(arrivals_ms, batches)
        assert 0 < figures.busy <= 1 and figures.p50_ms <= figures.p95_ms and figures.wait_ms >= 0


def test_more_than_full_batches_serve_makes_the_queue_grow_for_as_long_as_they_come():
    most = most_a_second(8, fixed_ms=40, item_ms=4)
    assert round(most, 1) == 111.1

    def last_wait_ms(rate, number):
        arrivals_ms = [1000 * place / rate for place in range(number)]
        return batches_on_paper(arrivals_ms, 0, 8, 40, 4)["start_ms"].iloc[-1] - arrivals_ms[-1]

    assert last_wait_ms(0.9 * most, 800) < 100
    assert last_wait_ms(2 * most, 800) > 1.9 * last_wait_ms(2 * most, 400) > 1000
