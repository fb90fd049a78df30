"""GPT-2, a token at a time: after each, Triton puts the batch together anew. Its KV cache: inflight/models/gpt2.py."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count

import numpy as np
import triton_python_backend_utils as pb_utils

from inflight.errors import CourseError
from inflight.models import gpt2
from inflight.triton import python_model

QUIET_S = 0.1  # more than Triton takes to release a request, or to come back with one, after an execution
NUM_SENDERS = 4  # tokens that leave at the same time
GAUGES = "inflight_gpt2_kv_cache_slots"  # slots in use, slots in all, and sequences under way
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
RELEASE_ALL = pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL
RESCHEDULE = pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE


@dataclass
class State:
    """What is kept of a request from one execution to the next."""

    sequence: gpt2.Sequence
    sender: object  # of the responses, as Triton gave it in the latest execution
    last_seen_s: float


class TritonPythonModel:
    """Input, output and request parameters as in config.pbtxt; one response a token, one forward pass an execution.

    A request comes again and again, always with its text. The correlation id tells which sequence it is, `start` that
    it is there for the first time. At the end of each execution it is rescheduled, or released for good.
    """

    def initialize(self, args):
        parameters = python_model.parameters(args)
        self.refuses = parameters["when_full"] == "refuse"
        self.model = gpt2.load(
            parameters["checkpoint_dir"],
            parameters["kv_cache"],
            parameters["dtype"],
            parameters["kv_cache_slots"],
            python_model.device(args),
        )
        self.log, self.numbers = python_model.ExecutionLog(parameters["iteration_log_path"]), count(1)
        batching = json.loads(args["model_config"])["sequence_batching"]
        self.idle_s = int(batching["max_sequence_idle_microseconds"]) / 1e6
        self.states = {}  # correlation id -> State
        self.endings = []  # sender, and error if there is one, of sequences whose requests Triton is about to release
        self.executed_s = 0.0
        self.gauges = python_model.Gauges(args, {GAUGES: ("KV cache of iterative-gpt2", "kind")})
        self.shown_state = None
        self._show_state()
        self.lock, self.closing = threading.Lock(), threading.Event()
        self.pool = ThreadPoolExecutor(NUM_SENDERS)
        self.housekeeper = threading.Thread(target=self._keep_house, daemon=True)
        self.housekeeper.start()

    def execute(self, requests):
        with self.lock:
            self._send_endings()
            timestamp, start_s = time.time(), time.monotonic()
            # Where a place of the batch has no request now, one that is not ready keeps it.
            ready = [request for request in requests if _control(request, "ready")]
            batch = [row for row in (self._take_up(request, start_s) for request in ready) if row]
            self._forget_lost(start_s)
            batch, num_waiting = self._with_room(batch)
            try:
                if batch:
                    self._step(batch, timestamp, start_s, waiting=num_waiting, empty_places=len(requests) - len(ready))
            except Exception as error:  # nobody is left without an end
                for row in batch:
                    self._end(*row, error)
                batch = []
            # All at once: each is a message to the server and back. None may be under way when requests are released.
            list(self.pool.map(self._send_token, batch))
            for row in batch:
                self._release(*row)
            self._mark_seen(start_s)
            self._show_state()
            self.executed_s = time.monotonic()

    def finalize(self):
        with self.lock:
            self._send_endings()
        self.closing.set()
        self.housekeeper.join()
        self.pool.shutdown()

    # Before the forward pass ------------------------------------------------------------------------------------------

    def _take_up(self, request, now_s):
        """Request, correlation id and response sender, or None when there is nothing to compute."""
        number, sender = _control(request, "correlation_id"), request.get_response_sender()
        try:
            if _control(request, "start"):
                self._forget(number)
                self.states[number] = State(self._sequence(request), sender, now_s)
        except Exception as error:
            self._end(request, number, sender, error)
            return None
        if number not in self.states:  # it was given up, and has been told so
            return None
        self.states[number].sender, self.states[number].last_seen_s = sender, now_s
        return request, number, sender

    def _sequence(self, request):
        if _control(request, "end"):
            raise CourseError(
                "The request says that its sequence ends with it: leave sequence_end out, the model ends it."
            )
        return self.model.sequence(python_model.prompt(request), python_model.request_parameters(request))

    def _forget_lost(self, now_s, unseen_s=0.0):
        """Forget sequences, unseen for so long, that will not come again.

        Triton drops a request whose client is gone while it is queued, and one that idles, without a word to the model.
        It looks for idle ones once in their time, so that after twice the time it has done so; their clients still
        wait.
        """
        for number, state in list(self.states.items()):
            unseen_now_s = now_s - state.last_seen_s
            if unseen_now_s > 2 * self.idle_s:
                self._forget(number)
                state.sender.send(
                    python_model.error_response(
                        CourseError(
                            f"The request was not computed for {self.idle_s * 1e6:,.0f} µs and was given up: send it "
                            "again, or set max_sequence_idle_microseconds higher."
                        )
                    ),
                    flags=FINAL,
                )
            # No state is left of a sequence that had its final response, after which Triton crashes when it is asked.
            elif unseen_now_s > unseen_s and state.sender.is_cancelled():
                self._forget(number)

    def _with_room(self, batch):
        """The rows that have room in the KV cache, and how many wait for it until the next execution.

        With `refuses`, none waits: who finds no room gets an error.
        """
        # In the order of their start: who has waited longest is next, in this batch or not.
        joined = {number for number, state in self.states.items() if self.model.join(state.sequence)}
        others = [row for row in batch if row[1] not in joined]
        for request, number, sender in others:
            if self.refuses:
                error = CourseError(
                    f"All {self.model.num_slots} slots of the KV cache are taken: send the request again later, "
                    "or set kv_cache_slots higher."
                )
                self._end(request, number, sender, error)
            else:
                request.set_release_flags(RESCHEDULE)
        return [row for row in batch if row[1] in joined], 0 if self.refuses else len(others)

    # The forward pass, and after it -----------------------------------------------------------------------------------

    def _step(self, batch, timestamp, start_s, **counts):
        """A token for each. The log's line is written first, so that whoever has a response finds it there."""
        sequences = {number: self.states[number].sequence for _, number, _ in batch}
        starts = {number: bool(_control(request, "start")) for request, number, _ in batch}
        computed = {number: len(sequence.token_ids) - sequence.num_cached for number, sequence in sequences.items()}
        self.model.step(list(sequences.values()))
        self.log.write(
            timestamp=timestamp,
            iteration=next(self.numbers),
            iteration_ms=(time.monotonic() - start_s) * 1000,
            sequences=[
                [number, starts[number], sequence.slot, len(sequence.token_ids), computed[number]]
                for number, sequence in sequences.items()
            ],
            slots_used=self.model.num_used_slots,
            slots_max=self.model.num_slots,
            **counts,
        )

    def _send_token(self, row):
        _, number, sender = row
        piece = np.array([[self.model.last_piece(self.states[number].sequence).encode("utf-8")]], np.object_)
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("text_output", piece)]))

    def _release(self, request, number, sender):
        if self.states[number].sequence.is_finished:
            self._end(request, number, sender)
        else:
            request.set_release_flags(RESCHEDULE)

    def _end(self, request, number, sender, error=None):
        """Have the request released; the final response, which is empty or the error, leaves after that.

        Triton keeps the place of a request that is cancelled by the time of its release, and clients do cancel as soon
        as they have the final response. The place of a cancelled request is freed when it is to be scheduled again;
        then Triton answers it itself.
        """
        self._forget(number)
        if request.is_cancelled():
            request.set_release_flags(RESCHEDULE)
        else:
            request.set_release_flags(RELEASE_ALL)
            self.endings.append((sender, error))

    def _send_endings(self):
        """Final responses of the execution before, whose requests are released when another one begins."""
        for sender, error in self.endings:
            sender.send(error and python_model.error_response(error), flags=FINAL)
        self.endings = []

    def _keep_house(self):
        """Do what each execution does besides when none comes. Triton does not tell when it has released a request."""
        while not self.closing.wait(QUIET_S):
            with self.lock:
                now_s = time.monotonic()
                if now_s - self.executed_s >= QUIET_S:
                    self._forget_lost(now_s, QUIET_S)
                    self._send_endings()
                    self._show_state()

    def _mark_seen(self, start_s):
        """To Triton a sequence idles from the end of its execution on, which is when it is rescheduled."""
        now_s = time.monotonic()
        for state in self.states.values():
            if state.last_seen_s == start_s:
                state.last_seen_s = now_s

    def _forget(self, number):
        if number in self.states:
            self.model.leave(self.states.pop(number).sequence)

    def _show_state(self):
        state = {"used": self.model.num_used_slots, "max": self.model.num_slots, "sequences": len(self.states)}
        if state != self.shown_state:
            self.gauges.show(GAUGES, state)
            self.shown_state = state


def _control(request, name):
    return python_model.scalar(request, name)
