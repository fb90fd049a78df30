"""The GPT-2 with a KV cache of slots, against transformers' own `generate`."""

import json
import shutil

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight.checkpoint import sources as checkpoint
from inflight.errors import CourseError
from inflight.models import gpt2, huggingface
from inflight.models.gpt2_checkpoint import find
from tests.tiny_gpt2 import POSITIONS, tiny_gpt2

NUM_SLOTS = 4
LENGTH = 24
PARAMETERS = {"max_tokens": LENGTH, "ignore_eos": True}
PROMPTS = ["One", "Programming in C++ is like", "a b c d e f g h i j k l m n o p", "One two", "word " * 60,
           "ünïcödé 日本 🎈"]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_gpt2(tmp_path_factory.mktemp("gpt2"))


@pytest.fixture(scope="module")
def model(folder):
    return gpt2.load(folder, "on", "float32", NUM_SLOTS)


@pytest.fixture(scope="module")
def generated(folder):
    """Prompt -> prompt and answer as tokens, by transformers."""
    model = gpt2.load(folder, "on", "float32", NUM_SLOTS)
    theirs = transformers.GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    answers = {}
    for prompt in PROMPTS:
        ids = torch.tensor([model.sequence(prompt, PARAMETERS).token_ids])
        greedy = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0, "max_new_tokens": LENGTH}
        answers[prompt] = theirs.generate(ids, attention_mask=torch.ones_like(ids), **greedy)[0].tolist()
    return answers


def finish(model, sequence):
    while not sequence.is_finished:
        model.step([sequence])
    return sequence.token_ids


# Tokens ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["on", "off", "tutorial"])
def test_each_way_gives_the_tokens_of_transformers(folder, generated, way):
    model = gpt2.TutorialGpt2(folder, "cpu") if way == "tutorial" else gpt2.load(folder, way, "float32")
    sequences = [model.sequence(prompt, PARAMETERS) for prompt in PROMPTS]
    assert all(map(model.join, sequences))
    for _ in range(LENGTH):
        model.step(sequences)
    assert [sequence.token_ids for sequence in sequences] == list(generated.values())


def test_the_answers_tell_sequences_apart(generated):
    """Or the tests here would pass with a cache that mixes them up."""
    answers = [tuple(tokens[-LENGTH:]) for tokens in generated.values()]
    assert len(set(answers)) == len(answers) and all(len(set(answer)) > LENGTH // 2 for answer in answers)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.integers(0, len(PROMPTS) - 1)),
        st.tuples(st.just("leave"), st.integers(0, NUM_SLOTS - 1)),
        st.tuples(st.just("step"), st.integers(1, 2**NUM_SLOTS - 1)),  # a bit for each of those that are there
    ),
    min_size=10,
    max_size=60,
)


@settings(max_examples=20, deadline=None)
@given(events=EVENTS)
def test_whoever_joins_and_leaves_the_tokens_are_the_same(model, generated, events):
    present = []  # prompt and sequence
    for event, number in events:
        if event == "join":
            sequence = model.sequence(PROMPTS[number], PARAMETERS)
            assert model.join(sequence) == (len(present) < NUM_SLOTS)
            present += [(PROMPTS[number], sequence)] if sequence.slot is not None else []
        elif event == "leave" and present:
            _, sequence = present.pop(number % len(present))
            for _ in range(2):  # the second time it has no slot to give back
                model.leave(sequence)
        elif event == "step":
            chosen = [sequence for bit, (_, sequence) in enumerate(present) if number >> bit & 1]
            if chosen:
                model.step(chosen)
        for prompt, sequence in present:
            assert sequence.token_ids == generated[prompt][: len(sequence.token_ids)]
        for _, sequence in [row for row in present if row[1].is_finished]:
            model.leave(sequence)
        present = [row for row in present if not row[1].is_finished]
        assert model.num_used_slots == len(present) == len({sequence.slot for _, sequence in present})
    for _, sequence in present:
        model.leave(sequence)
    assert model.num_used_slots == 0


def test_bfloat16_is_close_to_float32(folder, generated):
    """Near ties may go either way, so the first token of most prompts."""
    model = gpt2.load(folder, "on", "bfloat16", len(PROMPTS))
    sequences = [model.sequence(prompt, {"max_tokens": 2, "ignore_eos": True}) for prompt in PROMPTS]
    assert all(map(model.join, sequences))
    model.step(sequences)
    pairs = zip(sequences, generated.values())
    same = [sequence.token_ids[-1] == tokens[sequence.prompt_length] for sequence, tokens in pairs]
    assert sum(same) >= len(PROMPTS) - 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU computes in float16")
def test_a_precision_that_a_cpu_cannot_do(folder):
    with pytest.raises(CourseError, match="dtype is float16, which this computer's CPU does not .* use bfloat16 or"):
        gpt2.load(folder, "on", "float16")


def test_an_answer_may_fill_all_positions_and_its_pieces_joined_are_the_text(model, folder):
    room = POSITIONS - model.sequence(PROMPTS[-1], PARAMETERS).prompt_length
    sequence = model.sequence(PROMPTS[-1], {"max_tokens": room, "ignore_eos": True})
    assert model.join(sequence)
    pieces = []
    while not sequence.is_finished:
        model.step([sequence])
        pieces.append(model.last_piece(sequence))
    model.leave(sequence)
    theirs = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    assert len(pieces) == room and len(sequence.token_ids) == POSITIONS
    assert PROMPTS[-1] + "".join(pieces) == theirs.decode(sequence.token_ids, clean_up_tokenization_spaces=False)


def test_the_end_token_ends_the_answer_unless_it_is_ignored(folder, generated, tmp_path):
    prompt = PROMPTS[1]
    answer = generated[prompt][-LENGTH:]
    ending = shutil.copytree(folder, tmp_path / "ending")
    config = json.loads((ending / "config.json").read_text())
    (ending / "config.json").write_text(json.dumps({**config, "eos_token_id": answer[4]}))
    model = gpt2.load(ending, "on", "float32", 1)
    for ignore_eos, length in ((False, answer.index(answer[4]) + 1), (True, LENGTH)):
        sequence = model.sequence(prompt, {"max_tokens": LENGTH, "ignore_eos": ignore_eos})
        assert model.join(sequence)
        assert finish(model, sequence)[sequence.prompt_length :] == answer[:length]
        model.leave(sequence)


def test_a_cache_beyond_all_memory_is_one_sentence(folder):
    with pytest.raises(CourseError, match="no memory for a KV cache of 1000000000000 slots: set kv_cache_slots lower"):
        gpt2.load(folder, "on", "float32", 10**12)


# What is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, parameters, message",
    [
        ("", PARAMETERS, "text_input is empty"),
        ("Hi", {}, r"no parameter max_tokens \(.*\) and no parameter ignore_eos \(true or false\)"),
        ("Hi", {"max_tokens": True, "ignore_eos": True}, "max_tokens is True; it must be a whole number of at least 1"),
        ("Hi", {"max_tokens": 2.5, "ignore_eos": True}, "max_tokens is 2.5; it must be"),
        ("Hi", {"max_tokens": 4, "ignore_eos": 1}, "ignore_eos is 1; it must be true or false"),
        ("Hi", {"max_tokens": POSITIONS, "ignore_eos": True}, rf"ask for at most {POSITIONS - 1} tokens"),
        ("word " * POSITIONS, PARAMETERS, r"has \d+ tokens, but the model has 128 positions .* shorten the text"),
    ],
)
def test_requests_that_are_refused(model, text, parameters, message):
    with pytest.raises(CourseError, match=message):
        model.sequence(text, parameters)


def test_the_courses_own_checkpoint_and_a_folder_are_found_by_name(folder):
    assert (find() / "model.safetensors").exists()
    assert find(folder) == find(str(folder)) == folder


def test_checkpoints_that_are_refused(folder, tmp_path):
    with pytest.raises(CourseError, match="no checkpoint 'gpt5'"):
        find("gpt5")
    with pytest.raises(CourseError, match="is a 'llama', not a GPT-2"):
        gpt2.load(huggingface.folder(checkpoint.fetch()))
    with pytest.raises(CourseError, match="nothing has no config.json, tokenizer.json, model.safetensors: give"):
        gpt2.load(tmp_path / "nothing")
    other = shutil.copytree(folder, tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "activation_function": "relu"}))
    with pytest.raises(CourseError, match="activation_function = 'relu'; .* use another checkpoint, or simple-gpt2"):
        gpt2.load(other)
