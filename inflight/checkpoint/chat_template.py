"""A checkpoint's chat template, rendered where it can do no harm.

    template = ChatTemplate("{{ messages[0].content }}")
    text = template.render([{"role": "user", "content": "Hello"}])

A template is a program that came with somebody's weights. Jinja's sandbox keeps it from Python's insides, but not from
computing for ever or filling the memory, so it runs in a process of its own (`chat_template_child`) with a limit on
both. That process is started at the first use and answers a request in some 0.1 ms; one that hits a limit is gone, and
the next call starts another.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

from inflight.checkpoint.chat_template_child import CPU_S, MOST_MEMORY
from inflight.checkpoint.tokenizer_files import MOST_TEMPLATE_BYTES
from inflight.errors import CourseError

START_S = 30  # longest time to start the process
# Longest wait for an answer. The limit that is meant is on processor time; this one is for a machine that is busy.
ANSWER_S = 30
MOST_ADDED = 1 << 20  # characters that a template may add to the messages


class ChatTemplate:
    """A chat template as Hugging Face's libraries understand it.

    Parameters
    ----------
    source : str
        Jinja, with `{% generation %}`, `{% break %}`, `{% continue %}`, `raise_exception`, `strftime_now`, `tojson`.
    variables : dict, optional
        What it may use beside the messages, such as the special tokens.

    Raises
    ------
    CourseError
        It is longer than any template.
    """

    def __init__(self, source: str, variables: dict[str, str] | None = None):
        if len(source) > MOST_TEMPLATE_BYTES:
            raise CourseError(
                f"The chat template has {len(source):,} characters, and {MOST_TEMPLATE_BYTES:,} are the most that are "
                "taken. Use the checkpoint that its makers published."
            )
        self._source = source
        self._variables = variables or {}
        self._lock = threading.Lock()
        self._process: subprocess.Popen | None = None

    def render(self, messages: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The messages as one text.

        Raises
        ------
        CourseError
            The template has a fault, refuses the messages, reaches into what is not its own, or takes more than its
            share of time, memory or text.
        """
        size = sum(len(text) for message in messages for text in message.values())
        question = {
            **self._variables,
            "messages": messages,
            "tools": None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        with self._lock:
            answer = self._ask(question)
        text = answer.get("text")
        if text is None:
            raise CourseError(f"The chat template cannot be used: {answer['error']}. {_FIX}")
        if len(text) > MOST_ADDED + 4 * size:
            raise CourseError(f"The chat template made {len(text):,} characters of a message of {size:,}. {_FIX}")
        return text

    def _ask(self, question: dict) -> dict:
        try:
            if self._process is None:
                self._start()
            send(self._process.stdin, question)
            return _receive(self._process, ANSWER_S)
        except (_Ended, OSError):
            return {"error": self._how_it_ended()}
        except BaseException:  # an interrupt: nothing may be left in the pipe for the next call
            self._how_it_ended()
            raise

    def _start(self) -> None:
        python = sys.executable if Path(sys.executable).name.startswith("python") else shutil.which("python3")
        self._process = subprocess.Popen(
            # -P: what lies in the working folder is not imported.
            [str(python), "-P", "-m", "inflight.checkpoint.chat_template_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # an interrupt of a notebook is not for it
        )
        weakref.finalize(self, _end, self._process)
        _receive(self._process, START_S)  # it is there
        send(self._process.stdin, self._source)

    def _how_it_ended(self) -> str:
        """End the process, if it has not ended, and say why."""
        process, self._process = self._process, None
        if process is None:
            return "its process could not be started"
        was_running = process.poll() is None and not select.select([process.stdout], [], [], 0)[0]
        _end(process)
        if process.returncode == -signal.SIGPROF or was_running:
            return f"it computes for more than {CPU_S:g} s"
        return f"it ended its process, perhaps for more than {MOST_MEMORY >> 20} MB of memory"


_FIX = "Use the checkpoint that its makers published, or serve without a template (apply_chat_template: false)."


class _Ended(Exception):
    """The process does not answer any more."""


def send(stream, thing: object) -> None:
    """Write JSON behind its length."""
    data = json.dumps(thing, ensure_ascii=False).encode("utf-8", "surrogatepass")
    stream.write(struct.pack("<Q", len(data)) + data)
    stream.flush()


def _receive(process: subprocess.Popen, longest_s: float) -> dict:
    deadline = time.monotonic() + longest_s
    [length] = struct.unpack("<Q", _read(process, 8, deadline))
    if length > MOST_MEMORY:
        raise _Ended
    try:
        return json.loads(_read(process, length, deadline).decode("utf-8"))
    except UnicodeDecodeError:
        return {"error": "it makes characters that cannot be written"}


def _read(process: subprocess.Popen, number: int, deadline: float) -> bytes:
    data = bytearray()
    while len(data) < number:
        if not select.select([process.stdout], [], [], max(0, deadline - time.monotonic()))[0]:
            raise _Ended
        part = os.read(process.stdout.fileno(), min(number - len(data), 1 << 16))
        if not part:
            process.wait()
            raise _Ended
        data += part
    return bytes(data)


def _end(process: subprocess.Popen) -> None:
    """Kill the process, which holds nothing that could be lost, and close its pipes."""
    process.kill()
    process.wait()
    process.stdout.close()
    try:
        process.stdin.close()
    except BrokenPipeError:  # a question was half written
        return
