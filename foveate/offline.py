"""foveate without a server: open a model in this process, ask it about pictures, one by one, streamed or many at once.

Owns the way from plain Python (texts, paths, bytes) to the service and back, and the thread on which the service's
event loop runs. Promises that `close`, or leaving the `with` block, ends every thread and process that was started.
Refuses to know HTTP.
"""

from __future__ import annotations

import asyncio
import base64
import queue
import threading
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from foveate.core.chat import ChatRequest, ChoiceEnd, Form, ImageSource, TextDelta, ThoughtDelta, Wishes
from foveate.core.config import settings_from
from foveate.core.errors import InvalidRequest, RequestFailed
from foveate.core.values import Timings
from foveate.engine.build import open_engine
from foveate.service.service import Service

Content = str | Path | bytes | Sequence[str | Path | bytes]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ask:
    """One question: `content` is a text, or texts and pictures in their order; a `Path` or bytes are a picture.

    history: earlier turns as (role, content). wishes: see `Wishes`. schema: a JSON schema that the answer follows.
    template: variables of the chat template.
    """

    content: Content
    history: tuple[tuple[str, Content], ...] = ()
    wishes: Wishes = field(default_factory=Wishes)
    schema: Any = None
    template: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer: its text, what was thought before it, why it ended, and what it cost."""

    text: str
    thought: str
    reason: str
    prompt_tokens: int
    output_tokens: int
    timings: Timings


class Model:
    """A model opened in this process. Raises CheckpointError or ConfigError when it cannot be."""

    def __init__(self, model: str = "demo", **settings: Any) -> None:
        """`settings` are those of `foveate serve`, with underscores: max_concurrency=4, encoder_device="cpu".

        An encoder of its own runs in a thread here: a process would run the caller's script again. With
        encoder_worker="process" a script must keep its work under `if __name__ == "__main__":`.
        """
        if "encoder_device" in settings:  # as the flag may be called too
            settings["mmproj_device"] = settings.pop("encoder_device")
        if settings.get("mmproj_device", "auto") not in ("auto", "same"):
            settings.setdefault("encoder_worker", "thread")
        self._service = Service(open_engine(model, settings_from(settings)))
        # Busy is no answer here: of a batch, no more are queued than the queue holds, and the rest waits.
        self._gate = asyncio.Semaphore(self._service.engine.config.settings.queue_requests)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="foveate-offline", daemon=True)
        self._thread.start()

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the model; idempotent."""
        if self._thread.is_alive():
            self._run(self._service.aclose()).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def chat(self, content: Content, *, history: Iterable[tuple[str, Content]] = (), **wishes: Any) -> Reply:
        """Answer one question; `wishes` as in `Ask.wishes`, and `schema` and `template`. Raises InvalidRequest."""
        return self._run(self._reply(_ask(content, history, wishes))).result()

    def batch(self, asks: Iterable[Ask | Content]) -> list[Reply]:
        """Answer many questions together, in their order. Raises the first failure once all have ended."""
        wanted = [ask if isinstance(ask, Ask) else Ask(ask) for ask in asks]
        replies = [self._run(self._reply(ask)) for ask in wanted]
        for future in replies:
            future.exception()
        return [future.result() for future in replies]

    def stream(self, content: Content, *, history: Iterable[tuple[str, Content]] = (), **wishes: Any) -> Iterator[str]:
        """The text of one answer as it comes. Leaving the iteration early ends the answer."""
        pieces: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        ask = _ask(content, history, wishes)
        task = self._run(self._reply(ask, pieces.put))
        task.add_done_callback(lambda _: pieces.put(None))
        try:
            while (piece := pieces.get()) is not None:
                yield piece
            task.result()
        finally:
            task.cancel()

    def _run(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        if self._loop.is_closed():
            work.close()
            raise RequestFailed("the model is closed")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _reply(self, ask: Ask, tell: Any = lambda text: None) -> Reply:
        async with self._gate:
            answer = await self._service.chat(_request(ask))
        text, thought, end = "", "", None
        try:
            async for part in answer.parts():
                if isinstance(part, TextDelta) and part.text:
                    text += part.text
                    tell(part.text)
                elif isinstance(part, ThoughtDelta):
                    thought += part.text
                elif isinstance(part, ChoiceEnd):
                    end = part
        finally:
            await answer.aclose()
        assert end is not None, "an answer without an end"
        return Reply(text, thought, end.reason, answer.prompt_tokens, end.tokens, end.timings)


def _ask(content: Content, history: Iterable[tuple[str, Content]], wishes: dict[str, Any]) -> Ask:
    extra = {name: wishes.pop(name) for name in ("schema", "template") if name in wishes}
    known = set(Wishes.__dataclass_fields__) - {"n", "logprobs"}
    for name in wishes:
        if name not in known:
            raise InvalidRequest(f"unknown wish: {name}", name)
    return Ask(content, tuple(history), Wishes(**wishes), **extra)


# Each wish with its least and most value, as the HTTP APIs have them; True where the least itself is out.
_RANGES: tuple[tuple[str, type, int, int, bool], ...] = (
    ("temperature", float, 0, 2, False),
    ("top_p", float, 0, 1, True),
    ("top_k", int, -1, 2**31 - 1, False),
    ("min_p", float, 0, 1, False),
    ("frequency_penalty", float, -2, 2, False),
    ("presence_penalty", float, -2, 2, False),
    ("repetition_penalty", float, 0, 10, True),
    ("seed", int, -(2**63), 2**63 - 1, False),
    ("max_tokens", int, 1, 2**31 - 1, False),
    ("min_tokens", int, 0, 2**31 - 1, False),
)


def _check(wishes: Wishes) -> None:
    """Raise InvalidRequest for a wish that no HTTP client could make either, and for more answers than one."""
    for name, kind, least, most, beyond in _RANGES:
        value: Any = getattr(wishes, name)
        if value is None:
            continue
        sound = isinstance(value, (int, kind))
        if not sound or not least <= value <= most or (beyond and value == least):
            raise InvalidRequest(f"{name} is a number {'above' if beyond else 'from'} {least}, {most} at most", name)
    if isinstance(wishes.stop, str) or not all(isinstance(stop, str) and stop for stop in wishes.stop):
        raise InvalidRequest("stop is a sequence of texts that are not empty", "stop")
    if wishes.n != 1:
        raise InvalidRequest("a question has one answer here: ask it again for another", "n")


def _request(ask: Ask) -> ChatRequest:
    _check(ask.wishes)
    images: list[ImageSource] = []
    turns = (*ask.history, ("user", ask.content))
    messages = tuple({"role": role, "content": _parts(content, images)} for role, content in turns)
    form = None if ask.schema is None else Form("schema", ask.schema)
    return ChatRequest(messages, tuple(images), ask.wishes, ask.template, form=form)


def _parts(content: Content, images: list[ImageSource]) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    pieces: Sequence[Any] = [content] if isinstance(content, (Path, bytes)) else content
    if not isinstance(pieces, Sequence) or not all(isinstance(piece, (str, Path, bytes)) for piece in pieces):
        raise InvalidRequest("content is a text, a Path or bytes of a picture, or a sequence of these")
    parts: list[dict[str, Any]] = []
    for piece in pieces:
        if isinstance(piece, str):
            parts.append({"type": "text", "text": piece})
            continue
        data = piece if isinstance(piece, bytes) else _read(piece)
        parts.append({"type": "image", "image": len(images)})
        images.append(ImageSource("data:;base64," + base64.b64encode(data).decode(), f"image {len(images) + 1}"))
    return parts


def _read(path: Path) -> bytes:
    try:
        return path.expanduser().read_bytes()
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}", str(path)) from error
