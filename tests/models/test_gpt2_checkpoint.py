"""GPT-2 checkpoints by name: made once, found again, or one sentence."""

import pytest

from inflight.checkpoint import sources as checkpoint
from inflight.errors import CourseError
from inflight.models import gpt2_checkpoint
from inflight.models.gpt2_checkpoint import COURSE, find, random_checkpoint

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


def test_random_weights_are_made_once_and_kept(monkeypatch):
    made = find(TINY)
    assert made.is_relative_to(checkpoint.cache_dir()) and (made / "tokenizer.json").exists()
    monkeypatch.setattr(gpt2_checkpoint, "random_checkpoint", None)
    assert find(TINY) == made


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
