"""The checks of lab 04 find the mistakes that learners make, and say which; the real server agrees with them."""

import re
import textwrap

import numpy as np
import pandas as pd
import pytest

from inflight.bench import trace_run
from inflight.bench.workload import TimedRequest
from inflight.notebook.checks import check
from inflight.paths import COURSE
from inflight.triton import repository
from inflight.triton.client import Client
from inflight.triton.server import Server

COURSES = (COURSE / "assets" / "parts" / "scheduler.py").read_text()  # lab 05's, which batches in flight too
SOLUTIONS = (COURSE / "lessons" / "04_batching" / "lab.py").read_text()
WINS, DRAWS = ([128] + [8] * 7) * 3, [32] * 8 + [64] * 8 + [128] * 8


@pytest.fixture(autouse=True)
def as_in_a_lab(monkeypatch):
    """Checks report and do not raise; the hidden cases are the same in each test run."""
    monkeypatch.setenv("COURSE_STRICT", "0")
    monkeypatch.setenv("INFLIGHT_SEED", "48151")


def scheduler(body):
    """The file of a scheduler whose method `schedule` does this."""
    method = textwrap.indent(textwrap.dedent(body).strip(), " " * 8)
    return f"from inflight.engine import Plan\n\n\nclass Scheduler:\n    def schedule(self, now):\n{method}\n"


# With these, a body has `running`, `waiting` and what several rules have in common.
BEGIN = "running, waiting, plan = list(now.running), list(now.waiting), Plan()\n"
COMPUTE = """
for request in running:
    plan.compute[request.id] = request.pending_tokens
return plan
"""
STATIC = scheduler(
    BEGIN
    + """
if not running:
    running = waiting[:now.max_batch_size]
    plan.admit = [request.id for request in running]
"""
    + COMPUTE
)
IN_FLIGHT = scheduler(
    BEGIN
    + """
room = now.max_num_tokens - sum(request.pending_tokens for request in running)
while waiting and len(running) < now.max_batch_size and waiting[0].pending_tokens <= room:
    running.append(waiting.pop(0))
    room -= running[-1].pending_tokens
    plan.admit.append(running[-1].id)
"""
    + COMPUTE
)
ONE_AT_A_TIME = scheduler(
    BEGIN
    + """
if not running:
    running = waiting[:1]
    plan.admit = [running[0].id]
"""
    + COMPUTE
)
NO_LIMIT_OF_TOKENS = IN_FLIGHT.replace("room = now.max_num_tokens", "room = 10**6")
RUNNING_FORGOTTEN = IN_FLIGHT.replace(" - sum(request.pending_tokens for request in running)", "")
OVERTAKES = scheduler(
    BEGIN
    + """
room = now.max_num_tokens - sum(request.pending_tokens for request in running)
for request in waiting:
    if len(running) < now.max_batch_size and request.pending_tokens <= room:
        running.append(request)
        plan.admit.append(request.id)
        room -= request.pending_tokens
"""
    + COMPUTE
)
LAST_FIRST = IN_FLIGHT.replace("waiting[0]", "waiting[-1]").replace("waiting.pop(0)", "waiting.pop()")
TOO_MANY = STATIC.replace("waiting[:now.max_batch_size]", "waiting")
HALF = STATIC.replace("waiting[:now.max_batch_size]", "waiting[:now.max_batch_size // 2]")
OUT_OF_TURN = STATIC.replace("waiting[:now.max_batch_size]", "waiting[-now.max_batch_size:]")
TAKEN = "from inflight.engine.scheduler import GuaranteedNoEvict as Scheduler\n"


def solution_of(name):
    """The file that a cell of the solution writes."""
    cell = re.search(rf"^# %%writefile \S+/{name}\n(.*?)^# %%$", SOLUTIONS, re.M | re.S)[1]
    return re.sub(r"^ *# (BEGIN|END) SOLUTION\n|^ *# LAB:.*\n", "", cell, flags=re.M)


@pytest.fixture
def checked(tmp_path):
    """What the check says; a text is first written into a file."""

    def checked(exercise, answer):
        if isinstance(answer, str):
            path = tmp_path / "my_scheduler.py"
            path.write_text(answer)
            answer = path
        return check(exercise, answer)

    return checked


@pytest.mark.parametrize(
    ("exercise", "answer"),
    [
        ("4.1", lambda log, slots: log["empty_seats"].sum() / (slots * len(log))),
        ("4.1", lambda log, slots: float(np.mean(log.empty_seats) / slots)),
        ("4.1", lambda log, slots: 1 - log["scheduled"].mean() / slots),
        ("4.1", lambda log, slots: np.float32(round(1 - log["scheduled"].mean() / slots, 2))),
        ("4.1", lambda log, slots: pd.Series(log["empty_seats"]).div(slots).mean()),
        ("4.2", STATIC),
        ("4.2", solution_of("static.py")),
        ("4.3", IN_FLIGHT),
        ("4.3", COURSES),
        ("4.3", TAKEN),
        ("4.3", solution_of("scheduler.py")),
        ("4.4", (WINS, DRAWS)),
        ("4.4", (tuple(WINS), [8] * 8 + [128] * 16)),
        ("4.4", (np.array(WINS[::-1]), pd.Series(DRAWS, dtype=float))),
        ("4.5", lambda rows: (rows["last_s"] - rows["sent_s"]).sum() / (rows["last_s"].max() - rows["sent_s"].min())),
        ("4.5", lambda rows: len(rows) / np.ptp([*rows.sent_s, *rows.last_s]) * rows["latency_ms"].mean() / 1000),
    ],
)
def test_a_right_way_is_done(checked, exercise, answer):
    result = checked(exercise, answer)
    assert result.status == "done", repr(result)


@pytest.mark.parametrize(
    ("exercise", "answer", "says"),
    [
        ("4.1", lambda log, slots: 0.5, ""),
        ("4.1", lambda log, slots: log["scheduled"].mean() / slots, "the waste is the rest"),
        ("4.1", lambda log, slots: log["empty_seats"].sum(), "between 0 and 1"),
        ("4.1", lambda log, slots: 1 - log["generation_tokens"].mean() / slots, "in all iterations together"),
        ("4.1", lambda log, slots: log["empty"].sum(), "KeyError"),
        ("4.1", 0.3, "TypeError"),
        ("4.2", IN_FLIGHT, "exactly 0"),
        ("4.2", TOO_MANY, "max_batch_size"),
        ("4.2", HALF, "A batch takes as many as wait"),
        ("4.2", STATIC.replace("return plan", "plan"), "it must return a Plan"),
        ("4.2", OUT_OF_TURN, "now.waiting"),
        ("4.2", STATIC.replace("now.running", "now.runing", 1), "line 6: AttributeError"),
        ("4.2", "class Scheduler:\n    x = (\n", "my_scheduler.py, line 2"),
        ("4.2", COURSE / "no_such_file.py", "no file"),
        ("4.3", STATIC, ""),
        ("4.3", NO_LIMIT_OF_TOKENS, "my_scheduler.py, line 5"),
        ("4.3", RUNNING_FORGOTTEN, "max_num_tokens is 256"),
        ("4.3", OVERTAKES, "short prompts ✓, long prompts not right yet"),
        ("4.3", LAST_FIRST, "now.waiting"),
        ("4.3", "class Scheduler: ...\n", "schedule(self, now)"),
        ("4.4", ([64] * 24, [64] * 24), "in wins: 1, where at least 2.5"),
        ("4.4", (WINS, WINS), "in draws: 1, where at least 4"),
        ("4.4", (DRAWS, DRAWS), "wins not right yet, draws ✓"),
        ("4.4", (WINS * 2, DRAWS), "48"),
        ("4.4", ([1000] + [1] * 23, DRAWS), "from 1 to 1000"),
        ("4.5", lambda rows: 8.0, ""),
        ("4.5", lambda rows: rows["latency_ms"].sum() / np.ptp([*rows.sent_s, *rows.last_s]), "milliseconds"),
        ("4.5", lambda rows: rows["latency_ms"].sum() / 1000 / rows["last_s"].max(), "not at 0"),
        ("4.5", lambda rows: rows["latency_ms"].mean() / 1000, ""),
    ],
)
def test_a_mistake_is_told_by_its_cause(checked, exercise, answer, says):
    result = checked(exercise, answer)
    assert result.status in ("wrong", "partly") and says in repr(result), repr(result)


@pytest.mark.parametrize(
    ("exercise", "answer"),
    [
        ("4.1", lambda log, slots: None),
        ("4.2", ONE_AT_A_TIME),
        ("4.3", ONE_AT_A_TIME),
        ("4.4", (None, None)),
        ("4.5", lambda rows: None),
    ],
)
def test_an_untouched_exercise_is_not_done_yet(checked, exercise, answer):
    assert checked(exercise, answer).status == "not done yet"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_right_and_wrong_do_not_depend_on_the_hidden_cases(checked, seed, monkeypatch):
    monkeypatch.setenv("INFLIGHT_SEED", str(seed))
    assert checked("4.2", STATIC).status == checked("4.3", IN_FLIGHT).status == "done"
    for exercise, text in (
        ("4.2", IN_FLIGHT),
        ("4.2", OUT_OF_TURN),
        ("4.3", STATIC),
        ("4.3", OVERTAKES),
        ("4.3", RUNNING_FORGOTTEN),
    ):
        result = checked(exercise, text)
        assert result.status in ("wrong", "partly"), repr(result)


# In the real server ---------------------------------------------------------------------------------------------------

LENGTHS = [80, 4, 4, 4, 4, 4, 4, 4] * 2


@pytest.mark.server
def test_the_server_decides_by_the_learners_file(small_engine, tmp_path):
    """Read from what begins beside somebody who runs: how many iterations it takes is a matter of who arrives when."""
    path, log_path = tmp_path / "my_scheduler.py", tmp_path / "log.jsonl"
    path.write_text(solution_of("scheduler.py"))
    repo = repository.assemble(
        tmp_path / "repo", small_engine, apply_chat_template=False, iteration_log_path=log_path, scheduler_path=path
    )
    requests = [TimedRequest("Tell me a story.", length, 0.0, 5) for length in LENGTHS]
    with Server(repo) as server, Client(server.grpc_url) as client:
        in_flight = trace_run.run(client, requests, log_path).log
        path.write_text(IN_FLIGHT.replace("while waiting", "while not now.running and waiting"))
        server.load("tensorrt_llm", scheduler_path=path)
        static = trace_run.run(client, requests, log_path).log
    assert joins_beside_others(in_flight) > 0 and joins_beside_others(static) == 0


def joins_beside_others(log):
    """Iterations in which a request begins while another one runs on."""
    return int(((log["context_tokens"] > 0) & (log["generation_tokens"] > 0)).sum())
