"""The life of one answer: admitted, delivered, closed, whatever the client or the server does meanwhile.

Owns the watch on the client's connection and the switch that ends every reply on shutdown. Promises that an answer
which was admitted is closed exactly once, that a client that leaves while its request still waits takes it out of the
queue, and that nothing is sent before admission, so that every refusal has its true status. Knows no API's words: they
come in as a function that delivers.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any, Protocol, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from foveate.core.chat import ChoiceEnd, Delta, Progress
from foveate.core.errors import Busy
from foveate.server.contract import Answer, Limits
from foveate.server.errors import ClientGone

log = logging.getLogger(__name__)
T = TypeVar("T")
Ending = asyncio.Future[Exception]


class InFlight:
    """The replies under way in one app; shutdown waits for them, then stops them."""

    def __init__(self) -> None:
        self._endings: set[Ending] = set()
        self._empty = asyncio.Event()
        self._empty.set()

    @contextmanager
    def entered(self) -> Iterator[Ending]:
        """Count a reply; yields a future that holds an exception once the reply must end."""
        ending: Ending = asyncio.get_running_loop().create_future()
        self._endings.add(ending)
        self._empty.clear()
        try:
            yield ending
        finally:
            self._endings.discard(ending)
            if not self._endings:
                self._empty.set()

    def stop(self) -> None:
        """Make every reply under way end, telling its client why."""
        for ending in self._endings:
            if not ending.done():
                ending.set_result(Busy("the server is shutting down"))

    async def emptied(self, timeout_s: float) -> bool:
        """Wait until no reply is under way; False when that took too long."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True


class Channel:
    """The way to one client: sending with a limit on stalls, and waiting that ends when the reply must."""

    def __init__(self, send: Send, ending: Ending, limits: Limits) -> None:
        self._send = send
        self._ending = ending
        self.limits = limits

    async def start(self, status: int, headers: dict[str, str]) -> None:
        """Send the status line and headers."""
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self._put({"type": "http.response.start", "status": status, "headers": raw})

    async def write(self, data: bytes, *, last: bool = False) -> None:
        """Send a piece of the body. Raises ClientGone when the client takes nothing for too long."""
        await self._put({"type": "http.response.body", "body": data, "more_body": not last})

    async def _put(self, message: dict[str, Any]) -> None:
        try:
            async with asyncio.timeout(self.limits.send_stall_s):
                await self._send(message)
        except TimeoutError:
            log.warning("dropped a client that took nothing for %g s", self.limits.send_stall_s)
            raise ClientGone from None

    async def settled(self, task: asyncio.Future[Any], timeout_s: float | None = None) -> bool:
        """Wait for `task`; False when time ran out. Raises the reply's ending once there is one."""
        await asyncio.wait({task, self._ending}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        # The ending goes first: an engine that always has the next part ready would outrun it for ever.
        if self._ending.done():
            raise self._ending.result()
        return task.done()

    async def run(self, work: Awaitable[T]) -> T:
        """The result of `work`, which is cancelled when the reply must end."""
        task = asyncio.ensure_future(work)
        try:
            await self.settled(task)
            return task.result()
        finally:
            await cancelled(task)


async def cancelled(task: asyncio.Future[Any]) -> None:
    """Cancel a task and wait until it is over; its outcome is left in it and counts as seen."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.exception()


class Reply(Response):
    """An HTTP response that asks the service itself, so that one place sees an answer from admission to its end.

    begin: starts the answer, once; with it go the request's data URLs, which nobody may keep while it waits.
    """

    def __init__(
        self,
        begin: Callable[[], Coroutine[Any, Any, Answer]],
        deliver: Callable[[Answer, Channel], Awaitable[None]],
        in_flight: InFlight,
        limits: Limits,
    ) -> None:
        super().__init__()
        self._begin: Callable[[], Coroutine[Any, Any, Answer]] | None = begin
        self._deliver = deliver
        self._in_flight = in_flight
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._in_flight.entered() as ending:
            channel = Channel(send, ending, self._limits)
            async with watched(receive, ending), aclosing(await self._admitted(channel)) as answer:
                await self._deliver(answer, channel)

    def _asked(self) -> Coroutine[Any, Any, Answer]:
        begin, self._begin = self._begin, None
        assert begin is not None, "a reply is sent once"
        return begin()

    async def _admitted(self, channel: Channel) -> Answer:
        task = asyncio.ensure_future(self._asked())
        try:
            await channel.settled(task)
        except BaseException:
            await cancelled(task)
            # Admission and the client's leaving can fall into the same moment.
            if not task.cancelled() and task.exception() is None:
                await task.result().aclose()
            raise
        return task.result()


@asynccontextmanager
async def watched(receive: Receive, ending: Ending) -> AsyncIterator[None]:
    """Inside, `ending` is set to ClientGone as soon as the client closes its connection."""
    watch = asyncio.create_task(_watch(receive, ending))
    try:
        yield
    finally:
        await cancelled(watch)


async def _watch(receive: Receive, ending: Ending) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    if not ending.done():
        ending.set_result(ClientGone())


class Collector(Protocol):
    """One API's words for a whole answer."""

    def add(self, part: Delta | ChoiceEnd) -> None: ...

    def document(self) -> dict[str, Any]: ...


async def whole(answer: Answer, channel: Channel, collector: Collector) -> None:
    """Deliver an answer as one JSON document, once it is complete."""
    await channel.run(_collect(answer, collector))
    body = json.dumps(collector.document(), ensure_ascii=False, separators=(",", ":")).encode()
    await channel.start(200, {"content-type": "application/json", "content-length": str(len(body))})
    await channel.write(body, last=True)


async def _collect(answer: Answer, collector: Collector) -> None:
    async for part in answer.parts():
        if not isinstance(part, Progress):
            collector.add(part)
