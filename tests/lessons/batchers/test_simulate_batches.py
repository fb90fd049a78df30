"""The dynamic batcher on paper: batches by hand, figures by hand, and what holds for any arrivals."""

import random

from inflight.bench import workload
from inflight.lessons.batchers.simulate import simulate


def test_batches_and_figures_by_hand():
    played = simulate([0, 10, 20], 0, 8, fixed_ms=40, item_ms=5)
    assert played.sizes == [1, 2] and played.latencies_ms.tolist() == [45, 85, 75]
    assert (played.mean_batch, round(played.p95_ms, 6)) == (1.5, 84.0)
    assert simulate([0, 30, 70, 300], 100, 8, 40, 4).sizes == [3, 1], "a delay counts from the oldest"
    assert simulate([0, 60], 60, 8, 40, 4).sizes == [2], "who comes at the very end of the delay is in"


def test_everybody_is_served_once_by_one_model_that_does_one_batch_at_a_time():
    seed = 6
    print("seed", seed)
    draw = random.Random(seed)
    for _ in range(50):
        arrivals_ms = [1000 * at_s for at_s in workload.poisson(30, rate=draw.uniform(5, 200), seed=draw.randrange(99))]
        played = simulate(
            arrivals_ms, draw.choice([0, 20, 150]), most := draw.choice([1, 3, 8]), fixed_ms=40, item_ms=4
        )
        assert sum(played.sizes) == 30 and 1 <= min(played.sizes) <= max(played.sizes) <= most
        ends_ms = sorted(set((played.latencies_ms + arrivals_ms).round(6)))
        costs_ms = [40 + 4 * size for size in played.sizes]
        assert all(later - earlier >= cost - 1e-5 for earlier, later, cost in zip(ends_ms, ends_ms[1:], costs_ms[1:]))
