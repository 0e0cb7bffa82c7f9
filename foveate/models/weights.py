"""Reading checkpoints: which tensors there are, whether they are the expected ones, and their contents.

Owns the safetensors files of a folder, single or sharded. Everything is checked from the file headers before any
tensor is read, and every complaint names the tensor, its file and both shapes. Contents come converted to the wanted
device and type, with progress reported in bytes. Knows no model: which tensors are expected is told by the caller.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from foveate.core.errors import CheckpointError

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
Progress = Callable[[int, int], None]  # (done_bytes, total_bytes)


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor as its file's header describes it."""

    file: str
    shape: tuple[int, ...]
    kind: str

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return prod(self.shape) * BYTES.get(self.kind, 1)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises CheckpointError when it is missing or something else."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path.name} is missing from {path.parent}") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path.name} cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path.name} does not hold a JSON object")
    return data


def inventory(folder: Path) -> dict[str, Stored]:
    """Every tensor of a checkpoint folder by name, from the headers of its files.

    Raises CheckpointError for a missing or broken file, and for a tensor that is not in the file its index names.
    """
    if not (folder / INDEX).exists():
        return _headers(folder, SINGLE)
    where = read_json(folder / INDEX).get("weight_map")
    if not isinstance(where, dict):
        raise CheckpointError(f"{INDEX} has no weight_map")
    stored: dict[str, Stored] = {}
    for file in sorted(set(where.values())):
        stored |= _headers(folder, file)
    for name, file in where.items():
        if name not in stored or stored[name].file != file:
            raise CheckpointError(f"tensor {name} is missing from {file}, where {INDEX} puts it")
    return stored


def _headers(folder: Path, file: str) -> dict[str, Stored]:
    if not (folder / file).exists():
        raise CheckpointError(f"{file} is missing from {folder}")
    with _open(folder / file, "cpu") as opened:
        parts = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 - not a dict
        return {name: Stored(file, tuple(part.get_shape()), part.get_dtype()) for name, part in parts.items()}


def _open(path: Path, device: str) -> Any:
    try:
        return safe_open(path, framework="pt", device=device)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path.name} is not a usable safetensors file: {error}") from error


def check(stored: Mapping[str, Stored], expected: Mapping[str, tuple[int, ...]], left_alone: tuple[str, ...]) -> None:
    """Compare an inventory with what a model expects; names starting with one of `left_alone` are not its concern.

    Raises CheckpointError naming the first missing, mis-shaped, unreadable or unexpected tensor.
    """
    for name, shape in expected.items():
        if name not in stored:
            raise CheckpointError(f"tensor {name} {list(shape)} is missing from the checkpoint")
        found = stored[name]
        if found.shape != shape:
            raise CheckpointError(f"tensor {name} in {found.file}: expected {list(shape)}, found {list(found.shape)}")
        if found.kind not in BYTES:
            raise CheckpointError(f"tensor {name} in {found.file} has type {found.kind}, which is not supported")
    for name, found in stored.items():
        if name not in expected and not name.startswith(left_alone):
            raise CheckpointError(f"unexpected tensor {name} {list(found.shape)} in {found.file}")


class Source:
    """Contents of checked tensors, converted; `get` each name once.

    device, dtype: where and what tensors become. progress: told (done_bytes, total_bytes) after each tensor.
    """

    def __init__(
        self,
        folder: Path,
        stored: Mapping[str, Stored],
        device: torch.device,
        dtype: torch.dtype,
        progress: Progress | None = None,
    ) -> None:
        self._folder, self.stored, self._files = folder, stored, dict[str, Any]()
        self.device, self._dtype, self._progress = device, dtype, progress
        self._done, self._total = 0, sum(found.size for found in stored.values())

    def get(self, name: str) -> Tensor:
        """The tensor in the model's type."""
        return self._read(name, self._dtype)

    def exact(self, name: str) -> Tensor:
        """The tensor in float32, for values that reach the result undiluted."""
        return self._read(name, torch.float32)

    def _read(self, name: str, dtype: torch.dtype) -> Tensor:
        found = self.stored[name]
        if found.file not in self._files:
            self._files[found.file] = _open(self._folder / found.file, "cpu")
        try:
            tensor = self._files[found.file].get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"tensor {name} in {found.file} cannot be read: {error}") from error
        # A copy in any case: the file's own pages may be unmapped or change under a running server.
        tensor = tensor.to(self.device, dtype, copy=True)
        self._done += found.size
        if self._progress is not None:
            self._progress(self._done, self._total)
        return tensor
