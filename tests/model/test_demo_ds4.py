"""demo-ds4 with its own DSpark: the same answers as without it, alone and at once, and fewer steps."""

from __future__ import annotations

import asyncio

import pytest

from foveate.core.chat import ChoiceEnd, TextDelta
from foveate.core.config import Settings
from foveate.core.values import Timings
from foveate.engine.build import open_engine
from foveate.engine.checkpoint import BUNDLED
from foveate.evals.charts import Question
from foveate.service.service import Service
from tests.model.test_speculation import SETTINGS, sample
from tests.support.engines import request, settle

MADE = (BUNDLED["demo-ds4"] / "config.json").is_file()
pytestmark = [pytest.mark.model, pytest.mark.skipif(not MADE, reason="demo-ds4 has not been made (see recipe)")]


async def answers(batch: int, draft: str) -> tuple[list[str], list[Timings]]:
    """Answers to the sample, `batch` at once, and what they took."""
    settings = Settings(**SETTINGS, max_concurrency=batch, draft=draft, draft_adaptive=False)
    service = Service(open_engine("demo-ds4", settings))

    async def one(question: Question) -> tuple[str, Timings]:
        pictures = [path.read_bytes() for path in question.images]
        answer = await service.chat(request(question.question, *pictures, max_tokens=160, ignore_eos=False))
        text, timings = "", Timings()
        async for part in answer.parts():
            if isinstance(part, TextDelta):
                text += part.text
            elif isinstance(part, ChoiceEnd):
                timings = part.timings
        return text, timings

    try:
        got = await asyncio.gather(*(one(question) for question in sample()))
        await settle(service.engine)
    finally:
        await service.aclose()
    return [text for text, _ in got], [timings for _, timings in got]


async def test_its_drafter_changes_nothing_but_the_number_of_steps() -> None:
    want, plain = await answers(1, "none")
    assert not any(timing.drafted for timing in plain)
    for batch in (1, 4):
        got, timings = await answers(batch, "auto")
        assert got == want
        steps = sum(timing.decode_steps for timing in timings)
        assert 1 + sum(sum(timing.accepted) for timing in timings) / steps > 1.3
    batched, _ = await answers(4, "none")
    assert batched == want
