"""A class of two on this machine, as assets/instructor/hub/README.md sets it up: the page's own trial."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest
import websocket

from inflight.paths import ASSETS

CONFIG = ASSETS / "instructor" / "hub" / "jupyterhub_config.py"
URL = "http://127.0.0.1:8000"
PASSWORD = "only-for-this-test"
NAMES = "hubtestada", "hubtestbob"


def docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], check=True, capture_output=True, text=True).stdout.strip()


def is_set_up() -> bool:
    if not (shutil.which("docker") and shutil.which("configurable-http-proxy")):
        return False
    asked = ["docker", "image", "inspect", "inflight-class"]
    return subprocess.run(asked, capture_output=True).returncode == 0


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not is_set_up(), reason="no hub is set up here: see assets/instructor/hub/README.md"),
]


class Learner:
    """One who signs up: the hub's pages in their browser, and their JupyterLab by a token of theirs."""

    def __init__(self, name: str):
        self.name = name
        self.pages = httpx.Client(base_url=URL, follow_redirects=True, timeout=60)
        self._fill("signup", username=name, signup_password=PASSWORD, signup_password_confirmation=PASSWORD)

    def log_in(self) -> None:
        self._fill("login", username=self.name, password=PASSWORD)
        who = {"auth": {"username": self.name, "password": PASSWORD}}
        made = httpx.post(f"{URL}/hub/api/users/{self.name}/tokens", json=who, timeout=60)
        key = {"Authorization": f"token {made.raise_for_status().json()['token']}"}
        self.api = httpx.Client(base_url=URL, headers=key, timeout=300)

    def start(self) -> None:
        """Their container; returns when JupyterLab in it answers."""
        path = f"/hub/api/users/{self.name}/server"
        self.api.post(path).raise_for_status()
        with self.api.stream("GET", f"{path}/progress") as events:
            told = [json.loads(line[5:]) for line in events.iter_lines() if line.startswith("data:")]
        assert told[-1].get("ready"), told

    def has(self, whose: str, file: str) -> bool:
        return self.api.get(f"/user/{whose}/api/contents/{file}").status_code == 200

    @contextmanager
    def kernel(self, number: str | None = None) -> Iterator[Callable[[str], str]]:
        """`run(code)` gives what it printed: in the kernel of that number, or in a new one beside lecture 03."""
        where = f"/user/{self.name}/api/kernels"
        number = number or self.api.post(where, json={"path": "notebooks/03_serve.ipynb"}).json()["id"]
        address, key = f"ws{URL[4:]}{where}/{number}/channels", dict(self.api.headers)
        with closing(websocket.create_connection(address, header=key, timeout=300)) as link:
            yield lambda code: execute(link, code)

    def _fill(self, form: str, **fields: str) -> None:
        where = f"/hub/{form}?next=%2Fhub%2Fhome"
        self.pages.get(where)
        self.pages.post(where, data={**fields, "_xsrf": self.pages.cookies["_xsrf"]}).raise_for_status()


def execute(link: websocket.WebSocket, code: str) -> str:
    header = {"msg_id": os.urandom(8).hex(), "msg_type": "execute_request", "session": "s", "version": "5.3"}
    content = {"code": code, "silent": False, "store_history": False, "allow_stdin": False}
    message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "buffers": []}
    link.send(json.dumps({**message, "channel": "shell"}))
    printed = ""
    while True:
        told = json.loads(link.recv())
        if told["parent_header"].get("msg_id") != header["msg_id"]:
            continue
        assert told["msg_type"] != "error", "\n".join(told["content"]["traceback"])
        if told["msg_type"] == "stream":
            printed += told["content"]["text"]
        if told["msg_type"] == "status" and told["content"]["execution_state"] == "idle":
            return printed


@contextmanager
def hub(folder: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "jupyterhub", "-f", str(CONFIG)]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
    log, runs_or_ended = [], threading.Event()

    def follow() -> None:
        for line in process.stderr:
            log.append(line)
            if "JupyterHub is now running" in line:
                runs_or_ended.set()
        runs_or_ended.set()

    follower = threading.Thread(target=follow)
    follower.start()
    try:
        assert runs_or_ended.wait(60) and process.poll() is None, "".join(log)
        yield
    finally:
        process.terminate()
        process.wait(60)
        follower.join()
        print("".join(log))  # shown where the test fails


@pytest.fixture
def nothing_left():
    yield
    for name in NAMES:
        subprocess.run(["docker", "rm", "--force", f"jupyter-{name}"], capture_output=True)
        subprocess.run(["docker", "volume", "rm", f"inflight-{name}"], capture_output=True)


# A server of Triton, and its first answer: the lecture's cells up to there.
LECTURE = """
import json
cells = json.load(open("03_serve.ipynb"))["cells"]
sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
whole = next(number for number, source in enumerate(sources) if "/generate" in source)
for source in sources[: whole + 1]:
    exec(source)
"""
SERVERS = """
import psutil
print(sum(each.name() == "tritonserver" for each in psutil.process_iter()), server.http_url.rpartition(":")[2])
"""
REACHED = """
import socket
def is_reached(*address):
    try:
        socket.create_connection(address, 3).close()
    except OSError:
        return False
    return True
print(*[port for port in {ports} if is_reached("{host}", port)])
"""
HOG = """
import subprocess, sys
print(subprocess.run([sys.executable, "-c", "held = b'1' * 5 * 2**30"]).returncode)
"""


def test_two_learners_have_a_container_a_server_and_their_files_each(tmp_path, nothing_left):
    with hub(tmp_path):
        instructor, ada, bob = (Learner(name) for name in ("instructor", *NAMES))
        instructor.log_in()
        with pytest.raises(httpx.HTTPStatusError, match="403"):  # the instructor has not let her in
            ada.log_in()
        for learner in (ada, bob):
            instructor.pages.get(f"/hub/authorize/{learner.name}").raise_for_status()
            learner.log_in()
            learner.start()
        with ada.kernel() as hers, bob.kernel() as his:
            assert "Paris" in hers(LECTURE) and "Paris" in his(LECTURE)
            [_, (servers, port)] = [run(SERVERS).split() for run in (hers, his)]
            assert servers == "1"  # each sees their own alone
            network = json.loads(docker("network", "inspect", "inflight-class"))[0]
            [host] = [each["IPv4Address"][:-3] for each in network["Containers"].values() if bob.name in each["Name"]]
            reached = REACHED.format(host=host, ports=[8888, int(port)])
            assert his(reached).split() == ["8888"] and hers(reached).split() == []
            assert hers(HOG).strip() == "-9"  # 5 GiB, where she has 4
            hers("open('hers.txt', 'w').write('kept'); there = 'as it was'")
        [kernel] = ada.api.get(f"/user/{ada.name}/api/kernels").json()
        assert ada.has(ada.name, "notebooks/hers.txt")
        assert not bob.has(bob.name, "notebooks/hers.txt") and not bob.has(ada.name, "notebooks/hers.txt")

    with hub(tmp_path):  # started again; learners and their servers have gone on
        with ada.kernel(kernel["id"]) as hers:
            assert hers("print(there, server.http.get('/v2/health/ready').status_code)").split() == [
                "as",
                "it",
                "was",
                "200",
            ]
        docker("rm", "--force", f"jupyter-{ada.name}")
        ada.start()
        assert ada.has(ada.name, "notebooks/hers.txt")
