"""A scheduler of one's own, from the Python file that `scheduler_path` names.

    scheduler = accepted(ExecutorConfig(scheduler_path="my_scheduler.py"), BuildConfig())
    plan = scheduler.schedule(now)

It runs in the engine's own process, where one that ends the process or never returns would take the engine with it. So
it is tried first: it plays a trial in a process with limits of time and memory, and what goes wrong is told in a
sentence, with file and line.
"""

from __future__ import annotations

import ast
import contextlib
import faulthandler
import inspect
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from operator import index
from pathlib import Path

from inflight.engine.config import BuildConfig, ExecutorConfig
from inflight.engine.plan_rules import SchedulerError
from inflight.engine.play import Asked, Trial
from inflight.engine.scheduler import Now, Plan, Scheduler

LONGEST_S = 10  # of running the file, and of a call of `schedule`, where one that takes longer is ended
TRIAL_S = 60  # longest time of all that is played before it is accepted
MOST_MEMORY = 2 << 30  # bytes of address space in which it is tried


class OwnScheduler:
    """The scheduler that a file defines; see `inflight.engine.scheduler.Scheduler`.

    Parameters
    ----------
    path : path
        Defines a class `Scheduler` with a method `schedule(now)`.
    traceback_to : int, optional
        File descriptor. A call that takes longer than `longest_s` ends this process, after a traceback of where it was
        has been written there; by default none is ended.
    longest_s : float

    Attributes
    ----------
    place : str
        File and line of `def schedule`, as a message names them.
    answers_together : bool

    Raises
    ------
    SchedulerError
        The file cannot be read or run, or has no such class; with file and line.
    """

    def __init__(self, path: str | Path, traceback_to: int | None = None, longest_s: float = LONGEST_S):
        self._path, self._traceback_to, self._longest_s = Path(path).absolute(), traceback_to, longest_s
        with _telling(self._path), self._in_time():
            self._scheduler = _class_in(self._path)()
        code = inspect.unwrap(type(self._scheduler).schedule).__code__
        is_own = code.co_filename == str(self._path)  # or it was imported, and its lines are another file's
        self.place = _place(self._path, code.co_firstlineno if is_own else None)
        self.answers_together = bool(getattr(self._scheduler, "answers_together", False))

    def schedule(self, now: Now) -> Plan:
        """Ask for a plan. Raises SchedulerError when it raised, or gave something else."""
        # Lists of its own, to do with as it likes.
        now = replace(now, waiting=list(now.waiting), running=list(now.running), paused=list(now.paused))
        with _telling(self._path), self._in_time():
            plan = self._scheduler.schedule(now)
        if isinstance(plan, Plan):
            with contextlib.suppress(TypeError, ValueError):
                compute = {index(request): index(tokens) for request, tokens in dict(plan.compute).items()}
                return Plan(list(map(index, plan.admit)), compute, list(map(index, plan.pause)))
            raise SchedulerError(
                f"{self.place}: schedule() gave a plan that is not made of request ids and numbers of tokens."
            )
        return plan  # which `plan_rules` refuses

    @contextlib.contextmanager
    def _in_time(self) -> Iterator[None]:
        if self._traceback_to is None:
            yield
            return
        faulthandler.dump_traceback_later(self._longest_s, exit=True, file=self._traceback_to)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()


def _class_in(path: Path) -> Callable[[], Scheduler]:
    """The class `Scheduler` of a file, which is run. Raises whatever that raises."""
    if not path.is_file():
        raise SchedulerError(
            f"{path.name}: there is no such Python file; name the one that defines the scheduler. {path} is no file."
        )
    loader = SourceFileLoader("scheduler_of_ones_own", str(path))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = sys.modules[loader.name] = module_from_spec(spec)
    source = loader.get_data(str(path))
    # Compiled anew each time: a cached one may be that of a text that has been changed within the same second.
    exec(loader.source_to_code(source, str(path)), module.__dict__)
    kind = getattr(module, "Scheduler", None)
    if not isinstance(kind, type) or kind is Scheduler:  # the protocol, imported
        raise SchedulerError(f"{path.name}: it defines no class Scheduler.")
    if not (hasattr(kind, "schedule") and hasattr(inspect.unwrap(kind.schedule), "__code__")):
        nodes = ast.walk(ast.parse(source))
        lines = [node.lineno for node in nodes if isinstance(node, ast.ClassDef) and node.name == "Scheduler"]
        where = _place(path, lines[0] if lines else None)
        raise SchedulerError(f"{where}: its class Scheduler has no method schedule(self, now).")
    return kind


@contextlib.contextmanager
def _telling(path: Path) -> Iterator[None]:
    """Tell an error of the file in a sentence, with the last of its lines that took part."""
    try:
        yield
    except SchedulerError:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, SyntaxError) and error.filename == str(path):
            raise SchedulerError(f"{_place(path, error.lineno)}: it is not Python ({error.msg}).") from error
        own = [row.lineno for row in traceback.extract_tb(error.__traceback__) if row.filename == str(path)]
        what = "it ends the process" if isinstance(error, SystemExit) else f"{type(error).__name__}: {error}"
        raise SchedulerError(f"{_place(path, own[-1] if own else None)}: {what.rstrip(': .')}.") from error


def _place(path: Path, line: int | None) -> str:
    return f"{path.name}, line {line}" if line else path.name


# On trial -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tried:
    """What a scheduler has done in its trials.

    Attributes
    ----------
    plans : list of list of Plan
        Of each trial, its plan for each iteration; where it failed, up to there.
    error : str
        What went wrong, in a sentence; blank when nothing did.
    """

    plans: list[list[Plan]]
    error: str = ""


def accepted(config: ExecutorConfig, limits: BuildConfig, traceback_to: int | None = None) -> OwnScheduler:
    """The scheduler that `config.scheduler_path` names, after its trial; `traceback_to` is as `OwnScheduler` takes it.

    Raises
    ------
    SchedulerError
        It broke a rule, failed, ended its process, or did not finish in `TRIAL_S`.
    """
    assert config.scheduler_path is not None
    if error := tried(config.scheduler_path, [_first_trial(config, limits)], TRIAL_S).error:
        raise SchedulerError(error)
    return OwnScheduler(config.scheduler_path, traceback_to)


def tried(path: str | Path, trials: list[Trial], within_s: float) -> Tried:
    """What the scheduler in a file does in `trials`, which it plays in a process of its own."""
    path = Path(path).absolute()
    python = sys.executable if Path(sys.executable).name.startswith("python") else shutil.which("python3")
    try:
        process = subprocess.run(
            # -u: what it prints is seen, even if it is ended.
            [str(python), "-u", "-m", "inflight.engine.own_scheduler", str(path), str(LONGEST_S)],
            input=json.dumps([asdict(trial) for trial in trials]),
            stdout=subprocess.PIPE,
            text=True,
            timeout=within_s,
            start_new_session=True,  # an interrupt of a notebook is not for it
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # each takes address space
        )
    except subprocess.TimeoutExpired:
        return Tried([], f"{path.name}: schedule() takes too long: its trial did not end within {within_s:g} s.")
    if process.returncode == 0 and process.stdout:
        answer = json.loads(process.stdout)
        return Tried([[Plan(a, dict(c), p) for a, c, p in plans] for plans in answer["plans"]], answer["error"])
    if hangs := re.search(rf'^Timeout .*?File "{re.escape(str(path))}", line (\d+) in (\S+)', process.stdout, re.S):
        what = "the file" if hangs[2] == "<module>" else "schedule()"
        return Tried([], f"{_place(path, int(hangs[1]))}: {what} took longer than {LONGEST_S} s and was ended.")
    return Tried([], f"{path.name}: it ended the process of its trial (exit status {process.returncode}).")


def _first_trial(config: ExecutorConfig, limits: BuildConfig) -> Trial:
    """Twice as many requests as run at once, of many lengths; the second half comes while the first is served."""
    draw = random.Random(5)
    requests: list[Asked] = []
    number = 2 * limits.max_batch_size + 3
    for place in range(number):
        prompt = draw.randint(1, min(limits.max_input_len, 4 * limits.tokens_per_block))
        answer = min(draw.randint(1, 40), limits.max_seq_len - prompt)
        requests.append(Asked(prompt, answer, answer, max(0, 2 * (place - number // 2) + 1)))
    return Trial(
        requests, config.num_blocks(limits), limits, config.enable_chunked_context, config.enable_kv_cache_reuse
    )


def main(path: str, longest_s: float) -> None:
    """The process of a trial: from its input what to play, to its output what came of it."""
    trials = [
        Trial(**{**trial, "requests": [Asked(**each) for each in trial["requests"]], "limits": BuildConfig(**limits)})
        for trial in json.load(sys.stdin)
        for limits in [trial["limits"]]
    ]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the scheduler prints belongs to the log
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    plans: list[list[tuple]] = []
    error = ""
    try:
        scheduler = OwnScheduler(path, answers.fileno(), longest_s)
        for trial in trials:
            plans.append([])
            for iteration in trial.play(scheduler):
                plan = iteration.plan
                plans[-1].append((plan.admit, list(plan.compute.items()), plan.pause))
    except SchedulerError as told:
        error = str(told)
    json.dump({"plans": plans, "error": error}, answers)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
