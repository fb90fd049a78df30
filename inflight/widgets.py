"""Controls for notebooks: a value is changed, and what follows from it is shown at once.

Every widget has a default, so that a notebook runs unattended; what goes wrong is shown inside the widget.
"""

from __future__ import annotations

import html
import threading
import time
from collections.abc import Sequence

import ipywidgets

from inflight.charts import DECODE
from inflight.client import Answer, Client
from inflight.errors import CourseError

# Predict, before measuring --------------------------------------------------------------------------------------------


class Prediction(ipywidgets.VBox):
    """A question with a field for the answer; `value` is the option chosen or the number given."""

    def __init__(self, question: str, field: ipywidgets.ValueWidget):
        super().__init__([ipywidgets.HTML(f"<b>{html.escape(question)}</b>"), field])
        self._field = field

    @property
    def value(self) -> str | float:
        return self._field.value

    def __repr__(self) -> str:
        return f"Prediction: {self.value}"


def predict(question: str, options: Sequence[str] | None = None, default: str | float = 0) -> Prediction:
    """Ask for a commitment before the measurement: one of `options`, or a number when there are none."""
    if options is None:
        kind = ipywidgets.IntText if isinstance(default, int) else ipywidgets.FloatText
        return Prediction(question, kind(value=default, layout={"width": "12em"}))
    return Prediction(question, ipywidgets.RadioButtons(options=list(options), value=default,
                                                        layout={"width": "auto"}))


# Lesson 03: a playground ----------------------------------------------------------------------------------------------

REDRAW_S = 0.1  # how often the page gets new text: faster than that only makes a browser stutter


class Playground(ipywidgets.VBox):
    """Asks a running server and shows the answer while it is made.

    Parameters
    ----------
    client : Client
        Of a server whose `ensemble` is decoupled.
    """

    def __init__(self, client: Client):
        self._client = client
        self._stopping, self._thread = threading.Event(), None
        style = {"description_width": "7em"}
        self.prompt = ipywidgets.Textarea("Write a short story about a lighthouse.", description="Prompt", style=style,
                                          layout={"width": "95%", "height": "4em"})
        self.max_tokens = ipywidgets.IntSlider(120, 1, 400, description="Max tokens", style=style)
        self.temperature = ipywidgets.FloatSlider(0.7, min=0, max=2, step=0.1, description="Temperature", style=style)
        self.top_k = ipywidgets.IntSlider(40, 1, 200, description="top_k", style=style)
        self.run_button = ipywidgets.Button(description="Run", icon="play", button_style="primary")
        self.stop_button = ipywidgets.Button(description="Stop", icon="stop", disabled=True)
        self.text, self.status = ipywidgets.HTML(), ipywidgets.HTML("Press Run.")
        self.run_button.on_click(self._run)
        self.stop_button.on_click(self._stop)
        buttons = ipywidgets.HBox([self.run_button, self.stop_button])
        super().__init__([self.prompt, self.max_tokens, self.temperature, self.top_k, buttons, self.text, self.status])

    def __repr__(self) -> str:
        return (f"Playground: a prompt ({self.prompt.value!r}), sliders for max_tokens, temperature and top_k, buttons Run "
                "and Stop; the answer appears as it is made.")

    def wait(self) -> None:
        """Wait until the answer that is being made, if any, has ended."""
        if self._thread is not None:
            self._thread.join()

    def _run(self, _) -> None:
        if self.run_button.disabled:  # a second click that was on its way when the first arrived
            return
        self.run_button.disabled, self.stop_button.disabled = True, False
        self._stopping.clear()
        self._show("")
        self.status.value = "Waiting for the first token …"
        # The kernel hears the Stop button only when no callback runs: the reading needs a thread of its own.
        self._thread = threading.Thread(target=self._read, name="playground", daemon=True)
        self._thread.start()

    def _stop(self, _) -> None:
        self._stopping.set()
        self.stop_button.disabled = True

    def _read(self) -> None:
        try:
            stream = self._client.stream(self.prompt.value, self.max_tokens.value, temperature=self.temperature.value,
                                         top_k=self.top_k.value)
            drawn_at = 0.0
            for _ in stream:
                if time.monotonic() - drawn_at >= REDRAW_S:
                    self._show(stream.answer.text)
                    drawn_at = time.monotonic()
                if self._stopping.is_set():
                    break
            stream.cancel()
            self._show(stream.answer.text)
            self.status.value = self._summary(stream.answer)
        except CourseError as error:
            self.status.value = f"<b>No answer.</b> {html.escape(str(error))}"
        finally:
            self.run_button.disabled, self.stop_button.disabled = False, True

    def _show(self, text: str) -> None:
        look = f"white-space: pre-wrap; border-left: 4px solid {DECODE}; padding: 4px 12px; min-height: 1.5em"
        self.text.value = f'<div aria-live="polite" style="{look}">{html.escape(text)}</div>'

    def _summary(self, answer: Answer) -> str:
        ended, count = "Stopped" if self._stopping.is_set() else "Done", len(answer.times_s)
        return (f"<b>{ended}:</b> {count} pieces, TTFT {answer.time_to_first_s * 1000:.0f} ms, end-to-end "
                f"{answer.latency_s:.2f} s, {count / answer.latency_s:.0f} tokens/s.")
