"""A server's life: started, looked at, changed while it runs, stopped, and never left behind."""

import ctypes
import os
import resource
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from inflight.engine.folder import WEIGHTS_FILE
from inflight.errors import CourseError
from inflight.triton import repository, telemetry
from inflight.triton.client.client import Client
from inflight.triton.client.connection import is_ok
from inflight.triton.repository import PIPELINE
from inflight.triton.serving.process import installation
from inflight.triton.serving.server import Server
from tests.engines import is_ready, metric, model_process, start_python, wait_until
from tests.triton.traces import Traces

pytestmark = pytest.mark.server

PTRACE_CONT, PTRACE_SEIZE = 7, 0x4206


@pytest.fixture(scope="module")
def server(small_engine, tmp_path_factory):
    """A server of the small model that the tests of this file share; each leaves all models ready."""
    repo = repository.assemble(
        tmp_path_factory.mktemp("shared") / "repo", small_engine, decoupled_mode=True, apply_chat_template=False
    )
    wheel = {path: path.stat().st_ctime_ns for path in installation().rglob("*")}
    with Server(repo, drain_s=0) as server:
        assert wheel == {
            path: path.stat().st_ctime_ns for path in installation().rglob("*")
        }  # it may be another user's
        yield server


def states(server: Server) -> dict[str, str]:
    return {row.name: row.state for row in server.models()}


def is_open(url: str) -> bool:
    host, port = url.removeprefix("http://").partition("/")[0].split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def how_it_ends(pid: int, make_it_end) -> int:
    """Exit code, or minus the signal's number, of a process that is not our child and that `make_it_end()` ends.

    Its parent sees the same, but Triton says nothing of a model's process that crashed on its way out.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = ctypes.c_long(pid), ctypes.c_void_p(0)
    if libc.ptrace(PTRACE_SEIZE, *arguments, ctypes.c_void_p(0)) != 0:
        pytest.skip(f"a process cannot be observed here: {os.strerror(ctypes.get_errno())}")
    statuses = []

    def has_ended():
        changed, status = os.waitpid(pid, os.WNOHANG)
        if changed and os.WIFSTOPPED(status):  # a signal came, which it is given
            libc.ptrace(PTRACE_CONT, *arguments, ctypes.c_void_p(os.WSTOPSIG(status)))
        elif changed:
            statuses.append(status)
        return statuses

    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(make_it_end)
        wait_until(has_ended, f"process {pid} has ended")
        ending.result()
    return os.waitstatus_to_exitcode(statuses[0])


# Start and look -------------------------------------------------------------------------------------------------------


def test_all_models_become_ready(server):
    assert states(server) == dict.fromkeys(PIPELINE, "READY")
    assert [row.name for row in server.models()] == list(PIPELINE)
    assert server.is_alive() and server.start() is server


def test_it_listens_on_the_loopback_only(server):
    ports = {
        connection.laddr
        for connection in psutil.Process(server.pid).net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert {address.ip.removeprefix("::ffff:") for address in ports} == {"127.0.0.1"}
    opened = {f"127.0.0.1:{address.port}" for address in ports}
    assert opened >= {server.grpc_url, server.http_url.removeprefix("http://")}


def test_metrics_have_the_names_of_the_tensorrt_llm_backend(server):
    Client(server.grpc_url).ask("Hello", max_tokens=3)
    labels = {"model": "tensorrt_llm", "version": "1"}
    for kind in ("active", "max", "scheduled", "context", "waiting"):
        assert metric(server, "nv_trt_llm_request_metrics", request_type=kind, **labels) >= 0
    for kind in ("max", "free", "used", "tokens_per", "fraction"):
        assert metric(server, "nv_trt_llm_kv_cache_block_metrics", kv_cache_block_type=kind, **labels) >= 0
    for kind in ("total_context_tokens", "generation_requests", "paused_requests", "micro_batch_id"):
        family = "nv_trt_llm_inflight_batcher_metrics"
        assert metric(server, family, inflight_batcher_specific_metric=kind, **labels) >= 0
    for kind in ("timestamp", "iteration_counter"):  # exported after the answer has gone out
        wait_until(
            lambda kind=kind: metric(server, "nv_trt_llm_general_metrics", general_type=kind, **labels) > 0, kind
        )
    assert metric(server, "nv_trt_llm_request_metrics", request_type="max") == 4
    assert metric(server, "nv_trt_llm_kv_cache_block_metrics", kv_cache_block_type="tokens_per") == 32
    with pytest.raises(LookupError):  # static batching's family is there when it is in use
        metric(server, "nv_trt_llm_v1_metrics")


# Change while it runs -------------------------------------------------------------------------------------------------


def test_load_with_an_override(server):
    before = (server.repo / "tensorrt_llm" / "config.pbtxt").read_bytes()
    server.load("tensorrt_llm", gpt_model_type="V1")
    try:
        assert states(server)["tensorrt_llm"] == "READY"
        wait_until(lambda: "empty_generation_slots" in telemetry.page(server.metrics_url), "static batching is in use")
        assert len(Client(server.grpc_url).stream("Hello", max_tokens=3).read().pieces) == 1
        assert (server.repo / "tensorrt_llm" / "config.pbtxt").read_bytes() == before
    finally:
        server.load("tensorrt_llm")
    assert Client(server.grpc_url).stream("Hello", max_tokens=3).read().pieces


def test_a_wrong_override_is_refused_before_anything_happens(server):
    with pytest.raises(CourseError, match="parameters.gpt_model_type: It is 'V9'. It must be V1"):
        server.load("tensorrt_llm", gpt_model_type="V9")
    with pytest.raises(CourseError, match="This key is unknown"):
        server.load("tensorrt_llm", gpt_modell_type="V1")
    with pytest.raises(CourseError, match="llama"):
        server.load("llama")
    assert states(server)["tensorrt_llm"] == "READY"


def test_an_override_that_the_model_refuses_gives_its_sentence_and_the_old_one_serves_on(
    server, small_engine, tmp_path
):
    damaged = shutil.copytree(small_engine, tmp_path / "damaged")
    os.truncate(damaged / WEIGHTS_FILE, 1_000_000)
    for override, reason in (
        ({"max_tokens_in_paged_kv_cache": 32}, r"max_tokens_in_paged_kv_cache \(32\) gives 32 tokens of KV"),
        ({"gpt_model_path": tmp_path / "nowhere"}, "There is no engine at"),
        ({"gpt_model_path": damaged}, ""),
    ):
        refusal = rf"(?s)'tensorrt_llm' could not be loaded: {reason}.*Last lines of the log:"
        with pytest.raises(CourseError, match=refusal):
            server.load("tensorrt_llm", **override)
        assert is_ready(server) and Client(server.grpc_url).ask("Hello", max_tokens=3).pieces


def test_an_engine_in_whose_place_another_is_loaded_ends_in_order(server):
    engine = model_process(server, "tensorrt_llm").pid
    assert how_it_ends(engine, lambda: server.load("tensorrt_llm", max_tokens_in_paged_kv_cache=192)) == 0
    server.load("tensorrt_llm")
    assert states(server) == dict.fromkeys(PIPELINE, "READY")


# Failing to start -----------------------------------------------------------------------------------------------------


def test_a_model_that_fails_gives_its_own_sentence_and_nothing_is_left(small_repo, tmp_path):
    repository.edit(small_repo, "tensorrt_llm", gpt_model_path=tmp_path / "nowhere")
    with pytest.raises(CourseError) as caught:
        Server(small_repo).start()
    message = str(caught.value)
    assert f"'tensorrt_llm' could not be loaded: There is no engine at {tmp_path / 'nowhere'}. Build one" in message
    assert "Last lines of the log:" in message
    assert Traces.of(small_repo) is None


def test_a_model_with_a_bug_gives_its_error(small_repo):
    (small_repo / "preprocessing" / "1" / "model.py").write_text("raise ZeroDivisionError('a bug of mine')\n")
    with pytest.raises(CourseError, match="The model 'preprocessing' could not be loaded: .*a bug of mine"):
        Server(small_repo).start()


def test_a_repository_with_a_problem_is_not_served(small_repo):
    (small_repo / "tensorrt_llm" / "1" / "model.py").unlink()
    server = Server(small_repo)
    with pytest.raises(CourseError, match="is not ready to be served: .*The Python model is missing"):
        server.start()
    assert not server.is_alive()


ON_A_FULL_DISK = """
import resource, sys
from inflight.errors import CourseError
from inflight.triton.serving.server import Server
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    Server(sys.argv[1]).start()
except CourseError as error:
    print(error)
"""


@pytest.mark.parametrize(
    "largest_file, says",
    [
        (100, "{cache}/inflight/servers cannot be written (File too large). Make room there, or set XDG_CACHE_HOME to"),
        (400, "No folder for the server could be made in {tmp} (File too large). Make room there, or set TMPDIR"),
    ],
    ids=["cache", "tmp"],
)
def test_a_full_disk_is_named_by_its_folder(small_repo, tmp_path, largest_file, says):
    """A limit on the size of files stands in for the disk."""
    places = {"cache": tmp_path / "cache", "tmp": tmp_path / "tmp"}
    places["tmp"].mkdir()
    environment = {**os.environ, "XDG_CACHE_HOME": str(places["cache"]), "TMPDIR": str(places["tmp"])}
    said, _ = start_python(ON_A_FULL_DISK, small_repo, largest_file, env=environment).communicate()
    assert said.startswith(says.format(**places))
    assert not list(places["tmp"].iterdir()) and not list(places["cache"].rglob("servers/*"))


@pytest.mark.parametrize("name", ["http", "grpc", "metrics"])
def test_a_named_port_in_use(small_repo, name):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(CourseError, match=rf"The {name} port {port} cannot be used \(Address already in use\)"):
            Server(small_repo, **{f"{name}_port": port}).start()


# Stopping -------------------------------------------------------------------------------------------------------------


def test_the_courses_own_connections_hold_up_no_stop(small_repo):
    with Server(small_repo) as server:
        http = server.http
        assert http.get("/v2/health/ready").is_success
        began = time.monotonic()
        server.stop(drain_s=120)
        assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    ("limit", "says"), [(resource.RLIMIT_NOFILE, "ulimit -n"), (resource.RLIMIT_NPROC, "ulimit -u")]
)
def test_a_shell_that_allows_too_little_is_named_at_once(small_repo, limit, says):
    before = resource.getrlimit(limit)
    resource.setrlimit(limit, (200, before[1]))
    try:
        with pytest.raises(CourseError, match=rf"A server needs 256 .*, and 200 are allowed here\. .*{says}"):
            Server(small_repo).start()
    finally:
        resource.setrlimit(limit, before)


IN_A_NARROW_PLACE = """
import sys
from inflight.triton import Server
try:
    Server(sys.argv[1]).start()
except Exception as error:
    print(error)
"""


@pytest.mark.slow  # root
@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("mount -t tmpfs -o size=256k tmpfs /dev/shm", "A server needs 4 MiB of shared memory, and 0.2 MiB are free"),
        ("mount -t tmpfs -o ro tmpfs /dev/shm", "A server needs 4 MiB of shared memory, and 0.0 MiB are free"),
        ("mount --bind /tmp /tmp && mount -o remount,bind,ro /tmp", "Triton makes files in /tmp, whatever TMPDIR says"),
        ("ip link set lo down", "This machine does not reach itself at 127.0.0.1 (Network is unreachable)"),
        ("ulimit -v 2900000", "A server needs 3,000,000,000 bytes of addresses"),
    ],
)
def test_a_machine_without_room_is_told_at_once(small_repo, place, says):
    if os.geteuid() != 0:
        pytest.skip("only root can narrow a machine")
    shell = f"{place} && exec {sys.executable} -c {shlex.quote(IN_A_NARROW_PLACE)} {small_repo}"
    told = subprocess.run(["unshare", "-m", "-n", "bash", "-c", shell], capture_output=True, text=True, timeout=30)
    assert says in told.stdout, told
    assert len(told.stdout.splitlines()) == 1


def test_two_servers_side_by_side_stop_and_leave_nothing(small_repo, server):
    second = Server(small_repo).start()
    urls = [second.http_url, second.grpc_url, second.metrics_url]
    assert not {server.http_url, server.grpc_url, server.metrics_url} & set(urls)
    for one in (server, second):
        assert Client(one.grpc_url).ask("Hello", max_tokens=3).pieces
    traces = Traces.of(small_repo)
    assert len(traces.left()) > 3
    second.stop()
    second.stop()
    assert traces.left() == [] and not any(map(is_open, urls))
    assert not second.is_alive() and second.pid is None
    assert Client(server.grpc_url).ask("Hello", max_tokens=3).pieces


# Draining -------------------------------------------------------------------------------------------------------------


def test_requests_that_run_end_with_their_answers_when_the_model_is_loaded_again(server):
    stream = Client(server.grpc_url, timeout_s=3600).stream("Hello", max_tokens=40, min_length=40)
    pieces = iter(stream)
    next(pieces)
    with ThreadPoolExecutor(1) as pool:
        rest = pool.submit(list, pieces)
        server.load("tensorrt_llm", max_tokens_in_paged_kv_cache=192)
        rest.result(timeout=300)
    server.load("tensorrt_llm")
    assert len(stream.answer.pieces) >= 30


def add_silent_model(repo: Path) -> None:
    """Add the model `silent`, which takes requests and never answers; `silent/taken` is there once it has one."""
    (repo / "silent" / "1").mkdir(parents=True)
    (repo / "silent" / "config.pbtxt").write_text(
        'name: "silent"\nbackend: "python"\nmax_batch_size: 0\n'
        'input [ { name: "text_input" data_type: TYPE_STRING dims: [ -1, -1 ] } ]\n'
        'output [ { name: "text_output" data_type: TYPE_STRING dims: [ -1, -1 ] } ]\n'
        "instance_group [ { count: 1 kind: KIND_CPU } ]\n"
    )
    (repo / "silent" / "1" / "model.py").write_text(
        "class TritonPythonModel:\n    def initialize(self, args):\n"
        "        self.taken = args['model_repository'] + '/taken'\n\n"
        "    def execute(self, requests):\n"
        "        self.kept = [request.get_response_sender() for request in requests]\n"
        "        open(self.taken, 'w').close()\n"
    )


STOP_SCRIPT = """
import sys, threading
from inflight.triton.client.connection import Connection, ServerGone, text
from inflight.triton.serving.server import Server
server = Server(sys.argv[1]).start()
def ask():
    try:
        Connection(server.grpc_url).infer("silent", {"text_input": text("Hello")}, timeout_s=3600)
    except ServerGone as error:
        print(error, flush=True)
asking = threading.Thread(target=ask)
asking.start()
print(server.http_url, flush=True)
sys.stdin.readline()
try:
    server.stop(drain_s=float(sys.argv[2]))
except KeyboardInterrupt:
    print("interrupted", flush=True)
asking.join()
"""


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_what_runs_longer_than_it_may_is_told_and_an_interrupt_ends_the_waiting(small_repo, is_interrupted):
    add_silent_model(small_repo)
    # A process of its own: an interrupt that comes too early would end the tests.
    owner = start_python(STOP_SCRIPT, small_repo, 3600 if is_interrupted else 1, stdin=subprocess.PIPE)
    url = owner.stdout.readline().strip()
    traces = Traces.of(small_repo)
    wait_until((small_repo / "silent" / "taken").exists, "the request is under way")
    owner.stdin.write("stop\n")
    owner.stdin.flush()
    if is_interrupted:
        wait_until(lambda: not is_ok(url, "/v2/health/ready"), "the server is ending")
        owner.send_signal(signal.SIGINT)
    said, _ = owner.communicate(timeout=300)
    assert "went away in the middle of a request" in said
    assert ("interrupted" in said.splitlines()) == is_interrupted
    assert owner.returncode == 0 and traces.left() == []


def test_serve_ends_with_the_reason_when_a_model_is_killed(small_repo):
    command = [sys.executable, "-m", "inflight", "serve", str(small_repo)]
    environment = {**os.environ, "COLUMNS": "300"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as serving:
        shown = []
        while not any("Ctrl-C" in line for line in shown):
            shown.append(serving.stdout.readline())
            assert shown[-1], shown
        traces = Traces.of(small_repo)
        traces.tritonserver().children()[0].kill()
        _, errors = serving.communicate(timeout=300)
    assert serving.returncode == 1 and "was ended by signal 9" in errors and "Traceback" not in errors
    assert traces.left() == []
