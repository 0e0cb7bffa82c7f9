"""Block-scaled 8-bit matrices: the exact values of the format, and products equal to the plain matrix's."""

from __future__ import annotations

import pytest
import torch

from foveate.ops.fp8 import Beside, Blocked, add_projected, chosen_swiglu, dequantise, numbers, project, stack
from foveate.ops.moe import expert_swiglu

E4M3 = torch.float8_e4m3fn


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def blocked(*shape: int, seed: int = 0) -> tuple[Blocked, torch.Tensor]:
    """A matrix of this stored shape and its numbers, [columns, rows]."""
    values = (drawn(*shape, seed=seed) * 30).to(E4M3)
    scales = drawn(*shape[:-2], -(-shape[-2] // 128), -(-shape[-1] // 128), seed=seed + 1).abs() * 0.02
    return Blocked.of(values, scales), dequantise(values, scales).mT


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float8_e8m0fnu])
def test_each_block_has_its_own_scale_and_edges_may_be_cut(kind: torch.dtype) -> None:
    values = torch.tensor([448.0, -0.001953125, 1.5, -20.0]).repeat(50, 40)[:, :130].to(E4M3)  # [50, 130]
    scales = torch.tensor([[0.25, 8.0], [2.0, 0.5]]).to(kind)
    got = dequantise(values, scales, (32, 128))
    want = values.double()
    want[:32, :128] *= 0.25
    want[:32, 128:] *= 8
    want[32:, :128] *= 2
    want[32:, 128:] *= 0.5
    assert torch.equal(got.double(), want), "powers of two make every product exact"


def test_a_product_is_rounded_once() -> None:
    values, scales = torch.tensor([[1.125]]).to(E4M3), torch.tensor([[1.00390625]])
    assert dequantise(values, scales, dtype=torch.bfloat16).item() == 1.1328125  # 1.12939..., not 1.125


def test_products_equal_the_plain_matrix() -> None:
    weight, plain = blocked(200, 150)
    x = drawn(3, 150)
    assert torch.equal(project(x, weight), x @ plain)
    target = drawn(3, 200)
    want = target + x @ plain
    add_projected(target, x, weight)
    assert torch.equal(target, want)
    assert weight.shape == plain.shape


def test_rows_can_be_put_in_any_order_and_matrices_side_by_side() -> None:
    first, second, x = blocked(150, 140, seed=1), blocked(30, 140, seed=5), drawn(4, 140)
    order = torch.randperm(150, generator=torch.Generator().manual_seed(3))
    assert torch.equal(numbers(first[0].take(order), torch.float32), first[1][:, order])
    both = torch.cat([first[1], second[1]], 1)
    assert torch.equal(numbers(stack([first[0], second[0]]), torch.float32), both)
    mixed = Beside((first[0], second[1]))
    assert mixed.shape == both.shape
    torch.testing.assert_close(project(x, mixed), x @ both)


def test_chosen_experts_equal_the_grouped_product() -> None:
    gate_up, down = blocked(6, 64, 48, seed=2), blocked(6, 48, 32, seed=7)
    x, shares = drawn(5, 48), drawn(5, 2).softmax(-1)
    experts = torch.tensor([[0, 5], [2, 1], [5, 0], [3, 4], [2, 2]])
    got = chosen_swiglu(x, gate_up[0], down[0], shares, experts)
    torch.testing.assert_close(got, expert_swiglu(x, gate_up[1], down[1], shares, experts))
