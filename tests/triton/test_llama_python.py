"""The baseline without an engine: the checkpoint as a Hugging Face folder, and its model behind Triton."""

import json
import os
import shutil

import pytest

from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.errors import CourseError
from inflight.models import huggingface
from inflight.triton.client.client import Client
from inflight.triton.repository import BASELINE, PIPELINE, assemble
from inflight.triton.serving.server import Server
from tests.engines import build_small, flip

pytestmark = pytest.mark.server

MODELS = (*PIPELINE, BASELINE)
PROMPTS = ["The capital of France is", "One, two, three,", "Once upon a time there was"]
POSITIONS = 128  # of the model that is served; the checkpoint's own 8192 would take long to fill


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A cache folder of this file's own, in place of the user's."""
    with pytest.MonkeyPatch.context() as patch:
        home = tmp_path_factory.mktemp("home")
        patch.setenv("INFLIGHT_HOME", str(home))
        yield home


@pytest.fixture(scope="module")
def small_folder(small_checkpoint, home):
    return huggingface.folder(small_checkpoint)


# The checkpoint as a Hugging Face folder ------------------------------------------------------------------------------


def test_a_folder_that_cannot_be_loaded(small_folder, tmp_path):
    broken = shutil.copytree(small_folder, tmp_path / "broken")
    os.truncate(broken / "model.safetensors", 1000)
    with pytest.raises(CourseError, match="broken cannot be loaded .* Make or fetch that folder again"):
        huggingface.load(broken)


def test_a_damaged_folder_of_the_cache_is_noticed_and_made_again(small_checkpoint, tmp_path, monkeypatch):
    monkeypatch.setenv("INFLIGHT_HOME", str(tmp_path))
    folder = huggingface.folder(small_checkpoint)
    flip(folder / "model.safetensors")
    with pytest.raises(
        CourseError, match="is not what was written.*It is not whole in the cache: run what made it again"
    ):
        huggingface.load(folder)
    (huggingface.folder(small_checkpoint) / "config.json").unlink()
    huggingface.load(huggingface.folder(small_checkpoint))


# Behind Triton, beside the ensemble -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(small_checkpoint, small_folder, tmp_path_factory):
    """Ensemble and baseline with the same 16-bit weights: an engine of 4-bit ones rounds them once more."""
    scratch = tmp_path_factory.mktemp("baseline")
    short = shutil.copytree(small_folder, scratch / "checkpoint")
    config = json.loads((short / "config.json").read_text())
    (short / "config.json").write_text(json.dumps({**config, "max_position_embeddings": POSITIONS}))
    engine = build_small(small_checkpoint, scratch / "engine", quant_algo=None)
    repo = assemble(
        scratch / "repo",
        engine,
        MODELS,
        checkpoint_dir=short,
        llama_dtype="float32",
        apply_chat_template=False,
        decoupled_mode=True,
    )
    with Server(repo, drain_s=0) as server:
        yield server


@pytest.fixture(scope="module")
def baseline(server):
    with Client(server.grpc_url, BASELINE) as client:
        yield client


@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_same_weights_give_the_same_answer(server, baseline, prompt):
    with Client(server.grpc_url) as ensemble:
        assert baseline.ask(prompt, 16, min_length=16).text == ensemble.ask(prompt, 16, min_length=16).text != ""


def exactly(client, prompt: str, length: int) -> str:
    return client.ask(prompt, length, min_length=length).text


def test_an_answer_ends_with_the_models_positions(baseline, small_folder):
    """The engine does likewise: an answer never grows beyond max_seq_len."""
    prompt = "word " * 40
    room = POSITIONS - len(load_tokenizer(small_folder).encode(prompt))
    assert room > 1
    all_of_it = exactly(baseline, prompt, 1000)
    assert all_of_it == exactly(baseline, prompt, room) and len(all_of_it) > len(exactly(baseline, prompt, room - 1))


@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_stream_brings_the_same_text_in_pieces(baseline, prompt):
    streamed = baseline.stream(prompt, 24, min_length=24).read()
    assert 1 < len(streamed.pieces) <= 25 and streamed.text == exactly(baseline, prompt, 24)


def test_the_prompt_comes_back_when_it_is_not_excluded(server, baseline):
    answer = baseline.ask(PROMPTS[0], 8, min_length=8).text
    assert baseline.ask(PROMPTS[0], 8, min_length=8, exclude_input_in_output=False).text == PROMPTS[0] + answer
    streamed = baseline.stream(PROMPTS[0], 8, min_length=8, exclude_input_in_output=False)
    assert streamed.read().text == answer, "a stream has new text only, as the engine's"


@pytest.mark.parametrize(
    "text, options, fact",
    [
        ("", {}, "text_input"),
        ("Hi", {"max_tokens": 0}, "max_tokens is 0"),
        ("a " * POSITIONS, {}, f"{POSITIONS} positions"),
        ("Hi", {"temperature": 0.5}, "temperature"),
    ],
    ids=["empty", "no tokens", "too long", "warm"],
)
def test_what_is_refused_in_one_sentence(baseline, text, options, fact):
    with pytest.raises(CourseError, match=fact) as refusal:
        baseline.ask(text, **{"max_tokens": 4, **options})
    assert "Traceback" not in str(refusal.value) and "\n" not in str(refusal.value)
