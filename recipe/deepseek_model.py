"""The trainable DeepSeek V4 chart reader over padded packs, in plain torch.

Owns the language model's modules and the whole model, named as released checkpoints are. Promises the released
architecture's function as long as the indexer has nothing to leave out, fp32 master weights with the computation in a
chosen dtype, and static shapes. Knows nothing about optimisers, files or where packs come from.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask

from recipe.deepseek_experts import Feed
from recipe.deepseek_ops import (
    Spans,
    attend,
    frequencies,
    join_streams,
    mix_streams,
    pool_windows,
    rms,
    rope_tables,
    seen_entries,
    seen_tokens,
    sinkhorn,
    tiled,
    turn,
)
from recipe.deepseek_shapes import SightShape, TrunkShape
from recipe.deepseek_vision import Sight
from recipe.model import EmbedRows
from recipe.vision import Linear

LEARNED = ("image_start", "image_pad", "image_newline", "image_end")


class SightPack(NamedTuple):
    """Tensors of one padded pack; rows of `ids` hold whole conversations, one after another."""

    patches: Tensor  # [patches, values] uint8
    cells: Tensor  # [patches, 2] int32: row and column
    image_edges: Tensor  # [images + 1] int32, covering every patch
    squares: Tensor  # [image rows, cell * cell] int64: patches of a row, from the number of patches on for none
    ids: Tensor  # [rows, tokens] int64; 0 in images
    source: Tensor  # [rows * tokens] int64: in [tokens of text ; image rows ; START, PAD, NEWLINE, END]
    image: Tensor  # [rows, tokens] bool: tokens of images, leading pads too
    age: Tensor  # [rows, tokens] int32: position in the conversation
    spans: Spans


class Reach(NamedTuple):
    """What all layers of a letter share: rope of tokens and of entries, what is seen, and the entries' window ages."""

    rope: tuple[Tensor, Tensor]
    entry_rope: tuple[Tensor, Tensor]
    seen: Tensor | BlockMask
    ages: Tensor


class Norm(nn.Module):
    """RMS norm with a plain weight."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(dim)), eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalised over the last dim."""
        return rms(x, self.weight, self.eps)


class Compressor(nn.Module):
    """Entries of a window of tokens."""

    def __init__(self, shape: TrunkShape, rate: int, dim: int, overlap: bool) -> None:
        super().__init__()
        wide = dim * (1 + overlap)
        self.rate, self.overlap = rate, overlap
        self.wkv, self.wgate = (Linear(shape.hidden, wide, bias=False) for _ in range(2))
        self.ape, self.norm = nn.Parameter(torch.zeros(rate, wide)), Norm(dim, shape.eps)

    def forward(self, x: Tensor, ages: Tensor) -> Tensor:
        """x [rows, tokens, hidden] to [rows, tokens / rate, dim]."""
        values, gates = (into(x).unflatten(1, (-1, self.rate)) for into in (self.wkv, self.wgate))
        return self.norm(pool_windows(values, gates.float() + self.ape, self.overlap, ages)).to(x.dtype)


class Indexer(nn.Module):
    """Weights only: training sees every entry, so they stay as they were drawn."""

    def __init__(self, shape: TrunkShape) -> None:
        super().__init__()
        self.wq_b = Linear(shape.query_rank, shape.index_heads * shape.index_dim, bias=False)
        self.weights_proj = Linear(shape.hidden, shape.index_heads, bias=False)
        self.compressor = Compressor(shape, shape.sparse_rate, shape.index_dim, overlap=True)
        self.requires_grad_(False)


class Attention(nn.Module):
    """Many query heads over one shared key and value a token, and over entries; grouped low-rank output."""

    def __init__(self, shape: TrunkShape, kind: str) -> None:
        super().__init__()
        self.shape = shape
        wide = shape.heads * shape.head_dim
        self.wq_a, self.wq_b = (
            Linear(shape.hidden, shape.query_rank, bias=False),
            Linear(shape.query_rank, wide, bias=False),
        )
        self.wkv = Linear(shape.hidden, shape.head_dim, bias=False)
        self.q_norm, self.kv_norm = Norm(shape.query_rank, shape.eps), Norm(shape.head_dim, shape.eps)
        self.wo_a = Linear(wide // shape.groups, shape.groups * shape.group_rank, bias=False)
        self.wo_b = Linear(shape.groups * shape.group_rank, shape.hidden, bias=False)
        self.attn_sink = nn.Parameter(torch.zeros(shape.heads))
        if kind != "s":
            self.compressor = Compressor(shape, shape.rate(kind), shape.head_dim, overlap=kind == "c")
        if kind == "c":
            self.indexer = Indexer(shape)

    def queries(self, x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        """x [rows, tokens, hidden] to rotated [rows, tokens, heads, dim]."""
        q = self.wq_b(self.q_norm(self.wq_a(x))).unflatten(-1, (self.shape.heads, -1))
        return turn(rms(q, None, self.shape.eps), rope)

    def keys(self, x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        """x [rows, tokens, hidden] to rotated [rows, tokens, dim]."""
        return turn(self.kv_norm(self.wkv(x)), rope)

    def result(self, out: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        """Turn back [rows, tokens, heads, dim] and go through the groups: [rows, tokens, hidden]."""
        groups = self.shape.groups
        parts = turn(out, rope, back=True).unflatten(2, (groups, -1)).flatten(3)  # [rows, tokens, groups, dims]
        weight = self.wo_a.weight.to(out.dtype).unflatten(0, (groups, -1))
        return self.wo_b(torch.einsum("rtgi,goi->rtgo", parts, weight).flatten(2))

    def forward(self, x: Tensor, reach: Reach, context: Tensor | None = None) -> Tensor:
        """x [rows, tokens, hidden] (normed), same shape out; a drafter's `context` stands in the place of entries."""
        keys = self.keys(x, reach.rope)
        if context is not None:
            keys = torch.cat([keys, self.keys(context, reach.entry_rope)], 1)
        if hasattr(self, "compressor"):
            entries = turn(self.compressor(x, reach.ages), reach.entry_rope)
            keys = torch.cat([keys, entries], 1)
        return self.result(attend(self.queries(x, reach.rope), keys, reach.seen, self.attn_sink), reach.rope)


class Block(nn.Module):
    """A decoder layer: two sites of hyper-connections around attention and experts."""

    def __init__(self, shape: TrunkShape, kind: str, hashed: bool) -> None:
        super().__init__()
        self.shape = shape
        n = shape.streams
        outputs = (2 + n) * n
        self.attn, self.ffn = Attention(shape, kind), Feed(shape, hashed)
        self.attn_norm, self.ffn_norm = Norm(shape.hidden, shape.eps), Norm(shape.hidden, shape.eps)
        for site in ("attn", "ffn"):
            self.register_parameter(f"hc_{site}_fn", nn.Parameter(torch.zeros(outputs, n * shape.hidden)))
            self.register_parameter(f"hc_{site}_base", nn.Parameter(torch.zeros(outputs)))
            self.register_parameter(f"hc_{site}_scale", nn.Parameter(torch.zeros(3)))

    def mixing(self, site: str, streams: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """pre and post [..., n] and comb [..., n, n], fp32, of streams [..., n, hidden]."""
        s, n = self.shape, self.shape.streams
        read = _read(streams, getattr(self, f"hc_{site}_fn"), s.eps)
        scale, base = getattr(self, f"hc_{site}_scale"), getattr(self, f"hc_{site}_base")
        parts = zip(read.split([n, n, n * n], -1), scale, base.split([n, n, n * n]), strict=True)
        pre, post, comb = (part * by + to for part, by, to in parts)
        table = comb.unflatten(-1, (n, n)).softmax(-1) + s.floor
        return pre.sigmoid() + s.floor, 2 * post.sigmoid(), sinkhorn(table, s.rounds, s.floor)

    def forward(
        self, streams: Tensor, ids: Tensor, image: Tensor, reach: Reach, context: Tensor | None = None
    ) -> Tensor:
        """streams [rows, tokens, n, hidden], same shape out; context as in `Attention`."""
        pre, post, comb = self.mixing("attn", streams)
        y = self.attn(self.attn_norm(join_streams(streams, pre)), reach, context)
        streams = mix_streams(streams, comb, post, y)
        pre, post, comb = self.mixing("ffn", streams)
        return mix_streams(streams, comb, post, self.ffn(self.ffn_norm(join_streams(streams, pre)), ids, image))


def _read(streams: Tensor, into: Tensor, eps: float) -> Tensor:
    flat = streams.flatten(-2)
    # the norm is one number a token, so it can come after the product
    size = torch.rsqrt(flat.float().square().mean(-1, keepdim=True) + eps)
    return F.linear(flat, into.to(flat.dtype)).float() * size


class Head(nn.Module):
    """Streams to one state: the last site."""

    def __init__(self, shape: TrunkShape) -> None:
        super().__init__()
        self.shape = shape
        self.fn = nn.Parameter(torch.zeros(shape.streams, shape.streams * shape.hidden))
        self.base, self.scale = nn.Parameter(torch.zeros(shape.streams)), nn.Parameter(torch.zeros(1))

    def forward(self, streams: Tensor) -> Tensor:
        """[..., n, hidden] to [..., hidden]."""
        pre = _read(streams, self.fn, self.shape.eps) * self.scale + self.base
        return join_streams(streams, pre.sigmoid() + self.shape.floor)


class SightReader(nn.Module):
    """The whole model."""

    def __init__(self, shape: SightShape, flex: bool = False) -> None:
        """flex: skip empty tiles of attention (a GPU)."""
        super().__init__()
        self.shape, self.flex = shape, flex
        text = shape.text
        self.sight = Sight(shape.vision, text.hidden)
        for name in LEARNED:
            self.register_parameter(name, nn.Parameter(torch.zeros(text.hidden)))
        self.embed, self.head = nn.Embedding(text.vocab, text.hidden), Linear(text.hidden, text.vocab, bias=False)
        self.layers = nn.ModuleList(Block(text, kind, i < text.hashed) for i, kind in enumerate(text.layers))
        self.hc_head, self.norm = Head(text), Norm(text.hidden, text.eps)
        long = frequencies(text.compress_theta, text.rotary, text.yarn_factor, text.yarn_len)
        self.register_buffer("plain", frequencies(text.theta, text.rotary), persistent=False)
        self.register_buffer("long", long, persistent=False)

    def embeddings(self, pack: SightPack, longest_image: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """Input embeddings [rows, tokens, hidden] with image blocks in place, the image rows, the normed patches."""
        rows, patches = self.sight(pack, longest_image, dtype)
        words = EmbedRows.apply(self.embed.weight.to(dtype), pack.ids.flatten())
        learned = torch.stack([getattr(self, name) for name in LEARNED]).to(dtype)
        mixed = torch.cat([words, rows, learned]).index_select(0, pack.source)
        return mixed.view(*pack.ids.shape, -1), rows, patches

    def reaches(self, age: Tensor, spans: Spans) -> dict[str, Reach]:
        """What the layers of each letter share."""
        text = self.shape.text
        near, out = seen_tokens(spans, text.window), {}
        for kind in sorted(set(text.layers)):
            rope = rope_tables(age, self.plain if kind == "s" else self.long)
            rate, seen = max(text.rate(kind), 1), near
            if kind != "s":
                assert age.shape[1] <= rate * text.index_top or kind == "h", "the indexer would have to choose"
                seen = torch.cat([near, seen_entries(spans, rate)], -1)
            entry_rope = (rope[0][:, ::rate], rope[1][:, ::rate])
            out[kind] = Reach(rope, entry_rope, tiled(seen) if self.flex else seen, age[:, ::rate])
        return out

    def states(self, x: Tensor, pack: SightPack, keep: tuple[int, ...] = ()) -> tuple[Tensor, list[Tensor]]:
        """Streams [rows, tokens, n, hidden] after the last layer, and means over streams after the layers `keep`."""
        reaches, kept = self.reaches(pack.age, pack.spans), []
        streams = x.unsqueeze(-2).repeat(1, 1, self.shape.text.streams, 1)
        for i, (kind, layer) in enumerate(zip(self.shape.text.layers, self.layers, strict=True)):
            streams = layer(streams, pack.ids, pack.image, reaches[kind])
            if i in keep:
                kept.append(streams.float().mean(-2).to(streams.dtype))
        return streams, kept

    def final(self, streams: Tensor) -> Tensor:
        """Final-normed states [..., hidden] of streams."""
        return self.norm(self.hc_head(streams))

    def logits(self, hidden: Tensor) -> Tensor:
        """fp32 logits of final-normed states [n, hidden]."""
        return self.head(hidden).float()

    def forward(self, pack: SightPack, longest_image: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """Final-normed hidden states [rows * tokens, hidden], the image rows and the normed patches."""
        x, rows, patches = self.embeddings(pack, longest_image, dtype)
        return self.final(self.states(x, pack)[0]).flatten(0, 1), rows, patches
