"""The tower and aligner of DeepSeek V4 against the formulas written out, one patch and one head at a time."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from foveate.core.errors import CheckpointError
from foveate.core.images import BlockRules
from foveate.models.deepseek_v4_vision import GRIDS_KEPT, DeepseekV4Vision, load_tower, row_order
from foveate.models.deepseek_v4_vision_config import image_card, vision_config
from foveate.models.registry import load_vision
from foveate.models.weights import Place
from tests.support import v4_blocks
from tests.support.tiny_v4 import make_tiny_v4
from tests.support.tiny_v4_vision import vision_fields, vision_tensors

CONFIG = {"model_type": "deepseek_v4", "hidden_size": 40, **vision_fields()}
SIZES = ((42, 42), (14, 14), (56, 98), (28, 126), (126, 14), (84, 70))  # height, width


def pictures() -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.integers(0, 256, (height, width, 3), dtype=np.uint8) for height, width in SIZES]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("eyes")
    text = {"embed.weight": torch.zeros(4, 40), "layers.0.ffn.gate.bias_vl": torch.zeros(4)}
    save_file(vision_tensors(CONFIG, 3) | text, path / "model.safetensors")
    return path


def loaded(folder: Path, dtype: torch.dtype = torch.float32) -> DeepseekV4Vision:
    config = vision_config(CONFIG)
    return DeepseekV4Vision(config, load_tower(folder, config, Place(torch.device("cpu"), dtype)))


# --- the reference: double precision, no code of the package ----------------------------------------------------------


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight


def turn(head: Tensor, row: int, column: int, theta: float) -> Tensor:
    """One head of one patch [dim]: dimension i and i + dim/2 are a plane, the first half of the planes turns by row."""
    planes = len(head) // 2
    out = head.clone()
    for plane in range(planes):
        j, place = plane % (planes // 2), row if plane < planes // 2 else column
        angle = place * theta ** (-2 * j / planes)
        a, b = float(head[plane]), float(head[plane + planes])
        out[plane] = a * math.cos(angle) - b * math.sin(angle)
        out[plane + planes] = a * math.sin(angle) + b * math.cos(angle)
    return out


def naive_tower(w: dict[str, Tensor], picture: np.ndarray, config: dict[str, Any]) -> Tensor:
    """Normed states [down, across, width] of a picture's patches."""
    patch, width, heads = config["vision_patch_size"], config["vision_dim"], config["vision_n_heads"]
    values = (torch.from_numpy(picture.astype(np.float64)) / 255 - 0.5) / 0.5
    down, across = picture.shape[0] // patch, picture.shape[1] // patch
    places = [(r, c) for r in range(down) for c in range(across)]
    squares = [values[r * patch : (r + 1) * patch, c * patch : (c + 1) * patch] for r, c in places]
    flat = torch.stack([square.permute(2, 0, 1).reshape(-1) for square in squares])  # channel, row, column
    x = flat @ w["vision.patch_embed.proj.weight"].T + w["vision.patch_embed.proj.bias"]
    dim = width // heads
    for i in range(config["vision_n_layers"]):
        at = f"vision.blocks.{i}."
        qkv = norm(x, w[at + "norm1.weight"]) @ w[at + "attn.wqkv.weight"].T + w[at + "attn.wqkv.bias"]
        mixed = torch.zeros_like(x)
        for h in range(heads):
            q, k, v = (qkv[:, part * width + h * dim :][:, :dim] for part in range(3))
            q, k = (torch.stack([turn(t, *p, config["vision_rope_theta"]) for t, p in zip(x_, places, strict=True)])
                    for x_ in (q, k))  # fmt: skip
            mixed[:, h * dim : (h + 1) * dim] = (q @ k.T / dim**0.5).softmax(-1) @ v
        x = x + mixed @ w[at + "attn.wo.weight"].T + w[at + "attn.wo.bias"]
        gate, up = (norm(x, w[at + "norm2.weight"]) @ w[at + "mlp.w1.weight"].T).chunk(2, -1)
        x = x + (gate * torch.sigmoid(gate) * up) @ w[at + "mlp.w2.weight"].T
    return norm(x, w["vision.norm.weight"]).view(down, across, width)


def naive_rows(w: dict[str, Tensor], states: Tensor, config: dict[str, Any]) -> Tensor:
    """The block of a picture: cells where the description puts them, learned vectors elsewhere."""
    cell, (down, across, _) = config["vision_downsample_ratio"], states.shape
    rows, columns = math.ceil(down / cell), math.ceil(across / cell)
    padded = torch.nn.functional.pad(states.permute(2, 0, 1), (0, columns * cell - across, 0, rows * cell - down))
    folded = torch.nn.functional.unfold(padded[None], cell, stride=cell)[0].T  # [cells, width * cell²]
    inner = folded @ w["aligner.w1.weight"].T + w["aligner.w1.bias"]
    inner = inner * 0.5 * (1 + torch.erf(inner / 2**0.5))
    cells = inner @ w["aligner.w2.weight"].T + w["aligner.w2.bias"]
    names = {v4_blocks.START: "start", v4_blocks.PAD: "pad", v4_blocks.NEWLINE: "newline", v4_blocks.END: "end"}
    block = v4_blocks.block(3, rows, columns)
    return torch.stack([w["image_" + names[kind]] if at is None else cells[at] for kind, at in block])


def reference(picture: np.ndarray) -> Tensor:
    w = {name: tensor.double() for name, tensor in vision_tensors(CONFIG, 3).items()}
    return naive_rows(w, naive_tower(w, picture, CONFIG), CONFIG)


# --- what it must be --------------------------------------------------------------------------------------------------


def test_blocks_equal_the_formulas(folder: Path) -> None:
    tower = loaded(folder)
    for picture, got in zip(pictures(), tower.encode(pictures()), strict=True):
        want = reference(picture)
        assert got.shape == want.shape and got.shape[1] == tower.out_size == 40
        assert (got - want).abs().max() < 2e-5


def test_an_image_encodes_alike_alone_and_in_company(folder: Path) -> None:
    tower = loaded(folder)
    for picture, rows in zip(pictures(), tower.encode(pictures()), strict=True):
        assert (tower.encode([picture])[0] - rows).abs().max() < 1e-5


def test_pixels_are_normalised_before_they_are_rounded(folder: Path) -> None:
    tower = loaded(folder, torch.bfloat16)
    want = ((torch.arange(256).float() / 255 - 0.5) / 0.5).bfloat16()
    ramp = np.arange(256, dtype=np.uint8)
    picture = np.resize(ramp, (14, 28, 3))
    got = tower._patches(torch.from_numpy(picture)).view(2, 14, 14, 3)
    expected = want[torch.from_numpy(picture).long()].view(14, 2, 14, 3).transpose(0, 1)
    assert torch.equal(got, expected)
    assert tower.encode([picture])[0].dtype == torch.bfloat16


def test_facts_of_grids_are_kept_for_the_last_ones_only(folder: Path) -> None:
    tower = loaded(folder)
    first = np.zeros((14, 14, 3), dtype=np.uint8)
    want = tower.encode([first])[0]
    for width in range(2, GRIDS_KEPT + 4):
        tower.encode([np.zeros((14, 14 * width, 3), dtype=np.uint8)])
        if width % 4 == 0:
            tower.encode([first])
    assert len(tower._grids) == GRIDS_KEPT and (1, 1) in tower._grids and (1, 2) not in tower._grids
    assert torch.equal(tower.encode([first])[0], want)


def test_a_read_only_picture_is_taken_as_it_is(folder: Path) -> None:
    picture = np.frombuffer(bytes(14 * 14 * 3), dtype=np.uint8).reshape(14, 14, 3)
    assert loaded(folder).encode([picture])[0].shape == (v4_blocks.token_count(1, 1), 40)


def test_rows_are_found_for_every_grid() -> None:
    for down in range(1, 30):
        for across in range(1, 30):
            want = [kind if cell is None else 5 + cell for kind, cell in v4_blocks.block(3, down, across)]
            assert row_order((down, across)) == want


def test_the_card_of_a_checkpoint_that_sees(tmp_path: Path) -> None:
    token = {"id": 129264, "content": "<｜deepseek_image｜>"}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": [{"id": 3, "content": "x"}, token]}))
    released = CONFIG | {"vision_max_n_token": 384, "vision_min_pixels": 147456}
    assert image_card(tmp_path, released) == (129264, BlockRules(14, 3, 147456, 384, 8))
    assert image_card(tmp_path, {"hidden_size": 40}) is None
    assert image_card(tmp_path, CONFIG | {"image_token_id": 9}) == (9, BlockRules(14, 3, 1764, 48, 8))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match="deepseek_image"):
        image_card(tmp_path, released)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"vision_dim": None}, "vision_dim None"),
        ({"vision_dim": 36}, "vision_dim 36"),
        ({"vision_patch_size": 0}, "vision_patch_size 0"),
        ({"vision_rope_theta": None}, "vision_rope_theta"),
        ({"vision_downsample_ratio": 1.5}, "vision_downsample_ratio 1.5"),
    ],
)
def test_a_broken_config_is_refused_by_name(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(CheckpointError, match=reason):
        vision_config(CONFIG | change)


def test_a_budget_without_room_for_one_cell_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="vision_max_n_token 8 is less than 9"):
        image_card(tmp_path, CONFIG | {"vision_max_n_token": 8, "image_token_id": 1})


def test_random_weights_see_without_a_file(tmp_path: Path) -> None:
    make_tiny_v4(tmp_path, "v4_vision")
    (tmp_path / "model.safetensors").unlink()
    rows = load_vision(tmp_path, "cpu", torch.float32, dummy=True).encode(pictures())
    assert all(part.isfinite().all() and part.std() > 0.01 for part in rows)
    assert [len(part) for part in rows] == [len(reference(picture)) for picture in pictures()]


@pytest.mark.parametrize("name", ["vision.blocks.1.mlp.w1.weight", "aligner.w2.bias", "image_pad"])
def test_missing_and_misshaped_tensors_are_named(name: str, tmp_path: Path) -> None:
    tensors = vision_tensors(CONFIG, 3)
    gone = {key: tensor for key, tensor in tensors.items() if key != name}
    for change, reason in ((gone, "is missing"), (tensors | {name: torch.zeros(3)}, "expected")):
        save_file(change, tmp_path / "model.safetensors")
        with pytest.raises(CheckpointError, match=reason) as caught:
            loaded(tmp_path)
        assert name in str(caught.value)
