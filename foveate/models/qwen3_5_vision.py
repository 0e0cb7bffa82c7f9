"""The Qwen3.5 vision tower: resized pixels in, language-model rows out.

Images of any grids run together, patches flattened one image after another; attention stays inside each image, so an
image's rows do not depend on its company. Normalisation, patch order (merge block by merge block) and position
resampling are those of the reference processor and model. What depends on a grid alone is computed once and kept for
the grids seen last. Knows neither files of pictures nor where the rows go.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from foveate.core.values import ImageRules
from foveate.models.qwen3_5_config import VisionConfig
from foveate.models.weights import Place, check, invent, inventory, open_source
from foveate.ops.attention import attend_segments
from foveate.ops.frames import frames_on
from foveate.ops.rope import axial_cos_sin, rotate_

PREFIX = "model.visual."
EPS = 1e-6
ROPE_THETA = 10000.0
GRIDS_KEPT = 32
# What random weights must be like (end of a name, mean, spread).
SPREADS = (
    ("norm1.weight", 1.0, 0.1),
    ("norm2.weight", 1.0, 0.1),
    ("norm.weight", 1.0, 0.1),
    ("embed.weight", 0.0, 0.5),
)
Grid = tuple[int, int]  # patches (down, across)


@dataclass(frozen=True, slots=True)
class Affine:
    """Weight and bias of a linear layer or a layer norm."""

    weight: Tensor
    bias: Tensor

    def linear(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def norm(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, EPS)


@dataclass(frozen=True, slots=True)
class Block:
    """One transformer block."""

    norm1: Affine
    qkv: Affine
    proj: Affine
    norm2: Affine
    fc1: Affine
    fc2: Affine


@dataclass(frozen=True, slots=True)
class TowerWeights:
    """All weights. patches: the patch projection for one frame, its columns ordered (row, column, channel)."""

    patches: Affine
    positions: Tensor  # [side * side, hidden]
    blocks: tuple[Block, ...]
    merge_norm: Affine
    merge1: Affine
    merge2: Affine


@dataclass(frozen=True, slots=True)
class GridFacts:
    """What a grid fixes: position embeddings [patches, hidden] and rope [patches, 1, head_dim / 2]."""

    positions: Tensor
    cos: Tensor
    sin: Tensor


class Qwen35Vision:
    """The tower as a `VisionTower`."""

    def __init__(self, config: VisionConfig, weights: TowerWeights, rules: ImageRules) -> None:
        self.config, self.weights, self.out_size = config, weights, config.out
        device = weights.positions.device
        # (x / 255 - mean) / std as one product and one sum
        self._gain = torch.tensor([1.0 / (255.0 * std) for std in rules.std]).to(device)
        self._shift = torch.tensor([-mean / std for mean, std in zip(rules.mean, rules.std, strict=True)]).to(device)
        self._grids: OrderedDict[Grid, GridFacts] = OrderedDict()

    @torch.no_grad()
    def encode(self, pixels: list[Any]) -> list[Tensor]:
        """Rows [grid area / merge², out_size] of each image, row by row; images are uint8 [height, width, 3]."""
        frames = frames_on(pixels, self._gain.device)
        grids = [(frame.shape[0] // self.config.patch, frame.shape[1] // self.config.patch) for frame in frames]
        facts = [self._facts(grid) for grid in grids]
        patches = self._normalise(torch.cat([self._patches(frame) for frame in frames]))
        x = self.weights.patches.linear(patches) + torch.cat([fact.positions for fact in facts])  # [patches, hidden]
        cos, sin = torch.cat([fact.cos for fact in facts]), torch.cat([fact.sin for fact in facts])
        lens = tuple(down * across for down, across in grids)
        for block in self.weights.blocks:
            x = self._block(block, x, cos, sin, lens)
        x = self.weights.merge_norm.norm(x).view(-1, self.weights.merge1.weight.shape[1])
        rows = self.weights.merge2.linear(F.gelu(self.weights.merge1.linear(x)))
        return list(rows.split([length // self.config.merge**2 for length in lens]))

    def _patches(self, frame: Tensor) -> Tensor:
        """uint8 [height, width, 3] to [patches, patch * patch * 3], the patches of a merge block side by side."""
        patch, merge = self.config.patch, self.config.merge
        assert frame.shape[0] % (patch * merge) == 0 == frame.shape[1] % (patch * merge), "image does not fit its grid"
        blocks = frame.view(-1, merge, patch, frame.shape[1] // (patch * merge), merge, patch * 3)
        return blocks.permute(0, 3, 1, 4, 2, 5).reshape(-1, patch * patch * 3)

    def _normalise(self, patches: Tensor) -> Tensor:
        scaled = patches.float().view(-1, 3).mul_(self._gain).add_(self._shift)
        return scaled.view(patches.shape).to(self.weights.positions.dtype)

    def _block(self, block: Block, x: Tensor, cos: Tensor, sin: Tensor, lens: tuple[int, ...]) -> Tensor:
        heads = self.config.heads
        qkv = block.qkv.linear(block.norm1.norm(x)).view(len(x), 3 * heads, -1)  # [patches, 3 * heads, dim]
        turned = rotate_(qkv[:, : 2 * heads].float(), cos, sin).to(x.dtype)
        out = attend_segments(turned[:, :heads], turned[:, heads:], qkv[:, 2 * heads :], lens)
        x = x + block.proj.linear(out.flatten(1))
        inner = F.gelu(block.fc1.linear(block.norm2.norm(x)), approximate="tanh")
        return x.add_(block.fc2.linear(inner))

    def _facts(self, grid: Grid) -> GridFacts:
        """The facts of a grid, from the grids seen last or new."""
        facts = self._grids.pop(grid, None)
        if facts is None:
            rows, columns = block_order(grid, self.config.merge, self._gain.device)
            positions = resample(self.weights.positions, self.config.side, grid, rows, columns)
            rope = axial_cos_sin(rows, columns, self.config.hidden // self.config.heads, ROPE_THETA)
            facts = GridFacts(positions, *rope)
        self._grids[grid] = facts
        if len(self._grids) > GRIDS_KEPT:
            self._grids.popitem(last=False)
        return facts


def block_order(grid: Grid, merge: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Row and column of every patch [patches], merge block by merge block."""
    down, across = grid
    at = torch.arange(down * across, device=device).view(down // merge, merge, across // merge, merge)
    at = at.transpose(1, 2).flatten()
    return at // across, at % across


def resample(table: Tensor, side: int, grid: Grid, rows: Tensor, columns: Tensor) -> Tensor:
    """The square position table [side², hidden] stretched over a grid, read bilinearly at the patches given.

    Corners stay corners: patch i of n reads at `i (side - 1) / (n - 1)`, and at 0 when n is 1.
    """
    down, across = (at.float() * (side - 1) / max(n - 1, 1) for at, n in zip((rows, columns), grid, strict=True))
    top, left = down.floor().long(), across.floor().long()
    low, right = (top + 1).clamp(max=side - 1), (left + 1).clamp(max=side - 1)
    below, beside = (down - top)[:, None], (across - left)[:, None]
    wide = table.float()
    upper = wide[top * side + left] * (1 - beside) + wide[top * side + right] * beside
    lower = wide[low * side + left] * (1 - beside) + wide[low * side + right] * beside
    return (upper * (1 - below) + lower * below).to(table.dtype)


def load_tower(folder: Path, config: VisionConfig, place: Place) -> TowerWeights:
    """Read and check the tower's tensors only. Raises CheckpointError naming the one that is not as expected."""
    expected = vision_shapes(config)
    everything = invent(expected, None, ()) if place.dummy else inventory(folder)
    stored = {name: found for name, found in everything.items() if name.startswith(PREFIX)}
    check(stored, expected, ())
    source = open_source(folder, stored, place, SPREADS)

    def affine(name: str) -> Affine:
        return Affine(source.get(f"{PREFIX}{name}.weight"), source.get(f"{PREFIX}{name}.bias"))

    names = ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.linear_fc1", "mlp.linear_fc2")
    patch = PREFIX + "patch_embed.proj."
    return TowerWeights(
        patches=_one_frame(source.exact(patch + "weight"), source.get(patch + "bias")),
        positions=source.get(PREFIX + "pos_embed.weight"),
        blocks=tuple(
            source.each(lambda i: Block(*(affine(f"blocks.{i}.{name}") for name in names)), range(config.depth))
        ),
        merge_norm=affine("merger.norm"),
        merge1=affine("merger.linear_fc1"),
        merge2=affine("merger.linear_fc2"),
    )


def _one_frame(weight: Tensor, bias: Tensor) -> Affine:
    """The projection of a still: it fills all temporal slots alike, so their weights add up."""
    frame = weight.sum(2).permute(0, 2, 3, 1).flatten(1)  # [hidden, row * column * channel]
    return Affine(frame.to(bias.dtype), bias)


def vision_shapes(config: VisionConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of the tower by its official name."""
    hidden, inner, merged = config.hidden, config.inner, config.hidden * config.merge**2
    sides: dict[str, tuple[int, ...]] = {
        "patch_embed.proj": (hidden, 3, config.temporal, config.patch, config.patch),
        "merger.norm": (hidden,),
        "merger.linear_fc1": (merged, merged),
        "merger.linear_fc2": (config.out, merged),
    }
    for i in range(config.depth):
        sides |= {f"blocks.{i}.norm1": (hidden,), f"blocks.{i}.norm2": (hidden,)}
        sides |= {f"blocks.{i}.attn.qkv": (3 * hidden, hidden), f"blocks.{i}.attn.proj": (hidden, hidden)}
        sides |= {f"blocks.{i}.mlp.linear_fc1": (inner, hidden), f"blocks.{i}.mlp.linear_fc2": (hidden, inner)}
    shapes = {f"{PREFIX}{name}.weight": shape for name, shape in sides.items()}
    shapes |= {f"{PREFIX}{name}.bias": shape[:1] for name, shape in sides.items()}
    return shapes | {PREFIX + "pos_embed.weight": (config.side**2, hidden)}
