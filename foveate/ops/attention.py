"""Attention: causal over paged keys and values for mixed steps, and full over the patches of images.

`attend_paged` serves any mixture of prefill chunks and single tokens with grouped-query heads. Each sequence reads
exactly its own tokens: what stands in the rest of a page, or in another sequence's pages, cannot reach its result,
not even as a masked NaN. `attend_reference` is the same written out. Knows no positions and no norms.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from foveate.ops.pages import PagedLayout, Reach, gather_pages


def leave_out_cudnn() -> None:
    """Attention of this process is never cuDNN's: it plans for every new length, tens of milliseconds each.

    A server meets new lengths at every step and new sizes of pictures all the time.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)


def write_paged(paged: Tensor, write_at: Tensor, values: Tensor) -> None:
    """Store values [tokens, ...] at flat slots [tokens] of paged [pages, page_len, ...]."""
    paged.flatten(0, 1).index_copy_(0, write_at, values)


def attend_paged(query: Tensor, keys: Tensor, values: Tensor, layout: PagedLayout) -> Tensor:
    """Causal attention of a step's new tokens over everything their sequences hold, scale head_dim ** -0.5.

    query: [tokens, heads, dim]; keys, values: [pages, page_len, kv heads, dim], the new tokens already written.
    Returns [tokens, heads, dim].
    """
    parts = [_attend_one(query[reach.start : reach.end], keys, values, reach) for reach in layout.reaches]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _attend_one(query: Tensor, keys: Tensor, values: Tensor, reach: Reach) -> Tensor:
    query_len, heads, dim = query.shape
    kv_heads = keys.shape[2]
    k = gather_pages(keys, reach.pages, reach.seen_len).transpose(0, 1)  # [kv heads, seen, dim]
    v = gather_pages(values, reach.pages, reach.seen_len).transpose(0, 1)
    if query_len == 1:  # the heads of a group take the place of the queries: they all see the same tokens
        q = query.view(1, kv_heads, heads // kv_heads, dim)
        return F.scaled_dot_product_attention(q, k[None], v[None]).reshape(1, heads, dim)
    q = query.view(query_len, kv_heads, heads // kv_heads, dim).permute(1, 2, 0, 3)  # [kv heads, group, queries, dim]
    k, v = (x[:, None].expand(-1, q.shape[1], -1, -1) for x in (k, v))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=reach.mask, is_causal=reach.mask is None)
    return out.permute(2, 0, 1, 3).reshape(query_len, heads, dim)


def attend_segments(query: Tensor, key: Tensor, value: Tensor, lens: tuple[int, ...]) -> Tensor:
    """Full attention inside each of several segments, scale dim ** -0.5; all [tokens, heads, dim]."""
    parts = zip(query.split(lens), key.split(lens), value.split(lens), strict=True)
    out = [F.scaled_dot_product_attention(*(x.transpose(0, 1)[None] for x in part))[0] for part in parts]
    return (out[0] if len(out) == 1 else torch.cat(out, 1)).transpose(0, 1)


def attend_reference(query: Tensor, key: Tensor, value: Tensor, past_len: int | None) -> Tensor:
    """Softmax attention of query [queries, heads, dim] over key, value [seen, kv heads, dim], written out.

    past_len: how many tokens precede the first query (causal), or None for full attention.
    """
    repeat = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(repeat, 1) for x in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query, key) * query.shape[-1] ** -0.5
    if past_len is not None:
        last = torch.arange(past_len, past_len + len(query), device=query.device)[:, None]
        scores = scores.masked_fill(torch.arange(len(key), device=query.device) > last, float("-inf"))
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), value)
