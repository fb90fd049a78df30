"""A scheduler of one's own, from the Python file that `scheduler_path` names.

    scheduler = accepted(ExecutorConfig(scheduler_path="my_scheduler.py"), BuildConfig())
    plan = scheduler.schedule(now)

It runs in the engine's own process. Before it serves it plays a trial there, so that one that fails or breaks a rule is
refused, in a sentence with file and line. One that does not return is for whoever started the process: a notebook is
interrupted, and the process of a Triton model is ended (`traceback_to`).
"""

from __future__ import annotations

import ast
import contextlib
import faulthandler
import inspect
import random
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from operator import index
from pathlib import Path

from inflight.engine.config import BuildConfig, ExecutorConfig
from inflight.engine.plan_rules import SchedulerError
from inflight.engine.play import Trial, TrialRequest
from inflight.engine.scheduler import Now, Plan, Scheduler

LONGEST_S = 10  # of running the file, and of a call of `schedule`, where one that takes longer is ended


class OwnScheduler:
    """The scheduler that a file defines; see `inflight.engine.scheduler.Scheduler`.

    Parameters
    ----------
    path : path
        Defines a class `Scheduler` with a method `schedule(now)`.
    traceback_to : int, optional
        File descriptor. A call that takes longer than LONGEST_S ends this process, after a traceback of where it was
        has been written there; by default none is ended.

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

    def __init__(self, path: str | Path, traceback_to: int | None = None):
        self._path, self._traceback_to = Path(path).absolute(), traceback_to
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
        faulthandler.dump_traceback_later(LONGEST_S, exit=True, file=self._traceback_to)
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


def accepted(config: ExecutorConfig, limits: BuildConfig, traceback_to: int | None = None) -> OwnScheduler:
    """The scheduler that `config.scheduler_path` names, after its trial; `traceback_to` is as `OwnScheduler` takes it.

    Raises
    ------
    SchedulerError
        It failed or broke a rule.
    """
    assert config.scheduler_path is not None
    for _ in _first_trial(config, limits).play(OwnScheduler(config.scheduler_path, traceback_to)):
        pass
    return OwnScheduler(config.scheduler_path, traceback_to)  # which has seen no request yet


def _first_trial(config: ExecutorConfig, limits: BuildConfig) -> Trial:
    """Twice as many requests as run at once, of many lengths; the second half comes while the first is served."""
    draw = random.Random(5)
    requests: list[TrialRequest] = []
    number = 2 * limits.max_batch_size + 3
    for place in range(number):
        prompt = draw.randint(1, min(limits.max_input_len, 4 * limits.tokens_per_block))
        answer = min(draw.randint(1, 40), limits.max_seq_len - prompt)
        requests.append(TrialRequest(prompt, answer, answer, max(0, 2 * (place - number // 2) + 1)))
    return Trial(
        requests, config.num_blocks(limits), limits, config.enable_chunked_context, config.enable_kv_cache_reuse
    )
