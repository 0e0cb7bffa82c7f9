"""Triton kernels that work row by row: RMS norm, SwiGLU product, rope, norm + rope + page write, a look at logits.

Each equals its reference in `layers` or `lanes` up to rounding: sums are float32, results are rounded once. Nothing is
read but the rows asked for; keys and values go to their pages without a pass through memory in between. Imported only
where kernels were chosen.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from foveate.ops.lanes import HeadSizes, Lanes


@triton.jit
def _rms_norm_kernel(x, scale, out, width, x_row, out_row, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    value = tl.load(x + row * x_row + at, mask=inside, other=0.0).to(tl.float32)
    value *= tl.rsqrt(tl.sum(value * value, axis=0) / width + eps)
    value *= tl.load(scale + at, mask=inside, other=0.0)
    tl.store(out + row * out_row + at, value.to(out.dtype.element_ty), mask=inside)


def rms_norm(x: Tensor, scale: Tensor, eps: float) -> Tensor:
    """As `layers.rms_norm`: x [tokens, width], scale float32 [width]."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    width = x.shape[1]
    block = triton.next_power_of_2(width)
    _rms_norm_kernel[(len(x),)](
        x, scale, out, width, x.stride(0), out.stride(0), eps, BLOCK=block, num_warps=8 if block > 2048 else 4
    )
    return out


@triton.jit
def _gated_product_kernel(both, out, width, both_row, out_row, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    gate = tl.load(both + row * both_row + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(both + row * both_row + width + at, mask=inside, other=0.0).to(tl.float32)
    value = gate * tl.sigmoid(gate) * up
    tl.store(out + row * out_row + at, value.to(out.dtype.element_ty), mask=inside)


def gated_product(both: Tensor) -> Tensor:
    """`silu(gate) * up` of both [tokens, 2 * inner], gate columns first; returns [tokens, inner]."""
    tokens, width = both.shape[0], both.shape[1] // 2
    out = torch.empty(tokens, width, dtype=both.dtype, device=both.device)
    block = 1024
    grid = (tokens, triton.cdiv(width, block))  # only the first may be longer than 65,535
    _gated_product_kernel[grid](both, out, width, both.stride(0), out.stride(0), BLOCK=block, num_warps=4)
    return out


@triton.jit(
    do_not_specialize=["tokens", "pages_row"],
    do_not_specialize_on_alignment=["starts", "past_lens", "pages", "owner"],
)
def _place_kernel(
    mixed,
    scale,
    cos,
    sin,
    query,
    keys,
    values,
    starts,
    past_lens,
    pages,
    owner,
    tokens,
    mixed_row,
    pages_row,
    page_len,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    HALF: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):
    head = tl.program_id(1)
    token = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    real = token < tokens
    at = tl.arange(0, WIDTH)
    inside = real[:, None] & (at < DIM)[None, :]
    row = token.to(tl.int64)[:, None]
    source = mixed + row * mixed_row + head * DIM
    raw = tl.load(source + at[None, :], mask=inside, other=0.0)
    lane = tl.load(owner + token, mask=real, other=0)
    index = token - tl.load(starts + lane, mask=real, other=0) + tl.load(past_lens + lane, mask=real, other=0)
    page = tl.load(pages + lane.to(tl.int64) * pages_row + index // page_len, mask=real, other=0).to(tl.int64)
    slot = (page * page_len + index % page_len)[:, None]
    if head >= HEADS + KV_HEADS:
        to = values + (slot * KV_HEADS + head - HEADS - KV_HEADS) * DIM + at[None, :]
        tl.store(to, raw, mask=inside)
    else:
        x = raw.to(tl.float32)
        rate = tl.rsqrt(tl.sum(x * x, axis=1) / DIM + eps)[:, None]
        # Dimension i turns with i + HALF: each reads its partner once more, from the cache.
        turned = (at < 2 * HALF)[None, :]
        partner = tl.where(at < HALF, at + HALF, tl.where(at < 2 * HALF, at - HALF, at))
        other = tl.load(source + partner[None, :], mask=inside, other=0.0).to(tl.float32)
        x = x * rate * tl.load(scale + head * DIM + at, mask=at < DIM, other=0.0)[None, :]
        other = other * rate * tl.load(scale + head * DIM + partner, mask=at < DIM, other=0.0)[None, :]
        angle = row * HALF + (at % HALF)[None, :]
        c = tl.load(cos + angle, mask=inside & turned, other=1.0)
        s = tl.load(sin + angle, mask=inside & turned, other=0.0)
        y = x * c + other * tl.where(at < HALF, -1.0, 1.0)[None, :] * s
        if head < HEADS:
            tl.store(query + (row * HEADS + head) * DIM + at[None, :], y.to(query.dtype.element_ty), mask=inside)
        else:
            to = keys + (slot * KV_HEADS + head - HEADS) * DIM + at[None, :]
            tl.store(to, y.to(keys.dtype.element_ty), mask=inside)


def place(
    mixed: Tensor,
    scale: Tensor,
    rope: tuple[Tensor, Tensor],
    memory: tuple[Tensor, Tensor],
    lanes: Lanes,
    sizes: HeadSizes,
) -> Tensor:
    """As `lanes.place`, for lanes of any lengths; cos and sin are contiguous."""
    assert all(x.is_contiguous() for x in rope), "cos and sin are read by the row"
    tokens = len(mixed)
    query = torch.empty(tokens, sizes.heads, sizes.dim, dtype=mixed.dtype, device=mixed.device)
    rows = 1 if tokens <= 64 else 8
    _place_kernel[(triton.cdiv(tokens, rows), sizes.heads + 2 * sizes.kv_heads)](
        mixed,
        scale,
        *rope,
        query,
        *memory,
        lanes.starts,
        lanes.past_lens,
        lanes.pages,
        lanes.owner,
        tokens,
        mixed.stride(0),
        lanes.pages.stride(0),
        lanes.page_len,
        sizes.eps,
        HEADS=sizes.heads,
        KV_HEADS=sizes.kv_heads,
        DIM=sizes.dim,
        HALF=rope[0].shape[-1],
        WIDTH=triton.next_power_of_2(sizes.dim),
        ROWS=rows,
        num_warps=2 if rows == 1 else 4,
    )
    return query


@triton.jit(do_not_specialize=["tokens"], do_not_specialize_on_alignment=["positions"])
def _angles_kernel(positions, frequency, axes, cos, sin, tokens, half, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < half
    axis = tl.load(axes + at, mask=inside, other=0)
    angle = tl.load(positions + axis * tokens + token, mask=inside, other=0).to(tl.float32)
    angle *= tl.load(frequency + at, mask=inside, other=0.0)
    tl.store(cos + token * half + at, tl.cos(angle), mask=inside)
    tl.store(sin + token * half + at, tl.sin(angle), mask=inside)


def cos_sin(positions: Tensor, frequency: Tensor, axes: Tensor) -> tuple[Tensor, Tensor]:
    """As `rope.mrope_cos_sin`; positions: contiguous [3, tokens]."""
    assert positions.is_contiguous(), "positions are read axis by axis"
    tokens, half = positions.shape[1], len(frequency)
    cos, sin = (torch.empty(tokens, 1, half, dtype=torch.float32, device=positions.device) for _ in "cs")
    block = triton.next_power_of_2(half)
    _angles_kernel[(tokens,)](positions, frequency, axes, cos, sin, tokens, half, BLOCK=block, num_warps=1)
    return cos, sin


@triton.jit
def _scan_logits_kernel(logits, tops, places, faults, width, blocks, row_step, BLOCK: tl.constexpr):
    block = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    at = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + row * row_step + at, mask=at < width, other=float("-inf"))
    fault = (at < width) & ~(tl.abs(x) < float("inf"))
    # A largest value that is not a number may be found at any place, also behind the end.
    top, place = tl.max(tl.where(fault, float("-inf"), x), axis=0, return_indices=True)
    out = row * blocks + block
    tl.store(tops + out, top)
    tl.store(places + out, block * BLOCK + place)
    tl.store(faults + out, tl.sum(fault.to(tl.int32), axis=0))


@triton.jit(do_not_specialize=["rows"])
def _join_scan_kernel(tops, places, faults, out, rows, blocks, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < blocks
    top = tl.load(tops + row * blocks + at, mask=inside, other=float("-inf"))
    _, block = tl.max(top, axis=0, return_indices=True)
    place = tl.sum(tl.where(at == block, tl.load(places + row * blocks + at, mask=inside, other=0), 0), axis=0)
    faults_here = tl.sum(tl.load(faults + row * blocks + at, mask=inside, other=0), axis=0)
    tl.store(out + row, place.to(tl.int64))
    tl.store(out + rows + row, (faults_here == 0).to(tl.int64))


def glance(logits: Tensor) -> Tensor:
    """As `lanes.glance`; of equal largest logits the first is the best."""
    (rows, width), device, cut = logits.shape, logits.device, 4096
    blocks = triton.cdiv(width, cut)
    tops = torch.empty(rows, blocks, dtype=torch.float32, device=device)
    places, faults = (torch.empty(rows, blocks, dtype=torch.int32, device=device) for _ in "pf")
    out = torch.empty(2, rows, dtype=torch.int64, device=device)
    _scan_logits_kernel[(blocks, rows)](
        logits, tops, places, faults, width, blocks, logits.stride(0), BLOCK=cut, num_warps=4
    )
    _join_scan_kernel[(rows,)](
        tops, places, faults, out, rows, blocks, BLOCK=triton.next_power_of_2(blocks), num_warps=2
    )
    return out
