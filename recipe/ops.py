"""Operations of the trainable model: norms, rope, packed attention and the chunked gated delta rule.

Owns the maths that runs on padded packs: rows of tokens in which several conversations follow one another. Promises
that nothing crosses a conversation's border, that every function is differentiable, free of host synchronisation and
of data-dependent shapes (so that a step can be captured as a CUDA graph), and that a CPU gives the same numbers.
Refuses to know about weights, layers or data.
"""

import inspect

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from recipe.chunks import chunk_states, unit_lower_inverse

CHUNK = 64
WINDOWED = "window_size" in inspect.signature(varlen_attn).parameters  # torch 2.11 and later
RESET = -30.0  # log decay at a conversation's first token: exp(-30) forgets everything before it


def centred_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMS norm in fp32 with a zero-centred weight; any leading dims."""
    y = x.float()
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)
    return (y * (1.0 + weight.float())).to(x.dtype)


def plain_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMS norm in fp32 with a plain weight, as Qwen3 and the DeltaNet output have it."""
    y = x.float()
    y = (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)
    return y * weight.to(x.dtype)


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMS norm with a plain weight, times silu(gate) in fp32."""
    y = plain_rms_norm(x, weight, eps)
    return (y.float() * F.silu(gate.float())).to(gate.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Half-split rotation of the leading dims of [..., heads, dim]; cos and sin are [..., rotated dims]."""
    width = cos.shape[-1]
    x, rest = x[..., :width], x[..., width:]
    first, second = x.chunk(2, -1)
    turned = x * cos.unsqueeze(-2) + torch.cat([-second, first], -1) * sin.unsqueeze(-2)
    return torch.cat([turned, rest], -1) if rest.shape[-1] else turned


def mrope_tables(where: Tensor, width: int, theta: float, sections: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """cos and sin [tokens, width] of interleaved M-RoPE; `where` is [3, tokens] (time, height, width)."""
    steps = torch.arange(0, width, 2, device=where.device, dtype=torch.float32) / width
    angles = where.float().unsqueeze(-1) * (1.0 / theta**steps)  # [3, tokens, width / 2]
    index = torch.arange(width // 2, device=where.device)
    high = (index % 3 == 1) & (index < 3 * sections[1])
    wide = (index % 3 == 2) & (index < 3 * sections[2])
    mixed = torch.where(high, angles[1], torch.where(wide, angles[2], angles[0]))
    mixed = torch.cat([mixed, mixed], -1)
    return mixed.cos(), mixed.sin()


def packed_attention(q: Tensor, k: Tensor, v: Tensor, edges: Tensor, longest: int, causal: bool) -> Tensor:
    """Attention inside segments of [tokens, heads, dim]; `edges` [segments + 1] (int32) covers every token."""
    if q.is_cuda:
        return _varlen(q.contiguous(), k.contiguous(), v.contiguous(), edges, longest, causal)
    owner = torch.bucketize(torch.arange(len(q), device=q.device), edges[1:], right=True)
    mask = owner[:, None] == owner[None, :]
    mask = mask.tril() if causal else mask
    out = F.scaled_dot_product_attention(*(t.transpose(0, 1).unsqueeze(0) for t in (q, k, v)), attn_mask=mask)
    return out[0].transpose(0, 1)


def _varlen(q: Tensor, k: Tensor, v: Tensor, edges: Tensor, longest: int, causal: bool) -> Tensor:
    if WINDOWED:
        return varlen_attn(q, k, v, edges, edges, longest, longest, window_size=(-1, 0) if causal else (-1, -1))
    return varlen_attn(q, k, v, edges, edges, longest, longest, is_causal=causal)


def causal_conv(x: Tensor, weight: Tensor, age: Tensor) -> Tensor:
    """Depthwise causal convolution of [rows, tokens, channels]; `age` [rows, tokens] counts from a segment's start.

    `weight` is [channels, 1, taps], the last tap on the current token, as released checkpoints store it.
    """
    taps = weight.shape[-1]
    weight = weight.to(x.dtype)
    out = x * weight[:, 0, taps - 1]
    for back in range(1, taps):
        past = F.pad(x, (0, 0, back, 0))[:, : x.shape[1]]
        seen = (age >= back).unsqueeze(-1).to(x.dtype)
        out = out + past * seen * weight[:, 0, taps - 1 - back]
    return out


def unit(x: Tensor) -> Tensor:
    """L2-normalised over the last dim, with the epsilon inside the root."""
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6)


def gated_delta(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
    """Chunked gated delta rule from a zero state (arXiv 2412.06464); products in v's dtype, the rest in fp32.

    q, k [rows, tokens, heads, Dk] (not normalised), v [rows, tokens, heads, Dv], decay (log, <= 0) and beta
    [rows, tokens, heads]; tokens must be a multiple of 64. Returns [rows, tokens, heads, Dv].
    """
    rows, tokens, heads, dim = q.shape
    kind, shape = v.dtype, (rows, tokens // CHUNK, CHUNK, heads)
    q, k = unit(q.float()) * dim**-0.5, unit(k.float())
    q, k, v = (t.float().reshape(*shape, -1).permute(0, 3, 1, 2, 4) for t in (q, k, v))  # [rows, heads, N, C, D]
    decay, beta = (t.float().reshape(shape).permute(0, 3, 1, 2) for t in (decay, beta))  # [rows, heads, N, C]
    total = decay.cumsum(-1)
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
    fade = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(~lower, float("-inf")).exp()
    grown, kept = total.exp().unsqueeze(-1), (total[..., -1:] - total).exp().unsqueeze(-1)
    beta = beta.unsqueeze(-1)
    key, key_t = _stack(k, kind), _stack(k, kind).transpose(1, 2)
    inverse = unit_lower_inverse((beta * fade * (key @ key_t).view_as(fade)).tril(-1))
    solved = _stack(inverse, kind) @ _stack(beta * torch.cat([v, k * grown], -1), kind)
    u, w = solved.split([v.shape[-1], dim], -1)
    last = _stack(k * kept, kind).transpose(1, 2)
    lead = (rows, heads, -1)
    gamma = total[..., -1].exp()
    state = chunk_states((last @ w).view(*lead, dim, dim), (last @ u).view(*lead, dim, v.shape[-1]), gamma)
    state = _stack(state, kind)
    new = torch.baddbmm(u, w, state, alpha=-1.0)
    seen = _stack((_stack(q, kind) @ key_t).view_as(fade) * fade, kind)
    out = torch.baddbmm(_stack(q * grown, kind) @ state, seen, new)
    return out.view(rows, heads, -1, CHUNK, v.shape[-1]).permute(0, 2, 3, 1, 4).reshape(rows, tokens, heads, -1)


def _stack(t: Tensor, kind: torch.dtype) -> Tensor:
    """[rows, heads, N, a, b] as one batch of matrices in the products' dtype."""
    return t.to(kind).reshape(-1, *t.shape[-2:])
