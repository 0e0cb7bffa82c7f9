"""From a Qwen3.5 checkpoint's tensors to the fused weights its text trunk computes with.

Owns the official tensor names and shapes and every rearrangement: projections that read the same input are stacked,
queries and output gates (stored head by head) are separated, norm weights become plain scales, experts are stacked
from either spelling. Matrices are [in, out], laid out in memory as the device likes it. Block-scaled 8-bit ones stay as
they are on a GPU and become plain ones on a CPU. `mtp.*` tensors are known and left for a drafter, `model.visual.*` for
the tower.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from foveate.models.qwen3_5 import DeltaNet, Dense, Experts, FullAttention, Layer, Trunk
from foveate.models.qwen3_5_config import FULL, MoeConfig, TextConfig
from foveate.models.qwen3_5_mtp import MtpWeights
from foveate.models.weights import Place, Source, Stored, check, invent, inventory, open_source, turned, twins
from foveate.ops.fp8 import Beside, Blocked, Matrix, stack
from foveate.ops.layers import unit_scale

TRUNK = "model.language_model."
OTHERS = ("mtp.", "model.visual.")  # tensors that belong to a drafter and to the tower
LAYER_NORMS = ("input", "post_attention")
# What the official fp8 releases quantise: the projections, but not the small ones (in_proj_a, in_proj_b, routers).
QUANTISED = tuple(f"{name}_proj.weight" for name in ("q", "k", "v", "o", "out", "gate", "up", "down"))
QUANTISED += ("in_proj_qkv.weight", "in_proj_z.weight", "experts.gate_up_proj", "experts.down_proj")
# What random weights must be like for decays that remember and logits that are not flat (name's end, mean, spread).
SPREADS = (
    ("A_log", 0.4, 0.5),
    ("dt_bias", -3.0, 1.0),
    ("linear_attn.norm.weight", 1.0, 0.1),
    ("embed_tokens.weight", 0.0, 0.1),
)
Shapes = dict[str, tuple[int, ...]]


def load_trunk(folder: Path, config: TextConfig, place: Place) -> Trunk:
    """Read, check and fuse the text weights. Raises CheckpointError naming the tensor that is not as expected."""
    stored = invent(text_shapes(config, True), config.blocks, QUANTISED) if place.dummy else inventory(folder)
    source = _checked(folder, stored, text_shapes(config, _is_fused(stored)), config, place)
    tables = [TRUNK + "embed_tokens.weight"] if config.tied else [TRUNK + "embed_tokens.weight", "lm_head.weight"]
    embedding, *own = source.each(source.get, tables)
    head = turned(*own) if own else embedding.T
    del own
    return Trunk(
        embedding=embedding,
        layers=tuple(
            source.each(lambda i: _layer(source, f"{TRUNK}layers.{i}.", config, i), range(len(config.layer_types)))
        ),
        norm=unit_scale(source.exact(TRUNK + "norm.weight")),
        head=head,
    )


def has_mtp(folder: Path) -> bool:
    """Whether a checkpoint brings a multi-token-prediction head."""
    return "mtp.fc.weight" in inventory(folder)


def load_mtp(folder: Path, config: TextConfig, place: Place) -> MtpWeights:
    """Read, check and fuse the head's weights, 8-bit ones made plain: the head is one layer and read in parts.

    Raises CheckpointError naming the tensor that is not as expected.
    """
    at, place = "mtp.layers.0.", replace(place, eight_bit=False)
    if place.dummy:
        stored = invent(mtp_shapes(config, True), config.blocks, QUANTISED)
    else:
        stored = {name: found for name, found in inventory(folder).items() if name.startswith("mtp.")}
    fused = at + "mlp.experts.gate_up_proj" in stored
    source = _checked(folder, stored, mtp_shapes(config, fused), config, place)
    mixer_norm, mlp_norm = (unit_scale(source.exact(f"{at}{name}_layernorm.weight")) for name in LAYER_NORMS)
    return MtpWeights(
        fc=turned(source.get("mtp.fc.weight")),
        token_norm=unit_scale(source.exact("mtp.pre_fc_norm_embedding.weight")),
        state_norm=unit_scale(source.exact("mtp.pre_fc_norm_hidden.weight")),
        layer=Layer(mixer_norm, _full(source, at + "self_attn.", config), mlp_norm, _mlp(source, at + "mlp.", config)),
        norm=unit_scale(source.exact("mtp.norm.weight")),
    )


def _checked(folder: Path, stored: Mapping[str, Stored], expected: Shapes, config: TextConfig, place: Place) -> Source:
    """A source of the expected tensors and of the scales beside them."""
    scales = twins(stored, expected, config.blocks)
    blocked = {name for name in expected if stored.get(name) and f"{name}_scale_inv" in scales}
    expected = expected | scales
    check(stored, expected, OTHERS, blocked)
    block = config.blocks.block if config.blocks else (1, 1)
    return open_source(folder, {name: stored[name] for name in expected}, place, SPREADS, block)


def mtp_shapes(config: TextConfig, fused: bool) -> Shapes:
    """Every tensor of the multi-token-prediction head by its official name."""
    shapes: Shapes = {"mtp.fc.weight": (config.hidden, 2 * config.hidden)}
    names = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
    shapes |= {f"mtp.{name}.weight": (config.hidden,) for name in names}
    return shapes | _layer_shapes("mtp.layers.0.", config, True, fused)


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


def _layer(source: Source, at: str, config: TextConfig, i: int) -> Layer:
    full = config.layer_types[i] == FULL
    mixer = _full(source, at + "self_attn.", config) if full else _delta(source, at + "linear_attn.", config)
    mixer_norm, mlp_norm = (unit_scale(source.exact(f"{at}{name}_layernorm.weight")) for name in LAYER_NORMS)
    return Layer(mixer_norm, mixer, mlp_norm, _mlp(source, at + "mlp.", config))


def _rows(source: Source, name: str) -> Tensor | Blocked:
    """A matrix as it is stored, [out, in], in the model's type or kept in 8 bits."""
    return source.blocked(name) if source.is_blocked(name) else source.get(name)


def _beside(*parts: Tensor | Blocked) -> Matrix:
    """Matrices [out, in] of one input as one [in, out], neighbours of a kind in one piece."""
    runs: list[list[Tensor | Blocked]] = []
    for part in parts:
        if not runs or type(runs[-1][0]) is not type(part):
            runs.append([])
        runs[-1].append(part)
    joined = [
        stack([part for part in run if isinstance(part, Blocked)])
        if isinstance(run[0], Blocked)
        else turned(*(part for part in run if isinstance(part, Tensor)))
        for run in runs
    ]
    return joined[0] if len(joined) == 1 else Beside(tuple(joined))


def _matrix(source: Source, *names: str) -> Matrix:
    return _beside(*(_rows(source, name) for name in names))


def _full(source: Source, at: str, c: TextConfig) -> FullAttention:
    both = _rows(source, at + "q_proj.weight")
    order = torch.arange(2 * c.heads * c.head_dim, device=source.device).view(c.heads, 2, c.head_dim)
    query, gate = (  # stored head by head, the query's rows before the gate's
        both[order[:, half].flatten()] if isinstance(both, Tensor) else both.take(order[:, half].flatten())
        for half in (0, 1)
    )
    key, value = (_rows(source, f"{at}{name}_proj.weight") for name in "kv")
    scales = [unit_scale(source.exact(f"{at}{name}_norm.weight")) for name in "qk"]
    scale = torch.cat([scales[0].expand(c.heads, -1), scales[1].expand(c.kv_heads, -1)])
    return FullAttention(_beside(query, key, value, gate), scale, _matrix(source, at + "o_proj.weight"))


def _delta(source: Source, at: str, c: TextConfig) -> DeltaNet:
    unit = torch.full((2 * c.key_heads, 1), c.key_dim**-0.5, device=source.device)
    unit[: c.key_heads] *= c.key_dim**-0.5
    return DeltaNet(
        into=_matrix(source, *(f"{at}in_proj_{name}.weight" for name in ("qkv", "z", "b", "a"))),
        conv=source.get(at + "conv1d.weight").squeeze(1).T.contiguous(),
        rate=-source.exact(at + "A_log").exp(),
        bias=source.exact(at + "dt_bias"),
        norm=source.exact(at + "norm.weight"),
        unit=unit,
        unit_copies=unit.unsqueeze(1).repeat(1, c.value_heads // c.key_heads, 1),
        out=_matrix(source, at + "out_proj.weight"),
    )


def _mlp(source: Source, at: str, config: TextConfig) -> Dense | Experts:
    return _dense(source, at) if config.moe is None else _experts(source, at, config.moe)


def _dense(source: Source, at: str) -> Dense:
    gate_up = _matrix(source, *(f"{at}{name}_proj.weight" for name in ("gate", "up")))
    return Dense(gate_up, _matrix(source, at + "down_proj.weight"))


def _experts(source: Source, at: str, moe: MoeConfig) -> Experts:
    gate_up, down = _stacked(source, at + "experts.", moe)
    return Experts(
        router=turned(source.get(at + "gate.weight"), source.get(at + "shared_expert_gate.weight")),
        gate_up=gate_up,
        down=down,
        shared=_dense(source, at + "shared_expert."),
        top_k=moe.top_k,
    )


def _stacked(source: Source, at: str, moe: MoeConfig) -> tuple[Tensor | Blocked, Tensor | Blocked]:
    """All experts of a layer: [experts, hidden, 2 * inner] and [experts, inner, hidden]."""
    if at + "gate_up_proj" in source.stored:
        fused = [_rows(source, f"{at}{name}_proj") for name in ("gate_up", "down")]
        gate_up, down = (part if isinstance(part, Blocked) else part.mT for part in fused)
        return gate_up, down
    pairs, downs = [], []
    for e in range(moe.experts):
        pairs.append([_rows(source, f"{at}{e}.{name}_proj.weight") for name in ("gate", "up")])
        downs.append(_rows(source, f"{at}{e}.down_proj.weight"))
    return _pile([_above(pair) for pair in pairs]), _pile(downs)


def _above(parts: list[Tensor | Blocked]) -> Tensor | Blocked:
    """Matrices [out, in] above one another; all of a kind, as one expert's are."""
    blocked = [part for part in parts if isinstance(part, Blocked)]
    return stack(blocked) if blocked else torch.cat([part for part in parts if isinstance(part, Tensor)])


def _pile(parts: list[Tensor | Blocked]) -> Tensor | Blocked:
    """The same matrix of all experts, stacked: plain ones turned, 8-bit ones as they are."""
    blocked = [part for part in parts if isinstance(part, Blocked)]
    if not blocked:
        return torch.stack([part for part in parts if isinstance(part, Tensor)]).mT
    values = torch.stack([part.values.view(torch.uint8) for part in blocked]).view(blocked[0].values.dtype)
    return replace(blocked[0], values=values, scales=torch.stack([part.scales for part in blocked]))
