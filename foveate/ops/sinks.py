"""Attention of many heads over one shared row per token, with a sink per head, and the choice of rows worth reading.

Each row is key and value at once. A head's sink adds `exp(sink)` to the softmax's denominator and nothing to the
result (as in arXiv 2309.17453, learned). `best_rows` is the choice of a lightning indexer: the rows with the highest
scores, equal ones in the order of their places, so that a choice never depends on how many rows are behind. Scores are
float32; long chunks are done in blocks of queries, so that memory stays bounded.
"""

from __future__ import annotations

import torch
from torch import Tensor

MOST_SCORES = 2**25  # numbers in one block of scores: 128 MiB


def attend_shared(query: Tensor, rows: Tensor, seen: Tensor | None, sink: Tensor) -> Tensor:
    """Attention at scale dim ** -0.5 of query [queries, heads, dim] over rows [rows, dim]: [queries, heads, dim].

    seen: bool [queries, rows], None where every query sees every row; sink: float32 [heads].
    """
    step = max(1, MOST_SCORES // (query.shape[1] * len(rows)))
    wide = rows.float()
    parts = [
        _attend_block(query[at : at + step], wide, None if seen is None else seen[at : at + step], sink)
        for at in range(0, len(query), step)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _attend_block(query: Tensor, rows: Tensor, seen: Tensor | None, sink: Tensor) -> Tensor:
    count, heads, dim = query.shape
    scores = torch.mm(query.flatten(0, 1).float(), rows.T).mul_(dim**-0.5).view(count, heads, -1)
    if seen is not None:
        scores.masked_fill_(~seen.unsqueeze(1), float("-inf"))
    top = torch.maximum(scores.amax(-1, keepdim=True), sink.unsqueeze(-1))  # finite, whatever is seen
    weights = scores.sub_(top).exp_()
    total = weights.sum(-1, keepdim=True) + (sink.unsqueeze(-1) - top).exp()
    return torch.mm(weights.flatten(0, 1), rows).view(count, heads, dim).div_(total).to(query.dtype)


def index_scores(query: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    """Scores float32 [queries, rows]: `sum over heads of weight * relu(query . row)`, both factors scaled.

    query: [queries, heads, dim]; rows: [rows, dim]; weights: float32 [queries, heads].
    """
    heads, dim = query.shape[1:]
    step, wide = max(1, MOST_SCORES // (heads * max(1, len(rows)))), rows.float()
    scaled, parts = weights * (heads * dim) ** -0.5, []
    for at in range(0, len(query), step):
        block = query[at : at + step]
        found = torch.mm(block.flatten(0, 1).float(), wide.T).relu_().view(len(block), heads, -1)
        parts.append(torch.bmm(scaled[at : at + step].unsqueeze(1), found).squeeze(1))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def best_rows(scores: Tensor, ready: Tensor, top_k: int) -> Tensor:
    """Where the `top_k` best of the rows that are ready stand: bool [queries, rows], as both arguments.

    Of equal scores the earlier rows count as better.
    """
    if scores.shape[-1] <= top_k:
        return ready
    scores = scores.masked_fill(~ready, float("-inf"))
    least = scores.topk(top_k, -1).values[:, -1:]
    above = scores > least
    level = scores == least
    room = top_k - above.sum(-1, keepdim=True)
    return ready & (above | (level & (level.cumsum(-1) <= room)))


def attend_reference(query: Tensor, rows: Tensor, seen: Tensor, sink: Tensor) -> Tensor:
    """What `attend_shared` computes, one query and one head at a time."""
    out = torch.zeros_like(query)
    for t in range(len(query)):
        for head in range(query.shape[1]):
            visible = rows[seen[t]]
            scores = torch.cat([visible @ query[t, head] * query.shape[2] ** -0.5, sink[head : head + 1]])
            out[t, head] = scores.softmax(0)[:-1] @ visible
    return out
