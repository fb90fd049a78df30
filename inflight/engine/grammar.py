"""Answers that follow a guide: JSON of a schema, a regular expression, a grammar, or one of several texts.

    guides = Guides(info)                                # one an engine
    matcher = guides.matcher(Guide("regex", "[0-9]+"))   # one a request
    matcher.mask(answer, logits); token = ...; matcher.take(token)

A matcher knows how far an answer has come, and forbids every token after which it could not be completed any more.
llguidance (https://github.com/guidance-ai/llguidance) compiles guides and makes masks. A guide that cannot be compiled
is refused before the first token, and one that fails later ends its request: none is followed loosely.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from inflight.engine.folder import EngineInfo
from inflight.engine.json_schema import ascii_regex, prepare
from inflight.engine.messages import Guide
from inflight.engine.own.part import OwnPart, PartError
from inflight.errors import GUIDE, CourseError

if TYPE_CHECKING:
    from inflight.checkpoint.tokenizer import ChatTokenizer
    from inflight.engine.sequences import Sequence

LONGEST_GUIDE = 64 * 1024  # characters
# Limits of a matcher. A state of its lexer takes one to two kB; a step's fuel is about 14 ms.
LIMITS: Any = {"max_lexer_states": 20_000, "step_lexer_fuel": 200_000}
# JSON is written in one line: with any white space allowed, a small model may go on with blanks until its last token.
JSON_FORM: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "lenient": False}
AFTERWARDS = "Put the form into the prompt in words, or ask for less."


class Matcher(Protocol):
    """Follows one answer, and knows which tokens its guide allows next.

    Attributes
    ----------
    end_id : int or None
        The model's token for the end, which a guide may allow whether or not the request names it.
    """

    end_id: int | None

    def mask(self, answer: list[int], logits: NDArray[Any]) -> None:
        """Set the `logits` [vocab_size], float64, of tokens that may not come next to -inf."""

    def take(self, token: int) -> bool:
        """Add a token to the answer; True when it is complete, and nothing but its end could follow."""


class Guides:
    """Makes the matchers of an engine.

    Parameters
    ----------
    info : EngineInfo
    logits_processor_path : path, optional
        File with a class `LogitsProcessor`, which masks in place of llguidance.

    Raises
    ------
    PartError
        The file cannot be used.
    """

    def __init__(self, info: EngineInfo, logits_processor_path: str | Path | None = None):
        self._info, self._own = info, None
        if logits_processor_path is not None:
            form = "self, token_ids, logits"
            self._own = OwnPart(logits_processor_path, "LogitsProcessor", "__call__", form)

    def matcher(self, guide: Guide) -> Matcher:
        """Make the matcher of a new request.

        Raises
        ------
        CourseError
            The guide cannot be followed; the message says where in it the fault is.
        """
        if len(guide.text) > LONGEST_GUIDE * (2 if guide.kind == "call_or_form" else 1):
            long = f"The guide has {len(guide.text):,} characters: send at most {LONGEST_GUIDE:,}."
            raise CourseError(long, code=GUIDE)
        if self._own:
            return _OwnMatcher(self._own, guide, self._tokenizer)
        if guide.kind == "call_or_form":
            return _CallOrForm(*(self.matcher(Guide("ebnf_grammar", text)) for text in _two_texts(guide)))
        return _LibraryMatcher(guide, self._of_library, self._tokenizer.end_id)

    # Loaded with the first guide: most engines never see one.
    @cached_property
    def _tokenizer(self) -> ChatTokenizer:
        from inflight.checkpoint.tokenizer import load_tokenizer

        return load_tokenizer(self._info.folder)

    @cached_property
    def _of_library(self) -> Any:
        """Make the library's form of the tokenizer, in a quarter of a second."""
        import llguidance

        text = (self._info.folder / "tokenizer.json").read_text(encoding="utf-8")
        return llguidance.LLTokenizer(text, self._info.pretrained_config["vocab_size"], self._tokenizer.end_id)


class GuideThread:
    """Compiles guides one after another in a thread of its own, because one may take a second.

    Parameters
    ----------
    guides : Guides
    made : callable
        Called in that thread with each request and its matcher, or the error that there was.
    """

    def __init__(self, guides: Guides, made: Callable[[Sequence, Matcher | Exception], None]):
        self._guides, self._made = guides, made
        self._queue: SimpleQueue[Sequence | None] = SimpleQueue()
        threading.Thread(target=self._run, name="guides", daemon=True).start()

    def compile(self, sequence: Sequence) -> None:
        """Compile the guide of a request after those before it."""
        self._queue.put(sequence)

    def end(self) -> None:
        """Let the thread end."""
        self._queue.put(None)

    def _run(self) -> None:
        for sequence in iter(self._queue.get, None):
            made: Matcher | Exception
            if sequence.request.guide is None or sequence.finish_reason:  # it ended while it waited
                continue
            try:
                made = self._guides.matcher(sequence.request.guide)
            except Exception as error:
                made = error
            self._made(sequence, made)


class _LibraryMatcher:
    def __init__(self, guide: Guide, tokenizer: Any, end_id: int | None):
        import llguidance

        self.end_id = end_id
        try:
            grammar = _grammar(guide)
            limits = llguidance.LLParserLimits(**LIMITS)
            self._matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
            self._matcher.compute_bitmask()  # finds a guide that nothing can follow
            if error := self._matcher.get_error() or next(iter(self._matcher.get_grammar_warnings()), ""):
                raise ValueError(error)
        except (ValueError, RecursionError) as error:
            why = f"The guide ({guide.kind}) cannot be followed: {_sentence(str(error))}. {AFTERWARDS}"
            raise CourseError(why, code=GUIDE) from None

    def mask(self, answer: list[int], logits: NDArray[Any]) -> None:
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._raise_error()
        allowed = np.unpackbits(bits, count=len(logits), bitorder="little")
        np.putmask(logits, allowed == 0, -np.inf)  # six times as fast as an index of truths

    def take(self, token: int) -> bool:
        self._matcher.consume_token(token)
        self._raise_error()
        return bool(self._matcher.is_stopped())

    def _raise_error(self) -> None:
        if error := self._matcher.get_error():
            why = f"The guide could not be followed further ({_sentence(error)}). {AFTERWARDS}"
            raise CourseError(why, code=GUIDE)


class _CallOrForm:
    """Follows one guide for a call and a form where the model itself would begin one of them, else the form's alone.

    Under the first alone, a model that means to answer in words may be led into a call: both begin with a brace, and
    its prompt has told it how a call goes on.
    """

    def __init__(self, either: Matcher, form: Matcher):
        self.end_id = either.end_id
        self._either, self._form, self._followed = either, form, either

    def mask(self, answer: list[int], logits: NDArray[Any]) -> None:
        if not answer:
            self._either.mask(answer, masked := logits.copy())
            self._followed = self._form if np.isneginf(masked[logits.argmax()]) else self._either
        self._followed.mask(answer, logits)

    def take(self, token: int) -> bool:
        return self._followed.take(token)


class _OwnMatcher:
    """Masks by a class of the learner's own, one object a request."""

    def __init__(self, part: OwnPart, guide: Guide, tokenizer: ChatTokenizer):
        self._part, self.end_id = part, tokenizer.end_id
        self._processor = part.call(part.made, guide.text, tokenizer)

    def mask(self, answer: list[int], logits: NDArray[Any]) -> None:
        changed = self._part.call(self._processor, list(answer), logits.copy())
        is_array = isinstance(changed, np.ndarray)
        if not is_array or changed.shape != logits.shape or changed.dtype.kind != "f":
            given = f"an array {changed.dtype}{list(changed.shape)}" if is_array else f"{changed!r:.80}"
            raise PartError(f"{self._part.place}: it returned {given}; return the logits, float{list(logits.shape)}.")
        logits[:] = changed

    def take(self, token: int) -> bool:
        return False  # a mask of one's own ends an answer by its end token alone


def _two_texts(guide: Guide) -> list[str]:
    with suppress(ValueError, RecursionError):
        texts = json.loads(guide.text)
        if isinstance(texts, list) and len(texts) == 2 and all(isinstance(text, str) for text in texts):
            return texts
    raise CourseError("The guide (call_or_form) cannot be followed: it is a JSON list of two grammars.", code=GUIDE)


def _grammar(guide: Guide) -> str:
    """Return the guide in the library's form. Raises ValueError or RecursionError."""
    import llguidance

    make = llguidance.LLMatcher
    if guide.kind in ("json", "json_schema"):
        prepare(schema := _schema(guide))
        return make.grammar_from_json_schema(schema, overrides=JSON_FORM)
    return make.grammar_from_lark(_prepared(_lark(guide) if guide.kind == "ebnf_grammar" else f"start: {rule(guide)}"))


def rule(guide: Guide) -> str:
    """Return the body of a rule, in a guide of the kind `ebnf_grammar`, that another guide's texts follow.

    Raises
    ------
    ValueError
    RecursionError
    """
    if guide.kind == "regex":
        return f"/{ascii_regex(guide.text)}/"
    if guide.kind == "ebnf_grammar":
        return f"%lark {{\n{_lark(guide)}\n}}"
    if guide.kind == "choice":
        texts = json.loads(guide.text)
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
            raise ValueError("a choice is a JSON list of texts")
        return " | ".join(map(json.dumps, texts))
    return f"%json {json.dumps(_schema(guide))}"


def _schema(guide: Guide) -> dict[str, Any]:
    given = {"type": ["object", "array"]} if guide.kind == "json" else json.loads(guide.text)
    if not isinstance(schema := {} if given is True else given, dict):
        raise ValueError("a schema is a JSON object")
    return schema


def _lark(guide: Guide) -> str:
    """Return a grammar in Lark, and one in GBNF as Lark: its rules read `name ::= ...`, as nothing in Lark does."""
    from llguidance.gbnf_to_lark import gbnf_to_lark

    if not re.search(r"^[ \t]*[\w-]+[ \t]*::=", guide.text, re.MULTILINE):
        return guide.text
    try:
        return gbnf_to_lark(guide.text)
    except Exception as error:  # the library raises bare Exceptions, too
        raise ValueError(error) from None


# What in Lark is a text or a comment, a regular expression, or a schema.
LARK = re.compile(r"""("(?:\\.|[^"\\\n])*"|(?://|#)[^\n]*)|/((?:\\.|[^/\\\n])+)/|%json\s*(?=\{)""")


def _prepared(lark: str) -> str:
    """Return a grammar with its regular expressions and schemas as they are followed everywhere."""
    pieces, place = [], 0
    while found := LARK.search(lark, place):
        pieces.append(lark[place : found.start()])
        place = found.end()
        if found[1] or found[2]:
            pieces.append(found[1] or f"/{ascii_regex(found[2])}/")
        else:
            schema, place = json.JSONDecoder().raw_decode(lark, place)
            prepare(schema)
            schema["x-guidance"] = {**dict(schema.get("x-guidance", {})), **JSON_FORM}
            pieces.append(f"%json {json.dumps(schema)}")
    return "".join([*pieces, lark[place:]])


def _sentence(error: str) -> str:
    """Return the library's message in one line, without the parser's state that follows."""
    if error.startswith("NoExtension"):
        return "no text at all is allowed by it"
    lines = [line.strip(" |^") for line in error.partition("\n<state>")[0].splitlines()]
    return "; ".join(filter(None, lines)).rstrip(".")[:300]
