"""The checks of lab 04 find the mistakes that learners make, and say which; the real server agrees with them."""

import re
import textwrap

import numpy as np
import pytest

from inflight.bench import trace_run
from inflight.bench.workload import TimedRequest
from inflight.notebook.grading import check
from inflight.paths import COURSE
from inflight.triton import repository
from inflight.triton.client import Client
from inflight.triton.server import Server
from tests.engines import wait_until

COURSES = (COURSE / "assets" / "parts" / "scheduler.py").read_text()  # lab 05's, which batches in flight too
SOLUTIONS = (COURSE / "lessons" / "04_batching" / "lab.py").read_text()
WINS, DRAWS = ([128] + [8] * 7) * 3, [32] * 8 + [64] * 8 + [128] * 8


@pytest.fixture(autouse=True)
def as_in_a_lab(monkeypatch):
    """Checks report and do not raise, whatever the run that these tests are part of has set."""
    monkeypatch.setenv("COURSE_STRICT", "0")


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
LATE = scheduler(
    BEGIN
    + """
free_slots = now.max_batch_size - len(running)
plan.admit = [request.id for request in waiting[:free_slots]]
"""
    + COMPUTE
)
HALF_BATCHES = STATIC.replace("waiting[:now.max_batch_size]", "waiting[:now.max_batch_size // 2]")
TOO_MANY = STATIC.replace("waiting[:now.max_batch_size]", "waiting")
WAITS_FOR_ALL = STATIC.replace("if not running:", "if not running and len(waiting) >= now.max_batch_size:")
OUT_OF_TURN = STATIC.replace("waiting[:now.max_batch_size]", "waiting[-now.max_batch_size:]")
TAKEN = "from inflight.engine.scheduler import GuaranteedNoEvict as Scheduler\n"
TAKEN_BY_MODULE = "from inflight.engine import scheduler\n\nScheduler = scheduler.StaticBatching\n"
LOOPS = scheduler("while True: pass")


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
        ("4.2", STATIC),
        ("4.2", solution_of("static.py")),
        ("4.3", IN_FLIGHT),
        ("4.3", COURSES),
        ("4.3", solution_of("scheduler.py")),
        ("4.4", (WINS, DRAWS)),
        ("4.4", (tuple(WINS), [8] * 8 + [128] * 16)),
        ("4.4", (np.array(WINS[::-1]), np.array(DRAWS))),
        ("4.5", lambda rows: (rows["last_s"] - rows["sent_s"]).sum() / (rows["last_s"].max() - rows["sent_s"].min())),
        ("4.5", lambda rows: len(rows) / np.ptp([*rows.sent_s, *rows.last_s]) * rows["latency_ms"].mean() / 1000),
    ],
)
def test_a_right_way_is_done(checked, exercise, answer):
    result = checked(exercise, answer)
    assert result.status == "done", repr(result)


@pytest.mark.parametrize(
    ("exercise", "answer", "words"),
    [
        ("4.1", lambda log, slots: 0.5, "How many slots were there in all iterations together"),
        ("4.1", lambda log, slots: log["scheduled"].mean() / slots, "how many of them computed nothing?"),
        ("4.1", lambda log, slots: log["empty_seats"].sum(), "how many of them computed nothing?"),
        ("4.1", lambda log, slots: 1 - log["generation_tokens"].mean() / slots, "how many of them computed nothing?"),
        ("4.1", lambda log, slots: log["waiting"].mean() / slots, "how many of them computed nothing?"),
        ("4.1", lambda log, slots: log["empty"].sum(), "could not be checked: KeyError"),
        ("4.1", 0.3, "could not be checked: TypeError"),
        ("4.2", IN_FLIGHT, "where exactly 0 is wanted. With V1 nobody starts while anybody runs"),
        ("4.2", HALF_BATCHES, "A batch takes as many as wait, up to now.max_batch_size."),
        ("4.2", TOO_MANY, "requests run at once; max_batch_size is"),
        ("4.2", WAITS_FOR_ALL, "schedule() computed nothing 100 times in a row, and request"),
        ("4.2", OUT_OF_TURN, "Who came first is first in now.waiting"),
        ("4.2", TAKEN_BY_MODULE, "leaves the decision to the package's own StaticBatching. Write the rule yourself."),
        ("4.2", STATIC.replace("now.running", "now.runing", 1), "line 6: AttributeError: 'Now' object has no"),
        ("4.2", "class Scheduler:\n    x = (\n", "my_scheduler.py, line 2: it is not Python"),
        ("4.2", 7, "could not be checked: TypeError"),
        ("4.2", COURSE / "no_such_file.py", "there is no such Python file"),
        ("4.3", STATIC, "Start a waiting request as soon as a slot is free, whoever else runs."),
        ("4.3", NO_LIMIT_OF_TOKENS, "long prompts not right yet. my_scheduler.py, line 16: schedule() computes"),
        ("4.3", OVERTAKES, "short prompts ✓, long prompts not right yet. requests overtaken by one that came later"),
        ("4.3", LAST_FIRST, "Who came first is first in now.waiting"),
        ("4.3", LATE, "Start a waiting request as soon as a slot is free"),
        ("4.3", TAKEN, "leaves the decision to the package's own GuaranteedNoEvict. Write the rule yourself."),
        ("4.3", "class Scheduler: ...\n", "its class Scheduler has no method schedule(self, now)"),
        ("4.4", ([64] * 24, [64] * 24), "times the iterations, in wins: 1, where at least 2.5 is wanted"),
        ("4.4", (WINS, [8] * 23 + [32]), "wins ✓, draws not right yet. times the length, of the eighth longest"),
        ("4.4", (WINS, WINS), "in draws: 1, where at least 4 is wanted"),
        ("4.4", (WINS, [8, 128] * 12), "A batch loses nothing when its answers end together."),
        ("4.4", (DRAWS, DRAWS), "wins not right yet, draws ✓."),
        ("4.4", (WINS * 2, DRAWS), "wins needs 24 lengths between 8 and 128; it has 48"),
        ("4.4", ([1000] + [1] * 23, DRAWS), "it has 24, from 1 to 1000"),
        ("4.4", (WINS, [8.5] * 12 + [64] * 12), "no whole number of tokens"),
        ("4.5", lambda rows: 8.0, "over which time do you spread them?"),
        ("4.5", lambda rows: len(rows), "Add up the seconds that requests spend in the server"),
        ("4.5", lambda rows: rows["latency_ms"].sum() / np.ptp([*rows.sent_s, *rows.last_s]), "Add up the seconds"),
        ("4.5", lambda rows: rows["latency_ms"].sum() / 1000 / rows["last_s"].max(), "Add up the seconds"),
        ("4.5", lambda rows: rows["latency_ms"].mean() / 1000, "Add up the seconds"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_by_its_cause(checked, exercise, answer, words):
    result = checked(exercise, answer)
    assert result.status in ("wrong", "partly") and words in repr(result), repr(result)


@pytest.mark.parametrize(
    ("exercise", "answer"),
    [
        ("4.1", lambda log, slots: None),
        ("4.2", ONE_AT_A_TIME),
        ("4.2", scheduler("pass")),
        ("4.3", ONE_AT_A_TIME),
        ("4.3", scheduler("...")),
        ("4.4", (None, None)),
        ("4.5", lambda rows: None),
    ],
)
def test_an_untouched_exercise_is_not_done_yet(checked, exercise, answer):
    assert checked(exercise, answer).status == "not done yet"


def test_a_scheduler_that_loops_is_ended_and_named(checked):
    assert "my_scheduler.py, line 6: schedule() took longer than 5 s and was ended." in repr(checked("4.2", LOOPS))


@pytest.mark.parametrize("seed", range(20))
def test_right_and_wrong_do_not_depend_on_the_hidden_cases(checked, seed, monkeypatch):
    monkeypatch.setenv("INFLIGHT_SEED", str(seed))
    assert checked("4.2", STATIC).status == checked("4.3", IN_FLIGHT).status == "done"
    for exercise, text in (("4.2", IN_FLIGHT), ("4.2", OUT_OF_TURN), ("4.3", STATIC), ("4.3", OVERTAKES)):
        result = checked(exercise, text)
        assert result.status in ("wrong", "partly"), repr(result)


# In the real server ---------------------------------------------------------------------------------------------------

LENGTHS = [80, 4, 4, 4, 4, 4, 4, 4] * 2


@pytest.fixture(scope="module")
def iterations(small_engine, tmp_path_factory):
    """How many iterations a scheduler's file takes in the server; with "", one that the engine has itself."""
    folder = tmp_path_factory.mktemp("served")
    repo = repository.assemble(
        folder / "repo", small_engine, apply_chat_template=False, iteration_log_path=folder / "log.jsonl"
    )
    requests = [TimedRequest("Tell me a story.", length, 0.005 * place, 5) for place, length in enumerate(LENGTHS)]
    with Server(repo) as server, Client(server.grpc_url) as client:

        def iterations(text, gpt_model_type="inflight_fused_batching"):
            path = folder / "my_scheduler.py"
            path.write_text(text)
            server.load("tensorrt_llm", gpt_model_type=gpt_model_type, scheduler_path=path if text else "")
            return len(trace_run.run(client, requests, folder / "log.jsonl").log)

        yield iterations


def test_the_server_agrees_with_the_check(iterations, checked):
    static = IN_FLIGHT.replace("while waiting", "while not now.running and waiting")
    assert checked("4.3", static).status == "wrong"

    # When a request arrives is the server's own affair, and a busy machine's: so a few iterations more or less are the
    # same rule, and what came late as a whole is sent again.
    def agree():
        right, wrong = iterations(solution_of("scheduler.py")), iterations(static)
        return abs(right - iterations("")) < 20 < 50 < abs(wrong - right) and abs(wrong - iterations("", "V1")) < 20

    wait_until(agree, "in the server each rule takes as many iterations as the engine's own", 300)
