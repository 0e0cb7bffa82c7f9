"""Matrices in block-scaled 8-bit floats, and products with them.

Owns the format of the "fine-grained fp8" releases: e4m3 values with one scale for every block of rows and columns, the
number being value times scale. Promises that `dequantise` gives exactly that product, rounded once, and that `project`
and `add_projected` equal a product with the dequantised matrix whatever kind of matrix they are given. On a GPU few
rows are multiplied straight from the 8-bit values, so that a decode step reads half the bytes; many rows are worth
writing the matrix out once. Knows no files and no models.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor

FEW_PAIRS = 4  # of tokens and experts, for each expert there is: beyond it unpacking all of them reads and writes less
FEW_ROWS = 64  # of x: up to here a product from 8-bit values reads less than writing the matrix out would
Block = tuple[int, int]
BLOCK: Block = (128, 128)


def dequantise(values: Tensor, scales: Tensor, block: Block = BLOCK, dtype: torch.dtype = torch.float32) -> Tensor:
    """The numbers of a block-scaled matrix [..., rows, columns], or of a stack of them, in `dtype`.

    values: any float type, e4m3 mostly; scales: [..., ceil(rows / block[0]), ceil(columns / block[1])], any float type
    (bf16, float32 and e8m0 occur in releases). Blocks at the right and lower edge may be cut off.
    """
    scales = scales.float()
    if block[0] > 1:
        scales = scales.repeat_interleave(block[0], -2)[..., : values.shape[-2], :]
    columns = scales.repeat_interleave(block[1], -1)[..., : values.shape[-1]]
    return values.float().mul_(columns).to(dtype)


@dataclass(frozen=True, slots=True)
class Blocked:
    """A matrix [columns, rows], kept as stored, in 8 bits and turned.

    values: e4m3 [rows, columns]; scales: float32 [rows, ceil(columns / width)], repeated for each row of a block so
    that rows can be put in any order. Stacks of matrices carry a leading axis. kernels: whether it is multiplied by
    kernels where the device has them.
    """

    values: Tensor
    scales: Tensor
    width: int
    kernels: bool = True

    @classmethod
    def of(cls, values: Tensor, scales: Tensor, block: Block = BLOCK, kernels: bool = True) -> Blocked:
        """From a file's values [rows, columns] and block scales."""
        rows = scales.float().repeat_interleave(block[0], -2)[..., : values.shape[-2], :]
        return cls(values, rows.contiguous(), block[1], kernels)

    @property
    def shape(self) -> tuple[int, int]:
        """(columns, rows): of the matrix that x is multiplied with."""
        return self.values.shape[-1], self.values.shape[-2]

    def take(self, rows: Tensor) -> Blocked:
        """The same matrix with only these of its output columns, in this order."""
        taken = _bytes(self.values)[rows].view(self.values.dtype)
        return replace(self, values=taken, scales=self.scales[rows])

    def dense(self, dtype: torch.dtype) -> Tensor:
        """All numbers, [columns, rows]."""
        kernels = _kernels(self)
        if kernels is not None:
            wide: Tensor = kernels.unpack(self.values, self.scales, self.width, dtype)
            return wide.mT
        return dequantise(self.values, self.scales, (1, self.width), dtype).mT


@dataclass(frozen=True, slots=True)
class Beside:
    """Matrices of one input side by side, where some are kept in 8 bits and some are not."""

    parts: tuple[Tensor | Blocked, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """(columns, rows) of the whole."""
        return self.parts[0].shape[0], sum(part.shape[1] for part in self.parts)


Matrix = Tensor | Blocked | Beside


def stack(parts: list[Blocked]) -> Blocked:
    """Matrices of one input side by side; their blocks must be equally wide."""
    assert len({part.width for part in parts}) == 1, "blocks of different widths"
    values = torch.cat([_bytes(part.values) for part in parts], -2).view(parts[0].values.dtype)
    return replace(parts[0], values=values, scales=torch.cat([part.scales for part in parts], -2))


def project(x: Tensor, weight: Matrix) -> Tensor:
    """`x @ weight`: x [tokens, columns] to [tokens, rows] in x's dtype."""
    if isinstance(weight, Tensor):
        return torch.mm(x, weight)
    if isinstance(weight, Beside):
        return torch.cat([project(x, part) for part in weight.parts], -1)
    kernels = _kernels(weight)
    if kernels is not None and len(x) <= FEW_ROWS:
        out: Tensor = kernels.project(x, weight.values, weight.scales, weight.width)
        return out
    return torch.mm(x, weight.dense(x.dtype))


def add_projected(target: Tensor, x: Tensor, weight: Matrix) -> None:
    """`target += x @ weight`, in place: target [tokens, rows], x [tokens, columns]."""
    if isinstance(weight, Tensor):
        target.addmm_(x, weight)
    else:
        target += project(x, weight)


def project_chosen(x: Tensor, weight: Blocked, chosen: Tensor) -> Tensor:
    """Rows of x [tokens, columns] times matrices of a stack: [pairs, rows], `chosen` [pairs] names each pair's.

    There are equally many pairs for each row of x, those of a row side by side. For few pairs: each reads a matrix.
    """
    kernels = _kernels(weight)
    if kernels is not None:
        out: Tensor = kernels.project_chosen(x, weight.values, weight.scales, weight.width, chosen)
        return out
    values = weight.values.view(torch.uint8)[chosen].view(weight.values.dtype)
    matrices = replace(weight, values=values, scales=weight.scales[chosen]).dense(x.dtype)  # [pairs, columns, rows]
    return torch.bmm(x.repeat_interleave(len(chosen) // len(x), 0).unsqueeze(1), matrices).squeeze(1)


def chosen_swiglu(x: Tensor, gate_up: Blocked, down: Blocked, shares: Tensor, experts: Tensor) -> Tensor:
    """What `moe.expert_swiglu` computes, from 8-bit experts and for few tokens: x [tokens, hidden] to the same.

    gate_up: [experts, hidden, 2 * inner], gate columns first; down: [experts, inner, hidden]; shares, experts:
    [tokens, top_k].
    """
    chosen = experts.flatten()
    gate, up = project_chosen(x, gate_up, chosen).chunk(2, -1)
    out = project_chosen(F.silu(gate).mul_(up), down, chosen).view(*experts.shape, -1)  # [tokens, top_k, hidden]
    return torch.matmul(shares.to(out.dtype).unsqueeze(1), out).squeeze(1)


def numbers(weight: Tensor | Blocked, dtype: torch.dtype) -> Tensor:
    """A plain matrix, or a stack of them, whatever it is kept as."""
    return weight if isinstance(weight, Tensor) else weight.dense(dtype)


def _bytes(values: Tensor) -> Tensor:
    """8-bit floats as bytes: indexing and joining need not know the type."""
    return values.view(torch.uint8)


def _kernels(weight: Blocked) -> ModuleType | None:
    """The GPU kernels where they apply, else None."""
    if not (weight.kernels and weight.values.is_cuda and _multiplies_eight_bits(weight.values.device)):
        return None
    from foveate.ops import triton_fp8

    return triton_fp8


@lru_cache(maxsize=16)
def _multiplies_eight_bits(device: torch.device) -> bool:
    """Whether a GPU converts e4m3 in its kernels: compute capability 8.9 (Ada) and later."""
    return torch.cuda.get_device_capability(device) >= (8, 9)
