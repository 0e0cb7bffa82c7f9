"""What the service shows of its requests while they run and after they ended."""

from __future__ import annotations

import asyncio

from foveate.core.chat import ChoiceEnd
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
