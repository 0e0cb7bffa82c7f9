"""What a checkpoint's `quantization_config` says, and whether it is the one kind that is supported.

Owns the reading of the fine-grained fp8 format of the official releases: e4m3 values in blocks of 128 x 128 with one
scale each, activations quantised by nobody or on the fly (here: by nobody). Every other method, block or value is
refused by its name. Knows no tensors and no model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from foveate.core.errors import CheckpointError

KNOWN = {
    "quant_method": ("fp8",),
    "fmt": ("e4m3",),
    "activation_scheme": ("dynamic",),
    "weight_block_size": ([128, 128],),
    "weight_per_tensor": (False,),
    "act_per_tensor": (False,),
    "dequantize": (False,),
}
LISTS = ("modules_to_not_convert", "ignored_layers")


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """Block-scaled e4m3. block: rows and columns that share a scale; kept: modules that are stored as they were."""

    block: tuple[int, int]
    kept: tuple[str, ...]

    def keeps(self, name: str) -> bool:
        """Whether a tensor belongs to a module that is kept: its name, a part above it, an ending or a pattern."""
        module = name.rpartition(".")[0]
        return any(
            module == kept or module.startswith(kept + ".") or module.endswith("." + kept) or _matches(kept, module)
            for kept in self.kept
        )

    def scales_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the scales of a matrix, or of a stack of them."""
        down, across = self.block
        return (*shape[:-2], -(-shape[-2] // down), -(-shape[-1] // across))


def block_format(config: Mapping[str, Any]) -> BlockFormat | None:
    """The format of a config.json, None when nothing is quantised. Raises CheckpointError for any other kind."""
    data = config.get("quantization_config")
    if not data:
        return None
    if not isinstance(data, Mapping):
        raise CheckpointError("config.json: quantization_config is no object")
    where = "config.json: quantization_config."
    for name, values in KNOWN.items():
        given = data.get(name)
        if given not in (None, *values):
            raise CheckpointError(f"{where}{name} {given!r} is not supported, only {values[0]!r}")
    if "quant_method" not in data or data.get("weight_block_size") is None:
        lacks = "quant_method" if "quant_method" not in data else "weight_block_size"
        raise CheckpointError(f"{where}{lacks} is missing: only fp8 in blocks of 128 x 128 is supported")
    if unknown := sorted(set(data) - set(KNOWN) - set(LISTS)):
        raise CheckpointError(f"{where}{unknown[0]} is not supported")
    down, across = data["weight_block_size"]
    kept = tuple(str(name) for key in LISTS for name in data.get(key) or ())
    return BlockFormat((down, across), kept)


def _matches(pattern: str, module: str) -> bool:
    """Lists may hold patterns, announced by `re:`."""
    if not pattern.startswith("re:"):
        return False
    try:
        return re.match(pattern[3:], module) is not None
    except re.error as error:
        raise CheckpointError(f"config.json: quantization_config holds a broken pattern {pattern!r}: {error}") from None
