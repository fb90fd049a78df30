"""The commands for TensorRT-LLM say what the BuildConfig says, and say it in flags that the programs have."""

import itertools

import pytest

from inflight.engine.config import BuildConfig
from inflight.engine.trtllm_commands import (
    FAMILIES,
    GPU_DTYPES,
    commands,
    lab_commands,
)
from tests import trtllm_facts

# What the programs take -----------------------------------------------------------------------------------------------

CONFIGS = [
    BuildConfig(dtype=dtype, quant_algo=quant_algo, kv_cache_quant_algo=kv)
    for dtype, quant_algo, kv in itertools.product(
        ("float32", "bfloat16"), ("auto", None, "W8A16", "W4A8", "W4A16"), (None, "INT8")
    )
]


@pytest.mark.parametrize("dtype", GPU_DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_flag_of_every_build_is_one_that_the_program_has(family, dtype):
    if (family, dtype) == ("gpt", "fp8"):
        pytest.skip("there are no such commands")
    for config, tp_size, pp_size in itertools.product(CONFIGS, (1, 2), (1, 2)):
        old, new, _ = commands(config, family, tp_size, pp_size, dtype).values()
        lines = [line for text in (old, new) for line in text.replace("\\\n", "").splitlines() if line[0] != "#"]
        assert len(lines) >= 3
        assert [problem for line in lines for problem in trtllm_facts.problems(line)] == []


@pytest.mark.parametrize("name", lab_commands())
def test_every_command_of_the_lessons_is_one_that_the_program_takes(name):
    command = lab_commands()[name]
    assert trtllm_facts.problems(str(command)) == trtllm_facts.problems(command.line) == []
    assert all(len(line) <= 120 for line in str(command).splitlines())
