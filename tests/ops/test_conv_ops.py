"""The carried convolution against the same written out, and its deferred commit."""

from __future__ import annotations

import pytest
import torch

from foveate.ops.conv import causal_conv, conv_reference

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
