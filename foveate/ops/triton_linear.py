"""Triton kernels that multiply a few rows with a matrix: what a decode step spends its time on.

Each program reads whole rows of a matrix that is stored with its inputs side by side ([in, out] with strides 1, in),
so that nothing is split and what stands around the product comes for free: the RMS norm before it, SiLU-gating or the
residual sum behind it. One row is multiplied without tensor cores. Sums are float32; a norm's result is not rounded in
between where the row is multiplied directly. Knows no layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from foveate.ops.lanes import Norm

MOST_ROWS = 16


@dataclass(frozen=True, slots=True)
class Tile:
    """How a product is cut: outputs and inputs taken at once, warps of a program, loads under way."""

    outs: int
    ins: int
    warps: int
    stages: int


def fits(x: Tensor, weight: Tensor) -> bool:
    """Whether these kernels multiply x [rows, in] with weight [in, out]: few rows, and inputs side by side."""
    return len(x) <= MOST_ROWS and weight.stride(0) == 1 and x.stride(1) == 1


def tile_for(rows: int, outs: int, ins: int) -> Tile:
    """The cut for a shape, a first guess until a table of measurements replaces it (`bench/kernels.py`)."""
    if rows == 1:
        most = 1024 if ins % 1024 == 0 and outs <= 8192 else 512
        return Tile(8 if outs <= 8192 else 16, min(most, triton.next_power_of_2(ins)), 8 if ins >= 512 else 4, 3)
    most = max(16, triton.next_power_of_2(ins))
    return Tile(16, min(256, most), 4, 4) if outs <= 8192 else Tile(32, min(128, most), 4, 4)


@triton.jit(do_not_specialize=["rows"])
def _few_kernel(
    x,
    weight,
    scale,
    out,
    rows,
    ins,
    outs,
    second,
    x_row,
    weight_row,
    out_row,
    eps,
    ROWS: tl.constexpr,
    OUTS: tl.constexpr,
    INS: tl.constexpr,
    EVEN: tl.constexpr,
    NORM: tl.constexpr,
    GATED: tl.constexpr,
    ADD: tl.constexpr,
):
    n = tl.program_id(0) * OUTS + tl.arange(0, OUTS)
    valid = n < outs
    m = tl.arange(0, ROWS)
    real = m < rows
    source = weight + n.to(tl.int64)[:, None] * weight_row
    acc = tl.zeros([ROWS, OUTS], tl.float32)
    also = tl.zeros([ROWS, OUTS], tl.float32)
    squares = tl.zeros([ROWS], tl.float32)
    for start in range(0, ins, INS):
        k = start + tl.arange(0, INS)
        inside = k < ins
        a = tl.load(x + m[:, None] * x_row + k[None, :], mask=real[:, None] & inside[None, :], other=0.0)
        w_mask = valid[:, None] if EVEN else valid[:, None] & inside[None, :]
        w = tl.load(source + k[None, :], mask=w_mask, other=0.0, eviction_policy="evict_first")
        if NORM:
            wide = a.to(tl.float32)
            squares += tl.sum(wide * wide, axis=1)
            a = (wide * tl.load(scale + k, mask=inside, other=0.0)[None, :]).to(a.dtype)
        acc = tl.dot(a, tl.trans(w), acc, input_precision="tf32x3")
        if GATED:
            w = tl.load(source + second + k[None, :], mask=w_mask, other=0.0, eviction_policy="evict_first")
            also = tl.dot(a, tl.trans(w), also, input_precision="tf32x3")
    if NORM:
        rate = tl.rsqrt(squares / ins + eps)[:, None]
        acc *= rate
        also *= rate
    if GATED:
        acc = acc * tl.sigmoid(acc) * also
    place = out + m[:, None] * out_row + n[None, :]
    mask = real[:, None] & valid[None, :]
    if ADD:
        acc += tl.load(place, mask=mask, other=0.0).to(tl.float32)
    tl.store(place, acc.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _one_kernel(
    x,
    weight,
    scale,
    out,
    ins,
    outs,
    second,
    weight_row,
    eps,
    OUTS: tl.constexpr,
    INS: tl.constexpr,
    EVEN: tl.constexpr,
    NORM: tl.constexpr,
    GATED: tl.constexpr,
    ADD: tl.constexpr,
):
    n = tl.program_id(0) * OUTS + tl.arange(0, OUTS)
    valid = n < outs
    source = weight + n.to(tl.int64)[:, None] * weight_row
    acc = tl.zeros([OUTS, INS], tl.float32)
    also = tl.zeros([OUTS, INS], tl.float32)
    squares = tl.zeros([INS], tl.float32)
    for start in range(0, ins, INS):
        k = start + tl.arange(0, INS)
        inside = k < ins
        w_mask = valid[:, None] if EVEN else valid[:, None] & inside[None, :]
        w = tl.load(source + k[None, :], mask=w_mask, other=0.0, eviction_policy="evict_first")
        a = tl.load(x + k, mask=inside, other=0.0).to(tl.float32)
        if NORM:
            squares += a * a
            a *= tl.load(scale + k, mask=inside, other=0.0)
        acc += w.to(tl.float32) * a[None, :]
        if GATED:
            w = tl.load(source + second + k[None, :], mask=w_mask, other=0.0, eviction_policy="evict_first")
            also += w.to(tl.float32) * a[None, :]
    y = tl.sum(acc, axis=1)
    if NORM:
        rate = tl.rsqrt(tl.sum(squares, axis=0) / ins + eps)
        y *= rate
    if GATED:
        up = tl.sum(also, axis=1)
        if NORM:
            up *= rate
        y = y * tl.sigmoid(y) * up
    if ADD:
        y += tl.load(out + n, mask=valid, other=0.0).to(tl.float32)
    tl.store(out + n, y.to(out.dtype.element_ty), mask=valid)


def project(x: Tensor, weight: Tensor, norm: Norm | None, tile: Tile | None = None) -> Tensor:
    """`norm(x) @ weight`: x [rows, in], weight [in, out]; returns [rows, out]."""
    out = torch.empty(len(x), weight.shape[1], dtype=x.dtype, device=x.device)
    _multiply((x, weight, out), norm, tile, {"GATED": False, "ADD": False})
    return out


def project_gated(x: Tensor, weight: Tensor, norm: Norm | None, tile: Tile | None = None) -> Tensor:
    """`silu(gate) * up` of norm(x) @ weight [in, 2 * inner], gate columns first; returns [rows, inner]."""
    out = torch.empty(len(x), weight.shape[1] // 2, dtype=x.dtype, device=x.device)
    _multiply((x, weight, out), norm, tile, {"GATED": True, "ADD": False})
    return out


def add_projected(target: Tensor, x: Tensor, weight: Tensor, tile: Tile | None = None) -> None:
    """`target += x @ weight`, in place; target must not be x."""
    _multiply((x, weight, target), None, tile, {"GATED": False, "ADD": True})


def _multiply(
    tensors: tuple[Tensor, Tensor, Tensor], norm: Norm | None, tile: Tile | None, kind: dict[str, bool]
) -> None:
    x, weight, out = tensors
    assert fits(x, weight) and out.stride(1) == 1, "not a product for these kernels"
    (rows, ins), outs = x.shape, out.shape[1]
    tile = tile or tile_for(rows, outs, ins)
    kind |= {"NORM": norm is not None, "EVEN": ins % tile.ins == 0}
    scale, eps = (x, 0.0) if norm is None else (norm.scale, norm.eps)
    grid, row = (triton.cdiv(outs, tile.outs),), weight.stride(1)
    cut = {"OUTS": tile.outs, "INS": tile.ins, "num_warps": tile.warps, "num_stages": tile.stages}
    if rows == 1:
        _one_kernel[grid](x, weight, scale, out, ins, outs, outs * row, row, eps, **kind, **cut)
        return
    _few_kernel[grid](
        x, weight, scale, out, rows, ins, outs, outs * row, x.stride(0), row, out.stride(0), eps,
        ROWS=max(16, triton.next_power_of_2(rows)), **kind, **cut,
    )  # fmt: skip
