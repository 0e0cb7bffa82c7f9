"""Even steps: laid out in buffers that stay, run from recordings where the device can record (CUDA graphs).

Owns the shapes that steps are rounded up to, the buffers of each, and their recordings: one per number of sequences,
tokens of each and pages of each, made when first needed or beforehand. What changes from step to step travels in one
transfer; a replay then costs one launch. Places behind a step's own sequences belong to a spare page and slot that
nobody leases. Promises the results of the same step unrecorded. Refuses steps that are not even: prefill, images,
trees.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from foveate.core.plan import Slice
from foveate.models.even import EvenBatch, EvenForward, EvenModel
from foveate.models.interface import NOTHING, Capture, Forward, Memory
from foveate.ops.lanes import Lanes
from foveate.run.sampler import Look

log = logging.getLogger(__name__)

LEAST_PAGES, PAGES_GROWTH = 512, 8  # page tables are as wide as 512, 4096, ... or as the longest sequence
WIDTHS = (1, 2, 3, 4, 5, 6, 9, 13, 17)  # tokens of each sequence: an anchor and up to sixteen drafts
WARM_UPS = 2  # runs before a recording, for what is set up lazily


@dataclass(frozen=True, slots=True)
class Shape:
    """What a recording is made for: sequences, tokens of each, pages of each; a width above 1 verifies."""

    lanes: int
    width: int
    pages: int


@dataclass(frozen=True, slots=True)
class Spare:
    """A page and a state slot that no sequence ever holds."""

    page: int
    slot: int


class Buffers:
    """The inputs of one shape: the same integers on the host, where they are written, and on the device."""

    def __init__(self, shape: Shape, axes: int, spare: Spare, device: str) -> None:
        self.shape, self._spare = shape, spare
        lanes, width, tokens = shape.lanes, shape.width, shape.lanes * shape.width
        sizes = (tokens, axes * tokens, lanes, lanes, lanes * shape.pages, lanes)
        ends = list(accumulate(-(-size // 4) * 4 for size in sizes))  # each begins at a multiple of 16 bytes
        spans = [slice(end, end + size) for end, size in zip([0, *ends], sizes, strict=False)]
        self._host = torch.zeros(ends[-1], dtype=torch.int32, pin_memory=device != "cpu")
        self._device = torch.zeros(ends[-1], dtype=torch.int32, device=device)
        host, here = [self._host.numpy()[at] for at in spans], [self._device[at] for at in spans]
        self._ids, self._positions = host[0].reshape(lanes, width), host[1].reshape(axes, lanes, width)
        self._past, self._slots, self._pages = host[2], host[3], host[4].reshape(lanes, shape.pages)
        self._kept, self._kept_at = host[5], spans[5]
        self.ids, self.positions = here[0], here[1].view(axes, tokens)
        self._past_lens, self._slot_ids, self._table = here[2], here[3], here[4].view(lanes, shape.pages)
        self.kept = here[5]
        self.clear()

    def lanes(self, page_len: int) -> Lanes:
        """The sequences on the device, as they are after the latest `send`."""
        lanes, width = self.shape.lanes, self.shape.width
        count = torch.arange(lanes + 1, dtype=torch.int32, device=self.ids.device)
        return Lanes(
            starts=count * width,
            past_lens=self._past_lens,
            pages=self._table,
            slots=self._slot_ids,
            owner=count[:-1].repeat_interleave(width),
            width=width,
            page_len=page_len,
            settle=width == 1,
        )

    def clear(self) -> None:
        """No sequences: every place belongs to the spare page and slot, of which nothing is remembered."""
        self._host.zero_()
        self._pages.fill(self._spare.page)
        self._slots.fill(self._spare.slot)

    def fill(self, slices: Sequence[Slice]) -> None:
        """These sequences, and nothing behind them."""
        self.clear()
        for row, piece in enumerate(slices):
            length = len(piece.tokens)
            self._ids[row, :length] = piece.tokens
            self._positions[:, row, :length] = piece.positions
            self._past[row], self._slots[row] = piece.start_at, piece.state_slot
            self._pages[row, : len(piece.pages)] = piece.pages

    def send(self) -> None:
        """Bring the device's copy up to date, without waiting."""
        self._device.copy_(self._host, non_blocking=True)

    def advance(self, ids: Tensor) -> None:
        """On the device alone: these ids [sequences], one place further."""
        self.ids.copy_(ids)
        self.positions += 1
        self._past_lens += 1

    def send_kept(self, kept: Sequence[int]) -> None:
        """Tell how many tokens of each sequence stand."""
        self._kept[:] = [*kept, *[0] * (self.shape.lanes - len(kept))]
        self.kept.copy_(self._host[self._kept_at])  # waited for: the next step writes here again


@dataclass(slots=True)
class Program:
    """One shape ready to run: its buffers, its results, and how to run it and its commit."""

    buffers: Buffers
    run: Callable[[], None]
    commit: Callable[[], None]
    forward: EvenForward | None = None


@dataclass(frozen=True, slots=True)
class KeptPaths:
    """The verification of an even step, as `interface.Pending`."""

    program: Program
    drafted: tuple[bool, ...]

    @torch.inference_mode()
    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        """Write the states of these paths, one per sequence with drafts; the others' one token stands."""
        rest = iter(paths)
        self.program.buffers.send_kept([len(next(rest)) if drafted else 1 for drafted in self.drafted])
        self.program.commit()


@dataclass(slots=True)
class EvenSteps:
    """Runs even steps of one model in one memory.

    spare: of that memory. most_lanes, most_pages: of a step and of a sequence. record: whether to record what can be;
    only a CUDA device can.
    """

    model: EvenModel
    memory: Memory
    spare: Spare
    device: str
    most_lanes: int
    most_pages: int
    record: bool
    _programs: dict[tuple[Shape, Capture], Program] = field(default_factory=dict)
    _tables: list[int] = field(init=False)  # widths of page tables
    _pool: Any = None
    _side: Any = None  # the stream of warm-ups and recordings

    def __post_init__(self) -> None:
        # The widest takes the longest sequence and whatever fills it up.
        last, widths = self.most_pages + -(-WIDTHS[-1] // self.memory.page_len), [LEAST_PAGES]
        while widths[-1] < last:
            widths.append(widths[-1] * PAGES_GROWTH)
        self._tables = [min(width, last) for width in widths]

    def fits(self, slices: Sequence[Slice]) -> bool:
        """Whether a step of these slices is even enough."""
        even = len(slices) <= self.most_lanes and all(
            piece.draw is not None
            and len(piece.tokens) == 1 + piece.draft_len <= WIDTHS[-1]
            and not piece.spans
            and not piece.parents
            for piece in slices
        )
        return even and self._reach(slices) <= self._tables[-1]

    @torch.inference_mode()
    def run(self, slices: Sequence[Slice], capture: Capture) -> tuple[Forward, Callable[[], Look]]:
        """The step's results on the flat axis of its slices, as a mixed step of them would give, and a look at them.

        They last until the next step. Only the look waits for the device.
        """
        program = self.launch(slices, capture)
        forward, shape = program.forward, program.buffers.shape
        assert forward is not None
        lens = [len(piece.tokens) for piece in slices]
        at = [row * shape.width + i for row, length in enumerate(lens) for i in range(length)]
        take = _taker(at, self.device)
        pending = None if forward.kept is None else KeptPaths(program, tuple(length > 1 for length in lens))
        features, final = (None if x is None else take(x) for x in (forward.features, forward.final))
        return Forward(take(forward.logits), features, final, pending), partial(_look, forward.glance, at)

    def launch(self, slices: Sequence[Slice], capture: Capture) -> Program:
        """Start the step; the program's forward holds its results, for all places of its shape."""
        program = self._program(self.shape_of(slices), capture)
        program.buffers.fill(slices)
        program.buffers.send()
        program.run()
        return program

    def advance(self, program: Program) -> Program:
        """Start the step that follows a greedy one, from what is on the device alone.

        The page tables are those of the last `launch`.
        """
        assert program.forward is not None and program.buffers.shape.width == 1, "one token each follows by itself"
        program.buffers.advance(program.forward.glance[0])
        program.run()
        return program

    def shape_of(self, slices: Sequence[Slice]) -> Shape:
        """The shape that a step of these slices is rounded up to."""
        most = self._reach(slices)
        return Shape(_power_of_two(len(slices)), _width(slices), next(wide for wide in self._tables if wide >= most))

    def _reach(self, slices: Sequence[Slice]) -> int:
        """Pages to tell of: what fills a sequence up stands behind its own tokens and must find a column there."""
        width, page_len = _width(slices), self.memory.page_len
        return max(max(len(piece.pages), -(-(piece.start_at + width) // page_len)) for piece in slices)

    @torch.inference_mode()
    def prepare(self, capture: Capture = NOTHING) -> None:
        """Make and run the programs of plain decoding for every number of sequences and every width of page table.

        Only the spare page and slot are touched.
        """
        lanes = [2**i for i in range(_power_of_two(self.most_lanes).bit_length())]
        for count in reversed(lanes):  # the largest first: the others then fit in the memory it took
            for wide in self._tables:
                self._program(Shape(count, 1, wide), capture).run()

    @torch.inference_mode()
    def try_drafts(self) -> None:
        """Make, run and commit a verification of every width, so that what it needs is compiled."""
        for width in WIDTHS[1:]:
            program = self._program(Shape(1, width, self._tables[0]), NOTHING)
            program.run()
            program.commit()

    def _program(self, shape: Shape, capture: Capture) -> Program:
        key = (shape, capture)
        if key not in self._programs:
            self._programs[key] = self._make(shape, capture)
        return self._programs[key]

    def _make(self, shape: Shape, capture: Capture) -> Program:
        buffers = Buffers(shape, self.model.axes, self.spare, self.device)
        buffers.send()
        program = self._unrecorded(buffers, capture)
        if self.record and self.model.recordable:
            try:
                self._record(program)
            except torch.OutOfMemoryError:
                log.warning("no memory left to record steps: new shapes of steps run unrecorded from now on")
                self.record, program = False, self._unrecorded(buffers, capture)
        return program

    def _unrecorded(self, buffers: Buffers, capture: Capture) -> Program:
        batch = EvenBatch(buffers.ids, buffers.positions, buffers.lanes(self.memory.page_len))
        program = Program(buffers, lambda: None, lambda: None)

        def run() -> None:
            program.forward = self.model.run_even(batch, self.memory, capture)

        def commit() -> None:
            if program.forward is not None and program.forward.kept is not None:
                program.forward.kept.keep(buffers.kept)

        program.run, program.commit = run, commit
        return program

    def _record(self, program: Program) -> None:
        """Replace a program's calls by replays. Only the spare page and slot are touched on the way."""
        self._side = side = self._side or torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                program.run()
                program.commit()
        torch.cuda.current_stream(self.device).wait_stream(side)
        program.forward = None
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with self._recording(first):
            program.run()
        if program.forward is not None and program.forward.kept is not None:
            with self._recording(second):
                program.commit()
            program.commit = second.replay
        program.run = first.replay
        torch.cuda.synchronize(self.device)  # the buffers on the host are free again

    def _recording(self, graph: Any) -> AbstractContextManager[Any]:
        """Other threads go on using the device meanwhile: the encoder's, say. A stream of torch's own choice would be
        one for the whole process, on whichever device came first.
        """
        return torch.cuda.graph(graph, pool=self._pool, stream=self._side, capture_error_mode="thread_local")


def _width(slices: Sequence[Slice]) -> int:
    longest = max(len(piece.tokens) for piece in slices)
    return next(width for width in WIDTHS if width >= longest)


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()


def _taker(at: list[int], device: str) -> Callable[[Tensor], Tensor]:
    """Picks these rows; rows that stand at the front are a view."""
    if at == list(range(len(at))):
        return lambda x: x[: len(at)]
    index = torch.tensor(at).to(device, non_blocking=True)
    return lambda x: x.index_select(0, index)


def _look(seen: Tensor, at: list[int]) -> Look:
    look = Look.of(seen)
    return Look([look.best[i] for i in at], [look.sound[i] for i in at])
