"""The checks of lab 08 find the mistakes that learners make, and say which; and the lesson's pictures are drawn."""

import ast
import dataclasses

import nbformat
import numpy as np
import pandas as pd
import pytest

from inflight.bench import gpt2_client
from inflight.lessons.iterative_gpt2 import charts
from inflight.lessons.iterative_gpt2 import passes as passes_of
from inflight.notebook import checks, mine
from inflight.notebook.checks import NOT_YET, check
from inflight.paths import COURSE

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


def newest_alone(x, query, key, value, cache):
    return value(x) + 0 * key(x) + 0 * query(x)


def passes(*members, computed=1):
    """A log in which each pass has these sequences."""
    rows = [(number, sequence) for number, sequences in enumerate(members, 1) for sequence in sequences]
    return pd.DataFrame(rows, columns=["iteration", "sequence"]).assign(computed=computed)


TEN = range(1, 11)
FIVE_PASSES = passes((1, 2, 3, 4), (5, 6, 7, 8), (9, 10, 1, 2), TEN[2:6], TEN[6:])
IN_TURN = passes(*(TEN[:4], TEN[4:8], (9, 10, 1, 2), TEN[2:6], TEN[6:]) * 12)  # 24 tokens each
ONE_BY_ONE = passes(*((number,) for number in TEN for _ in range(24)))
FOUR_THEN_FOUR = passes(*(group for group in (TEN[:4], TEN[4:8], TEN[8:]) for _ in range(24)))


@pytest.mark.parametrize(
    ("exercise", "answer"),
    [
        ("8.1", (padded, without, with_cache)),
        ("8.2", next_token),
        ("8.3", (SETTINGS, IN_TURN)),
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
        ("8.3", (SETTINGS, passes(*[TEN] * 24)), "10"),
        ("8.3", (SETTINGS, ONE_BY_ONE), "four in a pass not right yet"),
        ("8.3", (SETTINGS, FOUR_THEN_FOUR), "all ten begun not right yet"),
        ("8.3", (SETTINGS, passes(TEN[:4], TEN[4:8], TEN[6:])), "24"),
        ("8.3", ({"kv_cache": "off"}, IN_TURN.assign(computed=20)), "tokens computed twice: 4,370, where exactly 0"),
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
        ("8.3", ({}, IN_TURN)),
    ],
)
def test_an_untouched_exercise_is_not_done_yet(exercise, answer):
    assert check(exercise, answer).status == "not done yet"


# 8.4: models ----------------------------------------------------------------------------------------------------------

COURSES = mine.COURSES_OWN / mine.PARTS["iterative_gpt2"]
LOOK_FOR_THOSE_WHO_LEFT = "if self.texts[number].sender.is_cancelled():"
STEP = """        attend = partial(self.attend, texts)
        tokens = self.network.next_tokens(ids, positions, last, attend)
"""
WRONG = {  # what is written in place of what, and the figure or the line that tells
    "constant": (STEP, "        tokens = [7] * len(texts)\n", "answers that differ"),
    "computes all again": ("text.cached = len(text.ids)", "pass", "tokens computed"),
    "no slot comes back from who left": (LOOK_FOR_THOSE_WHO_LEFT, "if False:", "none gets a token"),
    "nobody waits": (" and self.free:", ":", "model.py, line"),
    "a slot for each place": ("SLOTS = 4", "SLOTS = 8", "texts in the fullest pass"),
    "one slot": ("SLOTS = 4", "SLOTS = 1", "forward passes"),
    "a prompt that looks ahead": ("is_causal=is_prompt", "is_causal=False", "answers that differ"),
    "one slot for all": ("text.slot, :, : len(text.ids)]", "0, :, : len(text.ids)]", "answers that differ"),
    "released too early": ("< self.texts[number].length", "< self.texts[number].length - 2", "was released after"),
    "no last response": ("threading.Timer(0.2,", "threading.Timer(1e4,", "last response"),
    "never forgets": (
        "self.texts[number] = self.begin(request)",
        "self.texts[number] = self.begin(request)\n"
        "                    self.all_texts = [*getattr(self, 'all_texts', []), self.texts[number].ids]",
        "more kept",
    ),
    "no such name": ("net.num_layers", "net.layer_count", "line 45: AttributeError"),
}
FEW = ("computes all again", "nobody waits")  # in the gate; the others are slow
RIGHT = {"the highest slot": ("self.free.pop()", "self.free.pop(0)")}


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
    assert figures["tokens/s over the course's"].value > 0


def test_a_model_that_never_comes_back_is_ended(tmp_path, monkeypatch):
    monkeypatch.setitem(checks._graders, "8.4", dataclasses.replace(checks._graders["8.4"], within_s=6))
    said = checked(tmp_path, "while True:\n    pass\n").hint
    assert said.endswith("it was not through after 6 s. Is there a loop that does not end?")


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


def test_a_token_costs_the_time_since_the_one_before():
    tokens = gpt2_client.table(
        [gpt2_client.Token(1, number, time_s, "x") for number, time_s in ((1, 0.5), (2, 0.51), (3, 0.53))]
    )
    costs = gpt2_client.costs(tokens, prompt_tokens=4)
    assert costs["length"].tolist() == [5, 6] and costs["ms"].round().tolist() == [10, 20]


def test_a_machine_that_was_busy_for_a_while_does_not_turn_the_line_around():
    lengths = np.arange(5, 300)
    tokens = pd.DataFrame({"length": lengths, "ms": 3 + 0.1 * lengths})
    tokens.loc[16:47, "ms"] += 70
    start, slope = charts.growth(tokens)
    assert slope == pytest.approx(0.1, rel=0.3) and start == pytest.approx(3, abs=4)
