"""Moves packs from shared memory onto the device, and replays a step as one CUDA graph.

Owns the static buffer a captured step reads from, the copy thread that stays one pack ahead, and the capture itself.
Promises that a step never waits for a copy that could have run beside the last one, and that on a CPU the same calls
simply run. Knows nothing about models or losses.
"""

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recipe.model import Pack
from recipe.packs import Packs

KINDS = {np.uint8: torch.uint8, np.int8: torch.int8, np.int16: torch.int16, np.int32: torch.int32,
         np.float32: torch.float32}  # fmt: skip


class Captured:
    """A function over static tensors: warmed up and captured at once, then replayed at every call."""

    def __init__(self, function: Callable[[], None], capture: bool, warmups: int = 3) -> None:
        self.function, self.graph = function, None
        if not capture:
            return
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(warmups):
                function()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            function()

    def __call__(self) -> None:
        """Run the function once."""
        if self.graph is None:
            self.function()
        else:
            self.graph.replay()


def token_pack(fields: dict[str, Tensor]) -> Pack:
    """The model's inputs, widened to the types its operations want (part of the captured step)."""
    f = fields
    return Pack(
        f["patches"],
        f["cells"].int(),
        f["image_edges"],
        f["ids"].long(),
        f["source"].long(),
        f["where"].int(),
        f["age"].int(),
        f["edges"],
    )


class StaticPack:
    """One pack's tensors at fixed addresses on a device."""

    def __init__(self, shape: Packs, device: torch.device, widen: Callable[..., Any] = token_pack) -> None:
        """widen: from the tensors by name to what the model takes."""
        self.shape, self.widen = shape, widen
        self.flat = torch.zeros(shape.nbytes, dtype=torch.uint8, device=device)
        self.fields: dict[str, Tensor] = {}
        at = 0
        for name, (dims, kind) in shape.fields().items():
            size = int(np.prod(dims)) * np.dtype(kind).itemsize
            self.fields[name] = self.flat[at : at + size].view(KINDS[kind]).view(dims)
            at += -(-size // 64) * 64

    def __getitem__(self, name: str) -> Tensor:
        return self.fields[name]

    def load(self, buffer: NDArray[np.uint8]) -> None:
        """Copy a pack's bytes in, at once."""
        self.flat.copy_(torch.from_numpy(buffer))

    def pack(self) -> Any:
        """The model's inputs."""
        return self.widen(self.fields)


class Stager:
    """Feeds a static pack from an iterator of buffers, copying ahead in a thread on a GPU."""

    def __init__(self, static: StaticPack, buffers: Iterator[NDArray[np.uint8]]) -> None:
        self.static, self.buffers = static, buffers
        self.cuda = static.flat.is_cuda
        self.failed: BaseException | None = None
        if self.cuda:
            size = static.shape.nbytes
            self.pinned = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
            self.staged = [torch.empty_like(static.flat) for _ in range(2)]
            self.free: queue.Queue[Any] = queue.Queue()
            self.full: queue.Queue[Any] = queue.Queue()
            for i in range(2):
                self.free.put((i, None))
            self.stream = torch.cuda.Stream()
            threading.Thread(target=self._copy, daemon=True).start()

    def _copy(self) -> None:
        try:
            for buffer in self.buffers:
                index, consumed = self.free.get()
                if consumed is not None:
                    consumed.synchronize()
                self.pinned[index].copy_(torch.from_numpy(buffer))
                with torch.cuda.stream(self.stream):
                    self.staged[index].copy_(self.pinned[index], non_blocking=True)
                    arrived = torch.cuda.Event()
                    arrived.record(self.stream)
                self.full.put((index, arrived))
        except BaseException as error:  # handed to the trainer, which raises it
            self.failed = error
        self.full.put(None)

    def advance(self) -> bool:
        """Bring the next pack into the static buffer; False when there are no more."""
        if not self.cuda:
            buffer = next(self.buffers, None)
            if buffer is not None:
                self.static.load(buffer)
            return buffer is not None
        item = self.full.get()
        if item is None:
            if self.failed is not None:
                raise self.failed
            return False
        index, arrived = item
        torch.cuda.current_stream().wait_event(arrived)
        self.static.flat.copy_(self.staged[index])
        consumed = torch.cuda.Event()
        consumed.record()
        self.free.put((index, consumed))
        return True
