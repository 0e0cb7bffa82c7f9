"""Chunked, stepped and verified forms of the delta rule against the token loop, in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from foveate.ops.gated_delta import (
    DeltaInputs,
    delta_reference,
    delta_runs,
    delta_step,
    plan_chunks,
)

KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM, SLOTS = 2, 4, 8, 12, 7
TIGHT = 1e-12


def inputs(tokens: int, seed: int = 0, decay: float = 1.0) -> DeltaInputs:
    random = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(tokens, *shape, generator=random, dtype=torch.float64)

    query, key = (torch.nn.functional.normalize(draw(KEY_HEADS, KEY_DIM), dim=-1) for _ in range(2))
    gates = -decay * draw(VALUE_HEADS).abs(), draw(VALUE_HEADS).sigmoid()
    return DeltaInputs(query, key, draw(VALUE_HEADS, VALUE_DIM), *gates)


def fresh_state(seed: int = 9) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(SLOTS, VALUE_HEADS, KEY_DIM, VALUE_DIM, generator=random, dtype=torch.float64)


def one_by_one(x: DeltaInputs, lens: tuple[int, ...], state: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs of all runs and the whole state afterwards, by the reference."""
    after, outs, rest = state.clone(), [], x
    for length, slot in zip(lens, slots.tolist(), strict=True):
        run, rest = rest.split(length)
        out, after[slot] = delta_reference(run, state[slot])
        outs.append(out)
    return torch.cat(outs), after


@pytest.mark.parametrize("chunk_len", [1, 5, 64])
@pytest.mark.parametrize("lens", [(1,), (64,), (65,), (150,), (3, 130, 2, 64, 70), (5, 5, 5)])
def test_runs_equal_the_token_loop(lens: tuple[int, ...], chunk_len: int) -> None:
    x, state, slots = inputs(sum(lens)), fresh_state(), torch.tensor([3, 0, 6, 5, 1])[: len(lens)]
    want, want_state = one_by_one(x, lens, state, slots)
    got = delta_runs(x, state, slots, plan_chunks(lens, slots.device, chunk_len))
    assert (got - want).abs().max() < TIGHT
    assert (state - want_state).abs().max() < TIGHT


def test_extreme_decays_stay_finite() -> None:
    x, state, slots = inputs(130, decay=400.0), fresh_state(), torch.tensor([2])
    want, want_state = one_by_one(x, (130,), state, slots)
    got = delta_runs(x, state, slots, plan_chunks((130,), slots.device))
    assert (got - want).abs().max() < TIGHT and (state - want_state).abs().max() < TIGHT


def test_float32_chunks_stay_near_float64() -> None:
    x, slots = inputs(200, decay=0.1), torch.tensor([4])
    want, _ = one_by_one(x, (200,), fresh_state(), slots)
    narrow = DeltaInputs(*(t.float() for t in (x.query, x.key, x.value, x.decay, x.beta)))
    got = delta_runs(narrow, fresh_state().float(), slots, plan_chunks((200,), slots.device))
    assert (got - want).abs().max() < 1e-5


def test_steps_equal_the_token_loop() -> None:
    x, state, slots = inputs(3), fresh_state(), torch.tensor([5, 1, 2])
    want, want_state = one_by_one(x, (1, 1, 1), state, slots)
    got = delta_step(x, state, slots)
    assert (got - want).abs().max() < TIGHT
    assert (state - want_state).abs().max() < TIGHT
