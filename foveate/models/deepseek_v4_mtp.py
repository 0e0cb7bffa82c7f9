"""The single multi-token-prediction layer of the first DeepSeek V4 releases: one sliding layer over pairs.

The pair of index p joins the embedding of token p + 1 with the trunk's residual streams of p, as they are before the
head, stream by stream; the layer's output predicts token p + 2 and, as streams, takes the trunk's place for the next
pair. A pair's row depends on the pair alone, so `observe` needs no attention; the last streams wait in the sequence's
slot for the token that will follow. As for DSpark, the context is the run of tokens behind the last image, and where
there is none nothing is guessed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foveate.models.deepseek_v4 import DeepseekV4, Layer
from foveate.models.deepseek_v4_attention import as_read
from foveate.models.deepseek_v4_dspark import TAIL, RingContext, context_of, has_context, note_tails, stretches_of
from foveate.models.deepseek_v4_step import Rope
from foveate.models.dflash import best_options
from foveate.models.drafting import Asked, Guesses, Pick, Seen
from foveate.models.interface import Capture, Memory, MemorySpec, StateSpec
from foveate.ops.hyper import Mix, Site, gather_streams, head_streams, mix_of, return_streams
from foveate.ops.layers import rms_norm
from foveate.ops.rings import Stretch, plan_keep, positions_of
from foveate.ops.sinks import attend_shared
from foveate.ops.yarn import cos_sin

RING, LAST = "draft.ring", "draft.last"


@dataclass(frozen=True, slots=True)
class V4MtpWeights:
    """of_token, of_state: [hidden, hidden]; norms are float32. The embedding and the head are the target's."""

    token_norm: Tensor
    state_norm: Tensor
    of_token: Tensor
    of_state: Tensor
    layer: Layer
    site: Site
    norm: Tensor


class V4MtpDrafter:
    """The layer as a `DraftModel` beside the target from whose checkpoint it comes."""

    capture = Capture(streams=True)

    def __init__(self, weights: V4MtpWeights, target: DeepseekV4, most_len: int) -> None:
        """most_len: how far it may be fed back; trained for one, it grows less certain with each."""
        self.weights, self._target, self.most_len = weights, target, most_len

    def memory_spec(self) -> MemorySpec:
        """A ring of pairs' rows, the last streams, and where each sequence's context begins."""
        c, dtype = self._target.config, self.weights.of_token.dtype
        ring, last = StateSpec(RING, (c.window, c.head_dim), dtype), StateSpec(LAST, (c.streams * c.hidden,), dtype)
        return MemorySpec((), (ring, last, StateSpec(TAIL, (1,), torch.float32)))

    @torch.no_grad()
    def observe(self, seen: Seen, memory: Memory) -> None:
        """Keep the rows of the last pairs that are complete now, and the last streams of each sequence."""
        assert seen.streams is not None, "the target was not asked for its streams"
        note_tails(seen, memory.state[TAIL], self._target.config.vocab)
        stretches, starts = stretches_of(seen)
        device, kept = seen.slots.device, memory.state[LAST]
        before = torch.empty_like(seen.streams)  # the streams of the token before each
        before[1:] = seen.streams[:-1]
        before[torch.tensor(starts).to(device)] = kept.index_select(0, seen.slots).to(before.dtype)
        ends = torch.tensor([start + len(part) - 1 for start, part in zip(starts, stretches, strict=True)])
        kept.index_copy_(0, seen.slots, seen.streams.index_select(0, ends.to(device)).to(kept.dtype))
        # A sequence's first token completes no pair.
        pairs = [Stretch(part.sequence, max(part.start_at - 1, 0), part.end_at - 1) for part in stretches]
        begins = [start + (not part.start_at) for start, part in zip(starts, stretches, strict=True)]
        window = self._target.config.window
        keep = plan_keep(seen.slots, pairs, begins, window)
        if not len(keep.take):
            return
        last = [Stretch(0, max(pair.start_at, pair.end_at - window), pair.end_at) for pair in pairs]
        rope = cos_sin(positions_of(last).to(device), self._target.frequencies.plain)
        streams = self._pair(seen.ids.index_select(0, keep.take), before.index_select(0, keep.take))
        rows = self.weights.layer.attention.rows(self._read(streams)[0], rope, self._target.config)
        memory.state[RING].flatten(0, 1).index_copy_(0, keep.write_at, rows)

    @torch.no_grad()
    def propose(self, asked: Asked, memory: Memory, pick: Pick) -> Guesses:
        """Guess one token after another, each from the layer's own last output; nothing where an image came last."""
        context = context_of(asked, memory, self._target.config.window, back=1)
        held = context.rows(memory.state[RING])
        past = torch.tensor(asked.past_lens).to(asked.slots.device)
        known = has_context(asked, memory)
        # Where an image came last, or nothing at all, what is computed is thrown away.
        state = memory.state[LAST].index_select(0, asked.slots).masked_fill(~known.unsqueeze(1), 0)
        ids, tokens, sure, options = asked.anchors, [], [], []
        for depth in range(asked.draft_len):
            state, held = self._advance(ids, state, past - 1 + depth, (held, context))
            streams = state.unflatten(-1, (self._target.config.streams, -1))
            final = head_streams(streams, self.weights.site, self._target.config.mixing)
            logits = self._target.head(rms_norm(final, self.weights.norm, self._target.config.eps))
            ids = pick(logits, depth)
            tokens.append(ids)
            sure.append(torch.log_softmax(logits, -1).gather(-1, ids[:, None]).squeeze(-1).exp())
            options.append(best_options(logits))
        logprobs, best = (torch.stack(part, 1) for part in zip(*options, strict=True))
        return Guesses(torch.stack(tokens, 1), torch.stack(sure, 1), best, logprobs, known)

    def _advance(
        self, ids: Tensor, state: Tensor, at: Tensor, past: tuple[list[Tensor], RingContext]
    ) -> tuple[Tensor, list[Tensor]]:
        """One pair per request [requests] through the layer: its streams, flat, and the rows with its own."""
        config, layer, (held, context) = self._target.config, self.weights.layer, past
        rope: Rope = cos_sin(at, self._target.frequencies.plain)
        streams = self._pair(ids, state)
        x, mix = self._read(streams)
        query, _ = layer.attention.queries(x, rope, config)
        own = layer.attention.rows(x, rope, config)
        held = [torch.cat([rows, row[None]]) for rows, row in zip(held, own, strict=True)]
        parts = []
        for q, rows, seen in zip(query, held, context.seen, strict=True):
            mask = torch.cat([seen, seen.new_ones(len(rows) - len(seen))])
            near = slice(max(0, len(rows) - config.window), None)
            parts.append(attend_shared(q[None], rows[near], mask[near][None], layer.attention.sink))
        streams = return_streams(streams, layer.attention.finish(torch.cat(parts), rope, config), mix)
        return layer.feed(streams, ids, None, config).flatten(1), held

    def _pair(self, ids: Tensor, states: Tensor) -> Tensor:
        """The layer's input [pairs, streams, hidden] of tokens and the streams [pairs, streams * hidden] before."""
        config, w = self._target.config, self.weights
        token = as_read(rms_norm(self._target.embed(ids), w.token_norm, config.eps), config)
        normed = rms_norm(states.unflatten(-1, (config.streams, -1)), w.state_norm, config.eps).flatten(0, 1)
        streams = torch.mm(as_read(normed, config), w.of_state).unflatten(0, (-1, config.streams))
        return streams + torch.mm(token, w.of_token).unsqueeze(1)

    def _read(self, streams: Tensor) -> tuple[Tensor, Mix]:
        """What the attention reads of streams: normed [pairs, hidden]; and how its result returns."""
        config, layer = self._target.config, self.weights.layer
        mix = mix_of(streams, layer.attention_site, config.mixing)
        return rms_norm(gather_streams(streams, mix.pre), layer.attention_norm, config.eps), mix
