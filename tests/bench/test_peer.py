"""Another server with OpenAI's endpoints: asked in its way, counted by us, and what it does wrong is one sentence."""

import gzip
import json
import socket
import threading
from dataclasses import replace

import httpx
import pytest
from typer.testing import CliRunner

from inflight.bench import load_generator, openai_server, peer, workload
from inflight.bench.openai_server import KEY_VARIABLE, Asking, OpenAIServer, PeerSender, count_tokens
from inflight.bench.peer import Count, check_count
from inflight.bench.workload import TimedRequest
from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.cli.commands import app
from inflight.errors import CourseError
from inflight.triton import keys
from inflight.triton.transport import Wire
from tests.bench.openai_stand_in import CHAT, COMPLETIONS, StandIn, begin, choice, event, send
from tests.engines import build_small, wait_until

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


def test_nothing_is_made_for_a_request_that_the_one_before_had(other, tokenizer, monkeypatch):
    """To make a client, or to start a thread, takes time that would be counted as the server's."""
    made, started = [], []
    new_client, start = httpx.Client, threading.Thread.start
    monkeypatch.setattr(openai_server.httpx, "Client", lambda **options: made.append(options) or new_client(**options))
    monkeypatch.setattr(threading.Thread, "start", lambda thread: started.append(thread.name) or start(thread))
    server, asking = OpenAIServer(other.url, tokenizer), Asking(COMPLETIONS, "m", ())
    assert len(made) == 1, "the first client is there before the first request"
    for _ in range(3):
        assert server.ask(requests()[1], asking, True, Wire()).text
    assert len(made) == 1 and [name for name in started if "process_request" not in name] == ["time limits"]
    load_generator.load(PeerSender(server, asking, True), requests(), concurrency=2)
    assert len(made) <= 2


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
    monkeypatch.setattr(keys, "of", lambda url: asked.append(url) or "ours")
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


@pytest.mark.parametrize("key", ["two\nlines", "schlüssel", " padded"])
def test_a_key_that_no_header_carries_is_not_shown(tokenizer, monkeypatch, key):
    monkeypatch.setenv(KEY_VARIABLE, key)
    with pytest.raises(CourseError, match=KEY_VARIABLE) as caught:
        OpenAIServer("http://127.0.0.1:1", tokenizer)
    assert key.strip() not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    ["", "127.0.0.1:8080", "ftp://127.0.0.1", "http://", "http://127.0.0.1:port", "http://me:secret@host", "\x1b[2J"],
)
def test_what_is_no_address_is_refused(tokenizer, url):
    with pytest.raises(CourseError, match=r"http://") as caught:
        OpenAIServer(url, tokenizer)
    check_sentence(caught.value)
    assert "secret" not in str(caught.value)


# What goes wrong ------------------------------------------------------------------------------------------------------


def check_sentence(error: CourseError) -> None:
    text = str(error)
    assert text.isprintable() and len(text) < LONGEST, text


def answer_of(text="x", **more):
    return {"choices": [{"text": text, "finish_reason": "length"}], **more}


def stream_of(*pieces: bytes):
    def odd(handler, body):
        begin(handler)
        for piece in pieces:
            handler.wfile.write(piece)

    return odd


def endless(handler, body):
    begin(handler)
    while not handler.stand_in.over.wait(0.01):
        event(handler, {"choices": [choice(COMPLETIONS, "x", None, "delta")]})


def silent(handler, body):
    handler.stand_in.over.wait()


def slow_head(handler, body):
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
    while not handler.stand_in.over.wait(0.05):
        handler.wfile.write(b"x")


def huge(handler, body):
    begin(handler)
    while not handler.stand_in.over.is_set():
        handler.wfile.write(b"data: " + b"x" * (1 << 16))


def packed(handler, body):
    send(handler, 200, gzip.compress(json.dumps(answer_of("x" * (1 << 24))).encode()), Content_Encoding="gzip")


def broken_off(handler, body):
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"choices": ')


def is_gone(handler, body):
    handler.connection.shutdown(socket.SHUT_RDWR)


def with_status(status, content, **headers):
    return lambda handler, body: send(handler, status, content, **headers)


PAGE = b"<!DOCTYPE html><html><body>It works!\x1b[2J</body></html>"
PIECE = b'data: {"choices": [{"text": "x", "finish_reason": null}]}\n\n'
WHOLE = {
    "page": (with_status(200, PAGE), "not OpenAI-compatible: its answer is no JSON but <!DOCTYPE html>"),
    "nothing": (with_status(200, b""), "is no JSON but nothing"),
    "list": (with_status(200, []), "does not answer in OpenAI's form"),
    "number": (with_status(200, b"7"), "does not answer in OpenAI's form"),
    "null": (with_status(200, b"null"), "does not answer in OpenAI's form"),
    "choices that are none": (with_status(200, {"choices": {}, "text": "x"}), "OpenAI's form"),
    "choice of a number": (with_status(200, {"choices": [7]}), "does not answer in OpenAI's form"),
    "text of a number": (with_status(200, answer_of(7)), "does not answer in OpenAI's form"),
    "usage of text": (with_status(200, answer_of(usage={"completion_tokens": "9"})), "OpenAI's form"),
    "usage below zero": (with_status(200, answer_of(usage={"completion_tokens": -9})), "OpenAI's form"),
    "nested": (with_status(200, b"[" * 100_000), "is no JSON but"),
    "long number": (with_status(200, b'{"choices": ' + b"9" * 10_000 + b"}"), "is no JSON but"),
    "error inside": (with_status(200, {"error": {"message": "out of memory"}}), "with an error: out of memory"),
    "500": (with_status(500, {"error": {"message": "no\nslot"}}), "status 500: no slot"),
    "503": (with_status(503, {"error": {"message": "Loading model"}}), "status 503: Loading model"),
    "401": (with_status(401, {"error": "who?"}), f"status 401: who\\?. Put its key .* {KEY_VARIABLE}"),
    "400": (with_status(400, PAGE), "status 400: <!DOCTYPE"),
    "redirect": (with_status(307, b"", Location="http://127.0.0.1:1/"), "status 307"),
    "packed": (packed, "is no JSON but"),
    "broken off": (broken_off, "broke off its answer"),
    "gone": (is_gone, "broke off its answer, or speaks no HTTP"),
    "huge": (huge, "more than [0-9,]+ bytes"),
    "silent": (silent, "had not ended its answer after 2 s.*--timeout"),
    "slow head": (slow_head, "had not ended its answer after 2 s"),
    "endless": (endless, "had not ended its answer after 2 s|more than"),
}
STREAMED = {
    "page": (with_status(200, PAGE), "no stream of events but <!DOCTYPE html>"),
    "whole answer": (with_status(200, answer_of()), 'no stream of events but {"choices"'),
    "nothing": (stream_of(), "broke off its stream after 0 characters"),
    "done at once": (stream_of(b"data: [DONE]\n\n"), "without a character of text"),
    "broken off": (stream_of(PIECE), "broke off its stream after 1 characters"),
    "half a piece": (stream_of(PIECE, PIECE[:20]), "a piece of its stream is no JSON"),
    "no JSON": (stream_of(PIECE, b"data: {broken}\n\n"), "a piece of its stream is no JSON but {broken}"),
    "error inside": (stream_of(PIECE, b'data: {"error": {"message": "overloaded"}}\n\n'), "with an error: overloaded"),
    "other form": (stream_of(PIECE, b'data: {"token": 1}\n\n'), "does not answer in OpenAI's form"),
    "500": (with_status(500, b"oops"), "status 500: oops"),
    "huge": (huge, "more than [0-9,]+ bytes"),
    "silent": (silent, "had not ended its answer after 2 s"),
    "slow head": (slow_head, "had not ended its answer after 2 s"),
    "endless": (endless, "had not ended its answer after 2 s|more than"),
}


@pytest.mark.parametrize(
    "stream, odd, message",
    [(False, *case) for case in WHOLE.values()] + [(True, *case) for case in STREAMED.values()],
    ids=[*(f"whole-{name}" for name in WHOLE), *(f"streamed-{name}" for name in STREAMED)],
)
def test_an_answer_that_is_none_is_one_sentence(other, tokenizer, stream, odd, message):
    other.odd = odd
    with pytest.raises(CourseError, match=message) as caught:
        OpenAIServer(other.url, tokenizer, timeout_s=2).find(requests()[0], stream)
    check_sentence(caught.value)
    assert other.url in str(caught.value)


def test_a_server_without_the_endpoints_is_not_compatible(other, tokenizer):
    other.endpoints = ()
    with pytest.raises(CourseError, match=r"not OpenAI-compatible: it has neither /v1/completions nor") as caught:
        OpenAIServer(other.url, tokenizer).find(requests()[0], False)
    check_sentence(caught.value)


def test_a_server_that_does_not_run_and_one_that_lists_no_model(other, tokenizer, unused_port):
    with pytest.raises(CourseError, match="does not answer .* Start it") as caught:
        OpenAIServer(f"http://127.0.0.1:{unused_port}", tokenizer).find(requests()[0], False)
    check_sentence(caught.value)
    with pytest.raises(CourseError, match="names no model at /v1/models: name one with --model"):
        OpenAIServer(other.url + "/elsewhere", tokenizer).find(requests()[0], False)


@pytest.fixture
def unused_port():
    with socket.socket() as bound:  # bound, and nobody listens
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def test_the_first_failure_ends_the_load(other, tokenizer):
    server = OpenAIServer(other.url, tokenizer)
    asking = server.find(requests()[0], False)
    first = threading.Lock()

    def odd(handler, body):
        if first.acquire(blocking=False):
            wait_until(lambda: len(other.got) >= 9, "all requests are there")
            send(handler, 500, {"error": {"message": "no room"}})
        else:
            silent(handler, body)

    other.odd, other.got[:] = odd, []
    sender = PeerSender(server, asking, False)
    run = load_generator.load(sender, requests())
    assert "status 500: no room" in sender.failure
    assert run.answered.empty and not sender.is_alive()


def test_a_wire_that_is_cut_before_it_is_there_ends_the_request(other, tokenizer):
    other.odd = silent
    wire = Wire()
    wire.cut()
    with pytest.raises(CourseError, match="was ended before its answer"):
        OpenAIServer(other.url, tokenizer).ask(requests()[0], Asking(COMPLETIONS, "m", ()), False, wire)


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


@pytest.mark.parametrize("found", [Count(1000, 960, 1000, 0), Count(1000, 1000, None, 0), Count(1000, 1040, 1000, 2)])
def test_a_few_tokens_more_or_less_are_how_text_is_cut(found):
    check_count(found, "http://127.0.0.1:8080")


def test_more_tokens_than_asked_for_count_as_many_as_asked_for(other, tokenizer):
    other.tokens = lambda asked: 2 * asked
    server = OpenAIServer(other.url, tokenizer)
    sender = PeerSender(server, server.find(requests()[0], False), False)
    rows = load_generator.load(sender, requests()).answered
    assert rows["output_len"].tolist() == rows["max_tokens"].tolist()
    assert peer.count(sender.heard, tokenizer).counted == 90


# The whole ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
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


@pytest.mark.parametrize(
    "tokens, claims, message",
    [
        (lambda asked: asked // 2, None, "its text has"),
        (lambda asked: asked, lambda asked: 3 * asked, "miscounts"),
    ],
)
def test_the_command_says_in_one_sentence_what_is_wrong_with_the_other(other, engine_dir, tokens, claims, message):
    other.tokens, other.claims = tokens, claims
    arguments = [
        "bench",
        "peer",
        "--url",
        other.url,
        "--engine-dir",
        str(engine_dir),
        "--requests",
        "4",
        "--rounds",
        "1",
    ]
    ran = CliRunner().invoke(app, [*arguments, "--json"])
    assert ran.exit_code == 1 and isinstance(ran.exception, CourseError)
    check_sentence(ran.exception)
    assert message in str(ran.exception)


@pytest.mark.parametrize("arguments, message", [(["--api", "kserve"], "--api"), (["--rounds", "0"], "0 rounds")])
def test_what_cannot_be_is_refused_before_anything_starts(arguments, message):
    ran = CliRunner().invoke(app, ["bench", "peer", "--url", "http://127.0.0.1:1", *arguments])
    assert isinstance(ran.exception, CourseError) and message in str(ran.exception)


def test_the_bounds_leave_room_for_the_longest_answers():
    """A piece of llama.cpp's stream with one token has some 400 bytes, with its timings 900."""
    assert openai_server.MOST_BYTES_A_TOKEN > 4 * 900
