"""The bundled model with its own drafters: the same answers as without, more tokens a step, chain and tree."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from foveate.core.chat import ChoiceEnd, TextDelta
from foveate.core.config import Settings
from foveate.core.values import Timings
from foveate.engine.build import open_engine
from foveate.evals.charts import Question, load
from foveate.service.service import Service
from tests.support.engines import request, settle

pytestmark = pytest.mark.model
SETTINGS: dict[str, Any] = {"mmproj_device": "same", "threads": 2, "kv_tokens": 16384}


def sample() -> list[Question]:
    """Descriptions, and questions over one, two and four pictures."""
    charts = load("charts")
    by_images = [[q for q in charts if len(q.images) == count][:2] for count in (1, 2, 4)]
    return load("descriptions")[:4] + [question for group in by_images for question in group]


async def answers(batch: int, model: str = "demo", **settings: Any) -> tuple[list[str], list[Timings]]:
    """Answers to the sample, `batch` at once, and what they took."""
    service = Service(open_engine(model, Settings(**SETTINGS, max_concurrency=batch, **settings)))

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


async def test_drafters_change_nothing_but_the_number_of_steps() -> None:
    want, _ = await answers(4, draft="none")
    rates = {}
    for name, batch, settings in (
        ("chain", 4, {"draft_adaptive": False}),
        ("tree", 2, {"draft_tree": 24, "draft_adaptive": False}),
        ("mtp", 4, {"draft": "mtp"}),
        ("ngram", 1, {"draft": "ngram"}),
    ):
        got, timings = await answers(batch, **settings)
        assert got == want, name
        steps = sum(timing.decode_steps for timing in timings)
        rates[name] = 1 + sum(sum(timing.accepted) for timing in timings) / steps
    assert rates["chain"] > 3.0 and rates["tree"] > rates["chain"] and rates["mtp"] > 1.3, rates
