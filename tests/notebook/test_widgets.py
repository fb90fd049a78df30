"""Widgets without a browser: a value is set or a button pressed, and what follows is looked at."""

import pytest

from inflight.errors import CourseError
from inflight.notebook.widgets import ConfigEditor
from inflight.triton import repository
from inflight.triton.server import Server

# Lesson 02: an editor for config.pbtxt --------------------------------------------------------------------------------


@pytest.fixture
def repo(tmp_path):
    return repository.assemble(tmp_path / "repo", tmp_path / "engine")


def parameter(repo, name, model="tensorrt_llm"):
    return repository.get_parameter(repository.read_config(repo / model / repository.CONFIG), name)


def files(repo):
    return {path: path.read_bytes() for path in repo.rglob("*") if path.is_file()}


@pytest.mark.parametrize("model", ["tensorrt_llm", "preprocessing", "postprocessing"])
def test_editor_has_a_field_for_every_key_and_starts_with_what_the_file_has(repo, model):
    editor = ConfigEditor(repo, model)
    assert list(editor.fields) == list(repository.PARAMETERS[model])
    assert {name: field.value for name, field in editor.fields.items()} == {
        name: parameter(repo, name, model) for name in editor.fields
    }
    assert editor.apply_button.disabled and editor.undo_button.disabled and editor.diff.value == ""


def test_editor_shows_the_diff_applies_and_undoes(repo):
    before = files(repo)
    editor = ConfigEditor(repo, "tensorrt_llm")
    editor.fields["batch_scheduler_policy"].value = "max_utilization"
    editor.fields["max_queue_size"].value = "7"
    assert "+    string_value: &quot;max_utilization&quot;" in editor.diff.value and files(repo) == before
    editor.apply_button.click()
    assert parameter(repo, "batch_scheduler_policy") == "max_utilization" and parameter(repo, "max_queue_size") == "7"
    assert "Applied" in editor.status.value and editor.diff.value == "" and editor.apply_button.disabled
    editor.undo_button.click()
    assert files(repo) == before and "Undone" in editor.status.value
    assert editor.fields["max_queue_size"].value == "0" and editor.undo_button.disabled


def test_editor_undoes_step_by_step(repo):
    editor = ConfigEditor(repo, "tensorrt_llm")
    for value in ("4096", "8192"):
        editor.fields["max_tokens_in_paged_kv_cache"].value = value
        editor.apply_button.click()
    seen = []
    while not editor.undo_button.disabled:
        editor.undo_button.click()
        seen.append(parameter(repo, "max_tokens_in_paged_kv_cache"))
    assert seen == ["4096", ""]


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
def test_editor_refuses_a_wrong_value_before_anything_is_written(repo, name, value, reason):
    before = files(repo)
    editor = ConfigEditor(repo, "tensorrt_llm")
    editor.fields["max_queue_size"].value = "7"
    editor.fields[name].value = value
    assert reason in editor.status.value and name in editor.status.value
    assert editor.apply_button.disabled and editor.diff.value == ""
    editor.apply_button.click()
    assert files(repo) == before
    editor.fields[name].value = parameter(repo, name)
    assert not editor.apply_button.disabled and editor.status.value == ""


def test_editor_shows_a_value_that_is_not_allowed_and_lets_it_be_corrected(repo):
    path = repo / "tensorrt_llm" / repository.CONFIG
    path.write_text(path.read_text().replace("guaranteed_no_evict", "no_evict"))
    editor = ConfigEditor(repo, "tensorrt_llm")
    assert editor.fields["batch_scheduler_policy"].value == "no_evict"
    editor.fields["batch_scheduler_policy"].value = "max_utilization"
    editor.apply_button.click()
    assert parameter(repo, "batch_scheduler_policy") == "max_utilization" and repository.check(repo) == []


def test_editor_tells_in_the_widget_that_the_file_is_gone(repo):
    editor = ConfigEditor(repo, "tensorrt_llm")
    editor.fields["max_queue_size"].value = "7"
    (repo / "tensorrt_llm" / repository.CONFIG).unlink()
    editor.apply_button.click()
    assert "does not exist" in editor.status.value and not editor.apply_button.disabled


def test_editor_shows_the_fields_it_is_told_to(repo):
    delay = "dynamic_batching.max_queue_delay_microseconds"
    editor = ConfigEditor(repo, "postprocessing", names=["max_batch_size", delay, "skip_special_tokens"])
    assert list(editor.fields) == ["max_batch_size", delay, "skip_special_tokens"] and editor.fields[delay].value == ""
    editor.fields[delay].value = "-5"
    assert "a whole number of at least 0" in editor.status.value and editor.apply_button.disabled
    editor.fields[delay].value = "500"
    assert "+  max_queue_delay_microseconds: 500" in editor.diff.value
    editor.apply_button.click()
    read = repository.read_config(repo / "postprocessing" / repository.CONFIG)
    assert read.dynamic_batching.max_queue_delay_microseconds == 500


@pytest.mark.parametrize("model", ["ensemble", "llama"])
def test_editor_refuses_a_model_without_parameters(repo, model):
    with pytest.raises(CourseError, match=f"no parameters of a model '{model}'. Name one of: tensorrt_llm"):
        ConfigEditor(repo, model)


@pytest.mark.server
def test_editor_loads_the_model_again_and_puts_the_file_back_when_that_fails(small_engine, tmp_path):
    repo = repository.assemble(tmp_path / "repo", small_engine, models=("postprocessing",))
    with Server(repo) as server:
        editor = ConfigEditor(repo, "postprocessing", server)
        editor.fields["skip_special_tokens"].value = "false"
        editor.apply_button.click()
        assert "has loaded postprocessing again" in editor.status.value
        before = files(repo)
        editor.fields["tokenizer_dir"].value = str(tmp_path / "nothing")
        editor.apply_button.click()
        assert "Refused; the file is as it was." in editor.status.value and files(repo) == before
        assert editor.fields["tokenizer_dir"].value == str(tmp_path / "nothing") and not editor.apply_button.disabled
        assert [row.state for row in server.models()] == ["READY"]
    editor.undo_button.click()
    assert "Undone" in editor.status.value and parameter(repo, "skip_special_tokens", "postprocessing") == "true"
    server.stop()  # which was started for that


@pytest.mark.parametrize("left", ["many", "0", "4096"])
def test_editor_applies_and_undoes_whatever_was_left_in_its_fields(repo, left):
    before = files(repo)
    editor = ConfigEditor(repo, "tensorrt_llm")
    editor.fields["max_tokens_in_paged_kv_cache"].value = left
    assert "Applied" in editor.apply(exclude_input_in_output="false")
    assert parameter(repo, "exclude_input_in_output") == "false"
    assert parameter(repo, "max_tokens_in_paged_kv_cache") == ""
    assert "a whole number of at least 1" in editor.apply(max_tokens_in_paged_kv_cache="many")
    assert "Undone" in editor.undo() and files(repo) == before
    assert "Nothing to undo" in editor.undo() and files(repo) == before


def test_what_a_cell_applied_in_vain_is_not_in_the_way_of_the_next_change(repo):
    editor = ConfigEditor(repo, "tensorrt_llm")
    assert "Refused" in editor.apply(max_tokens_in_paged_kv_cache="many")
    assert "a whole number of at least 1" in editor.status.value, "what came of it is still to be read"
    editor.fields["exclude_input_in_output"].value = "false"
    editor.apply_button.click()
    assert "Applied" in editor.status.value and parameter(repo, "exclude_input_in_output") == "false"
