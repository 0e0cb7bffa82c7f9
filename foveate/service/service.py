"""Answers conversations with one engine: the whole product as one asynchronous call.

Owns the life of answers from admission to drain. Promises that a refused request never reached the engine and that an
abandoned one is aborted there. Refuses to know HTTP, files on disk and whoever asks.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from typing import Any

from foveate.core.chat import ChatRequest
from foveate.core.config import MIB
from foveate.core.errors import Busy
from foveate.core.observe import Counters, Gauges, Live, Snapshot
from foveate.core.values import Prompt
from foveate.engine.build import Engine
from foveate.prompt.markup import MARKS
from foveate.service.answer import Answer, Origin
from foveate.service.facts import facts_of
from foveate.service.live import Watch
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
        self._watch = Watch(engine.client)
        tokens = self._preparer.tokens
        # Control tokens never show, but the marks of thoughts and calls are read, whatever the checkpoint calls them.
        self._hidden = (tokens.special | engine.card.eos_ids) - {tokens.id_of(mark) for mark in MARKS}
        self._preparing, self._most_preparing = 0, config.settings.queue_requests + config.slots

    async def chat(self, request: ChatRequest) -> Answer:
        """Validate, queue and wait until the answer is under way.

        Raises InvalidRequest and its kinds for what the client got wrong, Busy when the queue is full or the server is
        shutting down, RequestFailed when the engine failed before the answer began.
        """
        if self.draining:
            raise Busy("the server is shutting down", retry_after_s=10)
        name, arrived_s = uuid.uuid4().hex, time.monotonic()
        with self._watch.preparing(name):
            prepared = await self._prepare(request)
        del request  # its data URLs are a third larger than the pictures, and a queue may be long
        tokens = self._preparer.tokens
        shown = Origin(name, time.monotonic() - arrived_s, tokens, self._hidden)
        answer = Answer(prepared, shown, self._counters)
        self._watch.enter(answer)
        try:
            await answer.begin(self.engine.client)
        except BaseException:
            await answer.aclose()
            raise
        return answer

    async def prompt(self, request: ChatRequest) -> Prompt:
        """The prompt that a request would have, pictures measured and laid out; nothing runs."""
        if self.draining:
            raise Busy("the server is shutting down", retry_after_s=10)
        return await self._preparer.prompt(request)

    def text(self, tokens: Sequence[int]) -> str:
        """The text of token ids, control tokens included."""
        return self._preparer.text(tokens)

    def facts(self) -> dict[str, Any]:
        """What is served and how, for people and programs that ask."""
        return facts_of(self.engine.config, self.engine.card) | {"template": self._preparer.template_facts()}

    async def _prepare(self, request: ChatRequest) -> Prepared:
        """As many as may queue and run are prepared at once: fetching and decoding base64 hold memory too."""
        if self._preparing >= self._most_preparing:
            busy = f"the server is busy: {self._preparing} requests are being prepared; try again later"
            raise Busy(busy, lack="queue_requests")
        self._preparing += 1
        try:
            return await self._preparer.prepare(request)
        finally:
            self._preparing -= 1

    async def drain(self, grace_s: float) -> None:
        """Take no new requests; give the running ones `grace_s` seconds, then abort them."""
        self.draining = True
        deadline_s = time.monotonic() + grace_s
        while self._watch.answers and time.monotonic() < deadline_s:
            await asyncio.sleep(0.02)
        for answer in self._watch.answers:
            await answer.aclose()

    async def aclose(self) -> None:
        """End the engine; afterwards no thread or process of it is left."""
        self.draining = True
        await asyncio.to_thread(self.engine.close)

    @property
    def open_answers(self) -> int:
        return len(self._watch.answers)

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
        return self._counters.snapshot(self._gauges())

    async def live(self) -> Live:
        """The requests under way and the last ones that ended; waits a quarter of a second at most."""
        return await self._watch.look(self._gauges())

    def _gauges(self) -> Gauges:
        stats, config = self.engine.loop.stats(), self.engine.config
        return Gauges(
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
            image_rows_kept=stats.kept_rows,
            image_lookups=stats.image_lookups,
            image_hits=stats.image_hits,
        )
