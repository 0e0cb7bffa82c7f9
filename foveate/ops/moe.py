"""Mixture of experts: routing, the products of the chosen experts, and the same one by one.

Tokens are sorted by expert and multiplied in groups, so that each expert's weights are read once and no count comes
back to the host. Knows neither where router logits come from nor what is added to the result.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def route(logits: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Shares (float32, summing to 1) and ids of the `top_k` most likely experts, both [tokens, top_k].

    Softmax over all experts first, then the chosen ones renormalised.
    """
    shares, experts = logits.float().softmax(-1).topk(top_k, -1)
    return shares / shares.sum(-1, keepdim=True), experts


def by_expert(chosen: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Pairs of tokens and experts in the order of the experts, and where each of `count` experts' pairs end (int32).

    chosen: [tokens, top_k]; order: [tokens * top_k], of pairs counted token by token.
    """
    flat = chosen.flatten()
    order = flat.argsort(stable=True)
    numbers = torch.arange(count, device=chosen.device)
    return order, torch.searchsorted(flat[order], numbers, right=True).to(torch.int32)


def by_token(rows: Tensor, order: Tensor, chosen: Tensor) -> Tensor:
    """Rows of pairs in token order, [tokens, top_k, width]: a sum over them never depends on the rest of the step."""
    return torch.empty_like(rows).index_copy_(0, order, rows).view(*chosen.shape, -1)


def expert_swiglu(x: Tensor, gate_up: Tensor, down: Tensor, shares: Tensor, experts: Tensor) -> Tensor:
    """Share-weighted sum of SwiGLU experts: x [tokens, hidden] to [tokens, hidden].

    gate_up: [experts, hidden, 2 * inner], gate columns first; down: [experts, inner, hidden];
    shares, experts: [tokens, top_k].
    """
    order, ends = by_expert(experts, len(gate_up))
    gate, up = F.grouped_mm(x.index_select(0, order // experts.shape[1]), gate_up, offs=ends).chunk(2, -1)
    out = F.grouped_mm(F.silu(gate).mul_(up), down, offs=ends)
    return torch.matmul(shares.to(out.dtype).unsqueeze(1), by_token(out, order, experts)).squeeze(1)


def expert_reference(x: Tensor, gate_up: Tensor, down: Tensor, shares: Tensor, experts: Tensor) -> Tensor:
    """What `expert_swiglu` computes, one token and one expert at a time."""
    out = torch.zeros_like(x)
    for t in range(len(x)):
        for share, e in zip(shares[t], experts[t], strict=True):
            gate, up = (x[t] @ gate_up[e]).chunk(2)
            out[t] += share.to(x.dtype) * ((F.silu(gate) * up) @ down[e])
    return out
