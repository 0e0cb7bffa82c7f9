"""Eight- and four-bit numbers as DeepSeek uses them: unpacking float4, and rounding as its inference does.

Weights come as float8 (e4m3) in blocks of 128 by 128, or as packed float4 (e2m1) in rows of 32, each block with a
power of two (e8m0) that multiplies it (`ops.fp8.dequantise`). The `round_*` functions give the values back that a
number would have after a trip through such a type, because the models were trained with those trips. Formats: OCP
Microscaling 1.0.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

FP8_BLOCK, FP4_BLOCK = 128, 32  # of weights: both sides, and along the input
FP8_MOST, FP4_MOST = 448.0, 6.0
FP8_FLOOR, FP4_FLOOR = 1e-4, FP4_MOST * 2.0**-126  # smallest largest value that a scale is made for


def unpack_fp4(packed: Tensor) -> Tensor:
    """Float32 values [out, in], not yet scaled, of packed int8 [out, in / 2], the even column in the low half.

    The three low bits of a half index 0, 0.5, 1, 1.5, 2, 3, 4, 6; the high one is the sign.
    """
    table = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], device=packed.device)
    table = torch.cat([table, -table])
    codes = packed.view(torch.uint8).int()
    return table[torch.stack([codes & 15, codes >> 4], -1)].flatten(-2)


def _in_blocks(x: Tensor, block: int) -> Tensor:
    """Float32 x as [..., blocks, block], filled up with zeros."""
    return F.pad(x.float(), (0, -x.shape[-1] % block)).unflatten(-1, (-1, block))


def _out_of_blocks(blocks: Tensor, like: Tensor) -> Tensor:
    return blocks.flatten(-2)[..., : like.shape[-1]].to(like.dtype)


def power_of_two_above(x: Tensor) -> Tensor:
    """The smallest power of two that is not below float32 x > 0."""
    mantissa, exponent = torch.frexp(x)  # x = mantissa * 2 ** exponent with 0.5 <= mantissa < 1
    return torch.ldexp(torch.ones_like(x), exponent - (mantissa == 0.5).int())


def round_fp8(x: Tensor, block: int = FP8_BLOCK) -> Tensor:
    """x after a trip through float8 in blocks of the last axis, each with its own power of two; x's dtype."""
    blocks = _in_blocks(x, block)
    scale = power_of_two_above(blocks.abs().amax(-1, keepdim=True).clamp_min(FP8_FLOOR) / FP8_MOST)
    rounded = (blocks / scale).clamp(-FP8_MOST, FP8_MOST).to(torch.float8_e4m3fn).float()
    return _out_of_blocks(rounded * scale, x)


def round_fp4(x: Tensor, block: int = FP4_BLOCK) -> Tensor:
    """x after a trip through float4 in blocks of the last axis, each with its own power of two; ties go to even."""
    blocks = _in_blocks(x, block)
    scale = power_of_two_above(blocks.abs().amax(-1, keepdim=True).clamp_min(FP4_FLOOR) / FP4_MOST)
    scaled = blocks / scale
    # Neighbours are 0.5 apart below 2, 1 apart below 4, 2 apart above.
    step = 0.5 * 2.0 ** ((scaled.abs() >= 2).float() + (scaled.abs() >= 4).float())
    return _out_of_blocks((scaled / step).round().mul_(step).clamp_(-FP4_MOST, FP4_MOST) * scale, x)


def hadamard(x: Tensor) -> Tensor:
    """x [..., dim] turned by Sylvester's Hadamard matrix over sqrt(dim), in float32; dim is a power of two."""
    dim, out = x.shape[-1], x.float()
    assert dim & (dim - 1) == 0, "a Hadamard matrix of this kind has a power of two of rows"
    shape, half = out.shape, 1
    while half < dim:
        pair = out.reshape(-1, dim // (2 * half), 2, half)
        first, second = pair[:, :, 0], pair[:, :, 1]
        out = torch.stack([first + second, first - second], 2)
        half *= 2
    return out.reshape(shape) * math.sqrt(1 / dim)
