"""Inference is open; control takes a key, which the user's own programs find."""

import base64
import contextlib
import json
import stat
from http.client import HTTPConnection

import grpc
import httpx
import psutil
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from inflight.lessons.repository import tritonserver
from inflight.triton import records, repository
from inflight.triton.client.connection import is_ok
from inflight.triton.repository import BATCH_COST
from inflight.triton.serving.server import Server
from tests.engines import start_python, wait_until

pytestmark = pytest.mark.server

MODEL = BATCH_COST
ORIGIN = {"Origin": "https://elsewhere.example", "Content-Type": "text/plain"}
PLANTED = {
    "config": json.dumps({"name": "planted", "backend": "python"}),
    "file:1/model.py": base64.b64encode(b"raise SystemExit").decode(),
}


@pytest.fixture(scope="module")
def repo(tmp_path_factory):
    return repository.assemble(tmp_path_factory.mktemp("closed") / "repo", models=(MODEL,))


@pytest.fixture(scope="module")
def server(repo):
    with Server(repo, drain_s=0) as server:
        yield server


def key(server) -> str:
    return server.headers[records.HEADER]


# What takes a key, over HTTP ------------------------------------------------------------------------------------------

SYSTEM_REGION = {"key": "/inflight-test-nothing", "offset": 0, "byte_size": 64}
CUDA_REGION = {"raw_handle": {"b64": ""}, "device_id": 0, "byte_size": 64}
HTTP_CONTROL = [  # one of each group; of gRPC every method is asked, also those that a new Triton brings
    ("POST", "/v2/repository/index", {}),
    ("POST", "/v2/repository/models/planted/load", {"parameters": PLANTED}),
    ("POST", "/v2/repository/models/nobody/unload", {}),
    ("POST", f"/v2/models/{MODEL}/trace/setting", {"trace_rate": "7"}),
    ("POST", "/v2/logging", {"log_verbose_level": 1}),
    ("POST", "/v2/systemsharedmemory/region/a/register", SYSTEM_REGION),
    ("POST", "/v2/cudasharedmemory/region/a/register", CUDA_REGION),
]
HTTP_INFERENCE = [
    ("GET", f"/v2/models/{MODEL}/config", None),
    ("GET", "/v2/models/stats", None),
    ("POST", f"/v2/models/{MODEL}/infer", {}),
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
    for headers in ({}, ORIGIN, {records.HEADER: ""}, {records.HEADER: "0" * 64}, {records.HEADER: key(server)[:-1]}):
        assert is_refused(server.http_url, endpoint, headers), headers
    if "planted" not in endpoint[1]:  # what it does for the user is not the question here
        assert not is_refused(server.http_url, endpoint, {records.HEADER: key(server)})


SPELLINGS = [
    *("//v2/repository/index", "/v2//repository/index", "/v2/./repository/index", "/v2/x/../repository/index"),
    *("/V2/Repository/Index", "/v2/repository%2findex", "/v2/repository/index?x=1", "/v2/repository/index/"),
    *("/v2/repository/index%0a", "/v2/repository/index;x", "http://x/v2/repository/index", "/v2/repository/x/index"),
    *("/v2/repository/models/x/load/", "/v2/repository/models/x/versions/1/load", "/v2/repository/models/x/y/load"),
    *("/v2/logging/", "/v2/trace/setting", "/v2/models/x/versions/1/trace/setting", "/v2/systemsharedmemory/status"),
]


@pytest.mark.parametrize("path", SPELLINGS)
def test_no_other_spelling_gets_around_the_key(server, path):
    for method in ("GET", "POST", "PUT"):
        connection = HTTPConnection(server.http_url.rpartition("/")[2], timeout=60)
        with contextlib.closing(connection):
            connection.request(method, path, b"{}")  # as it is: httpx would tidy it up
            assert connection.getresponse().status in (400, 403, 404, 405)


@pytest.mark.parametrize("endpoint", HTTP_INFERENCE, ids=named)
def test_inference_over_http_is_open(server, endpoint):
    assert not is_refused(server.http_url, endpoint)


def test_health_is_open(server):
    assert [httpx.get(server.http_url + path, timeout=60).status_code for path in HEALTH] == [200] * len(HEALTH)


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
def test_every_method_of_grpc_is_open_or_takes_the_key(server, method):
    for headers in ({}, {records.GRPC_HEADER: "0" * 64}, {records.HEADER: key(server)}):
        assert is_refused_by_grpc(server.grpc_url, method, headers) == (method not in GRPC_HEALTH | GRPC_INFERENCE)
    assert not is_refused_by_grpc(server.grpc_url, method, {records.GRPC_HEADER: key(server)})


# Other doors ----------------------------------------------------------------------------------------------------------

VERTEX_AI = {
    "AIP_MODE": "PREDICTION",
    "AIP_HTTP_PORT": "18080",
    "AIP_PREDICT_ROUTE": "/predict",
    "AIP_HEALTH_ROUTE": "/health",
}


def by_hand(repo, *arguments):
    return tritonserver([f"--model-repository={repo}", "--model-control-mode=explicit", "--load-model=*", *arguments])


@pytest.mark.parametrize(
    "environment, start",
    [
        (VERTEX_AI, lambda repo: Server(repo).start()),
        (VERTEX_AI, by_hand),
        ({"AIP_HTTP_PORT": "none"}, lambda repo: Server(repo).start()),
        (VERTEX_AI | {"AIP_MODE": ""}, lambda repo: by_hand(repo, "--allow-vertex=true")),
        ({}, lambda repo: by_hand(repo, "--allow-sage=true", "--sagemaker-port=18080")),
    ],
    ids=["Vertex AI", "Vertex AI, by hand", "a wrong port", "Vertex AI, shortened", "SageMaker, shortened"],
)
def test_no_other_door_opens_whatever_environment_and_arguments_say(repo, monkeypatch, environment, start):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    server = start(repo)
    try:
        wait_until(lambda: is_ok(server.metrics_url, ""), "the last of its doors is open")
        connections = psutil.Process(server.pid).net_connections()
        listening = {one.laddr.ip.removeprefix("::ffff:") for one in connections if one.status == psutil.CONN_LISTEN}
        assert listening == {"127.0.0.1"}
    finally:
        server.stop()


# Who finds the key ----------------------------------------------------------------------------------------------------


def test_each_server_has_a_key_of_its_own_in_a_record_that_the_user_alone_can_open(server, repo):
    with Server(repo, drain_s=0) as other:
        assert key(server) != key(other)
    [file] = [one for one in records.folder().glob("*.json") if json.loads(one.read_text())["http"] == server.http_url]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and json.loads(file.read_text())["pid"] == server.pid


def test_a_program_of_the_user_finds_it_by_the_address_alone(server):
    script = "import sys; from inflight.triton import records; print(*records.headers(sys.argv[1]).values())"
    for url in (server.http_url, server.grpc_url, server.http_url.replace("127.0.0.1", "localhost")):
        assert start_python(script, url).communicate(timeout=60)[0].split() == [key(server)] * 2
    assert records.headers("http://127.0.0.1:9") == {}


# Open -----------------------------------------------------------------------------------------------------------------


def test_a_server_with_open_control_takes_no_key(repo):
    with Server(repo, open_control=True, drain_s=0) as one:
        assert one.headers == {}
        assert not is_refused(one.http_url, HTTP_CONTROL[0])
        assert not is_refused_by_grpc(one.grpc_url, "RepositoryIndex")
        one.load(MODEL)
