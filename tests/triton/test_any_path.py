"""Paths of every kind in a running server: its processes read paths as ASCII by themselves, and bash reads some."""

import os
import shlex
import shutil
import site
import subprocess
import sys
import tempfile
import unicodedata
from pathlib import Path

import pytest

from inflight.errors import CourseError
from inflight.triton import repository
from inflight.triton.client.client import Client
from inflight.triton.serving.server import Server
from tests.engines import ask_tokens

pytestmark = pytest.mark.server

SCHEDULER = """
from pathlib import Path
from inflight.engine.scheduler import GuaranteedNoEvict

class Scheduler(GuaranteedNoEvict):
    def schedule(self, now):
        print("Größer:", len(now.waiting), flush=True)
        with open(Path(__file__).with_name("gesehen – été.txt"), "a") as file:
            file.write("wartet: 人\\n")
        return super().schedule(now)
"""
DRAFTER = "class Drafter:\n    def propose(self, token_ids, k):\n        return [0] * k\n"
PROCESSOR = """
class LogitsProcessor:
    def __init__(self, guide, tokenizer):
        pass

    def __call__(self, token_ids, logits):
        logits[:] = float("-inf")
        logits[7] = 1
        return logits
"""
PROMPT = [5] * 12
# What would be imported in place of what is meant, if the current folder came first.
TRAPS = ("random.py", "numpy.py", "inflight.py", "tokenizers.py", "1/model.py")


NAMES = {"decomposed": unicodedata.normalize("NFD", "Téléchargements"), "signs": 'it\'s (a) "😀"; $(x) &'}


@pytest.fixture(scope="module", params=list(NAMES))
def place(request, small_engine, tmp_path_factory):
    """A folder with all that a server is made of, and traps in the current folder."""
    place = tmp_path_factory.mktemp("any") / NAMES[request.param]
    here = place / "here"
    (here / "1").mkdir(parents=True)
    (place / "temporary").mkdir()
    for name in TRAPS:
        (here / name).write_text("raise SystemExit('a trap')")
    shutil.copytree(small_engine, place / "engine")
    for name, text in (("planer", SCHEDULER), ("entwürfe", DRAFTER), ("maske", PROCESSOR)):
        (place / f"{name}.py").write_text(text)
    (here / "böse.py").write_text("class Scheduler:\n    def schedule(self, now):\n        return 1 / 0\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        patch.setattr(tempfile, "tempdir", str(place / "temporary"))
        yield place


@pytest.fixture(scope="module")
def server(place):
    repo = repository.assemble(
        place / "repository",
        place / "engine",
        decoupled_mode=True,
        apply_chat_template=False,
        scheduler_path=place / "planer.py",
        drafter_path=place / "entwürfe.py",
        logits_processor_path=place / "maske.py",
        iteration_log_path="log – für alle.jsonl",  # in the current folder
    )
    with Server(repo, drain_s=0) as server:
        yield server


def test_every_part_of_a_server_is_opened(place, server):
    with Client(server.grpc_url) as client:
        assert client.ask("Hello", max_tokens=3).text
    guide = {"guided_decoding_guide_type": "regex", "guided_decoding_guide": "x+"}
    assert ask_tokens(server, PROMPT, 4, end_id=-1, exclude_input_in_output=True, **guide) == [7] * 4
    assert set((place / "gesehen – été.txt").read_text(encoding="utf-8").splitlines()) == {"wartet: 人"}
    assert '"drafted"' in (place / "here" / "log – für alle.jsonl").read_text()
    assert "Größer: 1" in server.log_tail(1000)


def test_a_part_of_the_current_folder_fails_with_its_name_and_line(server):
    with pytest.raises(CourseError, match=r"böse\.py, line 3: ZeroDivisionError"):
        server.load("tensorrt_llm", scheduler_path="böse.py")
    assert len(ask_tokens(server, PROMPT, 4, end_id=-1, exclude_input_in_output=True)) == 4


@pytest.mark.slow  # root
def test_a_temporary_folder_may_be_one_where_nothing_is_executed(tmp_path, course_engine):
    if os.geteuid() != 0:
        pytest.skip("only root mounts a folder")
    ask = f"{shlex.quote(sys.executable)} -P -m inflight ask 'Name the capital of France.'"
    shell = f"mount -t tmpfs -o noexec tmpfs {tmp_path} && TMPDIR={tmp_path} exec {ask}"
    answer = subprocess.run(["unshare", "-m", "bash", "-c", shell], capture_output=True, text=True)
    assert "Paris" in answer.stdout, answer.stderr


SERVES = """
import sys
from inflight.triton import Client, Server

with Server(sys.argv[1]) as server, Client(server.grpc_url) as client:
    print([row.state for row in server.models()], client.ask("Hello", 3).text)
"""
FIRST_OF_ALL = """
import torch

class TritonPythonModel:
    def initialize(self, args):
        assert torch.ones(2).sum() == 2

    def execute(self, requests):
        return [None for request in requests]
"""


def test_a_python_with_a_sitecustomize_of_its_own_serves(small_repo, tmp_path, monkeypatch):
    """Debian's Python has one in its standard library, where it is found before any other."""
    library = Path(os.__file__).parent
    ours = tmp_path / "lib" / library.name
    ours.mkdir(parents=True)
    for file in library.iterdir():
        (ours / file.name).symlink_to(file)
    (ours / "sitecustomize.py").unlink(missing_ok=True)
    (ours / "sitecustomize.py").write_text("")
    (tmp_path / "bin").symlink_to(Path(sys.base_prefix) / "bin")
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    with Server(small_repo, drain_s=0) as server:
        assert all(row.state == "READY" for row in server.models())


def test_an_environment_in_such_a_folder_serves(small_engine, tmp_path):
    """Python and the packages are in a home with other letters, too, and a model begins with one that is in C++."""
    home = tmp_path / "jürgen b" / "Téléchargements"
    home.mkdir(parents=True)
    (home / "base").symlink_to(sys.base_prefix)
    subprocess.run([home / "base" / "bin" / "python3", "-m", "venv", "--without-pip", home / "made"], check=True)
    [packages] = (home / "made" / "lib").glob("python3*/site-packages")
    for folder in site.getsitepackages():
        for package in Path(folder).iterdir():
            if package.suffix != ".pth":
                (packages / package.name).symlink_to(package)
    (packages / "inflight").symlink_to(Path(repository.__file__).parents[2])
    options = {"decoupled_mode": True, "apply_chat_template": False}
    repo = repository.assemble(home / "repo", small_engine, models=(*repository.PIPELINE, "batch-cost"), **options)
    (repo / "batch-cost" / "1" / "model.py").write_text(FIRST_OF_ALL)
    command = [home / "made" / "bin" / "python", "-P", "-c", SERVES, repo]
    served = subprocess.run(command, capture_output=True, text=True)
    assert served.stdout.startswith(str(["READY"] * 5)), served.stderr
