"""The commands for TensorRT-LLM say what the BuildConfig says, and say it in flags that the programs have."""

import dataclasses
import itertools
import json
import re
import shlex

import pytest
from typer.testing import CliRunner

from inflight.cli.commands import app
from inflight.engine.config import BuildConfig
from inflight.engine.trtllm_commands import (
    COLUMNS,
    CONTAINER,
    FAMILIES,
    GENERATIONS,
    GPU_DTYPES,
    GPUS,
    Recipe,
    as_markdown,
    build,
    commands,
    convert,
    differences,
    fill,
    flags,
    lab_commands,
    launch,
    serve,
    serve_openai,
    start,
    template_values,
)
from inflight.errors import CourseError
from tests import trtllm_facts

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
    assert f"$EXAMPLES/{family}/convert_checkpoint.py" in convert
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


@pytest.mark.parametrize(
    "wrong",
    [{"family": "bert"}, {"tp_size": 0}, {"pp_size": 1.5}, {"dtype": "float32"}, {"family": "gpt", "dtype": "fp8"}],
)
def test_wrong_arguments_are_one_sentence(wrong):
    with pytest.raises(CourseError, match="family|tp_size|pp_size|dtype|FP8"):
        commands(CONFIG, **wrong)


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


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("trtllm-build --checkpoint_dir C --tp_size 2", "there is no --tp_size"),
        ("trtllm-build --max_batch_size many", "'many', not integer"),
        ("trtllm-build --context_fmha", "needs a value"),
        ("trtllm-build --paged_kv_cache enable", "deprecated"),
        ("trtllm-build --gemm_plugin int8", "'int8', not"),
        ("python3 examples/llama/convert_checkpoint.py --dtype fp16", "'fp16', not"),
        ("python3 examples/gpt/convert_checkpoint.py --weight_only_precision int4_awq", "'int4_awq', not"),
        ("python3 $EXAMPLES/$FAMILY/convert_checkpoint.py --fp8_kv_cache", "gpt/convert_checkpoint.py: there is no"),
        ("python3 launch_triton_server.py --model_repo R --no-mpi", "there is no --no-mpi"),
        ("python3 benchmark_core_model.py token_norm_dist", "'token_norm_dist' stands without a flag"),
        ("docker run --privileged IMAGE bash", "there is no --privileged"),
    ],
)
def test_the_facts_find_what_would_be_refused(line, problem):
    assert any(problem in found for found in trtllm_facts.problems(line))


def test_with_paths_a_command_is_what_a_process_takes():
    recipe = Recipe.of(CONFIG, "llama", tp_size=2)
    ran = [convert(recipe, CONTAINER), build(recipe, CONTAINER), fill("F", "a:1,b:2", CONTAINER)]
    ran += [launch(2, CONTAINER), serve(CONTAINER), start("docker", "IMAGE", "/tmp/lab", "all")]
    for command in ran:
        assert "$" not in "".join(command.argv[:20]) and trtllm_facts.problems(shlex.join(command.argv)) == []
        assert shlex.split(str(command).replace("\\\n", " ")) == command.argv == shlex.split(command.line)
    assert ran[0].argv[-2:] == ["--output_dir", CONTAINER.checkpoint]
    assert "--load-model=*" in ran[4].argv


def test_the_dtype_is_the_gpus_and_not_the_cpus():
    for config, gpu in itertools.product(CONFIGS, GPUS):
        for dtype in GPUS[gpu]:
            texts = commands(config, dtype=dtype).values()
            assert not any("float32" in text for text in texts)
            assert ("fp8" in list(texts)[1]) == (dtype == "fp8")
    said = differences(BuildConfig(dtype="float32"))[0]
    assert "float32" in said and "float16" in said
    assert all(set(dtypes) <= set(GPU_DTYPES) for dtypes in GPUS.values())


def test_an_int8_kv_cache_goes_without_the_attention_that_has_none():
    for config in CONFIGS:
        for dtype in GPU_DTYPES:
            text = commands(config, dtype=dtype)[GENERATIONS[1]]
            assert ("--use_paged_context_fmha" in text) == (config.kv_cache_quant_algo is None)
            assert ("--use_fp8_context_fmha" in text) == (config.kv_cache_quant_algo is None and dtype == "fp8")
            assert ("--calib_dataset" in text) == (config.kv_cache_quant_algo is not None or dtype == "fp8")


@pytest.mark.parametrize(
    ("column", "programs"),
    [
        (COLUMNS[1], ("llama/build.py", "gpt/build.py")),
        (COLUMNS[2], ("trtllm-build", "llama/convert_checkpoint.py", "gpt/convert_checkpoint.py")),
    ],
)
def test_every_flag_in_the_table_is_one_that_a_program_has(column, programs):
    facts = [trtllm_facts.PROGRAMS[program] for program in programs]
    known = {name for given in facts for kind in given.values() if not isinstance(kind, str) for name in kind}
    named = {flag for row in flags() for flag in re.findall(r"--\w+", row[column])}
    assert named and not named - known


def test_gpt_of_0_5_has_the_flags_of_the_first_workshops():
    old = commands(CONFIG, "gpt", tp_size=2)[GENERATIONS[0]]
    assert "--use_layernorm_plugin float16" in old and "--hidden_act gelu" in old and "--parallel_build" in old
    assert "--use_rmsnorm_plugin float16" in commands(CONFIG, "llama")[GENERATIONS[0]]


def test_an_int8_kv_cache_of_0_5_is_converted_for_as_many_gpus_as_build():
    config = dataclasses.replace(CONFIG, kv_cache_quant_algo="INT8")
    converter, builder = commands(config, "llama", tp_size=2)[GENERATIONS[0]].split("\npython3 examples/llama/build.py")
    assert options(converter)["--tensor-parallelism"] == "2" and '"$CHECKPOINT/2-gpu"' in builder


def test_values_for_templates_can_be_overruled():
    values = template_values(CONTAINER, policy="max_utilization", kv_cache_free_gpu_mem_fraction=0.2)
    assert values["tensorrt_llm"]["kv_cache_free_gpu_mem_fraction"] == "0.2"
    assert values["tensorrt_llm"]["batch_scheduler_policy"] == "max_utilization"
    assert all(isinstance(value, str) and "," not in value for given in values.values() for value in given.values())


def test_every_build_option_is_in_the_table_once():
    names = [row["build option"] for row in flags()]
    for field in dataclasses.fields(BuildConfig):
        assert names.count(field.name) == 1
    assert all(tuple(row) == COLUMNS and all(row.values()) for row in flags())
    assert json.dumps(flags())


def test_the_other_side_of_bench_peer_is_started_by_a_command_of_the_table():
    line = serve_openai("/models/llama", port=9000, slots=16).line
    assert trtllm_facts.problems(line) == []
    assert trtllm_facts.problems(line.replace("--max_batch_size", "--slots")) == ["trtllm-serve: there is no --slots"]
    said = " ".join(CliRunner().invoke(app, ["bench", "peer", "--help"], terminal_width=200).output.split())
    assert serve_openai().line in said
    assert trtllm_facts.command_lines(f"x\n{serve_openai().line}") == [serve_openai().line]
