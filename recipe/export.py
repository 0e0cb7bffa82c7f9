"""Checkpoint folders in the official names: the model in shards, its MTP layer in one of its own, the drafter.

Owns file layout, tensor names and the conversion from masters (fp32, one temporal half) to bf16 tensors that
transformers loads as `Qwen3_5ForConditionalGeneration`. Promises shards below 15 MB and an index that lists every
tensor. Knows nothing about training.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from recipe.shapes import Shape, draft_config, official_config
from recipe.tokenizer import save_tokenizer, special_ids

SHARD_BYTES = 14_700_000
PATCH = "model.visual.patch_embed.proj.weight"


def official_tensors(masters: dict[str, Tensor], dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    """Masters under official names and shapes; each temporal half of the patch convolution gets half the weight."""
    out = {name: tensor.detach().cpu().to(dtype).contiguous() for name, tensor in masters.items()}
    if PATCH in out:
        side = int((out[PATCH].shape[1] // 3) ** 0.5)
        half = out[PATCH].view(-1, 3, 1, side, side) / 2
        out[PATCH] = half.expand(-1, -1, 2, -1, -1).contiguous()
    return out


def masters_from(official: dict[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `official_tensors`, in fp32; MTP tensors are left out."""
    out = {name: tensor.float() for name, tensor in official.items() if not name.startswith("mtp.")}
    out[PATCH] = out[PATCH].sum(2).flatten(1)
    return out


def shards(tensors: dict[str, Tensor], limit: int = SHARD_BYTES) -> list[dict[str, Tensor]]:
    """Tensors in order, cut into groups of at most `limit` bytes; `mtp.*` in a group of their own at the end."""
    groups: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        if name.startswith("mtp."):
            continue
        if size + tensor.nbytes > limit and groups[-1]:
            groups.append({})
            size = 0
        groups[-1][name] = tensor
        size += tensor.nbytes
    mtp = {name: tensor for name, tensor in tensors.items() if name.startswith("mtp.")}
    return [*groups, mtp] if mtp else groups


def save_shards(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Write tensors as shards with their index, in place of what is there."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("model*.safetensors"):
        old.unlink()
    groups = shards(tensors)
    index: dict[str, str] = {}
    for i, group in enumerate(groups):
        name = f"model-{i + 1:05d}-of-{len(groups):05d}.safetensors"
        _save(group, folder / name)
        index.update(dict.fromkeys(group, name))
    total = sum(t.nbytes for t in tensors.values())
    write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": index})


def export_model(folder: Path, shape: Shape, masters: dict[str, Tensor], tokenizer: Tokenizer) -> None:
    """Write the checkpoint; `masters` may hold `mtp.*` tensors."""
    tensors = official_tensors(masters)
    save_shards(folder, tensors)
    mtp_layers = int(any(name.startswith("mtp.") for name in tensors))
    write_json(folder / "config.json", official_config(shape, special_ids(tokenizer), mtp_layers))
    save_tokenizer(tokenizer, folder)


def export_draft(folder: Path, shape: Shape, masters: dict[str, Tensor], tokenizer: Tokenizer) -> None:
    """Write the DFlash drafter: config.json and model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    _save(official_tensors(masters), folder / "model.safetensors")
    write_json(folder / "config.json", draft_config(shape, special_ids(tokenizer)["<|mask|>"]))


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    save_file(tensors, path, metadata={"format": "pt"})
    path.chmod(0o644)


def write_json(path: Path, value: object) -> None:
    """A JSON file, indented."""
    path.write_text(json.dumps(value, indent=1) + "\n")
