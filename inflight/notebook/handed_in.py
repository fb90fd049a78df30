"""What a learner hands in, if they choose to, and what a class has handed in.

    write(workspace.home(), "Ada", Path("hand-in-ada.json"))       # a learner
    found = read_class(Path("class"))                              # whoever teaches
    marks(found), exercises(found)                                 # a row a learner; a row an exercise

A hand-in is one small file of JSON that says what the learner's own record says: nobody vouches for it. A file that is
none, whatever it holds instead, is named in a sentence and the others are read.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import pandas as pd
from pydantic import AfterValidator, AwareDatetime, Field, StringConstraints, model_validator

from inflight import __version__, schemas
from inflight.errors import CourseError
from inflight.files import replace_text
from inflight.notebook import achieved, journal, syllabus, workspace
from inflight.paths import COURSE
from inflight.schemas import Schema

WHAT, FIX = "hand-in", "Ask for it again: `inflight progress --hand-in NAME` writes it."
MOST_BYTES = 256 * 2**10
MOST_FILES = 1_000
MOST_SAID = 300
PUNCTUATION = frozenset(" .,'’()@-_")


def _name(text: str) -> str:
    if not text or unicodedata.category(text[0])[0] not in "LN":
        raise ValueError("a name begins with a letter or a digit")
    if strange := sorted({mark for mark in text if not _is_of_a_name(mark)}):
        raise ValueError(f"a name has letters, digits, blanks and .,'’()@-_ in it, and no {strange[0]!a}")
    return text


def _is_of_a_name(mark: str) -> bool:
    return mark in PUNCTUATION or unicodedata.category(mark)[0] in "LMN"


def _one_line(text: str) -> str:
    if not text.isprintable():
        raise ValueError("it holds characters that cannot be printed")
    return text


def _of_this_century(moment: datetime) -> datetime:
    if not 2000 <= moment.year < 2100:  # the first and last years of all have no UTC in other zones
        raise ValueError(f"{moment:%Y-%m-%d} is no day of a course")
    return moment


Moment = Annotated[AwareDatetime, AfterValidator(_of_this_century)]


class Answer(Schema):
    """What became of one exercise: when it passed first, and what was said of the last answer that was not right."""

    exercise: Annotated[str, StringConstraints(pattern=r"^[0-9]{1,2}\.[0-9]{1,2}$")]
    passed: Moment | None
    tries: Annotated[int, Field(ge=1, le=10**6)]
    said: Annotated[str, StringConstraints(max_length=MOST_SAID), AfterValidator(_one_line)] = ""


class Predictions(Schema):
    """How many predictions were made before the measurement, and how many of them were right."""

    right: Annotated[int, Field(ge=0, le=10**4)]
    made: Annotated[int, Field(ge=0, le=10**4)]

    @model_validator(mode="after")
    def _fits(self) -> Predictions:
        if self.right > self.made:
            raise ValueError(f"{self.right} of {self.made} predictions are right")
        return self


class HandIn(Schema):
    """A file that a learner hands in: this and nothing else."""

    kind: Literal["inflight hand-in"]
    course: Annotated[str, StringConstraints(max_length=40), AfterValidator(_one_line)]
    name: Annotated[str, StringConstraints(max_length=80), AfterValidator(_name)]
    at: Moment
    exercises: Annotated[list[Answer], Field(max_length=300)]
    predictions: Predictions
    parts: Annotated[list[Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]{1,40}$")]], Field(max_length=50)]

    @model_validator(mode="after")
    def _each_once(self) -> HandIn:
        twice = [name for name, count in Counter(answer.exercise for answer in self.exercises).items() if count > 1]
        if twice:
            raise ValueError(f"exercise {twice[0]} stands twice in it")
        return self

    @property
    def passed(self) -> list[str]:
        """The exercises that passed."""
        return [answer.exercise for answer in self.exercises if answer.passed]

    def __str__(self) -> str:
        return (
            f"the name {self.name}; which exercises were tried ({len(self.exercises)}), how often, when those that "
            f"passed ({len(self.passed)}) did so first, and what was said of the last answer to each that was not "
            f"right; how many predictions were right ({self.predictions.right} of {self.predictions.made}); which "
            f"parts are the learner's own ({', '.join(self.parts) or 'none'})"
        )


@dataclass(frozen=True)
class Class:
    """What was handed in.

    Attributes
    ----------
    learners : list of (str, HandIn)
        Each with what it is called in tables: the learner's name; where several gave the same, with the file's.
    problems : list of str
        A sentence for each file that is no hand-in.
    """

    learners: list[tuple[str, HandIn]]
    problems: list[str]


def collected(folder: Path, name: str) -> HandIn:
    """What the learner whose workspace is `folder` would hand in as `name`.

    Raises
    ------
    CourseError
        There is no workspace, its record is damaged, or `name` is none that can be handed in.
    """
    if not (folder / workspace.VERSIONS).is_file():
        raise CourseError(f"There is nothing to hand in: {folder} is no workspace. `inflight lab` makes one.")
    predictions, parts = journal.predictions(folder), achieved.read(folder)["parts"]
    values = {
        "kind": "inflight hand-in",
        "course": __version__,
        "name": name,
        "at": datetime.now(UTC).replace(microsecond=0),
        "exercises": _answers(folder),
        "predictions": {"right": int(predictions["right"].eq(True).sum()), "made": len(predictions)},
        "parts": parts.loc[parts["whose"] == "yours", "part"].tolist(),
    }
    return schemas.check(HandIn, values, "What would be handed in", "Give another name, or mend the record.")


def write(folder: Path, name: str, path: Path | None = None) -> tuple[Path, HandIn]:
    """Write what the learner whose workspace is `folder` hands in as `name`.

    Parameters
    ----------
    path : Path, optional
        The file; by default one of that name in the current folder. An older hand-in is replaced, nothing else is.

    Raises
    ------
    CourseError
        As `collected`; or the file is something else, or cannot be written.
    """
    made = collected(folder, name)
    path = path or Path("hand-in-{}.json".format(re.sub(r"[\W_]+", "-", name.lower()).strip("-")))
    try:
        if path.exists() or path.is_symlink():
            read(path)
        replace_text(path, made.model_dump_json(indent=1) + "\n")
    except CourseError:
        raise CourseError(f"{path} is there and no hand-in of yours; give another place by --save.") from None
    except OSError as error:
        raise CourseError(f"{path} cannot be written ({error.strerror}); give another place by --save.") from None
    return path, made


def read(path: Path) -> HandIn:
    """One hand-in.

    Raises
    ------
    CourseError
        The file is a link, no plain file, too large, no JSON, or does not hold what a hand-in does.
    """
    if path.is_symlink():
        raise CourseError(f"The {WHAT} {path} is a link, which may lead anywhere. {FIX}")
    return schemas.read(HandIn, path, WHAT, FIX, MOST_BYTES)


def read_class(folder: Path) -> Class:
    """Every hand-in in `folder`: its files whose names end in .json.

    Raises
    ------
    CourseError
        The folder cannot be read, or no file in it is a hand-in.
    """
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == ".json")
    except OSError as error:
        raise CourseError(f"The class's folder {folder} cannot be read ({error.strerror}).") from None
    problems, found = [], []
    if len(paths) > MOST_FILES:
        problems.append(f"Only the first {MOST_FILES:,} of {len(paths):,} files were read.")
    for path in paths[:MOST_FILES]:
        try:
            found.append((path, read(path)))
        except CourseError as error:
            problems.append(printable(str(error)))
    if not found:
        said = f" {problems[0]}" if problems else ""
        raise CourseError(f"Nobody has handed in anything to {folder}: no .json file there is a hand-in.{said}")
    times = Counter(handed.name for _, handed in found)
    learners = [
        (handed.name if times[handed.name] == 1 else f"{handed.name} ({printable(path.name)})", handed)
        for path, handed in found
    ]
    return Class(learners, problems)


def marks(found: Class, course: Path = COURSE) -> pd.DataFrame:
    """A row a learner.

    Returns
    -------
    DataFrame
        `learner`; a column for each exercise of the course: the day on which it passed (UTC), else "tried" or blank;
        `passed`, their number; `predictions`, as "4 of 7"; `parts` of their own.
    """
    known, rows = list(_known(course)), []
    for name, handed in found.learners:
        by_exercise = {answer.exercise: answer for answer in handed.exercises}
        cells = [_mark(by_exercise.get(exercise)) for exercise in known]
        predictions = f"{handed.predictions.right} of {handed.predictions.made}"
        rows.append([name, *cells, len(set(handed.passed) & set(known)), predictions, ", ".join(handed.parts)])
    return pd.DataFrame(rows, columns=["learner", *known, "passed", "predictions", "parts"])


def exercises(found: Class, course: Path = COURSE) -> pd.DataFrame:
    """A row an exercise.

    Returns
    -------
    DataFrame
        `exercise`, `lesson`; how many `passed`; how many `tried` and have not passed; `often`, what most of those who
        met with a finding were told last, whatever the numbers in it.
    """
    rows = []
    for exercise, lesson in _known(course).items():
        answers = [a for _, handed in found.learners for a in handed.exercises if a.exercise == exercise]
        passed = sum(answer.passed is not None for answer in answers)
        said = _most_often([answer.said for answer in answers if answer.said])
        rows.append((exercise, lesson, passed, len(answers) - passed, said))
    return pd.DataFrame(rows, columns=["exercise", "lesson", "passed", "tried", "often"])


def printable(text: str) -> str:
    """The text without what a terminal obeys, or turns round."""
    return "".join(mark if mark.isprintable() else "�" for mark in text)


def _answers(folder: Path) -> list[dict]:
    """What the journal says of each exercise, as `Answer` has it; without the home folder's name."""
    tried: dict[str, dict] = {}
    for entry in journal.read(folder):
        exercise, status, said = (entry.get(name) for name in ("exercise", "status", "said"))
        if entry["kind"] != "exercise" or not isinstance(exercise, str):
            continue
        answer = tried.setdefault(exercise, {"exercise": exercise, "passed": None, "tries": 0, "said": ""})
        answer["tries"] += 1
        if status == "done":
            answer["passed"] = answer["passed"] or _time(entry.get("at"))
        elif isinstance(said, str):
            plain = printable(" ".join(said.split())).replace(str(Path.home()), "~")
            answer["said"] = plain[:MOST_SAID]
    return sorted(tried.values(), key=lambda answer: answer["exercise"])


def _time(text: object) -> datetime | None:
    """When a line of the journal was written; unknown where somebody has edited it."""
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo else None


def _known(course: Path) -> dict[str, str]:
    """Exercise -> heading of its lesson, in their order."""
    return {
        exercise: lesson.heading
        for lesson in syllabus.read(course)
        for exercise in journal.exercises(course, lesson.number)
    }


def _mark(answer: Answer | None) -> str:
    if answer is None:
        return ""
    return f"{answer.passed.astimezone(UTC):%Y-%m-%d}" if answer.passed else "tried"


def _most_often(said: list[str]) -> str:
    """The finding that stands for most of them: two that differ in their numbers alone are the same."""
    kinds = Counter(re.sub(r"\d[\d.,]*", "#", text) for text in said)
    if not kinds:
        return ""
    kind, count = kinds.most_common(1)[0]
    example = next(text for text in said if re.sub(r"\d[\d.,]*", "#", text) == kind)
    return f"{example} ({count} of {len(said)})"
