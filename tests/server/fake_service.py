"""A scripted service: each request plays the next script, so that a test decides what the engine does and when.

It keeps every request it saw and counts aborts, and it opens real gaps in time only through gates that a test opens.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from foveate.core.chat import AnswerPart, ChatRequest, ChoiceEnd, Progress, TextDelta, TokenText
from foveate.core.errors import Busy
from foveate.core.observe import Counters, Gauges, Live, Outcome, RequestView, Snapshot
from foveate.core.values import ImageTiming, Prompt, Timings, plain_positions

TIMINGS = Timings(
    queued_s=0.01,
    decode_s=0.02,
    encode_s=0.4,
    prefill_s=0.3,
    waited_s=0.1,
    hidden_s=0.3,
    first_token_s=0.5,
    generation_s=0.25,
    preemptions=1,
    images=(
        ImageTiming("k" * 64, 96, 0.0, 0.01, 0.01, 0.2, 0.2, 0.35),
        ImageTiming("j" * 64, 64, None, None, 0.2, 0.4),
    ),
)


class Gate:
    """A point in a script that waits until a test (in any thread) opens it."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._open: Future[None] = Future()

    def open(self) -> None:
        if not self._open.done():
            self._open.set_result(None)

    async def passed(self) -> None:
        self.reached.set()
        await asyncio.shield(asyncio.wrap_future(self._open))


@dataclass
class Script:
    """`admission` runs before the answer exists, `parts` after; an exception in either is raised in its place."""

    parts: Sequence[AnswerPart | Gate | Exception] = ()
    admission: Sequence[Gate | Exception] = ()
    prompt_tokens: int = 200
    image_tokens: int = 160
    endless: TextDelta | None = None  # repeated for ever once the parts are through


def words(*texts: str, choice: int = 0, reason: str = "stop") -> list[AnswerPart]:
    """One token per text, then the end of the choice."""
    deltas = [TextDelta(choice, text, 1) for text in texts]
    return [*deltas, ChoiceEnd(choice, reason, len(texts), TIMINGS)]


def token(text: str, logprob: float = -0.5) -> TokenText:
    return TokenText(text, text.encode(), logprob, ((text, text.encode(), logprob), ("zz", b"zz", float("-inf"))))


@dataclass
class FakeAnswer:
    script: Script
    images: int
    service: FakeService
    id: str = "a1"
    prompt_tokens: int = 0
    image_tokens: int = 0
    complete: bool = False
    closed: bool = False

    async def parts(self) -> AsyncIterator[AnswerPart]:
        for item in self.script.parts:
            if isinstance(item, Gate):
                await item.passed()
            elif isinstance(item, Exception):
                self.complete = True
                raise item
            else:
                yield item
        while self.script.endless is not None:
            yield self.script.endless
            await asyncio.sleep(0)
        self.complete = True

    async def aclose(self) -> None:
        if not self.closed:
            self.closed = True
            self.service.closed += 1
            self.service.aborted += not self.complete
            self.service.close_seen.set()


@dataclass
class FakeService:
    name: str = "demo"
    created: int = 1_700_000_000
    max_ctx: int = 4096
    has_vision: bool = True
    draining: bool = False
    status: str = "ok"
    script: Script = field(default_factory=lambda: Script(words("Hel", "lo")))
    queue: int | None = None  # how many choices may be under way; None: any number
    requests: list[ChatRequest] = field(default_factory=list)
    views: tuple[tuple[RequestView, ...], tuple[RequestView, ...]] = ((), ())
    counters: Counters = field(default_factory=Counters)
    gauges: Gauges = field(default_factory=Gauges)
    closed: int = 0
    aborted: int = 0
    unqueued: int = 0
    close_seen: threading.Event = field(default_factory=threading.Event)
    unqueue_seen: threading.Event = field(default_factory=threading.Event)

    async def chat(self, request: ChatRequest) -> FakeAnswer:
        self.requests.append(request)
        if self.queue is not None:
            if self.queue < request.wishes.n:
                raise Busy("the queue is full", retry_after_s=7)
            self.queue -= request.wishes.n
        try:
            for item in self.script.admission:
                if isinstance(item, Exception):
                    raise item
                await item.passed()
        except asyncio.CancelledError:
            self.unqueued += 1
            self.unqueue_seen.set()
            raise
        script = self.script
        images = len(request.images)
        return FakeAnswer(script, images, self, uuid4().hex, script.prompt_tokens, script.image_tokens if images else 0)

    def health(self) -> dict[str, Any]:
        return {"status": self.status, "running": self.gauges.running, "waiting": self.gauges.waiting}

    async def prompt(self, request: ChatRequest) -> Prompt:
        self.requests.append(request)
        return Prompt((1, 2, 3), plain_positions(3))

    def text(self, tokens: Sequence[int]) -> str:
        return "".join(map(chr, tokens))

    def facts(self) -> dict[str, Any]:
        return {"limits": {"images": 16}}

    async def live(self) -> Live:
        return Live(self.gauges, *self.views)

    def stats(self) -> Snapshot:
        return self.counters.snapshot(self.gauges)


__all__ = ["TIMINGS", "FakeService", "Gate", "Outcome", "Progress", "Script", "token", "words"]
