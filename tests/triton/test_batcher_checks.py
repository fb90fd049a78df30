"""What Triton refuses of a batcher is told in its own words, and leaves what was loaded; what is no config, before."""

import pytest

from inflight.errors import CourseError
from inflight.notebook.widgets import ConfigEditor
from inflight.triton import repository
from inflight.triton.server import Server
from tests.engines import is_ready

pytestmark = pytest.mark.server

REFUSED = {  # part of a config, and a fact of Triton's reason
    "dynamic_batching { preferred_batch_size: [ 4, 16 ] }": "preferred size must be <= max batch size",
    "dynamic_batching { priority_levels: 2 default_priority_level: 3 }": r"range \[1, 2\]",
    "dynamic_batching { preserve_ordering: true default_queue_policy "
    "{ default_timeout_microseconds: 5 timeout_action: DELAY } }": "DELAY as timeout action",
    "sequence_batching { direct { minimum_slot_utilization: 1.5 } }": "minimum slot utilization",
    "max_batch_size: -1": "must be non-negative",
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


@pytest.mark.parametrize("fragment", REFUSED)
def test_tritons_reason_is_told_and_the_model_goes_on(server, config, fragment):
    repository.edit(server.repo, "batch-cost", fragment)
    with pytest.raises(CourseError, match=f"'batch-cost' could not be loaded: .*{REFUSED[fragment]}"):
        server.load("batch-cost")
    assert is_ready(server)


def test_values_that_do_not_fit_together_are_told_too(server):
    with pytest.raises(CourseError, match="default priority level"):
        server.load("batch-cost", **{"dynamic_batching.priority_levels": 2})
    assert is_ready(server)


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


def test_the_editor_puts_the_file_back_and_says_tritons_reason(server, config):
    before = config.read_text()
    editor = ConfigEditor(server.repo, "batch-cost", server, ["dynamic_batching.preferred_batch_size"])
    said = editor.apply(**{"dynamic_batching.preferred_batch_size": "16"})
    assert "Refused; the file is as it was." in said and "preferred size" in said and config.read_text() == before
