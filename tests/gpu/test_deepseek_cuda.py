"""DeepSeek V4 on a GPU says what it says on the CPU: text of every shape, images, drafts under verification."""

from __future__ import annotations

import asyncio

import pytest
import torch

from tests.gpu.test_cuda import CudaDrive
from tests.support.engines import answer_of, request, serving
from tests.support.harness import Drive, late, tiny
from tests.support.tiny_v4 import V4_KINDS
from tests.support.v4_jobs import make_v4_job

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def test_tokens_with_images_equal_those_of_the_cpu() -> None:
    jobs = [make_v4_job(100 + i, i % 4, 30) for i in range(8)]
    want = [outcome.tokens for outcome in Drive("v4_vision").run(jobs)]
    assert [outcome.tokens for outcome in CudaDrive("v4_vision").run(jobs)] == want
    pressed = CudaDrive("v4_vision", landing=late(1), step_tokens=64, mixed_tokens=48).run(jobs)
    assert [outcome.tokens for outcome in pressed] == want


@pytest.mark.parametrize("kind", V4_KINDS)
@pytest.mark.parametrize("draft", ["none", "ngram"])
async def test_answers_equal_those_of_the_cpu(kind: str, draft: str) -> None:
    asked = [request(f"hi {i} " * (3 + 9 * i), max_tokens=24) for i in range(4)]
    common = {"dtype": "float32", "max_ctx": 1024, "draft": draft}
    async with serving(tiny(kind)[2], device="cpu", **common) as service:
        want = [(await answer_of(service, one))[0] for one in asked]
    async with serving(tiny(kind)[2], device="cuda:0", **common) as service:
        got = [text for text, _ in await asyncio.gather(*(answer_of(service, one) for one in asked))]
    assert got == want
