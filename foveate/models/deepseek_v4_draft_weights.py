"""From the `mtp.*` tensors of a DeepSeek V4 checkpoint to its drafter: DSpark, or the older single layer.

Owns their names and shapes below `mtp.`; the blocks themselves are ordinary sliding layers that `deepseek_v4_weights`
loads. How many stages DSpark has is counted from the file, because released configs say it wrong. Raises
CheckpointError naming what is missing, mis-shaped or does not fit the target.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from foveate.core.errors import CheckpointError
from foveate.models.deepseek_v4 import DeepseekV4
from foveate.models.deepseek_v4_config import LayerKind, V4Config
from foveate.models.deepseek_v4_dspark import SparkConfig, SparkDrafter, SparkWeights
from foveate.models.deepseek_v4_mtp import V4MtpDrafter, V4MtpWeights
from foveate.models.deepseek_v4_weights import (
    Shapes,
    layer_shapes,
    load_layer,
    load_site,
    matrix,
    open_checked,
    site_shapes,
)
from foveate.models.dspark import ConfidenceHead, MarkovHead, Sequential
from foveate.models.weights import Place, Source, Stored, inventory, read_json, turned

BLOCK = LayerKind(None, hashed=False)  # what a drafter's layer is
SPARK_MARK, MTP_MARK = "mtp.0.main_proj.weight", "mtp.0.e_proj.weight"


def v4_draft_kind(folder: Path) -> str | None:
    """Which drafter a checkpoint brings: 'dspark', 'mtp', or None."""
    stored = inventory(folder)
    return "dspark" if SPARK_MARK in stored else "mtp" if MTP_MARK in stored else None


def load_spark(folder: Path, target: DeepseekV4, place: Place, least_len: int = 0) -> SparkDrafter:
    """The DSpark drafter of a target's own checkpoint.

    least_len: tokens that a block shall guess at least; it is widened where it was trained for fewer.
    """
    stored = _drafting(folder)
    stages = 1 + max((int(name.split(".")[1]) for name in stored if name.split(".")[1].isdigit()), default=-1)
    config = _spark_config(read_json(folder / "config.json"), target, stored, least_len)
    head = f"mtp.{stages - 1}."
    biased = head + "confidence_head.proj.bias" in stored
    source = open_checked(folder, stored, spark_shapes(target.config, config, stages, biased), place)
    weights = SparkWeights(
        main=turned(matrix(source, SPARK_MARK)),
        main_norm=source.exact("mtp.0.main_norm.weight"),
        stages=tuple(load_layer(source, f"mtp.{i}.", target.config, BLOCK) for i in range(stages)),
        site=load_site(source, head + "hc_head", (target.config.streams,)),
        norm=source.exact(head + "norm.weight"),
        heads=_heads(source, head, biased),
    )
    return SparkDrafter(config, weights, target)


def load_v4_mtp(folder: Path, target: DeepseekV4, place: Place, most_len: int) -> V4MtpDrafter:
    """The single multi-token-prediction layer of a target's own checkpoint."""
    source = open_checked(folder, _drafting(folder), mtp_shapes(target.config), place)
    weights = V4MtpWeights(
        token_norm=source.exact("mtp.0.enorm.weight"),
        state_norm=source.exact("mtp.0.hnorm.weight"),
        of_token=turned(matrix(source, MTP_MARK)),
        of_state=turned(matrix(source, "mtp.0.h_proj.weight")),
        layer=load_layer(source, "mtp.0.", target.config, BLOCK),
        site=load_site(source, "mtp.0.hc_head", (target.config.streams,)),
        norm=source.exact("mtp.0.norm.weight"),
    )
    return V4MtpDrafter(weights, target, most_len)


def spark_shapes(target: V4Config, config: SparkConfig, stages: int, biased: bool) -> Shapes:
    """Every tensor of a DSpark drafter, scales left out."""
    hidden, head = target.hidden, f"mtp.{stages - 1}."
    shapes: Shapes = {SPARK_MARK: (hidden, len(config.layers) * hidden), "mtp.0.main_norm.weight": (hidden,)}
    for i in range(stages):
        shapes |= layer_shapes(f"mtp.{i}.", target, BLOCK)
    shapes |= _end_shapes(head, target)
    for name in ("markov_w1", "markov_w2"):
        shapes[f"{head}markov_head.{name}.weight"] = (target.vocab, config.rank)
    shapes[head + "confidence_head.proj.weight"] = (1, hidden + config.rank)
    return shapes | ({head + "confidence_head.proj.bias": (1,)} if biased else {})


def mtp_shapes(target: V4Config) -> Shapes:
    """Every tensor of the single layer, scales left out."""
    hidden = target.hidden
    shapes: Shapes = {f"mtp.0.{name}.weight": (hidden,) for name in ("enorm", "hnorm")}
    shapes |= {f"mtp.0.{name}.weight": (hidden, hidden) for name in ("e_proj", "h_proj")}
    return shapes | layer_shapes("mtp.0.", target, BLOCK) | _end_shapes("mtp.0.", target)


def _end_shapes(at: str, target: V4Config) -> Shapes:
    return site_shapes(at + "hc_head", target, target.streams, 1) | {at + "norm.weight": (target.hidden,)}


def _drafting(folder: Path) -> dict[str, Stored]:
    """The checkpoint's `mtp.*` tensors."""
    return {name: found for name, found in inventory(folder).items() if name.startswith("mtp.")}


def _spark_config(config: dict[str, Any], target: DeepseekV4, stored: dict[str, Stored], least_len: int) -> SparkConfig:
    if SPARK_MARK not in stored:
        raise CheckpointError(f"the checkpoint has no DSpark drafter ({SPARK_MARK})")
    names = ("block_size", "noise_token_id", "target_layer_ids", "markov_rank")
    if missing := [f"dspark_{name}" for name in names if config.get(f"dspark_{name}") is None]:
        raise CheckpointError(f"config.json lacks {', '.join(missing)}")
    block, noise_id, layers, rank = (config[f"dspark_{name}"] for name in names)
    if wrong := [i for i in layers if not 0 <= i < target.layer_count]:
        raise CheckpointError(f"config.json: dspark_target_layer_ids holds {wrong[0]}, of {target.layer_count} layers")
    if not 0 <= noise_id < target.vocab_size:
        raise CheckpointError(f"config.json: dspark_noise_token_id {noise_id} is not in the vocabulary")
    if block < 1:
        raise CheckpointError(f"config.json: dspark_block_size {block} leaves nothing to guess")
    return SparkConfig(max(int(block), least_len), int(noise_id), tuple(layers), int(rank))


def _heads(source: Source, at: str, biased: bool) -> Sequential:
    """The Markov head, and the confidence head in float32."""
    markov = MarkovHead(
        rows=source.get(at + "markov_head.markov_w1.weight"),
        bias=turned(source.get(at + "markov_head.markov_w2.weight")),
        kind="vanilla",
    )
    weight = source.exact(at + "confidence_head.proj.weight").T.contiguous()
    offset: Tensor = source.exact(at + "confidence_head.proj.bias") if biased else weight.new_zeros(1)
    return Sequential(markov, ConfidenceHead(weight, offset), with_markov=True)
