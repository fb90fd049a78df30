"""What the watch takes for a death, on processes that look like those of models."""

import os
import subprocess
from pathlib import Path

import pytest

from inflight.triton import watch
from tests.engines import wait_until

MODEL = "words"
CONFIG = {"backend": "python", "instance_group": [{"count": 1}]}


@pytest.fixture
def start(tmp_path):
    """Function that starts a process of the model; it runs until it is killed, or the test is over."""
    script = tmp_path / MODEL / "1" / "model.py"
    script.parent.mkdir(parents=True)
    os.mkfifo(script)  # to open it takes a writer
    started = []

    def start():
        process = subprocess.Popen([f"/x/{watch.STUB}", script], executable="/bin/cat")
        started.append(process)
        wait_until(lambda: watch.STUB in Path(f"/proc/{process.pid}/cmdline").read_text(), "it is the program")
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def looks(tmp_path, monkeypatch):
    """A watch of this process's children whose server says that the model is READY; it looks when told."""
    answers = {"/v2/repository/index": [{"name": MODEL, "state": "READY"}], f"/v2/models/{MODEL}/config": CONFIG}
    monkeypatch.setattr(watch.Watch, "_ask", lambda self, method, path, body=None: answers[path])
    return watch.Watch(os.getpid(), ("127.0.0.1", 1), tmp_path)


def see_the_end_of(process, looks):
    """As the watch's own thread does, whose look for new processes was before."""
    process.kill()
    [stub] = looks._ended_within(60)
    assert stub.pid == process.pid
    looks._suspects[stub.model] = watch.how_it_ended(stub.pid)
    del looks._stubs[stub.pid]
    os.close(stub.pidfd)
    looks._judge()


def test_a_process_that_ends_and_has_no_other_in_its_place_is_a_death(start, looks, tmp_path):
    process = start()
    looks._find_new()
    see_the_end_of(process, looks)
    assert [event["what"] for event in watch.read_status(tmp_path)["events"]] == [
        "It died: its process was ended by signal 9 (Killed)."
    ]


def test_a_model_loaded_again_within_one_look_has_not_died(start, looks, tmp_path):
    before = start()
    looks._find_new()
    start()  # on a machine so busy that the watch has not looked since
    see_the_end_of(before, looks)
    assert watch.read_status(tmp_path)["events"] == [] and not looks._suspects
