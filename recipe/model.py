"""The trainable chart reader: the Qwen3.5 architecture over padded packs, in plain torch.

Owns the language model's modules and the whole model, all under the official tensor names, and their initialisation.
Promises the released architecture's function (compared with transformers in the tests), fp32 master weights with the
computation in a chosen dtype, and static shapes. Knows nothing about optimisers, files or where packs come from.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recipe.ops import (
    RESET,
    causal_conv,
    centred_rms_norm,
    gated_delta,
    gated_rms_norm,
    mrope_tables,
    packed_attention,
    rotate,
)
from recipe.shapes import Shape, TextShape
from recipe.vision import Linear, VisionTower

RESIDUAL = ("out_proj.weight", "o_proj.weight", "down_proj.weight")  # what writes into the residual stream


class Pack(NamedTuple):
    """Tensors of one padded pack; rows of `tokens` hold whole conversations, one after another."""

    patches: Tensor  # [patches, 768] uint8
    cells: Tensor  # [patches, 4] int32: row, column, rows, columns
    image_edges: Tensor  # [images + 1] int32, covering every patch
    ids: Tensor  # [rows, tokens] int64
    source: Tensor  # [rows * tokens] int64: where each embedding comes from, in [tokens of text ; image rows]
    where: Tensor  # [3, rows * tokens] int32: time, height, width positions
    age: Tensor  # [rows, tokens] int32: distance from the conversation's start
    edges: Tensor  # [segments + 1] int32, covering every token


class CentredNorm(nn.Module):
    """RMS norm with a zero-centred weight."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.zeros(dim)), eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalised over the last dim."""
        return centred_rms_norm(x, self.weight, self.eps)


class PlainNorm(nn.Module):
    """RMS norm weight of the DeltaNet output (not centred)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))


class Conv(nn.Module):
    """The depthwise convolution's weight."""

    def __init__(self, channels: int, taps: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(channels, 1, taps))


class DeltaNet(nn.Module):
    """Gated DeltaNet over rows of packed conversations."""

    def __init__(self, shape: TextShape) -> None:
        super().__init__()
        self.shape = shape
        keys, values = shape.key_heads * shape.key_dim, shape.value_heads * shape.value_dim
        self.in_proj_qkv = Linear(shape.hidden, 2 * keys + values, bias=False)
        self.in_proj_z = Linear(shape.hidden, values, bias=False)
        self.in_proj_b = Linear(shape.hidden, shape.value_heads, bias=False)
        self.in_proj_a = Linear(shape.hidden, shape.value_heads, bias=False)
        self.conv1d = Conv(2 * keys + values, shape.conv)
        self.A_log = nn.Parameter(torch.zeros(shape.value_heads))
        self.dt_bias = nn.Parameter(torch.zeros(shape.value_heads))
        self.norm = PlainNorm(shape.value_dim)
        self.out_proj = Linear(values, shape.hidden, bias=False)

    def forward(self, x: Tensor, age: Tensor) -> Tensor:
        """x [rows, tokens, hidden], same shape out."""
        s, lead = self.shape, x.shape[:2]
        keys = s.key_heads * s.key_dim
        mixed = F.silu(causal_conv(self.in_proj_qkv(x), self.conv1d.weight, age))
        q, k, v = mixed.split([keys, keys, s.value_heads * s.value_dim], -1)
        repeat = s.value_heads // s.key_heads
        q, k = (t.reshape(*lead, s.key_heads, s.key_dim).repeat_interleave(repeat, 2) for t in (q, k))
        v = v.reshape(*lead, s.value_heads, s.value_dim)
        beta = torch.sigmoid(self.in_proj_b(x).float())
        decay = -self.A_log.float().exp() * F.softplus(self.in_proj_a(x).float() + self.dt_bias)
        decay = decay + RESET * (age == 0).unsqueeze(-1)
        out = gated_delta(q, k, v, decay, beta).to(x.dtype)
        z = self.in_proj_z(x).view(*lead, s.value_heads, s.value_dim)
        return self.out_proj(gated_rms_norm(out, z, self.norm.weight, s.eps).flatten(2))


class FullAttention(nn.Module):
    """Gated full attention with query and key norms and partial M-RoPE."""

    def __init__(self, shape: TextShape) -> None:
        super().__init__()
        self.shape = shape
        dim = shape.head_dim
        self.q_proj = Linear(shape.hidden, 2 * shape.heads * dim, bias=False)
        self.k_proj = Linear(shape.hidden, shape.kv_heads * dim, bias=False)
        self.v_proj = Linear(shape.hidden, shape.kv_heads * dim, bias=False)
        self.o_proj = Linear(shape.heads * dim, shape.hidden, bias=False)
        self.q_norm, self.k_norm = CentredNorm(dim, shape.eps), CentredNorm(dim, shape.eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, edges: Tensor) -> Tensor:
        """x [rows, tokens, hidden]; cos, sin [rows * tokens, rotated dims]; same shape out."""
        s, flat = self.shape, x.flatten(0, 1)
        q, gate = self.q_proj(flat).view(len(flat), s.heads, 2 * s.head_dim).chunk(2, -1)
        k, v = (proj(flat).view(len(flat), s.kv_heads, s.head_dim) for proj in (self.k_proj, self.v_proj))
        q, k = rotate(self.q_norm(q), cos, sin), rotate(self.k_norm(k), cos, sin)
        k, v = (t.repeat_interleave(s.heads // s.kv_heads, 1) for t in (k, v))
        out = packed_attention(q, k, v, edges, x.shape[1], causal=True)
        return self.o_proj((out * torch.sigmoid(gate)).flatten(1)).view_as(x)


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = Linear(hidden, ffn, bias=False), Linear(hidden, ffn, bias=False)
        self.down_proj = Linear(ffn, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape out."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class LinearLayer(nn.Module):
    """A decoder layer with a DeltaNet."""

    def __init__(self, shape: TextShape) -> None:
        super().__init__()
        self.input_layernorm = CentredNorm(shape.hidden, shape.eps)
        self.post_attention_layernorm = CentredNorm(shape.hidden, shape.eps)
        self.linear_attn, self.mlp = DeltaNet(shape), Mlp(shape.hidden, shape.ffn)

    def forward(self, x: Tensor, age: Tensor) -> Tensor:
        """x [rows, tokens, hidden], same shape out."""
        x = x + self.linear_attn(self.input_layernorm(x), age)
        return x + self.mlp(self.post_attention_layernorm(x))


class FullLayer(nn.Module):
    """A decoder layer with full attention."""

    def __init__(self, shape: TextShape) -> None:
        super().__init__()
        self.input_layernorm = CentredNorm(shape.hidden, shape.eps)
        self.post_attention_layernorm = CentredNorm(shape.hidden, shape.eps)
        self.self_attn, self.mlp = FullAttention(shape), Mlp(shape.hidden, shape.ffn)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, edges: Tensor) -> Tensor:
        """x [rows, tokens, hidden], same shape out."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, edges)
        return x + self.mlp(self.post_attention_layernorm(x))


class TextTrunk(nn.Module):
    """Embedding, layers and final norm, below `model.language_model.`."""

    def __init__(self, shape: TextShape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(
            FullLayer(shape) if shape.is_full(i) else LinearLayer(shape) for i in range(shape.layers)
        )
        self.norm = CentredNorm(shape.hidden, shape.eps)


class EmbedRows(torch.autograd.Function):
    """Rows of a table; the gradient is a product with a one-hot matrix: deterministic and capturable."""

    @staticmethod
    def forward(ctx, table: Tensor, ids: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(ids)
        ctx.size = len(table)
        return table.index_select(0, ids)

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[no-untyped-def]
        (ids,) = ctx.saved_tensors
        chosen = torch.zeros(len(ids), ctx.size, dtype=grad.dtype, device=grad.device)
        chosen.scatter_(1, ids[:, None], 1.0)
        return chosen.T @ grad, None


class Body(nn.Module):
    """Names only: `model.visual` and `model.language_model`."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.visual = VisionTower(shape.vision, shape.text.hidden)
        self.language_model = TextTrunk(shape.text)


class ChartReader(nn.Module):
    """The whole model; `state_dict()` has the official names (tied head, patch matrix without its temporal copy)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Body(shape)

    def embeddings(self, pack: Pack, longest_image: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """Input embeddings [rows, tokens, hidden] with image rows in place, the image rows, the normed patches."""
        rows, patches = self.model.visual(pack.patches, pack.cells, pack.image_edges, longest_image, dtype)
        table = self.model.language_model.embed_tokens.weight.to(dtype)
        words = EmbedRows.apply(table, pack.ids.flatten())
        mixed = torch.cat([words, rows]).index_select(0, pack.source)
        return mixed.view(*pack.ids.shape, -1), rows, patches

    def rope(self, where: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and sin of the full-attention layers, cast to the activations' dtype."""
        s = self.shape.text
        cos, sin = mrope_tables(where, int(s.head_dim * s.rotary), s.theta, s.sections)
        return cos.to(dtype), sin.to(dtype)

    def states(self, x: Tensor, pack: Pack) -> list[Tensor]:
        """The output of every layer, each [rows, tokens, hidden], before the final norm."""
        cos, sin = self.rope(pack.where, x.dtype)
        out = []
        for layer in self.model.language_model.layers:
            x = layer(x, cos, sin, pack.edges) if isinstance(layer, FullLayer) else layer(x, pack.age)
            out.append(x)
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        """fp32 logits of final-normed hidden states [n, hidden]."""
        return F.linear(hidden, self.model.language_model.embed_tokens.weight.to(hidden.dtype)).float()

    def forward(self, pack: Pack, longest_image: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """Final-normed hidden states [rows * tokens, hidden], the image rows and the normed patches."""
        x, rows, patches = self.embeddings(pack, longest_image, dtype)
        hidden = self.model.language_model.norm(self.states(x, pack)[-1])
        return hidden.flatten(0, 1), rows, patches


def initialise(module: nn.Module, seed: int, residual_layers: int) -> None:
    """Random weights, the same for the same seed; DeltaNet decays start slow, or a layer forgets within a step."""
    generator = torch.Generator().manual_seed(seed)
    for name, p in module.named_parameters():
        if name.endswith(("A_log", "dt_bias")):
            noise = torch.rand(p.shape, generator=generator)
            dt = torch.exp(noise * math.log(100.0) + math.log(1e-3))  # [1e-3, 0.1], log-uniform
            p.data.copy_((0.5 + 7.5 * noise).log() if name.endswith("A_log") else dt + torch.log(-torch.expm1(-dt)))
        elif p.ndim >= 2:
            std = {"pos_embed": 0.02, "embed_tokens": 0.05, "conv1d": 0.3}.get(name.split(".")[-2], 0.0)
            std = std or (3 * p.shape[-1]) ** -0.5
            std *= (
                residual_layers**-0.5 if name.endswith(("out_proj.weight", "o_proj.weight", "down_proj.weight")) else 1
            )
            p.data.copy_(torch.randn(p.shape, generator=generator) * std)
        elif name.endswith("bias"):
            p.data.zero_()
