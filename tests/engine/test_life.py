"""What happens when something goes wrong or somebody leaves: one end each, nothing left, others unharmed."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from foveate.core.chat import ChatRequest, ImageSource, TextDelta
from foveate.core.errors import Busy, ContextLengthExceeded, EncodeFailed, InvalidImage, RequestFailed, StepFailed
from foveate.core.plan import StepPlan, StepResult
from tests.support.engines import answer_of, data_url, png, request, serving, settle
from tests.support.harness import tiny


@pytest.fixture(scope="module")
def folder() -> Path:
    return tiny("dense")[2]


@pytest.mark.parametrize(
    "place", [{"mmproj_device": "same"}, {}, {"encoder_worker": "process"}], ids=["same", "thread", "process"]
)
async def test_placements_give_the_same_answers(folder: Path, place: dict[str, Any]) -> None:
    asked = [request(f"question {i}", *(png(10 * i + k) for k in range(i % 4))) for i in range(6)]
    async with serving(folder, mmproj_device="same") as service:
        want = [await answer_of(service, one) for one in asked]
    async with serving(folder, **place) as service:
        got = await asyncio.gather(*(answer_of(service, one) for one in asked))
    assert [text for text, _ in got] == [text for text, _ in want]


async def test_streamed_and_sequential_give_the_same_answer(folder: Path) -> None:
    asked = request("Compare.", *(png(k) for k in range(16)))
    async with serving(folder) as service:
        streamed, _ = await answer_of(service, asked)
    async with serving(folder, encoder_stream=False) as service:
        sequential, _ = await answer_of(service, asked)
    assert streamed == sequential


async def test_the_account_adds_up(folder: Path) -> None:
    async with serving(folder) as service:
        _, end = await answer_of(service, request("Compare.", *(png(k) for k in range(4))))
    timings = end.timings
    assert len(timings.images) == 4 and timings.encode_s > 0 and timings.prefill_s > 0
    assert timings.hidden_s == pytest.approx(max(0.0, timings.encode_s - timings.waited_s))
    for image in timings.images:
        stamps = [image.decode_start_s, image.decode_end_s, image.encode_start_s, image.encode_end_s]
        assert None not in stamps and stamps == sorted(stamps) and stamps[0] >= 0
        assert image.encode_end_s <= image.prefill_end_s <= timings.first_token_s + 1e-6
    assert sum(i.encode_end_s - i.encode_start_s for i in timings.images) == pytest.approx(timings.encode_s)


class Failing:
    """An executor that fails at its n-th step."""

    def __init__(self, inner: Any, at: int, error: Exception) -> None:
        self._inner, self._at, self._error, self.rows = inner, at, error, inner.rows

    def execute(self, plan: StepPlan) -> StepResult:
        self._at -= 1
        if self._at == 0:
            raise self._error
        return self._inner.execute(plan)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


# Kinds and no instances: parameters live as long as the tests, and an error that was raised holds what its frames hold.
@pytest.mark.parametrize("error", [RuntimeError, StepFailed])
async def test_a_failed_step_fails_its_cohort_and_the_server_lives(folder: Path, error: type[Exception]) -> None:
    async with serving(folder) as service:
        known, _ = await answer_of(service, request("known good"))
        loop = service.engine.loop
        healthy = loop._executor
        loop._executor = Failing(healthy, 3, error("planted"))
        with pytest.raises(RequestFailed):
            await answer_of(service, request("doomed", png(1)))
        loop._executor = healthy
        assert (await answer_of(service, request("known good")))[0] == known
        assert service.health()["status"] == "ok"


async def test_one_failing_image_fails_one_request_of_eight(folder: Path) -> None:
    asked = [request(f"number {i}", png(20 + i)) for i in range(8)]
    async with serving(folder) as service:
        want = [(await answer_of(service, one))[0] for one in asked]
        tower = service.engine.loop._encoder.worker._tower
        good = tower.encode

        def encode(pixels: list[Any]) -> Any:
            if pixels[0].tobytes() == victim.tobytes():
                raise RuntimeError("planted")
            return good(pixels)

        victim = service._preparer._measure([png(23)], asked[3].images)[0].pixels()
        tower.encode = encode
        results = await asyncio.gather(*(answer_of(service, one) for one in asked), return_exceptions=True)
        tower.encode = good
        for number, (result, text) in enumerate(zip(results, want, strict=True)):
            if number == 3:
                assert isinstance(result, EncodeFailed)
            else:
                assert result[0] == text


async def test_a_truncated_picture_is_refused_before_the_answer_begins(folder: Path) -> None:
    async with serving(folder) as service:
        cut = png(1)[:-400]
        for pictures in ([cut], [png(2), cut], [png(2), png(3), cut, png(4)]):
            with pytest.raises(InvalidImage):
                await service.chat(request("look", *pictures))
        await settle(service.engine)


async def test_what_can_never_fit_is_refused_with_numbers(folder: Path) -> None:
    async with serving(folder, max_ctx=100) as service:
        with pytest.raises(ContextLengthExceeded, match=r"\d+ tokens, \d+ of them for images.*100"):
            await service.chat(request("look", *(png(k, 512, 512) for k in range(3))))
        with pytest.raises(ContextLengthExceeded, match="max_tokens"):
            await service.chat(request("hello", max_tokens=99))


async def test_a_full_queue_is_busy(folder: Path) -> None:
    async with serving(folder, max_concurrency=1, queue_requests=2) as service:
        asked = request("long", max_tokens=300)
        tasks = [asyncio.create_task(answer_of(service, asked)) for _ in range(8)]
        results = await asyncio.gather(*tasks, return_exceptions=True)
        refused = [r for r in results if isinstance(r, Busy)]
        assert refused and all(r.retry_after_s >= 1 for r in refused)
        texts = {r[0] for r in results if not isinstance(r, Exception)}
        assert len(texts) == 1 and len(refused) + sum(not isinstance(r, Exception) for r in results) == 8


def stages() -> Iterator[Any]:
    """When the client leaves: after so many parts of the answer, or before it began."""
    for name, parts in [("admitting", None), ("started", 0), ("first part", 1), ("decoding", 4)]:
        for pictures in (0, 1, 5):
            for choices in (1, 2):
                yield pytest.param(parts, pictures, choices, id=f"{name}-{pictures} images-n{choices}")


@pytest.mark.parametrize(("parts", "pictures", "choices"), list(stages()))
async def test_a_client_leaves(folder: Path, parts: int | None, pictures: int, choices: int) -> None:
    asked = request("story", *(png(40 + k) for k in range(pictures)), max_tokens=200, n=choices)
    async with serving(folder, max_concurrency=2) as service:
        other = asyncio.create_task(answer_of(service, request("other", png(99))))
        for _ in range(3):
            if parts is None:
                task = asyncio.create_task(service.chat(asked))
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            else:
                answer = await service.chat(asked)
                seen = 0
                async for part in answer.parts():
                    seen += isinstance(part, TextDelta)
                    if seen >= parts:
                        break
                await answer.aclose()
        await other
        await settle(service.engine)
        assert not service.open_answers


async def test_a_storm_of_cancels(folder: Path) -> None:
    """Two hundred requests, most of which leave at random moments; the rest get their own answers."""
    import random

    rng = random.Random(5)
    async with serving(folder, queue_requests=500) as service:
        want = {k: (await answer_of(service, request(f"stays {k}", png(200 + k))))[0] for k in range(4)}

        async def leave(number: int) -> None:
            asked = request(f"goes {number}", *(png(rng.randrange(8)) for _ in range(rng.randrange(3))), max_tokens=50)
            try:
                async with asyncio.timeout(rng.random() * 0.4):
                    await answer_of(service, asked)
            except TimeoutError:
                pass

        async def stay(k: int) -> str:
            return (await answer_of(service, request(f"stays {k}", png(200 + k))))[0]

        leaving = [asyncio.create_task(leave(i)) for i in range(200)]
        staying = [asyncio.create_task(stay(k % 4)) for k in range(12)]
        assert [await task for task in staying] == [want[k % 4] for k in range(12)]
        await asyncio.gather(*leaving)
        await settle(service.engine)


async def test_closing_under_load_ends_everybody(folder: Path) -> None:
    async with serving(folder) as service:
        tasks = [asyncio.create_task(answer_of(service, request("long", png(i), max_tokens=900))) for i in range(6)]
        await asyncio.sleep(0.1)
        await service.aclose()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(r, (RequestFailed, Busy)) for r in results), results
        with pytest.raises(Busy):
            await service.chat(request("too late"))


async def test_concurrent_requests_get_their_own_pictures(folder: Path) -> None:
    """Case B34: many requests at once, each with its own picture, give what each gives alone."""
    asked = [request("what?", png(300 + i, 64 + 32 * (i % 3), 64 + 32 * (i % 2))) for i in range(12)]
    async with serving(folder, max_concurrency=6) as service:
        want = [(await answer_of(service, one))[0] for one in asked]
        assert len(set(want)) > 6, "the tiny model does not tell these pictures apart"
        for _ in range(5):
            got = await asyncio.gather(*(answer_of(service, one) for one in asked))
            assert [text for text, _ in got] == want


async def test_an_image_of_an_unknown_kind_of_url_is_refused(folder: Path) -> None:
    async with serving(folder) as service:
        asked = request("x", png(1))
        for url in ("ftp://example.org/a.png", "/etc/passwd", "file:///etc/passwd", "data:image/png;base64,!!!"):
            bad = ChatRequest(asked.messages, (ImageSource(url, "p"),), asked.wishes)
            with pytest.raises(Exception) as caught:
                await service.chat(bad)
            assert caught.value.code.startswith("inv"), caught.value
        assert data_url(png(1)).startswith("data:image/png;base64," + base64.b64encode(png(1))[:8].decode())
