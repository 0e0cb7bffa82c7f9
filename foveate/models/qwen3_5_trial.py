"""Drafts under verification in the Qwen3.5 trunk: what a step keeps of them until it is known which ones stand.

Owns the deferred commit of one step: DeltaNet layers read their states and leave records here, full layers write keys
and values to the places that the scheduler leased for them; `commit` then builds the states of the accepted paths and
moves their keys and values to where a plain run would have put them. What was rejected leaves nothing that is ever
read. Knows no tokens and no acceptance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from foveate.models.interface import Batch
from foveate.ops.branches import (
    Branches,
    DeltaRecord,
    branch_conv,
    branch_delta,
    chain,
    keep_conv,
    keep_delta,
    lay_out_branches,
)
from foveate.ops.gated_delta import DeltaInputs
from foveate.ops.pages import PagedLayout


@dataclass(slots=True)
class Trial:
    """The verified sequences of one step, which stand last in it.

    start: flat index of their first token. layout: the step's, with branches in its masks. states: convolution state
    and stream, then recurrent state and record, of each DeltaNet layer so far.
    """

    start: int
    branches: Branches
    slots: Tensor
    layout: PagedLayout
    paged: tuple[Tensor, ...]
    convs: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    deltas: list[tuple[Tensor, DeltaRecord]] = field(default_factory=list)

    def convolve(self, x: Tensor, weight: Tensor, carried: Tensor) -> Tensor:
        """A layer's convolution over the verified tokens [tokens, channels]."""
        out, stream = branch_conv(x, weight, carried, self.slots, self.branches)
        self.convs.append((carried, stream))
        return out

    def delta(self, inputs: DeltaInputs, state: Tensor) -> Tensor:
        """A layer's delta rule over the verified tokens: [tokens, value heads, value dim]."""
        out, record = branch_delta(inputs, state, self.slots, self.branches)
        self.deltas.append((state, record))
        return out

    @torch.no_grad()
    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        """Write the states of these paths, one per verified sequence; each begins with 0, the anchor."""
        assert len(paths) == len(self.branches.lens) and all(path[0] == 0 for path in paths), "not one path each"
        last = [path[-1] for path in paths]
        ends, last_at = self.branches.ends(last), torch.tensor(last).to(self.slots.device)
        for carried, stream in self.convs:
            keep_conv(stream, carried, self.slots, self.branches, ends)
        for state, record in self.deltas:
            keep_delta(record, state, self.slots, last_at)
        self._compact(paths)

    def _compact(self, paths: Sequence[Sequence[int]]) -> None:
        """Move keys and values of accepted tokens that stand behind rejected siblings to the front."""
        moved, start = [], self.start
        for length, path in zip(self.branches.lens, paths, strict=True):
            moved += [(start + at, start + number) for number, at in enumerate(path) if at != number]
            start += length
        if moved:
            source, target = self.layout.write_at[torch.tensor(moved).to(self.slots.device)].unbind(1)
            for tensor in self.paged:
                flat = tensor.flatten(0, 1)
                flat.index_copy_(0, target, flat.index_select(0, source))


def begin_trial(batch: Batch, layout: PagedLayout, paged: tuple[Tensor, ...], kernel: int) -> Trial:
    """The trial of a batch whose verified sequences stand last.

    paged: all tensors that full layers write at the layout's places; kernel: taps of the convolution.
    """
    first = batch.verify.index(True)
    lens = batch.query_lens[first:]
    assert all(batch.verify[first:]) and min(lens) > 1, "verified sequences stand last and hold drafts"
    parents = [
        (batch.parents[s] if batch.parents else ()) or chain(batch.query_lens[s] - 1)
        for s in range(first, len(batch.verify))
    ]
    branches = lay_out_branches(parents, kernel, batch.slots.device)
    reaches = list(layout.reaches)
    for run, s in enumerate(range(first, len(reaches))):
        reach, length = reaches[s], lens[run]
        if batch.parents and batch.parents[s]:
            past = reach.seen_len - length
            mask = torch.ones(length, reach.seen_len, dtype=torch.bool, device=batch.slots.device)
            mask[:, past:] = branches.seen[run, :length, :length]
            reaches[s] = replace(reach, mask=mask)
    return Trial(
        start=batch.offsets[first],
        branches=branches,
        slots=batch.slots[first:],
        layout=replace(layout, reaches=tuple(reaches)),
        paged=paged,
    )
