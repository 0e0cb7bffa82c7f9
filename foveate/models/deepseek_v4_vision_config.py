"""What a DeepSeek-V4-Flash-Vision-Exp checkpoint says of its eyes, as frozen values.

Owns the reading and checking of the `vision_*` fields of config.json and of the placeholder that the vocabulary has for
an image. A checkpoint has vision if `vision_n_layers` is more than 0; then every field that the maths or the picture's
size needs must be there. Knows no tensors and nothing of the text model but its width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foveate.core.errors import CheckpointError
from foveate.core.images import GROUP, BlockRules, block_len
from foveate.models.weights import read_json

PLACEHOLDER = "<｜deepseek_image｜>"
_WHOLE = ("dim", "n_heads", "inter_dim", "patch_size", "downsample_ratio", "max_n_token", "min_pixels", "max_wh_ratio")


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """The tower and its aligner. `cell` is the side, in patches, of what becomes one row; `out` the text's width."""

    depth: int
    hidden: int
    inner: int
    heads: int
    patch: int
    cell: int
    theta: float
    out: int


def has_vision(config: Mapping[str, Any]) -> bool:
    """Whether the checkpoint has a vision tower."""
    depth = config.get("vision_n_layers") or 0
    if not isinstance(depth, int) or depth < 0:
        raise CheckpointError(f"config.json: vision_n_layers {depth!r} is not a count")
    return depth > 0


def vision_config(config: Mapping[str, Any]) -> VisionConfig:
    """The tower's sizes. Raises CheckpointError naming a field that is missing or does not fit."""
    values, theta, out = _counts(config), config.get("vision_rope_theta"), config.get("hidden_size")
    if not isinstance(theta, (int, float)) or theta <= 0 or not isinstance(out, int):
        raise CheckpointError("config.json lacks vision_rope_theta or hidden_size")
    if values["dim"] % (4 * values["n_heads"]):
        raise CheckpointError(
            f"config.json: vision_dim {values['dim']} gives vision_n_heads {values['n_heads']} no head of a width "
            "that rotates on two axes"
        )
    return VisionConfig(
        depth=config["vision_n_layers"],
        hidden=values["dim"],
        inner=values["inter_dim"],
        heads=values["n_heads"],
        patch=values["patch_size"],
        cell=values["downsample_ratio"],
        theta=float(theta),
        out=out,
    )


def block_rules(config: Mapping[str, Any]) -> BlockRules:
    """How pictures become blocks. Raises CheckpointError naming a field that is missing or does not fit."""
    values = _counts(config)
    least = block_len((1, 1)) + GROUP - 1
    if values["max_n_token"] < least:
        raise CheckpointError(f"config.json: vision_max_n_token {values['max_n_token']} is less than {least}")
    return BlockRules(
        patch=values["patch_size"],
        cell=values["downsample_ratio"],
        min_pixels=values["min_pixels"],
        max_tokens=values["max_n_token"],
        max_ratio=values["max_wh_ratio"],
    )


def placeholder_id(folder: Path, config: Mapping[str, Any]) -> int:
    """The token that stands for an image in a rendered conversation; CheckpointError when there is none."""
    named = config.get("image_token_id")
    if isinstance(named, int):
        return named
    for token in read_json(folder / "tokenizer.json").get("added_tokens") or ():
        if token.get("content") == PLACEHOLDER:
            return int(token["id"])
    raise CheckpointError(f"tokenizer.json has no token {PLACEHOLDER}, which stands for an image")


def image_card(folder: Path, config: Mapping[str, Any]) -> tuple[int, BlockRules] | None:
    """The placeholder and the picture rules for a model card; None for a checkpoint without vision."""
    return (placeholder_id(folder, config), block_rules(config)) if has_vision(config) else None


def _counts(config: Mapping[str, Any]) -> dict[str, int]:
    """The whole numbers of the vision part, by their names without prefix."""
    values = {name: config.get(f"vision_{name}") for name in _WHOLE}
    for name, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise CheckpointError(f"config.json: vision_{name} {value!r} is not a positive whole number")
    return {name: int(value or 0) for name, value in values.items()}
