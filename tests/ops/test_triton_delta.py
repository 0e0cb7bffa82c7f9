"""DeltaNet kernels for few tokens against their references, on a GPU or in Triton's interpreter."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.support.interpreter import DEVICE, close  # isort: skip - before any kernel
from foveate.ops import lanes, triton_delta
from foveate.ops.conv import conv_reference
from foveate.ops.gated_delta import delta_reference
from foveate.ops.lanes import DeltaSizes, DeltaWeights
from tests.ops.test_triton_rows import DTYPES, drawn, made_lanes

SIZES = [DeltaSizes(2, 16, 4, 16, 1e-6), DeltaSizes(3, 16, 3, 24, 1e-6)]
SLOTS = 12
EXACT = 2e-6 if DEVICE == "cpu" else 2e-5


def made_weights(sizes: DeltaSizes, dtype: torch.dtype) -> DeltaWeights:
    return DeltaWeights(
        conv=drawn(4, sizes.channels, dtype=dtype, seed=5),
        rate=-drawn(sizes.value_heads, seed=6).abs(),
        bias=drawn(sizes.value_heads, seed=7),
        norm=drawn(sizes.value_dim, seed=8),
        sizes=sizes,
    )


def made_inputs(tokens: int, sizes: DeltaSizes, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A projection and its convolved columns."""
    columns = sizes.channels + sizes.value_heads * (sizes.value_dim + 2)
    return drawn(tokens, columns, dtype=dtype), drawn(tokens, sizes.channels, dtype=dtype, seed=1)


def made_state(sizes: DeltaSizes) -> Tensor:
    return drawn(SLOTS, sizes.value_heads, sizes.key_dim, sizes.value_dim, seed=2)


LANES = [([1], [4]), ([1, 1, 1], [9, 0, 2]), ([4, 4], [3, 0])]


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("settle", [True, False])
@pytest.mark.parametrize(("lens", "past_lens"), LANES)
def test_convolution(lens: list[int], past_lens: list[int], settle: bool, dtype: torch.dtype, tolerance: float) -> None:
    at, channels = made_lanes(lens, past_lens, settle=settle), 300
    x, weight = drawn(sum(lens), channels + 5, dtype=dtype)[:, :channels], drawn(4, channels, dtype=dtype, seed=1)
    states = [drawn(SLOTS, 3, channels, dtype=dtype, seed=2) for _ in range(3)]
    outs = [torch.full((sum(lens), channels), float("nan"), dtype=dtype, device=DEVICE) for _ in range(2)]
    triton_delta.convolve(x, weight, states[0], at, outs[0])
    lanes.convolve(x, weight, states[1], at, outs[1])
    close(outs[0], outs[1], 2 * tolerance)
    assert torch.equal(states[0], states[1]) and torch.equal(states[0], states[2]) is not settle
    for lane, slot in enumerate(at.slots.tolist()):
        start, end = at.starts[lane : lane + 2].tolist()
        past = states[2][slot].float() * bool(past_lens[lane])
        want, _ = conv_reference(x[start:end].float(), weight.float(), past)
        close(outs[0][start:end], torch.nn.functional.silu(want), tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("settle", [True, False])
@pytest.mark.parametrize(("lens", "past_lens"), LANES)
def test_delta_rule(
    lens: list[int], past_lens: list[int], settle: bool, sizes: DeltaSizes, dtype: torch.dtype, tolerance: float
) -> None:
    at, weights = made_lanes(lens, past_lens, settle=settle), made_weights(sizes, dtype)
    mixed, convolved = made_inputs(sum(lens), sizes, dtype)
    states = [made_state(sizes) for _ in range(3)]
    outs = [torch.full((sum(lens), sizes.value_heads * sizes.value_dim), 7.0, dtype=dtype, device=DEVICE) for _ in "gw"]
    triton_delta.delta(mixed, convolved, weights, states[0], at, outs[0])
    lanes.delta(mixed, convolved, weights, states[1], at, outs[1])
    close(outs[0], outs[1], 4 * tolerance)
    close(states[0], states[1], EXACT)
    assert torch.equal(states[0], states[2]) is not settle
    inputs = lanes.delta_inputs(mixed, convolved, weights)
    for lane, slot in enumerate(at.slots.tolist() if settle else []):
        inputs, rest = inputs.split(lens[lane])
        _, want = delta_reference(inputs, states[2][slot] * bool(past_lens[lane]))
        close(states[0][slot], want, EXACT)
        inputs = rest


@pytest.mark.parametrize("sizes", SIZES)
def test_committing_equals_having_run_only_what_stands(sizes: DeltaSizes) -> None:
    lens, kept = [4, 4, 4], [1, 4, 0]
    at, weights = made_lanes(lens, [3, 6, 0]), made_weights(sizes, torch.float32)
    mixed, convolved = made_inputs(12, sizes, torch.float32)
    x = mixed[:, : sizes.channels]
    stands = torch.tensor(kept, dtype=torch.int32, device=DEVICE)
    states = [made_state(sizes) for _ in range(4)]
    carried = [drawn(SLOTS, 3, sizes.channels, seed=3) for _ in range(4)]
    for make, number in ((triton_delta, 0), (lanes, 1)):
        make.keep_delta(mixed, convolved, weights, states[number], at, stands)
        make.keep_conv(x, carried[number], at, stands)
    for lane, count in enumerate(kept[:2]):  # a lane of which nothing stands is a spare one
        alone = made_lanes([count], [3])
        alone = replace(alone, slots=at.slots[lane : lane + 1])
        rows = slice(4 * lane, 4 * lane + count)
        out = torch.empty(count, sizes.value_heads * sizes.value_dim, device=DEVICE)
        lanes.delta(mixed[rows], convolved[rows], weights, states[2], alone, out)
        lanes.convolve(x[rows], weights.conv, carried[2], alone, torch.empty_like(convolved[rows]))
        slot = int(at.slots[lane])
        for number in range(2):
            close(states[number][slot], states[2][slot], EXACT)
            assert torch.equal(carried[number][slot], carried[2][slot])
    others = torch.ones(SLOTS, dtype=torch.bool)
    others[at.slots.cpu()] = False
    assert all(torch.equal(states[n][others], states[3][others]) for n in range(2))
