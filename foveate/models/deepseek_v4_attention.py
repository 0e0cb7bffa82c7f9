"""DeepSeek V4's attention: one shared row per token in a sliding window, compressed entries beside, a sink per head.

Queries come through a low rank; the row is key and value at once, so its rotation is undone behind the softmax. Layers
with compression also read entries: all of them, or those that an indexer scores highest. Projections, compression and
scoring inputs run once over all tokens of a step, the attention itself sequence by sequence. Where the config says so,
values are rounded as DeepSeek's inference rounds them. Weights are [in, out]; knows no residual streams.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foveate.models.deepseek_v4_config import Compression, V4Config
from foveate.models.deepseek_v4_step import Folding, Rope, Step
from foveate.ops.compress import compress
from foveate.ops.layers import rms_norm
from foveate.ops.quant import hadamard, round_fp4, round_fp8
from foveate.ops.sinks import attend_shared, best_rows, index_scores
from foveate.ops.yarn import rotate_tail_

ROW_BLOCK = 64  # values of a stored row that share a scale


@dataclass(frozen=True, slots=True)
class Held:
    """A layer's part of the memory; open, entries and index are None where it has none."""

    window: Tensor  # [slots, window, head_dim]
    open: Tensor | None = None  # float32 [slots, ring, values and gates]
    entries: Tensor | None = None  # [pages, rows, head_dim]
    index: Tensor | None = None  # [pages, rows, index head_dim]


def as_read(x: Tensor, config: V4Config) -> Tensor:
    """x as a quantised matrix reads it."""
    return round_fp8(x) if config.simulate_qat else x


def as_stored(row: Tensor, config: V4Config) -> Tensor:
    """Rotated float rows [rows, head_dim] as they are kept: what does not rotate is rounded."""
    if not config.simulate_qat:
        return row
    return torch.cat([round_fp8(row[:, : -config.rotary], ROW_BLOCK), row[:, -config.rotary :]], -1)


def as_indexed(x: Tensor, config: V4Config) -> Tensor:
    """Rotated index queries or keys [..., index head_dim] as scores are made of them."""
    return round_fp4(hadamard(x)) if config.simulate_qat else x


@dataclass(frozen=True, slots=True)
class Compressor:
    """into: float32 [hidden, values and gates], as `ops.compress` wants them; place: float32 [ratio, gates].

    norm: float32 [head_dim]; index_norm: float32 [index head_dim], or None. A sparse layer's columns hold the
    attention's channels and then the indexer's in each set, so that both are compressed in one go.
    """

    kind: Compression
    into: Tensor
    place: Tensor
    norm: Tensor
    index_norm: Tensor | None

    def write(self, x: Tensor, step: Step, held: Held, config: V4Config) -> None:
        """Take in normed x [tokens, hidden]: write the entries of windows it completes, keep the rows of open ones."""
        assert held.open is not None and held.entries is not None
        folding = step.foldings[self.kind]
        rows = torch.mm(x.float(), self.into)
        rows[:, -self.place.shape[1] :] += self.place[folding.phases]
        if len(folding.windows):
            entries = compress(torch.cat([folding.ring.read(held.open), rows]), folding.windows)
            own, index = entries[:, : len(self.norm)], entries[:, len(self.norm) :]
            _put(held.entries, folding, as_stored(_turned(own, self.norm, folding.rope, config), config))
            if self.index_norm is not None:
                assert held.index is not None
                _put(held.index, folding, as_indexed(_turned(index, self.index_norm, folding.rope, config), config))
        step.keep(folding.ring, held.open, rows)


def _turned(entries: Tensor, norm: Tensor, rope: Rope, config: V4Config) -> Tensor:
    return rotate_tail_(rms_norm(entries, norm, config.eps).unsqueeze(1), *rope).squeeze(1)


def _put(paged: Tensor, folding: Folding, entries: Tensor) -> None:
    paged.flatten(0, 1).index_copy_(0, folding.windows.write_at, entries.to(paged.dtype))


@dataclass(frozen=True, slots=True)
class Indexer:
    """up: [query rank, heads * index head_dim]; weigh: [hidden, heads]."""

    up: Tensor
    weigh: Tensor

    def queries(self, x: Tensor, low: Tensor, rope: Rope, config: V4Config) -> tuple[Tensor, Tensor]:
        """Index queries [tokens, heads, index head_dim] and head weights float32 [tokens, heads]."""
        assert config.indexer is not None
        query = torch.mm(as_read(low, config), self.up).unflatten(-1, (config.indexer.heads, -1))
        query = as_indexed(rotate_tail_(query.float().clone(), *rope), config)
        return query, torch.mm(x, self.weigh).float()


@dataclass(frozen=True, slots=True)
class Attention:
    """One layer's attention.

    into: [hidden, query rank + head_dim]; low_norm: float32 [query rank]; up: [query rank, heads * head_dim]; row_norm:
    float32 [head_dim]; sink: float32 [heads]; out_low: [groups, heads * head_dim / groups, rank]; out: [groups * rank,
    hidden].
    """

    into: Tensor
    low_norm: Tensor
    up: Tensor
    row_norm: Tensor
    sink: Tensor
    out_low: Tensor
    out: Tensor
    compressor: Compressor | None = None
    indexer: Indexer | None = None

    def forward(self, x: Tensor, step: Step, held: Held, config: V4Config) -> Tensor:
        """The result [tokens, hidden] for normed x [tokens, hidden]; writes the layer's memory."""
        rope = step.plain if self.compressor is None else step.stretched
        query, low = self.queries(x, rope, config)
        row = self.rows(x, rope, config)
        carried = step.window.read(held.window)
        step.keep(step.window, held.window, row)
        if self.compressor is not None:
            self.compressor.write(x, step, held, config)
        chosen = self._chosen(x, low, step, held, config)
        parts, done = [], 0
        for number, (start, end) in enumerate(step.spans):
            count = len(step.window.carried[number])
            rows, far = torch.cat([carried[done : done + count], row[start:end]]), chosen[number]
            near_len = len(rows)
            if self.compressor is not None and held.entries is not None:
                at = step.foldings[self.compressor.kind].entries_at[number]
                if end - start == 1 and far is not None:  # one token reads no more than what was chosen for it
                    assert config.indexer is not None
                    at, far = at[far[0].int().topk(config.indexer.top_k).indices], None
                rows = torch.cat([rows, held.entries.flatten(0, 1).index_select(0, at)])
            seen = _joined(step.seen[number], far, end - start, (near_len, len(rows) - near_len))
            parts.append(attend_shared(query[start:end], rows, seen, self.sink))
            done += count
        return self.finish(parts[0] if len(parts) == 1 else torch.cat(parts), rope, config)

    def queries(self, x: Tensor, rope: Rope, config: V4Config) -> tuple[Tensor, Tensor]:
        """Rotated queries [tokens, heads, head_dim] and the low-rank states [tokens, query rank] they come from."""
        low = torch.mm(as_read(x, config), self.into[:, : len(self.low_norm)])
        low = rms_norm(low, self.low_norm, config.eps)
        query = torch.mm(as_read(low, config), self.up).unflatten(-1, (config.heads, -1))
        return rotate_tail_(rms_norm(query.float(), None, config.eps), *rope).to(x.dtype), low

    def rows(self, x: Tensor, rope: Rope, config: V4Config) -> Tensor:
        """The tokens' own rows [tokens, head_dim], rotated, as they are kept."""
        row = torch.mm(as_read(x, config), self.into[:, len(self.low_norm) :])
        row = rms_norm(row.float(), self.row_norm, config.eps).unsqueeze(1)
        return as_stored(rotate_tail_(row, *rope).squeeze(1), config).to(x.dtype)

    def finish(self, mixed: Tensor, rope: Rope, config: V4Config) -> Tensor:
        """From mixed rows [tokens, heads, head_dim] to [tokens, hidden]; mixed may be overwritten."""
        cos, sin = rope
        turned = rotate_tail_(mixed.float(), cos, -sin).to(mixed.dtype).flatten(1)
        groups = turned.unflatten(-1, (config.groups, -1)).transpose(0, 1)  # [groups, tokens, heads of it * head_dim]
        low = torch.bmm(groups, self.out_low).transpose(0, 1).flatten(1)
        return torch.mm(as_read(low, config), self.out)

    def _chosen(self, x: Tensor, low: Tensor, step: Step, held: Held, config: V4Config) -> tuple[Tensor | None, ...]:
        """Per sequence which entries each token reads: bool [tokens, entries], None for all of them."""
        if self.compressor is None:
            return (None,) * len(step.spans)
        folding = step.foldings[self.compressor.kind]
        if self.indexer is None or config.indexer is None:
            return folding.ready
        top_k = config.indexer.top_k
        if held.index is None or all(len(at) <= top_k for at in folding.entries_at):
            return folding.ready
        query, weights = self.indexer.queries(x, low, step.stretched, config)
        out: list[Tensor | None] = []
        for (start, end), ready, at in zip(step.spans, folding.ready, folding.entries_at, strict=True):
            if len(at) > top_k:
                keys = held.index.flatten(0, 1).index_select(0, at)
                scores = index_scores(query[start:end], keys, weights[start:end])
                everything = torch.ones_like(scores, dtype=torch.bool)
                ready = best_rows(scores, everything if ready is None else ready, top_k)
            out.append(ready)
        return tuple(out)


def _joined(near: Tensor | None, far: Tensor | None, count: int, widths: tuple[int, int]) -> Tensor | None:
    """Two masks [count, widths[i]] side by side, None standing for all; None when both are."""
    if near is None and far is None:
        return None
    given = near if near is not None else far
    assert given is not None
    parts = [
        torch.ones(count, width, dtype=torch.bool, device=given.device) if mask is None else mask
        for mask, width in zip((near, far), widths, strict=True)
    ]
    return torch.cat(parts, 1)
