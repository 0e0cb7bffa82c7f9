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

from recipe.triangular import unit_lower_inverse

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
    """Chunked gated delta rule from a zero state, in fp32 (arXiv 2412.06464).

    q, k [rows, tokens, heads, Dk] (not normalised), v [rows, tokens, heads, Dv], decay (log, <= 0) and beta
    [rows, tokens, heads]; tokens must be a multiple of 64. Returns [rows, tokens, heads, Dv] in fp32.
    """
    rows, tokens, heads, dim = q.shape
    shape = (rows, tokens // CHUNK, CHUNK, heads)
    q, k = (unit(t.float()) for t in (q, k))
    q = q * dim**-0.5
    q, k, v = (t.float().reshape(*shape, -1).permute(0, 3, 1, 2, 4) for t in (q, k, v))  # [rows, heads, N, C, D]
    decay, beta = (t.float().reshape(shape).permute(0, 3, 1, 2) for t in (decay, beta))  # [rows, heads, N, C]
    total = decay.cumsum(-1)
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
    fade = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(~lower, float("-inf")).exp()
    k_t = k.transpose(-1, -2)
    a = (beta.unsqueeze(-1) * (k @ k_t) * fade).tril(-1)
    grown = total.exp().unsqueeze(-1)
    solved = unit_lower_inverse(a) @ (beta.unsqueeze(-1) * torch.cat([v, k * grown], -1))
    kept = (k * (total[..., -1:] - total).exp().unsqueeze(-1)).transpose(-1, -2) @ solved  # [rows, heads, N, Dk, Dv + Dk]
    u, w = solved.split([v.shape[-1], dim], -1)
    state = chunk_states(kept[..., v.shape[-1] :], kept[..., : v.shape[-1]], total[..., -1].exp())
    new = u - w @ state
    out = (q * grown) @ state + ((q @ k_t) * fade) @ new
    return out.permute(0, 2, 3, 1, 4).reshape(rows, tokens, heads, -1)


@torch.library.custom_op("foveate_recipe::chunk_states", mutates_args=())
def chunk_states(p: Tensor, b: Tensor, gamma: Tensor) -> Tensor:
    """The states before each chunk: S[0] = 0, S[n+1] = gamma[n] S[n] - P[n] S[n] + B[n].

    P [rows, heads, N, Dk, Dk], B [rows, heads, N, Dk, Dv], gamma [rows, heads, N]; returns [rows, heads, N, Dk, Dv].
    """
    p, b, gamma = (_by_chunk(t) for t in (p, b, gamma))
    states = torch.zeros_like(b)
    for n in range(len(b) - 1):
        base = torch.addcmul(b[n], gamma[n][..., None, None], states[n])
        torch.baddbmm(base.flatten(0, 1), p[n].flatten(0, 1), states[n].flatten(0, 1), alpha=-1.0,
                      out=states[n + 1].view(-1, *b.shape[3:]))  # fmt: skip
    return states.permute(1, 2, 0, 3, 4).contiguous()


def _by_chunk(t: Tensor) -> Tensor:
    return t.permute(2, 0, 1, *range(3, t.ndim)).contiguous()


@chunk_states.register_fake
def _(p: Tensor, b: Tensor, gamma: Tensor) -> Tensor:
    return torch.empty(b.shape, dtype=b.dtype, device=b.device)


@torch.library.custom_op("foveate_recipe::chunk_states_grad", mutates_args=())
def chunk_states_grad(grad: Tensor, p: Tensor, gamma: Tensor, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of P, B and gamma; `after[n]` is the gradient that reaches S[n + 1]."""
    grad, p, gamma, states = (_by_chunk(t) for t in (grad, p, gamma, states))
    after = torch.zeros_like(states)
    for n in range(len(states) - 2, -1, -1):
        later = after[n + 1]  # zero behind the last chunk
        base = torch.addcmul(grad[n + 1], gamma[n + 1][..., None, None], later)
        torch.baddbmm(base.flatten(0, 1), p[n + 1].flatten(0, 1).transpose(1, 2), later.flatten(0, 1), alpha=-1.0,
                      out=after[n].view(-1, *states.shape[3:]))  # fmt: skip
    grad_p, grad_gamma = -(after @ states.transpose(-1, -2)), (after * states).sum((-1, -2))
    grad_p, grad_b = (t.permute(1, 2, 0, 3, 4).contiguous() for t in (grad_p, after))
    return grad_p, grad_b, grad_gamma.permute(1, 2, 0).contiguous()


@chunk_states_grad.register_fake
def _(grad: Tensor, p: Tensor, gamma: Tensor, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty(p.shape, dtype=p.dtype, device=p.device), torch.empty_like(states), torch.empty_like(gamma)


def _save_states(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    ctx.save_for_backward(inputs[0], inputs[2], output)


def _states_backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[no-untyped-def]
    p, gamma, states = ctx.saved_tensors
    return chunk_states_grad(grad, p, gamma, states)


chunk_states.register_autograd(_states_backward, setup_context=_save_states)
