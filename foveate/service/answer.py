"""One answer under way: tickets at the engine on one side, safe text on the other.

Owns the choices of one request and their text streams. Promises that every choice ends once, that a stop string ends
its choice at the engine too, and that closing an answer aborts whatever still runs. Refuses to know wire formats.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace

from foveate.core.chat import AnswerPart, ChoiceEnd, Progress
from foveate.core.errors import FoveateError
from foveate.core.observe import Counters, Outcome, RequestView
from foveate.core.values import Event, Failed, Finished, ImageLanded, Output, Started, Timings
from foveate.engine.client import EngineClient, Order, Ticket
from foveate.prompt.text import TextStream
from foveate.prompt.tokens import Tokens
from foveate.service.choice import Choice
from foveate.service.prepare import Prepared


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an answer comes from: its id, what preparing it took, the vocabulary; `hidden` ids never show."""

    id: str
    prepare_s: float
    tokens: Tokens
    hidden: frozenset[int]


class Answer:
    """Iterate `parts()` once, or `aclose()`; `on_end(answer, timings)` hears of each finished choice."""

    def __init__(self, prepared: Prepared, origin: Origin, counters: Counters) -> None:
        self._prepared, self._counters = prepared, counters
        self.id, self._prepare_s, self._arrived_s = origin.id, origin.prepare_s, time.monotonic()
        self.prompt_tokens = len(prepared.prompt.tokens)
        self.image_tokens = prepared.prompt.image_rows
        self.images = len(prepared.prompt.spans)
        self._choices = [
            Choice(number, origin.tokens, TextStream(origin.tokens, prepared.stops, origin.hidden), prepared.markup)
            for number in range(prepared.choices)
        ]
        self._tickets: list[Ticket] = []
        self._client: EngineClient | None = None
        self._events: asyncio.Queue[tuple[Choice, Event]] = asyncio.Queue()
        self._ended_s: float | None = None
        self._failed = False
        self._last = RequestView(self.id, "queued", self.prompt_tokens, 0, 0.0, self._prepare_s)
        self.on_close: list[Callable[[Answer], None]] = []

    async def begin(self, client: EngineClient) -> None:
        """Queue all choices and wait until the first is under way; raises why it will never be."""
        self._client = client
        self._tickets = client.submit([(self._order(choice), self._deliver(choice)) for choice in self._choices])
        waiting: list[tuple[Choice, Event]] = []
        while True:
            choice, event = await self._events.get()
            if isinstance(event, Failed):
                raise self._failure(event)
            if isinstance(event, Started):
                break
            waiting.append((choice, event))
        for item in waiting:
            self._events.put_nowait(item)

    def _order(self, choice: Choice) -> Order:
        prepared = self._prepared
        sampling = replace(prepared.sampling, seed=prepared.sampling.seed + choice.number)
        # The pictures are shared by all choices, so they are held once.
        held_bytes = 0 if choice.number else prepared.held_bytes
        return Order(prepared.prompt, prepared.pictures, sampling, prepared.ending, held_bytes)

    def _deliver(self, choice: Choice) -> Callable[[Event], None]:
        """What takes a choice's events as they come, and counts the pauses between its tokens."""
        last_s: float | None = None

        def deliver(event: Event) -> None:
            nonlocal last_s
            if isinstance(event, Output):
                now = time.monotonic()
                if last_s is not None:
                    self._counters.paused(now - last_s)
                last_s = now
            self._events.put_nowait((choice, event))

        return deliver

    async def parts(self) -> AsyncIterator[AnswerPart]:
        """Text as it becomes safe to show, progress of images, one end per choice. Raises what a choice failed with."""
        left = len(self._choices)
        try:
            while left:
                choice, event = await self._events.get()
                for part in self._translate(choice, event):
                    left -= isinstance(part, ChoiceEnd)
                    yield part
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Abort what still runs. Idempotent."""
        for ticket, choice in zip(self._tickets, self._choices, strict=False):
            if not ticket.settled and choice.reason is None:
                choice.reason = "abort"
                self._count(choice, "abort", Timings())
        if self._client is not None:
            self._client.abort(self._tickets)
        heard, self.on_close = self.on_close, []
        self._ended_s = self._ended_s or time.monotonic()
        for hear in heard:
            hear(self)

    def view(self, seen: Mapping[int, RequestView], now: float) -> RequestView:
        """How it stands, by the engine's look `seen` at each uid; all choices count, the first one's times show."""
        choice = next((choice for choice in self._choices if choice.reason is None), self._choices[0])
        uid = self._tickets[choice.number].uid if self._tickets else 0
        found, own = seen.get(uid, self._last), self._choices[0]
        self._last = replace(
            found,
            id=self.id,
            state="failed" if self._failed else choice.reason or found.state,
            output_tokens=sum(choice.tokens for choice in self._choices),
            elapsed_s=(self._ended_s or now) - self._arrived_s,
            prepare_s=self._prepare_s,
            timings=self._with_fetches(found.timings if own.timings is None else own.timings),
        )
        return self._last

    def _with_fetches(self, timings: Timings) -> Timings:
        """The timings with when each picture was read, counted like all the rest from the arrival at the engine."""
        if not self._prepared.fetched:
            return timings
        windows = ((start_s - self._arrived_s, end_s - self._arrived_s) for start_s, end_s in self._prepared.fetched)
        pairs = zip(timings.images, windows, strict=False)
        images = (replace(image, fetch_start_s=start_s, fetch_end_s=end_s) for image, (start_s, end_s) in pairs)
        return replace(timings, images=tuple(images))

    def _translate(self, choice: Choice, event: Event) -> list[AnswerPart]:
        if isinstance(event, Failed):
            if choice.reason is not None:
                return []  # its text had ended it before: what the step went on with is nobody's loss
            raise self._failure(event)
        if isinstance(event, Output):
            return self._take(choice, event)
        if isinstance(event, ImageLanded) and choice.number == 0:
            return [Progress(event.image, self.images)]
        if isinstance(event, Finished):
            return self._end(choice, event)
        return []

    def _take(self, choice: Choice, event: Output) -> list[AnswerPart]:
        if choice.reason is not None:
            return []  # the engine had not yet heard that its text ended this choice
        parts = choice.take(event.tokens, event.logprobs)
        if choice.reason is not None:
            self._tickets[choice.number].abort()
        return [*parts]

    def _end(self, choice: Choice, event: Finished) -> list[AnswerPart]:
        parts = choice.end(event.reason, self._with_fetches(event.timings))
        self._count(choice, choice.reason or event.reason, choice.timings or event.timings)
        return [*parts]

    def _count(self, choice: Choice, reason: str, timings: Timings) -> None:
        total_s = time.monotonic() - self._arrived_s
        self._counters.finished(Outcome(reason, self.prompt_tokens, self.image_tokens, choice.tokens, total_s, timings))

    def _failure(self, event: Failed) -> Exception:
        self._failed = True
        self._counters.failed(event.error.code if isinstance(event.error, FoveateError) else "internal_error")
        return event.error
