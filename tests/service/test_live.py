"""What the service shows of its requests while they run and after they ended."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from foveate.core.chat import ChoiceEnd
from foveate.core.errors import EncodeFailed
from foveate.core.observe import STATES, Live
from foveate.service.service import Service
from tests.support.engines import png, request, serving
from tests.support.harness import tiny


async def see(service: Service, seen: list[Live]) -> None:
    while True:
        seen.append(await service.live())
        await asyncio.sleep(0)


async def test_a_request_is_seen_on_its_way_and_after_its_end() -> None:
    async with serving(tiny("dense")[2]) as service:
        assert (await service.live()).requests == ()
        seen: list[Live] = []
        watcher = asyncio.create_task(see(service, seen))
        answer = await service.chat(request("hi", png(1), png(2), max_tokens=40, n=2))
        ends = [part async for part in answer.parts() if isinstance(part, ChoiceEnd)]
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)
        states = [view.state for look in seen for view in look.requests]
        assert set(states) <= set(STATES) and "prepare" in states and "generate" in states
        ranks = [STATES.index(state) for state in states if state in ("prepare", "generate")]
        assert ranks == sorted(ranks)
        (last,) = (await service.live()).recent
        assert (last.id, last.state, last.output_tokens) == (answer.id, "length", 80)
        assert last.timings == next(end.timings for end in ends if end.choice == 0)
        assert last.prepare_s > 0 and last.elapsed_s >= last.timings.first_token_s
        for image in last.timings.images:
            assert image.fetch_start_s is not None and image.fetch_end_s is not None
            assert -last.prepare_s <= image.fetch_start_s <= image.fetch_end_s <= 0.0


async def test_what_is_given_up_ends_as_aborted() -> None:
    async with serving(tiny("dense")[2]) as service:
        answer = await service.chat(request("hi", max_tokens=900))
        (running,) = (await service.live()).requests
        assert running.id == answer.id and running.state in ("queued", "prefill", "generate")
        await answer.aclose()
        live = await service.live()
        assert live.requests == () and [view.state for view in live.recent] == ["abort"]


async def until(service: Service, holds: Callable[[Live], bool]) -> Live:
    """Look until something holds. Fails after a time that no healthy run needs."""
    async with asyncio.timeout(30):
        while not holds(seen := await service.live()):
            await asyncio.sleep(0.002)
    return seen


def under_way(seen: Live) -> list[int]:
    """Which images of the one request are being encoded."""
    images = seen.requests[0].timings.images if seen.requests else ()
    return [n for n, one in enumerate(images) if one.encode_start_s is not None and one.encode_end_s is None]


async def test_an_encode_is_seen_from_its_start() -> None:
    async with serving(tiny("dense")[2]) as service:
        tower = service.engine.loop._encoder.worker._tower
        plain, gates = tower.encode, [threading.Event(), threading.Event()]
        waiting = iter(gates)

        def encode(pixels: Any) -> Any:
            assert next(waiting).wait(30)
            return plain(pixels)

        tower.encode = encode
        answer = await service.chat(request("hi", png(1), png(2)))
        for image, gate in enumerate(gates):
            seen = await until(service, lambda live, image=image: under_way(live) == [image])
            (view,) = seen.requests
            start_s = view.timings.images[image].encode_start_s
            assert start_s is not None and 0 <= start_s <= view.elapsed_s and view.timings.encode_s >= 0
            gate.set()
        ends = [part async for part in answer.parts() if isinstance(part, ChoiceEnd)]
        assert all(one.encode_start_s < one.encode_end_s for one in ends[0].timings.images)
        tower.encode = plain


async def test_an_encode_in_another_process_is_seen_from_its_start() -> None:
    faults = {"inject_fault": "encode-hang:2", "encode_timeout_s": 3.0}
    async with serving(tiny("dense")[2], encoder_worker="process", **faults) as service:
        answer = await service.chat(request("hi", png(1), png(2)))
        await until(service, lambda live: under_way(live) == [1])  # it hangs there until its process is ended
        with pytest.raises(EncodeFailed):
            [part async for part in answer.parts()]


async def test_pauses_between_tokens_are_counted() -> None:
    async with serving(tiny("dense")[2], draft="none") as service:
        before = service.stats().spreads["token_gap_s"].count
        answer = await service.chat(request("hi", max_tokens=12, n=2))
        assert [part async for part in answer.parts()]
        gaps = service.stats().spreads["token_gap_s"]
        assert gaps.count - before == 2 * 11 and gaps.total > 0, "between two tokens, and none before the first"
