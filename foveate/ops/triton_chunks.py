"""Triton kernels of DeltaNet layers for many tokens per sequence: convolution, and the delta rule by chunks.

The rule of `gated_delta` in three kernels. For every chunk at once: `(I + A)^-1 beta [v, exp(G) k]`, the inverse by
forward substitution in blocks of 16 rows and by products between blocks. Per sequence, chunk after chunk: subtract
what the state knows, add what is left to it, keep the state before each chunk. For every chunk at once: outputs,
normed and gated. Products take the model's own numbers, lengths of queries and keys are factored out of them; sums,
decays and states are float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from foveate.ops.lanes import UNIT_EPS, DeltaWeights, Runs
from foveate.ops.triton_delta import softplus

CHUNK_LEN = 64
VALUE_BLOCK = 32  # columns of the state that one program carries through a sequence
PREPARE_WARPS, OUTPUT_WARPS = 4, 4
SCAN_WARPS, SCAN_STAGES = 4, 2
TOKENS, CHANNELS = 32, 128  # of a convolution's block


@triton.jit(do_not_specialize=["tokens"], do_not_specialize_on_alignment=["starts", "past_lens", "slots", "owner"])
def _conv_kernel(
    x,
    weight,
    state,
    out,
    starts,
    past_lens,
    slots,
    owner,
    tokens,
    channels,
    x_row,
    out_row,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    token = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    inside = at < channels
    real = token < tokens
    lane = tl.load(owner + token, mask=real, other=0)
    number = token - tl.load(starts + lane, mask=real, other=0)
    old = real & (tl.load(past_lens + lane, mask=real, other=0) > 0)
    slot = tl.load(slots + lane, mask=real, other=0).to(tl.int64)
    y = tl.zeros([ROWS, BLOCK], tl.float32)
    for tap in tl.static_range(4):
        back = 3 - tap
        new = real & (number >= back)
        row = (token - back).to(tl.int64)
        value = tl.load(x + row[:, None] * x_row + at[None, :], mask=new[:, None] & inside[None, :], other=0.0)
        carried = state + (slot * 3 + tap + number)[:, None] * channels + at[None, :]
        kept = tl.load(carried, mask=(old & (number < back))[:, None] & inside[None, :], other=0.0)
        taken = tl.where(new[:, None], value.to(tl.float32), kept.to(tl.float32))
        y += taken * tl.load(weight + tap * channels + at, mask=inside, other=0.0).to(tl.float32)[None, :]
    y = y * tl.sigmoid(y)
    place = out + token.to(tl.int64)[:, None] * out_row + at[None, :]
    tl.store(place, y.to(out.dtype.element_ty), mask=real[:, None] & inside[None, :])


@triton.jit(do_not_specialize_on_alignment=["starts", "past_lens", "slots"])
def _carry_kernel(x, state, starts, past_lens, slots, channels, x_row, BLOCK: tl.constexpr):
    lane = tl.program_id(1)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < channels
    first = tl.load(starts + lane)
    end = tl.load(starts + lane + 1)
    old = inside & (tl.load(past_lens + lane) > 0)
    rows = state + tl.load(slots + lane).to(tl.int64) * 3 * channels + at
    count = end - first
    last = x + end.to(tl.int64) * x_row + at
    a = tl.load(last - 3 * x_row, mask=inside & (count > 2), other=0.0)
    b = tl.load(last - 2 * x_row, mask=inside & (count > 1), other=0.0)
    c = tl.load(last - x_row, mask=inside, other=0.0)
    # Runs of one or two tokens keep some of the rows that they found.
    a = tl.where(count > 2, a, tl.load(rows + count * channels, mask=old & (count < 3), other=0.0))
    b = tl.where(count > 1, b, tl.load(rows + 2 * channels, mask=old & (count < 2), other=0.0))
    tl.debug_barrier()
    tl.store(rows, a, mask=inside)
    tl.store(rows + channels, b, mask=inside)
    tl.store(rows + 2 * channels, c, mask=inside)


def convolve_runs(x: Tensor, weight: Tensor, state: Tensor, runs: Runs, out: Tensor) -> None:
    """As `lanes.convolve`, for the many tokens of runs."""
    lanes, (tokens, channels) = runs.lanes, x.shape
    assert len(weight) == 4, "the kernel has four taps"
    _conv_kernel[(triton.cdiv(channels, CHANNELS), triton.cdiv(tokens, TOKENS))](
        x,
        weight,
        state,
        out,
        lanes.starts,
        lanes.past_lens,
        lanes.slots,
        lanes.owner,
        tokens,
        channels,
        x.stride(0),
        out.stride(0),
        ROWS=TOKENS,
        BLOCK=CHANNELS,
        num_warps=4,
    )
    _carry_kernel[(triton.cdiv(channels, 256), len(lanes.past_lens))](
        x, state, lanes.starts, lanes.past_lens, lanes.slots, channels, x.stride(0), BLOCK=256, num_warps=4
    )


@triton.jit
def _tile(at, token, real, row, columns, inside):
    return tl.load(at + token[:, None] * row + columns[None, :], mask=real[:, None] & inside[None, :], other=0.0)


@triton.jit
def _one_over_length(tile, eps):
    wide = tile.to(tl.float32)
    return tl.rsqrt(tl.sum(wide * wide, axis=1) + eps)


@triton.jit
def _unit_lower_inverse(a, P: tl.constexpr):
    """Inverse of I + a for a [64, 64] with nothing on or above the diagonal.

    With D the inverses of the 16-wide diagonal blocks and L what lies below these, `I + a = D^-1 (I + D L)`, and the
    fourth power of D L is zero.
    """
    block = tl.arange(0, 4)
    same = (block[:, None] == block[None, :])[:, None, :, None]
    parts = tl.reshape(a, [4, 16, 4, 16])
    row = tl.arange(0, 16)[None, :, None]
    column = tl.arange(0, 16)[None, None, :]
    diagonal = tl.sum(tl.where(same, parts, 0.0), axis=2)  # [blocks, rows, columns]
    inverse = tl.where(row == column, 1.0, 0.0) + tl.zeros([4, 16, 16], tl.float32)
    for n in range(1, 16):
        factors = tl.sum(tl.where(row == n, diagonal, 0.0), axis=1)  # row n of each block
        change = tl.sum(factors[:, :, None] * inverse, axis=1)
        inverse = tl.where(row == n, inverse - change[:, None, :], inverse)
    d = tl.reshape(tl.where(same, inverse[:, :, None, :], 0.0), [64, 64])
    below = tl.reshape(tl.where(same, 0.0, parts), [64, 64])
    step = -tl.dot(d, below, input_precision=P)
    twice = tl.dot(step, step, input_precision=P)
    powers = step + twice + tl.dot(step, twice, input_precision=P)
    return d + tl.dot(powers, d, input_precision=P)


@triton.jit(do_not_specialize_on_alignment=["starts", "chunks"])
def _prepare_kernel(
    mixed,
    convolved,
    rate,
    bias,
    totals,
    new,
    read,
    starts,
    chunks,
    mixed_row,
    convolved_row,
    unit_eps,
    KEY_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    KEY_WIDTH: tl.constexpr,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
    P: tl.constexpr,
):
    head = tl.program_id(0)
    chunk = tl.program_id(1)
    lane = tl.load(chunks + 2 * chunk)
    number = tl.arange(0, CHUNK)
    token = (tl.load(starts + lane) + tl.load(chunks + 2 * chunk + 1) + number).to(tl.int64)
    real = token < tl.load(starts + lane + 1)
    i = tl.arange(0, KEY_WIDTH)
    j = tl.arange(0, WIDTH)
    rows = i < KEY_DIM
    columns = j < DIM
    gates = mixed + token * mixed_row + 2 * KEY_HEADS * KEY_DIM + 2 * HEADS * DIM + head
    beta = tl.where(real, tl.sigmoid(tl.load(gates, mask=real, other=0.0).to(tl.float32)), 0.0)
    a = tl.load(gates + HEADS, mask=real, other=0.0).to(tl.float32)
    decay = tl.where(real, softplus(a + tl.load(bias + head)) * tl.load(rate + head), 0.0)
    total = tl.cumsum(decay, axis=0)
    tl.store(totals + token * HEADS + head, total, mask=real)
    keys = convolved + (KEY_HEADS + head // (HEADS // KEY_HEADS)) * KEY_DIM
    key = _tile(keys, token, real, convolved_row, i, rows)
    unit = _one_over_length(key, unit_eps)
    below = number[:, None] > number[None, :]
    fade = tl.exp(tl.where(below, total[:, None] - total[None, :], float("-inf")))
    dots = tl.dot(key, tl.trans(key), input_precision=P)
    inverse = _unit_lower_inverse(dots * (beta * unit)[:, None] * unit[None, :] * fade, P)
    wanted = _tile(convolved + 2 * KEY_HEADS * KEY_DIM + head * DIM, token, real, convolved_row, j, columns)
    x = tl.dot(inverse, wanted.to(tl.float32) * beta[:, None], input_precision=P)
    place = new + (token[:, None] * HEADS + head) * DIM + j[None, :]
    tl.store(place, x.to(new.dtype.element_ty), mask=real[:, None] & columns[None, :])
    x = tl.dot(inverse, key.to(tl.float32) * (beta * unit * tl.exp(total))[:, None], input_precision=P)
    place = read + (token[:, None] * HEADS + head) * KEY_DIM + i[None, :]
    tl.store(place, x.to(read.dtype.element_ty), mask=real[:, None] & rows[None, :])


@triton.jit(do_not_specialize_on_alignment=["starts", "past_lens", "slots", "chunk_starts"])
def _scan_kernel(
    convolved,
    totals,
    new,
    read,
    before,
    state,
    starts,
    past_lens,
    slots,
    chunk_starts,
    convolved_row,
    unit_eps,
    KEY_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    KEY_WIDTH: tl.constexpr,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
    P: tl.constexpr,
):
    head = tl.program_id(1)
    lane = tl.program_id(2)
    i = tl.arange(0, KEY_WIDTH)
    j = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    rows = i < KEY_DIM
    columns = j < DIM
    whole = rows[:, None] & columns[None, :]
    inner = i[:, None] * DIM + j[None, :]
    first = tl.load(starts + lane)
    end = tl.load(starts + lane + 1)
    old = tl.load(past_lens + lane) > 0
    place = state + (tl.load(slots + lane).to(tl.int64) * HEADS + head) * KEY_DIM * DIM + inner
    s = tl.load(place, mask=whole & old, other=0.0)
    keys = convolved + (KEY_HEADS + head // (HEADS // KEY_HEADS)) * KEY_DIM
    begin = tl.load(chunk_starts + lane)
    kept = before + (begin.to(tl.int64) * HEADS + head) * KEY_DIM * DIM + inner
    for chunk in range(begin, tl.load(chunk_starts + lane + 1)):
        here = first + (chunk - begin) * CHUNK
        token = (here + tl.arange(0, CHUNK)).to(tl.int64)
        real = token < end
        tl.store(kept, s.to(before.dtype.element_ty), mask=whole)
        kept += HEADS * KEY_DIM * DIM
        key = _tile(keys, token, real, convolved_row, i, rows)
        last = tl.load(totals + (tl.minimum(here + CHUNK, end) - 1).to(tl.int64) * HEADS + head)
        total = tl.load(totals + token * HEADS + head, mask=real, other=0.0)
        total = tl.where(real, total, last)
        w = _tile(read + head * KEY_DIM, token, real, HEADS * KEY_DIM, i, rows)
        x = new + (token[:, None] * HEADS + head) * DIM + j[None, :]
        u = tl.load(x, mask=real[:, None] & columns[None, :], other=0.0).to(tl.float32)
        u -= tl.dot(w, s.to(w.dtype), input_precision=P)
        tl.store(x, u.to(new.dtype.element_ty), mask=real[:, None] & columns[None, :])
        u = u * (_one_over_length(key, unit_eps) * tl.exp(last - total))[:, None]
        s = s * tl.exp(last) + tl.dot(tl.trans(key), u.to(key.dtype), input_precision=P)
    tl.store(place, s, mask=whole)


@triton.jit(do_not_specialize_on_alignment=["starts", "chunks"])
def _output_kernel(
    mixed,
    convolved,
    norm,
    totals,
    new,
    before,
    out,
    starts,
    chunks,
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
    CHUNK: tl.constexpr,
    P: tl.constexpr,
):
    head = tl.program_id(0)
    chunk = tl.program_id(1)
    lane = tl.load(chunks + 2 * chunk)
    number = tl.arange(0, CHUNK)
    token = (tl.load(starts + lane) + tl.load(chunks + 2 * chunk + 1) + number).to(tl.int64)
    real = token < tl.load(starts + lane + 1)
    i = tl.arange(0, KEY_WIDTH)
    j = tl.arange(0, WIDTH)
    rows = i < KEY_DIM
    columns = j < DIM
    at = convolved + head // (HEADS // KEY_HEADS) * KEY_DIM
    query = _tile(at, token, real, convolved_row, i, rows)
    key = _tile(at + KEY_HEADS * KEY_DIM, token, real, convolved_row, i, rows)
    total = tl.load(totals + token * HEADS + head, mask=real, other=0.0)
    s = before + (chunk.to(tl.int64) * HEADS + head) * KEY_DIM * DIM + i[:, None] * DIM + j[None, :]
    known = tl.dot(query, tl.load(s, mask=rows[:, None] & columns[None, :], other=0.0), input_precision=P)
    reach = (number[:, None] >= number[None, :]) & real[:, None]
    fade = tl.exp(tl.where(reach, total[:, None] - total[None, :], float("-inf")))
    inside = tl.dot(query, tl.trans(key), input_precision=P) * fade * _one_over_length(key, unit_eps)[None, :]
    u = _tile(new + head * DIM, token, real, HEADS * DIM, j, columns)
    o = known * tl.exp(total)[:, None] + tl.dot(inside.to(u.dtype), u, input_precision=P)
    o = o * (_one_over_length(query, unit_eps) * KEY_DIM**-0.5)[:, None]
    o = o * tl.rsqrt(tl.sum(o * o, axis=1) / DIM + eps)[:, None]
    o = o * tl.load(norm + j, mask=columns, other=0.0)[None, :]
    z = _tile(mixed + 2 * KEY_HEADS * KEY_DIM + HEADS * DIM + head * DIM, token, real, mixed_row, j, columns)
    z = z.to(tl.float32)
    o = o * z * tl.sigmoid(z)
    place = out + token[:, None] * out_row + head * DIM + j[None, :]
    tl.store(place, o.to(out.dtype.element_ty), mask=real[:, None] & columns[None, :])


def delta_runs(mixed: Tensor, convolved: Tensor, weights: DeltaWeights, state: Tensor, runs: Runs, out: Tensor) -> None:
    """As `lanes.delta`, for the many tokens of runs."""
    sizes, lanes, dtype = weights.sizes, runs.lanes, convolved.dtype
    heads, key_dim, dim = sizes.value_heads, sizes.key_dim, sizes.value_dim

    def scratch(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=mixed.device)

    tokens, count = len(mixed), len(runs.chunks)
    totals = scratch(tokens, heads, dtype=torch.float32)
    new, read = scratch(tokens, heads, dim), scratch(tokens, heads, key_dim)
    before = scratch(count, heads, key_dim, dim)
    rows = (mixed.stride(0), convolved.stride(0))
    shape = {"KEY_HEADS": sizes.key_heads, "KEY_DIM": key_dim, "HEADS": heads, "DIM": dim, "CHUNK": CHUNK_LEN}
    shape |= {"KEY_WIDTH": max(16, triton.next_power_of_2(key_dim)), "P": _precision(dtype)}
    width = max(16, triton.next_power_of_2(dim))
    _prepare_kernel[(heads, count)](
        mixed, convolved, weights.rate, weights.bias, totals, new, read, lanes.starts, runs.chunks, *rows, UNIT_EPS,
        **shape, WIDTH=width, num_warps=PREPARE_WARPS, num_stages=1,
    )  # fmt: skip
    block = min(VALUE_BLOCK, width)
    _scan_kernel[(triton.cdiv(dim, block), heads, len(lanes.past_lens))](
        convolved, totals, new, read, before, state, lanes.starts, lanes.past_lens, lanes.slots, runs.chunk_starts,
        rows[1], UNIT_EPS, **shape, WIDTH=block, num_warps=SCAN_WARPS, num_stages=SCAN_STAGES,
    )  # fmt: skip
    _output_kernel[(heads, count)](
        mixed, convolved, weights.norm, totals, new, before, out, lanes.starts, runs.chunks, *rows, out.stride(0),
        UNIT_EPS, sizes.eps, **shape, WIDTH=width, num_warps=OUTPUT_WARPS, num_stages=1,
    )  # fmt: skip


def _precision(dtype: torch.dtype) -> str:
    """Of products of float32 numbers: nearly full where the model is float32, else about that of its own numbers."""
    return "tf32x3" if dtype == torch.float32 else "tf32"
