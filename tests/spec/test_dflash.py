"""DFlash and DFlash2 against the dflash package on random tiny configs; context in pages, in pieces, in batches."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from foveate.core.errors import CheckpointError
from foveate.models.dflash import BlockDrafter
from foveate.models.draft_weights import load_block_drafter
from foveate.models.drafting import Asked, Seen
from foveate.run.cache import allocate
from tests.support.harness import tiny

package = pytest.importorskip("dflash.model")
PAGE = 4
LAYERS = 4


def config_of(kind: str, **changes: Any) -> dict[str, Any]:
    config = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "num_target_layers": LAYERS,
        "layer_types": ["full_attention", "full_attention"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "dflash_config": {"block_size": 6, "mask_token_id": 511, "target_layer_ids": [1, 3]},
    }
    if kind == "sliding":
        config |= {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 9}
    if kind == "dflash2":
        config |= {"architectures": ["DFlash2DraftModel"], "layer_types": ["sliding_attention"] * 2}
        config |= {"sliding_window": 11, "is_causal": False}
        config["dflash_config"] |= {
            "conv_kernel_size": 2,
            "conv_group_size": 16,
            "selector_rank": 8,
            "selector_top_k": 5,
        }
    if kind == "softcap":
        config["dflash_config"] |= {
            "final_logit_softcapping": 5.0, "output_multiplier": 0.7, "input_embedding_scale": 1.5,
        }  # fmt: skip
    return config | changes


@torch.no_grad()
def oracle_of(config: dict[str, Any], seed: int) -> nn.Module:
    """The package's model with random weights everywhere."""
    from transformers import Qwen3Config

    config = config | {"use_sliding_window": "sliding_attention" in config["layer_types"]}
    name = "DFlash2DraftModel" if "selector_rank" in config["dflash_config"] else "DFlashDraftModel"
    model = getattr(package, name)(Qwen3Config.from_dict(config)).float().eval()
    gen = torch.Generator().manual_seed(seed)
    for key, tensor in model.state_dict().items():
        noise = torch.randn(tensor.shape, generator=gen)
        if "norm" in key:
            tensor.copy_(1 + 0.1 * noise)
        elif key.endswith("base_kernel"):
            tensor.copy_(0.3 * noise)
        else:
            tensor.copy_(noise * tensor.shape[-1] ** -0.5)
    return model


def write(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name.replace("codebook.weight", "codebook"): t.contiguous() for name, t in tensors.items()},
              folder / "model.safetensors")  # fmt: skip
    return folder


def pair(kind: str, folder: Path, seed: int = 0) -> tuple[nn.Module, BlockDrafter]:
    config = config_of(kind)
    oracle = oracle_of(config, seed)
    write(folder, config, oracle.state_dict())
    return oracle, load_block_drafter(folder, tiny("dense")[0], torch.device("cpu"), torch.float32)


def seen_of(features: list[Tensor], past_lens: tuple[int, ...], pages: Tensor) -> Seen:
    flat, lens = torch.cat(features), tuple(len(part) for part in features)
    none = torch.zeros(len(flat), dtype=torch.int64)
    slots = torch.arange(len(lens))
    return Seen(none, none.expand(3, -1), past_lens, lens, pages, slots, flat, None)


def asked_of(anchors: list[int], past_lens: tuple[int, ...], pages: Tensor, draft_len: int) -> Asked:
    positions = torch.zeros(3, len(anchors), draft_len + 1, dtype=torch.int64)
    return Asked(torch.tensor(anchors), past_lens, positions, pages, torch.arange(len(anchors)), draft_len)


def argmax(logits: Tensor, depth: int) -> Tensor:
    return logits.argmax(-1)


def output_head(hidden: Tensor) -> Tensor:
    return tiny("dense")[0].head(hidden[0])[None]


@torch.no_grad()
def reference(oracle: nn.Module, features: Tensor, anchor: int) -> tuple[Tensor, Tensor]:
    """Hidden states [block, hidden] and logits of the guessing slots by the package."""
    target = tiny("dense")[0]
    block = torch.full((oracle.block_size,), oracle.mask_token_id)
    block[0] = anchor
    scale = float(package._draft_value(oracle.config, "input_embedding_scale", 1.0))
    embeds = target.embed(block)[None] * scale
    positions = torch.arange(len(features) + len(block))[None]
    hidden = oracle(target_hidden=features[None], noise_embedding=embeds, position_ids=positions)
    return hidden[0], oracle.compute_logits(hidden[0, 1:], target.head)


@pytest.mark.parametrize("kind", ["dflash", "sliding", "dflash2", "softcap"])
def test_hidden_states_and_logits_equal_the_package(kind: str, tmp_path: Path) -> None:
    oracle, drafter = pair(kind, tmp_path)
    memory = allocate(drafter.memory_spec(), 40, PAGE, 3, "cpu")
    for tensor in memory.paged.values():
        tensor.fill_(float("nan"))
    pages = torch.randperm(36).view(3, 12)
    lens, anchors = (29, 1, 14), [7, 400, 33]
    features = [torch.randn(length, drafter.backbone.fc.shape[0]) for length in lens]
    # The context grows in pieces that cut pages, and differently for each sequence.
    drafter.observe(seen_of([features[0][:10], features[2][:3]], (0, 0), pages[[0, 2]]), memory)
    drafter.observe(seen_of([features[2][3:4]], (3,), pages[[2]]), memory)
    drafter.observe(seen_of([features[0][10:], features[1], features[2][4:]], (10, 0, 4), pages), memory)
    asked = asked_of(anchors, lens, pages, drafter.most_len)
    states = drafter.block_states(asked, memory)
    guesses = drafter.propose(asked, memory, argmax)
    for row, (anchor, seen) in enumerate(zip(anchors, features, strict=True)):
        hidden, logits = reference(oracle, seen, anchor)
        assert (states[row] - hidden).abs().max() < 1e-5
        assert (drafter.logits(states[row, 1:]) - logits).abs().max() < 1e-5 * max(1.0, float(logits.abs().max()))
        if kind == "dflash2":
            want = oracle.propose(hidden[None, 1:], torch.tensor([anchor]), output_head, 0.0)[0][0]
        else:
            want = logits.argmax(-1)
            assert torch.equal(guesses.ids[row, :, 0], want)
            chances = logits.softmax(-1).max(-1).values
            assert (guesses.confidence[row] - chances).abs().max() < 1e-5
        assert torch.equal(guesses.tokens[row], want)


def test_shorter_wishes_are_the_beginning_of_longer_ones(tmp_path: Path) -> None:
    _, drafter = pair("dflash", tmp_path)
    memory, pages = allocate(drafter.memory_spec(), 12, PAGE, 1, "cpu"), torch.arange(12)[None]
    drafter.observe(seen_of([torch.randn(9, 128)], (0,), pages), memory)
    long, short = (drafter.propose(asked_of([5], (9,), pages, n), memory, argmax).tokens for n in (5, 2))
    assert torch.equal(long[:, :2], short) and long.shape == (1, 5)


BREAKS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "hidden": (lambda c: c.update(hidden_size=32), "hidden_size is 32, but the model's is 64"),
    "vocabulary": (lambda c: c.update(vocab_size=300), "vocab_size is 300"),
    "layer": (lambda c: c["dflash_config"].update(target_layer_ids=[1, 9]), "reads layer 9"),
    "mask": (lambda c: c["dflash_config"].pop("mask_token_id"), "lacks mask_token_id"),
    "kind": (lambda c: c.update(architectures=["Eagle3"]), "not supported"),
    "rope": (lambda c: c["rope_parameters"].update(rope_type="yarn"), "rope"),
    "depth": (lambda c: c.update(num_hidden_layers=3, layer_types=["full_attention"] * 3), "layers.2"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_what_does_not_fit_is_named(name: str, tmp_path: Path) -> None:
    config = config_of("dflash")
    tensors = oracle_of(config, 0).state_dict()
    change, message = BREAKS[name]
    change(config)
    with pytest.raises(CheckpointError, match=message):
        load_block_drafter(write(tmp_path, config, tensors), tiny("dense")[0], torch.device("cpu"), torch.float32)


def test_default_layers_are_the_formats_rule(tmp_path: Path) -> None:
    from foveate.models.draft_config import draft_config

    config = config_of("dflash", num_target_layers=64, num_hidden_layers=5, layer_types=None)
    del config["dflash_config"]["target_layer_ids"]
    assert draft_config(config).layers == (1, 16, 31, 46, 61)
