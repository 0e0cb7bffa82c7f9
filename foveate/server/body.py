"""Reading a request body that may be huge, deep, slow or a lie.

Owns every limit that applies before a request means anything: bytes (declared and counted), bytes of all bodies being
read, pauses, nesting, number of values. Promises that what comes out is JSON of finite numbers and whole characters,
and that reading or parsing never holds the event loop for long. Refuses to know what the document says.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, TypeVar

from pydantic_core import from_json
from starlette.requests import Request

from foveate.core.config import MIB
from foveate.core.errors import Busy, InvalidRequest, TooLarge
from foveate.server.contract import Limits
from foveate.server.errors import ClientGone

OFF_LOOP_BYTES = MIB
T = TypeVar("T")


class BodyReader:
    """Reads JSON bodies for one app, within its limits."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._held = 0

    async def load(self, request: Request, build: Callable[[Any], T]) -> T:
        """Read and parse the body and return `build(document)`.

        A large body is parsed, and `build` runs, off the event loop. Raises TooLarge, Busy, InvalidRequest, ClientGone
        and whatever `build` raises.
        """
        self._check_headers(request)
        data = bytearray()
        try:
            await self._read(request, data)
            if len(data) <= OFF_LOOP_BYTES:
                return build(parse_json(data, self._limits))
            return await asyncio.to_thread(lambda: build(parse_json(data, self._limits)))
        finally:
            self._held -= len(data)

    def _check_headers(self, request: Request) -> None:
        declared = request.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > self._limits.body_bytes:
            raise self._too_large()
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            raise InvalidRequest("compressed request bodies are not supported (Content-Encoding)")

    async def _read(self, request: Request, data: bytearray) -> None:
        """Append the whole body to `data`; what is in `data` is in `_held` too, whatever happens."""
        try:
            async with asyncio.timeout(self._limits.body_s):
                while await self._read_piece(request, data):
                    pass
        except TimeoutError:
            raise InvalidRequest("the request body did not arrive in time") from None

    async def _read_piece(self, request: Request, data: bytearray) -> bool:
        async with asyncio.timeout(self._limits.read_stall_s):
            message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        piece = message.get("body", b"")
        if len(data) + len(piece) > self._limits.body_bytes:
            raise self._too_large()
        if self._held + len(piece) > self._limits.held_bytes:
            raise Busy("too many large request bodies at the moment", lack="body_bytes")
        data += piece
        self._held += len(piece)
        return bool(message.get("more_body", False))

    def _too_large(self) -> TooLarge:
        return TooLarge(f"the request body is larger than {self._limits.body_bytes // MIB} MiB")


def parse_json(data: bytes | bytearray, limits: Limits) -> Any:
    """The JSON document in `data`. Raises InvalidRequest with a reason that quotes nothing of it."""
    # Every value but the first follows one of these bytes, so this bounds memory before anything is built.
    values = 1 + sum(data.count(mark) for mark in (b",", b"[", b"{"))
    if values > limits.json_values:
        raise _refusal(f"the request body holds more than {limits.json_values} JSON values")
    try:
        document = from_json(data, allow_inf_nan=False)
    except ValueError as error:
        reason = str(error).partition(" at line")[0]
        if "recursion" in reason:
            raise _too_deep(limits) from None
        raise _refusal(f"the request body is not valid JSON: {reason}") from None
    _check_values(document, limits)
    return document


def _check_values(document: Any, limits: Limits) -> None:
    """Refuse deep nesting and numbers such as 1e999, level by level."""
    level = [document]
    for _ in range(limits.json_depth + 1):
        level = [value for value in level if isinstance(value, (dict, list, float))]
        if any(isinstance(value, float) and not math.isfinite(value) for value in level):
            raise _refusal("the request body holds a number that is out of range")
        level = [inner for value in level if not isinstance(value, float) for inner in _inside(value)]
        if not level:
            return
    raise _too_deep(limits)


def _inside(value: dict[str, Any] | list[Any]) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value


def _too_deep(limits: Limits) -> InvalidRequest:
    return _refusal(f"the request body is nested deeper than {limits.json_depth} levels")


def _refusal(message: str) -> InvalidRequest:
    error = InvalidRequest(message)
    error.code = "invalid_json"
    return error
