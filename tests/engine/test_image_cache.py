"""Rows kept for pictures that are sent again: the same answer, no second encode, room for whoever needs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from foveate.core.errors import RequestFailed, StepFailed
from foveate.core.plan import StepPlan, StepResult
from foveate.service.service import Service
from tests.support.engines import answer_of, png, request, serving, settle
from tests.support.harness import tiny


@pytest.fixture(scope="module")
def folder() -> Path:
    return tiny("dense")[2]


def encoded(service: Service) -> int:
    """Images that had to be encoded so far."""
    gauges = service.stats().gauges
    return gauges.image_lookups - gauges.image_hits


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "sequential"])
async def test_a_picture_sent_again_is_not_encoded_again_and_the_answer_is_the_same(folder: Path, stream: bool) -> None:
    pictures = [png(k) for k in range(3)]
    async with serving(folder, encoder_stream=stream, image_cache=True) as service:
        first, _ = await answer_of(service, request("Compare.", *pictures))
        await settle(service.engine)
        assert encoded(service) == 3 and service.stats().gauges.image_rows_kept > 0
        again, end = await answer_of(service, request("Compare.", *pictures))
        longer, _ = await answer_of(service, request("Compare.", *pictures, png(9)))
        assert encoded(service) == 4, "only the new picture was encoded"
        assert end.timings.encode_s == 0 and all(image.encode_start_s is None for image in end.timings.images)
    async with serving(folder, encoder_stream=stream, image_cache=False) as service:
        assert (first, again) == (await answer_of(service, request("Compare.", *pictures)))[:1] * 2
        await settle(service.engine)
        assert longer == (await answer_of(service, request("Compare.", *pictures, png(9))))[0]
        await settle(service.engine)
        assert encoded(service) == 7 and service.stats().gauges.image_rows_kept == 0


async def test_kept_rows_make_room_for_pictures_that_are_needed(folder: Path) -> None:
    async with serving(folder, image_cache=True) as service:
        rows = (await answer_of(service, request("Look.", png(1))))[1].timings.images[0].rows
    async with serving(folder, image_rows=3 * rows, image_cache=True) as service:
        want = {k: (await answer_of(service, request("Look.", png(k))))[0] for k in range(5)}
        await settle(service.engine)
        assert service.stats().gauges.image_rows_kept == 3 * rows
        for k in (4, 0, 3, 1):  # kept, gone, kept or gone: all the same
            assert (await answer_of(service, request("Look.", png(k))))[0] == want[k]
        await settle(service.engine)
        assert service.stats().gauges.image_rows_kept == 3 * rows and encoded(service) < 9


async def test_rows_of_a_failed_step_are_not_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(folder, image_cache=True) as service:
        executor, right = service.engine.loop._executor, service.engine.loop._executor.execute

        def broken(plan: StepPlan) -> StepResult:
            raise RuntimeError("the rows are poisoned")

        monkeypatch.setattr(executor, "execute", broken)
        with pytest.raises((StepFailed, RequestFailed)):
            await answer_of(service, request("Look.", png(1)))
        monkeypatch.setattr(executor, "execute", right)
        await settle(service.engine)
        assert service.stats().gauges.image_rows_kept == 0
        await answer_of(service, request("Look.", png(1)))
        assert encoded(service) == 2


async def test_rows_of_requests_that_a_broken_turn_ended_are_not_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(folder, image_cache=True) as service:
        scheduler = service.engine.loop._scheduler

        def broken(*whatever: object) -> None:
            raise RuntimeError("a turn breaks")

        with monkeypatch.context() as broke:
            broke.setattr(scheduler, "commit", broken)
            with pytest.raises(RequestFailed):
                await answer_of(service, request("Look.", png(1)))
        await settle(service.engine)
        assert service.stats().gauges.image_rows_kept == 0
        await answer_of(service, request("Look.", png(1)))
        assert encoded(service) == 2
