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
from foveate.core.work import Work
from foveate.models.deepseek_v4 import DeepseekV4
from foveate.models.deepseek_v4_config import v4_config
from foveate.models.deepseek_v4_vision import DeepseekV4Vision
from foveate.models.deepseek_v4_vision import load_tower as load_v4_tower
from foveate.models.deepseek_v4_vision_config import image_card
from foveate.models.deepseek_v4_vision_config import vision_config as v4_vision_config
from foveate.models.deepseek_v4_weights import load_trunk as load_v4_trunk
from foveate.models.interface import LanguageModel, VisionTower
from foveate.models.qwen3_5 import Qwen35
from foveate.models.qwen3_5_config import text_config, vision_config
from foveate.models.qwen3_5_vision import Qwen35Vision, load_tower
from foveate.models.qwen3_5_weights import load_trunk
from foveate.models.qwen3_5_work import work_of
from foveate.models.weights import Place, Progress, read_json

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Family:
    """How checkpoints of some model types are described and loaded; all take the folder and its config.json.

    work: what a step costs by arithmetic, for numbers of so many bytes; None where nobody has counted.
    """

    describe: Callable[[Path, Config], ModelCard]
    load_text: Callable[[Path, Config, Place], LanguageModel]
    load_vision: Callable[[Path, Config, Place], VisionTower]
    work: Callable[[Config, int], Work] | None = None


def describe(folder: str | Path) -> ModelCard:
    """What the checkpoint is, from its JSON files. Raises CheckpointError for an unsupported or incomplete one."""
    folder, config, family = _family(folder)
    return family.describe(folder, config)


def work(folder: str | Path, item_bytes: int) -> Work | None:
    """What the model's steps cost at least, from its config.json; None for a family that is not counted.

    item_bytes: of a number that is not quantised. Raises CheckpointError as `describe` does.
    """
    _, config, family = _family(folder)
    return None if family.work is None else family.work(config, item_bytes)


def load_text(
    folder: str | Path,
    device: str | torch.device,
    dtype: torch.dtype,
    progress: Progress | None = None,
    dummy: bool = False,
    kernels: bool = True,
) -> LanguageModel:
    """The language model of a checkpoint folder, or with `dummy` one of its dimensions with random weights.

    kernels: whether matrices that stay in 8 bits on a GPU are multiplied by kernels. Raises CheckpointError naming what
    is missing or wrong.
    """
    folder, config, family = _family(folder)
    return family.load_text(folder, config, Place(torch.device(device), dtype, progress, dummy, kernels=kernels))


def load_vision(
    folder: str | Path,
    device: str | torch.device,
    dtype: torch.dtype,
    progress: Progress | None = None,
    dummy: bool = False,
) -> VisionTower:
    """The vision tower of a checkpoint folder, or with `dummy` one of its dimensions with random weights.

    Raises CheckpointError naming what is missing or wrong.
    """
    folder, config, family = _family(folder)
    return family.load_vision(folder, config, Place(torch.device(device), dtype, progress, dummy))


def _family(folder: str | Path) -> tuple[Path, Config, Family]:
    path = Path(folder)
    config = read_json(path / "config.json")
    kind = config.get("model_type")
    if kind not in FAMILIES:
        raise CheckpointError(f"model_type {kind!r} is not supported; supported: {', '.join(sorted(FAMILIES))}")
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
    generation = _generation(folder)
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


def _generation(folder: Path) -> Mapping[str, Any]:
    file = folder / "generation_config.json"
    return read_json(file) if file.exists() else {}


def _eos_ids(*sources: Mapping[str, Any]) -> frozenset[int]:
    """The stop ids of the first source that names any. Raises CheckpointError for what are no ids."""
    for source in sources:
        named = source.get("eos_token_id")
        if named is not None:
            ids = named if isinstance(named, list) else [named]
            if not all(isinstance(token, int) for token in ids):
                raise CheckpointError(f"eos_token_id {named!r} is neither a token id nor a list of them")
            return frozenset(ids)
    return frozenset()


def default_sampling(generation: Mapping[str, Any]) -> Sampling:
    """The sampling a generation_config.json recommends: greedy where it says so, else temperature 1 where silent.

    Raises CheckpointError for a recommendation that is no number.
    """
    if generation.get("do_sample") is False:
        return Sampling(temperature=0.0)
    fields = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    named = {name: generation[name] for name in fields if generation.get(name) is not None}
    for name, value in named.items():
        if not isinstance(value, int if name == "top_k" else (int, float)):
            raise CheckpointError(f"generation_config.json: {name} {value!r} is not a number that it can be")
    return Sampling(**named)


def image_rules(folder: Path, config: Config) -> ImageRules:
    """The picture rules of preprocessor_config.json. Raises CheckpointError when they and the tower disagree."""
    data, vision = read_json(folder / "preprocessor_config.json"), vision_config(config)
    size = data.get("size") or {}
    if not isinstance(size, dict):
        raise CheckpointError(f"preprocessor_config.json: size {size!r} is not an object")
    smallest = size.get("shortest_edge", data.get("min_pixels"))
    largest = size.get("longest_edge", data.get("max_pixels"))
    facts = {"size.shortest_edge": smallest, "size.longest_edge": largest}
    facts |= {"image_mean": data.get("image_mean"), "image_std": data.get("image_std")}
    if missing := [name for name, value in facts.items() if value is None]:
        raise CheckpointError(f"preprocessor_config.json lacks {', '.join(missing)}")
    for name, want in (("patch_size", vision.patch), ("merge_size", vision.merge)):
        if data.get(name, want) != want:
            raise CheckpointError(f"preprocessor_config.json: {name} {data[name]} differs from the tower's {want}")
    try:
        mean, std = (tuple(float(value) for value in data[name]) for name in ("image_mean", "image_std"))
        edges = int(smallest), int(largest)
    except (TypeError, ValueError) as error:
        raise CheckpointError("preprocessor_config.json: size, image_mean and image_std hold numbers") from error
    if len(mean) != 3 or len(std) != 3:
        raise CheckpointError("preprocessor_config.json: image_mean and image_std need three values each")
    return ImageRules(vision.patch, vision.merge, *edges, mean, std)


def _load_qwen_text(folder: Path, config: Config, place: Place) -> LanguageModel:
    text = text_config(config)
    return Qwen35(text, load_trunk(folder, text, place))


def _load_qwen_vision(folder: Path, config: Config, place: Place) -> VisionTower:
    vision, rules = vision_config(config), image_rules(folder, config)
    return Qwen35Vision(vision, load_tower(folder, vision, place), rules)


def _work_qwen(config: Config, item_bytes: int) -> Work:
    vision = vision_config(config) if config.get("vision_config") is not None else None
    return work_of(text_config(config), vision, item_bytes)


def _describe_v4(folder: Path, config: Config) -> ModelCard:
    text, generation = v4_config(config), _generation(folder)
    placeholder, rules = image_card(folder, config) or (None, None)
    return ModelCard(
        model_type=config["model_type"],
        max_positions=text.max_positions,
        vocab_size=text.vocab,
        hidden_size=text.hidden,
        axes=DeepseekV4.axes,
        image_token_id=placeholder,
        image_rules=rules,
        eos_ids=_eos_ids(generation, config),
        sampling=default_sampling(generation),
    )


def _load_v4_text(folder: Path, config: Config, place: Place) -> LanguageModel:
    text = v4_config(config)
    return DeepseekV4(text, load_v4_trunk(folder, text, place))


def _load_v4_vision(folder: Path, config: Config, place: Place) -> VisionTower:
    vision = v4_vision_config(config)
    return DeepseekV4Vision(vision, load_v4_tower(folder, vision, place))


V4 = Family(_describe_v4, _load_v4_text, _load_v4_vision)
QWEN = Family(_describe_qwen, _load_qwen_text, _load_qwen_vision, _work_qwen)
FAMILIES: Mapping[str, Family] = MappingProxyType({"qwen3_5": QWEN, "qwen3_5_moe": QWEN, "deepseek_v4": V4})
