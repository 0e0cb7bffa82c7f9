"""From a Qwen3.5 checkpoint's tensors to the fused weights its text trunk computes with.

Owns the official tensor names and shapes and every rearrangement: projections that read the same input are stacked,
queries and output gates (stored head by head) are separated, norm weights become plain scales, experts are stacked
from either spelling. Matrices are turned to [in, out]: a CPU then multiplies one row in half the time, many rows as
before. `mtp.*` tensors are known and left for a drafter, `model.visual.*` for the tower.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from foveate.models.qwen3_5 import DeltaNet, Dense, Experts, FullAttention, Layer, Trunk
from foveate.models.qwen3_5_config import FULL, MoeConfig, TextConfig
from foveate.models.qwen3_5_mtp import MtpWeights
from foveate.models.weights import Progress, Source, Stored, check, inventory
from foveate.ops.layers import unit_scale

TRUNK = "model.language_model."
OTHERS = ("mtp.", "model.visual.")  # tensors that belong to a drafter and to the tower
LAYER_NORMS = ("input", "post_attention")
Shapes = dict[str, tuple[int, ...]]


def load_trunk(
    folder: Path, config: TextConfig, device: torch.device, dtype: torch.dtype, progress: Progress | None = None
) -> Trunk:
    """Read, check and fuse the text weights. Raises CheckpointError naming the tensor that is not as expected."""
    stored = inventory(folder)
    expected = text_shapes(config, fused=_is_fused(stored))
    check(stored, expected, OTHERS)
    source = Source(folder, {name: stored[name] for name in expected}, device, dtype, progress)
    embedding = source.get(TRUNK + "embed_tokens.weight")
    layers = []
    for i, kind in enumerate(config.layer_types):
        at = f"{TRUNK}layers.{i}."
        full = kind == FULL
        mixer = _full(source, at + "self_attn.", config) if full else _delta(source, at + "linear_attn.", config)
        mlp = _dense(source, at + "mlp.") if config.moe is None else _experts(source, at + "mlp.", config.moe, stored)
        mixer_norm = unit_scale(source.exact(at + "input_layernorm.weight"))
        mlp_norm = unit_scale(source.exact(at + "post_attention_layernorm.weight"))
        layers.append(Layer(mixer_norm, mixer, mlp_norm, mlp))
    head = embedding.T if config.tied else _turned(source.get("lm_head.weight"))
    return Trunk(embedding, tuple(layers), unit_scale(source.exact(TRUNK + "norm.weight")), head)


def has_mtp(folder: Path) -> bool:
    """Whether a checkpoint brings a multi-token-prediction head."""
    return "mtp.fc.weight" in inventory(folder)


def load_mtp(folder: Path, config: TextConfig, device: torch.device, dtype: torch.dtype) -> MtpWeights:
    """Read, check and fuse the head's weights. Raises CheckpointError naming the tensor that is not as expected."""
    stored = {name: found for name, found in inventory(folder).items() if name.startswith("mtp.")}
    fused, at = "mtp.layers.0.mlp.experts.gate_up_proj" in stored, "mtp.layers.0."
    expected: Shapes = {"mtp.fc.weight": (config.hidden, 2 * config.hidden)}
    names = ("mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm")
    expected |= {f"{name}.weight": (config.hidden,) for name in names}
    expected |= _layer_shapes(at, config, True, fused)
    check(stored, expected, ())
    source = Source(folder, stored, device, dtype)
    mlp = _dense(source, at + "mlp.") if config.moe is None else _experts(source, at + "mlp.", config.moe, stored)
    mixer_norm, mlp_norm = (unit_scale(source.exact(f"{at}{name}_layernorm.weight")) for name in LAYER_NORMS)
    return MtpWeights(
        fc=_turned(source.get("mtp.fc.weight")),
        token_norm=unit_scale(source.exact(names[0] + ".weight")),
        state_norm=unit_scale(source.exact(names[1] + ".weight")),
        layer=Layer(mixer_norm, _full(source, at + "self_attn.", config), mlp_norm, mlp),
        norm=unit_scale(source.exact(names[2] + ".weight")),
    )


def text_shapes(config: TextConfig, fused: bool) -> Shapes:
    """Every tensor of the text trunk by its official name; `fused` chooses between the spellings of the experts."""
    hidden = config.hidden
    shapes: Shapes = {TRUNK + "embed_tokens.weight": (config.vocab, hidden), TRUNK + "norm.weight": (hidden,)}
    if not config.tied:
        shapes["lm_head.weight"] = (config.vocab, hidden)
    for i, kind in enumerate(config.layer_types):
        shapes |= _layer_shapes(f"{TRUNK}layers.{i}.", config, kind == FULL, fused)
    return shapes


def _layer_shapes(at: str, config: TextConfig, full: bool, fused: bool) -> Shapes:
    shapes: Shapes = {f"{at}{name}_layernorm.weight": (config.hidden,) for name in LAYER_NORMS}
    shapes |= _full_shapes(at + "self_attn.", config) if full else _delta_shapes(at + "linear_attn.", config)
    if config.moe is None:
        assert config.inner is not None
        return shapes | _dense_shapes(at + "mlp.", config.hidden, config.inner)
    return shapes | _moe_shapes(at + "mlp.", config.hidden, config.moe, fused)


def _full_shapes(at: str, c: TextConfig) -> Shapes:
    query, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
    return {
        at + "q_proj.weight": (2 * query, c.hidden),
        at + "k_proj.weight": (kv, c.hidden),
        at + "v_proj.weight": (kv, c.hidden),
        at + "o_proj.weight": (c.hidden, query),
        at + "q_norm.weight": (c.head_dim,),
        at + "k_norm.weight": (c.head_dim,),
    }


def _delta_shapes(at: str, c: TextConfig) -> Shapes:
    channels = 2 * c.keys + c.values
    return {
        at + "in_proj_qkv.weight": (channels, c.hidden),
        at + "in_proj_z.weight": (c.values, c.hidden),
        at + "in_proj_b.weight": (c.value_heads, c.hidden),
        at + "in_proj_a.weight": (c.value_heads, c.hidden),
        at + "conv1d.weight": (channels, 1, c.conv_kernel),
        at + "A_log": (c.value_heads,),
        at + "dt_bias": (c.value_heads,),
        at + "norm.weight": (c.value_dim,),
        at + "out_proj.weight": (c.hidden, c.values),
    }


def _dense_shapes(at: str, hidden: int, inner: int) -> Shapes:
    sides = {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}
    return {f"{at}{name}.weight": shape for name, shape in sides.items()}


def _moe_shapes(at: str, hidden: int, moe: MoeConfig, fused: bool) -> Shapes:
    shapes: Shapes = {at + "gate.weight": (moe.experts, hidden), at + "shared_expert_gate.weight": (1, hidden)}
    shapes |= _dense_shapes(at + "shared_expert.", hidden, moe.shared_inner)
    if fused:
        shapes[at + "experts.gate_up_proj"] = (moe.experts, 2 * moe.inner, hidden)
        shapes[at + "experts.down_proj"] = (moe.experts, hidden, moe.inner)
    else:
        for e in range(moe.experts):
            shapes |= _dense_shapes(f"{at}experts.{e}.", hidden, moe.inner)
    return shapes


def _is_fused(stored: Mapping[str, Stored]) -> bool:
    return any(name.startswith(TRUNK) and name.endswith("experts.gate_up_proj") for name in stored)


def _turned(*rows: Tensor) -> Tensor:
    """Weights [out, in] above one another, as one [in, out]."""
    return torch.cat(rows).T.contiguous()


def _full(source: Source, at: str, c: TextConfig) -> FullAttention:
    pairs = source.get(at + "q_proj.weight").view(c.heads, 2, c.head_dim, c.hidden)  # query and gate of each head
    query, gate = (pairs[:, half].flatten(0, 1) for half in (0, 1))
    rows = [query, source.get(at + "k_proj.weight"), source.get(at + "v_proj.weight"), gate]
    scales = [unit_scale(source.exact(f"{at}{name}_norm.weight")) for name in "qk"]
    scale = torch.cat([scales[0].expand(c.heads, -1), scales[1].expand(c.kv_heads, -1)])
    return FullAttention(_turned(*rows), scale, _turned(source.get(at + "o_proj.weight")))


def _delta(source: Source, at: str, c: TextConfig) -> DeltaNet:
    unit = torch.full((2 * c.key_heads, 1), c.key_dim**-0.5, device=source.device)
    unit[: c.key_heads] *= c.key_dim**-0.5
    return DeltaNet(
        into=_turned(*(source.get(f"{at}in_proj_{name}.weight") for name in ("qkv", "z", "b", "a"))),
        conv=source.get(at + "conv1d.weight").squeeze(1).T.contiguous(),
        rate=-source.exact(at + "A_log").exp(),
        bias=source.exact(at + "dt_bias"),
        norm=source.exact(at + "norm.weight"),
        unit=unit,
        unit_copies=unit.unsqueeze(1).repeat(1, c.value_heads // c.key_heads, 1),
        out=_turned(source.get(at + "out_proj.weight")),
    )


def _dense(source: Source, at: str) -> Dense:
    gate_up = _turned(*(source.get(f"{at}{name}_proj.weight") for name in ("gate", "up")))
    return Dense(gate_up, _turned(source.get(at + "down_proj.weight")))


def _experts(source: Source, at: str, moe: MoeConfig, stored: Mapping[str, Stored]) -> Experts:
    gate_up, down = _stacked(source, at + "experts.", moe, fused=at + "experts.gate_up_proj" in stored)
    return Experts(
        router=_turned(source.get(at + "gate.weight"), source.get(at + "shared_expert_gate.weight")),
        gate_up=gate_up,
        down=down,
        shared=_dense(source, at + "shared_expert."),
        top_k=moe.top_k,
    )


def _stacked(source: Source, at: str, moe: MoeConfig, fused: bool) -> tuple[Tensor, Tensor]:
    """All experts of a layer: [experts, hidden, 2 * inner] and [experts, inner, hidden]."""
    if fused:
        return source.get(at + "gate_up_proj").mT, source.get(at + "down_proj").mT
    gate_up, down = [], []
    for e in range(moe.experts):
        gate_up.append(torch.cat([source.get(f"{at}{e}.{name}_proj.weight") for name in ("gate", "up")]))
        down.append(source.get(f"{at}{e}.down_proj.weight"))
    return torch.stack(gate_up).mT, torch.stack(down).mT
