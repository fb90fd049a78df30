"""A checkpoint's chat template, rendered where it can do no harm.

    template = ChatTemplate("{{ messages[0].content }}")
    text = template.render([{"role": "user", "content": "Hello"}])

A template is a program that came with somebody's weights. Jinja's sandbox keeps it from Python's insides, but not from
computing for ever or filling the memory, so it runs in a process of its own (`chat_template_child`) with a limit on
both. That process is started at the first use and answers a request in some 0.1 ms; one that hits a limit is gone, and
the next call starts another.
"""

from __future__ import annotations

import contextlib
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
FIX = "Use the checkpoint that its makers published, or serve without a template (apply_chat_template: false)."


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
        self._child: _Child | None = None

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
            raise CourseError(f"The chat template cannot be used: {answer['error']}. {FIX}")
        if len(text) > MOST_ADDED + 4 * size:
            raise CourseError(f"The chat template made {len(text):,} characters of a message of {size:,}. {FIX}")
        return text

    def _ask(self, question: dict) -> dict:
        child, self._child = self._child, None  # kept for the next call when it has answered, and only then
        if child is None:
            child = _Child()
            self._end_child = weakref.finalize(self, child.end)
        try:
            if child.is_new:
                child.read(START_S)  # it is there
                child.send(self._source)
                child.is_new = False
            child.send(question)
            answer = child.read(ANSWER_S)
        except _Ended:
            error = child.why_it_ended()
            self._end_child()
            return {"error": error}
        except BaseException:  # an interrupt: its answer must not be taken for that to the next question
            self._end_child()
            raise
        self._child = child
        return answer


class _Child:
    """The process that renders, and the pipes to it and from it."""

    def __init__(self):
        python = sys.executable if Path(sys.executable).name.startswith("python") else shutil.which("python3")
        self._process = subprocess.Popen(
            # -P: what lies in the working folder is not imported.
            [str(python), "-P", "-m", "inflight.checkpoint.chat_template_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # an interrupt of a notebook is not for it
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._questions, self._answers = self._process.stdin, self._process.stdout
        self.is_new = True

    def send(self, thing: object) -> None:
        """Write JSON behind its length; `_Ended` when nobody reads it."""
        data = json.dumps(thing, ensure_ascii=False).encode("utf-8", "surrogatepass")
        try:
            self._questions.write(struct.pack("<Q", len(data)) + data)
            self._questions.flush()
        except BrokenPipeError:
            self._process.wait()
            raise _Ended from None

    def read(self, longest_s: float) -> dict:
        """Wait for JSON behind its length; `_Ended` when it does not come."""
        deadline = time.monotonic() + longest_s
        [length] = struct.unpack("<Q", self._read_bytes(8, deadline))
        if length > MOST_MEMORY:
            raise _Ended
        try:
            return json.loads(self._read_bytes(length, deadline).decode("utf-8"))
        except UnicodeDecodeError:
            return {"error": "it makes characters that cannot be written"}

    def _read_bytes(self, number: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < number:
            if not select.select([self._answers], [], [], max(0, deadline - time.monotonic()))[0]:
                raise _Ended
            part = os.read(self._answers.fileno(), min(number - len(data), 1 << 16))
            if not part:
                self._process.wait()
                raise _Ended
            data += part
        return bytes(data)

    def why_it_ended(self) -> str:
        """What keeps it from answering."""
        if self._process.poll() in (None, -signal.SIGPROF):
            return f"it computes for more than {CPU_S:g} s"
        return f"it ended its process, perhaps for more than {MOST_MEMORY >> 20} MB of memory"

    def end(self) -> None:
        """Kill the process, which holds nothing that could be lost, and close its pipes."""
        self._process.kill()
        self._process.wait()
        self._answers.close()
        with contextlib.suppress(BrokenPipeError):  # a question was half written
            self._questions.close()


class _Ended(Exception):
    """The process does not answer any more."""
