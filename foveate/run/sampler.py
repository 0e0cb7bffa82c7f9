"""Chooses the next token of each drawing row from its logits.

Owns penalties, truncation and the draw. A draw depends on the request's seed and on how many tokens it has already
produced, on nothing else: not on the batch, not on preemption, not on the device. Reported log-probabilities are the
model's own, before any penalty or temperature. Refuses to know why a token is wanted.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from foveate.core.plan import Draw
from foveate.core.values import Logprob

GREEDY_BELOW = 1e-3  # temperatures under this are greedy: dividing by them only adds overflow


class Look(NamedTuple):
    """What the host knows of logits [rows, vocab]: the best id of each row, and whether all its values are finite."""

    best: list[int]
    sound: list[bool]

    @classmethod
    def of(cls, glance: Tensor) -> Look:
        """From `ops.lanes.glance`; the one wait for the device that greedy rows cost."""
        best, sound = glance.tolist()
        return cls(best, [bool(flag) for flag in sound])


def choose(
    logits: Tensor, draws: Sequence[Draw], masks: Sequence[Tensor | None] = (), best: Sequence[int] | None = None
) -> list[tuple[int, Logprob | None]]:
    """A token per row of logits [rows, vocab] (float32), with its log-probability where asked for.

    masks: of each row the ids that its grammar allows, if it has one; () where none has. best: as of `Look`, if it is
    known. Rows that are not greedy are drawn together: the device is waited for once, however many there are.
    """
    drawn = [row for row, draw in enumerate(draws) if not plainly_greedy(draw)]
    picked: dict[int, int] = {}
    if drawn:
        picks = [pick_row(logits[row], draws[row], masks[row] if masks else None) for row in drawn]
        picked = dict(zip(drawn, torch.stack(picks).tolist(), strict=True))
    if best is None:
        best = logits.argmax(-1).tolist() if len(drawn) < len(draws) else []
    tokens = [picked[row] if row in picked else best[row] for row in range(len(draws))]
    return [
        (token, logprob_of(logits[row], token, draw.sampling.logprobs))
        for row, (token, draw) in enumerate(zip(tokens, draws, strict=True))
    ]


def plainly_greedy(draw: Draw) -> bool:
    """Whether the draw is no more than the largest logit."""
    sampling = draw.sampling
    changed = sampling.logit_bias or sampling.needs_history or draw.forbidden
    return sampling.temperature < GREEDY_BELOW and not changed


def choose_row(raw: Tensor, draw: Draw, mask: Tensor | None = None) -> int:
    """The token of one row of logits [vocab], among those of the mask, bool [vocab] on any device."""
    return int(pick_row(raw, draw, mask))


def pick_row(raw: Tensor, draw: Draw, mask: Tensor | None = None) -> Tensor:
    """`choose_row` as an int64 scalar on the device of the logits, not waited for."""
    sampling = draw.sampling
    logits = _penalised(raw.double(), draw)
    if mask is not None:
        logits[~mask.to(logits.device)] = float("-inf")
    if sampling.temperature < GREEDY_BELOW:
        return logits.argmax()
    probs, order = torch.softmax(logits / sampling.temperature, -1).sort(descending=True, stable=True)
    keep = torch.ones_like(probs, dtype=torch.bool)
    if sampling.top_k:
        keep[sampling.top_k :] = False
    if sampling.top_p < 1:
        # A token stays while the mass before it is short of top_p, so the first one always does.
        keep &= probs.cumsum(-1) - probs < sampling.top_p
    if sampling.min_p:
        keep &= probs >= sampling.min_p * probs[0]
    mass = torch.where(keep, probs, 0).cumsum(-1)
    place = torch.searchsorted(mass, uniform(sampling.seed, draw.index) * mass[-1:], right=True)
    last = torch.where(keep, torch.arange(len(keep), device=keep.device), 0).amax()
    return order.gather(0, torch.minimum(place, last)).squeeze(0)


def _penalised(logits: Tensor, draw: Draw) -> Tensor:
    """Logits after repetition, frequency and presence penalties, bias and forbidden ids (a new tensor)."""
    sampling = draw.sampling
    if draw.history and sampling.repetition_penalty != 1:
        seen = torch.tensor(sorted(set(draw.history)), device=logits.device)
        values = logits[seen]
        logits[seen] = torch.where(
            values > 0, values / sampling.repetition_penalty, values * sampling.repetition_penalty
        )
    if draw.output_len and (sampling.frequency_penalty or sampling.presence_penalty):
        counts = Counter(draw.history[-draw.output_len :])
        seen = torch.tensor(list(counts), device=logits.device)
        times = torch.tensor(list(counts.values()), dtype=logits.dtype, device=logits.device)
        logits[seen] -= times * sampling.frequency_penalty + sampling.presence_penalty
    for token, bias in sampling.logit_bias:
        logits[token] += bias
    if draw.forbidden:
        logits[torch.tensor(sorted(draw.forbidden), device=logits.device)] = float("-inf")
    return logits


def uniform(seed: int, index: int) -> float:
    """A number in [0, 1) from the request's seed and the output index: the same on every device and in every batch."""
    digest = hashlib.blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2**53


def logprob_of(logits: Tensor, token: int, top: int | None) -> Logprob | None:
    """The model's own log-probability of a token beside its `top` best ones; None when none was asked for."""
    if top is None:
        return None
    logprobs = torch.log_softmax(logits.float(), -1)
    best = logprobs.topk(top)
    pairs = tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))
    return Logprob(token, float(logprobs[token]), pairs)
