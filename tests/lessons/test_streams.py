"""Several clients of a model that answers word by word: what each hears, who leaves, and what is said of faults."""

import queue
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2
from tritonclient.utils import serialize_byte_tensor

from inflight.lessons.sequences import streams
from inflight.triton.client import NoAnswer, Refused, Reply, ServerGone

SERVER = SimpleNamespace(grpc_url="127.0.0.1:8001")


class Wire:
    """Connections that go nowhere; when the last text is sent, what `script` says arrives, in its order.

    A script is a list of (stream, what): a word, a (word, is it the last) pair, None for an empty last response, or an
    exception. What is sent to a stream that has been closed is lost, unless it was on its way by then.
    """

    def __init__(self, monkeypatch, script, streams_in_all):
        self.script, self.streams_in_all = script, streams_in_all
        self.events, self.sent, self.closed = [], [], defaultdict(int)
        monkeypatch.setattr(streams, "Connection", lambda url, arrived: _Connection(self, url, arrived))

    def deliver(self, arrived):
        for number, what in self.script:
            error = what if isinstance(what, Exception) else None
            word, is_last = what if isinstance(what, tuple) else (what, what is None)
            arrived.put(Reply(number, 0.0, None if error else response(word, is_last), error))


class _Connection:
    def __init__(self, wire, url, arrived):
        assert url == SERVER.grpc_url
        self._wire, self._arrived, self._number = wire, arrived, None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def connect(self):
        self._wire.events.append("connect")

    def open_stream(self, number):
        self._number = number
        self._wire.events.append(f"open {number}")

    def send_on_stream(self, model, arrays, **options):
        self._wire.events.append(f"send {self._number}")
        self._wire.sent.append((model, arrays["text"].item().decode(), options))
        if len(self._wire.sent) == self._wire.streams_in_all:
            self._wire.deliver(self._arrived)

    def next_reply(self, timeout_s):
        try:
            return self._arrived.get(timeout=timeout_s)
        except queue.Empty:
            raise NoAnswer(f"Nothing came within {timeout_s} s.") from None

    def finish_stream(self):
        self._wire.events.append(f"finish {self._number}")

    def close(self):
        self._wire.closed[self._number] += 1
        self._wire.events.append(f"close {self._number}")


def response(word, is_last):
    message = service_pb2.ModelInferResponse()
    message.parameters["triton_final_response"].bool_param = is_last
    if word is not None:
        message.outputs.add(name="word", datatype="BYTES", shape=[1])
        message.raw_output_contents.append(serialize_byte_tensor(np.array([word.encode()], object)).item())
    return triton.InferResult(message)


def ask(monkeypatch, script, texts, **options):
    """What is heard, as (stream, word, message) in the order of arrival; and the wire."""
    wire = Wire(monkeypatch, script, len(texts))
    heard = streams.ask(SERVER, "words", texts, **options)
    assert list(heard.columns) == ["stream", "word", "message"]
    return [tuple(row) for row in heard.itertuples(index=False)], wire


def test_words_are_rows_in_the_order_in_which_they_come(monkeypatch):
    script = [(1, "a"), (2, "one"), (1, "ä"), (2, ("two", True)), (1, "c"), (1, None)]
    heard, wire = ask(monkeypatch, script, ["a ä c", "one two"])
    assert heard == [(1, "a", ""), (2, "one", ""), (1, "ä", ""), (2, "two", ""), (1, "c", "")]
    assert wire.sent == [
        ("words", "a ä c", {"enable_empty_final_response": True}),
        ("words", "one two", {"enable_empty_final_response": True}),
    ]


def test_every_stream_is_open_before_the_first_text_is_sent(monkeypatch):
    _, wire = ask(monkeypatch, [(1, None), (2, None), (3, None)], ["a", "b", "c"])
    opened = ["connect", "open 1", "connect", "open 2", "connect", "open 3"]
    assert wire.events[:9] == [*opened, "send 1", "send 2", "send 3"]


def test_an_answer_in_one_piece_is_one_row(monkeypatch):
    heard, _ = ask(monkeypatch, [(1, ("all of it", True))], ["x"])
    assert heard == [(1, "all of it", "")]


def test_an_empty_word_is_a_word(monkeypatch):
    heard, _ = ask(monkeypatch, [(1, ""), (1, "b"), (1, None)], ["x"])
    assert heard == [(1, "", ""), (1, "b", "")]


def test_who_leaves_hears_no_more_and_the_others_hear_all(monkeypatch):
    on_its_way = [(1, "c"), (1, ServerGone("The connection was closed."))]
    script = [(1, "a"), (2, "x"), (1, "b"), *on_its_way, (2, "y"), (2, None)]
    heard, wire = ask(monkeypatch, script, ["a b c", "x y"], leave_after={1: 2})
    assert heard == [(1, "a", ""), (2, "x", ""), (1, "b", ""), (2, "y", "")]
    assert wire.events.index("close 1") < wire.events.index("close 2") and set(wire.closed) == {1, 2}
    assert [event for event in wire.events if event.startswith("finish")] == ["finish 2"]  # 1 has cancelled


def test_who_would_leave_later_than_its_answer_ends_hears_all(monkeypatch):
    heard, _ = ask(monkeypatch, [(1, "a"), (1, None)], ["a"], leave_after={1: 5})
    assert heard == [(1, "a", "")]


def test_an_error_ends_its_own_request_alone(monkeypatch):
    script = [(1, "a"), (1, Refused("The text is too long.")), (2, "x"), (1, "late"), (2, None)]
    heard, _ = ask(monkeypatch, script, ["a", "x"])
    assert heard == [(1, "a", ""), (1, "", "The text is too long."), (2, "x", "")]


@pytest.mark.parametrize(
    ("script", "kind", "message"),
    [
        ([(1, "a"), (2, ServerGone("The server went away."))], ServerGone, "went away"),
        ([(1, "a"), (1, None)], NoAnswer, "Nothing came within 0.05 s"),
    ],
)
def test_what_ends_it_all_is_raised_and_every_connection_is_closed(monkeypatch, script, kind, message):
    wire = Wire(monkeypatch, script, 2)
    with pytest.raises(kind, match=message):
        streams.ask(SERVER, "words", ["a", "b"], timeout_s=0.05)
    assert set(wire.closed) == {1, 2}


def test_no_texts_are_no_rows(monkeypatch):
    heard, wire = ask(monkeypatch, [], [])
    assert heard == [] and wire.events == []
