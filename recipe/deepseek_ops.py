"""Operations of the trainable DeepSeek V4: hyper-connections, pair rope, compression, masks, attention with sinks.

Owns the maths that runs on padded packs: rows in which conversations stand one after another, each beginning at a
multiple of every compression rate, so that its windows are windows of the row. Promises that nothing crosses a
conversation's border, and that everything is differentiable, free of host synchronisation and of data-dependent
shapes. Attention is dense with a mask, or flex attention that skips empty tiles; both compute the same. Refuses to know
weights and layers.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

LANES = 8  # head widths of fused kernels are multiples of this
TILE = 128


class Spans(NamedTuple):
    """What decides who sees whom in a pack, each [rows, tokens] int32, as places in the row."""

    start: Tensor  # where the token's conversation begins
    first: Tensor  # where the token's image block begins; the token itself outside blocks
    last: Tensor  # where that block ends; the token itself outside blocks


def rms(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """RMS norm in fp32 with a plain weight or none, in x.dtype."""
    y = x.float()
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)
    return (y if weight is None else y * weight).to(x.dtype)


def sinkhorn(comb: Tensor, rounds: int, floor: float) -> Tensor:
    """comb [..., from, to]: columns divided by their sums, then rows and columns in turn; columns come last."""
    comb = comb / (comb.sum(-2, keepdim=True) + floor)
    for _ in range(rounds - 1):
        comb = comb / (comb.sum(-1, keepdim=True) + floor)
        comb = comb / (comb.sum(-2, keepdim=True) + floor)
    return comb


def mix_streams(streams: Tensor, comb: Tensor, post: Tensor, y: Tensor) -> Tensor:
    """New streams [..., n, hidden]: old ones mixed by comb [..., from, to], and y [..., hidden] by post [..., n].

    Written out stream by stream: products of many 4 x 4 matrices are slow as such.
    """
    count = streams.shape[-2]
    mixed = [
        sum(comb[..., j, k, None] * streams[..., j, :].float() for j in range(count)) + post[..., k, None] * y.float()
        for k in range(count)
    ]
    return torch.stack(mixed, -2).to(streams.dtype)


def join_streams(streams: Tensor, pre: Tensor) -> Tensor:
    """The weighted sum of streams [..., n, hidden] by pre [..., n]: [..., hidden]."""
    parts = [pre[..., j, None] * streams[..., j, :].float() for j in range(pre.shape[-1])]
    return sum(parts[1:], parts[0]).to(streams.dtype)


def frequencies(theta: float, width: int, factor: float = 1.0, length: int = 0) -> Tensor:
    """Angular frequencies [width / 2]; with a factor, YaRN's (arXiv 2309.00071) for `length`, 32 and 1 turns."""
    steps = torch.arange(0, width, 2, dtype=torch.float32) / width
    plain = 1.0 / theta**steps
    if factor == 1.0:
        return plain
    fast, slow = (width * math.log(length / (2 * math.pi * turns)) / (2 * math.log(theta)) for turns in (32, 1))
    low, high = max(math.floor(fast), 0), min(math.ceil(slow), width - 1)
    ramp = ((torch.arange(width // 2) - low) / ((high - low) or 0.001)).clamp(0, 1)
    return plain / factor * ramp + plain * (1 - ramp)


def rope_tables(age: Tensor, frequency: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin [rows, tokens, width / 2] of positions [rows, tokens]."""
    angles = age.float().unsqueeze(-1) * frequency
    return angles.cos(), angles.sin()


def turn(x: Tensor, tables: tuple[Tensor, Tensor], back: bool = False) -> Tensor:
    """Rotate the last dims of [rows, tokens, (heads,) dim] in pairs (2i, 2i + 1), or undo it."""
    cos, sin = (t.unsqueeze(-2) if x.ndim == t.ndim + 1 else t for t in tables)
    sin = -sin if back else sin
    width = 2 * cos.shape[-1]
    head, tail = x[..., :-width], x[..., -width:].float()
    even, odd = tail[..., 0::2], tail[..., 1::2]
    turned = torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(-2)
    return torch.cat([head, turned.to(x.dtype)], -1)


def pool_windows(values: Tensor, gates: Tensor, overlap: bool, age: Tensor) -> Tensor:
    """One entry a window: per channel a softmax of gates over its slots, times the values, in fp32.

    values, gates [rows, windows, rate, channels]; with `overlap` the first half of the channels serves the next window,
    which then has twice the slots and half the channels; age [rows, windows] of each window's first token.
    """
    if not overlap:
        return (values.float() * gates.float().softmax(2)).sum(2)
    before, here = values.float().chunk(2, -1)
    gate_before, gate_here = gates.float().chunk(2, -1)
    before, gate_before = (F.pad(t, (0, 0, 0, 0, 1, 0))[:, :-1] for t in (before, gate_before))
    gate_before = gate_before.masked_fill((age == 0)[:, :, None, None], float("-inf"))
    weights = torch.cat([gate_before, gate_here], 2).softmax(2)
    return (torch.cat([before, here], 2) * weights).sum(2)


def seen_tokens(spans: Spans, window: int) -> Tensor:
    """Which tokens each sees: its causal window united with its whole image block, in its conversation.

    bool [rows, queries, keys].
    """
    at = torch.arange(spans.start.shape[1], device=spans.start.device)
    query, key = at[:, None], at[None, :]
    near = (key <= query) & (key > query - window) & (key >= spans.start[..., None])
    return near | ((key >= spans.first[..., None]) & (key <= spans.last[..., None]))


def seen_entries(spans: Spans, rate: int) -> Tensor:
    """Which entries each sees: those of its conversation whose window has ended. bool [rows, queries, entries]."""
    query = torch.arange(spans.start.shape[1], device=spans.start.device)
    begin = query[::rate]
    return (begin + rate <= query[:, None] + 1) & (begin >= spans.start[..., None])


def tiled(seen: Tensor) -> BlockMask:
    """A dense mask [rows, queries, keys] as flex attention wants it: which tiles hold something, which hold all."""

    def visible(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return seen[row, query, key]

    queries, keys = seen.shape[1:]
    padded = F.pad(seen, (0, -keys % TILE, 0, -queries % TILE)).unflatten(2, (-1, TILE)).unflatten(1, (-1, TILE))
    count = padded.sum((2, 4)).unsqueeze(1)  # [rows, 1, query tiles, key tiles]
    some, whole = ((count > 0) & (count < TILE**2)).int(), (count == TILE**2).int()
    return BlockMask.from_kv_blocks(
        _counted(some),
        _placed(some),
        _counted(whole),
        _placed(whole),
        BLOCK_SIZE=TILE,
        mask_mod=visible,
        seq_lengths=(queries, keys),
    )


def _counted(tiles: Tensor) -> Tensor:
    """How many tiles of each row are set: int32 [..., query tiles]."""
    return tiles.sum(-1, dtype=torch.int32)


def _placed(tiles: Tensor) -> Tensor:
    """Which tiles of each row are set, first these, then the rest: int32 [..., query tiles, key tiles]."""
    return tiles.argsort(stable=True, dim=-1, descending=True).int().contiguous()


def attend(q: Tensor, keys: Tensor, seen: Tensor | BlockMask, sink: Tensor) -> Tensor:
    """Attention of q [rows, queries, heads, dim] over keys [rows, keys, dim], which are the values too.

    sink [heads] adds exp(sink) to each head's denominator. seen: bool [rows, queries, keys], or the same for flex.
    """
    if isinstance(seen, BlockMask):
        one = keys.unsqueeze(1)
        aux = AuxRequest(lse=True)
        out, total = flex_attention(q.transpose(1, 2), one, one, block_mask=seen, enable_gqa=True, return_aux=aux)
        assert total.lse is not None
        share = torch.sigmoid(total.lse.float() - sink.float()[:, None])  # of the keys in the whole denominator
        return (out * share.unsqueeze(-1).to(out.dtype)).transpose(1, 2)
    return _attend_dense(q, keys, seen, sink)


def _attend_dense(q: Tensor, keys: Tensor, seen: Tensor, sink: Tensor) -> Tensor:
    """The sink is one more key: it meets a dimension of its own in which every query holds its head's sink."""
    dim = q.shape[-1]
    pads = -(keys.shape[1] + 1) % LANES  # mask rows of fused kernels are aligned
    own = F.pad((sink.float() * dim**0.5).to(q.dtype)[:, None], (0, LANES - 1)).expand(*q.shape[:3], LANES)
    query = torch.cat([q, own], -1).transpose(1, 2)
    last = F.pad(keys.new_ones(1, 1, 1), (dim, LANES - 1)).expand(len(keys), 1, -1)
    key = F.pad(torch.cat([F.pad(keys, (0, LANES)), last], 1), (0, 0, 0, pads))
    value = F.pad(keys, (0, 0, 0, 1 + pads))
    mask = F.pad(F.pad(seen, (0, 1), value=True), (0, pads), value=False).unsqueeze(1)
    heads = (-1, q.shape[2], -1, -1)
    out = F.scaled_dot_product_attention(
        query, key.unsqueeze(1).expand(heads), value.unsqueeze(1).expand(heads), attn_mask=mask, scale=dim**-0.5
    )
    return out.transpose(1, 2)


def expert_shares(scores: Tensor, bias: Tensor, top_k: int, scale: float) -> Tensor:
    """Shares [tokens, experts] of the `top_k` best by scores + bias: bare scores that sum to `scale`; else 0."""
    chosen = (scores + bias).detach().topk(top_k, -1).indices
    return given_shares(scores, chosen, scale)


def given_shares(scores: Tensor, chosen: Tensor, scale: float) -> Tensor:
    """Shares [tokens, experts] of the experts `chosen` [tokens, top_k]."""
    # No scatter into zeros: compiled, two of them have been seen to share one buffer.
    inside = (chosen.unsqueeze(-1) == torch.arange(scores.shape[1], device=scores.device)).any(1)
    kept = scores * inside
    return kept / (kept.sum(-1, keepdim=True) + 1e-20) * scale


def limited_product(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    """`silu(min(gate, limit)) * clip(up, limit)`."""
    return F.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)
