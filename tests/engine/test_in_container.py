"""TensorRT-LLM's engine beside ours: the commands that run in a container, their progress and their errors."""

import json

import pytest

from inflight.checkpoint import as_huggingface
from inflight.containers import Image
from inflight.engine import builder, in_container
from inflight.engine.config import BuildConfig
from inflight.engine.folder import read
from inflight.errors import CourseError
from tests.containers import put_program, stand_in_runtime

NVIDIA = "nvcr.io/nvidia/tritonserver:25.04-trtllm-python-py3"

# What the programs do as far as the course looks: say something, and write files.
CONVERT = """
import json, pathlib, sys
given = {word: value for word, value in zip(sys.argv[1:], sys.argv[2:]) if word.startswith("--")}
assert (pathlib.Path(given["--model_dir"]) / "config.json").exists()
out = pathlib.Path(given["--output_dir"])
out.mkdir()
(out / "config.json").write_text(json.dumps(given))
print("Total time of converting checkpoints: 00:00:01")
"""
BUILD = """
import json, pathlib, sys
given = {word: value for word, value in zip(sys.argv[1:], sys.argv[2:]) if word.startswith("--")}
assert (pathlib.Path(given["--checkpoint_dir"]) / "config.json").exists()
out = pathlib.Path(given["--output_dir"])
out.mkdir()
print("[04/23/2025-10:00:00] [TRT-LLM] [I] Serializing engine to rank0.engine...")
(out / "config.json").write_text(json.dumps(given))
(out / "rank0.engine").write_bytes(b"an engine")
"""
FAILS = """
import sys
print("[04/23/2025-10:00:00] [TRT-LLM] [I] Set dtype to float16.")
print("Traceback (most recent call last):", file=sys.stderr)
print("RuntimeError: Paged Context FMHA doesn't work with int8 kv cache currently.", file=sys.stderr)
sys.exit(1)
"""


class Folder:
    """A checkpoint as a folder of Hugging Face."""

    format, name, sha256 = "hf", "tiny", "0" * 64

    def __init__(self, path, model_type="llama"):
        self.path = path
        path.mkdir()
        (path / "config.json").write_text(json.dumps({"model_type": model_type}))


@pytest.fixture
def programs(tmp_path, monkeypatch):
    folder = stand_in_runtime(tmp_path / "stand-in", monkeypatch, NVIDIA)
    put_program(folder / "app" / "examples" / "llama" / "convert_checkpoint.py", CONVERT)
    put_program(folder / "app" / "examples" / "gpt" / "convert_checkpoint.py", CONVERT)
    put_program(folder / "bin" / "trtllm-build", BUILD)
    return folder


@pytest.fixture
def target(tmp_path):
    (tmp_path / "engine").mkdir()
    return tmp_path / "engine"


def built(target, checkpoint, config=None):
    lines = []
    folder = in_container.build(checkpoint, config or BuildConfig(), target, Image(NVIDIA), lines.append)
    return folder, lines


@pytest.mark.parametrize("kind, family", [("llama", "llama"), ("gpt2", "gpt")])
def test_both_steps_run_one_after_the_other_and_tell_of_it(programs, target, tmp_path, kind, family):
    folder, lines = built(target, Folder(tmp_path / "hf", kind), BuildConfig(max_batch_size=5, quant_algo="W8A16"))
    assert sorted(file.name for file in folder.iterdir()) == ["config.json", "rank0.engine"]
    given = json.loads((folder / "config.json").read_text())
    assert given["--max_batch_size"] == "5" and given["--output_dir"] == str(target / "tensorrt_llm")
    assert lines[0] == "convert_checkpoint.py …" and "trtllm-build …" in lines
    assert any("Serializing engine" in line for line in lines) and lines[-1].startswith("trtllm-build: done after")
    assert not (target / "checkpoint").exists()


def test_a_step_that_fails_says_its_own_error(programs, target, tmp_path):
    put_program(programs / "bin" / "trtllm-build", FAILS)
    with pytest.raises(CourseError) as told:
        built(target, Folder(tmp_path / "hf"))
    assert str(told.value) == (
        "trtllm-build failed: RuntimeError: Paged Context FMHA doesn't work with int8 kv cache currently."
    )
    assert "Set dtype" in (target / "trtllm-build.log").read_text()


def test_the_second_step_does_not_follow_a_first_that_failed(programs, target, tmp_path):
    put_program(programs / "app" / "examples" / "llama" / "convert_checkpoint.py", "import sys; sys.exit(3)")
    with pytest.raises(CourseError, match="convert_checkpoint.py failed: it says nothing"):
        built(target, Folder(tmp_path / "hf"))
    assert not (target / "trtllm-build.log").exists()


@pytest.mark.parametrize(
    "lines, said",
    [
        ([], "it says nothing"),
        (["Killed"], "Killed"),
        (["ok", "AssertionError: a", "[TRT-LLM] [E] b", "", "and so on"], "AssertionError: a [TRT-LLM] [E] b"),
        ([f"ValueError: {number}" for number in range(9)], "ValueError: 6 ValueError: 7 ValueError: 8"),
        (["trtllm-build: error: unrecognized arguments: --x"], "trtllm-build: error: unrecognized arguments: --x"),
    ],
)
def test_of_what_a_program_said_the_error_lines_are_told(lines, said):
    assert in_container.errors(lines) == said


def test_another_form_of_checkpoint_is_refused_with_one_that_fits(programs, target, checkpoint):
    with pytest.raises(CourseError, match="converts a folder of Hugging Face.*TinyLlama"):
        built(target, checkpoint)


def test_of_a_gguf_file_the_folder_of_hugging_face_is_converted(
    programs, tmp_path, small_checkpoint, monkeypatch, capsys
):
    monkeypatch.setenv("INFLIGHT_IMAGE", NVIDIA)
    monkeypatch.setenv("INFLIGHT_HOME", str(tmp_path / "home"))
    folder = builder.build(small_checkpoint, BuildConfig(), tmp_path / "both")
    beside = folder / in_container.FOLDER
    assert sorted(file.name for file in beside.iterdir()) == ["config.json", "rank0.engine"]
    made = as_huggingface.folder(small_checkpoint)
    assert tmp_path in made.parents and str(made) in capsys.readouterr().err
    converted = (folder / "convert_checkpoint.py.log").read_text()
    assert "Total time" in converted and (made / "model.safetensors").exists()
    assert read(folder).pretrained_config["checkpoint"]["sha256"] == small_checkpoint.sha256


def test_another_family_is_refused(programs, target, tmp_path):
    with pytest.raises(CourseError, match="is a t5: the course converts llama"):
        built(target, Folder(tmp_path / "hf", "t5"))


def test_engine_build_makes_both_or_none(programs, tmp_path, small_checkpoint, monkeypatch):
    monkeypatch.setenv("INFLIGHT_IMAGE", NVIDIA)
    monkeypatch.setenv("INFLIGHT_HOME", str(tmp_path / "home"))
    folder = tmp_path / "both"
    put_program(programs / "bin" / "trtllm-build", FAILS)
    with pytest.raises(CourseError, match="trtllm-build failed"):
        builder.build(small_checkpoint, BuildConfig(), folder)
    assert not folder.exists()
    made = []

    def beside(checkpoint, config, aside, image, progress):
        made.append(image.name)
        (aside / in_container.FOLDER).mkdir()
        (aside / in_container.FOLDER / "rank0.engine").write_bytes(b"an engine")

    monkeypatch.setattr(in_container, "build", beside)
    builder.build(small_checkpoint, BuildConfig(), folder)
    assert made == [NVIDIA] and read(folder).build_config == BuildConfig().on("cpu")
    monkeypatch.setenv("INFLIGHT_IMAGE", "inflight-course")
    builder.build(small_checkpoint, BuildConfig(), folder)
    assert made == [NVIDIA] and not (folder / in_container.FOLDER).exists()
