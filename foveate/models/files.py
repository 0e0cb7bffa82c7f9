"""A checkpoint folder's safetensors files: which tensors there are, and their bytes brought to a device.

Owns the files, single or sharded, and their format (an 8-byte length, a JSON header, the tensors' bytes). Reading is
safe from many threads at once: each goes through a buffer of its own, pinned where the tensor goes to a GPU, and keeps
nothing open or mapped, so that files may change or vanish under a running server. Raises CheckpointError naming file
and tensor. Knows no model.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from foveate.core.errors import CheckpointError

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
PIECE = 8 * 2**20  # bytes of a thread's buffer; a multiple of every item size
KINDS = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor as its file's header describes it; `start` is where its bytes begin in the file."""

    file: str
    shape: tuple[int, ...]
    kind: str
    start: int = 0

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return prod(self.shape) * (KINDS[self.kind].itemsize if self.kind in KINDS else 1)


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
    path = folder / file
    if not path.exists():
        raise CheckpointError(f"{file} is missing from {folder}")
    try:
        # The library checks what a header could lie about: lengths, overlaps, types.
        with safe_open(path, framework="pt", device="cpu"), path.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            header: dict[str, Any] = json.loads(opened.read(length))
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"{file} is not a usable safetensors file: {error}") from error
    begin = 8 + length
    return {
        name: Stored(file, tuple(fact["shape"]), fact["dtype"], begin + fact["data_offsets"][0])
        for name, fact in header.items()
        if name != "__metadata__"
    }


class Files:
    """Contents of a folder's tensors."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._own = folder, threading.local()

    def read(self, name: str, found: Stored, device: torch.device, dtype: torch.dtype) -> Tensor:
        """A tensor on a device and in a type, a copy of its own. Raises CheckpointError when it cannot be read."""
        kind = KINDS[found.kind]
        try:
            with (self._folder / found.file).open("rb", buffering=0) as opened:
                if device.type != "cpu":
                    return self._to_device(opened.fileno(), found, device).view(kind).view(found.shape).to(dtype)
                out = torch.empty(found.shape, dtype=dtype)
                if kind == dtype:
                    _fill(opened.fileno(), out.view(-1).view(torch.uint8), found.start)
                else:
                    flat = out.view(-1)
                    for at, piece in self._pieces(opened.fileno(), found, pinned=False):
                        part = piece.view(kind)
                        flat[at // kind.itemsize : at // kind.itemsize + len(part)].copy_(part)
                return out
        except (OSError, EOFError) as error:
            raise CheckpointError(f"tensor {name} in {found.file} cannot be read: {error}") from error

    def _to_device(self, handle: int, found: Stored, device: torch.device) -> Tensor:
        """A tensor's bytes through the pinned buffer."""
        raw = torch.empty(found.size, dtype=torch.uint8, device=device)
        for at, piece in self._pieces(handle, found, pinned=True):
            raw[at : at + len(piece)].copy_(piece, non_blocking=True)
            torch.cuda.current_stream(device).synchronize()  # the buffer is filled again right away
        return raw

    def _pieces(self, handle: int, found: Stored, pinned: bool) -> Iterator[tuple[int, Tensor]]:
        """The tensor's bytes from its first to its last, with the offset of each; a piece is valid until the next."""
        buffer: Tensor | None = getattr(self._own, "buffer", None)
        if buffer is None:
            buffer = self._own.buffer = torch.empty(PIECE, dtype=torch.uint8, pin_memory=pinned)
        for at in range(0, found.size, PIECE):
            piece = buffer[: min(PIECE, found.size - at)]
            _fill(handle, piece, found.start + at)
            yield at, piece


def _fill(handle: int, out: Tensor, start: int) -> None:
    """Fill bytes [size] from a file; the interpreter is free meanwhile. EOFError when the file is too short."""
    array: Any = out.numpy()  # of bytes, in one piece
    view, done = memoryview(array), 0
    while done < len(view):
        got = os.preadv(handle, [view[done:]], start + done)
        if not got:
            raise EOFError("the file ends too early")
        done += got
