"""The trainable tower of DeepSeek V4's eyes: patches of many pictures in, aligned rows of the text width out.

Owns the tower's and the aligner's modules under the released names. Promises that pictures packed together never see
each other and that a row is what the released architecture computes for it. Which patches make a row comes with the
pack; nothing here depends on a picture's shape.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recipe.deepseek_ops import rms
from recipe.deepseek_shapes import BLANKS, TowerShape
from recipe.ops import packed_attention, rotate
from recipe.vision import Linear

EPS = 1e-6


class TowerNorm(nn.Module):
    """RMS norm with a plain weight, eps 1e-6."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        """Normalised over the last dim."""
        return rms(x, self.weight, EPS)


class TowerAttention(nn.Module):
    """Bidirectional attention inside each picture, axial rope."""

    def __init__(self, shape: TowerShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.wqkv, self.wo = Linear(shape.hidden, 3 * shape.hidden), Linear(shape.hidden, shape.hidden)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, edges: Tensor, longest: int) -> Tensor:
        """x [patches, hidden]; cos, sin [patches, head dim] fp32; `edges` bound the pictures."""
        q, k, v = self.wqkv(x).view(len(x), 3, self.heads, -1).unbind(1)
        q, k = (rotate(t.float(), cos, sin).to(x.dtype) for t in (q, k))
        return self.wo(packed_attention(q, k, v, edges, longest, causal=False).flatten(1))


class TowerMlp(nn.Module):
    """SwiGLU, gate rows first."""

    def __init__(self, shape: TowerShape) -> None:
        super().__init__()
        self.w1 = Linear(shape.hidden, 2 * shape.inner, bias=False)
        self.w2 = Linear(shape.inner, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [patches, hidden], same shape out."""
        gate, up = self.w1(x).chunk(2, -1)
        return self.w2(F.silu(gate) * up)


class TowerBlock(nn.Module):
    """Norm and attention, norm and MLP, both residual."""

    def __init__(self, shape: TowerShape) -> None:
        super().__init__()
        self.norm1, self.norm2 = TowerNorm(shape.hidden), TowerNorm(shape.hidden)
        self.attn, self.mlp = TowerAttention(shape), TowerMlp(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, edges: Tensor, longest: int) -> Tensor:
        """x [patches, hidden], same shape out."""
        x = x + self.attn(self.norm1(x), cos, sin, edges, longest)
        return x + self.mlp(self.norm2(x))


class PatchEmbed(nn.Module):
    """The patch projection; values in the order channel, row, column."""

    def __init__(self, shape: TowerShape) -> None:
        super().__init__()
        self.proj = Linear(shape.patch_values, shape.hidden)


class Tower(nn.Module):
    """Names below `vision.`."""

    def __init__(self, shape: TowerShape) -> None:
        super().__init__()
        self.patch_embed = PatchEmbed(shape)
        self.blocks = nn.ModuleList(TowerBlock(shape) for _ in range(shape.depth))
        self.norm = TowerNorm(shape.hidden)


class Aligner(nn.Module):
    """A square of patches, channel by channel, to a row of the text width; names below `aligner.`."""

    def __init__(self, shape: TowerShape, out: int) -> None:
        super().__init__()
        self.w1, self.w2 = Linear(shape.hidden * shape.cell**2, out), Linear(out, out)

    def forward(self, squares: Tensor) -> Tensor:
        """squares [n, cell * cell, hidden] to [n, out]."""
        return self.w2(F.gelu(self.w1(squares.transpose(1, 2).flatten(1))))


class Sight(nn.Module):
    """Tower and aligner."""

    def __init__(self, shape: TowerShape, out: int) -> None:
        super().__init__()
        self.shape, self.vision, self.aligner = shape, Tower(shape), Aligner(shape, out)

    def forward(self, pack: Any, longest: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Rows [image rows, out] and normed patches [patches, hidden] of a `SightPack`."""
        x = self.vision.patch_embed.proj((pack.patches.float() / 127.5 - 1.0).to(dtype))
        cos, sin = self.rope_tables(pack.cells)
        for block in self.vision.blocks:
            x = block(x, cos, sin, pack.image_edges, longest)
        x = self.vision.norm(x)
        padded = torch.cat([x, x.new_zeros(BLANKS, x.shape[1])])
        return self.aligner(padded.index_select(0, pack.squares.flatten()).view(*pack.squares.shape, -1)), x

    def rope_tables(self, cells: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin [patches, head dim] of the axial rope."""
        half = self.shape.hidden // self.shape.heads // 2
        steps = torch.arange(0, half, 2, device=cells.device, dtype=torch.float32) / half
        angles = cells.float().unsqueeze(-1) * (1.0 / self.shape.theta**steps)  # [patches, 2, half / 2]
        angles = angles.flatten(1).repeat(1, 2)
        return angles.cos(), angles.sin()
