"""What the routes of one app share, and how they describe themselves.

Owns the state behind the routes, the way from a body to a reply, and the pieces of the OpenAPI description that are
not made from function signatures, because bodies are read and checked by hand.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from foveate.core.errors import Busy
from foveate.server.body import BodyReader
from foveate.server.contract import Answer, Limits, Service
from foveate.server.metrics import Metrics
from foveate.server.reply import Channel, Collector, InFlight, Reply, whole
from foveate.server.sse import Wording, stream
from foveate.server.stored import Stored

SCHEMAS = "#/components/schemas/{model}"


@dataclass(frozen=True, slots=True)
class AppState:
    """What the routes of one app share; `stored` are answers of the Responses API."""

    service: Service
    limits: Limits
    metrics: Metrics
    bodies: BodyReader
    in_flight: InFlight = field(default_factory=InFlight)
    stored: Stored = field(default_factory=Stored)
    since_s: float = field(default_factory=time.monotonic)

    def admit(self) -> None:
        """Raise Busy when no new requests are taken."""
        if self.service.draining:
            raise Busy("the server is shutting down")

    def reply(
        self,
        begin: Callable[[], Coroutine[Any, Any, Answer]],
        words: Callable[[Answer], Wording] | None,
        document: Callable[[Answer], Collector],
    ) -> Reply:
        """The reply that starts an answer and delivers it: as events in `words`, or without them as one document."""

        async def deliver(answer: Answer, channel: Channel) -> None:
            if words is not None:
                await stream(answer, channel, words(answer))
            else:
                await whole(answer, channel, document(answer))

        return Reply(begin, deliver, self.in_flight, self.limits)


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """How a route says which error statuses it has."""
    content = {"application/json": {"schema": {"$ref": SCHEMAS.format(model="Error")}}}
    return {status: {"description": "Error", "content": content} for status in statuses}


def takes(model: type[BaseModel]) -> dict[str, Any]:
    """How a route says what its body is."""
    content = {"application/json": {"schema": {"$ref": SCHEMAS.format(model=model.__name__)}}}
    return {"requestBody": {"required": True, "content": content}}


def answers() -> dict[int | str, dict[str, Any]]:
    """Documents or events, and every error that asking can have."""
    return {200: {"description": "The answer.", "content": {"text/event-stream": {}}}} | errors(
        400, 401, 404, 413, 500, 503
    )
