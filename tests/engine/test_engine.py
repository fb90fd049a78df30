"""Building engines, and refusing what is not one."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from inflight import processor
from inflight.checkpoint.sources import fetch
from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.engine.building import builder as engine
from inflight.engine.executor import Executor
from inflight.engine.folder import read
from inflight.engine.messages import Request
from inflight.engine.model import load as load_model
from inflight.engine.settings import BuildConfig
from inflight.errors import CourseError
from inflight.processor import Processor
from tests.engines import (
    SMALL_BUILD,
    SMALL_LAYERS,
    SMALL_VOCAB,
    build_small,
    flip,
    start_python,
    wait_until,
)


def test_a_checkpoint_that_can_only_be_read_is_built(small_checkpoint, tmp_path):
    given = Path(shutil.copyfile(small_checkpoint.path, tmp_path / "given.gguf"))
    given.chmod(0o444)
    as_others = ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-all"] if os.geteuid() == 0 else []
    command = [sys.executable, "-m", "inflight", "build", "--checkpoint", given, "--output-dir", tmp_path / "engine"]
    limits = ["--max-input-len=48", "--max-seq-len=96", "--max-num-tokens=64"]
    built = subprocess.run([*as_others, *command, *limits], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    assert read(tmp_path / "engine").build_config.max_seq_len == 96


@pytest.mark.parametrize(
    "options, message",
    [
        ({"max_batch_size": 0}, "max_batch_size is 0; give a whole number of at least 1"),
        ({"max_input_len": 2048}, r"max_input_len \(2048\) leaves no room for an answer in max_seq_len \(2048\)"),
        ({"max_num_tokens": 4}, r"max_num_tokens \(4\) is less than one token for each of max_batch_size \(8\)"),
        ({"max_beam_width": 4}, "max_beam_width can only be 1 in this engine: it decodes one beam"),
        ({"quant_algo": "FP8"}, "quant_algo is 'FP8'; the engines here have 'auto', None, 'W8A16', 'W4A8', 'W4A16'"),
    ],
)
def test_a_build_option_that_the_engine_has_not_is_refused_with_the_reason(options, message):
    with pytest.raises(CourseError, match=f"^Build option {message}"):
        BuildConfig(**options)


@pytest.mark.parametrize(
    "tier, options, message",
    [
        ("cpu", {"tokens_per_block": 64}, "tokens_per_block is 64; an engine of the tier cpu has 32"),
        ("cuda", {"quant_algo": "W8A16"}, "quant_algo is 'W8A16'; an engine of the tier cuda has 'auto', None"),
    ],
)
def test_a_build_option_that_the_tier_has_not_is_refused_with_what_it_has(
    small_checkpoint, tmp_path, tier, options, message
):
    with pytest.raises(CourseError, match=f"^Build option {message}"):
        engine.build(small_checkpoint, BuildConfig(**options), tmp_path / "engine", tier=tier)
    assert not any(tmp_path.iterdir())


def test_each_tier_decides_what_auto_is():
    assert (BuildConfig().on("cpu").dtype, BuildConfig().on("cuda").dtype) == ("float32", "bfloat16")
    assert BuildConfig(dtype="float16").on("cuda") == BuildConfig(dtype="float16")
    with pytest.raises(CourseError, match="The tier is 'tpu'; engines are built for cpu or cuda."):
        BuildConfig().on("tpu")


def test_bfloat16_is_refused_where_the_processor_has_none(small_checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(processor, "here", lambda: Processor(has_bfloat16=False, has_8_bits=False))
    with pytest.raises(CourseError, match="needs a CPU with bfloat16 arithmetic"):
        build_small(small_checkpoint, tmp_path / "engine", dtype="bfloat16")


# What is built --------------------------------------------------------------------------------------------------------


def test_config_of_an_engine(small_engine, small_checkpoint):
    content = json.loads((small_engine / "config.json").read_text())
    assert content["version"] == engine.engine_version()
    assert content["build_config"] == dataclasses.asdict(SMALL_BUILD)
    model = content["pretrained_config"]
    assert model["architecture"] == "LlamaForCausalLM"
    assert model["checkpoint"] == {"name": small_checkpoint.name, "sha256": small_checkpoint.sha256}
    assert (model["num_hidden_layers"], model["vocab_size"]) == (SMALL_LAYERS, SMALL_VOCAB)
    assert (model["num_attention_heads"], model["num_key_value_heads"], model["head_size"]) == (9, 3, 64)
    assert model["quantization"] == {"quant_algo": "W4A16", "kv_cache_quant_algo": None}
    assert model["mapping"] == {"world_size": 1, "tp_size": 1, "pp_size": 1}


def test_read_gives_what_was_built(small_engine, small_checkpoint):
    info = read(small_engine, small_checkpoint)
    assert info.build_config == SMALL_BUILD
    assert info.kv_cache_bytes_per_token == 2 * SMALL_LAYERS * 3 * 64 * 4


@pytest.mark.parametrize(
    "options",
    [
        {"quant_algo": None},
        {"quant_algo": "auto"},
        {"quant_algo": "W8A16"},
        {"quant_algo": "W4A8"},
        {"kv_cache_quant_algo": "INT8"},
    ],
    ids=str,
)
def test_every_precision_runs(small_checkpoint, small_engine, tmp_path, options):
    def weight_bytes(folder):
        return (folder / "openvino_model.bin").stat().st_size

    folder = build_small(small_checkpoint, tmp_path / "engine", **options)
    with Executor.load(folder) as executor:
        assert len(executor.generate(Request([5, 6, 7], 8)).token_ids) == 8
    if options == {"quant_algo": "W8A16"}:
        assert weight_bytes(folder) > 1.5 * weight_bytes(small_engine)
    if "kv_cache_quant_algo" in options:
        assert load_model(folder).block_bytes < load_model(small_engine).block_bytes / 2


def test_cached_builds_once(small_checkpoint, tmp_path, monkeypatch):
    monkeypatch.setenv("INFLIGHT_HOME", str(tmp_path))
    first = engine.cached(small_checkpoint, SMALL_BUILD)
    built_at = (first / "config.json").stat().st_mtime_ns
    assert engine.cached(small_checkpoint, SMALL_BUILD) == first
    assert (first / "config.json").stat().st_mtime_ns == built_at


FILES = ["config.json", "openvino_model.bin", "openvino_model.xml", "tokenizer.json", "tokenizer_config.json"]


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_engine_of_the_cache_is_built_again(small_checkpoint, tmp_path, monkeypatch, capsys, name):
    monkeypatch.setenv("INFLIGHT_HOME", str(tmp_path))
    monkeypatch.delenv("COURSE_STRICT", raising=False)  # where pages are made and tested, it says nothing
    folder = engine.cached(small_checkpoint, SMALL_BUILD)
    assert {file.name for file in folder.iterdir()} == {*FILES, "checksums.json"}
    for damage in (Path.unlink, flip):
        damage(folder / name)
        assert engine.cached(small_checkpoint, SMALL_BUILD) == folder
        assert f"{folder} is damaged (" in (said := capsys.readouterr().err) and name in said
    with Executor.load(folder) as executor:
        assert executor.generate(Request([5, 6, 7], 2)).token_ids


@pytest.mark.parametrize(
    "name, load",
    [("openvino_model.bin", Executor.load), ("tokenizer.json", load_tokenizer)],
    ids=["weights", "tokenizer"],
)
def test_what_cannot_be_loaded_from_the_cache_says_how_it_is_made_again(
    small_checkpoint, tmp_path, monkeypatch, name, load
):
    monkeypatch.setenv("INFLIGHT_HOME", str(tmp_path))
    folder = engine.cached(small_checkpoint, SMALL_BUILD)
    os.truncate(folder / name, 1000)
    with pytest.raises(CourseError, match="cannot be .*It is not whole in the cache: run what made it again"):
        load(folder)
    load(engine.cached(small_checkpoint, SMALL_BUILD))


# What is refused ------------------------------------------------------------------------------------------------------


@pytest.fixture
def copied_engine(small_engine, tmp_path):
    return shutil.copytree(small_engine, tmp_path / "engine")


def change_config(folder, **changes) -> None:
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**content, **changes}))


def test_no_engine(tmp_path):
    with pytest.raises(CourseError, match="There is no engine at .*nowhere. Build one: `inflight build --output-dir"):
        read(tmp_path / "nowhere")


def test_another_version_is_refused_with_both_named(copied_engine):
    change_config(copied_engine, version="openvino 2025.1.0")
    with pytest.raises(CourseError, match=f"was built by openvino 2025.1.0; this is {engine.engine_version()}"):
        read(copied_engine)


def test_another_checkpoint_is_refused_with_both_named(small_engine, small_checkpoint, checkpoint):
    with pytest.raises(CourseError) as caught:
        read(small_engine, checkpoint)
    for built_or_wanted in (small_checkpoint, checkpoint):
        assert f"{built_or_wanted.name} (sha256 {built_or_wanted.sha256[:12]}…)" in str(caught.value)


@pytest.mark.parametrize("name", ["openvino_model.bin", "openvino_model.xml"])
@pytest.mark.parametrize(
    "damage", [lambda file: os.truncate(file, file.stat().st_size // 2), flip], ids=["cut", "flip"]
)
def test_weights_that_are_damaged_are_refused_and_stay(copied_engine, name, damage):
    damage(copied_engine / name)
    with pytest.raises(
        CourseError, match=r"cannot be loaded .* Build it again: `inflight build --output-dir"
    ) as caught:
        Executor.load(copied_engine)
    assert "\n" not in str(caught.value) and name in str(caught.value) and (copied_engine / name).exists()


@pytest.mark.parametrize("content", ["{", '{"version": 1, "pretrained_config": {}, "build_config": []}'])
def test_a_config_that_is_none_is_refused(copied_engine, content):
    (copied_engine / "config.json").write_text(content)
    with pytest.raises(CourseError, match="The engine's config .*Build it again"):
        read(copied_engine)


def test_a_hugging_face_folder_is_for_a_gpu(tiny_llama, tmp_path):
    with pytest.raises(CourseError, match="is a Hugging Face folder, and engines for a CPU are built from GGUF files"):
        engine.build(tiny_llama, SMALL_BUILD, tmp_path / "engine", tier="cpu")


def test_a_build_spares_files_that_are_not_an_engine(small_checkpoint, tmp_path):
    (tmp_path / "homework.txt").write_text("mine")
    with pytest.raises(CourseError, match="holds files that are not an engine"):
        build_small(small_checkpoint, tmp_path)
    with pytest.raises(CourseError, match="is a file, not a folder"):
        build_small(small_checkpoint, tmp_path / "homework.txt")
    assert (tmp_path / "homework.txt").read_text() == "mine"


# What goes wrong while building ---------------------------------------------------------------------------------------

BUILD_SCRIPT = """
import resource, sys
from inflight import CourseError, checkpoint, engine
source, folder, largest_file = sys.argv[1], sys.argv[2], int(sys.argv[3])
if largest_file:
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
try:
    engine.build(checkpoint.fetch(source), engine.BuildConfig(), folder)
except CourseError as error:
    sys.exit(f"CourseError: {error}")
"""


def start_build(source: Path, folder: Path, largest_file: int = 0) -> subprocess.Popen:
    """`engine.build` in a process of its own; `largest_file` bytes stand in for a disk that is full after so many."""
    return start_python(BUILD_SCRIPT, source, folder, largest_file)


def test_a_build_killed_half_way_never_looks_like_an_engine(checkpoint, small_checkpoint, tmp_path):
    folder = tmp_path / "engine"
    process = start_build(checkpoint.path, folder)
    wait_until(lambda: list(tmp_path.glob(".engine.*/whole/tokenizer.json")) or folder.exists(), "the build begins")
    process.kill()
    process.communicate()
    assert not folder.exists()
    with pytest.raises(CourseError, match="There is no engine"):
        read(folder)
    [leftover] = tmp_path.iterdir()
    with pytest.raises(CourseError, match="is not an engine"):
        read(leftover)
    assert read(build_small(small_checkpoint, folder)).folder == folder


def test_a_gguf_file_that_is_cut_short_leaves_nothing_behind(small_checkpoint, tmp_path):
    file, good = tmp_path / "corrupt.gguf", small_checkpoint.path.read_bytes()
    file.write_bytes(good[: len(good) // 2])
    with pytest.raises(CourseError, match="corrupt.gguf"):
        engine.build(fetch(str(file)), SMALL_BUILD, tmp_path / "engine")
    assert [path.name for path in tmp_path.iterdir()] == ["corrupt.gguf"]


def test_the_engine_that_was_there_survives_a_disk_that_is_full(small_checkpoint, tmp_path):
    folder = build_small(small_checkpoint, tmp_path / "engine")
    process = start_build(small_checkpoint.path, folder, largest_file=1_000_000)
    output, _ = process.communicate()
    assert "CourseError: The engine could not be written to" in output
    assert read(folder).build_config == SMALL_BUILD and list(tmp_path.iterdir()) == [folder]


def test_an_engine_is_built_on_one_core(small_checkpoint, tmp_path):
    """In bfloat16 the library that converts the checkpoint divides by zero there."""
    one_core = "import os\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    building = start_python(one_core + BUILD_SCRIPT, small_checkpoint.path, tmp_path / "engine", 0)
    output, _ = building.communicate()
    assert building.returncode == 0, output
    assert read(tmp_path / "engine").build_config == BuildConfig().on("cpu")
