"""The playground of lesson 03 without a browser: clicks go to the same handlers, and a real server answers."""

import re

import pytest

from inflight.notebook.widgets import Playground
from inflight.triton.client import Client
from inflight.triton.server import Server

pytestmark = pytest.mark.server


@pytest.fixture
def playground(streaming_server):
    return Playground(streaming_server)


def ready_again(playground):
    return not playground.run_button.disabled and playground.stop_button.disabled


def test_run_shows_the_answer_and_its_times(streaming_server, playground):
    playground.prompt.value = "Name the capital of France."
    playground.max_tokens.value, playground.top_k.value = 20, 1
    playground.run_button.click()
    playground.wait()
    with Client(streaming_server.grpc_url) as client:
        assert client.ask("Name the capital of France.", 20).text in playground.text.value
    assert all(word in playground.status.value for word in ("Done", "TTFT", "ITL", "end-to-end", "tokens/s"))
    assert ready_again(playground)


def test_the_figures_of_earlier_runs_stay(playground):
    for max_tokens in (2, 5, 3, 1, 2, 2, 4):
        playground.max_tokens.value = max_tokens
        playground.run_button.click()
        playground.wait()
    rows = re.findall(r"<th>(\d+)</th>.*?<td>(\d) pieces</td>", playground.words.value, re.S)
    assert rows == [("2", "5"), ("3", "3"), ("4", "1"), ("5", "2"), ("6", "2"), ("7", "4")]


def test_the_sliders_reach_the_engine(playground):
    playground.max_tokens.value = 5
    playground.run_button.click()
    playground.wait()
    assert "5 pieces" in playground.status.value


def test_a_second_click_while_an_answer_is_made_does_nothing(playground):
    playground.max_tokens.value = 30
    playground.run_button.click()
    playground.run_button.click()
    playground.wait()
    assert playground._runs == 1 and ready_again(playground)


def test_stop_ends_the_answer_and_keeps_what_was_read(playground):
    playground.prompt.value, playground.max_tokens.value = "Tell me a very long story.", 400
    shown = []
    playground.text.observe(lambda change: (shown.append(change.new), playground.stop_button.click()), "value")
    playground.run_button.click()
    playground.wait()
    count = int(playground.status.value.split("</b> ")[1].split()[0])
    assert "Stopped" in playground.status.value and 1 <= count < 400
    assert shown and ready_again(playground)


def test_a_refused_request_is_told_in_a_sentence(playground):
    playground.prompt.value = " "
    playground.run_button.click()
    playground.wait()
    assert "text_input is empty" in playground.status.value
    assert ready_again(playground)


def test_a_server_that_does_not_start_is_told_in_a_sentence(tmp_path):
    server = Server(tmp_path)
    playground = Playground(server)
    playground.run_button.click()
    playground.wait()
    assert "Failed." in playground.status.value and str(tmp_path) in playground.status.value
    assert playground.frame is None and ready_again(playground)
