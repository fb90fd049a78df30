"""Prompts that begin alike, as those of a service do: a system prompt that all share, a conversation that grows.

    requests = with_system_prompt(requests, 200, tokenizer)
    requests = conversations(requests, turns=4, think_s=2.0, tokenizer)

An engine that keeps the KV cache blocks of earlier prompts (`enable_kv_cache_reuse`) need not compute the part that two
prompts share; how much it saves is what these make measurable.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle, islice

from inflight.bench.workload import PASSAGE, TimedRequest, input_len
from inflight.checkpoint.tokenizer import ChatTokenizer
from inflight.errors import CourseError

OPENING = "You answer for a railway company, politely and in a few words. What you know of it:"


def with_system_prompt(requests: Sequence[TimedRequest], tokens: int, tokenizer: ChatTokenizer) -> list[TimedRequest]:
    """The same requests, each with one and the same text of `tokens` tokens, or one less, before its own.

    Raises
    ------
    CourseError
        `tokens` is below 1.
    """
    if tokens < 1:
        raise CourseError(f"The system prompt has {tokens} tokens; it must have at least 1.")
    shared = _words(tokens, OPENING, tokenizer)
    return [_with_text(request, f"{shared}\n\n{request.text}", tokenizer) for request in requests]


def conversations(
    requests: Sequence[TimedRequest], turns: int, think_s: float, tokenizer: ChatTokenizer
) -> list[TimedRequest]:
    """The same requests as turns of conversations: each `turns` after one another belong together.

    The first turn is as it was. Every other one holds all of the turn before, an answer of the length asked for there,
    in plain words, and its own text; it is sent `think_s` seconds after that turn's answer has come. The last
    conversation is shorter if the requests do not come out even.

    Raises
    ------
    CourseError
        `turns` is below 1, or `think_s` below 0.
    """
    if turns < 1:
        raise CourseError(f"A conversation of {turns} turns is none; it must have at least 1.")
    if not (math.isfinite(think_s) and think_s >= 0):
        raise CourseError(f"A user thinks for {think_s} s between two turns; it must be 0 or more.")
    made: list[TimedRequest] = []
    for number, request in enumerate(requests):
        if number % turns:
            before = made[-1]
            answer = _words(before.max_tokens, "", tokenizer)
            text = f"{before.text}\n\n{answer}\n\n{request.text}"
            request = replace(_with_text(request, text, tokenizer), at_s=think_s, after=number - 1)
        made.append(request)
    return made


def _with_text(request: TimedRequest, text: str, tokenizer: ChatTokenizer) -> TimedRequest:
    return replace(request, text=text, input_len=input_len(text, tokenizer))


def _words(tokens: int, opening: str, tokenizer: ChatTokenizer) -> str:
    """Plain words with as many tokens as fit into `tokens`."""
    passage = PASSAGE.split()
    words = [*opening.split(), *islice(cycle(passage), tokens)]
    ids = tokenizer.encode(" ".join(words), add_special_tokens=False)
    return tokenizer.decode(ids[:tokens])
