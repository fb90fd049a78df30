"""A server is closed by default: control takes a key, which no other user of the machine finds anywhere."""

import base64
import json
import os
import signal
import stat
import subprocess
import tempfile
from pathlib import Path

import grpc
import httpx
import psutil
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from inflight.errors import CourseError
from inflight.triton import hidden_arguments, keys, repository, telemetry, transport
from inflight.triton.repository import RUNNING_SUM
from inflight.triton.server import PRIVATE, Server
from inflight.triton.transport import Connection, Refused
from tests.engines import start_python

pytestmark = pytest.mark.server

NOBODY = 65534
MODEL = RUNNING_SUM
ORIGIN = {"Origin": "https://elsewhere.example", "Content-Type": "text/plain"}
PLANTED = {
    "config": json.dumps({"name": "planted", "backend": "python"}),
    "file:1/model.py": base64.b64encode(b"raise SystemExit").decode(),
}

as_another_user = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture(scope="module")
def repo(tmp_path_factory):
    return repository.assemble(tmp_path_factory.mktemp("closed") / "repo", models=(MODEL,))


@pytest.fixture(scope="module")
def server(repo):
    with Server(repo, private=False) as server:
        yield server


@pytest.fixture(scope="module")
def private_server(repo):
    with Server(repo, private=True) as server:
        yield server


def key(server) -> str:
    """The key itself."""
    return server.key_file.read_text().split()[-1]


# What takes a key, over HTTP ------------------------------------------------------------------------------------------

LOAD = {"parameters": PLANTED}
SYSTEM_REGION = {"key": "/inflight-test-nothing", "offset": 0, "byte_size": 64}
CUDA_REGION = {"raw_handle": {"b64": ""}, "device_id": 0, "byte_size": 64}
HTTP_CONTROL = [
    ("POST", "/v2/repository/index", {}),
    ("POST", "/v2/repository/models/planted/load", LOAD),
    ("POST", f"/v2/repository/models/{MODEL}/load", {}),
    ("POST", "/v2/repository/models/nobody/unload", {}),
    ("GET", "/v2/trace/setting", None),
    ("POST", "/v2/trace/setting", {"trace_rate": "7"}),
    ("GET", f"/v2/models/{MODEL}/trace/setting", None),
    ("POST", f"/v2/models/{MODEL}/trace/setting", {"trace_rate": "7"}),
    ("GET", "/v2/logging", None),
    ("POST", "/v2/logging", {"log_verbose_level": 1}),
    ("GET", "/v2/systemsharedmemory/status", None),
    ("GET", "/v2/systemsharedmemory/region/a/status", None),
    ("POST", "/v2/systemsharedmemory/region/a/register", SYSTEM_REGION),
    ("POST", "/v2/systemsharedmemory/region/a/unregister", {}),
    ("POST", "/v2/systemsharedmemory/unregister", {}),
    ("GET", "/v2/cudasharedmemory/status", None),
    ("GET", "/v2/cudasharedmemory/region/a/status", None),
    ("POST", "/v2/cudasharedmemory/region/a/register", CUDA_REGION),
    ("POST", "/v2/cudasharedmemory/region/a/unregister", {}),
    ("POST", "/v2/cudasharedmemory/unregister", {}),
]
HTTP_INFERENCE = [
    ("GET", "/v2", None),
    ("GET", f"/v2/models/{MODEL}", None),
    ("GET", f"/v2/models/{MODEL}/versions/1", None),
    ("GET", f"/v2/models/{MODEL}/config", None),
    ("GET", "/v2/models/stats", None),
    ("GET", f"/v2/models/{MODEL}/stats", None),
    ("POST", f"/v2/models/{MODEL}/infer", {}),
    ("POST", f"/v2/models/{MODEL}/versions/1/infer", {}),
    ("POST", f"/v2/models/{MODEL}/generate", {}),
    ("POST", f"/v2/models/{MODEL}/generate_stream", {}),
]
HEALTH = ["/v2/health/live", "/v2/health/ready", f"/v2/models/{MODEL}/ready"]


def named(endpoint) -> str:
    return " ".join(endpoint[:2])


def is_refused(url: str, endpoint, headers: dict | None = None) -> bool:
    """Whether Triton refuses it for want of a key, by its status and its words."""
    method, path, body = endpoint
    answer = httpx.request(method, url + path, json=body, headers=headers or {}, timeout=60)
    restricted = "is restricted, expecting header" in answer.text
    assert restricted == (answer.status_code == 403)
    return restricted


@pytest.mark.parametrize("endpoint", HTTP_CONTROL, ids=named)
def test_control_over_http_takes_the_key(server, endpoint):
    for headers in ({}, ORIGIN, {keys.HEADER: ""}, {keys.HEADER: "0" * 64}, {keys.HEADER: key(server)[:-1]}):
        assert is_refused(server.http_url, endpoint, headers), headers
    if "planted" not in endpoint[1]:  # what it does for the user is not the question here
        assert not is_refused(server.http_url, endpoint, {keys.HEADER: key(server)})


@pytest.mark.parametrize("endpoint", HTTP_INFERENCE, ids=named)
def test_inference_over_http_is_open_by_default_and_takes_the_key_when_private(server, private_server, endpoint):
    assert not is_refused(server.http_url, endpoint)
    assert is_refused(private_server.http_url, endpoint) and is_refused(private_server.http_url, endpoint, ORIGIN)
    assert not is_refused(private_server.http_url, endpoint, {keys.HEADER: key(private_server)})


def test_control_of_a_private_server_takes_the_key(private_server):
    assert all(is_refused(private_server.http_url, endpoint, ORIGIN) for endpoint in HTTP_CONTROL)


def test_a_key_opens_the_server_that_it_was_made_for_and_no_other(server, private_server):
    assert key(server) != key(private_server) and len(key(server)) == 64
    assert is_refused(server.http_url, HTTP_CONTROL[0], {keys.HEADER: key(private_server)})


def test_health_is_open(server, private_server):
    for one in (server, private_server):
        assert [httpx.get(one.http_url + path, timeout=60).status_code for path in HEALTH] == [200] * len(HEALTH)


# Over gRPC ------------------------------------------------------------------------------------------------------------

METHODS = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name
GRPC_HEALTH = {"ServerLive", "ServerReady", "ModelReady"}
GRPC_INFERENCE = {"ServerMetadata", "ModelMetadata", "ModelConfig", "ModelStatistics", "ModelInfer", "ModelStreamInfer"}
GRPC_REQUESTS = {
    "RepositoryModelLoad": {"model_name": "nobody"},
    "RepositoryModelUnload": {"model_name": "nobody"},
    "TraceSetting": {"model_name": MODEL},
}


def is_refused_by_grpc(url: str, method: str, headers: dict | None = None) -> bool:
    request = getattr(service_pb2, METHODS[method].input_type.name)(**GRPC_REQUESTS.get(method, {}))
    with grpc.insecure_channel(url) as channel:
        call = getattr(service_pb2_grpc.GRPCInferenceServiceStub(channel), method)
        try:
            options = {"metadata": tuple((headers or {}).items()), "timeout": 60}
            list(call(iter([request]), **options)) if method == "ModelStreamInfer" else call(request, **options)
        except grpc.RpcError as error:
            return "is restricted, expecting header" in error.details()
    return False


@pytest.mark.parametrize("method", METHODS)
def test_every_method_of_grpc_is_open_or_takes_the_key(server, private_server, method):
    for one, are_open in ((server, GRPC_HEALTH | GRPC_INFERENCE), (private_server, GRPC_HEALTH)):
        for headers in ({}, {keys.GRPC_HEADER: "0" * 64}, {keys.HEADER: key(one)}):
            assert is_refused_by_grpc(one.grpc_url, method, headers) == (method not in are_open)
        assert not is_refused_by_grpc(one.grpc_url, method, {keys.GRPC_HEADER: key(one)})


# Who has the key ------------------------------------------------------------------------------------------------------

# As another user it reads, as fast as it can, the arguments and environments of all processes younger than itself; and
# when it is given keys, whatever it can open in some folders. It tells all arguments that it saw, and where a key was.
WATCHER = f"""
import json, os, select, sys
os.setgroups([]), os.setgid({NOBODY}), os.setuid({NOBODY})
older, seen = set(os.listdir("/proc")), set()
print("watching", flush=True)
ends = False
while not ends:
    ends = bool(select.select([sys.stdin], [], [], 0)[0])  # then this is the last round
    present = set(os.listdir("/proc"))
    older &= present  # a number that was given again is a younger process's
    for pid in present - older:
        if pid.isdecimal():
            for file in ("cmdline", "environ"):
                try:
                    with open(f"/proc/{{pid}}/{{file}}", "rb") as opened:
                        seen.add(opened.read() or b"")
                except OSError:
                    continue
told, folders = json.loads(sys.stdin.readline())
found = [f"the arguments {{one}}" for one in seen if any(key.encode() in one for key in told)]
paths = [os.path.join(folder, file) for folder in folders for folder, _, files in os.walk(folder) for file in files]
for path in paths:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with open(descriptor, "rb") as opened:
            content = opened.read(50_000_000) or b""
    except OSError:
        continue
    found += [path for key in told if key.encode() in content]
print(json.dumps({{"seen": [one.decode("utf-8", "replace") for one in seen], "found": found}}))
"""


def watch() -> subprocess.Popen:
    watcher = start_python(WATCHER, stdin=subprocess.PIPE)
    assert watcher.stdout.readline() == "watching\n"
    return watcher


def what_was_seen(watcher: subprocess.Popen, told: list[str], folders: list[Path]) -> dict:
    order = json.dumps([told, list(map(str, folders))])
    return json.loads(watcher.communicate(f"{order}\n", timeout=120)[0])


@as_another_user
@pytest.mark.parametrize("private", [False, True], ids=["default", "private"])
@pytest.mark.slow
def test_another_user_who_watches_every_process_never_sees_a_key(repo, private):
    for _ in range(3):
        one = Server(repo, private=private)
        watcher = watch()
        try:
            with one:
                httpx.post(f"{one.http_url}/v2/logging", json={"log_verbose_level": 6}, headers=one.headers, timeout=60)
                one.load(MODEL)
                with Connection(one.grpc_url) as connection:
                    connection.metadata(MODEL, timeout_s=60)
                prefix, secret = one._way._shm_prefix, key(one)
                assert secret not in (one._way.folder / "triton.log").read_text()
                for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
                    assert secret not in str((process.cmdline(), process.environ()))
                folders = [Path("/dev/shm"), repo, one._way.folder, *Path(tempfile.gettempdir()).glob("inflight*")]
                told = what_was_seen(watcher, [secret], folders)
        finally:
            watcher.kill()
            watcher.wait()
        assert told["found"] == []
        started = [one for one in told["seen"] if prefix in one]
        assert any("tritonserver" in one and hidden_arguments.PLACEHOLDER in one for one in started), "it did watch"


@as_another_user
def test_the_watcher_would_see_a_key_that_is_there(tmp_path):
    secret = "not so secret"
    shell = ["/bin/sh", "-c", "echo started; read line", secret]
    with watch() as watcher, subprocess.Popen(shell, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as shown:
        assert shown.stdout.readline() == "started\n"  # its arguments are there only when exec is over
        told = what_was_seen(watcher, [secret], [tmp_path])
        shown.stdin.close()
    assert any("arguments" in one for one in told["found"])


def test_a_program_of_the_user_finds_the_key_by_the_address_alone(private_server):
    script = """
import sys
from inflight.triton import telemetry
print(telemetry.statistics(sys.argv[1], sys.argv[2]).executions, telemetry.page(sys.argv[3])[:6])
"""
    done = start_python(script, private_server.http_url, MODEL, private_server.metrics_url)
    assert done.communicate(timeout=120)[0].endswith("# HELP\n")


# To whom it is sent ---------------------------------------------------------------------------------------------------


# Shared memory --------------------------------------------------------------------------------------------------------


def regions(server) -> list[Path]:
    return list(Path("/dev/shm").glob(f"{server._way._shm_prefix}*"))


def test_regions_of_shared_memory_are_the_users_alone_from_the_first_moment(server):
    assert regions(server)
    assert {stat.S_IMODE(region.stat().st_mode) for region in regions(server)} == {0o600}


# Private, open, impossible --------------------------------------------------------------------------------------------


def test_a_request_without_the_key_is_told_why_it_is_refused(private_server, monkeypatch):
    monkeypatch.setattr(keys, "headers", lambda url: {})
    for call in (
        lambda: transport.post_json(private_server.http_url, "/v2/repository/index", {}, 60),
        lambda: transport.get_json(private_server.http_url, "/v2/models/stats"),
        lambda: Connection(private_server.grpc_url).metadata(MODEL, timeout_s=60),
    ):
        with pytest.raises(Refused, match="only for the user who started it.*the address 127.0.0.1"):
            call()


def test_metrics_of_a_private_server_are_on_a_socket_in_its_folder(private_server):
    assert telemetry.metrics(telemetry.page(private_server.metrics_url)).name.str.startswith("nv_inference").any()
    listening = {
        connection.laddr.port
        for connection in psutil.Process(private_server.pid).net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening == {int(url.rpartition(":")[2]) for url in (private_server.http_url, private_server.grpc_url)}


@as_another_user
def test_another_user_reads_nothing_of_a_private_server(private_server):
    script = f"""
import os, socket, sys
os.setgroups([]), os.setgid({NOBODY}), os.setuid({NOBODY})
try:
    socket.socket(socket.AF_UNIX).connect(sys.argv[1])
except OSError as error:
    print(error)
"""
    path = private_server.metrics_url.removeprefix(transport.UNIX)
    assert "Permission denied" in start_python(script, path).communicate(timeout=300)[0]


def test_the_environment_makes_servers_private(repo, monkeypatch):
    for setting, private in (("1", True), ("0", False), ("", False)):
        monkeypatch.setenv(PRIVATE, setting)
        assert Server(repo).private is private
        assert Server(repo, private=True).private and not Server(repo, private=False).private
    monkeypatch.setenv(PRIVATE, "yes")
    with pytest.raises(CourseError, match="INFLIGHT_PRIVATE is 'yes'. Set it to 1"):
        Server(repo)


def test_private_and_open_are_not_to_be_had_together(repo, monkeypatch):
    with pytest.raises(CourseError, match="cannot be private and its control open"):
        Server(repo, private=True, open_control=True)
    monkeypatch.setenv(PRIVATE, "1")
    with pytest.raises(CourseError, match="INFLIGHT_PRIVATE is set here"):
        Server(repo, open_control=True)
    assert not Server(repo, private=False, open_control=True).private


def test_a_server_with_open_control_takes_no_key(repo):
    with Server(repo, private=False, open_control=True) as one:
        assert one.headers == {} and not one.key_file.exists()
        assert not is_refused(one.http_url, HTTP_CONTROL[0])
        assert not is_refused_by_grpc(one.grpc_url, "RepositoryIndex")
        one.load(MODEL)


@pytest.mark.parametrize(
    "option, told",
    [
        ("--open-control", "control  open: any user of this machine can load models, and so run code as you"),
        ("--private", "for requests and control by tools of your own: curl -H @FILE"),
        ("--not-private", "for control by tools of your own: curl -H @FILE"),
    ],
)
def test_serve_tells_who_may_do_what_and_no_key(repo, option, told):
    script = "from inflight.cli.commands import app; app()"
    with start_python(script, "serve", repo, option, env={**os.environ, "COLUMNS": "300"}) as serving:
        try:
            lines = list(iter(serving.stdout.readline, "Ctrl-C stops the server.\n"))
            assert lines[-1].strip().endswith(told)
            for file in (word.rstrip(",") for word in lines[-1].split() if word.startswith("/")):
                assert Path(file).read_text().split()[-1] not in "".join(lines)
        finally:
            serving.send_signal(signal.SIGINT)
            serving.communicate(timeout=300)
