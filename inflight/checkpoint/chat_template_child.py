"""The process in which a chat template runs; see `chat_template`, which starts it and asks it.

It reads the template, then messages, each as JSON behind its length, and writes a text or an error for each. What
Hugging Face's libraries give to a template is given here (transformers, `utils/chat_template_utils.py`).
"""

from __future__ import annotations

import json
import resource
import signal
import struct
import sys
from datetime import datetime

import jinja2.ext
import jinja2.sandbox

MOST_MEMORY = 1 << 28  # bytes
CPU_S = 0.5  # of processor time for a rendering; most take less than a millisecond
MOST_MESSAGE = 500  # characters of what an exception says


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks what the assistant says, for training; here its content is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012  as Jinja declares it

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message):
    raise jinja2.TemplateError(f"it says: {message}")


def _strftime_now(form):
    return datetime.now().strftime(form)


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _send({})
    source, template = _receive(), None
    while True:
        values = _receive()
        # Its default action ends the process, also in the midst of one long multiplication.
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        try:
            if template is None:
                template = _environment().from_string(source)
            answer = {"text": template.render(**values)}
        except MemoryError:
            answer = {"error": f"it takes more than {MOST_MEMORY >> 20} MB of memory"}
        except RecursionError:
            answer = {"error": "it is nested too deeply, or calls itself for ever"}
        except jinja2.TemplateSyntaxError as error:
            answer = {"error": f"line {error.lineno}: {_said(error)}"}
        except Exception as error:  # a template's fault has the type of whatever Python object it used wrongly
            answer = {"error": _said(error)}
        _send(answer)
        signal.setitimer(signal.ITIMER_PROF, 0)


def _said(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    line = (lines[0] if lines else type(error).__name__)[:MOST_MESSAGE].rstrip(".")
    return "".join(char if char.isprintable() else " " for char in line)


def _receive():
    head = sys.stdin.buffer.read(8)
    if len(head) < 8:
        sys.exit()  # who asked is gone
    return json.loads(sys.stdin.buffer.read(struct.unpack("<Q", head)[0]).decode("utf-8", "surrogatepass"))


def _send(thing: object) -> None:
    data = json.dumps(thing, ensure_ascii=False).encode("utf-8", "surrogatepass")
    sys.stdout.buffer.write(struct.pack("<Q", len(data)) + data)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
