"""Answers conversations with one engine: the whole product as one asynchronous call.

Owns the life of answers from admission to drain. Promises that a refused request never reached the engine and that an
abandoned one is aborted there. Refuses to know HTTP, files on disk and whoever asks.
"""

from __future__ import annotations

import asyncio
import time

from foveate.core.chat import ChatRequest
from foveate.core.config import MIB
from foveate.core.errors import Busy
from foveate.core.observe import Counters, Gauges, Snapshot
from foveate.engine.build import Engine
from foveate.service.answer import Answer
from foveate.service.memory import HostMemory
from foveate.service.prepare import Prepared, Preparer


class Service:
    """One engine with its templates and limits. `draining` set to True makes it refuse new requests with Busy."""

    def __init__(self, engine: Engine, counters: Counters | None = None, memory: HostMemory | None = None) -> None:
        """`memory` stands in for the machine's own in tests."""
        self.engine, config = engine, engine.config
        memory = memory or HostMemory(config.settings.min_free_mib * MIB)
        self._counters = counters or Counters()
        self.name, self.created, self.max_ctx = config.name, int(time.time()), config.max_ctx
        self.has_vision = engine.card.image_rules is not None
        self.draining = False
        self._preparer = Preparer(engine.folder, engine.card, config, memory)
        self._open: set[Answer] = set()
        self._preparing, self._most_preparing = 0, config.settings.queue_requests + config.slots

    async def chat(self, request: ChatRequest) -> Answer:
        """Validate, queue and wait until the answer is under way.

        Raises InvalidRequest and its kinds for what the client got wrong, Busy when the queue is full or the server is
        shutting down, RequestFailed when the engine failed before the answer began.
        """
        if self.draining:
            raise Busy("the server is shutting down", retry_after_s=10)
        prepared = await self._prepare(request)
        del request  # its data URLs are a third larger than the pictures, and a queue may be long
        tokens = self._preparer.tokens
        answer = Answer(prepared, tokens, tokens.special | self.engine.card.eos_ids, self._counters)
        self._open.add(answer)
        answer.on_close.append(self._open.discard)
        try:
            await answer.begin(self.engine.client)
        except BaseException:
            await answer.aclose()
            raise
        return answer

    async def _prepare(self, request: ChatRequest) -> Prepared:
        """As many as may queue and run are prepared at once: fetching and decoding base64 hold memory too."""
        if self._preparing >= self._most_preparing:
            raise Busy(f"the server is busy: {self._preparing} requests are being prepared; try again later")
        self._preparing += 1
        try:
            return await self._preparer.prepare(request)
        finally:
            self._preparing -= 1

    async def drain(self, grace_s: float) -> None:
        """Take no new requests; give the running ones `grace_s` seconds, then abort them."""
        self.draining = True
        deadline_s = time.monotonic() + grace_s
        while self._open and time.monotonic() < deadline_s:
            await asyncio.sleep(0.02)
        for answer in tuple(self._open):
            await answer.aclose()

    async def aclose(self) -> None:
        """End the engine; afterwards no thread or process of it is left."""
        self.draining = True
        await asyncio.to_thread(self.engine.close)

    @property
    def open_answers(self) -> int:
        return len(self._open)

    def health(self) -> dict[str, object]:
        """Whether the engine lives and takes requests, with the numbers a probe wants."""
        loop = self.engine.loop
        stats, status = loop.stats(), "ok"
        if self.draining:
            status = "stopping"
        elif not loop.alive:
            status = "failed"
        elif loop.encoder_hung:
            status = "encoder hung"
        return {"status": status, "model": self.name, "running": stats.running, "waiting": stats.waiting}

    def stats(self) -> Snapshot:
        """The engine's gauges at this moment and everything counted so far."""
        stats, config = self.engine.loop.stats(), self.engine.config
        gauges = Gauges(
            running=stats.running,
            waiting=stats.waiting,
            waiting_image_rows=stats.waiting_image_rows,
            pages=config.pages,
            pages_used=stats.leased_pages,
            slots=config.slots,
            slots_used=stats.leased_slots,
            image_rows=config.image_rows,
            image_rows_used=stats.landed_rows,
            images_encoding=stats.encoding_images,
        )
        return self._counters.snapshot(gauges)
