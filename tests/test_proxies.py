"""A proxy in the environment gets what is sent outside, and not what is sent to this machine or to INFLIGHT_URL."""

import json
import os
import subprocess
import sys

import pytest

# Two ports, "server" and "proxy", that take connections and close them; then each client that the course, its pages and
# its packages have asks the first. Printed is a JSON object: client -> the ports that it came to.
CLIENTS = """
import asyncio, contextlib, json, os, socket, subprocess, sys, threading, urllib.request

host, is_named = sys.argv[1], len(sys.argv) > 2
came = set()

def listen(name, host):
    def take():
        while True:
            connection = listening.accept()[0]
            came.add(name)
            connection.close()

    listening = socket.create_server((host, 0))
    threading.Thread(target=take, daemon=True).start()
    return f"{host}:{listening.getsockname()[1]}"

server, proxy = listen("server", host), listen("proxy", "127.0.0.1")
for name in ("http_proxy", "https_proxy", "grpc_proxy", "HTTPS_PROXY", "ALL_PROXY"):
    os.environ[name] = f"http://{proxy}"
os.environ["all_proxy"] = f"socks://{proxy}"
if is_named:
    os.environ["INFLIGHT_URL"] = f"http://{server}"

import inflight  # alone: what it does holds for all that follows
import aiohttp, httpx, requests
import tritonclient.grpc, tritonclient.grpc.aio
from inflight.triton.client.connection import Connection, get_json

async def with_aiohttp():
    async with aiohttp.ClientSession(trust_env=True) as session:
        await session.get(f"http://{server}")

async def with_grpc_aio():
    async with tritonclient.grpc.aio.InferenceServerClient(server) as client:
        await client.is_server_live(client_timeout=5)

def with_grpc():
    with tritonclient.grpc.InferenceServerClient(server) as client:
        client.is_server_live(client_timeout=5)

def with_connection():
    with Connection(server) as connection:
        connection.connect()

clients = {
    "httpx": lambda: httpx.get(f"http://{server}"),
    "requests": lambda: requests.get(f"http://{server}"),
    "urllib": lambda: urllib.request.urlopen(f"http://{server}"),
    "curl": lambda: subprocess.run(["curl", "--silent", server]),
    "aiohttp": lambda: asyncio.run(with_aiohttp()),
    "tritonclient.grpc": with_grpc,
    "tritonclient.grpc.aio": lambda: asyncio.run(with_grpc_aio()),
    "Connection": with_connection,
    "get_json": lambda: get_json(f"http://{server}", "/v2"),
}
told = {}
for name, ask in clients.items():
    came.clear()
    with contextlib.suppress(Exception):  # nobody answers
        ask()
    told[name] = sorted(came)
print(json.dumps(told))
"""
OF_PROXIES = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy", "no_proxy", "no_grpc_proxy")
LOOPBACK = "127.0.0.1,localhost,::1"


def run(script, *arguments, **variables):
    """What a script prints in an environment that has `variables`, and else says nothing of proxies."""
    kept = {name: value for name, value in os.environ.items() if name.lower() not in OF_PROXIES}
    command = [sys.executable, "-c", script, *arguments]
    return json.loads(subprocess.run(command, env=kept | variables, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize(
    ("arguments", "port"),
    [
        (["127.0.0.1"], "server"),
        (["127.0.0.2", "is INFLIGHT_URL"], "server"),
        (["127.0.0.2"], "proxy"),  # a host that is none of ours
    ],
)
def test_every_client_asks_the_proxy_for_what_lies_outside_alone(arguments, port):
    came = run(CLIENTS, *arguments)
    assert len(came) == 9 and {name: ports for name, ports in came.items() if ports != [port]} == {}


@pytest.mark.parametrize(
    ("before", "no_proxy", "no_grpc_proxy"),
    [
        ({}, LOOPBACK, LOOPBACK),
        ({"NO_PROXY": ".corp, 10.0.0.1"}, f".corp,10.0.0.1,{LOOPBACK}", f".corp,10.0.0.1,{LOOPBACK}"),
        ({"no_proxy": "a", "NO_PROXY": "b", "no_grpc_proxy": "c"}, f"a,{LOOPBACK}", f"c,{LOOPBACK}"),
        ({"no_proxy": LOOPBACK}, LOOPBACK, LOOPBACK),
        ({"no_proxy": "*"}, "*", f"*,{LOOPBACK}"),
        ({"INFLIGHT_URL": "http://a:8000", "INFLIGHT_GRPC_URL": "b:8001"}, f"{LOOPBACK},a,b", f"{LOOPBACK},a,b"),
    ],
)
def test_who_is_asked_directly_is_added_to_who_was(before, no_proxy, no_grpc_proxy):
    script = "import inflight, json, os; print(json.dumps(dict(os.environ)))"
    after = run(script, **before)
    assert (after["no_proxy"], after["no_grpc_proxy"]) == (no_proxy, no_grpc_proxy)
    assert after.get("NO_PROXY") == (None if no_proxy == "*" else no_proxy)
