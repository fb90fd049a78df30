"""The result of a check, and how a notebook shows it."""

from __future__ import annotations

import html
from dataclasses import dataclass, field

from inflight.notebook.charts import palette
from inflight.notebook.checks.findings import Finding, Measured, NotYet, Right, Wrong, figures, judged

DONE, OPEN, PARTLY, WRONG = "done", "not done yet", "partly", "wrong"
STATUS = {Right: DONE, NotYet: OPEN, Wrong: WRONG}
SEED = "INFLIGHT_SEED"  # the environment's: the same hidden cases again

# Border colour and words: the words alone say it too, for those who do not see the colour.
_LOOK = {
    DONE: (palette.RIGHT, "Done"),
    OPEN: (palette.OPEN, "Not done yet"),
    PARTLY: (palette.PARTLY, "Partly right"),
    WRONG: (palette.WRONG, "Not right yet"),
}
_OF_A_PART = {DONE: "{} ✓", OPEN: "{} still open", WRONG: "{} not right yet"}


@dataclass(frozen=True)
class Result:
    """The result of `check`.

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
        What to remember, in a sentence, when all is right.
    figures : list of Measured
        The measured figures, right or not.
    seed : int or None
        Of the hidden cases, where there were any.
    kept : str
        Which part of the answer was kept, in a sentence.
    """

    exercise: str
    status: str
    hint: str = ""
    parts: dict[str, str] = field(default_factory=dict)
    insight: str = ""
    figures: list[Measured] = field(default_factory=list)
    seed: int | None = None
    kept: str = ""

    @classmethod
    def of(cls, exercise: str, found: dict[str, Finding], insight: str = "", seed: int | None = None) -> Result:
        """Make the result from the finding for each part, in which "" stands for the whole answer."""
        judgements = {part: judged(finding) for part, finding in found.items()}
        statuses = {part: STATUS[type(each)] for part, each in judgements.items()}
        hints = [each.because for each in judgements.values() if isinstance(each, Wrong)]
        kinds = set(statuses.values())
        status = kinds.pop() if len(kinds) == 1 else PARTLY if DONE in kinds else WRONG
        is_one_cause = len(hints) == len(found) and len(set(hints)) == 1  # for all parts, such as an exception
        return cls(
            exercise,
            status,
            hints[0] if hints else "",
            {} if is_one_cause or "" in found else statuses,
            insight if status == DONE else "",
            [figure for finding in found.values() for figure in figures(finding)],
            seed,
        )

    def __repr__(self) -> str:
        lines = [" ".join(filter(None, [f"Exercise {self.exercise}: {self._verdict()}.", self.hint, self.insight]))]
        (_, *columns), *rows = self._rows()
        for what, *row in rows:
            lines.append(f"  {what}: {'; '.join(f'{name} {value}' for name, value in zip(columns, row) if value)}")
        return "\n".join([*lines, *filter(None, [self.kept, self._cases()])])

    def _repr_html_(self) -> str:
        style = f"border-left: 6px solid {_LOOK[self.status][0]}; padding: 4px 12px"
        return f'<div style="{style}">{self.as_html()}</div>'

    def as_html(self) -> str:
        """Return it without its frame."""
        more = "".join(f"<br>{html.escape(text)}" for text in (self.hint, self.insight) if text)
        less = "".join(f"<br><small>{html.escape(text)}</small>" for text in (self.kept, self._cases()) if text)
        verdict = html.escape(f"Exercise {self.exercise}: {self._verdict()}.")
        table = self._table() if self.figures else ""
        return f"<strong>{verdict}</strong>{more}{table}{less}"

    def _verdict(self) -> str:
        word = _LOOK[self.status][1]
        if len(set(self.parts.values())) < 2:
            return word
        return f"{word}: {', '.join(_OF_A_PART[status].format(part) for part, status in self.parts.items())}"

    def _rows(self) -> list[tuple[str, ...]]:
        """Return the columns' names, then a row a figure, blank in a column that is not among what it compares with."""
        rows = [
            {
                "": each.what,
                "yours": each.number(each.value),
                "wanted": each.budget,
                each.course_is: each.number(each.course),
                each.nothing_is: each.number(each.nothing),
            }
            for each in self.figures
        ]
        columns = tuple(dict.fromkeys(["", *(name for row in rows for name in row)]))
        return [columns, *(tuple(row.get(name, "") for name in columns) for row in rows)]

    def _table(self) -> str:
        """Return the figures as a table, without columns in which nothing stands."""
        filled = [column for column in zip(*self._rows(), strict=True) if any(column[1:])]
        head, *body = [[html.escape(text) for text in row] for row in zip(*filled, strict=True)]
        told = "".join(
            f"<tr><th scope=row>{row[0]}</th>{''.join(f'<td>{each}</td>' for each in row[1:])}</tr>" for row in body
        )
        names = "".join(f"<th scope=col>{name}</th>" for name in head[1:])
        return f'<table class="dataframe"><thead><tr><td></td>{names}</tr></thead><tbody>{told}</tbody></table>'

    def _cases(self) -> str:
        return "" if self.seed is None else f"Hidden cases: seed {self.seed} ({SEED}={self.seed} repeats them)."
