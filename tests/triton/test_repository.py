"""Model repositories: filled from templates, edited as messages, checked before a server sees them."""

import os
import shutil

import pytest
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig

from inflight.errors import CourseError
from inflight.triton import repository
from inflight.triton.repository import (
    PIPELINE,
    assemble,
    check,
    edit,
    fill,
    parse,
    read_config,
    set_parameter,
    to_text,
)

NASTY = [
    'a"b',
    "back\\slash",
    "new\nline",
    "'single'",
    'x" } } parameters { key: "gpt_model_type" value { string_value: "V1',
    "tab\tand ünïcödé 日本",
    "${engine_dir}",
    "\\",
    '\\"',
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
    with pytest.raises(CourseError, match=r"The variable \$\{tokenizer_dir\} is not filled"):
        assemble(tmp_path / "repo")
    assert not (tmp_path / "repo").exists()


def test_what_is_assembled(assembled):
    assert repository.models(assembled) == list(PIPELINE)
    assert {str(path.relative_to(assembled)) for path in assembled.rglob("*") if path.is_file()} == {
        *(f"{model}/config.pbtxt" for model in PIPELINE),
        *(f"{model}/1/model.py" for model in PIPELINE[:3]),
    }
    assert (assembled / "ensemble" / "1").is_dir()
    assert check(assembled) == []


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


@pytest.mark.parametrize("model", PIPELINE)
def test_a_config_written_and_read_again_is_the_same(assembled, model):
    config = read_config(assembled / model / "config.pbtxt")
    assert parse(to_text(config)) == config
    assert config.name == model


def test_a_repository_is_replaced_and_anything_else_spared(tmp_path):
    assemble(tmp_path / "repo", "/engines/one")
    assemble(tmp_path / "repo", "/engines/two")
    config = read_config(tmp_path / "repo" / "tensorrt_llm" / "config.pbtxt")
    assert repository.get_parameter(config, "gpt_model_path") == "/engines/two"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "homework.txt").write_text("mine")
    with pytest.raises(CourseError, match="holds files that are not a model repository"):
        assemble(tmp_path / "other", "/engines/one")
    assert (tmp_path / "other" / "homework.txt").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "repo"]


@pytest.mark.parametrize(
    "values, message",
    [
        ({"decouple_mode": True}, "no variable 'decouple_mode'. Did you mean 'decoupled_mode'"),
        ({"zzz": 1}, "no variable 'zzz'. They have: engine_dir"),
        ({"batching_strategy": "V3"}, "parameters.gpt_model_type: It is 'V3'. It must be V1, inflight_batching or"),
        ({"triton_max_batch_size": "many"}, "is 'many'; give a number, true, false or a name in capitals"),
        ({"decoupled_mode": 'true } name: "x" { '}, "decoupled_mode is 'true } name"),
        ({"kv_cache_free_gpu_mem_fraction": 2}, "It is '2'. It must be a number of at least 0 and at most 1"),
        ({"max_queue_size": -1}, "It is '-1'. It must be a whole number of at least 0"),
        ({"enable_chunked_context": "maybe"}, "It is 'maybe'. It must be true or false"),
    ],
)
def test_a_wrong_value_is_refused_and_nothing_is_written(tmp_path, values, message):
    with pytest.raises(CourseError, match=message):
        assemble(tmp_path / "repo", "/engines/llama", **values)
    assert list(tmp_path.iterdir()) == []


# Filling --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", NASTY, ids=repr)
def test_a_value_in_quotes_stays_a_value(value):
    template = 'name: "m"\nparameters { key: "engine" value { string_value: "${engine_dir}" } }'
    config = fill(template, {"engine_dir": value})
    assert config.parameters["engine"].string_value == value
    assert list(config.parameters) == ["engine"]
    assert parse(to_text(config)) == config


@pytest.mark.parametrize("value", [*NASTY, '8 name: "x"', "1.5", ""], ids=repr)
def test_a_value_without_quotes_cannot_be_text(value):
    with pytest.raises(CourseError, match="n is .*; give a number, true, false or a name in capitals"):
        fill("max_batch_size: ${n}", {"n": value})


@pytest.mark.parametrize("value, expected", [(8, 8), ("8", 8), (0, 0)])
def test_a_number_without_quotes(value, expected):
    assert fill("max_batch_size: ${n}", {"n": value}).max_batch_size == expected


def test_no_folder_name_breaks_a_repository(tmp_path):
    folder = tmp_path / 'a "quoted" \\ folder'
    repo = assemble(tmp_path / "repo", folder)
    config = read_config(repo / "tensorrt_llm" / "config.pbtxt")
    assert repository.get_parameter(config, "gpt_model_path") == str(folder)


# Problems -------------------------------------------------------------------------------------------------------------


def replace(file, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text, f"{old!r} is not in {file}"
    file.write_text(text.replace(old, new, 1))


ENSEMBLE, ENGINE, BEFORE = (f"{name}/config.pbtxt" for name in ("ensemble", "tensorrt_llm", "preprocessing"))


@pytest.mark.parametrize(
    "file, old, new, field, message, fix",
    [
        (
            ENGINE,
            "max_batch_size: 64",
            "max_batch_size: ${n}",
            "syntax",
            "variable ${n} is not filled",
            "when assembling",
        ),
        (
            ENGINE,
            '"/engines/llama"',
            '"${engine_dir}"',
            "parameters.gpt_model_path",
            "The variable ${engine_dir} is not filled",
            "when assembling",
        ),
        (
            ENGINE,
            "max_batch_size: 64",
            "max_batch_sise: 64",
            "syntax",
            "no field 'max_batch_sise'",
            "Did you mean 'max_batch_size'",
        ),
        (ENGINE, "max_batch_size: 64", 'max_batch_size: "64"', "syntax", "line 2", "Correct this line"),
        (ENGINE, "data_type: TYPE_INT32", "data_type: TYPE_INT33", "syntax", "TYPE_INT33", "Correct this line"),
        (
            ENGINE,
            'key: "gpt_model_type"',
            'key: "gpt_model_typ"',
            "parameters.gpt_model_typ",
            "This key is unknown",
            "Did you mean 'gpt_model_type'",
        ),
        (ENGINE, '"inflight_fused_batching"', '"V9"', "parameters.gpt_model_type", "It is 'V9'", "It must be V1"),
        (ENGINE, '"inflight_fused_batching"', '""', "parameters.gpt_model_type", "It has no value", "It must be V1"),
        (
            ENGINE,
            '"0.5"',
            '"half"',
            "parameters.kv_cache_free_gpu_mem_fraction",
            "It is 'half'",
            "a number of at least 0",
        ),
        (ENGINE, 'string_value: "100"', 'string_value: "0"', "_period_ms", "It is '0'", "a whole number of at least 1"),
        (ENGINE, 'name: "tensorrt_llm"', 'name: "engine"', "name", "It is 'engine', but the folder is", "equal"),
        (ENGINE, "data_type: TYPE_INT32", "", "input input_ids", "It has no data_type", "Add one"),
        (BEFORE, '"/engines/llama"', '""', "parameters.tokenizer_dir", "It has no value", "It must be a path"),
        (
            ENSEMBLE,
            'model_name: "tensorrt_llm"',
            'model_name: "tensorrt"',
            "step[1] (tensorrt)",
            "no model 'tensorrt'",
            "There are: preprocessing",
        ),
        (
            ENSEMBLE,
            'key: "input_ids"',
            'key: "inputs_ids"',
            "step[1] (tensorrt_llm).input_map",
            "has no input 'inputs_ids'",
            "Did you mean 'input_ids'",
        ),
        (
            ENSEMBLE,
            'key: "output_ids"',
            'key: "out_ids"',
            "step[1] (tensorrt_llm).output_map",
            "has no output 'out_ids'",
            "Did you mean 'output_ids'",
        ),
        (
            ENSEMBLE,
            'value: "_TOKENS_BATCH"',
            'value: "_TOKENS"',
            "step[2] (postprocessing).input_map",
            "takes '_TOKENS_BATCH', which no earlier step",
            "Did you mean '_TOKENS'",
        ),
        (
            ENSEMBLE,
            "data_type: TYPE_STRING",
            "data_type: TYPE_INT32",
            "input_map QUERY",
            "gives text_input as TYPE_INT32, but QUERY is TYPE_STRING",
            "types equal",
        ),
        (ENSEMBLE, "dims: [1]", "dims: [2, 2]", "input_map QUERY", "with dims [2, 2], but QUERY has [1]", "shapes fit"),
    ],
)
def test_problems(repo, file, old, new, field, message, fix):
    path = repo / file
    replace(path, old, new)
    problems = check(repo)
    assert problems, "nothing was found"
    texts = [str(problem) for problem in problems]
    assert any(field in text and message in text and fix in text for text in texts), texts


def test_a_required_input_that_a_step_does_not_give(repo):
    path = repo / ENSEMBLE
    config = read_config(path)
    del config.ensemble_scheduling.step[1].input_map["request_output_len"]
    repository.write_config(config, path)
    [problem] = check(repo)
    assert problem.field == "ensemble_scheduling.step[1] (tensorrt_llm).input_map"
    assert problem.message == "tensorrt_llm needs the input 'request_output_len', which the step does not give."


def test_an_output_that_no_step_produces(repo):
    path = repo / ENSEMBLE
    config = read_config(path)
    config.output[0].name = "answer"
    repository.write_config(config, path)
    assert [(p.field, p.message) for p in check(repo)] == [("output answer", "No step produces it.")]


def one_name_for_two_tensors(config):
    config.ensemble_scheduling.step[1].output_map["is_final"] = "_INPUT_ID"
    del config.ensemble_scheduling.step[2].input_map["IS_FINAL"]


@pytest.mark.parametrize(
    "change, field, message",
    [
        (
            lambda config: config.input.add(name="spare", data_type=DataType.TYPE_FP32, dims=[1]),
            "input spare",
            "No step and no output takes 'spare'.",
        ),
        (
            lambda config: config.ensemble_scheduling.step[2].input_map.pop("IS_FINAL"),
            "ensemble_scheduling.step[1] (tensorrt_llm).output_map",
            "No step and no output takes '_IS_FINAL'.",
        ),
        (
            one_name_for_two_tensors,
            "ensemble_scheduling.step[1] (tensorrt_llm).output_map",
            "'_INPUT_ID' is already the name of another tensor.",
        ),
    ],
    ids=["input", "unused", "twice"],
)
def test_loose_ends_of_an_ensemble(repo, change, field, message):
    path = repo / ENSEMBLE
    config = read_config(path)
    change(config)
    repository.write_config(config, path)
    assert (field, message) in [(problem.field, problem.message) for problem in check(repo)]


def test_missing_files(repo):
    (repo / "tensorrt_llm" / "1" / "model.py").unlink()
    assert [(p.field, p.message) for p in check(repo)] == [("model.py", "The Python model is missing.")]
    shutil.rmtree(repo / "tensorrt_llm" / "1")
    assert [(p.field, p.fix) for p in check(repo)] == [("1/", "Make one named 1.")]


def test_a_folder_without_models(tmp_path):
    assert check(tmp_path)[0].message == "There is no model in it."
    assert check(tmp_path / "nowhere")[0].fix == "Make one: `inflight assemble`."


def test_a_config_that_cannot_be_read_is_the_only_problem(repo):
    replace(repo / ENGINE, "max_batch_size: 64", "max_batch_size: lots")
    assert [problem.field for problem in check(repo)] == ["syntax"]


@pytest.mark.parametrize(
    "text, words",
    [
        (
            'parameters { key: "a"\n  parameters { key: "b" } }',
            "inside of parameters, only key, value. Close the brace",
        ),
        ("input {\n  nam: 'x' }", "line 2, column 3: there is no field 'nam' inside of input"),
        ("instance_group { kinds: KIND_CPU }", "inside of instance_group, .*Did you mean 'kind'"),
        (f"input {{ data_type: {2**60} }}", "Value out of range: 1152921504606846976. Correct the value"),
        ("input { data_type: 32 }", "data_type: there is no DataType 32, only TYPE_INVALID"),
        ("instance_group [{ kind: KIND_CPU }, { kind: 9 }]", "kind: there is no Kind 9, only"),
        ("a" * 10_000, "there is no field 'a{10,100}…"),
        ("input {" * 10_000, "there is no field 'input' inside of input"),
    ],
)
def test_what_is_not_a_field_there(text, words):
    with pytest.raises(CourseError, match=words) as caught:
        parse(text)
    assert "Did you mean 'parameters'" not in str(caught.value) and len(str(caught.value)) < 1000


@pytest.mark.parametrize("kind", ["folder", "pipe", "long", "binary", "link"])
def test_a_config_that_is_no_plain_text_file(repo, kind):
    config = repo / ENGINE
    config.unlink()
    match kind:
        case "folder":
            config.mkdir()
        case "pipe":
            os.mkfifo(config)
        case "long":
            config.touch()
            os.truncate(config, 100 << 20)
        case "binary":
            config.write_bytes(bytes(range(256)))
        case "link":
            config.symlink_to("/dev/zero")
    [problem] = check(repo)
    said = {"folder": "Is a directory", "long": "104,857,600 bytes", "binary": "not UTF-8 text"}
    assert said.get(kind, "It is no plain file") in problem.message


@pytest.mark.parametrize("name", ["a b", 'quote"', "new\nline", "\udcff", "名前", "-", "$(x)"])
def test_a_strange_name_of_a_model_is_told_and_can_be_printed(repo, name):
    (repo / "postprocessing").rename(repo / name)
    problems = check(repo)
    assert problems
    assert all(str(problem).isprintable() for problem in problems)


def test_a_config_that_is_not_text(repo):
    (repo / ENGINE).write_bytes(b"\xff\xfe\x00")
    assert "is not UTF-8 text" in str(check(repo)[0])


# Editing --------------------------------------------------------------------------------------------------------------


def test_edit_gives_the_diff(repo):
    text = edit(repo, "tensorrt_llm", max_queue_size=5)
    changed = [line for line in text.splitlines() if line[0] in "+-" and not line.startswith(("+++", "---"))]
    assert changed == ['-    string_value: "0"', '+    string_value: "5"']
    assert repository.get_parameter(read_config(repo / ENGINE), "max_queue_size") == "5"
    assert edit(repo, "tensorrt_llm", max_queue_size=5) == ""


@pytest.mark.parametrize(
    "parameters, message",
    [
        ({"max_queue_size": 5, "gpt_model_type": "V9"}, "It is 'V9'"),
        (
            {"max_queue_size": 5, "max_queue": 1},
            "parameters.max_queue: This key is unknown. Did you mean 'max_queue_size'",
        ),
    ],
)
def test_an_edit_with_an_error_changes_nothing(repo, parameters, message):
    before = (repo / ENGINE).read_bytes()
    with pytest.raises(CourseError, match=message):
        edit(repo, "tensorrt_llm", **parameters)
    assert (repo / ENGINE).read_bytes() == before
    assert sorted(path.name for path in (repo / "tensorrt_llm").iterdir()) == ["1", "config.pbtxt"]


def test_set_parameter_leaves_the_message_on_an_error():
    config = ModelConfig(name="tensorrt_llm")
    set_parameter(config, "enable_chunked_context", True)
    with pytest.raises(CourseError, match="true or false"):
        set_parameter(config, "enable_chunked_context", "perhaps")
    assert repository.get_parameter(config, "enable_chunked_context") == "true"


def test_edit_of_a_model_that_is_not_there(repo):
    with pytest.raises(CourseError, match="does not exist. Assemble the repository"):
        edit(repo, "llama", max_queue_size=5)


def test_diff_of_equal_configs_is_blank(assembled):
    config = read_config(assembled / ENGINE)
    assert repository.diff(config, config) == ""


def test_typed_parameters():
    texts = {"gpt_model_path": "/e", "gpt_model_type": "V1", "enable_chunked_context": "TRUE", "max_queue_size": "3"}
    values = repository.typed_parameters("tensorrt_llm", texts)
    assert (values["enable_chunked_context"], values["max_queue_size"], values["gpt_model_type"]) == (True, 3, "V1")
    assert values["max_tokens_in_paged_kv_cache"] is None
    assert values["batch_scheduler_policy"] == "guaranteed_no_evict"
    with pytest.raises(CourseError, match="model 'tensorrt_llm': parameters.gpt_model_path: It has no value"):
        repository.typed_parameters("tensorrt_llm", {"gpt_model_type": "V1"})


def test_ensemble_edges(assembled):
    edges = {(edge.source, edge.target, edge.tensor) for edge in repository.ensemble_edges(assembled)}
    assert ("client", "preprocessing", "text_input") in edges
    assert ("preprocessing", "tensorrt_llm", "_INPUT_ID") in edges
    assert ("tensorrt_llm", "postprocessing", "_TOKENS_BATCH") in edges
    assert ("postprocessing", "client", "text_output") in edges


def test_every_name_of_the_face_is_there():
    assert {"assemble", "check", "edit", "read_config", "PARAMETERS", "batchers"} <= set(repository.__all__)
    assert all(hasattr(repository, name) for name in repository.__all__)
