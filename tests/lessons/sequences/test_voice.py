"""The network with a state of lesson 07, against what its makers' package says."""

import numpy as np

from inflight.lessons.sequences import Voice, two_lines

# Frames of the two lines in which the package `silero-vad` 6.2.3 hears somebody.
HEARD = (
    "...........##########..##################################.......................",
    "...............................................###################.###.#########",
)


def test_two_lines_in_one_pass_are_heard_as_their_package_hears_each():
    network, heard = Voice(), ["", ""]
    states = np.zeros((2, network.size))
    for frames in two_lines().swapaxes(0, 1):
        scores, states = network(frames, states)
        heard = [own + (".", "#")[int(score > 0.5)] for own, score in zip(heard, scores)]
    assert tuple(heard) == HEARD
