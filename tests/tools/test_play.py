"""What Play runs in a browser, in CPython: packed as for the site, with the standard library alone."""

import json
import subprocess
import sys
import zipfile

import pytest

from inflight import syllabus
from inflight.notebook.checks import check
from inflight.notebook.checks.answers import load
from tests.lessons.answers import replaced, written
from tools import front, lessons

ASK = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
os.chdir(sys.argv[2])
import play
for asked in json.load(sys.stdin):
    print(json.dumps(play.answer(asked)))
"""


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """Gives what Play answers to each of a list, from a Python that has nothing but what is packed for a browser."""
    packed, unpacked, work = (tmp_path_factory.mktemp(name) for name in ("packed", "unpacked", "work"))
    front.pack(packed / "play.zip")
    zipfile.ZipFile(packed / "play.zip").extractall(unpacked)

    def ask(*asked: dict) -> list[dict]:
        command = [sys.executable, "-I", "-S", "-c", ASK, unpacked, work]
        ran = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        return [json.loads(line) for line in ran.stdout.splitlines()]

    return ask


def handed(topic: str, kind: str, function: str) -> str:
    """The cell of a lab ("labs") or its solution ("solutions") that defines a function."""
    [lesson] = [lesson for lesson in syllabus.read() if lesson.topic == topic]
    cells = [cell.source for cell in lessons.source(lesson, kind).cells if cell.cell_type == "code"]
    return next(source for source in cells if source.startswith(f"def {function}("))


def slots(source: str, exercise: str = "4.3", **controls) -> dict:
    asked = {"page": "slots", "exercise": exercise, "file": "scheduler.py", "source": source, "seed": 7}
    return asked | {"trace": "skewed", "slots": 8, "longest": 128} | controls


def blocks(source: str, **controls) -> dict:
    asked = {"page": "blocks", "exercise": "5.3", "file": "scheduler.py", "source": source, "seed": 7}
    return asked | {"trace": "early", "blocks": 32} | controls


def servers(source: str, **controls) -> dict:
    asked = {"page": "servers", "exercise": "12.1", "file": "policy.py", "source": source, "seed": 7}
    return asked | {"trace": "dies"} | controls


def drafts(source: str, **controls) -> dict:
    asked = {"page": "drafts", "exercise": "11.1", "file": "accept.py", "source": source, "seed": 7}
    return asked | {"function": "accept", "trace": "good", "k": 4} | controls


SOLVED = written("batching", "solutions", "scheduler.py")
BETTER_PAUSE = written("kv_cache", "solutions", "scheduler.py")
POLICY = written("replicas", "solutions", "policy.py")
RULE = handed("speculation", "solutions", "accept")
TO_THE_FIRST = "class Policy:\n    def choose(self, request, servers):\n        return servers[0]\n"
FILES = {
    "solved": slots(SOLVED),
    "solved static": slots(written("batching", "solutions", "static.py"), "4.2"),
    "in flight, judged as static": slots(SOLVED, "4.2"),
    "as handed out": slots(written("batching", "labs", "scheduler.py")),
    "last come, first served": slots(SOLVED.replace("list(now.waiting)", "list(now.waiting)[::-1]")),
    "no room": slots(SOLVED.replace("> room", "> 10**6")),
    "an exception": slots(SOLVED.replace("free_slots =", "free_slots = 1 / 0 +")),
    "no Python": slots(SOLVED.replace("def schedule", "def")),
    "no class": slots("print(1)"),
    "ends the process": slots("raise SystemExit"),
    "a better pause": blocks(BETTER_PAUSE),
    "the dearest pause": blocks(replaced(BETTER_PAUSE, ("min(running", "max(running"))),
    "a policy": servers(POLICY),
    "to the first": servers(TO_THE_FIRST),
    "to none": servers(replaced(TO_THE_FIRST, ("servers[0]", "0"))),
    "a rule": drafts(RULE),
    "keeps all": drafts(replaced(RULE, ("large[guess] / small[guess]", "1"))),
    "replaces from p": drafts(replaced(RULE, ("max(0, one - other)", "one"))),
    "no rule yet": drafts(handed("speculation", "labs", "accept")),
}


TRACES = [
    *(slots(SOLVED, trace=trace) for trace in ("sorted", "equal", "mild")),
    *(blocks(BETTER_PAUSE, trace=trace) for trace in ("whole", "early", "spread")),
    *(servers(POLICY, trace=trace) for trace in ("even", "hot", "slow", "dies", "three")),
    *(drafts(RULE, trace=trace) for trace in ("good", "flat", "sure")),
]


@pytest.mark.parametrize("name", FILES)
def test_the_verdict_is_that_of_the_labs_check(ask, name, tmp_path, monkeypatch):
    monkeypatch.setenv("INFLIGHT_SEED", "7")
    monkeypatch.delenv("COURSE_STRICT", raising=False)
    asked = FILES[name]
    path = tmp_path / asked["file"]
    path.write_text(asked["source"])
    [told] = ask(asked)
    given = getattr(load(path), asked["function"]) if "function" in asked else path
    assert told["verdict"] == check(asked["exercise"], given).as_html()


def test_untouched_files_are_answered_with_a_picture_and_what_to_do_and_an_error_is_told_once(ask):
    untouched = [blocks(written("kv_cache", "labs", "scheduler.py")), servers(written("replicas", "labs", "policy.py"))]
    *open_, failed = ask(*untouched, FILES["no rule yet"], FILES["an exception"])
    assert all(told["status"] == "not done yet" and "run it again" in told["words"] for told in open_)
    assert "division by zero" in failed["verdict"] and failed["words"] == ""
    assert all(told["picture"].count("<rect") > 30 for told in (*open_, failed))


@pytest.mark.parametrize("asked", TRACES, ids=lambda asked: f"{asked['page']} {asked['trace']}")
def test_every_trace_is_drawn(ask, asked):
    [told] = ask(asked)
    assert told["picture"].count("<rect") > 30, told["words"]


def test_the_first_of_what_is_printed_is_shown_and_the_rest_counted(ask):
    [told] = ask(slots("print('a' * 10_000_000)\n" + SOLVED))
    assert told["status"] == "done" and len(told["printed"]) < 5_000
    assert told["printed"].startswith("aaa") and told["printed"].endswith("characters more")


def test_what_is_packed_runs_with_the_standard_library_alone_and_counts_as_lecture_04(ask):
    [told] = ask(slots(SOLVED))
    assert told["words"] == "Iterations for 48 requests in 8 slots: yours 240, static 768, in flight 240."
    assert told["status"] == "done"
