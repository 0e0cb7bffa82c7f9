"""Requests of a benchmark, put to an engine in this process or to any OpenAI-compatible server, told the same way.

Owns the two ways and what is noted of an answer: when each piece of it came, how many tokens it had, and foveate's own
timings where they are to be had. Refuses to know what is measured with it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import httpx

from foveate.bench.charts import data_url
from foveate.core.chat import ChatRequest, ChoiceEnd, Delta, ImageSource, Wishes
from foveate.core.errors import RequestFailed
from foveate.service.service import Service

PATIENCE_S = 600.0


@dataclass(frozen=True, slots=True)
class Question:
    """A text behind pictures; the answer is greedy, of exactly so many tokens, or at most so many where it may end."""

    text: str
    pictures: tuple[bytes, ...] = ()
    tokens: int = 1
    may_end: bool = False


@dataclass(slots=True)
class Shot:
    """One answer. `stamps` are when its pieces came, on time.monotonic; a piece is a token unless a server joins some.

    timings: foveate's own, by name, empty from other servers. error: why there is no answer.
    """

    began_s: float
    stamps: list[float] = field(default_factory=list)
    ended_s: float = 0.0
    tokens: int = 0
    prompt_tokens: int = 0
    text: str = ""
    timings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def first_token_s(self) -> float:
        """From sending the request to the first piece of its answer."""
        return self.stamps[0] - self.began_s

    @property
    def gaps(self) -> list[float]:
        """Seconds between pieces."""
        return [later - earlier for earlier, later in zip(self.stamps, self.stamps[1:], strict=False)]


Hear = Callable[[Shot], None]


class Target(Protocol):
    """Whoever answers."""

    name: str

    async def ask(self, question: Question, hear: Hear | None = None) -> Shot:
        """One answer; `hear` is told at each piece. Raises RequestFailed when there is none."""
        ...

    async def aclose(self) -> None: ...


class Offline:
    """An engine in this process, which it owns."""

    def __init__(self, service: Service) -> None:
        self.service, self.name = service, service.name

    async def ask(self, question: Question, hear: Hear | None = None) -> Shot:
        images = tuple(ImageSource(data_url(png), "bench") for png in question.pictures)
        parts: list[dict[str, Any]] = [{"type": "image", "image": i} for i in range(len(images))]
        parts.append({"type": "text", "text": question.text})
        wishes = Wishes(temperature=0, max_tokens=question.tokens, ignore_eos=not question.may_end)
        shot = Shot(time.monotonic())
        answer = await self.service.chat(ChatRequest(({"role": "user", "content": parts},), images, wishes))
        shot.prompt_tokens = answer.prompt_tokens
        async for part in answer.parts():
            if isinstance(part, ChoiceEnd):
                shot.tokens, shot.timings = part.tokens, asdict(part.timings)
            elif isinstance(part, Delta) and part.tokens:
                shot.stamps.append(time.monotonic())
                shot.text += getattr(part, "text", "")
                if hear is not None:
                    hear(shot)
        shot.ended_s = time.monotonic()
        return shot

    async def aclose(self) -> None:
        await self.service.aclose()


class Server:
    """A running server of any make."""

    def __init__(self, url: str, model: str, key: str = "") -> None:
        self._root, self.name = url.rstrip("/").removesuffix("/v1"), model
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        limits = httpx.Limits(max_connections=None)
        self._client = httpx.AsyncClient(timeout=PATIENCE_S, headers=headers, limits=limits)

    async def find_model(self) -> None:
        """Ask for the first model that it serves. Raises RequestFailed when there is no such server."""
        try:
            reply = await self._client.get(f"{self._root}/v1/models")
            reply.raise_for_status()
            self.name = reply.json()["data"][0]["id"]
        except (httpx.HTTPError, ValueError, LookupError) as error:
            raise RequestFailed(f"no server that lists its models at {self._root}: {error}") from error

    async def ask(self, question: Question, hear: Hear | None = None) -> Shot:
        shot, body = Shot(time.monotonic()), self._body(question)
        try:
            async with self._client.stream("POST", f"{self._root}/v1/chat/completions", json=body) as reply:
                if reply.status_code != 200:
                    raise RequestFailed(f"{reply.status_code}: {(await reply.aread())[:300]!r}")
                async for line in reply.aiter_lines():
                    if line.startswith("data:") and line != "data: [DONE]":
                        self._take(shot, json.loads(line[5:]), hear)
        except httpx.HTTPError as error:
            raise RequestFailed(f"the server broke off: {type(error).__name__} {error}") from error
        shot.ended_s = time.monotonic()
        if not shot.stamps:  # what came had no text in it, and the server left it out
            shot.stamps.append(shot.ended_s)
        return shot

    def _body(self, question: Question) -> dict[str, Any]:
        content: list[dict[str, Any]] = [
            {"type": "image_url", "image_url": {"url": data_url(png)}} for png in question.pictures
        ]
        return {
            "model": self.name,
            "messages": [{"role": "user", "content": [*content, {"type": "text", "text": question.text}]}],
            "max_tokens": question.tokens,
            "temperature": 0,
            "ignore_eos": not question.may_end,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def _take(self, shot: Shot, chunk: Mapping[str, Any], hear: Hear | None) -> None:
        if "error" in chunk:
            raise RequestFailed(str(chunk["error"])[:300])
        if usage := chunk.get("usage"):
            shot.tokens, shot.prompt_tokens = usage["completion_tokens"], usage["prompt_tokens"]
        if timings := chunk.get("timings"):
            shot.timings = timings
        for choice in chunk.get("choices", ()):
            delta = choice.get("delta") or {}
            # The first chunk of a stream tells the role and comes before any token.
            if "role" in delta and not delta.get("content"):
                continue
            if choice.get("finish_reason") and not delta:
                continue
            shot.stamps.append(time.monotonic())
            shot.text += delta.get("content") or ""
            if hear is not None:
                hear(shot)

    async def aclose(self) -> None:
        await self._client.aclose()


async def together(target: Target, questions: Sequence[Question]) -> list[Shot]:
    """All questions at once."""
    import asyncio

    return list(await asyncio.gather(*(target.ask(question) for question in questions)))
