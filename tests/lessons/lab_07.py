"""Lab 07's answers: the steps of sequences, what becomes of them, and models that ask to be called again."""

import dataclasses

from inflight.lessons.sequences.sequences import Step
from inflight.notebook.parts import COURSES_OWN
from tests.lessons.answers import Answer, File, of_the_lab, replaced


def right_steps(messages):
    steps = [Step(sequence, value) for sequence, value in messages]
    for sequence in {step.sequence for step in steps}:
        own = [place for place, step in enumerate(steps) if step.sequence == sequence]
        steps[own[0]] = dataclasses.replace(steps[own[0]], start=True)
        steps[own[-1]] = dataclasses.replace(steps[own[-1]], end=True)
    return steps


def without(name):
    return lambda messages: [dataclasses.replace(step, **{name: False}) for step in right_steps(messages)]


def right_fates(steps, places, forgets_ends=False, lets_in=False):
    """As a simulation of places with who sits there, as another than the solution might write it."""
    seats, queue, result = [], [], {}
    for number, step in enumerate(steps):
        if step.sequence in seats:
            result[number] = "at once"
        elif step.sequence in queue:
            result[number] = "never"
        elif step.start or lets_in:
            has_room = len(seats) < places
            (seats if has_room else queue).append(step.sequence)
            result[number] = "at once" if has_room else "never"
        else:
            result[number] = "refused"
        if step.end and step.sequence in seats and not forgets_ends:
            seats.remove(step.sequence)
        while queue and len(seats) < places:
            who = queue.pop(0)
            own = [one for one in result if steps[one].sequence == who and result[one] == "never"]
            result.update(dict.fromkeys(own, "later"))
            if not steps[own[-1]].end:
                seats.append(who)
    return [result[number] for number in range(len(steps))]


def all_flags(messages):
    return [Step(sequence, value, start=True, end=True) for sequence, value in messages]


def only_started(messages):
    seen = set()
    return [Step(one, value=value, start=not (one in seen or seen.add(one))) for one, value in messages]


# Exercises 7.3 and 7.4: the model -------------------------------------------------------------------------------------

COURSES = (COURSES_OWN / "model.py").read_text(encoding="utf-8")


def model(*changes):
    return File(replaced(COURSES, *changes), "model.py")


def keeps_some(number, streams):
    """Keeps what it need not, of so many of the streams that it is played with."""
    keep = f"                self.begun += 1\n                self.kept += [0] * (self.begun % {streams} < {number})\n"
    begins = "                words = value"
    return model(("self.states = {}", "self.states, self.kept, self.begun = {}, [], 0"), (begins, keep + begins))


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
RESCHEDULED = """            # Triton frees the place when it is about to schedule the request again.
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
ANSWERS = [
    *of_the_lab("07_sequences", {"7.1": "steps", "7.2": "fates", "7.3": "model.py", "7.4": "model.py"}),
    Answer("7.1", "sequence by sequence", right_steps),
    Answer("7.1", "a generator", lambda messages: (step for step in right_steps(messages))),
    Answer("7.1", "no end", without("end"), "partly", "messages ✓, start ✓, end not right yet"),
    Answer("7.1", "no start", without("start"), "partly", "start not right yet, end ✓"),
    Answer("7.1", "only started", only_started, "partly", "messages ✓, start ✓, end not right yet. "),
    Answer("7.1", "all flags", all_flags, "partly", "start not right yet, end not right yet"),
    Answer("7.1", "sorted", lambda messages: sorted(right_steps(messages), key=lambda step: step.sequence), "wrong",
           "these messages in this order"),

    Answer("7.2", "a simulation of seats", right_fates),
    Answer("7.2", "places for all", lambda steps, places: right_fates(steps, 99), "partly", "nobody ends not right yet"),
    Answer("7.2", "forgets ends", lambda *given: right_fates(*given, forgets_ends=True), "partly", "no START not right yet"),
    Answer("7.2", "lets in", lambda *given: right_fates(*given, lets_in=True), "partly", "is refused where its sequence"),
    Answer("7.2", "never", lambda *given: [fate.replace("later", "never") for fate in right_fates(*given)], "partly",
           "a place gets free not right yet"),

    *(
        Answer(exercise, name, answer)
        for exercise in ("7.3", "7.4")
        for name, answer in {
            "no word for an empty text": NO_WORD_FOR_EMPTY,
            "first sender": FIRST_SENDER,
            "keeps four things": keeps_some(4, {"7.3": 7, "7.4": 12}[exercise]),
        }.items()
    ),
    *(
        Answer(exercise, "keeps five things", keeps_some(5, streams), "partly", "things that are kept when all")
        for exercise, streams in (("7.3", 7), ("7.4", 12))
    ),
    Answer("7.3", "never forgets", KEEPS_ALL, "partly", "things that are kept"),
    Answer("7.3", "words elsewhere", KEEPS_WORDS, "partly", "things that are kept"),
    Answer("7.3", "no model", model(("class TritonPythonModel", "class Model")), "wrong", "load"),
    Answer("7.3", "all at once", model((BODY, AT_ONCE)), "partly", "in one call with another of their stream: "),
    Answer("7.3", "one a call", model((EACH, ONE_OF_THEM)), "partly", "ready requests that got no word: "),
    Answer("7.3", "no end", model((", flags=FINAL", "")), "wrong", "in vain"),
    Answer("7.3", "one state", ONE_STATE, "wrong", "model.py, line"),
    Answer("7.3", "FINAL at each word", model(("sender.send(pb_utils.InferenceResponse([output]))", ENDED)), "wrong", "FINAL"),
    Answer("7.3", "an answer is returned", RETURNS, "wrong", "a decoupled model returns None"),
    Answer("7.4", "lost", model((LOOK, "")), "partly", "things that are kept"),
    Answer("7.4", "senders in the module", KEEPS_SENDERS, "partly", "things that are kept"),
    Answer("7.4", "no end", model(("[output]), flags=FINAL", "[output])")), "wrong", "in vain"),
    Answer("7.4", "released at once", model((RESCHEDULED, "")), "partly", "reschedule a cancelled request"),
    Answer("7.4", "cancelled", model((IF_CANCELLED, "        if False:"), (LOOK, "")), "partly"),
    Answer("7.4", "a word for who is cancelled", NOT_IN_THE_CALL, "partly", "words for readers who had gone"),
]  # fmt: skip
