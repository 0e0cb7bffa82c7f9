"""Plain decoding one step ahead of the plan: while the host reads, commits and plans, the device already goes on.

A step of greedy sequences tells by itself what the next one runs: the best id of each, one place further. So it is
launched before its predecessor's result is read, and what the plan then asks for is mostly on its way. Who is done was
run once too often, into memory that nobody reads; who starts over starts from zeros, so nothing has to be undone.
Promises that no token of a live sequence is run twice: what was run ahead is kept until its slice is planned. Knows
neither why a sequence ends nor what a token means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from foveate.core.errors import RequestFailed
from foveate.core.plan import Slice, SliceResult
from foveate.models.interface import NOTHING
from foveate.run.graphs import EvenSteps, Program
from foveate.run.sampler import Look, plainly_greedy


@dataclass(frozen=True, slots=True)
class Lane:
    """A sequence of a step: whose it is, the index of the token it runs, and how far its pages on the device reach."""

    uid: int
    slot: int
    start_at: int
    end_at: int


class Flight:
    """A step under way: its sequences, and the look at its logits on the way to the host."""

    def __init__(self, program: Program, lanes: tuple[Lane, ...]) -> None:
        assert program.forward is not None, "nothing was run"
        self.program, self.lanes = program, lanes
        glance, self._arrived = program.forward.glance, None
        if glance.is_cuda:  # the recording writes there again, so it is read before the next replay
            self._host: Tensor = torch.empty(glance.shape, dtype=glance.dtype, pin_memory=True)
            self._host.copy_(glance, non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record()
        else:
            self._host = glance.clone()

    def look(self) -> Look:
        """Wait for it."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return Look.of(self._host)

    def runs(self, slices: Sequence[Slice]) -> bool:
        """Whether these slices, in this order, are what is under way."""
        return len(slices) == len(self.lanes) and all(
            (lane.uid, lane.slot, lane.start_at) == (piece.uid, piece.state_slot, piece.start_at)
            and len(piece.tokens) == 1
            for lane, piece in zip(self.lanes, slices, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a sequence's token that was run before it was planned."""

    uid: int
    start_at: int
    best: int
    sound: bool

    def result(self) -> SliceResult:
        if self.sound:
            return SliceResult(self.uid, (self.best,))
        return SliceResult(self.uid, error=RequestFailed("the model produced values that are not finite"))


class Ahead:
    """Runs what of a plan is plain decoding, and one step more."""

    def __init__(self, even: EvenSteps) -> None:
        self._even = even
        self._flight: Flight | None = None
        self._kept: dict[int, Answer] = {}  # by state slot, which tells who has started over since

    def execute(self, slices: tuple[Slice, ...]) -> tuple[dict[int, SliceResult], tuple[Slice, ...]]:
        """Results by uid of the slices that are or were run here, and the other slices."""
        flight, self._flight = self._flight, None
        if flight is not None and flight.runs(slices):
            return self._landed(flight), ()
        if flight is not None:
            look = flight.look()
            for row, lane in enumerate(flight.lanes):
                self._kept[lane.slot] = Answer(lane.uid, lane.start_at, look.best[row], look.sound[row])
        results = {answer.uid: answer.result() for piece in slices if (answer := self._answer(piece)) is not None}
        rest = tuple(piece for piece in slices if piece.uid not in results)
        if results or not rest or not all(map(_is_plain, rest)) or not self._even.fits(rest):
            return results, rest
        page_len = self._even.memory.page_len
        lanes = tuple(Lane(p.uid, p.state_slot, p.start_at, len(p.pages) * page_len) for p in rest)
        return self._landed(Flight(self._even.launch(rest, NOTHING), lanes)), ()

    def _answer(self, piece: Slice) -> Answer | None:
        """What is known of a slice; what its slot knew of another life is forgotten."""
        answer = self._kept.pop(piece.state_slot, None)
        if answer is None or piece.start_at == 0:
            return None
        same = (answer.uid, answer.start_at, 1) == (piece.uid, piece.start_at, len(piece.tokens))
        assert same, "a sequence went on beside what was run ahead of it"
        return answer

    def _landed(self, flight: Flight) -> dict[int, SliceResult]:
        """The results of a step, behind which the next is launched before they are read."""
        if all(lane.start_at + 1 < lane.end_at for lane in flight.lanes):
            self._flight = Flight(
                self._even.advance(flight.program),
                tuple(Lane(lane.uid, lane.slot, lane.start_at + 1, lane.end_at) for lane in flight.lanes),
            )
        look = flight.look()
        return {
            lane.uid: Answer(lane.uid, lane.start_at, best, sound).result()
            for lane, best, sound in zip(flight.lanes, look.best, look.sound, strict=False)
        }


def _is_plain(piece: Slice) -> bool:
    """Whether nothing but the largest logit counts, now and later."""
    draw = piece.draw
    return draw is not None and not piece.draft_len and plainly_greedy(draw) and draw.sampling.logprobs is None
