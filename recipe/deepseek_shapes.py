"""The dimensions of the DeepSeek V4 chart reader and its drafter, as plain frozen values.

Owns every size that its training, export and tests must agree on, the presets (`chart`: demo-ds4, at most 25 M
parameters; `toy`: tests on a CPU) and `official_config`, which transformers (the text part) and foveate read. Knows
nothing about tensors, data or training time.
"""

from dataclasses import dataclass, field
from typing import Any

SLIDING, SPARSE, HEAVY = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
KINDS = {"s": SLIDING, "c": SPARSE, "h": HEAVY}
BLANKS = 64  # zero rows behind a pack's patches, so many that the gradients of empty corners do not queue up on one


@dataclass(frozen=True)
class TrunkShape:
    """Language model. layers: one letter each, s(liding), c(ompressed sparse), h(eavily compressed).

    The indexer chooses `index_top` entries; training needs them to be all there are, because a choice has no gradient.
    """

    vocab: int = 2048
    hidden: int = 320
    layers: str = "sscchcccc"
    hashed: int = 2
    heads: int = 8
    head_dim: int = 128
    rotary: int = 64
    query_rank: int = 192
    groups: int = 2
    group_rank: int = 160
    window: int = 512
    sparse_rate: int = 4
    heavy_rate: int = 32
    index_heads: int = 4
    index_dim: int = 64
    index_top: int = 2048
    experts: int = 8
    top_k: int = 2
    inner: int = 112
    scale: float = 1.5
    limit: float = 10.0
    streams: int = 4
    rounds: int = 8
    floor: float = 1e-6
    eps: float = 1e-6
    theta: float = 10000.0
    compress_theta: float = 160000.0
    yarn_factor: float = 4.0
    yarn_len: int = 2048
    longest: int = 8192

    def rate(self, kind: str) -> int:
        """Tokens of one entry in a layer of this letter; 0 where there are none."""
        return {"s": 0, "c": self.sparse_rate, "h": self.heavy_rate}[kind]

    @property
    def align(self) -> int:
        """What a conversation's start in a row must be a multiple of, so that windows of all layers fall on the row."""
        rates = [self.rate(kind) for kind in set(self.layers) if kind != "s"]
        return max(rates, default=1)


@dataclass(frozen=True)
class TowerShape:
    """Vision tower and what becomes of a picture: `cell` x `cell` patches give one row."""

    depth: int = 6
    hidden: int = 320
    inner: int = 704
    heads: int = 5
    patch: int = 14
    cell: int = 2
    theta: float = 10000.0
    most_tokens: int = 512
    min_pixels: int = 65536
    max_ratio: int = 8

    @property
    def patch_values(self) -> int:
        """Numbers in one patch."""
        return 3 * self.patch * self.patch


@dataclass(frozen=True)
class SparkShape:
    """DSpark drafter: sliding layers of the trunk's kind, a block of noise, Markov and confidence heads."""

    stages: int = 2
    block: int = 5
    rank: int = 64
    target_layers: tuple[int, ...] = (4, 6, 8)


@dataclass(frozen=True)
class SightShape:
    """The whole model and its drafter."""

    text: TrunkShape = field(default_factory=TrunkShape)
    vision: TowerShape = field(default_factory=TowerShape)
    draft: SparkShape = field(default_factory=SparkShape)


def sight_preset(name: str) -> SightShape:
    """`chart`: demo-ds4; `toy`: seconds on a CPU."""
    if name == "chart":
        return SightShape()
    if name == "toy":
        text = TrunkShape(vocab=512, hidden=48, layers="schc", hashed=1, heads=4, head_dim=32, rotary=16, query_rank=24,
                          group_rank=16, window=24, heavy_rate=8, index_heads=4, index_dim=32, inner=16, experts=4,
                          rounds=4, yarn_len=256, longest=1024)  # fmt: skip
        vision = TowerShape(depth=2, hidden=48, inner=64, heads=2, min_pixels=56 * 56, most_tokens=64)
        return SightShape(text, vision, SparkShape(stages=2, block=4, rank=8, target_layers=(1, 3)))
    raise ValueError(f"no such shape: {name!r}")


def sight_config(shape: SightShape, special: dict[str, int], stages: int) -> dict[str, Any]:
    """`config.json` of the checkpoint; `special` maps special tokens to ids, `stages` counts the drafter's layers."""
    text, vision = shape.text, shape.vision
    config = _trunk_config(text) | {
        "bos_token_id": special["<｜begin▁of▁sentence｜>"],
        "eos_token_id": special["<｜end▁of▁sentence｜>"],
        "image_token_id": special["<｜deepseek_image｜>"],
        "num_nextn_predict_layers": stages,
        "vision_n_layers": vision.depth,
        "vision_dim": vision.hidden,
        "vision_n_heads": vision.heads,
        "vision_inter_dim": vision.inner,
        "vision_patch_size": vision.patch,
        "vision_rope_theta": vision.theta,
        "vision_downsample_ratio": vision.cell,
        "vision_max_n_token": vision.most_tokens,
        "vision_min_pixels": vision.min_pixels,
        "vision_max_wh_ratio": vision.max_ratio,
    }
    if stages:
        config["dspark_block_size"] = shape.draft.block
        config["dspark_noise_token_id"] = special["<｜noise｜>"]
        config["dspark_target_layer_ids"] = list(shape.draft.target_layers)
        config["dspark_markov_rank"] = shape.draft.rank
    return config


def _trunk_config(text: TrunkShape) -> dict[str, Any]:
    count = len(text.layers)
    return {
        "architectures": ["DeepseekV4ForCausalLM"],
        "model_type": "deepseek_v4",
        "dtype": "bfloat16",
        "vocab_size": text.vocab,
        "hidden_size": text.hidden,
        "num_hidden_layers": count,
        "num_attention_heads": text.heads,
        "num_key_value_heads": 1,
        "head_dim": text.head_dim,
        "partial_rotary_factor": text.rotary / text.head_dim,
        "q_lora_rank": text.query_rank,
        "o_groups": text.groups,
        "o_lora_rank": text.group_rank,
        "sliding_window": text.window,
        "layer_types": [KINDS[kind] for kind in text.layers],
        "compress_rates": {SPARSE: text.sparse_rate, HEAVY: text.heavy_rate},
        "mlp_layer_types": ["hash_moe"] * text.hashed + ["moe"] * (count - text.hashed),
        "index_n_heads": text.index_heads,
        "index_head_dim": text.index_dim,
        "index_topk": text.index_top,
        "n_routed_experts": text.experts,
        "num_experts_per_tok": text.top_k,
        "n_shared_experts": 1,
        "moe_intermediate_size": text.inner,
        "routed_scaling_factor": text.scale,
        "swiglu_limit": text.limit,
        "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "hidden_act": "silu",
        "attention_bias": False,
        "hc_mult": text.streams,
        "hc_sinkhorn_iters": text.rounds,
        "hc_eps": text.floor,
        "rms_norm_eps": text.eps,
        "rope_theta": text.theta,
        "compress_rope_theta": text.compress_theta,
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": text.yarn_factor,
            "original_max_position_embeddings": text.yarn_len,
            "beta_fast": 32,
            "beta_slow": 1,
        },
        "max_position_embeddings": text.longest,
        "tie_word_embeddings": False,
        "pad_token_id": None,
    }
