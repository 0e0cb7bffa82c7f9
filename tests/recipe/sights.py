"""Toy DeepSeek V4 readers and packs for the tests of their recipe.

Owns random weights far enough from their start that a wrong formula shows, and conversations of noise and numbers.
"""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from tokenizers import Tokenizer
from torch import nn

from recipe.deepseek_draft import Stages
from recipe.deepseek_encode import BlockEncoder
from recipe.deepseek_export import export_sight, masters_from, read_official
from recipe.deepseek_init import initialise_sight
from recipe.deepseek_model import SightReader
from recipe.deepseek_packs import BlockPackShape, block_pack_shape, fill_block_pack, sight_pack
from recipe.deepseek_shapes import sight_preset
from recipe.deepseek_tokenizer import SHOWN, SPECIAL
from recipe.staging import StaticPack
from recipe.tokenizer import train_tokenizer

SHAPE = sight_preset("toy")
CPU = torch.device("cpu")


def packs(**change: int) -> BlockPackShape:
    sizes = {"rows": 3, "row": 192, "patches": 800, "labels": 256, "longest_image": 200, "images": 96}
    return block_pack_shape(SHAPE, **(sizes | change))


@cache
def tokenizer() -> Tokenizer:
    return train_tokenizer(["What is the value? 1 2 3\n\n", "The title is a title."] * 3, 496, SPECIAL, SHOWN)


def noise(rng: random.Random) -> Any:
    """Noise for charts, numbers for answers; sides that the tower's patches do not divide."""
    charts = []
    for _ in range(rng.randint(0, 2)):
        sides = (rng.randint(40, 120), rng.randint(40, 150), 3)
        pixels = np.random.RandomState(rng.randint(0, 999)).randint(0, 255, sides, dtype=np.uint8)
        charts.append(SimpleNamespace(image=Image.fromarray(pixels), glyphs=[("A", 20, 20), ("b", 24, 21)]))
    turns = [SimpleNamespace(question="value?", answer=str(rng.randint(0, 99)), kind="value") for _ in range(3)]
    lead = [("text", "What is the")] if rng.random() < 0.5 else []
    parts = [*lead, *(("image", i) for i in range(len(charts))), ("text", "value?")]
    return SimpleNamespace(charts=charts, turns=turns, parts=parts)


def buffer(seed: str, shape: BlockPackShape) -> NDArray[np.uint8]:
    raw = bytearray(shape.nbytes)
    fill_block_pack(shape, BlockEncoder(tokenizer(), SHAPE.vision), noise, seed, shape.view(raw))
    return np.frombuffer(raw, np.uint8)


def filled(seed: str = "0", shape: BlockPackShape | None = None) -> StaticPack:
    shape = shape or packs()
    out = StaticPack(shape, CPU, sight_pack)
    out.load(buffer(seed, shape))
    return out


def roughen(module: nn.Module, seed: int) -> None:
    """Away from zeros and ones, and logits that are not flat."""
    generator = torch.Generator().manual_seed(seed)
    for name, p in module.named_parameters():
        if p.ndim == 1 or name.endswith("ape"):
            p.data.add_(0.2 * torch.randn(p.shape, generator=generator))
        if name.endswith("fn"):
            p.data.mul_(4)
    for name, held in module.named_buffers():
        if name.endswith(("bias", "bias_vl")):
            held.copy_(0.3 * torch.randn(held.shape, generator=generator))


@cache
def exported() -> tuple[Path, SightReader, Stages]:
    """A random checkpoint with its drafter, and the modules with the values that the files hold."""
    reader, stages = SightReader(SHAPE), Stages(SHAPE)
    for seed, module in enumerate((reader, stages)):
        initialise_sight(module, seed + 1, 8)
        roughen(module, seed + 3)
    reader.head.weight.data.mul_(4)
    folder = Path(mkdtemp(prefix="foveate-sight-"))
    export_sight(folder, SHAPE, {**reader.state_dict(), **stages.state_dict()}, tokenizer())
    official = read_official(folder)
    for module in (reader, stages):
        module.load_state_dict(masters_from(official, list(module.state_dict())))
    return folder, reader.eval(), stages.eval()
