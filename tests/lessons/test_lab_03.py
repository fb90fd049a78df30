"""The checks of lab 03 find the mistakes that learners make, and say which: on lists, and on the real server."""

import dataclasses
import random
import runpy
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import nbformat
import pandas as pd
import pytest

from inflight.lessons.serve import grading as serve
from inflight.notebook import apart, checks, mine
from inflight.notebook.checks import check
from inflight.notebook.findings import NOT_YET
from inflight.notebook.findings import said as said_of_finding
from inflight.paths import COURSE
from inflight.triton import repository, telemetry
from inflight.triton.client import Client
from inflight.triton.server import Server

pytestmark = pytest.mark.server

COURSES = mine.COURSES_OWN / "client.py"
MODELS = serve.MODELS


@pytest.fixture(autouse=True)
def as_in_a_lab(monkeypatch):
    """Checks report and do not raise, whatever the run that these tests are part of has set."""
    monkeypatch.setenv("COURSE_STRICT", "0")


@pytest.fixture(scope="module")
def server(course_engine, tmp_path_factory):
    """As the lab starts it."""
    folder = tmp_path_factory.mktemp("lab")
    repo = repository.assemble(
        folder / "repo", course_engine, decoupled_mode=True, iteration_log_path=folder / "iterations.jsonl"
    )
    with Server(repo) as started:
        yield started


# 3.1 ------------------------------------------------------------------------------------------------------------------


def right_felt(times_s):
    gaps = len(times_s) - 1
    return {
        "ttft_ms": times_s[0] * 1000,
        "itl_ms": (times_s[-1] - times_s[0]) / gaps * 1000 if gaps else None,
        "end_to_end_ms": times_s[-1] * 1000,
        "tokens_per_s": len(times_s) / times_s[-1],
    }


def median_gap_ms(times_s):
    return 1000 * pd.Series(times_s).diff().median()


@pytest.mark.parametrize(
    ("felt", "says"),
    [
        (lambda times_s: dict.fromkeys(right_felt(times_s), 5700.0), "is wanted. From where to where"),
        (lambda times_s: {name: (value or 0) / 1e3 for name, value in right_felt(times_s).items()}, "in seconds"),
        (lambda times_s: {**right_felt(times_s), "itl_ms": times_s[-1] / len(times_s) * 1000}, "gaps between them"),
        (lambda times_s: {**right_felt(times_s), "itl_ms": median_gap_ms(times_s)}, "From where to where"),
        (lambda times_s: {**right_felt(times_s), "end_to_end_ms": (times_s[-1] - times_s[0]) * 1000}, "is sent"),
        (lambda times_s: {**right_felt(times_s), "itl_ms": right_felt(times_s)["itl_ms"] or 0}, "has no gaps"),
        (lambda times_s: {**right_felt(times_s), "itl_ms": (times_s[1] - times_s[0]) * 1000}, "IndexError"),
        (lambda times_s: {**right_felt(times_s), "tokens_per_s": len(times_s)}, "the number of pieces"),
    ],
)  # fmt: skip
def test_a_wrong_measure_gets_its_hint(felt, says):
    result = check("3.1", felt)
    assert result.status in ("wrong", "partly") and says in repr(result)


def test_a_right_measure_is_done():
    assert check("3.1", right_felt).status == "done"
    assert check("3.1", lambda times_s: pd.Series(right_felt(times_s), dtype=float)).status == "done"
    assert check("3.1", lambda times_s: pd.Series(right_felt(times_s), dtype=float).round(2)).status == "done"
    assert check("3.1", lambda times_s: None).status == check("3.1", lambda times_s: {}).status == NOT_YET


# 3.2 ------------------------------------------------------------------------------------------------------------------

TEXT, TIMES, REFUSAL, END = "the text", "the times", "a refusal", "the end of the request"
STOP, OPTIONS = "cancel", "options"
CANCEL = "        self._connection.stop_stream(cancel_requests=True)\n"
READS = """            if word in stream.answer.text:
                break
"""
RETURNS = "    return stream.answer.text\n"
CLOSE = "        self._connection.close()\n"
ENDS = "stream.answer.text.endswith(word)"
RAISES = "                raise error\n"
NOTES = "times_s.append(after_s)"
ALL_COMPUTED = "tokens computed, of 120"
# What is changed in the course's client; the part that is wrong then, and the words it gets.
WRONG_CLIENTS = {
    "nothing is read": (READS, "            break\n", END, "read_until returns the whole text"),
    "max_tokens left out": ('"INT32", max_tokens)', '"INT32", 8)', TEXT, "the server's text is"),
    "a whole answer": ('("BOOL", True)', '("BOOL", False)', TEXT, "in 1 pieces; the server sends"),
    "pieces lose their blanks": ("text[0].decode())", "text[0].decode().strip())", TEXT, "and ask gives"),
    "one time for all": (NOTES, "times_s = [after_s] * len(self.answer.pieces)", TIMES, "with a time of their own: 1"),
    "times since the first": (
        NOTES,
        "times_s.append(after_s if self.answer.times_s else 0.0)",
        TIMES,
        "for the first piece alone",
    ),
    "times of the reader": (NOTES, "times_s.append(self._now_s())", TIMES, "in the callback"),
    "milliseconds": (NOTES, "times_s.append(after_s * 1000)", TIMES, "seconds since the request"),
    "one time too many": (NOTES, "times_s += [after_s] * 2", TIMES, "numbers for"),
    "an error is the end": (RAISES, "                return\n", REFUSAL, "your client says nothing"),
    "the word at the end": (
        READS,
        READS.replace("word in stream.answer.text", ENDS),
        END,
        "Up to the piece",
    ),
    "the word in a piece": (READS, READS.replace(".text", ".pieces[-1]"), END, "Up to the piece"),
    "cut at the word": (
        RETURNS,
        "    return stream.answer.text.split(word)[0] + word\n",
        END,
        "read_until returns the whole text",
    ),
    "the stream waits for its end": (CANCEL, CANCEL.replace("cancel_requests=True", ""), END, ALL_COMPUTED),
    "cancel does nothing": (CANCEL + CLOSE, "        _left.append(self)\n\n\n_left = []\n", END, ALL_COMPUTED),
    "cancel does nothing, read_until does": (
        CANCEL + CLOSE,
        "        pass\n\n    def end(self):\n" + CANCEL + CLOSE,
        STOP,
        "for 3 pieces and a cancel",
    ),
    "cancel but once": (CLOSE, CLOSE + "        del self._connection\n", STOP, "AttributeError"),
    "options are left out": ("    values |= {name", "    {name", OPTIONS, "pass the options on"),
    "no options": (
        "def ask(url, prompt, max_tokens=64, **options)",
        "def ask(url, prompt, max_tokens=64, options={})",
        OPTIONS,
        "unexpected keyword argument",
    ),
}


def changed(tmp_path, old, new):
    text = COURSES.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path = tmp_path / "client.py"
    path.write_text(text.replace(old, new), encoding="utf-8")
    return path


def said_of(path, server, part):
    """What is said of one part of a client, without the process around it."""
    findings = serve._client((str(path), apart._as_json(server)), random.Random(7))
    return said_of_finding(checks._found(findings[part], str(path)))


@pytest.mark.parametrize("name", WRONG_CLIENTS)
def test_a_wrong_client_gets_its_hint(name, server, tmp_path):
    old, new, part, says = WRONG_CLIENTS[name]
    said = said_of(changed(tmp_path, old, new), server, part)
    assert says in str(said), said


@pytest.mark.parametrize(
    ("old", "new", "right"),
    [
        ("            is_final = parameters", "            is_over = parameters", set()),
        (RAISES, "                continue\n", {TEXT, TIMES}),
    ],
)
def test_a_client_that_waits_for_ever_is_ended_and_what_was_right_before_stays(
    old, new, right, server, tmp_path, monkeypatch
):
    monkeypatch.setitem(checks.graders, "3.2", dataclasses.replace(checks.graders["3.2"], within_s=10))
    result = check("3.2", (changed(tmp_path, old, new), server))
    assert "client.py, line" in result.hint and "a wait for what never comes?" in result.hint
    assert {name for name, status in result.parts.items() if status == "done"} == right


STOPS_BY_ID = '''
    def cancel(self):
        """TensorRT-LLM's own way: a second request with the same id, and `stop`."""
        zero = {"input_ids": 0, "input_lengths": 0, "request_output_len": 0}
        made = []
        for name, datatype, value in [*((name, "INT32", 0) for name in zero), ("stop", "BOOL", True)]:
            array = np.array([[value]], triton_to_np_dtype(datatype))
            made.append(triton.InferInput(name, array.shape, datatype))
            made[-1].set_data_from_numpy(array)
        if self._connection is not None:
            self._connection.async_stream_infer("tensorrt_llm", made, request_id=self._id)
            self._connection.close()
            self._connection = None


def ask('''


def test_the_courses_client_and_one_that_stops_by_id_are_done(server, tmp_path):
    text = COURSES.read_text(encoding="utf-8")
    text = text[: text.index("\n    def cancel")] + STOPS_BY_ID + text.partition("\ndef ask(")[2]
    text = text.replace(
        "        self._arrived = queue", "        self._id = str(id(self))\n        self._arrived = queue"
    )
    text = text.replace(
        '            "ensemble",\n', '            "ensemble",\n            request_id=self._id,\n            inputs='
    )
    other = tmp_path / "by_id.py"
    other.write_text(text.replace("inputs=            tensors", "inputs=tensors"), encoding="utf-8")
    for path in (COURSES, other):
        result = check("3.2", (path, server))
        assert result.status == "done", result
        assert result.figures[-1].value <= result.figures[-1].at_most and result.seed is not None


def test_the_labs_own_file_is_not_done_yet_and_its_solution_is_the_courses_part(server, tmp_path):
    for folder, name in (("labs", "03_serve_lab"), ("solutions", "03_serve_solution")):
        cells = nbformat.read(COURSE / folder / f"{name}.ipynb", as_version=4).cells
        [source] = [cell.source for cell in cells if cell.source.startswith("%%writefile")]
        (tmp_path / f"{folder}.py").write_text(source.partition("\n")[2] + "\n", encoding="utf-8")
    assert (tmp_path / "solutions.py").read_text() == COURSES.read_text()
    result = check("3.2", (tmp_path / "labs.py", server))
    assert result.status == NOT_YET


def test_a_file_that_is_no_python_is_said_so(server, tmp_path):
    (tmp_path / "client.py").write_text("def ask(:")
    assert "SyntaxError" in check("3.2", (tmp_path / "client.py", server)).hint


# 3.3 ------------------------------------------------------------------------------------------------------------------


def at_once(
    server, number, max_tokens, num_threads=None, prompt="Tell me about the number {}.", whole=False, **options
):
    with Client(server.grpc_url) as client, ThreadPoolExecutor(num_threads or number) as readers:

        def ask(reader):
            if whole:
                return client.ask(prompt.format(reader), max_tokens, **options)
            return client.stream(prompt.format(reader), max_tokens, **options).read()

        return list(readers.map(ask, range(number)))


def waited(answers):
    return sum(one.times_s[0] > min(other.times_s[-1] for other in answers) for one in answers)


def fit(table, max_ttft_ms, max_itl_ms):
    rows = table.sort_values("readers")
    holds = (rows["ttft_ms"] <= max_ttft_ms) & (rows["itl_ms"] <= max_itl_ms)
    return int(rows["readers"][holds.cummin()].max()) if holds.iloc[0] else 0


def not_written(*_):
    return None


def any_that_holds(table, max_ttft_ms, max_itl_ms):
    holds = (table["ttft_ms"] <= max_ttft_ms) & (table["itl_ms"] <= max_itl_ms)
    return int(table["readers"][holds].max()) if holds.any() else 0


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda server, number, tokens: at_once(server, number, tokens, 1, end_id=-1), "readers in one iteration"),
        (lambda server, number, tokens: at_once(server, 1, tokens, end_id=-1) * number, "readers in one iteration"),
        (lambda server, number, tokens: at_once(server, 8, tokens, end_id=-1), "gave 8 answers"),
        (lambda server, number, tokens: [], "Your answer could not be checked|gave 0 answers"),
        (lambda server, number, tokens: at_once(server, number, tokens // 2, end_id=-1), "tokens computed for"),
        (lambda server, number, tokens: at_once(server, number, tokens, 2, end_id=-1), "readers in one iteration"),
        (lambda server, number, tokens: at_once(server, number, tokens, whole=True, end_id=-1), "in pieces: 0"),
        (lambda server, number, tokens: at_once(server, number, tokens, prompt="Say.", end_id=-1), "different answers"),
    ],
)  # fmt: skip
def test_readers_who_do_not_ask_at_once_are_told(ask, says, server):
    result = check("3.3", (lambda number, tokens: ask(server, number, tokens), waited, fit, server))
    assert result.parts == {"at_once": "wrong", "who_waited": "done", "readers_that_fit": "done"}, result
    assert any(words in result.hint for words in says.split("|")), result


@pytest.mark.parametrize(
    "who",
    [
        lambda answers: 0,
        len,
        lambda answers: max(0, len(answers) - 8),
        lambda answers: sum(one.times_s[0] > max(other.times_s[-1] for other in answers) for one in answers),
        lambda answers: sum(one.times_s[0] > answers[0].times_s[-1] for one in answers),
        lambda answers: [one.times_s[0] for one in answers],
    ],
)
def test_who_waited_is_not_guessed(who, server):
    result = check("3.3", (not_written, who, not_written, server))
    assert "had no token before somebody else had all" in result.hint, result


@pytest.mark.parametrize(
    "fits",
    [
        lambda table, *_: table["readers"].max(),
        lambda table, *_: 8,
        lambda table, *_: 0,
        any_that_holds,
        lambda table, ttft, itl: fit(table, ttft, 1e9),
        lambda table, ttft, itl: fit(table.assign(readers=range(len(table))), ttft, itl),
    ],
)
def test_a_number_of_readers_that_is_guessed_is_told(fits, server):
    assert "this table allows" in check("3.3", (not_written, not_written, fits, server)).hint


def test_right_readers_are_done_with_their_own_client_too(server):
    own = SimpleNamespace(**runpy.run_path(str(COURSES)))

    def ask(number, tokens):
        with ThreadPoolExecutor(number) as readers:
            return list(readers.map(lambda n: own.ask(server.grpc_url, f"Say {n}.", tokens, end_id=-1), range(number)))

    assert check("3.3", (ask, waited, fit, server)).status == "done"
    assert check("3.3", (not_written, not_written, not_written, server)).status == NOT_YET


# 3.4 ------------------------------------------------------------------------------------------------------------------


def counted(server):
    return {model: telemetry.statistics(server.http_url, model).executions for model in MODELS}


def calls_of(server, send):
    before = telemetry.settled(lambda: counted(server))
    send()
    after = telemetry.settled(lambda: counted(server))
    return {model: after[model] - before[model] for model in MODELS}


def without_subtraction(server, send):
    send()
    return telemetry.settled(lambda: counted(server))


def sends_twice(server, send):
    send()
    return calls_of(server, send)


@pytest.mark.parametrize(
    ("calls", "says"),
    [
        (lambda server, send: dict.fromkeys(MODELS, 1), "called send 0 times"),
        (lambda server, send: send() or dict.fromkeys(MODELS, 1), "calls of "),
        (lambda server, send: send() or {}, "calls of preprocessing: none"),
        (lambda server, send: (counted(server) and send()) or dict.fromkeys(MODELS, 0), "where exactly 1 is wanted"),
        (without_subtraction, "Subtract what"),
        (sends_twice, "called send 2 times"),
        (lambda server, send: {**calls_of(server, send), "postprocessing": 1}, "calls of postprocessing: 1"),
    ],
)  # fmt: skip
def test_calls_that_are_not_counted_are_told(calls, says, server):
    result = check("3.4", (lambda send: calls(server, send), server))
    assert result.status in ("wrong", "partly") and says in result.hint, result


def test_counted_calls_are_done(server):
    assert check("3.4", (lambda send: calls_of(server, send), server)).status == "done"
    assert check("3.4", (lambda send: None, server)).status == NOT_YET
