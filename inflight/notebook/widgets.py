"""Controls for notebooks: a value is changed, and what follows from it is shown at once.

Every widget has a default, so that a notebook runs unattended; what goes wrong is shown inside the widget.
"""

from __future__ import annotations

import functools
import html
from collections.abc import Iterator, Sequence
from pathlib import Path

import ipywidgets
from tritonclient.grpc.model_config_pb2 import ModelConfig

from inflight.engine.config import BuildConfig
from inflight.engine.sizing import Sizing
from inflight.errors import CourseError
from inflight.notebook import session
from inflight.notebook.dashboard import WRAP, Dashboard
from inflight.notebook.palette import DECODE, INK, REQUEST, WASTE_TEXT, as_text
from inflight.notebook.panel import Panel
from inflight.notebook.prediction import predict as predict  # the lessons take it from here
from inflight.notebook.session import Kept
from inflight.triton import repository
from inflight.triton.client import Answer, Client
from inflight.triton.server import Server

WRAPPED = (
    "line-height: 1.3; white-space: pre-wrap; word-break: normal; overflow-wrap: anywhere"  # code in a narrow cell
)

# Lesson 03: a playground ----------------------------------------------------------------------------------------------


class Playground(Dashboard):
    """Asks a running server and shows the answer while it is made.

    Parameters
    ----------
    server : Server
        Its `ensemble` is decoupled.

    Attributes
    ----------
    prompt, max_tokens, temperature, top_k : widget
        What the server is asked.
    text : HTML
        The answer so far.
    frame : Answer or None
        The same with its times.
    """

    def __init__(self, server: Server):
        self._kept = session.keep(server)
        style, wide = {"description_width": "7em"}, {"width": "auto", "max_width": "36em"}
        self.prompt = ipywidgets.Textarea(
            "Write a short story about a lighthouse.",
            description="Prompt",
            style=style,
            layout={"width": "auto", "height": "4em"},
        )
        self.max_tokens = ipywidgets.IntSlider(120, 1, 400, description="Max tokens", style=style, layout=wide)
        self.temperature = ipywidgets.FloatSlider(
            0.7, min=0, max=2, step=0.1, description="Temperature", style=style, layout=wide
        )
        self.top_k = ipywidgets.IntSlider(40, 1, 200, description="top_k", style=style, layout=wide)
        self.text = ipywidgets.HTML()
        controls = {name: getattr(self, name) for name in ("prompt", "max_tokens", "temperature", "top_k")}
        super().__init__(controls, self._ask, self.text, self._kept, "Playground: ask the server")

    def __repr__(self) -> str:
        return (
            f"Playground: a prompt ({self.prompt.value!r}), sliders for max_tokens, temperature and top_k, buttons "
            "Run and Stop; the answer appears as it is made."
        )

    def _ask(self, prompt: str, max_tokens: int, **sampling) -> Iterator[Answer]:
        self.frame, self.status.value = None, "Waiting for the first token …"
        self._show_text("")
        with Client(self._kept.server.grpc_url) as client:
            stream = client.stream(prompt, max_tokens, **sampling)
            try:
                for _ in stream:
                    yield stream.answer
            finally:
                stream.cancel()

    def _draw(self, frame: Answer) -> None:
        self._show_text(frame.text)
        self.frame, self.status.value = frame, f"Running: {len(frame.times_s)} pieces so far …"

    def _show_text(self, text: str) -> None:
        look = f"white-space: pre-wrap; border-left: 4px solid {DECODE}; padding: 4px 12px; min-height: 1.5em"
        self.text.value = f'<div aria-live="polite" style="{look}">{html.escape(text)}</div>'

    def _result(self) -> str:
        if self.frame is None:
            return "The model ended its answer at once."
        count, gaps = len(self.frame.times_s), self.frame.inter_token_s
        itl = f"ITL {sum(gaps) / len(gaps) * 1000:.1f} ms" if gaps else "no ITL of a single piece"
        return (
            f"{count} pieces, TTFT {self.frame.time_to_first_s * 1000:.0f} ms, {itl}, end-to-end "
            f"{self.frame.latency_s:.2f} s, {count / self.frame.latency_s:.0f} tokens/s."
        )


# Lesson 02: an editor for config.pbtxt --------------------------------------------------------------------------------


class ConfigEditor(Panel):
    """Changes values in one model's config.pbtxt: allowed ones only, one click to apply, one to undo.

    A value that the key does not take is refused before anything is written. When a server is given, the model is
    loaded again; if it cannot be, the file is put back as it was. A server that does not run is started for that.

    Parameters
    ----------
    repo : path
        Model repository.
    model : str
        Name of a model with parameters that the course knows: see `repository.PARAMETERS`.
    server : Server, optional
        The server that serves `repo`.
    names : sequence of str, optional
        What to show: keys of the model's parameters, and paths of `batchers.FIELDS`; by default all its parameters.

    Attributes
    ----------
    fields : dict of str to widget
        By key or path; `value` is the text that would be written.
    apply_button, undo_button : Button
    status, diff : HTML
        What has happened, and what Apply would change.

    Raises
    ------
    CourseError
        The model has no parameters to edit, or its file cannot be read.
    """

    def __init__(self, repo: str | Path, model: str, server: Server | None = None, names: Sequence[str] | None = None):
        names = list(repository.PARAMETERS.get(model, {})) if names is None else names
        if not names:
            known = ", ".join(name for name, keys in repository.PARAMETERS.items() if keys)
            raise CourseError(f"The editor knows no parameters of a model {model!r}. Name one of: {known}.")
        self._path, self._model = Path(repo) / model / repository.CONFIG, model
        self._kept: Kept | None = None if server is None else session.keep(server)
        self._specs = {name: repository.spec(model, name) for name in names}
        self._config = repository.read_config(self._path)
        self._undo_stack: list[ModelConfig] = []
        self._is_busy = False
        self.apply_button = ipywidgets.Button(description="Apply", icon="check", button_style="primary")
        self.undo_button = ipywidgets.Button(description="Undo", icon="undo")
        self.status, self.diff = ipywidgets.HTML(), ipywidgets.HTML()
        self.fields = {name: _parameter_field(name, spec, self._text(name)) for name, spec in self._specs.items()}
        for field in self.fields.values():
            field.observe(self._preview, "value")
        buttons = [self.apply_button, self.undo_button]
        self.apply_button.on_click(lambda _: self._run(self._apply))
        self.undo_button.on_click(lambda _: self._run(self._undo))
        rows = [_parameter_row(name, spec, self.fields[name]) for name, spec in self._specs.items()]
        super().__init__(
            [
                ipywidgets.HTML(f"<b>{html.escape(model)}/{repository.CONFIG}</b>"),
                *rows,
                self.diff,
                ipywidgets.HBox(buttons),
                self.status,
            ],
            f"Editor of {model}/{repository.CONFIG}",
        )
        self._preview()

    def __repr__(self) -> str:
        return f"ConfigEditor of {self._model}: a field each for {', '.join(self.fields)}; buttons Apply and Undo."

    def apply(self, **values: str) -> str:
        """Press Apply for these values, all other fields as the file has them; what came of it, as the widget says it.

        A value that is refused does not stay in its field: whoever uses the widget next has not written it.

        Parameters
        ----------
        **values : str
            By the name of the field.

        """
        self._refresh()
        for name, text in values.items():
            _set_text(self.fields[name], text)
        if self._changes():
            self.apply_button.click()
            said = self.status.value
            self._refresh()
            self.status.value = said
        else:
            self.status.value = "<b>Nothing to apply.</b> The file has these values."
        return self.status.value

    def undo(self) -> str:
        """Press Undo; what came of it, as the widget says it."""
        self.undo_button.click()
        return self.status.value

    def _text(self, name: str) -> str:
        return repository.get_value(self._config, name)

    def _changes(self) -> dict[str, str]:
        return {name: field.value for name, field in self.fields.items() if field.value != self._text(name)}

    def _preview(self, _=None) -> None:
        """Show what Apply would change, or why it may not."""
        changed = ModelConfig()
        changed.CopyFrom(self._config)
        try:
            for name, text in self._changes().items():
                repository.set_value(changed, name, text)
        except CourseError as error:
            self.diff.value, self.apply_button.disabled = "", True
            self.status.value = f"<b>Not allowed.</b> {html.escape(str(error))}"
        else:
            self.diff.value = _diff_html(repository.diff(self._config, changed))
            self.apply_button.disabled, self.status.value = not self._changes(), ""
        self.undo_button.disabled = not self._undo_stack

    def _run(self, action) -> None:
        """Do what a button says, with both buttons off meanwhile and every outcome told in the widget."""
        if self._is_busy:
            return
        self._is_busy = self.apply_button.disabled = self.undo_button.disabled = True
        self.status.value = "Writing, and loading the model …"
        try:
            outcome = action()
        except CourseError as error:  # the fields stay as they are, for the learner to correct
            reason = str(error).partition("\nLast lines of the log:")[0]
            outcome = f"<b>Refused; the file is as it was.</b> {html.escape(reason)}"
        finally:
            self._is_busy = False
            self._preview()
        self.status.value = outcome

    def _apply(self) -> str:
        if not self._changes():
            return "<b>Nothing to apply.</b> The file has these values."
        before = repository.read_config(self._path)
        repository.edit(self._path.parents[1], self._model, **self._changes())
        loaded = self._load_or_restore(before)
        self._undo_stack.append(before)
        self._refresh()
        return f"<b>Applied.</b> {loaded}"

    def _undo(self) -> str:
        if not self._undo_stack:
            return "<b>Nothing to undo.</b>"
        before = repository.read_config(self._path)
        repository.write_config(self._undo_stack[-1], self._path)
        loaded = self._load_or_restore(before)
        self._undo_stack.pop()
        self._refresh()
        return f"<b>Undone.</b> {loaded}"

    def _load_or_restore(self, before: ModelConfig) -> str:
        if self._kept is None:
            return "The file is written."
        try:
            self._kept.start().load(self._model)
        except CourseError:  # the server goes on with what it had loaded; file and server must agree
            repository.write_config(before, self._path)
            raise
        return f"The server has loaded {html.escape(self._model)} again."

    def _refresh(self) -> None:
        """Fields as the file has it now."""
        self._config = repository.read_config(self._path)
        for name, field in self.fields.items():
            _set_text(field, self._text(name))


def _parameter_field(name: str, spec: repository.Parameter, text: str) -> ipywidgets.ValueWidget:
    """A list of the allowed values where there are few, a line of text otherwise."""
    values = {"bool": ["false", "true"], "choice": list(spec.choices)}.get(spec.kind)
    if values is None:
        return ipywidgets.Text(text, tooltip=name, layout={"width": "auto"})
    if not spec.required:
        values.append("")
    offered = [(value or "(blank)", value) for value in values]
    field = ipywidgets.Dropdown(options=offered, tooltip=name, layout={"width": "auto"})
    _set_text(field, text)
    return field


def _set_text(field: ipywidgets.ValueWidget, text: str) -> None:
    """Show what the file has, even where it is none of the values offered."""
    if isinstance(field, ipywidgets.Dropdown) and text not in [value for _, value in field.options]:
        field.options = [*field.options, (text, text)]
    field.value = text


def _parameter_row(name: str, spec: repository.Parameter, field: ipywidgets.ValueWidget) -> ipywidgets.HBox:
    """Name and help in one column, the field in the other; every row has the same columns, and words wrap in them."""
    code = html.escape(name).replace("_", "_<wbr>").replace(".", ".<wbr>")  # where a long name may be broken
    told = f"<code>{code}</code><br><small>{html.escape(spec.help)}</small>"
    label = ipywidgets.HTML(f'<div style="line-height: 1.4; overflow-wrap: anywhere">{told}</div>')
    columns = {"display": "grid", "grid_template_columns": "minmax(0, 3fr) minmax(0, 2fr)", "grid_gap": "0 1em"}
    return ipywidgets.HBox([label, field], layout={**columns, "max_width": "60em", "align_items": "center"})


def _diff_html(diff: str) -> str:
    """A unified diff without its two lines of file names, in colours on a light card; the signs say the same."""
    colours = {"-": as_text(REQUEST[3]), "+": DECODE, "@": WASTE_TEXT}
    lines = [
        f'<span style="color: {colours.get(line[:1], INK)}">{html.escape(line)}</span>'
        for line in diff.splitlines()[2:]
    ]
    look = f"{WRAPPED}; background: white; padding: 4px 8px"
    return f'<pre style="{look}">{"<br>".join(lines)}</pre>' if lines else ""


# Lesson 01: build options ---------------------------------------------------------------------------------------------

NONE = "none"  # stands for None, which a drop-down list takes for "nothing chosen"


class BuildOptions(Panel):
    """Build options, and what follows from them before anything is built: bytes, users, refusals, commands.

    Parameters
    ----------
    sizing : Sizing
        The arithmetic of the model.
    memory_bytes : float
        Memory that weights and KV cache may take.
    """

    def __init__(self, sizing: Sizing, memory_bytes: float):
        self._sizing, self._memory_bytes = sizing, memory_bytes
        style, wide = {"description_width": "11em"}, {"width": "24em", "max_width": "calc(100% - 4px)"}
        number = functools.partial(ipywidgets.BoundedIntText, min=0, max=1_000_000, style=style, layout=wide)
        choice = functools.partial(ipywidgets.Dropdown, style=style, layout=wide)
        self.fields = {
            "max_batch_size": number(value=8),
            "max_input_len": number(value=1024),
            "max_seq_len": number(value=2048),
            "max_num_tokens": number(value=2048),
            "max_beam_width": number(value=1),
            "tokens_per_block": number(value=32),
            "kv_cache_type": choice(options=["paged", "continuous", "disabled"]),
            "dtype": choice(options=["float32", "bfloat16", "float16"]),
            "quant_algo": choice(options=["auto", "W4A8", "W4A16", "W8A16", "W8A8", NONE]),
            "kv_cache_quant_algo": choice(options=[NONE, "INT8", "FP8"]),
        }
        self.result = ipywidgets.HTML()
        for name, field in self.fields.items():
            field.description = name
        for field in self.fields.values():
            field.observe(self._update, "value")
        left = ipywidgets.VBox(list(self.fields.values()))
        shown = ipywidgets.HBox([left, self.result], layout=WRAP)
        super().__init__([shown], "Build options, and what follows from them")
        self._update()

    def __repr__(self) -> str:
        return "BuildOptions: a field for each build option; bytes, users that fit, and refusals beside them."

    def _update(self, _change=None) -> None:
        try:
            values = {name: field.value for name, field in self.fields.items()}
            config = BuildConfig(**{name: None if value == NONE else value for name, value in values.items()})
            self.result.value = self._plan(config)
        except CourseError as error:
            self.result.value = (
                f'<div role="alert" style="border-left: 6px solid {REQUEST[3]}; padding: 4px 12px; '
                f'max-width: 30em; line-height: 1.4"><b>Refused.</b> {html.escape(str(error))}</div>'
            )

    def _plan(self, config: BuildConfig) -> str:
        sizing, slots, length = self._sizing, config.max_batch_size, config.max_seq_len
        weight_bytes, user_bytes = sizing.weight_bytes(config), sizing.kv_bytes_per_user(config, length)
        users = sizing.users(config, length, self._memory_bytes)
        rows = [
            ("Weights", f"{weight_bytes / 1e6:,.1f} MB"),
            ("KV cache of one token", f"{sizing.kv_bytes_per_token(config):,} bytes"),
            (f"KV cache of one user, {length:,} tokens", f"{user_bytes / 1e6:,.1f} MB"),
            (f"KV cache of all {slots} slots", f"{slots * user_bytes / 1e6:,.1f} MB"),
            (f"Users that fit into {self._memory_bytes / 1e9:.1f} GB", f"{users:,}"),
        ]
        cells = "".join(
            f'<tr><td style="padding: 2px 12px">{name}</td><td style="text-align: right"><b>{value}</b></td></tr>'
            for name, value in rows
        )
        verdict = (
            "Memory is enough for every slot."
            if users >= slots
            else f"Too few for {slots} slots: users will wait with a slot free. Shorten max_seq_len or take INT8."
        )
        return (
            f'<div style="border-left: 6px solid {DECODE}; padding: 4px 12px; line-height: 1.4">'
            f"<table>{cells}</table>"
            f'<div style="padding: 2px 12px">{verdict}</div></div>'
        )
