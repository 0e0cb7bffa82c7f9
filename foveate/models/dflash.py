"""The DFlash block drafter: a few Qwen3 layers that fill a block of masks at once, seeing the target's features.

`observe` projects the features of standing tokens once, the same vector for every layer, and keeps each layer's rotated
keys and values in the pages of the sequence; `propose` runs [anchor, mask, mask, ...] over that context and itself and
leaves nothing behind. Positions are plain indices, whatever images did to the target's. DFlash2 adds convolutions
around each sublayer and a selection head; DSpark's heads live in `dspark`. What turns hidden states into tokens is a
`Chooser`. Weights are [in, out].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from foveate.models.draft_config import DraftConfig
from foveate.models.drafting import Asked, Guesses, Pick, Seen
from foveate.models.interface import Capture, LanguageModel, Memory, MemorySpec, PagedSpec
from foveate.ops.attention import write_paged
from foveate.ops.blocks import Context, attend_blocks, contexts, dynamic_conv
from foveate.ops.layers import rms_norm, swiglu
from foveate.ops.pages import flat_slots
from foveate.ops.rope import frequencies, rotate_

OPTIONS = 8  # alternatives per depth that are told, for trees


@dataclass(frozen=True, slots=True)
class BlockConv:
    """DFlash2's convolution around a sublayer. base: [2, kernel, hidden]; taps: [hidden, 2 * kernel * groups]."""

    base: Tensor
    taps: Tensor


@dataclass(frozen=True, slots=True)
class BlockLayer:
    """One layer. qkv: [hidden, columns of queries, keys, values]; norms float32; convs of both sublayers or None."""

    mixer_norm: Tensor
    qkv: Tensor
    query_norm: Tensor
    key_norm: Tensor
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor
    mixer_conv: BlockConv | None = None
    mlp_conv: BlockConv | None = None


@dataclass(frozen=True, slots=True)
class Backbone:
    """All weights but the chooser's. fc: [layers * hidden, hidden]; head: [hidden, vocab], None for the target's."""

    fc: Tensor
    context_norm: Tensor
    layers: tuple[BlockLayer, ...]
    norm: Tensor
    head: Tensor | None = None
    embedding: Tensor | None = None


class Chooser(Protocol):
    """Turns a block's hidden states and logits into guesses."""

    def choose(self, hidden: Tensor, logits: Tensor, anchors: Tensor, pick: Pick) -> Guesses:
        """hidden [requests, depth, hidden], logits [requests, depth, vocab], anchors [requests] target ids."""
        ...


class BlockDrafter:
    """A block drafter as a `DraftModel` beside the target whose embedding and head it shares."""

    def __init__(self, config: DraftConfig, backbone: Backbone, target: LanguageModel, chooser: Chooser) -> None:
        self.config, self.backbone, self._target, self._chooser = config, backbone, target, chooser
        self.capture, self.most_len = Capture(config.layers), config.most_len
        self._frequency = frequencies(config.theta, config.head_dim).to(backbone.fc.device)

    def memory_spec(self) -> MemorySpec:
        """Keys and values of the context, per layer."""
        shape, dtype = (self.config.kv_heads, self.config.head_dim), self.backbone.fc.dtype
        names = [f"draft.{part}.{i}" for i in range(self.config.depth) for part in ("keys", "values")]
        return MemorySpec(tuple(PagedSpec(name, shape, dtype) for name in names), ())

    @torch.no_grad()
    def observe(self, seen: Seen, memory: Memory) -> None:
        """Keep each layer's keys and values of the tokens that stand."""
        assert seen.features is not None, "the target was not asked for features"
        config = self.config
        context = rms_norm(torch.mm(seen.features, self.backbone.fc), self.backbone.context_norm, config.eps)
        write_at = flat_slots(seen.pages, seen.past_lens, seen.lens, memory.page_len)
        starts = zip(seen.past_lens, seen.lens, strict=True)
        cos_sin = self._cos_sin(torch.cat([torch.arange(start, start + count) for start, count in starts]))
        queries, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
        for i, layer in enumerate(self.backbone.layers):
            key, value = torch.mm(context, layer.qkv[:, queries:]).split([kv, kv], -1)
            key = self._rotated(key.unflatten(-1, (config.kv_heads, -1)), layer.key_norm, cos_sin)
            write_paged(memory.paged[f"draft.keys.{i}"], write_at, key)
            write_paged(memory.paged[f"draft.values.{i}"], write_at, value.unflatten(-1, (config.kv_heads, -1)))

    @torch.no_grad()
    def propose(self, asked: Asked, memory: Memory, pick: Pick) -> Guesses:
        """Guess a block for each request."""
        hidden = self.block_states(asked, memory)[:, 0 if self.config.from_anchor else 1 :][:, : asked.draft_len]
        logits = self.logits(hidden.flatten(0, 1)).unflatten(0, hidden.shape[:2])
        return self._chooser.choose(hidden, logits, asked.anchors, pick)

    def block_states(self, asked: Asked, memory: Memory) -> Tensor:
        """Final-normed states [requests, block, hidden] of the blocks."""
        config, count = self.config, len(asked.past_lens)
        ids = torch.full((count, config.block), config.mask_id, device=asked.anchors.device)
        ids[:, 0] = asked.anchors
        x = self._embed(ids.flatten()).unflatten(0, (count, config.block))
        past = torch.tensor(asked.past_lens)[:, None] + torch.arange(config.block)
        cos_sin = self._cos_sin(past.flatten())
        windows = tuple(zip(config.windows, config.causal, strict=True))
        pages, page_len = asked.pages, memory.page_len
        seen = {kind: contexts(pages, asked.past_lens, page_len, config.block, *kind) for kind in set(windows)}
        for i, layer in enumerate(self.backbone.layers):
            held = memory.paged[f"draft.keys.{i}"], memory.paged[f"draft.values.{i}"]
            mix = partial(self._mix, layer=layer, cos_sin=cos_sin, held=held, seen=seen[windows[i]])
            x = x + _around(rms_norm(x, layer.mixer_norm, config.eps), layer.mixer_conv, mix)
            x = x + _around(rms_norm(x, layer.mlp_norm, config.eps), layer.mlp_conv, partial(_feed, layer))
        return rms_norm(x, self.backbone.norm, config.eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 logits [tokens, draft vocab] of final-normed states [tokens, hidden]."""
        own = self.backbone.head
        logits = self._target.head(hidden) if own is None else torch.mm(hidden, own).float()
        logits = logits * self.config.logit_scale if self.config.logit_scale != 1.0 else logits
        cap = self.config.softcap
        return torch.tanh(logits / cap) * cap if cap > 0 else logits

    def _embed(self, ids: Tensor) -> Tensor:
        own = self.backbone.embedding
        rows = self._target.embed(ids) if own is None else F.embedding(ids, own)
        return (rows * self.config.embed_scale if self.config.embed_scale != 1.0 else rows).to(self.backbone.fc.dtype)

    def _mix(
        self,
        n: Tensor,
        layer: BlockLayer,
        cos_sin: tuple[Tensor, Tensor],
        held: tuple[Tensor, Tensor],
        seen: list[Context],
    ) -> Tensor:
        """The attention of a layer over normed states [requests, block, hidden]."""
        return torch.matmul(attend_blocks(*self._qkv(n, layer, cos_sin), held, seen).flatten(2), layer.out)

    def _qkv(self, n: Tensor, layer: BlockLayer, cos_sin: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        c, flat = self.config, n.flatten(0, 1)
        sides = [c.heads * c.head_dim, c.kv_heads * c.head_dim, c.kv_heads * c.head_dim]
        query, key, value = (
            part.unflatten(-1, (-1, c.head_dim)) for part in torch.mm(flat, layer.qkv).split(sides, -1)
        )
        query, key = self._rotated(query, layer.query_norm, cos_sin), self._rotated(key, layer.key_norm, cos_sin)
        shape = n.shape[:2]
        return query.unflatten(0, shape), key.unflatten(0, shape), value.unflatten(0, shape)

    def _rotated(self, x: Tensor, norm: Tensor, cos_sin: tuple[Tensor, Tensor]) -> Tensor:
        """Normed and rotated heads [tokens, heads, dim]."""
        return rotate_(rms_norm(x.float(), norm, self.config.eps), *cos_sin).to(x.dtype)

    def _cos_sin(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = positions.to(self._frequency.device).float()[:, None] * self._frequency
        return angles.cos().unsqueeze(1), angles.sin().unsqueeze(1)


def _feed(layer: BlockLayer, n: Tensor) -> Tensor:
    """The SwiGLU of a layer over normed states."""
    return torch.matmul(swiglu(n.flatten(0, 1), layer.gate_up), layer.down).view_as(n)


def _around(n: Tensor, conv: BlockConv | None, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
    """A sublayer over normed states, between the convolutions that DFlash2 makes from them."""
    if conv is None:
        return sublayer(n)
    taps = torch.matmul(n, conv.taps).unflatten(-1, (2, conv.base.shape[1], -1))
    return dynamic_conv(sublayer(dynamic_conv(n, taps[:, :, 0], conv.base[0])), taps[:, :, 1], conv.base[1])


@dataclass(frozen=True, slots=True)
class Independent:
    """Every slot by itself. targets: [draft vocab] target ids, or None when the vocabularies are one."""

    targets: Tensor | None = None

    def choose(self, hidden: Tensor, logits: Tensor, anchors: Tensor, pick: Pick) -> Guesses:
        """The best token of each slot, with its probability."""
        logprobs, ids = best_options(logits)
        tokens = torch.stack([pick(logits[:, depth], depth) for depth in range(logits.shape[1])], 1)
        sure = torch.log_softmax(logits, -1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1).exp()
        tokens, ids = (t if self.targets is None else self.targets[t] for t in (tokens, ids))
        return Guesses(tokens, sure, ids, logprobs)


def best_options(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities and draft ids [..., options] of the best tokens of logits [..., vocab], best first."""
    best = torch.log_softmax(logits, -1).topk(min(OPTIONS, logits.shape[-1]))
    return best.values, best.indices


@dataclass(frozen=True, slots=True)
class Selection:
    """DFlash2's head: candidates of each slot are scored again by the choice before them.

    `score(c) = U(c) + sum over r of before[prev]_r (into h)_r after[c]_r`. before, after: [vocab, rank]; into:
    [hidden, rank].
    """

    before: Tensor
    after: Tensor
    into: Tensor
    top_k: int

    def choose(self, hidden: Tensor, logits: Tensor, anchors: Tensor, pick: Pick) -> Guesses:
        """Left to right, each slot's best candidate behind the choice before."""
        unary, candidates = logits.topk(self.top_k)  # [requests, depth, k]
        inner, previous = torch.matmul(hidden, self.into), anchors
        tokens, sure, ids, logprobs = [], [], [], []
        for depth in range(logits.shape[1]):
            here = candidates[:, depth]
            left = (self.before[previous] * inner[:, depth]).unsqueeze(-1)
            scores = unary[:, depth] + torch.matmul(self.after[here], left).squeeze(-1).float()
            chosen = pick(scores, depth).unsqueeze(-1)
            chances = torch.log_softmax(scores, -1)
            ordered = chances.sort(-1, descending=True)
            previous = here.gather(-1, chosen).squeeze(-1)
            tokens.append(previous)
            sure.append(chances.gather(-1, chosen).squeeze(-1).exp())
            ids.append(here.gather(-1, ordered.indices))
            logprobs.append(ordered.values)
        return Guesses(*(torch.stack(part, 1) for part in (tokens, sure, ids, logprobs)))
