"""The dashboard without a browser: clicks go to the same handlers; its clock is a list of times, so no test waits."""

import itertools
import json
import os
import signal
import threading

import ipywidgets
import plotly.graph_objects as go
import pytest
from plotly.offline import get_plotlyjs

from inflight.bench import trace_run
from inflight.bench.workload import TimedRequest
from inflight.errors import CourseError
from inflight.lessons import iterative_gpt2, kv_cache
from inflight.lessons.iterative_gpt2 import gpt2_client
from inflight.lessons.iterative_gpt2.gpt2_client import Token
from inflight.notebook.charts.display import PLOTLY_MIME
from inflight.notebook.widgets import dashboard
from inflight.notebook.widgets.dashboard import DRAW_EVERY_S, Dashboard, Frame
from inflight.triton import repository, telemetry
from inflight.triton.client.client import Client
from inflight.triton.serving.server import Server
from tests.engines import active_requests, wait_until


def frame(number):
    return Frame(go.Figure(go.Bar(x=["frames"], y=[number])), f"Frame number {number} of a bar that grows.")


def frames(count):
    def work(**_):
        for number in range(count):
            yield frame(number)

    return work


def drawn(board):
    """The numbers of the frames that the page gets from now on."""
    numbers = []
    board.words.observe(lambda change: numbers.append(int(change.new.split()[2])), "value")
    return numbers


def shown(board):
    """The number of the frame whose figure the page has."""
    return json.loads(board.picture.value)["data"][0]["y"][0]


def ready_again(board):
    return not board.run_button.disabled and board.stop_button.disabled


class Held:
    """Work that yields a frame, then waits until the test lets it go on; it notes whether it was closed."""

    def __init__(self):
        self.calls, self.closed = [], 0
        self.first_frame, self.go_on = threading.Event(), threading.Event()

    def __call__(self, **values):
        self.calls.append(values)
        try:
            for number in itertools.count():
                yield frame(number)
                self.first_frame.set()
                self.go_on.wait(60)
        finally:
            self.closed += 1


@pytest.fixture
def held():
    work = Held()
    slider = ipywidgets.IntSlider(3, 1, 9)
    board = Dashboard({"tokens": slider}, work)
    yield board, work
    board.stop()
    work.go_on.set()
    board.wait()


def test_a_run_ends_with_the_last_frame_drawn():
    board = Dashboard({}, frames(3))
    assert board.run() == board.frame
    assert board.words.value.startswith("Frame number 2") and shown(board) == 2
    assert "Done" in board.status.value and ready_again(board)


def test_run_and_stop_may_be_clicked_again_and_again(held):
    board, work = held
    for runs, tokens in enumerate((5, 7), 1):
        work.first_frame.clear()
        work.go_on.clear()
        board.controls["tokens"].value = tokens
        for _ in range(3):  # the later clicks do nothing
            board.run_button.click()
        assert work.first_frame.wait(60)
        assert work.calls[-1] == {"tokens": tokens}, "the controls are the parameters of the work"
        assert board.controls["tokens"].disabled and board.run_button.disabled and not board.stop_button.disabled
        board.stop_button.click()
        board.stop_button.click()
        work.go_on.set()
        board.wait()
        assert len(work.calls) == work.closed == runs
        assert "Stopped" in board.status.value and not board.controls["tokens"].disabled and ready_again(board)
        assert shown(board) == board.frame.figure.data[0].y[0], "the picture stays"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (CourseError("The engine is <too> small."), "<b>Failed.</b> The engine is &lt;too&gt; small."),
        (KeyError("blocks"), "<b>Unexpected KeyError.</b>"),
    ],
)
def test_an_error_is_shown_closes_the_work_and_is_gone_after_the_next_run(error, told):
    closed = []

    def failing():
        try:
            yield frame(7)
            raise error
        finally:
            closed.append(True)

    works = iter([failing, failing, frames(1)])
    board = Dashboard({}, lambda: next(works)())
    board.run_button.click()
    board.wait()
    assert told in board.status.value and closed == [True] and ready_again(board)
    assert board.frame.alt.startswith("Frame number 7")
    with pytest.raises(type(error)):
        board.run()
    board.run()
    assert board.frame.alt.startswith("Frame number 0") and "Done" in board.status.value


def test_no_more_than_ten_frames_a_second_are_drawn_and_the_last_always(monkeypatch):
    now = 0.0
    monkeypatch.setattr(dashboard, "monotonic", lambda: now)

    def work():
        nonlocal now
        for number in range(101):
            yield frame(number)
            now += DRAW_EVERY_S / 8  # eighty frames a second

    board = Dashboard({}, work)
    numbers = drawn(board)
    board.run()
    assert numbers[-1] == 100
    assert all(later - earlier >= 8 for earlier, later in itertools.pairwise(numbers[:-1]))
    assert len(numbers) >= 12


def test_a_view_stays_through_a_run_and_not_into_the_next(monkeypatch):
    monkeypatch.setattr(dashboard, "DRAW_EVERY_S", 0.0)
    board, views = Dashboard({}, frames(3)), []
    board.picture.observe(lambda change: views.append(json.loads(change.new)["layout"]["uirevision"]), "value")
    board.run()
    assert views == [1, 1, 1]
    board.run()
    assert views == [1, 1, 1, 2, 2, 2]


def test_a_cell_that_runs_it_waits_for_the_run_that_a_click_has_begun(held):
    board, work = held
    board.run_button.click()
    assert work.first_frame.wait(60)
    board.stop_button.click()
    board.words.observe(lambda _: board.stop_button.click(), "value")  # the second run ends at its first frame
    work.go_on.set()
    board.run()
    assert len(work.calls) == work.closed == 2


def test_a_cell_that_is_interrupted_leaves_no_run_behind():
    def work():
        try:
            for number in itertools.count():
                yield frame(number)
                if number == 3:
                    os.kill(os.getpid(), signal.SIGINT)
                threading.Event().wait(0.01)
        finally:
            closed.append(True)

    closed, board = [], Dashboard({}, work)
    with pytest.raises(KeyboardInterrupt):
        board.run()
    assert closed == [True] and ready_again(board)


def test_a_stored_notebook_keeps_the_last_picture_and_its_words():
    board = Dashboard({}, frames(2))
    assert "Run" in board._repr_mimebundle_()["text/html"]
    board.run()
    bundle = board._repr_mimebundle_()
    assert bundle[PLOTLY_MIME]["data"][0]["y"] == [1] and "text/html" not in bundle
    assert "Frame number 1" in bundle["text/plain"]


def test_the_page_gets_plotly_when_it_asks_and_needs_no_network():
    picture, sent = Dashboard({}, frames(1)).picture, []
    picture.send = lambda content, buffers: sent.append((content, buffers))
    for asked in ("plotly.js", {"something": "else"}, None):
        picture._handle_custom_msg(asked, [])
    assert sent == [("plotly.js", [get_plotlyjs().encode()])]
    assert "http" not in picture._esm
    # anywidget gives a module two seconds to load, and a page all states of a notebook's widgets four.
    assert len(json.dumps(picture.get_state(), default=str)) < 20_000


# With a real server ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(small_engine, tmp_path_factory):
    """A server of the small model, and its iteration log."""
    folder = tmp_path_factory.mktemp("served")
    repo = repository.assemble(
        folder / "repo", small_engine, apply_chat_template=False, iteration_log_path=folder / "iterations.jsonl"
    )
    with Server(repo, drain_s=0) as server:
        yield server, folder / "iterations.jsonl"


def trace(number, tokens=64):
    return [TimedRequest("a b c", tokens, 0.0, 5)] * number


@pytest.mark.server
def test_a_trace_is_followed_and_stop_ends_its_requests_in_the_engine_too(served):
    server, log_path = served
    with Client(server.grpc_url) as client:
        *_, whole = parts = list(trace_run.follow(client, trace(24), log_path))
        lengths = [len(part.log) for part in parts]
        assert lengths == sorted(lengths) and whole.log["iteration"].tolist() == list(range(1, lengths[-1] + 1))
        assert all(part.requests.empty for part in parts[:-1])
        assert whole.requests["output_len"].tolist() == [64] * 24

        before = len(telemetry.iterations(log_path))
        board = Dashboard({}, lambda: (frame(len(part.log)) for part in trace_run.follow(client, trace(400), log_path)))
        board.words.observe(lambda _: board.stop_button.click(), "value")
        board.run()
        assert "Stopped" in board.status.value
        wait_until(lambda: active_requests(server) == 0, "no request is left in the engine")
        assert len(telemetry.iterations(log_path)) - before < 400 * 64 / 4
        assert trace_run.run(client, trace(1), log_path).requests["output_len"].sum() == 64


@pytest.mark.server
def test_a_server_that_is_gone_is_told_in_a_sentence(tmp_path):
    with Client("127.0.0.1:9") as client:
        board = Dashboard({}, lambda: (frame(0) for _ in trace_run.follow(client, trace(2), tmp_path / "none.jsonl")))
        board.run_button.click()
        board.wait()
    assert "went away after 0 of 2 answers" in board.status.value and ready_again(board)


@pytest.mark.server
def test_the_board_of_lesson_05_edits_loads_runs_and_keeps_the_run_before(served):
    server, log_path = served
    board = kv_cache.board(server, trace(12), log_path)
    for policy in ("max_utilization", "guaranteed_no_evict"):
        board.controls["policy"].value = policy
        frame = board.run()
    config = repository.read_config(server.repo / "tensorrt_llm" / repository.CONFIG)
    assert repository.get_parameter(config, "batch_scheduler_policy") == "guaranteed_no_evict"
    assert "before: max_utilization, 768 tokens:" in frame.alt and "; guaranteed_no_evict, 768 tokens:" in frame.alt
    assert len(board.picture.value) < 60_000


# The race -------------------------------------------------------------------------------------------------------------


class Elsewhere:
    """As much of an attached server as a board asks for that sends it nothing."""

    grpc_url = "127.0.0.1:1"

    def start(self):
        return self


ELSEWHERE = Elsewhere()  # boards refer to theirs weakly


def lines(board):
    """The tokens of each line of the picture, by its panel."""
    panels = {}
    for trace in json.loads(board.picture.value)["data"]:
        if trace["mode"] == "lines":
            panels.setdefault(trace["xaxis"], []).append(trace["y"])
    return panels


def test_a_race_is_drawn_above_its_texts_while_it_goes_on_and_the_one_before_stays_above(monkeypatch):
    def race(_url, _model, prompts, max_tokens, _offset_s):
        for token in range(1, max_tokens + 1):
            yield [Token(stream, token, 0.1 * token, "<") for stream in range(1, len(prompts) + 1)]

    monkeypatch.setattr(gpt2_client, "race", race)
    board, pictures = iterative_gpt2.board(ELSEWHERE), []
    board.picture.observe(lambda change: pictures.append(lines(board)), "value")
    board.controls["max_tokens"].value = 8
    board.run()
    assert pictures[-1] == {"x": [list(range(9))] * 2}
    assert len(pictures[0]["x"][0]) < 9, "it was drawn before the race was over"
    assert board.words.value.count(f"<b>{8 * '&lt;'}</b>") == 2 and gpt2_client.PROMPTS[1] in board.words.value
    board.controls["streams"].value = 3
    board.run()
    assert {panel: len(of) for panel, of in lines(board).items()} == {"x": 2, "x2": 3}
    titles = [note["text"] for note in json.loads(board.picture.value)["layout"]["annotations"]]
    assert "before: simple-gpt2" in titles[0] and "now: simple-gpt2" in titles[1]
