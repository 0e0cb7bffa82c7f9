"""Decoded pictures on their way to a vision tower: brought to its device, and resized there where that was left over.

Owns the bicubic resize of 8-bit pictures in the arithmetic of Pillow's (fixed-point weights of 22 bits, two passes,
each rounded to bytes), which the reference processors use: the same bytes on every device. A GPU does in a fraction of
a millisecond what takes a core a dozen; on a CPU Pillow's own code is the faster one, and nothing is left over. Knows
no files and no models.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foveate.core.values import Frame

BITS = 22  # of the weights behind the point
REACH = 2.0  # of the kernel to each side, in source pixels, or in target pixels when those are larger
SHARP = -0.5  # the kernel's one parameter (Keys, 1981)


def frames_on(pictures: list[Any], device: torch.device) -> list[Tensor]:
    """uint8 tensors [height, width, 3] on a device, of arrays, tensors, or `Frame`s, which are resized."""
    return [_frame_on(picture, device) for picture in pictures]


def _frame_on(picture: Any, device: torch.device) -> Tensor:
    if isinstance(picture, Frame):
        return resize(_frame_on(picture.pixels, device), picture.size)
    if not isinstance(picture, Tensor):
        # Decoders hand out read-only arrays, which torch takes only with a warning.
        picture = torch.from_numpy(np.require(picture, requirements=["C", "W"]))
    # Asking whether memory is pinned wakes a driver, which the encoder on a CPU has no use for.
    there: Tensor = picture.to(device, non_blocking=device.type == "cuda" and picture.is_pinned())
    return there


def resize(frame: Tensor, size: tuple[int, int]) -> Tensor:
    """A uint8 picture [height, width, 3] as one of `size` (height, width), bicubic, across before down."""
    for axis in (1, 0):
        if frame.shape[axis] != size[axis]:
            frame = _along(frame, axis, size[axis])
    return frame


def _along(frame: Tensor, axis: int, size: int) -> Tensor:
    """One pass: a weighted sum of neighbours along an axis for each target pixel, rounded to a byte."""
    taps, weights = _weights(frame.shape[axis], size, frame.device)
    total = torch.full((*frame.shape[:axis], size, *frame.shape[axis + 1 :]), 1 << (BITS - 1), device=frame.device)
    total = total.to(torch.int32)
    shape = (1, size, 1) if axis else (size, 1, 1)
    for places, weight in zip(taps, weights, strict=True):
        total += frame.index_select(axis, places).to(torch.int32) * weight.view(shape)
    return (total >> BITS).clamp_(0, 255).to(torch.uint8)


@lru_cache(maxsize=64)
def _weights(old: int, new: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Source places [taps, new] and fixed-point weights [taps, new] of a pass from `old` to `new` pixels."""
    scale = old / new
    wider = max(scale, 1.0)
    taps = math.ceil(REACH * wider) * 2 + 1
    places, weights = np.zeros((taps, new), np.int64), np.zeros((taps, new), np.int32)
    for target in range(new):
        centre = (target + 0.5) * scale
        first = max(int(centre - REACH * wider + 0.5), 0)
        last = min(int(centre + REACH * wider + 0.5), old)
        own = [_kernel((source - centre + 0.5) / wider) for source in range(first, last)]
        total = sum(own)
        for tap, value in enumerate(own):
            exact = value / total * (1 << BITS)
            places[tap, target] = first + tap
            weights[tap, target] = int(exact + math.copysign(0.5, exact))  # to the nearest, halves away from zero
    return torch.from_numpy(places).to(device), torch.from_numpy(weights).to(device)


def _kernel(x: float) -> float:
    """The cubic convolution kernel."""
    x = abs(x)
    if x < 1:
        return ((SHARP + 2) * x - (SHARP + 3)) * x * x + 1
    return (((x - 5) * x + 8) * x - 4) * SHARP if x < 2 else 0.0
