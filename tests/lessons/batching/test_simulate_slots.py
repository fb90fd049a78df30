"""The slots of lesson 04 on paper, worked out by hand."""

from inflight.lessons.batching.simulate import latencies, schedule


def test_static_takes_the_longest_of_each_batch():
    stays = schedule([4, 2, 3, 1], slots=2, gpt_model_type="V1")
    assert stays[["slot", "first", "last"]].values.tolist() == [[1, 1, 4], [2, 1, 2], [1, 5, 7], [2, 5, 5]]


def test_in_flight_a_slot_is_taken_as_it_gets_free():
    stays = schedule([4, 2, 3, 1], slots=2, gpt_model_type="inflight_fused_batching")
    assert stays[["slot", "first", "last"]].values.tolist() == [[1, 1, 4], [2, 1, 2], [2, 3, 5], [1, 5, 5]]


def test_latency_counts_the_wait_and_static_answers_leave_together():
    lengths, arrivals = [4, 2, 3, 1, 5], [0, 1, 2, 3, 100]
    assert latencies(lengths, 2, "V1", arrivals) == [4, 6, 5, 5, 5]
    assert latencies(lengths, 2, "inflight_fused_batching", arrivals) == [4, 2, 4, 2, 5]
