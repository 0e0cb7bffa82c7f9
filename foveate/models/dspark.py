"""DSpark's heads on a DFlash backbone: a Markov bias from the token before, and how sure the drafter is.

`logits_i += W2 f(W1[prev])`, where f is nothing (vanilla), a gate read from the hidden state (gated), or a recurrent
cell along the block (rnn); the confidence of slot i is a sigmoid of a linear map of its hidden state and, where
trained so, of W1[prev]. Slots are walked left to right, because each bias needs the choice before it. Owns these heads
only (arXiv 2607.05147); the backbone is `dflash`'s.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from foveate.models.dflash import best_options
from foveate.models.drafting import Guesses, Pick


@dataclass(frozen=True, slots=True)
class MarkovHead:
    """rows: [vocab, rank]; bias: [rank, draft vocab]; cell, offset: [inputs, outputs] and [outputs] of gate or cell."""

    rows: Tensor
    bias: Tensor
    kind: str
    cell: Tensor | None = None
    offset: Tensor | None = None

    def step(self, before: Tensor, hidden: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Bias [requests, draft vocab] from W1[prev] and hidden states [requests, ...], and the state afterwards."""
        if self.cell is None or self.offset is None:
            return torch.mm(before, self.bias).float(), state
        if self.kind == "gated":
            gate = torch.addmm(self.offset, torch.cat([hidden, before], -1), self.cell).sigmoid()
            return torch.mm(gate * before, self.bias).float(), state
        gate, new, out = torch.addmm(self.offset, torch.cat([state, before, hidden], -1), self.cell).chunk(3, -1)
        state = torch.lerp(new.tanh(), state, gate.sigmoid())
        return torch.mm(out.tanh(), self.bias).float(), state


@dataclass(frozen=True, slots=True)
class ConfidenceHead:
    """weight: [hidden (+ rank), 1]; offset: [1]."""

    weight: Tensor
    offset: Tensor

    def sure(self, hidden: Tensor, before: Tensor | None) -> Tensor:
        """The probability [requests] that a slot is accepted if those before it are."""
        read = hidden if before is None else torch.cat([hidden, before], -1)
        return torch.addmm(self.offset, read.to(self.weight.dtype), self.weight).squeeze(-1).float().sigmoid()


@dataclass(frozen=True, slots=True)
class Sequential:
    """The walk. targets: [draft vocab] target ids or None; confidence reads W1[prev] when `with_markov`."""

    markov: MarkovHead | None
    confidence: ConfidenceHead | None
    with_markov: bool
    targets: Tensor | None = None

    def choose(self, hidden: Tensor, logits: Tensor, anchors: Tensor, pick: Pick) -> Guesses:
        """Left to right, each slot's best token under the bias of the choice before."""
        markov, previous = self.markov, anchors
        state = hidden.new_zeros(len(anchors), markov.bias.shape[0]) if markov else hidden.new_zeros(0)
        tokens, sure, biased = [], [], []
        for depth in range(logits.shape[1]):
            here, before = logits[:, depth], None
            if markov is not None:
                before = F.embedding(previous, markov.rows)
                bias, state = markov.step(before, hidden[:, depth], state)
                here = here + bias
            chosen = pick(here, depth)
            if self.confidence is not None:
                sure.append(self.confidence.sure(hidden[:, depth], before if self.with_markov else None))
            else:
                sure.append(torch.log_softmax(here, -1).gather(-1, chosen.unsqueeze(-1)).squeeze(-1).exp())
            previous = chosen if self.targets is None else self.targets[chosen]
            tokens.append(previous)
            biased.append(here)
        logprobs, ids = best_options(torch.stack(biased, 1))
        ids = ids if self.targets is None else self.targets[ids]
        return Guesses(torch.stack(tokens, 1), torch.stack(sure, 1), ids, logprobs)
