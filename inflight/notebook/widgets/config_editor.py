"""An editor of a model's config in a running server's repository."""

from __future__ import annotations

import html
from collections.abc import Sequence

import ipywidgets

from inflight.errors import CourseError
from inflight.notebook.pages import progress, session
from inflight.notebook.widgets.live_runs import edit_and_load
from inflight.notebook.widgets.panel import Panel
from inflight.triton import repository
from inflight.triton.serving.server import Server


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
