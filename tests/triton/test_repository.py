"""Model repositories: filled from templates, edited as messages, checked before a server sees them."""

import shutil
from dataclasses import fields

import pytest

from inflight.engine.settings import ExecutorConfig
from inflight.errors import CourseError
from inflight.triton import repository
from inflight.triton.repository import PARAMETERS, PIPELINE, assemble, edit, fill, parse, problems, read_config, to_text

NASTY = [
    "back\\slash",
    "new\nline",
    'x" } } parameters { key: "gpt_model_type" value { string_value: "V1',
    "${engine_dir}",
]


@pytest.fixture(scope="module")
def assembled(tmp_path_factory):
    """No engine is needed: a repository names its folder, and the server opens it."""
    return assemble(tmp_path_factory.mktemp("assembled") / "repo", "/engines/llama")


@pytest.fixture
def repo(assembled, tmp_path):
    return shutil.copytree(assembled, tmp_path / "repo")


# Assembling -----------------------------------------------------------------------------------------------------------


def test_an_engine_is_needed_where_a_model_has_one(tmp_path):
    assert repository.models(assemble(tmp_path / "batch", models=("batch-cost",))) == ["batch-cost"]
    with pytest.raises(CourseError, match="tokenizer_dir"):
        assemble(tmp_path / "repo")
    assert not (tmp_path / "repo").exists()


def test_what_is_assembled(assembled):
    assert repository.models(assembled) == list(PIPELINE)
    assert {str(path.relative_to(assembled)) for path in assembled.rglob("*") if path.is_file()} == {
        *(f"{model}/config.pbtxt" for model in PIPELINE),
        *(f"{model}/1/model.py" for model in PIPELINE[:3]),
    }
    assert (assembled / "ensemble" / "1").is_dir()
    assert problems(assembled) == []


def test_values_reach_the_configs(tmp_path):
    repo = assemble(
        tmp_path / "repo",
        "/engines/llama",
        decoupled_mode=True,
        triton_max_batch_size=7,
        batching_strategy="V1",
        preprocessing_instance_count=3,
        max_tokens_in_paged_kv_cache=4096,
    )
    engine = read_config(repo / "tensorrt_llm" / "config.pbtxt")
    assert engine.model_transaction_policy.decoupled is True
    assert engine.max_batch_size == 7
    assert repository.get_parameter(engine, "gpt_model_path") == "/engines/llama"
    assert repository.get_parameter(engine, "gpt_model_type") == "V1"
    assert repository.get_parameter(engine, "max_tokens_in_paged_kv_cache") == "4096"
    before = read_config(repo / "preprocessing" / "config.pbtxt")
    assert before.instance_group[0].count == 3
    assert repository.get_parameter(before, "tokenizer_dir") == "/engines/llama"


def test_a_repository_is_replaced_and_anything_else_spared(tmp_path):
    assemble(tmp_path / "repo", "/engines/one")
    assemble(tmp_path / "repo", "/engines/two")
    config = read_config(tmp_path / "repo" / "tensorrt_llm" / "config.pbtxt")
    assert repository.get_parameter(config, "gpt_model_path") == "/engines/two"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "homework.txt").write_text("mine")
    with pytest.raises(CourseError, match="other"):
        assemble(tmp_path / "other", "/engines/one")
    assert (tmp_path / "other" / "homework.txt").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "repo"]


@pytest.mark.parametrize(
    "values, fact",
    [
        ({"decouple_mode": True}, "'decoupled_mode'"),
        ({"batching_strategy": "V3"}, "parameters.gpt_model_type: It is 'V3'"),
        ({"triton_max_batch_size": "many"}, "'many'"),
        ({"decoupled_mode": 'true } name: "x" { '}, "decoupled_mode"),
        ({"kv_cache_free_gpu_mem_fraction": 2}, "at most 1"),
    ],
)
def test_a_wrong_value_is_refused_and_nothing_is_written(tmp_path, values, fact):
    with pytest.raises(CourseError, match=fact):
        assemble(tmp_path / "repo", "/engines/llama", **values)
    assert list(tmp_path.iterdir()) == []


# Settings of the engine -----------------------------------------------------------------------------------------------

ROWS = PARAMETERS["tensorrt_llm"]
OTHER = {"bool": "true", "int": "7", "float": "0.25", "path": "/some/file.py", "text": "x"}  # than the default
SETTINGS = [setting.name for setting in fields(ExecutorConfig)]


def typed(repo):
    config = read_config(repo / "tensorrt_llm" / "config.pbtxt")
    return repository.typed_parameters(
        "tensorrt_llm", {key: row.string_value for key, row in config.parameters.items()}
    )


@pytest.mark.parametrize("name", [name for name in SETTINGS if ROWS[name].kind != "choice"])
def test_a_setting_is_assembled_and_reaches_the_model(tmp_path, name):
    text = OTHER[ROWS[name].kind]
    repo = assemble(tmp_path / "repo", tmp_path, **{name: text})
    assert typed(repo)[name] == ROWS[name].parse(text) != ROWS[name].default
    assert problems(repo) == []


def test_an_engine_served_as_it_comes_is_an_engine_loaded_as_it_comes(assembled):
    values = typed(assembled)
    assert ExecutorConfig(**{name: values[name] for name in SETTINGS}) == ExecutorConfig()
    assert values["exclude_input_in_output"] is True


# Filling --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", NASTY, ids=repr)
def test_a_value_in_quotes_stays_a_value(value):
    template = 'name: "m"\nparameters { key: "engine" value { string_value: "${engine_dir}" } }'
    config = fill(template, {"engine_dir": value})
    assert config.parameters["engine"].string_value == value
    assert list(config.parameters) == ["engine"]
    assert parse(to_text(config)) == config


@pytest.mark.parametrize("value", [NASTY[2], '8 name: "x"', "1.5", ""], ids=repr)
def test_a_value_without_quotes_cannot_be_text(value):
    with pytest.raises(CourseError, match="n is "):
        fill("max_batch_size: ${n}", {"n": value})


# Problems -------------------------------------------------------------------------------------------------------------


def replace(file, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text, f"{old!r} is not in {file}"
    file.write_text(text.replace(old, new, 1))


ENSEMBLE, ENGINE = (f"{name}/config.pbtxt" for name in ("ensemble", "tensorrt_llm"))


@pytest.mark.parametrize(
    "file, old, new, facts",
    [
        (ENGINE, "max_batch_size: 64", "max_batch_size: ${n}", ["${n}"]),
        (ENGINE, "max_batch_size: 64", "max_batch_sise: 64", ["'max_batch_sise'", "'max_batch_size'"]),
        (ENGINE, 'key: "gpt_model_type"', 'key: "gpt_model_typ"', ["gpt_model_typ", "Did you mean 'gpt_model_type'"]),
        (ENGINE, '"inflight_fused_batching"', '"V9"', ["parameters.gpt_model_type", "'V9'", "V1"]),
        (ENGINE, 'string_value: "100"', 'string_value: "0"', ["_period_ms", "'0'", "at least 1"]),
        (
            ENSEMBLE,
            'model_name: "tensorrt_llm"',
            'model_name: "tensorrt"',
            ["step[1]", "'tensorrt'", "Did you mean 'tensorrt_llm'"],
        ),
        (
            ENSEMBLE,
            'key: "input_ids"',
            'key: "inputs_ids"',
            ["step[1] (tensorrt_llm).input_map", "'inputs_ids'", "Did you mean 'input_ids'"],
        ),
        (
            ENSEMBLE,
            'value: "_TOKENS_BATCH"',
            'value: "_TOKENS"',
            ["step[2] (postprocessing).input_map", "'_TOKENS_BATCH'", "Did you mean '_TOKENS'"],
        ),
        (ENSEMBLE, "data_type: TYPE_STRING", "data_type: TYPE_INT32", ["QUERY", "TYPE_INT32", "TYPE_STRING"]),
        (ENSEMBLE, "dims: [1]", "dims: [2, 2]", ["QUERY", "[2, 2]", "[1]"]),
    ],
)
def test_problems(repo, file, old, new, facts):
    replace(repo / file, old, new)
    texts = [str(problem) for problem in problems(repo)]
    assert any(all(fact in text for fact in facts) for text in texts), texts


def test_a_required_input_that_a_step_does_not_give(repo):
    path = repo / ENSEMBLE
    config = read_config(path)
    del config.ensemble_scheduling.step[1].input_map["request_output_len"]
    repository.write_config(config, path)
    [problem] = problems(repo)
    assert problem.where[-1] == "ensemble_scheduling.step[1] (tensorrt_llm).input_map"
    assert "'request_output_len'" in problem.what


def test_an_output_that_no_step_produces(repo):
    path = repo / ENSEMBLE
    config = read_config(path)
    config.output[0].name = "answer"
    repository.write_config(config, path)
    assert [problem.where[-1] for problem in problems(repo)] == ["output answer"]


def test_missing_files(repo):
    (repo / "tensorrt_llm" / "1" / "model.py").unlink()
    assert [problem.where[-1] for problem in problems(repo)] == ["model.py"]
    shutil.rmtree(repo / "tensorrt_llm" / "1")
    assert [problem.where[-1] for problem in problems(repo)] == ["1/"]


@pytest.mark.parametrize("name", ["mein modell", "modèle", "it's", "a;b"])
def test_a_name_that_a_line_of_shell_does_not_take(tmp_path, name):
    repo = assemble(tmp_path / "repo", models=("batch-cost",))
    replace(repo / "batch-cost" / "config.pbtxt", '"batch-cost"', f'"{name}"')
    (repo / "batch-cost").rename(repo / name)
    [problem] = problems(repo)
    assert "line of shell" in problem.what and problem.where[0] == name


def test_a_folder_without_models(tmp_path):
    assert len(problems(tmp_path)) == len(problems(tmp_path / "nowhere")) == 1


def test_a_config_that_is_not_text(repo):
    (repo / ENGINE).write_bytes(b"\xff\xfe\x00")
    assert "is not UTF-8 text" in str(problems(repo)[0])


# Editing --------------------------------------------------------------------------------------------------------------


def test_edit_gives_the_diff(repo):
    text = edit(repo, "tensorrt_llm", max_queue_size=5)
    changed = [line for line in text.splitlines() if line[0] in "+-" and not line.startswith(("+++", "---"))]
    assert changed == ['-    string_value: "0"', '+    string_value: "5"']
    assert repository.get_parameter(read_config(repo / ENGINE), "max_queue_size") == "5"
    assert edit(repo, "tensorrt_llm", max_queue_size=5) == ""


def test_an_edit_with_an_error_changes_nothing(repo):
    before = (repo / ENGINE).read_bytes()
    with pytest.raises(CourseError, match="'V9'"):
        edit(repo, "tensorrt_llm", max_queue_size=5, gpt_model_type="V9")
    assert (repo / ENGINE).read_bytes() == before
    assert sorted(path.name for path in (repo / "tensorrt_llm").iterdir()) == ["1", "config.pbtxt"]


def test_ensemble_edges(assembled):
    edges = {(edge.source, edge.target, edge.tensor) for edge in repository.ensemble_edges(assembled)}
    assert ("client", "preprocessing", "text_input") in edges
    assert ("preprocessing", "tensorrt_llm", "_INPUT_ID") in edges
    assert ("tensorrt_llm", "postprocessing", "_TOKENS_BATCH") in edges
    assert ("postprocessing", "client", "text_output") in edges
