"""How an error becomes an HTTP answer, and the net under everything that nobody expected.

Owns the status of each class of `core.errors` and the error shapes of OpenAI and Anthropic. Promises that every error
body is JSON, under 4 KB and free of what the client sent, and that an unexpected exception costs one request: it is
logged with its traceback and answered with a plain 500.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from foveate.core.errors import (
    Busy,
    FoveateError,
    InvalidRequest,
    ModelNotFound,
    RequestFailed,
    ResponseNotFound,
    TooLarge,
)

log = logging.getLogger(__name__)

LINGER_S = 5.0
_STATUS: tuple[tuple[type[FoveateError], int], ...] = (
    (TooLarge, 413),
    (ModelNotFound, 404),
    (ResponseNotFound, 404),
    (InvalidRequest, 400),
    (Busy, 503),
    (FoveateError, 500),
)
_TYPES = {500: "server_error", 503: "service_unavailable_error"}
MESSAGES = "/v1/messages"
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    500: "api_error",
    503: "overloaded_error",
}
_ROUTE_CODES = {
    404: ("not_found", "no such route"),
    405: ("method_not_allowed", "this route does not take that method"),
}


class ClientGone(Exception):
    """The client closed its connection; there is nobody to answer."""


def internal_error() -> RequestFailed:
    """What a client is told about an exception that nobody expected."""
    error = RequestFailed("the server failed on this request; its log has the details")
    error.code = "internal_error"
    return error


def status_of(error: FoveateError) -> int:
    """The HTTP status of an error of the tree."""
    return next(status for kind, status in _STATUS if isinstance(error, kind))


def openai_error(error: FoveateError) -> dict[str, Any]:
    """The error in OpenAI's shape: {"error": {message, type, param, code}}."""
    param = error.param if isinstance(error, InvalidRequest) else None
    return {
        "error": {
            "message": _clip(error.message, 1000),
            "type": _TYPES.get(status_of(error), "invalid_request_error"),
            "param": None if param is None else _clip(param, 200),
            "code": error.code,
        }
    }


def anthropic_error(error: FoveateError) -> dict[str, Any]:
    """The error in Anthropic's shape: {"type": "error", "error": {type, message}}."""
    return _anthropic_shape(status_of(error), _clip(error.message, 1000))


def _anthropic_shape(status: int, message: str) -> dict[str, Any]:
    return {
        "type": "error",
        "error": {"type": _ANTHROPIC_TYPES.get(status, "invalid_request_error"), "message": message},
    }


def speaks_anthropic(path: str) -> bool:
    """Whether clients of this path expect Anthropic's shape of errors."""
    return path == MESSAGES or path.startswith(MESSAGES + "/")


def shaped(path: str, status: int, body: dict[str, Any]) -> dict[str, Any]:
    """An error body in OpenAI's shape, as the clients of `path` expect it."""
    return _anthropic_shape(status, body["error"]["message"]) if speaks_anthropic(path) else body


def _clip(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def error_response(error: FoveateError, path: str = "") -> Response:
    """A complete HTTP answer for an error of `path`; a refused body is answered before it has arrived."""
    headers = {"Retry-After": str(error.retry_after_s)} if isinstance(error, Busy) else None
    kind = _Lingering if isinstance(error, TooLarge) else JSONResponse
    status = status_of(error)
    return kind(shaped(path, status, openai_error(error)), status_code=status, headers=headers)


class _Lingering(JSONResponse):
    """Answers first, then drops what the client still sends, for a while: closing at once would reset the connection
    and many clients would never see the answer."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.headers["Connection"] = "close"
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        try:
            async with asyncio.timeout(LINGER_S):
                while (await receive()).get("more_body", False):
                    pass
        except TimeoutError:
            pass
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class Faults:
    """ASGI middleware: an exception that nobody caught becomes a 500, or ends a stream that has begun."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def noting(message: Message) -> None:
            nonlocal begun
            begun = begun or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except ClientGone:
            return
        except Exception:
            if scope["type"] != "http" or begun:
                raise
            log.exception("unexpected error while answering %s", scope["path"])
            await error_response(internal_error(), scope["path"])(scope, receive, send)


def install(app: FastAPI, count: Callable[[str, str], None]) -> None:
    """Answer every error of this app in its API's shape; `count` is told each one's code, and what a busy one lacks."""

    async def known(request: Request, error: Exception) -> Response:
        assert isinstance(error, FoveateError)
        count(error.code, error.lack if isinstance(error, Busy) else "")
        if status_of(error) == 500:
            log.error("request failed: %s (%s)", error.message, error.code)
        return error_response(error, request.url.path)

    async def routing(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        code, message = _ROUTE_CODES.get(error.status_code, ("invalid_request", "the request cannot be served"))
        count(code, "")
        body = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}
        body = shaped(request.url.path, error.status_code, body)
        return JSONResponse(body, status_code=error.status_code, headers=error.headers)

    async def invalid(request: Request, error: Exception) -> Response:
        return await known(request, InvalidRequest("the request's parameters are not valid"))

    app.add_exception_handler(FoveateError, known)
    app.add_exception_handler(HTTPException, routing)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_middleware(Faults)
