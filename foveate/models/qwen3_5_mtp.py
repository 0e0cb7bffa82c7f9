"""Qwen3.5's own multi-token-prediction head as a draft model: one full-attention layer over pairs of token and state.

The pair of index p joins the embedding of token p + 1 with the trunk's final-normed state of p; the layer's output
predicts token p + 2, and fed back in place of that state goes on to p + 3 and beyond. Keys and values of pairs are a
projection of the pair alone, so `observe` needs no attention; the last state and its rope position wait in the
sequence's slot for the token that will follow. Rope positions are the trunk's; image tokens enter as their
placeholder's embedding, never as rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

from foveate.models.dflash import best_options
from foveate.models.drafting import Asked, Guesses, Pick, Seen
from foveate.models.interface import Capture, Memory, MemorySpec, PagedSpec, StateSpec
from foveate.models.qwen3_5 import FullAttention, Layer, Qwen35
from foveate.ops.attention import write_paged
from foveate.ops.fp8 import add_projected
from foveate.ops.layers import rms_norm
from foveate.ops.pages import flat_slots, gather_pages
from foveate.ops.rope import frequencies, frequency_axes, mrope_cos_sin, rotate_

KEYS, VALUES, LAST, PLACE = "draft.keys", "draft.values", "draft.last", "draft.place"


@dataclass(frozen=True, slots=True)
class MtpWeights:
    """The head's own weights. fc: [2 * hidden, hidden], the embedding's rows first; norms are float32 scales."""

    fc: Tensor
    token_norm: Tensor
    state_norm: Tensor
    layer: Layer
    norm: Tensor


class MtpDrafter:
    """The head as a `DraftModel` beside the trunk whose embedding and output head it shares."""

    capture = Capture(final=True)

    def __init__(self, weights: MtpWeights, target: Qwen35, most_len: int) -> None:
        """most_len: how far it may be fed back; trained for one, it grows less certain with each."""
        mixer = weights.layer.mixer
        assert isinstance(mixer, FullAttention), "the head has a full-attention layer"
        assert isinstance(mixer.qkvg, Tensor), "the head's matrices are plain ones"
        self.weights, self._mixer, self._qkvg = weights, mixer, mixer.qkvg
        self._target, self.most_len = target, most_len
        config, device = target.config, weights.fc.device
        self._frequency = frequencies(config.rope_theta, config.rotary).to(device)
        self._axes = torch.tensor(frequency_axes(config.sections)).to(device)

    def memory_spec(self) -> MemorySpec:
        """Keys and values of pairs; the last state and its rope position per sequence."""
        config, dtype = self._target.config, self.weights.fc.dtype
        shape = (config.kv_heads, config.head_dim)
        paged = (PagedSpec(KEYS, shape, dtype), PagedSpec(VALUES, shape, dtype))
        last = StateSpec(LAST, (config.hidden,), dtype)
        return MemorySpec(paged, (last, StateSpec(PLACE, (self._target.axes,), torch.float32)))

    @torch.no_grad()
    def observe(self, seen: Seen, memory: Memory) -> None:
        """Keep keys and values of the pairs that are complete now, and the last state of each sequence."""
        assert seen.final is not None, "the target was not asked for its final states"
        last, place = memory.state[LAST], memory.state[PLACE]
        ends = torch.tensor(list(accumulate(seen.lens))).to(seen.ids.device) - 1
        states, places = _shifted(seen.final, last, seen), _shifted(seen.positions.T.float(), place, seen)
        last.index_copy_(0, seen.slots, seen.final[ends].to(last.dtype))
        place.index_copy_(0, seen.slots, seen.positions.T[ends].float())
        # A sequence's first token completes no pair.
        starts = [0, *accumulate(seen.lens)][:-1]
        new = [start for start, past_len in zip(starts, seen.past_lens, strict=True) if not past_len]
        keep = torch.ones(len(seen.ids), dtype=torch.bool)
        keep[new] = False
        keep = keep.to(seen.ids.device)
        before = tuple(max(0, past_len - 1) for past_len in seen.past_lens)
        lens = tuple(n - (not past_len) for n, past_len in zip(seen.lens, seen.past_lens, strict=True))
        if not any(lens):
            return
        write_at = flat_slots(seen.pages, before, lens, memory.page_len)
        pair = self._pair(seen.ids[keep], states[keep])
        key, value = self._key_value(pair, self._cos_sin(places[keep].T.long()))
        write_paged(memory.paged[KEYS], write_at, key)
        write_paged(memory.paged[VALUES], write_at, value)

    @torch.no_grad()
    def propose(self, asked: Asked, memory: Memory, pick: Pick) -> Guesses:
        """Guess one token after another, each from the head's own last output."""
        held = [[self._context(memory, name, asked, row) for row in range(len(asked.slots))] for name in (KEYS, VALUES)]
        state, ids = memory.state[LAST][asked.slots], asked.anchors
        tokens, sure, options = [], [], []
        for depth in range(asked.draft_len):
            state, held = self._advance(ids, state, asked.positions[:, :, depth], held)
            logits = self._target.head(state)
            ids = pick(logits, depth)
            tokens.append(ids)
            sure.append(torch.log_softmax(logits, -1).gather(-1, ids[:, None]).squeeze(-1).exp())
            options.append(best_options(logits))
        logprobs, best = (torch.stack(part, 1) for part in zip(*options, strict=True))
        return Guesses(torch.stack(tokens, 1), torch.stack(sure, 1), best, logprobs)

    def _context(self, memory: Memory, name: str, asked: Asked, row: int) -> Tensor:
        """Keys or values of a sequence's pairs before the anchor's: [pairs, kv heads, dim]."""
        count = asked.past_lens[row] - 1
        return gather_pages(memory.paged[name], asked.pages[row][: -(-count // memory.page_len)], count)

    def _advance(
        self, ids: Tensor, state: Tensor, positions: Tensor, held: list[list[Tensor]]
    ) -> tuple[Tensor, list[list[Tensor]]]:
        """One pair per request [requests] through the layer: its normed output, and keys and values with it."""
        c, weights = self._target.config, self.weights
        x = self._pair(ids, state)
        normed, cos_sin = rms_norm(x, weights.layer.mixer_norm, c.eps), self._cos_sin(positions)
        sides = [c.heads * c.head_dim, 2 * c.kv_heads * c.head_dim, c.heads * c.head_dim]
        query, _, gate = torch.mm(normed, self._qkvg).split(sides, -1)
        query = rms_norm(query.float().view(len(x), c.heads, -1), None, c.eps).mul_(self._mixer.scale[: c.heads])
        query = rotate_(query, *cos_sin).to(x.dtype)
        new = self._key_value(x, cos_sin)
        held = [[torch.cat([past, own[None]]) for past, own in zip(*both, strict=True)]
                for both in zip(held, new, strict=True)]  # fmt: skip
        out = [
            F.scaled_dot_product_attention(
                q.view(1, c.kv_heads, -1, c.head_dim), *(t.transpose(0, 1)[None] for t in kv)
            )
            for q, *kv in zip(query, *held, strict=True)
        ]
        add_projected(x, torch.cat(out).view(len(x), -1) * gate.sigmoid(), self._mixer.out)
        weights.layer.mlp.add_to(x, rms_norm(x, weights.layer.mlp_norm, c.eps))
        return rms_norm(x, weights.norm, c.eps), held

    def _pair(self, ids: Tensor, states: Tensor) -> Tensor:
        """The layer's input [pairs, hidden] of following tokens and final-normed states."""
        weights, eps = self.weights, self._target.config.eps
        token = rms_norm(self._target.embed(ids), weights.token_norm, eps)
        return torch.mm(torch.cat([token, rms_norm(states, weights.state_norm, eps)], -1), weights.fc)

    def _key_value(self, pair: Tensor, cos_sin: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Rotated keys and values [pairs, kv heads, dim]."""
        c = self._target.config
        query, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
        normed = rms_norm(pair, self.weights.layer.mixer_norm, c.eps)
        both = torch.mm(normed, self._qkvg[:, query : query + 2 * kv]).view(len(pair), 2, c.kv_heads, c.head_dim)
        key = rms_norm(both[:, 0].float(), None, c.eps).mul_(self._mixer.scale[c.heads :])
        return rotate_(key, *cos_sin).to(pair.dtype), both[:, 1]

    def _cos_sin(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        return mrope_cos_sin(positions, self._frequency, self._axes)


def _shifted(values: Tensor, last: Tensor, seen: Seen) -> Tensor:
    """For each token [tokens, ...] the value of the token before it; a slice's first takes what its slot kept."""
    out = torch.empty_like(values)
    out[1:] = values[:-1]
    starts = torch.tensor([0, *accumulate(seen.lens)][:-1]).to(values.device)
    out[starts] = last.index_select(0, seen.slots).to(values.dtype)
    return out
