"""Lab 07: a gateway's marks, a model that asks to be called again, and many microphones for one network.

A learner's model is played in a process of its own, as Triton would play it, on hidden texts.
"""

import copy
import random
from collections.abc import Callable
from functools import partial

import numpy as np

from inflight.errors import CourseError
from inflight.lessons.sequences.voice import FRAME, Piece
from inflight.notebook.checks import grades
from inflight.notebook.checks.answers import load, plain
from inflight.notebook.checks.findings import NOT_YET, RIGHT, Case, Finding, Measured, Wrong, asked
from inflight.notebook.checks.simulate_triton import Names, SimulatedRun, SimulatedStream, Triton

Event = tuple[int, int | None, float]  # who; a number, or None: the page was closed; when
IDLE_S = 4  # Triton waits five: a gateway that waits as long may be too late


@grades("7.1", "From START to END a sequence keeps its slot, so a forgotten END keeps everybody else waiting.")
def _marks(marks: Callable, choose: random.Random) -> dict[str, Callable[[], Finding]]:
    talks: list[list[Event]] = [
        [(1, 5, 0.5), (1, 6, 1)],
        [(1, 5, 0.5), (2, 1, 1), (1, 6, 2), (1, None, 3), (2, 3, 4)],
        [(1, 5, 0.5), (1, None, 2), (1, 7, 3), (2, None, 4)],
        [(1, 5, 0.5), (1, 6, 4), (1, 7, 7.5)],
        [(1, 5, 0.5), (1, 6, 4), (1, None, 7.5)],
        [(1, 5, 0.5), (1, 6, 5), (1, 7, 5.5)],
        [(1, 5, 0.5), (1, None, 5), (1, 7, 5.5)],
        *([(2, 1, 0.3), *_events(choose, 11)] for _ in range(3)),  # twelve events: a message shows no more
    ]
    # The first that is wrong ends with the event that is answered wrong.
    cases = [events[:number] for events in talks for number in range(1, len(events) + 1)]

    def right(who: int, value: int | None, now_s: float, talking: dict) -> dict | None:
        start, end = now_s - talking.pop(who, -IDLE_S) >= IDLE_S, value is None
        talking |= {} if end else {who: now_s}
        return {"sequence_id": who, "sequence_start": start, "sequence_end": end} if not (start and end) else None

    def made(function: Callable, name: str, events: list[Event]) -> list | None:
        talking: dict = {}
        all_marks = [function(*event, talking) for event in events]
        nothing = None if name == "sequence_id" else False
        return None if all_marks[0] is None else [one[name] if one else nothing for one in all_marks]

    def part(name: str) -> Callable[[], Finding]:
        hint = (
            "A user who is not talking begins with a number, and ends by closing the page, or by four seconds of "
            "silence; None: nothing is sent."
        )
        return lambda: asked(
            partial(made, marks, name),
            [
                Case(
                    (events,), made(right, name, events), hint, f"{name} of each event (who, value, now_s) of {events}"
                )
                for events in cases
            ],
        )

    return {name: part(name) for name in ("sequence_id", "sequence_start", "sequence_end")}


def _events(choose: random.Random, number: int) -> list[Event]:
    """One every 0.7 seconds from the first on, at 0.3: never two of a user just four seconds apart."""
    users = [choose.randrange(1, 6) for _ in range(number)]
    return [(who, choose.choice([None, choose.randrange(9)]), round(1 + 0.7 * nth, 1)) for nth, who in enumerate(users)]


# Exercise 7.2 ---------------------------------------------------------------------------------------------------------

NAMES = Names("text", "ID", "START", "READY", "word")
SLOTS = 4
TRIAL_S = 30  # for a learner's model: it takes a second
# Of streams that are over: states, words, senders, wherever they are. One stream has four of them and more.
MOST_LEFT = 4
NEVER = {
    "num_without": ("ready requests that got no word", "All that are ready are computed in one call."),
    "num_together": (
        "words that came in one call with another of their stream",
        "One word of each stream in a call: then the request goes back into the queue.",
    ),
    "num_released": (
        "cancelled requests released at once",
        "Their slots stay taken: reschedule a cancelled request, and Triton frees its slot.",
    ),
    "num_for_nobody": (
        "words for readers who had gone",
        "A request whose client has gone needs no further word: request.is_cancelled().",
    ),
}
_SYLLABLES = [consonant + vowel for consonant in "bdgk" for vowel in "aeiou"]


@grades(
    "7.2",
    "A model is told of a beginning, never of a client that has gone: it has to look.",
    keeps="iterative_model",
    within_s=TRIAL_S,
)
def _model(path: str, choose: random.Random) -> dict[str, Finding]:
    stay = [_stream(choose, choose.randrange(3, 14)) for _ in range(6)]
    stay.insert(choose.randrange(1, 7), SimulatedStream("", wanted=0))  # it must not keep the others waiting
    together = _played(path, stay)
    # The last one stays: a call follows when all who leave have left.
    some_leave = [_stream(choose, choose.randrange(8, 14) if number % 2 else 40) for number in range(12)]
    for number, stream in enumerate(some_leave[::2]):
        # After two calls or more: the sender of its first call does not know.
        stream.leaves_after, stream.is_late = choose.randrange(2, 6), bool(number % 2)
    left = _played(path, some_leave)
    gone = "A client that has gone is in no call any more: ask the senders, is_cancelled()."
    return {
        "words": _wrong(together.streams),
        "calls": [_none(together, "num_without"), _none(together, "num_together")],
        "states at the end": _left_over(together, "texts that all end", "Forget a stream that is over."),
        "those who stay": _wrong([stream for stream in left.streams if stream.leaves_after is None]),
        "states of those who left": _left_over(left, "readers of whom half leave", gone),
        "their slots": _none(left, "num_released"),
        "words for nobody": _none(left, "num_for_nobody"),
    }


def _stream(choose: random.Random, number: int) -> SimulatedStream:
    words = ("".join(choose.choices(_SYLLABLES, k=2)) for _ in range(number))
    return SimulatedStream(" ".join(words), wanted=number)


def _played(path: str, streams: list[SimulatedStream]) -> SimulatedRun:
    """Play the streams with a model."""
    triton = Triton(path, NAMES, SLOTS)
    played = triton.run(streams)
    played.growth = triton.growth(streams)
    return played


def _none(played: SimulatedRun, count: str) -> Measured:
    what, advice = NEVER[count]
    return Measured(what, getattr(played, count), exactly=0, course=0, advice=advice)


def _left_over(played: SimulatedRun, whose: str, advice: str) -> Measured:
    what = f"items more in the model after {whose}"
    return Measured(what, played.growth, at_most=MOST_LEFT, course=0, advice=advice)


def _wrong(streams: list[SimulatedStream]) -> Finding:
    """The first of these streams that has not heard its own words."""
    for stream in streams:
        words = [piece for piece in stream.pieces if piece]  # a model may end an empty text with an empty word
        if words != stream.text.split():
            return Wrong(
                f"A stream sent {stream.text!r} and heard {words}. Each stream has its own words, one a call, in their "
                "order."
            )
    return RIGHT


# Exercise 7.3 ---------------------------------------------------------------------------------------------------------

CALLS, MICROPHONES = 60, 4
STATE_HINT = "A frame goes in with its slot's latest state, zeros at START, whatever the slot still has."
FRAMES_HINT = (
    "What is left over waits for the next piece of its slot; at end it is filled with zeros, if there is anything."
)


class _Network:
    """A recurrent network with the weights of a seed, which counts its passes and what goes through them."""

    size = 6

    def __init__(self, seed: int):
        draw = np.random.default_rng(seed)
        self._into = draw.normal(size=(FRAME, self.size)) / FRAME**0.5
        self._again = draw.normal(size=(self.size, self.size)) / 3
        self.passes = self.frames = 0

    def __call__(self, frames: np.ndarray, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        frames, states = np.asarray(frames, float), np.asarray(states, float)
        if frames.shape != (len(frames), FRAME) or states.shape != (len(frames), self.size):
            raise CourseError(
                f"network(frames, states) was given {list(frames.shape)} and {list(states.shape)}; it takes "
                f"[n, {FRAME}] and [n, {self.size}]."
            )
        self.passes, self.frames = self.passes + 1, self.frames + len(frames)
        states = np.tanh(frames @ self._into + states @ self._again)
        return states[:, 0], states


def _calls(choose: random.Random) -> list[list[Piece | None]]:
    """Conversations in each slot, one after the other; of some the END never comes."""
    draw = np.random.default_rng(choose.randrange(2**32))
    left, calls = [0] * MICROPHONES, []
    for _ in range(CALLS):
        calls.append([])
        for slot in range(MICROPHONES):
            if choose.random() < 0.2:
                calls[-1].append(None)
                continue
            start = left[slot] == 0
            left[slot] = choose.randint(1, 7) if start else left[slot] - 1
            end = left[slot] == 1 and choose.random() < 0.7
            left[slot] -= left[slot] == 1
            length = 0 if end and choose.random() < 0.3 else choose.choice((160, 320, FRAME, 700, 1300))
            calls[-1].append(Piece(start, end, draw.normal(size=length).astype(np.float32)))
    return calls


def _heard(requests: list[Piece | None], kept: dict, network: Callable) -> list[list[float]]:
    """Scores of each slot, a frame at a time."""
    scores: list[list[float]] = [[] for _ in requests]
    for slot, piece in enumerate(requests):
        if piece is None:
            continue
        over, state = (np.zeros(0), np.zeros(network.size)) if piece.start else kept[slot]
        sound = np.concatenate([over, piece.sound])
        sound = np.pad(sound, (0, -len(sound) % FRAME)) if piece.end else sound
        for first in range(0, len(sound) - FRAME + 1, FRAME):
            score, states = network(sound[None, first : first + FRAME], state[None])
            scores[slot].append(float(score[0]))
            state = states[0]
        kept[slot] = sound[len(sound) // FRAME * FRAME :], state
    return scores


@grades(
    "7.3",
    "A row for each slot needs no correlation id, shares one pass, and cannot leak: START takes it over.",
    within_s=TRIAL_S,
)
def _microphones(path: str, choose: random.Random) -> dict[str, Finding] | Finding:
    hear = plain(load(path, "hear").hear)
    calls, seed = _calls(choose), choose.randrange(2**32)
    network, alone = _Network(seed), _Network(seed)
    kept: dict = {}
    kept_alone: dict = {}
    result: Finding = RIGHT
    passes = 0
    for number, requests in enumerate(calls, 1):
        right = _heard(requests, kept_alone, alone)
        got = hear(copy.deepcopy(requests), kept, network)
        if got is None:
            return NOT_YET
        passes += max(map(len, right))
        if result == RIGHT:
            result = _compared(got, right, f"Call {number}")
    advice = "All slots that have a next frame share a pass, and a frame goes through once."
    measured = partial(Measured, advice=advice)
    return {
        "the scores": result,
        "frames": measured("frames computed", network.frames, exactly=alone.frames, course=alone.frames),
        "passes": measured("passes of the network", network.passes, exactly=passes, course=passes, nothing=alone.frames,
                           nothing_is="a pass a frame"),
    }  # fmt: skip


def _compared(got: object, right: list[list[float]], call: str) -> Finding:
    if not isinstance(got, list) or len(got) != len(right) or not all(isinstance(each, list) for each in got):
        return Wrong(f"{call}: give a list for each of the {len(right)} slots, an empty one where there is no score.")
    for slot, (own, wanted) in enumerate(zip(got, right)):
        if len(own) != len(wanted):
            return Wrong(f"{call}, slot {slot}: {len(own)} scores, where {len(wanted)} are wanted. {FRAMES_HINT}")
        try:
            is_right = np.allclose(np.asarray(own, float), wanted, atol=1e-4)
        except (TypeError, ValueError):
            is_right = False
        if not is_right:
            return Wrong(f"{call}, slot {slot}: the scores are not those of this stream alone. {STATE_HINT}")
    return RIGHT
