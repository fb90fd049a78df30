"""The checks of lab 08 find the mistakes that learners make, and say which."""

import ast
import dataclasses

import nbformat
import numpy as np
import pandas as pd
import pytest

from inflight.errors import CourseError
from inflight.lessons.iterative_gpt2 import grading
from inflight.lessons.iterative_gpt2 import passes as passes_of
from inflight.models import gpt2_checkpoint
from inflight.notebook import checks, mine
from inflight.notebook.checks import check
from inflight.notebook.findings import NOT_YET
from inflight.paths import COURSE
from inflight.triton import repository
from inflight.triton.server import Server

SETTINGS = {"max_batch_size": 4, "sequence_batching.oldest.max_candidate_sequences": 10, "kv_cache_slots": 10}


@pytest.fixture(autouse=True)
def as_in_a_lab(monkeypatch):
    """Checks report and do not raise, whatever the run that these tests are part of has set."""
    monkeypatch.setenv("COURSE_STRICT", "0")
    monkeypatch.setenv("INFLIGHT_SEED", "8")


def padded(prompts, answer):
    return len(prompts) * (max(prompts) * answer + answer * (answer - 1) // 2)


def without(prompts, answer):
    return sum(prompts) * answer + len(prompts) * answer * (answer - 1) // 2


def with_cache(prompts, answer):
    return sum(prompts) + len(prompts) * (answer - 1)


def attend(query, keys, values):
    weights = np.exp(np.array(keys) @ query / 2)
    return weights / weights.sum() @ np.array(values)


def next_token(x, query, key, value, cache):
    for name, function in (("k", key), ("v", value)):
        cache.setdefault(name, []).append(function(x))
    return attend(query(x), cache["k"], cache["v"])


def without_itself(x, query, key, value, cache):
    keys, values = cache.setdefault("k", []), cache.setdefault("v", [])
    result = attend(query(x), keys, values) if keys else value(x)
    keys.append(key(x))
    values.append(value(x))
    return result


SHARED = {}


def one_cache_for_all(x, query, key, value, cache):
    return next_token(x, query, key, value, SHARED)


def all_again(x, query, key, value, cache):
    texts = cache.setdefault("texts", [])
    texts.append(x)
    return attend(query(x), [key(each) for each in texts], [value(each) for each in texts])


def arrays_that_grow(x, query, key, value, cache):
    for name, function in (("k", key), ("v", value)):
        row = function(x)[None]
        cache[name] = np.concatenate([cache[name], row]) if name in cache else row
    return attend(query(x), cache["k"], cache["v"]).tolist()


def newest_alone(x, query, key, value, cache):
    return value(x) + 0 * key(x) + 0 * query(x)


def passes(*members, computed=1):
    """A log in which each pass has these sequences."""
    rows = [(number, sequence) for number, sequences in enumerate(members, 1) for sequence in sequences]
    return pd.DataFrame(rows, columns=["iteration", "sequence"]).assign(computed=computed)


TEN = range(1, 11)
IN_TURN = passes(*(TEN[:4], TEN[4:8], (9, 10, 1, 2), TEN[2:6], TEN[6:]) * 12)  # 24 tokens each
ONE_BY_ONE = passes(*((number,) for number in TEN for _ in range(24)))
FOUR_THEN_FOUR = passes(*(group for group in (TEN[:4], TEN[4:8], TEN[8:]) for _ in range(24)))


@pytest.mark.parametrize(
    ("exercise", "answer"),
    [
        ("8.1", (padded, without, with_cache)),
        ("8.1", (lambda *given: np.int64(padded(*given)), lambda *given: float(without(*given)), with_cache)),
        ("8.2", next_token),
        ("8.2", arrays_that_grow),
    ],
)
def test_another_right_way_is_done(exercise, answer):
    assert check(exercise, answer).status == "done"


@pytest.mark.parametrize(
    ("exercise", "answer", "says"),
    [
        ("8.1", (padded, padded, with_cache), "padded ✓, without a cache not right yet"),
        ("8.1", (padded, without, lambda prompts, answer: sum(prompts) + len(prompts) * answer), "with a cache not"),
        ("8.1", [lambda *_: 57] * 3, "57"),
        ("8.2", without_itself, ""),
        ("8.2", one_cache_for_all, ""),
        ("8.2", all_again, "tokens projected"),
        ("8.2", newest_alone, "the result not right yet"),
        ("8.4", "nowhere/model.py", "model.py"),
    ],
)
def test_a_mistake_is_told_by_its_cause(exercise, answer, says):
    result = check(exercise, answer)
    assert result.status in ("wrong", "partly") and says in repr(result)


@pytest.mark.parametrize(
    ("exercise", "answer"),
    [
        ("8.1", [lambda *_: None] * 3),
        ("8.2", lambda *_: None),
        ("8.3", ({}, None)),
    ],
)
def test_an_untouched_exercise_is_not_done_yet(exercise, answer):
    assert check(exercise, answer).status == "not done yet"


# 8.3: settings, measured ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (passes(*[TEN] * 24), "streams in the fullest pass: 10, where exactly 4"),
        (ONE_BY_ONE, "streams in the fullest pass: 1, where exactly 4"),
        (FOUR_THEN_FOUR, "began after another had ended: 6, where exactly 0"),
        (IN_TURN.assign(computed=20), "tokens computed twice: 4,370, where exactly 0"),
    ],
)
def test_settings_are_judged_by_who_was_in_which_pass(monkeypatch, found, says):
    monkeypatch.setattr(grading, "passes_with", lambda server, settings: found)
    result = check("8.3", (SETTINGS, None))
    assert result.status == "partly" and says in repr(result), result


def test_a_field_that_does_not_exist_is_told_in_its_own_words(monkeypatch):
    def refuse(server, settings):
        raise CourseError("The model has no field max_batch_sise.\nLast lines of the log:")

    monkeypatch.setattr(grading, "passes_with", refuse)
    assert check("8.3", (SETTINGS, None)).hint == "The model has no field max_batch_sise."


@pytest.mark.slow
@pytest.mark.server
def test_settings_are_measured_on_the_server(tmp_path):
    folder = gpt2_checkpoint.find("course-gpt2")
    log = {"iteration_log_path": tmp_path / "passes.jsonl"}
    repo = repository.assemble(tmp_path / "repo", models=("iterative-gpt2",), gpt2_checkpoint_dir=folder, **log)
    with Server(repo) as server:
        assert check("8.3", (SETTINGS, server)).status == "done"
        wrong = check("8.3", ({"max_batch_size": 4}, server))
        assert wrong.status == "partly" and "began after another had ended: " in wrong.hint


# 8.4: models ----------------------------------------------------------------------------------------------------------

COURSES = mine.COURSES_OWN / mine.PARTS["iterative_gpt2"]
STEP = """        attend = partial(self.attend, texts)
        tokens = self.network.next_tokens(ids, positions, last, attend)
"""
WITH_SLOT = COURSES.read_text()
WITH_SLOT = WITH_SLOT[
    WITH_SLOT.index("        for number in numbers:") : WITH_SLOT.index("    def forget_those_who_left")
]
FORGET = """        text = self.texts.pop(number)
        if text.slot is not None:
            self.free.append(text.slot)
"""
WRONG = {  # what is written in place of what, and the figure or the line that tells
    "no slot comes back": (FORGET, "        self.texts.pop(number)\n", "none gets a token"),
    "no slot comes back from who left": ("            if self.texts[number].sender.is_cancelled():",
                                         "            if False:", "none gets a token"),
    "nobody waits": (" and self.free:", ":", "model.py, line"),
    "one at a time": (WITH_SLOT, WITH_SLOT.rstrip() + "[:1]\n\n", "forward passes"),
    "a slot for each place": ("SLOTS = 4", "SLOTS = 8", "texts in the fullest pass"),
    "one slot for all": ("self.free.pop()\n", "0\n", "answers that differ"),
    "forgets who is in the call": ("if number not in batch]:\n", "]:\n", "KeyError"),
    "the text stays": ("self.texts.pop(number)\n        if text.slot is not None:",
                       "self.texts[number]\n        if text.slot is not None:", ""),
    "the text stays elsewhere": ("self.texts[number] = self.begin(request)",
                                 "self.texts[number] = self.begin(request)\n                    self.all_texts = "
                                 "[*getattr(self, 'all_texts', []), self.texts[number].ids]", "more kept"),
    "computes all again": ("text.cached = len(text.ids)", "pass", "tokens computed"),
    "constant": (STEP, "        tokens = [7] * len(texts)\n", "answers that differ"),
    "who waits is sent away": ("if number in self.texts:", "if number in computed:", "was released after 0"),
    "no last response": ("flags=FINAL if is_last else 0", "flags=0", "without FINAL"),
    "no such name": ("net.num_layers", "net.layer_count", "AttributeError"),
}  # fmt: skip
FEW = ("no slot comes back", "nobody waits")  # in the gate; the others are slow
SET_OF_SLOTS = """        for number in numbers:
            text = self.texts[number]
            if text.slot is None and self.free:
                text.slot = min(self.free)
                self.free.remove(text.slot)
        return [one for one in self.texts if one in numbers and self.texts[one].slot is not None]

"""
RIGHT = {
    "the lowest slot, in the order of their start": (WITH_SLOT, SET_OF_SLOTS),
    "who is cancelled in the call gets no token": (
        "self.with_slot(batch)",
        "[one for one in self.with_slot(batch) if not batch[one].is_cancelled()]",
    ),
}


def edited(old, new):
    source = COURSES.read_text()
    assert source.count(old) == 1, old
    return source.replace(old, new)


def given_model():
    """The file that the untouched lab writes."""
    cells = nbformat.read(COURSE / "labs" / "08_iterative_gpt2_lab.ipynb", as_version=4).cells
    [source] = [cell.source for cell in cells if cell.source.startswith("%%writefile")]
    return source.partition("\n")[2]


def checked(tmp_path, source):
    path = tmp_path / "model.py"
    path.write_text(source)
    return check("8.4", path)


def test_the_model_as_it_is_given_is_not_done_yet(tmp_path):
    assert checked(tmp_path, given_model()).status == NOT_YET


@pytest.mark.parametrize("name", RIGHT)
def test_another_right_model_is_done(tmp_path, name):
    result = checked(tmp_path, edited(*RIGHT[name]))
    assert result.status == "done", result


@pytest.mark.parametrize(
    "name", [name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in WRONG]
)
def test_a_wrong_model_is_told_by_its_cause(tmp_path, name):
    old, new, says = WRONG[name]
    result = checked(tmp_path, edited(old, new))
    assert result.status == "wrong" and says in result.hint, result


def test_the_courses_model_passes_and_shows_its_figures():
    result = check("8.4", COURSES)
    assert result.status == "done" and "Hidden cases: seed" in repr(result)
    figures = {figure.what: figure for figure in result.figures}
    assert figures["tokens computed"].nothing > 2 * figures["tokens computed"].value


def test_a_model_that_never_comes_back_is_ended(tmp_path, monkeypatch):
    monkeypatch.setitem(checks.graders, "8.4", dataclasses.replace(checks.graders["8.4"], within_s=6))
    said = checked(tmp_path, "while True:\n    pass\n").hint
    assert said.endswith(
        "it had not ended after 6 s. Is there a loop that does not end, or a wait for what never comes?"
    )


def test_the_solution_is_the_courses_part():
    cells = nbformat.read(COURSE / "solutions" / "08_iterative_gpt2_solution.ipynb", as_version=4).cells
    [source] = [cell.source for cell in cells if cell.source.startswith("%%writefile")]
    assert ast.dump(ast.parse(source.partition("\n")[2])) == ast.dump(ast.parse(COURSES.read_text()))


# The lesson's tables --------------------------------------------------------------------------------------------------


def test_passes_are_counted_from_one_and_sequences_in_the_order_of_their_start():
    log = pd.DataFrame({"sequences": [[[7, True, 0, 6, 5]], [[7, False, 0, 7, 1], [9, True, 1, 4, 3]]]})
    assert passes_of(log).values.tolist() == [
        [1, 1, 7, True, 0, 6, 5],
        [2, 1, 7, False, 0, 7, 1],
        [2, 2, 9, True, 1, 4, 3],
    ]
