"""A runner whose model can run even steps is opened with a spare page and slot, warm, and decodes ahead."""

from __future__ import annotations

import pytest

from foveate.core.config import DeviceFacts, Settings, resolve
from foveate.core.plan import StepPlan
from foveate.engine.build import facts_of
from foveate.models.qwen3_5 import Qwen35
from foveate.models.qwen3_5_device import Qwen35OnDevice
from foveate.models.registry import describe
from foveate.ops.kernels import torch_kernels
from foveate.run.open import open_grammars, open_runner
from foveate.run.runner import Runner
from tests.run.test_graph_step import piece
from tests.support.harness import tiny


@pytest.mark.parametrize("own_kernels", [True, False])
def test_opening_a_runner(own_kernels: bool) -> None:
    model, _, folder = tiny("dense")
    assert isinstance(model, Qwen35)
    if own_kernels:
        model = Qwen35OnDevice(model.config, model.trunk, torch_kernels())
    card = describe(folder)
    settings = Settings(device="cpu", max_concurrency=3, kv_tokens=1024, max_ctx=512, page_len=4, step_tokens=64)
    config = resolve(settings, facts_of(str(folder), card), DeviceFacts(1))
    runner = open_runner(model, None, open_grammars(folder, card), config)
    assert isinstance(runner, Runner) and (runner.ahead is not None) is (runner.even is not None) is own_kernels
    held = runner._memory
    assert {len(t) for t in held.paged.values()} == {256 + own_kernels}
    assert {len(t) for t in held.state.values()} == {3 + own_kernels}
    assert all((t[:256] == 0).all() for t in held.paged.values()), "warming up wrote what may be leased"
    token = runner.execute(StepPlan(1, (piece(0, 0, [5, 6, 7]),))).slices[0].tokens[0]
    tokens = [token]
    for at in range(3, 8):
        tokens.append(runner.execute(StepPlan(at, (piece(0, at, tokens[-1:]),))).slices[0].tokens[0])
    want = open_runner(tiny("dense")[0], None, open_grammars(folder, card), config)
    again = [want.execute(StepPlan(1, (piece(0, 0, [5, 6, 7]),))).slices[0].tokens[0]]
    for at in range(3, 8):
        again.append(want.execute(StepPlan(at, (piece(0, at, again[-1:]),))).slices[0].tokens[0])
    assert tokens == again
