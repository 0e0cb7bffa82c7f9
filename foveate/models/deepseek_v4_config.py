"""What a DeepSeek V4 checkpoint's config.json says of its text model, as frozen values.

Owns the reading and checking of both spellings: the official one (`compress_ratios`, `num_hash_layers`,
`qk_rope_head_dim`, `rope_scaling`) and transformers' (`layer_types` with `compress_rates`, `mlp_layer_types`,
`partial_rotary_factor`, `rope_parameters`). Every field that the maths needs must be in the file, and a setting that is
not computed here is refused by name. `simulate_qat` is the one switch for the rounding that DeepSeek's own inference
does: as the file says, else on where the weights are quantised. Knows no tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foveate.core.errors import CheckpointError
from foveate.models.fields import Fields
from foveate.ops.hyper import Mixing
from foveate.ops.yarn import Yarn

SLIDING, CSA, HCA = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
OFFICIAL = {0: SLIDING, 4: CSA, 128: HCA}  # what an entry of compress_ratios means
HASH, SCORE = "hash_moe", "moe"


@dataclass(frozen=True, slots=True)
class Compression:
    """One entry every `ratio` tokens; sparse: windows overlap, and an indexer chooses among the entries."""

    ratio: int
    sparse: bool


@dataclass(frozen=True, slots=True)
class LayerKind:
    """What a layer attends to beside its window, None for nothing, and whether token ids choose its experts."""

    compression: Compression | None
    hashed: bool


@dataclass(frozen=True, slots=True)
class IndexerConfig:
    """Heads, their width, and how many entries are chosen."""

    heads: int
    head_dim: int
    top_k: int


@dataclass(frozen=True, slots=True)
class ExpertConfig:
    """Sizes of the experts; shares of the chosen ones sum to `scale`; `limit` clips gates and ups."""

    count: int
    top_k: int
    inner: int
    shared_inner: int
    scale: float
    limit: float


@dataclass(frozen=True, slots=True)
class V4Config:
    """The text model. `rotary`: how many of a head's last dimensions rotate; `indexer` is None without sparse layers.

    seeing: the checkpoint has a vision tower, hence image biases in every router.
    """

    vocab: int
    hidden: int
    layers: tuple[LayerKind, ...]
    heads: int
    head_dim: int
    rotary: int
    query_rank: int
    groups: int
    group_rank: int
    window: int
    indexer: IndexerConfig | None
    experts: ExpertConfig
    streams: int
    mixing: Mixing
    eps: float
    max_positions: int
    theta: float
    compress_theta: float
    yarn: Yarn | None
    seeing: bool
    simulate_qat: bool

    @property
    def compressions(self) -> tuple[Compression, ...]:
        """Every kind of compression that occurs, once."""
        return tuple(dict.fromkeys(kind.compression for kind in self.layers if kind.compression is not None))


def v4_config(config: Mapping[str, Any]) -> V4Config:
    """The text model of a config.json. Raises CheckpointError naming missing, contradictory or unsupported fields."""
    read = Fields(config)
    _check_fixed(read)
    head_dim, eps = read.count("head_dim"), read.real("rms_norm_eps")
    layers = _layers(read)
    sparse = any(kind.compression and kind.compression.sparse for kind in layers)
    result = V4Config(
        vocab=read.count("vocab_size"),
        hidden=read.count("hidden_size"),
        layers=layers,
        heads=read.count("num_attention_heads"),
        head_dim=head_dim,
        rotary=_rotary(read, head_dim),
        query_rank=read.count("q_lora_rank"),
        groups=read.count("o_groups"),
        group_rank=read.count("o_lora_rank"),
        window=read.count("sliding_window"),
        indexer=_indexer(read) if sparse else None,
        experts=_experts(read),
        streams=read.count("hc_mult"),
        mixing=Mixing(read.count("hc_sinkhorn_iters"), read.real("hc_eps"), eps),
        eps=eps,
        max_positions=read.count("max_position_embeddings"),
        theta=_theta(read),
        compress_theta=read.real("compress_rope_theta"),
        yarn=_yarn(config),
        seeing=bool(config.get("vision_n_layers")),
        simulate_qat=bool(config.get("simulate_qat", config.get("quantization_config") is not None)),
    )
    read.close()
    _check(result)
    return result


def _check_fixed(read: Fields) -> None:
    for name, value in (
        ("num_key_value_heads", 1),
        ("scoring_func", "sqrtsoftplus"),
        ("topk_method", "noaux_tc"),
        ("norm_topk_prob", True),
        ("tie_word_embeddings", False),
        ("attention_bias", False),
        ("hidden_act", "silu"),
    ):
        read.fixed(name, value)
    if not (quantization := read.data.get("quantization_config")):
        return
    quantized = Fields(quantization, "quantization_config.")
    for name, value in (("quant_method", "fp8"), ("fmt", "e4m3"), ("scale_fmt", "ue8m0")):
        quantized.fixed(name, value)
    quantized.fixed("weight_block_size", [128, 128])
    if (found := read.data.get("expert_dtype")) not in (None, "fp4", "fp8"):
        raise CheckpointError(f"config.json: expert_dtype {found!r} is not supported, only 'fp4' and 'fp8'")


def _layers(read: Fields) -> tuple[LayerKind, ...]:
    data, count = read.data, read.count("num_hidden_layers")
    rates = data.get("compress_rates") or {}
    types = data.get("layer_types")
    if types is None:
        types = [_official(ratio) for ratio in data.get("compress_ratios") or ()][:count]
        if not types:
            read.missing.append("compress_ratios")
            types = [SLIDING] * count
    hashed = data.get("mlp_layer_types")
    if hashed is None:
        many = data.get("num_hash_layers")
        if not isinstance(many, int):
            read.missing.append("num_hash_layers")
            many = 0
        hashed = [HASH] * min(many, count) + [SCORE] * max(0, count - many)
    _check_types(types, hashed, count)
    ratios = {CSA: rates.get(CSA, 4), HCA: rates.get(HCA, 128)}
    compressions = {kind: Compression(ratio, kind == CSA) for kind, ratio in ratios.items()}
    return tuple(LayerKind(compressions.get(kind), how == HASH) for kind, how in zip(types, hashed, strict=True))


def _official(ratio: Any) -> str:
    if ratio not in OFFICIAL:
        raise CheckpointError(f"config.json: compress_ratios holds {ratio!r}; supported: 0, 4 and 128")
    return OFFICIAL[ratio]


def _check_types(types: Sequence[str], hashed: Sequence[str], count: int) -> None:
    layers, routers = (SLIDING, CSA, HCA), (HASH, SCORE)
    for name, values, known in (("layer_types", types, layers), ("mlp_layer_types", hashed, routers)):
        if len(values) != count:
            raise CheckpointError(f"config.json: {len(values)} {name} (or ratios) for {count} layers")
        for value in values:
            if value not in known:
                raise CheckpointError(f"config.json: {name} {value!r} is not supported")


def _rotary(read: Fields, head_dim: int) -> int:
    if (share := read.data.get("partial_rotary_factor")) is not None:
        return int(head_dim * share)
    return read.count("qk_rope_head_dim")


def _indexer(read: Fields) -> IndexerConfig:
    return IndexerConfig(read.count("index_n_heads"), read.count("index_head_dim"), read.count("index_topk"))


def _experts(read: Fields) -> ExpertConfig:
    inner = read.count("moe_intermediate_size")
    return ExpertConfig(
        count=read.count("n_routed_experts"),
        top_k=read.count("num_experts_per_tok"),
        inner=inner,
        shared_inner=inner * read.count("n_shared_experts"),
        scale=read.real("routed_scaling_factor"),
        limit=read.real("swiglu_limit"),
    )


def _theta(read: Fields) -> float:
    """The plain layers' base; transformers may keep it inside its nested rope_parameters."""
    main = (read.data.get("rope_parameters") or {}).get("main")
    return Fields(main, "rope_parameters.main.").real("rope_theta") if main else read.real("rope_theta")


def _yarn(config: Mapping[str, Any]) -> Yarn | None:
    """The stretching of compressing layers, in any of the places where it is told."""
    data = config.get("rope_scaling") or config.get("rope_parameters") or {}
    data = data.get("compress", data)
    kind = data.get("rope_type", data.get("type", "default"))
    if kind == "default":
        return None
    read = Fields(data, "rope_scaling.")
    if kind != "yarn":
        raise CheckpointError(f"config.json: rope_scaling.type {kind!r} is not supported, only 'yarn'")
    factor, original = read.real("factor"), read.count("original_max_position_embeddings")
    yarn = Yarn(factor, original, float(data.get("beta_fast", 32)), float(data.get("beta_slow", 1)))
    read.close()
    return yarn


def _check(config: V4Config) -> None:
    if config.heads % config.groups:
        raise CheckpointError(f"config.json: num_attention_heads {config.heads} is no multiple of o_groups")
    widths = {"head_dim": config.head_dim}
    if config.indexer is not None:
        widths["index_head_dim"] = config.indexer.head_dim
        if config.simulate_qat and config.indexer.head_dim & (config.indexer.head_dim - 1):
            raise CheckpointError("config.json: index_head_dim must be a power of two with simulate_qat")
    for name, width in widths.items():
        if config.rotary % 2 or config.rotary > width:
            raise CheckpointError(f"config.json: {config.rotary} rotated dimensions do not fit {name} {width}")
    for name, few, many in (("num_experts_per_tok", config.experts.top_k, config.experts.count),):
        if few > many:
            raise CheckpointError(f"config.json: {name} {few} is more than n_routed_experts {many}")
