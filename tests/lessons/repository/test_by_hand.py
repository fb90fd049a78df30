"""A server whose arguments are written by hand: what is added, what is refused, and that it is closed as all are."""

import psutil
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from inflight.errors import CourseError
from inflight.lessons.repository import tritonserver
from inflight.triton.serving.server import running

pytestmark = pytest.mark.server

CONFIG = """
backend: "python"
max_batch_size: 1
input [ { name: "IN"  data_type: TYPE_INT32  dims: [ 1 ] } ]
output [ { name: "OUT"  data_type: TYPE_INT32  dims: [ 1 ] } ]
"""
MODEL = "class TritonPythonModel:\n    def execute(self, requests):\n        return [None for request in requests]\n"
EXPLICIT = "--model-control-mode=explicit"


def write(repo, model="nothing", config=CONFIG):
    (repo / model / "1").mkdir(parents=True)
    (repo / model / "1" / "model.py").write_text(MODEL)
    (repo / model / "config.pbtxt").write_text(config)
    return repo


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """A server that was started by hand, and what was printed."""
    repo, said = write(tmp_path_factory.mktemp("by_hand") / "repo"), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("builtins.print", lambda text: said.append(text))
        server = tritonserver([f"--model-repository={repo}", EXPLICIT, "--load-model=*", "--log-verbose=0"])
    yield server, said[0]
    server.stop()


def test_the_whole_command_line_is_shown(printed):
    server, text = printed
    lines = [line.strip() for line in text.splitlines()]
    yours, added = lines.index("# yours"), next(i for i, line in enumerate(lines) if line.startswith("# added"))
    given = [f"--model-repository={server.repo}", EXPLICIT, "--load-model=*", "--log-verbose=0"]
    assert lines[yours + 1 : added] == given
    shown = [*given, *(line for line in lines[added:] if line.startswith("--"))]
    key = server.headers["inflight-key"]
    real = [one.replace(key, "(hidden)") for one in psutil.Process(server.pid).cmdline()[1:]]
    assert sorted(shown) == sorted(real), "nothing is added that is not shown"
    assert any(line.startswith("LD_LIBRARY_PATH=") for line in lines)
    assert f"watches process {server.pid}" in lines[-1]


def test_a_repository_may_be_named_from_the_current_folder(tmp_path, monkeypatch, capsys):
    write(tmp_path / "a repo")
    monkeypatch.chdir(tmp_path)
    server = tritonserver(["--model-repository=a repo", EXPLICIT, "--load-model=*"])
    try:
        assert [row.state for row in server.models()] == ["READY"]
    finally:
        server.stop()
    assert "    --model-repository=a repo\n" in capsys.readouterr().out


def test_it_loads_what_its_arguments_say(printed):
    server, _ = printed
    assert [(row.name, row.state) for row in server.models()] == [("nothing", "READY")]
    assert "| nothing | 1       | READY  |" in server.log_tail(100)
    assert not [line for line in server.log_tail(1000).splitlines() if line.startswith("|") and len(line) > 160]


def test_who_has_no_key_loads_nothing(printed):
    server, _ = printed
    with triton.InferenceServerClient(server.grpc_url) as client:
        with pytest.raises(InferenceServerException, match="restricted"):
            client.load_model("nothing")
        client.load_model("nothing", headers=server.headers)


@pytest.mark.parametrize("port", ["70000", "many"])
def test_a_port_that_is_named_is_taken(tmp_path, port):
    with pytest.raises(CourseError, match=f"The http port {port} is not a port number"):
        tritonserver([f"--model-repository={write(tmp_path / 'repo')}", EXPLICIT, f"--http-port={port}"])


def test_a_model_that_cannot_be_loaded_is_told_in_tritons_words(tmp_path, capsys):
    repo = write(tmp_path / "repo", config=CONFIG.replace("python", "pyton"))
    with pytest.raises(CourseError, match="unable to find backend library for backend 'pyton'"):
        tritonserver([f"--model-repository={repo}", EXPLICIT, "--load-model=*", "--disable-auto-complete-config"])
    assert not [server for server in running() if server.repo == repo]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([EXPLICIT], "--model-repository=: there is no such folder"),
        ("--model-repository=.", "is no argument of tritonserver. Give a list of texts, each --name=value"),
        (["--model-repository=.", "--http-address=0.0.0.0"], "--http-address cannot be given here. It is added"),
        (["--model-repository=.", "--http-restricted-api=inference:a=b"], "It is added for you"),
        (["--model-repository=.", "--allow-sagemaker=true"], "--allow-sagemaker cannot be given here"),
        (["--model-repository=.", "--backend-config=python,shm-region-prefix-name=x"], "It is added for you"),
    ],
)
def test_what_is_refused(arguments, says):
    with pytest.raises(CourseError, match=says):
        tritonserver(arguments)
