"""DeepSeek V4's own drafter, DSpark: a few sliding layers that fill a block of noise from the target's features.

Features are means over the target's residual streams after some of its layers. Of every standing token each stage keeps
one row, key and value at once, made of the projected features, in a ring of the window's length; `propose` runs
[anchor, noise, noise, ...] over these rows and itself, everyone seeing everyone, and leaves nothing behind. What an
image ends is cut off: the context is the run of tokens behind the last image, and where there is none nothing is
guessed. Nothing is read back from the device. The heads are `dspark`'s, fed with the state before the final norm.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from foveate.models.deepseek_v4 import DeepseekV4, Layer
from foveate.models.deepseek_v4_attention import as_read
from foveate.models.deepseek_v4_step import Rope
from foveate.models.drafting import Asked, Guesses, Pick, Seen
from foveate.models.dspark import Sequential
from foveate.models.interface import Capture, Memory, MemorySpec, StateSpec
from foveate.ops.hyper import Site, gather_streams, head_streams, mix_of, return_streams
from foveate.ops.layers import rms_norm
from foveate.ops.rings import Stretch, plan_keep, positions_of, ring_places
from foveate.ops.sinks import attend_shared
from foveate.ops.yarn import cos_sin

TAIL = "draft.tail"  # where the run of tokens behind the last image begins, per sequence


@dataclass(frozen=True, slots=True)
class SparkConfig:
    """block: slots of a block, each of which guesses; layers: the target's layers whose outputs are read."""

    block: int
    noise_id: int
    layers: tuple[int, ...]
    rank: int


@dataclass(frozen=True, slots=True)
class SparkWeights:
    """main: [layers * hidden, hidden]; norms are float32. The embedding and the head are the target's."""

    main: Tensor
    main_norm: Tensor
    stages: tuple[Layer, ...]
    site: Site
    norm: Tensor
    heads: Sequential


class SparkDrafter:
    """DSpark as a `DraftModel` beside the target from whose checkpoint it comes."""

    def __init__(self, config: SparkConfig, weights: SparkWeights, target: DeepseekV4) -> None:
        self.config, self.weights, self._target = config, weights, target
        self.capture, self.most_len = Capture(config.layers), config.block

    def memory_spec(self) -> MemorySpec:
        """A ring of rows per stage, and where each sequence's context begins."""
        c, dtype = self._target.config, self.weights.main.dtype
        rings = [StateSpec(f"draft.ring.{i}", (c.window, c.head_dim), dtype) for i in range(len(self.weights.stages))]
        return MemorySpec((), (*rings, StateSpec(TAIL, (1,), torch.float32)))

    @torch.no_grad()
    def observe(self, seen: Seen, memory: Memory) -> None:
        """Keep each stage's rows of the last tokens that stand, and where a run behind an image begins."""
        assert seen.features is not None, "the target was not asked for features"
        config, weights = self._target.config, self.weights
        note_tails(seen, memory.state[TAIL], config.vocab)
        stretches, starts = stretches_of(seen)
        keep = plan_keep(seen.slots, stretches, starts, config.window)
        at = positions_of(stretches).to(seen.slots.device).index_select(0, keep.take)
        main = torch.mm(as_read(seen.features.index_select(0, keep.take), config), weights.main)
        main = rms_norm(main, weights.main_norm, config.eps)
        rope = cos_sin(at, self._target.frequencies.plain)
        for i, stage in enumerate(weights.stages):
            rows = stage.attention.rows(main, rope, config)
            memory.state[f"draft.ring.{i}"].flatten(0, 1).index_copy_(0, keep.write_at, rows)

    @torch.no_grad()
    def propose(self, asked: Asked, memory: Memory, pick: Pick) -> Guesses:
        """Guess a block for each request; none for one whose context is empty."""
        states = self.block_states(asked, memory)[:, : asked.draft_len]
        flat = rms_norm(states.flatten(0, 1), self.weights.norm, self._target.config.eps)
        logits = self._target.head(flat).unflatten(0, states.shape[:2])
        guesses = self.weights.heads.choose(states, logits, asked.anchors, pick)
        return replace(guesses, known=has_context(asked, memory))

    def block_states(self, asked: Asked, memory: Memory) -> Tensor:
        """States [requests, block, hidden] of the blocks, before the final norm."""
        config, count, block = self._target.config, len(asked.past_lens), self.config.block
        ids = torch.full((count, block), self.config.noise_id, device=asked.anchors.device)
        ids[:, 0] = asked.anchors
        streams = self._target.embed(ids.flatten()).unsqueeze(1).repeat(1, config.streams, 1)
        stretches = [Stretch(0, past_len, past_len + block) for past_len in asked.past_lens]
        rope = cos_sin(positions_of(stretches).to(ids.device), self._target.frequencies.plain)
        context = context_of(asked, memory, config.window)
        for i, stage in enumerate(self.weights.stages):
            past = context.rows(memory.state[f"draft.ring.{i}"])
            streams = self._stage(stage, streams, ids.flatten(), rope, (past, context.seen))
        return head_streams(streams, self.weights.site, config.mixing).unflatten(0, (count, block))

    def _stage(
        self, stage: Layer, streams: Tensor, ids: Tensor, rope: Rope, past: tuple[list[Tensor], list[Tensor]]
    ) -> Tensor:
        """New streams [requests * block, streams, hidden]; past: rows of each request's context, and which count."""
        config, block = self._target.config, self.config.block
        mix = mix_of(streams, stage.attention_site, config.mixing)
        x = rms_norm(gather_streams(streams, mix.pre), stage.attention_norm, config.eps)
        query, _ = stage.attention.queries(x, rope, config)
        own = stage.attention.rows(x, rope, config)
        parts = []
        for q, mine, rows, seen in zip(query.split(block), own.split(block), *past, strict=True):
            mask = torch.cat([seen, seen.new_ones(block)]).expand(block, -1)
            parts.append(attend_shared(q, torch.cat([rows, mine]), mask, stage.attention.sink))
        streams = return_streams(streams, stage.attention.finish(torch.cat(parts), rope, config), mix)
        return stage.feed(streams, ids, None, config)


@dataclass(frozen=True, slots=True)
class RingContext:
    """The rows of each request's ring that stand before its anchor, oldest first, one request after another.

    read_at: int64 [rows], places in the ring; counts: bool [rows], whether a row is read; lens: rows of each request.
    """

    read_at: Tensor
    counts: Tensor
    lens: tuple[int, ...]

    def rows(self, ring: Tensor) -> list[Tensor]:
        """Rows [context, dim] of each request; those that do not count are zeros, whatever was never written."""
        rows = ring.flatten(0, 1).index_select(0, self.read_at).masked_fill(~self.counts.unsqueeze(1), 0)
        return list(rows.split(self.lens))

    @property
    def seen(self) -> list[Tensor]:
        """Which rows of each request count: bool [context]."""
        return list(self.counts.split(self.lens))


def context_of(asked: Asked, memory: Memory, window: int, back: int = 0) -> RingContext:
    """The context of each request: rows of the last `window` positions, leaving out the last `back` of all."""
    ends = [past_len - back for past_len in asked.past_lens]
    stretches, device = [Stretch(row, max(0, end - window), end) for row, end in enumerate(ends)], asked.slots.device
    lens = tuple(len(stretch) for stretch in stretches)
    tails = memory.state[TAIL].index_select(0, asked.slots).squeeze(1)
    spread = tails.repeat_interleave(torch.tensor(lens).to(device), output_size=sum(lens))
    behind = positions_of(stretches).to(device) >= spread
    return RingContext(ring_places(asked.slots, stretches, window), behind, lens)


def has_context(asked: Asked, memory: Memory) -> Tensor:
    """Whether tokens stand behind each request's last image: bool [requests]."""
    tails = memory.state[TAIL].index_select(0, asked.slots).squeeze(1)
    return tails < torch.tensor(asked.past_lens).to(tails.device)


def stretches_of(seen: Seen) -> tuple[list[Stretch], list[int]]:
    """The positions of each sequence's tokens, and where they begin on the flat axis."""
    lens = zip(seen.past_lens, seen.lens, strict=True)
    stretches = [Stretch(s, past_len, past_len + count) for s, (past_len, count) in enumerate(lens)]
    return stretches, [0, *accumulate(seen.lens)][:-1]


def note_tails(seen: Seen, tails: Tensor, vocab: int) -> None:
    """Move each sequence's tail [slots, 1] behind the last image token seen; a sequence that starts has all of it."""
    stretches, _ = stretches_of(seen)
    owner = torch.tensor([part.sequence for part in stretches for _ in range(len(part))], dtype=torch.int64)
    owner, behind = torch.stack([owner, positions_of(stretches) + 1]).to(tails.device)
    fresh = torch.tensor([not past_len for past_len in seen.past_lens]).to(tails.device)
    behind = behind.float().masked_fill(seen.ids < vocab, 0)
    found = tails.new_zeros(len(stretches)).scatter_reduce(0, owner, behind, "amax")
    before = tails.index_select(0, seen.slots).squeeze(1).masked_fill(fresh, 0)
    tails.index_copy_(0, seen.slots, torch.maximum(before, found).unsqueeze(1))
