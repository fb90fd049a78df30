"""The playground of lesson 03 without a browser: clicks go to the same handlers, and a real server answers."""

import re

import pytest

from inflight.notebook.widgets import Playground
from inflight.triton.client.client import Client

pytestmark = pytest.mark.server


@pytest.fixture
def playground(streaming_server):
    return Playground(streaming_server)


def ready_again(playground):
    return not playground.run_button.disabled and playground.stop_button.disabled


def run(playground):
    playground.run_button.click()
    playground.run_button.click()  # does nothing while an answer is made
    playground.wait()
    assert ready_again(playground)


def test_run_shows_the_answer_and_its_times(streaming_server, playground):
    playground.prompt.value = "Name the capital of France."
    playground.max_tokens.value, playground.top_k.value = 20, 1
    run(playground)
    with Client(streaming_server.grpc_url) as client:
        assert client.ask("Name the capital of France.", 20).text in playground.text.value
    assert all(word in playground.status.value for word in ("Done", "TTFT", "TPOT", "end-to-end", "pieces/s"))
    assert playground._runs == 1


def test_the_figures_of_earlier_runs_stay(playground):
    for max_tokens in (2, 5, 3, 1, 2, 2, 4):
        playground.max_tokens.value = max_tokens
        run(playground)
    rows = re.findall(r"<th>(\d+)</th>.*?<td>(\d pieces?)</td>", playground.words.value, re.S)
    said = ["5 pieces", "3 pieces", "1 piece", "2 pieces", "2 pieces", "4 pieces"]
    assert rows == list(zip("234567", said))


def test_stop_ends_the_answer_and_keeps_what_was_read(playground):
    playground.prompt.value, playground.max_tokens.value = "Tell me a very long story.", 400
    shown = []
    playground.text.observe(lambda change: (shown.append(change.new), playground.stop_button.click()), "value")
    playground.run_button.click()
    playground.wait()
    count = int(playground.status.value.split("</b> ")[1].split()[0])
    assert "Stopped" in playground.status.value and 1 <= count < 400
    assert shown and ready_again(playground)


def test_what_goes_wrong_is_told_in_a_sentence(playground):
    playground.prompt.value = " "
    run(playground)
    assert "text_input is empty" in playground.status.value
    assert playground.frame is None
