"""A checkpoint's chat template, rendered in Jinja's sandbox, as Hugging Face's libraries render it.

    template = ChatTemplate("{{ messages[0].content }}")
    text = template.render([{"role": "user", "content": "Hello"}])

What those libraries give to a template is given here (transformers, `utils/chat_template_utils.py`); importing them for
it would take every process of a model two seconds.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import jinja2.ext
import jinja2.sandbox

from inflight.errors import CourseError, reason


class ChatTemplate:
    """A chat template.

    Parameters
    ----------
    source : str
        Jinja, with `{% generation %}`, `{% break %}`, `{% continue %}`, `raise_exception`, `strftime_now`, `tojson`.
    variables : dict, optional
        What it may use beside the messages, such as the special tokens.
    """

    def __init__(self, source: str, variables: dict[str, str] | None = None):
        self._source, self._variables = source, variables or {}
        self._template: jinja2.Template | None = None  # compiled when it is first used

    def render(self, messages: list[dict[str, str]]) -> str:
        """Return the messages as one text, which ends where the model's answer begins.

        Raises
        ------
        CourseError
            The template has a fault, refuses the messages, or reaches into what is not its own.
        """
        given = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": True}
        try:
            if self._template is None:
                self._template = _environment().from_string(self._source)
            return self._template.render(**self._variables, **given)
        except Exception as error:  # a template's fault has the type of whatever Python object it used wrongly
            line = f"line {error.lineno}: " if isinstance(error, jinja2.TemplateSyntaxError) else ""
            raise CourseError(
                f"The chat template cannot be used: {line}{reason(error, first=True)}. Use the checkpoint that its "
                "makers published, or serve without a template (apply_chat_template: false)."
            ) from error


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks what the assistant says, for training; here its content is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012  as Jinja declares it

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(f"it says: {message}")
