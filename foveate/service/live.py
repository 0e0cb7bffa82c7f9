"""What is going on: the requests under way, and the last ones that ended.

Owns the list that people watch while the server works. Joins what only the service knows of a request (its id, what
it cost to prepare) with the engine's look at it. Promises that looking never waits long for the engine: while one step
takes longer, the last look is shown again. Refuses to know HTTP and who watches.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from foveate.core.observe import Gauges, Live, RequestView
from foveate.engine.client import EngineClient
from foveate.service.answer import Answer

KEPT = 50
LOOK_S = 0.25


class Watch:
    """The requests of one service."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._preparing: dict[str, float] = {}
        self._answers: dict[str, Answer] = {}
        self._seen: dict[int, RequestView] = {}
        self._recent: deque[RequestView] = deque(maxlen=KEPT)

    @property
    def answers(self) -> tuple[Answer, ...]:
        return tuple(self._answers.values())

    @contextmanager
    def preparing(self, name: str) -> Iterator[None]:
        """Show the request `name` as being prepared."""
        self._preparing[name] = time.monotonic()
        try:
            yield
        finally:
            del self._preparing[name]

    def enter(self, answer: Answer) -> None:
        """Show an answer until it is closed, and then how it ended."""
        self._answers[answer.id] = answer
        answer.on_close.append(self._leave)

    def _leave(self, answer: Answer) -> None:
        del self._answers[answer.id]
        self._recent.appendleft(answer.view({}, time.monotonic()))

    async def look(self, gauges: Gauges) -> Live:
        """Everything at this moment, oldest request first."""
        self._seen = await self._client.look(LOOK_S) or (self._seen if self._answers else {})
        now = time.monotonic()
        answers = tuple(answer.view(self._seen, now) for answer in self._answers.values())
        preparing = tuple(
            RequestView(name, "prepare", 0, 0, now - since_s, now - since_s)
            for name, since_s in self._preparing.items()
        )
        return Live(gauges, answers + preparing, tuple(self._recent))
