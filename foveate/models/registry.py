"""Which model families there are, and the three things one can ask of a checkpoint folder.

`describe` reads only the small JSON files; `load_text` and `load_vision` load one half each, so that a process of the
encoder never holds language-model weights. Adding a family is adding a `Family` to `FAMILIES`. Knows no shapes and no
maths.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from foveate.core.errors import CheckpointError
from foveate.core.values import ImageRules, ModelCard, Sampling
from foveate.models.interface import LanguageModel, VisionTower
from foveate.models.qwen3_5 import Qwen35
from foveate.models.qwen3_5_config import text_config, vision_config
from foveate.models.qwen3_5_vision import Qwen35Vision, load_tower
from foveate.models.qwen3_5_weights import load_trunk
from foveate.models.weights import Progress, read_json


@dataclass(frozen=True, slots=True)
class Place:
    """Where a model's tensors go and who is told of the progress."""

    device: torch.device
    dtype: torch.dtype
    progress: Progress | None


Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Family:
    """How checkpoints of some model types are described and loaded; all take the folder and its config.json."""

    describe: Callable[[Path, Config], ModelCard]
    load_text: Callable[[Path, Config, Place], LanguageModel]
    load_vision: Callable[[Path, Config, Place], VisionTower]


def describe(folder: str | Path) -> ModelCard:
    """What the checkpoint is, from its JSON files. Raises CheckpointError for an unsupported or incomplete one."""
    folder, config, family = _family(folder)
    return family.describe(folder, config)


def load_text(
    folder: str | Path, device: str | torch.device, dtype: torch.dtype, progress: Progress | None = None
) -> LanguageModel:
    """The language model of a checkpoint folder. Raises CheckpointError naming what is missing or wrong."""
    folder, config, family = _family(folder)
    return family.load_text(folder, config, Place(torch.device(device), dtype, progress))


def load_vision(
    folder: str | Path, device: str | torch.device, dtype: torch.dtype, progress: Progress | None = None
) -> VisionTower:
    """The vision tower of a checkpoint folder. Raises CheckpointError naming what is missing or wrong."""
    folder, config, family = _family(folder)
    return family.load_vision(folder, config, Place(torch.device(device), dtype, progress))


def _family(folder: str | Path) -> tuple[Path, Config, Family]:
    path = Path(folder)
    config = read_json(path / "config.json")
    kind = config.get("model_type")
    if kind not in FAMILIES:
        raise CheckpointError(f"model_type {kind!r} is not supported; supported: {', '.join(sorted(FAMILIES))}")
    if config.get("quantization_config"):
        raise CheckpointError("config.json has a quantization_config: quantised checkpoints are not supported")
    return path, config, FAMILIES[kind]


def _describe_qwen(folder: Path, config: Config) -> ModelCard:
    text = text_config(config)
    seeing = config.get("vision_config") is not None
    image_token = config.get("image_token_id")
    if seeing and not isinstance(image_token, int):
        raise CheckpointError("config.json lacks image_token_id")
    if seeing and (rows := vision_config(config).out) != text.hidden:
        raise CheckpointError(
            f"config.json: vision_config.out_hidden_size {rows} differs from hidden_size {text.hidden}"
        )
    generation = read_json(folder / "generation_config.json") if (folder / "generation_config.json").exists() else {}
    return ModelCard(
        model_type=config["model_type"],
        max_positions=text.max_positions,
        vocab_size=text.vocab,
        hidden_size=text.hidden,
        axes=Qwen35.axes,
        image_token_id=image_token if seeing else None,
        image_rules=image_rules(folder, config) if seeing else None,
        eos_ids=_eos_ids(generation, config, config.get("text_config") or {}),
        sampling=default_sampling(generation),
    )


def _eos_ids(*sources: Mapping[str, Any]) -> frozenset[int]:
    """The stop ids of the first source that names any."""
    for source in sources:
        ids = source.get("eos_token_id")
        if ids is not None:
            return frozenset([ids] if isinstance(ids, int) else ids)
    return frozenset()


def default_sampling(generation: Mapping[str, Any]) -> Sampling:
    """The sampling a generation_config.json recommends: greedy where it says so, else temperature 1 where silent."""
    if generation.get("do_sample") is False:
        return Sampling(temperature=0.0)
    fields = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    return Sampling(**{name: generation[name] for name in fields if generation.get(name) is not None})


def image_rules(folder: Path, config: Config) -> ImageRules:
    """The picture rules of preprocessor_config.json. Raises CheckpointError when they and the tower disagree."""
    data, vision = read_json(folder / "preprocessor_config.json"), vision_config(config)
    size = data.get("size") or {}
    smallest = size.get("shortest_edge", data.get("min_pixels"))
    largest = size.get("longest_edge", data.get("max_pixels"))
    facts = {"size.shortest_edge": smallest, "size.longest_edge": largest}
    facts |= {"image_mean": data.get("image_mean"), "image_std": data.get("image_std")}
    if missing := [name for name, value in facts.items() if value is None]:
        raise CheckpointError(f"preprocessor_config.json lacks {', '.join(missing)}")
    for name, want in (("patch_size", vision.patch), ("merge_size", vision.merge)):
        if data.get(name, want) != want:
            raise CheckpointError(f"preprocessor_config.json: {name} {data[name]} differs from the tower's {want}")
    mean, std = (tuple(float(value) for value in data[name]) for name in ("image_mean", "image_std"))
    if len(mean) != 3 or len(std) != 3:
        raise CheckpointError("preprocessor_config.json: image_mean and image_std need three values each")
    return ImageRules(vision.patch, vision.merge, int(smallest), int(largest), mean, std)


def _load_qwen_text(folder: Path, config: Config, place: Place) -> LanguageModel:
    text = text_config(config)
    return Qwen35(text, load_trunk(folder, text, place.device, place.dtype, place.progress))


def _load_qwen_vision(folder: Path, config: Config, place: Place) -> VisionTower:
    vision, rules = vision_config(config), image_rules(folder, config)
    return Qwen35Vision(vision, load_tower(folder, vision, place.device, place.dtype, place.progress), rules)


QWEN = Family(_describe_qwen, _load_qwen_text, _load_qwen_vision)
FAMILIES: Mapping[str, Family] = MappingProxyType({"qwen3_5": QWEN, "qwen3_5_moe": QWEN})
