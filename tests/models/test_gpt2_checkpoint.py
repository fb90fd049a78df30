"""GPT-2 checkpoints by name: made once, found again, or one sentence."""

import os
import subprocess
import sys

import pytest
import transformers

from inflight.checkpoint import sources as checkpoint
from inflight.errors import CourseError
from inflight.models import gpt2_checkpoint
from inflight.models.gpt2_checkpoint import COURSE, SIZES, find, random_checkpoint

TINY = "gpt2-tiny-random"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return random_checkpoint(tmp_path_factory.mktemp("gpt2") / "tiny", "gpt2-tiny")


def test_random_weights_are_those_of_the_seed(folder, tmp_path):
    again = random_checkpoint(tmp_path / "again", "gpt2-tiny")
    other = random_checkpoint(tmp_path / "other", "gpt2-tiny", seed=1)
    weights = [(path / "model.safetensors").read_bytes() for path in (folder, again, other)]
    assert weights[0] == weights[1] != weights[2]
    assert checkpoint.fetch(folder).format == "hf"


def test_the_timing_sizes_are_gpt2s():
    assert transformers.GPT2Config(**SIZES["gpt2-124m"]).to_dict() == transformers.GPT2Config().to_dict()
    largest = transformers.GPT2Config(**SIZES["gpt2-1.5b"])
    width = largest.n_embd
    embeddings = (largest.vocab_size + largest.n_positions) * width
    assert 12 * width**2 * largest.n_layer + embeddings == pytest.approx(1.56e9, rel=0.01)


def test_random_weights_are_made_once_and_kept(monkeypatch):
    made = find(TINY)
    assert made.is_relative_to(checkpoint.cache_dir()) and (made / "tokenizer.json").exists()
    monkeypatch.setattr(gpt2_checkpoint, "random_checkpoint", None)
    assert find(TINY) == made


def test_what_everybody_may_read(folder):
    assert {file.stat().st_mode & 0o444 for file in folder.iterdir()} == {0o444}


def test_a_folder_is_taken_as_it_is(folder):
    assert find(folder) == find(str(folder)) == folder


@pytest.mark.parametrize("name", ["gpt5", "gpt2-124m", "/no/such/folder", "a/b/c"])
def test_an_unknown_name_lists_what_is_known(name):
    with pytest.raises(CourseError, match=f"no GPT-2 checkpoint {name!r}: name one of course-gpt2, .*-random, gpt2,"):
        find(name)


def test_a_folder_without_weights_is_refused(tmp_path):
    with pytest.raises(CourseError, match="has no config.json, tokenizer.json, model.safetensors"):
        find(tmp_path)


def test_the_courses_own_is_in_the_repository_or_missed_in_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr(gpt2_checkpoint, "CHECKPOINTS", tmp_path)
    with pytest.raises(CourseError, match="check the repository out again, or name another checkpoint"):
        find()
    (tmp_path / COURSE).mkdir()
    (tmp_path / COURSE / "config.json").write_text("{}")
    assert find(COURSE) == tmp_path / COURSE


@pytest.mark.parametrize("name", ["gpt2", "owner/name"])
def test_the_original_without_the_hub_is_one_sentence(name, tmp_path):
    script = f"from inflight.models.gpt2_checkpoint import find\nfind({name!r})"
    result = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "INFLIGHT_HOME": str(tmp_path)},
    )
    hub = gpt2_checkpoint.HUB.get(name, name)
    assert f"CourseError: The model {hub} cannot be fetched from the Hugging Face hub" in result.stderr


def test_a_cache_that_cannot_be_written_is_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("where the cache folder should be")
    monkeypatch.setenv("INFLIGHT_HOME", str(tmp_path / "file"))
    with pytest.raises(CourseError, match="set INFLIGHT_HOME to a folder of your own"):
        find(TINY)
