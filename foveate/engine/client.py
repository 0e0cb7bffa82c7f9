"""The engine as asyncio sees it: submit a prompt, read its events, abort.

Owns the border between the event loop's thread and the engine's. Promises that every ticket yields exactly one terminal
event, and that an abandoned ticket costs the engine one letter. What crosses is picklable values; this is one of the
two seams along which foveate can be spread over machines.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from foveate.core.observe import RequestView
from foveate.core.values import Ending, Event, Failed, Finished, PixelSource, Prompt, Sampling
from foveate.engine.loop import Abort, EngineLoop, Look, Submit, Together


@dataclass(frozen=True, slots=True)
class Order:
    """What the engine needs to know of one request. `held_bytes`: what its pictures hold while it waits."""

    prompt: Prompt
    sources: tuple[PixelSource, ...]
    sampling: Sampling
    ending: Ending
    held_bytes: int = 0


class Ticket:
    """One request under way; `deliver` is called on the event loop's thread with each of its events, terminal last."""

    def __init__(self, uid: int, engine: EngineLoop, deliver: Callable[[Event], None]) -> None:
        self.uid, self._engine, self._deliver = uid, engine, deliver
        self._loop = asyncio.get_running_loop()
        self.settled = False

    def sink(self, event: Event) -> None:
        """Called on the engine's thread."""
        with contextlib.suppress(RuntimeError):  # the event loop is gone, and with it whoever waited
            self._loop.call_soon_threadsafe(self._take, event)

    def _take(self, event: Event) -> None:
        assert not self.settled, "a ticket has one terminal event"
        self.settled = isinstance(event, (Finished, Failed))
        self._deliver(event)

    def abort(self) -> None:
        """Nobody reads on: the engine stops within a step. Harmless after the end, and when repeated."""
        if not self.settled:
            self._engine.post(Abort((self.uid,)))


class EngineClient:
    """Hands out tickets for one engine."""

    def __init__(self, engine: EngineLoop) -> None:
        self._engine, self._uids = engine, itertools.count(1)

    def submit(self, orders: Sequence[tuple[Order, Callable[[Event], None]]]) -> list[Ticket]:
        """Queue the choices of one answer, all or none; `deliver` of each gets its events.

        The first event of each is Started, or Failed with the reason why it never will be.
        """
        tickets, letters = [], []
        for order, deliver in orders:
            ticket = Ticket(next(self._uids), self._engine, deliver)
            tickets.append(ticket)
            letters.append(
                Submit(
                    ticket.uid, order.prompt, order.sources, order.sampling, order.ending, ticket.sink, order.held_bytes
                )
            )
        self._engine.post(Together(tuple(letters)))
        return tickets

    def abort(self, tickets: Sequence[Ticket]) -> None:
        """Abort all of these at one moment; those that have ended are left alone."""
        if uids := tuple(ticket.uid for ticket in tickets if not ticket.settled):
            self._engine.post(Abort(uids))

    async def look(self, timeout_s: float) -> dict[int, RequestView]:
        """Every live request by its uid, between two steps; nothing when a step takes longer than `timeout_s`."""
        loop, seen = asyncio.get_running_loop(), asyncio.Future[tuple[RequestView, ...]]()

        def settle(views: tuple[RequestView, ...]) -> None:
            if not seen.done():
                seen.set_result(views)

        def reply(views: tuple[RequestView, ...]) -> None:
            with contextlib.suppress(RuntimeError):  # the event loop is gone, and with it whoever looked
                loop.call_soon_threadsafe(settle, views)

        self._engine.post(Look(reply))
        try:
            async with asyncio.timeout(timeout_s):
                return {int(view.id): view for view in await seen}
        except TimeoutError:
            return {}
