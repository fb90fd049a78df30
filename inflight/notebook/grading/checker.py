"""What a check does with an answer, whatever the exercise: find its grader, ask it, and say what it found."""

import html
import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field

from inflight.errors import CourseError
from inflight.notebook import journal

NOT_YET = "not done yet"  # what a grader returns when it sees that the learner has not begun

# The module beside this one that holds a lesson's graders, by the number before the dot of its exercises.
_LESSONS = {
    "1": "engine",
    "2": "repository",
    "3": "serve",
    "4": "batching",
    "5": "kv_cache",
    "6": "batchers",
    "7": "iterative_gpt2",
}

# Of an answer, or of a part of it: None when it is right, NOT_YET, or a hint.
Finding = str | None


@dataclass(frozen=True)
class _Grader:
    """What a lesson's module registers: the function, and what is said when all is right."""

    grade: Callable
    insight: str


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
    """

    exercise: str
    status: str
    hint: str = ""
    parts: dict[str, str] = field(default_factory=dict)
    insight: str = ""

    def __repr__(self) -> str:
        return " ".join(filter(None, [f"Exercise {self.exercise}: {self._verdict()}.", self.hint, self.insight]))

    def _repr_html_(self) -> str:
        style = f"border-left: 6px solid {_LOOK[self.status][0]}; padding: 4px 12px"
        more = "".join(f"<br>{html.escape(text)}" for text in (self.hint, self.insight) if text)
        verdict = html.escape(self._verdict())
        return f'<div style="{style}"><strong>Exercise {html.escape(self.exercise)}: {verdict}.</strong>{more}</div>'

    def _verdict(self) -> str:
        word = _LOOK[self.status][1]
        if not self.parts or self.status in ("done", NOT_YET):
            return word
        return f"{word}: {', '.join(_OF_A_PART[status].format(part) for part, status in self.parts.items())}"


def grades(exercise: str, insight: str = "") -> Callable[[Callable], Callable]:
    """Register the decorated function for `exercise`.

    It takes the answer and returns a `Finding`; or, for an answer of several parts, a dict of part to `Finding`, or to
    a function without arguments that gives one: what goes wrong in one part does not hide what is right in the others.

    Parameters
    ----------
    exercise : str
        As "4.1".
    insight : str
        One sentence, said after a right answer.
    """

    def register(grade: Callable) -> Callable:
        if exercise in _graders:
            raise ValueError(f"exercise {exercise} has two graders")
        _graders[exercise] = _Grader(grade, insight)
        return grade

    return register


def check(exercise: str, answer: object) -> Result:
    """Grade `answer` and return what to show.

    An answer that is None or `...`, or that holds nothing else, counts as not begun; so does one that holds one of
    these, unless its exercise has several parts.

    Raises
    ------
    CourseError
        Only with COURSE_STRICT=1: the answer is not right.
    """
    result = Result(exercise, NOT_YET) if untouched(answer) else _grade(exercise, answer)
    if result.status != NOT_YET:
        journal.note("exercise", exercise=exercise, status=result.status)
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


def _grade(exercise: str, answer: object) -> Result:
    lesson = str(exercise).partition(".")[0]
    if lesson in _LESSONS:
        _import_graders(lesson)
    if exercise not in _graders:
        for lesson in _LESSONS:
            _import_graders(lesson)
        known = ", ".join(sorted(_graders)) or "none"
        return Result(exercise, "wrong", f"There is no such exercise; there are {known}.")
    grader = _graders[exercise]
    found = _finding(lambda: grader.grade(answer))
    if not isinstance(found, dict) and _is_open(answer, any):  # it has no parts of which one could be right
        return Result(exercise, NOT_YET)
    findings = found if isinstance(found, dict) else {"": found}
    findings = {part: _finding(given) if callable(given) else given for part, given in findings.items()}
    statuses = {part: _STATUS.get(finding, "wrong") for part, finding in findings.items()}
    hint = next((finding for finding in findings.values() if finding not in _STATUS), "")
    status = _of_all(set(statuses.values()))
    parts = statuses if isinstance(found, dict) else {}
    return Result(exercise, status, hint, parts, grader.insight if status == "done" else "")


_STATUS = {None: "done", NOT_YET: NOT_YET}  # of a finding that is no hint


def _finding(grade: Callable) -> Finding | dict:
    """What `grade()` gives, or that it could not: an answer of any type may arrive, and a lab must go on."""
    try:
        return grade()
    except Exception as error:
        return f"Your answer could not be checked: {type(error).__name__}: {error}."


def _of_all(statuses: set[str]) -> str:
    if len(statuses) == 1:
        return statuses.pop()
    return "partly" if "done" in statuses else "wrong"


def _import_graders(lesson: str) -> None:
    """Import the graders of one lesson, which registers them: no lab loads what another one is checked with."""
    importlib.import_module(f"{__package__}.{_LESSONS[lesson]}")
