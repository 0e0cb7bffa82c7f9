"""Checkpoint folders of other kinds than plain ones, and the comparison of what was loaded from them.

Owns folders without weights and folders in the fp8 block format of the official releases, written from known values,
so that what they stand for is known exactly. Knows the official names of what is quantised, nothing of loading.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch

from foveate.models.qwen3_5_weights import QUANTISED
from foveate.ops.fp8 import dequantise
from tests.support.tiny import make_tiny, tiny_tensors, write_tensors

FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
KEPT = ("model.language_model.layers.0.linear_attn.in_proj_z", "model.language_model.layers.3.self_attn.k_proj")
Tensors = dict[str, torch.Tensor]


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor inside nested dataclasses and tuples, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from tensors_of(part)
    elif is_dataclass(value):
        for f in fields(value):
            yield from tensors_of(getattr(value, f.name))


def equal(one: Any, other: Any) -> bool:
    pairs = list(zip(tensors_of(one), tensors_of(other), strict=True))
    return len(pairs) > 10 and all(torch.equal(a, b) for a, b in pairs)


def quantised(kind: str, kept: tuple[str, ...] = ()) -> tuple[Tensors, Tensors]:
    """Tensors as an fp8 release holds them, and the plain ones that they stand for exactly."""
    stored, plain, random = {}, {}, torch.Generator().manual_seed(11)
    for name, tensor in tiny_tensors(kind).items():
        if not name.endswith(QUANTISED) or "visual" in name or name.rpartition(".")[0] in kept:
            stored[name] = plain[name] = tensor
            continue
        shape = [-(-side // 128) for side in tensor.shape[-2:]]
        scales = (torch.rand(*tensor.shape[:-2], *shape, generator=random) * 0.004 + 0.002).bfloat16()
        values = (tensor / dequantise(torch.ones_like(tensor), scales)).clamp(-448, 448).to(torch.float8_e4m3fn)
        stored |= {name: values, name + "_scale_inv": scales}
        plain[name] = dequantise(values, scales)
    return stored, plain


def fp8_folder(folder: Path, kind: str, stored: Tensors, **extra: Any) -> Path:
    make_tiny(folder, kind)
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)
    write_tensors(folder, stored)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": FP8 | extra}))
    return folder


def bare(folder: Path, kind: str, **extra: Any) -> Path:
    """A folder of a kind without a weight in it."""
    make_tiny(folder, kind)
    for file in folder.glob("model*"):
        file.unlink()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | extra))
    return folder
