"""What an engine can hold and answer: the memory that it needs, and the limits that a request keeps."""

from __future__ import annotations

import logging
from dataclasses import replace
from itertools import chain
from numbers import Integral

from inflight.engine.folder import EngineInfo
from inflight.engine.messages import Request
from inflight.engine.model import free_bytes
from inflight.errors import TIMED_OUT, TOO_LONG, CourseError

log = logging.getLogger("inflight.engine.executor")


def check_memory(info: EngineInfo) -> None:
    """Check, before anything of an engine is loaded, that memory has room for it beside all that runs.

    It needs room for its weights and the KV cache of one longest request. The engine that it is to replace may still
    run, and serves on if there is no room.

    Raises
    ------
    CourseError
        There is not enough memory.
    """
    weights, build = info.weight_bytes, info.build_config
    blocks = -(-build.max_seq_len // build.tokens_per_block)
    kv_cache = blocks * build.tokens_per_block * info.kv_cache_bytes_per_token
    available = free_bytes(info)
    if weights + kv_cache > available:
        raise CourseError(
            f"The engine in {info.folder} needs {(weights + kv_cache) / 1e6:.1f} MB ({weights / 1e6:.1f} MB of weights "
            f"and {kv_cache / 1e6:.1f} MB of KV cache for one request), and {available / 1e6:.1f} MB of memory are "
            "available. Unload or stop something, or build an engine with a smaller max_seq_len or of a smaller model."
        )


def within_limits(request: Request, info: EngineInfo, streams: bool = True) -> Request:
    """Return a request as an engine carries it out: no longer than `max_seq_len` allows.

    Parameters
    ----------
    request : Request
    info : EngineInfo
        Of the engine that is to answer it.
    streams : bool
        Whether answers are given token by token; static batching gives whole ones.

    Raises
    ------
    CourseError
        It asks for what this engine cannot do.
    """
    limits, length = info.build_config, len(request.input_ids)
    vocab_size = info.pretrained_config["vocab_size"]
    if length == 0:
        raise CourseError("The prompt is empty: it needs at least one token.")
    if not isinstance(request.request_output_len, Integral) or request.request_output_len < 1:
        raise CourseError(f"request_output_len (max_tokens) is {request.request_output_len}; it must be at least 1.")
    if length > limits.max_input_len:
        raise CourseError(
            f"Prompt length ({length}) exceeds maximum input length ({limits.max_input_len}): shorten "
            "the prompt, or build the engine with a larger max_input_len.",
            code=TOO_LONG,
        )
    words = {"stop_words_list": request.stop_words, "bad_words_list": request.bad_words}
    for name in words:
        if not all(words[name]):
            raise CourseError(f"{name} has an empty word: leave it out.")
    ids = {name: list(chain(*words[name])) for name in words} | {"input_ids": request.input_ids}
    ids["end_id"] = [] if request.end_id is None else [request.end_id]
    for name, tokens in ids.items():
        wrong = [token for token in tokens if not isinstance(token, Integral) or not 0 <= token < vocab_size]
        if wrong:
            raise CourseError(f"{name} has the token id {wrong[0]}; this model's ids go from 0 to {vocab_size - 1}.")
    if request.streaming and not streams:  # as TensorRT-LLM's executor does
        log.warning("static batching (gpt_model_type V1) cannot stream: the request gets its whole answer at once")
        request = replace(request, streaming=False)
    room = limits.max_seq_len - length
    if request.request_output_len > room:
        log.warning(
            "prompt (%d) + request_output_len (%d) exceed max_seq_len (%d): at most %d tokens are made",
            length,
            request.request_output_len,
            limits.max_seq_len,
            room,
        )
        request = replace(request, request_output_len=room)
    return request


def out_of_time(request: Request) -> CourseError:
    """Return the error of a request whose allotted time is over."""
    return CourseError(
        f"The request was not finished within {request.allotted_time_ms:,.0f} ms, its wait included, and was ended: "
        "ask for fewer tokens, send it when fewer requests run, or allow it more time (allotted_time_ms of "
        "tensorrt_llm, or the timeout that the request brings).",
        code=TIMED_OUT,
    )
