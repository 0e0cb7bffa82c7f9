"""From a block drafter's folder to a `BlockDrafter`: z-lab's, DeepSpec's and speculators' files.

Owns the tensor names and shapes of these formats. Everything is checked against the config and the target before any
tensor is read; CheckpointError names what is missing, mis-shaped, unexpected or does not fit. What a file repeats of
the target (its embedding, its head, its norm) is taken from the target unless the drafter has a vocabulary of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from foveate.core.errors import CheckpointError
from foveate.models.dflash import Backbone, BlockConv, BlockDrafter, BlockLayer, Chooser, Independent, Selection
from foveate.models.draft_config import DraftConfig, Markov, check_fit, draft_config
from foveate.models.dspark import ConfidenceHead, MarkovHead, Sequential
from foveate.models.interface import LanguageModel
from foveate.models.weights import Place, Source, Stored, check, inventory, open_source, read_json

Shapes = dict[str, tuple[int, ...]]
OTHERS = ("embed_tokens.", "lm_head.", "verifier_", "d2t", "t2d")  # the target's own, or read where needed


def load_block_drafter(
    folder: Path, target: LanguageModel, device: torch.device, dtype: torch.dtype, least_len: int = 0
) -> BlockDrafter:
    """The drafter in a folder, for this target. Raises CheckpointError for whatever does not fit.

    least_len: tokens that a block shall guess at least; it is widened where it was trained for fewer.
    """
    config = draft_config(read_json(folder / "config.json"))
    config = replace(config, block=config.block + max(0, least_len - config.most_len))
    check_fit(config, target.hidden_size, target.vocab_size, target.layer_count)
    stored = inventory(folder)
    expected = draft_shapes(config, stored)
    check(stored, expected, OTHERS)
    extra = {name for name in stored if name.startswith(OTHERS) and name in _owned(config, stored)}
    source = open_source(folder, {name: stored[name] for name in [*expected, *extra]}, Place(device, dtype))
    layers = tuple(_layer(source, f"layers.{i}.", config) for i in range(config.depth))
    backbone = Backbone(
        fc=_turned(source, "fc.weight"),
        context_norm=source.exact("hidden_norm.weight"),
        layers=layers,
        norm=source.exact("norm.weight"),
        head=_turned(source, "lm_head.weight") if "lm_head.weight" in extra else None,
        embedding=source.get("embed_tokens.weight") if "embed_tokens.weight" in extra else None,
    )
    return BlockDrafter(config, backbone, target, _chooser(source, config))


def _owned(config: DraftConfig, stored: Mapping[str, Stored]) -> set[str]:
    """Which of the optional tensors are read: those of a vocabulary of its own, and copies that may differ."""
    names = {"d2t"} if config.draft_vocab is not None else set()
    shapes = {"lm_head.weight": (config.draft_vocab or config.vocab, config.hidden)}
    shapes["embed_tokens.weight"] = (config.vocab, config.hidden)
    if config.draft_vocab is not None and not {"lm_head.weight", "d2t"} <= stored.keys():
        raise CheckpointError("a drafter with a vocabulary of its own needs lm_head.weight and d2t")
    for name, shape in shapes.items():
        if name in stored and stored[name].shape != shape:
            raise CheckpointError(f"tensor {name}: expected {list(shape)}, found {list(stored[name].shape)}")
        if name in stored:
            names.add(name)
    return names


def draft_shapes(config: DraftConfig, stored: Mapping[str, Stored]) -> Shapes:
    """Every tensor of a drafter by its name."""
    hidden = config.hidden
    shapes: Shapes = {"fc.weight": (hidden, len(config.layers) * hidden)}
    shapes |= {f"{name}.weight": (hidden,) for name in ("hidden_norm", "norm")}
    for i in range(config.depth):
        shapes |= _layer_shapes(f"layers.{i}.", config)
    if config.selector is not None:
        rank = config.selector.rank
        for name in ("predecessor_codebook", "successor_codebook"):
            shapes[_codebook(stored, name)] = (config.vocab, rank)
        shapes["candidate_selector.hidden_projection.weight"] = (rank, hidden)
    if config.markov is not None:
        shapes |= _markov_shapes(config.markov, config)
    return shapes


def _codebook(stored: Mapping[str, Stored], name: str) -> str:
    """Released files leave out `.weight` here; copies made by libraries have it."""
    plain = f"candidate_selector.{name}"
    return f"{plain}.weight" if f"{plain}.weight" in stored else plain


def _layer_shapes(at: str, c: DraftConfig) -> Shapes:
    query, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
    sides = {"q": (query, c.hidden), "k": (kv, c.hidden), "v": (kv, c.hidden), "o": (c.hidden, query)}
    shapes: Shapes = {f"{at}self_attn.{name}_proj.weight": shape for name, shape in sides.items()}
    shapes |= {f"{at}self_attn.{name}_norm.weight": (c.head_dim,) for name in "qk"}
    shapes |= {f"{at}{name}_layernorm.weight": (c.hidden,) for name in ("input", "post_attention")}
    shapes |= {f"{at}mlp.{name}_proj.weight": (c.inner, c.hidden) for name in ("gate", "up")}
    shapes[f"{at}mlp.down_proj.weight"] = (c.hidden, c.inner)
    if c.selector is not None:
        taps = 2 * c.selector.kernel * (c.hidden // c.selector.group)
        for name in ("attention_conv", "mlp_conv"):
            shapes[f"{at}{name}.base_kernel"] = (2, c.selector.kernel, c.hidden)
            shapes[f"{at}{name}.kernel_projection.weight"] = (taps, c.hidden)
    return shapes


def _markov_shapes(markov: Markov, c: DraftConfig) -> Shapes:
    rank, shapes = markov.rank, Shapes()
    if rank:
        shapes["markov_head.markov_w1.weight"] = (c.vocab, rank)
        shapes["markov_head.markov_w2.weight"] = (c.draft_vocab or c.vocab, rank)
    if rank and markov.kind != "vanilla":
        name, wide, out = ("gate_proj", c.hidden + rank, rank)
        if markov.kind == "rnn":
            name, wide, out = ("joint_proj", c.hidden + 2 * rank, 3 * rank)
        shapes |= {f"markov_head.{name}.weight": (out, wide), f"markov_head.{name}.bias": (out,)}
    if markov.confident:
        wide = c.hidden + (rank if markov.confident_of_markov else 0)
        shapes |= {"confidence_head.proj.weight": (1, wide), "confidence_head.proj.bias": (1,)}
    return shapes


def _turned(source: Source, *names: str) -> Tensor:
    """Weights [out, in] above one another, as one [in, out]."""
    return torch.cat([source.get(name) for name in names]).T.contiguous()


def _layer(source: Source, at: str, config: DraftConfig) -> BlockLayer:
    def conv(name: str) -> BlockConv | None:
        if config.selector is None:
            return None
        return BlockConv(source.get(f"{at}{name}.base_kernel"), _turned(source, f"{at}{name}.kernel_projection.weight"))

    return BlockLayer(
        mixer_norm=source.exact(at + "input_layernorm.weight"),
        qkv=_turned(source, *(f"{at}self_attn.{name}_proj.weight" for name in "qkv")),
        query_norm=source.exact(at + "self_attn.q_norm.weight"),
        key_norm=source.exact(at + "self_attn.k_norm.weight"),
        out=_turned(source, at + "self_attn.o_proj.weight"),
        mlp_norm=source.exact(at + "post_attention_layernorm.weight"),
        gate_up=_turned(source, *(f"{at}mlp.{name}_proj.weight" for name in ("gate", "up"))),
        down=_turned(source, at + "mlp.down_proj.weight"),
        mixer_conv=conv("attention_conv"),
        mlp_conv=conv("mlp_conv"),
    )


def _chooser(source: Source, config: DraftConfig) -> Chooser:
    targets = None
    if config.draft_vocab is not None:
        offsets = source.exact("d2t").long()
        targets = offsets + torch.arange(config.draft_vocab, device=offsets.device)
    if config.selector is not None:
        names = [_codebook(source.stored, f"{name}_codebook") for name in ("predecessor", "successor")]
        into = _turned(source, "candidate_selector.hidden_projection.weight")
        return Selection(*(source.get(name) for name in names), into, config.selector.top_k)
    if config.markov is not None:
        return Sequential(*_heads(source, config.markov), config.markov.confident_of_markov, targets)
    return Independent(targets)


def _heads(source: Source, markov: Markov) -> tuple[MarkovHead | None, ConfidenceHead | None]:
    head = sure = None
    if markov.rank:
        cell, at = {"gated": "gate_proj", "rnn": "joint_proj"}.get(markov.kind), "markov_head."
        head = MarkovHead(
            rows=source.get(at + "markov_w1.weight"),
            bias=_turned(source, at + "markov_w2.weight"),
            kind=markov.kind,
            cell=_turned(source, f"{at}{cell}.weight") if cell else None,
            offset=source.get(f"{at}{cell}.bias") if cell else None,
        )
    if markov.confident:
        sure = ConfidenceHead(_turned(source, "confidence_head.proj.weight"), source.get("confidence_head.proj.bias"))
    return head, sure
