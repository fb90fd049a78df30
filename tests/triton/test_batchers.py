"""Fields of Triton's batchers by their path."""

import pytest
from tritonclient.grpc.model_config_pb2 import ModelConfig

from inflight.errors import CourseError
from inflight.triton import repository
from inflight.triton.repository import batchers

EXAMPLES = {
    "max_batch_size": "4",
    "instance_group.count": "2",
    "dynamic_batching": "true",
    "dynamic_batching.preferred_batch_size": "4, 8",
    "dynamic_batching.preserve_ordering": "true",
    "dynamic_batching.default_queue_policy.timeout_action": "DELAY",
    "sequence_batching.direct.minimum_slot_utilization": "0.5",
}


@pytest.mark.parametrize("path", batchers.FIELDS)
def test_what_is_set_is_there_in_the_text_form_too_and_blank_takes_it_away(path):
    text = EXAMPLES.get(path, "7" if batchers.FIELDS[path].kind == "int" else "true")
    config = ModelConfig(name="model")
    assert batchers.get_field(config, path) == ""
    batchers.set_field(config, path, text)
    read = repository.parse(repository.to_text(config))
    assert batchers.get_field(read, path) == text
    batchers.set_field(read, path, "")
    assert batchers.get_field(read, path) == ""


@pytest.mark.parametrize(
    "path, text, reason",
    [
        ("dynamic_batching.max_queue_delay_microseconds", "-1", "at least 0"),
        ("dynamic_batching.preferred_batch_size", "4, x", "whole numbers with commas between them"),
        ("dynamic_batching.default_queue_policy.timeout_action", "DROP", "REJECT or DELAY"),
    ],
)
def test_a_wrong_value_is_refused_and_nothing_is_changed(path, text, reason):
    config = ModelConfig(name="model")
    with pytest.raises(CourseError, match=reason):
        batchers.set_field(config, path, text)
    assert config == ModelConfig(name="model")


def test_there_is_one_batcher_and_one_strategy():
    config = ModelConfig(name="model")
    batchers.set_field(config, "dynamic_batching", "true")
    batchers.set_field(config, "sequence_batching.direct.max_queue_delay_microseconds", "5")
    assert batchers.get_field(config, "dynamic_batching") == ""
    batchers.set_field(config, "sequence_batching.oldest.max_candidate_sequences", "2")
    assert batchers.get_field(config, "sequence_batching.direct.max_queue_delay_microseconds") == ""


def test_a_fragment_replaces_what_it_names(tmp_path):
    repo = repository.assemble(tmp_path / "repo", tmp_path / "engine", models=("postprocessing",))
    read = lambda: repository.read_config(repo / "postprocessing" / repository.CONFIG)
    inputs = len(read().input)
    diff = repository.edit(
        repo, "postprocessing", "dynamic_batching { preferred_batch_size: [ 4 ] }", max_batch_size=16
    )
    assert "+dynamic_batching {" in diff and "+  preferred_batch_size: [4]" in diff
    repository.edit(repo, "postprocessing", "dynamic_batching { max_queue_delay_microseconds: 5 }")
    assert list(read().dynamic_batching.preferred_batch_size) == [] and read().max_batch_size == 16
    repository.edit(repo, "postprocessing", "sequence_batching { }")
    assert read().WhichOneof("scheduling_choice") == "sequence_batching" and len(read().input) == inputs
    before = read()
    with pytest.raises(CourseError, match="the fragment"):
        repository.edit(repo, "postprocessing", "dynamic_batching { no_such_field: 5 }")
    assert read() == before
