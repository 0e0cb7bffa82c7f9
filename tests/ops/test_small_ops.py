"""Norms, rope and expert products against the same written out."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from foveate.ops.layers import gated_rms_norm, rms_norm, swiglu, unit_scale
from foveate.ops.moe import expert_reference, expert_swiglu, route
from foveate.ops.rope import axial_cos_sin, frequencies, frequency_axes, mrope_cos_sin, rotate_, rotate_reference


def test_rms_norm_divides_by_the_root_mean_square() -> None:
    x, weight = torch.randn(5, 16), torch.randn(16) * 0.1
    want = x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * (1 + weight)
    assert (rms_norm(x, unit_scale(weight), 1e-6) - want).abs().max() < 1e-6


def test_rms_norm_of_bfloat16_computes_in_float32() -> None:
    x = (torch.randn(5, 512) * 30).bfloat16()
    got = rms_norm(x, None, 1e-6)
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, rms_norm(x.float(), None, 1e-6).bfloat16())


def test_gated_norm_norms_before_it_gates() -> None:
    x, gate, scale = torch.randn(3, 2, 8), torch.randn(3, 2, 8), torch.randn(8)
    want = rms_norm(x, scale, 1e-6) * gate * torch.sigmoid(gate)
    assert (gated_rms_norm(x.clone(), gate, scale, 1e-6) - want).abs().max() < 1e-6


def test_swiglu_takes_gate_columns_first() -> None:
    x, gate, up = torch.randn(3, 8), torch.randn(8, 6), torch.randn(8, 6)
    want = F.silu(x @ gate) * (x @ up)
    assert (swiglu(x, torch.cat([gate, up], 1)) - want).abs().max() < 1e-5


def test_released_sections_interleave_and_end_with_h() -> None:
    axes = frequency_axes((11, 11, 10))
    assert axes == [0, 1, 2] * 10 + [0, 1]
    assert frequency_axes((2, 1, 1)) == [0, 1, 2, 0]


def test_text_positions_turn_like_plain_rope() -> None:
    positions = torch.tensor([0, 1, 7, 262143])
    frequency = frequencies(1e7, 64)
    cos, sin = mrope_cos_sin(positions.expand(3, -1), frequency, torch.tensor(frequency_axes((11, 11, 10))))
    angles = positions[:, None].float() * frequency
    assert torch.equal(cos[:, 0], angles.cos()) and torch.equal(sin[:, 0], angles.sin())


def test_each_frequency_follows_its_axis() -> None:
    positions = torch.tensor([[3], [5], [9]])
    cos, _ = mrope_cos_sin(positions, torch.ones(4), torch.tensor([0, 1, 2, 0]))
    assert torch.equal(cos.flatten(), torch.tensor([3.0, 5.0, 9.0, 3.0]).cos())


def test_rotation_turns_pairs_half_a_width_apart() -> None:
    x, angles = torch.randn(6, 3, 16), torch.randn(6, 1, 4)
    got = rotate_(x.clone(), angles.cos(), angles.sin())
    assert (got - rotate_reference(x, angles.cos(), angles.sin())).abs().max() < 1e-6
    assert torch.equal(got[..., 8:], x[..., 8:]), "beyond the rotated width nothing moves"


def test_axial_rope_turns_rows_first_then_columns() -> None:
    cos, _ = axial_cos_sin(torch.tensor([2, 0]), torch.tensor([0, 5]), 8, 10000.0)
    frequency = frequencies(10000.0, 4)
    assert torch.equal(cos[0, 0], torch.cat([(2 * frequency).cos(), torch.ones(2)]))
    assert torch.equal(cos[1, 0], torch.cat([torch.ones(2), (5 * frequency).cos()]))


def test_routing_renormalises_the_chosen_shares() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.0]])
    shares, experts = route(logits, 2)
    assert experts.tolist() == [[1, 3]]
    assert torch.allclose(shares, logits[:, [1, 3]].softmax(-1))


def test_grouped_experts_equal_one_by_one() -> None:
    random = torch.Generator().manual_seed(0)
    gate_up = torch.randn(6, 24, 16, generator=random).mT  # as the checkpoint has them, seen as [in, out]
    down = torch.randn(6, 16, 8, generator=random).mT
    assert gate_up.shape == (6, 16, 24) and down.shape == (6, 8, 16)
    x = torch.randn(9, 16, generator=random)
    gate_up = torch.cat([gate_up[..., :8], gate_up[..., 8:16]], -1)
    shares, experts = route(torch.randn(9, 6, generator=random), 3)
    experts[experts == 2] = 1  # an expert without a token
    got = expert_swiglu(x, gate_up, down, shares, experts)
    assert (got - expert_reference(x, gate_up, down, shares, experts)).abs().max() < 1e-4


def test_a_token_does_not_depend_on_the_others_in_its_step() -> None:
    random = torch.Generator().manual_seed(1)
    gate_up, down = torch.randn(4, 16, 16, generator=random), torch.randn(4, 8, 16, generator=random)
    x = torch.randn(5, 16, generator=random)
    shares, experts = route(torch.randn(5, 4, generator=random), 2)
    together = expert_swiglu(x, gate_up, down, shares, experts)
    alone = torch.cat(
        [expert_swiglu(x[t : t + 1], gate_up, down, shares[t : t + 1], experts[t : t + 1]) for t in range(5)]
    )
    assert (together - alone).abs().max() < 1e-5
