"""From a checkpoint's tensors to a model's: checked against what is expected, converted, read side by side.

Owns the comparison of an inventory with what a model expects, made before anything is read, and the `Source` that hands
out contents on the wanted device in the wanted type, with progress in bytes. Contents come from the folder's files or,
for measuring without a checkpoint, from a generator of random numbers; the rest of loading cannot tell. Knows no model:
which tensors are expected is told by the caller.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from foveate.core.errors import CheckpointError
from foveate.models.dummy import QUANTISED, TWIN, Drawn, Spreads
from foveate.models.files import KINDS, Files, Stored, inventory, read_json
from foveate.models.quantization import BlockFormat
from foveate.ops.fp8 import BLOCK, Block, Blocked, dequantise
from foveate.ops.threads import compute_with

__all__ = [
    "Place",
    "Progress",
    "Source",
    "Spreads",
    "Stored",
    "check",
    "invent",
    "inventory",
    "open_source",
    "read_json",
    "turned",
    "twins",
]

FLOATS = ("F64", "F32", "F16", "BF16")
GPU_LOADERS = 8  # threads that read for a GPU; they wait for the disk and for copies
STRIP = 32  # rows that a CPU turns at a time: they share cache lines
Progress = Callable[[int, int], None]  # (done_bytes, total_bytes)
Item = TypeVar("Item")
Built = TypeVar("Built")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a model's tensors go and who is told of the progress.

    dummy: random numbers instead of the files' contents. eight_bit: whether block-scaled matrices stay as they are;
    None: on a GPU, where that halves what a step reads. kernels: whether these are multiplied by kernels there.
    """

    device: torch.device
    dtype: torch.dtype
    progress: Progress | None = None
    dummy: bool = False
    eight_bit: bool | None = None
    kernels: bool = True


class Contents(Protocol):
    """Where the numbers come from; many threads may read at once."""

    def read(self, name: str, found: Stored, device: torch.device, dtype: torch.dtype) -> Tensor: ...


def check(
    stored: Mapping[str, Stored],
    expected: Mapping[str, tuple[int, ...]],
    left_alone: tuple[str, ...],
    blocked: Collection[str] = (),
) -> None:
    """Compare an inventory with what a model expects; names starting with one of `left_alone` are not its concern.

    `blocked` names tensors that are 8-bit floats. Raises CheckpointError naming the first missing, mis-shaped,
    unreadable or unexpected tensor.
    """
    for name, shape in expected.items():
        if name not in stored:
            raise CheckpointError(f"tensor {name} {list(shape)} is missing from the checkpoint")
        found = stored[name]
        if found.shape != shape:
            raise CheckpointError(f"tensor {name} in {found.file}: expected {list(shape)}, found {list(found.shape)}")
        if found.kind not in FLOATS and name not in blocked:
            raise CheckpointError(f"tensor {name} in {found.file} has type {found.kind}, which is not supported")
    for name, found in stored.items():
        if name not in expected and not name.startswith(left_alone):
            raise CheckpointError(f"unexpected tensor {name} {list(found.shape)} in {found.file}")


def twins(
    stored: Mapping[str, Stored], expected: Mapping[str, tuple[int, ...]], blocks: BlockFormat | None
) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the scales that stand beside the expected tensors stored in 8 bits.

    Raises CheckpointError for an 8-bit tensor of a module that the config says is not quantised.
    """
    if blocks is None:
        return {}
    eight = [name for name in expected if name in stored and stored[name].kind == QUANTISED and len(expected[name]) > 1]
    for name in eight:
        if blocks.keeps(name):
            raise CheckpointError(f"tensor {name} is {QUANTISED}, but quantization_config lists its module as kept")
    return {name + TWIN: blocks.scales_shape(expected[name]) for name in eight}


def invent(
    expected: Mapping[str, tuple[int, ...]], blocks: BlockFormat | None, ends: tuple[str, ...]
) -> dict[str, Stored]:
    """An inventory without files: what a release of this shape would hold; `ends` of names are what it quantises."""
    stored = {}
    for name, shape in expected.items():
        eight = blocks is not None and name.endswith(ends) and not blocks.keeps(name)
        stored[name] = Stored("", shape, QUANTISED if eight else "BF16")
        if eight and blocks is not None:
            stored[name + TWIN] = Stored("", blocks.scales_shape(shape), "BF16")
    return stored


class Source:
    """Contents of checked tensors, converted; `get` each name once, from any thread."""

    def __init__(self, contents: Contents, stored: Mapping[str, Stored], place: Place, block: Block = BLOCK) -> None:
        """The progress of `place` is told (done_bytes, total_bytes) after each tensor."""
        self._contents, self.stored, self._place, self._block = contents, stored, place, block
        self.device, self.dtype = place.device, place.dtype
        self.eight_bit = place.device.type == "cuda" if place.eight_bit is None else place.eight_bit
        self._done, self._total = 0, sum(found.size for found in stored.values())
        self._lock = threading.Lock()

    def get(self, name: str) -> Tensor:
        """The tensor in the model's type; numbers that are stored block-scaled come out as what they stand for."""
        return self._numbers(name, self._place.dtype)

    def exact(self, name: str) -> Tensor:
        """The tensor in float32, for values that reach the result undiluted."""
        return self._numbers(name, torch.float32)

    def raw(self, name: str) -> Tensor:
        """The tensor in the type that it is stored in."""
        return self._read(name, KINDS[self.stored[name].kind])

    def is_blocked(self, name: str) -> bool:
        """Whether the tensor is block-scaled and shall stay so."""
        return self.eight_bit and name + TWIN in self.stored

    def blocked(self, name: str) -> Blocked:
        """A block-scaled matrix as it is stored."""
        return Blocked.of(self.raw(name), self.exact(name + TWIN), self._block, self._place.kernels)

    def each(self, build: Callable[[Item], Built], items: Sequence[Item]) -> list[Built]:
        """`build` of every item, in order, several at once; raises the first error."""
        own = torch.get_num_threads()
        workers = min(GPU_LOADERS if self.device.type == "cuda" else own, len(items))
        if workers < 2:
            return [build(item) for item in items]
        try:
            with ThreadPoolExecutor(workers, "foveate-load", compute_with, (1,)) as pool:
                return list(pool.map(build, items))
        finally:
            compute_with(own)  # threads that start later take over what was set last

    def _numbers(self, name: str, dtype: torch.dtype) -> Tensor:
        if name + TWIN not in self.stored:
            return self._read(name, dtype)
        return dequantise(self.raw(name), self.exact(name + TWIN), self._block, dtype)

    def _read(self, name: str, dtype: torch.dtype) -> Tensor:
        found = self.stored[name]
        tensor = self._contents.read(name, found, self.device, dtype)
        with self._lock:
            self._done += found.size
            if self._place.progress is not None:
                self._place.progress(self._done, self._total)
        return tensor


def open_source(
    folder: Path, stored: Mapping[str, Stored], place: Place, spreads: Spreads = (), block: Block = BLOCK
) -> Source:
    """A source of these tensors: of a folder's files, or random where the place says so (like `spreads`)."""
    contents: Contents = Drawn(dict(stored), spreads) if place.dummy else Files(folder)
    return Source(contents, stored, place, block)


def turned(*parts: Tensor) -> Tensor:
    """Weights [rows, columns] of one input above one another, as one [columns, all rows].

    On a CPU the outputs of an input stand side by side in memory, on a GPU the inputs of an output: each multiplies
    few rows faster that way, and many as fast as the other.
    """
    if parts[0].is_cuda:
        return (torch.cat(parts) if len(parts) > 1 else parts[0]).T
    out = parts[0].new_empty(parts[0].shape[1], sum(len(part) for part in parts))
    at = 0
    for part in parts:
        for start in range(0, len(part), STRIP):
            end = min(start + STRIP, len(part))
            out[:, at + start : at + end] = part[start:end].T
        at += len(part)
    return out
