"""From a DeepSeek V4 checkpoint's tensors to the fused weights its text model computes with.

Owns the official tensor names and shapes and every rearrangement: matrices that read the same input are stacked, the
attention's and the indexer's compressors become one, experts are stacked. A matrix may be stored plain, as float8 in
blocks of 128 by 128, or as packed float4, each with a `.scale` beside it: its file says which, and it is made plain
here. `mtp.*` is left for a drafter, which loads its blocks with `layer_shapes` and `load_layer`; `vision.*` and
`aligner.*` for the tower, while the vectors of image tokens are read by both.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from foveate.core.errors import CheckpointError
from foveate.core.images import Kind
from foveate.models.deepseek_v4 import Experts, Layer, Trunk
from foveate.models.deepseek_v4_attention import Attention, Compressor, Indexer
from foveate.models.deepseek_v4_config import Compression, ExpertConfig, LayerKind, V4Config
from foveate.models.weights import Place, Source, Stored, check, inventory, open_source, turned
from foveate.ops.fp8 import dequantise
from foveate.ops.hyper import Site
from foveate.ops.limited_moe import LimitedExperts
from foveate.ops.quant import FP4_BLOCK, FP8_BLOCK, unpack_fp4

OTHERS = ("mtp.", "vision.", "aligner.", "image_")  # tensors of a drafter and of the tower
LEARNED = {Kind.START: "image_start", Kind.PAD: "image_pad", Kind.NEWLINE: "image_newline", Kind.END: "image_end"}
WHOLE = ("I64", "I32")  # types of expert tables
BLOCKS = {"F8_E4M3": (FP8_BLOCK, FP8_BLOCK), "I8": (1, FP4_BLOCK)}  # how a matrix of a type shares its scales
SCALES = ("F8_E8M0", "F32", "BF16")
Shapes = dict[str, tuple[int, ...]]


def load_trunk(folder: Path, config: V4Config, place: Place) -> Trunk:
    """Read, check and fuse the text weights. Raises CheckpointError naming the tensor that is not as expected."""
    shapes = trunk_shapes(config)
    source = open_checked(folder, invented(shapes) if place.dummy else inventory(folder), shapes, place)
    embedding = source.get("embed.weight")
    if config.seeing:
        kinds = embedding.new_zeros(len(Kind), config.hidden)
        for kind, name in LEARNED.items():
            kinds[kind] = source.get(name)
        embedding = torch.cat([embedding, kinds])

    def layer(number: int) -> Layer:
        return load_layer(source, f"layers.{number}.", config, config.layers[number])

    return Trunk(
        embedding=embedding,
        layers=tuple(source.each(layer, range(len(config.layers)))),
        site=load_site(source, "hc_head", (config.streams,)),
        norm=source.exact("norm.weight"),
        head=turned(source.exact("head.weight")),
    )


def open_checked(folder: Path, stored: Mapping[str, Stored], shapes: Shapes, place: Place) -> Source:
    """A source of these tensors and of the scales beside them. Raises CheckpointError for what is not as expected."""
    expected, special = dict(shapes), set[str]()
    for name, shape in shapes.items():
        found = stored.get(name)
        if found is None:
            continue
        if name.endswith("tid2eid"):
            special.add(name)
            if found.kind not in WHOLE and not place.dummy:
                raise CheckpointError(f"tensor {name} in {found.file} has type {found.kind}; it must hold integers")
        elif found.kind in BLOCKS and name.endswith(".weight") and len(shape) == 2:
            special |= {name, scale_name(name)}
            expected[name] = (shape[0], shape[1] // 2) if found.kind == "I8" else shape
            down, across = BLOCKS[found.kind]
            expected[scale_name(name)] = (-(-shape[0] // down), -(-shape[1] // across))
    check(stored, expected, OTHERS, special)
    for name in special:
        if name.endswith(".scale") and stored[name].kind not in SCALES:
            raise CheckpointError(f"tensor {name} in {stored[name].file} has type {stored[name].kind}: no scale")
    return open_source(folder, {name: stored[name] for name in expected}, place)


def scale_name(name: str) -> str:
    """Where the scales of a matrix stand."""
    return name.removesuffix("weight") + "scale"


def invented(shapes: Shapes) -> dict[str, Stored]:
    """An inventory without files, for random weights."""
    return {name: Stored("", shape, "BF16") for name, shape in shapes.items()}


def matrix(source: Source, name: str, exact: bool = False) -> Tensor:
    """A matrix [out, in] by the name of its weight, plain, in the model's type or exactly in float32."""
    kind = source.stored[name].kind
    if kind not in BLOCKS:
        return source.exact(name) if exact else source.get(name)
    values, scales = source.raw(name), source.exact(scale_name(name))
    values = unpack_fp4(values) if kind == "I8" else values
    return dequantise(values, scales, BLOCKS[kind], torch.float32 if exact else source.dtype)


def trunk_shapes(config: V4Config) -> Shapes:
    """Every tensor of the text model by its official name, scales left out."""
    shapes: Shapes = {name: (config.vocab, config.hidden) for name in ("embed.weight", "head.weight")}
    shapes["norm.weight"] = (config.hidden,)
    shapes |= site_shapes("hc_head", config, config.streams, 1)
    if config.seeing:
        shapes |= dict.fromkeys(LEARNED.values(), (config.hidden,))
    for i, kind in enumerate(config.layers):
        shapes |= layer_shapes(f"layers.{i}.", config, kind)
    return shapes


def site_shapes(at: str, config: V4Config, outputs: int, scales: int) -> Shapes:
    """The three tensors of a hyper-connection site."""
    wide = config.streams * config.hidden
    return {f"{at}_fn": (outputs, wide), f"{at}_base": (outputs,), f"{at}_scale": (scales,)}


def layer_shapes(at: str, config: V4Config, kind: LayerKind) -> Shapes:
    """Every tensor of a layer below a prefix."""
    outputs = config.streams * (2 + config.streams)
    shapes: Shapes = {f"{at}{name}_norm.weight": (config.hidden,) for name in ("attn", "ffn")}
    for name in ("attn", "ffn"):
        shapes |= site_shapes(f"{at}hc_{name}", config, outputs, 3)
    shapes |= _attention_shapes(at + "attn.", config)
    if kind.compression is not None:
        shapes |= _compression_shapes(at + "attn.", config, kind.compression)
    return shapes | _expert_shapes(at + "ffn.", config, kind.hashed)


def _attention_shapes(at: str, c: V4Config) -> Shapes:
    wide = c.heads * c.head_dim
    return {
        at + "wq_a.weight": (c.query_rank, c.hidden),
        at + "q_norm.weight": (c.query_rank,),
        at + "wq_b.weight": (wide, c.query_rank),
        at + "wkv.weight": (c.head_dim, c.hidden),
        at + "kv_norm.weight": (c.head_dim,),
        at + "attn_sink": (c.heads,),
        at + "wo_a.weight": (c.groups * c.group_rank, wide // c.groups),
        at + "wo_b.weight": (c.hidden, c.groups * c.group_rank),
    }


def _compression_shapes(at: str, c: V4Config, kind: Compression) -> Shapes:
    def compressor(at: str, dim: int) -> Shapes:
        wide = dim * (2 if kind.sparse else 1)
        shapes: Shapes = {f"{at}{name}.weight": (wide, c.hidden) for name in ("wkv", "wgate")}
        return shapes | {at + "ape": (kind.ratio, wide), at + "norm.weight": (dim,)}

    shapes = compressor(at + "compressor.", c.head_dim)
    if not kind.sparse:
        return shapes
    assert c.indexer is not None
    shapes |= compressor(at + "indexer.compressor.", c.indexer.head_dim)
    shapes[at + "indexer.wq_b.weight"] = (c.indexer.heads * c.indexer.head_dim, c.query_rank)
    return shapes | {at + "indexer.weights_proj.weight": (c.indexer.heads, c.hidden)}


def _expert_shapes(at: str, c: V4Config, hashed: bool) -> Shapes:
    def expert(at: str, inner: int) -> Shapes:
        sides = {"w1": (inner, c.hidden), "w3": (inner, c.hidden), "w2": (c.hidden, inner)}
        return {f"{at}{name}.weight": shape for name, shape in sides.items()}

    count = c.experts.count
    shapes: Shapes = {at + "gate.weight": (count, c.hidden)}
    if hashed:
        shapes[at + "gate.tid2eid"] = (c.vocab, c.experts.top_k)
    else:
        shapes[at + "gate.bias"] = (count,)
    if c.seeing:
        shapes[at + "gate.bias_vl"] = (count,)
    for e in range(count):
        shapes |= expert(f"{at}experts.{e}.", c.experts.inner)
    return shapes | expert(at + "shared_experts.", c.experts.shared_inner)


def load_site(source: Source, at: str, widths: tuple[int, ...]) -> Site:
    """A hyper-connection site; widths: how many outputs each of its scales is for."""
    scale = source.exact(f"{at}_scale").repeat_interleave(torch.tensor(widths, device=source.device))
    return Site(turned(source.exact(f"{at}_fn")), scale, source.exact(f"{at}_base"))


def load_layer(source: Source, at: str, config: V4Config, kind: LayerKind) -> Layer:
    """A layer below a prefix, from a source of at least the tensors of `layer_shapes`."""
    widths = (config.streams, config.streams, config.streams**2)
    return Layer(
        attention_site=load_site(source, at + "hc_attn", widths),
        attention_norm=source.exact(at + "attn_norm.weight"),
        attention=_attention(source, at + "attn.", config, kind.compression),
        experts_site=load_site(source, at + "hc_ffn", widths),
        experts_norm=source.exact(at + "ffn_norm.weight"),
        experts=_experts(source, at + "ffn.", config, kind.hashed),
    )


def _attention(source: Source, at: str, config: V4Config, kind: Compression | None) -> Attention:
    compressor = indexer = None
    if kind is not None:
        compressor = _compressor(source, at, kind)
    if kind is not None and kind.sparse:
        up, weigh = (turned(matrix(source, f"{at}indexer.{name}.weight")) for name in ("wq_b", "weights_proj"))
        indexer = Indexer(up, weigh)
    return Attention(
        into=turned(matrix(source, at + "wq_a.weight"), matrix(source, at + "wkv.weight")),
        low_norm=source.exact(at + "q_norm.weight"),
        up=turned(matrix(source, at + "wq_b.weight")),
        row_norm=source.exact(at + "kv_norm.weight"),
        sink=source.exact(at + "attn_sink"),
        out_low=matrix(source, at + "wo_a.weight").unflatten(0, (config.groups, -1)).mT.contiguous(),
        out=turned(matrix(source, at + "wo_b.weight")),
        compressor=compressor,
        indexer=indexer,
    )


def _compressor(source: Source, at: str, kind: Compression) -> Compressor:
    """Both compressors of a sparse layer as one: in each set the attention's channels, then the indexer's."""
    places = [at + "compressor."] + ([at + "indexer.compressor."] if kind.sparse else [])
    sets = 2 if kind.sparse else 1

    def beside(parts: list[Tensor], axis: int) -> Tensor:
        chunks = [part.chunk(sets, axis) for part in parts]
        return torch.cat([chunk[number] for number in range(sets) for chunk in chunks], axis)

    rows = [beside([matrix(source, f"{at}{name}.weight", True) for at in places], 0) for name in ("wkv", "wgate")]
    norms = [source.exact(at + "norm.weight") for at in places]
    place = beside([source.exact(at + "ape") for at in places], 1)
    return Compressor(kind, turned(*rows), place, norms[0], norms[1] if kind.sparse else None)


def _experts(source: Source, at: str, config: V4Config, hashed: bool) -> Experts:
    c = config.experts
    # Filled one by one: a layer's experts are too large to stand in memory twice.
    gate_up = torch.empty(c.count, config.hidden, 2 * c.inner, device=source.device, dtype=source.dtype)
    down = torch.empty(c.count, c.inner, config.hidden, device=source.device, dtype=source.dtype)
    for e in range(c.count):
        first, second, last = (matrix(source, f"{at}experts.{e}.{name}.weight") for name in ("w1", "w3", "w2"))
        gate_up[e], down[e] = turned(first, second), turned(last)
    shared = {name: matrix(source, f"{at}shared_experts.{name}.weight") for name in ("w1", "w3", "w2")}
    return Experts(
        router=turned(matrix(source, at + "gate.weight", True)),
        table=_table(source, at + "gate.tid2eid", c) if hashed else None,
        bias=None if hashed else source.exact(at + "gate.bias"),
        image_bias=source.exact(at + "gate.bias_vl") if config.seeing else None,
        routed=LimitedExperts(gate_up, down, c.limit),
        shared_in=turned(shared["w1"], shared["w3"]),
        shared_out=turned(shared["w2"]),
    )


def _table(source: Source, name: str, c: ExpertConfig) -> Tensor:
    """The experts of each token id. Raises CheckpointError for one that there is not."""
    if source.stored[name].kind not in WHOLE:  # random weights: any table will do
        vocab = source.stored[name].shape[0]
        return torch.arange(vocab * c.top_k, device=source.device).view(vocab, c.top_k) % c.count
    table = source.raw(name).long()
    if table.min() < 0 or table.max() >= c.count:
        raise CheckpointError(f"tensor {name} names an expert beyond the {c.count} there are")
    return table
