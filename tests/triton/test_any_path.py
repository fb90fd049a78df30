"""Paths of every kind in a running server: its processes read paths as ASCII by themselves, and bash reads some."""

import shutil
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
    with Server(repo) as server:
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


def test_an_environment_in_such_a_folder_serves(tmp_path, course_engine):
    """The packages' own files are there, too, and a model's process loads them."""
    made = tmp_path / "jürgen b" / "Téléchargements"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", made], check=True)
    [packages] = (made / "lib").glob("python3*/site-packages")
    for folder in (folder for folder in map(Path, sys.path) if folder.name == "site-packages"):
        for package in folder.iterdir():
            if package.suffix != ".pth":
                (packages / package.name).symlink_to(package)
    (packages / "inflight").symlink_to(Path(repository.__file__).parents[2])
    command = [made / "bin" / "python", "-P", "-m", "inflight", "ask", "Name the capital of France."]
    answer = subprocess.run(command, capture_output=True, text=True)
    assert "Paris" in answer.stdout, answer.stderr
