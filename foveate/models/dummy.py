"""Random weights of a model's real dimensions, for measuring speed without a checkpoint.

Owns the drawing: every tensor is made where it will live, from a seed and its own name, so that equal settings give
equal weights whatever is loaded in whatever order and process. Matrices are scaled by their fan-in, so that products
keep their size and logits stay finite in bfloat16 through any number of layers. Knows no model: a family says by the
ends of names what else its tensors must be like. What such a model answers means nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from zlib import crc32

import torch
from torch import Tensor

from foveate.models.files import Stored

SEED = 20_26
VECTOR_SPREAD = 0.1
QUANTISED = "F8_E4M3"
UNIT = 32.0  # spread of 8-bit values; their scales bring them to what the matrix shall have
# (end of a name, mean, spread) of the normal distribution its values come from; the first that fits counts.
Spreads = Sequence[tuple[str, float, float]]
TWIN = "_scale_inv"


class Drawn:
    """Contents for any tensor that is described."""

    def __init__(self, stored: dict[str, Stored], spreads: Spreads) -> None:
        self._stored, self._spreads = stored, spreads

    def read(self, name: str, found: Stored, device: torch.device, dtype: torch.dtype) -> Tensor:
        """A tensor by its name, on a device and in a type."""
        if name.endswith(TWIN):
            whole = self._stored[name.removesuffix(TWIN)].shape
            return torch.full(found.shape, self._spread(name, whole)[1] / UNIT, device=device, dtype=dtype)
        mean, spread = (0.0, UNIT) if found.kind == QUANTISED else self._spread(name, found.shape)
        # 8-bit floats have no generator of their own.
        drawn = dtype if dtype.itemsize > 1 else torch.bfloat16
        generator = torch.Generator(device).manual_seed(SEED ^ crc32(name.encode()))
        return torch.empty(found.shape, device=device, dtype=drawn).normal_(mean, spread, generator=generator).to(dtype)

    def _spread(self, name: str, shape: tuple[int, ...]) -> tuple[float, float]:
        for end, mean, spread in self._spreads:
            if name.endswith(end):
                return mean, spread
        if len(shape) < 2:
            return 0.0, VECTOR_SPREAD
        fan_in = shape[-1] if "experts" in name else prod(shape[1:])  # experts are stacked, kernels are not
        return 0.0, fan_in**-0.5
