"""One answer under way: tickets at the engine on one side, safe text on the other.

Owns the choices of one request and their text streams. Promises that every choice ends once, that a stop string ends
its choice at the engine too, and that closing an answer aborts whatever still runs. Refuses to know wire formats.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace

from foveate.core.chat import AnswerPart, ChoiceEnd, Progress, TextDelta, TokenText
from foveate.core.errors import FoveateError
from foveate.core.observe import Counters, Outcome
from foveate.core.values import Event, Failed, Finished, ImageLanded, Logprob, Output, Started, Timings
from foveate.engine.client import EngineClient, Order, Ticket
from foveate.prompt.text import TextStream
from foveate.prompt.tokens import Tokens
from foveate.service.prepare import Prepared


@dataclass(slots=True)
class _Choice:
    """One of the n answers to a request."""

    number: int
    text: TextStream
    tokens: int = 0
    reason: str | None = None
    held_logprobs: list[TokenText] = field(default_factory=list)


class Answer:
    """Iterate `parts()` once, or `aclose()`; `on_end(answer, timings)` hears of each finished choice."""

    def __init__(self, prepared: Prepared, tokens: Tokens, hidden: frozenset[int], counters: Counters) -> None:
        """`hidden` ids are counted and never shown."""
        self._prepared, self._tokens, self._counters = prepared, tokens, counters
        self._arrived_s = time.monotonic()
        self.prompt_tokens = len(prepared.prompt.tokens)
        self.image_tokens = prepared.prompt.image_rows
        self.images = len(prepared.prompt.spans)
        self._choices = [_Choice(i, TextStream(tokens, prepared.stops, hidden)) for i in range(prepared.choices)]
        self._tickets: list[Ticket] = []
        self._events: asyncio.Queue[tuple[_Choice, Event]] = asyncio.Queue()
        self.on_close: list[Callable[[Answer], None]] = []

    async def begin(self, client: EngineClient) -> None:
        """Queue all choices and wait until the first is under way; raises why it will never be."""
        self._tickets = client.submit([(self._order(choice), self._deliver(choice)) for choice in self._choices])
        waiting: list[tuple[_Choice, Event]] = []
        while True:
            choice, event = await self._events.get()
            if isinstance(event, Failed):
                raise self._failure(event)
            if isinstance(event, Started):
                break
            waiting.append((choice, event))
        for item in waiting:
            self._events.put_nowait(item)

    def _order(self, choice: _Choice) -> Order:
        prepared = self._prepared
        sampling = replace(prepared.sampling, seed=prepared.sampling.seed + choice.number)
        # The pictures are shared by all choices, so they are held once.
        held_bytes = 0 if choice.number else prepared.held_bytes
        return Order(prepared.prompt, prepared.pictures, sampling, prepared.ending, held_bytes)

    def _deliver(self, choice: _Choice) -> Callable[[Event], None]:
        return lambda event: self._events.put_nowait((choice, event))

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
            ticket.abort()
        for hear in self.on_close:
            hear(self)
        self.on_close = []

    def _translate(self, choice: _Choice, event: Event) -> list[AnswerPart]:
        if isinstance(event, Failed):
            raise self._failure(event)
        if isinstance(event, Output):
            return self._text(choice, event)
        if isinstance(event, ImageLanded) and choice.number == 0:
            return [Progress(event.image, self.images)]
        if isinstance(event, Finished):
            return self._end(choice, event)
        return []

    def _text(self, choice: _Choice, event: Output) -> list[AnswerPart]:
        if choice.reason is not None:
            return []  # the engine had not yet heard that a stop string ended this choice
        piece = choice.text.push(event.tokens)
        choice.tokens += piece.used
        choice.held_logprobs += [self._token_text(logprob) for logprob in event.logprobs[: piece.used]]
        if piece.stop is not None:
            choice.reason = "stop"
            self._tickets[choice.number].abort()
        return self._delta(choice, piece.text, piece.used)

    def _delta(self, choice: _Choice, text: str, used: int) -> list[AnswerPart]:
        """Logprobs travel with the text they belong to, so they wait while text is held back."""
        if not text and not used:
            return []
        logprobs: tuple[TokenText, ...] = ()
        if text or choice.reason is not None:
            logprobs, choice.held_logprobs = tuple(choice.held_logprobs), []
        return [TextDelta(choice.number, text, used, logprobs)]

    def _end(self, choice: _Choice, event: Finished) -> list[AnswerPart]:
        parts: list[AnswerPart] = []
        if choice.reason is None:
            piece = choice.text.flush()
            choice.reason = "stop" if piece.stop is not None else event.reason
            if piece.text or choice.held_logprobs:
                parts.append(TextDelta(choice.number, piece.text, 0, tuple(choice.held_logprobs)))
        self._count(choice, choice.reason, event.timings)
        return [*parts, ChoiceEnd(choice.number, choice.reason, choice.tokens, event.timings)]

    def _count(self, choice: _Choice, reason: str, timings: Timings) -> None:
        total_s = time.monotonic() - self._arrived_s
        self._counters.finished(Outcome(reason, self.prompt_tokens, self.image_tokens, choice.tokens, total_s, timings))

    def _failure(self, event: Failed) -> Exception:
        self._counters.failed(event.error.code if isinstance(event.error, FoveateError) else "internal_error")
        return event.error

    def _token_text(self, logprob: Logprob) -> TokenText:
        def show(token: int) -> tuple[str, bytes]:
            raw = self._tokens.raw(token)
            return raw.decode("utf-8", "replace"), raw

        top = tuple((*show(token), value) for token, value in logprob.top)
        return TokenText(*show(logprob.token), logprob.logprob, top)
