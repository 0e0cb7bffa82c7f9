"""Products of few rows with what surrounds them, against plain torch, on a GPU or in the interpreter (it truncates)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.support.interpreter import close  # isort: skip - before any kernel
from foveate.ops import triton_linear
from foveate.ops.lanes import Norm
from foveate.ops.layers import rms_norm
from tests.ops.test_triton_rows import DTYPES, drawn

SHAPES = [(1, 64, 40), (1, 520, 33), (2, 100, 70), (16, 130, 48)]


def made(rows: int, ins: int, outs: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Norm]:
    weight = drawn(outs, ins, dtype=dtype, seed=1).T
    return drawn(rows, ins, dtype=dtype), weight, Norm(drawn(ins, seed=2), 1e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize(("rows", "ins", "outs"), SHAPES)
def test_products(rows: int, ins: int, outs: int, normed: bool, dtype: torch.dtype, tolerance: float) -> None:
    x, weight, norm = made(rows, ins, outs, dtype)
    wide = rms_norm(x.float(), norm.scale, norm.eps) if normed else x.float()
    want = wide @ weight.float()
    close(triton_linear.project(x, weight, norm if normed else None), want, 2 * tolerance)
    target = drawn(rows, outs, dtype=dtype, seed=3)
    sums = target.float() + x.float() @ weight.float()
    triton_linear.add_projected(target, x, weight)
    close(target, sums, tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize(("rows", "ins", "outs"), SHAPES)
def test_gated_products(rows: int, ins: int, outs: int, dtype: torch.dtype, tolerance: float) -> None:
    x, weight, norm = made(rows, ins, 2 * outs, dtype)
    gate, up = (rms_norm(x.float(), norm.scale, norm.eps) @ weight.float()).chunk(2, -1)
    close(triton_linear.project_gated(x, weight, norm), torch.nn.functional.silu(gate) * up, 2 * tolerance)


def test_only_few_rows_and_inputs_side_by_side_fit() -> None:
    x, weight, _ = made(2, 64, 40, torch.float32)
    assert triton_linear.fits(x, weight)
    assert not triton_linear.fits(x, weight.contiguous())
    assert not triton_linear.fits(drawn(17, 64), weight)
