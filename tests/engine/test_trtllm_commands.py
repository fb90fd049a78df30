"""The commands for TensorRT-LLM say what the BuildConfig says."""

import dataclasses
import json
import re
import shlex

import pytest

from inflight.engine.config import BuildConfig
from inflight.engine.trtllm_commands import COLUMNS, FAMILIES, GENERATIONS, as_markdown, commands, flags
from inflight.errors import CourseError

CONFIG = BuildConfig(max_batch_size=16, max_input_len=512, max_seq_len=1536, max_num_tokens=4096, quant_algo="W8A16")


def options(text: str) -> dict[str, str | None]:
    """Flags of the last command in `text` with their values."""
    words = shlex.split(text.replace("\\\n", " ").splitlines()[-1])
    pairs = zip(words, [*words[1:], None])
    return {
        word: value if value and not value.startswith("-") else None for word, value in pairs if word.startswith("-")
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_build_py_has_every_limit_and_in_flight_batching(family):
    given = options(commands(CONFIG, family)[GENERATIONS[0]])
    limits = {
        "--max_batch_size": "16",
        "--max_input_len": "512",
        "--max_output_len": "1024",
        "--max_num_tokens": "4096",
        "--tokens_per_block": "32",
        "--weight_only_precision": "int8",
    }
    assert limits.items() <= given.items()
    assert {"--use_inflight_batching", "--paged_kv_cache", "--remove_input_padding", "--enable_context_fmha"} <= set(
        given
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_trtllm_build_converts_first_and_passes_the_checkpoint_on(family):
    text = commands(CONFIG, family, tp_size=2, pp_size=2)[GENERATIONS[1]]
    convert, build = text.split("\ntrtllm-build")
    assert f"examples/{family}/convert_checkpoint.py" in convert
    assert options(convert)["--tp_size"] == options(convert)["--pp_size"] == "2"
    assert options("trtllm-build" + build)["--checkpoint_dir"] == options(convert)["--output_dir"]
    assert options("trtllm-build" + build)["--max_seq_len"] == "1536"
    assert "--tp_size" not in build and "--max_output_len" not in build


def test_parallel_sizes_of_build_py():
    llama = options(commands(CONFIG, "llama", tp_size=2, pp_size=3)[GENERATIONS[0]])
    assert (llama["--world_size"], llama["--tp_size"], llama["--pp_size"]) == ("6", "2", "3")
    gpt = commands(CONFIG, "gpt", tp_size=2, pp_size=3)[GENERATIONS[0]]
    assert options(gpt)["--world_size"] == "2" and "--pp_size" not in gpt and "left out" in gpt
    assert options(gpt)["--model_dir"].endswith("/2-gpu")


def test_model_yaml_names_the_limits():
    text = commands(CONFIG, tp_size=4)[GENERATIONS[2]]
    values = dict(re.findall(r"^\s*(\w+): (\S+)$", text, re.M))
    assert (
        values["tensor_parallel_size"] == "4" and values["max_seq_len"] == "1536" and values["tokens_per_block"] == "32"
    )


def test_int8_kv_cache_and_floating_point():
    config = dataclasses.replace(CONFIG, kv_cache_quant_algo="INT8", quant_algo=None)
    old, new, _ = commands(config, "llama").values()
    assert "--int8_kv_cache" in old and "--ft_model_dir" in old and "--calibrate-kv-cache" in old
    assert "--int8_kv_cache" in new and "--use_weight_only" not in new


def test_the_page_says_what_differs_from_4_bit_activations_here():
    page = as_markdown(dataclasses.replace(CONFIG, quant_algo="W4A8"))
    assert "W4A16" in page and page.count("```") == 6 and page.count("\n## ") == 4


@pytest.mark.parametrize("wrong", [{"family": "bert"}, {"tp_size": 0}, {"pp_size": 1.5}])
def test_wrong_arguments_are_one_sentence(wrong):
    with pytest.raises(CourseError, match="family|tp_size|pp_size"):
        commands(CONFIG, **wrong)


def test_every_build_option_is_in_the_table_once():
    names = [row["build option"] for row in flags()]
    for field in dataclasses.fields(BuildConfig):
        assert names.count(field.name) == 1
    assert all(tuple(row) == COLUMNS and all(row.values()) for row in flags())
    assert json.dumps(flags())
