"""A whole engine on a DeepSeek V4 that sees: placements, sixteen images, failures and leaving, streams and calls."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from foveate.core.chat import CallDelta, ChatRequest, ChoiceEnd, TextDelta, ThoughtDelta, Tools, Wishes
from foveate.core.errors import ContextLengthExceeded, EncodeFailed, InvalidImage
from foveate.core.images import BlockRules
from tests.support.engines import answer_of, png, request, serving, settle
from tests.support.harness import tiny


@pytest.fixture(scope="module")
def folder() -> Path:
    return tiny("v4_vision")[2]


def picture(seed: int) -> bytes:
    """Pictures of different shapes."""
    return png(seed, 40 + 17 * (seed % 5), 40 + 23 * (seed % 3))


@pytest.mark.parametrize(
    "place", [{"mmproj_device": "same"}, {}, {"encoder_worker": "process"}], ids=["same", "thread", "process"]
)
async def test_placements_give_the_same_answers(folder: Path, place: dict[str, Any]) -> None:
    asked = [request(f"question {i}", *(picture(10 * i + k) for k in range(i % 4))) for i in range(6)]
    async with serving(folder, mmproj_device="same", max_concurrency=1) as service:
        want = [(await answer_of(service, one))[0] for one in asked]
    async with serving(folder, **place) as service:
        got = await asyncio.gather(*(answer_of(service, one) for one in asked))
    assert [text for text, _ in got] == want


async def test_sixteen_images_streamed_and_sequential_and_under_pressure(folder: Path) -> None:
    asked = request("Compare.", *(picture(k) for k in range(16)))
    async with serving(folder) as service:
        streamed, end = await answer_of(service, asked)
    assert len(end.timings.images) == 16 and all(image.encode_end_s is not None for image in end.timings.images)
    async with serving(folder, encoder_stream=False) as service:
        assert (await answer_of(service, asked))[0] == streamed
    async with serving(folder, kv_tokens=1024, max_ctx=1024, image_rows=100) as service:
        others = [request(f"other {i}", picture(50 + i), max_tokens=60) for i in range(4)]
        answers = await asyncio.gather(*(answer_of(service, one) for one in (asked, *others)))
    assert answers[0][0] == streamed


async def test_six_requests_on_four_slots_encode_each_picture_once(folder: Path) -> None:
    asked = [request(f"which {i}", picture(3), picture(30 + i)) for i in range(6)]
    async with serving(folder) as service:
        tower = service.engine.loop._encoder.worker._tower
        good, count = tower.encode, list[int]()

        def encode(pixels: list[Any]) -> Any:
            count.append(len(pixels))
            return good(pixels)

        tower.encode = encode
        answers = await asyncio.gather(*(answer_of(service, one) for one in asked))
    assert len(answers) == 6 and sum(count) == 7, "one for each, and one that all have"


async def test_a_client_leaves_while_its_image_is_encoded(folder: Path) -> None:
    async with serving(folder) as service:
        want, _ = await answer_of(service, request("stays", picture(1)))
        tower = service.engine.loop._encoder.worker._tower
        good, begun, go_on = tower.encode, threading.Event(), threading.Event()

        def encode(pixels: list[Any]) -> Any:
            begun.set()
            assert go_on.wait(30)
            return good(pixels)

        tower.encode = encode
        task = asyncio.create_task(answer_of(service, request("goes", picture(2), picture(3), picture(4))))
        await asyncio.to_thread(begun.wait, 30)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        tower.encode = good
        go_on.set()
        await settle(service.engine)
        assert (await answer_of(service, request("stays", picture(1))))[0] == want


async def test_an_image_that_cannot_be_encoded_fails_its_request_only(folder: Path) -> None:
    asked = [request(f"number {i}", picture(60 + i)) for i in range(4)]
    async with serving(folder) as service:
        want = [(await answer_of(service, one))[0] for i, one in enumerate(asked) if i != 2]
        tower = service.engine.loop._encoder.worker._tower
        good, victim = tower.encode, service._preparer._measure([picture(62)], asked[2].images)[0].pixels()

        def encode(pixels: list[Any]) -> Any:
            if pixels[0].tobytes() == victim.tobytes():
                raise RuntimeError("planted")
            return good(pixels)

        tower.encode = encode
        results = await asyncio.gather(*(answer_of(service, one) for one in asked), return_exceptions=True)
        tower.encode = good
    assert isinstance(results[2], EncodeFailed)
    assert [result[0] for result in (*results[:2], results[3])] == want


async def test_a_truncated_picture_is_refused_before_the_answer_begins(folder: Path) -> None:
    async with serving(folder) as service:
        with pytest.raises(InvalidImage):
            await service.chat(request("look", picture(1), picture(2)[:-400]))


async def test_small_steps_are_told_and_large_images_refused(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="foveate.engine.build"):
        async with serving(folder, step_tokens=20) as service:
            assert service.engine.card.image_rules == BlockRules(14, 3, 1764, 48, 8)
            assert "step-tokens is 20, but an image of this model may need 45 tokens in one step" in caplog.text
            with pytest.raises(
                ContextLengthExceeded, match=r"image 2 needs \d+ tokens in one step, but a step runs 20"
            ):
                await service.chat(request("look", png(1, 42, 42), png(2, 300, 300)))
            small, _ = await answer_of(service, request("look", png(1, 42, 42)))
    caplog.clear()
    async with serving(folder) as service:
        assert (await answer_of(service, request("look", png(1, 42, 42))))[0] == small
    assert "step-tokens" not in caplog.text


async def test_the_prompt_s_tokens_are_counted_with_their_blocks(folder: Path) -> None:
    asked = request("look", picture(1), picture(2))
    async with serving(folder) as service:
        prompt = await service._preparer.prompt(asked)
        answer = await service.chat(asked)
        async for _ in answer.parts():
            pass
    assert answer.prompt_tokens == len(prompt.tokens) and answer.image_tokens == sum(s.rows for s in prompt.spans)
    assert all(span.atomic and span.start_at % 4 == 3 for span in prompt.spans)


# --- thoughts and calls -----------------------------------------------------------------------------------------------

NOW = {
    "name": "now",
    "parameters": {"type": "object", "properties": {"zone": {"enum": ["utc", "cet"], "type": "string"}}},
}


def wish(**more: Any) -> ChatRequest:
    wishes = Wishes(temperature=0.0, max_tokens=300)
    return ChatRequest(({"role": "user", "content": "When?"},), wishes=wishes, **more)


async def parts_of(service: Any, asked: ChatRequest) -> list[Any]:
    answer = await service.chat(asked)
    return [part async for part in answer.parts()]


async def test_a_call_that_must_come_comes_in_the_family_s_markup(folder: Path) -> None:
    async with serving(folder) as service:
        parts = await parts_of(service, wish(tools=Tools((NOW,), "required", parallel=False)))
    calls = [part for part in parts if isinstance(part, CallDelta)]
    end = next(part for part in parts if isinstance(part, ChoiceEnd))
    assert calls[0].name == "now" and end.reason == "tool_calls"
    assert "".join(part.arguments for part in calls) in ("{}", '{"zone":"utc"}', '{"zone":"cet"}')
    assert not [part.text for part in parts if isinstance(part, TextDelta) and part.text]


async def test_what_is_thought_is_told_apart(folder: Path) -> None:
    async with serving(folder) as service:
        thinking = await parts_of(service, wish(effort="high"))
        plain = await parts_of(service, wish())
        assert service._preparer.template_facts() == {"tools": True, "reasoning": True, "reasoning_effort": True}
    assert [part for part in thinking if isinstance(part, ThoughtDelta)]
    assert not [part for part in plain if isinstance(part, ThoughtDelta)]
