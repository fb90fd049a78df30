"""Another server with OpenAI's endpoints: asked in its way, counted by us, and what it does wrong is one sentence."""

import json
from dataclasses import replace

import pytest

from inflight.bench import load_generator, peer, workload
from inflight.bench.openai_server import KEY_VARIABLE, Asking, OpenAIServer, PeerSender, count_tokens
from inflight.bench.peer import Count, check_count
from inflight.bench.workload import TimedRequest
from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.errors import CourseError
from inflight.triton import keys
from tests.bench.openai_stand_in import CHAT, COMPLETIONS, StandIn
from tests.engines import build_small

LENGTHS = (1, 5, 9)
PROTOCOL = {"model", "prompt", "messages", "max_tokens", "temperature", "stream"}
LONGEST = 600  # characters of a sentence, whatever a server sends


def requests(number=9):
    return [TimedRequest(f"Hi {index}", LENGTHS[index % 3], 0.0, 3) for index in range(number)]


@pytest.fixture(scope="module")
def engine_dir(small_checkpoint, tmp_path_factory):
    """The small model with room for the chat template, which its few tokens make long."""
    folder = tmp_path_factory.mktemp("peer") / "engine"
    return build_small(small_checkpoint, folder, max_input_len=512, max_seq_len=1024, max_num_tokens=4096)


@pytest.fixture(scope="module")
def tokenizer(engine_dir):
    return load_tokenizer(engine_dir)


@pytest.fixture
def other(tokenizer):
    """A stand-in whose words are one token each, however many stand in a row."""
    words = (tokenizer.decode([number]) for number in range(300, 1000))
    word = next(word for word in words if [count_tokens(tokenizer, word * n) for n in (1, 2, 9)] == [1, 2, 9])
    with StandIn(word) as stand_in:
        yield stand_in


@pytest.fixture(autouse=True)
def no_key(monkeypatch):
    monkeypatch.delenv(KEY_VARIABLE, raising=False)


def test_a_load_is_timed_and_counted(other, tokenizer):
    server = OpenAIServer(other.url + "/v1/", tokenizer)
    for stream in (False, True):
        send = PeerSender(server, server.find(requests()[0], stream), stream)
        rows = load_generator.load(send, requests()).answered
        assert rows["output_len"].tolist() == rows["max_tokens"].tolist() == [1, 5, 9] * 3
        assert (rows["latency_ms"] > 0).all()
        assert rows["ttft_ms"].notna().all() == stream
        assert peer.count(send.heard, tokenizer) == Count(45, 45, 45, 0)


def test_it_is_asked_greedily_for_a_fixed_length(other, tokenizer):
    server = OpenAIServer(other.url, tokenizer)
    asking = server.find(requests()[1], True)
    assert asking == Asking(COMPLETIONS, "their-model", ("ignore_eos", "min_tokens", "cache_prompt"))
    path, _, body = other.got[-1]
    assert path == COMPLETIONS
    assert body == {
        "model": "their-model",
        "prompt": tokenizer.chat("Hi 1"),
        "max_tokens": 5,
        "min_tokens": 5,
        "ignore_eos": True,
        "cache_prompt": False,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@pytest.mark.parametrize(
    "known, fields",
    [({"ignore_eos", "min_tokens", "stream_options"}, ("ignore_eos", "min_tokens")), (set(), ())],
)
def test_a_server_is_spared_the_fields_that_it_refuses(other, tokenizer, known, fields):
    other.known = PROTOCOL | known
    for stream in (False, True):
        assert OpenAIServer(other.url, tokenizer).find(requests()[0], stream).fields == fields


def test_a_server_with_chat_only_is_asked_there(other, tokenizer):
    other.endpoints = (CHAT,)
    server = OpenAIServer(other.url, tokenizer)
    for stream in (False, True):
        asking = server.find(requests()[0], stream, "named")
        assert (asking.endpoint, asking.model) == (CHAT, "named")
        send = PeerSender(server, asking, stream)
        load_generator.load(send, requests())
        assert peer.count(send.heard, tokenizer) == Count(45, 45, 45, 0)
    assert other.got[-1][2]["messages"][0]["content"].startswith("Hi ")


def test_it_gets_a_key_from_the_environment_and_none_of_ours(other, tokenizer, monkeypatch):
    asked = []
    monkeypatch.setattr(keys, "headers", lambda url: asked.append(url) or {})
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # where nobody listens
    OpenAIServer(other.url, tokenizer).find(requests()[0], False)
    monkeypatch.setenv(KEY_VARIABLE, "theirs")
    OpenAIServer(other.url, tokenizer).find(requests()[0], False)
    without, with_key = (headers for _, headers, _ in other.got)
    assert set(without) == {
        "Host",
        "Accept",
        "Accept-Encoding",
        "Connection",
        "User-Agent",
        "Content-Type",
        "Content-Length",
    }
    assert with_key == {**without, "Authorization": "Bearer theirs"}
    assert not asked


# What goes wrong ------------------------------------------------------------------------------------------------------


def check_sentence(error: CourseError) -> None:
    text = str(error)
    assert text.isprintable() and len(text) < LONGEST, text


# Counting -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "found, message",
    [
        (Count(1000, 600, 1000, 0), "asked for 1000 tokens and its text has 600, and says that it sent 1000"),
        (Count(1000, 600, 600, 3), "its text has 600, and says that it sent 600; 3 of its answers ended by themselves"),
        (Count(1000, 600, None, 0), "asked for 1000 tokens and its text has 600: "),
        (Count(1000, 1500, 1500, 0), "its text has 1500: it does not heed max_tokens"),
        (Count(1000, 1000, 2000, 0), "says that it sent 2000 tokens and its text has 1000: it miscounts"),
        (Count(1000, 1000, 10, 0), "says that it sent 10 tokens"),
    ],
)
def test_a_server_that_miscounts_or_stops_early_is_refused_with_the_figures(found, message):
    with pytest.raises(CourseError, match=message) as caught:
        check_count(found, "http://127.0.0.1:8080")
    check_sentence(caught.value)


# The whole ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.server
@pytest.mark.slow
def test_both_serve_the_trace_in_turns(other, engine_dir, tokenizer, tmp_path, stream):
    mild = [replace(one, at_s=0.0) for one in workload.trace("mild", tokenizer, 0, 8)]
    steps: list[str] = []
    result = peer.bench(other.url, engine_dir, mild, tmp_path, 2, stream, progress=steps.append)
    turns = [step.rpartition(": ")[2] for step in steps if "round" in step or "warm-up" in step]
    assert turns == ["inflight", "peer", "peer", "inflight", "inflight", "peer"]
    assert set(result) == {"machine", "devices", "settings", "rows", "ratios"}
    assert result["devices"] == dict.fromkeys(("peer", "inflight"), result["machine"]["cpu"])
    asked = sum(request.max_tokens for request in mild)
    assert result["settings"]["output_tokens"] == asked and result["settings"]["endpoint"] == COMPLETIONS
    theirs, ours = result["rows"]
    assert (theirs["server"], ours["server"]) == ("peer", "inflight")
    assert theirs["asked"] == theirs["counted"] == theirs["claimed"] == ours["counted"] == asked
    for row in result["rows"]:
        assert (row["mean_ttft_ms"] is not None) == (row["mean_itl_ms"] is not None) == stream
    assert set(result["ratios"]) == {"throughput", "mean_latency", "p99_latency"}
    for spread in result["ratios"].values():
        assert 0 < spread["min"] <= spread["median"] <= spread["max"]
    assert json.loads(json.dumps(result)) == result
