"""Lab 07's answers: a gateway's marks, models that ask to be called again, and microphones that share a network."""

import inspect

import numpy as np

from inflight.notebook.checks.parts import COURSES_OWN
from tests.lessons.answers import Answer, File, of_the_lab, replaced
from tests.lessons.table import *  # noqa: F403


def right_marks(who, value, now_s, talking):
    """With who is in a conversation, and of everybody the time of the latest number."""
    talks, latest = talking.setdefault("talks", set()), talking.setdefault("latest", {})
    talks -= {one for one in talks if now_s >= latest[one] + 4}
    state = (value is None, who in talks)
    talks ^= {who} if state in ((False, False), (True, True)) else set()
    latest[who] = now_s
    flags = {(False, False): (True, False), (False, True): (False, False), (True, True): (False, True)}
    return (
        dict(zip(("sequence_id", "sequence_start", "sequence_end"), (who, *flags[state]))) if state in flags else None
    )


def changed(**marks):
    return lambda *event: (right := right_marks(*event)) and right | marks


def never_ends(who, value, now_s, talking):
    return None if value is None else right_marks(who, value, now_s, talking)


def seen_for_ever(who, value, now_s, talking):
    start = who not in talking
    talking[who] = now_s
    return {"sequence_id": who, "sequence_start": start, "sequence_end": value is None}


def ends_for_everybody(who, *event):
    return right_marks(who, *event) or {"sequence_id": who, "sequence_start": False, "sequence_end": True}


def never_silent(who, value, now_s, talking):
    return right_marks(who, value, 0, talking)


def as_long_as_triton(who, value, now_s, talking):
    return right_marks(who, value, now_s * 4 / 5, talking)


def silent_since_the_first(who, value, now_s, talking):
    start = now_s - talking.setdefault(who, now_s) >= 4 or talking[who] == now_s
    if start or value is None:
        talking[who] = now_s
    if value is None:
        del talking[who]
    is_none = start and value is None
    return None if is_none else {"sequence_id": who, "sequence_start": start, "sequence_end": value is None}


# Exercise 7.2: the model ---------------------------------------------------------------------------------------------

COURSES = COURSES_OWN["iterative_model"].read_text(encoding="utf-8")


def model(*changes):
    return File(replaced(COURSES, *changes), "model.py")


def keeps_some(number, streams):
    """Keeps what it need not, of so many of the streams that it is played with."""
    keep = f"                self.begun += 1\n                self.kept += [0] * (self.begun % {streams} < {number})\n"
    begins = "                words = value"
    return model(("self.states = {}", "self.states, self.kept, self.begun = {}, [], 0"), (begins, keep + begins))


AGAIN = "            request.set_release_flags(RESCHEDULE)\n        else:"
ASKS_AT_ONCE = AGAIN.replace(
    "\n        else:", "\n            if sender.is_cancelled():\n                del self.states[who]\n        else:"
)
AT_ONCE = """        state, sender = self.states.pop(who), request.get_response_sender()
        for number, word in enumerate(state.words or [""], 1):
            output = pb_utils.Tensor("word", np.array([[word.encode()]], object))
            is_last = number >= len(state.words)
            sender.send(pb_utils.InferenceResponse([output]), flags=FINAL if is_last else 0)
"""
BODY = COURSES[COURSES.index("        state, sender = self.states[who]") :]
LOOK = COURSES[COURSES.index("        # Triton drops a queued") : COURSES.index("        return None")]
# Without the look around, which would ask a sender after its end.
KEEPS_ALL = model((LOOK, ""), ("            del self.states[who]\n            sender", "            sender"))
EACH = """        for request in ready:
            self.step(request, int(value(request, "ID")))
"""
ONE_OF_THEM = """        for request in ready[1:]:
            self.states[int(value(request, "ID"))].sender = request.get_response_sender()
            request.set_release_flags(RESCHEDULE)
        for request in ready[:1]:
            self.step(request, int(value(request, "ID")))
"""
RESCHEDULED = """            # Triton frees the slot when it is about to schedule the request again.
            request.set_release_flags(RESCHEDULE)
"""
ENDED = "sender.send(pb_utils.InferenceResponse([output]), flags=FINAL)"
TAKES = "                words = value"
KEEPS_WORDS = model(
    (TAKES, "                self.texts[request] = words = value"),
    ("self.states = {}", "self.states, self.texts = {}, {}"),
)
KEEPS_SENDERS = model(
    ("class TritonPythonModel:", "ALL = []\n\n\nclass TritonPythonModel:"),
    ("        state.sender = sender\n", "        state.sender = sender\n        ALL.append(sender)\n"),
)
ONE_STATE = model(('int(value(request, "ID"))', "0"))
RETURNS = model(("        return None\n", "        return [None] * len(requests)\n"))
NO_WORD_FOR_EMPTY = File(
    model(("            self.step(request", "            self.end_or_step(request")).text
    + """
    def end_or_step(self, request, who):
        if who not in self.states or self.states[who].words:
            return self.step(request, who)
        del self.states[who]
        request.get_response_sender().send(flags=FINAL)
""",
    "model.py",
)
FIRST_SENDER = model(("        state.sender = sender\n", "        state.sender = state.sender or sender\n"))
IF_CANCELLED = "        if request.is_cancelled():"
NOT_IN_THE_CALL = model(
    (IF_CANCELLED, "        if False:"),
    (
        "if state.sender.is_cancelled():",
        'if who not in [int(value(one, "ID")) for one in ready] and state.sender.is_cancelled():',
    ),
)


# Exercise 7.3: microphones -------------------------------------------------------------------------------------------


def in_arrays(requests, kept, network, waits=True, pads=True, starts=True, together=True, empty=False, by_place=False):
    """A row for each slot in one array; with one thing left out."""
    if not kept:
        kept |= {"states": np.zeros((len(requests), network.size), np.float32), "over": [[] for _ in requests]}
    queues, scores = {}, [np.zeros(0) for _ in requests]
    for slot, piece in enumerate(requests):
        if piece is None:
            continue
        if piece.start and starts:
            kept["states"][slot], kept["over"][slot] = 0, []
        sound = np.array([*(kept["over"][slot] if waits else []), *piece.sound], np.float32)
        if piece.end and pads:
            sound = np.append(sound, np.zeros(-len(sound) % 512, np.float32))
        queues[slot] = [sound[first : first + 512] for first in range(0, len(sound) - 511, 512)]
        kept["over"][slot] = sound[512 * len(queues[slot]) :].tolist()
    while any(queues.values()):
        turn = [slot for slot, queue in queues.items() if queue][: None if together else 1]
        rows = list(range(len(requests))) if empty else turn
        frames = [queues[slot].pop(0) if slot in turn else np.zeros(512) for slot in rows]
        states = list(range(len(rows))) if by_place else rows
        found, kept["states"][states] = network(frames, kept["states"][states])
        for slot, score in zip(rows, found):
            if slot in turn:
                scores[slot] = np.append(scores[slot], score)
    return scores


def heard(result="in_arrays(*call, **idea)", **idea):
    texts = [
        "import numpy as np",
        inspect.getsource(in_arrays),
        f"idea = {idea}",
        f"def hear(*call):\n    return {result}\n",
    ]
    return File("\n\n\n".join(texts), "hear.py")


ANSWERS = [
    *of_the_lab("sequences", {"7.1": "marks", "7.2": "words.py", "7.3": "hear.py"}),
    Answer("7.1", "a table", right_marks),
    Answer("7.1", "never ends", never_ends, "wrong", "where [1, 2, 1, 1] is wanted"),
    Answer("7.1", "a user who comes back", seen_for_ever, "wrong", "ends by closing the page"),
    Answer("7.1", "an END for those who never talked", ends_for_everybody, "partly", "None: nothing is sent"),
    Answer("7.1", "silence changes nothing", never_silent, "wrong", "by four seconds of silence"),
    Answer("7.1", "silence is counted from the first number", silent_since_the_first, "wrong",
           "by four seconds of silence"),
    Answer("7.1", "as long as Triton waits", as_long_as_triton, "wrong", "by four seconds of silence"),
    Answer("7.1", "START on all", changed(sequence_start=True), "partly", "sequence_start not right yet, sequence_end ✓"),
    Answer("7.1", "END on all", changed(sequence_end=True), "partly", "sequence_start ✓, sequence_end not right yet"),

    Answer("7.2", "no word for an empty text", NO_WORD_FOR_EMPTY),
    Answer("7.2", "first sender", FIRST_SENDER, "partly", "items more in the model after readers"),
    Answer("7.2", "keeps four things", keeps_some(4, 12)),
    Answer("7.2", "keeps five things", keeps_some(5, 12), "partly", "items more in the model after readers"),
    Answer("7.2", "keeps five things of texts that end", keeps_some(5, 7), "partly", "items more in the model after texts"),
    Answer("7.2", "never forgets", KEEPS_ALL, "partly", "items more in the model after"),
    Answer("7.2", "words elsewhere", KEEPS_WORDS, "partly", "items more in the model after"),
    Answer("7.2", "no model", model(("class TritonPythonModel", "class Model")), "wrong", "load"),
    Answer("7.2", "all at once", model((BODY, AT_ONCE)), "partly", "in one call with another of their stream: "),
    Answer("7.2", "one a call", model((EACH, ONE_OF_THEM)), "partly", "ready requests that got no word: "),
    Answer("7.2", "no end", model((", flags=FINAL", "")), "wrong", "in vain"),
    Answer("7.2", "one state", ONE_STATE, "wrong", "model.py, line"),
    Answer("7.2", "FINAL at each word", model(("sender.send(pb_utils.InferenceResponse([output]))", ENDED)), "wrong", "FINAL"),
    Answer("7.2", "an answer is returned", RETURNS, "wrong", "a decoupled model returns None"),
    Answer("7.2", "asks right after the word", model((LOOK, ""), (AGAIN, ASKS_AT_ONCE)), "partly", "items more in the model after readers"),
    Answer("7.2", "lost", model((LOOK, "")), "partly", "items more in the model after"),
    Answer("7.2", "senders in the module", KEEPS_SENDERS, "partly", "items more in the model after"),
    Answer("7.2", "no end, in another place", model(("[output]), flags=FINAL", "[output])")), "wrong", "in vain"),
    Answer("7.2", "released at once", model((RESCHEDULED, "")), "partly", "reschedule a cancelled request"),
    Answer("7.2", "cancelled", model((IF_CANCELLED, "        if False:"), (LOOK, "")), "partly"),
    Answer("7.2", "a word for who is cancelled", NOT_IN_THE_CALL, "partly", "words for readers who had gone"),

    Answer("7.3", "arrays", heard()),
    Answer("7.3", "tuples", heard("tuple(map(tuple, in_arrays(*call)))")),
    Answer("7.3", "what is over is lost", heard(waits=False), "wrong", "What is left over waits for the next piece"),
    Answer("7.3", "the last frame is lost", heard(pads=False), "wrong", "at end it is filled with zeros"),
    Answer("7.3", "START is ignored", heard(starts=False), "wrong", "slot"),
    Answer("7.3", "a pass for each slot", heard(together=False), "partly", "passes of the network: "),
    Answer("7.3", "empty slots are computed", heard(empty=True), "partly", "frames computed: "),
    Answer("7.3", "states by their place in the pass", heard(by_place=True), "partly",
           "not those of this stream alone"),
    Answer("7.3", "a slot that it never saw", heard("[kept[0] for kept in call[1:2]]"), "wrong", "hear.py, line"),
    Answer("7.3", "one number for a slot", heard("[0.5] * len(call[0])"), "wrong", "give a list for each"),
]  # fmt: skip
