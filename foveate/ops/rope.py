"""Rotary positions: interleaved M-RoPE for text, axial rope for vision, and the half-split rotation of both.

Angles and rotations are float32. cos and sin are kept for half of the rotated width, because dimension i and dimension
i + width/2 turn by the same angle. Frequencies are computed as `1 / theta ** (2j / width)`: at positions near 2**18
another order of operations changes a cosine in the third digit. Knows positions, not token indices.
"""

from __future__ import annotations

import torch
from torch import Tensor


def frequencies(theta: float, width: int, device: torch.device | None = None) -> Tensor:
    """Angular frequencies [width / 2] of a rotation over `width` dimensions."""
    return 1.0 / theta ** (torch.arange(0, width, 2, dtype=torch.float32, device=device) / width)


def frequency_axes(sections: tuple[int, ...]) -> list[int]:
    """Which position axis each frequency follows when (T, H, W) sections are interleaved THWTHW...T.

    H owns 1, 4, 7, ... and W owns 2, 5, 8, ... as long as their sections last; T owns the rest.
    """
    axes = [0] * sum(sections)
    for axis in (1, 2):
        for j in range(axis, 3 * sections[axis], 3):
            axes[j] = axis
    return axes


def mrope_cos_sin(positions: Tensor, frequency: Tensor, axes: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin [tokens, 1, width / 2] for positions [3, tokens]; `axes` is int64 [width / 2]."""
    angles = positions.index_select(0, axes).T.float() * frequency  # [tokens, width / 2]
    return angles.cos().unsqueeze(1), angles.sin().unsqueeze(1)


def axial_cos_sin(rows: Tensor, columns: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """cos and sin [patches, 1, head_dim / 2]: the first half turns with the row, the second with the column."""
    frequency = frequencies(theta, head_dim // 2, rows.device)
    angles = torch.cat([rows.float()[:, None] * frequency, columns.float()[:, None] * frequency], 1)
    return angles.cos().unsqueeze(1), angles.sin().unsqueeze(1)


def rotate_(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the leading dimensions of float x [tokens, heads, dim] in place, pairing i with i + width/2; returns x.

    The rotated width is twice cos's; dimensions beyond it stay.
    """
    half = cos.shape[-1]
    first, second = x[..., :half], x[..., half : 2 * half]
    turned = (first * cos).addcmul_(second, sin, value=-1.0)
    second.mul_(cos).addcmul_(first, sin)
    first.copy_(turned)
    return x


def rotate_reference(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """What `rotate_` computes, by multiplication with complex numbers."""
    half = cos.shape[-1]
    turned = torch.complex(x[..., :half], x[..., half : 2 * half]) * torch.complex(cos, sin)
    return torch.cat([turned.real, turned.imag, x[..., 2 * half :]], -1)
