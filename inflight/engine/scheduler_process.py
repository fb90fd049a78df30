"""A scheduler from a learner's file, in a process of its own: whatever it does there, the engine goes on.

    scheduler = tried(ExecutorConfig(scheduler_path="my_scheduler.py"), BuildConfig())
    plan = scheduler.schedule(now)

The process (`scheduler_child`) is told how the engine stands and answers with a plan, a line of JSON each. One that
loops, ends, or answers with nonsense is ended; the next call starts a new one, with the text that the file had first.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import fields
from operator import attrgetter
from pathlib import Path

from inflight import files
from inflight.engine.config import BuildConfig, ExecutorConfig, Request
from inflight.engine.fake_model import FakeModel
from inflight.engine.kv_cache import BlockManager
from inflight.engine.plan_rules import SchedulerError, plan_of
from inflight.engine.scheduler import EMPTY_PLANS, Now, Plan, RequestView
from inflight.engine.scheduler_child import MOST_ANSWER
from inflight.engine.sequences import Sequence, Sequences
from inflight.errors import CourseError

START_S = 30  # longest time to start the process and run the file
CALL_S = 5  # and of a call of `schedule`
END_S = 3  # longest time to wait for a process that has closed its pipe
DRY_RUN_S = 60
MOST_SOURCE = 1 << 20  # bytes of the file
DRY_RUN_SEED = 5
TRACEBACK_S = 10  # longest time to wait for a process that hangs to say where
OUTERMOST_FRAME = b"in _run_code"  # of `python -m`, the last but one line of a traceback of the child


class SchedulerProcess:
    """The scheduler that a Python file defines; see `inflight.engine.scheduler.Scheduler`.

    Parameters
    ----------
    path : path
        Defines a class `Scheduler` with a method `schedule(now)`.
    source : bytes, optional
        Text of the file; by default it is read. Who has tried a text serves with that one, whatever the file holds now.

    Attributes
    ----------
    source : bytes
    place : str
        File and line of its last answer.

    Raises
    ------
    SchedulerError
        The file cannot be read or run, or has no such class; with file and line.
    """

    def __init__(self, path: str | Path, source: bytes | None = None):
        self.path = Path(path).absolute()
        self.source = _source(self.path) if source is None else source
        self.place = self.path.name
        self._process: subprocess.Popen | None = None
        self._is_closed = False
        self._lock = threading.Lock()  # `close` comes from another thread than the calls
        self._in_call = threading.Lock()  # who holds it uses the pipes; nobody else may close them
        self._start()

    def schedule(self, now: Now) -> Plan:
        """Ask for a plan.

        Raises
        ------
        SchedulerError
            It raised, ended its process, gave something else than a plan, or took longer than `CALL_S`.
        """
        with self._in_call:
            if self._process is None:
                self._start()
            answer = self._exchange(_as_numbers(now), CALL_S, "schedule()")
        try:
            plan = answer["plan"]
            return Plan(plan["admit"], dict(plan["compute"]), plan["pause"])
        except (KeyError, TypeError, ValueError):
            reason = "gave a plan that is not made of request ids and numbers of tokens"
            raise SchedulerError(f"{self.place}: schedule() {reason}.") from None

    def close(self) -> None:
        """End the process; a call that is under way ends with an error. May be called twice."""
        with self._lock:
            self._is_closed = True
            process, self._process = self._process, None
        if process is not None:
            _kill(process)
            with self._in_call:  # a call that is under way sees that the process has ended
                _end(process)

    def _start(self) -> None:
        with self._lock:
            if self._is_closed:
                raise SchedulerError(f"{self.path.name}: the scheduler was closed.")
            python = sys.executable if Path(sys.executable).name.startswith("python") else shutil.which("python3")
            self._process = subprocess.Popen(
                # -u: what it prints is seen at once; one that hangs is killed and has no time to write it.
                [str(python), "-u", "-m", "inflight.engine.scheduler_child", str(self.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # what it starts ends with it, and an interrupt of a notebook is not for it
            )
        # JSON has no bytes: each becomes the character of its number.
        self._exchange({"source": self.source.decode("latin-1")}, START_S, "the file")

    def _exchange(self, question: dict, longest_s: float, what: str) -> dict:
        """Send a line, and wait for the one that answers it."""
        process = self._process
        if process is None:
            raise SchedulerError(f"{self.path.name}: the scheduler was closed.")
        try:
            answer = self._answer(process, json.dumps(question) + "\n", longest_s, what)
        except BaseException:  # an interrupt, too: nothing may be left in the pipe for the next call
            with self._lock:
                self._process = None
            _end(process)
            raise
        self.place = self._line(answer["line"])
        return answer

    def _line(self, number: int | None) -> str:
        return f"{self.path.name}, line {number}" if number else self.path.name

    def _answer(self, process: subprocess.Popen, line: str, longest_s: float, what: str) -> dict:
        deadline = time.monotonic() + longest_s
        try:
            _write(process, line.encode(), deadline)
            text = _read(process, deadline, b"\n")
        except TimeoutError:
            where = self._where_it_hangs(process)
            raise SchedulerError(f"{where}: {what} took longer than {longest_s:g} s and was ended.") from None
        except OSError:
            text = b""
        if self._is_closed:
            raise SchedulerError(f"{self.path.name}: the scheduler was closed in a call of {what}.")
        if b"\n" not in text and len(text) <= MOST_ANSWER:
            raise SchedulerError(f"{self.place}: {what} {_how_it_ended(process)}.")
        answer = _parsed(text)
        if answer is None:
            raise SchedulerError(f"{self.place}: {what} wrote into the pipe that is for its plans.")
        if "error" in answer:
            raise SchedulerError(f"{self._line(answer['line'])}: {answer['error']}.")
        return answer

    def _where_it_hangs(self, process: subprocess.Popen) -> str:
        """File and line in which a process hangs: its `faulthandler` writes where it is when it gets the signal."""
        process.send_signal(signal.SIGUSR1)
        try:
            text = _read(process, time.monotonic() + TRACEBACK_S, OUTERMOST_FRAME).decode("utf-8", "replace")
        except (TimeoutError, OSError):
            return self.place
        line = re.search(rf'File "{re.escape(str(self.path))}", line (\d+)', text)
        return self._line(int(line[1])) if line else self.place


def _source(path: Path) -> bytes:
    if not path.is_file():
        raise SchedulerError(
            f"{path.name}: there is no such Python file; name the one that defines the scheduler. {path} is no file."
        )
    try:
        return files.read_bytes(path, "scheduler", MOST_SOURCE, "Name a Python file.")
    except CourseError as error:
        raise SchedulerError(f"{path.name}: {error}") from None


def _kill(process: subprocess.Popen) -> None:
    """End a process and those that it has started."""
    with contextlib.suppress(ProcessLookupError):  # all of them have ended
        os.killpg(process.pid, signal.SIGKILL)


def _end(process: subprocess.Popen) -> None:
    _kill(process)
    process.wait()
    assert process.stdin is not None and process.stdout is not None  # `_start` asked for both
    process.stdin.close()
    process.stdout.close()


def _how_it_ended(process: subprocess.Popen) -> str:
    try:
        return f"ended its process (exit status {process.wait(END_S)})"
    except subprocess.TimeoutExpired:
        return "closed the pipe that is for its plans"


def _parsed(text: bytes) -> dict | None:
    """The answer that a line holds; None if it was not the child's own code that wrote it."""
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) and "line" in answer else None


def _write(process: subprocess.Popen, data: bytes, deadline: float) -> None:
    """Write to a process that may not be reading."""
    assert process.stdin is not None
    handle = process.stdin.fileno()
    os.set_blocking(handle, False)
    while data:
        if not select.select([], [handle], [], max(0.0, deadline - time.monotonic()))[1]:
            raise TimeoutError
        data = data[os.write(handle, data) :]


def _read(process: subprocess.Popen, deadline: float, until: bytes) -> bytes:
    """What a process writes until `until` is among it, it ends, or it is more than any answer."""
    assert process.stdout is not None
    handle, text = process.stdout.fileno(), b""
    while until not in text and len(text) <= MOST_ANSWER:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([handle], [], [], left)[0]:
            raise TimeoutError
        part = os.read(handle, 1 << 16)
        if not part:
            break
        text += part
    return text


_numbers_of = attrgetter(*(field.name for field in fields(RequestView)))


def _as_numbers(now: Now) -> dict:
    lines = {name: list(map(_numbers_of, getattr(now, name))) for name in ("waiting", "running", "paused")}
    names = ("free_blocks", "num_blocks", "tokens_per_block", "max_batch_size", "max_num_tokens", "chunked_context")
    return {**lines, **{name: getattr(now, name) for name in names}}


def tried(config: ExecutorConfig, limits: BuildConfig) -> SchedulerProcess:
    """The scheduler that `config.scheduler_path` names, after a dry run in another process: nothing of it is left.

    Raises
    ------
    SchedulerError
        It broke a rule, failed, or did not finish in `DRY_RUN_S`.
    """
    assert config.scheduler_path is not None
    trial = SchedulerProcess(config.scheduler_path)
    try:
        dry_run(trial, config, limits)
    finally:
        trial.close()
    return SchedulerProcess(trial.path, trial.source)


def dry_run(scheduler, config: ExecutorConfig, limits: BuildConfig) -> int:
    """Play a trace of short requests on a model without weights; return the number of iterations.

    Raises
    ------
    SchedulerError
        The scheduler broke a rule, leaves requests waiting for ever, or did not finish in `DRY_RUN_S`.
    """
    per_sequence = -(-limits.max_seq_len // limits.tokens_per_block)
    num_blocks = limits.max_batch_size * per_sequence
    if config.max_tokens_in_paged_kv_cache is not None:
        # Too few for one request are a fault of the setting, which the executor tells, and not of the scheduler.
        by_tokens = config.max_tokens_in_paged_kv_cache // limits.tokens_per_block
        num_blocks = min(num_blocks, max(by_tokens, per_sequence))
    model, blocks = FakeModel(limits), BlockManager(num_blocks, limits.tokens_per_block)
    model.allocate_kv_cache(num_blocks)
    sequences = Sequences(blocks, limits, config.enable_chunked_context, config.enable_kv_cache_reuse)
    coming = _trace(limits)
    sequences.waiting.extend(coming[: len(coming) // 2])
    del coming[: len(coming) // 2]
    iterations, num_empty, deadline = 0, 0, time.monotonic() + DRY_RUN_S
    while coming or sequences.waiting or sequences.running or sequences.paused:
        if coming and iterations % 2:
            sequences.waiting.append(coming.pop(0))
        chunks = sequences.carry_out(plan_of(scheduler, sequences.now()))
        for (sequence, chunk), row in zip(chunks.items(), model.forward(list(chunks.values()))):
            sequences.computed(sequence, chunk)
            if not sequence.num_pending and sequence.add(int(row.argmax())):
                sequences.remove(sequence)
        iterations += 1
        num_empty = 0 if chunks or coming else num_empty + 1
        place = getattr(scheduler, "place", type(scheduler).__name__)
        if num_empty == EMPTY_PLANS:
            left = ", ".join(str(s.id) for s in (*sequences.running, *sequences.paused, *sequences.waiting))
            raise SchedulerError(
                f"{place}: schedule() computed nothing {num_empty} times in a row; requests {left} wait."
            )
        if time.monotonic() > deadline:
            raise SchedulerError(
                f"{place}: the dry run did not finish within {DRY_RUN_S} s, after {iterations} iterations."
            )
    return iterations


def _trace(limits: BuildConfig) -> list[Sequence]:
    """More requests than the engine runs at once, with prompts and answers of many lengths."""
    draw = random.Random(DRY_RUN_SEED)
    lengths = [
        (draw.randint(1, min(limits.max_input_len, 4 * limits.tokens_per_block)), draw.randint(1, 40))
        for _ in range(2 * limits.max_batch_size + 3)
    ]
    return [
        Sequence(number, Request([number] * prompt, min(answer, limits.max_seq_len - prompt)))
        for number, (prompt, answer) in enumerate(lengths, 1)
    ]
