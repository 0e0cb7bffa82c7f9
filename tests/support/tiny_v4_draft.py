"""Tiny DeepSeek V4 checkpoints with a drafter of their own under `mtp.*`: DSpark, or the older single layer.

Owns the drafter's tensors by their official names and the `dspark_*` fields. Random drafters are never right, so a
Markov head can be given that has seen the target talk: it knows which token mostly follows which. Knows nothing of
foveate: what it writes is what a release would hold.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from tests.support.tiny_v4 import VOCAB, draw, make_tiny_v4, tiny_v4_config, v4_layer_shapes, write_json

NOISE, BLOCK = 11, 5
INDEX = "model.safetensors.index.json"


def make_tiny_drafting(
    folder: str | Path, kind: str, drafter: str, talk: Iterable[list[int]] = (), seed: int = 0, stages: int = 2
) -> Path:
    """A checkpoint of a kind with a drafter, 'dspark' or 'mtp'; talk: answers that the Markov head learns from."""
    folder, talk = make_tiny_v4(folder, kind, seed), list(talk)
    config = tiny_v4_config(kind)
    layers = config["num_hidden_layers"]
    rank = VOCAB if talk else 6
    fields: dict[str, Any] = {"num_nextn_predict_layers": 1}  # as a release has it, however many stages there are
    if drafter == "dspark":
        fields |= {"dspark_block_size": BLOCK, "dspark_noise_token_id": NOISE, "dspark_markov_rank": rank}
        fields["dspark_target_layer_ids"] = [layers - 2, layers - 1]
    write_json(folder / "config.json", config | fields)
    random = torch.Generator().manual_seed(seed + 17)
    shapes = spark_shapes(config, rank, stages) if drafter == "dspark" else mtp_shapes(config)
    tensors = {name: draw(name, shape, config, random) for name, shape in shapes}
    if talk:
        tensors |= _learned(f"mtp.{stages - 1}.markov_head.", talk)
    _add(folder, tensors)
    return folder


def spark_shapes(config: dict[str, Any], rank: int, stages: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of a DSpark drafter that reads two layers."""
    hidden = config["hidden_size"]
    yield "mtp.0.main_proj.weight", (hidden, 2 * hidden)
    yield "mtp.0.main_norm.weight", (hidden,)
    for i in range(stages):
        yield from v4_layer_shapes(f"mtp.{i}.", config)
    head = f"mtp.{stages - 1}."
    yield from _end(head, config)
    for name in ("markov_w1", "markov_w2"):
        yield f"{head}markov_head.{name}.weight", (VOCAB, rank)
    yield f"{head}confidence_head.proj.weight", (1, hidden + rank)


def mtp_shapes(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the single layer."""
    hidden = config["hidden_size"]
    for name in ("enorm", "hnorm"):
        yield f"mtp.0.{name}.weight", (hidden,)
    for name in ("e_proj", "h_proj"):
        yield f"mtp.0.{name}.weight", (hidden, hidden)
    yield from v4_layer_shapes("mtp.0.", config)
    yield from _end("mtp.0.", config)


def _end(at: str, config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    streams, hidden = config["hc_mult"], config["hidden_size"]
    yield at + "hc_head_fn", (streams, streams * hidden)
    yield at + "hc_head_base", (streams,)
    yield at + "hc_head_scale", (1,)
    yield at + "norm.weight", (hidden,)


def _learned(at: str, talk: list[list[int]]) -> dict[str, Tensor]:
    """A Markov head of full rank: the bias towards a token is how often it came next."""
    counts = torch.zeros(VOCAB, VOCAB)  # [next, before]
    for answer in talk:
        for before, after in pairwise(answer):
            counts[after, before] += 1
    shares = counts / counts.sum(0).clamp(min=1)
    return {at + "markov_w1.weight": 12 * torch.eye(VOCAB), at + "markov_w2.weight": shares}


def _add(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Put more tensors into a checkpoint, in a file of their own."""
    if (folder / INDEX).exists():
        where = json.loads((folder / INDEX).read_text())["weight_map"]
    else:
        with safe_open(folder / "model.safetensors", "pt") as opened:
            where = dict.fromkeys(opened.keys(), "model.safetensors")
    save_file(tensors, folder / "drafter.safetensors", {"format": "pt"})
    write_json(folder / INDEX, {"weight_map": where | dict.fromkeys(tensors, "drafter.safetensors")})
