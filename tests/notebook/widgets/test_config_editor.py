"""The editor of a config without a browser: a value is set, Apply pressed, and what follows is looked at."""

import pytest

from inflight.errors import CourseError
from inflight.notebook.widgets import ConfigEditor
from inflight.triton import repository
from inflight.triton.serving.server import Server


@pytest.fixture
def repo(tmp_path):
    return repository.assemble(tmp_path / "repo", tmp_path / "engine")


@pytest.fixture
def editor(repo):
    """Of a server that was never started: what the editor refuses by itself needs none."""
    server = Server(repo)
    yield ConfigEditor(server, "tensorrt_llm")
    assert server.pid is None


def parameter(repo, name, model="tensorrt_llm"):
    return repository.get_parameter(repository.read_config(repo / model / repository.CONFIG), name)


def files(repo):
    return {path: path.read_bytes() for path in repo.rglob("*") if path.is_file()}


@pytest.mark.parametrize("model", ["tensorrt_llm", "preprocessing", "postprocessing"])
def test_it_has_a_field_for_every_key_and_starts_with_what_the_file_has(repo, model):
    server = Server(repo)
    editor = ConfigEditor(server, model)
    assert list(editor.fields) == list(repository.PARAMETERS[model])
    assert {name: field.value for name, field in editor.fields.items()} == {
        name: parameter(repo, name, model) for name in editor.fields
    }


@pytest.mark.parametrize(
    "name, value, reason",
    [
        ("max_tokens_in_paged_kv_cache", "many", "a whole number of at least 1"),
        ("max_tokens_in_paged_kv_cache", "0", "a whole number of at least 1"),
        ("kv_cache_free_gpu_mem_fraction", "1.5", "at least 0 and at most 1"),
        ("stats_check_period_ms", "0.5", "a whole number of at least 1"),
        ("gpt_model_path", "", "a path"),
        ("iteration_log_path", "${log}", "${log} is not filled"),
    ],
)
def test_it_refuses_a_wrong_value_before_anything_is_written(repo, editor, name, value, reason):
    before = files(repo)
    editor.fields["max_queue_size"].value = "7"
    editor.fields[name].value = value
    editor.apply_button.click()
    assert reason in editor.status.value and name in editor.status.value and files(repo) == before
    assert editor.fields[name].value == value, "it stays, for the learner to correct"
    assert not editor.apply_button.disabled


def test_nothing_to_apply_and_a_file_that_is_gone_are_said(repo, editor):
    editor.apply_button.click()
    assert "Nothing to apply" in editor.status.value
    editor.fields["max_queue_size"].value = "7"
    (repo / "tensorrt_llm" / repository.CONFIG).unlink()
    editor.apply_button.click()
    assert "does not exist" in editor.status.value and not editor.apply_button.disabled


@pytest.mark.parametrize("model", ["ensemble", "llama"])
def test_it_refuses_a_model_without_parameters(repo, model):
    with pytest.raises(CourseError, match=f"no parameters of a model '{model}'. Name one of: tensorrt_llm"):
        ConfigEditor(Server(repo), model)


# With a server that loads ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(small_engine, tmp_path_factory):
    repo = repository.assemble(tmp_path_factory.mktemp("edited") / "repo", small_engine, models=("postprocessing",))
    with Server(repo, drain_s=0) as server:
        yield server


@pytest.mark.server
def test_it_writes_and_loads_and_puts_the_file_back_when_that_fails(served, tmp_path):
    editor = ConfigEditor(served, "postprocessing")
    editor.fields["skip_special_tokens"].value = "false"
    editor.apply_button.click()
    assert "has loaded postprocessing again" in editor.status.value
    assert parameter(served.repo, "skip_special_tokens", "postprocessing") == "false"
    before = files(served.repo)
    editor.fields["tokenizer_dir"].value = str(tmp_path / "nothing")
    editor.apply_button.click()
    assert "Refused; the file is as it was." in editor.status.value and files(served.repo) == before
    assert editor.fields["tokenizer_dir"].value == str(tmp_path / "nothing")
    assert [row.state for row in served.models()] == ["READY"]


@pytest.mark.server
def test_it_shows_the_fields_it_is_told_to(served):
    delay = "dynamic_batching.max_queue_delay_microseconds"
    editor = ConfigEditor(served, "postprocessing", ["max_batch_size", delay, "skip_special_tokens"])
    assert list(editor.fields) == ["max_batch_size", delay, "skip_special_tokens"] and editor.fields[delay].value == ""
    assert "a whole number of at least 0" in editor.apply(**{delay: "-5"})
    assert "Applied" in editor.apply(**{delay: "500"})
    read = repository.read_config(served.repo / "postprocessing" / repository.CONFIG)
    assert read.dynamic_batching.max_queue_delay_microseconds == 500


@pytest.mark.server
def test_a_cell_applies_its_values_and_nothing_that_was_left_in_the_fields(served):
    editor = ConfigEditor(served, "postprocessing", ["max_batch_size", "skip_special_tokens"])
    size = editor.fields["max_batch_size"].value
    editor.fields["max_batch_size"].value = "many"
    assert "Applied" in editor.apply(skip_special_tokens="true")
    assert editor.fields["max_batch_size"].value == size
    assert "Refused" in editor.apply(max_batch_size="many")
    assert editor.fields["max_batch_size"].value == size, "what a cell applied in vain is not in the way"


@pytest.mark.server
def test_a_change_of_the_file_that_the_editor_does_not_show_yet_stays(served):
    editor = ConfigEditor(served, "postprocessing", ["max_batch_size", "skip_special_tokens"])
    repository.edit(served.repo, "postprocessing", skip_special_tokens="false")
    editor.fields["max_batch_size"].value = "32"
    editor.apply_button.click()
    assert "Applied" in editor.status.value
    assert parameter(served.repo, "skip_special_tokens", "postprocessing") == "false"
    assert editor.fields["skip_special_tokens"].value == "false"


@pytest.mark.server
def test_it_shows_a_value_that_is_not_allowed_and_lets_it_be_corrected(served):
    path = served.repo / "postprocessing" / repository.CONFIG
    repository.edit(served.repo, "postprocessing", skip_special_tokens="true")
    path.write_text(path.read_text().replace('"true"', '"perhaps"'))
    editor = ConfigEditor(served, "postprocessing")
    assert editor.fields["skip_special_tokens"].value == "perhaps"
    editor.fields["skip_special_tokens"].value = "true"
    editor.apply_button.click()
    assert parameter(served.repo, "skip_special_tokens", "postprocessing") == "true"
