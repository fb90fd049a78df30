"""Gives texts back word by word: one word of each stream in each call of `execute`."""

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
RESCHEDULE = pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE


def value(request, name):
    """The one value of an input of a request."""
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy().reshape(-1)[0]


class State:
    """What is known of a stream from one call to the next."""

    def __init__(self, words):
        self.words = words
        self.sender = None  # of its responses, as Triton gave it in the latest call


class TritonPythonModel:
    def initialize(self, args):
        self.states = {}  # by correlation id

    def execute(self, requests):
        ready = [request for request in requests if value(request, "READY")]
        for request in ready:
            if value(request, "START"):
                words = value(request, "text").decode().split()
                self.states[int(value(request, "ID"))] = State(words)
        for request in ready:
            self.step(request, int(value(request, "ID")))
        # Triton drops a queued request silently when its client leaves.
        for who, state in list(self.states.items()):
            if state.sender.is_cancelled():
                del self.states[who]
        return None

    def step(self, request, who):
        if request.is_cancelled():
            self.states.pop(who, None)
            # Triton frees the slot when it is about to schedule the request again.
            request.set_release_flags(RESCHEDULE)
            return
        state, sender = self.states[who], request.get_response_sender()
        state.sender = sender
        word = state.words.pop(0) if state.words else ""
        output = pb_utils.Tensor("word", np.array([[word.encode()]], object))
        if state.words:
            sender.send(pb_utils.InferenceResponse([output]))
            request.set_release_flags(RESCHEDULE)
        else:
            del self.states[who]
            sender.send(pb_utils.InferenceResponse([output]), flags=FINAL)
