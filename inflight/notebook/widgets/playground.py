"""Controls for notebooks: a prediction, a playground, an editor of a model's config.

A notebook runs without anybody touching a widget; what goes wrong is shown inside the widget.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence

import ipywidgets
import pandas as pd

from inflight.errors import CourseError
from inflight.notebook.charts.palette import DECODE
from inflight.notebook.pages import progress, session
from inflight.notebook.widgets.dashboard import Dashboard
from inflight.notebook.widgets.live_runs import edit_and_load
from inflight.notebook.widgets.panel import Panel
from inflight.triton import repository
from inflight.triton.client.client import Answer, Client
from inflight.triton.serving.server import Server

MOST_RUNS = 6  # runs whose figures a playground shows


class Playground(Dashboard):
    """Asks a running server and shows the answer while it is made.

    Parameters
    ----------
    server : Server
        Its `ensemble` is decoupled.

    Attributes
    ----------
    prompt, max_tokens, temperature, top_k : widget
        The controls of a request: text and options.
    text : HTML
        The answer so far.
    frame : Answer or None
        The same with its times.
    runs : list of dict
        The figures of the runs that have ended; the table below the answer shows the last ones.
    """

    def __init__(self, server: Server):
        whole_row = {"grid_area": "auto / 1 / auto / -1"}  # a grid_column would go with ipywidgets' empty grid_area
        prompt = "Write a short story about a lighthouse."
        self.prompt = ipywidgets.Textarea(prompt, description="Prompt", layout=whole_row)
        self.max_tokens = ipywidgets.IntSlider(120, 1, 400, description="Max tokens")
        self.temperature = ipywidgets.FloatSlider(0.7, min=0, max=2, step=0.1, description="Temperature")
        self.top_k = ipywidgets.IntSlider(40, 1, 200, description="top_k")
        self.text = ipywidgets.HTML()
        self.runs: list[dict[str, str]] = []
        controls = {name: getattr(self, name) for name in ("prompt", "max_tokens", "temperature", "top_k")}
        super().__init__(controls, self._ask, server, "Playground: ask the server", self.text)

    def __repr__(self) -> str:
        return (
            f"Playground: a prompt ({self.prompt.value!r}), sliders for max_tokens, temperature and top_k, buttons "
            "Run and Stop; the answer appears as it is made."
        )

    def _ask(self, server: Server, prompt: str, max_tokens: int, **sampling) -> Iterator[Answer]:
        self.frame = None
        self._say("Waiting for the first token")
        self._show_text("")
        with Client(server.grpc_url) as client:
            stream = client.stream(prompt, max_tokens, **sampling)
            try:
                for _ in stream:
                    yield stream.answer
            finally:
                stream.cancel()

    def _draw(self, frame: Answer) -> None:
        self.frame = frame
        self._show_text(frame.text)
        self._say(f"{len(frame.times_s)} pieces so far")

    def _show_text(self, text: str) -> None:
        look = f"white-space: pre-wrap; border-left: 4px solid {DECODE}; padding: 4px 12px; min-height: 1.5em"
        self.text.value = f'<div aria-live="polite" style="{look}">{html.escape(text)}</div>'

    def _result(self) -> str:
        if self.frame is None:
            return "The model ended its answer at once."
        count, gaps = len(self.frame.times_s), self.frame.inter_token_s
        figures = {
            "TTFT": f"{self.frame.time_to_first_s * 1000:.0f} ms",
            "ITL": f"{sum(gaps) / len(gaps) * 1000:.1f} ms" if gaps else "none, of a single piece",
            "end-to-end": f"{self.frame.latency_s:.2f} s",
        }
        self.runs.append({"prompt": f"{len(self.prompt.value):,} characters", "answer": f"{count} pieces", **figures})
        table = pd.DataFrame(self.runs, index=range(1, len(self.runs) + 1)).rename_axis("run")
        self.words.value = table.tail(MOST_RUNS).to_html(border=0, justify="left")
        said = ", ".join(f"{name} {figure}" for name, figure in figures.items())
        return f"{count} pieces, {said}, {count / self.frame.latency_s:.0f} tokens/s."


class ConfigEditor(Panel):
    """Changes values in one model's config.pbtxt, and has its server load the model again.

    A value that the key does not take is refused before anything is written; where the model cannot be loaded, the file
    is put back as it was.

    Parameters
    ----------
    server : Server
        Serves the model; Apply starts it again where it has ended.
    model : str
        Name of a model with parameters that the course knows: see `repository.PARAMETERS`.
    names : sequence of str, optional
        Fields to show: keys of the model's parameters, and paths of `batchers.FIELDS`; by default all its parameters.

    Attributes
    ----------
    fields : dict of str to widget
        By key or path; `value` is the text that would be written.
    apply_button : Button
    status : HTML
        What has happened.

    Raises
    ------
    CourseError
        The model has no parameters to edit, or its file cannot be read.
    """

    def __init__(self, server: Server, model: str, names: Sequence[str] | None = None):
        names = list(repository.PARAMETERS.get(model, {})) if names is None else names
        if not names:
            known = ", ".join(name for name, keys in repository.PARAMETERS.items() if keys)
            raise CourseError(f"The editor knows no parameters of a model {model!r}. Name one of: {known}.")
        self._server, self._model, self._path = (
            session.weakly_held(server),
            model,
            server.repo / model / repository.CONFIG,
        )
        specs = {name: repository.spec(model, name) for name in names}
        self.fields = {name: field(spec, tooltip=name, layout={"width": "auto"}) for name, spec in specs.items()}
        self._show_file()
        self.apply_button = ipywidgets.Button(description="Apply", icon="check", button_style="primary")
        self.apply_button.on_click(lambda _: self._apply())
        self.status = ipywidgets.HTML()
        title = ipywidgets.HTML(f"<b>{html.escape(model)}/{repository.CONFIG}</b>")
        rows = [_row(name, spec, self.fields[name]) for name, spec in specs.items()]
        super().__init__([title, *rows, self.apply_button, self.status], f"Editor of {model}/{repository.CONFIG}")

    def __repr__(self) -> str:
        return f"ConfigEditor of {self._model}: a field each for {', '.join(self.fields)}; a button Apply."

    def apply(self, **values: str) -> str:
        """Press Apply with these values, and the file's in all other fields; return the widget's message.

        A refused value does not stay in its field: the next user of the widget has not written it.

        Parameters
        ----------
        **values : str
            By the name of the field.
        """
        self._show_file()
        for name, text in values.items():
            _set_text(self.fields[name], text)
        self.apply_button.click()
        self._show_file()
        return self.status.value

    def _show_file(self) -> None:
        """Show the file's present values in the fields."""
        config = repository.read_config(self._path)
        self._shown = {name: repository.get_value(config, name) for name in self.fields}
        for name, text in self._shown.items():
            _set_text(self.fields[name], text)

    def _apply(self) -> None:
        self.apply_button.disabled = True
        try:
            with progress.ticking(self._tick):
                said = self._write_and_load()
        except CourseError as error:  # the fields stay as they are, for the learner to correct
            said = f"<b>Refused; the file is as it was.</b> {html.escape(error.sentence)}"
        finally:
            self.apply_button.disabled = False
        self.status.value = said

    def _tick(self, seconds: float) -> None:
        self.status.value = f"Writing, and loading the model … {seconds:.0f} s"

    def _write_and_load(self) -> str:
        changes = {name: field.value for name, field in self.fields.items() if field.value != self._shown[name]}
        if not changes:
            return "<b>Nothing to apply.</b> The file has these values."
        config = repository.read_config(self._path)
        for name, text in changes.items():  # what is refused here needs no server
            repository.set_value(config, name, text)
        edit_and_load(self._server(), self._model, **changes)
        self._show_file()
        return f"<b>Applied.</b> The server has loaded {html.escape(self._model)} again."


def _set_text(field: ipywidgets.ValueWidget, text: str) -> None:
    """Show the file's value, even where it is not among those offered."""
    if isinstance(field, ipywidgets.Dropdown) and text not in [value for _, value in field.options]:
        field.options = [*field.options, (text, text)]
    field.value = text


def _row(name: str, spec: repository.Parameter, field: ipywidgets.ValueWidget) -> ipywidgets.HBox:
    """Make a row: name and help in one column, the field in the other; all rows have the same columns."""
    code = html.escape(name).replace("_", "_<wbr>").replace(".", ".<wbr>")  # where a long name may be broken
    told = f"<code>{code}</code><br><small>{html.escape(spec.help)}</small>"
    label = ipywidgets.HTML(f'<div style="line-height: 1.4; overflow-wrap: break-word">{told}</div>')
    columns = {"display": "grid", "grid_template_columns": "minmax(0, 3fr) minmax(0, 2fr)", "grid_gap": "0 1em"}
    return ipywidgets.HBox([label, field], layout={**columns, "max_width": "60em", "align_items": "center"})


def field(spec: repository.Parameter, **look) -> ipywidgets.ValueWidget:
    """A list of the allowed values where there are few, a line of text otherwise; `look` goes to the widget."""
    values = {"bool": ["false", "true"], "choice": list(spec.choices)}.get(spec.kind)
    if values is None:
        return ipywidgets.Text(**look)
    if not spec.required:
        values.append("")
    return ipywidgets.Dropdown(options=[(value or "(blank)", value) for value in values], **look)
