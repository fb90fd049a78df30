"""GPT-2, a token at a time: after each, Triton puts the batch together anew. The KV cache is in inflight/gpt2.py."""

import json
import threading
import time
from dataclasses import dataclass

import numpy as np
import triton_python_backend_utils as pb_utils

from inflight import gpt2, triton_model
from inflight.errors import CourseError

CHECK_PERIOD_S = 0.1  # how often to look for clients that are gone while nothing is computed
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
RESCHEDULE = pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE


@dataclass
class State:
    """What is kept of a request from one execution to the next."""

    sequence: gpt2.Sequence
    sender: object  # of the responses, as Triton gave it in the latest execution
    last_seen_s: float


class TritonPythonModel:
    """Input, output and request parameters as in config.pbtxt; one response a token, one forward pass an execution.

    A request comes again and again, always with its text. The correlation id tells which sequence it is, `start` that it is
    there for the first time. At the end of each execution it is rescheduled, or released for good.
    """

    def initialize(self, args):
        parameters = triton_model.parameters(args)
        self.refuses = parameters.pop("when_full") == "refuse"
        self.model = gpt2.load(parameters["checkpoint_dir"], parameters["kv_cache"], parameters["dtype"],
                               parameters["kv_cache_slots"])
        batching = json.loads(args["model_config"])["sequence_batching"]
        self.idle_s = int(batching["max_sequence_idle_microseconds"]) / 1e6
        self.states = {}  # correlation id -> State, the oldest first
        self.gauges = Gauges(args)
        self._show_state()
        self.lock, self.closing = threading.Lock(), threading.Event()
        self.housekeeper = threading.Thread(target=self._keep_house, daemon=True)
        self.housekeeper.start()

    def execute(self, requests):
        with self.lock:
            now_s = time.monotonic()
            batch = [row for row in (self._take_up(request, now_s) for request in requests) if row]
            self._forget_lost(now_s)
            batch = self._with_room(batch)
            if batch:
                self.model.step([self.states[number].sequence for _, number, _ in batch])
            for row in batch:
                self._respond(*row)
            self._show_state()

    def finalize(self):
        self.closing.set()
        self.housekeeper.join()

    # Before the forward pass ------------------------------------------------------------------------------------------

    def _take_up(self, request, now_s):
        """Request, correlation id and response sender, or None when there is nothing to compute."""
        number, sender = _control(request, "correlation_id"), request.get_response_sender()
        if not _control(request, "ready"):  # it only keeps a place in the batch that has no request now
            sender.send(flags=FINAL)
            return None
        if request.is_cancelled():
            self._forget(number)
            request.set_release_flags(RESCHEDULE)  # see _end
            return None
        try:
            if _control(request, "start"):
                self._forget(number)
                self.states[number] = State(self._sequence(request), sender, now_s)
            elif number not in self.states:
                raise CourseError(f"The request was not computed for {self.idle_s:g} s and was given up: send it again, or "
                                  "set max_sequence_idle_microseconds higher.")
        except CourseError as error:
            self._end(request, number, sender, triton_model.error_response(error))
            return None
        self.states[number].sender, self.states[number].last_seen_s = sender, now_s
        return request, number, sender

    def _sequence(self, request):
        if _control(request, "end"):
            raise CourseError("The request says that its sequence ends with it: leave sequence_end out, the model ends it.")
        [text] = triton_model.array(request, "text_input").reshape(-1)  # Triton has seen to it that there is one
        return self.model.sequence(text, json.loads(request.parameters() or "{}"))

    def _forget_lost(self, now_s, unseen_s=0.0):
        """Forget sequences, unseen for so long, that will not come again.

        Triton drops a request whose client is gone while it is queued, and one that idles, without a word to the model.
        """
        for number, state in list(self.states.items()):
            idle_s = now_s - state.last_seen_s
            # No state is left of a sequence that had its final response, after which Triton crashes when it is asked.
            if idle_s > unseen_s and (idle_s > self.idle_s or state.sender.is_cancelled()):
                self._forget(number)

    def _keep_house(self):
        """Forget them too when no execution comes."""
        while not self.closing.wait(CHECK_PERIOD_S):
            with self.lock:
                self._forget_lost(time.monotonic(), CHECK_PERIOD_S)
                self._show_state()

    def _with_room(self, batch):
        """The rows that have room in the KV cache; the others wait for the next execution, or are refused."""
        joined = {number for number, state in self.states.items() if self.model.join(state.sequence)}
        for request, number, sender in batch:
            if number in joined:
                continue
            if self.refuses:
                error = CourseError(f"All {self.model.num_slots} slots of the KV cache are taken: send the request again later, "
                                    "or set kv_cache_slots higher.")
                self._end(request, number, sender, triton_model.error_response(error))
            else:
                request.set_release_flags(RESCHEDULE)
        return [row for row in batch if row[1] in joined]

    # After it ---------------------------------------------------------------------------------------------------------

    def _respond(self, request, number, sender):
        sequence = self.states[number].sequence
        piece = np.array([[self.model.last_piece(sequence).encode("utf-8")]], np.object_)
        response = pb_utils.InferenceResponse([pb_utils.Tensor("text_output", piece)])
        if sequence.is_finished:
            self._end(request, number, sender, response)
        else:
            request.set_release_flags(RESCHEDULE)
            sender.send(response)

    def _end(self, request, number, sender, response):
        """The last response, and the request's release.

        A client may be gone by now. Triton keeps the place of a cancelled sequence when it is released, and frees it when
        it is to be scheduled again; then it answers the request itself.
        """
        self._forget(number)
        if request.is_cancelled():
            request.set_release_flags(RESCHEDULE)
        else:
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL)
            sender.send(response, flags=FINAL)

    def _forget(self, number):
        if number in self.states:
            self.model.leave(self.states.pop(number).sequence)

    def _show_state(self):
        self.gauges.show(used=self.model.num_used_slots, max=self.model.num_slots, sequences=len(self.states))


def _control(request, name):
    return triton_model.scalar(request, name)


class Gauges:
    """The KV cache at Triton's /metrics: slots in use, slots in all, and sequences under way."""

    def __init__(self, args):
        # Kept: Triton forgets the values with the family.
        self._family = pb_utils.MetricFamily(name="inflight_gpt2_kv_cache_slots", description="KV cache of iterative-gpt2",
                                             kind=pb_utils.MetricFamily.GAUGE)
        self._labels = {"model": args["model_name"], "version": args["model_version"]}
        self._gauges, self._shown = {}, {}

    def show(self, **values):
        for kind, value in values.items():
            if self._shown.get(kind) != value:  # setting one takes a message to the server
                if kind not in self._gauges:
                    self._gauges[kind] = self._family.Metric(labels={**self._labels, "kind": kind})
                self._gauges[kind].set(value)
                self._shown[kind] = value
