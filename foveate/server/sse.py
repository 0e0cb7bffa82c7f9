"""Server-sent events: framing, and delivering an answer as a stream of them.

Owns the bytes of a frame, the comments that keep proxies awake while pictures are encoded, and what a failure in the
middle of a stream looks like: a last event that carries the error. Promises that every part is sent as soon as it
exists and that a slow client holds back only its own answer. Knows no API's words: a `Wording` turns parts into frames.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Protocol

from foveate.core.chat import AnswerPart, ChoiceEnd, Delta, Progress
from foveate.core.errors import FoveateError
from foveate.server.contract import Answer
from foveate.server.errors import ClientGone, internal_error
from foveate.server.reply import Channel, cancelled

log = logging.getLogger(__name__)

HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


class Wording(Protocol):
    """One API's words for a streamed answer, as frames."""

    def opening(self) -> list[bytes]: ...

    def part(self, part: Delta | ChoiceEnd) -> list[bytes]: ...

    def closing(self) -> list[bytes]: ...

    def failure(self, error: FoveateError) -> list[bytes]: ...


def frame(data: Any, event: str | None = None) -> bytes:
    """One event with JSON data. JSON holds no raw line break, so one data line is enough."""
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


def comment(text: str) -> bytes:
    """A line that clients ignore and proxies count as traffic."""
    return f": {text}\n\n".encode()


async def stream(answer: Answer, channel: Channel, wording: Wording) -> None:
    """Deliver an answer as events. Raises ClientGone when nobody is there to read them."""
    await channel.start(200, HEADERS)
    await channel.write(b"".join(wording.opening()))
    try:
        await _parts(answer, channel, wording)
        last = wording.closing()
    except ClientGone:
        raise
    except FoveateError as error:
        log.warning("an answer failed in mid-stream: %s (%s)", error.message, error.code)
        last = wording.failure(error)
    except Exception:
        log.exception("unexpected error in mid-stream")
        last = wording.failure(internal_error())
    await channel.write(b"".join(last), last=True)


async def _parts(answer: Answer, channel: Channel, wording: Wording) -> None:
    parts = answer.parts()
    try:
        while (part := await _next(parts, channel)) is not None:
            frames = [_progress(part)] if isinstance(part, Progress) else wording.part(part)
            if frames:
                await channel.write(b"".join(frames))
    finally:
        if isinstance(parts, AsyncGenerator):
            await parts.aclose()


def _progress(part: Progress) -> bytes:
    return comment(f"encoded image {part.image + 1} of {part.images}")


async def _next(parts: AsyncIterator[AnswerPart], channel: Channel) -> AnswerPart | None:
    """The next part, or None at the end; during silence comments are sent."""
    task = asyncio.ensure_future(anext(parts, None))
    try:
        while not await channel.settled(task, channel.limits.keep_alive_s):
            await channel.write(comment("keep-alive"))
        return task.result()
    finally:
        await cancelled(task)
