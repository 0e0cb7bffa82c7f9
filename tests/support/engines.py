"""Real engines and services on tiny models, for tests of life and death.

Owns opening and closing them, and the checks that nothing is left: every page, slot, row, thread and process.
"""

from __future__ import annotations

import asyncio
import base64
import io
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from foveate.core.chat import ChatRequest, ChoiceEnd, ImageSource, TextDelta, Wishes
from foveate.core.config import Settings
from foveate.engine.build import Engine, open_engine
from foveate.service.service import Service

DEFAULTS: dict[str, Any] = {
    "mmproj_device": "cpu",
    "encoder_worker": "thread",
    "threads": 2,
    "max_ctx": 2048,
    "kv_tokens": 4096,
    "page_len": 16,
    "max_concurrency": 4,
    "image_cache": False,  # most tests hold encodes back, and send the same pictures again and again
}


def wished(**settings: Any) -> Settings:
    """The defaults of tests under these settings; an encoder that works in turn has no worker of its own."""
    wishes = DEFAULTS | settings
    if wishes["mmproj_device"] == "same" and "encoder_worker" not in settings:
        del wishes["encoder_worker"]
    return Settings(**wishes)


def png(seed: int, width: int = 96, height: int = 64) -> bytes:
    """A random picture; different seeds, different pictures."""
    pixels = np.random.RandomState(seed).randint(0, 256, (height, width, 3)).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def data_url(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def request(text: str, *pictures: bytes, **wishes: Any) -> ChatRequest:
    """One user turn: the pictures, then the text. Greedy and ten tokens long unless told otherwise."""
    parts: list[dict[str, Any]] = [{"type": "image", "image": i} for i in range(len(pictures))]
    parts.append({"type": "text", "text": text})
    images = tuple(ImageSource(data_url(data), f"messages[0].content[{i}]") for i, data in enumerate(pictures))
    wishes = {"temperature": 0.0, "max_tokens": 10, "ignore_eos": True} | wishes
    return ChatRequest(({"role": "user", "content": parts},), images, Wishes(**wishes))


async def answer_of(service: Service, asked: ChatRequest) -> tuple[str, ChoiceEnd]:
    """The whole text and the end of choice 0."""
    text, end = "", None
    answer = await service.chat(asked)
    async for part in answer.parts():
        if isinstance(part, TextDelta) and part.choice == 0:
            text += part.text
        elif isinstance(part, ChoiceEnd) and part.choice == 0:
            end = part
    assert end is not None
    return text, end


def assert_baseline(engine: Engine) -> None:
    """Every page and slot is free, no image is held but what is kept for requests to come, nobody is known."""
    scheduler = engine.loop._scheduler
    assert not scheduler.busy and len(engine.loop._ledger) == 0
    scheduler.assert_whole()
    stats, rows = scheduler.stats(), engine.loop._executor.rows
    assert (len(rows), rows.count) == (stats.kept_images, stats.kept_rows), "image rows are left"
    assert stats.kept_rows <= engine.config.image_rows, "more rows are kept than there may be"
    encoder = engine.loop._encoder
    assert encoder is None or (not encoder._shelf.pictures and encoder._shelf.kept_bytes == 0), "pictures are left"


def fault_in_rest(engine: Engine) -> str | None:
    """What keeps the engine from being at its baseline at this moment; None if nothing does."""
    loop = engine.loop
    if loop._scheduler.busy or not loop._resting or not loop._mailbox.empty():
        return f"the engine does not come to rest: {loop.stats()}"
    try:
        assert_baseline(engine)
    except AssertionError as fault:  # between its plan and what follows from it, the loop is not at rest
        return str(fault)
    return None


async def settle(engine: Engine) -> None:
    """Wait until the engine is at its baseline. Fails after a minute."""
    for _ in range(12000):
        if (fault := fault_in_rest(engine)) is None:
            return
        await asyncio.sleep(0.005)
    raise AssertionError(fault)


@asynccontextmanager
async def serving(folder: Path, **settings: Any) -> AsyncIterator[Service]:
    """A service on a checkpoint folder; at the end it must be at its baseline and leave no thread behind."""
    before = set(threading.enumerate())
    service = Service(open_engine(str(folder), wished(**settings)))
    try:
        yield service
        await settle(service.engine)
    finally:
        await service.aclose()
    left = [t.name for t in set(threading.enumerate()) - before if t.name.startswith("foveate")]
    assert not left, f"threads left: {left}"
