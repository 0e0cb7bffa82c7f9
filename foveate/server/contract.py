"""What the server needs from the rest of foveate, and the limits it works under.

Owns the two protocols that any service behind the HTTP surface fulfils (the real one, or a scripted one in tests), and
`Limits`, the server's own numbers. Promises nothing about prompts, engines or models and refuses to know them: a
`ChatRequest` goes in, `AnswerPart`s come out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from foveate.core.chat import AnswerPart, ChatRequest
from foveate.core.config import MIB, Settings
from foveate.core.observe import Live, Snapshot
from foveate.core.values import Prompt


class Answer(Protocol):
    """An answer under way: the request has a slot and its pictures are decoded."""

    id: str
    prompt_tokens: int
    image_tokens: int
    images: int

    def parts(self) -> AsyncIterator[AnswerPart]:
        """The answer's pieces, once; each choice ends with one `ChoiceEnd`. Raises a FoveateError when it fails."""
        ...

    async def aclose(self) -> None:
        """Abort whatever still runs; without effect on an answer that is complete or closed."""
        ...


class Service(Protocol):
    """The whole product as one call. `draining` set to True makes it refuse new requests with `Busy`."""

    name: str
    created: int
    max_ctx: int
    has_vision: bool
    draining: bool

    async def chat(self, request: ChatRequest) -> Answer:
        """Validate, queue and start a request; returns once it has its slot and every picture is decoded.

        Raises InvalidRequest and its kind, or Busy, before that. Cancelling the call takes the request out of the
        queue.
        """
        ...

    async def prompt(self, request: ChatRequest) -> Prompt:
        """The prompt that a request would have; raises InvalidRequest and its kind. Nothing runs."""
        ...

    def text(self, tokens: Sequence[int]) -> str:
        """The text of token ids. Raises InvalidRequest for an id that the model does not have."""
        ...

    def facts(self) -> dict[str, Any]:
        """What is served and how: JSON-ready; never waits for the engine."""
        ...

    def health(self) -> dict[str, Any]:
        """`status` ('ok' when requests can be served) and a few numbers; never waits for the engine."""
        ...

    def stats(self) -> Snapshot:
        """Gauges and counts for the metrics; never waits for the engine."""
        ...

    async def live(self) -> Live:
        """What is going on at this moment; waits for the engine a fraction of a second at most."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """The server's own numbers.

    body_bytes: largest request body. held_bytes: bodies being read at one time, together. json_depth, json_values:
    nesting and number of values in a body. read_stall_s: pause while a body is read. body_s: time for a whole body.
    send_stall_s: pause of a reader who does not take what is sent. keep_alive_s: silence on a stream before a comment
    is sent.
    """

    body_bytes: int = 100 * MIB
    held_bytes: int = 1024 * MIB
    json_depth: int = 64
    json_values: int = 300_000
    read_stall_s: float = 30.0
    body_s: float = 600.0
    send_stall_s: float = 30.0
    keep_alive_s: float = 15.0


def limits_from(settings: Settings) -> Limits:
    """The limits that the settings ask for."""
    return Limits(
        body_bytes=settings.max_body_mib * MIB,
        held_bytes=max(settings.queue_mib, settings.max_body_mib) * MIB,
        json_depth=settings.max_json_depth,
        read_stall_s=settings.read_stall_s,
        body_s=settings.body_s,
        send_stall_s=settings.send_stall_s,
    )
