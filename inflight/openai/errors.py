"""Errors in OpenAI's form: which status and code each has."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from inflight.errors import ENGINE_FAILED, NOT_READY, QUEUE_FULL, SHUT_DOWN, TIMED_OUT, TOO_LONG, CourseError
from inflight.triton.client.connection import Refused

# Code of a request's error -> status. Any other code has 400: the request is wrong.
STATUSES = {QUEUE_FULL: 429, ENGINE_FAILED: 500, NOT_READY: 503, SHUT_DOWN: 503, TIMED_OUT: 504}
CODES = {TOO_LONG: TOO_LONG, QUEUE_FULL: "rate_limit_exceeded"}  # codes that OpenAI's clients know


class OpenAIError(HTTPException):
    """An error response in OpenAI's form: a status, and `error` with message, type, param and code."""

    def __init__(self, message: str, param: str | None = None, status: int = 400, code: str | None = None):
        kind = {429: "rate_limit_error"}.get(status, "invalid_request_error" if status < 500 else "server_error")
        super().__init__(status, headers={"Retry-After": "1"} if status == 429 else None)
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


def of_engine(error: CourseError, params: dict[str, str]) -> OpenAIError:
    """Make the error for a request that Triton did not answer; `params` has the field that a code is about."""
    if not isinstance(error, Refused):
        status = 503  # nobody answers
    elif error.code:
        status = STATUSES.get(error.code, 400)
    else:
        status = 500  # Triton refused, for a reason that is not known here
    return OpenAIError(str(error), params.get(error.code), status, CODES.get(error.code))


def of_body(error: ValidationError, body: Any) -> OpenAIError:
    """Say in a sentence what is wrong in `body`; a value of several allowed kinds is judged as the nearest of them."""
    first = max(error.errors(include_url=False), key=lambda each: len(each["loc"]))
    where, inner, value = list[str](), body, f"; it is {json.dumps(first['input'], default=str)[:100]}"
    for place in first["loc"]:
        with contextlib.suppress(KeyError, IndexError, TypeError):  # what pydantic calls a kind is no place in the body
            inner = inner[place]
            where.append(str(place))
    if first["type"] == "missing":
        where, value = [*where, str(first["loc"][-1])], ""
    return OpenAIError(f"{'.'.join(where)}: {first['msg']}{value}.", where[0])


async def answer(request: Request, error: Exception) -> Response:
    """Answer any error in OpenAI's form; uvicorn logs the traceback of a fault of ours."""
    if isinstance(error, ClientDisconnect):
        return Response(status_code=499)  # which nobody reads
    if isinstance(error, OpenAIError):
        return JSONResponse(error.body, error.status_code, error.headers)
    if isinstance(error, HTTPException):  # no such path, or not with this method
        body = OpenAIError(f"{error.detail}: {request.method} {request.url.path}.").body
        return JSONResponse(body, error.status_code, error.headers)
    return JSONResponse(
        OpenAIError(f"The server failed on this request ({type(error).__name__}).", status=500).body, 500
    )
