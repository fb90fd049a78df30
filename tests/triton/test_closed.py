"""A server is closed by default: control takes a key, which no other user of the machine finds anywhere."""

import base64
import json
import os
import signal
import socket
import stat
import subprocess
import tempfile
import threading
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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
from inflight.triton.watch import KEY_FILE
from tests.engines import start_python, wait_until

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


@pytest.mark.parametrize("path", ["/v2//repository/index", "//v2/repository/index", "/v2/repository/index/",
                                  "/v2/./repository/index", "/v2/%72epository/index", "/v2/repository/index?a=b",
                                  "/V2/repository/index", "http://localhost/v2/repository/index"])  # fmt: skip
def test_no_spelling_of_a_path_gets_around_it(server, path):
    host, port = server.http_url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        request = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}"
        connection.sendall(request.encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert b" 200 " not in answer.partition(b"\r\n")[0] and MODEL.encode() not in answer


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


def _fail_with(*values):
    raise ValueError(*values)


def test_what_shows_a_server_does_not_show_its_key(server):
    secret = key(server)
    shown = [server.headers, keys.of(server.http_url), {"a": [keys.of(server.grpc_url)]}, server, keys._found]
    for one in shown:
        assert secret not in f"{one!r} {one} {one!s:>5} %s" % (one,)
    with pytest.raises(ValueError, match="hidden") as raised:
        _fail_with(server.headers, keys.of(server.http_url))
    frames = traceback.TracebackException.from_exception(raised.value, capture_locals=True).stack
    assert secret not in str(raised.value) and secret not in str(frames[-1].locals)
    with pytest.raises(CourseError) as caught:
        server.load("nobody")
    assert secret not in str(caught.value) and secret not in server.log_tail(10_000)


def test_the_folder_of_a_server_and_all_in_it_is_the_users_alone(server):
    assert stat.S_IMODE(server._way.folder.stat().st_mode) == 0o700
    for file in (server.key_file, server._way.folder / "triton.log"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_program_of_the_user_finds_the_key_by_the_address_alone(private_server):
    script = """
import sys
from inflight.triton import telemetry
print(telemetry.statistics(sys.argv[1], sys.argv[2]).executions, telemetry.page(sys.argv[3])[:6])
"""
    done = start_python(script, private_server.http_url, MODEL, private_server.metrics_url)
    assert done.communicate(timeout=120)[0].endswith("# HELP\n")


# To whom it is sent ---------------------------------------------------------------------------------------------------


class Recorder(BaseHTTPRequestHandler):
    """Notes the headers of whatever comes; the first answer names another address."""

    def log_message(self, *args):
        """Keep the test's output clean."""

    def do_GET(self):
        self.server.seen.append(dict(self.headers))
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(307 if self.server.elsewhere else 200)
        if self.server.elsewhere:
            self.send_header("Location", self.server.elsewhere + self.path)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    do_POST = do_CONNECT = do_GET


class Listener(ThreadingHTTPServer):
    """A server that is not ours, in this process."""

    allow_reuse_address = True

    def __init__(self, port: int = 0, elsewhere: str = ""):
        super().__init__(("127.0.0.1", port), Recorder)
        self.seen: list[dict] = []
        self.elsewhere = elsewhere
        self.url = f"http://127.0.0.1:{self.server_port}"
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *args):
        self.shutdown()
        self._thread.join()
        self.server_close()


def carries_a_key(seen: list[dict]) -> bool:
    return any(name.lower().endswith(keys.HEADER) for headers in seen for name in headers)


def test_a_key_goes_to_no_other_server(server):
    with Listener() as other:
        for url in (other.url, f"http://localhost:{other.server_port}"):
            transport.post_json(url, "/v2/repository/index", {}, 60)
        assert len(other.seen) == 2 and not carries_a_key(other.seen)
    assert keys.of(server.http_url) and keys.of(server.grpc_url)
    for host in ("localhost", "[::1]", "127.0.0.2", "0.0.0.0", "127.0.0.1.example"):
        assert keys.of(server.http_url.replace("127.0.0.1", host)) is None, "another may listen there"
    assert keys.of("127.0.0.1") is keys.of("127.0.0.1:0") is keys.of("") is keys.of("http://[") is None


def test_a_redirection_is_not_followed(monkeypatch):
    monkeypatch.setattr(keys, "headers", lambda url: {keys.HEADER: "a key"})
    with Listener() as other, Listener(elsewhere=other.url) as redirecting:
        transport.post_json(redirecting.url, "/v2/repository/index", {}, 60)
        assert carries_a_key(redirecting.seen) and other.seen == []


def test_a_proxy_gets_nothing_of_what_goes_to_this_machine(server, private_server, monkeypatch):
    with Listener() as proxy:
        for name in ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
            monkeypatch.setenv(name.upper(), proxy.url)
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        assert server.models()
        with Connection(server.grpc_url) as connection:
            assert connection.metadata(MODEL, timeout_s=60)["name"] == MODEL
        telemetry.page(private_server.metrics_url)
        assert proxy.seen == []


def test_whoever_takes_the_port_of_a_server_that_died_gets_no_key(repo):
    with Server(repo) as one:
        url, port = one.http_url, int(one.http_url.rpartition(":")[2])
        assert transport.post_json(url, "/v2/repository/index", {}, 60) and keys.of(url)
        psutil.Process(one.pid).kill()
        wait_until(lambda: not one.is_alive(), "the server is gone")
        with Listener(port) as other:
            transport.post_json(url, "/v2/repository/index", {}, 60)
            assert len(other.seen) == 1 and not carries_a_key(other.seen)
            with pytest.raises(CourseError, match="The server does not run"):
                one.models()


def test_whoever_took_the_port_before_the_server_gets_no_key(repo, monkeypatch):
    with Listener() as other:
        monkeypatch.setattr("inflight.triton.supervised._free_ports", lambda named: {
            "http": other.server_port, "grpc": 1, "metrics": 2})  # fmt: skip
        with pytest.raises(CourseError):
            Server(repo).start()
        assert not carries_a_key(other.seen)


def test_a_key_file_that_others_may_have_made_is_not_read(tmp_path):
    keys.create(tmp_path)
    file = tmp_path / KEY_FILE
    content = file.read_text()
    assert len(keys.read(tmp_path).reveal()) == 64 and stat.S_IMODE(file.stat().st_mode) == 0o600
    for mode in (0o640, 0o604, 0o620, 0o602):
        file.chmod(mode)
        assert keys.read(tmp_path) is None
    secret = tmp_path / "secret"
    file.chmod(0o600)
    file.rename(secret)
    file.symlink_to(secret)
    assert keys.read(tmp_path) is None
    file.unlink()
    os.mkfifo(file, 0o600)
    assert keys.read(tmp_path) is None
    file.unlink()
    file.write_text(content.replace(keys.HEADER, "other"))
    file.chmod(0o600)
    assert keys.read(tmp_path) is None
    if os.geteuid() == 0:
        file.write_text(content)
        os.chown(file, NOBODY, NOBODY)
        assert keys.read(tmp_path) is None
    assert keys.read(tmp_path / "nowhere") is None


# Shared memory --------------------------------------------------------------------------------------------------------


def regions(server) -> list[Path]:
    return list(Path("/dev/shm").glob(f"{server._way._shm_prefix}*"))


def test_regions_of_shared_memory_are_the_users_alone_from_the_first_moment(server):
    assert regions(server)
    assert {stat.S_IMODE(region.stat().st_mode) for region in regions(server)} == {0o600}


def test_only_that_one_change_of_a_mode_is_left_out():
    script = """
import os, tempfile
from inflight.triton import owner_only
owner_only.apply()
with tempfile.TemporaryFile() as file:
    for mode in (0o640, 0o644, 0o755):
        os.fchmod(file.fileno(), mode)
        print(oct(os.fstat(file.fileno()).st_mode & 0o777), end=" ")
with tempfile.NamedTemporaryFile() as file:
    os.chmod(file.name, 0o644)
    print(oct(os.stat(file.name).st_mode & 0o777))
"""
    assert start_python(script).communicate()[0].split() == ["0o640", "0o640", "0o755", "0o644"]


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


# What a security policy does to a call of the system: it fails, "not permitted".
UNDER_A_POLICY = """
import ctypes, platform, struct, sys
from inflight import CourseError
from inflight.triton import Server, owner_only
forbidden = {"x86_64": 101, "aarch64": 117}[platform.machine()]  # ptrace
audit_name, _, seccomp = owner_only.MACHINES[platform.machine()]
steps = [(0x20, 0, 0), (0x15, 1, forbidden), (0x06, 0, owner_only.SECCOMP_RET_ERRNO + 1),
         (0x06, 0, owner_only.SECCOMP_RET_ALLOW)]
program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", code, 0, skip, k) for code, skip, k in steps))
header = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(program)))
libc = ctypes.CDLL(None)
libc.prctl(38, *map(ctypes.c_ulong, (1, 0, 0, 0)))
assert libc.syscall(ctypes.c_long(seccomp), ctypes.c_long(1), ctypes.c_long(0), header) == 0
try:
    Server(sys.argv[1]).start()
except CourseError as error:
    print(error)
with Server(sys.argv[1], private=False, open_control=True) as server:
    print(server.models()[0].state)
"""


def test_where_a_process_may_not_be_traced_a_server_starts_open_or_not_at_all(repo):
    told = start_python(UNDER_A_POLICY, repo).communicate(timeout=120)[0].splitlines()
    assert told[0].startswith("The server cannot be closed to the other users of this machine (a process may not be")
    assert "--open-control" in told[0] and told[1:] == ["READY"]
