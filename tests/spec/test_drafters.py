"""Which drafter is found, what happens when it does not fit, and whole engines that use one."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from foveate.core.errors import CheckpointError
from tests.spec.test_dflash import config_of, oracle_of, write
from tests.support.engines import answer_of, png, request, serving
from tests.support.harness import tiny


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny checkpoint with an mtp head and a DFlash drafter, both random."""
    copy = tmp_path / "model"
    shutil.copytree(tiny("dense")[2], copy)
    config = config_of("sliding")
    write(copy / "dflash", config, oracle_of(config, 1).state_dict())
    return copy


ASKED = [request(f"question {i}", *(png(10 * i + k) for k in range(i % 3)), max_tokens=24) for i in range(5)]


async def answers(folder: Path, **settings: Any) -> tuple[list[str], list[Any], str]:
    async with serving(folder, **settings) as service:
        got = await asyncio.gather(*(answer_of(service, one) for one in ASKED))
        drafter = service.engine.loop._executor.drafter
        return [text for text, _ in got], [end.timings for _, end in got], drafter.name if drafter else "none"


@pytest.mark.parametrize("settings", [
    {"draft": "auto"},
    {"draft": "auto", "draft_tree": 20},
    {"draft": "mtp", "draft_adaptive": False},
    {"draft": "mtp", "draft_len": 6, "draft_tree": 12, "draft_adaptive": False},
    {"draft": "ngram"},
    {"draft": "auto", "draft_len": 9, "draft_adaptive": False},
], ids=str)  # fmt: skip
async def test_every_drafter_gives_the_plain_answers(folder: Path, settings: dict[str, Any]) -> None:
    want, timings, name = await answers(folder, draft="none")
    assert name == "none" and not any(timing.drafted for timing in timings)
    got, timings, name = await answers(folder, **settings)
    assert got == want
    assert name == {"auto": "dflash"}.get(settings["draft"], settings["draft"])
    assert all(timing.decode_steps for timing in timings)
    if settings.get("draft_adaptive") is False:
        assert all(timing.drafted for timing in timings)


async def test_sampled_answers_are_the_plain_ones(folder: Path) -> None:
    asked = [request(f"say {i}", temperature=0.9, top_p=0.9, seed=i, max_tokens=24, n=2) for i in range(3)]
    texts = []
    for draft in ("none", "auto", "mtp"):
        async with serving(folder, draft=draft, draft_adaptive=False) as service:
            texts.append([(await answer_of(service, one))[0] for one in asked])
    assert texts[0] == texts[1] == texts[2]


async def test_auto_falls_back_with_a_warning(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    config = json.loads((folder / "dflash" / "config.json").read_text())
    (folder / "dflash" / "config.json").write_text(json.dumps(config | {"hidden_size": 32}))
    assert (await answers(folder))[2] == "mtp"
    assert "hidden_size is 32, but the model's is 64" in caplog.text
    tensors = load_file(folder / "model.safetensors")
    del tensors["mtp.norm.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert (await answers(folder))[2] == "none"
    assert "mtp.norm.weight" in caplog.text and "decoding plainly" in caplog.text


async def test_a_named_drafter_must_fit(folder: Path) -> None:
    (folder / "dflash" / "model.safetensors").write_bytes(b"not a tensor file")
    for wish, message in ((str(folder / "dflash"), "model.safetensors"), (str(folder / "nothing"), "no checkpoint")):
        with pytest.raises(CheckpointError, match=message):
            async with serving(folder, draft=wish):
                pass
    plain = tiny("dense_tied")[2]  # its config says that there is no head
    with pytest.raises(CheckpointError, match=r"mtp\.\*"):
        async with serving(plain, draft="mtp"):
            pass
    assert (await answers(plain))[2] == "none", "nothing to draft with is no fault"


async def test_a_drafter_that_fails_is_let_go(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    want = (await answers(folder, draft="none"))[0]
    async with serving(folder, draft_adaptive=False) as service:

        def fail(wishes: Any, memory: Any) -> Any:
            raise RuntimeError("planted")

        service.engine.loop._executor.drafter.propose = fail
        got = [(await answer_of(service, one))[0] for one in ASKED]
        assert got == want and "the drafter failed" in caplog.text
        assert service.health()["status"] == "ok"
