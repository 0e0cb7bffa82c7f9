"""Who may ask: API keys, checked before routing so that a new route is closed until it is opened here.

Owns the comparison (in constant time) and the list of what needs no key. Promises that without a valid key nothing of
a request is read but its path and headers, and that keys appear in no answer and no log. Refuses to know what a route
does; cross-origin preflights are answered before this, as browsers send them without a key.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Sequence

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from foveate.server.errors import shaped

# The page holds no secrets and asks for a key itself; without it a browser could never send one.
OPEN_PATHS = frozenset(("/health", "/"))
OPEN_FOLDERS = ("/page/", "/examples/")
_REFUSAL = {
    "error": {
        "message": "a valid API key is needed: Authorization: Bearer KEY",
        "type": "invalid_request_error",
        "param": None,
        "code": "invalid_api_key",
    }
}


class Access:
    """ASGI middleware: 401 for every path that is not open and comes without one of the keys."""

    def __init__(self, app: ASGIApp, keys: Sequence[str], count: Callable[[str, str], None]) -> None:
        self._app = app
        self._digests = [_digest(key) for key in keys]
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or _is_open(scope["path"]) or self._known(Headers(scope=scope)):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            self._count("invalid_api_key", "")
            body = shaped(scope["path"], 401, _REFUSAL)
            refusal = JSONResponse(body, status_code=401, headers={"WWW-Authenticate": "Bearer"})
            await refusal(scope, receive, send)

    def _known(self, headers: Headers) -> bool:
        """OpenAI's clients send a bearer token, Anthropic's an x-api-key header."""
        kind, _, token = headers.get("authorization", "").partition(" ")
        given = _digest(token if kind.lower() == "bearer" and token else headers.get("x-api-key", ""))
        # Every key is compared, so that time tells neither which one matched nor how much of it.
        return any([hmac.compare_digest(given, digest) for digest in self._digests])


def _is_open(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return path in OPEN_PATHS or (f"{folder}/" in OPEN_FOLDERS and bool(name))


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
