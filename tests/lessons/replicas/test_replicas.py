"""Two servers behind the router: one address, one dies and comes back, one is taken away, and nothing is left."""

import contextlib
import json
import re
import shutil
import subprocess
import time

import httpx
import openai
import pandas as pd
import psutil
import pytest
import yaml
from prometheus_client import CollectorRegistry, Counter

from inflight.errors import CourseError
from inflight.lessons.replicas import Replicas, watching
from inflight.lessons.replicas.watching import RULES
from tests.engines import build_small, start_python, wait_until

pytestmark = pytest.mark.server
ASK = {"model": "tensorrt_llm", "prompt": "Once", "temperature": 0}

SCRIPT = """
import sys
from inflight.lessons.replicas import Replicas
with Replicas(sys.argv[1], number=1) as replicas:
    print(replicas.folder, flush=True)
    sys.stdin.readline()
"""


@pytest.fixture(scope="module")
def replicas(small_checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp("long") / "engine"
    with Replicas(
        build_small(small_checkpoint, folder, max_input_len=128, max_seq_len=3000, max_num_tokens=512)
    ) as replicas:
        yield replicas


@pytest.fixture
def client(replicas):
    with openai.OpenAI(base_url=replicas.url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


def answered(replicas):
    """Answers of each server since it was started."""
    pages = [httpx.get(f"{server}/metrics").text.splitlines() for server in replicas.servers]
    counters = [[line for line in page if line.startswith("vllm:request_success_total{")] for page in pages]
    return [sum(float(line.rpartition(" ")[2]) for line in lines) for lines in counters]


def healthy(replicas):
    workers = httpx.get(replicas.url.replace("/v1", "/workers")).json()["workers"]
    return [worker["is_healthy"] for worker in workers]


def running(replicas):
    """Numbers of the servers that tell of a request."""
    line = 'num_requests_running{model_name="tensorrt_llm"} 1.0'
    return [number for number, url in enumerate(replicas.servers) if line in httpx.get(f"{url}/metrics").text]


def test_a_request_in_turn_goes_to_each_and_the_pages_count_it(replicas, client):
    before = answered(replicas)
    for _ in range(4):
        client.completions.create(**ASK, max_tokens=3)
    assert [after - earlier for after, earlier in zip(answered(replicas), before)] == [2, 2]
    assert [replicas.log(number).stat().st_size > 0 for number in (0, 1)] == [True, True]
    assert "vllm_router_requests_total" in httpx.get(replicas.metrics_url).text


def test_what_has_no_first_byte_is_answered_by_the_other_and_the_dead_one_comes_back(replicas, client):
    stream = client.completions.create(**ASK, max_tokens=2900, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    wait_until(lambda: running(replicas), "a server tells of its request")
    [holder] = running(replicas)
    replicas.kill(holder)
    with pytest.raises(openai.APIConnectionError):
        list(stream)
    for _ in range(4):
        assert client.completions.create(**ASK, max_tokens=3).choices[0].text
    wait_until(lambda: False in healthy(replicas), "the router has noticed")
    replicas.start(holder)
    wait_until(lambda: healthy(replicas) == [True, True], "the router has noticed that it is back")
    for _ in range(4):
        client.completions.create(**ASK, max_tokens=3)
    assert answered(replicas)[holder] > 0


def test_a_server_that_is_drained_finishes_what_it_has(replicas, client):
    streams = [
        client.completions.create(**ASK, max_tokens=200, stream=True, extra_body={"ignore_eos": True})
        for _ in replicas.servers
    ]
    replicas.drain(1)
    reasons = [[piece.choices[0].finish_reason for piece in stream][-1] for stream in streams]
    assert reasons == ["length", "length"]
    assert client.completions.create(**ASK, max_tokens=3).choices[0].text
    replicas.start(1)
    assert len(healthy(replicas)) == 2


def test_a_counter_whose_page_is_away_keeps_its_value_and_one_that_appears_began_at_zero():
    key = {"source": "0", "name": "c", "labels": 'end="broken"'}
    looks = [
        pd.Series({(source, *list(key.values())[1:]): value for source, value in one.items()}).rename_axis([*key])
        for one in ({"0": 7.0}, {"0": 7.0, "1": 10.0}, {"1": 12.0}, {"0": 2.0, "1": 12.0})
    ]
    found = watching.counters(looks, "c", '"broken"')
    assert found["0"].iloc[:, 0].tolist() == [7, 7, 7, 2] and found["1"].iloc[:, 0].tolist() == [0, 10, 12, 12]
    assert watching.counters(looks, "c", '"whole"').empty


def test_what_the_rules_and_the_dashboard_ask_is_on_the_pages_or_recorded(replicas, client):
    client.completions.create(**ASK, max_tokens=3)
    page = CollectorRegistry()
    Counter("client_streams", "Streams, by their end.", ["end"], registry=page).labels("whole")
    panels = json.loads(RULES.with_name("dashboard.json").read_text())["panels"]
    [group] = yaml.safe_load(RULES.read_text())["groups"]
    known = {
        *watching.look(replicas, page).index.get_level_values("name"),
        *(rule.get("record") for rule in group["rules"]),
    }
    asked = [rule["expr"] for rule in group["rules"]] + [panel["targets"][0]["expr"] for panel in panels]
    names = {name for query in asked for name in re.findall(r"\b(?:vllm|router|service|client)[_:][\w:]+", query)}
    assert len(names) > 8 and names <= known


@pytest.mark.skipif(not shutil.which("promtool"), reason="no promtool here")
def test_the_alerts_fire_in_a_kill_and_not_before_also_after_a_restart_of_the_router():
    ran = subprocess.run(
        ["promtool", "test", "rules", RULES.with_name("rules_test.yml")], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_what_does_not_start_says_why(roomy_engine):
    began = time.monotonic()
    with pytest.raises(CourseError, match=r"(?s)server0 ended while starting.*no_such_setting"):
        Replicas(roomy_engine, number=1, no_such_setting=1).__enter__()
    assert time.monotonic() - began < 100


@pytest.mark.parametrize("how", ["killed", "ended"])
def test_nothing_is_left_however_the_program_ends(roomy_engine, how):
    program = start_python(SCRIPT, roomy_engine, stdin=subprocess.PIPE)
    folder = program.stdout.readline().strip()
    assert folder, program.communicate()
    started = psutil.Process(program.pid).children(recursive=True)
    assert any("tritonserver" in one.cmdline()[0] for one in started) and len(started) >= 6
    if how == "killed":
        program.kill()
    with contextlib.suppress(BrokenPipeError):
        program.communicate("\n", timeout=60)
    _, alive = psutil.wait_procs(started, timeout=60)
    assert not alive, [one.cmdline() for one in alive]
