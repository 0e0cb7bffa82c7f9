"""Rounding to eight and four bits against a search for the nearest number, and limited experts one by one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from foveate.ops.limited_moe import (
    LimitedExperts,
    experts_reference,
    limited_experts,
    limited_product,
    root_scores,
    shares_of,
)
from foveate.ops.quant import hadamard, power_of_two_above, round_fp4, round_fp8

FP4 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def test_powers_of_two_above() -> None:
    x = torch.tensor([1.0, 1.0001, 0.9999, 4.0, 5.0, 2.0**-100, 448 / 448])
    assert power_of_two_above(x).tolist() == [1.0, 2.0, 1.0, 4.0, 8.0, 2.0**-100, 1.0]


def test_four_bits_round_to_the_nearest_and_to_even() -> None:
    x = torch.tensor([0.24, 0.25, 0.26, 0.75, 1.25, 1.26, 1.75, 2.5, 2.51, 3.5, 5.0, 5.01, -0.75, -5.0, 6.0])
    want = [0.0, 0.0, 0.5, 1.0, 1.0, 1.5, 2.0, 2.0, 3.0, 4.0, 4.0, 6.0, -1.0, -4.0, 6.0]
    assert round_fp4(x).tolist() == want


@pytest.mark.parametrize("width", [32, 64, 80, 5])
def test_every_block_has_its_own_scale(width: int) -> None:
    x = torch.randn(9, width, generator=torch.Generator().manual_seed(width)) * torch.logspace(-9, 4, width)
    for rounded, block, most in ((round_fp4(x, 32), 32, 6.0), (round_fp8(x, 64), 64, 448.0)):
        for start in range(0, width, block):
            part, got = x[:, start : start + block], rounded[:, start : start + block]
            scale = 2.0 ** torch.ceil(torch.log2(part.abs().amax(1, keepdim=True).clamp_min(1e-4) / most))
            if block == 32:
                table = torch.tensor(FP4)
                want = (part.abs()[..., None] / scale[..., None] - table).abs().argmin(-1)
                assert torch.allclose(got, part.sign() * table[want] * scale) or part.abs().amax() < 1e-3
            else:
                assert torch.equal(got, (part / scale).to(torch.float8_e4m3fn).float() * scale)


def test_rounding_keeps_type_and_what_is_exact() -> None:
    x = torch.tensor([[0.0, 1.0, -3.5, 448.0]], dtype=torch.bfloat16)
    assert torch.equal(round_fp8(x), x) and round_fp8(x).dtype == torch.bfloat16
    assert torch.equal(round_fp8(torch.zeros(2, 7)), torch.zeros(2, 7))
    assert torch.equal(round_fp4(torch.zeros(2, 7)), torch.zeros(2, 7))


@pytest.mark.parametrize("dim", [1, 2, 16, 128])
def test_hadamard_is_sylvesters_matrix(dim: int) -> None:
    signs = torch.tensor([[(-1.0) ** bin(i & j).count("1") for j in range(dim)] for i in range(dim)])
    x = torch.randn(3, 2, dim, generator=torch.Generator().manual_seed(0))
    assert (hadamard(x) - x @ signs / dim**0.5).abs().max() < 1e-5
    assert (hadamard(hadamard(x)) - x).abs().max() < 1e-5


@pytest.mark.parametrize("limit", [0.3, 10.0])
def test_limited_experts_equal_their_reference(limit: float) -> None:
    noise = torch.Generator().manual_seed(4)
    experts = LimitedExperts(torch.randn(5, 16, 24, generator=noise), torch.randn(5, 12, 16, generator=noise), limit)
    x, router = torch.randn(9, 16, generator=noise), torch.randn(16, 5, generator=noise)
    scores = root_scores(x, router)
    assert (scores - torch.log1p((x @ router).exp()).sqrt()).abs().max() < 1e-5
    chosen = torch.rand(9, 5, generator=noise).argsort(-1)[:, :3]
    shares = shares_of(scores, chosen, 1.5)
    assert (shares.sum(1) - 1.5).abs().max() < 1e-6
    got, want = limited_experts(x, experts, shares, chosen), experts_reference(x, experts, shares, chosen)
    assert (got - want).abs().max() < 1e-4
    halved = limited_experts(x, experts, shares, chosen, rounding=lambda part: part / 2)
    again = limited_experts(x / 2, LimitedExperts(experts.gate_up, experts.down / 2, limit), shares, chosen)
    assert (halved - again).abs().max() < 1e-5, "both matrices read rounded values"


def test_the_product_is_limited_on_three_sides() -> None:
    both = torch.tensor([[5.0, -5.0, 5.0, -5.0, 0.5, 9.0, 9.0, -9.0, -9.0, 0.5]])
    gate, up = torch.tensor([2.0, -5.0, 2.0, -5.0, 0.5]), torch.tensor([2.0, 2.0, -2.0, -2.0, 0.5])
    assert torch.equal(limited_product(both, 2.0)[0], F.silu(gate) * up)
