"""8-bit kernels against their references, on a GPU or in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.support.interpreter import DEVICE, close  # isort: skip - before any kernel
from foveate.ops import triton_fp8
from foveate.ops.fp8 import Blocked, dequantise

DTYPES = [(torch.float32, 2e-6), (torch.bfloat16, 6e-3)]
SHAPES = [(96, 256), (40, 130), (33, 1024)]  # rows, columns: whole blocks, cut ones, split ones


def made(*shape: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """8-bit values and their block scales, of very different sizes."""
    random = torch.Generator().manual_seed(seed)
    values = (torch.randn(shape, generator=random) * 40).to(torch.float8_e4m3fn)
    down, across = -(-shape[-2] // 128), -(-shape[-1] // 128)
    scales = torch.rand((*shape[:-2], down, across), generator=random) * 0.05 + 0.001
    return values.to(DEVICE), scales.to(DEVICE)


def rows(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(9)).to(DEVICE, dtype)


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tokens", [1, 5, 17])
def test_project(tokens: int, shape: tuple[int, int], dtype: torch.dtype, tolerance: float) -> None:
    values, scales = made(*shape)
    weight = Blocked.of(values, scales)
    x = rows(tokens, shape[1] + 3, dtype=dtype)[:, : shape[1]]  # rows that stand apart in memory
    got = triton_fp8.project(x, weight.values, weight.scales, weight.width)
    assert got.dtype == dtype
    close(got, x.double() @ dequantise(values, scales).double().T, tolerance)


def test_a_row_does_not_depend_on_its_company() -> None:
    weight, x = Blocked.of(*made(40, 512)), rows(7, 512, dtype=torch.bfloat16)
    together = triton_fp8.project(x, weight.values, weight.scales, weight.width)
    for i in range(7):
        alone = triton_fp8.project(x[i : i + 1], weight.values, weight.scales, weight.width)
        assert torch.equal(alone[0], together[i])


def test_columns_are_split_where_few_programs_would_work() -> None:
    assert triton_fp8.splits_of(17_408 * 2, 40) == 1
    assert triton_fp8.splits_of(2560, 72) == 3
    assert triton_fp8.splits_of(64, 8) == 2 and triton_fp8.splits_of(64, 3) == 1


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_project_chosen(dtype: torch.dtype, tolerance: float) -> None:
    values, scales = made(5, 40, 130)
    weight, x = Blocked.of(values, scales), rows(3, 130, dtype=dtype)
    chosen = torch.tensor([4, 0, 2, 2, 1, 4], device=DEVICE)
    got = triton_fp8.project_chosen(x, weight.values, weight.scales, weight.width, chosen)
    dense = dequantise(values, scales).double()
    want = torch.stack([dense[int(e)] @ x[pair // 2].double() for pair, e in enumerate(chosen)])
    close(got, want, tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(40, 130), (3, 40, 256)])
def test_unpacking_is_exact(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    values, scales = made(*shape)
    weight = Blocked.of(values, scales)
    got = triton_fp8.unpack(weight.values, weight.scales, weight.width, dtype)
    want = dequantise(values, scales, dtype=dtype)
    if DEVICE == "cpu" and dtype == torch.bfloat16:  # the interpreter cuts off where a GPU rounds
        close(got, want, 6e-3)
    else:
        assert torch.equal(got, want)
