"""Executes a plan's slices: one mixed forward, then one draw per slice that asks for it.

Owns the model, its memory and the image rows on its device. Obeys: whose turn it is was decided elsewhere. A row whose
logits are not finite fails its own request; an exception from the forward itself is the caller's to handle, because it
may have spoiled memory for the whole cohort.
"""

from __future__ import annotations

import torch
from torch import Tensor

from foveate.core.errors import RequestFailed
from foveate.core.plan import Slice, SliceResult, StepPlan, StepResult
from foveate.models.interface import LanguageModel, Memory
from foveate.run.batch import lay_out
from foveate.run.embeds import RowStore
from foveate.run.sampler import choose


class Runner:
    """One language model on one device, with the memory of all sequences."""

    def __init__(self, model: LanguageModel, memory: Memory, rows: RowStore, device: str) -> None:
        self._model, self._memory, self._device = model, memory, device
        self.rows = rows

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Run a plan with at least one slice. Results come in the order of its slices."""
        assert plan.slices and not any(piece.draft_len for piece in plan.slices), "nothing to run, or drafts"
        batch = lay_out(plan.slices, self.rows, self._device)
        logits = self._model.forward(batch, self._memory)
        return StepResult(plan.number, self._draw(plan.slices, logits))

    def _draw(self, slices: tuple[Slice, ...], logits: Tensor) -> tuple[SliceResult, ...]:
        drawing = [piece for piece in slices if piece.draw is not None]
        results = {piece.uid: SliceResult(piece.uid) for piece in slices}
        if drawing:
            sound = torch.isfinite(logits).all(-1).tolist()
            chosen = choose(logits, [piece.draw for piece in drawing if piece.draw is not None])
            for piece, finite, (token, logprob) in zip(drawing, sound, chosen, strict=True):
                results[piece.uid] = (
                    SliceResult(piece.uid, (token,), (logprob,) if logprob else ())
                    if finite
                    else SliceResult(piece.uid, error=RequestFailed("the model produced values that are not finite"))
                )
        return tuple(results.values())
