"""The eyes of a tiny DeepSeek V4 checkpoint: config fields and tensors by their official names, from a seed.

Owns sizes that are all different, so that no two can be mistaken for each other, and values of unit scale. Knows
nothing of foveate: what it makes is what a release would hold.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

PATCH, CELL = 14, 3


def vision_fields() -> dict[str, Any]:
    """The `vision_*` fields of config.json: pictures become one cell to some thirty."""
    return {
        "vision_n_layers": 2,
        "vision_dim": 32,
        "vision_n_heads": 2,
        "vision_inter_dim": 48,
        "vision_patch_size": PATCH,
        "vision_rope_theta": 10000,
        "vision_downsample_ratio": CELL,
        "vision_max_n_token": 48,
        "vision_min_pixels": 1764,
        "vision_max_wh_ratio": 8,
    }


def vision_tensors(config: dict[str, Any], seed: int = 0) -> dict[str, Tensor]:
    """Tower, aligner and the learned vectors for a config.json."""
    random = torch.Generator().manual_seed(seed)
    width, inner, out = config["vision_dim"], config["vision_inter_dim"], config["hidden_size"]
    tensors: dict[str, Tensor] = {}

    def linear(name: str, rows: int, columns: int, bias: bool = True) -> None:
        tensors[f"{name}.weight"] = torch.randn(rows, columns, generator=random) * columns**-0.5
        if bias:
            tensors[f"{name}.bias"] = 0.1 * torch.randn(rows, generator=random)

    def norm(name: str) -> None:
        tensors[f"{name}.weight"] = 1.0 + 0.1 * torch.randn(width, generator=random)

    linear("vision.patch_embed.proj", width, 3 * config["vision_patch_size"] ** 2)
    for i in range(config["vision_n_layers"]):
        at = f"vision.blocks.{i}."
        norm(at + "norm1")
        linear(at + "attn.wqkv", 3 * width, width)
        linear(at + "attn.wo", width, width)
        norm(at + "norm2")
        linear(at + "mlp.w1", 2 * inner, width, bias=False)
        linear(at + "mlp.w2", width, inner, bias=False)
    norm("vision.norm")
    linear("aligner.w1", out, width * config["vision_downsample_ratio"] ** 2)
    linear("aligner.w2", out, out)
    for name in ("image_start", "image_pad", "image_newline", "image_end"):
        tensors[name] = torch.randn(out, generator=random)
    return tensors
