"""The bundled model behind the real engine: answers are right, and each request gets its own chart's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from foveate.core.config import Settings
from foveate.engine.build import open_engine
from foveate.evals.charts import Question, load
from foveate.service.service import Service
from foveate.show.demo import DEMO, read_tour
from foveate.show.talk import whole
from tests.support.engines import settle

pytestmark = pytest.mark.model
ROUNDS = 50


@pytest.fixture(scope="module")
def settings() -> Settings:
    return Settings(mmproj_device="cpu", encoder_worker="thread", threads=2, max_concurrency=4)


def small_different_charts(count: int) -> list[Question]:
    """Questions about the value of something, each about another chart, smallest pictures first."""
    seen: set[Path] = set()
    chosen = []
    for question in sorted(load("charts"), key=lambda q: q.images[0].stat().st_size):
        if question.kind == "value" and len(question.images) == 1 and question.images[0] not in seen:
            seen.add(question.images[0])
            chosen.append(question)
    return chosen[:count]


async def test_four_at_once_get_their_own_charts_answer(settings: Settings) -> None:
    service = Service(open_engine("demo", settings))
    try:
        questions, want = [], []
        for question in small_different_charts(12):
            given = await whole(service, question.question, question.images)
            if question.judge(given).right and given not in want:
                questions.append(question)
                want.append(given)
        questions, want = questions[:4], want[:4]
        assert len(questions) == 4, "the bundled model reads fewer than four of these charts"
        for _ in range(ROUNDS):
            got = await asyncio.gather(*(whole(service, q.question, q.images) for q in questions))
            assert got == want
        await settle(service.engine)
    finally:
        await service.aclose()


async def test_the_tour_is_right_streamed_and_sequential(settings: Settings) -> None:
    from dataclasses import replace

    answers = []
    for stream in (True, False):
        service = Service(open_engine("demo", replace(settings, encoder_stream=stream)))
        try:
            tour = read_tour()
            given = [await whole(service, s.question, [DEMO / name for name in s.images]) for s in tour]
            assert [s.question for s, text in zip(tour, given, strict=True) if not s.right(text)] == []
            answers.append(given)
        finally:
            await service.aclose()
    assert answers[0] == answers[1]
