"""A question before a measurement, and how near the answer came.

    guess = predict("How many batches will there be?")              # a number
    guess = predict("How many times as fast?", {"as fast": 1, "twice": 2, "eight times": 8})
    print(guess.score(measured, "the median of 5 rounds"))          # in the cell that measures

No option is preselected; `score` closes the question. In a workspace a prediction outlives the kernel.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence

import ipywidgets

from inflight.errors import CourseError
from inflight.notebook.checks import record
from inflight.notebook.widgets.panel import Panel


class Prediction(Panel):
    """Ask for a commitment before the measurement.

    Parameters
    ----------
    question : str
    options : sequence of str, or mapping of str to float, optional
        The options; each with its number where a number will be measured. None asks for a number.

    Attributes
    ----------
    field : RadioButtons or Text
    told : HTML
        How near the answer came, once it has been measured.
    """

    def __init__(self, question: str, options: Sequence[str] | Mapping[str, float] | None = None):
        self.question, self._options = question, options
        if options is None:
            self.field = ipywidgets.Text(
                placeholder="a number", tooltip=question, layout={"width": "12em"}, continuous_update=False
            )
        else:
            self.field = ipywidgets.RadioButtons(options=list(options), value=None, layout={"width": "auto"})
        example = "100" if options is None else '"…", the beginning of one of these lines'
        self.by_hand = f"No buttons here? In a cell of your own: guess.value = {example}"
        self.told = ipywidgets.HTML()
        super().__init__([ipywidgets.HTML(f"<b>{html.escape(question)}</b>"), self.field, self.told], label=question)
        if (said := record.last_guess(question)) is not None and (options is None or said in options):
            self.field.value = said
        self.field.observe(self._changed, "value")

    @property
    def value(self) -> str | float | None:
        """The option chosen, or the number given; None until then. To set it, an option's beginning or number will do.

        Raises
        ------
        CourseError
            What is set is no number, or is the beginning of no option or of several.
        """
        return self.field.value if self._options is not None else _number(self.field.value)

    @value.setter
    def value(self, said: str | float) -> None:
        if self._options is None and _number(str(said)) is None:
            raise CourseError(f"{said!r} is not a number, and {self.question!r} asks for one: set another value.")
        self.field.value = str(self._right_one(said))

    def __repr__(self) -> str:
        if self.value is not None:
            return f"Prediction: {self.question} {_shown(self.value)}"
        return "\n".join([f"Prediction: {self.question} none was made", *(self._options or ()), self.by_hand])

    def score(self, measured: str | float, statistic: str = "") -> str:
        """Say how near the prediction came, in the widget too, and close the question.

        Parameters
        ----------
        measured : str or float
            The result. Among options with numbers, the nearest by ratio is right; among others, the one that begins
            with this text.
        statistic : str
            The kind of number, such as "the median of 5 rounds".

        Returns
        -------
        str
            A sentence or two: what was predicted, if anything was; what was measured.

        Raises
        ------
        CourseError
            No option begins with the text, or more than one do.
        """
        said, right = self.value, self._right_one(measured)
        self.field.disabled = True
        if said is None:
            text = f"The answer: {_shown(right)}."
        elif said == right:
            text = f"Your prediction, {_shown(said)}, is right."
        else:
            text = f"Your prediction: {_shown(said)}. It is {_shown(right)}{_how_far(said, right)}."
        if self._options is None:  # the answer is the number itself
            text += f" That is {statistic}." if statistic else ""
        elif not isinstance(measured, str):
            text += f" Measured: {_shown(measured)}{f', {statistic}' if statistic else ''}."
        if said is not None:
            record.note("prediction", question=self.question, said=said, measured=right, right=said == right)
        self.told.value = f"<span role='status'>{html.escape(text)}</span>"
        return text

    def _right_one(self, measured: str | float) -> str | float:
        options = self._options
        if options is None:
            return measured
        if isinstance(options, Mapping) and not isinstance(measured, str) and measured > 0:
            return min(options, key=lambda name: abs(math.log(options[name] / measured)))
        found = [option for option in options if option.startswith(str(measured))]
        if len(found) != 1:
            raise CourseError(f"{len(found)} options of {self.question!r} begin with {measured!r}; name one of them.")
        return found[0]

    def _changed(self, _change) -> None:
        is_no_number = self._options is None and self.field.value.strip() and self.value is None
        self.told.value = "<span role='alert'>That is not a number.</span>" if is_no_number else ""
        if self.value is not None:
            record.note("guess", question=self.question, said=self.field.value)


predict = Prediction


def _number(text: str) -> float | None:
    """Read the number in a field, None where there is none; commas, blanks or underscores may separate thousands."""
    try:
        number = float("".join(text.replace(",", "").replace("_", "").split()))
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _how_far(said: str | float, right: str | float) -> str:
    """Say by what factor a number is off, as far as that can be said."""
    if isinstance(said, str) or isinstance(right, str) or said * right <= 0:
        return ""
    return f", {max(said / right, right / said):.2g} times {'less' if said > right else 'more'}"


def _shown(value: str | float) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.4g}"
