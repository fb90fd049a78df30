"""A setting is said once, in a row: its name, value and check reach the served config and the model from there."""

import re
from dataclasses import fields

import pytest

from inflight.engine.config import ExecutorConfig
from inflight.triton import repository
from inflight.triton.repository import DEFAULTS, PARAMETERS, TEMPLATES

ENGINE = PARAMETERS["tensorrt_llm"]
OTHER = {"bool": "true", "int": "7", "float": "0.25", "path": "/some/file.py", "text": "x"}  # than the default
SETTINGS = [name for name in (setting.name for setting in fields(ExecutorConfig)) if ENGINE[name].kind != "choice"]


def typed(repo):
    config = repository.read_config(repo / "tensorrt_llm" / repository.CONFIG)
    return repository.typed_parameters(
        "tensorrt_llm", {key: value.string_value for key, value in config.parameters.items()}
    )


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_of_the_engine_is_assembled_and_reaches_the_model(tmp_path, name):
    text = OTHER[ENGINE[name].kind]
    repo = repository.assemble(tmp_path / "repo", tmp_path, **{name: text})
    assert typed(repo)[name] == ENGINE[name].parse(text) != ENGINE[name].default
    assert repository.check(repo) == []


def test_an_engine_served_as_it_comes_is_an_engine_loaded_as_it_comes(tmp_path):
    values = typed(repository.assemble(tmp_path / "repo", engine_dir=tmp_path))
    settings = {setting.name: values[setting.name] for setting in fields(ExecutorConfig)}
    assert ExecutorConfig(**settings) == ExecutorConfig()
    assert values["exclude_input_in_output"] is True


def test_what_the_templates_name_has_a_value():
    named = {name for path in TEMPLATES.glob("*/config.pbtxt") for name in re.findall(r"\$\{(\w+)\}", path.read_text())}
    assert named <= set(DEFAULTS)
