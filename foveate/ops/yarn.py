"""Rope over the last dimensions of a head in neighbouring pairs, with YaRN's stretched frequencies where wanted.

Angles and rotations are float32. Turning with `-sin` undoes a rotation, which a layer needs whose values are its keys.
Frequencies follow YaRN (arXiv 2309.00071) without its attention factor, as DeepSeek V4 uses it. Knows positions, not
token indices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from foveate.ops.rope import frequencies


@dataclass(frozen=True, slots=True)
class Yarn:
    """How far positions are stretched, and between how many turns over `original_len` the stretching sets in."""

    factor: float
    original_len: int
    beta_fast: float
    beta_slow: float


def yarn_frequencies(theta: float, width: int, yarn: Yarn | None) -> Tensor:
    """Angular frequencies [width / 2]; slow ones divided by the factor, fast ones as they are, a ramp between."""
    plain = frequencies(theta, width)
    if yarn is None:
        return plain
    low = max(math.floor(_pair_of_turns(yarn.beta_fast, theta, width, yarn)), 0)
    high = min(math.ceil(_pair_of_turns(yarn.beta_slow, theta, width, yarn)), width - 1)
    ramp = ((torch.arange(width // 2) - low) / (high - low if high != low else 0.001)).clamp(0, 1)
    return plain / yarn.factor * ramp + plain * (1 - ramp)


def _pair_of_turns(turns: float, theta: float, width: int, yarn: Yarn) -> float:
    """Which pair turns so often within the original length."""
    return width * math.log(yarn.original_len / (2 * math.pi * turns)) / (2 * math.log(theta))


def cos_sin(positions: Tensor, frequency: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin [tokens, 1, width / 2] of positions [tokens]."""
    angles = positions.float().unsqueeze(1) * frequency
    return angles.cos().unsqueeze(1), angles.sin().unsqueeze(1)


def rotate_tail_(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the last dimensions of float x [tokens, heads, dim] in place, pairing 2i with 2i + 1; returns x."""
    tail = x[..., -2 * cos.shape[-1] :]
    even, odd = tail[..., 0::2], tail[..., 1::2]
    turned = (even * cos).addcmul_(odd, sin, value=-1.0)
    odd.mul_(cos).addcmul_(even, sin)
    even.copy_(turned)
    return x


def rotate_tail_reference(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """What `rotate_tail_` computes, by multiplication with complex numbers."""
    width = 2 * cos.shape[-1]
    pairs = torch.view_as_complex(x[..., -width:].unflatten(-1, (-1, 2)).contiguous())
    turned = torch.view_as_real(pairs * torch.complex(cos, sin)).flatten(-2)
    return torch.cat([x[..., :-width], turned], -1)
