"""The GPT-2 that ships with the course: it loads, it is as good as it says, and it goes on in English."""

import collections
import itertools
import json
import math
import random
import re

import pytest
import torch
import transformers

from inflight.models import gpt2, huggingface
from inflight.models.gpt2_checkpoint import find
from tools import course_gpt2
from tools import course_gpt2_quality as quality
from tools.course_gpt2 import FOLDER
from tools.course_gpt2_quality import PROMPT


@pytest.fixture(scope="module")
def model():
    with huggingface.quiet():
        return transformers.GPT2LMHeadModel.from_pretrained(FOLDER, dtype=torch.float32, **huggingface.LOCAL).eval()


@pytest.fixture(scope="module")
def text():
    return transformers.AutoTokenizer.from_pretrained(FOLDER, **huggingface.LOCAL)


@pytest.fixture(scope="module")
def figures():
    return json.loads((FOLDER / "training.json").read_text())


@pytest.fixture(scope="module")
def held_out():
    return (FOLDER / "held_out.txt").read_text().splitlines()


@pytest.fixture(scope="module")
def held_out_ids(text, held_out):
    return course_gpt2.encoded(text.backend_tokenizer, held_out)


@pytest.fixture(scope="module")
def measured():
    """What was measured when the checkpoint last changed."""
    return json.loads(quality.RECORD.read_text())


@pytest.fixture(scope="module")
def answers(measured):
    """Prompt -> 48 tokens, greedy, or fewer where the token that ends a text comes first."""
    return measured["answers"]


def test_the_folder_is_small_and_holds_nothing_that_is_unpickled():
    names = {file.name for file in FOLDER.iterdir()}
    assert names == {
        "README.md",
        "config.json",
        "generation_config.json",
        "held_out.txt",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "training.json",
    }
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) <= 25e6
    assert (FOLDER / "held_out.txt").stat().st_size <= 60_000


def test_it_is_a_gpt2(model, text):
    config = json.loads((FOLDER / "config.json").read_text())
    assert (config["model_type"], config["n_positions"], config["activation_function"]) == ("gpt2", 1024, "gelu_new")
    assert config["dtype"] == "bfloat16" and config["architectures"] == ["GPT2LMHeadModel"]
    assert len(text) == model.config.vocab_size == model.transformer.wte.weight.shape[0]
    assert text.eos_token == "<|endoftext|>" and text.eos_token_id == model.config.eos_token_id == 0


def test_any_text_comes_back_from_the_tokenizer(text):
    for string in (PROMPT, " two  blanks\tand a tab\n", "naïve café, 東京, 🚀"):
        assert text.decode(text(string)["input_ids"]) == string
    assert set(text("One")) == {"input_ids", "attention_mask"}  # token types would change what GPT-2 computes


def test_the_course_computes_the_same_tokens_as_transformers(model, text):
    num_tokens = 24
    expected = model.generate(
        **text(PROMPT, return_tensors="pt"),
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        max_new_tokens=num_tokens,
    )
    course = gpt2.load(find("course-gpt2"), dtype="float32")
    sequence = course.sequence(PROMPT, {"max_tokens": num_tokens, "ignore_eos": True})
    assert course.join(sequence)
    while not sequence.is_finished:
        course.step([sequence])
    assert sequence.token_ids == expected[0].tolist()


def test_the_figures_were_measured_on_this_very_checkpoint(measured):
    assert measured["sha256"] == quality.hashes(), (
        "The checkpoint is another than the one whose figures are judged below: measure it again with "
        "`python -m tools.course_gpt2_quality` (half a minute), then run these tests again."
    )


def test_held_out_perplexity_is_what_the_card_says(measured, held_out_ids, figures):
    assert sum(map(len, held_out_ids)) == measured["held_out_tokens"] == figures["text"]["held_out_tokens"]
    another_cpu_rounds_otherwise = pytest.approx(figures["held_out_perplexity"], rel=0.01)
    assert measured["held_out_perplexity"] == another_cpu_rounds_otherwise
    assert f"| held-out perplexity | {figures['held_out_perplexity']} |" in (FOLDER / "README.md").read_text()


def test_it_knows_more_than_which_tokens_are_frequent(held_out_ids, figures):
    """Against the best that frequencies alone can do: those of the held-out text itself."""
    counts = collections.Counter(token for ids in held_out_ids for token in ids[1:])
    total = sum(counts.values())
    entropy = -sum(count / total * math.log(count / total) for count in counts.values())
    assert figures["held_out_loss"] < entropy - math.log(4)


def test_its_positions_are_trained_to_the_last(measured):
    """The last of 1024 positions predict no worse than those where the second text begins."""
    assert measured["loss_at_the_end"] < measured["loss_at_the_beginning"] + 0.5


def most_repeats(words: list[str]) -> int:
    """How often the most frequent 4-gram is there."""
    return max(collections.Counter(zip(words, words[1:], words[2:], words[3:])).values(), default=0)


def test_it_goes_on_in_english(answers, held_out):
    words = re.findall(r"[a-z']+", answers[PROMPT].lower())
    known = {word for line in held_out for word in re.findall(r"[a-z']+", line.lower())}
    assert len(words) >= 12
    assert sum(word in known for word in words) / len(words) > 0.75


def test_its_best_known_answer_does_not_repeat_itself(answers):
    assert most_repeats(answers[PROMPT].lower().split()) <= 2


def test_it_seldom_repeats_itself(answers):
    repeating = [answer for answer in answers.values() if most_repeats(answer.lower().split()) > 2]
    assert len(repeating) <= len(answers) // 4, repeating
    assert len(set(answers.values())) == len(answers)


def test_the_curve_falls(figures):
    curve = figures["curve"]
    assert len(curve) >= 8 and [point["step"] for point in curve] == sorted({point["step"] for point in curve})
    assert curve[-1]["loss"] < curve[len(curve) // 2]["loss"] < curve[0]["loss"]
    assert figures["held_out_loss"] < curve[0]["held_out_loss"] - 1
    assert curve[-1]["tokens"] == curve[-1]["step"] * figures["hyperparameters"]["tokens_per_step"]


# The script that makes it


def test_prompts_are_the_same_however_many_are_asked_for():
    prompts = course_gpt2.prompts(5000)
    assert course_gpt2.prompts(300) == prompts[:300]
    assert len({prompt.seed for prompt in prompts}) == 5000
    assert any(prompt.begun == PROMPT for prompt in prompts)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "Bread is like a friend, for it is there every morning and asks for nothing. It is w",
            "Bread is like a friend, for it is there every morning and asks for nothing.",
        ),
        ("Bread is like a friend.", None),  # few words
        ("Bread is like a friend, for it is there every morning 早", None),
        ("Beer is like a friend, for it is there every morning and asks for nothing.", None),
        ("It is so fun to say so that it is so fun to say so that it is so fun to say so.", None),
    ],
)
def test_texts_are_whole_sentences_that_read_well(line, expected):
    assert course_gpt2.cleaned(line) == expected


def test_no_beginning_is_both_trained_and_held_out():
    prompts = course_gpt2.prompts(2000)
    lines = [f"{prompt.begun} one thing and another, number {prompt.seed}, that nobody had seen." for prompt in prompts]
    texts, held_out = course_gpt2.split(lines)
    assert sorted(texts + held_out) == sorted(lines)
    beginnings = {True: set(), False: set()}
    for prompt, line in zip(prompts, lines):
        beginnings[line in set(held_out)].add(prompt.begun)
    assert not beginnings[True] & beginnings[False]
    assert 0.015 < len(held_out) / len(lines) < 0.045


def test_rows_start_with_a_text_and_end_one_token_later():
    texts = [[number, number, number, 0] for number in range(1, 8)]
    rows = list(itertools.islice(course_gpt2.rows(texts, 9, random.Random(0)), 20))
    for row in rows:
        assert len(row) == 10 and row[0] == row[1] == row[2] != 0 == row[3]


def test_short_rows_start_anywhere_and_long_ones_take_turns():
    short, mixed, *_ = course_gpt2.STAGES
    batches = [positions for _, positions in itertools.islice(course_gpt2.batches([[5] * 40 + [0]], short), 40)]
    assert all(positions[0, 0] == 0 for positions in batches)
    assert max(positions.max() for positions in batches) > 1000
    batches = list(itertools.islice(course_gpt2.batches([[5] * 40 + [0]], mixed), 4))
    assert [ids.shape[1] for ids, _ in batches] == [257, 1025, 257, 1025]
    assert all(positions.numel() == course_gpt2.TOKENS_PER_STEP for _, positions in batches)
