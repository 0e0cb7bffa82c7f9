"""What all layers of one DeepSeek V4 forward share: rope, windows, the places of rings and entries, and the trial.

Per sequence the model keeps rings in its state slot, the last rows of the sliding window and of the open compression
windows, and compressed entries in its pages. Everything is addressed by position, so a sequence without a past reads
nothing, whatever its slot holds. Sequences under verification leave their rings alone: `Trial` holds the step's rows
until it is known how many tokens stand. Entries that a rejected token completed are never read, because their number
follows from the length, and are overwritten when the position comes again. Knows no weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from foveate.models.deepseek_v4_config import Compression, V4Config
from foveate.models.interface import Batch, Memory
from foveate.ops.compress import Windows, carried_from, entry_rows, plan_windows
from foveate.ops.rings import Keep, Stretch, plan_keep, ring_places
from foveate.ops.yarn import cos_sin

Rope = tuple[Tensor, Tensor]  # cos and sin [tokens, 1, rotated / 2]


@dataclass(frozen=True, slots=True)
class Ring:
    """What a step reads of one kind of ring, per sequence, and what it keeps there of the settled ones."""

    length: int
    carried: tuple[Stretch, ...]
    read_at: Tensor
    keep: Keep | None

    def read(self, ring: Tensor) -> Tensor:
        """The carried rows of all sequences, one after another: [rows, ...]."""
        return ring.flatten(0, 1).index_select(0, self.read_at)


@dataclass(frozen=True, slots=True)
class Folding:
    """One kind of compression in a step.

    ring: of the open windows' rows; windows: those that the step completes; phases: int64 [tokens], each token's place
    in its window; rope: of the new entries; entries_at: per sequence the flat rows of its entries, new ones included;
    ready: per sequence bool [tokens, entries], which entries a token may see, None where it is all.
    """

    ring: Ring
    windows: Windows
    phases: Tensor
    rope: Rope
    entries_at: tuple[Tensor, ...]
    ready: tuple[Tensor | None, ...]


@dataclass(slots=True)
class Trial:
    """The verified sequences of one step: where they stand, and the rows that their rings have not been given yet."""

    slots: Tensor
    begun: tuple[Stretch, ...]
    starts: tuple[int, ...]
    held: list[tuple[int, Tensor, Tensor]] = field(default_factory=list)

    @torch.no_grad()
    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        """Keep what these chains of accepted tokens add, one per verified sequence, each beginning with the anchor."""
        assert len(paths) == len(self.begun), "not one path each"
        assert all(list(path) == list(range(len(path))) and path for path in paths), "only chains are verified"
        stand = [Stretch(s.sequence, s.start_at, s.start_at + len(p)) for s, p in zip(self.begun, paths, strict=True)]
        keeps = {length: plan_keep(self.slots, stand, self.starts, length) for length in {one[0] for one in self.held}}
        for length, ring, rows in self.held:
            keeps[length].write(ring, rows)


@dataclass(frozen=True, slots=True)
class Step:
    """One forward. spans: each sequence's tokens [start, end) on the flat axis; image: bool [tokens] or None.

    seen: per sequence bool [tokens, carried + tokens], which rows of the window a token sees, None where it is all.
    """

    ids: Tensor
    image: Tensor | None
    spans: tuple[tuple[int, int], ...]
    plain: Rope
    stretched: Rope
    window: Ring
    seen: tuple[Tensor | None, ...]
    foldings: dict[Compression, Folding]
    trial: Trial | None

    def keep(self, ring: Ring, state: Tensor, rows: Tensor) -> None:
        """Put the step's rows [tokens, ...] into a ring [slots, length, ...], those under verification later."""
        if ring.keep is not None:
            ring.keep.write(state, rows)
        if self.trial is not None:
            self.trial.held.append((ring.length, state, rows))


@dataclass(frozen=True, slots=True)
class Frequencies:
    """Angular frequencies [rotated / 2] of layers without and with compression."""

    plain: Tensor
    stretched: Tensor


def ring_len(compression: Compression) -> int:
    """Rows of a ring of open windows."""
    return compression.ratio * (2 if compression.sparse else 1)


def begin_step(batch: Batch, memory: Memory, config: V4Config, frequencies: Frequencies) -> Step:
    """Plan a forward over a batch."""
    assert not any(batch.parents), "drafts are verified as chains"
    offsets, lens = batch.offsets, list(zip(batch.past_lens, batch.query_lens, strict=True))
    new = [Stretch(s, past_len, past_len + query_len) for s, (past_len, query_len) in enumerate(lens)]
    carried = [Stretch(s, max(0, part.start_at - config.window + 1), part.start_at) for s, part in enumerate(new)]
    layout = _Layout(batch, memory, new)
    verified = [s for s, verify in enumerate(batch.verify) if verify]
    blocks = [[(a - start, b - start) for a, b in batch.blocks if start <= a < start + len(part)]
              for start, part in zip(offsets, new, strict=False)]  # fmt: skip
    device = batch.ids.device
    return Step(
        ids=batch.ids,
        image=batch.ids >= config.vocab if config.seeing else None,
        spans=tuple(pairwise(offsets)),
        plain=cos_sin(batch.positions[0], frequencies.plain),
        stretched=cos_sin(batch.positions[0], frequencies.stretched),
        window=layout.ring(carried, config.window),
        seen=tuple(window_mask(*pair, config.window, device) for pair in zip(new, blocks, strict=True)),
        foldings={kind: layout.folding(kind, frequencies) for kind in config.compressions},
        trial=Trial(batch.slots, tuple(new[s] for s in verified), tuple(offsets[s] for s in verified))
        if verified
        else None,
    )


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where a batch's tokens stand, as the plans of rings and entries need it."""

    batch: Batch
    memory: Memory
    new: list[Stretch]

    def ring(self, carried: list[Stretch], length: int) -> Ring:
        batch = self.batch
        verify = batch.verify or (False,) * len(self.new)
        settled = [s for s, under_trial in enumerate(verify) if not under_trial]
        new, starts = [self.new[s] for s in settled], [batch.offsets[s] for s in settled]
        keep = plan_keep(batch.slots, new, starts, length) if settled else None
        return Ring(length, tuple(carried), ring_places(batch.slots, carried, length), keep)

    def folding(self, kind: Compression, frequencies: Frequencies) -> Folding:
        ratio, device = kind.ratio, self.batch.ids.device
        carried = [
            Stretch(part.sequence, carried_from(part.start_at, ratio, kind.sparse), part.start_at) for part in self.new
        ]
        entries_at = tuple(
            entry_rows(row, part.end_at // ratio, ratio, self.memory.page_len)
            for row, part in zip(self.batch.pages, self.new, strict=True)
        )
        windows = plan_windows(carried, self.new, ratio, kind.sparse, entries_at)
        phases = torch.cat([torch.arange(part.start_at, part.end_at) % ratio for part in self.new]).to(device)
        return Folding(
            ring=self.ring(carried, ring_len(kind)),
            windows=windows,
            phases=phases,
            rope=cos_sin(windows.first_at, frequencies.stretched),
            entries_at=entries_at,
            ready=tuple(ready_mask(part, ratio, device) for part in self.new),
        )


def window_mask(new: Stretch, blocks: list[tuple[int, int]], window: int, device: torch.device) -> Tensor | None:
    """What new tokens see of the carried rows (at most window - 1) and of each other, tokens of a block all of it.

    blocks: [start, end) of image blocks, counted from the first new token. None: one token, which sees everything.
    """
    if len(new) == 1:
        return None
    carried_len = min(new.start_at, window - 1)
    query = torch.arange(carried_len, carried_len + len(new), device=device).unsqueeze(1)
    key = torch.arange(carried_len + len(new), device=device)
    seen = (key <= query) & (key > query - window)
    for start, end in blocks:
        seen[start:end, carried_len + start : carried_len + end] = True
    return seen


def ready_mask(new: Stretch, ratio: int, device: torch.device) -> Tensor | None:
    """Which entries new tokens see, those of windows that end no later than they do; None when each sees all."""
    if (new.start_at + 1) // ratio == new.end_at // ratio:
        return None
    done = (torch.arange(new.start_at, new.end_at, device=device) + 1) // ratio
    return torch.arange(new.end_at // ratio, device=device) < done.unsqueeze(1)
