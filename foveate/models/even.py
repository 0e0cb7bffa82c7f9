"""Steps that can be recorded: every sequence has the same number of tokens, and all of it is told by tensors.

Owns the shapes of that contract between a model and who records (`run.graphs`). An even step decodes (one token each)
or verifies chains of drafts (an anchor and the same number of drafts each; who has fewer is filled up behind its own,
and what is written there is never read). Knows no requests and no recording.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from foveate.models.interface import Capture, Memory
from foveate.ops.lanes import Lanes


@dataclass(frozen=True, slots=True)
class EvenBatch:
    """One even step; tensors int32. ids: [tokens], sequence by sequence; positions: [axes, tokens]."""

    ids: Tensor
    positions: Tensor
    lanes: Lanes


class Kept(Protocol):
    """A verification whose states are still to be written."""

    def keep(self, kept: Tensor) -> None:
        """Bring the states past the first `kept` int32 [sequences] tokens of each; may be recorded and repeated."""
        ...


@dataclass(frozen=True, slots=True)
class EvenForward:
    """What an even step gave for all its tokens.

    logits: float32 [tokens, vocab]; glance: as of `ops.lanes`, of these. features, final: as in `interface.Forward`.
    kept: None where states were written at once.
    """

    logits: Tensor
    glance: Tensor
    features: Tensor | None
    final: Tensor | None
    kept: Kept | None


@runtime_checkable
class EvenModel(Protocol):
    """A model that can run even steps."""

    vocab_size: int
    axes: int
    recordable: bool  # whether all that an even step does can be recorded

    def run_even(self, batch: EvenBatch, memory: Memory, capture: Capture) -> EvenForward:
        """Run the step. Reads nothing back and depends on no length, so the device's part of it can be replayed."""
        ...
