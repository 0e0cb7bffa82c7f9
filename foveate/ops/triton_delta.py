"""Triton kernels of DeltaNet layers for few tokens per sequence: convolution and delta rule with states in place.

Each program keeps its part of a sequence's state in registers and goes through the tokens one by one: decoding is one
token, drafts under verification are several that leave no trace, and committing them is the same walk again over those
that stand. Gates, unit queries and keys, and the norm of the output are worked out along the way. Sums are float32.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from foveate.ops.lanes import UNIT_EPS, DeltaWeights, Lanes

DELTA_WARPS = 8
CONV_BLOCK = 256  # channels a program convolves
TAPS = 4


@triton.jit(do_not_specialize_on_alignment=["starts", "past_lens", "slots", "kept"])
def _conv_kernel(
    x,
    weight,
    state,
    out,
    starts,
    past_lens,
    slots,
    kept,
    channels,
    x_row,
    out_row,
    BLOCK: tl.constexpr,
    OUTPUT: tl.constexpr,
    SETTLE: tl.constexpr,
    COMMIT: tl.constexpr,
):
    lane = tl.program_id(1)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < channels
    first = tl.load(starts + lane)
    count = tl.load(starts + lane + 1) - first
    if COMMIT:
        count = tl.load(kept + lane)
    old = inside & (tl.load(past_lens + lane) > 0)
    carried = state + tl.load(slots + lane).to(tl.int64) * 3 * channels + at
    a = tl.load(carried, mask=old, other=0.0).to(tl.float32)
    b = tl.load(carried + channels, mask=old, other=0.0).to(tl.float32)
    c = tl.load(carried + 2 * channels, mask=old, other=0.0).to(tl.float32)
    if OUTPUT:
        wa = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
        wb = tl.load(weight + channels + at, mask=inside, other=0.0).to(tl.float32)
        wc = tl.load(weight + 2 * channels + at, mask=inside, other=0.0).to(tl.float32)
        wd = tl.load(weight + 3 * channels + at, mask=inside, other=0.0).to(tl.float32)
    for number in range(0, count):
        token = (first + number).to(tl.int64)
        d = tl.load(x + token * x_row + at, mask=inside, other=0.0).to(tl.float32)
        if OUTPUT:
            y = a * wa + b * wb + c * wc + d * wd
            tl.store(out + token * out_row + at, (y * tl.sigmoid(y)).to(out.dtype.element_ty), mask=inside)
        a = b
        b = c
        c = d
    if SETTLE:
        tl.store(carried, a.to(state.dtype.element_ty), mask=inside)
        tl.store(carried + channels, b.to(state.dtype.element_ty), mask=inside)
        tl.store(carried + 2 * channels, c.to(state.dtype.element_ty), mask=inside)


def convolve(x: Tensor, weight: Tensor, state: Tensor, lanes: Lanes, out: Tensor) -> None:
    """As `lanes.convolve`, for lanes of any lengths."""
    assert len(weight) == TAPS, "the kernel has four taps"
    _conv((x, weight, state, out), lanes, None)


def keep_conv(x: Tensor, state: Tensor, lanes: Lanes, kept: Tensor) -> None:
    """As `lanes.keep_conv`."""
    _conv((x, x, state, x), lanes, kept)


def _conv(tensors: tuple[Tensor, Tensor, Tensor, Tensor], lanes: Lanes, kept: Tensor | None) -> None:
    x, out = tensors[0], tensors[3]
    channels = tensors[2].shape[-1]
    _conv_kernel[(triton.cdiv(channels, CONV_BLOCK), len(lanes.past_lens))](
        *tensors,
        lanes.starts,
        lanes.past_lens,
        lanes.slots,
        lanes.slots if kept is None else kept,
        channels,
        x.stride(0),
        out.stride(0),
        BLOCK=CONV_BLOCK,
        OUTPUT=kept is None,
        SETTLE=lanes.settle or kept is not None,
        COMMIT=kept is not None,
        num_warps=2,
    )


@triton.jit
def softplus(x):
    """`log(1 + exp(x))`, which for large x is x to the last bit."""
    return tl.where(x > 20.0, x, tl.log(1.0 + tl.exp(tl.minimum(x, 20.0))))


@triton.jit(do_not_specialize_on_alignment=["starts", "past_lens", "slots", "kept"])
def _delta_kernel(
    mixed,
    convolved,
    rate,
    bias,
    norm,
    state,
    out,
    starts,
    past_lens,
    slots,
    kept,
    mixed_row,
    convolved_row,
    out_row,
    unit_eps,
    eps,
    KEY_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    KEY_WIDTH: tl.constexpr,
    WIDTH: tl.constexpr,
    OUTPUT: tl.constexpr,
    SETTLE: tl.constexpr,
    COMMIT: tl.constexpr,
):
    head = tl.program_id(0)
    lane = tl.program_id(1)
    first = tl.load(starts + lane)
    count = tl.load(starts + lane + 1) - first
    if COMMIT:
        count = tl.load(kept + lane)
    i = tl.arange(0, KEY_WIDTH)
    j = tl.arange(0, WIDTH)
    rows = i < KEY_DIM
    columns = j < DIM
    whole = rows[:, None] & columns[None, :]
    old = tl.load(past_lens + lane) > 0
    place = state + (tl.load(slots + lane).to(tl.int64) * HEADS + head) * KEY_DIM * DIM
    place += i[:, None] * DIM + j[None, :]
    s = tl.load(place, mask=whole & old, other=0.0)
    speed = tl.load(rate + head)
    lift = tl.load(bias + head)
    key_at = head // (HEADS // KEY_HEADS) * KEY_DIM + i
    value_at = 2 * KEY_HEADS * KEY_DIM + head * DIM + j
    for number in range(0, count):
        token = (first + number).to(tl.int64)
        here = convolved + token * convolved_row
        gates = mixed + token * mixed_row + 2 * KEY_HEADS * KEY_DIM + HEADS * DIM  # z, then b, then a
        k = tl.load(here + KEY_HEADS * KEY_DIM + key_at, mask=rows, other=0.0).to(tl.float32)
        v = tl.load(here + value_at, mask=columns, other=0.0).to(tl.float32)
        b = tl.load(gates + HEADS * DIM + head).to(tl.float32)
        a = tl.load(gates + HEADS * DIM + HEADS + head).to(tl.float32)
        k = k * tl.rsqrt(tl.sum(k * k, axis=0) + unit_eps)
        s = s * tl.exp(softplus(a + lift) * speed)
        d = (v - tl.sum(s * k[:, None], axis=0)) * tl.sigmoid(b)
        s += k[:, None] * d[None, :]
        if OUTPUT:
            q = tl.load(here + key_at, mask=rows, other=0.0).to(tl.float32)
            q = q * tl.rsqrt(tl.sum(q * q, axis=0) + unit_eps) * KEY_DIM**-0.5
            o = tl.sum(s * q[:, None], axis=0)
            o = o * tl.rsqrt(tl.sum(o * o, axis=0) / DIM + eps) * tl.load(norm + j, mask=columns, other=0.0)
            z = tl.load(gates + head * DIM + j, mask=columns, other=0.0).to(tl.float32)
            o = o * z * tl.sigmoid(z)
            tl.store(out + token * out_row + head * DIM + j, o.to(out.dtype.element_ty), mask=columns)
    if SETTLE:
        tl.store(place, s, mask=whole)


def delta(mixed: Tensor, convolved: Tensor, weights: DeltaWeights, state: Tensor, lanes: Lanes, out: Tensor) -> None:
    """As `lanes.delta`, for lanes of any lengths."""
    _delta((mixed, convolved, state, out), weights, lanes, None)


def keep_delta(
    mixed: Tensor, convolved: Tensor, weights: DeltaWeights, state: Tensor, lanes: Lanes, kept: Tensor
) -> None:
    """As `lanes.keep_delta`."""
    _delta((mixed, convolved, state, convolved), weights, lanes, kept)


def _delta(
    tensors: tuple[Tensor, Tensor, Tensor, Tensor], weights: DeltaWeights, lanes: Lanes, kept: Tensor | None
) -> None:
    mixed, convolved, state, out = tensors
    sizes = weights.sizes
    _delta_kernel[(sizes.value_heads, len(lanes.past_lens))](
        mixed,
        convolved,
        weights.rate,
        weights.bias,
        weights.norm,
        state,
        out,
        lanes.starts,
        lanes.past_lens,
        lanes.slots,
        lanes.slots if kept is None else kept,
        mixed.stride(0),
        convolved.stride(0),
        out.stride(0),
        UNIT_EPS,
        sizes.eps,
        KEY_HEADS=sizes.key_heads,
        KEY_DIM=sizes.key_dim,
        HEADS=sizes.value_heads,
        DIM=sizes.value_dim,
        KEY_WIDTH=triton.next_power_of_2(sizes.key_dim),
        WIDTH=triton.next_power_of_2(sizes.value_dim),
        OUTPUT=kept is None,
        SETTLE=lanes.settle or kept is not None,
        COMMIT=kept is not None,
        num_warps=DELTA_WARPS,
    )
