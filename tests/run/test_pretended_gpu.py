"""What runs beside a GPU, without one: devices are kept apart, nothing is read before it has arrived, answers stay.

Tests of `tests/gpu` that need no kernel run here on pretended devices too (`tests.support.pretend`).
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from foveate.core.chat import ChatRequest, Form
from foveate.core.values import Ending
from foveate.models.qwen3_5 import Qwen35
from foveate.models.qwen3_5_device import Qwen35OnDevice
from foveate.ops.kernels import torch_kernels
from foveate.run.ahead import Ahead
from foveate.run.cache import allocate
from foveate.run.embeds import RowStore
from foveate.run.graphs import EvenSteps, Spare
from foveate.run.runner import Runner
from tests.gpu.test_cuda import CudaDrive, test_key_value_memory_is_measured
from tests.gpu.test_loading import (
    test_a_dummy_is_made_where_it_lives_and_soon,
    test_eight_bit_matrices_stay_so_and_multiply_alike,
    test_frames_come_pinned_and_are_resized_there,
    test_tensors_larger_than_the_pinned_buffer,
    test_weights_arrive_as_they_do_on_a_cpu,
)
from tests.spec.test_dflash import config_of, oracle_of, write
from tests.support.engines import answer_of, png, request, serving
from tests.support.harness import Drive, late, make_job, tiny
from tests.support.pretend import Reads, gpus
from tests.support.tiny_v4_draft import make_tiny_drafting
from tests.support.v4_jobs import make_v4_job

__all__ = [
    "test_a_dummy_is_made_where_it_lives_and_soon",
    "test_eight_bit_matrices_stay_so_and_multiply_alike",
    "test_frames_come_pinned_and_are_resized_there",
    "test_key_value_memory_is_measured",
    "test_tensors_larger_than_the_pinned_buffer",
    "test_weights_arrive_as_they_do_on_a_cpu",
]
CPU = {"device": "cpu", "mmproj_device": "same"}
COMMON = {"dtype": "float32", "max_ctx": 512}
PLACES = [
    {"device": "cuda:0", "mmproj_device": "same"},
    {"device": "cuda:0", "mmproj_device": "cuda:0", "encoder_worker": "thread"},
    {"device": "cuda:0", "mmproj_device": "cuda:1"},
    {"device": "cuda:1", "mmproj_device": "auto"},
    {"device": "cuda:0", "mmproj_device": "cpu"},
    {"device": "cpu", "mmproj_device": "cuda:1"},
]


@pytest.fixture(autouse=True)
def reads() -> Iterator[Reads]:
    with gpus() as seen:
        yield seen


def noise(seed: int) -> bytes:
    """A picture that has to be made smaller."""
    out = io.BytesIO()
    Image.effect_noise((300 + seed, 200 + 2 * seed), 50).convert("RGB").save(out, "PNG")
    return out.getvalue()


def every_kind() -> list[ChatRequest]:
    """Greedy, sampled with all that counts tokens, formed; none to three pictures each."""
    sampled = {"temperature": 0.9, "top_p": 0.9, "top_k": 50, "min_p": 0.01, "seed": 5, "logprobs": 3}
    counted = {"repetition_penalty": 1.2, "presence_penalty": 0.3, "logit_bias": ((5, 2.0),), "min_tokens": 4}
    asked = [request(f"question {i}", *([png(i), noise(i), png(9)][: i % 4])) for i in range(4)]
    asked += [request("sampled", noise(1), **sampled, **counted), request("sampled", **sampled)]
    form = Form("regex", "[a-c]{4,8}")
    asked += [replace(request("formed", png(2), temperature=t, seed=1, ignore_eos=False), form=form) for t in (0, 0.8)]
    return asked


async def answers(folder: Path | str, asked: list[ChatRequest], **settings: Any) -> list[str]:
    async with serving(folder, **COMMON | settings) as service:  # type: ignore[arg-type]
        return [text for text, _ in await asyncio.gather(*(answer_of(service, one) for one in asked))]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: "-".join(place.values()))
async def test_every_placement_gives_the_same_answers(place: dict[str, Any]) -> None:
    folder, asked = tiny("dense")[2], every_kind()
    assert await answers(folder, asked, **place) == await answers(folder, asked, **CPU)


@pytest.mark.parametrize("tree", [0, 8])
@pytest.mark.parametrize("draft", ["ngram", "mtp", "dflash", "dflash2"])
async def test_drafts_change_nothing(draft: str, tree: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder, asked, wish = tiny("dense")[2], every_kind(), draft
    if draft.startswith("dflash"):
        config = config_of(draft)
        wish = str(write(tmp_path, config, oracle_of(config, 1).state_dict()))
    got = await answers(folder, asked, **PLACES[2], draft=wish, draft_tree=tree, draft_adaptive=False)
    assert got == await answers(folder, asked, **CPU, draft="none")
    assert not [record for record in caplog.records if "drafter failed" in record.message]


@pytest.mark.parametrize("draft", ["dspark", "mtp"])
async def test_drafts_of_the_other_family(draft: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = make_tiny_drafting(tmp_path, "v4_vision", draft)
    asked = [request(f"hi {i} " * (3 + 9 * i), *[png(i)] * (i % 2), max_tokens=16) for i in range(4)]
    got = await answers(folder, asked, **PLACES[2], draft="auto", draft_adaptive=False)
    assert got == await answers(folder, asked, **CPU, draft="none")
    assert not [record for record in caplog.records if "drafter failed" in record.message]


@pytest.mark.parametrize("kind", ["dense", "dense_tied", "moe", "v4_vision"])
def test_steps_of_every_kind(kind: str) -> None:
    make = make_v4_job if kind.startswith("v4") else make_job
    jobs = [make(100 + i, i % 3, 20, ending=Ending(6)) for i in range(3)]
    want = [outcome.tokens for outcome in Drive(kind).run(jobs)]
    pressed = CudaDrive(kind, landing=late(1), step_tokens=64, mixed_tokens=48)
    assert [outcome.tokens for outcome in pressed.run(jobs)] == want


@pytest.mark.parametrize("kind", ["v4_official", "v4_wide"])
async def test_texts_of_the_other_family(kind: str) -> None:
    folder, asked = tiny(kind)[2], [request(f"hi {i} " * (3 + 9 * i), max_tokens=8) for i in range(2)]
    assert await answers(folder, asked, **PLACES[0]) == await answers(folder, asked, **CPU)


class AheadThere(CudaDrive):
    """The synchronous engine that decodes ahead on a device, unrecorded, with the operators in plain torch."""

    def __init__(self, kind: str, **change: Any) -> None:
        super().__init__(kind, **change)
        plain, limits = self.runner._model, self.limits
        assert isinstance(plain, Qwen35)
        model = Qwen35OnDevice(plain.config, plain.trunk, torch_kernels())
        spare = Spare(limits.pages, limits.slots)
        memory = allocate(model.memory_spec(), limits.pages + 1, limits.page_len, limits.slots + 1, "cuda:0")
        self.runner = Runner(model, memory, RowStore("cuda:0", torch.float32), "cuda:0")
        most_pages = -(-limits.max_ctx // limits.page_len)
        self.runner.even = EvenSteps(model, memory, spare, "cuda:0", limits.slots, most_pages, record=False)
        self.runner.ahead = Ahead(self.runner.even)


@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_what_is_run_ahead_there_is_read_when_it_has_arrived(kind: str) -> None:
    jobs = [make_job(100 + i, i % 3, 20, at=2 * i, ending=Ending(12)) for i in range(4)]
    want = [outcome.tokens for outcome in Drive(kind).run(jobs)]
    assert [outcome.tokens for outcome in AheadThere(kind).run(jobs)] == want


def test_a_step_waits_for_the_device_once(reads: Reads, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where tokens are drawn, for them; where none are, never. (Grouping by experts in plain torch waits as well.)"""
    execute, waits = Runner.execute, list[tuple[int, bool]]()

    def counted(runner: Runner, plan: Any) -> Any:
        before = reads.count
        result = execute(runner, plan)
        waits.append((reads.count - before, any(piece.draw for piece in plan.slices)))
        return result

    monkeypatch.setattr(Runner, "execute", counted)
    jobs = [make_job(100 + i, i % 5, 30) for i in range(8)]
    CudaDrive("dense", landing=late(1), step_tokens=24, mixed_tokens=16).run(jobs)
    assert {count for count, draws in waits if draws} == {1} and {count for count, draws in waits if not draws} == {0}


def test_the_pretence_sees_what_a_device_would() -> None:
    here, there = torch.ones(4), torch.ones(4, device="cuda:0")
    for other in (here, torch.ones(4, device="cuda:1")):
        with pytest.raises(RuntimeError, match="different devices"):
            there + other
    assert (there + 1).device == torch.device("cuda:0") and (there * torch.tensor(2.0)).tolist() == [2] * 4
    early = there.to("cpu", non_blocking=True)
    assert not early.isfinite().any()
    torch.cuda.synchronize()
    assert early.tolist() == [1] * 4
