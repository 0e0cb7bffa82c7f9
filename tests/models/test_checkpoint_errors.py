"""A checkpoint that is not what its config promises is refused by the name of what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from foveate.core.errors import CheckpointError
from foveate.models.registry import describe, load_text, load_vision
from tests.support.tiny import make_tiny, tiny_tensors, write_tensors

NORM = "model.language_model.layers.1.input_layernorm.weight"
Tensors = dict[str, torch.Tensor]


def text(folder: Path) -> None:
    load_text(folder, "cpu", torch.float32)


def vision(folder: Path) -> None:
    load_vision(folder, "cpu", torch.float32)


def rewrite(folder: Path, change: Callable[[Tensors], Any], shards: int = 1) -> None:
    tensors = tiny_tensors("dense")
    change(tensors)
    write_tensors(folder, tensors, shards)


def refused(load: Callable[[Path], Any], folder: Path, *words: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    for word in words:
        assert word in caught.value.message, caught.value.message


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_tiny(tmp_path, "dense")


def test_a_missing_tensor(folder: Path) -> None:
    rewrite(folder, lambda t: t.pop(NORM))
    refused(text, folder, NORM, "missing", "[64]")
    vision(folder)


def test_a_misshaped_tensor(folder: Path) -> None:
    rewrite(folder, lambda t: t.update({NORM: torch.zeros(65)}), shards=2)
    refused(text, folder, NORM, "-of-00002.safetensors", "expected [64]", "found [65]")


def test_an_unexpected_tensor(folder: Path) -> None:
    rewrite(folder, lambda t: t.update({"model.language_model.extra.weight": torch.zeros(3)}))
    refused(text, folder, "unexpected", "model.language_model.extra.weight", "[3]", "model.safetensors")


def test_an_unexpected_vision_tensor_concerns_the_tower_only(folder: Path) -> None:
    rewrite(folder, lambda t: t.update({"model.visual.extra": torch.zeros(3)}))
    text(folder)
    refused(vision, folder, "unexpected", "model.visual.extra")


def test_a_missing_vision_tensor(folder: Path) -> None:
    rewrite(folder, lambda t: t.pop("model.visual.merger.norm.bias"))
    refused(vision, folder, "model.visual.merger.norm.bias", "missing", "[32]")
    text(folder)


def test_a_tensor_of_an_unsupported_type(folder: Path) -> None:
    rewrite(folder, lambda t: t.update({NORM: t[NORM].to(torch.float8_e4m3fn)}))
    refused(text, folder, NORM, "F8_E4M3", "not supported")


def test_drafter_tensors_are_left_alone(folder: Path) -> None:
    assert any(name.startswith("mtp.") for name in load_file(folder / "model.safetensors"))
    text(folder)
    rewrite(folder, lambda t: t.update({"mtp.another": torch.zeros(1)}))
    text(folder)


def test_a_head_beside_tied_embeddings(tmp_path: Path) -> None:
    make_tiny(tmp_path, "dense_tied")
    write_tensors(tmp_path, tiny_tensors("dense_tied") | {"lm_head.weight": torch.zeros(512, 48)}, shards=3)
    refused(text, tmp_path, "unexpected", "lm_head.weight")


@pytest.mark.parametrize("kind", ["moe", "moe_fused"])
def test_a_missing_expert(tmp_path: Path, kind: str) -> None:
    make_tiny(tmp_path, kind)
    at = "model.language_model.layers.2.mlp.experts."
    name = at + ("down_proj" if kind == "moe_fused" else "5.up_proj.weight")
    tensors = tiny_tensors(kind)
    del tensors[name]
    write_tensors(tmp_path, tensors, shards=2 if kind == "moe" else 1)
    refused(text, tmp_path, name, "missing")


def test_a_missing_file(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    refused(text, folder, "model.safetensors is missing")


def test_a_missing_shard_and_a_tensor_in_the_wrong_one(tmp_path: Path) -> None:
    make_tiny(tmp_path, "dense_tied")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    name = next(name for name, file in index["weight_map"].items() if file == files[0])
    index["weight_map"][name] = files[1]
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(text, tmp_path, name, files[1])
    (tmp_path / files[2]).unlink()
    refused(text, tmp_path, f"{files[2]} is missing")


def test_a_broken_file(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    refused(text, folder, "model.safetensors", "not a usable")


def edit(folder: Path, file: str, change: Callable[[dict[str, Any]], Any]) -> None:
    data = json.loads((folder / file).read_text())
    change(data)
    (folder / file).write_text(json.dumps(data))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.update(model_type="llama"), ("llama", "qwen3_5, qwen3_5_moe")),
        (lambda c: c.pop("text_config"), ("lacks text_config",)),
        (
            lambda c: [c["text_config"].pop(k) for k in ("hidden_size", "head_dim")],
            ("text_config.hidden_size", "text_config.head_dim"),
        ),
        (lambda c: c["text_config"].pop("full_attention_interval"), ("text_config.full_attention_interval",)),
        (lambda c: c["text_config"]["rope_parameters"].pop("rope_theta"), ("rope_parameters.rope_theta",)),
        (lambda c: c["text_config"].pop("rope_parameters"), ("rope_theta", "partial_rotary_factor", "mrope_section")),
        (
            lambda c: c["text_config"]["rope_parameters"].update(rope_type="yarn"),
            ("rope_type", "yarn", "not supported"),
        ),
        (lambda c: c["text_config"]["rope_parameters"].update(mrope_section=[2, 2, 2]), ("mrope_section", "8 rotated")),
        (lambda c: c["text_config"].update(layer_types=["full_attention"]), ("1 text_config.layer_types", "4 layers")),
        (lambda c: c["text_config"].update(layer_types=["mamba"] * 4), ("mamba",)),
        (lambda c: c["text_config"].update(attention_bias=True), ("attention_bias", "not supported")),
        (lambda c: c["text_config"].update(num_attention_heads=5), ("num_attention_heads 5",)),
        (lambda c: c["vision_config"].pop("depth"), ("vision_config.depth",)),
        (lambda c: c["vision_config"].update(deepstack_visual_indexes=[1]), ("deepstack_visual_indexes",)),
        (lambda c: c["vision_config"].update(num_position_embeddings=17), ("17", "no square")),
        (lambda c: c.pop("image_token_id"), ("image_token_id",)),
        (lambda c: c["vision_config"].update(out_hidden_size=60), ("out_hidden_size 60", "hidden_size 64")),
    ],
)
def test_a_config_that_cannot_be_served(folder: Path, change: Callable[[Any], Any], words: tuple[str, ...]) -> None:
    edit(folder, "config.json", change)
    refused(describe, folder, *words)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.pop("image_mean"), ("image_mean",)),
        (lambda c: c.pop("size"), ("size.shortest_edge", "size.longest_edge")),
        (lambda c: c.update(patch_size=14), ("patch_size 14", "16")),
        (lambda c: c.update(image_std=[0.5]), ("image_std", "three")),
        (lambda c: c.update(image_mean=0.5), ("image_mean", "numbers")),
        (lambda c: c.update(image_mean=["grey"] * 3), ("image_mean", "numbers")),
        (lambda c: c.update(size=5), ("size 5", "object")),
        (lambda c: c["size"].update(shortest_edge=[32]), ("size", "numbers")),
    ],
)
def test_picture_rules_that_cannot_be_served(
    folder: Path, change: Callable[[Any], Any], words: tuple[str, ...]
) -> None:
    edit(folder, "preprocessor_config.json", change)
    refused(describe, folder, "preprocessor_config.json", *words)


@pytest.mark.parametrize(
    ("name", "value"), [("temperature", "warm"), ("top_p", [0.9]), ("top_k", 2.5), ("eos_token_id", "<|im_end|>")]
)
def test_generation_settings_that_are_none(folder: Path, name: str, value: Any) -> None:
    edit(folder, "generation_config.json", lambda c: c.update({name: value}))
    refused(describe, folder, name)


def test_json_that_is_missing_or_broken(folder: Path) -> None:
    (folder / "preprocessor_config.json").unlink()
    refused(describe, folder, "preprocessor_config.json is missing")
    (folder / "config.json").write_text("[1]")
    refused(describe, folder, "config.json does not hold a JSON object")
    (folder / "config.json").write_text("{")
    refused(describe, folder, "config.json cannot be read")
