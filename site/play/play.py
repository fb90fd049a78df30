"""What the pages of Play do in a browser, with the course's own code: play a file on a trace, draw it, and check it.

    told = answer({"page": "slots", "exercise": "4.3", "source": "from inflight…", "trace": "skewed", "slots": 8})
    told["picture"], told["words"], told["verdict"]         # the first and the last as HTML

It needs the standard library alone. `worker.js` calls it in WebAssembly, and a test in CPython.
"""

from __future__ import annotations

import contextlib
import html
import importlib
import io
import random
import secrets
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import drawing
from drawing import Box, Panel

from inflight.engine.own.scheduler import OwnScheduler
from inflight.engine.scheduler import GuaranteedNoEvict, MaxUtilization, Scheduler, StaticBatching
from inflight.engine.settings import BuildConfig
from inflight.engine.simulate import Iteration, SimulatedRequest, Simulation
from inflight.errors import CourseError
from inflight.notebook.checks.answers import late, load, what_failed
from inflight.notebook.checks.findings import Wrong
from inflight.notebook.checks.graders import graded, graders
from inflight.notebook.checks.verdict import OPEN, Result

LONGEST_S = 20.0  # for the trace, and for each part of a check; the lab's checks take 30 and more
MOST_PRINTED = 4000  # characters
TO_DO = "Finish the function in the editor, and run it again. The picture has what yours will be compared with."
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
    is_late, failed = False, ""
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            with ended_if_late(path):
                picture, words = DRAW[asked["page"]](path, asked)
        except (Exception, SystemExit, LateError) as error:
            words, is_late = html.escape(_told(error, path)), isinstance(error, LateError)
            picture, _ = DRAW[asked["page"]](None, asked)
            failed = words
        if is_late:  # the check would only take as long again
            verdict = Result.of(asked["exercise"], {"": Wrong(html.unescape(words))})
        else:
            verdict = checked(asked["exercise"], path, asked.get("function", ""), asked.get("seed"))
    if failed and verdict.status == OPEN:
        words = TO_DO
    elif failed and failed in verdict.as_html():  # an error is told once
        words = ""
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
    drawn = 10_000 + secrets.randbelow(90_000) if seed is None else seed
    try:
        with ended_if_late(path):
            given = getattr(load(path, function), function) if function else str(path)
            found = graded(grader.grade, given, drawn, str(path))
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


def draw_slots(path: Path | None, asked: dict) -> tuple[str, str]:
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


def _schedulers(path: Path | None, built_in: dict[str, Callable]) -> list[tuple[str, Callable[[], Scheduler]]]:
    own = [("yours", lambda: OwnScheduler(path))] if path else []
    return [*own, *built_in.items()]


# Blocks ---------------------------------------------------------------------------------------------------------------


def blocks_trial(trace: str, num_blocks: int) -> Simulation:
    """Return twenty requests of one of the lab's three kinds."""
    from inflight.lessons.kv_cache import grading

    kinds = grading._trials(random.Random(5))
    kind = {"whole": kinds[0], "early": kinds[1], "spread": kinds[2]}[trace]
    return Simulation(kind.requests, num_blocks, kind.limits)


def draw_blocks(path: Path | None, asked: dict) -> tuple[str, str]:
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


# Servers --------------------------------------------------------------------------------------------------------------

DAYS = {"even": 0, "hot": 1, "slow": 3, "dies": 4, "three": 5}  # of the lab's hidden days
HIGHEST = 10  # requests under way that a row has room for


def draw_servers(path: Path | None, asked: dict) -> tuple[str, str]:
    from inflight.lessons.replicas.simulate import InTurn, days, simulate

    day = days(random.Random(12))[DAYS[asked["trace"]]]
    panels, computed, leads = [], [], []
    own = [("yours", load(path, "Policy").Policy())] if path else []
    for title, policy in (*own, ("in turn", InTurn())):
        watched = _WatchedPolicy(policy.choose, day.names)
        counts = simulate(watched.choose, day)
        said = f"{counts.computed:,} blocks of prompts computed, {counts.lost} requests sent to a dead server"
        panels.append(Panel(f"{title}: {said}", watched.boxes, watched.number, HIGHEST * len(day.names), "request"))
        computed.append(f"{title} {counts.computed:,}")
        leads.append(f"{title} {counts.lead:.1f}")
    legend = {
        "again": "this request: its prompt’s first blocks are computed",
        "short": "this request: they are there",
        "shade1": "other requests under way",
        "paused": "known to be dead",
    }
    words = (
        f"{len(day.names)} servers, a row each, as high as the requests that it has. "
        f"Blocks computed: {', '.join(computed)}. Mean lead of the fullest server: {', '.join(leads)} requests."
    )
    return drawing.picture(panels, legend), words


class _WatchedPolicy:
    """Wraps a policy, and draws what it sees and chooses."""

    def __init__(self, choose: Callable, names: tuple[str, ...]):
        self._choose, self._cached = choose, {name: set[str]() for name in names}
        self.boxes: list[Box] = []
        self.number = 0

    def choose(self, request, servers):
        seen = [(one.name, one.under_way, one.is_healthy) for one in servers]
        chosen = self._choose(request, servers)
        name = getattr(chosen, "name", "")
        for row, (server, under_way, is_healthy) in enumerate(seen, 1):
            cached = self._cached[server]
            if not is_healthy:
                cached.clear()
                self._add(row, 1, "paused", f"server {server} is dead")
            if under_way:
                self._add(row, under_way, "shade1", f"server {server}: {under_way} under way")
            if server == name:
                kind = "short" if request.prefix in cached else "again"
                self._add(row, under_way + 1, kind, f"request {self.number + 1} goes to server {server}")
                cached.add(request.prefix)
        self.number += 1
        return chosen

    def _add(self, row: int, height: int, kind: str, words: str) -> None:
        height = min(height, HIGHEST - 1)
        self.boxes.append(Box(self.number, row * HIGHEST - height, 1, height, kind, words))


# Drafts ---------------------------------------------------------------------------------------------------------------

ITERATIONS, TOKENS = 60, 5
NEVER = TOKENS  # the token that ends an answer: none of these does


def draw_drafts(path: Path | None, asked: dict) -> tuple[str, str]:
    from inflight.lessons.speculation.counting import broken_by

    accept, chance = load(path, "accept").accept if path else _nothing_kept, random.Random(11)
    p = [_chances(chance) for _ in range(asked["k"] + 1)]
    q = [_drafter(asked["trace"], row, chance) for row in p[:-1]]
    boxes, tokens, kept, first = [], 0, 0, [0] * TOKENS
    for number in range(ITERATIONS):
        draft = [chance.choices(range(TOKENS), row)[0] for row in q]
        given = accept([*p], [*q], [*draft], chance, NEVER)
        came = list(given or [])
        if path and (problem := broken_by(came, draft, NEVER)):
            raise CourseError(f"{problem} The draft was {draft}, and accept() gave {given}.")
        agreed = [one == guess for one, guess in zip(came[:-1], draft)].count(True)
        first[came[0]] += 1
        tokens, kept = tokens + len(came), kept + agreed
        heights = {"medium": agreed, "short": 1, "waste": len(draft) - agreed}
        level = asked["k"] + 1
        for kind, height in heights.items():
            boxes.append(Box(number + 0.1, level - height, 0.8, height, kind, f"iteration {number + 1}: {height}"))
            level -= height
    shares = []
    for token, came in enumerate(first):
        shares.append(Box(3 * token, 1 - came / ITERATIONS, 1, came / ITERATIONS, "medium", f"token {token} came"))
        shares.append(Box(3 * token + 1, 1 - p[0][token], 1, p[0][token], "waste", f"token {token}: the model’s"))
    said = f"{tokens} tokens in {ITERATIONS} iterations, {kept} of {ITERATIONS * len(q)} guesses kept"
    columns = drawing.picture(
        [Panel(f"{'yours' if path else 'no guess kept'}: {said}", boxes, ITERATIONS, asked["k"] + 1, "iteration")],
        {"medium": "guesses kept", "short": "the model’s own token", "waste": "guesses thrown away"},
    )
    first_token = drawing.picture(
        [Panel("the first token of each iteration", shares, 3 * TOKENS, 1, "column")],
        {"medium": "how often each of five tokens came", "waste": "how often the model says it"},
    )
    return columns + first_token, f"Yours: {said}."


def _nothing_kept(p: list, q: list, draft: list[int], chance: random.Random, end: int) -> list[int]:
    return chance.choices(range(TOKENS), p[0])


def _chances(chance: random.Random) -> list[float]:
    row = [chance.random() ** 3 + 0.02 for _ in range(TOKENS)]
    return [each / sum(row) for each in row]


def _drafter(kind: str, large: list[float], chance: random.Random) -> list[float]:
    """Return a drafter's probabilities where the model has `large`."""
    if kind == "sure":
        return [float(each == max(large)) for each in large]
    if kind == "flat":
        return [1 / TOKENS] * TOKENS
    return [0.7 * one + 0.3 * other for one, other in zip(large, _chances(chance))]


# Each draws the file at a path beside what it is compared with, or the latter alone.
DRAW: dict[str, Callable[[Path | None, dict], tuple[str, str]]] = {
    "slots": draw_slots,
    "blocks": draw_blocks,
    "servers": draw_servers,
    "drafts": draw_drafts,
}
