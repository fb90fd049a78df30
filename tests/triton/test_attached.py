"""A server that runs already: attached, used as far as it lets us, left as it was."""

import pytest

from inflight.errors import CourseError
from inflight.triton import repository
from inflight.triton.address import Address
from inflight.triton.client.client import Client
from inflight.triton.client.connection import get_json, is_ok
from inflight.triton.serving import process
from inflight.triton.serving.server import Server
from tests.engines import is_ready
from tests.triton import foreign

pytestmark = pytest.mark.server


def assembled(folder, engine, **values):
    return repository.assemble(folder / "repo", engine, apply_chat_template=False, **values)


@pytest.fixture(scope="module")
def fixed(small_engine, tmp_path_factory):
    """A Triton that loads nothing on request."""
    folder = tmp_path_factory.mktemp("fixed")
    with foreign.running(assembled(folder, small_engine), folder) as address:
        yield address


@pytest.fixture
def lesson(small_engine, tmp_path):
    """The repository of a notebook, with its own settings and its iteration log."""
    return assembled(tmp_path, small_engine, decoupled_mode=True, iteration_log_path=tmp_path / "iterations.jsonl")


# What does not let itself be changed ----------------------------------------------------------------------------------


def test_what_a_fixed_server_cannot_do_is_one_sentence_and_all_goes_on(fixed, lesson, capsys):
    with Server(lesson, address=fixed) as server:
        said = capsys.readouterr().err
        assert said.startswith("Attached to Triton 2.51.0 at http://127.0.0.1:")
        assert said.count("\n") == 1 and "loads no model on request" in said and "keeps no iteration log here" in said
        assert "answers in one piece only, so that streams are refused" in said
        assert is_ready(server) and {row.name for row in server.models()} == set(repository.models(lesson))
        server.load("tensorrt_llm", gpt_model_type="V1")
        assert capsys.readouterr().err.count("stays as it is") == 1
        with Client(server.grpc_url) as client:
            assert client.ask("Hi", 4).text
        with pytest.raises(CourseError, match="was started elsewhere"):
            server.pid  # noqa: B018
    assert not server.is_alive() and is_ok(fixed.http_url, "/v2/health/ready")


def test_one_whose_control_is_closed_by_another_is_used_without_it(small_engine, tmp_path, capsys):
    closed = [
        f"--{option}=model-repository:their-key=secret"
        for option in ("http-restricted-api", "grpc-restricted-protocol")
    ]
    repo = assembled(tmp_path, small_engine)
    with foreign.running(repo, tmp_path, "--model-control-mode=explicit", "--load-model=*", *closed) as address:
        with Server(repo, address=address) as server:
            assert "loads no model on request" in capsys.readouterr().err
            assert {row.name: row.state for row in server.models()} == dict.fromkeys(repository.PIPELINE, "READY")
            assert is_ready(server)


# What does ------------------------------------------------------------------------------------------------------------


def test_elsewhere_settings_are_ours_and_places_theirs(small_engine, lesson, tmp_path_factory):
    repository.edit(lesson, "tensorrt_llm", gpt_model_type="V1", gpt_model_path="/not/there")
    folder = tmp_path_factory.mktemp("elsewhere")
    options = ("--model-control-mode=explicit", "--load-model=*")
    with (
        foreign.running(assembled(folder, small_engine), folder, *options) as address,
        Server(lesson, address=address) as server,
    ):
        config = get_json(server.http_url, "/v2/models/tensorrt_llm/config")
        assert config["parameters"]["gpt_model_type"]["string_value"] == "V1"
        assert config["parameters"]["gpt_model_path"]["string_value"] != "/not/there"
        assert config["model_transaction_policy"]["decoupled"]


# Where it is ----------------------------------------------------------------------------------------------------------


def test_the_environment_says_where(fixed, lesson, monkeypatch):
    for variable, url in zip(("INFLIGHT_URL", "INFLIGHT_GRPC_URL", "INFLIGHT_METRICS_URL"), fixed):
        monkeypatch.setenv(variable, url)
    with Server(lesson) as server:
        assert (server.http_url, server.grpc_url, server.metrics_url) == fixed


def test_ports_that_nobody_names_are_counted_from_the_one_that_is():
    assert Address.at("http://lab:8000/") == Address("http://lab:8000", "lab:8001", "http://lab:8002/metrics")
    assert Address.at("lab:9001") == Address.at("http://lab:9000")
    named = "http://lab:1", "other:2", "http://metrics:3/m"
    assert Address.at(*named) == Address(*named)


@pytest.mark.parametrize("url", ["", "lab", "http://lab", "https://lab:443", ":8000", "http://lab:x", "unix:/nowhere"])
def test_what_is_no_address_is_refused(url):
    with pytest.raises(CourseError, match="is no address of a server"):
        Address.at(url)


def test_nobody_there_is_one_sentence(lesson):
    [http] = process.free_ports({"http": None}).values()
    with pytest.raises(CourseError, match=f"No Triton answers at http://127.0.0.1:{http}"):
        Server(lesson, address=Address.at(f"http://127.0.0.1:{http}")).start()


def test_a_wrong_grpc_address_is_named(fixed, lesson):
    [port] = process.free_ports({"grpc": None}).values()
    with pytest.raises(CourseError, match=f"not over gRPC at 127.0.0.1:{port}"):
        Server(lesson, address=Address.at(fixed.http_url, f"127.0.0.1:{port}")).start()


def test_one_that_goes_away_is_not_alive(small_engine, tmp_path):
    repo = assembled(tmp_path, small_engine)
    with foreign.running(repo, tmp_path) as address:
        server = Server(repo, address=address).start()
        assert server.is_alive()
    assert not server.is_alive()
    with pytest.raises(CourseError, match="The server does not run"):
        server.models()
    server.stop()
