"""A scheduler from a learner's file, in a process of its own: whatever it does there, the engine goes on.

    scheduler = tried(ExecutorConfig(scheduler_path="my_scheduler.py"), BuildConfig())
    plan = scheduler.schedule(now)

The process (`scheduler_child`) is told how the engine stands and answers with a plan, a line of JSON each. One that
loops, ends, or answers with nonsense is ended; the next call starts a new one.
"""

from __future__ import annotations

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
from dataclasses import astuple
from pathlib import Path

from inflight.engine.config import BuildConfig, ExecutorConfig, Request
from inflight.engine.fake_model import FakeModel
from inflight.engine.kv_cache import BlockManager
from inflight.engine.plan_rules import SchedulerError, plan_of
from inflight.engine.scheduler import EMPTY_PLANS, Now, Plan
from inflight.engine.sequences import Sequence, Sequences

START_S = 30  # longest time to start the process and run the file
CALL_S = 5  # and of a call of `schedule`
DRY_RUN_S = 60
DRY_RUN_SEED = 5
TRACEBACK_S = 1  # how long to wait for a process that hangs to say where
OUTERMOST_FRAME = b"in _run_code"  # of `python -m`, the last but one line of a traceback of the child


class SchedulerProcess:
    """The scheduler that a Python file defines; see `inflight.engine.scheduler.Scheduler`.

    Parameters
    ----------
    path : path
        Defines a class `Scheduler` with a method `schedule(now)`.

    Attributes
    ----------
    place : str
        File and line of its last answer.

    Raises
    ------
    SchedulerError
        The file cannot be read or run, or has no such class; with file and line.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path).absolute()
        self.place = self.path.name
        self._process: subprocess.Popen | None = None
        self._is_closed = False
        self._lock = threading.Lock()  # `close` comes from another thread than the calls
        self._start()

    def schedule(self, now: Now) -> Plan:
        """Ask for a plan.

        Raises
        ------
        SchedulerError
            It raised, ended its process, gave something else than a plan, or took longer than `CALL_S`.
        """
        if self._process is None:
            self._start()
        answer = self._exchange(json.dumps(_as_numbers(now)) + "\n", CALL_S, "schedule()")
        plan = answer["plan"]
        return Plan(plan["admit"], dict(plan["compute"]), plan["pause"])

    def close(self) -> None:
        """End the process; a call that is under way ends with an error. May be called twice."""
        with self._lock:
            self._is_closed = True
            process, self._process = self._process, None
        if process is not None:
            _end(process)

    def _start(self) -> None:
        with self._lock:
            if self._is_closed:
                raise SchedulerError(f"{self.path.name}: the scheduler was closed.")
            python = sys.executable if Path(sys.executable).name.startswith("python") else shutil.which("python3")
            self._process = subprocess.Popen(
                [str(python), "-m", "inflight.engine.scheduler_child", str(self.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        self._exchange("", START_S, "the file")

    def _exchange(self, line: str, longest_s: float, what: str) -> dict:
        """Send a line, and wait for the one that answers it."""
        process = self._process
        if process is None:
            raise SchedulerError(f"{self.path.name}: the scheduler was closed.")
        try:
            answer = self._answer(process, line, longest_s, what)
        except SchedulerError:
            with self._lock:
                self._process = None
            _end(process)
            raise
        self.place = f"{self.path.name}, line {answer['line']}"
        return answer

    def _answer(self, process: subprocess.Popen, line: str, longest_s: float, what: str) -> dict:
        deadline = time.monotonic() + longest_s
        try:
            _write(process, line.encode(), deadline)
            text = _read(process, deadline, b"\n")
            answer = json.loads(text) if text.endswith(b"\n") else None
        except TimeoutError:
            where = self._where_it_hangs(process)
            raise SchedulerError(f"{where}: {what} took longer than {longest_s:g} s and was ended.") from None
        except (OSError, ValueError):
            answer = None
        if not isinstance(answer, dict):
            if self._is_closed:
                raise SchedulerError(f"{self.path.name}: the scheduler was closed in a call of {what}.")
            raise SchedulerError(f"{self.place}: {what} ended its process (exit status {process.wait(START_S)}).")
        if "error" in answer:
            line_number = f", line {answer['line']}" if answer.get("line") else ""
            raise SchedulerError(f"{self.path.name}{line_number}: {answer['error']}.")
        return answer

    def _where_it_hangs(self, process: subprocess.Popen) -> str:
        """File and line in which a process hangs: its `faulthandler` writes where it is when it gets the signal."""
        process.send_signal(signal.SIGUSR1)
        try:
            text = _read(process, time.monotonic() + TRACEBACK_S, OUTERMOST_FRAME).decode("utf-8", "replace")
        except (TimeoutError, OSError):
            return self.place
        line = re.search(rf'File "{re.escape(str(self.path))}", line (\d+)', text)
        return f"{self.path.name}, line {line[1]}" if line else self.place


def _end(process: subprocess.Popen) -> None:
    process.kill()
    process.wait()
    assert process.stdin is not None and process.stdout is not None  # `_start` asked for both
    process.stdin.close()
    process.stdout.close()


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
    """What a process writes until `until` is among it, or it ends."""
    assert process.stdout is not None
    handle, text = process.stdout.fileno(), b""
    while until not in text:
        if not select.select([handle], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise TimeoutError
        part = os.read(handle, 1 << 16)
        if not part:
            break
        text += part
    return text


def _as_numbers(now: Now) -> dict:
    lines = {name: [astuple(request) for request in getattr(now, name)] for name in ("waiting", "running", "paused")}
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
    return SchedulerProcess(config.scheduler_path)


def dry_run(scheduler, config: ExecutorConfig, limits: BuildConfig) -> int:
    """Play a trace of short requests on a model without weights; return the number of iterations.

    Raises
    ------
    SchedulerError
        The scheduler broke a rule, leaves requests waiting for ever, or did not finish in `DRY_RUN_S`.
    """
    num_blocks = limits.max_batch_size * -(-limits.max_seq_len // limits.tokens_per_block)
    if config.max_tokens_in_paged_kv_cache is not None:
        num_blocks = min(num_blocks, config.max_tokens_in_paged_kv_cache // limits.tokens_per_block)
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
