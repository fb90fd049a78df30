"""GPT-2 checkpoints by name: found, or one sentence."""

import pytest

from inflight.errors import CourseError
from inflight.models import gpt2_checkpoint
from inflight.models.gpt2_checkpoint import COURSE, find
from tests.tiny_gpt2 import tiny_gpt2


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_gpt2(tmp_path_factory.mktemp("gpt2"))


def test_a_folder_is_taken_as_it_is(folder):
    assert find(folder) == find(str(folder)) == folder


@pytest.mark.parametrize("name", ["gpt5", "gpt2-124m", "/no/such/folder", "a/b/c"])
def test_an_unknown_name_lists_what_is_known(name):
    with pytest.raises(CourseError, match=f"no GPT-2 checkpoint {name!r}: name one of course-gpt2, gpt2,"):
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
