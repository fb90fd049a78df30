"""GPT-2 checkpoints by name: found, or one sentence."""

import pytest

from inflight.errors import CourseError
from inflight.models.gpt2_checkpoint import find
from tests.tiny_gpt2 import tiny_gpt2


def test_the_courses_own_and_a_folder_are_found(tmp_path):
    assert (find() / "model.safetensors").exists()
    folder = tiny_gpt2(tmp_path)
    assert find(folder) == find(str(folder)) == folder


def test_an_unknown_name_is_refused():
    with pytest.raises(CourseError, match="no checkpoint 'gpt5'"):
        find("gpt5")
