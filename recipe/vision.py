"""The trainable vision tower: patches of many images in, merged rows of the text width out.

Owns the tower's modules under the official names and the tables that depend on the patch grid. Promises that images
packed together never see each other and that a row is what the released architecture computes for it. The temporal
half of the patch convolution is left out: a still image fills both halves alike, so export writes each half of it.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recipe.ops import packed_attention, rotate
from recipe.shapes import VisionShape


class Linear(nn.Linear):
    """A linear layer with fp32 masters that computes in its input's dtype."""

    def forward(self, x: Tensor) -> Tensor:
        """`x` @ weight^T (+ bias), in x.dtype."""
        return F.linear(x, self.weight.to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))


class LayerNorm(nn.LayerNorm):
    """Layer norm (eps 1e-6) with fp32 masters."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        """Normalised over the last dim, in x.dtype."""
        return F.layer_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.bias.to(x.dtype), self.eps)


class PatchEmbed(nn.Module):
    """The patch projection, as one matrix over a still image's values."""

    def __init__(self, shape: VisionShape) -> None:
        super().__init__()
        self.proj = Linear(shape.patch_values, shape.hidden)


class VisionAttention(nn.Module):
    """Bidirectional attention inside each image, axial rope."""

    def __init__(self, shape: VisionShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.qkv = Linear(shape.hidden, 3 * shape.hidden)
        self.proj = Linear(shape.hidden, shape.hidden)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, edges: Tensor, longest: int) -> Tensor:
        """x [patches, hidden]; cos, sin [patches, head dim] fp32; `edges` bound the images."""
        q, k, v = self.qkv(x).view(len(x), 3, self.heads, -1).unbind(1)
        q, k = (rotate(t.float(), cos, sin).to(x.dtype) for t in (q, k))
        return self.proj(packed_attention(q, k, v, edges, longest, causal=False).flatten(1))


class VisionMlp(nn.Module):
    """fc1, tanh GELU, fc2."""

    def __init__(self, shape: VisionShape) -> None:
        super().__init__()
        self.linear_fc1 = Linear(shape.hidden, shape.ffn)
        self.linear_fc2 = Linear(shape.ffn, shape.hidden)

    def forward(self, x: Tensor) -> Tensor:
        """x [patches, hidden], same shape out."""
        return self.linear_fc2(F.gelu(self.linear_fc1(x), approximate="tanh"))


class VisionBlock(nn.Module):
    """Norm and attention, norm and MLP, both residual."""

    def __init__(self, shape: VisionShape) -> None:
        super().__init__()
        self.norm1, self.norm2 = LayerNorm(shape.hidden), LayerNorm(shape.hidden)
        self.attn, self.mlp = VisionAttention(shape), VisionMlp(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, edges: Tensor, longest: int) -> Tensor:
        """x [patches, hidden], same shape out."""
        x = x + self.attn(self.norm1(x), cos, sin, edges, longest)
        return x + self.mlp(self.norm2(x))


class Merger(nn.Module):
    """Four neighbouring patches to one row of the text width."""

    def __init__(self, shape: VisionShape, out: int) -> None:
        super().__init__()
        wide = shape.hidden * shape.merge**2
        self.norm = LayerNorm(shape.hidden)
        self.linear_fc1, self.linear_fc2 = Linear(wide, wide), Linear(wide, out)
        self.wide = wide

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [patches, hidden] to rows [patches / 4, out], and the normed patches they were made of."""
        x = self.norm(x)
        return self.linear_fc2(F.gelu(self.linear_fc1(x.view(-1, self.wide)))), x


class VisionTower(nn.Module):
    """The tower; parameters are named as in released checkpoints, below `model.visual.`."""

    def __init__(self, shape: VisionShape, out: int) -> None:
        super().__init__()
        self.shape = shape
        self.patch_embed = PatchEmbed(shape)
        self.pos_embed = nn.Embedding(shape.side**2, shape.hidden)
        self.blocks = nn.ModuleList(VisionBlock(shape) for _ in range(shape.depth))
        self.merger = Merger(shape, out)

    def forward(
        self, patches: Tensor, cells: Tensor, edges: Tensor, longest: int, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Rows [n / 4, out] and normed patches [n, hidden] of patches [n, 768] uint8.

        `cells` [n, 4] holds each patch's row and column and its grid's rows and columns.
        """
        x = self.patch_embed.proj((patches.float() / 127.5 - 1.0).to(dtype))
        x = x + self.grid_weights(cells).to(dtype) @ self.pos_embed.weight.to(dtype)
        cos, sin = self.rope_tables(cells)
        for block in self.blocks:
            x = block(x, cos, sin, edges, longest)
        both: tuple[Tensor, Tensor] = self.merger(x)
        return both

    def grid_weights(self, cells: Tensor) -> Tensor:
        """Bilinear taps (aligned corners) of the position table as a matrix [n, side * side]; no gradient."""
        side = self.shape.side
        with torch.no_grad():
            place, span = cells[:, :2].float(), (cells[:, 2:] - 1).clamp(min=1).float()
            source = place * (side - 1) / span
            low = source.floor().clamp(max=side - 1)
            part, low = source - low, low.long()
            high = (low + 1).clamp(max=side - 1)
            matrix = torch.zeros(len(cells), side * side, device=cells.device)
            for r, wr in ((low[:, 0], 1 - part[:, 0]), (high[:, 0], part[:, 0])):
                for c, wc in ((low[:, 1], 1 - part[:, 1]), (high[:, 1], part[:, 1])):
                    matrix.scatter_add_(1, (r * side + c)[:, None], (wr * wc)[:, None])
        return matrix

    def rope_tables(self, cells: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin [n, head dim] of the axial rope."""
        half = self.shape.hidden // self.shape.heads // 2
        steps = torch.arange(0, half, 2, device=cells.device, dtype=torch.float32) / half
        angles = cells[:, :2].float().unsqueeze(-1) * (1.0 / self.shape.theta**steps)  # [n, 2, half / 2]
        angles = angles.flatten(1).repeat(1, 2)
        return angles.cos(), angles.sin()
