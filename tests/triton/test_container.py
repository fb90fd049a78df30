"""A server in a container: started, followed, killed in every way, and never left behind. Real where a runtime is."""

import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from inflight import leftovers
from inflight.bench import trace_run
from inflight.bench.workload import TimedRequest
from inflight.containers import Image
from inflight.errors import CourseError
from inflight.triton import container as container_module
from inflight.triton import keys, repository, telemetry
from inflight.triton.client import Client
from inflight.triton.server import Server
from inflight.triton.supervised import Supervised
from tests.containers import IMAGE, image, running, runtime_or_skip
from tests.engines import model_process, wait_until
from tests.triton.foreign import free_ports


@pytest.fixture(scope="module")
def runtime(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runtime")
    before = os.environ.get("CONTAINERS_CONF")
    found = runtime_or_skip(folder)
    yield found
    found.ask("rmi", "--force", IMAGE)
    if before is None:
        os.environ.pop("CONTAINERS_CONF", None)


def assembled(folder, engine, **values):
    return repository.assemble(folder / "repo", engine, apply_chat_template=False, decoupled_mode=True, **values)


@pytest.fixture(scope="module")
def server(runtime, small_engine, tmp_path_factory):
    """A server in a container that the tests share; each leaves it ready."""
    folder = tmp_path_factory.mktemp("shared")
    repo = assembled(folder, small_engine, iteration_log_path=folder / "iterations.jsonl")
    with Server(repo, place=image()) as server:
        server.log_path = folder / "iterations.jsonl"
        yield server


@pytest.fixture
def light(tmp_path):
    """A repository that is served in a moment: its one model has no engine."""
    return repository.assemble(tmp_path / "light", models=(repository.BATCH_COST,))


@pytest.fixture
def one(runtime, light):
    """A server that the test may kill."""
    with Server(light, place=image()) as server:
        yield server


# A server like any other ----------------------------------------------------------------------------------------------


def test_it_answers_streams_loads_and_writes_its_iterations(server):
    with Client(server.grpc_url) as client, Client(server.http_url) as http:
        assert client.ask("Hi", 4).text == http.ask("Hi", 4).text
        run = trace_run.run(client, [TimedRequest("Hi", 6, 0.0, 2)] * 3, server.log_path)
        assert telemetry.names_requests(run.log) and len(run.stays) == 3
        server.load("tensorrt_llm", gpt_model_type="V1")
        assert client.ask("Hi", 4).text
        server.load("tensorrt_llm")
    assert server.is_ready() and "nv_trt_llm_request_metrics" in telemetry.page(server.metrics_url)
    assert server.events() == []


def test_its_process_is_known_by_the_number_that_it_has_here(server):
    process = psutil.Process(server.pid)
    assert process.name() == "tritonserver"
    assert os.readlink(f"/proc/{server.pid}/ns/pid") != os.readlink("/proc/self/ns/pid")


def test_it_is_published_on_loopback_alone(server):
    port = int(server.http_url.rpartition(":")[2])
    others = {
        address.address
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family == socket.AF_INET and not address.address.startswith("127.")
    }
    for host in others:
        with socket.socket() as probe:
            probe.settimeout(2)
            assert probe.connect_ex((host, port)) != 0, host


def test_its_shared_memory_is_large_enough_for_models(server, runtime):
    said = runtime.ask("exec", server._way.name, "df", "--output=size", "--block-size=1M", "/dev/shm")
    assert int(said.stdout.split()[-1]) == 2048


def test_its_key_is_on_no_command_line_and_opens_what_others_may_not(server, runtime):
    key = keys.of(server.http_url).reveal()
    assert len(key) == 64 and stat.S_IMODE(server.key_file.stat().st_mode) == 0o600
    said = runtime.ask("inspect", server._way.name).stdout
    assert key not in said and "(hidden)" in said
    for process in psutil.process_iter(["cmdline", "environ"]):
        assert key not in " ".join(process.info["cmdline"] or [])
        assert key not in str(process.info["environ"] or {})
    assert server.models()
    path = f"{server.http_url}/v2/repository/index"
    refused = subprocess.run(["curl", "-s", "-d{}", path], capture_output=True, text=True, check=True).stdout
    assert "restricted" in refused


def test_another_process_of_the_user_finds_the_key(server):
    script = "import sys; from inflight.triton import keys; print(keys.of(sys.argv[1]) is not None)"
    said = subprocess.run([sys.executable, "-c", script, server.http_url], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "True"


def test_a_model_that_dies_is_loaded_again(server):
    model_process(server, "tensorrt_llm").kill()
    wait_until(lambda: any("loaded again" in event.what for event in server.events()), "the model is loaded again")
    wait_until(server.is_ready, "it is ready")
    with Client(server.grpc_url) as client:
        assert client.ask("Hi", 2).text


def test_a_file_that_it_cannot_see_is_named(server, small_engine, tmp_path_factory):
    hidden = tmp_path_factory.mktemp("hidden") / "engine"
    hidden.symlink_to(small_engine)
    with pytest.raises(CourseError, match=f"does not see {hidden}"):
        server.load("tensorrt_llm", gpt_model_path=hidden)
    assert server.is_ready()


def test_two_at_once(server, one, runtime):
    assert one.http_url != server.http_url and len(running(runtime)) >= 2
    assert one.is_ready() and server.is_ready()


def test_private_it_tells_nothing_without_the_key_and_its_metrics_are_a_socket_of_the_owners(runtime, light):
    with Server(light, place=image(), private=True) as one:
        assert one.is_ready() and "nv_inference_count" in telemetry.page(one.metrics_url)
        assert one.metrics_url.startswith("unix:") and stat.S_IMODE(one._way.folder.parent.stat().st_mode) == 0o700
        asked = ["curl", "-s", f"{one.http_url}/v2/models/{repository.BATCH_COST}/config"]
        assert "restricted" in subprocess.run(asked, capture_output=True, text=True, check=True).stdout
        assert not [word for word in psutil.Process(one._way._supervisor.pid).cmdline() if word.endswith(":8002")]


# Ends -----------------------------------------------------------------------------------------------------------------


def gone(runtime, name):
    wait_until(lambda: name not in running(runtime), f"the container {name} is gone")


def test_stopped_it_is_gone_at_once(one, runtime):
    name, folder = one._way.name, one._way.folder
    one.stop()
    assert name not in running(runtime) and not folder.exists() and not folder.parent.exists()
    assert not one.is_alive()


def test_killed_it_is_told_with_its_log(one, runtime):
    name = one._way.name
    runtime.ask("kill", name)
    with pytest.raises(CourseError, match="ended unexpectedly"):
        one.wait(30)
    one.stop()
    gone(runtime, name)


def test_killed_inside_it_is_told_too(one, runtime):
    name = one._way.name
    os.kill(one.pid, signal.SIGKILL)
    with pytest.raises(CourseError, match="ended unexpectedly"):
        one.wait(30)
    one.stop()
    gone(runtime, name)


def test_without_the_runtimes_client_it_ends(one, runtime):
    name = one._way.name
    one._way._supervisor.kill()
    one._way._supervisor.wait()
    assert not one.is_alive()
    gone(runtime, name)


KERNEL = """
import sys, time
from inflight.triton.server import Server
from tests.containers import image
server = Server(sys.argv[1], place=image()).start()
print(server._way.name, server._way.folder.parent, flush=True)
time.sleep(600)
"""


def test_with_the_kernel_it_ends_and_leaves_nothing(runtime, light):
    command = [sys.executable, "-c", KERNEL, str(light)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as kernel:
        name, folder = kernel.stdout.readline().split()
        assert name in running(runtime)
        kernel.kill()
    gone(runtime, name)

    def swept():
        leftovers.sweep()
        return not Path(folder).exists()

    wait_until(swept, "its folder is swept")


# What cannot start ----------------------------------------------------------------------------------------------------


def test_a_missing_image_is_named_with_the_command_that_gets_it(runtime, light):
    with pytest.raises(CourseError, match="There is no image no-such-image on this machine.*build -t no-such-image"):
        Server(light, place=Image("no-such-image")).start()
    with pytest.raises(CourseError, match="pull nvcr.io/nvidia/tritonserver:25.04-trtllm-python-py3"):
        Server(light, place=Image("nvcr.io/nvidia/tritonserver:25.04-trtllm-python-py3")).start()


def test_an_image_without_triton_says_what_was_missing(runtime, light):
    bare = Image(IMAGE, options=("--volume=/usr:/usr:ro",))
    with pytest.raises(CourseError, match=f"The container of {IMAGE} could not be started: "):
        Server(light, place=bare).start()
    assert not [name for name in running(runtime) if "probe" in name]


def test_a_port_that_is_taken_is_named(runtime, light):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(CourseError, match=f"The http port {port} cannot be used"):
            Server(light, http_port=port, place=image()).start()


BIND = "Error starting userland proxy: listen tcp4 127.0.0.1:8000: bind: address already in use."


@pytest.mark.parametrize(
    "words, said",
    [
        (f"docker: Error response from daemon: {BIND}\n\nRun 'docker run --help' for more information\n", "is in use"),
        (f"docker: Error response from daemon: {BIND}\nSee 'docker run --help'.\n", "is in use"),
        ("Error: rootlessport listen tcp 127.0.0.1:8000: bind: address already in use\n", "is in use"),
        ("docker: No such runtime.\n\nRun 'docker run --help' for more information\n", "started: docker: No such"),
        ("", "it ended at once"),
    ],
)
def test_the_runtimes_own_reason_is_told_and_not_its_advice(light, monkeypatch, tmp_path, words, said):
    container = Server(light, place=image())._way
    (tmp_path / container_module.RUNTIME_LOG).write_text(words)
    monkeypatch.setattr(Supervised, "folder", tmp_path)
    assert said in container._why_not_started("")


def test_a_port_that_somebody_takes_meanwhile_is_named(runtime, light, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = dict(zip(("grpc", "metrics"), free_ports(2))) | {"http": taken.getsockname()[1]}
        monkeypatch.setattr("inflight.triton.supervised._free_ports", lambda named: ports)
        with pytest.raises(CourseError, match="A port of the server is in use"):
            Server(light, place=image()).start()
