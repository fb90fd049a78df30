"""What Triton refuses of a batcher, our check refuses before a server sees it, and for the same reason."""

import re

import httpx
import pytest

from inflight.errors import CourseError
from inflight.notebook.widgets import ConfigEditor
from inflight.triton import repository
from inflight.triton.server import Server

pytestmark = pytest.mark.server

CONTROL = "sequence_batching { control_input [ { name: 'a' control [ { kind: CONTROL_SEQUENCE_%s } ] } ] }"
# Part of a config, and what both refusals say, with spaces for underscores.
BAD = {
    "preferred size over the maximum": (
        "dynamic_batching { preferred_batch_size: [ 4, 16 ] }",
        ["preferred", "max batch size"],
    ),
    "default priority outside": (
        "dynamic_batching { priority_levels: 2 default_priority_level: 3 }",
        ["default priority level"],
    ),
    "order with priorities": (
        "dynamic_batching { preserve_ordering: true priority_levels: 2 default_priority_level: 1 }",
        ["only one priority level"],
    ),
    "order with DELAY": (
        "dynamic_batching { preserve_ordering: true "
        "default_queue_policy { default_timeout_microseconds: 5 timeout_action: DELAY } }",
        ["delay", "preserve ordering"],
    ),
    "unknown action": (
        "dynamic_batching { default_queue_policy { timeout_action: DROP } }",
        ["timeout action", "drop"],
    ),
    "both batchers": ("dynamic_batching { }\nsequence_batching { }", ["sequence batching", "dynamic batching"]),
    "both strategies": ("sequence_batching { direct { } oldest { } }", ["oldest", "direct"]),
    "unknown field": ("dynamic_batching { max_delay: 5 }", ["no field", "max delay"]),
    "negative batch size": ("max_batch_size: -1", ["max batch size"]),
    "slot utilization over 1": (
        "sequence_batching { direct { minimum_slot_utilization: 1.5 } }",
        ["minimum slot utilization"],
    ),
    "correlation id as a fraction": (
        CONTROL % "CORRID data_type: TYPE_FP32",
        ["control sequence corrid", "data.?type", "type uint64"],
    ),
}
# What Triton takes and ignores.
WITHOUT_EFFECT = {
    "priorities without levels": "dynamic_batching { default_priority_level: 3 "
    "priority_queue_policy { key: 3 value { max_queue_size: 1 } } }",
    "order with DELAY after no time": "dynamic_batching { preserve_ordering: true "
    "default_queue_policy { timeout_action: DELAY } }",
    "batches of a model without batches": "max_batch_size: 0 dynamic_batching { }",
}


@pytest.fixture(scope="module")
def repo(tmp_path_factory):
    return repository.assemble(tmp_path_factory.mktemp("checks") / "repo", models=("batch-cost",))


@pytest.fixture(scope="module")
def server(repo):
    with Server(repo) as server:
        yield server


@pytest.fixture
def config(repo):
    """The model's file, which is as it was after the test."""
    path = repo / "batch-cost" / repository.CONFIG
    before = path.read_text()
    yield path
    path.write_text(before)


def write(config, fragment: str) -> None:
    """Into the file, without a check: `fragment` in the place of what it names."""
    text = config.read_text()
    if fragment.startswith("max_batch_size"):
        text = re.sub("max_batch_size: .*\n", "", text)
    config.write_text(f"{text}\n{fragment}\n")


def load(server) -> httpx.Response:
    """Have Triton read the file itself."""
    url = f"{server.http_url}/v2/repository/models/batch-cost/load"
    return httpx.post(url, content="{}", headers=server.headers, timeout=60)


def says(message: str, words: list[str]) -> bool:
    plain = message.replace("_", " ").lower()
    missing = [word for word in words if not re.search(word, plain)]
    assert not missing, f"not {missing} in: {message}"
    return True


@pytest.mark.parametrize("name", BAD)
def test_we_refuse_what_triton_refuses_with_the_same_meaning(repo, server, config, name):
    fragment, words = BAD[name]
    write(config, fragment)
    [problem] = repository.check(repo)
    assert says(str(problem), words)
    size = len(server.log_tail(10_000))
    answer = load(server)
    assert answer.status_code != 200
    assert says(server.log_tail(10_000)[size:], words)


@pytest.mark.parametrize("name", BAD)
def test_an_edit_that_triton_would_refuse_is_not_written(repo, config, name):
    before = config.read_text()
    with pytest.raises(CourseError) as refusal:
        repository.edit(repo, "batch-cost", BAD[name][0])
    assert says(str(refusal.value), BAD[name][1])
    assert config.read_text() == before


@pytest.mark.parametrize("name", WITHOUT_EFFECT)
def test_we_accept_what_triton_accepts_even_if_it_has_no_effect(repo, server, config, name):
    write(config, WITHOUT_EFFECT[name])
    assert repository.check(repo) == []
    assert load(server).status_code == 200


@pytest.mark.parametrize(
    "fragment, place, field",
    [
        ("dynamic_batching { max_queue_delay_microseconds: -1 }", "line 1", "max_queue_delay_microseconds"),
        ("dynamic_batching {\n  default_queue_policy { timeout_action: DROP }\n}", "line 2", "timeout_action"),
        ("dynamic_batching { }\nsequence_batching { }", "line 2", "sequence_batching and dynamic_batching"),
    ],
)
def test_text_that_is_no_config_is_refused_with_its_place_and_its_field(fragment, place, field):
    with pytest.raises(CourseError) as refusal:
        repository.parse(fragment, "the fragment")
    assert all(fact in str(refusal.value) for fact in ("the fragment", place, field))


def test_the_editor_does_not_let_a_batcher_be_applied_that_triton_would_refuse(repo, config):
    editor = ConfigEditor(repo, "batch-cost", names=["dynamic_batching.preferred_batch_size", "max_batch_size"])
    sizes, limit = editor.fields.values()
    sizes.value = "16"
    assert editor.apply_button.disabled and "16" in editor.status.value
    limit.value = "16"
    assert not editor.apply_button.disabled and editor.status.value == ""


def test_a_load_with_values_that_do_not_fit_together_is_refused_before_it_reaches_triton(server):
    size = len(server.log_tail(10_000))
    with pytest.raises(CourseError, match="default_priority_level"):
        server.load("batch-cost", **{"dynamic_batching.priority_levels": 2})
    assert "Poll failed" not in server.log_tail(10_000)[size:]
