"""The vision tower and aligner of DeepSeek-V4-Flash-Vision-Exp: resized pixels in, whole image blocks out.

A picture's rows are its complete block, START to END, in the order of `core.images`: cells from the aligner, the other
tokens from vectors that the checkpoint has learned. So the rows follow from the pixels alone, wherever the block will
stand. Several pictures run together, attention inside each. What depends on a grid alone is computed once and kept for
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

from foveate.core.images import Grid, Kind, block_of, cells_of
from foveate.models.deepseek_v4_vision_config import VisionConfig
from foveate.models.weights import Place, check, invent, inventory, open_source
from foveate.ops.attention import attend_segments
from foveate.ops.frames import frames_on
from foveate.ops.layers import rms_norm, swiglu
from foveate.ops.rope import axial_cos_sin, rotate_

PREFIXES = ("vision.", "aligner.", "image_")
LEARNED = {Kind.START: "image_start", Kind.PAD: "image_pad", Kind.NEWLINE: "image_newline", Kind.END: "image_end"}
EPS = 1e-6
GRIDS_KEPT = 32
# What random weights must be like (end of a name, mean, spread).
SPREADS = (("norm1.weight", 1.0, 0.1), ("norm2.weight", 1.0, 0.1), ("norm.weight", 1.0, 0.1))


@dataclass(frozen=True, slots=True)
class Affine:
    """Weight [out, in] and bias [out] of a linear layer."""

    weight: Tensor
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class Block:
    """One transformer block. gate_up: [hidden, 2 * inner], gate first; norms are float32."""

    norm1: Tensor
    qkv: Affine
    out: Affine
    norm2: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class TowerWeights:
    """All weights. learned: [5, out], the vector of each kind of token, zeros where a cell stands."""

    patches: Affine
    blocks: tuple[Block, ...]
    norm: Tensor
    align1: Affine
    align2: Affine
    learned: Tensor


@dataclass(frozen=True, slots=True)
class GridFacts:
    """What a grid fixes: rope [patches, 1, head_dim / 2], and where each token's row is found [tokens]."""

    cos: Tensor
    sin: Tensor
    order: Tensor


class DeepseekV4Vision:
    """The tower as a `VisionTower`."""

    def __init__(self, config: VisionConfig, weights: TowerWeights) -> None:
        self.config, self.weights, self.out_size = config, weights, config.out
        # (x / 255 - 0.5) / 0.5 of each of the 256 values, rounded as the released processor rounds
        values = (torch.arange(256).float() / 255.0 - 0.5) / 0.5
        self._values = values.to(weights.learned.device, weights.learned.dtype)
        self._grids: OrderedDict[Grid, GridFacts] = OrderedDict()

    @torch.no_grad()
    def encode(self, pixels: list[Any]) -> list[Tensor]:
        """The block [tokens, out_size] of each image; images are uint8 [height, width, 3]."""
        frames = frames_on(pixels, self._values.device)
        grids = [(frame.shape[0] // self.config.patch, frame.shape[1] // self.config.patch) for frame in frames]
        facts = [self._facts(grid) for grid in grids]
        x = self.weights.patches(torch.cat([self._patches(frame) for frame in frames]))  # [patches, hidden]
        cos, sin = torch.cat([fact.cos for fact in facts]), torch.cat([fact.sin for fact in facts])
        lens = tuple(down * across for down, across in grids)
        for block in self.weights.blocks:
            x = self._block(block, x, cos, sin, lens)
        parts = rms_norm(x, self.weights.norm, EPS).split(lens)
        return [self._rows(part, grid, fact) for part, grid, fact in zip(parts, grids, facts, strict=True)]

    def _patches(self, frame: Tensor) -> Tensor:
        """uint8 [height, width, 3] to normalised [patches, patch * patch * 3], row by row."""
        patch = self.config.patch
        assert frame.shape[0] % patch == 0 == frame.shape[1] % patch, "image does not fit its grid"
        squares = frame.view(-1, patch, frame.shape[1] // patch, patch * 3).transpose(1, 2)
        return self._values[squares.reshape(-1, patch * patch * 3).int()]

    def _block(self, block: Block, x: Tensor, cos: Tensor, sin: Tensor, lens: tuple[int, ...]) -> Tensor:
        heads = self.config.heads
        qkv = block.qkv(rms_norm(x, block.norm1, EPS)).view(len(x), 3 * heads, -1)  # [patches, 3 * heads, dim]
        turned = rotate_(qkv[:, : 2 * heads].float(), cos, sin).to(x.dtype)
        out = attend_segments(turned[:, :heads], turned[:, heads:], qkv[:, 2 * heads :], lens)
        x = x + block.out(out.flatten(1))
        return x.add_(F.linear(swiglu(rms_norm(x, block.norm2, EPS), block.gate_up), block.down))

    def _rows(self, x: Tensor, grid: Grid, facts: GridFacts) -> Tensor:
        """Patches [patches, hidden] of one image to its block [tokens, out]."""
        cells = self.weights.align2(F.gelu(self.weights.align1(unfold(x, grid, self.config.cell))))
        return torch.cat([self.weights.learned, cells])[facts.order]

    def _facts(self, grid: Grid) -> GridFacts:
        """The facts of a grid, from the grids seen last or new."""
        facts = self._grids.pop(grid, None)
        if facts is None:
            device = self._values.device
            at = torch.arange(grid[0] * grid[1], device=device)
            head_dim = self.config.hidden // self.config.heads
            rope = axial_cos_sin(at // grid[1], at % grid[1], head_dim, self.config.theta)
            facts = GridFacts(*rope, torch.tensor(row_order(cells_of(grid, self.config.cell)), device=device))
        self._grids[grid] = facts
        if len(self._grids) > GRIDS_KEPT:
            self._grids.popitem(last=False)
        return facts


def row_order(cells: Grid) -> list[int]:
    """Where each token of a block finds its row when the learned vectors stand before the cells."""
    block = block_of(cells)
    shown = iter(block.cells)
    return [len(Kind) + next(shown) if kind is Kind.IMAGE else int(kind) for kind in block.kinds]


def unfold(x: Tensor, grid: Grid, cell: int) -> Tensor:
    """Squares of cell x cell patches side by side: [patches, hidden] to [cells, hidden * cell²], channel by channel.

    Patches beyond the right and the lower edge are zeros.
    """
    down, across = cells_of(grid, cell)
    field = F.pad(x.view(*grid, -1), (0, 0, 0, across * cell - grid[1], 0, down * cell - grid[0]))
    return field.view(down, cell, across, cell, -1).permute(0, 2, 4, 1, 3).reshape(down * across, -1)


def load_tower(folder: Path, config: VisionConfig, place: Place) -> TowerWeights:
    """Read and check the tower's tensors only. Raises CheckpointError naming the one that is not as expected."""
    expected = vision_shapes(config)
    everything = invent(expected, None, ()) if place.dummy else inventory(folder)
    stored = {name: found for name, found in everything.items() if name.startswith(PREFIXES)}
    check(stored, expected, ())
    source = open_source(folder, stored, place, SPREADS)

    def affine(name: str) -> Affine:
        return Affine(source.get(f"{name}.weight"), source.get(f"{name}.bias"))

    def block(number: int) -> Block:
        at = f"vision.blocks.{number}."
        return Block(
            norm1=source.exact(at + "norm1.weight"),
            qkv=affine(at + "attn.wqkv"),
            out=affine(at + "attn.wo"),
            norm2=source.exact(at + "norm2.weight"),
            gate_up=source.get(at + "mlp.w1.weight").T.contiguous(),
            down=source.get(at + "mlp.w2.weight"),
        )

    learned = torch.zeros(len(Kind), config.out, device=place.device, dtype=place.dtype)
    for kind, name in LEARNED.items():
        learned[kind] = source.get(name)
    patches = affine("vision.patch_embed.proj")
    return TowerWeights(
        patches=Affine(_pixel_order(patches.weight, config.patch), patches.bias),
        blocks=tuple(source.each(block, range(config.depth))),
        norm=source.exact("vision.norm.weight"),
        align1=affine("aligner.w1"),
        align2=affine("aligner.w2"),
        learned=learned,
    )


def _pixel_order(weight: Tensor, patch: int) -> Tensor:
    """Columns (channel, row, column) of the file as pixels lie in memory: (row, column, channel)."""
    return weight.view(-1, 3, patch, patch).permute(0, 2, 3, 1).flatten(1)


def vision_shapes(config: VisionConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of the tower and the aligner by its official name."""
    hidden, out, folded = config.hidden, config.out, config.hidden * config.cell**2
    affine: dict[str, tuple[int, int]] = {
        "vision.patch_embed.proj": (hidden, 3 * config.patch**2),
        "aligner.w1": (out, folded),
        "aligner.w2": (out, out),
    }
    plain: dict[str, tuple[int, ...]] = {"vision.norm.weight": (hidden,)}
    for i in range(config.depth):
        at = f"vision.blocks.{i}."
        affine |= {at + "attn.wqkv": (3 * hidden, hidden), at + "attn.wo": (hidden, hidden)}
        plain |= {at + "norm1.weight": (hidden,), at + "norm2.weight": (hidden,)}
        plain |= {at + "mlp.w1.weight": (2 * config.inner, hidden), at + "mlp.w2.weight": (hidden, config.inner)}
    shapes = plain | dict.fromkeys(LEARNED.values(), (out,))
    shapes |= {f"{name}.weight": sides for name, sides in affine.items()}
    return shapes | {f"{name}.bias": sides[:1] for name, sides in affine.items()}
