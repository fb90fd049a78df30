"""The checks of lab 07 find the mistakes that learners make, and say which."""

import dataclasses

import pytest

from inflight.lessons.sequences.sequences import Step
from inflight.notebook.checks import check
from inflight.notebook.parts import COURSES_OWN
from inflight.paths import COURSE
from tools import lessons

WRITES = "%%writefile {workdir.name}/model.py\n"
COURSES = (COURSES_OWN / "model.py").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def as_in_a_lab(monkeypatch):
    """Checks report and do not raise; the hidden cases are the same in each test run."""
    monkeypatch.setenv("COURSE_STRICT", "0")
    monkeypatch.setenv("INFLIGHT_SEED", "48151")


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


@pytest.mark.parametrize(("exercise", "answer"), [("7.1", right_steps), ("7.2", right_fates)])
def test_another_right_way_is_done(exercise, answer):
    result = check(exercise, answer)
    assert result.status == "done", result


def all_flags(messages):
    return [Step(sequence, value, start=True, end=True) for sequence, value in messages]


@pytest.mark.parametrize(
    ("exercise", "answer", "wrong"),
    [
        ("7.1", without("end"), {"end"}),
        ("7.1", without("start"), {"start"}),
        ("7.1", all_flags, {"start", "end"}),
        ("7.1", lambda messages: sorted(right_steps(messages), key=lambda step: step.sequence), set()),
        ("7.2", lambda steps, places: right_fates(steps, 99), {"nobody ends"}),
        ("7.2", lambda steps, places: right_fates(steps, places, forgets_ends=True), {"no START"}),
        ("7.2", lambda steps, places: right_fates(steps, places, lets_in=True), {"no START"}),
        (
            "7.2",
            lambda steps, places: [fate.replace("later", "never") for fate in right_fates(steps, places)],
            {"a place gets free"},
        ),
    ],
)
def test_what_is_wrong_is_told_part_by_part(exercise, answer, wrong):
    result = check(exercise, answer)
    assert result.status in ("wrong", "partly")
    assert wrong <= {part for part, status in result.parts.items() if status == "wrong"}, result


@pytest.mark.parametrize(("exercise", "answer"), [("7.1", lambda _: None), ("7.2", lambda *_: None)])
def test_an_untouched_exercise_is_not_done_yet(exercise, answer):
    assert check(exercise, answer).status == "not done yet"


# Exercises 7.3 and 7.4: the model -------------------------------------------------------------------------------------


def cell_of(kind):
    """The model as a cell of the solution or of the lab writes it."""
    [cell] = [one for one in lessons.source(COURSE / "lessons/07_sequences", kind).cells if WRITES in one.source]
    return cell.source.removeprefix(WRITES)


def model(tmp_path, text):
    path = tmp_path / "model.py"
    path.write_text(text, encoding="utf-8")
    return path


def changed(before, after):
    assert before in COURSES
    return COURSES.replace(before, after)


def test_the_solution_is_the_part_that_the_course_uses():
    assert cell_of("solutions").strip() == COURSES.strip()


@pytest.mark.parametrize("exercise", ["7.3", "7.4"])
def test_the_file_as_it_is_handed_out_is_not_done_yet(tmp_path, exercise):
    assert check(exercise, model(tmp_path, cell_of("labs"))).status == "not done yet"


@pytest.mark.parametrize("exercise", ["7.3", "7.4"])
def test_the_courses_model_is_right(tmp_path, exercise):
    result = check(exercise, model(tmp_path, COURSES))
    assert result.status == "done" and result.seed == 48151, result


AT_ONCE = """        state, sender = self.states.pop(who), request.get_response_sender()
        for number, word in enumerate(state.words or [""], 1):
            output = pb_utils.Tensor("word", np.array([[word.encode()]], object))
            is_last = number >= len(state.words)
            sender.send(pb_utils.InferenceResponse([output]), flags=FINAL if is_last else 0)
"""
BODY = COURSES[COURSES.index("        state, sender = self.states[who]") :]
LOOK = COURSES[COURSES.index("        # Triton drops a queued") : COURSES.index("        return None")]
# Without the look around, which would ask a sender after its end.
KEEPS_ALL = COURSES.replace(LOOK, "").replace(
    "            del self.states[who]\n            sender", "            sender"
)
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
KEEPS_WORDS = changed(TAKES, "                self.texts[request] = words = value").replace(
    "self.states = {}", "self.states, self.texts = {}, {}"
)
KEEPS_SENDERS = changed("class TritonPythonModel:", "ALL = []\n\n\nclass TritonPythonModel:").replace(
    "        state.sender = sender\n", "        state.sender = sender\n        ALL.append(sender)\n"
)
ONE_STATE = COURSES.replace('int(value(request, "ID"))', "0")
RETURNS = changed("        return None\n", "        return [None] * len(requests)\n")
NO_WORD_FOR_EMPTY = (
    changed("            self.step(request", "            self.end_or_step(request")
    + """
    def end_or_step(self, request, who):
        if who not in self.states or self.states[who].words:
            return self.step(request, who)
        del self.states[who]
        request.get_response_sender().send(flags=FINAL)
"""
)
FIRST_SENDER = changed("        state.sender = sender\n", "        state.sender = state.sender or sender\n")
NOT_IN_THE_CALL = changed("        if request.is_cancelled():", "        if False:").replace(
    "if state.sender.is_cancelled():",
    'if who not in [int(value(one, "ID")) for one in ready] and state.sender.is_cancelled():',
)


@pytest.mark.parametrize("text", [NO_WORD_FOR_EMPTY, FIRST_SENDER], ids=["no word for an empty text", "first sender"])
@pytest.mark.parametrize("exercise", ["7.3", "7.4"])
def test_another_right_model_is_done(tmp_path, exercise, text):
    result = check(exercise, model(tmp_path, text))
    assert result.status == "done", result


@pytest.mark.parametrize(
    ("exercise", "text", "says"),
    [
        pytest.param(*one, id=name)
        for name, one in {
            "never forgets": ("7.3", KEEPS_ALL, "things that are kept"),
            "lost": ("7.4", changed(LOOK, ""), "things that are kept"),
            "words elsewhere": ("7.3", KEEPS_WORDS, "things that are kept"),
            "senders in the module": ("7.4", KEEPS_SENDERS, "things that are kept"),
            "no model": ("7.3", changed("class TritonPythonModel", "class Model"), "load"),
            "all at once": ("7.3", changed(BODY, AT_ONCE), "calls of execute"),
            "one a call": ("7.3", changed(EACH, ONE_OF_THEM), "ready requests that got no word"),
            "no end": ("7.3", changed(", flags=FINAL", ""), "in vain"),
            "no end, 7.4": ("7.4", changed("[output]), flags=FINAL", "[output])"), "in vain"),
            "one state": ("7.3", ONE_STATE, "model.py, line"),
            "FINAL at each word": (
                "7.3", changed("sender.send(pb_utils.InferenceResponse([output]))", ENDED), "FINAL"
            ),
            "no words": (
                "7.3", changed('state.words.pop(0) if state.words else ""', "state.words.pop(0)"), "IndexError"
            ),
            "an answer is returned": ("7.3", RETURNS, "a decoupled model returns None"),
            "released at once": ("7.4", changed(RESCHEDULED, ""), "reschedule"),
            "cancelled": (
                "7.4", changed("        if request.is_cancelled():", "        if False:").replace(LOOK, ""), ""
            ),
            "a word for who is cancelled": ("7.4", NOT_IN_THE_CALL, "words for readers who had gone"),
        }.items()
    ],
)  # fmt: skip
def test_a_wrong_model_is_told_by_what_it_does(tmp_path, exercise, text, says):
    result = check(exercise, model(tmp_path, text))
    assert result.status in ("wrong", "partly") and says in repr(result), result
