"""DeltaNet kernels for many tokens against the token loop, on a GPU or in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from tests.support.interpreter import DEVICE, close  # isort: skip - before any kernel
from foveate.ops import lanes, triton_chunks
from foveate.ops.conv import conv_reference
from foveate.ops.gated_delta import DeltaInputs, delta_reference
from foveate.ops.lanes import DeltaSizes, Lanes, Runs
from foveate.ops.layers import gated_rms_norm
from tests.ops.test_triton_delta import SIZES, SLOTS, made_inputs, made_state, made_weights
from tests.ops.test_triton_rows import DTYPES, drawn, made_lanes

LENS = [([1], [0]), ([64], [3]), ([150], [0]), ([5, 70, 2, 128], [0, 4, 1, 9])]


def runs_of(at: Lanes) -> Runs:
    lens = (at.starts[1:] - at.starts[:-1]).tolist()
    cut = [[(lane, n) for n in range(0, length, 64)] for lane, length in enumerate(lens)]
    starts = torch.tensor([len(part) for part in [[], *cut]], dtype=torch.int32, device=DEVICE).cumsum(0)
    flat = torch.tensor([pair for part in cut for pair in part], dtype=torch.int32, device=DEVICE)
    return Runs(at, flat, flat, starts.int())


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize(("lens", "past_lens"), LENS)
def test_convolution(lens: list[int], past_lens: list[int], dtype: torch.dtype, tolerance: float) -> None:
    at, channels = made_lanes(lens, past_lens), 130
    x, weight = drawn(sum(lens), channels + 5, dtype=dtype)[:, :channels], drawn(4, channels, dtype=dtype, seed=1)
    state, before = (drawn(SLOTS, 3, channels, dtype=dtype, seed=2) for _ in range(2))
    out = torch.full((sum(lens), channels), float("nan"), dtype=dtype, device=DEVICE)
    triton_chunks.convolve_runs(x, weight, state, runs_of(at), out)
    for lane, slot in enumerate(at.slots.tolist()):
        start, end = at.starts[lane : lane + 2].tolist()
        want, rows = conv_reference(x[start:end].float(), weight.float(), before[slot].float() * bool(past_lens[lane]))
        close(out[start:end], torch.nn.functional.silu(want), tolerance)
        assert torch.equal(state[slot].float(), rows)
        before[slot] = state[slot]
    assert torch.equal(state, before)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(("lens", "past_lens"), LENS)
def test_delta_rule(
    lens: list[int], past_lens: list[int], sizes: DeltaSizes, dtype: torch.dtype, tolerance: float
) -> None:
    at, weights = made_lanes(lens, past_lens), made_weights(sizes, dtype)
    mixed, convolved = made_inputs(sum(lens), sizes, dtype)
    state, before = made_state(sizes), made_state(sizes)
    out = torch.full((sum(lens), sizes.value_heads * sizes.value_dim), float("nan"), dtype=dtype, device=DEVICE)
    triton_chunks.delta_runs(mixed, convolved, weights, state, runs_of(at), out)
    rest = lanes.delta_inputs(mixed.float(), convolved.float(), weights)
    gate = mixed[:, sizes.channels :][:, : out.shape[1]].float().unflatten(1, (sizes.value_heads, -1))
    for lane, slot in enumerate(at.slots.tolist()):
        start, end = at.starts[lane : lane + 2].tolist()
        inputs, rest = rest.split(lens[lane])
        want, after = delta_reference(inputs, before[slot] * bool(past_lens[lane]))
        close(out[start:end], gated_rms_norm(want, gate[start:end], weights.norm, sizes.eps).flatten(1), tolerance)
        close(state[slot], after, tolerance)
        before[slot] = state[slot]
    assert torch.equal(state, before)


@pytest.mark.parametrize("rate", [0.0, 30.0])
def test_equal_keys_and_extreme_decays(rate: float) -> None:
    """Equal keys of full strength without decay make the inverse's powers huge; strong decay makes its inverse so."""
    sizes, dtype = SIZES[0], torch.float32
    at, weights = made_lanes([100], [5]), made_weights(sizes, dtype)
    weights.rate.fill_(-rate)
    mixed, convolved = made_inputs(100, sizes, dtype)
    convolved[:] = convolved[0] + 1e-3 * convolved
    mixed[:, sizes.channels + sizes.value_heads * sizes.value_dim :][:, : sizes.value_heads] = 9.0
    state, before = made_state(sizes), made_state(sizes)
    out = torch.empty(100, sizes.value_heads * sizes.value_dim, device=DEVICE)
    triton_chunks.delta_runs(mixed, convolved, weights, state, runs_of(at), out)
    slot = int(at.slots[0])
    x = lanes.delta_inputs(mixed, convolved, weights)
    wide = DeltaInputs(*(t.double() for t in (x.query, x.key, x.value, x.decay, x.beta)))
    _, want = delta_reference(wide, before[slot].double())
    close(state[slot], want, 1e-4)
