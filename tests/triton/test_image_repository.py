"""The repository of NVIDIA's image: templates as that release has them, with the settings of ours."""

import pytest

from inflight.containers import Image, find
from inflight.engine import in_container
from inflight.engine.trtllm_commands import MODELS
from inflight.errors import CourseError
from inflight.triton import image_repository, repository
from tests import trtllm_facts
from tests.containers import stand_in_runtime

NVIDIA = "nvcr.io/nvidia/tritonserver:25.04-trtllm-python-py3"
VERSIONS = ["0.14.0", "0.18.2", "r25.04", "0.19.0"]


@pytest.fixture
def ours(small_engine, tmp_path):
    engine = tmp_path / "engine"
    engine.symlink_to(small_engine)
    return repository.assemble(
        tmp_path / "repo", engine, decoupled_mode=True, batching_strategy="V1",
        batch_scheduler_policy="max_utilization", max_tokens_in_paged_kv_cache=4096, enable_kv_cache_reuse=True,
        iteration_log_path=tmp_path / "iterations.jsonl",
    )  # fmt: skip


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """As if TensorRT-LLM's engine lay beside ours."""
    monkeypatch.setattr(in_container, "FOLDER", ".")


def put_templates(folder, version):
    for model in MODELS:
        place = folder / "app" / "all_models" / "inflight_batcher_llm" / model
        (place / "1").mkdir(parents=True)
        (place / "config.pbtxt").write_text(trtllm_facts.template(version, model))
        (place / "1" / "model.py").write_text("# theirs\n")


@pytest.mark.parametrize("version", VERSIONS)
def test_every_releases_templates_parse_with_our_settings(tmp_path, monkeypatch, ours, engine, version):
    folder = stand_in_runtime(tmp_path / "stand-in", monkeypatch, NVIDIA)
    put_templates(folder, version)
    filled = image_repository.make(find("docker"), Image(NVIDIA), ours, tmp_path / "filled")
    assert set(repository.models(filled)) == set(MODELS)
    config = repository.read_config(filled / "tensorrt_llm" / "config.pbtxt")
    assert config.backend == "tensorrtllm" and config.model_transaction_policy.decoupled
    value = lambda name: repository.get_parameter(config, name)
    assert (value("batching_strategy"), value("batch_scheduler_policy")) == ("V1", "max_utilization")
    assert (value("max_tokens_in_paged_kv_cache"), value("enable_kv_cache_reuse")) == ("4096", "true")
    assert value("stats_check_period_ms") in ("10", "100")
    assert "/engine" in value("engine_dir") and "${" not in value("engine_dir")
    tokens = repository.read_config(filled / "preprocessing" / "config.pbtxt")
    assert repository.get_parameter(tokens, "tokenizer_dir") == str(tmp_path / "engine")
    assert (filled / "postprocessing" / "1" / "model.py").read_text() == "# theirs\n"


def test_an_image_without_templates_says_so(tmp_path, monkeypatch, ours, engine):
    stand_in_runtime(tmp_path / "stand-in", monkeypatch, NVIDIA)
    with pytest.raises(CourseError, match="has no templates at /app/all_models/inflight_batcher_llm: tar: "):
        image_repository.make(find("docker"), Image(NVIDIA), ours, tmp_path / "filled")


def test_without_its_engine_the_command_that_builds_it_is_named(tmp_path, monkeypatch, ours):
    stand_in_runtime(tmp_path / "stand-in", monkeypatch, NVIDIA)
    with pytest.raises(CourseError, match="There is no TensorRT-LLM engine at .*inflight build"):
        image_repository.make(find("docker"), Image(NVIDIA), ours, tmp_path / "filled")


def test_settings_are_ours_and_places_theirs(ours):
    theirs = repository.read_config(ours / "tensorrt_llm" / "config.pbtxt")
    theirs.parameters["gpt_model_path"].string_value = "/engines/1"
    theirs.parameters["lora_cache_max_adapter_size"].string_value = "64"
    theirs.model_transaction_policy.decoupled = False
    mixed = image_repository.with_settings(theirs, repository.read_config(ours / "tensorrt_llm" / "config.pbtxt"))
    assert repository.get_parameter(mixed, "gpt_model_path") == "/engines/1"
    assert repository.get_parameter(mixed, "lora_cache_max_adapter_size") == "64"
    assert repository.get_parameter(mixed, "gpt_model_type") == "V1" and mixed.model_transaction_policy.decoupled
