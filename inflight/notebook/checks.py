"""Checks a learner's answers in a lab, and says which way to go when they are not right yet.

    check("1.2", "quantizer.py")

A check never stops a lab. With COURSE_STRICT=1 in the environment (how the solutions are built and tested) it raises.
The graders of a lesson are in its own folder, `inflight/lessons/<topic>/grading.py`; what all of them share is here.

Functions from cells run in the kernel, where Ctrl-C ends them. A file runs, with its grader, in a process of its own,
which is ended where it takes too long; what was found comes back as JSON.
"""

from __future__ import annotations

import copy
import faulthandler
import functools
import html
import importlib.util
import json
import math
import operator
import os
import random
import re
import reprlib
import secrets
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from inflight.engine.scheduler import Now, Plan, tokens_to_compute
from inflight.errors import CourseError
from inflight.notebook import mine, progress, record, syllabus

SEED = "INFLIGHT_SEED"  # the environment's: the same hidden cases again
MOST_KEPT = 300  # characters of a hint, in the learner's record
NOT_YET = "not done yet"  # what a grader returns when it sees that the learner has not begun
DIGITS = 3  # of a figure, as it is shown

# Border colour and words: the words alone say it too, for those who do not see the colour.
_LOOK = {
    "done": ("#009E73", "Done"),
    NOT_YET: ("#999999", "Not done yet"),
    "partly": ("#E69F00", "Partly right"),
    "wrong": ("#D55E00", "Not right yet"),
}
_OF_A_PART = {"done": "{} ✓", NOT_YET: "{} still open", "wrong": "{} not right yet"}


# What a grader finds --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """A figure that an answer reached, beside what it should reach.

    Right or wrong rests on counts and equality: what has a budget is counted, never timed. A figure without a budget,
    such as a speed, is shown and judges nothing.

    Parameters
    ----------
    what : str
        What was measured, as "iterations"; the number follows it in a sentence.
    value : float
    at_most, at_least, exactly : float, optional
        The budget, one of these or none.
    course : float, optional
        What the course's own answer reaches on the same cases.
    nothing : float, optional
        What doing nothing reaches.
    unit : str
        Follows each number.
    advice : str
        Which way to go when the budget is not kept.
    """

    what: str
    value: float
    at_most: float | None = None
    at_least: float | None = None
    exactly: float | None = None
    course: float | None = None
    nothing: float | None = None
    unit: str = ""
    advice: str = ""

    @property
    def is_right(self) -> bool:
        """Whether the budget is kept, as far as the page shows the number; true without one."""
        if not math.isfinite(self.value):
            return False
        if self.at_most is not None:
            return self.value <= self.at_most
        if self.at_least is not None:
            return self.value >= self.at_least
        return self.exactly is None or _shown(self.value) == _shown(self.exactly)

    @property
    def budget(self) -> str:
        """The budget in words, blank without one."""
        limits = (("at most", self.at_most), ("at least", self.at_least), ("exactly", self.exactly))
        return next((f"{words} {self.number(limit)}" for words, limit in limits if limit is not None), "")

    @property
    def hint(self) -> str:
        """Measured against budget, and which way to go."""
        wanted = f", where {self.budget} is wanted" if self.budget else ""
        return f"{self.what}: {self.number(self.value)}{wanted}. {self.advice}".rstrip()

    def number(self, value: float | None) -> str:
        """A figure of this kind, with the digits that tell it from its budget; blank where there is none."""
        if value is None:
            return ""
        limit = next((each for each in (self.at_most, self.at_least, self.exactly) if each is not None), None)
        digits = DIGITS
        if limit is not None and not self.is_right:
            digits = next((d for d in range(DIGITS, 9) if _shown(self.value, d) != _shown(limit, d)), DIGITS)
        return f"{_shown(value, digits)} {self.unit}".rstrip()


def _shown(value: float, digits: int = DIGITS) -> str:
    if not math.isfinite(value):
        return "none"
    is_whole = float(value).is_integer() or (abs(value) >= 10**digits)
    return f"{value:,.0f}" if is_whole else f"{value:.{digits}g}"


# Of an answer, or of a part of it: None when it is right, NOT_YET, a hint, or what was measured.
Finding = str | Measured | list[Measured] | None


@dataclass(frozen=True)
class Beside:
    """What an answer came to on some cases, beside what the course's own and doing nothing come to on the same.

    Parameters
    ----------
    own, course, nothing : object
        Of one kind, with a number for each count.
    """

    own: Any
    course: Any
    nothing: Any

    def measured(self, what: str, count: str, **budget) -> Measured:
        """The figure that is the attribute `count` of all three; `budget` and advice as `Measured` takes them."""
        own, course, nothing = (getattr(one, count) for one in (self.own, self.course, self.nothing))
        return Measured(what, own, course=course, nothing=nothing, **budget)


@dataclass(frozen=True)
class Case:
    """What a learner's function is given, and what it is to return.

    Parameters
    ----------
    given : tuple
        Its arguments.
    right : object
        As `plain` has it.
    about : str
        What is asked for, as "users with 81 tokens each in 12 GB".
    hint : str
        Which way to go, for who returns something else.
    told : tuple of (object, str)
        What a wrong idea comes to, and what to say to who returns that.
    """

    given: tuple
    right: Any
    about: str
    hint: str
    told: tuple[tuple[Any, str], ...] = ()


def tried_on(cases: Iterable[Case], function: Callable, same: Callable[[Any, Any], bool] = operator.eq) -> str | None:
    """Run a learner's function on each case: what to say of the first that is not right; NOT_YET where it gives None.

    Parameters
    ----------
    same : callable
        Whether what it returned counts as this value: `near`, where that is not a count.
    """
    for case in cases:
        got = function(*copy.deepcopy(case.given))
        if got is None:
            if case.right is None:
                continue
            return NOT_YET
        if not same(got, case.right):
            hint = next((words for value, words in case.told if same(got, value)), case.hint)
            if isinstance(got, int | float) and isinstance(case.right, int | float):
                return Measured(case.about, got, exactly=case.right, advice=hint).hint
            return f"{case.about}: {got!r}, where {case.right!r} is wanted. {hint}".rstrip()
    return None


class OneAtATime:
    """The scheduler that is left when nothing is decided: the oldest request alone."""

    def schedule(self, now: Now) -> Plan:
        first = [*now.running, *now.waiting][:1]
        admit = [] if now.running else [request.id for request in first]
        return Plan(admit=admit, compute=tokens_to_compute(now, first))


# What a check answers -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """What `check` found.

    Attributes
    ----------
    exercise : str
    status : str
        "done", "not done yet", "partly" or "wrong".
    hint : str
        Helps when something is wrong.
    parts : dict of str to str
        Of an answer with several parts, the status of each: "done", "not done yet" or "wrong".
    insight : str
        What is worth keeping, in a sentence, when all is right.
    figures : list of Measured
        What was measured, right or not.
    seed : int or None
        Of the hidden cases, where there were any.
    kept : str
        What was kept of the answer, in a sentence.
    """

    exercise: str
    status: str
    hint: str = ""
    parts: dict[str, str] = field(default_factory=dict)
    insight: str = ""
    figures: list[Measured] = field(default_factory=list)
    seed: int | None = None
    kept: str = ""

    def __repr__(self) -> str:
        lines = [" ".join(filter(None, [f"Exercise {self.exercise}: {self._verdict()}.", self.hint, self.insight]))]
        for what, row in self._table().iterrows():
            lines.append(f"  {what}: {'; '.join(f'{name} {value}' for name, value in row.items() if value)}")
        return "\n".join([*lines, *filter(None, [self.kept, self._cases()])])

    def _repr_html_(self) -> str:
        style = f"border-left: 6px solid {_LOOK[self.status][0]}; padding: 4px 12px"
        more = "".join(f"<br>{html.escape(text)}" for text in (self.hint, self.insight) if text)
        less = "".join(f"<br><small>{html.escape(text)}</small>" for text in (self.kept, self._cases()) if text)
        verdict = html.escape(f"Exercise {self.exercise}: {self._verdict()}.")
        table = self._table().to_html(border=0, justify="left") if self.figures else ""
        return f'<div style="{style}"><strong>{verdict}</strong>{more}{table}{less}</div>'

    def _verdict(self) -> str:
        word = _LOOK[self.status][1]
        if not self.parts or self.status in ("done", NOT_YET):
            return word
        return f"{word}: {', '.join(_OF_A_PART[status].format(part) for part, status in self.parts.items())}"

    def _table(self) -> pd.DataFrame:
        """What was measured, a row a figure; without the columns that have nothing in them."""
        rows = [
            {
                "yours": figure.number(figure.value),
                "wanted": figure.budget,
                "the course's": figure.number(figure.course),
                "doing nothing": figure.number(figure.nothing),
            }
            for figure in self.figures
        ]
        table = pd.DataFrame(rows, index=[figure.what for figure in self.figures])
        return table.loc[:, (table != "").any()]

    def _cases(self) -> str:
        return "" if self.seed is None else f"Hidden cases: seed {self.seed} ({SEED}={self.seed} repeats them)."


@dataclass(frozen=True)
class _Grader:
    """What a lesson's module registers."""

    grade: Callable
    insight: str
    keeps: str
    within_s: float | None
    endless: str


_graders: dict[str, _Grader] = {}  # of the lessons that are imported, by exercise


def grades(
    exercise: str,
    insight: str = "",
    keeps: str = "",
    within_s: float | None = None,
    endless: str = "Is there a loop that does not end?",
) -> Callable[[Callable], Callable]:
    """Register the decorated function for `exercise`.

    It takes the answer and a `random.Random`, which makes hidden cases that differ from check to check, and returns a
    `Finding`; or, for an answer of several parts, a dict of part to `Finding`, or to a function without arguments that
    gives one: what goes wrong in one part does not hide what is right in the others. Where it raises a CourseError,
    that is the hint; NotImplementedError says that the learner has not begun.

    Parameters
    ----------
    exercise : str
        As "4.1".
    insight : str
        One sentence, said after a right answer.
    keeps : str
        The part of the learner's own stack (`mine`) that a right answer is: the answer, or the first of several, is
        the path of its file or folder.
    within_s : float, optional
        The answer, or the first of several, is the path of a file that the grader runs: it does so in a process of its
        own, which is ended where it, or a part, takes so long. The rest of the answer is what JSON can hold, or a
        server: of that the grader has a dict with `grpc_url`, `http_url` and `repo`.
    endless : str
        Said of a file that takes so long.
    """

    def register(grade: Callable) -> Callable:
        _graders[exercise] = _Grader(grade, insight, keeps, within_s, endless)
        return grade

    return register


def check(exercise: str, answer: object) -> Result:
    """Grade `answer` and return what to show.

    An answer that is None or `...`, or that holds nothing else, counts as not begun. $INFLIGHT_SEED repeats the hidden
    cases of an earlier check.

    Raises
    ------
    CourseError
        Only with COURSE_STRICT=1: the answer is not right.
    """
    with progress.wait(f"Exercise {exercise} is checked"):
        result = Result(exercise, NOT_YET) if is_untouched(answer) else _grade(exercise, answer)
    if result.status != NOT_YET:
        figures = [
            {"what": figure.what, "value": figure.value, "course": figure.course, "nothing": figure.nothing}
            for figure in result.figures
        ]
        what = {"status": result.status, "seed": result.seed, "said": result.hint[:MOST_KEPT]}
        record.note("exercise", exercise=exercise, figures=figures, **what)
    if result.status != "done" and os.environ.get("COURSE_STRICT") == "1":
        raise CourseError(f"{result!r} Correct the answer in the lesson's lab.py, or the exercise's grader.")
    return result


def _grade(exercise: str, answer: object) -> Result:
    _import_graders(exercise.partition(".")[0])
    if exercise not in _graders:
        return Result(exercise, "wrong", "There is no such exercise.")
    grader, seed = _graders[exercise], _seed()
    if grader.within_s is None:
        choose = random.Random(seed)
        unused = choose.getstate()
        found = _parts(grader, answer, choose)
        for part, given in found.items():
            if callable(given):
                progress.say(part)
                found[part] = _finding(given)
        has_hidden_cases = choose.getstate() != unused
    else:
        found, has_hidden_cases = _found_apart(exercise, grader, answer, seed), True
    said = {part: _said(finding) for part, finding in found.items()}
    statuses = {part: _STATUS.get(words, "wrong") for part, words in said.items()}
    kinds = set(statuses.values())
    status = kinds.pop() if len(kinds) == 1 else "partly" if "done" in kinds else "wrong"
    is_one_cause = status == "wrong" and len(set(said.values())) == 1  # for all parts, such as an exception
    return Result(
        exercise,
        status,
        next((words for words in said.values() if words not in _STATUS), ""),
        {} if is_one_cause or "" in found else statuses,
        grader.insight if status == "done" else "",
        [figure for finding in found.values() for figure in _figures(finding)],
        seed if has_hidden_cases else None,
        mine.keep(grader.keeps, Path(str(_first(answer))), exercise) if grader.keeps and status == "done" else "",
    )


_STATUS = {None: "done", NOT_YET: NOT_YET}  # of what is said of a finding, where that is no hint


def _seed() -> int:
    """What $INFLIGHT_SEED says, else a fresh one of five digits."""
    given = os.environ.get(SEED, "")
    return int(given) if given.isdecimal() else 10_000 + secrets.randbelow(90_000)


def _figures(finding: Finding) -> list[Measured]:
    return [finding] if isinstance(finding, Measured) else finding if isinstance(finding, list) else []


def _said(finding: Finding) -> str | None:
    """What is to be said of a finding: None where it is right, NOT_YET, or how to go on."""
    if finding is None or isinstance(finding, str):
        return finding
    return next((figure.hint for figure in _figures(finding) if not figure.is_right), None)


def _lessons() -> dict[str, str]:
    """The folder in `inflight/lessons` of each lesson, by the number before the dot of its exercises."""
    return {str(int(lesson.number)): lesson.name[3:] for lesson in syllabus.read() if not lesson.planned}


def _import_graders(lesson: str) -> None:
    """Import the graders of one lesson, which registers them: no lab loads what another one is checked with."""
    folder = f"inflight.lessons.{_lessons().get(lesson)}"
    if importlib.util.find_spec(folder) and importlib.util.find_spec(f"{folder}.grading"):
        importlib.import_module(f"{folder}.grading")


# An answer, and what is found of it -----------------------------------------------------------------------------------


def is_untouched(answer: object) -> bool:
    """Whether `answer` is None or `...`, or a list, tuple or dict of nothing but these."""
    if isinstance(answer, dict):
        answer = list(answer.values())
    if isinstance(answer, list | tuple):
        return bool(answer) and all(map(is_untouched, answer))
    return answer is None or answer is ...


def plain(answer: Any) -> Any:
    """An answer in Python's own terms, so that an honest one of another form counts as what it is.

    NumPy's numbers are Python's, a float that is whole is an int; arrays, Series and tuples are lists, a Series that is
    labelled by strings is a dict. Within one of these `...`, NaN and pandas' NA are None. A function gives what it
    returns in these terms. Anything else stays what it is.
    """
    if isinstance(answer, dict):
        return {key: _item(each) for key, each in answer.items()}
    if isinstance(answer, pd.Series) and answer.index.inferred_type == "string":
        return plain(answer.to_dict())
    if isinstance(answer, np.ndarray | pd.Series | pd.Index):
        answer = answer.tolist()
    if type(answer) in (list, tuple):
        return [_item(each) for each in answer]
    if isinstance(answer, np.generic):
        answer = answer.item()
    if isinstance(answer, float) and answer.is_integer():
        return int(answer)
    if callable(answer) and not isinstance(answer, type):
        return _in_plain_terms(answer)
    return None if answer is ... else answer


def _item(value: Any) -> Any:
    value = plain(value)
    return None if value is pd.NA or (isinstance(value, float) and math.isnan(value)) else value


def _in_plain_terms(function: Callable) -> Callable:
    """The function, its results as `plain` gives them; an error in it says for which arguments it came."""

    @functools.wraps(function)
    def called(*arguments, **options):
        try:
            return plain(function(*arguments, **options))
        except Exception as error:
            name = getattr(function, "__name__", "<lambda>").replace("<lambda>", "your function")
            error.add_note(f" That was for {name}({', '.join(map(_in_brief, arguments))}).")
            raise

    return called


def _in_brief(value: object) -> str:
    return f"a table of {len(value)} rows" if isinstance(value, pd.DataFrame) else reprlib.repr(value)


def near(got: object, wanted: float | None) -> bool:
    """Whether `got` is the number `wanted` as a page shows it, to two decimals or half a per cent; None is None."""
    if wanted is None or not isinstance(got, int | float):
        return got is wanted
    return math.isclose(got, wanted, rel_tol=0.005, abs_tol=0.0051)


def _parts(grader: _Grader, answer: object, choose: random.Random, path: str = "") -> dict[str, Finding | Callable]:
    """What the grader finds, or how to find it, by part: "" where there are none."""
    found = _finding(lambda: grader.grade(plain(answer), choose), path)
    return found if isinstance(found, dict) else {"": found}


def _finding(given: Any, path: str = "") -> Any:
    """What a function gives, or that it could not: an answer of any type may arrive, and a lab must go on.

    Whoever raises NotImplementedError has not begun. A CourseError is a sentence already; of another error the line in
    `path`, the learner's file, is named.
    """
    if not callable(given):
        return given
    try:
        return given()
    except NotImplementedError:
        return NOT_YET
    except CourseError as error:
        return "".join([str(error), *getattr(error, "__notes__", [])])
    except (Exception, SystemExit) as error:
        lines = [row.lineno for row in traceback.extract_tb(error.__traceback__) if path and row.filename == path]
        what = error.msg if isinstance(error, SyntaxError) and error.filename == path else str(error)
        if isinstance(error, SyntaxError) and error.filename == path:
            lines = [error.lineno]
        where = f"{Path(path).name}, line {lines[-1]}" if lines else "Your answer could not be checked"
        said = f"{where}: {type(error).__name__}: {what}".removesuffix(": ")
        return "".join([said if said[-1] in ".?!" else f"{said}.", *getattr(error, "__notes__", [])])


# In a process of its own ----------------------------------------------------------------------------------------------


def _first(answer: object) -> object:
    return answer[0] if isinstance(answer, list | tuple) else answer


def _found_apart(exercise: str, grader: _Grader, answer: object, seed: int) -> dict[str, Finding]:
    path = _first(answer)
    if not isinstance(path, str | Path) or not Path(path).is_file():
        return {"": f"There is no file {path!s}: run the cell that writes it, and give its path."}
    path = str(Path(path).absolute())
    given = [path, *answer[1:]] if isinstance(answer, list | tuple) else path
    asked = {"exercise": exercise, "answer": given, "seed": seed, "path": path, "within_s": grader.within_s}
    ran = subprocess.run(
        [sys.executable, "-c", f"from {__name__} import main; main()"],
        input=json.dumps(asked, default=_as_json),
        capture_output=True,
        text=True,
    )
    told = [json.loads(line) for line in ran.stdout.splitlines()]
    found: dict[str, Finding] = {
        part: [Measured(**figure) for figure in one] if isinstance(one, list) else one for part, one in told[1:]
    }
    if not told or len(found) < len(told[0]):
        name, said = Path(path).name, ran.stderr.strip().splitlines()
        problem = f"{name} ended its process (exit status {ran.returncode}). {said[-1] if said else ''}".strip()
        if any(line.startswith("Timeout (") for line in said):
            lines = re.findall(rf'File "{re.escape(path)}", line (\d+)', ran.stderr)
            where = f"{name}, line {lines[0]}" if lines else name
            problem = f"{where}: it had not ended after {grader.within_s:g} s. {grader.endless}"
        parts = told[0] if told else [""]
        found[parts[len(found)]] = problem
    return {part: found.get(part, NOT_YET) for part in (told[0] if told else found)}


def _as_json(value: object) -> object:
    """Of an answer: a server by its addresses and its repository; a NumPy number; anything else as it is printed."""
    if hasattr(value, "grpc_url"):
        return {name: str(getattr(value, name)) for name in ("grpc_url", "http_url", "repo")}
    return value.item() if isinstance(value, np.generic) else str(value)


def main() -> None:
    """Grade the answer that comes as JSON on standard input; write the names of its parts, then what is found of each.

    A line of JSON each. The process ends with its last line, whatever threads it has left.
    """
    asked, results = json.load(sys.stdin), os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the learner's code prints is no finding
    path, within_s = asked["path"], asked["within_s"]
    _import_graders(asked["exercise"].partition(".")[0])
    faulthandler.dump_traceback_later(within_s, exit=True)
    parts = _parts(_graders[asked["exercise"]], asked["answer"], random.Random(asked["seed"]), path)
    print(json.dumps(list(parts)), file=results)
    for part, given in parts.items():
        faulthandler.dump_traceback_later(within_s, exit=True)
        found = _finding(given, path)
        figures = [asdict(figure) for figure in _figures(found)]
        print(json.dumps([part, figures or found], default=_as_json), file=results)
    os._exit(0)
