"""Tokens become text as they come: whole characters, stop strings however they are cut, minimum lengths."""

import pytest

from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.triton.model.detokenizer import Detokenizer

MULTI_BYTE = "日本語 🎉 naïve 👩‍👩‍👧 été"


@pytest.fixture(scope="module")
def tokenizer(course_engine):
    return load_tokenizer(course_engine)


def told(text: Detokenizer, ids: list[int], size: int = 1) -> list[str]:
    """What is sent of an answer whose tokens come `size` at a time, up to what stops it."""
    pieces = []
    for start in range(0, len(ids), size):
        pieces.append(text.add(ids[start : start + size], start + size >= len(ids)))
        if text.stopped_by:
            break
    return pieces


@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_characters_come_whole(tokenizer, size):
    pieces = told(Detokenizer(tokenizer), tokenizer.encode(MULTI_BYTE), size)
    assert "".join(pieces) == MULTI_BYTE and "\ufffd" not in "".join(pieces)


def test_a_character_that_is_never_completed_comes_at_the_end(tokenizer):
    ids = tokenizer.encode("🎉")[:-1]
    assert told(Detokenizer(tokenizer), ids)[-1] == "\ufffd"


@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_stop_string_is_no_part_of_the_text_nor_what_may_begin_it(tokenizer, size):
    text = Detokenizer(tokenizer, ["sixpence", "e, a"])
    assert "".join(told(text, tokenizer.encode("a sixth sixpence, and more"), size)) == "a sixth "
    assert text.stopped_by == "sixpence"
    assert "".join(told(Detokenizer(tokenizer, ["sixpence"]), tokenizer.encode("a six"), size)) == "a six"


@pytest.mark.parametrize("size", [1, 2, 100])
@pytest.mark.parametrize(
    ("stops", "min_tokens", "expected"),
    [
        ([" "], 0, "one"),
        ([" "], 4, "one two three four"),  # each word is a token: the fourth blank is the fifth's
        ([" "], 5, "one two three four five"),
        ([" "], 6, "one two three four five six"),
        ([" "], 100, "one two three four five six"),
        (["two", "three"], 2, "one two "),  # "two" is exempt, and "three" is not
        (["two three"], 2, "one "),  # it ends with the third token, and so it counts
        (["two three", " "], 2, "one "),  # of two that come with one token, the one that begins first
        (["two three"], 3, "one two three four five six"),
    ],
)
def test_a_minimum_of_tokens_holds_against_stop_strings(tokenizer, stops, min_tokens, expected, size):
    ids = tokenizer.encode("one two three four five six")
    assert len(ids) == 6, "the cases count on a token a word"
    text = Detokenizer(tokenizer, stops, min_tokens)
    assert "".join(told(text, ids, size)) == expected
    assert bool(text.stopped_by) == (expected != "one two three four five six")


def test_control_tokens_have_text_only_where_it_is_wanted(tokenizer):
    ids = [*tokenizer.encode("Hi"), tokenizer.end_id]
    assert "".join(told(Detokenizer(tokenizer), ids)) == "Hi"
    assert "".join(told(Detokenizer(tokenizer, skip_special_tokens=False), ids)) == "Hi<|im_end|>"
