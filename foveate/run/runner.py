"""Executes a plan's slices: one mixed forward, then what each slice that asks for it draws and accepts.

Owns the model, its memory, the image rows on its device and the drafter. Obeys: whose turn it is, and who is guessed
for, was decided elsewhere. A row whose logits are not finite fails its own request; an exception from the forward
itself is the caller's to handle, because it may have spoiled memory for the whole cohort. The drafter is shown what
stands only in `draft`, so that its failure costs no request a token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

import torch
from torch import Tensor

from foveate.core.errors import RequestFailed
from foveate.core.plan import DraftGuess, DraftWish, Slice, SliceResult, StepPlan, StepResult
from foveate.models.drafting import Seen
from foveate.models.interface import NOTHING, Batch, Forward, LanguageModel, Memory
from foveate.ops.lanes import glance
from foveate.run.ahead import Ahead
from foveate.run.batch import lay_out
from foveate.run.draft import Drafter
from foveate.run.embeds import RowStore
from foveate.run.grammar import Grammars
from foveate.run.graphs import EvenSteps
from foveate.run.sampler import Look, choose
from foveate.run.verify import Path, settle


class Runner:
    """One language model on one device, with the memory of all sequences."""

    def __init__(
        self,
        model: LanguageModel,
        memory: Memory,
        rows: RowStore,
        device: str,
        drafter: Drafter | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        """`memory` holds what the drafter keeps too; without `grammars`, no draw may have one."""
        self._model, self._memory, self._device = model, memory, device
        self.rows, self.drafter, self._grammars = rows, drafter, grammars
        self.even: EvenSteps | None = None  # runs the steps that fit it, in the same memory; all are mixed without it
        self.ahead: Ahead | None = None  # takes what of a plan is plain decoding, where nobody guesses
        self._unseen: Callable[[], Seen] | None = None  # what stands of the last step, until the drafter has seen it

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Run a plan with at least one slice. Results come in the order of its slices."""
        assert plan.slices, "nothing to run"
        if self.ahead is None or self.drafter is not None:
            return StepResult(plan.number, self._execute(plan.slices))
        results, rest = self.ahead.execute(plan.slices)
        if rest:
            results |= {result.uid: result for result in self._execute(rest)}
        return StepResult(plan.number, tuple(results[piece.uid] for piece in plan.slices))

    def _execute(self, slices: tuple[Slice, ...]) -> tuple[SliceResult, ...]:
        """Results of slices, in their order."""
        if self.even is not None and self.even.fits(slices):
            return self._run_even(slices, self.even)
        batch = lay_out(slices, self.rows, self._device)
        if self.drafter is None and not any(batch.verify):
            return _drawn(slices, self._model.forward(batch, self._memory), self._grammars)
        return self._run(slices, batch, self.drafter)

    @torch.inference_mode()
    def draft(self, wishes: Sequence[DraftWish]) -> list[DraftGuess]:
        """Show the drafter what the last step made stand; then guesses for requests that were in it, one per wish.

        Called after every step, with wishes or without. Raises what the drafter raises; then ask it no more.
        """
        assert self.drafter is not None, "nobody to ask"
        if self._unseen is not None:
            seen, self._unseen = self._unseen(), None
            self.drafter.observe(seen, self._memory)
        return self.drafter.propose(wishes, self._memory) if wishes else []

    def stop_drafting(self) -> None:
        """Let go of the drafter: from now on nothing is captured for it. Drafts already planned are still verified."""
        self.drafter = self._unseen = None

    def _run_even(self, slices: tuple[Slice, ...], even: EvenSteps) -> tuple[SliceResult, ...]:
        """`_run` for a step that fits `even`."""
        capture = self.drafter.capture if self.drafter is not None else NOTHING
        forward, look = even.run(slices, capture)
        results, paths = self._settled(slices, forward, look)
        if self.drafter is not None:
            self._unseen = partial(_seen, slices, lay_out(slices, self.rows, self._device), forward, paths)
        return results

    def _run(self, slices: tuple[Slice, ...], batch: Batch, drafter: Drafter | None) -> tuple[SliceResult, ...]:
        """Run, accept, commit what stands, and keep it for the drafter to see."""
        capture = drafter.capture if drafter is not None else NOTHING
        forward = self._model.run(batch, self._memory, capture)
        results, paths = self._settled(slices, forward)
        if drafter is not None:
            self._unseen = partial(_seen, slices, batch, forward, paths)
        return results

    def _settled(
        self, slices: tuple[Slice, ...], forward: Forward, look: Callable[[], Look] | None = None
    ) -> tuple[tuple[SliceResult, ...], dict[int, Path]]:
        """Results of the slices, and of those that were verified the paths that stand, committed."""
        if forward.pending is None:
            return _drawn(slices, forward.logits, self._grammars, look), {}
        drawing = [piece for piece in slices if piece.draw is not None]
        _masks(drawing, self._grammars)
        settled = settle(drawing, forward.logits, self._grammars, None if look is None else look())
        by_uid = {result.uid: result for result, _ in settled}
        results = tuple(by_uid.get(piece.uid, SliceResult(piece.uid)) for piece in slices)
        paths = {result.uid: path for result, path in settled}
        forward.pending.commit([paths[piece.uid] for piece in slices if piece.draft_len])
        return results, paths


def _drawn(
    slices: tuple[Slice, ...], logits: Tensor, grammars: Grammars | None, look: Callable[[], Look] | None = None
) -> tuple[SliceResult, ...]:
    """Results of slices without drafts; look: gives what is known of the logits."""
    drawing = [piece for piece in slices if piece.draw is not None]
    results = {piece.uid: SliceResult(piece.uid) for piece in slices}
    if drawing:
        masks = _masks(drawing, grammars)
        usable = [mask if isinstance(mask, Tensor) else None for mask in masks]
        best, sound = Look.of(glance(logits)) if look is None else look()
        chosen = choose(logits, [piece.draw for piece in drawing if piece.draw is not None], usable, best)
        for piece, mask, finite, (token, logprob) in zip(drawing, masks, sound, chosen, strict=True):
            error = mask if isinstance(mask, RequestFailed) else None
            if not finite:
                error = RequestFailed("the model produced values that are not finite")
            results[piece.uid] = (
                SliceResult(piece.uid, (token,), (logprob,) if logprob else ())
                if error is None
                else SliceResult(piece.uid, error=error)
            )
    return tuple(results.values())


def _masks(drawing: Sequence[Slice], grammars: Grammars | None) -> list[Tensor | RequestFailed | None]:
    """What each slice's grammar allows; asked for before the logits are, so that a device still works meanwhile."""
    draws = [piece.draw for piece in drawing if piece.draw is not None]
    ruled = any(draw.sampling.grammar or draw.sampling.thought_len for draw in draws)
    assert grammars is not None or not ruled, "a grammar and nobody to follow it"
    return [None for _ in draws] if grammars is None else grammars.masks(draws)


def _seen(slices: tuple[Slice, ...], batch: Batch, forward: Forward, paths: dict[int, Path]) -> Seen:
    """What stands of a step: every token but the rejected drafts."""
    seen = Seen(
        ids=batch.ids,
        positions=batch.positions,
        past_lens=batch.past_lens,
        lens=batch.query_lens,
        pages=batch.pages,
        slots=batch.slots,
        features=forward.features,
        final=forward.final,
        streams=forward.streams,
    )
    if forward.pending is None:
        return seen
    starts = batch.offsets
    kept = [
        [start + at for at in (paths[piece.uid] if piece.draft_len else range(len(piece.tokens)))]
        for piece, start in zip(slices, starts, strict=False)
    ]
    at = torch.tensor(list(chain.from_iterable(kept)), device=batch.ids.device)
    return replace(
        seen,
        ids=seen.ids[at],
        positions=seen.positions[:, at],
        lens=tuple(len(one) for one in kept),
        features=None if seen.features is None else seen.features[at],
        final=None if seen.final is None else seen.final[at],
        streams=None if seen.streams is None else seen.streams[at],
    )
