"""What the pages of Play do in a browser, with the course's own code: play a file on a trace, draw it, and check it.

    told = answer({"page": "slots", "exercise": "4.3", "source": "from inflight…", "trace": "skewed", "slots": 8})
    told["picture"], told["words"], told["verdict"]         # the first and the last as HTML

It needs the standard library alone. `worker.js` calls it in WebAssembly, and a test in CPython.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import random
import secrets
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path

import drawing

from inflight.engine.own.scheduler import OwnScheduler
from inflight.engine.scheduler import GuaranteedNoEvict, MaxUtilization, Scheduler, StaticBatching
from inflight.engine.settings import BuildConfig
from inflight.engine.simulate import Iteration, SimulatedRequest, Simulation
from inflight.notebook.checks.answers import late, load, what_failed
from inflight.notebook.checks.findings import Wrong
from inflight.notebook.checks.graders import graded, graders
from inflight.notebook.checks.verdict import Result

LONGEST_S = 20.0  # for the trace, and for each part of a check; the lab's checks take 30 and more
MOST_PRINTED = 4000  # characters
TOPICS = {"4": "batching", "5": "kv_cache", "11": "speculation", "12": "replicas"}  # lessons of the exercises


def answer(asked: dict) -> dict:
    """Return what a page shows of a file.

    Parameters
    ----------
    asked : dict
        `page`, `exercise`, the `file`'s name and its text, `source`; and what the page's controls say.
    """
    path = Path.cwd() / asked["file"]
    path.write_text(asked["source"], encoding="utf-8")
    printed = _Printed()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            with ended_if_late(path):
                picture, words = DRAW[asked["page"]](path, asked)
        except (Exception, SystemExit, LateError) as error:
            picture, words = "", escape(_told(error, path))
        verdict = checked(asked["exercise"], path, asked.get("function", ""), asked.get("seed"))
    return {
        "picture": picture,
        "words": words,
        "status": verdict.status,
        "verdict": verdict.as_html(),
        "printed": printed.text(),
    }


def checked(exercise: str, path: Path, function: str = "", seed: int | None = None) -> Result:
    """Check a file, or a function in it, as the lab's `check` does, in this process."""
    importlib.import_module(f"inflight.lessons.{TOPICS[exercise.partition('.')[0]]}.grading")
    grader = graders[exercise]
    if seed is None:
        seed = 10_000 + secrets.randbelow(90_000)
    try:
        with ended_if_late(path):
            given = getattr(load(path, function), function) if function else str(path)
            found = graded(grader.grade, given, seed, str(path))
    except (Exception, SystemExit, LateError) as error:
        found = {"": Wrong(_told(error, path))}
    return Result.of(exercise, found, grader.insight, seed)


def _told(error: BaseException, path: Path) -> str:
    if isinstance(error, LateError):
        lines = [row.lineno for row in traceback.extract_tb(error.__traceback__) if row.filename == str(path)]
        return late(f"{path.name}, line {lines[-1]}" if lines else path.name, LONGEST_S)
    return what_failed(error, path)


class _Printed(io.TextIOBase):
    """Keeps the first of what is printed, and counts the rest."""

    def __init__(self):
        self._kept, self._more = "", 0

    def write(self, text: str) -> int:
        room = MOST_PRINTED - len(self._kept)
        self._kept += text[:room]
        self._more += len(text[room:])
        return len(text)

    def text(self) -> str:
        return self._kept + (f"\n… and {self._more:,} characters more" if self._more else "")


class LateError(BaseException):
    """A learner's code takes too long. No Exception: a loop that tries again would go on."""


@contextlib.contextmanager
def ended_if_late(path: Path) -> Iterator[None]:
    """Raise LateError in a loop of the file `path` once LONGEST_S have passed. Python tells of loops from 3.12 on."""
    watch = getattr(sys, "monitoring", None)
    if watch is None:
        yield
        return
    ends_s = time.monotonic() + LONGEST_S

    def jumped(code, *_: int) -> object:
        if code.co_filename != str(path):
            return watch.DISABLE
        if time.monotonic() > ends_s:
            raise LateError
        return None

    watch.use_tool_id(watch.DEBUGGER_ID, "play")
    watch.register_callback(watch.DEBUGGER_ID, watch.events.JUMP, jumped)
    watch.set_events(watch.DEBUGGER_ID, watch.events.JUMP)
    try:
        yield
    finally:
        watch.set_events(watch.DEBUGGER_ID, 0)
        watch.free_tool_id(watch.DEBUGGER_ID)


# Eight slots ----------------------------------------------------------------------------------------------------------

SKEWED = ([128] + [8] * 5) * 8  # lecture 04's forty-eight answers
LENGTHS = {
    "skewed": SKEWED,
    "sorted": sorted(SKEWED),
    "equal": [28] * 48,
    "mild": random.Random(4).choices((8, 16, 16, 24, 32, 32, 64, 128), k=32),
}


def slots_trial(trace: str, slots: int, longest: int = 128) -> tuple[Simulation, list[int]]:
    """Return requests that all wait from the start, and the lengths of their answers."""
    lengths = [longest if length == 128 else length for length in LENGTHS[trace]]
    limits = BuildConfig(max_batch_size=slots)
    blocks = slots * -(-limits.max_seq_len // limits.tokens_per_block)  # memory is no question here
    return Simulation([SimulatedRequest(1, length, length) for length in lengths], blocks, limits), lengths


def draw_slots(path: Path, asked: dict) -> tuple[str, str]:
    slots = asked["slots"]
    trial, lengths = slots_trial(asked["trace"], slots, asked["longest"])
    panels, counts = [], []
    for title, make in _schedulers(path, {"static": StaticBatching, "in flight": GuaranteedNoEvict}):
        stays = list(drawing.stays(trial.run(make()), slots))
        panels.append(drawing.slots_panel(title, stays, slots, lengths, max(lengths)))
        counts.append(f"{title} {panels[-1].columns:,}")
    words = f"Iterations for {len(lengths)} requests in {slots} slots: {', '.join(counts)}."
    kinds = dict.fromkeys(drawing.length_class(length, max(lengths)) for length in lengths)
    legend = {kind: f"{kind} answer" for kind in kinds} | {"waste": "empty slot"}
    return drawing.picture(panels, legend), words


def _schedulers(path: Path, built_in: dict[str, Callable]) -> list[tuple[str, Callable[[], Scheduler]]]:
    return [("yours", lambda: OwnScheduler(path)), *built_in.items()]


# Blocks ---------------------------------------------------------------------------------------------------------------


def blocks_trial(trace: str, num_blocks: int) -> Simulation:
    """Return twenty requests of one of the lab's three kinds."""
    from inflight.lessons.kv_cache import grading

    kinds = grading._trials(random.Random(5), grading.LIMITS)
    kind = {"whole": kinds[0], "early": kinds[1], "spread": kinds[2]}[trace]
    return Simulation(kind.requests, num_blocks, kind.limits)


def draw_blocks(path: Path, asked: dict) -> tuple[str, str]:
    num_blocks = asked["blocks"]
    trial = blocks_trial(asked["trace"], num_blocks)
    panels, counts = [], []
    both = {"guaranteed_no_evict": GuaranteedNoEvict, "max_utilization": MaxUtilization}
    for title, make in _schedulers(path, both):
        iterations: list[Iteration] = list(trial.run(make()))
        counted = trial.counts(iterations)
        said = f"{counted.iterations:,} iterations, {counted.pauses:,} pauses, {counted.twice:,} tokens computed twice"
        panels.append(drawing.blocks_panel(f"{title}: {said}", iterations, num_blocks, trial.limits.tokens_per_block))
        counts.append(f"{title} {counted.iterations:,}")
    legend = {
        "shade0": "a request’s blocks",
        "again": "computed again after a pause",
        "waste": "free blocks",
        "paused": "paused requests",
    }
    words = f"Iterations for {len(trial.requests)} requests in {num_blocks} blocks: {', '.join(counts)}."
    return drawing.picture(panels, legend), words


DRAW: dict[str, Callable[[Path, dict], tuple[str, str]]] = {"slots": draw_slots, "blocks": draw_blocks}
