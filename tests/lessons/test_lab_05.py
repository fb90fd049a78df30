"""The checks of lab 05 take what is right, however it is written, and find the mistakes that learners make.

The hidden cases are made from SEED; INFLIGHT_SEED takes another one.
"""

import math
import os
import textwrap
from pathlib import Path

import nbformat
import numpy as np
import pytest

from inflight.errors import CourseError
from inflight.notebook.checks import check
from inflight.notebook.mine import COURSES_OWN
from inflight.paths import COURSE
from inflight.triton import repository, telemetry
from inflight.triton.server import Server
from tests.engines import ask_tokens

SEED = os.environ.get("INFLIGHT_SEED", "48151")


@pytest.fixture(autouse=True)
def as_in_a_lab(monkeypatch):
    """Checks report and do not raise, whatever the run that these tests are part of has set."""
    monkeypatch.setenv("COURSE_STRICT", "0")
    monkeypatch.setenv("INFLIGHT_SEED", SEED)


# 5.1 and 5.2: functions -----------------------------------------------------------------------------------------------


def right_share(day, size):
    promised = sum(math.ceil((prompt + most) / size) for prompt, most, _ in day)
    return (
        sum(math.ceil((prompt + most) / size) - math.ceil((prompt + got) / size) for prompt, most, got in day)
        / promised
    )


def in_numpy(day, size):
    prompt, most, got = np.array(day).T
    return 1 - np.ceil((prompt + got) / size).sum() / np.ceil((prompt + most) / size).sum()


def right_cache(lengths, slots, size, longest):
    whole = sorted(math.ceil((prompt + answer) / size) for prompt, answer in lengths)
    return size * max(sum(whole[-slots:]), math.ceil(longest / size))


@pytest.mark.parametrize(
    ("exercise", "answer"),
    [
        ("5.1", right_share),
        ("5.1", in_numpy),
        ("5.1", lambda *day: round(right_share(*day), 2)),
        ("5.2", right_cache),
        ("5.2", lambda *case: np.float64(right_cache(*case))),
    ],
)
def test_the_same_another_way_is_done(exercise, answer):
    assert check(exercise, answer).status == "done"


def of_tokens(day, _):
    return 1 - sum(prompt + got for prompt, _, got in day) / sum(prompt + most for prompt, most, _ in day)


def rounded_apart(day, size):
    blocks = [[math.ceil(tokens / size) for tokens in row] for row in day]
    return 1 - sum(prompt + got for prompt, _, got in blocks) / sum(prompt + most for prompt, most, _ in blocks)


def mean_of_shares(day, size):
    return np.mean([right_share([row], size) for row in day])


@pytest.mark.parametrize(
    ("exercise", "answer", "says"),
    [
        ("5.1", lambda *_: 0.5, "both were used"),
        ("5.1", of_tokens, "both were used"),
        ("5.1", rounded_apart, "add prompt and answer, then round up"),
        ("5.1", mean_of_shares, "before you divide"),
        ("5.1", lambda day, size: right_share(day, 32), "tokens_per_block"),
        ("5.1", lambda *day: 1 - right_share(*day), "both were used"),
        ("5.1", lambda *day: 100 * right_share(*day), "between 0 and 1"),
        ("5.2", lambda *_: 10**9, "less is enough"),
        ("5.2", lambda lengths, slots, size, longest: longest, ""),
        ("5.2", lambda lengths, slots, size, longest: sum(map(sum, lengths)), ""),
        ("5.2", lambda lengths, slots, *rest: right_cache(lengths[:slots], *[slots, *rest]), "may have to wait"),
        ("5.2", lambda lengths, slots, *rest: right_cache(lengths, 99, *rest), "less is enough"),
        ("5.2", lambda lengths, slots, size, longest: right_cache(lengths, slots, size, 32), "refuses to load"),
        ("5.2", lambda *_: "guaranteed_no_evict", ""),
    ],
)
def test_a_mistake_is_told_by_its_cause(exercise, answer, says):
    result = check(exercise, answer)
    assert result.status == "wrong" and says in repr(result), f"seed {SEED}: {result}"


# 5.3 and 5.4: schedulers ----------------------------------------------------------------------------------------------

HEAD = """
from itertools import chain

from inflight.engine import Plan
from inflight.engine.scheduler import tokens_to_compute


class Scheduler:
    def schedule(self, now):
        running, free, pause, joining = list(now.running), now.free_blocks, [], []
        room = now.max_num_tokens - sum(one.pending_tokens for one in running)
"""
TAIL = """
        return Plan([one.id for one in joining], tokens_to_compute(now, running + joining), pause)
"""
PROMISES = """
for one in now.waiting:
    together = [*running, *joining, one]
    whole = sum(-(-(each.prompt_tokens + each.max_answer_tokens) // now.tokens_per_block) for each in together)
    if len(together) > now.max_batch_size or whole > now.num_blocks or one.pending_tokens > room:
        break
    joining.append(one)
    room -= one.pending_tokens
"""
PAUSES = """
def needed():
    return sum(now.blocks_needed(one) for one in running)

while needed() > free:
    victim = VICTIM
    running.remove(victim)
    pause.append(victim.id)
    free += victim.own_blocks
free -= needed()
for one in chain(now.paused, now.waiting):
    others = len(running) + len(joining)
    if pause or others == now.max_batch_size or one.pending_tokens > room:
        break
    if now.blocks_needed(one) + RESERVE > free:
        break
    joining.append(one)
    free -= now.blocks_needed(one)
    room -= one.pending_tokens
"""
COURSES = (COURSES_OWN / "scheduler.py").read_text()


def scheduler(body):
    return HEAD + textwrap.indent(body, " " * 8) + TAIL


def pausing(victim, reserve):
    return scheduler(PAUSES.replace("VICTIM", victim).replace("RESERVE", reserve))


def only(imported):
    return f"from inflight.engine.scheduler import {imported} as Scheduler\n"


WAITING_FIRST = pausing("min(running, key=lambda one: one.known_tokens)", "others").replace(
    "chain(now.paused, now.waiting)", "chain(now.waiting, now.paused)"
)
ONE_AT_A_TIME = scheduler("joining += [] if running else list(now.waiting)[:1]")
NO_LIMIT = scheduler("joining += list(now.waiting)[: now.max_batch_size - len(running)]")
BY_PROMPT = scheduler(PROMISES.replace("each.max_answer_tokens", "each.answer_tokens"))
NEWEST_FIRST = scheduler(PROMISES.replace("in now.waiting", "in list(now.waiting)[::-1]"))
WITHOUT_ROOM = scheduler(PROMISES.replace(" or one.pending_tokens > room", ""))
ADMITS_TWICE = scheduler("joining += now.running[:1] or list(now.waiting)[:1]")


@pytest.fixture
def written(tmp_path):
    """A file with a scheduler in it."""

    def write(text: str) -> Path:
        path = tmp_path / "own.py"
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize(
    ("exercise", "text"),
    [
        ("5.3", scheduler(PROMISES)),
        ("5.3", only("GuaranteedNoEvict")),
        ("5.3", scheduler(PROMISES.replace("max_answer_tokens)", "max_answer_tokens - 1)"))),  # the last is never read
        ("5.4", COURSES),
        ("5.4", pausing("min(running, key=lambda one: one.known_tokens)", "2 * others")),
        ("5.4", pausing("min(running, key=lambda one: one.own_blocks)", "others")),
    ],
)
def test_a_scheduler_that_keeps_its_budgets_is_done(exercise, text, written):
    result = check(exercise, written(text))
    assert result.status == "done", result
    assert all(figure.course is not None and figure.nothing is not None for figure in result.figures)


@pytest.mark.parametrize(
    ("exercise", "text", "says"),
    [
        ("5.3", ONE_AT_A_TIME, "iterations: "),
        ("5.3", NO_LIMIT, "KV cache blocks"),
        ("5.3", BY_PROMPT, "KV cache blocks"),
        ("5.3", WITHOUT_ROOM, "pending_tokens"),
        ("5.3", NEWEST_FIRST, "First come, first served"),
        ("5.3", pausing("running[-1]", "0"), "blocks"),
        ("5.3", "class Scheduler: ...\n", "schedule"),
        ("5.3", "def schedule(now: ...\n", "own.py, line 1"),
        ("5.3", scheduler("raise ValueError('later')"), "ValueError: later"),
        ("5.4", ONE_AT_A_TIME, ""),
        ("5.4", pausing("running[0]", "0"), ""),
        ("5.4", pausing("running[0]", "others"), "the fewest tokens loses least"),
        ("5.4", pausing("running[-1]", "others"), "the fewest tokens loses least"),
        ("5.4", pausing("max(running, key=lambda one: one.known_tokens)", "others"), "the fewest tokens loses least"),
        ("5.4", pausing("running[-1]", "6 * others"), ""),
        ("5.4", ADMITS_TWICE, ""),
        ("5.4", WAITING_FIRST, "aused"),
        ("5.4", "import os\nos._exit(0)\n", "process"),
    ],
)
def test_a_scheduler_that_does_not_is_told_why(exercise, text, says, written):
    result = check(exercise, written(text))
    assert result.status == "wrong" and says in repr(result), result


def cell(kind, beginning):
    notebook = nbformat.read(COURSE / kind / f"05_kv_cache_{'lab' if kind == 'labs' else 'solution'}.ipynb", 4)
    [source] = [one.source for one in notebook.cells if one.source.startswith(beginning)]
    return source.partition("\n")[2]


@pytest.mark.parametrize(("exercise", "name"), [("5.3", "no_evict"), ("5.4", "scheduler")])
def test_the_untouched_file_is_not_done_yet(exercise, name, written):
    untouched = cell("labs", f"%%writefile {{workdir.name}}/{name}.py")
    assert check(exercise, written(untouched)).status == "not done yet"


@pytest.mark.parametrize(("exercise", "answer"), [("5.1", lambda *_: None), ("5.2", lambda *_: None), ("5.3", None)])
def test_an_untouched_exercise_is_not_done_yet(exercise, answer):
    assert check(exercise, answer).status == "not done yet"


def test_the_courses_part_is_the_solution():
    assert cell("solutions", "%%writefile {workdir.name}/scheduler.py").strip() == COURSES.strip()


# The real server ------------------------------------------------------------------------------------------------------


@pytest.mark.server
def test_a_right_one_serves_and_a_wrong_one_is_refused(small_engine, tmp_path, written):
    log_path = tmp_path / "log.jsonl"
    repo = repository.assemble(
        tmp_path / "repo", small_engine, iteration_log_path=log_path, scheduler_path=COURSES_OWN / "scheduler.py"
    )
    with Server(repo) as server:
        ask = lambda: ask_tokens(server, [5] * 12, 9, end_id=-1, exclude_input_in_output=True)
        right = ask()
        assert len(right) == 9 and len(telemetry.iterations(log_path)) == 9
        with pytest.raises(CourseError, match=r"own\.py, line \d+: schedule\(\) admits request \d+, which is neither"):
            server.load("tensorrt_llm", scheduler_path=str(written(ADMITS_TWICE)))
        assert ask() == right
