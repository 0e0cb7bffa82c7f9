"""DeepSeek V4 checkpoint folders in the official names, and back.

Owns the conversion from masters (stacked experts, modules for the head's site) to the tensors of the release: bf16,
with hyper-connections, sinks, window biases and router biases in fp32; the folder's config and its tokenizer's files.
Promises that transformers loads the text part and foveate all of it. Knows nothing about training.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from recipe.deepseek_shapes import SightShape, sight_config
from recipe.deepseek_tokenizer import save_block_tokenizer
from recipe.export import save_shards, write_json
from recipe.tokenizer import special_ids

SITE, STACKED, ALIASES = ".hc_head.", ".ffn.experts.", ("sight.",)
EXACT = ("hc_", "ape", "attn_sink", "gate.bias")  # what stays in fp32


def official_name(name: str) -> str:
    """A module's parameter or buffer in the release's words."""
    for alias in ALIASES:
        name = name.removeprefix(alias)
    return f".{name}".replace(SITE, ".hc_head_").removeprefix(".")


def is_exact(name: str) -> bool:
    """Whether the release keeps a tensor in fp32."""
    return any(f".{part}" in f".{name}" for part in EXACT)


def official_tensors(masters: dict[str, Tensor], inner: int) -> dict[str, Tensor]:
    """Masters under official names, shapes and types; `inner` rows of stacked experts belong to one."""
    out: dict[str, Tensor] = {}
    for own, tensor in masters.items():
        name, values = official_name(own), tensor.detach().cpu()
        if STACKED in name:
            stem, leaf = name.rsplit(".", 1)
            for i, part in enumerate(values.to(torch.bfloat16).split(inner)):
                out[f"{stem}.{i}.{leaf}.weight"] = (part.T if leaf == "w2" else part).contiguous()
        elif values.is_floating_point():
            out[name] = values.to(torch.float32 if is_exact(name) else torch.bfloat16).contiguous()
        else:
            out[name] = values.contiguous()
    return out


def masters_from(official: dict[str, Tensor], names: list[str]) -> dict[str, Tensor]:
    """The inverse of `official_tensors` in fp32 for the modules' own `names`."""
    out = {}
    for own in names:
        name = official_name(own)
        if STACKED in name:
            stem, leaf = name.rsplit(".", 1)
            count = sum(part.startswith(f"{stem}.") and part.endswith(f".{leaf}.weight") for part in official)
            parts = [official[f"{stem}.{i}.{leaf}.weight"].float() for i in range(count)]
            out[own] = torch.cat([part.T if leaf == "w2" else part for part in parts])
        else:
            out[own] = official[name].float() if official[name].is_floating_point() else official[name]
    return out


def export_sight(folder: Path, shape: SightShape, masters: dict[str, Tensor], tokenizer: Tokenizer) -> None:
    """Write the checkpoint; `masters` may hold the drafter's tensors (`mtp.*`)."""
    stages = len({name.split(".")[1] for name in masters if name.startswith("mtp.")})
    save_shards(folder, official_tensors(masters, shape.text.inner))
    write_json(folder / "config.json", sight_config(shape, special_ids(tokenizer), stages))
    save_block_tokenizer(tokenizer, folder)


def read_official(folder: Path) -> dict[str, Tensor]:
    """Every tensor of a folder that `export_sight` wrote."""
    where = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    return {name: tensor for file in sorted(set(where.values())) for name, tensor in load_file(folder / file).items()}
