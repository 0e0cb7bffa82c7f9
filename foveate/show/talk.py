"""Conversations at a terminal: one question with pictures, or a dialogue.

Owns what is printed while an answer streams, and the timeline after it. Works on a service in this process; refuses to
know engines and HTTP.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from foveate.core.chat import ChatRequest, ChoiceEnd, ImageSource, TextDelta, Wishes
from foveate.core.errors import FoveateError
from foveate.core.values import Timings
from foveate.evals import charts
from foveate.show.timeline import timeline


class Answers(Protocol):
    """The part of a service that a conversation needs."""

    async def chat(self, request: ChatRequest) -> Any: ...

    async def aclose(self) -> None: ...


def picture_source(path: Path) -> ImageSource:
    """A file as a data URL; the bytes decide the format, so the type says nothing."""
    return ImageSource("data:;base64," + base64.b64encode(path.read_bytes()).decode(), str(path))


def user_turn(text: str, first_image: int, count: int) -> dict[str, Any]:
    """A user message with `count` images, numbered from `first_image`, before the text."""
    parts: list[dict[str, Any]] = [{"type": "image", "image": first_image + i} for i in range(count)]
    return {"role": "user", "content": [*parts, {"type": "text", "text": text}]}


async def stream(service: Answers, request: ChatRequest, console: Console) -> tuple[str, Timings]:
    """Print an answer as it comes; the whole text and its timings."""
    text, timings = "", Timings()
    answer = await service.chat(request)
    async for part in answer.parts():
        if isinstance(part, TextDelta):
            text += part.text
            console.print(part.text, end="", markup=False, highlight=False, soft_wrap=True)
        elif isinstance(part, ChoiceEnd):
            timings = part.timings
    console.print()
    return text, timings


async def whole(service: Answers, question: str, images: Sequence[Path]) -> str:
    """The whole answer to one question with pictures before it, greedy."""
    sources = tuple(picture_source(path) for path in images)
    wishes = Wishes(temperature=0.0, max_tokens=320)
    answer = await service.chat(ChatRequest((user_turn(question, 0, len(sources)),), sources, wishes))
    return "".join([part.text async for part in answer.parts() if isinstance(part, TextDelta)])


def evaluate(plan: charts.Plan, url: str, model: str, open_service: Callable[[], Answers]) -> charts.Report:
    """Run a set of questions against a server at `url`, or against a service opened (and ended) here."""
    if url:
        return asyncio.run(charts.run(plan, charts.http_ask(url, model)))
    service = open_service()

    async def ask() -> charts.Report:
        try:
            return await charts.run(plan, lambda question, images: whole(service, question, images))
        finally:
            await service.aclose()

    return asyncio.run(ask())


def ask_once(service: Answers, question: str, images: list[Path], max_tokens: int, temperature: float) -> None:
    """One question, its answer, its timeline; ends the service."""
    console = Console()
    wishes = Wishes(temperature=temperature, max_tokens=max_tokens)
    sources = tuple(picture_source(path) for path in images)
    request = ChatRequest((user_turn(question, 0, len(sources)),), sources, wishes)

    async def run() -> Timings:
        try:
            return (await stream(service, request, console))[1]
        finally:
            await service.aclose()

    console.print(timeline(asdict(asyncio.run(run()))))


def converse(service: Answers, max_tokens: int, temperature: float) -> None:
    """A dialogue until end of input or /quit; ends the service."""
    console = Console()
    console.print("[dim]/image PATH adds a picture to the next message, /new starts over, /quit ends[/dim]")
    blank = ChatRequest((), (), Wishes(temperature=temperature, max_tokens=max_tokens))
    request, fresh = blank, 0
    # Lines are read between runs of the loop, on the main thread: a thread that reads would outlive an interrupt.
    with asyncio.Runner() as runner:
        try:
            while (line := _read(console)) is not None:
                if line == "/new":
                    request, fresh = blank, 0
                elif line.startswith("/image "):
                    request, fresh = _with_picture(request, fresh, Path(line.removeprefix("/image ").strip()), console)
                elif line.strip():
                    request, fresh = runner.run(_exchange(service, request, line, fresh, console)), 0
        finally:
            runner.run(service.aclose())


def _read(console: Console) -> str | None:
    try:
        line = console.input("[bold]you[/bold] ")
    except EOFError:
        return None
    return None if line.strip() == "/quit" else line


def _with_picture(request: ChatRequest, fresh: int, path: Path, console: Console) -> tuple[ChatRequest, int]:
    try:
        source = picture_source(path.expanduser())
    except OSError as error:
        console.print(f"{path} cannot be read: {str(error.strerror).lower()}", style="red", markup=False)
        return request, fresh
    return replace(request, images=(*request.images, source)), fresh + 1


async def _exchange(service: Answers, before: ChatRequest, line: str, fresh: int, console: Console) -> ChatRequest:
    """Send a turn, the last `fresh` pictures with it; the conversation with its answer, or without it when refused."""
    earlier = len(before.images) - fresh
    asked = replace(before, messages=(*before.messages, user_turn(line, earlier, fresh)))
    try:
        text, _ = await stream(service, asked, console)
    except FoveateError as error:
        console.print(error.message, style="red", markup=False)
        return replace(before, images=before.images[:earlier])
    return replace(asked, messages=(*asked.messages, {"role": "assistant", "content": text}))
