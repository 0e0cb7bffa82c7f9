"""The layout of a mixed step as a device wants it: few arrays of small integers, sent in one piece.

Owns the arithmetic from a `Batch`'s Python tuples to `Lanes` and `Runs`, and the cutting of runs into blocks and
chunks. Every array starts at a multiple of 16 bytes. Expects single tokens first, then runs, then what is verified
(`qwen3_5.sorted_batch`). Knows no layers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from foveate.models.interface import Batch
from foveate.ops.kernels import RunKernels
from foveate.ops.lanes import Lanes, Runs

Part = tuple[slice, Lanes | Runs]
Numbers = list[int] | np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class DeviceStep:
    """All sequences of a step, and the parts that layers treat in one piece, each with its tokens."""

    lanes: Lanes
    parts: tuple[Part, ...]


def mixed_step(batch: Batch, page_len: int, runs: RunKernels) -> DeviceStep:
    """The layout of a sorted batch."""
    lens, past_lens, count = batch.query_lens, batch.past_lens, len(batch.query_lens)
    verify = batch.verify or (False,) * count
    settled = count - sum(verify)
    ones = sum(length == 1 for length in lens[:settled])
    pages = batch.pages.int()
    slots = batch.slots.int()
    arrays: list[Numbers] = []
    bounds = [(first, last) for first, last in ((0, ones), (ones, settled), (settled, count)) if first < last]
    for first, last in [(0, count), *bounds]:
        own = lens[first:last]
        arrays += [[0, *accumulate(own)], list(past_lens[first:last])]
        arrays.append(np.repeat(np.arange(last - first), own))
        arrays += cut(own, past_lens[first:last], runs) if (first, last) == (ones, settled) else [[], [], []]
    sent = _send(arrays, batch.ids.device)
    groups = [sent[at : at + 6] for at in range(0, len(sent), 6)]

    def lanes_of(first: int, last: int, group: list[Tensor]) -> Lanes:
        width, settle = max(lens[first:last]), not verify[first]
        starts, past, owner = group[:3]
        return Lanes(starts, past, pages[first:last], slots[first:last], owner, width, page_len, settle)

    parts: list[Part] = []
    offsets = batch.offsets
    for (first, last), group in zip(bounds, groups[1:], strict=True):
        lanes = lanes_of(first, last, group)
        tokens = slice(offsets[first], offsets[last])
        if (first, last) == (ones, settled):
            parts.append((tokens, Runs(lanes, group[3].view(-1, 2), group[4].view(-1, 2), group[5])))
        else:
            parts.append((tokens, lanes))
    return DeviceStep(replace(lanes_of(0, count, groups[0]), settle=True), tuple(parts))


def cut(lens: tuple[int, ...], past_lens: tuple[int, ...], runs: RunKernels) -> list[Numbers]:
    """Blocks, chunks and where each run's chunks begin, as of `Runs`, flattened."""
    blocks = [(s, at) for s, length in enumerate(lens) for at in range(0, length, runs.block_len)]
    blocks.sort(key=lambda block: -(past_lens[block[0]] + block[1]))  # the longest first: no straggler at the end
    chunks = [(s, at) for s, length in enumerate(lens) for at in range(0, length, runs.chunk_len)]
    starts = [0, *accumulate(-(-length // runs.chunk_len) for length in lens)]
    return [[x for pair in blocks for x in pair], [x for pair in chunks for x in pair], starts]


def _send(arrays: list[Numbers], device: torch.device) -> list[Tensor]:
    """Each list as int32 on the device, all in one transfer."""
    begins = [0, *accumulate(-(-len(values) // 4) * 4 for values in arrays)]
    packed = np.zeros(begins[-1], dtype=np.int32)
    for values, begin in zip(arrays, begins, strict=False):
        packed[begin : begin + len(values)] = values
    host = torch.from_numpy(packed)
    whole = (host.pin_memory() if device.type == "cuda" else host).to(device, non_blocking=True)
    return [whole[begin : begin + len(values)] for values, begin in zip(arrays, begins, strict=False)]
