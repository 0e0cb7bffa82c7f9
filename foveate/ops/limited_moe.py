"""Experts whose SwiGLU is limited, and routing by the root of a softplus: DeepSeek V4's feed-forward.

Scores choose experts with a bias that steers the choice alone; shares are the bare scores, made to sum to a scale.
Tokens are multiplied in groups by expert (`ops.moe`), so that each expert's weights are read once. Knows no layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from foveate.ops.moe import by_expert, by_token

Rounding = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class LimitedExperts:
    """gate_up: [experts, hidden, 2 * inner], gate columns first; down: [experts, inner, hidden]."""

    gate_up: Tensor
    down: Tensor
    limit: float


def root_scores(x: Tensor, router: Tensor) -> Tensor:
    """Scores float32 [tokens, experts] of x [tokens, hidden]: sqrt(softplus(x router)); router float32."""
    return F.softplus(torch.mm(x.float(), router)).sqrt_()


def shares_of(scores: Tensor, chosen: Tensor, scale: float) -> Tensor:
    """Shares float32 [tokens, top_k] of the chosen experts, summing to `scale`."""
    shares = scores.gather(1, chosen)
    return shares / (shares.sum(-1, keepdim=True) + 1e-20) * scale


def limited_product(gate_up: Tensor, limit: float) -> Tensor:
    """`silu(min(gate, limit)) * clip(up, limit)` of gates and ups side by side [tokens, 2 * inner], in their dtype."""
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate.clamp(max=limit)).mul_(up.clamp(-limit, limit))


def limited_experts(
    x: Tensor, experts: LimitedExperts, shares: Tensor, chosen: Tensor, rounding: Rounding | None = None
) -> Tensor:
    """Float32 [tokens, hidden]: the sum of x's experts, each share multiplied in before the second matrix.

    shares, chosen: [tokens, top_k]; rounding: applied to what each matrix reads, or None.
    """
    order, ends = by_expert(chosen, len(experts.down))
    x = x if rounding is None else rounding(x)
    pairs = x.index_select(0, order // chosen.shape[1])
    inner = limited_product(F.grouped_mm(pairs, experts.gate_up, offs=ends), experts.limit)
    inner = (inner.float() * shares.flatten()[order].unsqueeze(1)).to(x.dtype)
    out = F.grouped_mm(inner if rounding is None else rounding(inner), experts.down, offs=ends)
    return by_token(out, order, chosen).float().sum(1)


def experts_reference(x: Tensor, experts: LimitedExperts, shares: Tensor, chosen: Tensor) -> Tensor:
    """What `limited_experts` computes without rounding, one token and one expert at a time."""
    out = torch.zeros_like(x)
    for t in range(len(x)):
        for share, e in zip(shares[t], chosen[t], strict=True):
            gate, up = (x[t] @ experts.gate_up[e]).chunk(2)
            inner = F.silu(gate.clamp(max=experts.limit)) * up.clamp(-experts.limit, experts.limit)
            out[t] += share * (inner @ experts.down[e])
    return out
