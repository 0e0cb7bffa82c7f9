"""What a Qwen3.5 checkpoint's config.json says, as frozen values.

Owns the reading and checking of the text and vision parts: every field the maths needs must be in the file (library
defaults differ from the releases), and a setting this code does not compute is refused by name rather than ignored.
Knows no tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from foveate.core.errors import CheckpointError
from foveate.models.quantization import BlockFormat, block_format

LINEAR, FULL = "linear_attention", "full_attention"


@dataclass(frozen=True, slots=True)
class MoeConfig:
    """Sizes of the mixture-of-experts layers."""

    experts: int
    top_k: int
    inner: int
    shared_inner: int


@dataclass(frozen=True, slots=True)
class TextConfig:
    """The text trunk. `inner` is the dense SwiGLU's width, None in MoE models; `rotary` the rotated share of a head."""

    vocab: int
    hidden: int
    inner: int | None
    moe: MoeConfig | None
    layer_types: tuple[str, ...]
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    conv_kernel: int
    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    max_positions: int
    rope_theta: float
    rotary: int
    sections: tuple[int, ...]
    tied: bool
    blocks: BlockFormat | None = None  # how matrices are quantised

    @property
    def keys(self) -> int:
        """Channels of all DeltaNet keys (and of all queries)."""
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        """Channels of all DeltaNet values."""
        return self.value_heads * self.value_dim


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """The vision tower. `side` is the position table's, in patches; `out` the text model's hidden size."""

    depth: int
    hidden: int
    inner: int
    heads: int
    patch: int
    temporal: int
    merge: int
    out: int
    side: int


class _Fields:
    """Reads one object of config.json and remembers every field that is missing."""

    def __init__(self, data: Mapping[str, Any], path: str) -> None:
        self.data, self.path, self.missing = data, path, list[str]()

    def number(self, name: str) -> int:
        value = self.data.get(name)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            self.missing.append(self.path + name)
            return 1
        return int(value)

    def fixed(self, name: str, value: Any) -> None:
        """A field that, where present, must say what this code computes."""
        if self.data.get(name, value) != value:
            found = self.data[name]
            raise CheckpointError(f"config.json: {self.path}{name} {found!r} is not supported, only {value!r}")

    def close(self, *others: _Fields) -> None:
        missing = [name for fields in (self, *others) for name in fields.missing]
        if missing:
            raise CheckpointError(f"config.json lacks {', '.join(missing)}")


def text_config(config: Mapping[str, Any]) -> TextConfig:
    """The text trunk of a config.json. Raises CheckpointError naming missing, contradictory or unsupported fields."""
    data = part(config, "text_config")
    read = _Fields(data, "text_config.")
    rope = _Fields(data.get("rope_parameters") or {}, "text_config.rope_parameters.")
    for name, value in (("attention_bias", False), ("attn_output_gate", True), ("hidden_act", "silu")):
        read.fixed(name, value)
    rope.fixed("rope_type", "default")
    rope.fixed("mrope_interleaved", True)
    head_dim = read.number("head_dim")
    rope.number("partial_rotary_factor"), rope.number("rope_theta")
    if "mrope_section" not in rope.data:
        rope.missing.append(rope.path + "mrope_section")
    moe = _moe(read) if "num_experts" in data else None
    result = TextConfig(
        vocab=read.number("vocab_size"),
        hidden=read.number("hidden_size"),
        inner=None if moe else read.number("intermediate_size"),
        moe=moe,
        layer_types=_layer_types(read),
        heads=read.number("num_attention_heads"),
        kv_heads=read.number("num_key_value_heads"),
        head_dim=head_dim,
        eps=float(data.get("rms_norm_eps", 1e-6)),
        conv_kernel=read.number("linear_conv_kernel_dim"),
        key_heads=read.number("linear_num_key_heads"),
        key_dim=read.number("linear_key_head_dim"),
        value_heads=read.number("linear_num_value_heads"),
        value_dim=read.number("linear_value_head_dim"),
        max_positions=read.number("max_position_embeddings"),
        rope_theta=float(rope.data.get("rope_theta", 1.0)),
        rotary=int(head_dim * rope.data.get("partial_rotary_factor", 1.0)),
        sections=tuple(rope.data.get("mrope_section", ())),
        tied=bool(config.get("tie_word_embeddings", data.get("tie_word_embeddings", False))),
        blocks=block_format(config),
    )
    read.close(rope)
    _check_text(result)
    return result


def _moe(read: _Fields) -> MoeConfig:
    return MoeConfig(
        experts=read.number("num_experts"),
        top_k=read.number("num_experts_per_tok"),
        inner=read.number("moe_intermediate_size"),
        shared_inner=read.number("shared_expert_intermediate_size"),
    )


def _layer_types(read: _Fields) -> tuple[str, ...]:
    count = read.number("num_hidden_layers")
    if (types := read.data.get("layer_types")) is None:
        interval = read.number("full_attention_interval")
        return tuple(FULL if (i + 1) % interval == 0 else LINEAR for i in range(count))
    if len(types) != count:
        raise CheckpointError(f"config.json: {len(types)} text_config.layer_types for {count} layers")
    for kind in types:
        if kind not in (LINEAR, FULL):
            raise CheckpointError(f"config.json: text_config.layer_types {kind!r} is not supported")
    return tuple(types)


def _check_text(config: TextConfig) -> None:
    if len(config.sections) != 3 or 2 * sum(config.sections) != config.rotary:
        sections = list(config.sections)
        raise CheckpointError(f"config.json: mrope_section {sections} does not fit {config.rotary} rotated dimensions")
    for name, many, few in (
        ("num_attention_heads", config.heads, config.kv_heads),
        ("linear_num_value_heads", config.value_heads, config.key_heads),
    ):
        if many % few:
            raise CheckpointError(f"config.json: text_config.{name} {many} is no multiple of {few}")


def vision_config(config: Mapping[str, Any]) -> VisionConfig:
    """The vision tower of a config.json. Raises CheckpointError naming missing, contradictory or unsupported fields."""
    data = part(config, "vision_config")
    read = _Fields(data, "vision_config.")
    for name, value in (("hidden_act", "gelu_pytorch_tanh"), ("in_channels", 3), ("deepstack_visual_indexes", [])):
        read.fixed(name, value)
    positions = read.number("num_position_embeddings")
    result = VisionConfig(
        depth=read.number("depth"),
        hidden=read.number("hidden_size"),
        inner=read.number("intermediate_size"),
        heads=read.number("num_heads"),
        patch=read.number("patch_size"),
        temporal=read.number("temporal_patch_size"),
        merge=read.number("spatial_merge_size"),
        out=read.number("out_hidden_size"),
        side=round(positions**0.5),
    )
    read.close()
    if result.side**2 != positions:
        raise CheckpointError(f"config.json: vision_config.num_position_embeddings {positions} is no square")
    if result.hidden % (4 * result.heads):
        raise CheckpointError("config.json: vision_config.hidden_size does not divide into heads of a multiple of 4")
    return result


def part(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object inside config.json; CheckpointError when there is none."""
    data = config.get(name)
    if not isinstance(data, Mapping):
        raise CheckpointError(f"config.json lacks {name}")
    return data
