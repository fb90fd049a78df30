"""A prediction without a browser: it is empty until it is made, and scores itself where it is measured."""

import pytest

from inflight.errors import CourseError
from inflight.notebook.pages import workspace
from inflight.notebook.widgets import predict

OPTIONS = ("tensorrt_llm: the prompt", "preprocessing: text to tokens")
SPEEDS = {"as fast": 1, "twice": 2, "eight times": 8}


@pytest.mark.parametrize("options", [None, OPTIONS, SPEEDS])
def test_nothing_is_chosen_beforehand(options):
    guess = predict("How many?", options)
    assert guess.value is None and "none was made" in repr(guess)
    assert guess.score(OPTIONS[0] if options is OPTIONS else 7).startswith("The answer: ")
    assert guess.value is None and guess.field.disabled, "the measurement closes the question"


@pytest.mark.parametrize(
    "text, number", [("7", 7), (" 1,000 ", 1000), ("2.5", 2.5), ("", None), ("nan", None), ("many", None)]
)
def test_a_number_is_read_as_people_write_it_and_what_is_none_is_said_at_once(text, number):
    guess = predict("How many?")
    guess.field.value = text
    assert guess.value == number and ("not a number" in guess.told.value) == (number is None and text != "")


@pytest.mark.parametrize(
    "said, measured, told",
    [
        ("6", 6, "Your prediction, 6, is right."),
        ("6", 24, "Your prediction: 6. It is 24, 4 times more."),
        ("30000", 23040, "Your prediction: 30,000. It is 23,040, 1.3 times less."),
        ("0", 24, "Your prediction: 0. It is 24."),
    ],
)
def test_a_number_is_scored(said, measured, told):
    guess = predict("How many?")
    guess.field.value = said
    assert guess.score(measured) == told and told in guess.told.value and guess.field.disabled
    assert guess.score(measured, "the count of one run") == f"{told} That is the count of one run."


@pytest.mark.parametrize(
    "options, said, value",
    [
        (None, 1000, 1000),
        (None, " 2.5", 2.5),
        (OPTIONS, "pre", OPTIONS[1]),
        (SPEEDS, "twi", "twice"),
        (SPEEDS, 9, "eight times"),
    ],
)
def test_where_a_page_shows_no_buttons_a_line_makes_the_prediction(options, said, value):
    guess = predict("How many?", options)
    shown = guess._repr_mimebundle_()
    for form in ("text/plain", "text/html"):
        assert "guess.value = " in shown[form] and all(option in shown[form] for option in options or ())
    guess.value = said
    assert guess.value == value and "guess.value" not in repr(guess)


@pytest.mark.parametrize(
    "options, said, why",
    [
        (None, "many", "'many' is not a number"),
        (OPTIONS, "p0", "0 options of 'How many.' begin with 'p0'"),
        (OPTIONS, "", "2 options of 'How many.' begin with ''"),
        (SPEEDS, 0, "0 options of 'How many.' begin with 0"),
    ],
)
def test_a_line_that_names_no_option_is_refused(options, said, why):
    guess = predict("How many?", options)
    with pytest.raises(CourseError, match=why):
        guess.value = said
    assert guess.value is None


def test_an_option_is_scored_by_its_beginning_or_its_number():
    guess = predict("Which?", OPTIONS)
    guess.field.value = OPTIONS[1]
    assert guess.score("tensorrt_llm") == f"Your prediction: {OPTIONS[1]}. It is {OPTIONS[0]}."
    speed = predict("How fast?", SPEEDS)
    speed.field.value = "twice"
    assert speed.score(2.9, "the median of 5 rounds") == (
        "Your prediction, twice, is right. Measured: 2.9, the median of 5 rounds."
    )
    assert speed.score(4.1) == "Your prediction: twice. It is eight times. Measured: 4.1."
    with pytest.raises(CourseError, match="2 options of 'Which.' begin with ''"):
        guess.score("")


@pytest.mark.parametrize(("options", "said"), [(None, "7"), (OPTIONS, OPTIONS[1])])
def test_in_a_workspace_a_prediction_outlives_the_kernel(options, said, tmp_path, monkeypatch):
    (tmp_path / workspace.MARK).touch()
    monkeypatch.chdir(tmp_path)
    predict("How many?", options).field.value = said
    assert predict("How many?", options).field.value == said
    assert not predict("How many others?", options).value
    assert predict("How many?", ("other", "options")).value is None
