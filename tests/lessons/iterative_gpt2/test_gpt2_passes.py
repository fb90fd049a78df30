"""Lesson 08's table of forward passes, from the log of an iterative model."""

import pandas as pd

from inflight.lessons.iterative_gpt2 import passes


def test_passes_are_counted_from_one_and_sequences_in_the_order_of_their_start():
    log = pd.DataFrame({"sequences": [[[7, True, 0, 6, 5]], [[7, False, 0, 7, 1], [9, True, 1, 4, 3]]]})
    assert passes(log).values.tolist() == [
        [1, 1, 7, True, 0, 6, 5],
        [2, 1, 7, False, 0, 7, 1],
        [2, 2, 9, True, 1, 4, 3],
    ]
