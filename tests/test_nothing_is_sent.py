"""Nothing is sent home, by us or by a library: what the course does, where every lookup and every packet is noticed.

Each activity runs in a namespace without network (watched_network.py), with an empty HOME and with no variable that a
library takes for a sign of automated tests, in which it would keep quiet. On its path lies a package of the name of
OpenVINO's telemetry, as an environment that was not set up by the course may have it.
"""

import json
import os
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import nbformat
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from inflight.paths import ASSETS, COURSE, cache_dir

NAMESPACE = ["unshare", "--user", "--map-root-user", "--net", "--mount", "--uts"]
WATCHED = Path(__file__).with_name("watched_network.py")
KEPT = ("PATH", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "SSL_CERT_FILE")

# What OpenVINO's telemetry does when it is imported and told of an event: an id in HOME, and a report.
REPORTS = """
import pathlib, socket
class Telemetry:
    def __init__(self, *arguments, **options):
        pathlib.Path("~/openvino_ga_cid").expanduser().touch()
    def send_event(self, *arguments, **options):
        try:
            socket.create_connection(("analytics.example.org", 443), timeout=5)
        except OSError:
            pass
    start_session = end_session = force_shutdown = send_error = send_stack_trace = send_event
"""

# What is left in HOME, by whom.
LEFT = {
    ".ipython": "IPython: a profile, and what was typed",
    ".jupyter": "JupyterLab: its settings and the places of its windows",
    ".local/share/jupyter": "Jupyter: where its servers and kernels listen, with their keys",
    ".cache/huggingface/xet/logs": "hf_xet: a log, once it is imported",
    ".cache/dconf": "Chromium",
    ".cache/fontconfig": "Chromium",
    ".config/chromium": "Chromium: its crashes",
}


def importable() -> list[str]:
    """The packages and modules that requirements.txt installs, as one imports them."""
    lines = [line for line in (COURSE / "requirements.txt").read_text().splitlines() if "==" in line and line[0] != "#"]
    pinned = {canonicalize_name(Requirement(line.rstrip("\\ ")).name) for line in lines} | {"torch"}
    return sorted(
        name
        for name, distributions in packages_distributions().items()
        if name.isidentifier() and pinned & set(map(canonicalize_name, distributions))
    )


IMPORTS = f"""
import importlib, inflight
failed = []
for name in {importable()!r}:
    try:
        importlib.import_module(name)
    except ImportError as error:
        failed.append(name)
assert not {{"openvino", "openvino_genai", "torch", "transformers", "huggingface_hub"}} & set(failed), failed
"""

ENGINE = """
import sys
from inflight import checkpoint, engine
engine.build(checkpoint.fetch(sys.argv[1]), engine.BuildConfig(max_input_len=32, max_seq_len=64), sys.argv[2])
"""

WITHOUT_ENGINE = """
import sys
from inflight import checkpoint
from inflight.models import gpt2, gpt2_checkpoint, huggingface
model = huggingface.load(huggingface.folder(checkpoint.fetch(sys.argv[1])), dtype="float32")
huggingface.generate(model, [1, 2], max_new_tokens=2, do_sample=False)
gpt2.load(gpt2_checkpoint.find("course-gpt2"), "on", "float32", num_slots=1)
"""

SERVER = """
import sys
from inflight.triton import Client, repository
from inflight.triton.serving.server import Server
repo = repository.assemble(sys.argv[2], sys.argv[1], decoupled_mode=True, apply_chat_template=False)
with Server(repo) as server, Client(server.grpc_url) as client:
    assert client.ask("Hi", max_tokens=3).pieces
"""

ROUTER = """
import sys, openai
from inflight.lessons.replicas import Replicas
with Replicas(sys.argv[1]) as replicas, openai.OpenAI(base_url=replicas.url, api_key="none") as client:
    assert client.completions.create(model="tensorrt_llm", prompt="Hi", max_tokens=3).choices
"""

NOTEBOOK = """
import inflight.engine, openvino, pandas, IPython.display
import plotly.graph_objects as go
from inflight.notebook import charts
IPython.display.display(go.Figure(go.Scatter(y=[1, 2])))
"""
PAPERMILL = """
import sys, pathlib, nbformat
from inflight.notebook.pages import execution
execution.execute(nbformat.read(sys.argv[1], as_version=4), "it", pathlib.Path(sys.argv[1]).parent)
"""

PICTURE = """
import nbformat
import plotly.graph_objects as go
from tools import pictures
figure = go.Figure(go.Scatter(y=[1, 2]), layout={"height": 200}).to_plotly_json()
bundle = nbformat.from_dict({pictures.PLOTLY_MIME: figure, "text/plain": "two points"})
pictures.draw([bundle])
assert "<svg" in bundle[pictures.PICTURE_MIME]
"""

# What a learner's browser asks of JupyterLab, news and updates included, whatever was answered to its question.
LAB = """
import json, re, subprocess, sys, urllib.request
from jupyter_client import BlockingKernelClient, find_connection_file
from inflight.notebook.pages import workspace
from tests.engines import wait_until
arguments = ["--no-browser", "--ServerApp.port=8888", "--IdentityProvider.token=x"]
lab = subprocess.Popen(workspace.lab_command(sys.argv[1], arguments))

def get(path, data=None):
    request = urllib.request.Request("http://127.0.0.1:8888" + path, data, {"Authorization": "token x"})
    return urllib.request.urlopen(request, timeout=60).read().decode()

def answers():
    assert lab.poll() is None
    try:
        return get("/api/status")
    except OSError:
        return False

try:
    wait_until(answers, "JupyterLab answers", 120)
    page = json.loads(re.search(r'<script id="jupyter-config-data"[^>]*>(.*?)</script>', get("/lab"), re.DOTALL)[1])
    assert page["news"] == {"disabled": True}, "it would ask whether it may fetch news"
    assert not page["extensionManager"]["can_install"]
    assert json.loads(get("/lab/api/news")) == {"news": []}
    assert json.loads(get("/lab/api/update")) == {"notification": None}
    get("/lab/api/extensions")
    kernel = BlockingKernelClient(connection_file=find_connection_file(json.loads(get("/api/kernels", b"{}"))["id"]))
    kernel.load_connection_file()
    kernel.start_channels()
    kernel.wait_for_ready(timeout=120)
    assert kernel.execute_interactive("import inflight, openvino", timeout=120)["content"]["status"] == "ok"
finally:  # else whoever reads its output waits for it
    lab.terminate()
    lab.wait(60)
"""


@pytest.fixture(scope="module", autouse=True)
def namespace():
    """Skips where the system lets nobody make a namespace."""
    made = subprocess.run([*NAMESPACE, "true"], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no namespace without network can be made here: {made.stderr.strip()}")


@pytest.fixture
def watched(tmp_path):
    """Function that runs Python code with arguments in the namespace: what was sent, and what HOME holds."""
    home, report, path = tmp_path / "home", tmp_path / "report.json", tmp_path / "path"
    home.mkdir()
    (path / "openvino_telemetry" / "backend").mkdir(parents=True)
    (path / "openvino_telemetry" / "__init__.py").write_text(REPORTS)
    (path / "openvino_telemetry" / "backend" / "__init__.py").write_text("")
    (path / "openvino_telemetry" / "backend" / "backend_ga4.py").write_text("")
    environment = {name: value for name, value in os.environ.items() if name in KEPT}
    environment |= {
        "HOME": str(home),
        "INFLIGHT_HOME": str(cache_dir()),
        "PYTHONPATH": f"{path}:{COURSE}",
        "JUPYTER_CONFIG_PATH": str(ASSETS / "jupyterlab"),  # the settings that set-up copies
    }

    def run(code, *arguments):
        command = [*NAMESPACE, sys.executable, str(WATCHED), str(report), sys.executable, "-c", code]
        ran = subprocess.run(
            [*command, *map(str, arguments)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        left = [str(path.relative_to(home)) for path in home.rglob("*") if not path.is_dir()]
        return json.loads(report.read_text()), [name for name in left if not name.startswith(tuple(LEFT))]

    return run


NOTHING = {"lookups": [], "without_a_way": 0}, []


def test_what_is_sent_would_be_seen(watched):
    """OpenVINO alone reports; so does a program that knows an address and asks no name server."""
    reported = {"lookups": ["analytics.example.org"], "without_a_way": 0}
    assert watched("import openvino") == (reported, ["openvino_ga_cid"])
    code = "import socket; socket.socket().connect_ex(('203.0.113.7', 443))"
    assert watched(code)[0] == {"lookups": [], "without_a_way": 1}
    code = "import pathlib; pathlib.Path('~/mine').expanduser().touch()"
    assert "mine" in watched(code)[1]


@pytest.mark.slow
def test_imports(watched):
    assert watched(IMPORTS) == NOTHING


def test_an_engine_is_built(watched, small_checkpoint, tmp_path):
    assert watched(ENGINE, small_checkpoint.path, tmp_path / "engine") == NOTHING


@pytest.mark.slow
def test_models_without_an_engine(watched, small_checkpoint, tmp_path):
    assert watched(WITHOUT_ENGINE, small_checkpoint.path) == NOTHING


@pytest.mark.server
def test_a_server_answers(watched, small_engine, tmp_path):
    assert watched(SERVER, small_engine, tmp_path / "repo") == NOTHING


@pytest.mark.server
def test_a_router_hands_a_request_on(watched, small_engine):
    assert watched(ROUTER, small_engine) == NOTHING


@pytest.mark.slow
def test_a_notebook_runs(watched, tmp_path):
    notebook = tmp_path / "notebook.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(NOTEBOOK)]), notebook)
    assert watched(PAPERMILL, notebook) == NOTHING


@pytest.mark.slow
def test_jupyterlab(watched, tmp_path):
    assert watched(LAB, tmp_path) == NOTHING


@pytest.mark.browser
@pytest.mark.slow
def test_a_picture_is_drawn(watched):
    """Chromium asks Linux once whether there is a way to IPv6, and sends nothing."""
    assert watched(PICTURE) in (NOTHING, ({"lookups": [], "without_a_way": 1}, []))
