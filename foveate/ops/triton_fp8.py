"""Triton kernels for matrices in block-scaled 8-bit floats: products of few rows, of chosen experts, and unpacking.

Each equals its reference in `fp8` up to rounding: 8-bit values are exact in any wider type, products of a block are
summed in float32 and scaled after the sum, results are rounded once. The order of sums depends on the matrix alone,
never on how many rows are multiplied. Long columns of narrow matrices are split among programs, so that enough of them
read at once to keep the memory busy. Imported only where kernels were chosen.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

WAVE = 264  # programs that keep a large GPU busy: two for each of 132 multiprocessors
BLOCK_OUT = 32  # output columns of a program
LEAST_BLOCKS = 4  # blocks of input that are worth a program of their own
UNPACKED_ROWS = 16


@triton.jit
def _project_kernel(
    x, values, scales, parts, tokens, rows, columns, blocks, share, x_row,
    TOKENS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """parts[split, tokens, rows]: x [tokens, columns] times values [rows, columns], over the split's blocks."""
    split = tl.program_id(1)
    token = tl.arange(0, TOKENS)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    has_token, has_row = token < tokens, row < rows
    total = tl.zeros((TOKENS, ROWS), dtype=tl.float32)
    for block in range(split * share, tl.minimum((split + 1) * share, blocks)):
        column = block * WIDTH + tl.arange(0, WIDTH)
        inside = column < columns
        left = tl.load(
            x + token.to(tl.int64)[:, None] * x_row + column[None, :],
            mask=has_token[:, None] & inside[None, :],
            other=0.0,
        )
        right = tl.load(
            values + row.to(tl.int64)[None, :] * columns + column[:, None],
            mask=has_row[None, :] & inside[:, None],
            other=0.0,
        )
        scale = tl.load(scales + row.to(tl.int64) * blocks + block, mask=has_row, other=0.0)
        total += tl.dot(left, right.to(left.dtype), input_precision="ieee") * scale[None, :]
    place = (split * tokens + token).to(tl.int64)[:, None] * rows + row[None, :]
    tl.store(parts + place, total.to(parts.dtype.element_ty), mask=has_token[:, None] & has_row[None, :])


def splits_of(rows: int, blocks: int) -> int:
    """Among how many programs the columns of a matrix are split."""
    most = max(1, blocks // LEAST_BLOCKS)
    return min(most, max(1, WAVE // -(-rows // BLOCK_OUT)))


def project(x: Tensor, values: Tensor, scales: Tensor, width: int) -> Tensor:
    """`x @ matrix.T` in x's dtype: x [tokens, columns], few; values e4m3 [rows, columns], scales [rows, blocks]."""
    (tokens, columns), (rows, blocks) = x.shape, scales.shape
    splits = splits_of(rows, blocks)
    share = triton.cdiv(blocks, splits)
    kind = x.dtype if splits == 1 else torch.float32
    parts = torch.empty(splits, tokens, rows, dtype=kind, device=x.device)
    _project_kernel[(triton.cdiv(rows, BLOCK_OUT), splits)](
        x, values, scales, parts, tokens, rows, columns, blocks, share, x.stride(0),
        TOKENS=max(16, triton.next_power_of_2(tokens)), ROWS=BLOCK_OUT, WIDTH=width, num_warps=4, num_stages=4,
    )  # fmt: skip
    return parts[0] if splits == 1 else parts.sum(0).to(x.dtype)


@triton.jit
def _chosen_kernel(
    x, values, scales, chosen, out, rows, columns, blocks, x_row, each,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """out[pair, rows]: row `pair // each` of x times the matrix of the pair's expert."""
    pair = tl.program_id(1).to(tl.int64)
    expert = tl.load(chosen + pair).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    has_row = row < rows
    place = expert * rows + row
    total = tl.zeros((ROWS,), dtype=tl.float32)
    for block in range(0, blocks):
        column = block * WIDTH + tl.arange(0, WIDTH)
        inside = column < columns
        left = tl.load(x + (pair // each) * x_row + column, mask=inside, other=0.0).to(tl.float32)
        right = tl.load(
            values + place[:, None] * columns + column[None, :], mask=has_row[:, None] & inside[None, :], other=0.0
        ).to(tl.float32)
        scale = tl.load(scales + place * blocks + block, mask=has_row, other=0.0)
        total += tl.sum(right * left[None, :], axis=1) * scale
    tl.store(out + pair * rows + row, total.to(out.dtype.element_ty), mask=has_row)


def project_chosen(x: Tensor, values: Tensor, scales: Tensor, width: int, chosen: Tensor) -> Tensor:
    """Row `pair // each` of x times the matrix of expert `chosen[pair]`: [pairs, rows] in x's dtype.

    x: [pairs / each, columns]; values: e4m3 [experts, rows, columns]; scales: [experts, rows, blocks].
    """
    rows, columns = values.shape[-2:]
    out = torch.empty(len(chosen), rows, dtype=x.dtype, device=x.device)
    _chosen_kernel[(triton.cdiv(rows, BLOCK_OUT), len(chosen))](
        x, values, scales, chosen, out, rows, columns, scales.shape[-1], x.stride(0), len(chosen) // len(x),
        ROWS=BLOCK_OUT, WIDTH=width, num_warps=4, num_stages=4,
    )  # fmt: skip
    return out


@triton.jit
def _unpack_kernel(values, scales, out, rows, columns, blocks, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    block = tl.program_id(1)
    column = block * WIDTH + tl.arange(0, WIDTH)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    place = row[:, None] * columns + column[None, :]
    scale = tl.load(scales + row * blocks + block, mask=row < rows, other=0.0)
    value = tl.load(values + place, mask=inside, other=0.0).to(tl.float32) * scale[:, None]
    tl.store(out + place, value.to(out.dtype.element_ty), mask=inside)


def unpack(values: Tensor, scales: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """All numbers in `dtype`: values [..., rows, columns] and scales [..., rows, blocks] as in `project`."""
    out = torch.empty(values.shape, dtype=dtype, device=values.device)
    columns, blocks = values.shape[-1], scales.shape[-1]
    rows = values.numel() // columns  # experts stand above one another
    grid = (triton.cdiv(rows, UNPACKED_ROWS), blocks)
    _unpack_kernel[grid](values, scales, out, rows, columns, blocks, ROWS=UNPACKED_ROWS, WIDTH=width, num_warps=4)
    return out
