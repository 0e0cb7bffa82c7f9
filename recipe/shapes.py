"""The dimensions of the model and its drafters, as plain frozen values.

Owns every size that training, export and tests must agree on, and the two presets: `chart` (the bundled model) and
`toy` (tests on a CPU). Promises that `official_config` is what the released configs of this architecture look like.
Knows nothing about tensors, data or training time.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class TextShape:
    """Language model: gated DeltaNet layers with a full-attention layer at the end of every `interval`."""

    vocab: int = 2048
    hidden: int = 320
    ffn: int = 512
    layers: int = 12
    interval: int = 4
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = 64
    rotary: float = 0.5
    theta: float = 10000.0
    sections: tuple[int, int, int] = (6, 5, 5)
    key_heads: int = 4
    value_heads: int = 4
    key_dim: int = 64
    value_dim: int = 64
    conv: int = 4
    eps: float = 1e-6

    def is_full(self, layer: int) -> bool:
        """Whether layer `layer` (0-based) is full attention."""
        return (layer + 1) % self.interval == 0

    @property
    def layer_types(self) -> list[str]:
        """The names released configs use, one a layer."""
        return ["full_attention" if self.is_full(i) else "linear_attention" for i in range(self.layers)]


@dataclass(frozen=True)
class VisionShape:
    """Vision tower: patches of `patch` pixels, merged `merge` x `merge` into rows of the text width."""

    depth: int = 6
    hidden: int = 320
    ffn: int = 1024
    heads: int = 5
    patch: int = 16
    merge: int = 2
    side: int = 24  # the learned position table is side x side
    theta: float = 10000.0

    @property
    def patch_values(self) -> int:
        """Numbers in one patch of a still image, before the temporal copy."""
        return 3 * self.patch * self.patch


@dataclass(frozen=True)
class DraftShape:
    """DFlash drafter: `layers` Qwen3 layers over features of `target_layers`, proposing `block - 1` tokens."""

    layers: int = 3
    ffn: int = 512
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = 64
    block: int = 8
    target_layers: tuple[int, ...] = (1, 4, 7, 10)
    theta: float = 10000.0


@dataclass(frozen=True)
class Shape:
    """The whole model and its drafters."""

    text: TextShape = field(default_factory=TextShape)
    vision: VisionShape = field(default_factory=VisionShape)
    draft: DraftShape = field(default_factory=DraftShape)


def preset(name: str) -> Shape:
    """`chart`: the bundled model; `third`: every third layer full, wider heads; `toy`: seconds on a CPU."""
    if name == "chart":
        return Shape()
    if name == "third":
        text = TextShape(ffn=640, layers=9, interval=3, value_heads=8)
        return Shape(text, VisionShape(ffn=1280), DraftShape(target_layers=(1, 3, 5, 7)))
    if name == "toy":
        text = TextShape(vocab=512, hidden=64, ffn=96, layers=4, heads=4, kv_heads=2, head_dim=32, sections=(3, 3, 2),
                         key_heads=2, value_heads=4, key_dim=16, value_dim=16)  # fmt: skip
        vision = VisionShape(depth=2, hidden=64, ffn=96, heads=2, side=6)
        return Shape(text, vision, DraftShape(layers=2, ffn=96, heads=4, head_dim=16, target_layers=(0, 2)))
    raise ValueError(f"no such shape: {name!r}")


def official_config(shape: Shape, special: dict[str, int], mtp_layers: int) -> dict[str, Any]:
    """`config.json` of the checkpoint; `special` maps special tokens to ids."""
    text, vision = shape.text, shape.vision
    end = special["<|im_end|>"]
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "dtype": "bfloat16",
        "image_token_id": special["<|image_pad|>"],
        "video_token_id": special["<|video_pad|>"],
        "vision_start_token_id": special["<|vision_start|>"],
        "vision_end_token_id": special["<|vision_end|>"],
        "eos_token_id": end,
        "pad_token_id": None,
        "bos_token_id": None,
        "tie_word_embeddings": True,
        "text_config": _text_config(text, end, mtp_layers),
        "vision_config": {
            "model_type": "qwen3_5_vision",
            "depth": vision.depth,
            "hidden_size": vision.hidden,
            "intermediate_size": vision.ffn,
            "num_heads": vision.heads,
            "hidden_act": "gelu_pytorch_tanh",
            "patch_size": vision.patch,
            "spatial_merge_size": vision.merge,
            "temporal_patch_size": 2,
            "in_channels": 3,
            "out_hidden_size": text.hidden,
            "num_position_embeddings": vision.side**2,
            "deepstack_visual_indexes": [],
        },
    }


def _text_config(text: TextShape, end: int, mtp_layers: int) -> dict[str, Any]:
    return {
        "model_type": "qwen3_5_text",
        "dtype": "bfloat16",
        "vocab_size": text.vocab,
        "hidden_size": text.hidden,
        "intermediate_size": text.ffn,
        "num_hidden_layers": text.layers,
        "num_attention_heads": text.heads,
        "num_key_value_heads": text.kv_heads,
        "head_dim": text.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": text.eps,
        "linear_conv_kernel_dim": text.conv,
        "linear_key_head_dim": text.key_dim,
        "linear_value_head_dim": text.value_dim,
        "linear_num_key_heads": text.key_heads,
        "linear_num_value_heads": text.value_heads,
        "full_attention_interval": text.interval,
        "layer_types": text.layer_types,
        "max_position_embeddings": 32768,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_output_gate": True,
        "mtp_num_hidden_layers": mtp_layers,
        "mtp_use_dedicated_embeddings": False,
        "tie_word_embeddings": True,
        "eos_token_id": end,
        "pad_token_id": None,
        "bos_token_id": None,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": text.theta,
            "partial_rotary_factor": text.rotary,
            "mrope_section": list(text.sections),
            "mrope_interleaved": True,
        },
    }


def draft_config(shape: Shape, mask_id: int) -> dict[str, Any]:
    """`config.json` of the DFlash drafter."""
    draft, text = shape.draft, shape.text
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "dtype": "bfloat16",
        "vocab_size": text.vocab,
        "hidden_size": text.hidden,
        "intermediate_size": draft.ffn,
        "num_hidden_layers": draft.layers,
        "num_attention_heads": draft.heads,
        "num_key_value_heads": draft.kv_heads,
        "head_dim": draft.head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "max_position_embeddings": 32768,
        "rms_norm_eps": text.eps,
        "tie_word_embeddings": False,
        "num_target_layers": text.layers,
        "layer_types": ["full_attention"] * draft.layers,
        "rope_parameters": {"rope_type": "default", "rope_theta": draft.theta},
        "block_size": draft.block,
        "dflash_config": {
            "block_size": draft.block,
            "mask_token_id": mask_id,
            "target_layer_ids": list(draft.target_layers),
        },
    }
