"""The carried convolution against the same written out, and its deferred commit."""

from __future__ import annotations

import pytest
import torch

from foveate.ops.conv import causal_conv, commit_conv, conv_reference, verify_conv

CHANNELS, KERNEL, SLOTS = 10, 4, 8


def setting(tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    shapes = ((tokens, CHANNELS), (KERNEL, CHANNELS), (SLOTS, KERNEL - 1, CHANNELS))
    x, weight, state = (torch.randn(shape, generator=random) for shape in shapes)
    return x, weight, state


@pytest.mark.parametrize(("ones", "run_lens"), [(3, ()), (0, (5,)), (0, (2, 9, 3)), (2, (7,)), (3, (2, 5))])
def test_mixed_steps_equal_the_reference(ones: int, run_lens: tuple[int, ...]) -> None:
    lens = (1,) * ones + run_lens
    x, weight, state = setting(sum(lens))
    slots, before = torch.tensor([6, 2, 7, 0, 3])[: len(lens)], state.clone()
    got = causal_conv(x, weight, state, slots, run_lens)
    want, after = [], before.clone()
    for part, slot in zip(x.split(lens), slots.tolist(), strict=True):
        out, after[slot] = conv_reference(part, weight, before[slot])
        want.append(out)
    assert (got - torch.cat(want)).abs().max() < 1e-6
    assert torch.equal(state, after), "carried rows are copies; other slots stay"


@pytest.mark.parametrize("run_lens", [(6,), (2, 6, 4)])
def test_commit_carries_the_kept_tokens_only(run_lens: tuple[int, ...]) -> None:
    x, weight, state = setting(sum(run_lens))
    slots, before = torch.tensor([4, 1, 6])[: len(run_lens)], state.clone()
    _, stream = verify_conv(x, weight, state, slots, run_lens)
    assert torch.equal(state, before), "verification must not write"
    for kept in ([0] * len(run_lens), [1] * len(run_lens), list(run_lens)):
        after = before.clone()
        commit_conv(stream, after, slots, run_lens, torch.tensor(kept))
        for part, keep, slot in zip(x.split(run_lens), kept, slots.tolist(), strict=True):
            assert torch.equal(after[slot], torch.cat([before[slot], part[:keep]])[-(KERNEL - 1) :])


def test_verification_computes_what_prefill_computes() -> None:
    x, weight, state = setting(11)
    slots = torch.tensor([4, 1])
    out, _ = verify_conv(x, weight, state, slots, (5, 6))
    assert torch.equal(out, causal_conv(x, weight, state, slots, (5, 6)))
