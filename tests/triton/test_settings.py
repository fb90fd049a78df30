"""A setting is declared once: parameters, the templates' values and the check of a config.pbtxt follow from that."""

import re
from dataclasses import fields

import pytest

from inflight.engine.config import ExecutorConfig
from inflight.triton import repository
from inflight.triton.repository import DEFAULTS, PARAMETERS, TEMPLATES
from inflight.triton.repository.templates import variable

ENGINE = PARAMETERS["tensorrt_llm"]
FILLED = re.compile(r'key: "(\w+)"\s+value \{ string_value: "\$\{(\w+)\}" \}')
TEMPLATE = {path.parent.name: path.read_text() for path in sorted(TEMPLATES.glob("*/config.pbtxt"))}


@pytest.mark.parametrize("model", TEMPLATE)
def test_a_templates_value_is_the_default_of_its_parameter(model):
    filled = dict(FILLED.findall(TEMPLATE[model]))
    assert filled == {key: variable(model, key) for key in PARAMETERS[model] if variable(model, key)}
    for key, name in filled.items():
        parameter, value = PARAMETERS[model][key], DEFAULTS[name]
        if value is None or (parameter.required and value == ""):
            assert parameter.required and parameter.default is None  # whoever assembles must say it
        else:
            assert parameter.parse(str(value).lower() if isinstance(value, bool) else str(value)) == parameter.default


def test_the_templates_have_no_variable_without_a_value_and_no_value_without_a_variable():
    assert {name for text in TEMPLATE.values() for name in re.findall(r"\$\{(\w+)\}", text)} == set(DEFAULTS)


def test_an_engine_served_as_it_comes_is_an_engine_loaded_as_it_comes(tmp_path):
    repo = repository.assemble(tmp_path / "repo", engine_dir=tmp_path)
    config = repository.read_config(repo / "tensorrt_llm" / repository.CONFIG)
    texts = {name: value.string_value for name, value in config.parameters.items()}
    values = repository.typed_parameters("tensorrt_llm", texts)
    assert (
        ExecutorConfig(**{setting.name: values[setting.name] for setting in fields(ExecutorConfig)}) == ExecutorConfig()
    )
    assert values["kv_cache_free_gpu_mem_fraction"] == 0.5 and values["exclude_input_in_output"] is True
