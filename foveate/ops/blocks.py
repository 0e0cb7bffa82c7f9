"""Attention of a drafter's blocks: each sees its own sequence's paged context and itself, and leaves nothing behind.

Owns the masks of full, sliding and causal blocks, and the convolution inside a block whose taps depend on the token.
Context keys come rotated from pages that were written as tokens came to stand; the block's own come beside.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from foveate.ops.pages import gather_pages


@dataclass(frozen=True, slots=True)
class Context:
    """The part of one sequence's paged context that a layer may see: pages, tokens to skip in the first, and how many.

    mask: [block, seen_len + block] bool, or None where everything is seen.
    """

    pages: Tensor
    skip_len: int
    seen_len: int
    mask: Tensor | None


def contexts(
    pages: Tensor, past_lens: tuple[int, ...], page_len: int, block: int, window: int | None, causal: bool
) -> list[Context]:
    """Per sequence what blocks behind `past_lens` tokens see; pages: [sequences, most pages]."""
    out = []
    for row, past_len in zip(pages, past_lens, strict=True):
        first = 0 if window is None else max(0, past_len - window + 1)
        page = first // page_len
        mask = None
        if window is not None or causal:
            query = torch.arange(past_len, past_len + block, device=pages.device)[:, None]
            key = torch.arange(first, past_len + block, device=pages.device)
            mask = key <= query if causal else torch.ones(block, len(key), dtype=torch.bool, device=pages.device)
            if window is not None:
                mask = mask & ((query - key).abs() < window)
        out.append(Context(row[page : -(-past_len // page_len)], first - page * page_len, past_len - first, mask))
    return out


def attend_blocks(
    query: Tensor, key: Tensor, value: Tensor, memory: tuple[Tensor, Tensor], seen: list[Context]
) -> Tensor:
    """Attention of blocks over their contexts and themselves, scale head_dim ** -0.5.

    query: [sequences, block, heads, dim]; key, value: [sequences, block, kv heads, dim]; memory: paged keys and values
    [pages, page_len, kv heads, dim]. Returns [sequences, block, heads, dim].
    """
    kv_heads, out = key.shape[2], []
    for q, k, v, context in zip(query, key, value, seen, strict=True):
        grouped = q.unflatten(1, (kv_heads, -1)).permute(1, 2, 0, 3)  # [kv heads, group, block, dim]
        both = [_joined(paged, own, context) for paged, own in zip(memory, (k, v), strict=True)]
        keys, values = (x.transpose(0, 1)[:, None].expand(-1, grouped.shape[1], -1, -1) for x in both)
        mixed = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=context.mask)
        out.append(mixed.permute(2, 0, 1, 3).flatten(1, 2))
    return torch.stack(out)


def _joined(paged: Tensor, own: Tensor, context: Context) -> Tensor:
    """Context and block one after another: [seen_len + block, kv heads, dim]."""
    past = gather_pages(paged, context.pages, context.skip_len + context.seen_len)
    return torch.cat([past[context.skip_len :], own])


def dynamic_conv(x: Tensor, taps: Tensor, base: Tensor) -> Tensor:
    """`y_t[c] = sum over o of (base[o, c] + taps_t[o, c // group]) x_(t - o)[c]`, zeros before the block.

    x: [sequences, block, hidden]; taps: [sequences, block, kernel, groups]; base: [kernel, hidden].
    """
    groups = taps.shape[-1]
    out = torch.zeros_like(x)
    for back, fixed in enumerate(base):
        past = x if back == 0 else F.pad(x, (0, 0, back, 0))[:, : x.shape[1]]
        weight = fixed.view(groups, -1) + taps[:, :, back].unsqueeze(-1)  # [sequences, block, groups, group]
        out += (weight * past.unflatten(-1, (groups, -1))).flatten(-2)
    return out
