"""What a check does with an answer, whatever the exercise: find its grader, ask it, and say what it found."""

import html
import importlib.util
import os
import random
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from inflight.errors import CourseError
from inflight.notebook import mine, progress, record, syllabus
from inflight.notebook.grading.finding import NOT_YET, Finding, Measured, hint, measured

SEED = "INFLIGHT_SEED"  # the environment's: the same hidden cases again
MOST_KEPT = 300  # characters of a hint, in the learner's record


@dataclass(frozen=True)
class _Grader:
    """What a lesson's module registers: the function, what is said when all is right, and the part that is kept."""

    grade: Callable
    insight: str
    keeps: str


_graders: dict[str, _Grader] = {}  # of the lessons that are imported, by exercise

# Border colour and words: the words alone say it too, for those who do not see the colour.
_LOOK = {
    "done": ("#009E73", "Done"),
    NOT_YET: ("#999999", "Not done yet"),
    "partly": ("#E69F00", "Partly right"),
    "wrong": ("#D55E00", "Not right yet"),
}
_OF_A_PART = {"done": "{} ✓", NOT_YET: "{} still open", "wrong": "{} not right yet"}


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
        lines += [
            f"  {what}: {'; '.join(f'{name} {value}' for name, value in row.items() if value)}"
            for what, row in self._rows()
        ]
        return "\n".join([*lines, *filter(None, [self.kept, self._cases()])])

    def _repr_html_(self) -> str:
        style = f"border-left: 6px solid {_LOOK[self.status][0]}; padding: 4px 12px"
        more = "".join(f"<br>{html.escape(text)}" for text in (self.hint, self.insight) if text)
        less = "".join(f"<br><small>{html.escape(text)}</small>" for text in (self.kept, self._cases()) if text)
        verdict = html.escape(self._verdict())
        return (
            f'<div style="{style}"><strong>Exercise {html.escape(self.exercise)}: {verdict}.</strong>{more}'
            f"{self._table()}{less}</div>"
        )

    def _verdict(self) -> str:
        word = _LOOK[self.status][1]
        if not self.parts or self.status in ("done", NOT_YET):
            return word
        return f"{word}: {', '.join(_OF_A_PART[status].format(part) for part, status in self.parts.items())}"

    def _rows(self) -> list[tuple[str, dict[str, str]]]:
        return [
            (
                figure.what,
                {
                    "yours": figure.number(figure.value),
                    "wanted": figure.budget,
                    "the course's": figure.number(figure.course),
                    "doing nothing": figure.number(figure.nothing),
                },
            )
            for figure in self.figures
        ]

    def _table(self) -> str:
        rows = self._rows()
        if not rows:
            return ""
        names = [name for name in rows[0][1] if any(row[name] for _, row in rows)]
        head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in ("", *names))
        body = "".join(
            f'<tr><th scope="row" style="text-align: left">{html.escape(what)}</th>'
            + "".join(f"<td>{html.escape(row[name])}</td>" for name in names)
            + "</tr>"
            for what, row in rows
        )
        return f'<table style="margin: 4px 0"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'

    def _cases(self) -> str:
        return "" if self.seed is None else f"Hidden cases: seed {self.seed}."


def grades(exercise: str, insight: str = "", keeps: str = "") -> Callable[[Callable], Callable]:
    """Register the decorated function for `exercise`.

    It takes the answer and a `random.Random`, which makes hidden cases that differ from check to check, and returns a
    `Finding`; or, for an answer of several parts, a dict of part to `Finding`, or to a function without arguments that
    gives one: what goes wrong in one part does not hide what is right in the others.

    Parameters
    ----------
    exercise : str
        As "4.1".
    insight : str
        One sentence, said after a right answer.
    keeps : str
        The part of the learner's own stack (`mine`) that a right answer is: the answer, or the first of several, is
        the path of its file or folder.
    """

    def register(grade: Callable) -> Callable:
        if exercise in _graders:
            raise ValueError(f"exercise {exercise} has two graders")
        _graders[exercise] = _Grader(grade, insight, keeps)
        return grade

    return register


def check(exercise: str, answer: object) -> Result:
    """Grade `answer` and return what to show.

    An answer that is None or `...`, or that holds nothing else, counts as not begun; so does one that holds one of
    these, unless its exercise has several parts. $INFLIGHT_SEED repeats the hidden cases of an earlier check.

    Raises
    ------
    CourseError
        Only with COURSE_STRICT=1: the answer is not right.
    """
    with progress.wait(f"Exercise {exercise} is checked"):
        result = Result(exercise, NOT_YET) if untouched(answer) else _grade(exercise, answer)
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


def untouched(answer: object) -> bool:
    """Whether `answer` is None or `...`, or a list, tuple or dict of nothing but these."""
    return _is_open(answer, lambda items: bool(items) and all(items))


def _is_open(answer: object, combine: Callable[[list[bool]], bool]) -> bool:
    """Whether `answer` is None or `...`; of one that holds several, what `combine` makes of them."""
    if isinstance(answer, dict):
        answer = list(answer.values())
    if isinstance(answer, list | tuple):
        return combine([_is_open(item, combine) for item in answer])
    return answer is None or answer is ...


class _Dice(random.Random):
    """Knows whether it was ever used, so that a seed is told only where there were hidden cases."""

    is_used = False

    def random(self) -> float:
        self.is_used = True
        return super().random()

    def getrandbits(self, k: int) -> int:
        self.is_used = True
        return super().getrandbits(k)


def _grade(exercise: str, answer: object) -> Result:
    _import_graders(str(exercise).partition(".")[0])
    if exercise not in _graders:
        for lesson in _lessons():
            _import_graders(lesson)
        known = ", ".join(sorted(_graders)) or "none"
        return Result(exercise, "wrong", f"There is no such exercise; there are {known}.")
    grader, seed = _graders[exercise], _seed()
    choose = _Dice(seed)
    found = _finding(lambda: grader.grade(answer, choose))
    if not isinstance(found, dict) and _is_open(answer, any):  # it has no parts of which one could be right
        return Result(exercise, NOT_YET)
    findings = found if isinstance(found, dict) else {"": found}
    findings = {part: _part(part, given) if callable(given) else given for part, given in findings.items()}
    hints = {part: hint(finding) for part, finding in findings.items()}
    statuses = {part: _STATUS.get(said, "wrong") for part, said in hints.items()}
    status = _of_all(set(statuses.values()))
    is_one_cause = status == "wrong" and len(set(hints.values())) == 1  # for all parts, such as an exception
    return Result(
        exercise,
        status,
        next((said for said in hints.values() if said not in _STATUS), ""),
        statuses if isinstance(found, dict) and not is_one_cause else {},
        grader.insight if status == "done" else "",
        [figure for finding in findings.values() for figure in measured(finding)],
        seed if choose.is_used else None,
        _keep(grader.keeps, answer, exercise) if grader.keeps and status == "done" else "",
    )


_STATUS = {None: "done", NOT_YET: NOT_YET}  # of what is said of a finding, where that is no hint


def _seed() -> int:
    """What $INFLIGHT_SEED says, else a fresh one of five digits."""
    given = os.environ.get(SEED, "")
    return int(given) if given.isdecimal() else 10_000 + secrets.randbelow(90_000)


def _keep(part: str, answer: object, exercise: str) -> str:
    given = answer[0] if isinstance(answer, list | tuple) else answer
    try:
        return mine.keep(part, Path(given), exercise)
    except CourseError as error:  # the answer is right all the same
        return str(error)


def _part(part: str, grade: Callable) -> Finding | dict:
    progress.say(part)
    return _finding(grade)


def _finding(grade: Callable) -> Finding | dict:
    """What `grade()` gives, or that it could not: an answer of any type may arrive, and a lab must go on."""
    try:
        return grade()
    except Exception as error:
        said = f"Your answer could not be checked: {type(error).__name__}: {error}"
        return said if said[-1] in ".?!" else f"{said}."


def _of_all(statuses: set[str]) -> str:
    if len(statuses) == 1:
        return statuses.pop()
    return "partly" if "done" in statuses else "wrong"


def _lessons() -> dict[str, str]:
    """The folder in `inflight/lessons` of each lesson, by the number before the dot of its exercises."""
    names = (lesson.name for lesson in syllabus.read() if not lesson.planned)
    return {str(int(name[:2])): name[3:] for name in names}


def _import_graders(lesson: str) -> None:
    """Import the graders of one lesson, which registers them: no lab loads what another one is checked with."""
    folder = f"inflight.lessons.{_lessons().get(lesson)}"
    if importlib.util.find_spec(folder) and importlib.util.find_spec(f"{folder}.grading"):
        importlib.import_module(f"{folder}.grading")
