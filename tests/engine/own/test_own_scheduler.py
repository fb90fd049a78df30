"""A scheduler from a file: whatever it does, a sentence tells it with file, line and rule, before it serves."""

import json
import subprocess
import sys
import threading

import pytest

from inflight.engine.executor import Executor
from inflight.engine.fake_model import FakeModel
from inflight.engine.messages import Request
from inflight.engine.own.part import PartError
from inflight.engine.own.scheduler import OwnScheduler, accepted
from inflight.engine.settings import BuildConfig, ExecutorConfig
from inflight.errors import CourseError
from tests.engines import SMALL_VOCAB, fake_answer

LIMITS = BuildConfig(max_batch_size=4, max_input_len=48, max_seq_len=96, max_num_tokens=64)
GOOD = """
from inflight.engine import Plan


class Scheduler:
    calls = 0

    def schedule(self, now):
        plan, running = Plan(), list(now.running)
        free = now.free_blocks - sum(now.blocks_for(r.max_tokens) - r.num_blocks for r in running)
        room = now.max_num_tokens - sum(r.pending_tokens for r in running)
        for request in now.waiting:
            needed = now.blocks_for(request.max_tokens)
            if len(running) == now.max_batch_size or needed > free or request.pending_tokens > room:
                break
            free, room = free - needed, room - request.pending_tokens
            plan.admit.append(request.id)
            running.append(request)
        plan.compute = {request.id: request.pending_tokens for request in running}
        self.calls += 1
        # HERE
        return plan
"""


@pytest.fixture
def write(tmp_path):
    def write(text: str):
        path = tmp_path / "my_scheduler.py"
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
        return path

    return write


def good_but(extra: str) -> str:
    """The good one with another line before its return."""
    return GOOD.replace("# HERE", extra)


def config(path, **settings) -> ExecutorConfig:
    return ExecutorConfig(scheduler_path=path, **settings)


def test_a_scheduler_of_ones_own_passes_its_trial_and_schedules(write):
    path, model = write(GOOD), FakeModel(LIMITS)
    with Executor(model, config(path), accepted(config(path), LIMITS)) as executor:
        requests = [Request([number] * 20, 12) for number in range(9)]
        answers = [response.token_ids for response in executor.generate_all(requests)]
        assert max(row.scheduled for row in executor.iteration_stats) > 1
    assert answers == [fake_answer(request.input_ids, 12, SMALL_VOCAB) for request in requests]


DEFINED = 1 + next(number for number, line in enumerate(GOOD.splitlines()) if "def schedule" in line)
RETURNS = 1 + next(number for number, line in enumerate(GOOD.splitlines(), 1) if "# HERE" in line)
# What a file has in place of a good scheduler -> what is said of it.
FAULTS = {
    "is not Python": ("class Scheduler:\n  def", r"line 2: it is not Python \(invalid syntax\)"),
    "does not import": ("import math\nimport no_such_module\n", r"line 2: ModuleNotFoundError: No module named 'no_such_module'"),
    "has no class": ("def schedule(now): ...\n", r": it defines no class Scheduler"),
    "lacks a method": ("\nclass Scheduler:\n    def plan(self): ...\n", r"line 2: its class Scheduler has no method schedule\(self, now\)"),
    "wants more": ("class Scheduler:\n    def __init__(self, slots): ...\n    def schedule(self, now): ...\n", r": TypeError: .*missing 1 required positional argument"),
    "exits at once": ("import sys\n\nsys.exit(3)\n", r"line 3: it ends the process"),
    "raises": (good_but("1 / 0"), rf"line {RETURNS - 1}: ZeroDivisionError: division by zero"),
    "returns nothing": (GOOD.replace("return plan", "return None"), rf"line {DEFINED}: schedule\(\) returned a NoneType; it must return a Plan"),
    "returns other things": (good_but("plan.compute = 7"), rf"line {DEFINED}: schedule\(\) gave a plan that is not made of request ids"),
    "computes too much": (good_but("plan.compute = {r.id: 60 for r in running}"), rf"line {DEFINED}: schedule\(\) computes 60 tokens of request \d+, of which"),
    "starves": (good_but("plan.compute = {}; plan.admit = []"), rf"line {DEFINED}: schedule\(\) computed nothing 100 times in a row, and request 1 waits"),
    "imports the protocol alone": ("from inflight.engine.scheduler import Scheduler\n", r": it defines no class Scheduler"),
    "has no class of its own": ("Scheduler = int\n", r": its class Scheduler has no method schedule\(self, now\)"),
    "is not in UTF-8": (GOOD + "x = '\udce9'\n", r"line \d+: it is not Python \(.*can't decode byte 0xe9"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_told_with_file_line_and_rule_before_it_serves(write, fault):
    text, sentence = FAULTS[fault]
    path = write(text)
    with pytest.raises(PartError, match=rf"^my_scheduler\.py.*{sentence}.*\.$"):
        accepted(config(path), LIMITS)


def late_call(printed):
    """What a process told of the call that ended it."""
    return json.loads(next(line for line in printed.splitlines() if line.startswith("{")))["late_call"]


@pytest.mark.parametrize("text", [good_but("while True: pass"), "while True: pass\n"], ids=["in a call", "in the file"])
def test_one_that_does_not_return_ends_its_process_which_tells_file_line_and_function(write, text):
    path = write(text)
    script = f"""
import inflight.engine.own.part as own_part
import inflight.engine.own.scheduler as own_scheduler
own_part.LONGEST_S = 2
own_part.end_late_calls(report_to=2)
own_scheduler.accepted({config(str(path))!r}, {LIMITS!r})
"""
    names = "from inflight.engine.settings import BuildConfig, ExecutorConfig"
    ran = subprocess.run([sys.executable, "-c", f"{names}\n{script}"], capture_output=True, text=True)
    line = next(number for number, line in enumerate(text.splitlines(), 1) if "while True" in line)
    function = "the file" if text.startswith("while") else "schedule()"
    assert ran.returncode == 1
    assert late_call(ran.stderr) == {"file": "my_scheduler.py", "line": line, "function": function}


def test_one_that_lets_no_other_thread_run_ends_its_process_too(write):
    path = write("import re\nre.match('(a+)+$', 'a' * 60 + 'b')\n")
    script = f"""
import inflight.engine.own.part as own_part
own_part.LONGEST_S = own_part.HELD_S = 1
own_part.end_late_calls(report_to=2)
own_part.OwnPart({str(path)!r}, "Scheduler", "schedule", "self, now")
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 1 and f'File "{path}", line 2 in' in ran.stderr, ran.stderr


def test_it_ends_also_while_calls_of_another_thread_return(write):
    path = write("class Scheduler:\n    def schedule(self, now):\n        while True: pass\n")
    script = f"""
import threading
import inflight.engine.own.part as own_part
own_part.LONGEST_S = 1
own_part.end_late_calls(report_to=2)
part = own_part.OwnPart({str(path)!r}, "Scheduler", "schedule", "self, now")

def hang():
    part.call(part.made().schedule, None)

threading.Thread(target=hang).start()
while True:
    part.call(int)
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 1 and late_call(ran.stderr)["line"] == 3


def test_a_call_that_has_ended_ends_no_process_though_the_watchdog_never_ran():
    script = """
import threading
import inflight.engine.own.part as own_part
own_part.LONGEST_S = own_part.HELD_S = 0.1
own_part._report_to = 2  # and no watchdog, as on a machine that leaves it no time
with own_part._ended_if_late():
    pass
assert not threading.Event().wait(1)
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr


@pytest.fixture
def serving(write):
    """An engine with a scheduler that fails when a prompt holds the token 7, and what it prints."""
    path = write(good_but("if any(r.prompt_tokens == 7 for r in running): FAULT"))

    def serve(fault: str) -> Executor:
        path.write_text(path.read_text().replace("FAULT", fault))
        return Executor(FakeModel(LIMITS), config(path), OwnScheduler(path))

    return serve


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("raise ValueError('seven')", r"line \d+: ValueError: seven\."),
        ("raise SystemExit", r"line \d+: it ends the process\."),
        ("plan.pause.append(99)", r"line \d+: schedule\(\) pauses request 99, which does not run\."),
        ("plan = None", r"line \d+: schedule\(\) returned a NoneType; it must return a Plan\."),
    ],
)
def test_a_fault_in_a_run_ends_its_requests_and_the_engine_goes_on(serving, fault, sentence):
    with serving(fault) as executor:
        assert len(executor.generate(Request([1] * 6, 5)).token_ids) == 5
        with pytest.raises(CourseError, match=rf"^my_scheduler\.py, {sentence}$"):
            executor.generate_all([Request([1] * 6, 40), Request([1] * 7, 5)])
        assert len(executor.generate(Request([1] * 6, 5)).token_ids) == 5
        assert executor.blocks.num_used == 0


@pytest.mark.parametrize("says_so", [True, False])
def test_answers_are_held_back_for_a_scheduler_that_says_so(write, says_so):
    text = GOOD.replace("calls = 0", f"calls = 0\n    answers_together = {says_so}")
    with Executor(FakeModel(LIMITS), None, OwnScheduler(write(text))) as executor:
        order, both = [], threading.Semaphore(0)
        for length in (40, 2):
            executor.enqueue_request(
                Request([1] * 6, length), lambda response: (order.append(len(response.token_ids)), both.release())
            )
        assert both.acquire(timeout=60) and both.acquire(timeout=60)
    assert order == ([40, 2] if says_so else [2, 40])
