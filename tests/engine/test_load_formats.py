"""A server without weights: `load_format="dummy"` answers, with pictures and without, and says the same each time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from foveate.core.config import Settings
from foveate.core.errors import CheckpointError, ConfigError
from foveate.engine.build import costs, open_engine, read_model
from tests.support.checkpoints import FP8, bare
from tests.support.engines import answer_of, png, request, serving

FORMATS: list[dict[str, Any]] = [{}, {"quantization_config": FP8}]


@pytest.mark.parametrize("extra", FORMATS, ids=["plain", "fp8"])
@pytest.mark.parametrize("worker", ["thread", "process"])
async def test_a_folder_without_weights_is_served(tmp_path: Path, worker: str, extra: dict[str, Any]) -> None:
    folder = bare(tmp_path, "dense", **extra)
    asked = request("What is it?", png(1), png(2, 128, 96), max_tokens=6)
    texts = []
    for _ in range(2):
        async with serving(folder, load_format="dummy", encoder_worker=worker) as service:
            text, end = await answer_of(service, asked)
            assert end.tokens == 6 and end.reason == "length"
            assert service.engine.loop._executor.drafter is None, "nothing guesses random weights"  # type: ignore[attr-defined]
            texts.append(text)
    assert texts[0] == texts[1]


async def test_a_head_that_is_asked_for_is_random_too(tmp_path: Path) -> None:
    folder, asked = bare(tmp_path, "dense"), request("What is it?", max_tokens=6)
    async with serving(folder, load_format="dummy") as service:
        plain = await answer_of(service, asked)
    async with serving(folder, load_format="dummy", draft="mtp", draft_adaptive=False) as service:
        guessed = await answer_of(service, asked)
    assert guessed[0] == plain[0] and guessed[1].timings.draft_steps


def test_weights_that_are_not_there_are_missed_without_it(tmp_path: Path) -> None:
    folder = bare(tmp_path, "dense")
    with pytest.raises(CheckpointError, match=r"model.safetensors is missing"):
        open_engine(str(folder), Settings(kv_tokens=512, threads=1))
    with pytest.raises(ConfigError, match="unknown load format: gguf"):
        read_model(str(folder), Settings(load_format="gguf"))


def test_costs_need_no_weights(tmp_path: Path) -> None:
    work, device = costs(str(bare(tmp_path, "moe")), Settings(device="cpu"))
    assert work is not None and work.weight_bytes > 0 and device == "cpu"
