"""A repository of somebody's own, with another engine and other settings in it."""

import pytest

from inflight.errors import CourseError
from inflight.paths import PACKAGE
from inflight.triton import Client, Server, repository

pytestmark = pytest.mark.server

COURSES_OWN = PACKAGE / "lessons" / "repository" / "parts" / "repository"


def read(repo, model):
    return repository.read_config(repo / model / "config.pbtxt")


def test_tensors_and_code_stay_and_the_settings_are_those_that_are_given(tmp_path):
    own = repository.refit(COURSES_OWN, tmp_path / "own", "/engines/first", max_queue_size=3)
    path = own / "postprocessing" / "1" / "model.py"
    path.write_text("# mine\n" + path.read_text())
    config = read(own, "preprocessing")
    config.output[0].label_filename = "mine"
    repository.write_config(config, own / "preprocessing" / "config.pbtxt")
    again = repository.refit(
        own, tmp_path / "again", "/engines/second", decoupled_mode=True, triton_max_batch_size=128, tokenizer_dir="/t"
    )
    engine = read(again, "tensorrt_llm")
    assert repository.get_parameter(engine, "gpt_model_path") == "/engines/second"
    assert repository.get_parameter(engine, "max_queue_size") == "0", "the default, as it is not given again"
    assert engine.model_transaction_policy.decoupled
    assert {read(again, model).max_batch_size for model in repository.models(again)} == {128}
    assert repository.get_parameter(read(again, "postprocessing"), "tokenizer_dir") == "/t"
    assert read(again, "preprocessing").output[0].label_filename == "mine"
    assert (again / "postprocessing" / "1" / "model.py").read_text().startswith("# mine")
    assert "mask" in repository.models(again) and (again / "ensemble" / "1").is_dir()


def test_it_may_replace_itself(tmp_path):
    own = repository.refit(COURSES_OWN, tmp_path / "own", "/engines/first")
    assert repository.refit(own, own, "/engines/second") == own
    assert repository.get_parameter(read(own, "tensorrt_llm"), "gpt_model_path") == "/engines/second"
    assert "mask" in repository.models(own)


def test_what_cannot_be_refitted(tmp_path):
    with pytest.raises(CourseError, match="There is no model repository at"):
        repository.refit(tmp_path, tmp_path / "target", "/engines/model")
    with pytest.raises(CourseError, match="Did you mean 'decoupled_mode'"):
        repository.refit(COURSES_OWN, tmp_path / "target", "/engines/model", decouple_mode=True)
    assert not (tmp_path / "target").exists()


def test_the_courses_own_serves_whole_and_streamed(small_engine, tmp_path):
    """With a real engine, which gives back what it was asked."""
    own = repository.refit(
        COURSES_OWN, tmp_path / "own", small_engine, apply_chat_template=False, exclude_input_in_output=False
    )
    with Server(own, drain_s=0) as server:
        assert Client(server.grpc_url).ask("one a@b.org two", max_tokens=3).text.startswith("one [e-mail] two")
        repository.edit(own, "tensorrt_llm", "model_transaction_policy { decoupled: true }")
        for model in ("tensorrt_llm", "ensemble"):
            server.load(model)
        stream = Client(server.grpc_url).stream("one a@b.org two", max_tokens=3)
        assert len(list(stream)) >= 1
