"""`assets/lab-gpu`: what lab.sh runs is what the programs take, and what it fills can be read by Triton."""

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
import pytriton

from inflight.engine import trtllm_commands
from inflight.errors import CourseError
from inflight.paths import ASSETS, COURSE
from inflight.triton import repository
from tests import trtllm_facts
from tools import lab_gpu

SCRIPT = ASSETS / "lab-gpu" / "lab.sh"
# Those that differ: what the facts call the same as another has the same variables and the same fill_template.py.
VERSIONS = [name for name, facts in trtllm_facts.FACTS["templates"]["versions"].items() if "same_as" not in facts]
# Notes the words that it was called with and does nothing else. In its containers no Triton is running.
STAND_IN = """#!/usr/bin/env bash
printf '%s\\0' "$(basename "$0")" "$@" >>"$CALLS"; printf '\\n' >>"$CALLS"
case " $* " in *" pgrep "*) exit 1 ;; esac
"""


@pytest.fixture
def machine(tmp_path):
    """A machine on which every program that lab.sh calls only notes what it was called with."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in (
        "docker",
        "podman",
        "python3",
        "trtllm-build",
        "tritonserver",
        "hf",
        "curl",
        "pip3",
        "pkill",
        "nvidia-smi",
    ):
        (programs / name).write_text(STAND_IN)
        (programs / name).chmod(0o755)
    return tmp_path


def lab(machine, *step, check=True, **settings):
    """Run a step of lab.sh with `settings`; returns the process, and what it called, a list of words a call."""
    calls = machine / "calls"
    calls.write_text("")
    environment = {
        "PATH": f"{machine}/bin:/usr/bin:/bin",
        "LAB": str(machine / "lab"),
        "CALLS": str(calls),
        **{name: str(value) for name, value in settings.items()},
    }
    done = subprocess.run(["bash", SCRIPT, *step], env=environment, capture_output=True, text=True, timeout=300)
    assert not check or done.returncode == 0, done.stderr
    return done, [line.split("\0")[:-1] for line in calls.read_text().splitlines()]


def put_pgrep(machine, status):
    """Whether a Triton is running: 0 when one is."""
    program = machine / "bin" / "pgrep"
    program.write_text(f"#!/bin/sh\nexit {status}\n")
    program.chmod(0o755)


def called(calls, runtime="docker"):
    """What ran in the container."""
    return [words[3:] for words in calls if words[:3] == [runtime, "exec", "triton-lab"]]


# The files ------------------------------------------------------------------------------------------------------------


def test_the_files_are_what_their_sources_give():
    assert lab_gpu.problems(COURSE) == []
    assert SCRIPT.stat().st_mode & 0o111


def test_a_file_that_was_edited_is_named(tmp_path):
    shutil.copytree(COURSE / "lessons" / "lab_gpu", tmp_path / "lessons" / "lab_gpu")
    lab_gpu.write(tmp_path)
    assert lab_gpu.problems(tmp_path) == []
    (tmp_path / lab_gpu.FOLDER / "lab.sh").write_text("#!/bin/sh\n")
    assert lab_gpu.problems(tmp_path) == [
        "assets/lab-gpu/lab.sh: differs from lessons/lab_gpu/lab.sh; run `make notebooks`"
    ]


@pytest.mark.parametrize(
    "field", ["{{name.nobody}}", "{{command.nothing}}", "{{function.nothing}}", "{{fill.bls}}", "{{x.y}}"]
)
def test_a_field_that_stands_for_nothing_is_refused(field):
    with pytest.raises(CourseError, match="nothing|has no function"):
        lab_gpu.filled(f"Take {field}.")


def test_a_command_keeps_the_indentation_of_its_line():
    text = lab_gpu.filled("    inside {{command.build}}\n")
    assert text.startswith("    inside trtllm-build") and "\n        --" in text


def test_a_function_is_shown_with_what_is_said_above_it():
    text = lab_gpu.filled("{{function.fill_model}}")
    assert text.startswith("# Fills one template") and text.endswith("\n}") and "fill_template.py" in text


def pages():
    """Every text of the course that may print a command of TensorRT-LLM's programs."""
    paths = [SCRIPT, ASSETS / "lab-gpu" / "README.md", COURSE / "README.md", COURSE / "REFERENCE.md"]
    return paths + sorted((COURSE / "notebooks").glob("*.ipynb")) + sorted((COURSE / "labs").glob("*.ipynb"))


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.name)
def test_every_command_that_is_printed_is_one_that_the_program_takes(path):
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        text = "\n\n".join(
            cell.source for cell in nbformat.reads(text, as_version=4).cells if cell.cell_type == "markdown"
        )
    lines = trtllm_facts.command_lines(text)
    assert [problem for line in lines for problem in trtllm_facts.problems(line)] == []
    assert lines or path.parent.name not in ("lab-gpu", "notebooks") or path.name[:2] in ("04", "05", "07", "08", "09")


def test_every_command_of_the_table_is_printed_somewhere():
    sources = [*(COURSE / "lessons").glob("*/lecture.py"), *(COURSE / "lessons" / "lab_gpu").iterdir()]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    printed = set(re.findall(r"\{\{(?:command|line)\.(\w+)\}\}", text))
    assert printed == set(trtllm_commands.lab_commands())
    steps = set(re.findall(r"^(\w+)\(\)", SCRIPT.read_text(encoding="utf-8"), re.M))
    assert steps - set(re.findall(r"\{\{function\.(\w+)\}\}", text)) == {"in_json", "stream", "remove"}


def test_no_lesson_types_a_command_of_tensorrt_llm_itself():
    """They name the fields of tools/lab_gpu.py instead."""
    for path in sorted((COURSE / "lessons").glob("*/*.py")):
        markdown = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
        typed = trtllm_facts.command_lines("\n".join(line[2:] for line in markdown))
        assert [line for line in typed if re.search(r"\.py -|trtllm-build --|docker run|podman run", line)] == [], path


def test_the_images_are_of_one_month():
    facts = trtllm_facts.FACTS["versions"]
    assert f":{facts['container']}-trtllm" in trtllm_commands.IMAGE
    assert f":{facts['container']}-" in trtllm_commands.CLIENT_IMAGE
    assert f":{facts['fallback']['container']}-trtllm" in trtllm_commands.FALLBACK_IMAGE
    assert f"v{facts['fallback']['tensorrt_llm']}" == trtllm_commands.FALLBACK_TAG


def test_flags_of_tritonserver_are_those_of_the_one_that_comes_with_the_course():
    program = Path(pytriton.__file__).parent / "tritonserver" / "bin" / "tritonserver"
    said = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=300)
    facts = trtllm_facts.PROGRAMS["tritonserver"]
    for flag in [*facts["text"], *facts["integer"], *facts["switch"], *facts["choices"]]:
        assert re.search(rf"^\s*{flag}\b", said.stdout + said.stderr, re.M), flag


# The steps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gpus", [1, 2])
@pytest.mark.parametrize("precision", ["float16", "bfloat16", "int8", "int4", "fp8"])
@pytest.mark.parametrize("family", ["llama", "gpt"])
def test_convert_and_build_run_commands_that_the_programs_take(machine, family, precision, gpus):
    settings = {"FAMILY": family, "PRECISION": precision, "GPUS": gpus}
    if (family, precision) == ("gpt", "fp8"):
        done, _ = lab(machine, "convert", check=False, **settings)
        assert done.returncode == 2 and "FP8 is for the family llama" in done.stderr
        return
    converted = called(lab(machine, "convert", **settings)[1])[-1]
    built = called(lab(machine, "build", **settings)[1])[1]
    assert trtllm_facts.problems(shlex.join(converted)) == trtllm_facts.problems(shlex.join(built)) == []
    assert converted[converted.index("--tp_size") + 1] == built[built.index("--workers") + 1] == str(gpus)
    assert built[built.index("--checkpoint_dir") + 1] == converted[converted.index("--output_dir") + 1]
    assert built[built.index("--max_seq_len") + 1] == ("1024" if family == "gpt" else "2048")
    assert ("quantize.py" in converted[1]) == (precision == "fp8")
    assert "--use_paged_context_fmha" in built


def test_the_script_builds_what_the_package_builds(machine):
    """The same commands, once with the names of the shell and once with paths."""
    recipe = trtllm_commands.Recipe(tp_size=2, max_batch_size=16, max_num_tokens=4096)
    settings = {"GPUS": 2, "SLOTS": 16}
    converted, built = called(lab(machine, "convert", **settings)[1]), called(lab(machine, "build", **settings)[1])
    assert converted[-1] == trtllm_commands.convert(recipe, trtllm_commands.CONTAINER).argv
    assert built[1] == trtllm_commands.build(recipe, trtllm_commands.CONTAINER).argv


@pytest.mark.parametrize("runtime", ["docker", "podman"])
def test_the_container_is_started_and_removed_by_either_runtime(machine, runtime):
    _, calls = lab(machine, "start", RUNTIME=runtime)
    expected = trtllm_commands.start(runtime, trtllm_commands.IMAGE, str(machine / "lab"), "all").argv
    assert calls == [expected] and trtllm_facts.problems(shlex.join(calls[0])) == []
    assert (machine / "lab" / "models").is_dir()
    assert lab(machine, "remove", RUNTIME=runtime)[1] == [[runtime, "rm", "--force", "triton-lab"]]


def test_every_port_is_on_loopback_only():
    for runtime in ("docker", "podman"):
        words = trtllm_commands.start(runtime).argv
        ports = [value for flag, value in zip(words, words[1:]) if flag == "-p"]
        assert len(ports) == 3 and all(port.startswith("127.0.0.1:") for port in ports) and "--net" not in words


def test_the_first_process_of_the_container_ends_when_it_is_told_to():
    command = trtllm_commands.start("docker").argv[-3:]
    with subprocess.Popen(["setsid", *command]) as process:  # in a container its child would end with it
        try:
            process.terminate()
            assert process.wait(timeout=60) in (143, -15)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)


def test_only_the_default_model_has_its_revision_pinned(machine):
    pinned = lab(machine, "fetch")[1][0]
    assert pinned[pinned.index("--revision") + 1] == trtllm_commands.MODEL_REVISION
    other = lab(machine, "fetch", MODEL_ID=trtllm_commands.GPT_MODEL_ID)[1][0]
    assert other[other.index("--revision") + 1] == "main" and other[2] == trtllm_commands.GPT_MODEL_ID
    assert trtllm_facts.problems(shlex.join(pinned)) == []


@pytest.mark.parametrize("inside", ["/lab", None])
def test_a_second_model_has_a_folder_of_its_own(machine, inside):
    """In the container, or in a shell that is in it already."""
    root = inside or machine / "lab"
    settings = {"RUNTIME": "docker" if inside else "", "MODEL": f"{root}/models/gpt2"}
    fetched = lab(machine, "fetch", **settings)[1][0]
    assert fetched[fetched.index("--local-dir") + 1] == str(machine / "lab" / "models" / "gpt2")
    [convert] = [words for words in lab(machine, "convert", **settings)[1] if "--model_dir" in words]
    assert convert[convert.index("--model_dir") + 1] == f"{root}/models/gpt2"


def test_measuring_has_its_data_and_asks_pypi_only_for_what_is_missing(machine):
    """Also in a shell that is in the container already, where nothing was started."""
    _, calls = lab(machine, "measure", RUNTIME="")
    assert json.loads((machine / "lab" / "datasets" / "mini_cnn_eval.json").read_text())
    assert [words[0] for words in calls] == ["python3", "python3"]
    assert trtllm_facts.problems(shlex.join(calls[1])) == []
    assert calls[1][calls[1].index("--dataset") + 1] == str(machine / "lab" / "datasets" / "mini_cnn_eval.json")
    program = machine / "bin" / "python3"
    program.write_text(program.read_text() + '[ "$1" != -c ]\n')
    assert [words[0] for words in lab(machine, "measure", RUNTIME="")[1]] == ["python3", "pip3", "python3"]


@pytest.mark.parametrize("step", ["launch", "serve"])
def test_the_server_is_started_so_that_the_step_comes_back(machine, step):
    ran = called(lab(machine, step, GPUS=2)[1])[-1]
    assert ran[:2] == ["bash", "-c"] and ran[2].endswith("&") and ran[3] == "/lab/logs/launch.log"
    expected = (
        trtllm_commands.launch(2, trtllm_commands.CONTAINER)
        if step == "launch"
        else trtllm_commands.serve(trtllm_commands.CONTAINER)
    )
    assert ran[4:] == expected.argv


def test_no_second_server_is_started(machine):
    put_pgrep(machine, 0)
    for step in ("launch", "serve"):
        done, calls = lab(machine, step, check=False, RUNTIME="")
        assert done.returncode == 1 and "running already" in done.stderr and not calls


def test_a_server_that_was_left_running_hears_the_signal_that_stop_sends(machine):
    """A shell's background process ignores it, and so does whatever that starts and does not care."""
    program, said = machine / "bin" / "python3", machine / "lab" / "logs" / "launch.log"
    program.write_text(
        f"#!{sys.executable}\nimport pathlib, signal, sys\nprint(signal.getsignal(signal.SIGINT).__name__)\n"
    )
    put_pgrep(machine, 1)
    lab(machine, "launch", RUNTIME="")
    deadline = time.monotonic() + 60
    while not said.read_text().endswith("\n"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert said.read_text() == "default_int_handler\n"


def test_ready_says_so_or_shows_why_not(machine):
    assert lab(machine, "ready")[0].stdout.strip() == "READY"
    (machine / "bin" / "curl").write_text("#!/bin/sh\nexit 22\n")
    put_pgrep(machine, 1)
    logs = machine / "lab" / "logs"
    logs.mkdir(parents=True)
    (logs / "triton.log").write_text("E failed to load 'tensorrt_llm'\n")
    (logs / "launch.log").write_text("")
    done, _ = lab(machine, "ready", check=False, RUNTIME="", READY_SECONDS=600)  # no waiting where no process is
    assert done.returncode == 1 and "failed to load 'tensorrt_llm'" in done.stderr


@pytest.mark.parametrize("prompt", ["Who is it?", 'Say "hi" and \\n, $HOME, `x`', "Wo ist's, ä?", "two\nlines"])
@pytest.mark.parametrize(("step", "more"), [("query", {}), ("stream", {"stream": True})])
def test_a_question_is_one_json_object(machine, step, more, prompt):
    words = lab(machine, step, prompt, "32")[1][0]
    assert json.loads(words[words.index("-d") + 1]) == {"text_input": prompt, "max_tokens": 32, **more}


def test_a_step_that_there_is_not_shows_what_there_is(machine):
    done, calls = lab(machine, "destroy", check=False)
    assert done.returncode == 2 and "lab.sh launch && lab.sh ready" in done.stderr and not calls


def test_a_precision_that_there_is_not_is_refused(machine):
    done, _ = lab(machine, "convert", check=False, PRECISION="fp16")
    assert done.returncode == 2 and "PRECISION is fp16: choose float16" in done.stderr


# Filling --------------------------------------------------------------------------------------------------------------


def made(folder, version):
    """`/app` with templates that have that version's variables, and a program that fills as that version's does."""
    for model in trtllm_facts.version(version)["bare"]:
        path = folder / "all_models" / "inflight_batcher_llm" / model
        (path / "1").mkdir(parents=True)
        (path / "config.pbtxt").write_text(trtllm_facts.template(version, model))
    (folder / "tools").mkdir()
    (folder / "tools" / "fill_template.py").write_text(trtllm_facts.fill_template_script(version))
    return folder


@pytest.fixture(params=VERSIONS)
def app(request, tmp_path):
    return made(tmp_path / "app", request.param)


def fill(app, *arguments):
    """Fill by lab.sh, here instead of in a container; returns the process and the repository."""
    root = app.parent
    environment = {
        "PATH": f"{os.path.dirname(sys.executable)}:/usr/bin:/bin",
        "LAB": str(root),
        "APP": str(app),
        "RUNTIME": "",
    }
    done = subprocess.run(
        ["bash", SCRIPT, "fill", *arguments], env=environment, capture_output=True, text=True, timeout=120
    )
    return done, root / "repo"


FILLS = {
    "V1": ("V1", "guaranteed_no_evict", "False", "50000"),
    "whole answers": ("inflight_fused_batching", "guaranteed_no_evict", "False", "0", "enable_kv_cache_reuse:False"),
    "streamed": ("inflight_fused_batching", "guaranteed_no_evict", "True"),
    "pauses": (
        *("inflight_fused_batching", "max_utilization", "True", "0"),
        *("enable_chunked_context:True", "max_tokens_in_paged_kv_cache:4096", "kv_cache_free_gpu_mem_fraction:0.2"),
    ),
    "nothing said": (),
}


@pytest.mark.parametrize("arguments", FILLS.values(), ids=FILLS)
def test_every_file_can_be_read_once_it_is_filled(app, arguments):
    done, repo = fill(app, *arguments)
    assert done.returncode == 0, done.stderr
    configs = {path.parent.name: repository.read_config(path) for path in repo.glob("*/config.pbtxt")}
    assert sorted(configs) == sorted(trtllm_commands.MODELS)

    said = (*arguments[:4], *("inflight_fused_batching", "guaranteed_no_evict", "True", "0")[len(arguments[:4]) :])
    engine = configs["tensorrt_llm"]
    parameters = {name: value.string_value for name, value in engine.parameters.items()}
    decoupled, delay = engine.model_transaction_policy.decoupled, engine.dynamic_batching.max_queue_delay_microseconds
    assert (parameters["batching_strategy"], parameters["batch_scheduler_policy"], str(decoupled), str(delay)) == said
    assert engine.backend == "tensorrtllm" and engine.max_batch_size == 8
    assert parameters["engine_dir"] == str(app.parent / "engine")
    assert all(parameters[name] == value for name, value in (pair.split(":") for pair in arguments[4:]))
    assert configs["preprocessing"].parameters["tokenizer_dir"].string_value == str(app.parent / "models" / "hf")


def test_a_folder_may_have_blanks_in_its_name(machine, tmp_path):
    root = tmp_path / "my lab"
    done, repo = fill(made(root / "app", "0.18.2"), *FILLS["V1"])
    assert done.returncode == 0, done.stderr
    engine = repository.read_config(repo / "tensorrt_llm" / "config.pbtxt").parameters["engine_dir"]
    assert engine.string_value == f"{root}/engine"
    assert f"{root}:/lab" in lab(machine, "start", LAB=root)[1][0]
    assert f"--model_dir {root}/models/hf" in " ".join(lab(machine, "convert", LAB=root, RUNTIME="")[1][-1])


def test_filling_again_begins_with_fresh_templates(tmp_path):
    app = made(tmp_path / "app", "0.19.0")  # the one in which a variable that is gone is an error
    fill(app, *FILLS["V1"])
    done, repo = fill(app, *FILLS["streamed"])
    assert done.returncode == 0 and not (repo / "inflight_batcher_llm").exists()
    assert repository.read_config(repo / "tensorrt_llm" / "config.pbtxt").model_transaction_policy.decoupled


def test_a_variable_that_a_later_release_adds_is_named(tmp_path):
    app = made(tmp_path / "app", "0.18.2")
    template = app / "all_models" / "inflight_batcher_llm" / "tensorrt_llm" / "config.pbtxt"
    template.write_text(template.read_text() + "version_policy { latest { num_versions: ${number_of_versions} } }\n")
    done, _ = fill(app)
    assert done.returncode == 1 and "${number_of_versions}" in done.stdout and "Give these variables" in done.stderr
    assert fill(app, *FILLS["whole answers"], "number_of_versions:1")[0].returncode == 0


@pytest.mark.parametrize(
    ("version", "pairs", "what"),
    [
        ("0.14.0", "decoupled_mode:False,triton_max_batch_size:64", "max_queue_delay_microseconds"),
        ("0.18.2", "decoupled_mode:False,triton_max_batch_size:64,max_queue_delay_microseconds:0", "data_type"),
        ("0.19.0", "decoupled_mode:False,guess:1", "does not exist in the file"),
    ],
)
def test_why_no_list_of_variables_is_fixed(tmp_path, version, pairs, what):
    """One that is right for a release leaves a later one's file unreadable, or ends its program with an error."""
    app = made(tmp_path / "app", version)
    config = app / "all_models" / "inflight_batcher_llm" / "tensorrt_llm" / "config.pbtxt"
    command = [sys.executable, app / "tools" / "fill_template.py", "-i", config, pairs]
    filled = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if filled.returncode:
        assert what in filled.stderr
        return
    with pytest.raises(CourseError, match=rf"{what}.* is not filled"):
        repository.read_config(config)
